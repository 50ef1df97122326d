//! Leases are renewed while a run lasts, and a run that lost its lease is cancelled.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use http::StatusCode;
use tokio::time::{Instant, sleep};
use tower::Layer;
use tower_webhook::event::ChatRated;
use tower_webhook::store::{EventKey, KeyState, Store};
use tower_webhook::{Delivery, EventRouter, IdempotencyLayer, Webhooks};
use tracing::Level;

use support::Ready;
use support::delivery::{BODY, deliver, delivery, secret, send};
use support::log::Log;
use support::store::{Call, Fault, Operation, TestStore};

use super::{LEASE, Work, fails, layer, leave, receiver, seconds, succeeds, times};

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
    let service = Webhooks::new(secret()).store(store.clone()).layer(router);
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
    let service = Webhooks::new(secret()).store(store.clone()).layer(inner);
    deliver(&service, "k").await.assert_problem(500, "failed");
    assert_eq!(logs.count(Level::ERROR, "remove one of the two"), 1);
    assert_eq!(store.state("k").await, KeyState::Free);

    let guarded = Webhooks::new(secret()).store(store.clone()).replay_guard();
    let (signature, guarded) = guarded.into_layers().unwrap();
    let inner = guarded.layer(router.clone());
    let service = signature.layer(guarded.layer(inner));
    send(&service, delivery(BODY))
        .await
        .assert_problem(500, "failed");
    assert_eq!(logs.count(Level::ERROR, "remove one of the two"), 2);

    let inner = IdempotencyLayer::new(TestStore::<true>::default()).layer(router);
    let service = Webhooks::new(secret()).store(store).layer(inner);
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
