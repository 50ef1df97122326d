//! Events of queues and ends of attempts; queues around other queues: one with faults, and what all of them share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tower_webhook::inbox::internal::{
    Accepted, EventLease, Kinds, Namespace, NewEvent, Settled, Settlement, Take, Work,
};
use tower_webhook::inbox::{Failure, Queue, Records};
use tower_webhook::store::{StoreError, StoreErrorKind};
use tower_webhook::{EventKind, RawDelivery};

use super::DAY;

/// Writes the methods of a queue that only pass a call on to the queue that `inner` returns.
#[macro_export]
macro_rules! forward {
    ($($method:ident)*) => {
        $($crate::forward!(@$method);)*
    };
    (@accept) => {
        async fn accept(&self, event: ::tower_webhook::inbox::internal::NewEvent, take: Option<&::tower_webhook::inbox::internal::Take>) -> Result<::tower_webhook::inbox::internal::Accepted, ::tower_webhook::store::StoreError> {
            self.inner()?.accept(event, take).await
        }
    };
    (@claim) => {
        async fn claim(&self, take: &::tower_webhook::inbox::internal::Take, limit: usize, suspects: usize) -> Result<::tower_webhook::inbox::internal::Claims, ::tower_webhook::store::StoreError> {
            self.inner()?.claim(take, limit, suspects).await
        }
    };
    (@take) => {
        async fn take(&self, id: ::tower_webhook::inbox::EventId, take: &::tower_webhook::inbox::internal::Take) -> Result<Option<::tower_webhook::inbox::internal::TakenEvent>, ::tower_webhook::store::StoreError> {
            self.inner()?.take(id, take).await
        }
    };
    (@extend) => {
        async fn extend(&self, leases: &[::tower_webhook::inbox::internal::EventLease], lease: ::std::time::Duration) -> Result<Vec<Option<bool>>, ::tower_webhook::store::StoreError> {
            self.inner()?.extend(leases, lease).await
        }
    };
    (@settle) => {
        async fn settle(&self, lease: &::tower_webhook::inbox::internal::EventLease, settlement: &::tower_webhook::Settlement, next: Option<&::tower_webhook::inbox::internal::Take>) -> Result<::tower_webhook::inbox::internal::Settled, ::tower_webhook::store::StoreError> {
            self.inner()?.settle(lease, settlement, next).await
        }
    };
    (@find) => {
        async fn find(&self, key: u128) -> Result<Option<::tower_webhook::inbox::EventId>, ::tower_webhook::store::StoreError> {
            self.inner()?.find(key).await
        }
    };
    (@purge) => {
        async fn purge(&self, keep_bodies: ::std::time::Duration) -> Result<bool, ::tower_webhook::store::StoreError> {
            self.inner()?.purge(keep_bodies).await
        }
    };
    (@size) => {
        async fn size(&self) -> Result<u64, ::tower_webhook::store::StoreError> {
            self.inner()?.size().await
        }

        async fn identity(&self) -> Result<i64, ::tower_webhook::store::StoreError> {
            self.inner()?.identity().await
        }
    };
    (@counts) => {
        async fn note_counts(&self, counts: &[::tower_webhook::telemetry::Count]) -> Result<::std::time::SystemTime, ::tower_webhook::store::StoreError> {
            self.inner()?.note_counts(counts).await
        }

        async fn counts(&self, of: &::tower_webhook::telemetry::CountsOf) -> Result<Vec<::tower_webhook::telemetry::Count>, ::tower_webhook::store::StoreError> {
            self.inner()?.counts(of).await
        }
    };
    (@begin_bulk) => {
        async fn begin_bulk(&self, bulk: &::tower_webhook::inbox::internal::NewBulk, by: &::tower_webhook::inbox::By) -> Result<i64, ::tower_webhook::store::StoreError> {
            self.inner()?.begin_bulk(bulk, by).await
        }
    };
    (@step_bulk) => {
        async fn step_bulk(&self, number: i64, step: &::tower_webhook::inbox::internal::BulkStep) -> Result<bool, ::tower_webhook::store::StoreError> {
            self.inner()?.step_bulk(number, step).await
        }
    };
    (@cancel_bulk) => {
        async fn cancel_bulk(&self, number: i64, by: &::tower_webhook::inbox::By) -> Result<bool, ::tower_webhook::store::StoreError> {
            self.inner()?.cancel_bulk(number, by).await
        }
    };
    (@list) => {
        async fn list(&self, filter: &::tower_webhook::inbox::Filter, page: ::tower_webhook::inbox::Page) -> Result<::tower_webhook::inbox::Listed, ::tower_webhook::store::StoreError> {
            self.inner()?.list(filter, page).await
        }
    };
    (@blocked_lanes) => {
        async fn blocked_lanes(&self, chat: Option<&str>, after: Option<::tower_webhook::inbox::EventId>, limit: usize) -> Result<Vec<::tower_webhook::inbox::BlockedLane>, ::tower_webhook::store::StoreError> {
            self.inner()?.blocked_lanes(chat, after, limit).await
        }
    };
    (@get) => {
        async fn get(&self, id: ::tower_webhook::inbox::EventId) -> Result<Option<::tower_webhook::inbox::EventRecord>, ::tower_webhook::store::StoreError> {
            self.inner()?.get(id).await
        }
    };
    (@redrive) => {
        async fn redrive(&self, id: ::tower_webhook::inbox::EventId, from: Option<::tower_webhook::inbox::EventState>, by: &::tower_webhook::inbox::By) -> Result<::tower_webhook::inbox::Change, ::tower_webhook::store::StoreError> {
            self.inner()?.redrive(id, from, by).await
        }
    };
    (@discard) => {
        async fn discard(&self, id: ::tower_webhook::inbox::EventId, from: Option<::tower_webhook::inbox::EventState>, by: &::tower_webhook::inbox::By) -> Result<::tower_webhook::inbox::Change, ::tower_webhook::store::StoreError> {
            self.inner()?.discard(id, from, by).await
        }
    };
    (@forget) => {
        async fn forget(&self, chat: &str, events: Option<::std::ops::RangeInclusive<::tower_webhook::inbox::EventId>>, by: &::tower_webhook::inbox::By) -> Result<::tower_webhook::inbox::Forgotten, ::tower_webhook::store::StoreError> {
            self.inner()?.forget(chat, events, by).await
        }
    };
    (@pause) => {
        async fn pause(&self, kind: Option<&::tower_webhook::EventKind>, note: Option<&str>, by: &::tower_webhook::inbox::By) -> Result<(), ::tower_webhook::store::StoreError> {
            self.inner()?.pause(kind, note, by).await
        }
    };
    (@pauses) => {
        async fn pauses(&self) -> Result<Vec<::tower_webhook::inbox::Pause>, ::tower_webhook::store::StoreError> {
            self.inner()?.pauses().await
        }
    };
    (@actions) => {
        async fn actions(&self, which: ::tower_webhook::inbox::Which, before: Option<i64>, limit: usize) -> Result<Vec<::tower_webhook::inbox::Action>, ::tower_webhook::store::StoreError> {
            self.inner()?.actions(which, before, limit).await
        }
    };
    (@stats) => {
        async fn stats(&self) -> Result<::tower_webhook::inbox::Stats, ::tower_webhook::store::StoreError> {
            self.inner()?.stats().await
        }
    };
}

/// An event without a key, a chat and a lane.
pub fn new_event(kind: EventKind, body: impl Into<Bytes>) -> NewEvent {
    NewEvent {
        namespace: Namespace::default(),
        delivery: RawDelivery::new(kind, body),
        key: None,
        guard: None,
        chat: None,
        lane: None,
        retain: 8 * DAY,
        dead: None,
    }
}

/// All kinds, under this lease.
pub fn take(lease: Duration) -> Take {
    Take {
        lease,
        kinds: Kinds::all(),
    }
}

pub fn failure(reason: impl Into<String>) -> Failure {
    Failure {
        outcome: "no-luck".to_owned(),
        reason: reason.into(),
        took: Some(Duration::from_millis(1500)),
    }
}

/// A failure that counts, and that the lane waits for.
pub fn retry(after: Duration) -> Settlement {
    Settlement::Retry {
        after,
        failure: Some(failure("retry")),
        counts: true,
        is_probe: false,
        blocks_lane: true,
    }
}

/// The same at once, for this reason.
pub fn retry_for(failure: Failure) -> Settlement {
    Settlement::Retry {
        after: Duration::ZERO,
        failure: Some(failure),
        counts: true,
        is_probe: false,
        blocks_lane: true,
    }
}

/// A failure that counts, and that the lane does not wait for.
pub fn skip(after: Duration) -> Settlement {
    Settlement::Retry {
        after,
        failure: Some(failure("skip")),
        counts: true,
        is_probe: false,
        blocks_lane: false,
    }
}

/// A failure that does not count.
pub fn outage(after: Duration) -> Settlement {
    Settlement::Retry {
        after,
        failure: Some(failure("outage")),
        counts: false,
        is_probe: false,
        blocks_lane: true,
    }
}

/// The failure of a probe, whose whole kind fails.
pub fn probe(after: Duration) -> Settlement {
    Settlement::Retry {
        after,
        failure: Some(failure("probe")),
        counts: false,
        is_probe: true,
        blocks_lane: true,
    }
}

pub fn snooze(after: Duration) -> Settlement {
    Settlement::Retry {
        after,
        failure: None,
        counts: false,
        is_probe: false,
        blocks_lane: true,
    }
}

pub fn dead(hold_lane: bool) -> Settlement {
    Settlement::Dead {
        failure: failure("dead"),
        hold_lane,
    }
}

/// A queue whose calls fail on request.
#[derive(Clone)]
pub struct FaultyQueue<Q> {
    queue: Q,
    pub faults: Arc<Faults>,
}

#[derive(Default)]
pub struct Faults {
    /// Every call fails, and has no effect.
    pub is_down: AtomicBool,
    /// Leases cannot be extended.
    pub keeps_no_lease: AtomicBool,
    /// Acceptances and settlements take effect, and their callers get an error.
    pub loses_answers: AtomicBool,
}

impl<Q> FaultyQueue<Q> {
    pub fn new(queue: Q) -> Self {
        Self {
            queue,
            faults: Arc::default(),
        }
    }

    /// The queue, unless it is down.
    fn inner(&self) -> Result<&Q, StoreError> {
        match self.faults.is_down.load(Ordering::SeqCst) {
            true => Err(Self::error()),
            false => Ok(&self.queue),
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
        let accepted = self.inner()?.accept(event, take).await?;
        self.answers()?;
        Ok(accepted)
    }

    async fn extend(
        &self,
        leases: &[EventLease],
        lease: Duration,
    ) -> Result<Vec<Option<bool>>, StoreError> {
        let queue = self.inner()?;
        if self.faults.keeps_no_lease.load(Ordering::SeqCst) {
            return Err(Self::error());
        }
        queue.extend(leases, lease).await
    }

    async fn settle(
        &self,
        lease: &EventLease,
        settlement: &Settlement,
        next: Option<&Take>,
    ) -> Result<Settled, StoreError> {
        let settled = self.inner()?.settle(lease, settlement, next).await?;
        self.answers()?;
        Ok(settled)
    }

    forward!(claim take find purge size counts begin_bulk step_bulk cancel_bulk);
}

impl<Q: Queue> Records for FaultyQueue<Q> {
    forward!(list blocked_lanes get redrive discard forget pause pauses actions stats);
}
