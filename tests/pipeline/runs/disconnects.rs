//! Runs without a client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::StatusCode;
use tokio::time::{Instant, sleep};
use tower_webhook::inbox::internal::max_detached;
use tower_webhook::store::KeyState;
use tracing::Level;

use support::Ready;
use support::delivery::{BODY, RequestExt, deliver, delivery};
use support::log::Log;
use support::store::{Call, Fault, Operation, TestStore};

use super::{LEASE, Work, fails, layer, leave, receiver, seconds, succeeds};

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
    let service = layer.in_flight_wait(seconds(1)).layer(work.router());

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
    let layer = layer(&store);
    let (service, runs) = (layer.layer(work.router()), layer.runs());
    max_detached(&runs, 0);

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
    let layer = layer(&store);
    let (service, runs) = (layer.layer(work.router()), layer.runs());
    max_detached(&runs, 2);

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
