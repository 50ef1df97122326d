//! A queue with faults.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tower_webhook::event::EventKind;
use tower_webhook::inbox::internal::{
    Accepted, Claims, EventLease, NewEvent, Settled, Settlement, Take, Work,
};
use tower_webhook::inbox::{
    BlockedLane, Change, EventId, EventRecord, EventState, Filter, Forgotten, Listed, Page, Queue,
    Records, Stats,
};
use tower_webhook::store::{StoreError, StoreErrorKind};

/// A queue whose calls fail on request.
#[derive(Clone)]
pub(crate) struct FaultyQueue<Q> {
    queue: Q,
    pub(crate) faults: Arc<Faults>,
}

#[derive(Default)]
pub(crate) struct Faults {
    /// Every call fails, and has no effect.
    pub(crate) is_down: AtomicBool,
    /// Leases cannot be extended.
    pub(crate) keeps_no_lease: AtomicBool,
    /// Acceptances and settlements take effect, and their callers get an error.
    pub(crate) loses_answers: AtomicBool,
}

impl<Q> FaultyQueue<Q> {
    pub(crate) fn new(queue: Q) -> Self {
        Self {
            queue,
            faults: Arc::default(),
        }
    }

    fn works(&self) -> Result<(), StoreError> {
        match self.faults.is_down.load(Ordering::SeqCst) {
            true => Err(Self::error()),
            false => Ok(()),
        }
    }

    fn answers(&self) -> Result<(), StoreError> {
        match self.faults.loses_answers.load(Ordering::SeqCst) {
            true => Err(Self::error()),
            false => Ok(()),
        }
    }

    fn error() -> StoreError {
        StoreError::new(StoreErrorKind::Unavailable, "the connection was lost")
    }
}

impl<Q: Queue> Work for FaultyQueue<Q> {
    const SHARED: bool = true;

    async fn accept(&self, event: NewEvent, take: Option<&Take>) -> Result<Accepted, StoreError> {
        self.works()?;
        let accepted = self.queue.accept(event, take).await?;
        self.answers()?;
        Ok(accepted)
    }

    async fn claim(
        &self,
        take: &Take,
        limit: usize,
        suspects: usize,
    ) -> Result<Claims, StoreError> {
        self.works()?;
        self.queue.claim(take, limit, suspects).await
    }

    async fn extend(
        &self,
        leases: &[EventLease],
        lease: Duration,
    ) -> Result<Vec<bool>, StoreError> {
        self.works()?;
        if self.faults.keeps_no_lease.load(Ordering::SeqCst) {
            return Err(Self::error());
        }
        self.queue.extend(leases, lease).await
    }

    async fn settle(
        &self,
        lease: &EventLease,
        settlement: &Settlement,
        next: Option<&Take>,
    ) -> Result<Settled, StoreError> {
        self.works()?;
        let settled = self.queue.settle(lease, settlement, next).await?;
        self.answers()?;
        Ok(settled)
    }

    async fn find(&self, key: u128) -> Result<Option<EventId>, StoreError> {
        self.works()?;
        self.queue.find(key).await
    }

    async fn purge(&self, keep_bodies: Duration) -> Result<bool, StoreError> {
        self.works()?;
        self.queue.purge(keep_bodies).await
    }

    async fn size(&self) -> Result<u64, StoreError> {
        self.works()?;
        self.queue.size().await
    }
}

impl<Q: Queue> Records for FaultyQueue<Q> {
    async fn list(&self, filter: &Filter, page: Page) -> Result<Listed, StoreError> {
        self.works()?;
        self.queue.list(filter, page).await
    }

    async fn blocked_lanes(
        &self,
        chat: Option<&str>,
        after: Option<EventId>,
        limit: usize,
    ) -> Result<Vec<BlockedLane>, StoreError> {
        self.works()?;
        self.queue.blocked_lanes(chat, after, limit).await
    }

    async fn get(&self, id: EventId) -> Result<Option<EventRecord>, StoreError> {
        self.works()?;
        self.queue.get(id).await
    }

    async fn redrive(&self, id: EventId, from: Option<EventState>) -> Result<Change, StoreError> {
        self.works()?;
        self.queue.redrive(id, from).await
    }

    async fn discard(&self, id: EventId, from: Option<EventState>) -> Result<Change, StoreError> {
        self.works()?;
        self.queue.discard(id, from).await
    }

    async fn forget(
        &self,
        chat: &str,
        events: Option<RangeInclusive<EventId>>,
    ) -> Result<Forgotten, StoreError> {
        self.works()?;
        self.queue.forget(chat, events).await
    }

    async fn pause(&self, kind: Option<&EventKind>, paused: bool) -> Result<(), StoreError> {
        self.works()?;
        self.queue.pause(kind, paused).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        self.works()?;
        self.queue.stats().await
    }
}
