//! An event in the inbox: what is stored of it, and how an attempt to handle it ends.

use std::collections::BTreeSet;
use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::delivery::{IdempotencyKey, RawDelivery};
use crate::event::EventKind;
use crate::store::{EventKey, Fence};

/// The number of an event in a [`Queue`](super::Queue), counted in the order of acceptance.
///
/// ```
/// use tower_webhook::inbox::EventId;
///
/// let id: EventId = "17".parse().unwrap();
/// assert_eq!(id, EventId(17));
/// assert_eq!(id.to_string(), "17");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub i64);

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for EventId {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        text.parse().map(Self)
    }
}

/// A lane: events with the same one are handled one after another, in the order of acceptance.
///
/// It is a digest of the chat's id. Two chats with the same digest, one pair in 2^64, would share a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(pub i64);

/// An event to be [accepted](super::Queue::accept).
#[derive(Clone, Debug)]
pub struct NewEvent {
    /// Kind, key and body.
    pub delivery: RawDelivery,
    /// The digests of the key and the body. `None` accepts the event each time that it is delivered.
    pub key: Option<EventKey>,
    /// The digests of the body and the key, if the body must not have been accepted under another key.
    pub guard: Option<EventKey>,
    /// The id of the event's chat, if it is known.
    pub chat: Option<String>,
    /// The lane of the event. `None` is a lane of its own.
    pub lane: Option<Lane>,
    /// How long the key is remembered at least, from now.
    pub retain: Duration,
    /// Why the event is a dead letter from the start.
    pub dead: Option<Failure>,
}

/// Which events a worker takes, and for how long.
#[derive(Clone, Debug)]
pub struct Take {
    /// How long an attempt may take before its lease expires, unless it is extended.
    pub lease: Duration,
    /// The kinds that the worker takes. An event of another kind stays where it is, and its lane waits for it.
    pub kinds: Kinds,
}

/// A set of kinds. All of them by default.
///
/// ```
/// use tower_webhook::event::EventKind;
/// use tower_webhook::inbox::Kinds;
///
/// let kinds = Kinds::only([EventKind::CHAT_RATED]);
/// assert!(kinds.contains(&EventKind::CHAT_RATED));
/// assert!(!kinds.contains(&EventKind::CHAT_CLOSED));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kinds {
    only: Option<BTreeSet<EventKind>>,
    except: BTreeSet<EventKind>,
}

impl Kinds {
    /// Returns the set of all kinds.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// Returns the set of these kinds.
    #[must_use]
    pub fn only(kinds: impl IntoIterator<Item = EventKind>) -> Self {
        Self {
            only: Some(kinds.into_iter().collect()),
            except: BTreeSet::new(),
        }
    }

    /// Removes kinds from the set.
    #[must_use]
    pub fn except(mut self, kinds: impl IntoIterator<Item = EventKind>) -> Self {
        self.except.extend(kinds);
        self
    }

    /// Whether the kind is in the set.
    #[must_use]
    pub fn contains(&self, kind: &EventKind) -> bool {
        self.only.as_ref().is_none_or(|only| only.contains(kind)) && !self.except.contains(kind)
    }
}

/// The right to end one attempt of an event: every operation that ends it names the fence, and changes nothing when
/// the event was taken, redriven or discarded since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventLease {
    /// The event.
    pub id: EventId,
    /// A number that is used for no other attempt.
    pub fence: Fence,
    /// Where the queue finds the event again. Only the queue reads it.
    pub place: i64,
}

/// An event that a worker has taken.
#[derive(Clone, Debug)]
pub struct TakenEvent {
    /// The right to end the attempt.
    pub lease: EventLease,
    /// The delivery as it was accepted, with the number of this attempt: one more than failures and crashes.
    pub delivery: RawDelivery,
    /// The lane of the event. `None` for an event without a chat, and for one that was redriven.
    pub lane: Option<Lane>,
    /// How many attempts failed before this one, of those that count.
    pub failures: u32,
    /// How many attempts in a row were not ended, because their process died or stalled.
    pub crashes: u32,
    /// How long ago the first of the failures was. `None` without one.
    pub tried_for: Option<Duration>,
}

/// Why an attempt did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The [name](crate::Outcome::name) of the outcome.
    pub outcome: String,
    /// The error with its causes, in one line.
    pub reason: String,
}

/// How an attempt ends.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Settlement {
    /// The event was handled.
    Handled,
    /// The event has no handler. It can be redriven, when there is one.
    Ignored,
    /// The handler gave the event up.
    Discarded(Failure),
    /// The event is not tried any more, and waits for a person.
    Dead {
        /// Why.
        failure: Failure,
        /// Whether the lane waits, too.
        hold_lane: bool,
    },
    /// The event is tried again.
    Retry {
        /// The delay before the next attempt.
        after: Duration,
        /// Why. `None` when the handler asked for the delay.
        failure: Option<Failure>,
        /// Whether the attempt counts.
        counts: bool,
        /// Whether the lane waits for the next attempt. If not, the event comes out of order.
        blocks_lane: bool,
    },
    /// The attempt was interrupted. The event can be taken at once, as if it had not been.
    Released,
}

/// The state of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum EventState {
    /// It was not tried yet: it waits for a worker, or for its lane.
    Waiting,
    /// An attempt is in progress.
    InProgress,
    /// An attempt failed, and another one follows.
    Retrying,
    /// It was handled.
    Handled,
    /// It had no handler.
    Ignored,
    /// A handler or a person gave it up.
    Discarded,
    /// It is not tried any more, and waits for a person.
    Dead,
}

impl EventState {
    /// All states.
    pub const ALL: [Self; 7] = [
        Self::Waiting,
        Self::InProgress,
        Self::Retrying,
        Self::Handled,
        Self::Ignored,
        Self::Discarded,
        Self::Dead,
    ];

    /// Returns the name of the state, such as `in-progress`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::InProgress => "in-progress",
            Self::Retrying => "retrying",
            Self::Handled => "handled",
            Self::Ignored => "ignored",
            Self::Discarded => "discarded",
            Self::Dead => "dead",
        }
    }

    /// Whether the event waits for an attempt, or is in one.
    #[must_use]
    pub fn is_unsettled(self) -> bool {
        matches!(self, Self::Waiting | Self::InProgress | Self::Retrying)
    }
}

impl fmt::Display for EventState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for EventState {
    type Err = UnknownState;

    fn from_str(name: &str) -> Result<Self, UnknownState> {
        Self::ALL
            .into_iter()
            .find(|state| state.name() == name)
            .ok_or(UnknownState)
    }
}

/// The error of a text that is not the name of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownState;

impl fmt::Display for UnknownState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = EventState::ALL.map(EventState::name).join(", ");
        write!(f, "there is no such state: choose one of {names}")
    }
}

impl std::error::Error for UnknownState {}

/// An event, without its body.
#[derive(Clone, Debug)]
pub struct EventSummary {
    /// Its number.
    pub id: EventId,
    /// Its kind.
    pub kind: EventKind,
    /// Its idempotency key.
    pub key: Option<IdempotencyKey>,
    /// The id of its chat.
    pub chat: Option<String>,
    /// Its state.
    pub state: EventState,
    /// When it was accepted.
    pub accepted_at: SystemTime,
    /// When it was settled last: handled, ignored, discarded, or made a dead letter.
    pub settled_at: Option<SystemTime>,
    /// When it is tried next, if that is not before.
    pub due_at: Option<SystemTime>,
    /// How many attempts failed, of those that count.
    pub failures: u32,
    /// Whether it was redriven.
    pub is_redriven: bool,
}

/// An event with its body and its history.
#[derive(Clone, Debug)]
pub struct EventRecord {
    /// The event.
    pub summary: EventSummary,
    /// The body as it was received, until it is deleted.
    pub body: Option<Bytes>,
    /// The attempts that did not succeed, oldest first.
    pub failures: Vec<PastFailure>,
}

/// An attempt that did not succeed.
#[derive(Clone, Debug)]
pub struct PastFailure {
    /// When it ended.
    pub at: SystemTime,
    /// Why it did not succeed.
    pub failure: Failure,
}

/// Selects events. The default selects all of them.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Of these states. Of every state, if empty.
    pub states: Vec<EventState>,
    /// Of these kinds. Of every kind, if empty.
    pub kinds: Vec<EventKind>,
    /// Of the chat with this id.
    pub chat: Option<String>,
    /// With this idempotency key.
    pub key: Option<IdempotencyKey>,
    /// Accepted at this time or later.
    pub accepted_from: Option<SystemTime>,
    /// Accepted before this time.
    pub accepted_until: Option<SystemTime>,
}

/// A part of a list of events, which is sorted by number.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// The last event of the page before.
    pub after: Option<EventId>,
    /// The number of events at most.
    pub limit: usize,
    /// Whether the newest event is the first.
    pub newest_first: bool,
}
