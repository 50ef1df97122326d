//! A receiver of three senders in one inbox is killed under load, again and again. The senders number their events alike,
//! so that each key is that of three events. Every event that was acknowledged is handled, by the command of its own route.
//!
//! `KILLS=100` sets the number of kills, which defaults to 12.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use sqlx::postgres::PgPoolOptions;
use support::lock;
use support::postgres::PostgresServer;
use support::program::{PATIENCE, Server, example};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};
use tower_webhook::inbox::{EventState, Filter, Inbox, Page};
use tower_webhook::postgres::PostgresQueue;
use tower_webhook::sqlite::SqliteQueue;
use tower_webhook::{EventKind, IdempotencyKey, RawDelivery, Secret, Sender};

const NAMES: [&str; 3] = ["chat-platform", "github", "stripe"];
/// With more unsettled events, the senders wait.
const BACKLOG: u64 = 40;

#[tokio::test(flavor = "multi_thread")]
async fn killed_receivers_keep_senders_apart_with_sqlite() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("webhooks.db");
    let inbox = Inbox::new(SqliteQueue::open(&path).unwrap());
    survives(&format!("sqlite:{}", path.display()), &inbox).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_receivers_keep_senders_apart_with_postgres() {
    let server = PostgresServer::start();
    let pool = PgPoolOptions::new().connect_lazy(&server.url()).unwrap();
    let queue = PostgresQueue::new(pool);
    queue.migrate().await.unwrap();
    survives(&server.url(), &Inbox::new(queue)).await;
}

async fn survives(url: &str, inbox: &Inbox) {
    let kills: usize = std::env::var("KILLS").map_or(12, |kills| kills.parse().unwrap());
    let dir = TempDir::new().unwrap();
    let config = routes(dir.path(), url);
    let start = || {
        let mut command = example("receiver");
        command.env("RUST_LOG", "warn").arg("--config").arg(&config);
        Server::start_by(command.args(["--lease", "2", "--concurrency", "4"]))
    };
    let load = Arc::new(Load::default());
    let senders = NAMES.map(|name| {
        let load = Arc::clone(&load);
        thread::spawn(move || load.send_all(name))
    });
    for _ in 0..kills {
        let mut receiver = start();
        load.reach(&receiver);
        let unsettled = inbox.stats().await.unwrap().unsettled();
        load.waits.store(unsettled > BACKLOG, Ordering::SeqCst);
        sleep(Duration::from_millis(fastrand::u64(300..1500))).await;
        receiver.program.child.kill().unwrap();
        receiver.program.child.wait().unwrap();
    }
    let last = start();
    load.reach(&last);
    load.waits.store(false, Ordering::SeqCst);
    sleep(Duration::from_millis(500)).await;
    load.stop.store(true, Ordering::SeqCst);
    for sender in senders {
        sender.join().unwrap();
    }
    let finished = timeout(PATIENCE, inbox.finish()).await;
    finished.expect("some events are not settled").unwrap();
    redrive_crashed(inbox).await;
    let finished = timeout(PATIENCE, inbox.finish()).await;
    let stats = finished.expect("some events are not handled").unwrap();
    assert!(stats.is_all_handled(), "{stats}");

    let acknowledged = lock(&load.acknowledged).clone();
    let unexpected = lock(&load.unexpected).clone();
    assert!(unexpected.is_empty(), "{unexpected:?}");
    for name in NAMES {
        let sent = &acknowledged[name];
        assert!(sent.len() > kills, "{name}: {}", sent.len());
        let handled = handled(dir.path(), name);
        let lost: Vec<_> = sent.difference(&handled).collect();
        assert!(lost.is_empty(), "{name}: {lost:?}");
        println!("{name}: {} events in {kills} kills", sent.len());
    }
    assert_eq!(last.stop(), 0);
}

/// An event that met three kills in a row is a dead letter, which waits for a person.
async fn redrive_crashed(inbox: &Inbox) {
    let dead = Filter::default().states([EventState::Dead]);
    for event in inbox.list(&dead, Page::oldest(1_000)).await.unwrap().events {
        let record = inbox.get(event.id).await.unwrap().unwrap();
        let last = record.failures.last().unwrap();
        assert_eq!(last.failure.outcome, "crashed", "{record:?}");
        inbox.redrive(event.id, None).await.unwrap();
    }
}

/// Writes the file of routes: each has a file that its command appends lines to.
fn routes(dir: &Path, inbox: &str) -> PathBuf {
    let routes = NAMES.map(|name| {
        let secret = dir.join(format!("{name}.secret"));
        fs::write(&secret, name).unwrap();
        json!({
            "path": format!("/{name}"),
            "sender": name,
            "secret-file": secret,
            "inbox": inbox,
            "exec": format!("cat >>'{}'", dir.join(name).display()),
        })
    });
    let config = dir.join("routes.json");
    fs::write(&config, json!({ "routes": routes }).to_string()).unwrap();
    config
}

/// The keys of the events that the command of a route has got. Fails if one is another sender's.
fn handled(dir: &Path, name: &str) -> BTreeSet<String> {
    let lines = fs::read_to_string(dir.join(name)).unwrap();
    let keys = lines.lines().map(|line| {
        let event: Value = serde_json::from_str(line).unwrap();
        assert_eq!(event["route"], format!("/{name}"), "{line}");
        assert_eq!(event["payload"]["of"], name, "{line}");
        event["key"].as_str().unwrap().to_owned()
    });
    keys.collect()
}

/// Plays the senders, each of which sends an event until it is answered with 200.
#[derive(Default)]
struct Load {
    address: Mutex<Option<SocketAddr>>,
    stop: AtomicBool,
    waits: AtomicBool,
    acknowledged: Mutex<BTreeMap<&'static str, BTreeSet<String>>>,
    /// Answers that are neither 200 nor 503.
    unexpected: Mutex<Vec<String>>,
}

impl Load {
    fn reach(&self, receiver: &Server) {
        let address = receiver.url.split('/').nth(2).unwrap();
        *lock(&self.address) = Some(address.parse().unwrap());
    }

    fn send_all(&self, name: &'static str) {
        let sender = match name {
            "chat-platform" => Sender::chat_platform(),
            name => Sender::named(name, None).unwrap(),
        };
        let number = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !self.stop.load(Ordering::SeqCst) {
                        let key = format!("event-{}", number.fetch_add(1, Ordering::SeqCst));
                        self.send_until_accepted(&sender, name, key);
                        thread::sleep(Duration::from_millis(100));
                        while self.waits.load(Ordering::SeqCst) {
                            thread::sleep(Duration::from_millis(50));
                        }
                    }
                });
            }
        });
    }

    fn send_until_accepted(&self, sender: &Sender, name: &'static str, key: String) {
        let body = json!({ "id": key, "type": "made", "of": name }).to_string();
        let delivery = RawDelivery::new(EventKind::from_static("made"), body)
            .with_key(IdempotencyKey::new(key.parse().unwrap()));
        let secret = Secret::new(name).unwrap();
        while !self.stop.load(Ordering::SeqCst) {
            // Stripe signs the time.
            let headers = sender.sign(&secret, &delivery).unwrap();
            let mut request = format!(
                "POST /{name} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n",
                delivery.body().len()
            );
            for (name, value) in &headers {
                request += &format!("{name}: {}\r\n", value.to_str().unwrap());
            }
            request += "\r\n";
            let request = [request.as_bytes(), delivery.body()].concat();
            if self.send(&request) == Some(true) {
                lock(&self.acknowledged)
                    .entry(name)
                    .or_default()
                    .insert(key);
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Whether the delivery was accepted. `None` without an answer.
    fn send(&self, request: &[u8]) -> Option<bool> {
        let limit = Duration::from_secs(3);
        let address = (*lock(&self.address))?;
        let mut stream = TcpStream::connect_timeout(&address, limit).ok()?;
        stream.set_read_timeout(Some(limit)).ok()?;
        stream.write_all(request).ok()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok()?;
        let answer = String::from_utf8_lossy(&answer);
        if !answer.contains("\r\n\r\n") {
            return None;
        }
        let is_expected = ["HTTP/1.1 200", "HTTP/1.1 503"]
            .iter()
            .any(|status| answer.starts_with(status));
        if !is_expected {
            lock(&self.unexpected).push(answer.clone().into_owned());
        }
        Some(answer.starts_with("HTTP/1.1 200"))
    }
}
