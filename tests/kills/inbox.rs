//! Receivers with an inbox are killed, stopped and terminated under load, again and again, and so is what they depend on:
//! the server restarts, connections break, the disk is full. Every event that was acknowledged is handled, none is
//! handled again after its settlement was committed, the events of a chat start in the order of acceptance, none waits for
//! much longer than a lease, and a receiver that was asked to stop begins none, nor does what it interrupts count. Some
//! deliveries have three events, of which all are stored, or none. In the end, an event that kills its receivers is found,
//! and those beside it are handled.
//!
//! `KILLS=500` sets the number of faults for each test, which defaults to 25.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use sqlx::postgres::{PgPool, PgPoolOptions};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};
use tower_webhook::Secret;
use tower_webhook::inbox::{EventState, EventSummary, Filter, Inbox, Page};
use tower_webhook::postgres::PostgresQueue;
use tower_webhook::sqlite::SqliteQueue;

use support::delivery::SECRET;
use support::postgres::{PostgresServer, Stop};
use support::program::{PATIENCE, Server, example, until};

const LEASE: Duration = Duration::from_secs(2);
/// How long after the end of its lease an event may wait for its turn, on a busy machine.
const SLACK: Duration = Duration::from_secs(3);
/// How long after a signal a receiver may begin an event that it had taken before, on a busy machine. Handlers of one in ten
/// events take twice as long.
const NOTICED: Duration = Duration::from_millis(300);
const SENDERS: usize = 8;
const CHATS: usize = 20;
/// Of every fourth delivery.
const ITEMS: usize = 3;
/// With more unsettled events, the senders wait.
const BACKLOG: usize = 30;

#[tokio::test(flavor = "multi_thread")]
async fn one_killed_receiver_keeps_its_inbox_with_sqlite() {
    survives_with_sqlite(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_killed_receivers_share_an_inbox_with_sqlite() {
    survives_with_sqlite(3).await;
}

async fn survives_with_sqlite(receivers: usize) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("webhooks.db");
    let inbox = Inbox::new(SqliteQueue::open(&path).unwrap());
    let url = format!("sqlite:{}", path.display());
    survives(receivers, &url, &inbox, Storage::File(path)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_killed_receiver_keeps_its_inbox_with_postgres() {
    survives_with_postgres(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_killed_receivers_share_an_inbox_with_postgres() {
    survives_with_postgres(3).await;
}

async fn survives_with_postgres(receivers: usize) {
    let server = PostgresServer::start();
    let pool = PgPoolOptions::new().connect_lazy(&server.url()).unwrap();
    let queue = PostgresQueue::new(pool.clone());
    queue.migrate().await.unwrap();
    let url = server.url();
    survives(
        receivers,
        &url,
        &Inbox::new(queue),
        Storage::Server(server, pool),
    )
    .await;
}

/// What the inbox is stored in, and what happens to it.
enum Storage {
    File(PathBuf),
    Server(PostgresServer, PgPool),
}

impl Storage {
    /// Fails, and works again. Meanwhile, deliveries are refused.
    async fn fail(&mut self, receivers: &[Receiver], sender: &Sender, random: &mut fastrand::Rng) {
        match self {
            Self::File(path) => {
                // No process can write beyond the end of the log, or beyond an earlier offset, as if the disk were
                // full. Events that are accepted until the log has that length have to be handled later.
                let log = path.with_extension("db-wal");
                let size = fs::metadata(log).unwrap().len();
                let size = size.min(random.u64(..256 * 1024));
                let limit = |limit: &str| {
                    for receiver in receivers {
                        receiver.server.limit_files(limit);
                    }
                };
                limit(&format!("{size}:unlimited"));
                sender.is_refused(receivers);
                sleep(Duration::from_millis(random.u64(100..1500))).await;
                sender.is_refused(receivers);
                limit("unlimited:unlimited");
            }
            Self::Server(server, pool) => match random.u8(..3) {
                0 => {
                    // The same for the server's own processes. One that cannot write its log panics, and the server
                    // ends if it cannot recover either.
                    let size = random.u64(..2 << 20);
                    assert!(server.limit_files(&format!("{size}:unlimited")));
                    sender.is_refused(receivers);
                    sleep(Duration::from_millis(random.u64(100..1500))).await;
                    sender.is_refused(receivers);
                    // It may have ended.
                    server.limit_files("unlimited:unlimited");
                    let recovers = async || sqlx::query("SELECT 1").execute(&*pool).await;
                    let recovers = until_ok(recovers);
                    if timeout(Duration::from_secs(2), recovers).await.is_err() {
                        server.restart();
                    }
                }
                1 => {
                    server.stop(Stop::Immediate);
                    sender.is_refused(receivers);
                    sleep(Duration::from_millis(random.u64(100..1500))).await;
                    sender.is_refused(receivers);
                    server.restart();
                }
                _ => {
                    let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                        WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'";
                    for _ in 0..3 {
                        until_ok(async || sqlx::query(cut).execute(&*pool).await).await;
                        sleep(Duration::from_millis(random.u64(10..200))).await;
                    }
                }
            },
        }
        sender.is_accepted(receivers);
    }
}

/// Asks again while the connection is broken.
async fn until_ok<T, E: std::fmt::Debug>(ask: impl AsyncFn() -> Result<T, E>) -> T {
    let began = Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) => assert!(began.elapsed() < PATIENCE, "{error:?}"),
        }
        sleep(Duration::from_millis(20)).await;
    }
}

async fn survives(count: usize, url: &str, inbox: &Inbox, mut storage: Storage) {
    let kills: usize = std::env::var("KILLS").map_or(25, |kills| kills.parse().unwrap());
    let dir = TempDir::new().unwrap();
    let mut random = fastrand::Rng::new();
    let mut receivers: Vec<_> = (0..count)
        .map(|_| Receiver::start(url, dir.path()))
        .collect();
    let sender = Arc::new(Sender::default());
    sender.reach(&receivers);
    let watched = Arc::clone(&sender);
    let watch = async || {
        loop {
            if let Ok(stats) = inbox.stats().await {
                let unsettled = usize::try_from(stats.unsettled()).unwrap();
                watched.backlog.store(unsettled, Ordering::SeqCst);
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    let senders: Vec<_> = (0..SENDERS)
        .map(|number| {
            let sender = Arc::clone(&sender);
            thread::spawn(move || sender.work(number))
        })
        .collect();

    let mut violations = Vec::new();
    let mut deaths: Vec<(Duration, Duration)> = Vec::new();
    // When receivers were stopped, and their logs.
    let mut stops: HashMap<usize, (Duration, String)> = HashMap::new();
    // By key, the number of marks when its settlement was known to be committed.
    let mut settled: HashMap<String, usize> = HashMap::new();
    let mut storage_failed = 0;
    for number in 0..kills {
        let pause = Duration::from_millis(random.u64(200..900));
        let _ = timeout(pause, watch()).await;
        for event in all(inbox).await {
            if event.state == EventState::Handled {
                settled
                    .entry(event.key.unwrap().to_string())
                    .or_insert(usize::MAX);
            }
        }
        let known = marks(&dir).len();
        for place in settled.values_mut().filter(|place| **place == usize::MAX) {
            *place = known;
        }
        let victim = random.usize(..count);
        let is_stopped = matches!(number % 8, 1 | 4);
        if is_stopped {
            // So that there is something to interrupt, unless others have all that is long.
            let _ = timeout(LEASE / 2, receivers[victim].handles_a_long_event(&dir)).await;
        }
        let died = now();
        match number % 8 {
            0 => {
                // Longer than a lease: another process takes over, or this one when it goes on.
                receivers[victim].signal(Signal::SIGSTOP);
                sleep(LEASE * 3 / 2).await;
                receivers[victim].signal(Signal::SIGCONT);
            }
            3 | 6 => {
                storage.fail(&receivers, &sender, &mut random).await;
                storage_failed += 1;
            }
            1 | 4 => {
                let stopped = &mut receivers[victim];
                stopped.signal(Signal::SIGTERM);
                let at = now();
                stopped.server.program.child.wait().unwrap();
                stops.insert(stopped.number, (at, stopped.server.err()));
                stopped.restart(url, &dir);
            }
            _ => {
                receivers[victim].signal(Signal::SIGKILL);
                receivers[victim].restart(url, &dir);
            }
        }
        sender.reach(&receivers);
        deaths.push((died, now()));
        if number % 16 == 3 {
            // The next fault hides for how long events wait.
            let _ = timeout(2 * LEASE + SLACK, watch()).await;
        }
        if is_stopped {
            // What it interrupted is tried again before the next fault, even if its lease has to expire.
            let _ = timeout(LEASE * 3 / 2, watch()).await;
        }
    }

    sender.stop.store(true, Ordering::SeqCst);
    for thread in senders {
        thread.join().unwrap();
    }
    let finished = async || {
        let began = Instant::now();
        loop {
            let stats = until_ok(async || inbox.stats().await).await;
            if stats.unsettled() == 0 {
                return stats;
            }
            let logs = || receivers.iter().map(|receiver| receiver.server.err());
            assert!(
                began.elapsed() < PATIENCE,
                "events are stuck: {stats}\n{:#?}",
                logs().collect::<Vec<_>>()
            );
            sleep(Duration::from_millis(100)).await;
        }
    };
    finished().await;
    // An event that was in progress at three deaths in a row looks like their cause. A person knows better.
    let events = all(inbox).await;
    let is_dead = |event: &&EventSummary| event.state == EventState::Dead;
    let mut redriven = HashSet::new();
    for event in events.iter().filter(is_dead) {
        let record = inbox.get(event.id).await.unwrap().unwrap();
        let last = record.failures.last().unwrap();
        assert_eq!(last.failure.outcome, "crashed", "{record:?}");
        inbox.redrive(event.id, None).await.unwrap();
        redriven.insert(event.key.clone().unwrap().to_string());
    }
    let stats = finished().await;
    assert!(stats.is_all_handled(), "{stats}");

    let marks = marks(&dir);
    let ended: HashSet<_> = marks
        .iter()
        .filter(|mark| !mark.is_start)
        .map(|mark| &mark.key)
        .collect();
    for (place, mark) in marks.iter().enumerate().filter(|(_, mark)| mark.is_start) {
        if settled.get(&mark.key).is_some_and(|known| *known <= place) {
            violations.push(format!(
                "{} was handled again after its settlement",
                mark.key
            ));
        }
    }
    for mark in marks.iter().filter(|mark| mark.is_start) {
        let stopped = stops.get(&mark.receiver).map(|(at, _)| at);
        if let Some(late) = stopped.and_then(|stopped| mark.at.checked_sub(*stopped + NOTICED)) {
            let late = late + NOTICED;
            violations.push(format!(
                "{} began {late:?} after the signal to stop",
                mark.key
            ));
        }
    }
    violations.append(&mut sender.unexpected.lock().unwrap());
    let acknowledged = sender.acknowledged.lock().unwrap().clone();
    for key in acknowledged.keys() {
        if !ended.contains(key) {
            violations.push(format!("{key} was acknowledged, and never handled"));
        }
    }
    let mut chats: HashMap<String, Vec<String>> = HashMap::new();
    let mut keys = HashSet::new();
    for event in all(inbox).await {
        if !keys.insert(event.key.clone()) {
            violations.push(format!("{} was stored twice", event.id));
        }
        chats
            .entry(event.chat.unwrap())
            .or_default()
            .push(event.key.unwrap().to_string());
    }
    let mut parts: HashMap<&str, usize> = HashMap::new();
    for (of, _) in chats.values().flatten().filter_map(|key| item_of(key)) {
        *parts.entry(of).or_default() += 1;
    }
    for (of, stored) in &parts {
        if *stored != ITEMS {
            violations.push(format!("{stored} events of {of} were stored"));
        }
    }
    let batches = parts.len();
    let mut starts: HashMap<&str, (usize, usize)> = HashMap::new();
    for (place, mark) in marks.iter().enumerate().filter(|(_, mark)| mark.is_start) {
        starts.entry(&mark.key).or_insert((place, place)).1 = place;
    }
    let sent = sender.sent.lock().unwrap().clone();
    for keys in chats.values_mut() {
        keys.retain(|key| !redriven.contains(key));
        for (first, second) in keys
            .iter()
            .flat_map(|first| keys.iter().map(move |it| (first, it)))
        {
            // Two that were sent at the same time may be accepted in either order, unless in one delivery.
            let is_before = match (item_of(first), item_of(second)) {
                (Some((of, at)), Some((of_second, at_second))) if of == of_second => at < at_second,
                _ => acknowledged.get(first).is_some_and(|at| *at < sent[second]),
            };
            if is_before && starts[&**first].1 > starts[&**second].0 {
                violations.push(format!("{second} started before {first}"));
            }
        }
    }
    // What a stop interrupts does not count, unless there was another fault before its next attempt, or the queue did not
    // answer for a lease, as when a server recovers and takes few connections yet: the receiver's log says so.
    let mut interrupted = 0;
    for (receiver, (stopped, log)) in &stops {
        let was_without = [
            "the lease on the event was lost",
            "could not be recorded: the event",
        ];
        if was_without.iter().any(|line| log.contains(line)) {
            continue;
        }
        let of_it = |mark: &&Mark| mark.is_start && mark.receiver == *receiver;
        for mark in marks.iter().filter(of_it) {
            let next = marks
                .iter()
                .find(|next| next.is_start && next.key == mark.key && next.at > *stopped);
            let Some(next) = next else { continue };
            let faults = deaths
                .iter()
                .filter(|(died, back)| *back > mark.at && *died < next.at);
            if faults.count() > 1 {
                continue;
            }
            interrupted += 1;
            if next.attempt != mark.attempt {
                let of_it: Vec<_> = marks.iter().filter(|it| it.key == mark.key).collect();
                violations.push(format!(
                    "{} was interrupted in attempt {} at {stopped:?}, and attempt {} followed: {of_it:?}, {log}",
                    mark.key, mark.attempt, next.attempt
                ));
            }
        }
    }
    // What was in progress when a process died or was stopped starts again within its lease.
    let mut longest = Duration::ZERO;
    for (number, (died, back)) in deaths.iter().enumerate() {
        let is_before = |mark: &&Mark| mark.at < *died;
        let mut open = HashMap::new();
        for mark in marks.iter().take_while(is_before) {
            match mark.is_start {
                true => drop(open.insert(&mark.key, mark.at)),
                false => drop(open.remove(&mark.key)),
            }
        }
        // A dead letter waits for a person.
        let open = open.into_iter().filter(|(key, _)| !redriven.contains(*key));
        for (key, started) in open {
            let later = marks
                .iter()
                .find(|mark| mark.key == *key && mark.at > started);
            let Some(later) = later else { continue };
            let from = (*died).max(*back);
            // Until the next fault: a receiver that does not live for as long as a lease cannot take what another one held.
            let next = deaths.iter().map(|(died, _)| *died).find(|at| *at >= from);
            let to = next.map_or(later.at, |next| next.min(later.at));
            let waited = to.saturating_sub(from);
            longest = longest.max(waited);
            if waited <= LEASE + SLACK {
                continue;
            }
            // A receiver retries few of those that have crashed at the same time: where no other one can, it waits for its turn.
            let turns = match count {
                1 => retried(&marks, key, from, to),
                _ => Duration::ZERO,
            };
            if waited - turns > LEASE + SLACK {
                let of_it: Vec<_> = marks.iter().filter(|it| it.key == *key).collect();
                violations.push(format!(
                    "{key} waited for {waited:?}, {turns:?} of it for its turn, after fault {number}, from {died:?} to \
                     {back:?}: {of_it:?}"
                ));
            }
        }
    }
    println!(
        "{count} receivers, {kills} faults, {storage_failed} of the storage: {} acknowledged, {batches} deliveries of \
         {ITEMS}, {} attempts, longest wait {longest:.1?}, {} dead letters, {interrupted} interrupted by stops",
        acknowledged.len(),
        marks.iter().filter(|mark| mark.is_start).count(),
        redriven.len()
    );
    assert!(
        violations.is_empty(),
        "{} violations: {violations:#?}",
        violations.len()
    );
    assert!(
        acknowledged.len() > 2 * kills,
        "there was no load: {}",
        acknowledged.len()
    );
    assert!(
        interrupted > 0 || kills < 100,
        "no stop interrupted an event"
    );
    finds_a_culprit(&mut receivers, url, inbox, &sender, &dir).await;
}

/// An event kills its receiver in each attempt, while others are in progress in as many chats.
async fn finds_a_culprit(
    receivers: &mut [Receiver],
    url: &str,
    inbox: &Inbox,
    sender: &Sender,
    dir: &TempDir,
) {
    const INNOCENTS: usize = 8;

    let keys = (0..=INNOCENTS).map(|at| match at {
        3 => "culprit".to_owned(),
        // They take longer than the others.
        _ => format!("innocent-{at}0"),
    });
    let began = Instant::now();
    for (chat, key) in keys.enumerate() {
        let request = request(&[(&key, 2 * CHATS + chat)]);
        let address = receivers[chat % receivers.len()].address();
        assert_eq!(sender.send(address, &request), Some(true), "{key}");
    }
    let mut deaths = 0;
    loop {
        for receiver in &mut *receivers {
            if receiver.server.program.child.try_wait().unwrap().is_some() {
                deaths += 1;
                receiver.restart(url, dir);
            }
        }
        let stats = until_ok(async || inbox.stats().await).await;
        if stats.unsettled() == 0 {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "events are stuck: {stats}");
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(deaths, 3, "the culprit was tried again");
    let took = began.elapsed();
    assert!(took < 4 * (LEASE + SLACK), "the others waited for {took:?}");
    for event in all(inbox).await {
        let is_culprit = event.key.is_some_and(|key| key.to_string() == "culprit");
        let expected = if is_culprit {
            EventState::Dead
        } else {
            EventState::Handled
        };
        assert_eq!(event.state, expected, "{}", event.id);
    }
    for mark in marks(dir) {
        if mark.key.starts_with("innocent") {
            assert!(
                mark.attempt <= 2,
                "it was beside the culprit again: {mark:?}"
            );
        }
    }
}

/// The time since the machine started, which a shell can read without another process.
fn now() -> Duration {
    let uptime = fs::read_to_string("/proc/uptime").unwrap();
    time(uptime.split(' ').next().unwrap())
}

fn time(seconds: &str) -> Duration {
    Duration::from_secs_f64(seconds.parse().unwrap())
}

async fn all(inbox: &Inbox) -> Vec<EventSummary> {
    let page = Page::oldest(1_000_000);
    let listed = until_ok(async || inbox.list(&Filter::default(), page).await);
    listed.await.events
}

/// A mark that a handler left.
#[derive(Debug)]
struct Mark {
    at: Duration,
    is_start: bool,
    receiver: usize,
    key: String,
    attempt: u64,
}

/// The marks of all handlers, in the order in which they were left.
fn marks(dir: &TempDir) -> Vec<Mark> {
    let text = fs::read_to_string(dir.path().join("marks")).unwrap();
    let lines = text
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'));
    lines
        .map(|line| {
            let words: Vec<_> = line.splitn(4, ' ').collect();
            let [at, step, receiver, event] = words[..] else {
                panic!("{line}");
            };
            let event: serde_json::Value = serde_json::from_str(event).unwrap();
            Mark {
                at: time(at),
                is_start: step == "start",
                receiver: receiver.parse().unwrap(),
                key: event["key"].as_str().unwrap().to_owned(),
                attempt: event["attempt"].as_u64().unwrap(),
            }
        })
        .collect()
}

/// For how much of this time other events were retried that had been in progress at a fault. Attempts that were
/// interrupted do not count.
fn retried(marks: &[Mark], key: &str, mut from: Duration, to: Duration) -> Duration {
    let mut total = Duration::ZERO;
    for (place, start) in marks.iter().enumerate() {
        if !start.is_start || start.attempt == 1 || start.key == key {
            continue;
        }
        let next = marks[place + 1..].iter().find(|mark| mark.key == start.key);
        let is_end = |mark: &&Mark| !mark.is_start && mark.receiver == start.receiver;
        if let Some(end) = next.filter(is_end) {
            let end = end.at.min(to);
            total += end.saturating_sub(start.at.max(from));
            from = from.max(end);
        }
    }
    total
}

struct Receiver {
    /// Of all that were started.
    number: usize,
    server: Server,
}

impl Receiver {
    fn start(inbox: &str, dir: &Path) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::SeqCst);
        let marks = dir.join("marks");
        let mut append = File::options();
        append.create(true).append(true).open(&marks).unwrap();
        // Each mark is one write to the end of the file.
        let marks = marks.display();
        let handler = format!(
            r#"ulimit -S -f unlimited
            IFS= read -r line || exit 1
            read -r up _ < /proc/uptime
            printf '%s start {number} %s\n' "$up" "$line" >> '{marks}'
            case $line in *culprit*) sleep 0.5; kill -KILL $PPID ;; *0'"'*) sleep 0.6 ;; *) sleep 0.02 ;; esac
            read -r up _ < /proc/uptime
            printf '%s end {number} %s\n' "$up" "$line" >> '{marks}'"#
        );
        // A write that finds no room is an error, not a signal.
        let receiver = example("receiver");
        let mut command = Command::new("sh");
        command
            .args(["-c", r#"trap '' XFSZ; exec "$0" "$@""#])
            .arg(receiver.get_program())
            .stdin(Stdio::null());
        for (name, value) in receiver.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        // Every other one interrupts its handlers when it is asked to stop.
        let grace = ["0", "30"][number % 2];
        command
            .args(["--inbox", inbox, "--exec", &handler, "--concurrency", "4"])
            .args(["--lease", &LEASE.as_secs().to_string(), "--grace", grace])
            .arg("--sender")
            .arg(sender(dir))
            .env("WEBHOOK_SECRET", SECRET)
            .env("RUST_LOG", "warn");
        let server = Server::start_by(&mut command);
        Self { number, server }
    }

    fn address(&self) -> SocketAddr {
        self.server.address().parse().unwrap()
    }

    fn signal(&self, signal: Signal) {
        self.server.signal(signal);
    }

    /// Waits until it has begun an event that takes long, and not ended it.
    async fn handles_a_long_event(&self, dir: &TempDir) {
        loop {
            let mut open = HashSet::new();
            for mark in marks(dir) {
                if mark.receiver == self.number && mark.key.ends_with('0') {
                    match mark.is_start {
                        true => open.insert(mark.key),
                        false => open.remove(&mark.key),
                    };
                }
            }
            if !open.is_empty() {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Starts another one when this one has ended.
    fn restart(&mut self, inbox: &str, dir: &TempDir) {
        self.server.program.child.wait().unwrap();
        *self = Self::start(inbox, dir.path());
    }
}

/// Plays the platform, which sends an event until it is answered with 200.
#[derive(Default)]
struct Sender {
    addresses: Mutex<Vec<SocketAddr>>,
    stop: AtomicBool,
    /// The number of unsettled events that was last seen.
    backlog: AtomicUsize,
    /// When each event was sent first.
    sent: Mutex<HashMap<String, Instant>>,
    acknowledged: Mutex<HashMap<String, Instant>>,
    /// Answers that are neither 200 nor 503 with `Retry-After`.
    unexpected: Mutex<Vec<String>>,
}

impl Sender {
    fn reach(&self, receivers: &[Receiver]) {
        *self.addresses.lock().unwrap() = receivers.iter().map(Receiver::address).collect();
    }

    fn work(&self, sender: usize) {
        for number in 0.. {
            let key = format!("event-{sender}-{number}");
            let [chat, other] = [(); 2].map(|()| fastrand::usize(..CHATS));
            let keys: Vec<_> = match number % 4 {
                1 => (1..=ITEMS).map(|at| format!("{key}.{at}")).collect(),
                _ => vec![key],
            };
            let chats = [chat, other, chat];
            let events: Vec<_> = keys.iter().map(String::as_str).zip(chats).collect();
            let request = request(&events);
            self.sent(&keys);
            loop {
                if self.stop.load(Ordering::SeqCst) {
                    return;
                }
                let address = *fastrand::choice(self.addresses.lock().unwrap().iter()).unwrap();
                match self.send(address, &request) {
                    Some(true) => {
                        self.acknowledged(&keys);
                        break;
                    }
                    _ => thread::sleep(Duration::from_millis(50)),
                }
            }
            // Each event starts a command. With a backlog, those that were interrupted would wait for their turn.
            thread::sleep(Duration::from_millis(200) * keys.len() as u32);
            while self.backlog.load(Ordering::SeqCst) > BACKLOG && !self.stop.load(Ordering::SeqCst)
            {
                thread::sleep(Duration::from_millis(50));
            }
        }
    }

    fn sent(&self, keys: &[String]) {
        let now = keys.iter().map(|key| (key.clone(), Instant::now()));
        self.sent.lock().unwrap().extend(now);
    }

    fn acknowledged(&self, keys: &[String]) {
        let now = keys.iter().map(|key| (key.clone(), Instant::now()));
        self.acknowledged.lock().unwrap().extend(now);
    }

    /// Waits until deliveries are refused.
    fn is_refused(&self, receivers: &[Receiver]) {
        self.are_answered(receivers, "503", false);
    }

    /// Waits until deliveries are accepted again.
    fn is_accepted(&self, receivers: &[Receiver]) {
        self.are_answered(receivers, "200", true);
    }

    fn are_answered(&self, receivers: &[Receiver], status: &str, with: bool) {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        for receiver in receivers {
            until(&format!("the answer {status}"), || {
                let number = NUMBER.fetch_add(1, Ordering::SeqCst);
                let key = format!("probe-{number}");
                self.sent(std::slice::from_ref(&key));
                // Hundreds are accepted before the disk is full. In one chat, they would be handled for minutes.
                let request = request(&[(&key, 3 * CHATS + number)]);
                let accepted = self.send(receiver.address(), &request)?;
                if accepted {
                    self.acknowledged(&[key]);
                }
                (accepted == with).then_some(())
            });
        }
    }

    /// Whether the delivery was accepted, or refused with 503. `None` without an answer.
    fn send(&self, address: SocketAddr, request: &str) -> Option<bool> {
        let limit = Duration::from_secs(3);
        let mut stream = TcpStream::connect_timeout(&address, limit).ok()?;
        stream.set_read_timeout(Some(limit)).ok()?;
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        let began = Instant::now();
        while !answer.contains("\r\n\r\n") && began.elapsed() < limit {
            let mut chunk = [0; 512];
            match stream.read(&mut chunk).ok()? {
                0 => break,
                length => answer.push_str(&String::from_utf8_lossy(&chunk[..length])),
            }
        }
        let (head, _) = answer.split_once("\r\n\r\n")?;
        let is_refusal = head.starts_with("HTTP/1.1 503") && head.contains("retry-after: ");
        match head.starts_with("HTTP/1.1 200") {
            true => Some(true),
            false if is_refusal => Some(false),
            false => {
                self.unexpected.lock().unwrap().push(answer);
                None
            }
        }
    }
}

/// A delivery of one event, or of several, each with its key and its chat.
fn request(events: &[(&str, usize)]) -> String {
    let items = events
        .iter()
        .map(|(key, chat)| format!(r#"{{"key":"{key}","chat":"chat-{chat}"}}"#));
    let items: Vec<_> = items.collect();
    let body = match &items[..] {
        [one] => one.clone(),
        items => format!(r#"{{"events":[{}]}}"#, items.join(",")),
    };
    format!(
        "POST /webhooks HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nx-service-event: chat-closed\r\n\
         idempotency-key: {}\r\nx-service-hmac-sha256: {}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        events[0].0,
        Secret::new(SECRET).unwrap().sign(body.as_bytes()),
        body.len()
    )
}

/// The delivery of an event that came with others, and its place there.
fn item_of(key: &str) -> Option<(&str, usize)> {
    let (of, at) = key.rsplit_once('.')?;
    Some((of, at.parse().ok()?))
}

/// The description of the sender, as a file in this directory.
fn sender(dir: &Path) -> PathBuf {
    let description = serde_json::json!({
        "name": "chats",
        "key": "idempotency-key",
        "kind": "x-service-event",
        "order": "/chat",
        "batch": {"path": "/events/*", "key": "/key", "order": "/chat"},
        "signature": {"headers": ["x-service-hmac-sha256"], "algorithm": "hmac-sha256", "coding": "hex"},
    });
    let file = dir.join("sender.json");
    // Those that run read it again when it changes.
    if !file.exists() {
        fs::write(&file, description.to_string()).unwrap();
    }
    file
}
