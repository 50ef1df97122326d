//! A server and what runs beside it, stopped together: with a store and with an inbox.

#![cfg(feature = "moka")]

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tower_webhook::event::ChatRated;
use tower_webhook::inbox::Inbox;
use tower_webhook::memory::MemoryQueue;
use tower_webhook::{Delivery, EventRouter, Running, ServeError, Stop, Webhooks};

use support::delivery::{BODY, deliver, secret};
use support::net::{post, whole};
use support::{MINUTE, SECOND, chain, eventually};

/// A handler that takes its time, and counts what it begins and ends.
#[derive(Clone)]
struct Slow {
    takes: Duration,
    begun: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
}

impl Slow {
    fn new(takes: Duration) -> Self {
        Self {
            takes,
            begun: Arc::default(),
            ended: Arc::default(),
        }
    }

    fn router(&self) -> EventRouter {
        let slow = self.clone();
        EventRouter::new().on::<ChatRated>(move |_: Delivery<ChatRated>| {
            let slow = slow.clone();
            async move {
                slow.begun.fetch_add(1, Ordering::SeqCst);
                sleep(slow.takes).await;
                slow.ended.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }
        })
    }

    fn counts(&self) -> (usize, usize) {
        let count = |of: &AtomicUsize| of.load(Ordering::SeqCst);
        (count(&self.begun), count(&self.ended))
    }
}

/// A server whose last connection ends so long after it was told to stop.
async fn server(stop: Stop, connections: Duration) -> io::Result<()> {
    stop.await;
    sleep(connections).await;
    Ok(())
}

/// A worker with an attempt in progress, which takes so long.
async fn working(takes: Duration) -> (Slow, Inbox, Running) {
    let (slow, inbox) = (Slow::new(takes), Inbox::new(MemoryQueue::new()));
    let webhooks = Webhooks::new(secret()).inbox(inbox.clone());
    let (service, running) = webhooks.start(slow.router()).unwrap();
    deliver(&service, "k").await.assert_ok();
    sleep(SECOND).await;
    assert_eq!(slow.counts(), (1, 0));
    (slow, inbox, running)
}

/// A receiver with a store, and a run in progress whose client has gone.
async fn detached(takes: Duration) -> (Slow, Running) {
    let slow = Slow::new(takes);
    let (service, running) = Webhooks::new(secret()).start(slow.router()).unwrap();
    let left = timeout(SECOND, deliver(&service, "k")).await;
    assert!(left.is_err(), "it was answered before");
    (slow, running)
}

/// Serves until a signal after a second, with a limit of ten. Returns the result, and the time since the signal.
async fn served<F, E>(
    running: &Running,
    server: impl FnOnce(Stop) -> F,
) -> (Result<(), ServeError>, u64)
where
    F: Future<Output = Result<(), E>> + Send,
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let start = Instant::now();
    let served = running.serve(sleep(SECOND), 10 * SECOND, server).await;
    (served, start.elapsed().as_secs() - 1)
}

#[track_caller]
fn server_error(served: Result<(), ServeError>) -> String {
    match served {
        Err(error @ ServeError::Server(_)) => chain(&error),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn left(served: Result<(), ServeError>) -> usize {
    match served {
        Err(ServeError::Drain(error)) => error.count(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn the_signal_stops_both_and_what_is_in_progress_ends() {
    // The server has connections for longer, or the handler runs for longer.
    for (connections, takes, expected) in [(3, 4, 3), (1, 8, 6)] {
        let (slow, inbox, running) = working(takes * SECOND).await;
        let (served, after) = served(&running, |stop| server(stop, connections * SECOND)).await;
        served.unwrap();
        assert_eq!((slow.counts(), after), ((1, 1), expected));
        assert!(inbox.stats().await.unwrap().is_all_handled());

        let (slow, running) = detached(takes * SECOND).await;
        let (served, after) =
            self::served(&running, |stop| server(stop, connections * SECOND)).await;
        served.unwrap();
        assert_eq!((slow.counts(), after), ((1, 1), expected));
    }
}

/// At once, so that a slow connection gives it no more of them.
#[tokio::test(start_paused = true)]
async fn a_worker_takes_no_events_while_connections_end() {
    let (slow, inbox) = (Slow::new(SECOND), Inbox::new(MemoryQueue::new()));
    let webhooks = Webhooks::new(secret()).inbox(inbox.clone());
    let (service, running) = webhooks.start(slow.router()).unwrap();
    let (served, after) = served(&running, |stop| async move {
        stop.await;
        sleep(SECOND).await;
        deliver(&service, "late").await.assert_ok();
        sleep(5 * SECOND).await;
        io::Result::Ok(())
    })
    .await;
    served.unwrap();
    assert_eq!((slow.counts(), after), ((0, 0), 6));
    assert_eq!(inbox.stats().await.unwrap().unsettled(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_left_at_the_limit_is_cut() {
    let (slow, inbox, running) = working(20 * SECOND).await;
    let (served, after) = served(&running, |stop| server(stop, SECOND)).await;
    assert_eq!((left(served), after), (1, 10));
    sleep(MINUTE).await;
    assert_eq!(slow.counts(), (1, 0), "the attempt was interrupted");
    assert_eq!(
        inbox.stats().await.unwrap().kinds[0].waiting,
        1,
        "it is tried again"
    );

    let (_, running) = detached(20 * SECOND).await;
    let (served, after) = self::served(&running, |stop| server(stop, SECOND)).await;
    assert_eq!((left(served), after), (1, 10));

    // A connection that does not end keeps the worker from nothing.
    let (slow, _, running) = working(3 * SECOND).await;
    let (served, after) = self::served(&running, |stop| server(stop, MINUTE)).await;
    let expected = "the server failed: it still had connections at the limit";
    assert_eq!((server_error(served).as_str(), after), (expected, 10));
    assert_eq!(slow.counts(), (1, 1));

    let (slow, running) = detached(3 * SECOND).await;
    let (served, after) = self::served(&running, |stop| server(stop, MINUTE)).await;
    assert_eq!((server_error(served).as_str(), after), (expected, 10));
    assert_eq!(slow.counts(), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_fails_stops_the_rest_and_its_error_is_returned() {
    let fails = || io::Error::other("no more files");
    let expected = "the server failed: no more files";
    let at_once = async |running: &Running| {
        let start = Instant::now();
        let signal = std::future::pending();
        let served = running.serve(signal, 10 * SECOND, |_| async { Err(fails()) });
        assert_eq!(server_error(served.await), expected);
        start.elapsed().as_secs()
    };
    let (slow, _, running) = working(4 * SECOND).await;
    assert_eq!(at_once(&running).await, 3);
    assert_eq!(slow.counts(), (1, 1), "the attempt has ended");
    let (slow, running) = detached(4 * SECOND).await;
    assert_eq!(at_once(&running).await, 3);
    assert_eq!(slow.counts(), (1, 1), "the run has ended");

    // While it stops, it matters more than what is cut.
    let (_, _, running) = working(20 * SECOND).await;
    let (served, after) = served(&running, |stop| async move {
        stop.await;
        Err(fails())
    })
    .await;
    assert_eq!((server_error(served).as_str(), after), (expected, 10));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_by_itself_is_no_error() {
    let (slow, _, running) = working(4 * SECOND).await;
    let ends = |_: Stop| std::future::ready(io::Result::Ok(()));
    let served = running.serve(std::future::pending(), MINUTE, ends);
    served.await.unwrap();
    assert_eq!(slow.counts(), (1, 1));
}

/// An axum server on a port, which stops when it is told to.
struct Served {
    address: SocketAddr,
    signal: Arc<Notify>,
    ended: tokio::task::JoinHandle<Result<(), ServeError>>,
}

async fn on_a_port(app: Router, running: Running, limit: Duration) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let signal = Arc::new(Notify::new());
    let told = Arc::clone(&signal);
    let ended = tokio::spawn(async move {
        let server = |stop| axum::serve(listener, app).with_graceful_shutdown(stop);
        running.serve(told.notified(), limit, server).await
    });
    Served {
        address,
        signal,
        ended,
    }
}

#[tokio::test]
async fn a_real_server_answers_what_it_has_begun_with_a_store() {
    let slow = Slow::new(SECOND / 2);
    let (service, running) = Webhooks::new(secret()).start(slow.router()).unwrap();
    let app = Router::new().route_service("/webhooks", service);
    let server = on_a_port(app, running, MINUTE).await;
    let answer = tokio::spawn(post(server.address, whole("k", BODY)));
    eventually("the run", async || slow.counts() == (1, 0)).await;
    server.signal.notify_one();
    server.ended.await.unwrap().unwrap();
    assert_eq!(slow.counts(), (1, 1));
    assert_eq!(answer.await.unwrap().unwrap().status, 200);
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test]
async fn a_real_server_answers_what_it_has_begun_with_an_inbox() {
    let slow = Slow::new(SECOND / 2);
    let inbox = Inbox::new(MemoryQueue::new());
    let webhooks = Webhooks::new(secret()).inbox(inbox.clone());
    let (service, running) = webhooks.start(slow.router()).unwrap();
    let app = Router::new().route_service("/webhooks", service);
    let server = on_a_port(app, running, MINUTE).await;
    let answer = post(server.address, whole("k", BODY)).await;
    assert_eq!(answer.unwrap().status, 200);
    eventually("the attempt", async || slow.counts() == (1, 0)).await;
    server.signal.notify_one();
    server.ended.await.unwrap().unwrap();
    assert_eq!(slow.counts(), (1, 1));
    assert!(inbox.stats().await.unwrap().is_all_handled());
    assert!(TcpStream::connect(server.address).await.is_err());
}

/// A client that never ends its request holds up nothing beyond the limit.
#[tokio::test]
async fn a_real_server_is_cut_at_the_limit() {
    let (service, running) = Webhooks::new(secret()).start(EventRouter::new()).unwrap();
    let app = Router::new().route_service("/webhooks", service);
    let server = on_a_port(app, running, SECOND / 2).await;
    let mut client = support::net::Client::connect(server.address).await;
    client.send(&whole("k", BODY)[..20]).await.unwrap();
    sleep(SECOND / 10).await;
    let start = Instant::now();
    server.signal.notify_one();
    let error = server_error(server.ended.await.unwrap());
    assert!(error.contains("still had connections"), "{error}");
    assert!(start.elapsed() >= SECOND / 2);
    assert!(start.elapsed() < 30 * SECOND);
}
