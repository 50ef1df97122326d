//! The state of a worker, which its tasks share.

use std::future::poll_fn;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;
use tower_service::Service;

use super::super::event::Take;
use super::super::handle::{Settings, Shared};
use super::super::rules::Rules;
use super::super::trip::Trips;
use super::leases::HeldLeases;
use super::suspects::Suspects;
use crate::delivery::RawDelivery;
use crate::error::BoxError;
use crate::execution::Clocks;
use crate::lock::lock;
use crate::outcome::Outcome;
use crate::telemetry::Kept;

/// Whether a worker stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    No,
    /// It takes no events, and ends the attempts in progress.
    Draining,
    /// The attempts in progress are interrupted.
    Now,
}

/// The state of a worker.
pub(super) struct Pool {
    pub(super) shared: Arc<Shared>,
    pub(super) settings: Arc<Settings>,
    pub(super) rules: Rules,
    /// The kinds to take now, without those that are tripped.
    pub(super) take: Mutex<Arc<Take>>,
    pub(super) trips: Mutex<Trips>,
    pub(super) has_trips: AtomicBool,
    pub(super) permits: Arc<Semaphore>,
    /// Whether this process has accepted an event for the worker since the last claim.
    pub(super) accepts: AtomicBool,
    /// When the queue is asked for events next. `None` when nothing is known to become due.
    pub(super) plan: Mutex<Option<Instant>>,
    pub(super) wake: Notify,
    pub(super) suspects: Mutex<Suspects>,
    /// How often background tasks have panicked.
    pub(super) panics: AtomicUsize,
    pub(super) leases: HeldLeases,
    /// Keeps the timers of the runtime in time beside handlers that block.
    pub(super) clocks: Clocks,
    pub(super) stop: watch::Sender<Stop>,
    /// What the observers count for the queue to keep.
    pub(super) kept: Vec<Kept>,
}

/// The service that handles deliveries, as a trait object: the worker is compiled once, with this crate, and not with each
/// user's program.
pub(crate) type Handler = Arc<dyn Handle>;

pub(crate) trait Handle: Send + Sync {
    fn handle(&self, delivery: RawDelivery) -> BoxFuture<'static, Outcome>;
}

/// Makes a handler of a service. Each delivery has a clone of its own.
pub(crate) fn handler<S>(service: S) -> Handler
where
    S: Service<RawDelivery, Response = Outcome, Error: Into<BoxError>, Future: Send>
        + Clone
        + Send
        + 'static,
{
    Arc::new(Cloned(Mutex::new(service)))
}

struct Cloned<S>(Mutex<S>);

impl<S> Handle for Cloned<S>
where
    S: Service<RawDelivery, Response = Outcome, Error: Into<BoxError>, Future: Send>
        + Clone
        + Send
        + 'static,
{
    fn handle(&self, delivery: RawDelivery) -> BoxFuture<'static, Outcome> {
        let mut service = lock(&self.0).clone();
        Box::pin(async move {
            if let Err(error) = poll_fn(|cx| service.poll_ready(cx)).await {
                return Outcome::failed(error);
            }
            match service.call(delivery).await {
                Ok(outcome) => outcome,
                Err(error) => Outcome::failed(error),
            }
        })
    }
}

impl Pool {
    /// The worker's number among those of its inbox.
    pub(super) fn number(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    pub(super) fn take(&self) -> Arc<Take> {
        Arc::clone(&lock(&self.take))
    }

    pub(super) fn ask_now(&self) {
        self.ask_at(Instant::now());
    }

    /// Plans to ask the queue at this time at the latest.
    pub(super) fn ask_at(&self, at: Instant) {
        let mut plan = lock(&self.plan);
        if plan.is_none_or(|planned| at < planned) {
            *plan = Some(at);
            drop(plan);
            self.wake.notify_one();
        }
    }

    pub(super) fn next_ask(&self) -> Option<Instant> {
        let planned = *lock(&self.plan);
        let probe = match self.has_trips.load(Ordering::Relaxed) {
            true => lock(&self.trips).next_probe(),
            false => None,
        };
        planned.into_iter().chain(probe).min()
    }

    /// Sets the kinds to take, after one was tripped or resumed.
    pub(super) fn apply_trips(&self) {
        let trips = lock(&self.trips);
        self.has_trips.store(!trips.is_empty(), Ordering::Relaxed);
        let tripped = trips.tripped().map(|(kind, _)| kind.clone());
        let take = Take {
            lease: self.settings.limits.lease(),
            kinds: self.rules.kinds.clone().except(tripped),
        };
        *lock(&self.take) = Arc::new(take);
        drop(trips);
        self.ask_now();
    }

    pub(super) fn stop(&self, stop: Stop) {
        self.stop.send_replace(stop);
        self.wake.notify_one();
        if stop == Stop::Now {
            self.leases.interrupt_all();
        }
    }

    pub(super) fn stops(&self) -> bool {
        *self.stop.borrow() != Stop::No
    }
}
