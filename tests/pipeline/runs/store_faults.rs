//! Claims and settlement when the store fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::StatusCode;
use tokio::time::{Instant, sleep};
use tower_webhook::store::KeyState;
use tracing::Level;

use support::Ready;
use support::delivery::deliver;
use support::log::Log;
use support::store::{Call, Fault, Operation, TestStore};

use super::{LEASE, Work, fails, layer, receiver, seconds, succeeds};

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
