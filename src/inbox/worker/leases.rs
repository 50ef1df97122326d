//! The leases of the attempts in progress, which one task extends together.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::super::event::{EventId, EventLease};
use super::super::queue::Queue;
use super::{Pool, lock};
use crate::error::Chain;
use crate::outcome::Outcome;
use crate::store::Fence;

/// The leases that are held now.
#[derive(Default)]
pub(super) struct HeldLeases {
    all: Mutex<HashMap<Fence, Arc<Shared>>>,
    /// Notified when there is a lease to extend.
    any: Notify,
    /// Notified when the queue must be asked which leases are still held.
    check: Notify,
    is_interrupted: AtomicBool,
}

struct Shared {
    lease: EventLease,
    state: Mutex<State>,
}

struct State {
    /// The end of the lease by this process's clock.
    valid_until: Instant,
    /// The outcome that ends the attempt: its lease was lost, or the worker stops.
    end: Option<Outcome>,
    waker: Option<Waker>,
}

impl HeldLeases {
    /// Extends a lease until the returned value is dropped.
    pub(super) fn hold(&self, lease: EventLease, valid_until: Instant) -> HeldLease<'_> {
        // Locked before it is read: whoever interrupts all sees this lease, or this sees that they did.
        let mut all = lock(&self.all);
        let is_interrupted = self.is_interrupted.load(Ordering::Relaxed);
        let end = is_interrupted.then_some(Outcome::Interrupted);
        let shared = Arc::new(Shared {
            lease,
            state: Mutex::new(State {
                valid_until,
                end,
                waker: None,
            }),
        });
        let is_first = all.is_empty();
        all.insert(lease.fence, Arc::clone(&shared));
        drop(all);
        if is_first {
            self.any.notify_one();
        }
        HeldLease {
            of: self,
            shared,
            is_first,
        }
    }

    /// Ends the attempt of an event that was given up, if it is one of these.
    pub(super) fn revoke(&self, id: EventId) {
        let all = lock(&self.all);
        let held = all.values().find(|held| held.lease.id == id).cloned();
        drop(all);
        if let Some(held) = held {
            held.end(Outcome::LeaseLost);
        }
    }

    /// Asks the queue which leases are still held, because events were given up.
    pub(super) fn check(&self) {
        self.check.notify_one();
    }

    /// Ends the attempts whose leases have expired.
    fn expire(&self, now: Instant) {
        let all: Vec<_> = lock(&self.all).values().cloned().collect();
        for held in all {
            if lock(&held.state).valid_until <= now {
                held.end(Outcome::LeaseLost);
            }
        }
    }

    /// The first time at which a lease expires, of those whose attempts go on.
    fn first_expiry(&self) -> Option<Instant> {
        let all = lock(&self.all);
        let going = all.values().filter_map(|held| {
            let state = lock(&held.state);
            state.end.is_none().then_some(state.valid_until)
        });
        going.min()
    }

    /// Interrupts all attempts.
    pub(super) fn interrupt_all(&self) {
        self.is_interrupted.store(true, Ordering::Relaxed);
        let all: Vec<_> = lock(&self.all).values().cloned().collect();
        for held in all {
            held.end(Outcome::Interrupted);
        }
    }
}

impl Shared {
    fn end(&self, end: Outcome) {
        let mut state = lock(&self.state);
        state.end.get_or_insert(end);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A lease that is extended until this is dropped.
pub(super) struct HeldLease<'a> {
    of: &'a HeldLeases,
    shared: Arc<Shared>,
    is_first: bool,
}

impl HeldLease<'_> {
    pub(super) fn lease(&self) -> &EventLease {
        &self.shared.lease
    }

    /// Whether no other lease was held when this one began.
    pub(super) fn is_first(&self) -> bool {
        self.is_first
    }

    pub(super) fn valid_until(&self) -> Instant {
        lock(&self.shared.state).valid_until
    }

    /// Completes when the attempt must end, with its outcome.
    pub(super) async fn ended(&self) -> Outcome {
        poll_fn(|cx| {
            let mut state = lock(&self.shared.state);
            // Whoever was stopped for that long must not begin, before the task that extends leases has noticed.
            if state.end.is_none() && Instant::now() >= state.valid_until {
                state.end = Some(Outcome::LeaseLost);
            }
            if let Some(end) = &state.end {
                return Poll::Ready(end.clone());
            }
            match &mut state.waker {
                Some(waker) => waker.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
            Poll::Pending
        })
        .await
    }
}

impl Drop for HeldLease<'_> {
    fn drop(&mut self) {
        lock(&self.of.all).remove(&self.shared.lease.fence);
    }
}

/// The task that extends the leases of a worker whenever a third of them has passed.
pub(super) async fn extend<Q: Queue>(pool: Arc<Pool<Q>>) {
    let lease = pool.settings.limits.lease();
    let mut has_failed = false;
    loop {
        if lock(&pool.leases.all).is_empty() {
            pool.leases.any.notified().await;
        }
        let pause = if has_failed { lease / 10 } else { lease / 3 };
        let next = Instant::now() + pause;
        let next = pool.leases.first_expiry().map_or(next, |at| at.min(next));
        let is_check = tokio::select! {
            () = sleep_until(next) => false,
            () = pool.leases.check.notified() => true,
        };
        has_failed = extend_all(&pool, lease, is_check, has_failed).await;
    }
}

/// Extends the leases that have no more than two thirds of their time left, or all of them, and ends the attempts whose
/// leases are lost. Returns whether that failed.
async fn extend_all<Q: Queue>(
    pool: &Pool<Q>,
    lease: Duration,
    is_check: bool,
    had_failed: bool,
) -> bool {
    let asked = Instant::now();
    pool.leases.expire(asked);
    let due: Vec<_> = lock(&pool.leases.all)
        .values()
        .filter(|held| {
            let state = lock(&held.state);
            let is_due = is_check || state.valid_until <= asked + lease * 2 / 3;
            !matches!(state.end, Some(Outcome::LeaseLost)) && is_due
        })
        .cloned()
        .collect();
    if due.is_empty() {
        return false;
    }
    let leases: Vec<_> = due.iter().map(|held| held.lease).collect();
    let mut limit = asked + pool.settings.limits.store_timeout;
    if let Some(expiry) = pool.leases.first_expiry() {
        limit = limit.min(expiry);
    }
    let limit = limit.saturating_duration_since(Instant::now());
    let extend = pool.shared.queue.extend(&leases, lease);
    match pool.settings.call_within(limit, "extend", extend).await {
        Ok(extended) => {
            for (held, is_held) in due.iter().zip(extended) {
                match is_held {
                    true => lock(&held.state).valid_until = asked + lease,
                    false => held.end(Outcome::LeaseLost),
                }
            }
            false
        }
        Err(error) => {
            if !had_failed {
                tracing::warn!(
                    reason = %Chain(&error),
                    attempts = due.len(),
                    "the leases of attempts in progress could not be renewed; renewal is retried until they expire"
                );
            }
            pool.leases.expire(Instant::now());
            true
        }
    }
}
