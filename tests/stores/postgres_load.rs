//! The Postgres store under load: while its server stops and crashes, and with several receivers.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::StatusCode;
use sqlx::Row;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{Instant, sleep, timeout};
use tower_webhook::event::ChatRated;
use tower_webhook::idempotency::Idempotency;
use tower_webhook::postgres::PostgresStore;
use tower_webhook::signature::Signature;
use tower_webhook::store::{EventKey, KeyState, Store};
use tower_webhook::{Delivery, EventRouter, Webhooks};

use support::Ready;
use support::database::{connect, execute};
use support::delivery::{BODY, deliver, secret};
use support::eventually;
use support::net::{Server, post, whole};
use support::postgres::{PostgresServer, Stop};
use support::program::{Peer, say};

/// How many events are under way at once.
const SENDERS: usize = 16;

fn key_of<E: tower_webhook::event::Event>(delivery: &Delivery<E>) -> String {
    let key = delivery.key().expect("a key");
    String::from_utf8(key.as_bytes().to_vec()).unwrap()
}

/// What was handled, what was acknowledged, and how.
#[derive(Default)]
struct Ledger {
    next: AtomicU64,
    runs: Mutex<HashMap<String, u32>>,
    acknowledged: Mutex<HashSet<String>>,
    /// Runs that began after the event had been acknowledged.
    again: AtomicUsize,
    answers: Mutex<HashMap<StatusCode, u64>>,
    /// Per sender, how many 503 it got.
    refused: [AtomicU64; SENDERS],
    has_ended: AtomicBool,
}

impl Ledger {
    async fn handle(&self, delivery: Delivery<ChatRated>) {
        let key = key_of(&delivery);
        if self.acknowledged.lock().unwrap().contains(&key) {
            self.again.fetch_add(1, Ordering::SeqCst);
        }
        let run = {
            let mut runs = self.runs.lock().unwrap();
            let run = runs.entry(key).or_default();
            *run += 1;
            *run
        };
        sleep(Duration::from_millis(u64::from(run) * 2)).await;
    }

    fn acknowledged(&self) -> usize {
        self.acknowledged.lock().unwrap().len()
    }

    fn refused(&self) -> Vec<u64> {
        let refused = self.refused.iter();
        refused.map(|count| count.load(Ordering::SeqCst)).collect()
    }

    fn answers(&self) -> HashMap<StatusCode, u64> {
        self.answers.lock().unwrap().clone()
    }
}

/// A receiver in this process, and senders that retry each event until it is acknowledged.
struct Load {
    ledger: Arc<Ledger>,
    senders: JoinSet<()>,
    service: Receiver,
}

type Receiver = Signature<Idempotency<EventRouter, PostgresStore>>;

impl Load {
    async fn start(url: &str) -> Self {
        let store = PostgresStore::new(connect(url, 8).await);
        store.migrate().await.unwrap();
        let ledger = Arc::new(Ledger::default());
        let handler = Arc::clone(&ledger);
        let events = EventRouter::new().on::<ChatRated>(move |delivery: Delivery<ChatRated>| {
            let ledger = Arc::clone(&handler);
            async move {
                ledger.handle(delivery).await;
                Ok(())
            }
        });
        let service = Webhooks::new(secret())
            .store(store)
            .in_flight_wait(Duration::from_millis(500))
            // What a crash leaves claimed is free again while the test waits for it.
            .lease(Duration::from_secs(3))
            .layer(events);
        let mut senders = JoinSet::new();
        for at in 0..SENDERS {
            senders.spawn(send(service.clone(), Arc::clone(&ledger), at));
        }
        Self {
            ledger,
            senders,
            service,
        }
    }

    /// Waits until this many more events are acknowledged, and returns how long that took.
    async fn acknowledges(&self, more: usize) -> Duration {
        let (began, from) = (Instant::now(), self.ledger.acknowledged());
        let what = format!(
            "{more} more events acknowledged, {:?}",
            self.ledger.answers()
        );
        eventually(&what, async || self.ledger.acknowledged() >= from + more).await;
        began.elapsed()
    }

    /// Waits until every sender got so many more 503.
    async fn refuses_everybody(&self, more: u64) {
        let before = self.ledger.refused();
        eventually("503 for every sender", async || {
            let refused = self.ledger.refused();
            refused
                .iter()
                .zip(&before)
                .all(|(now, before)| *now >= before + more)
        })
        .await;
    }

    /// Lets the senders end, and asserts that what was acknowledged was recorded, and was never
    /// handled again.
    async fn finish(mut self, url: &str) {
        self.ledger.has_ended.store(true, Ordering::SeqCst);
        let ended = async {
            while self
                .senders
                .join_next()
                .await
                .transpose()
                .unwrap()
                .is_some()
            {}
        };
        let ended = timeout(Duration::from_secs(60), ended).await;
        ended.expect("an event that is not acknowledged is stuck");

        let again = self.ledger.again.load(Ordering::SeqCst);
        assert_eq!(again, 0, "runs after the acknowledgement");
        let runs = self.ledger.runs.lock().unwrap().clone();
        let acknowledged = self.ledger.acknowledged.lock().unwrap().clone();
        println!(
            "{} events in {} runs, answers {:?}",
            acknowledged.len(),
            runs.values().sum::<u32>(),
            self.ledger.answers()
        );
        let store = PostgresStore::new(connect(url, 4).await);
        for key in &acknowledged {
            let id = EventKey::new("", key.as_bytes(), BODY.as_bytes());
            let state = store.peek(&id).await.unwrap();
            assert_eq!(state, KeyState::Done, "{key} was acknowledged");
            assert!(runs.contains_key(key), "{key} was acknowledged");
        }
        for key in acknowledged.iter().take(100) {
            deliver(&self.service, key).await.assert_replayed();
        }
        assert_eq!(*self.ledger.runs.lock().unwrap(), runs);
    }
}

/// Sends one new event after the other until the end, and some of them twice.
async fn send(service: Receiver, ledger: Arc<Ledger>, at: usize) {
    while !ledger.has_ended.load(Ordering::SeqCst) {
        let event = ledger.next.fetch_add(1, Ordering::SeqCst);
        let key = format!("event {event}");
        let mut deliveries = 1 + event % 2;
        while deliveries > 0 {
            let status = deliver(&service, &key).await.status;
            *ledger.answers.lock().unwrap().entry(status).or_default() += 1;
            match status {
                StatusCode::OK => {
                    ledger.acknowledged.lock().unwrap().insert(key.clone());
                    deliveries -= 1;
                }
                StatusCode::SERVICE_UNAVAILABLE => {
                    ledger.refused[at].fetch_add(1, Ordering::SeqCst);
                    sleep(Duration::from_millis(20)).await;
                }
                StatusCode::CONFLICT => sleep(Duration::from_millis(20)).await,
                status => panic!("{key} was answered with {status}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_server_loses_nothing() {
    let mut server = PostgresServer::start();
    let url = server.url();
    let load = Load::start(&url).await;
    for how in [Stop::Immediate, Stop::Fast] {
        load.acknowledges(200).await;
        block_in_place(|| server.stop(how));
        // What was recorded before that is still being answered.
        load.refuses_everybody(1).await;
        let (acknowledged, answers) = (load.ledger.acknowledged(), load.ledger.answers());
        load.refuses_everybody(1).await;
        let mut since = load.ledger.answers();
        for (status, before) in answers {
            *since.get_mut(&status).unwrap() -= before;
        }
        since.retain(|_, count| *count > 0);
        assert_eq!(
            since.keys().collect::<Vec<_>>(),
            [&StatusCode::SERVICE_UNAVAILABLE],
            "while the server is away: {since:?}"
        );
        assert_eq!(
            load.ledger.acknowledged(),
            acknowledged,
            "while the server is away"
        );

        block_in_place(|| server.restart());
        let recovered = load.acknowledges(SENDERS).await;
        println!("{how:?}: works again after {recovered:?}");
        assert!(recovered < Duration::from_secs(10), "{recovered:?}");
    }
    load.acknowledges(200).await;
    load.finish(&url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_backends_lose_nothing() {
    const KILLS: i64 = 100;

    let server = PostgresServer::start();
    let url = server.url();
    let load = Load::start(&url).await;
    let admin = connect(&url, 1).await;
    let (mut all, mut at_work) = (0, 0);
    let give_up = Instant::now() + Duration::from_secs(300);
    while at_work < KILLS {
        assert!(Instant::now() < give_up, "{at_work} of {all} were at work");
        let kill = sqlx::query(
            "SELECT count(pg_terminate_backend(pid)), count(*) FILTER (WHERE state = 'active')
             FROM pg_stat_activity
             WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
                AND datname = 'postgres'",
        );
        let killed = kill.fetch_one(&admin).await.unwrap();
        all += killed.get::<i64, _>(0);
        at_work += killed.get::<i64, _>(1);
        load.acknowledges(10).await;
    }
    println!("{all} backends were killed, {at_work} of them at work");
    load.acknowledges(200).await;
    load.finish(&url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_three_receivers_runs_each_event() {
    const TEST: &str = "one_of_three_receivers_runs_each_event";
    const EVENTS: usize = 600;

    if let Some(url) = Peer::argument() {
        return receive(&url).await;
    }
    let server = PostgresServer::start();
    let pool = connect(&server.url(), 2).await;
    execute(&pool, "CREATE TABLE runs (key text, receiver bigint)").await;
    // They start at once, and each one migrates.
    let mut started: Vec<_> = (0..3)
        .map(|_| Peer::start(Peer::command(module_path!(), TEST, server.url())))
        .collect();
    let receivers: Vec<SocketAddr> = started
        .iter_mut()
        .map(|peer| peer.hear().parse().unwrap())
        .collect();

    let next = Arc::new(AtomicUsize::new(0));
    let handled = Arc::new(AtomicUsize::new(0));
    let mut senders = JoinSet::new();
    for _ in 0..SENDERS {
        let (receivers, next, handled) = (receivers.clone(), next.clone(), handled.clone());
        senders.spawn(async move {
            loop {
                let event = next.fetch_add(1, Ordering::SeqCst);
                if event >= EVENTS {
                    return;
                }
                let mut answers = JoinSet::new();
                for &receiver in &receivers {
                    answers.spawn(async move {
                        let delivery = whole(&format!("event {event}"), BODY);
                        loop {
                            let answered = post(receiver, &delivery).await.unwrap();
                            match answered.status {
                                StatusCode::OK => return answered,
                                StatusCode::CONFLICT => sleep(Duration::from_millis(10)).await,
                                status => panic!("event {event} was answered with {status}"),
                            }
                        }
                    });
                }
                while let Some(answered) = answers.join_next().await {
                    let is_replay = answered.unwrap().is_replay();
                    handled.fetch_add(usize::from(!is_replay), Ordering::SeqCst);
                }
            }
        });
    }
    let sent = async { while senders.join_next().await.transpose().unwrap().is_some() {} };
    let sent = timeout(Duration::from_secs(120), sent).await;
    sent.expect("every event is acknowledged by all three");

    let runs = "SELECT count(*), count(DISTINCT key), count(DISTINCT receiver) FROM runs";
    let runs = sqlx::query(runs).fetch_one(&pool).await.unwrap();
    let [all, keys, of] = [0, 1, 2].map(|column| runs.get::<i64, _>(column));
    assert_eq!(
        (all, keys),
        (EVENTS as i64, EVENTS as i64),
        "runs, and of how many events"
    );
    assert_eq!(of, 3, "receivers that had a part in it");
    assert_eq!(
        handled.load(Ordering::SeqCst),
        EVENTS,
        "answers that are no replays"
    );
}

/// One of three receivers, each a process with a pool and a layer of its own.
async fn receive(url: &str) {
    let pool = connect(url, 8).await;
    let store = PostgresStore::new(pool.clone());
    store.migrate().await.unwrap();
    let events = EventRouter::new().on::<ChatRated>(move |delivery: Delivery<ChatRated>| {
        let pool = pool.clone();
        async move {
            sqlx::query("INSERT INTO runs VALUES ($1, $2)")
                .bind(key_of(&delivery))
                .bind(i64::from(std::process::id()))
                .execute(&pool)
                .await?;
            // Some runs end before the others ask, and some do not.
            sleep(Duration::from_millis(
                delivery.key().map_or(0, |key| key.as_bytes().len() as u64),
            ))
            .await;
            Ok(())
        }
    });
    // On a slow machine the store is slow, and yet there.
    let service = Webhooks::new(secret())
        .store(store)
        .store_timeout(Duration::from_secs(60))
        .layer(events);
    say(Server::Hyper.serve(service).await);
    // Until the test that started it ends.
    let mut stdin = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(_)) = stdin.next_line().await {}
}
