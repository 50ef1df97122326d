//! Runs and their leases when the store, the handler or the clock fails.

#![cfg(feature = "moka")]

mod disconnects;
mod duplicates;
mod leases;
mod store_faults;

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tower_webhook::event::ChatRated;
use tower_webhook::idempotency::Idempotency;
use tower_webhook::signature::Signature;
use tower_webhook::{Delivery, EventRouter, IdempotencyLayer, Webhooks};

use support::Ready;
use support::delivery::{deliver, secret};
use support::net::Counted;
use support::store::{Call, TestStore};

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

/// Delivers, and goes away after a second.
async fn leave<const DURABLE: bool>(service: &Receiver<DURABLE>, key: &str) {
    let left = timeout(seconds(1), deliver(service, key)).await;
    assert!(left.is_err(), "it was answered before");
}
