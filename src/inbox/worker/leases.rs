//! The leases of the attempts in progress, which one task extends together.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::super::event::{EventId, EventLease};
use crate::lock::lock;
use crate::outcome::Outcome;

/// The leases that are held now.
#[derive(Default)]
pub(super) struct HeldLeases {
    /// By fence: ordered, so that a run with a seed repeats exactly.
    all: Mutex<BTreeMap<u128, Arc<SharedLease>>>,
    /// Notified when there is a lease to extend.
    any: Notify,
    /// Notified when the queue must be asked which leases are still held.
    check: Notify,
    is_interrupted: AtomicBool,
}

/// A lease, shared by its attempt and the task that extends it.
pub(super) struct SharedLease {
    pub(super) lease: EventLease,
    /// For how long it is extended.
    pub(super) duration: Duration,
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
    pub(super) fn hold(
        &self,
        lease: EventLease,
        duration: Duration,
        valid_until: Instant,
    ) -> HeldLease<'_> {
        // Locked before it is read: whoever interrupts all sees this lease, or this sees that they did.
        let mut all = lock(&self.all);
        let is_interrupted = self.is_interrupted.load(Ordering::Relaxed);
        let end = is_interrupted.then_some(Outcome::Interrupted);
        let shared = Arc::new(SharedLease {
            lease,
            duration,
            state: Mutex::new(State {
                valid_until,
                end,
                waker: None,
            }),
        });
        let is_first = all.is_empty();
        all.insert(lease.fence.0, Arc::clone(&shared));
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

    /// Returns the lease of an event, if it is one of these.
    pub(super) fn find(&self, id: EventId) -> Option<Arc<SharedLease>> {
        let all = lock(&self.all);
        all.values().find(|held| held.lease.id == id).cloned()
    }

    /// Asks the queue which leases are still held, because events were given up.
    pub(super) fn check(&self) {
        self.check.notify_one();
    }

    /// Waits until there is a lease to extend.
    pub(super) async fn any(&self) {
        if lock(&self.all).is_empty() {
            self.any.notified().await;
        }
    }

    /// Waits until the queue must be asked which leases are still held.
    pub(super) async fn checked(&self) {
        self.check.notified().await;
    }

    /// Returns the leases of the attempts that still hold theirs.
    pub(super) fn held(&self) -> Vec<Arc<SharedLease>> {
        let all = lock(&self.all);
        let held = all
            .values()
            .filter(|held| !matches!(lock(&held.state).end, Some(Outcome::LeaseLost)));
        held.cloned().collect()
    }

    /// Ends the attempts whose leases have expired.
    pub(super) fn expire(&self, now: Instant) {
        let all: Vec<_> = lock(&self.all).values().cloned().collect();
        for held in all {
            if lock(&held.state).valid_until <= now {
                held.end(Outcome::LeaseLost);
            }
        }
    }

    /// The first time at which a lease expires, of those whose attempts go on.
    pub(super) fn first_expiry(&self) -> Option<Instant> {
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

impl SharedLease {
    pub(super) fn extended(&self, valid_until: Instant) {
        lock(&self.state).valid_until = valid_until;
    }

    pub(super) fn end(&self, end: Outcome) {
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
    shared: Arc<SharedLease>,
    is_first: bool,
}

impl HeldLease<'_> {
    pub(super) fn lease(&self) -> &EventLease {
        &self.shared.lease
    }

    pub(super) fn duration(&self) -> Duration {
        self.shared.duration
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
        lock(&self.of.all).remove(&self.shared.lease.fence.0);
    }
}
