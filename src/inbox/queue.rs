//! The contract of a queue: the storage behind an inbox.

use std::fmt;
use std::future::Future;
use std::time::{Duration, SystemTime};

use super::event::{
    BlockedLane, EventId, EventLease, EventRecord, EventState, Filter, Listed, NewEvent, Page,
    Settlement, Take, TakenEvent,
};
use crate::event::EventKind;
use crate::store::StoreError;

/// Stores accepted events, hands them to workers under leases, and records how their attempts end.
///
/// To use a queue, pass it to an [`Inbox`](super::Inbox): only an inbox and its workers call these methods.
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
/// A future that is dropped before it is ready may or may not have taken effect. No method has a default, so that no
/// queue inherits a race.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a queue",
    note = "use one of `tower_webhook::inbox`, or implement `Queue` and run its conformance suite"
)]
pub trait Queue: Send + Sync + 'static {
    /// Whether other processes may use the same events. If so, a worker asks for events regularly.
    const SHARED: bool;

    /// Stores an event, or recognises it as a duplicate, in one atomic step. When this returns, the event is as durable
    /// as the queue.
    ///
    /// With `take`, the event is taken in the same step if it can be taken: it is of one of the kinds, is not paused,
    /// and is the first one in its lane.
    ///
    /// # Errors
    ///
    /// When the queue cannot be reached or does not work. In that case, the event may or may not have been stored.
    fn accept(
        &self,
        event: NewEvent,
        take: Option<&Take>,
    ) -> impl Future<Output = Result<Accepted, StoreError>> + Send;

    /// Takes up to `limit` events that can be taken: they are due, of one of the kinds, not paused, and first in their
    /// lanes. At most `suspects` events that have crashed before come first, and then the others, those that have been
    /// due for longest first. An event that waited behind others of its lane is due when it becomes the first one.
    ///
    /// The expiry of a lease counts as a [crash](TakenEvent::crashes) of its event.
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

    /// Extends leases, so that each expires `lease` from now. Returns, in the order of `leases`, whether each was still
    /// held.
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
    /// Every settlement but [`Released`](Settlement::Released) resets the count of [crashes](TakenEvent::crashes).
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

    /// Returns the number of the event that was accepted with a key, by the digest of namespace and key
    /// ([`EventKey::key`](crate::store::EventKey::key)), or `None` if no such event is known. The newest event is returned
    /// if the key was accepted again after its retention. The event may have been deleted.
    ///
    /// # Errors
    ///
    /// As for [`accept`](Self::accept).
    fn find(&self, key: u128) -> impl Future<Output = Result<Option<EventId>, StoreError>> + Send;

    /// Returns a page of the events that match. If [`Listed::searched`] is set, a page that is not full is not the last
    /// one.
    ///
    /// # Errors
    ///
    /// As for [`accept`](Self::accept).
    fn list(
        &self,
        filter: &Filter,
        page: Page,
    ) -> impl Future<Output = Result<Listed, StoreError>> + Send;

    /// Returns up to `limit` lanes that wait for an event that has failed, sorted by the numbers of these events: those
    /// after `after`, and with `chat`, only the lane of that chat.
    ///
    /// A lane is blocked if the event that was taken last from it, or otherwise its first event, has failed or crashed
    /// and is tried again, or is a dead letter that holds the lane. A lease that has expired may count only when the
    /// event is taken again.
    ///
    /// # Errors
    ///
    /// As for [`accept`](Self::accept).
    fn blocked_lanes(
        &self,
        chat: Option<&str>,
        after: Option<EventId>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<BlockedLane>, StoreError>> + Send;

    /// Returns an event with its body and its failures, or `None` if there is no such event.
    ///
    /// # Errors
    ///
    /// As for [`accept`](Self::accept).
    fn get(
        &self,
        id: EventId,
    ) -> impl Future<Output = Result<Option<EventRecord>, StoreError>> + Send;

    /// Makes an event due now. A settled or dead event is tried again, without waiting for its lane, and its counts of
    /// failures and crashes start at zero. A dead letter that holds its lane continues to hold it. An unsettled event
    /// keeps its place in line. An event in progress is not changed ([`Change::WrongState`]). With `from`, an event in
    /// another state is not changed either; the comparison and the change are one atomic step.
    ///
    /// # Errors
    ///
    /// As for [`accept`](Self::accept).
    fn redrive(
        &self,
        id: EventId,
        from: Option<EventState>,
    ) -> impl Future<Output = Result<Change, StoreError>> + Send;

    /// Discards an event that is unsettled or dead. An attempt in progress loses its lease. With `from`, an event in
    /// another state is not changed, as for [`redrive`](Self::redrive).
    ///
    /// # Errors
    ///
    /// As for [`accept`](Self::accept).
    fn discard(
        &self,
        id: EventId,
        from: Option<EventState>,
    ) -> impl Future<Output = Result<Change, StoreError>> + Send;

    /// Deletes the bodies and headers of all events of a chat, and the texts of their failures, and returns the number of
    /// these bodies. Events that are unsettled or dead are discarded.
    ///
    /// # Errors
    ///
    /// As for [`accept`](Self::accept).
    fn forget(&self, chat: &str) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Pauses or resumes one kind, or with `None` everything. Attempts in progress are not interrupted.
    ///
    /// Events of a kind are taken if neither the kind nor everything is paused.
    ///
    /// # Errors
    ///
    /// As for [`accept`](Self::accept).
    fn pause(
        &self,
        kind: Option<&EventKind>,
        paused: bool,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Deletes, in a small step, the bodies and headers of events that were handled or ignored at least `keep_bodies`
    /// ago, and settled events whose retention has expired. Dead letters stay. Returns whether there may be more to
    /// delete.
    ///
    /// # Errors
    ///
    /// As for [`accept`](Self::accept).
    fn purge(&self, keep_bodies: Duration)
    -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Counts the unsettled events and the dead letters, by kind.
    ///
    /// # Errors
    ///
    /// As for [`accept`](Self::accept).
    fn stats(&self) -> impl Future<Output = Result<Stats, StoreError>> + Send;

    /// Returns the size of the queue in bytes, without room that it can reuse.
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
}

/// Events that were taken.
#[derive(Debug, Default)]
pub struct Claims {
    /// The events.
    pub events: Vec<TakenEvent>,
    /// The time until another event of the kinds is due or its lease expires. Zero if more events may be due now, and
    /// `None` if no such time is known. A worker asks a [shared](Queue::SHARED) queue earlier in any case, as others change
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

/// The result of a change that a person requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// It was made.
    Made,
    /// There is no such event.
    NotFound,
    /// The event's state does not allow it.
    WrongState,
    /// The event's body was deleted, so it cannot be handled again.
    WithoutBody,
}

/// The number of unsettled events and dead letters by kind, and whether they are paused.
#[derive(Clone, Debug)]
pub struct Stats {
    /// The kinds, sorted by name.
    pub kinds: Vec<KindStats>,
    /// The time at which the events were counted, by the queue's clock.
    pub at: SystemTime,
    /// Whether everything is paused.
    pub is_paused: bool,
}

impl Stats {
    /// Returns the number of events that are unsettled: waiting, in progress or retrying.
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

    /// Returns the time since the oldest unsettled event of a kind was accepted.
    #[must_use]
    pub fn age(&self, kind: &KindStats) -> Option<Duration> {
        let oldest = kind.oldest?;
        Some(self.at.duration_since(oldest).unwrap_or_default())
    }

    /// Whether every accepted event was handled, ignored or discarded.
    #[must_use]
    pub fn is_all_handled(&self) -> bool {
        self.unsettled() == 0 && self.dead() == 0
    }
}

/// One line for each kind that has unsettled events or dead letters, or is paused.
impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_paused {
            f.write_str("everything is paused\n")?;
        }
        for kind in &self.kinds {
            if kind.waiting + kind.in_progress + kind.retrying + kind.dead == 0 && !kind.is_paused {
                continue;
            }
            write!(
                f,
                "{}: {} waiting, {} in progress, {} retrying, {} dead",
                kind.kind, kind.waiting, kind.in_progress, kind.retrying, kind.dead
            )?;
            if let Some(age) = self.age(kind) {
                write!(f, ", the oldest {} s ago", age.as_secs())?;
            }
            f.write_str(if kind.is_paused { ", paused\n" } else { "\n" })?;
        }
        Ok(())
    }
}

/// The number of events of one kind, by state.
#[derive(Clone, Debug)]
pub struct KindStats {
    /// The kind.
    pub kind: EventKind,
    /// Events without a failed attempt, and without an attempt in progress.
    pub waiting: u64,
    /// Events with an attempt in progress.
    pub in_progress: u64,
    /// Events that are tried again after an attempt failed or crashed.
    pub retrying: u64,
    /// Dead letters.
    pub dead: u64,
    /// Events that have failed and block their lanes: those of [`blocked_lanes`](Queue::blocked_lanes).
    pub blocking: u64,
    /// When the oldest unsettled event was accepted.
    pub oldest: Option<SystemTime>,
    /// Whether the kind is paused.
    pub is_paused: bool,
}
