//! Runs and their leases: what becomes of a key when the store, the handler or the clock fails.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use http::StatusCode;
use tower::Layer;
use tower_webhook::event::ChatRated;
use tower_webhook::store::KeyState;
use tower_webhook::{Delivery, EventRouter, WebhookLayer};

use support::*;

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
    const LEASE: Duration = Duration::from_millis(600);

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let store = Scripted::new(|_| Fault::None);
    let router = EventRouter::new().on::<ChatRated>(move |_: Delivery<ChatRated>| async move {
        if let Blocks::AfterWaiting = blocks {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        thread::sleep(LEASE * 3);
        Ok(())
    });
    let service = WebhookLayer::with_store(secret(), store.clone())
        .in_flight_wait(Duration::ZERO)
        .and_then(|layer| layer.lease(LEASE))
        .unwrap()
        .layer(router);

    let (answer, answered) = std::sync::mpsc::channel();
    runtime.spawn(async move {
        // A delivery begins when the driver of timers and sockets wakes a worker.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let first = deliver(&service, "k").await;
        let second = deliver(&service, "k").await;
        answer.send((first, second)).unwrap();
    });
    let (first, second) = answered.recv_timeout(Duration::from_secs(20)).unwrap();

    assert_handled(&first);
    assert_replayed(&second);
    assert!(store.calls(Op::Renew).len() >= 3);
}

#[test]
fn a_handler_that_blocks_its_thread_keeps_its_lease() {
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
