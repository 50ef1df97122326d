//! Primaries of Redis are killed under load, again and again, and replicas take their place. Every answer is 200 or 503,
//! or 409 where a claim was recorded whose answer was lost, and an event is handled again only if the killed primary had
//! not told its replica of the record.
//!
//! The load is deliveries that are repeated until their 200, and then once more.
//!
//! `FAILOVERS=50` sets the number of kills of each test, which defaults to 1.

mod replicated;

use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::StatusCode;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{Instant, sleep};
use tower::Layer;
use tower_webhook::event::ChatRated;
use tower_webhook::idempotency::Idempotency;
use tower_webhook::redis::RedisStore;
use tower_webhook::signature::Signature;
use tower_webhook::store::Store;
use tower_webhook::{Delivery, EventRouter, Webhooks};

use self::replicated::Replicated;
use support::delivery::{deliver, secret};
use support::redis::{Failing, RedisCluster, RedisServer, SentinelSet};
use support::{Ready, eventually, lock};

const SENDERS: usize = 16;
/// What a sender does after each event.
const PAUSE: Duration = Duration::from_millis(10);
/// Longer than a failover: a run whose lease ends before its success can be recorded is repeated.
const LEASE: Duration = Duration::from_secs(15);

fn failovers() -> usize {
    match std::env::var("FAILOVERS") {
        Ok(text) => text.parse().expect("FAILOVERS is no number"),
        Err(_) => 1,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn failovers_of_a_cluster_are_survived() {
    let cluster = RedisCluster::start();
    let store = RedisStore::open(&cluster.url()).await.unwrap();
    survives("a cluster", cluster, store, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn failovers_by_sentinels_are_survived() {
    let set = SentinelSet::start();
    let store = RedisStore::open(&set.url()).await.unwrap();
    survives("sentinels", set, store, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn replicated_records_of_a_cluster_are_never_lost() {
    let mut cluster = RedisCluster::start();
    let store = replicated(&mut cluster, 1).await;
    let figures = survives("a cluster, with WAIT", cluster, store, 3).await;
    assert_eq!((figures.again, figures.forgotten), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn replicated_records_behind_sentinels_are_never_lost() {
    let mut set = SentinelSet::start();
    let store = replicated(&mut set, 2).await;
    let figures = survives("sentinels, with WAIT", set, store, 1).await;
    assert_eq!((figures.again, figures.forgotten), (0, 0));
}

async fn replicated(servers: &mut impl Failing, replicas: usize) -> Replicated {
    let store = RedisStore::open(&servers.url()).await.unwrap();
    let addresses = servers.servers().iter().map(RedisServer::address);
    Replicated::new(store, addresses.collect(), replicas)
}

/// What the senders and the handler see.
#[derive(Default)]
struct Book {
    runs: Mutex<HashMap<String, Vec<Instant>>>,
    /// The keys that were answered with 200 since the last look.
    acknowledged: Mutex<Vec<String>>,
    answers: Mutex<BTreeMap<u16, usize>>,
    refused: Mutex<Vec<Instant>>,
    handled: AtomicUsize,
    closed: AtomicBool,
}

impl Book {
    fn handler(self: &Arc<Self>) -> EventRouter {
        let book = Arc::clone(self);
        EventRouter::new().on::<ChatRated>(move |delivery: Delivery<ChatRated>| {
            let book = Arc::clone(&book);
            async move {
                let key = delivery.key().unwrap().as_bytes().to_vec();
                let key = String::from_utf8(key).unwrap();
                lock(&book.runs)
                    .entry(key)
                    .or_default()
                    .push(Instant::now());
                sleep(Duration::from_millis(2)).await;
                Ok(())
            }
        })
    }

    fn handled(&self) -> usize {
        self.handled.load(Ordering::SeqCst)
    }

    async fn send<St: Store + Clone>(&self, service: &Service<St>, key: &str) {
        let mut unavailable = false;
        loop {
            let status = deliver(service, key).await.status;
            // Of an earlier try, whose claim is held until its lease ends.
            assert!(status != StatusCode::CONFLICT || unavailable, "{key}");
            unavailable |= status == StatusCode::SERVICE_UNAVAILABLE;
            *lock(&self.answers).entry(status.as_u16()).or_default() += 1;
            if status == StatusCode::OK {
                return;
            }
            lock(&self.refused).push(Instant::now());
            sleep(Duration::from_millis(20)).await;
        }
    }
}

type Service<St> = Signature<Idempotency<EventRouter, St>>;

struct Figures {
    /// How many events were handled again before their 200, and after it.
    again: usize,
    forgotten: usize,
}

async fn survives<St: Store + Clone>(
    name: &str,
    mut servers: impl Failing,
    store: St,
    primaries: usize,
) -> Figures {
    let book = Arc::new(Book::default());
    let webhooks = Webhooks::new(secret()).store(store);
    let webhooks = webhooks.lease(LEASE);
    let service = webhooks.ready().layer(book.handler());
    let senders: Vec<_> = (0..SENDERS)
        .map(|sender| {
            let (book, service) = (Arc::clone(&book), service.clone());
            tokio::spawn(async move {
                for event in 0.. {
                    if book.closed.load(Ordering::SeqCst) {
                        break;
                    }
                    let key = format!("{sender}-{event}");
                    book.send(&service, &key).await;
                    lock(&book.acknowledged).push(key);
                    book.handled.fetch_add(1, Ordering::SeqCst);
                    sleep(PAUSE).await;
                }
            })
        })
        .collect();

    let more = async |count: usize, what| {
        let enough = book.handled() + count;
        eventually(what, async || book.handled() >= enough).await;
    };
    let (mut kills, mut away, mut forgotten) = (Vec::new(), Vec::new(), 0);
    let mut took = Duration::ZERO;
    for failover in 0..failovers() {
        let (began, before) = (Instant::now(), book.handled());
        more(2_000, "events are handled").await;
        let each = began.elapsed() * SENDERS as u32 / (book.handled() - before) as u32;
        took += each.saturating_sub(PAUSE);
        lock(&book.refused).clear();
        // Those before are old enough for the replicas.
        let recent = lock(&book.acknowledged).len() - 2_000;
        lock(&book.acknowledged).drain(..recent);

        kills.push(Instant::now());
        let killed = block_in_place(|| servers.kill_primary(failover));
        eventually("a replica takes its place", async || {
            block_in_place(|| servers.primaries()).len() == primaries
        })
        .await;
        block_in_place(|| {
            servers.restart(killed);
            servers.settle();
        });
        more(2_000, "events are handled again").await;
        let refused = mem::take(&mut *lock(&book.refused));
        let span = refused.first().zip(refused.last());
        away.push(span.map_or(0.0, |(first, last)| (*last - *first).as_secs_f64()));

        // What was acknowledged since the last look, once more.
        let acknowledged = mem::take(&mut *lock(&book.acknowledged));
        let runs = |keys: &[String]| -> usize {
            let runs = lock(&book.runs);
            keys.iter().map(|key| runs[key].len()).sum()
        };
        let before = runs(&acknowledged);
        let mut again = JoinSet::new();
        for keys in acknowledged.chunks(acknowledged.len().div_ceil(SENDERS)) {
            let (book, service, keys) = (Arc::clone(&book), service.clone(), keys.to_vec());
            again.spawn(async move {
                for key in keys {
                    book.send(&service, &key).await;
                }
            });
        }
        again.join_all().await;
        forgotten += runs(&acknowledged) - before;
    }
    book.closed.store(true, Ordering::SeqCst);
    for sender in senders {
        sender.await.unwrap();
    }

    let answers = lock(&book.answers).clone();
    let runs = lock(&book.runs);
    let again: usize = runs.values().map(|runs| runs.len() - 1).sum();
    away.sort_by(f64::total_cmp);
    println!(
        "{name}: {} failovers, {} events, answers {answers:?}, 503 for {:.1} s in half of the failovers and for {:.1} s \
         at most, handled again before 200: {}, after: {forgotten}, {:?} for each event",
        kills.len(),
        runs.len(),
        away[away.len() / 2],
        away[away.len() - 1],
        again - forgotten,
        took / kills.len() as u32,
    );
    assert!(
        answers
            .keys()
            .all(|status| [200, 409, 503].contains(status)),
        "{answers:?}"
    );
    for (key, runs) in runs.iter() {
        for pair in runs.windows(2) {
            let is_lost =
                |kill: &Instant| pair[0] < *kill + Duration::from_secs(1) && *kill < pair[1];
            assert!(
                kills.iter().any(is_lost),
                "{key} was handled twice without a failover: {pair:?}"
            );
        }
    }
    Figures {
        again: again - forgotten,
        forgotten,
    }
}
