//! The contract of a queue: the storage behind an inbox. This is the worker's half; [`Records`] is a person's half. A
//! queue of another database is a room beside `sqlite`.

use std::time::{Duration, SystemTime};

use super::actions::{BulkStep, By, NewBulk};
use super::event::{EventId, EventLease, NewEvent, Settlement, Take, TakenEvent};
use super::records::Records;
use crate::store::StoreError;
use crate::telemetry::{Count, CountsOf};

/// The storage behind an [`Inbox`](super::Inbox): [`MemoryQueue`](crate::memory::MemoryQueue), `SqliteQueue` or
/// `PostgresQueue`.
///
/// It has the methods of [`Records`], and others that only an inbox and its workers call. Queues of your own are not
/// supported, as each feature of the inbox may add a method.
///
/// ```
/// use tower_webhook::inbox::{Inbox, Queue};
/// use tower_webhook::store::StoreError;
///
/// async fn pause_all(inbox: &Inbox<impl Queue>) -> Result<(), StoreError> {
///     inbox.pause(None, "maintenance").await
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a queue",
    note = "use `MemoryQueue`, `SqliteQueue` or `PostgresQueue`"
)]
pub trait Queue: Work + Records {}

// Otherwise the compiler asks for `Work`, which users do not implement.
#[diagnostic::do_not_recommend]
impl<Q: Work + Records> Queue for Q {}

also_for_arc! {
    /// Stores accepted events, hands them to workers under leases, and records how their attempts end.
    ///
    /// # Lanes
    ///
    /// The unsettled events of a [`Lane`](super::Lane) stand in line, in the order of their numbers. Only the first one can
    /// be taken, when it is due; the others wait for it. An event leaves the line when it is settled. An event that is
    /// retried without [blocking](Settlement::Retry::blocks_lane) the lane leaves the line, too, and returns to the place
    /// of its number when it is due. A dead letter that holds its lane stays in line. An event without a lane stands in no
    /// line, and neither does one that was redriven after it had left its line.
    ///
    /// # Fences
    ///
    /// [`settle`](Self::settle) and [`extend`](Self::extend) compare the lease's fence, and change nothing if the event was
    /// taken again, redriven or discarded since. A lease that has expired may still be extended and settled, if the event
    /// was not taken again since.
    ///
    /// # Time
    ///
    /// All times are those of the queue's own clock. If it jumps, each event in progress may be tried once more.
    ///
    /// No method has a default, so that no queue inherits a race.
    ///
    /// # Errors
    ///
    /// Each method fails when the queue cannot be reached or does not work. It may or may not have taken effect then, as
    /// when its future is dropped before it is ready.
    pub trait Work: Send + Sync + 'static {
        /// Whether other processes may use the same events. If so, a worker asks for events regularly.
        const SHARED: bool;

        /// Stores an event, or recognises it as a duplicate, in one atomic step. When this returns, the event is as durable
        /// as the queue.
        ///
        /// With `take`, the event is taken in the same step if it can be taken: it is of one of the kinds, is not paused,
        /// and is the first one in its lane.
        async fn accept(&self, event: NewEvent, take: Option<&Take>) -> Result<Accepted, StoreError>;

        /// Takes up to `limit` events that can be taken: they are due, of one of the kinds, not paused, and first in their
        /// lanes. At most `suspects` events that have crashed before come first, and then the others, those that have been
        /// due for longest first. An event that waited behind others of its lane is due when it becomes the first one.
        ///
        /// The expiry of a lease counts as a [crash](TakenEvent::crashes) of its event.
        async fn claim(&self, take: &Take, limit: usize, suspects: usize) -> Result<Claims, StoreError>;

        /// Takes one event before those that have been due for longer, if it can be taken as by [`claim`](Self::claim).
        async fn take(&self, id: EventId, take: &Take) -> Result<Option<TakenEvent>, StoreError>;

        /// Extends leases, so that each expires `lease` from now. Returns, in the order of `leases`, whether each was still
        /// held. `None` if that is unknown now, as somebody else has locked the event: then the lease was not extended.
        async fn extend(&self, leases: &[EventLease], lease: Duration) -> Result<Vec<Option<bool>>, StoreError>;

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

        /// Returns the number of the event that was accepted with a key, by the digest of namespace and key
        /// ([`EventKey::key`](crate::store::EventKey::key)), or `None` if no such event is known. The newest event is returned
        /// if the key was accepted again after its retention. The event may have been deleted. The number is 0 if the key was
        /// completed in a store that shares its keys with the queue.
        async fn find(&self, key: u128) -> Result<Option<EventId>, StoreError>;

        /// Deletes, in a small step, the bodies and headers of events that were handled or ignored at least `keep_bodies`
        /// ago, settled events whose retention has expired, old [actions](Records::actions), and old
        /// [counts](Self::counts). Dead letters stay. Returns whether there may be more to
        /// delete.
        async fn purge(&self, keep_bodies: Duration) -> Result<bool, StoreError>;

        /// Begins a change of all events that match, and returns the number of its action. Its position is 0.
        async fn begin_bulk(&self, bulk: &NewBulk, by: &By) -> Result<i64, StoreError>;

        /// Changes the next events of such a change and moves its position on, in one atomic step. Returns whether it was
        /// running, and at the position [from](BulkStep::from) which the step leads on. If not, nothing was changed.
        async fn step_bulk(&self, number: i64, step: &BulkStep) -> Result<bool, StoreError>;

        /// Cancels such a change, and returns whether it was running. No event is changed after that.
        async fn cancel_bulk(&self, number: i64, by: &By) -> Result<bool, StoreError>;

        /// Keeps counts of a process, which replace what it has counted in the same minutes before, and returns the
        /// queue's time. They survive the process. A [`purge`](Self::purge) puts old ones together.
        async fn note_counts(&self, counts: &[Count]) -> Result<SystemTime, StoreError>;

        /// Returns the counts of all processes.
        async fn counts(&self, of: &CountsOf) -> Result<Vec<Count>, StoreError>;

        /// Returns the size of the queue in bytes, without room that it can reuse.
        async fn size(&self) -> Result<u64, StoreError>;

        /// Returns a number that the tables of the queue got when they were made, and keep in a backup. Other tables have
        /// another one, so that nobody mistakes them for these.
        async fn identity(&self) -> Result<i64, StoreError>;
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
    /// Its body was accepted before under another key, which [`NewEvent::guard`] forbids.
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
    /// `None` if no such time is known. A worker asks a [shared](Work::SHARED) queue earlier in any case, as others change
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
