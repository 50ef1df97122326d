//! Receivers with an inbox are killed, stopped and terminated under load, again and again: every event that was
//! acknowledged is handled, none is handled again after its settlement was committed, the events of a chat start in the
//! order of acceptance, and none waits for much longer than a lease.
//!
//! `KILLS=500` sets the number of kills for each test, which defaults to 12.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sqlx::postgres::PgPoolOptions;
use tempfile::TempDir;
use tokio::time::{sleep, timeout};
use tower_webhook::Secret;
use tower_webhook::inbox::{
    EventState, EventSummary, Filter, Inbox, Page, PostgresQueue, Queue, SqliteQueue,
};

use crate::support::delivery::SECRET;
use crate::support::postgres::PostgresServer;
use crate::support::program::{PATIENCE, example, until};

const LEASE: Duration = Duration::from_secs(2);
/// How long after the end of its lease an event may wait for its turn, on a busy machine.
const SLACK: Duration = Duration::from_secs(10);
const SENDERS: usize = 8;
const CHATS: usize = 20;

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
    survives(receivers, &format!("sqlite:{}", path.display()), &inbox).await;
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
    let queue = PostgresQueue::new(pool);
    queue.migrate().await.unwrap();
    survives(receivers, &server.url(), &Inbox::new(queue)).await;
}

async fn survives<Q: Queue>(count: usize, url: &str, inbox: &Inbox<Q>) {
    let kills: usize = std::env::var("KILLS").map_or(12, |kills| kills.parse().unwrap());
    let dir = TempDir::new().unwrap();
    let mut random = fastrand::Rng::new();
    let mut receivers: Vec<_> = (0..count)
        .map(|_| Receiver::start(url, dir.path().into()))
        .collect();
    let sender = Arc::new(Sender::default());
    sender.reach(&receivers);
    let senders: Vec<_> = (0..SENDERS)
        .map(|number| {
            let sender = Arc::clone(&sender);
            thread::spawn(move || sender.work(number))
        })
        .collect();

    let mut violations = Vec::new();
    let mut deaths: Vec<(u128, u128)> = Vec::new();
    for number in 0..kills {
        sleep(Duration::from_millis(random.u64(200..900))).await;
        let victim = random.usize(..count);
        match number % 4 {
            0 => {
                // Longer than a lease: another process takes over, or this one when it goes on.
                let stopped = now();
                receivers[victim].signal(Signal::SIGSTOP);
                sleep(LEASE * 3 / 2).await;
                receivers[victim].signal(Signal::SIGCONT);
                deaths.push((stopped, now()));
                continue;
            }
            1 => {
                receivers[victim].signal(Signal::SIGTERM);
                receivers[victim].wait();
            }
            _ => {
                receivers[victim].signal(Signal::SIGKILL);
                receivers[victim].wait();
            }
        }
        let died = now();
        // Commands outlive their receiver by a moment.
        sleep(Duration::from_millis(300)).await;
        let settled: HashSet<String> = all(inbox)
            .await
            .into_iter()
            .filter(|event| event.state == EventState::Handled)
            .map(|event| event.key.unwrap().to_string())
            .collect();
        let marks_before = marks(&dir).len();
        receivers[victim] = Receiver::start(url, dir.path().into());
        sender.reach(&receivers);
        deaths.push((died, now()));
        sleep(Duration::from_millis(500)).await;
        for mark in &marks(&dir)[marks_before..] {
            if mark.is_start && settled.contains(&mark.key) {
                violations.push(format!(
                    "{} was handled again after its settlement",
                    mark.key
                ));
            }
        }
    }

    sender.stop.store(true, Ordering::SeqCst);
    for thread in senders {
        thread.join().unwrap();
    }
    let finished = timeout(PATIENCE, inbox.finish()).await;
    let stats = match finished {
        Ok(stats) => stats.unwrap(),
        Err(_) => panic!(
            "events are stuck: {}\n{}",
            inbox.stats().await.unwrap(),
            receivers[0].log()
        ),
    };
    assert!(stats.is_all_handled(), "{stats}");

    let marks = marks(&dir);
    let ended: HashSet<_> = marks
        .iter()
        .filter(|mark| !mark.is_start)
        .map(|mark| &mark.key)
        .collect();
    let acknowledged = sender.acknowledged.lock().unwrap().clone();
    for key in &acknowledged {
        if !ended.contains(key) {
            violations.push(format!("{key} was acknowledged, and never handled"));
        }
    }
    let mut chats: HashMap<String, Vec<String>> = HashMap::new();
    for event in all(inbox).await {
        chats
            .entry(event.chat.unwrap())
            .or_default()
            .push(event.key.unwrap().to_string());
    }
    let place = |key: &str, first: bool| {
        let starts: Vec<_> = marks
            .iter()
            .enumerate()
            .filter(|(_, mark)| mark.is_start && mark.key == key)
            .collect();
        match first {
            true => starts.first().map(|(place, _)| *place),
            false => starts.last().map(|(place, _)| *place),
        }
    };
    for keys in chats.values() {
        for pair in keys.windows(2) {
            if place(&pair[0], false) > place(&pair[1], true) {
                violations.push(format!("{} started before {}", pair[1], pair[0]));
            }
        }
    }
    // What was in progress when a process died or was stopped starts again within its lease.
    let mut longest = Duration::ZERO;
    for (died, back) in &deaths {
        let is_before = |mark: &&Mark| mark.at < *died;
        let mut open = HashMap::new();
        for mark in marks.iter().take_while(is_before) {
            match mark.is_start {
                true => drop(open.insert(&mark.key, mark.at)),
                false => drop(open.remove(&mark.key)),
            }
        }
        for (key, started) in open {
            let later = marks
                .iter()
                .find(|mark| mark.key == *key && mark.at > started);
            let Some(later) = later else { continue };
            let from = (*died).max(*back);
            // A receiver that does not live for as long as a lease cannot take what another one held.
            if deaths
                .iter()
                .any(|(died, _)| (from..later.at).contains(died))
            {
                continue;
            }
            let waited = Duration::from_nanos(later.at.saturating_sub(from) as u64);
            longest = longest.max(waited);
            if waited > LEASE + SLACK {
                violations.push(format!("{key} waited for {waited:?}"));
            }
        }
    }
    println!(
        "{count} receivers, {kills} kills: {} acknowledged, {} attempts, longest wait {longest:.1?}",
        acknowledged.len(),
        marks.iter().filter(|mark| mark.is_start).count()
    );
    assert!(
        acknowledged.len() > 5 * kills,
        "there was no load: {}",
        acknowledged.len()
    );
    assert!(
        violations.is_empty(),
        "{} violations: {violations:#?}",
        violations.len()
    );
}

fn now() -> u128 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_nanos()
}

async fn all<Q: Queue>(inbox: &Inbox<Q>) -> Vec<EventSummary> {
    let page = Page {
        after: None,
        limit: 1_000_000,
        newest_first: false,
    };
    inbox.list(&Filter::default(), page).await.unwrap()
}

/// A mark that a handler left.
#[derive(Debug)]
struct Mark {
    at: u128,
    is_start: bool,
    key: String,
}

/// The marks of all handlers, in the order in which they were left.
fn marks(dir: &TempDir) -> Vec<Mark> {
    let text = fs::read_to_string(dir.path().join("marks")).unwrap();
    let lines = text
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'));
    lines
        .map(|line| {
            let mut words = line.splitn(3, ' ');
            let (at, step, event) = (words.next(), words.next(), words.next());
            let event: serde_json::Value = serde_json::from_str(event.unwrap()).unwrap();
            Mark {
                at: at.unwrap().parse().unwrap(),
                is_start: step == Some("start"),
                key: event["key"].as_str().unwrap().to_owned(),
            }
        })
        .collect()
}

struct Receiver {
    child: Child,
    address: SocketAddr,
    log: PathBuf,
}

impl Receiver {
    fn start(inbox: &str, dir: PathBuf) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::SeqCst);
        let marks = dir.join("marks");
        let append = |path: &PathBuf| {
            File::options()
                .create(true)
                .append(true)
                .open(path)
                .unwrap()
        };
        append(&marks);
        // Each mark is one write to the end of the file.
        let marks = marks.display();
        let handler = format!(
            r#"IFS= read -r line || exit 1
            printf '%s start %s\n' "$(date +%s%N)" "$line" >> '{marks}'
            sleep 0.02
            printf '%s end %s\n' "$(date +%s%N)" "$line" >> '{marks}'"#
        );
        let log = dir.join(format!("log-{number}"));
        let child = example("receiver")
            .args([
                "--listen",
                "127.0.0.1:0",
                "--inbox",
                inbox,
                "--exec",
                &handler,
            ])
            .args([
                "--lease",
                &LEASE.as_secs().to_string(),
                "--concurrency",
                "4",
            ])
            .env("WEBHOOK_SECRET", SECRET)
            .env("RUST_LOG", "warn")
            .stdout(append(&dir.join("out")))
            .stderr(append(&log))
            .spawn()
            .unwrap();
        let mut this = Self {
            child,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            log,
        };
        this.address = until("the receiver's address", || {
            let log = this.log();
            let (_, address) = log.split_once("listening on http://")?;
            address.split_once('/')?.0.parse().ok()
        });
        this
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    fn wait(&mut self) {
        self.child.wait().unwrap();
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Plays the platform, which sends an event until it is answered with 200.
#[derive(Default)]
struct Sender {
    addresses: Mutex<Vec<SocketAddr>>,
    stop: AtomicBool,
    acknowledged: Mutex<Vec<String>>,
}

impl Sender {
    fn reach(&self, receivers: &[Receiver]) {
        *self.addresses.lock().unwrap() =
            receivers.iter().map(|receiver| receiver.address).collect();
    }

    fn work(&self, sender: usize) {
        let secret = Secret::new(SECRET).unwrap();
        for number in 0.. {
            let key = format!("event-{sender}-{number}");
            let chat = fastrand::usize(..CHATS);
            let body = format!(r#"{{"id":"chat-{chat}"}}"#);
            let head = format!(
                "POST /webhooks HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nx-service-event: chat-closed\r\n\
                 idempotency-key: {key}\r\nx-service-hmac-sha256: {}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                secret.sign(body.as_bytes()),
                body.len()
            );
            loop {
                if self.stop.load(Ordering::SeqCst) {
                    return;
                }
                if self
                    .send(&head, &body)
                    .is_some_and(|answer| answer.starts_with("HTTP/1.1 200"))
                {
                    self.acknowledged.lock().unwrap().push(key);
                    break;
                }
                thread::sleep(Duration::from_millis(50));
            }
            // Each event starts a command. With a backlog, those that were interrupted would wait for their turn.
            thread::sleep(Duration::from_millis(250));
        }
    }

    fn send(&self, head: &str, body: &str) -> Option<String> {
        let address = *fastrand::choice(self.addresses.lock().unwrap().iter())?;
        let limit = Duration::from_secs(1);
        let mut stream = TcpStream::connect_timeout(&address, limit).ok()?;
        stream.set_read_timeout(Some(limit)).ok()?;
        stream.write_all(format!("{head}{body}").as_bytes()).ok()?;
        let mut answer = String::new();
        let began = Instant::now();
        while !answer.contains("\r\n") && began.elapsed() < limit {
            let mut chunk = [0; 256];
            match stream.read(&mut chunk).ok()? {
                0 => break,
                length => answer.push_str(&String::from_utf8_lossy(&chunk[..length])),
            }
        }
        Some(answer)
    }
}
