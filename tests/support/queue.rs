//! Events of queues and ends of attempts; queues around other queues: one with faults, and what all of them share.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use tower_webhook::inbox::internal::{
    AcceptEvents, Accepted, BulkStep, ChangeEvents, ClaimEvents, Claims, CountEvents, EventLease,
    ForgetChats, Forgotten, Kinds, ListEvents, MeasureTables, NewBulk, NewEvent, NewNote,
    PurgeEvents, SettleEvents, Settled, Settlement, Share, Tables, Take, TakenEvent, forget_all,
};
use tower_webhook::inbox::{
    Action, ActionKind, BlockedLane, By, Change, EventId, EventRecord, EventState, Failure, Filter,
    HandlerNote, Listed, Page, Queue, Retired, Scope, Stats, Which,
};
use tower_webhook::memory::MemoryQueue;
#[cfg(feature = "postgres")]
use tower_webhook::postgres::PostgresQueue;
#[cfg(feature = "sqlite")]
use tower_webhook::spool::Spooled;
#[cfg(feature = "sqlite")]
use tower_webhook::sqlite::SqliteQueue;
use tower_webhook::store::{StoreError, StoreErrorKind};
use tower_webhook::telemetry::{Count, CountsOf};
use tower_webhook::{EventKind, RawDelivery};

use super::DAY;

/// Writes the calls of all parts of a queue.
macro_rules! calls {
    ($($part:ident: $of:ident { $($call:ident($($given:ident: $type:ty),*) -> $answer:ty;)* })*) => {
        /// The calls of a queue. One around another queue has those that it changes; the others go to that queue.
        #[async_trait]
        pub trait Calls: Send + Sync + 'static {
            /// The queue to which calls go, unless it cannot be reached.
            fn inner(&self) -> Result<Queue, StoreError>;

            $($(async fn $call(&self, $($given: $type),*) -> Result<$answer, StoreError> {
                self.inner()?.$part.$call($($given),*).await
            })*)*

            async fn accept_one(&self, event: NewEvent, take: Option<&Take>) -> Result<Accepted, StoreError> {
                let mut accepted = self.accept([event].into(), take).await?;
                Ok(accepted.remove(0))
            }

            async fn redrive(&self, id: EventId, from: Option<EventState>, by: &By) -> Result<Change, StoreError> {
                self.change(ActionKind::Redrive, id, from, by).await
            }

            async fn discard(&self, id: EventId, from: Option<EventState>, by: &By) -> Result<Change, StoreError> {
                self.change(ActionKind::Discard, id, from, by).await
            }

            /// Takes events of one route.
            async fn claim_of(&self, take: &Take, limit: usize, suspects: usize) -> Result<Claims, StoreError> {
                self.claim(&[take.clone().into()], limit, suspects).await
            }

            async fn forget_all(&self, chat: &str, by: &By) -> Result<u64, StoreError>
            where
                Self: Clone,
            {
                forget_all(&Around(self.clone()), chat, by).await
            }

            /// Makes a queue of it that other processes may use, too.
            fn shared(self) -> Queue
            where
                Self: Sized,
            {
                Queue::of(Around(self), true)
            }
        }

        struct Around<Q>(Q);

        $(#[async_trait]
        impl<Q: Calls> $of for Around<Q> {
            $(async fn $call(&self, $($given: $type),*) -> Result<$answer, StoreError> {
                self.0.$call($($given),*).await
            })*
        })*
    };
}

calls! {
    accept: AcceptEvents {
        accept(events: Arc<[NewEvent]>, take: Option<&Take>) -> Vec<Accepted>;
    }
    claim: ClaimEvents {
        claim(of: &[Share], limit: usize, suspects: usize) -> Claims;
        take(id: EventId, take: &Take) -> Option<TakenEvent>;
    }
    settle: SettleEvents {
        settle(lease: &EventLease, settlement: &Settlement, next: Option<&Take>) -> Settled;
        extend(leases: &[EventLease], lease: Duration) -> Vec<Option<bool>>;
    }
    change: ChangeEvents {
        change(kind: ActionKind, id: EventId, from: Option<EventState>, by: &By) -> Change;
        pause(of: &Scope, note: Option<&str>, by: &By) -> ();
        begin(bulk: &NewBulk, by: &By) -> i64;
        step(number: i64, step: &BulkStep) -> bool;
        cancel(number: i64, by: &By) -> bool;
    }
    forget: ForgetChats {
        forget(chat: &str, events: Option<RangeInclusive<EventId>>, by: &By) -> Forgotten;
    }
    list: ListEvents {
        list(filter: &Filter, page: Page) -> Listed;
        get(id: EventId) -> Option<EventRecord>;
        find(key: u128) -> Option<EventId>;
        blocked_lanes(chat: Option<&str>, after: Option<EventId>, limit: usize) -> Vec<BlockedLane>;
        actions(which: Which, before: Option<i64>, limit: usize) -> Vec<Action>;
    }
    count: CountEvents {
        stats() -> Stats;
        counts(of: &CountsOf) -> Vec<Count>;
        note_counts(counts: &[Count]) -> SystemTime;
        note_handlers(worker: &str, notes: &[NewNote]) -> (Vec<HandlerNote>, SystemTime);
        retire(of: &Scope, unseen: Duration, by: &By) -> Retired;
    }
    purge: PurgeEvents {
        purge(keep_bodies: Duration) -> bool;
    }
    measure: MeasureTables {
        size() -> u64;
        tables() -> Tables;
    }
}

/// The calls of queues themselves, in tests that have no inbox.
macro_rules! queues {
    ($($(#[$of:meta])? $queue:ty)*) => {$(
        $(#[$of])?
        impl Calls for $queue {
            fn inner(&self) -> Result<Queue, StoreError> {
                Ok(self.clone().into())
            }
        }
    )*};
}

queues! {
    Queue
    MemoryQueue
    #[cfg(feature = "sqlite")] SqliteQueue
    #[cfg(feature = "sqlite")] Spooled
    #[cfg(feature = "postgres")] PostgresQueue
}

/// An event without a key, a chat and a lane.
pub fn new_event(kind: EventKind, body: impl Into<Bytes>) -> NewEvent {
    NewEvent {
        delivery: RawDelivery::new(kind, body),
        key: None,
        guard: None,
        rejects_changed_body: false,
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
    Failure::new("no-luck", reason).took(Duration::from_millis(1500))
}

/// A failure that counts, and that the lane waits for.
pub fn retry(after: Duration) -> Settlement {
    Settlement::Retry {
        after,
        failure: Some(failure("retry")),
        counts: true,
        is_slowed: false,
        blocks_lane: true,
    }
}

/// The same at once, for this reason.
pub fn retry_for(failure: Failure) -> Settlement {
    Settlement::Retry {
        after: Duration::ZERO,
        failure: Some(failure),
        counts: true,
        is_slowed: false,
        blocks_lane: true,
    }
}

/// A failure that counts, and that the lane does not wait for.
pub fn skip(after: Duration) -> Settlement {
    Settlement::Retry {
        after,
        failure: Some(failure("skip")),
        counts: true,
        is_slowed: false,
        blocks_lane: false,
    }
}

/// A failure that does not count.
pub fn outage(after: Duration) -> Settlement {
    Settlement::Retry {
        after,
        failure: Some(failure("outage")),
        counts: false,
        is_slowed: false,
        blocks_lane: true,
    }
}

/// The failure of a probe, whose whole kind fails.
pub fn probe(after: Duration) -> Settlement {
    Settlement::Retry {
        after,
        failure: Some(failure("probe")),
        counts: false,
        is_slowed: true,
        blocks_lane: true,
    }
}

pub fn snooze(after: Duration) -> Settlement {
    Settlement::Retry {
        after,
        failure: None,
        counts: false,
        is_slowed: false,
        blocks_lane: true,
    }
}

pub fn dead(hold_lane: bool) -> Settlement {
    Settlement::Dead {
        failure: failure("dead"),
        hold_lane,
    }
}

/// The first page in one of both directions.
pub fn page(limit: usize, newest_first: bool) -> Page {
    match newest_first {
        true => Page::newest(limit),
        false => Page::oldest(limit),
    }
}

/// A queue whose calls fail on request.
#[derive(Clone)]
pub struct FaultyQueue {
    queue: Queue,
    pub faults: Arc<Faults>,
}

#[derive(Default)]
pub struct Faults {
    /// Every call fails, and has no effect.
    pub is_down: AtomicBool,
    /// No event can be claimed.
    pub claims_nothing: AtomicBool,
    /// Leases cannot be extended.
    pub keeps_no_lease: AtomicBool,
    /// Acceptances and settlements take effect, and their callers get an error.
    pub loses_answers: AtomicBool,
}

impl FaultyQueue {
    pub fn new(queue: impl Into<Queue>) -> Self {
        Self {
            queue: queue.into(),
            faults: Arc::default(),
        }
    }
}

/// Fails, if this says so, as a call does whose connection is lost.
pub fn unless(fails: &AtomicBool) -> Result<(), StoreError> {
    let error = || StoreError::new(StoreErrorKind::Unavailable, "the connection was lost");
    match fails.load(Ordering::SeqCst) {
        true => Err(error()),
        false => Ok(()),
    }
}

#[async_trait]
impl Calls for FaultyQueue {
    fn inner(&self) -> Result<Queue, StoreError> {
        unless(&self.faults.is_down)?;
        Ok(self.queue.clone())
    }

    async fn accept(
        &self,
        events: Arc<[NewEvent]>,
        take: Option<&Take>,
    ) -> Result<Vec<Accepted>, StoreError> {
        let accepted = self.inner()?.accept(events, take).await?;
        unless(&self.faults.loses_answers)?;
        Ok(accepted)
    }

    async fn claim(
        &self,
        of: &[Share],
        limit: usize,
        suspects: usize,
    ) -> Result<Claims, StoreError> {
        unless(&self.faults.claims_nothing)?;
        self.inner()?.claim(of, limit, suspects).await
    }

    async fn extend(
        &self,
        leases: &[EventLease],
        lease: Duration,
    ) -> Result<Vec<Option<bool>>, StoreError> {
        unless(&self.faults.keeps_no_lease)?;
        self.inner()?.extend(leases, lease).await
    }

    async fn settle(
        &self,
        lease: &EventLease,
        settlement: &Settlement,
        next: Option<&Take>,
    ) -> Result<Settled, StoreError> {
        let settled = self.inner()?.settle(lease, settlement, next).await?;
        unless(&self.faults.loses_answers)?;
        Ok(settled)
    }
}

impl From<FaultyQueue> for Queue {
    fn from(queue: FaultyQueue) -> Self {
        queue.shared()
    }
}
