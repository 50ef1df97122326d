//! Runs and their leases when the store, the handler or the clock fails.

#![cfg(feature = "moka")]

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use http::StatusCode;
use tokio::time::{Instant, sleep, timeout};
use tower::Layer;
use tower_webhook::event::ChatRated;
use tower_webhook::idempotency::Idempotency;
use tower_webhook::signature::Signature;
use tower_webhook::store::{EventKey, KeyState, Store};
use tower_webhook::{
    Delivery, EventRouter, IdempotencyLayer, SignatureLayer, WebhookLayer, Webhooks,
};
use tracing::Level;

use support::Ready;
use support::delivery::{Answered, BODY, RequestExt, deliver, delivery, secret, send};
use support::log::Log;
use support::net::Counted;
use support::store::{Call, Fault, Operation, TestStore};

/// The default: a tenth of the sender's 600 seconds.
const LEASE: Duration = seconds(60);

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// What a handler does in one attempt.
#[derive(Clone, Copy)]
struct Task {
    takes: Duration,
    fails: bool,
}

fn succeeds(takes: Duration) -> Task {
    let fails = false;
    Task { takes, fails }
}

fn fails(takes: Duration) -> Task {
    let fails = true;
    Task { takes, fails }
}

/// A handler, and what became of its runs.
#[derive(Clone)]
struct Work {
    task: Arc<dyn Fn(u32) -> Task + Send + Sync>,
    attempts: Arc<Mutex<Vec<Option<u32>>>>,
    running: Arc<AtomicUsize>,
    finished: Arc<AtomicUsize>,
}

impl Work {
    /// Does for each attempt what `task` says. An attempt without a number is number 0.
    fn new(task: impl Fn(u32) -> Task + Send + Sync + 'static) -> Self {
        Self {
            task: Arc::new(task),
            attempts: Arc::default(),
            running: Arc::default(),
            finished: Arc::default(),
        }
    }

    /// The numbers of the attempts that were begun.
    fn attempts(&self) -> Vec<Option<u32>> {
        self.attempts.lock().unwrap().clone()
    }

    /// How many runs are neither at their end nor dropped.
    fn running(&self) -> usize {
        self.running.load(Ordering::SeqCst)
    }

    /// How many runs came to their end.
    fn finished(&self) -> usize {
        self.finished.load(Ordering::SeqCst)
    }

    fn router(&self) -> EventRouter {
        let work = self.clone();
        EventRouter::new().on::<ChatRated>(move |delivery: Delivery<ChatRated>| {
            let work = work.clone();
            async move {
                let attempt = delivery.attempt().map(u32::from);
                work.attempts.lock().unwrap().push(attempt);
                let _running = Counted::new(&work.running);
                let task = (work.task)(attempt.unwrap_or(0));
                sleep(task.takes).await;
                work.finished.fetch_add(1, Ordering::SeqCst);
                match task.fails {
                    true => Err("the handler fails".into()),
                    false => Ok(()),
                }
            }
        })
    }
}

/// Over this store, with time for long handlers.
fn layer<const DURABLE: bool>(
    store: &TestStore<DURABLE>,
) -> Webhooks<IdempotencyLayer<TestStore<DURABLE>>> {
    Webhooks::new(secret())
        .store(store.clone())
        .handler_timeout(seconds(100_000))
}

type Receiver<const DURABLE: bool> = Signature<Idempotency<EventRouter, TestStore<DURABLE>>>;

fn receiver<const DURABLE: bool>(store: &TestStore<DURABLE>, work: &Work) -> Receiver<DURABLE> {
    layer(store).layer(work.router())
}

/// When the calls came, in milliseconds after `start`.
fn times(calls: &[Call], start: Instant) -> Vec<u128> {
    let since = |call: &Call| (call.at - start).as_millis();
    calls.iter().map(since).collect()
}

// The lease.

#[tokio::test(start_paused = true)]
async fn lease_is_renewed_at_each_third_until_the_run_is_settled() {
    for task in [succeeds(seconds(70)), fails(seconds(70))] {
        let store = TestStore::<true>::default();
        let service = receiver(&store, &Work::new(move |_| task));
        let start = Instant::now();
        deliver(&service, "k").await;

        let renewals = times(&store.calls(Operation::Renew), start);
        assert_eq!(renewals, [20_000, 40_000, 60_000]);
        sleep(10 * LEASE).await;
        assert_eq!(
            store.calls(Operation::Renew).len(),
            3,
            "it was renewed once settled"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_runs_renew_independently() {
    let store = TestStore::<true>::default();
    let work = Work::new(|_| succeeds(seconds(70)));
    let service = receiver(&store, &work);
    let start = Instant::now();
    let after = async |wait, key| {
        sleep(seconds(wait)).await;
        deliver(&service, key).await.assert_ok();
    };
    // One begins before the other is due, one after a while without any.
    tokio::join!(after(0, "a"), after(5, "b"), after(300, "c"));

    let renewals = times(&store.calls(Operation::Renew), start);
    let due = [20, 25, 40, 45, 60, 65, 320, 340, 360].map(|second| 1000 * second);
    assert_eq!(renewals, due);
}

#[test]
fn runs_on_several_runtimes_renew_their_leases() {
    const LEASE: Duration = seconds(2);
    let store = TestStore::<true>::default();
    let work = Work::new(|_| succeeds(LEASE * 2));
    let layer = layer(&store).in_flight_wait(Duration::ZERO);
    let service = layer.lease(LEASE).layer(work.router());

    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    // Its renewals end with it.
    let first = runtime();
    first.block_on(leave(&service, "a"));
    let second = runtime();
    drop(first);
    let answer = second.block_on(deliver(&service, "b"));
    answer.assert_ok();
    assert!(store.calls(Operation::Renew).len() >= 3);
}

#[test]
fn run_that_outlives_its_runtime_is_cancelled() {
    let store = TestStore::<true>::default();
    let service = receiver(&store, &Work::new(|_| succeeds(seconds(70))));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut run = Box::pin(deliver(&service, "k"));
    // Polled by another executor, within the runtime.
    let began = std::time::Instant::now();
    while store.calls(Operation::Claim).is_empty() || began.elapsed() < Duration::from_millis(200) {
        let _entered = runtime.enter();
        assert!(futures_util::FutureExt::now_or_never(&mut run).is_none());
        thread::sleep(Duration::from_millis(5));
    }
    let handle = runtime.handle().clone();
    drop(runtime);
    let _entered = handle.enter();
    let answer = futures_util::FutureExt::now_or_never(&mut run).expect("it is cancelled");
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test(start_paused = true)]
async fn volatile_lease_is_not_renewed() {
    let store = TestStore::<false>::default();
    let service = receiver(&store, &Work::new(|_| succeeds(seconds(10_000))));
    deliver(&service, "k").await.assert_ok();
    assert!(store.calls(Operation::Renew).is_empty());
    deliver(&service, "k").await.assert_replayed();
}

#[tokio::test(start_paused = true)]
async fn failed_renewals_are_retried_while_the_lease_is_valid() {
    let store = TestStore::new(|call| match call {
        Call {
            op: Operation::Renew,
            nth: 1..=3,
            ..
        } => Fault::Error,
        Call {
            op: Operation::Renew,
            nth: 4,
            ..
        } => Fault::Hang,
        _ => Fault::None,
    });
    let service = receiver(&store, &Work::new(|_| succeeds(seconds(90))));
    let start = Instant::now();
    deliver(&service, "k").await.assert_ok();

    // A tenth of the interval after each failure, the last of which took the store's time limit.
    let renewals = times(&store.calls(Operation::Renew), start);
    assert_eq!(
        renewals,
        [20_000, 22_000, 24_000, 26_000, 30_000, 50_000, 70_000]
    );
    deliver(&service, "k").await.assert_replayed();
}

#[tokio::test(start_paused = true)]
async fn run_is_cancelled_when_its_lease_cannot_be_renewed() {
    for fault in [Fault::Error, Fault::Hang] {
        let logs = Log::capture(Level::DEBUG);
        let store = TestStore::new(move |call| match call.op {
            Operation::Renew => fault,
            _ => Fault::None,
        });
        let work = Work::new(|attempt| match attempt {
            1 => succeeds(10 * LEASE),
            _ => succeeds(Duration::ZERO),
        });
        let service = receiver(&store, &work);

        let start = Instant::now();
        let cancelled = deliver(&service, "k").await;
        assert_eq!(cancelled.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(start.elapsed().as_secs(), LEASE.as_secs());
        assert_eq!((work.running(), work.finished()), (0, 0));
        assert_eq!(logs.count(Level::ERROR, "the lease on the key was lost"), 1);

        deliver(&service, "k").await.assert_ok();
        deliver(&service, "k").await.assert_replayed();
        assert_eq!(work.attempts(), [Some(1), Some(2)]);
        sleep(20 * LEASE).await;
        assert_eq!(work.finished(), 1, "the cancelled run went on");
        assert_eq!(store.state("k").await, KeyState::Done);
    }
}

#[tokio::test(start_paused = true)]
async fn run_is_cancelled_when_another_run_claims_its_key() {
    let store = TestStore::with_real_lease(seconds(10));
    let work = Work::new(|attempt| match attempt {
        1 => succeeds(seconds(1_000)),
        _ => succeeds(seconds(5)),
    });
    let service = receiver(&store, &work);

    let start = Instant::now();
    let (cancelled, successor) = tokio::join!(
        async {
            let answered = deliver(&service, "k").await;
            assert_eq!(
                start.elapsed().as_secs(),
                20,
                "when the first renewal is due"
            );
            answered
        },
        async {
            sleep(seconds(12)).await;
            deliver(&service, "k").await
        }
    );
    assert_eq!(cancelled.status, StatusCode::SERVICE_UNAVAILABLE);
    successor.assert_ok();
    assert_eq!((work.running(), work.finished()), (0, 1));
    assert_eq!(work.attempts(), [Some(1), Some(2)]);
    deliver(&service, "k").await.assert_replayed();
}

#[tokio::test(start_paused = true)]
async fn late_run_with_a_successor_changes_nothing_and_is_not_acknowledged() {
    for (late, status) in [
        (succeeds(seconds(15)), StatusCode::SERVICE_UNAVAILABLE),
        (fails(seconds(15)), StatusCode::INTERNAL_SERVER_ERROR),
    ] {
        // It ends before its first renewal is due, so it cannot know that its lease has ended.
        let store = TestStore::with_real_lease(seconds(10));
        let work = Work::new(move |attempt| match attempt {
            1 => late,
            _ => succeeds(seconds(6)),
        });
        let service = receiver(&store, &work);

        let (late, successor) = tokio::join!(deliver(&service, "k"), async {
            sleep(seconds(12)).await;
            deliver(&service, "k").await
        });
        assert_eq!(late.status, status);
        successor.assert_ok();
        assert_eq!(work.finished(), 2);
        deliver(&service, "k").await.assert_replayed();
    }
}

#[tokio::test(start_paused = true)]
async fn late_run_without_a_successor_is_not_acknowledged() {
    let logs = Log::capture(Level::DEBUG);
    let store = TestStore::with_real_lease(seconds(10));
    let work = Work::new(|attempt| match attempt {
        1 => succeeds(seconds(15)),
        _ => succeeds(Duration::ZERO),
    });
    let service = receiver(&store, &work);

    let late = deliver(&service, "k").await;
    assert_eq!(late.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(logs.count(Level::ERROR, "could not be recorded"), 1);
    deliver(&service, "k").await.assert_ok();
    assert_eq!(work.attempts(), [Some(1), Some(2)]);
    deliver(&service, "k").await.assert_replayed();
}

/// How a handler comes to block its thread.
#[derive(Clone, Copy, Debug)]
enum Blocks {
    /// In its first poll.
    AtOnce,
    /// When a timer woke it, and with it the worker that drives all timers.
    AfterWaiting,
}

/// Blocks one of a runtime's two workers for longer than a lease.
fn block_beyond_lease(blocks: Blocks) {
    const LEASE: Duration = seconds(2);

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let store = TestStore::<true>::default();
    let router = EventRouter::new().on::<ChatRated>(move |_: Delivery<ChatRated>| async move {
        if let Blocks::AfterWaiting = blocks {
            sleep(Duration::from_millis(20)).await;
        }
        thread::sleep(LEASE * 2);
        Ok(())
    });
    let service = Webhooks::new(secret())
        .store(store.clone())
        .in_flight_wait(Duration::ZERO)
        .lease(LEASE)
        .layer(router);

    let (answer, answered) = mpsc::channel();
    runtime.spawn(async move {
        // A delivery begins when the driver of timers and sockets wakes a worker.
        sleep(Duration::from_millis(20)).await;
        let first = deliver(&service, "k").await;
        let second = deliver(&service, "k").await;
        answer.send((first, second)).unwrap();
    });
    let (first, second) = answered.recv_timeout(seconds(60)).unwrap();

    first.assert_ok();
    second.assert_replayed();
    assert!(store.calls(Operation::Renew).len() >= 3);
}

#[test]
fn handler_that_blocks_its_thread_keeps_its_lease() {
    for _ in 0..2 {
        let runs: Vec<_> = [Blocks::AtOnce, Blocks::AfterWaiting]
            .into_iter()
            .cycle()
            .take(24)
            .map(|blocks| (blocks, thread::spawn(move || block_beyond_lease(blocks))))
            .collect();
        let lost: Vec<_> = runs
            .into_iter()
            .filter_map(|(blocks, run)| run.join().is_err().then_some(blocks))
            .collect();
        assert!(
            lost.is_empty(),
            "{} of 24 lost their lease: {lost:?}",
            lost.len()
        );
    }
}

/// A handler that first waits and then blocks its thread for two leases of three seconds, in the second runtime and
/// behind the second layer of its process.
fn block_behind_another_lease() {
    const LEASE: Duration = seconds(3);

    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap()
    };
    let store = TestStore::<true>::default();
    let router = EventRouter::new().on::<ChatRated>(move |_: Delivery<ChatRated>| async move {
        sleep(Duration::from_millis(20)).await;
        thread::sleep(LEASE * 2);
        Ok(())
    });
    let layer = Webhooks::new(secret())
        .store(store.clone())
        .in_flight_wait(Duration::ZERO);
    let quick = EventRouter::new().on::<ChatRated>(async |_: Delivery<ChatRated>| Ok(()));
    let first = layer.clone().lease(seconds(590)).layer(quick);
    let second = layer.lease(LEASE).layer(router);

    let runtimes = [runtime(), runtime()];
    runtimes[0].block_on(async { deliver(&first, "a").await.assert_ok() });
    let (answer, answered) = mpsc::channel();
    // Behind a longer lease in the same runtime, and in another runtime.
    for (number, runtime) in runtimes.iter().enumerate() {
        let (service, answer) = (second.clone(), answer.clone());
        runtime.spawn(async move {
            sleep(Duration::from_millis(20)).await;
            let key = format!("k-{number}");
            let one = deliver(&service, &key).await;
            let two = deliver(&service, &key).await;
            answer.send((one, two)).unwrap();
        });
    }
    for _ in &runtimes {
        let (one, two) = answered.recv_timeout(seconds(60)).unwrap();
        one.assert_ok();
        two.assert_replayed();
    }
}

#[test]
fn every_runtime_and_every_lease_is_renewed_in_time() {
    let runs: Vec<_> = (0..3)
        .map(|_| thread::spawn(block_behind_another_lease))
        .collect();
    let lost = runs.into_iter().filter_map(|run| run.join().err()).count();
    assert_eq!(lost, 0, "of 3 lost a lease");
}

#[tokio::test(start_paused = true)]
async fn handler_that_panics_when_it_is_dropped_at_its_time_limit_is_retried() {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }
    let logs = Log::capture(Level::ERROR);
    let store = TestStore::<true>::default();
    let router = EventRouter::new().on::<ChatRated>(async |_: Delivery<ChatRated>| {
        let _panics = Panics;
        std::future::pending().await
    });
    let service = WebhookLayer::with_store(secret(), store.clone()).layer(router);
    for _ in 0..2 {
        let answered = deliver(&service, "k").await;
        answered.assert_problem(503, "handler-timeout");
        assert_eq!(store.state("k").await, KeyState::Free);
    }
    assert_eq!(logs.count(Level::ERROR, "exceeded its time limit"), 2);
}

#[tokio::test(start_paused = true)]
async fn layer_inside_another_one_on_the_same_store_is_a_clear_error() {
    let logs = Log::capture(Level::ERROR);
    let store = TestStore::<true>::default();
    let router = EventRouter::new().on::<ChatRated>(async |_: Delivery<ChatRated>| Ok(()));
    let inner = IdempotencyLayer::new(store.clone()).layer(router.clone());
    let service = WebhookLayer::with_store(secret(), store.clone()).layer(inner);
    deliver(&service, "k").await.assert_problem(500, "failed");
    assert_eq!(logs.count(Level::ERROR, "remove one of the two"), 1);
    assert_eq!(store.state("k").await, KeyState::Free);

    let guarded = IdempotencyLayer::new(store.clone()).replay_guard();
    let inner = guarded.clone().layer(router.clone());
    let service = WebhookLayer::from_layers(SignatureLayer::new(secret()), guarded).layer(inner);
    send(&service, delivery(BODY))
        .await
        .assert_problem(500, "failed");
    assert_eq!(logs.count(Level::ERROR, "remove one of the two"), 2);

    let inner = IdempotencyLayer::new(TestStore::<true>::default()).layer(router);
    let service = WebhookLayer::with_store(secret(), store).layer(inner);
    deliver(&service, "k").await.assert_ok();

    // A layer outside that claimed nothing does not hold the key that is in flight.
    let (busy, failing) = (TestStore::<true>::default(), TestStore::<true>::default());
    failing.fail([Operation::Claim]);
    let held = EventKey::new("", b"k", BODY.as_bytes());
    busy.claim(&held, seconds(60), seconds(600)).await.unwrap();
    let router = EventRouter::new().on::<ChatRated>(async |_: Delivery<ChatRated>| Ok(()));
    let inner = IdempotencyLayer::new(busy).layer(router);
    let service = Webhooks::new(secret())
        .store(failing)
        .dangerously_handle_without_store()
        .layer(inner);
    deliver(&service, "k")
        .await
        .assert_problem(409, "in-flight");
}

// Settlement.

#[tokio::test(start_paused = true)]
async fn success_that_cannot_be_recorded_is_not_acknowledged() {
    let broken = Arc::new(AtomicBool::new(true));
    let is_broken = Arc::clone(&broken);
    let store = TestStore::new(move |call| match call.op {
        Operation::Complete if is_broken.load(Ordering::SeqCst) => Fault::Error,
        _ => Fault::None,
    });
    let work = Work::new(|_| succeeds(Duration::ZERO));
    let service = receiver(&store, &work);
    let logs = Log::capture(Level::DEBUG);

    let start = Instant::now();
    let answered = deliver(&service, "k").await;
    assert_eq!(answered.status, StatusCode::SERVICE_UNAVAILABLE);
    let took = start.elapsed();
    assert!(
        took > LEASE / 2 && took <= LEASE,
        "it was retried for {took:?}"
    );
    assert!(store.calls(Operation::Complete).len() > 5);
    assert_eq!(logs.count(Level::ERROR, "could not be recorded"), 1);
    assert_eq!(logs.count(Level::WARN, "recording is retried"), 1);

    // The key stays taken for the rest of the lease, although no run works on it.
    assert!(matches!(store.state("k").await, KeyState::InFlight { .. }));
    assert!(store.calls(Operation::Release).is_empty());
    sleep(LEASE - start.elapsed()).await;
    assert_eq!(store.state("k").await, KeyState::Free);

    broken.store(false, Ordering::SeqCst);
    deliver(&service, "k").await.assert_ok();
    deliver(&service, "k").await.assert_replayed();
    assert_eq!(work.attempts(), [Some(1), Some(2)]);
}

#[tokio::test(start_paused = true)]
async fn volatile_lease_is_released_when_nothing_can_be_recorded() {
    let broken = Arc::new(AtomicBool::new(true));
    let is_broken = Arc::clone(&broken);
    let script = move |call: Call| match call.op {
        Operation::Complete if is_broken.load(Ordering::SeqCst) => Fault::Error,
        _ => Fault::None,
    };
    let store = TestStore::volatile(script);
    let work = Work::new(|_| succeeds(Duration::ZERO));
    let service = receiver(&store, &work);

    let answered = deliver(&service, "k").await;
    assert_eq!(answered.status, StatusCode::SERVICE_UNAVAILABLE);
    sleep(Duration::from_millis(1)).await;
    assert_eq!(store.state("k").await, KeyState::Free);

    broken.store(false, Ordering::SeqCst);
    deliver(&service, "k").await.assert_ok();
    assert_eq!(work.attempts(), [Some(1), Some(2)]);
}

#[tokio::test(start_paused = true)]
async fn success_is_recorded_when_the_store_recovers() {
    for fault in [Fault::Error, Fault::Hang] {
        let store = TestStore::new(move |call| match call {
            Call {
                op: Operation::Complete,
                nth: 1..=2,
                ..
            } => fault,
            _ => Fault::None,
        });
        let work = Work::new(|_| succeeds(Duration::ZERO));
        let service = receiver(&store, &work);

        deliver(&service, "k").await.assert_ok();
        assert_eq!(store.calls(Operation::Complete).len(), 3);
        deliver(&service, "k").await.assert_replayed();
        assert_eq!(work.attempts(), [Some(1)]);
    }
}

#[tokio::test(start_paused = true)]
async fn unconfirmed_record_is_a_success() {
    let store = TestStore::new(|call| match call {
        Call {
            op: Operation::Complete,
            nth: 1,
            ..
        } => Fault::LostAnswer,
        _ => Fault::None,
    });
    let work = Work::new(|_| succeeds(Duration::ZERO));
    let service = receiver(&store, &work);

    deliver(&service, "k").await.assert_ok();
    assert_eq!(store.calls(Operation::Complete).len(), 2);
    deliver(&service, "k").await.assert_replayed();
    assert_eq!(work.attempts(), [Some(1)]);
}

// A store that does not work.

#[tokio::test(start_paused = true)]
async fn nothing_is_handled_when_the_key_cannot_be_claimed() {
    for (fault, after) in [(Fault::Error, 0), (Fault::Hang, 2)] {
        let store = TestStore::new(move |call| match call.op {
            Operation::Claim => fault,
            _ => Fault::None,
        });
        let work = Work::new(|_| succeeds(Duration::ZERO));
        let service = receiver(&store, &work);

        let start = Instant::now();
        let answered = deliver(&service, "k").await;
        assert_eq!(answered.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(answered.retry_after(), Some(600));
        assert_eq!(start.elapsed().as_secs(), after);
        assert!(work.attempts().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn events_can_be_handled_without_an_unavailable_store() {
    for fault in [Fault::Error, Fault::Hang] {
        let logs = Log::capture(Level::DEBUG);
        let store = TestStore::new(move |_| fault);
        let work = Work::new(|_| succeeds(Duration::ZERO));
        let service = layer(&store)
            .dangerously_handle_without_store()
            .layer(work.router());

        deliver(&service, "k").await.assert_ok();
        deliver(&service, "k").await.assert_ok();
        assert_eq!(work.attempts(), [None, None]);
        assert_eq!(logs.count(Level::WARN, "without deduplication"), 2);
        assert!(store.calls(Operation::Complete).is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn key_that_cannot_be_released_is_free_when_its_lease_expires() {
    for (fault, after) in [(Fault::Error, 0), (Fault::Hang, 2)] {
        let store = TestStore::new(move |call| match call.op {
            Operation::Release => fault,
            _ => Fault::None,
        });
        let work = Work::new(|attempt| match attempt {
            1 => fails(Duration::ZERO),
            _ => succeeds(Duration::ZERO),
        });
        let service = receiver(&store, &work);

        let start = Instant::now();
        let failed = deliver(&service, "k").await;
        assert_eq!(failed.status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(start.elapsed().as_secs(), after);
        assert!(matches!(store.state("k").await, KeyState::InFlight { .. }));

        sleep(LEASE - start.elapsed()).await;
        deliver(&service, "k").await.assert_ok();
        assert_eq!(work.attempts(), [Some(1), Some(2)]);
    }
}

#[tokio::test(start_paused = true)]
async fn duplicate_stops_waiting_when_the_store_fails() {
    for fault in [Fault::Error, Fault::Hang] {
        let store = TestStore::new(move |call| match call.op {
            Operation::Peek => fault,
            _ => Fault::None,
        });
        let work = Work::new(|_| succeeds(seconds(30)));
        let service = receiver(&store, &work);

        let (first, second) = tokio::join!(deliver(&service, "k"), async {
            sleep(seconds(1)).await;
            let start = Instant::now();
            let answered = deliver(&service, "k").await;
            // The wait, and the time limit of the last operation.
            assert!((seconds(5)..=seconds(7)).contains(&start.elapsed()));
            answered
        });
        first.assert_ok();
        assert_eq!(second.status, StatusCode::CONFLICT);
        assert_eq!(work.attempts(), [Some(1)]);
    }
}

// Two deliveries at one time.

/// The answers to two deliveries of a key, the second of them a second after the first; and how
/// long the second one waited, in milliseconds.
async fn second_after<const DURABLE: bool>(
    service: &Receiver<DURABLE>,
) -> (Answered, Answered, u128) {
    let (first, (second, waited)) = tokio::join!(deliver(service, "k"), async {
        sleep(seconds(1)).await;
        let start = Instant::now();
        let answered = deliver(service, "k").await;
        (answered, start.elapsed().as_millis())
    });
    (first, second, waited)
}

#[tokio::test(start_paused = true)]
async fn duplicate_waits_for_the_success_of_the_run_in_flight() {
    let store = TestStore::<true>::default();
    let work = Work::new(|_| succeeds(seconds(4)));
    let (first, second, waited) = second_after(&receiver(&store, &work)).await;
    first.assert_ok();
    second.assert_replayed();
    assert!((3_000..=3_250).contains(&waited), "it waited {waited} ms");
    assert_eq!(work.attempts(), [Some(1)]);
}

#[tokio::test(start_paused = true)]
async fn duplicate_conflicts_when_the_run_in_flight_fails() {
    let store = TestStore::<true>::default();
    let work = Work::new(|_| fails(seconds(4)));
    let (first, second, waited) = second_after(&receiver(&store, &work)).await;
    assert_eq!(first.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(second.status, StatusCode::CONFLICT);
    assert_eq!(second.retry_after(), Some(1), "the key is free");
    assert!((3_000..=3_250).contains(&waited), "it waited {waited} ms");
    assert_eq!(
        work.attempts(),
        [Some(1)],
        "a waiting delivery is not handled"
    );
}

#[tokio::test(start_paused = true)]
async fn duplicate_conflicts_when_the_run_in_flight_takes_long() {
    let store = TestStore::<true>::default();
    let work = Work::new(|_| succeeds(seconds(15)));
    let (first, second, waited) = second_after(&receiver(&store, &work)).await;
    first.assert_ok();
    assert_eq!(second.status, StatusCode::CONFLICT);
    assert_eq!(waited, 5_000);
    assert_eq!(
        second.retry_after(),
        Some(54),
        "what remains of 60 s after 6 s"
    );

    // In memory a key is claimed for days, which is not how long the sender should stay away.
    let store = TestStore::<false>::default();
    let work = Work::new(|_| succeeds(seconds(15)));
    let (_, second, _) = second_after(&receiver(&store, &work)).await;
    assert_eq!(second.retry_after(), Some(60));
}

#[tokio::test(start_paused = true)]
async fn duplicate_conflicts_at_once_without_a_wait() {
    let store = TestStore::<true>::default();
    let work = Work::new(|_| succeeds(seconds(4)));
    let service = layer(&store)
        .in_flight_wait(Duration::ZERO)
        .layer(work.router());
    let (first, second, waited) = second_after(&service).await;
    first.assert_ok();
    assert_eq!(second.status, StatusCode::CONFLICT);
    assert_eq!(second.retry_after(), Some(59));
    assert_eq!(waited, 0);
    assert!(store.calls(Operation::Peek).is_empty());
}

// Runs without a client.

/// Delivers, and goes away after a second.
async fn leave<const DURABLE: bool>(service: &Receiver<DURABLE>, key: &str) {
    let left = timeout(seconds(1), deliver(service, key)).await;
    assert!(left.is_err(), "it was answered before");
}

#[tokio::test(start_paused = true)]
async fn drain_waits_for_detached_runs() {
    let store = TestStore::<true>::default();
    let work = Work::new(|_| succeeds(seconds(30)));
    let layer = layer(&store);
    let (service, runs) = (layer.layer(work.router()), layer.runs());
    assert_eq!(runs.drain(Duration::ZERO).await, Ok(()), "there are none");

    leave(&service, "a").await;
    leave(&service, "b").await;
    assert_eq!(runs.detached(), 2);

    let start = Instant::now();
    let error = runs.drain(seconds(5)).await.unwrap_err();
    assert_eq!((error.count(), start.elapsed()), (2, seconds(5)));
    assert_eq!(work.running(), 2, "draining ended a run");

    assert_eq!(runs.drain(seconds(60)).await, Ok(()));
    assert_eq!(start.elapsed().as_secs(), 29, "when the second run ends");
    assert_eq!(runs.detached(), 0);
    for key in ["a", "b"] {
        deliver(&service, key).await.assert_replayed();
    }
    assert_eq!(work.finished(), 2);
}

#[tokio::test(start_paused = true)]
async fn client_may_disconnect_during_a_drain() {
    let store = TestStore::<true>::default();
    let work = Work::new(|_| succeeds(seconds(30)));
    let layer = layer(&store);
    let runs = layer.runs();
    // The handle that was taken first knows the runs of the layer that came of it.
    let service = layer.max_detached(8).layer(work.router());

    leave(&service, "a").await;
    let draining = tokio::spawn({
        let runs = runs.clone();
        async move { runs.drain(seconds(60)).await }
    });
    sleep(seconds(1)).await;
    assert_eq!(runs.detached(), 1);
    leave(&service, "b").await;
    assert_eq!(runs.detached(), 2);

    assert_eq!(draining.await.unwrap(), Ok(()));
    assert_eq!(work.finished(), 2);
}

#[tokio::test(start_paused = true)]
async fn volatile_lease_is_released_when_the_store_recovers() {
    for fault in [Fault::Error, Fault::Hang] {
        let store = TestStore::volatile(move |call| match call {
            Call {
                op: Operation::Release,
                nth: 1..=2,
                ..
            } => fault,
            _ => Fault::None,
        });
        let work = Work::new(|attempt| match attempt {
            1 => fails(Duration::ZERO),
            _ => succeeds(Duration::ZERO),
        });
        let service = receiver(&store, &work);

        let failed = deliver(&service, "k").await;
        assert_eq!(failed.status, StatusCode::INTERNAL_SERVER_ERROR);
        sleep(LEASE).await;
        deliver(&service, "k").await.assert_ok();
    }
}

#[test]
fn run_that_ends_with_its_runtime_releases_its_key() {
    let store = TestStore::<false>::default();
    let work = Work::new(|_| succeeds(seconds(30)));
    for flavor in [
        tokio::runtime::Builder::new_current_thread,
        tokio::runtime::Builder::new_multi_thread,
    ] {
        let runtime = flavor().enable_all().build().unwrap();
        let service = receiver(&store, &work);
        runtime.block_on(leave(&service, "k"));
        assert_eq!(work.running(), 1);
        drop(runtime);
        assert_eq!(work.running(), 0);

        let runtime = flavor().enable_all().build().unwrap();
        assert_eq!(runtime.block_on(store.state("k")), KeyState::Free);
    }
}

#[tokio::test(start_paused = true)]
async fn only_claimed_deliveries_take_capacity_of_the_inner_service() {
    let work = Work::new(|_| succeeds(seconds(10)));
    let inner = tower::limit::ConcurrencyLimit::new(work.router(), 1);
    let service = layer(&TestStore::<true>::default()).layer(inner);

    // A body that never comes holds nothing up, nor does a delivery that was only made ready.
    let (_body, endless) = http_body_util::channel::Channel::<bytes::Bytes>::new(1);
    let request = delivery(BODY).key("endless").map(|_| endless);
    let pending = tokio::spawn(tower::ServiceExt::oneshot(service.clone(), request));
    let mut ready = service.clone();
    let made_ready =
        tower::ServiceExt::<http::Request<http_body_util::Full<bytes::Bytes>>>::ready(&mut ready);
    made_ready.await.unwrap();

    let start = Instant::now();
    let (first, second) = tokio::join!(deliver(&service, "a"), deliver(&service, "b"));
    first.assert_ok();
    second.assert_ok();
    assert_eq!(start.elapsed(), seconds(20), "one after the other");
    let refused = pending.await.unwrap().unwrap();
    assert_eq!(refused.status(), StatusCode::REQUEST_TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn detached_run_renews_its_lease_and_can_lose_it() {
    let broken = Arc::new(AtomicBool::new(false));
    let is_broken = Arc::clone(&broken);
    let store = TestStore::new(move |call| match call.op {
        Operation::Renew if is_broken.load(Ordering::SeqCst) => Fault::Error,
        _ => Fault::None,
    });
    let work = Work::new(|_| succeeds(10 * LEASE));
    let layer = layer(&store);
    let (service, runs) = (layer.layer(work.router()), layer.runs());

    leave(&service, "k").await;
    sleep(5 * LEASE).await;
    assert!(matches!(store.state("k").await, KeyState::InFlight { .. }));
    broken.store(true, Ordering::SeqCst);
    assert_eq!(runs.drain(LEASE).await, Ok(()));
    assert_eq!((work.running(), work.finished()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn drain_waits_for_the_release_of_a_dropped_run() {
    let store = TestStore::new(|call| match call.op {
        Operation::Release => Fault::Late(seconds(1)),
        _ => Fault::None,
    });
    let work = Work::new(|_| succeeds(seconds(30)));
    let layer = layer(&store).max_detached(0);
    let (service, runs) = (layer.layer(work.router()), layer.runs());

    leave(&service, "k").await;
    assert_eq!((runs.detached(), work.running()), (0, 0));
    let error = runs.drain(Duration::from_millis(500)).await.unwrap_err();
    assert_eq!(error.count(), 1);
    assert_eq!(runs.drain(seconds(60)).await, Ok(()));
    assert_eq!(store.state("k").await, KeyState::Free);
}

#[tokio::test(start_paused = true)]
async fn claim_that_took_as_long_as_its_lease_is_not_used() {
    let late = || {
        TestStore::new(|call| match (call.op, call.nth) {
            (Operation::Claim, 1) => Fault::Late(Duration::from_millis(1500)),
            _ => Fault::None,
        })
    };
    let work = Work::new(|_| succeeds(seconds(0)));
    let strict = layer(&late()).in_flight_wait(Duration::ZERO);
    let strict = strict.lease(seconds(1));
    let service = strict.layer(work.router());

    let refused = deliver(&service, "k").await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(work.attempts().is_empty(), "it was begun");
    sleep(Duration::from_millis(1)).await;
    deliver(&service, "k").await.assert_ok();

    let careless = layer(&late()).in_flight_wait(Duration::ZERO);
    let careless = careless.lease(seconds(1));
    let service = careless
        .dangerously_handle_without_store()
        .layer(work.router());
    deliver(&service, "k").await.assert_ok();
    assert_eq!(work.attempts(), [Some(2), None]);
}

#[tokio::test(start_paused = true)]
async fn lease_that_was_not_lost_is_released() {
    let store = TestStore::<true>::default();
    let work = Work::new(|_| succeeds(seconds(25)));
    let service = layer(&store).replay_guard().layer(work.router());

    let key_is_lost = async {
        sleep(seconds(1)).await;
        store.end_lease(0).await;
    };
    let (lost, ()) = tokio::join!(deliver(&service, "k"), key_is_lost);
    assert_eq!(lost.status, StatusCode::SERVICE_UNAVAILABLE);
    sleep(Duration::from_millis(1)).await;
    deliver(&service, "k").await.assert_ok();
}

#[tokio::test(start_paused = true)]
async fn run_over_the_detached_limit_is_dropped_and_its_key_released() {
    let logs = Log::capture(Level::DEBUG);
    let store = TestStore::<true>::default();
    let work = Work::new(|_| succeeds(seconds(30)));
    let layer = layer(&store).max_detached(2);
    let (service, runs) = (layer.layer(work.router()), layer.runs());

    for key in ["a", "b", "c"] {
        leave(&service, key).await;
    }
    let start = Instant::now();
    sleep(Duration::from_millis(1)).await;
    assert_eq!((runs.detached(), work.running()), (2, 2));
    assert_eq!(store.state("c").await, KeyState::Free);
    assert_eq!(logs.count(Level::ERROR, "this one was dropped"), 1);

    deliver(&service, "c").await.assert_ok();
    assert_eq!(work.attempts(), [1, 1, 1, 2].map(Some));
    assert_eq!(runs.drain(seconds(60)).await, Ok(()));
    assert!(
        start.elapsed() < seconds(31),
        "the runs that went on took longer"
    );
    for key in ["a", "b", "c"] {
        deliver(&service, key).await.assert_replayed();
    }
}
