//! A response that is dropped after any of its polls leaves no key stuck, and no event is handled
//! twice or not at all.

#![cfg(feature = "moka")]

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tower::{Layer, Service};
use tower_webhook::event::ChatRated;
use tower_webhook::inbox::internal::max_detached;
use tower_webhook::store::KeyState;
use tower_webhook::{EventRouter, Webhooks};

use support::Ready;
use support::delivery::{BODY, Crm, RequestExt, Step, delivery, secret, send};
use support::store::TestStore;

/// Polls a future up to so many times, whenever it is woken, and drops it. Tells whether it ended.
async fn cancel_after(polls: usize, future: impl Future) -> bool {
    let mut left = polls;
    let mut future = pin!(future);
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(false);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(_) => Poll::Ready(true),
            Poll::Pending if left == 0 => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

#[derive(Clone, Copy, Debug)]
struct Setting {
    /// What the first run does.
    step: Step,
    /// How often the store yields before each operation takes effect, and after it did.
    store_yields: (usize, usize),
    handler_yields: usize,
    /// Whether runs continue without their client.
    detaches: bool,
    replay_guard: bool,
}

/// Drops the first delivery after each number of polls, lets everything else come to its end, and
/// delivers the event again. Returns how many polls there were.
async fn cancel_everywhere<const DURABLE: bool>(setting: Setting) -> usize {
    for polls in 0.. {
        let (before, after) = setting.store_yields;
        let store = TestStore::<DURABLE>::yielding(before, after);
        let crm = Crm::new([setting.step]).yielding(setting.handler_yields);
        let mut layer = Webhooks::new(secret()).store(store.clone());
        if setting.replay_guard {
            layer = layer.replay_guard();
        }
        let runs = layer.runs();
        max_detached(&runs, if setting.detaches { 8 } else { 0 });
        let service = layer.layer(EventRouter::new().on::<ChatRated>(crm.clone()));

        let response = service.clone().call(delivery(BODY).key("a"));
        let ended = cancel_after(polls, response).await;
        if polls == 0 {
            assert_eq!(store.state("a").await, KeyState::Free, "{setting:?}");
        }
        // More than one lease, for a claim that took effect although its future was dropped.
        runs.drain(Duration::from_secs(70)).await.unwrap();
        tokio::time::sleep(Duration::from_secs(70)).await;
        let in_flight = matches!(store.state("a").await, KeyState::InFlight { .. });
        assert!(!in_flight, "stuck after {polls} polls: {setting:?}");
        let before = crm.successes();

        let mut status = send(&service, delivery(BODY).key("a")).await.status;
        if crm.runs() == 1 && status.is_server_error() {
            // Nothing had run when the first one was dropped.
            status = send(&service, delivery(BODY).key("a")).await.status;
        }
        assert_eq!(status, 200, "after {polls} polls: {setting:?}");
        send(&service, delivery(BODY).key("a"))
            .await
            .assert_replayed();

        // A run that could not continue may have been dropped between its success and the record.
        let twice = usize::from(!setting.detaches) * before;
        let successes = crm.successes();
        assert!(
            (1..=1 + twice).contains(&successes),
            "{successes} successes after {polls} polls: {setting:?}"
        );
        if ended {
            return polls;
        }
    }
    unreachable!()
}

async fn cancel_everything<const DURABLE: bool>() {
    let mut polls = 0;
    for step in [Step::Succeed, Step::Fail, Step::PanicAfterAwait, Step::Hang] {
        for store_yields in [(0, 0), (1, 0), (0, 1), (2, 1)] {
            // A claim that does not outlive its process must not outlive its future.
            if !DURABLE && store_yields.1 > 0 {
                continue;
            }
            for handler_yields in [0, 1, 2] {
                for detaches in [true, false] {
                    for replay_guard in [false, true] {
                        polls += cancel_everywhere::<DURABLE>(Setting {
                            step,
                            store_yields,
                            handler_yields,
                            detaches,
                            replay_guard,
                        })
                        .await;
                    }
                }
            }
        }
    }
    assert!(polls > 200, "there were only {polls} polls to drop after");
}

#[tokio::test(start_paused = true)]
async fn dropped_response_leaves_no_key_stuck_with_volatile_leases() {
    cancel_everything::<false>().await;
}

#[tokio::test(start_paused = true)]
async fn dropped_response_leaves_no_key_stuck_with_durable_leases() {
    cancel_everything::<true>().await;
}

#[tokio::test(start_paused = true)]
async fn response_that_is_never_polled_claims_nothing() {
    let (store, crm) = (TestStore::<false>::default(), Crm::default());
    let mut service = Webhooks::new(secret())
        .store(store.clone())
        .layer(EventRouter::new().on::<ChatRated>(crm.clone()));
    drop(service.call(delivery(BODY).key("a")));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(store.state("a").await, KeyState::Free);
    assert_eq!(crm.runs(), 0);
}

#[tokio::test(start_paused = true)]
async fn detached_run_finishes_and_drain_waits_for_it() {
    let crm = Crm::new([Step::SucceedAfter(Duration::from_secs(20))]);
    let layer = Webhooks::new(secret()).ready();
    let runs = layer.runs();
    let service = layer.layer(EventRouter::new().on::<ChatRated>(crm.clone()));

    let response = service.clone().call(delivery(BODY).key("a"));
    assert!(!cancel_after(1, response).await);
    assert_eq!(runs.detached(), 1);
    let timeout = runs.drain(Duration::from_secs(10)).await.unwrap_err();
    assert_eq!(timeout.count(), 1);
    runs.drain(Duration::from_secs(11)).await.unwrap();
    assert_eq!((runs.detached(), crm.successes()), (0, 1));
    send(&service, delivery(BODY).key("a"))
        .await
        .assert_replayed();
}

#[tokio::test(start_paused = true)]
async fn dropped_duplicate_does_not_affect_the_run() {
    let crm = Crm::new([Step::SucceedAfter(Duration::from_secs(4))]);
    let layer = Webhooks::new(secret()).ready();
    let runs = layer.runs();
    let service = layer.layer(EventRouter::new().on::<ChatRated>(crm.clone()));
    let first = send(&service, delivery(BODY).key("a"));
    let second = async {
        let response = service.clone().call(delivery(BODY).key("a"));
        assert!(!cancel_after(3, response).await);
        assert_eq!(runs.detached(), 0);
    };
    let (first, ()) = tokio::join!(first, second);
    first.assert_ok();
    assert_eq!(crm.successes(), 1);
}
