//! The power fails while a process accepts, handles and settles. `strace` records what it writes to its file and when it waits
//! for the disk. Then the directory is rebuilt as a disk could have it at many moments: see [`disk`]. In each of these
//! states, the file opens and is sound, nothing that was acknowledged is missing or undone, and the rest can be handled.
//!
//! The control: the same checks find that nothing waits for the log, for the file, or for their names.
//!
//! `POWER_SEEDS=100` sets how often this is done, which defaults to 1.

mod disk;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use futures_util::future::join_all;
use http::HeaderValue;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use rusqlite::Connection;
use tokio::time::{Instant, sleep};
use tower_webhook::inbox::internal::{
    Accepted, Lane, NewEvent, Settled, Settlement, Tables, Take, TakenEvent,
};
use tower_webhook::inbox::{By, EventId, EventState, Filter, Page, Queue};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::spool::Spool;
use tower_webhook::sqlite::{SqliteQueue, SqliteStore};
use tower_webhook::store::{Claim, EventKey, KeyState, SettleError, Store, StoreError};
use tower_webhook::{EventKind, IdempotencyKey};

use self::disk::{DIRECTORY, Disk, Files, Step, What};
use support::program::{Peer, installed, say};
use support::queue::{Calls, dead, new_event, retry, take, unless};
use support::scratch::memory;
use support::{DAY, MINUTE, SECOND, chain, lock};

const FILE: &str = "webhooks.db";
const LOG: &str = "webhooks.db-wal";
/// Processes that use the file one after another. The first one closes it, the second one leaves its log, and the power
/// fails in the third.
const LIVES: usize = 4;
const CHATS: usize = 5;
const EVENTS: usize = 12;
const RUNS: usize = LIVES * CHATS * EVENTS;
const LEASE: Duration = Duration::from_millis(200);
/// In how many states the disk is looked at for each seed.
const STATES: usize = 150;

#[tokio::test]
async fn an_inbox_outlives_a_loss_of_power() {
    const TEST: &str = "an_inbox_outlives_a_loss_of_power";
    if let Some((life, directory)) = life() {
        return live(life, &directory).await;
    }
    let steps = survives(TEST, check).await;
    let begins = |step: &&Step| matches!(&step.what, What::Write(file, 0, _) if file == LOG);
    let begins = steps.iter().filter(begins).count();
    println!("the log began {begins} times");
    // Each process creates at most one.
    assert!(begins > 2 * LIVES, "the log was not moved into the file");
    for ignored in [LOG, FILE, DIRECTORY] {
        is_found(&steps, ignored, check).await;
    }
}

#[tokio::test]
async fn a_spool_outlives_a_loss_of_power() {
    const TEST: &str = "a_spool_outlives_a_loss_of_power";
    if let Some((life, directory)) = life() {
        return live_with_spool(life, &directory).await;
    }
    let steps = survives(TEST, check_spool).await;
    is_found(&steps, LOG, check_spool).await;
}

/// How far an event has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    #[default]
    Unknown,
    Stored,
    /// An attempt has failed.
    Tried,
    Settled,
    /// Its chat was forgotten.
    Forgotten,
    /// The database behind the spool has it.
    Forwarded,
}

impl Stage {
    const ALL: [Self; 6] = [
        Self::Unknown,
        Self::Stored,
        Self::Tried,
        Self::Settled,
        Self::Forgotten,
        Self::Forwarded,
    ];
}

/// Has an event come to a stage, which is acknowledged when the call has ended.
async fn to<T>(stage: Stage, number: usize, call: impl Future<Output = T>) -> T {
    say(format!("begins {number} {}", stage as usize));
    let result = call.await;
    ends(stage, number);
    result
}

fn ends(stage: Stage, number: usize) {
    say(format!("ends {number} {}", stage as usize));
}

/// By number of the event: the stage that was acknowledged, and the one that may have been reached. Runs follow from
/// [`RUNS`] on.
#[derive(Default)]
struct Known(BTreeMap<usize, (Stage, Stage)>);

impl Known {
    fn hear(&mut self, line: &str) {
        let mut words = line.split(' ');
        let begins = words.next() == Some("begins");
        let mut number = || words.next().unwrap().parse().unwrap();
        let (low, high) = self.0.entry(number()).or_default();
        let stage = Stage::ALL[number()];
        *high = stage.max(*high);
        if !begins {
            *low = stage.max(*low);
        }
    }
}

fn chat_of(number: usize) -> String {
    format!("chat-{}", number / EVENTS)
}

fn event(number: usize) -> NewEvent {
    let chat = chat_of(number);
    // Some take several pages.
    let text = match number % 7 {
        0 => "x".repeat(10_000),
        _ => "x".repeat(100),
    };
    let body = format!(r#"{{"id":"{chat}","number":{number},"text":"{text}"}}"#);
    let key = number.to_string();
    let mut event = new_event(EventKind::CHAT_RATED, body.clone());
    event.key = Some(EventKey::new("", key.as_bytes(), body.as_bytes()));
    let value = HeaderValue::try_from(key).unwrap();
    event.delivery = event.delivery.with_key(IdempotencyKey::new(value));
    event.lane = Some(Lane::of_chat(&chat));
    event.chat = Some(chat);
    event
}

fn number_of(key: Option<&IdempotencyKey>) -> Option<usize> {
    std::str::from_utf8(key?.as_bytes()).ok()?.parse().ok()
}

/// Some become dead letters.
fn ending(number: usize) -> (Settlement, EventState) {
    match number % 5 {
        0 => (dead(false), EventState::Dead),
        _ => (Settlement::Handled, EventState::Handled),
    }
}

/// The key of a run without an inbox.
fn key_of_run(number: usize) -> EventKey {
    EventKey::new("", format!("run-{number}").as_bytes(), b"{}")
}

/// If this process is one of those that are recorded, which one, and its directory.
fn life() -> Option<(usize, PathBuf)> {
    let argument = Peer::argument()?;
    let (life, directory) = argument.split_once(' ').unwrap();
    // A write beyond a limit fails then, instead of ending the process. Threads inherit that.
    SigSet::from(Signal::SIGXFSZ).thread_block().unwrap();
    Some((life.parse().unwrap(), directory.into()))
}

/// Calls until there is room on the disk.
async fn again<T>(call: impl AsyncFn() -> Result<T, StoreError>) -> T {
    let give_up = Instant::now() + MINUTE;
    loop {
        match call().await {
            Ok(result) => return result,
            Err(error) => assert!(Instant::now() < give_up, "{}", chain(&error)),
        }
        sleep(Duration::from_millis(1)).await;
    }
}

async fn live(life: usize, directory: &Path) {
    let path = directory.join(FILE);
    let store = SqliteStore::open(&path).unwrap();
    let queue = SqliteQueue::with_store(&store);
    let firsts = (0..CHATS).map(|chat| (life * CHATS + chat) * EVENTS);
    let chats = join_all(firsts.map(|first| talk(&store, &queue, first)));
    let file = Connection::open(&path).unwrap();
    tokio::select! {
        _ = chats => {}
        () = fill(&file, &store) => {}
    }
    if life == 1 {
        // The other connection keeps the log.
        drop((store, queue));
        std::process::exit(0);
    }
}

/// Whenever the log is long enough, the disk has no more room for it until it is moved into the file.
async fn fill(file: &Connection, store: &SqliteStore) {
    let number = |sql, column| {
        let number = file.query_row(sql, [], |row| row.get::<_, i64>(column));
        number.unwrap()
    };
    let (_, most) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
    let room = |bytes| setrlimit(Resource::RLIMIT_FSIZE, bytes, most).unwrap();
    for new in RUNS.. {
        sleep(Duration::from_millis(2)).await;
        let pages = number("PRAGMA page_count", 0);
        let log = number("PRAGMA wal_checkpoint(NOOP)", 1);
        if log > pages + 40 {
            room(u64::try_from(32 + log * (24 + 4096)).unwrap());
            again(async || store.claim(&key_of_run(new), SECOND, DAY).await.map(drop)).await;
            room(most);
        }
    }
}

/// The events of a chat, and as many runs.
async fn talk(store: &SqliteStore, queue: &SqliteQueue, first: usize) {
    let mut random = Rng::with_seed(first as u64);
    let mut waiting = VecDeque::new();
    for number in first..first + EVENTS {
        let take = random.bool().then(|| take(LEASE));
        let accept = again(async || queue.accept_one(event(number), take.as_ref()).await);
        match to(Stage::Stored, number, accept).await {
            Accepted::New { id, taken } => waiting.push_back((number, id, taken)),
            other => panic!("{number}: {other:?}"),
        }
        let few = random.usize(..4);
        while waiting.len() > few {
            let (number, id, taken) = waiting.pop_front().unwrap();
            settle(queue, number, id, taken).await;
        }
        complete(store, number).await;
    }
    let chat = first / EVENTS;
    if chat.is_multiple_of(CHATS) {
        for number in first..first + EVENTS {
            say(format!("begins {number} {}", Stage::Forgotten as usize));
        }
        let (chat, by) = (chat_of(first), By::new("ada"));
        again(async || queue.forget_all(&chat, &by).await).await;
        (first..first + EVENTS).for_each(|number| ends(Stage::Forgotten, number));
    }
}

async fn settle(queue: &SqliteQueue, number: usize, id: EventId, taken: Option<Box<TakenEvent>>) {
    let take = async || {
        let taken = again(async || queue.take(id, &take(LEASE)).await).await;
        taken.unwrap().lease
    };
    let settle = async |lease, stage, settlement| {
        let settle = again(async || queue.settle(&lease, &settlement, None).await);
        let settled = to(stage, number, settle).await;
        assert!(matches!(settled, Settled::Ended(_)), "{number}");
    };
    let mut lease = match taken {
        Some(taken) => taken.lease,
        None => take().await,
    };
    if number % 4 == 1 {
        settle(lease, Stage::Tried, retry(Duration::ZERO)).await;
        lease = take().await;
    }
    settle(lease, Stage::Settled, ending(number).0).await;
}

async fn complete(store: &SqliteStore, number: usize) {
    let claim = again(async || store.claim(&key_of_run(number), MINUTE, DAY).await).await;
    let Claim::Acquired(lease) = claim else {
        panic!("{number}: {claim:?}");
    };
    let complete = again(async || {
        let completed = store.complete(&lease, DAY).await;
        completed.map_err(|error| match error {
            SettleError::Store(error) => error,
            error => panic!("{number}: {error}"),
        })
    });
    to(Stage::Settled, RUNS + number, complete).await;
}

/// A database behind a spool.
#[derive(Clone, Default)]
struct Database {
    queue: MemoryQueue,
    is_away: Arc<AtomicBool>,
    /// The events in the order in which they came.
    has: Arc<Mutex<Vec<usize>>>,
}

#[async_trait]
impl Calls for Database {
    fn inner(&self) -> Result<Queue, StoreError> {
        unless(&self.is_away)?;
        Ok(self.queue.clone().into())
    }

    async fn accept(
        &self,
        events: Arc<[NewEvent]>,
        take: Option<&Take>,
    ) -> Result<Vec<Accepted>, StoreError> {
        let accepted = self.inner()?.accept(Arc::clone(&events), take).await?;
        for NewEvent { delivery, .. } in &*events {
            let number = number_of(delivery.key()).unwrap();
            assert_eq!(delivery.body(), super::power::event(number).delivery.body());
            lock(&self.has).push(number);
            if Peer::argument().is_some() {
                ends(Stage::Forwarded, number);
            }
        }
        Ok(accepted)
    }

    /// It is the same one in each life.
    async fn tables(&self) -> Result<Tables, StoreError> {
        let mut tables = self.inner()?.measure.tables().await?;
        tables.identity = 1;
        Ok(tables)
    }
}

fn spool(directory: &Path) -> Spool {
    Spool::new(directory.join(FILE))
        .limit(1 << 20)
        .on_any_disk()
}

async fn live_with_spool(life: usize, directory: &Path) {
    let database = Database::default();
    let spooled = spool(directory)
        .open(database.clone().shared())
        .await
        .unwrap();
    let firsts = (0..CHATS).map(|chat| (life * CHATS + chat) * EVENTS);
    let accept = async |from: usize, end: usize| {
        let chats = firsts.clone().map(async |first| {
            for number in first + from..first + end {
                let accepted = again(async || spooled.accept_one(event(number), None).await);
                to(Stage::Stored, number, accepted).await;
            }
        });
        join_all(chats).await;
    };
    let is_away = |is_away| database.is_away.store(is_away, Ordering::SeqCst);
    is_away(true);
    accept(0, 5).await;
    is_away(false);
    assert_eq!(spooled.flush(MINUTE).await, 0);
    accept(5, 7).await;
    is_away(true);
    accept(7, EVENTS).await;
    if life == 1 {
        std::process::exit(0);
    }
}

/// Records the processes, one after another.
fn record(test: &str, random: &mut Rng) -> Vec<Step> {
    let strace = Command::new("strace").arg("--version").output();
    installed(strace, "strace", "strace");
    let mut directory = memory();
    let (mut steps, mut lines, mut before) = (Vec::new(), 0, 0);
    for life in 0..LIVES {
        if life == LIVES - 1 {
            steps.truncate(random.usize(before..steps.len()));
            let files = disk_after(&steps).lost(random);
            directory = memory();
            write(directory.path(), &files);
            steps.push(Step::lost(files));
        }
        before = steps.len();
        let record = run(test, life, directory.path());
        steps.extend(disk::read(&record, lines, directory.path()));
        lines += record.lines().count();
        let is_whole = disk_after(&steps).seen() == files(directory.path());
        assert!(is_whole, "a change was not recorded");
    }
    steps
}

/// Runs a process, and returns the record of its calls.
fn run(test: &str, life: usize, directory: &Path) -> String {
    const OPTIONS: &str = "-f --seccomp-bpf -qq -y -xx -s 2000000 -e signal=none \
        -e openat,?unlink,unlinkat,lseek,write,pwrite64,ftruncate,fsync,fdatasync";
    let scratch = memory();
    let log = scratch.path().join("calls");
    let argument = format!("{life} {}", directory.display());
    let peer = Peer::command(module_path!(), test, argument);
    let mut traced = Command::new("strace");
    traced.args(OPTIONS.split(' ')).arg("-o").arg(&log);
    traced
        .arg(std::env::current_exe().unwrap())
        .args(peer.get_args());
    let set = peer.get_envs();
    traced.envs(set.filter_map(|(name, value)| Some((name, value?))));
    traced.stdin(Stdio::piped()).stdout(Stdio::piped());
    Peer::start(traced).end();
    fs::read_to_string(&log).unwrap()
}

fn disk_after(steps: &[Step]) -> Disk<'_> {
    let mut disk = Disk::default();
    steps.iter().for_each(|step| disk.step(step, |_| false));
    disk
}

fn write(directory: &Path, files: &Files) {
    for (name, content) in files {
        fs::write(directory.join(name), content).unwrap();
    }
}

/// The files of a directory, but for the index of the log, which no process reads after a crash.
fn files(directory: &Path) -> Files {
    let mut files = Files::new();
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if !name.ends_with("-shm") {
            files.insert(name, fs::read(entry.path()).unwrap());
        }
    }
    files
}

/// Finds nothing wrong, and returns what was recorded last.
async fn survives(
    test: &str,
    check: impl AsyncFn(&Path, &Known) -> Result<(), String>,
) -> Vec<Step> {
    let seeds = std::env::var("POWER_SEEDS").map_or(1, |seeds| seeds.parse().unwrap());
    let (mut recorded, mut syncs, mut states) = (0, 0, 0);
    let mut steps = Vec::new();
    for seed in 0..seeds {
        let mut random = Rng::with_seed(seed);
        steps = record(test, &mut random);
        recorded += steps.len();
        syncs += steps.iter().filter(|step| is_sync(step)).count();
        let (seen, failed) = lose(&steps, &mut random, None, &check).await;
        states += seen;
        if let Some((reason, files)) = failed {
            let kept = memory().keep();
            write(&kept, &files);
            panic!("{reason}; it is in {}", kept.display());
        }
    }
    println!("{recorded} steps, {syncs} synchronizations, {states} states, none failed");
    steps
}

/// Nothing waits until this file is on the disk, or the names are, which is noticed.
async fn is_found(
    steps: &[Step],
    ignored: &str,
    check: impl AsyncFn(&Path, &Known) -> Result<(), String>,
) {
    let mut random = Rng::with_seed(0);
    let mut states = 0;
    for _ in 0..10 {
        let (seen, failed) = lose(steps, &mut random, Some(ignored), &check).await;
        states += seen;
        if let Some((reason, _)) = failed {
            println!("{ignored} is not waited for: state {states}, {reason}");
            return;
        }
    }
    panic!("{ignored} is not waited for, and {states} states passed");
}

fn is_sync(step: &Step) -> bool {
    matches!(step.what, What::Sync(_))
}

/// Checks the disk at random moments. Returns how many there were, up to the first at which it is not as it should be.
async fn lose(
    steps: &[Step],
    random: &mut Rng,
    ignored: Option<&str>,
    check: impl AsyncFn(&Path, &Known) -> Result<(), String>,
) -> (usize, Option<(String, Files)>) {
    let syncs = steps.iter().filter(|step| is_sync(step)).count();
    let (mut disk, mut known, mut states) = (Disk::default(), Known::default(), 0);
    for (at, step) in steps.iter().enumerate() {
        // Half of them when a file is about to be synchronized.
        let alike = match is_sync(step) {
            true => syncs,
            false => steps.len() - syncs,
        };
        if random.usize(..2 * alike) < STATES {
            states += 1;
            let files = disk.lost(random);
            let directory = memory();
            write(directory.path(), &files);
            if let Err(reason) = check(directory.path(), &known).await {
                let reason = format!("before step {at}: {reason}");
                return (states, Some((reason, files)));
            }
        }
        if let What::Said(line) = &step.what {
            known.hear(line);
        }
        // The first ones create the file.
        let is_ignored = |name: &str| known.0.len() > CHATS && Some(name) == ignored;
        disk.step(step, is_ignored);
    }
    (states, None)
}

async fn check(directory: &Path, known: &Known) -> Result<(), String> {
    let path = directory.join(FILE);
    let store = SqliteStore::open(&path).map_err(|error| chain(&error))?;
    let queue = SqliteQueue::with_store(&store);
    let looked = look(&store, &queue, known).await;
    drop((store, queue));
    looked?;
    is_sound(&path)
}

fn is_sound(path: &Path) -> Result<(), String> {
    let check = "PRAGMA integrity_check";
    let file = Connection::open(path).map_err(|error| chain(&error))?;
    let found: rusqlite::Result<String> = file.query_row(check, [], |row| row.get(0));
    match found.map_err(|error| chain(&error))? {
        sound if sound == "ok" => Ok(()),
        found => Err(found),
    }
}

/// Compares the events and the runs with what is known, and handles the events that are left.
async fn look(store: &SqliteStore, queue: &SqliteQueue, known: &Known) -> Result<(), String> {
    let failed = |error: StoreError| chain(&error);
    let found = events(queue).await?;
    let mut left = Vec::new();
    for (&number, &(low, high)) in &known.0 {
        let stage = match number.checked_sub(RUNS) {
            None => found.get(&number).copied().unwrap_or_default(),
            Some(number) => match store.peek(&key_of_run(number)).await.map_err(failed)? {
                KeyState::Done => Stage::Settled,
                KeyState::Free | KeyState::InFlight { .. } => Stage::Unknown,
            },
        };
        if stage < low || stage > high {
            return Err(format!(
                "{number} is {stage:?}, and was {low:?} to {high:?}"
            ));
        }
        if number < RUNS && stage < Stage::Settled {
            left.push(number);
        }
    }
    // As the sender does with those that have no answer.
    let sent = known.0.keys().filter(|number| **number < RUNS);
    let again = sent.map(async |number| (number, queue.accept_one(event(*number), None).await));
    let mut recognized = 0;
    for (number, accepted) in join_all(again).await {
        match (accepted.map_err(failed)?, found.get(number)) {
            (Accepted::New { .. }, None) => {}
            (Accepted::Duplicate { same_body: true }, Some(_)) => recognized += 1,
            (accepted, found) => return Err(format!("{number} is {found:?}, and {accepted:?}")),
        }
    }
    if recognized < found.len() {
        return Err(format!("some of {found:?} were never sent"));
    }
    handle(queue, left).await
}

/// The events in the file.
async fn events(queue: &SqliteQueue) -> Result<HashMap<usize, Stage>, String> {
    let failed = |error: StoreError| chain(&error);
    let page = Page::oldest(usize::MAX);
    let listed = queue.list(&Filter::default(), page).await.map_err(failed)?;
    let mut found = HashMap::new();
    for summary in listed.events {
        let number = number_of(summary.key.as_ref()).ok_or("an event has no number")?;
        let record = queue.get(summary.id).await.map_err(failed)?;
        let record = record.ok_or_else(|| format!("{number} cannot be read"))?;
        let stage = match (&record.body, summary.state) {
            (None, _) => Stage::Forgotten,
            (Some(body), _) if body != event(number).delivery.body() => {
                return Err(format!("{number} has another body"));
            }
            (_, EventState::Waiting | EventState::InProgress | EventState::Retrying) => {
                match record.failures.len() {
                    0 => Stage::Stored,
                    _ => Stage::Tried,
                }
            }
            (_, state) if state == ending(number).1 => Stage::Settled,
            (_, state) => return Err(format!("{number} is {state:?}")),
        };
        if found.insert(number, stage).is_some() {
            return Err(format!("{number} was stored twice"));
        }
    }
    Ok(found)
}

/// Handles the events that are left, each once, and those of a chat in their order.
async fn handle(queue: &SqliteQueue, mut left: Vec<usize>) -> Result<(), String> {
    let failed = |error: StoreError| chain(&error);
    let mut last = HashMap::new();
    loop {
        let claims = queue
            .claim_of(&take(MINUTE), 64, 64)
            .await
            .map_err(failed)?;
        match claims.next_due {
            _ if !claims.events.is_empty() => {}
            // Those that were in progress are handled when their leases have expired.
            Some(due) if !left.is_empty() && due <= 2 * LEASE => sleep(due).await,
            _ => break,
        }
        for taken in claims.events {
            let number = number_of(taken.delivery.key()).ok_or("an event has no number")?;
            let before = last.insert(chat_of(number), number);
            let Some(at) = left.iter().position(|left| *left == number) else {
                return Err(format!("{number} comes again"));
            };
            left.swap_remove(at);
            if before > Some(number) || taken.delivery.body() != event(number).delivery.body() {
                return Err(format!(
                    "{number} comes after {before:?}, or with another body"
                ));
            }
            let settled = queue.settle(&taken.lease, &Settlement::Handled, None);
            settled.await.map_err(failed)?;
        }
    }
    match left.is_empty() {
        true => Ok(()),
        false => Err(format!("{left:?} do not come")),
    }
}

async fn check_spool(directory: &Path, known: &Known) -> Result<(), String> {
    let database = Database::default();
    let opened = spool(directory).open(database.clone().shared()).await;
    let spooled = opened.map_err(|error| chain(&error))?;
    let left = spooled.flush(10 * SECOND).await;
    let has = lock(&database.has).clone();
    let mut last = HashMap::new();
    for number in &has {
        let before = last.insert(chat_of(*number), number);
        if before >= Some(number) || !known.0.contains_key(number) {
            return Err(format!(
                "{number} comes after {before:?}, or was never sent"
            ));
        }
    }
    for (number, (low, _)) in &known.0 {
        if *low == Stage::Stored && !has.contains(number) {
            return Err(format!("{number} is lost"));
        }
    }
    if left > 0 {
        return Err(format!("{left} are left"));
    }
    drop(spooled);
    is_sound(&directory.join(FILE))
}
