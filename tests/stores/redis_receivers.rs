//! Receivers on one Redis server: during restarts, while it is frozen, several of them at once, and
//! with clocks that jump.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::StatusCode;
use tokio::sync::Semaphore;
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep};
use tower::Layer;
use tower_webhook::event::ChatRated;
use tower_webhook::redis::RedisStore;
use tower_webhook::store::{EventKey, KeyState, Store};
use tower_webhook::{Delivery, EventRouter, WebhookLayer, Webhooks};

use support::Ready;
use support::delivery::{Answered, BODY, deliver, secret};
use support::eventually;
use support::net::*;
use support::program::{Peer, faketime, say};
use support::redis::RedisServer;

const DAY: u64 = 24 * 60 * 60;

async fn connect(server: &RedisServer) -> RedisStore {
    RedisStore::open(&server.url()).await.unwrap()
}

/// A receiver that does not let duplicates wait, so that a lease may be this short.
fn layer(store: RedisStore, lease: Duration) -> WebhookLayer<RedisStore> {
    Webhooks::new(secret())
        .store(store)
        .in_flight_wait(Duration::ZERO)
        .lease(lease)
        .ready()
}

async fn is_done(store: &RedisStore, key: &str) -> bool {
    let id = EventKey::new("", key.as_bytes(), b"");
    store.peek(&id).await.unwrap() == KeyState::Done
}

fn key_of(delivery: &Delivery<ChatRated>) -> String {
    let key = delivery.key().unwrap().as_bytes();
    String::from_utf8(key.to_vec()).unwrap()
}

/// What a sender and a handler know of each other's work.
#[derive(Default)]
struct Book {
    runs: Mutex<HashMap<String, usize>>,
    acknowledged: Mutex<HashSet<String>>,
    handled_after_200: AtomicUsize,
    unavailable: AtomicUsize,
    in_flight: AtomicUsize,
    closed: AtomicBool,
}

impl Book {
    fn acknowledged(&self) -> usize {
        self.acknowledged.lock().unwrap().len()
    }

    fn handler(self: &Arc<Self>) -> EventRouter {
        let book = Arc::clone(self);
        EventRouter::new().on::<ChatRated>(move |delivery: Delivery<ChatRated>| {
            let book = Arc::clone(&book);
            async move {
                let key = key_of(&delivery);
                if book.acknowledged.lock().unwrap().contains(&key) {
                    book.handled_after_200.fetch_add(1, Ordering::SeqCst);
                }
                *book.runs.lock().unwrap().entry(key).or_default() += 1;
                sleep(Duration::from_millis(2)).await;
                Ok(())
            }
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn acknowledged_events_are_recorded_despite_restarts() {
    const LEASE: Duration = Duration::from_secs(2);
    const SENDERS: usize = 16;

    let mut server = RedisServer::durable();
    let store = connect(&server).await;
    let book = Arc::new(Book::default());
    let service = layer(store.clone(), LEASE).layer(book.handler());

    let senders: Vec<_> = (0..SENDERS)
        .map(|sender| {
            let (book, service) = (Arc::clone(&book), service.clone());
            tokio::spawn(async move {
                for event in 0.. {
                    if book.closed.load(Ordering::SeqCst) {
                        break;
                    }
                    let key = format!("{sender}-{event}");
                    loop {
                        let refused = match deliver(&service, &key).await.status {
                            StatusCode::OK => break,
                            StatusCode::SERVICE_UNAVAILABLE => &book.unavailable,
                            StatusCode::CONFLICT => &book.in_flight,
                            other => panic!("{key} was answered with {other}"),
                        };
                        refused.fetch_add(1, Ordering::SeqCst);
                        sleep(Duration::from_millis(10)).await;
                    }
                    book.acknowledged.lock().unwrap().insert(key);
                }
            })
        })
        .collect();

    let more = async |count: &dyn Fn() -> usize, what| {
        let before = count();
        eventually(what, async || count() >= before + 100).await;
    };
    let acknowledged = || book.acknowledged();
    let unavailable = || book.unavailable.load(Ordering::SeqCst);
    for round in 0..6 {
        more(&acknowledged, "events are handled").await;
        block_in_place(|| match round % 2 {
            0 => server.stop(),
            _ => server.kill(),
        });
        more(&unavailable, "503 while the server is away").await;
        block_in_place(|| server.restart());
        let back = Instant::now();
        more(&acknowledged, "events are handled again").await;
        let recovery = back.elapsed();
        assert!(recovery < Duration::from_secs(10), "it took {recovery:?}");
    }
    book.closed.store(true, Ordering::SeqCst);
    for sender in senders {
        sender.await.unwrap();
    }

    let acknowledged = book.acknowledged.lock().unwrap().clone();
    let runs = || -> usize { book.runs.lock().unwrap().values().sum() };
    println!(
        "{} events, {} runs, {} answers of 503, {} of 409",
        acknowledged.len(),
        runs(),
        unavailable(),
        book.in_flight.load(Ordering::SeqCst)
    );
    let before = runs();
    for key in &acknowledged {
        assert!(
            is_done(&store, key).await,
            "{key} was acknowledged and is not recorded"
        );
        deliver(&service, key).await.assert_replayed();
    }
    assert_eq!(runs(), before, "runs after all");
    assert_eq!(book.handled_after_200.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn frozen_server_is_answered_in_time() {
    // That of an operation is 2 seconds; the rest is for a slow machine.
    const LIMIT: Duration = Duration::from_secs(4);

    let server = RedisServer::durable();
    let store = connect(&server).await;
    let book = Arc::new(Book::default());
    let service = layer(store.clone(), Duration::from_secs(3)).layer(book.handler());
    deliver(&service, "before").await.assert_ok();

    server.freeze();
    let frozen = (0..16).map(|event| {
        let service = service.clone();
        tokio::spawn(async move {
            let asked = Instant::now();
            let answered = deliver(&service, &format!("frozen {event}")).await;
            assert_eq!(answered.status, StatusCode::SERVICE_UNAVAILABLE);
            assert!(asked.elapsed() < LIMIT, "after {:?}", asked.elapsed());
        })
    });
    for delivery in frozen.collect::<Vec<_>>() {
        delivery.await.unwrap();
    }
    let asked = Instant::now();
    let answered = deliver(&service, "later").await;
    assert_eq!(answered.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(asked.elapsed() < LIMIT, "after {:?}", asked.elapsed());

    server.thaw();
    let back = Instant::now();
    // Claims that the server took up only now end with their leases.
    for event in 0..16 {
        let key = format!("frozen {event}");
        while deliver(&service, &key).await.status != StatusCode::OK {
            assert!(back.elapsed() < Duration::from_secs(10), "{key} is stuck");
            sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(book.runs.lock().unwrap()[&key], 1);
        assert!(is_done(&store, &key).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn success_is_recorded_when_the_server_is_back() {
    let mut server = RedisServer::durable();
    let store = connect(&server).await;
    let (begun, go_on) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let runs = Arc::new(AtomicUsize::new(0));
    let events = {
        let (begun, go_on, runs) = (Arc::clone(&begun), Arc::clone(&go_on), Arc::clone(&runs));
        EventRouter::new().on::<ChatRated>(move |_: Delivery<ChatRated>| {
            let (begun, go_on, runs) = (Arc::clone(&begun), Arc::clone(&go_on), Arc::clone(&runs));
            async move {
                runs.fetch_add(1, Ordering::SeqCst);
                begun.add_permits(1);
                go_on.acquire().await.unwrap().forget();
                Ok(())
            }
        })
    };
    let service = layer(store.clone(), Duration::from_secs(60)).layer(events);
    for (key, crash) in [("stopped", false), ("killed", true)] {
        let mut delivery = {
            let service = service.clone();
            tokio::spawn(async move { deliver(&service, key).await })
        };
        tokio::select! {
            permit = begun.acquire() => permit.unwrap().forget(),
            answered = &mut delivery => panic!("answered before it was handled: {answered:?}"),
        }
        block_in_place(|| match crash {
            false => server.stop(),
            true => server.kill(),
        });
        go_on.add_permits(1);
        sleep(Duration::from_millis(300)).await;
        assert!(!delivery.is_finished(), "answered before it was recorded");
        block_in_place(|| server.restart());
        delivery.await.unwrap().assert_ok();
        assert!(is_done(&store, key).await);
        deliver(&service, key).await.assert_replayed();
    }
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

/// Serves for a test in another process, until its input ends. An event whose key contains `slow`
/// takes more than twice as long as its lease.
async fn serve(url: &str) {
    let store = RedisStore::open(url).await.unwrap();
    let events = EventRouter::new().on::<ChatRated>(async |delivery: Delivery<ChatRated>| {
        let key = key_of(&delivery);
        let slow = key.contains("slow");
        sleep(Duration::from_millis(if slow { 7_000 } else { 5 })).await;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        say(format!("{key} {}", now.as_secs()));
        Ok(())
    });
    let service = layer(store, Duration::from_secs(3)).layer(events);
    say(Server::Axum.serve(service).await);
    let end = || std::io::stdin().read_to_end(&mut Vec::new());
    tokio::task::spawn_blocking(end).await.unwrap().unwrap();
}

/// Sends each event to three receivers at once, until it is handled, and returns what these said of
/// each of their runs: the key, and what time they thought it was. Meanwhile `meddle` runs.
async fn to_three_receivers(
    mut receivers: Vec<Peer>,
    events: usize,
    meddle: impl Future<Output = ()>,
) -> Vec<(String, u64)> {
    let addresses: Vec<_> = receivers
        .iter_mut()
        .map(|receiver| receiver.hear().parse().unwrap())
        .collect();
    let at_once = Arc::new(Semaphore::new(16));
    let deliveries: Vec<_> = (0..events)
        .map(|event| {
            let (addresses, at_once) = (addresses.clone(), Arc::clone(&at_once));
            let speed = if event % 20 == 0 { "slow" } else { "fast" };
            tokio::spawn(async move {
                let _permit = at_once.acquire().await.unwrap();
                let request = whole(&format!("{event}-{speed}"), BODY);
                let [a, b, c] = [0, 1, 2].map(|at| post(addresses[at], &request));
                let (a, b, c) = tokio::try_join!(a, b, c).unwrap();
                let handled = |answered: &&Answered| match answered.status {
                    StatusCode::OK => !answered.is_replay(),
                    StatusCode::CONFLICT => false,
                    other => panic!("event {event} was answered with {other}"),
                };
                assert_eq!([a, b, c].iter().filter(handled).count(), 1, "event {event}");
            })
        })
        .collect();
    let all = async {
        for delivery in deliveries {
            delivery.await.unwrap();
        }
    };
    tokio::select! {
        () = all => {}
        () = async { meddle.await; std::future::pending().await } => {}
    }
    let said = receivers.into_iter().flat_map(Peer::end);
    said.map(|line| {
        let (key, time) = line.split_once(' ').unwrap();
        (key.to_owned(), time.parse().unwrap())
    })
    .collect()
}

fn assert_each_once(runs: &[(String, u64)], events: usize) {
    let keys: HashSet<_> = runs.iter().map(|(key, _)| key).collect();
    assert_eq!(keys.len(), events, "events that were handled");
    assert_eq!(runs.len(), events, "runs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn three_receivers_handle_each_event_once() {
    const TEST: &str = "three_receivers_handle_each_event_once";
    const EVENTS: usize = 500;
    if let Some(url) = Peer::argument() {
        return serve(&url).await;
    }
    let server = RedisServer::start();
    let receivers = (0..3).map(|_| Peer::start(Peer::command(module_path!(), TEST, server.url())));
    let runs = to_three_receivers(receivers.collect(), EVENTS, async {}).await;
    assert_each_once(&runs, EVENTS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn clocks_of_receivers_may_jump() {
    const TEST: &str = "clocks_of_receivers_may_jump";
    const EVENTS: usize = 200;
    if let Some(url) = Peer::argument() {
        return serve(&url).await;
    }
    let server = RedisServer::start();
    let url = server.url();
    let clocks = tempfile::tempdir().unwrap();
    let library = faketime();
    let clock = |receiver: usize| clocks.path().join(receiver.to_string());
    let receivers = (0..3).map(|receiver| {
        let clock = clock(receiver);
        set(&clock, "+0d");
        let environment = [
            ("LD_PRELOAD", library.as_str()),
            ("FAKETIME_TIMESTAMP_FILE", clock.to_str().unwrap()),
            ("FAKETIME_NO_CACHE", "1"),
            // A jump of the clock leaves this one alone.
            ("DONT_FAKE_MONOTONIC", "1"),
        ];
        let mut command = Peer::command(module_path!(), TEST, &url);
        command.envs(environment);
        Peer::start(command)
    });
    let jump = async {
        for round in 0.. {
            for receiver in 0..3 {
                set(
                    &clock(receiver),
                    ["+30d", "-30d", "+0d"][(round + receiver) % 3],
                );
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    let runs = to_three_receivers(receivers.collect(), EVENTS, jump).await;
    assert_each_once(&runs, EVENTS);

    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let now = now.as_secs();
    assert!(runs.iter().any(|(_, time)| *time > now + 29 * DAY));
    assert!(runs.iter().any(|(_, time)| *time < now - 29 * DAY));
}

/// In one step, because it is read all the time.
fn set(clock: &Path, offset: &str) {
    let new = clock.with_extension("new");
    fs::write(&new, offset).unwrap();
    fs::rename(new, clock).unwrap();
}
