//! Receivers that the builder starts, with a store and with an inbox.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use tokio::time::{Instant, sleep, timeout};
use tower::Layer;
use tower_webhook::event::ChatRated;
use tower_webhook::idempotency::Idempotency;
use tower_webhook::inbox::Inbox;
use tower_webhook::memory::{MemoryQueue, MokaStore};
use tower_webhook::signature::Signature;
use tower_webhook::{Delivery, EventRouter, Receiver, Sender, SenderPolicy, Webhooks};

use support::SECOND;
use support::delivery::{BODY, RequestExt, SIGNATURE, deliver, delivery, secret, send};
use support::observer::Notes;

const TAKES: Duration = Duration::from_secs(20);

/// A handler that takes 20 seconds, and counts what it begins and ends.
#[derive(Clone, Default)]
struct Slow {
    begun: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
}

impl Slow {
    fn router(&self) -> EventRouter {
        let slow = self.clone();
        EventRouter::new().on::<ChatRated>(move |_: Delivery<ChatRated>| {
            let slow = slow.clone();
            async move {
                slow.begun.fetch_add(1, Ordering::SeqCst);
                sleep(TAKES).await;
                slow.ended.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }
        })
    }

    fn counts(&self) -> (usize, usize) {
        (
            self.begun.load(Ordering::SeqCst),
            self.ended.load(Ordering::SeqCst),
        )
    }
}

/// Delivers, and goes away after a second.
async fn leave(service: &Signature<Idempotency<EventRouter, MokaStore>>) {
    let left = timeout(SECOND, deliver(service, "k")).await;
    assert!(left.is_err(), "it was answered before");
}

#[tokio::test(start_paused = true)]
async fn both_programs_differ_in_one_line() {
    let slow = Slow::default();
    let inline: (Signature<Idempotency<EventRouter, MokaStore>>, _) = Webhooks::new(secret())
        .store(MokaStore::new())
        .start(slow.router())
        .unwrap();
    let inbox: (Receiver, _) = Webhooks::new(secret())
        .inbox(MemoryQueue::new())
        .start(slow.router())
        .unwrap();

    let start = Instant::now();
    let app = Router::new().route_service("/webhooks", inline.0.clone());
    deliver(&app, "k").await.assert_ok();
    assert_eq!(start.elapsed(), TAKES, "it is answered after the handler");
    deliver(&inline.0, "k").await.assert_replayed();
    inline.1.drain(SECOND).await.unwrap();

    let start = Instant::now();
    let app = Router::new().route_service("/webhooks", inbox.0.clone());
    deliver(&app, "k").await.assert_ok();
    assert_eq!(start.elapsed(), Duration::ZERO, "it is only stored");
    deliver(&inbox.0, "k").await.assert_replayed();
    inbox.1.drain(2 * TAKES).await.unwrap();
    assert_eq!(slow.counts(), (2, 2));

    for service in [
        Webhooks::new(secret()).start(slow.router()),
        Webhooks::dangerously_unsigned().start(slow.router()),
    ] {
        let (service, _) = service.unwrap();
        let forged = delivery(BODY).key("k").with(SIGNATURE, "0".repeat(64));
        let answered = send(&service, forged).await.status;
        assert!([200, 401].contains(&answered.as_u16()), "{answered}");
    }
}

#[tokio::test(start_paused = true)]
async fn drain_waits_for_runs_whose_client_is_gone() {
    let slow = Slow::default();
    let (service, running) = Webhooks::new(secret()).start(slow.router()).unwrap();
    leave(&service).await;
    let start = Instant::now();
    running.drain(2 * TAKES).await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 19);
    assert_eq!(slow.counts(), (1, 1));

    let (service, running) = Webhooks::new(secret()).start(slow.router()).unwrap();
    leave(&service).await;
    let start = Instant::now();
    let error = running.drain(5 * SECOND).await.unwrap_err();
    assert_eq!((error.count(), start.elapsed()), (1, 5 * SECOND));
}

#[tokio::test(start_paused = true)]
async fn drain_waits_for_the_attempts_of_the_worker() {
    let slow = Slow::default();
    let started = || {
        let webhooks = Webhooks::new(secret()).inbox(MemoryQueue::new());
        webhooks.start(slow.router()).unwrap()
    };
    let (service, running) = started();
    deliver(&service, "k").await.assert_ok();
    sleep(SECOND).await;
    running.drain(2 * TAKES).await.unwrap();
    assert_eq!(slow.counts(), (1, 1));

    // What is accepted afterwards waits for the next worker.
    deliver(&service, "l").await.assert_ok();
    sleep(2 * TAKES).await;
    assert_eq!(slow.counts(), (1, 1));

    let (service, running) = started();
    deliver(&service, "k").await.assert_ok();
    sleep(SECOND).await;
    let start = Instant::now();
    let error = running.drain_until(sleep(5 * SECOND)).await.unwrap_err();
    assert_eq!((error.count(), start.elapsed()), (1, 5 * SECOND));
    sleep(2 * TAKES).await;
    assert_eq!(slow.counts(), (2, 1), "the attempt was interrupted");
}

#[tokio::test(start_paused = true)]
async fn dropped_handle_stops_the_worker_and_no_detached_run() {
    let slow = Slow::default();
    let (service, running) = Webhooks::new(secret()).start(slow.router()).unwrap();
    leave(&service).await;
    drop(running);
    sleep(2 * TAKES).await;
    assert_eq!(slow.counts(), (1, 1));

    let inbox = Inbox::new(MemoryQueue::new()).worker(|worker| worker.concurrency(1));
    let (service, running) = Webhooks::new(secret())
        .inbox(inbox.clone())
        .start(slow.router())
        .unwrap();
    deliver(&service, "k").await.assert_ok();
    sleep(SECOND).await;
    drop(running);
    sleep(2 * TAKES).await;
    assert_eq!(slow.counts(), (2, 1), "the attempt was interrupted");
    assert_eq!(inbox.stats().await.unwrap().unsettled(), 1);
}

#[tokio::test(start_paused = true)]
async fn settings_reach_every_part() {
    let mut policy = SenderPolicy::default();
    policy.retry_every = 120 * SECOND;
    let notes = Notes::default();
    let (service, running) = Webhooks::new(secret())
        .inbox(MemoryQueue::new())
        .sender(Sender::default().with_policy(policy))
        .observer(notes.clone())
        .handler_timeout(SECOND)
        .max_buffered(1)
        .require_key()
        .start(Slow::default().router())
        .unwrap();

    // The policy of the piece is that of the layer around it.
    let large = " ".repeat(100_000);
    let refused = send(&service, delivery(large).key("a")).await;
    refused.assert_problem(503, "overloaded");
    assert_eq!(refused.retry_after(), Some(120));
    send(&service, delivery(BODY))
        .await
        .assert_problem(400, "missing-key");

    // And so is its observer, which sees the deliveries, the calls and the attempts.
    deliver(&service, "k").await.assert_ok();
    sleep(2 * SECOND).await;
    let seen = notes.take().join("\n");
    for part in ["overloaded", "missing-key", "accepted", "handler-timeout"] {
        assert!(seen.contains(part), "{part}: {seen}");
    }
    running.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn layer_wraps_several_services_of_one_store() {
    let slow = Slow::default();
    let (layer, running) = Webhooks::new(secret()).into_layer().unwrap();
    let (one, two) = (layer.layer(slow.router()), layer.layer(slow.router()));
    deliver(&one, "k").await.assert_ok();
    deliver(&two, "k").await.assert_replayed();
    leave_both(&one, &two).await;
    running.drain(2 * TAKES).await.unwrap();
    assert_eq!(slow.counts(), (3, 3));
}

async fn leave_both(
    one: &Signature<Idempotency<EventRouter, MokaStore>>,
    two: &Signature<Idempotency<EventRouter, MokaStore>>,
) {
    let both = async { tokio::join!(deliver(one, "a"), deliver(two, "b")) };
    assert!(timeout(SECOND, both).await.is_err());
}

#[cfg(all(unix, feature = "signal"))]
#[tokio::test]
async fn shutdown_completes_on_either_signal() {
    use futures_util::poll;
    use nix::sys::signal::{Signal, raise};

    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut shutdown = std::pin::pin!(tower_webhook::shutdown());
        assert!(poll!(shutdown.as_mut()).is_pending());
        raise(signal).unwrap();
        timeout(20 * SECOND, shutdown).await.unwrap();
    }
}
