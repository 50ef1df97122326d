//! The steps that rules consist of.

use std::error::Error;
use std::future::{Future, poll_fn};
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::Barrier;
use tokio::time::{Instant, sleep};

use super::harness::{DRIFT, HELD, Harness, PATIENCE, RIVALS, SHORT};
use crate::error::Chain;
use crate::store::{Claim, EventKey, KeyState, Lease, SettleError, Store};

pub async fn named(subject: &str, rule: &str, check: impl Future<Output = ()>) {
    let Err(panic) = AssertUnwindSafe(check).catch_unwind().await else {
        return;
    };
    // `panic!` with arguments has a `String`, and without any a `&str`.
    let message = match panic.downcast_ref::<String>() {
        Some(message) => Some(message.as_str()),
        None => panic.downcast_ref::<&str>().copied(),
    };
    match message {
        Some(message) => panic!("the {subject} breaks the rule `{rule}`: {message}"),
        // It has no text that a rule could be added to.
        None => resume_unwind(panic),
    }
}

/// Polls a future that many times, whenever it was woken, and drops it.
pub async fn abandon<F: Future>(future: F, mut polls: u32) {
    let mut future = pin!(future);
    poll_fn(|cx| {
        if polls == 0 || future.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        // After the last poll, the future is dropped at the await that it has reached.
        polls -= 1;
        if polls == 0 {
            return Poll::Ready(());
        }
        Poll::Pending
    })
    .await;
}

/// Keys that no other run of the suite has used.
pub(super) struct Keys {
    namespace: String,
    next: u32,
}

impl Keys {
    pub(super) fn new(rule: &str) -> Self {
        Self {
            namespace: format!("{rule} {}", unique()),
            next: 0,
        }
    }

    pub(super) fn next(&mut self) -> EventKey {
        self.two_bodies().0
    }

    /// One key, with two bodies.
    pub(super) fn two_bodies(&mut self) -> (EventKey, EventKey) {
        self.next += 1;
        let with = |body| EventKey::new(&self.namespace, &self.next.to_be_bytes(), body);
        (with(b"a body"), with(b"another body"))
    }
}

pub fn unique() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    // Random, since other runs use the same server, and counted, since rules run at once.
    format!("{:016x} {count}", RandomState::new().hash_one(count))
}

pub(super) async fn handles<H: Harness>(harness: &H, count: usize) -> Vec<Arc<H::Store>> {
    let mut handles = Vec::new();
    for _ in 0..count {
        handles.push(Arc::new(harness.open().await));
    }
    handles
}

pub(super) async fn one_winner<S: Store>(handles: &[Arc<S>], id: EventKey, what: &str) -> Lease {
    // All claims begin together: tasks that are spawned one by one would mostly come one after another.
    let start = Arc::new(Barrier::new(RIVALS));
    let claims: Vec<_> = (0..RIVALS)
        .map(|at| {
            let (store, start) = (Arc::clone(&handles[at % handles.len()]), Arc::clone(&start));
            tokio::spawn(async move {
                start.wait().await;
                ok(store.claim(&id, HELD, HELD).await, "claim")
            })
        })
        .collect();
    let mut winners = Vec::new();
    for claim in joined(claims).await {
        match claim {
            Claim::Acquired(lease) => winners.push(lease),
            Claim::InFlight { .. } => {}
            Claim::Done { .. } => panic!("{what} was found done"),
        }
    }
    assert_eq!(
        winners.len(),
        1,
        "of {RIVALS} claims on {what} at one time, this many were acquired"
    );
    winners.remove(0)
}

pub async fn joined<T>(tasks: Vec<tokio::task::JoinHandle<T>>) -> Vec<T> {
    let mut results = Vec::new();
    for task in tasks {
        match task.await {
            Ok(result) => results.push(result),
            Err(error) => resume_unwind(error.into_panic()),
        }
    }
    results
}

pub(super) async fn acquired<S: Store>(
    store: &S,
    id: &EventKey,
    lease: Duration,
    retain: Duration,
) -> Lease {
    match ok(store.claim(id, lease, retain).await, "claim") {
        Claim::Acquired(lease) => lease,
        claim => panic!("a key that should be free cannot be claimed: {claim:?}"),
    }
}

/// Asserts that the key is in flight, for a lease of `HELD`, by all accounts.
pub(super) async fn in_flight<S: Store>(store: &S, id: &EventKey) -> Duration {
    let sane = |remaining: Duration| {
        assert!(
            // The lower half leaves 30 s for a slow machine. More than `HELD` shows a renewal that was to be refused.
            remaining > HELD / 2 && remaining <= HELD,
            "a lease of {HELD:?} that was just taken or renewed remains for {remaining:?}"
        );
        remaining
    };
    match ok(store.claim(id, HELD, HELD).await, "claim") {
        Claim::InFlight { remaining, .. } => sane(remaining),
        claim => panic!("a key in flight was not found so: {claim:?}"),
    };
    // `claim` and `peek` may be different statements, so both are asked.
    match ok(store.peek(id).await, "peek") {
        KeyState::InFlight { remaining } => sane(remaining),
        state => panic!("a key in flight looks {state:?}"),
    }
}

/// Asserts that the key is done by all accounts.
pub(super) async fn done<S: Store>(store: &S, id: &EventKey) {
    match ok(store.claim(id, HELD, HELD).await, "claim") {
        Claim::Done { same_body } => assert!(same_body, "`same_body` of a key that is done"),
        claim => panic!("a key that is done was not found so: {claim:?}"),
    }
    let state = ok(store.peek(id).await, "peek");
    assert_eq!(state, KeyState::Done, "what a key that is done looks like");
}

pub(super) async fn assert_free<S: Store>(store: &S, id: &EventKey, what: &str) {
    let state = ok(store.peek(id).await, "peek");
    assert_eq!(state, KeyState::Free, "what {what} looks like");
}

/// Waits for the end of something that lasts for `SHORT`, and was not begun before `began`.
pub(super) async fn ends<S: Store>(store: &S, id: &EventKey, began: Instant, what: &str) {
    free_before_long(store, id, what).await;
    let lasted = began.elapsed();
    assert!(
        lasted + DRIFT >= SHORT,
        "{what} of {SHORT:?} ended after {lasted:?} at the latest"
    );
}

pub(super) async fn free_before_long<S: Store>(store: &S, id: &EventKey, what: &str) {
    let give_up = Instant::now() + PATIENCE;
    while ok(store.peek(id).await, "peek") != KeyState::Free {
        assert!(Instant::now() < give_up, "{what} never ends");
        sleep(SHORT / 20).await;
    }
}

/// Asserts that the lease can neither be renewed nor settled.
pub(super) async fn refuses<S: Store>(store: &S, lease: &Lease, what: &str) {
    for (operation, result) in [
        // Longer than `HELD`, so that `in_flight` notices a call that took effect.
        ("renewed", store.renew(lease, 2 * HELD).await),
        ("completed", store.complete(lease, 2 * HELD).await),
        ("released", store.release(lease).await),
    ] {
        match result {
            // A run stops at this error, and tries again after any other.
            Err(SettleError::LeaseExpired) => {}
            Ok(()) => panic!("{what} could be {operation}"),
            Err(error) => panic!("{what}, {operation}, failed: {}", Chain(&error)),
        }
    }
}

pub(super) fn attempt_is(lease: &Lease, number: u32, when: &str) {
    assert_eq!(lease.attempt().get(), number, "attempt {when}");
}

pub fn ok<T, E: Error>(result: Result<T, E>, operation: &str) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("`{operation}` failed: {}", Chain(&error)),
    }
}
