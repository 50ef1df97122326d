//! An event in the inbox: its record, and how an attempt to handle it ends.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::delivery::RawDelivery;
use crate::event::EventKind;
pub(crate) use crate::outcome::{Failure, Settlement, Shape};
use crate::route::RouteName;
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

number!(EventId);

/// A lane: its events are handled one after another, in the order of acceptance.
///
/// Its first 20 bits are a digest of the route's name, so that routes share no lanes. The other 44 are the first ones of the
/// SHA-256 digest of the route's name and the chat's id: one pair of chats in 2^44 shares a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(pub i64);

/// An event to be accepted.
#[derive(Clone, Debug)]
pub struct NewEvent {
    /// Route, kind, key, body and the headers that are kept.
    pub delivery: RawDelivery,
    /// The digests of the key and the body. With `None`, every delivery of the event is accepted as a new event.
    pub key: Option<EventKey>,
    /// The digests of the body and the key, if the body must not have been accepted under another key. The items of a batch
    /// share the digests of their delivery: if these were accepted under the same key, no item is refused.
    pub guard: Option<EventKey>,
    /// Whether a delivery with the key and another body is refused. A queue that accepts an event before it can compare
    /// bodies, such as a spool, needs it later.
    pub rejects_changed_body: bool,
    /// The id of the event's chat, if it is known.
    pub chat: Option<String>,
    /// The lane of the event: that [of its chat at its route](Lane::at), by which a queue finds the events of a chat.
    /// With `None`, the event has a lane of its own.
    pub lane: Option<Lane>,
    /// The minimum time, from now, for which the key is remembered.
    pub retain: Duration,
    /// The reason why the event is a dead letter from the start. `None` for all others.
    pub dead: Option<Failure>,
}

/// The kinds of events that a worker takes of a route, and the lease under which it takes them.
#[derive(Clone, Debug)]
pub struct Take {
    /// The time after which the lease of an attempt expires, unless it is extended.
    pub lease: Duration,
    /// The kinds that the worker takes. An event of another kind stays in its lane, which waits for it.
    pub kinds: Kinds,
}

impl Take {
    /// The position of the only event of a delivery that may be taken: the first one of its kinds.
    pub(crate) fn first_of(&self, events: &[NewEvent]) -> Option<usize> {
        events.iter().position(|event| {
            self.kinds
                .takes(event.delivery.route(), event.delivery.kind())
        })
    }
}

/// What a worker takes of one of its routes in a claim.
#[derive(Clone, Debug)]
pub struct Share {
    /// What it takes.
    pub take: Arc<Take>,
    /// The number of attempts at this route that are in progress: the route with the fewest is next.
    pub busy: usize,
    /// The most attempts at this route that may be in progress.
    pub most: usize,
    /// The kinds with attempts in progress, and the kinds with a limit below `each`.
    pub kinds: Vec<KindShare>,
    /// The most attempts of each other kind that may be in progress.
    pub each: usize,
}

/// What a worker takes of a kind in a claim.
#[derive(Clone, Debug)]
pub struct KindShare {
    /// The kind.
    pub kind: EventKind,
    /// The number of its attempts that are in progress: of a route's kinds, the one with the fewest is next.
    pub busy: usize,
    /// The most of its attempts that may be in progress.
    pub most: usize,
}

impl From<Take> for Share {
    fn from(take: Take) -> Self {
        Self {
            take: Arc::new(take),
            busy: 0,
            most: usize::MAX,
            kinds: Vec::new(),
            each: usize::MAX,
        }
    }
}

/// The shares of a claim, with what it has taken so far.
#[derive(Debug)]
pub(crate) struct Shares(Vec<Share>);

impl Shares {
    pub(crate) fn new(of: &[Share]) -> Self {
        Self(of.to_vec())
    }

    fn kind(&self, share: usize, kind: &EventKind) -> Option<&KindShare> {
        self.0[share].kinds.iter().find(|it| it.kind == *kind)
    }

    /// How many attempts of a share are in progress, and how many of a kind.
    pub(crate) fn busy(&self, share: usize, kind: &EventKind) -> (usize, usize) {
        let of_kind = self.kind(share, kind).map_or(0, |it| it.busy);
        (self.0[share].busy, of_kind)
    }

    /// Whether another event of a kind may be taken.
    pub(crate) fn has_room(&self, share: usize, kind: &EventKind) -> bool {
        let Share {
            busy, most, each, ..
        } = self.0[share];
        let of_kind = self.kind(share, kind);
        busy < most && of_kind.map_or(each > 0, |it| it.busy < it.most)
    }

    /// Notes that an event was taken.
    pub(crate) fn take(&mut self, share: usize, kind: &EventKind) {
        let share = &mut self.0[share];
        share.busy += 1;
        match share.kinds.iter_mut().find(|it| it.kind == *kind) {
            Some(it) => it.busy += 1,
            None => share.kinds.push(KindShare {
                kind: kind.clone(),
                busy: 1,
                most: share.each,
            }),
        }
    }
}

/// A set of kinds at one route: all of the chat platform's by default.
///
/// ```
/// use tower_webhook::event::EventKind;
/// use tower_webhook::inbox::internal::Kinds;
///
/// let kinds = Kinds::only([EventKind::CHAT_RATED]);
/// assert!(kinds.contains(&EventKind::CHAT_RATED));
/// assert!(!kinds.contains(&EventKind::CHAT_CLOSED));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kinds {
    pub(crate) route: RouteName,
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
            ..Self::default()
        }
    }

    /// Removes these kinds from the set.
    #[must_use]
    pub fn except(mut self, kinds: impl IntoIterator<Item = EventKind>) -> Self {
        self.except.extend(kinds);
        self
    }

    /// Removes all but these kinds from the set.
    #[must_use]
    pub(crate) fn within(mut self, kinds: BTreeSet<EventKind>) -> Self {
        self.only = Some(match self.only {
            Some(only) => &only & &kinds,
            None => kinds,
        });
        self
    }

    /// Returns the set of the same kinds at another route.
    #[must_use]
    pub fn at(self, route: RouteName) -> Self {
        Self { route, ..self }
    }

    /// Whether the set has the events of a kind at a route.
    pub(crate) fn takes(&self, route: &RouteName, kind: &EventKind) -> bool {
        self.route == *route && self.contains(kind)
    }

    /// Returns the kinds that the set is limited to, without the [excluded](Self::excluded) ones. `None` when it is not
    /// limited.
    #[must_use]
    pub fn included(&self) -> Option<&BTreeSet<EventKind>> {
        self.only.as_ref()
    }

    /// Returns the kinds that are not in the set.
    #[must_use]
    pub fn excluded(&self) -> &BTreeSet<EventKind> {
        &self.except
    }

    /// Whether the kind is in the set.
    #[must_use]
    pub fn contains(&self, kind: &EventKind) -> bool {
        self.only.as_ref().is_none_or(|only| only.contains(kind)) && !self.except.contains(kind)
    }
}

/// How many kinds of a route may wait. Each costs a claim a look, and the header that names a kind is often not signed.
pub const MOST_WAITING_KINDS: usize = 1000;

/// Why an event of one more kind is a dead letter.
pub(crate) const TOO_MANY_KINDS: [&str; 2] = [
    "too-many-types",
    "1,000 other event types of this route wait already: have a worker take them, or discard them, and then redrive this event",
];

/// The right to end one attempt of an event. Every operation that ends or extends the attempt compares the fence, and
/// changes nothing if the event was taken again, redriven or discarded since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventLease {
    /// The event.
    pub id: EventId,
    /// A number that no other attempt has.
    pub fence: Fence,
    /// A number by which the queue finds the event. Only the queue reads it.
    pub place: i64,
}

/// An event that a worker has taken.
#[derive(Clone, Debug)]
pub struct TakenEvent {
    /// The right to end the attempt.
    pub lease: EventLease,
    /// The delivery as it was accepted, with the number of this attempt: one more than `failures` and `crashes`
    /// together.
    pub delivery: RawDelivery,
    /// The lane of the event. `None` for an event without a chat, and for a redriven event.
    pub lane: Option<Lane>,
    /// The number of counted attempts that failed before this one.
    pub failures: u32,
    /// The number of attempts in a row that did not end, because their process died or stood still.
    pub crashes: u32,
    /// The time since the first of these failures. While there is none, the time since the first failure that did not
    /// count, unless attempts of the type were slowed down. `None` without either.
    pub tried_for: Option<Duration>,
    /// The number of attempts that failed without being counted. 200 while attempts of the type were slowed down are as one.
    pub uncounted: u32,
}

/// What a queue adds for each failure that does not count, so that one while attempts of its type are slowed down can be a small part of it.
pub(crate) const UNCOUNTED: u32 = 200;

/// What it adds for one.
pub(crate) fn uncounted(is_slowed: bool) -> u32 {
    if is_slowed { 1 } else { UNCOUNTED }
}

/// The state of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum EventState {
    /// No attempt has failed yet: the event waits for a worker, for its lane, or until it is due.
    Waiting,
    /// An attempt is in progress.
    InProgress,
    /// An attempt failed or crashed, and another one follows.
    Retrying,
    /// The event was handled.
    Handled,
    /// The event had no handler.
    Ignored,
    /// A handler or a person discarded the event.
    Discarded,
    /// The event is a dead letter: it is not tried any more until a person redrives it.
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

    /// Whether the event waits for an attempt, or an attempt is in progress.
    #[must_use]
    pub fn is_unsettled(self) -> bool {
        matches!(self, Self::Waiting | Self::InProgress | Self::Retrying)
    }
}

display!(EventState, |it| it.name());

impl FromStr for EventState {
    type Err = UnknownState;

    fn from_str(name: &str) -> Result<Self, UnknownState> {
        Self::ALL
            .into_iter()
            .find(|state| state.name() == name)
            .ok_or(UnknownState)
    }
}

/// The error for a text that is not the name of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownState;

impl fmt::Display for UnknownState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = EventState::ALL.map(EventState::name).join(", ");
        write!(f, "there is no such state: choose one of {names}")
    }
}

impl std::error::Error for UnknownState {}
