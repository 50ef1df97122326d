//! A worker as its inbox sees it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::super::event::{EventId, NewEvent};
use super::super::workers::{Local, Registration, Revocation, Room};
use super::attempt::{Attempt, run};
use super::pool::{Call, Pool, Slot};
use crate::lock::lock;
use crate::outcome::Outcome;
use crate::route::{EventType, RouteName};

/// Lets the inbox of a worker hand events to it.
pub(super) fn register(pool: &Arc<Pool>) -> Registration {
    let served = Served {
        pool: Arc::downgrade(pool),
    };
    let workers = &pool.shared.workers;
    workers.register(pool.number(), Arc::new(served))
}

struct Served {
    /// Weak, as the pool owns the inbox that owns this.
    pool: Weak<Pool>,
}

impl Local for Served {
    fn reserve(&self, events: &[NewEvent]) -> Option<Room> {
        let pool = self.pool.upgrade()?;
        let place = pool.place(events.first()?.delivery.route())?;
        let take = place.take();
        let first = &events[take.first_of(events)?];
        pool.accepts.store(true, Ordering::Relaxed);
        // Before there is room: others make it for this route.
        place.see();
        let of = first.delivery.event_type();
        let Ok(permit) = Arc::clone(&pool.permits).try_acquire_owned() else {
            lock(&pool.credits).see(&of);
            return None;
        };
        let (_, mut room) = place.enter(1, pool.most(place));
        let slot = Slot::new(Arc::clone(&pool), room.split()?, permit);
        if !lock(&pool.credits).reserve(&of) {
            return None;
        }
        let call = Call::new(&pool, of);
        if !pool.begins_early() {
            return None;
        }
        Some(Room {
            take,
            // The slot owns the pool, so that the event is released if the worker is dropped before it starts.
            start: Box::new(move |event, asked| {
                let attempt = Attempt {
                    event,
                    asked,
                    suspect: None,
                    call,
                };
                Box::pin(run(slot, attempt, true))
            }),
        })
    }

    fn wake(&self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.ask_now();
        }
    }

    fn revocation(&self, id: EventId) -> Option<Revocation> {
        let held = self.pool.upgrade()?.leases.find(id)?;
        Some(Box::new(move || held.end(Outcome::LeaseLost)))
    }

    fn slowed(&self) -> Vec<(EventType, Instant)> {
        let Some(pool) = self.pool.upgrade() else {
            return Vec::new();
        };
        let credits = lock(&pool.credits);
        let slowed = credits.slowed().map(|(of, next)| (of.clone(), next));
        slowed.collect()
    }

    fn want(&self, of: &EventType, id: EventId) -> bool {
        let Some(pool) = self.pool.upgrade() else {
            return false;
        };
        let is_next = lock(&pool.credits).want(of, id);
        if is_next {
            pool.wake.notify_one();
        }
        is_next
    }

    fn can_claim(&self) -> bool {
        self.pool.upgrade().is_none_or(|pool| pool.can_claim())
    }

    fn check(&self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.leases.check();
        }
    }

    fn handles(&self, route: &RouteName) -> bool {
        let pool = self.pool.upgrade();
        pool.is_some_and(|pool| pool.place(route).is_some())
    }

    fn idle(&self, time: Duration) -> Vec<RouteName> {
        let pool = self.pool.upgrade();
        pool.map_or_else(Vec::new, |pool| pool.idle(time))
    }
}
