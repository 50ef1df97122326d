//! The contract of a queue: the storage behind an inbox, with a trait for each verb. A queue of another database is a room
//! beside `sqlite`, in which each trait is implemented in the file of its verb.

use std::ops::RangeInclusive;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;

use super::actions::{Action, ActionKind, BulkStep, By, NewBulk, Which};
use super::event::{
    EventId, EventLease, EventState, NewEvent, Settlement, Share, Take, TakenEvent,
};
use super::handlers::{HandlerNote, NewNote, Retired};
use super::records::{BlockedLane, Change, EventRecord, Filter, Forgotten, Listed, Page, Stats};
use crate::route::Scope;
use crate::store::StoreError;
use crate::telemetry::{Count, CountsOf, Observers};

/// The storage behind an [`Inbox`](super::Inbox), made from a [`MemoryQueue`](crate::memory::MemoryQueue), a `SqliteQueue`, a
/// `PostgresQueue`, or a `Spooled` queue.
///
/// Queues of your own are not supported, as each feature of the inbox may add a method.
///
/// ```
/// use tower_webhook::inbox::{Inbox, Queue};
/// use tower_webhook::memory::MemoryQueue;
///
/// fn inbox(is_test: bool) -> Result<Inbox, Box<dyn std::error::Error>> {
///     let queue: Queue = match is_test {
///         true => MemoryQueue::new().into(),
/// #       #[cfg(not(feature = "sqlite"))]
/// #       false => unreachable!(),
/// #       #[cfg(feature = "sqlite")]
///         false => tower_webhook::sqlite::SqliteQueue::open("webhooks.db")?.into(),
///     };
///     Ok(Inbox::new(queue))
/// }
/// # inbox(true).unwrap();
/// ```
// A part for each verb lets a spool replace only the parts that it changes. The parts are trait objects, because with a type
// parameter, each user's program would compile the inbox and its worker again.
#[derive(Clone)]
pub struct Queue {
    /// Whether other processes may use the same events. If so, a worker asks for events regularly.
    #[doc(hidden)]
    pub is_shared: bool,
    /// Whether all deliveries wait for a step of a bulk change. If so, they have their turn for as long after it.
    #[doc(hidden)]
    pub is_held_by_steps: bool,
    #[doc(hidden)]
    pub accept: Arc<dyn AcceptEvents>,
    #[doc(hidden)]
    pub claim: Arc<dyn ClaimEvents>,
    #[doc(hidden)]
    pub settle: Arc<dyn SettleEvents>,
    #[doc(hidden)]
    pub change: Arc<dyn ChangeEvents>,
    #[doc(hidden)]
    pub forget: Arc<dyn ForgetChats>,
    #[doc(hidden)]
    pub list: Arc<dyn ListEvents>,
    #[doc(hidden)]
    pub count: Arc<dyn CountEvents>,
    #[doc(hidden)]
    pub purge: Arc<dyn PurgeEvents>,
    #[doc(hidden)]
    pub measure: Arc<dyn MeasureTables>,
    #[doc(hidden)]
    pub observed: Observed,
}

/// The observers of the first inbox on the queue that has some: for what a spool forwards later.
#[derive(Clone, Debug, Default)]
pub struct Observed(Arc<OnceLock<Observers>>);

impl Observed {
    pub(crate) fn by(&self, observers: &Observers) {
        let _ = self.0.set(observers.clone());
    }

    #[cfg(feature = "sqlite")]
    pub(crate) fn observers(&self) -> Observers {
        self.0.get().cloned().unwrap_or_default()
    }
}

partial_debug!(Queue, |it| is_shared = it.is_shared);

impl Queue {
    /// Makes a queue of one value that has all parts, and one writer.
    #[doc(hidden)]
    pub fn of<Q>(queue: Q, is_shared: bool) -> Self
    where
        Q: AcceptEvents
            + ClaimEvents
            + SettleEvents
            + ChangeEvents
            + ForgetChats
            + ListEvents
            + CountEvents
            + PurgeEvents
            + MeasureTables,
    {
        let queue = Arc::new(queue);
        Self {
            is_shared,
            is_held_by_steps: true,
            accept: queue.clone(),
            claim: queue.clone(),
            settle: queue.clone(),
            change: queue.clone(),
            forget: queue.clone(),
            list: queue.clone(),
            count: queue.clone(),
            purge: queue.clone(),
            measure: queue,
            observed: Observed::default(),
        }
    }
}

/// Stores accepted events.
///
/// # Errors
///
/// Each method of each part fails when the queue cannot be reached or does not work. It may or may not have taken effect
/// then, as when its future is dropped before it is ready.
///
/// # Time
///
/// All times are those of the queue's own clock. If it jumps, each event in progress may be tried once more.
///
/// No method has a default, so that no queue inherits a race.
#[async_trait]
pub trait AcceptEvents: Send + Sync + 'static {
    /// Stores the events of a delivery, or recognises them as duplicates, in one atomic step. When this returns, they are as
    /// durable as the queue. Returns what became of each, in their order.
    ///
    /// If one is [refused](Accepted::refuses_all), nothing is stored, and this is all that is returned. Of several with one
    /// key, the first one counts. Their order is that of acceptance.
    ///
    /// With `take`, the first event of its kinds is taken in the same step if it can be taken: it is new, is not paused, and
    /// is the first one in its lane.
    ///
    /// An event that is not taken is stored as a dead letter if none of its kind is first in its lane, but those of
    /// [`MOST_WAITING_KINDS`](super::event::MOST_WAITING_KINDS) other kinds of its route are. One whose kind a worker
    /// [has noted](CountEvents::note_handlers) is not: forged kinds must not keep it from a busy worker.
    async fn accept(
        &self,
        events: Arc<[NewEvent]>,
        take: Option<&Take>,
    ) -> Result<Vec<Accepted>, StoreError>;
}

/// The bytes of bodies that fill a claim, for whose end other events wait.
pub const BYTES_OF_CLAIM: usize = 8 << 20;

/// Hands events to workers under leases.
///
/// # Lanes
///
/// The unsettled events of a [`Lane`](super::event::Lane) stand in line, in the order of their numbers. Only the first one can
/// be taken, when it is due; the others wait for it. An event leaves the line when it is settled. An event that is
/// retried without [blocking](Settlement::Retry::blocks_lane) the lane leaves the line, too, and returns to the place
/// of its number when it is due. A dead letter that holds its lane stays in line. An event without a lane stands in no
/// line. An event that was redriven after it had left its line does not return to it.
#[async_trait]
pub trait ClaimEvents: Send + Sync + 'static {
    /// Takes up to `limit` events of several routes that can be taken: they are due, of one of the kinds, not paused, and
    /// first in their lanes. At most `suspects` events that have crashed before come first. Each event is of the route with
    /// the fewest attempts in progress, including the events of this call, then of the kind with the fewest, and then the
    /// longest due. An event that waited behind others of its lane is due when it becomes the first one.
    ///
    /// A route gets no more events than [`Share::most`] allows, and a kind no more than
    /// [`KindShare::most`](super::event::KindShare::most) or [`Share::each`]. Their other events do not count for
    /// [`Claims::next_due`].
    ///
    /// A claim ends when the bodies of its events reach [`BYTES_OF_CLAIM`] together.
    ///
    /// The expiry of a lease counts as a [crash](TakenEvent::crashes) of its event.
    async fn claim(
        &self,
        of: &[Share],
        limit: usize,
        suspects: usize,
    ) -> Result<Claims, StoreError>;

    /// Takes this event, even if other events have been due for longer. The conditions of [`claim`](Self::claim) apply.
    async fn take(&self, id: EventId, take: &Take) -> Result<Option<TakenEvent>, StoreError>;
}

/// Ends attempts, and extends their leases.
///
/// # Fences
///
/// Both methods compare the lease's fence, and change nothing if the event was taken again, redriven or discarded since. A
/// lease that has expired may still be extended and settled, if the event was not taken again since.
#[async_trait]
pub trait SettleEvents: Send + Sync + 'static {
    /// Ends the attempt under a lease. When this returns, its end is as durable as the queue.
    ///
    /// With `next`, the next event of the lane is taken in the same step, if it can be taken.
    ///
    /// Every settlement but [`Released`](Settlement::Released) resets the count of [crashes](TakenEvent::crashes).
    async fn settle(
        &self,
        lease: &EventLease,
        settlement: &Settlement,
        next: Option<&Take>,
    ) -> Result<Settled, StoreError>;

    /// Extends leases, so that each expires `lease` from now. Returns, in the order of `leases`, whether each was still
    /// held. `None` if that is unknown now, as somebody else has locked the event: then the lease was not extended.
    async fn extend(
        &self,
        leases: &[EventLease],
        lease: Duration,
    ) -> Result<Vec<Option<bool>>, StoreError>;
}

/// Makes the changes of persons.
///
/// Each change that is made is recorded as an [`Action`], in the same transaction: what cannot be recorded is not done.
/// Concurrent changes of many events are much quicker than one after another: they share transactions.
#[async_trait]
pub trait ChangeEvents: Send + Sync + 'static {
    /// Redrives or discards an event. With `from`, an event in another state is not changed; the comparison and the change
    /// are one atomic step.
    ///
    /// A redrive makes an event due now. A settled or dead event is tried again, without waiting for its lane, and its
    /// counts of failures and crashes start at zero. A dead letter that holds its lane continues to hold it. An unsettled
    /// event keeps its place in line. An event in progress is not changed ([`Change::WrongState`]).
    ///
    /// A discard settles an event that is unsettled or dead. An attempt in progress loses its lease.
    async fn change(
        &self,
        kind: ActionKind,
        id: EventId,
        from: Option<EventState>,
        by: &By,
    ) -> Result<Change, StoreError>;

    /// Pauses an event type, a route, or everything, with a note that says who paused it and why. Without a note, the pause
    /// ends. Attempts in progress are not interrupted.
    ///
    /// Events are taken if neither their type nor their route nor everything is paused.
    async fn pause(&self, of: &Scope, note: Option<&str>, by: &By) -> Result<(), StoreError>;

    /// Begins a change of all events that match, and returns the number of its action. Its position is 0.
    async fn begin(&self, bulk: &NewBulk, by: &By) -> Result<i64, StoreError>;

    /// Changes the next events of such a change and moves its position on, in one atomic step. Returns whether it was
    /// running, and at the position [from](BulkStep::from) which the step leads on. If not, nothing was changed.
    async fn step(&self, number: i64, step: &BulkStep) -> Result<bool, StoreError>;

    /// Cancels such a change, and returns whether it was running. No event is changed after that.
    async fn cancel(&self, number: i64, by: &By) -> Result<bool, StoreError>;
}

/// Deletes what events have of a chat.
#[async_trait]
pub trait ForgetChats: Send + Sync + 'static {
    /// Deletes the bodies and headers of events of a chat, and the texts of their failures, in a step of at most
    /// [`FORGET_STEP`](super::records::FORGET_STEP) events. Events that are unsettled or dead are discarded.
    ///
    /// The first step is called without `events`. The others are called with the [`rest`](Forgotten::rest) that the one
    /// before has returned, which ends with the newest event at the first step.
    ///
    /// Actions on these events are kept, without the numbers of the events and without the reasons. Each step is an
    /// action itself.
    async fn forget(
        &self,
        chat: &str,
        events: Option<RangeInclusive<EventId>>,
        by: &By,
    ) -> Result<Forgotten, StoreError>;
}

/// Reads events, and what persons did.
#[async_trait]
pub trait ListEvents: Send + Sync + 'static {
    /// Returns a page of the events that match. If [`Listed::searched`] is set, a page that is not full is not the last
    /// one.
    async fn list(&self, filter: &Filter, page: Page) -> Result<Listed, StoreError>;

    /// Returns an event with its body and its failures, or `None` if there is no such event.
    async fn get(&self, id: EventId) -> Result<Option<EventRecord>, StoreError>;

    /// Returns the number of the event that was accepted with a key, by the digest of namespace and key
    /// ([`EventKey::key`](crate::store::EventKey::key)), or `None` if no such event is known. The newest event is returned
    /// if the key was accepted again after its retention. The event may have been deleted. The number is 0 if the key was
    /// completed in a store that shares its keys with the queue.
    async fn find(&self, key: u128) -> Result<Option<EventId>, StoreError>;

    /// Returns up to `limit` lanes that wait for an event that has failed, sorted by the numbers of these events: those
    /// after `after`, and with `chat`, only the lane of that chat.
    ///
    /// A lane is blocked if the event that was taken last from it, or otherwise its first event, has failed or crashed
    /// and is tried again, or is a dead letter that holds the lane. A lease that has expired may count only when the
    /// event is taken again.
    async fn blocked_lanes(
        &self,
        chat: Option<&str>,
        after: Option<EventId>,
        limit: usize,
    ) -> Result<Vec<BlockedLane>, StoreError>;

    /// Returns up to `limit` actions of persons, newest first. With `before`, those with smaller numbers.
    ///
    /// A [`purge`](PurgeEvents::purge) deletes those of more than 90 days ago, and all but the newest 100,000.
    async fn actions(
        &self,
        which: Which,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<Action>, StoreError>;
}

/// Counts events, and keeps what observers count and what workers handle.
#[async_trait]
pub trait CountEvents: Send + Sync + 'static {
    /// Counts the unsettled events and the dead letters, by route and kind, and lists the pauses and the notes on handlers.
    async fn stats(&self) -> Result<Stats, StoreError>;

    /// Returns the counts of all processes.
    async fn counts(&self, of: &CountsOf) -> Result<Vec<Count>, StoreError>;

    /// Keeps counts of a process, which replace what it has counted in the same minutes before, and returns the
    /// queue's time. They survive the process. A [`purge`](PurgeEvents::purge) puts old ones together.
    async fn note_counts(&self, counts: &[Count]) -> Result<SystemTime, StoreError>;

    /// Notes what a worker handles, and returns what all have noted, with the queue's time. A note replaces that of any
    /// worker on the same events, and is kept for its time from now on. A note on everything is not returned: the time since
    /// when it has been kept without an end counts for [`HandlerNote::missed_since`] of all others. Without notes, nothing is
    /// written.
    ///
    /// It does not wait for what people read.
    async fn note_handlers(
        &self,
        worker: &str,
        notes: &[NewNote],
    ) -> Result<(Vec<HandlerNote>, SystemTime), StoreError>;

    /// Ends the notes on an event type, or on a route's other types, for a person, if their workers were not seen for so long.
    /// The comparison and the change are one atomic step. A worker that comes back notes them again.
    async fn retire(&self, of: &Scope, unseen: Duration, by: &By) -> Result<Retired, StoreError>;
}

/// Deletes what has expired.
#[async_trait]
pub trait PurgeEvents: Send + Sync + 'static {
    /// Deletes, in a small step, the bodies and headers of events that were handled or ignored at least `keep_bodies`
    /// ago, settled events whose retention has expired, old [actions](ListEvents::actions), and old
    /// [counts](CountEvents::counts). Dead letters stay. Returns whether there may be more to delete.
    async fn purge(&self, keep_bodies: Duration) -> Result<bool, StoreError>;
}

/// Says how large the queue's tables are, and which ones they are.
#[async_trait]
pub trait MeasureTables: Send + Sync + 'static {
    /// Returns the size of the tables in bytes, without room that the queue can reuse. Of large ones, it may take seconds.
    async fn size(&self) -> Result<u64, StoreError>;

    /// Returns which tables they are. It takes as long as any other call, however large they are.
    async fn tables(&self) -> Result<Tables, StoreError>;
}

/// The tables of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tables {
    /// A number that they got when they were made, and keep in a backup. Other tables have another one, so that nobody
    /// mistakes them for these.
    pub identity: i64,
    /// Whether they can be written to: not on a standby of PostgreSQL, and not when a spool in front of it is full.
    pub is_writable: bool,
}

impl Accepted {
    /// Whether nothing of its delivery is stored.
    #[must_use]
    pub fn refuses_all(&self) -> bool {
        matches!(self, Self::InFlight { .. } | Self::BodyReplayed)
    }
}

/// The result of accepting an event.
#[derive(Debug)]
pub enum Accepted {
    /// It was stored.
    New {
        /// Its number.
        id: EventId,
        /// The event, if it was taken in the same step.
        taken: Option<Box<TakenEvent>>,
    },
    /// It was stored as a dead letter, since too many other kinds wait.
    DeadLetter {
        /// Its number.
        id: EventId,
    },
    /// Its key was accepted before, or was completed in a store that shares its keys with the queue.
    Duplicate {
        /// Whether it had the same body.
        same_body: bool,
    },
    /// A run outside the inbox holds the key, in a store that shares its keys with the queue.
    InFlight {
        /// The rest of that run's lease, unless it is renewed.
        remaining: Duration,
    },
    /// Its body, or that of its delivery, was accepted before under another key, which [`NewEvent::guard`] forbids.
    BodyReplayed,
    /// It was stored in front of the queue, which cannot be reached now or has not got all that was stored there before.
    Spooled,
}

/// Events that were taken.
#[derive(Debug, Default)]
pub struct Claims {
    /// The events.
    pub events: Vec<TakenEvent>,
    /// The time until another event of the kinds is due or its lease expires. Zero if more events may be due now, and
    /// `None` if no such time is known. A worker asks a [shared](Queue::is_shared) queue earlier in any case, as others change
    /// it, too.
    pub next_due: Option<Duration>,
}

/// The result of ending an attempt.
#[derive(Debug)]
pub enum Settled {
    /// The attempt ended. Contains the next event of the lane, if that was taken.
    Ended(Option<Box<TakenEvent>>),
    /// The lease was lost, and nothing was changed.
    Lost,
}
