//! The contract of a queue: the storage behind an inbox.

use std::future::Future;
use std::time::{Duration, SystemTime};

use super::event::{
    EventId, EventLease, EventRecord, EventSummary, Filter, NewEvent, Page, Settlement, Take,
    TakenEvent,
};
use crate::event::EventKind;
use crate::store::StoreError;

/// Keeps accepted events until they are settled, and longer.
///
/// # Lanes
///
/// The unsettled events of a [`Lane`](super::Lane) stand in line by their number. Only the first one can be taken, when
/// it is due; the others wait for it. An event leaves the line when it is settled, and when it is retried without
/// [blocking](Settlement::Retry::blocks_lane) the lane: then it returns to the line, at the place of its number, when it
/// is due. A dead letter that holds its lane stays first in line. An event without a lane, and one that was redriven,
/// stand in no line.
///
/// # Fences
///
/// [`settle`](Self::settle) and [`extend`](Self::extend) change nothing unless the event is taken under the lease's
/// fence: not when the lease expired and the event was taken again, nor when the event was redriven or discarded. A
/// lease that has expired, but under which the event was not taken again, may still be extended and settled.
///
/// # Time
///
/// All times are the queue's own. A clock that jumps costs at most one more attempt of each event in progress.
///
/// A future that is dropped before it is ready may or may not have taken effect. No method has a default, so that no
/// queue inherits a race.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a queue",
    note = "use one of `tower_webhook::inbox`, or implement `Queue` and run its conformance suite"
)]
pub trait Queue: Send + Sync + 'static {
    /// Whether other processes may work on the same events, so that a worker must look for events from time to time.
    const SHARED: bool;

    /// Stores an event, or recognises it as a duplicate, in one atomic step. When this returns, the event is as durable
    /// as the queue.
    ///
    /// With `take`, an event that can be taken at once is taken in the same step: it is of one of the kinds, neither
    /// it nor everything is paused, and it is the first one in its lane.
    ///
    /// # Errors
    ///
    /// When the queue cannot be reached or does not work. The event may or may not have been stored then.
    fn accept(
        &self,
        event: NewEvent,
        take: Option<&Take>,
    ) -> impl Future<Output = Result<Accepted, StoreError>> + Send;

    /// Takes up to `limit` events that can be taken now, those that are due first. They are due, of one of the kinds,
    /// not paused, and first in their lanes.
    ///
    /// An event whose lease expired counts one [crash](TakenEvent::crashes) more when it is taken again. At most
    /// `suspects` of the events returned have crashed before.
    ///
    /// # Errors
    ///
    /// As for [`accept`](Self::accept).
    fn claim(
        &self,
        take: &Take,
        limit: usize,
        suspects: usize,
    ) -> impl Future<Output = Result<Claims, StoreError>> + Send;

    /// Extends leases: each expires `lease` from now. Returns for each whether it was still held.
    ///
    /// # Errors
    ///
    /// As for [`accept`](Self::accept).
    fn extend(
        &self,
        leases: &[EventLease],
        lease: Duration,
    ) -> impl Future<Output = Result<Vec<bool>, StoreError>> + Send;

    /// Ends the attempt under a lease. When this returns, its end is as durable as the queue.
    ///
    /// With `next`, the next event of the lane is taken in the same step, if it can be taken.
    ///
    /// A settlement other than [`Released`](Settlement::Released) ends the count of [crashes](TakenEvent::crashes).
    ///
    /// # Errors
    ///
    /// As for [`accept`](Self::accept).
    fn settle(
        &self,
        lease: &EventLease,
        settlement: &Settlement,
        next: Option<&Take>,
    ) -> impl Future<Output = Result<Settled, StoreError>> + Send;

    /// Returns a page of the events that match.
    ///
    /// # Errors
    ///
    /// As for [`accept`](Self::accept).
    fn list(
        &self,
        filter: &Filter,
        page: Page,
    ) -> impl Future<Output = Result<Vec<EventSummary>, StoreError>> + Send;

    /// Returns an event with its body and its failures.
    ///
    /// # Errors
    ///
    /// As for [`accept`](Self::accept).
    fn get(
        &self,
        id: EventId,
    ) -> impl Future<Output = Result<Option<EventRecord>, StoreError>> + Send;

    /// Makes an event due now. One that is settled or dead is tried again, does not wait for its lane, and starts
    /// without failures and crashes; if it was a dead letter that holds its lane, the lane waits for it. One that is retried keeps
    /// its place.
    ///
    /// # Errors
    ///
    /// As for [`accept`](Self::accept).
    fn redrive(&self, id: EventId) -> impl Future<Output = Result<Change, StoreError>> + Send;

    /// Gives up an event that is unsettled or dead. An attempt in progress loses its lease.
    ///
    /// # Errors
    ///
    /// As for [`accept`](Self::accept).
    fn discard(&self, id: EventId) -> impl Future<Output = Result<Change, StoreError>> + Send;

    /// Deletes the bodies of all events of a chat, and returns their number. Those that are unsettled or dead are
    /// discarded.
    ///
    /// # Errors
    ///
    /// As for [`accept`](Self::accept).
    fn forget(&self, chat: &str) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Stops, or resumes, taking events of one kind, or of all. What was taken before is not interrupted.
    ///
    /// A kind is taken if neither it nor everything is paused.
    ///
    /// # Errors
    ///
    /// As for [`accept`](Self::accept).
    fn pause(
        &self,
        kind: Option<&EventKind>,
        paused: bool,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Deletes, in a small step, bodies of events that were handled or ignored at least `keep_bodies` ago, and events
    /// that are settled and whose key's retention has ended. Dead letters stay. Returns whether there may be more.
    ///
    /// # Errors
    ///
    /// As for [`accept`](Self::accept).
    fn purge(&self, keep_bodies: Duration)
    -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Counts the events.
    ///
    /// # Errors
    ///
    /// As for [`accept`](Self::accept).
    fn stats(&self) -> impl Future<Output = Result<Stats, StoreError>> + Send;

    /// Returns the bytes that the queue occupies. Room that it can reuse does not count.
    ///
    /// # Errors
    ///
    /// As for [`accept`](Self::accept).
    fn size(&self) -> impl Future<Output = Result<u64, StoreError>> + Send;
}

/// The result of accepting an event.
#[derive(Debug)]
pub enum Accepted {
    /// It was stored.
    New {
        /// Its number.
        id: EventId,
        /// The event, if it was taken at once.
        taken: Option<Box<TakenEvent>>,
    },
    /// Its key was accepted before, or is done in a store that shares its keys with the queue.
    Duplicate {
        /// Whether it had the same body.
        same_body: bool,
    },
    /// A run outside the inbox holds the key, in a store that shares its keys with the queue.
    InFlight {
        /// How long that run's lease lasts unless it is renewed.
        remaining: Duration,
    },
    /// Its body was accepted before under another key, and [`NewEvent::guard`] forbids that.
    BodyReplayed,
}

/// Events that were taken.
#[derive(Debug, Default)]
pub struct Claims {
    /// The events.
    pub events: Vec<TakenEvent>,
    /// The time until another event of the kinds can be taken, because it is due or its lease expires. Zero when there
    /// may be more now, and `None` when nothing is known to become due.
    pub next_due: Option<Duration>,
}

/// The result of ending an attempt.
#[derive(Debug)]
pub enum Settled {
    /// It ended as asked. With the next event of the lane, if it was taken.
    Ended(Option<Box<TakenEvent>>),
    /// The lease was not held any more, and nothing was changed.
    Lost,
}

/// The result of a change that a person asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// It was made.
    Made,
    /// There is no such event.
    NotFound,
    /// The event's state does not allow it.
    WrongState,
    /// The body was deleted, so the event cannot be handled any more.
    WithoutBody,
}

/// The number of events by kind, and what is paused.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// By kind, sorted.
    pub kinds: Vec<KindStats>,
    /// Whether everything is paused.
    pub is_paused: bool,
}

impl Stats {
    /// Returns the number of events that wait for an attempt, or are in one.
    #[must_use]
    pub fn unsettled(&self) -> u64 {
        self.kinds
            .iter()
            .map(|kind| kind.waiting + kind.in_progress + kind.retrying)
            .sum()
    }

    /// Returns the number of dead letters.
    #[must_use]
    pub fn dead(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.dead).sum()
    }
}

/// The number of events of a kind.
#[derive(Clone, Debug)]
pub struct KindStats {
    /// The kind.
    pub kind: EventKind,
    /// Events that were not tried yet.
    pub waiting: u64,
    /// Events that are tried now.
    pub in_progress: u64,
    /// Events that failed, and are tried again.
    pub retrying: u64,
    /// Dead letters.
    pub dead: u64,
    /// When the oldest event that is unsettled was accepted.
    pub oldest: Option<SystemTime>,
    /// Whether the kind is paused.
    pub is_paused: bool,
}
