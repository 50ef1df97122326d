//! The workers of an inbox in this process, which get events in the step that accepts them.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};

use tokio::time::Instant;
use tower_service::Service;

use super::super::event::{EventId, Take, TakenEvent};
use super::super::queue::Queue;
use super::attempt::{Attempt, run};
use super::{Pool, lock};
use crate::delivery::RawDelivery;
use crate::error::BoxError;
use crate::event::EventKind;
use crate::outcome::Outcome;

type BoxFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The workers of an inbox in this process.
#[derive(Clone, Default)]
pub(in super::super) struct Workers {
    all: Arc<Mutex<Vec<Registered>>>,
}

#[derive(Clone)]
struct Registered {
    number: usize,
    worker: Arc<dyn Local>,
}

/// A worker, for every type of queue and service.
trait Local: Send + Sync {
    /// Reserves room for an event of this kind.
    fn reserve(&self, kind: &EventKind) -> Option<Room>;
    fn wake(&self);
    fn revoke(&self, id: EventId);
    fn check(&self);
}

struct Served<Q, S> {
    /// Weak, as the pool owns the inbox that owns this.
    pool: Weak<Pool<Q>>,
    service: Mutex<S>,
}

impl<Q, S> Local for Served<Q, S>
where
    Q: Queue,
    S: Service<RawDelivery, Response = Outcome, Error: Into<BoxError>, Future: Send>
        + Clone
        + Send
        + 'static,
{
    fn reserve(&self, kind: &EventKind) -> Option<Room> {
        let pool = self.pool.upgrade()?;
        let take = pool.take();
        if !take.kinds.contains(kind) {
            return None;
        }
        pool.accepts.store(true, Ordering::Relaxed);
        let permit = Arc::clone(&pool.permits).try_acquire_owned().ok()?;
        let service = lock(&self.service).clone();
        Some(Room {
            take,
            // It owns the pool, so that an event is released if the worker is dropped meanwhile.
            start: Box::new(move |event, asked| {
                let attempt = Attempt {
                    event,
                    asked,
                    probe: None,
                };
                Box::pin(run(pool, service, attempt, permit))
            }),
        })
    }

    fn wake(&self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.ask_now();
        }
    }

    fn revoke(&self, id: EventId) {
        if let Some(pool) = self.pool.upgrade() {
            pool.leases.revoke(id);
        }
    }

    fn check(&self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.leases.check();
        }
    }
}

impl Workers {
    pub(super) fn register<Q, S>(&self, pool: &Arc<Pool<Q>>, service: &S) -> Place
    where
        Q: Queue,
        S: Service<RawDelivery, Response = Outcome, Error: Into<BoxError>, Future: Send>
            + Clone
            + Send
            + 'static,
    {
        let worker = Arc::new(Served {
            pool: Arc::downgrade(pool),
            service: Mutex::new(service.clone()),
        });
        let mut all = lock(&self.all);
        let number = all.last().map_or(0, |last| last.number + 1);
        all.push(Registered { number, worker });
        Place {
            workers: self.clone(),
            number,
        }
    }

    /// Reserves room in a worker for an event of this kind, if one has room.
    pub(in super::super) fn room_for(&self, kind: &EventKind) -> Option<Room> {
        lock(&self.all)
            .iter()
            .find_map(|registered| registered.worker.reserve(kind))
    }

    /// Ends the attempt of an event that was given up, if it is in progress in this process.
    pub(in super::super) fn revoke(&self, id: EventId) {
        for registered in &*lock(&self.all) {
            registered.worker.revoke(id);
        }
    }

    /// Makes all workers ask the queue which of their leases are still held.
    pub(in super::super) fn check(&self) {
        for registered in &*lock(&self.all) {
            registered.worker.check();
        }
    }

    /// Makes all workers ask the queue for events.
    pub(in super::super) fn wake(&self) {
        for registered in &*lock(&self.all) {
            registered.worker.wake();
        }
    }
}

/// The place of a worker among those of its inbox.
pub(super) struct Place {
    workers: Workers,
    number: usize,
}

impl Place {
    /// Removes the worker, which gets no more events from here.
    pub(super) fn leave(&self) {
        let mut all = lock(&self.workers.all);
        all.retain(|registered| registered.number != self.number);
    }
}

/// Room for one event in a worker.
pub(in super::super) struct Room {
    take: Arc<Take>,
    start: Box<dyn FnOnce(TakenEvent, Instant) -> BoxFuture + Send>,
}

impl Room {
    pub(in super::super) fn take(&self) -> &Take {
        &self.take
    }

    /// Handles an event whose lease was requested at `asked`, and those of its lane that follow.
    pub(in super::super) async fn handle(self, event: TakenEvent, asked: Instant) {
        (self.start)(event, asked).await;
    }
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers")
            .field("count", &lock(&self.all).len())
            .finish()
    }
}
