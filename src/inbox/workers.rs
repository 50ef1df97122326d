//! The workers of an inbox in this process, which get events in the step that accepts them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::event::{EventId, NewEvent, Take, TakenEvent};
use crate::lock::lock;
use crate::route::{EventType, RouteName};

/// Ends an attempt of an event that was given up.
pub(super) type Revocation = Box<dyn FnOnce() + Send>;

/// The workers of an inbox in this process.
#[derive(Clone, Default)]
pub(super) struct Workers {
    all: Arc<Mutex<Vec<Registered>>>,
}

#[derive(Clone)]
struct Registered {
    number: usize,
    worker: Arc<dyn Local>,
}

/// A worker, whatever its types of queue and service.
pub(super) trait Local: Send + Sync {
    /// Reserves room for an event, if the worker takes such events.
    fn reserve(&self, events: &[NewEvent]) -> Option<Room>;
    fn wake(&self);
    /// Returns what ends the attempt of an event, if it is in progress.
    fn revocation(&self, id: EventId) -> Option<Revocation>;
    /// Returns the types that are slowed down, and when the next call of each may begin.
    fn slowed(&self) -> Vec<(EventType, Instant)>;
    /// Makes an event the next one of its type if that waits for credit, and returns whether it does.
    fn want(&self, of: &EventType, id: EventId) -> bool;
    /// Whether a claim has succeeded since it was asked for, or may yet.
    fn can_claim(&self) -> bool;
    fn check(&self);
    /// Whether it handles a route.
    fn handles(&self, route: &RouteName) -> bool;
    /// Returns the routes of which it has had no event for so long since it was started.
    fn idle(&self, time: Duration) -> Vec<RouteName>;
}

impl Workers {
    /// Adds a worker, until its place is left. No other one has its number.
    pub(super) fn register(&self, number: usize, worker: Arc<dyn Local>) -> Registration {
        lock(&self.all).push(Registered { number, worker });
        Registration {
            workers: self.clone(),
            number,
        }
    }

    /// Reserves room for an event in a worker that takes it, if one has room.
    pub(super) fn room_for(&self, events: &[NewEvent]) -> Option<Room> {
        lock(&self.all)
            .iter()
            .find_map(|registered| registered.worker.reserve(events))
    }

    /// Returns what ends the attempt of an event that is in progress in this process, and no later one.
    pub(super) fn revocation(&self, id: EventId) -> Option<Revocation> {
        lock(&self.all)
            .iter()
            .find_map(|registered| registered.worker.revocation(id))
    }

    /// Returns the types that are slowed down in a worker, and when the next call of each may begin.
    pub(super) fn slowed(&self) -> BTreeMap<EventType, Instant> {
        let mut slowed = BTreeMap::new();
        for registered in &*lock(&self.all) {
            for (of, next) in registered.worker.slowed() {
                let earliest = slowed.entry(of).or_insert(next);
                *earliest = next.min(*earliest);
            }
        }
        slowed
    }

    /// Makes an event the next one of its type, if that waits for credit in a worker.
    pub(super) fn want(&self, of: &EventType, id: EventId) {
        let all = lock(&self.all);
        let _ = all.iter().any(|registered| registered.worker.want(of, id));
    }

    /// Whether a worker handles a route.
    pub(super) fn handle(&self, route: &RouteName) -> bool {
        let all = lock(&self.all);
        all.iter()
            .any(|registered| registered.worker.handles(route))
    }

    /// Returns the routes of which a worker has had no event for so long since it was started.
    pub(super) fn idle(&self, time: Duration) -> BTreeSet<RouteName> {
        let all = lock(&self.all);
        let idle = all
            .iter()
            .flat_map(|registered| registered.worker.idle(time));
        idle.collect()
    }

    pub(super) fn can_claim(&self) -> bool {
        let all = lock(&self.all);
        all.iter().all(|registered| registered.worker.can_claim())
    }

    /// Makes all workers ask the queue which of their leases are still held.
    pub(super) fn check(&self) {
        for registered in &*lock(&self.all) {
            registered.worker.check();
        }
    }

    /// Makes all workers ask the queue for events.
    pub(super) fn wake(&self) {
        // It is no worker's number.
        self.wake_others(0);
    }

    /// Makes all workers but one ask the queue for events.
    pub(super) fn wake_others(&self, number: usize) {
        for registered in &*lock(&self.all) {
            if registered.number != number {
                registered.worker.wake();
            }
        }
    }
}

/// The place of a worker among those of its inbox.
pub(super) struct Registration {
    workers: Workers,
    number: usize,
}

impl Registration {
    /// Removes the worker, which gets no more events from here.
    pub(super) fn leave(&self) {
        let mut all = lock(&self.workers.all);
        all.retain(|registered| registered.number != self.number);
    }
}

/// Room for one event in a worker.
pub(super) struct Room {
    pub(super) take: Arc<Take>,
    /// Handles an event whose lease was requested at the time given, and those of its lane that follow.
    pub(super) start: Box<dyn FnOnce(TakenEvent, Instant) -> BoxFuture<'static, ()> + Send>,
}
