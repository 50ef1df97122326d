//! What a person reads of a queue, and selects there.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use http::HeaderMap;

use super::actions::By;
use super::event::{EventId, EventState, Failure, Shape};
use super::event::{NewEvent, Take};
use super::handlers::{AWAY_AFTER, HandlerNote, deciding};
use super::lane::stored_chat;
use super::queue::{AcceptEvents, Accepted, ForgetChats};
use super::text::{has_text, in_words};
use crate::delivery::{IdempotencyKey, Item};
use crate::event::EventKind;
use crate::route::{EventType, RouteName, Scope};
use crate::store::{StoreError, StoreErrorKind};

/// Accepts single events.
#[async_trait]
pub trait AcceptOne: AcceptEvents {
    /// Accepts a delivery of one event.
    async fn accept_one(
        &self,
        event: NewEvent,
        take: Option<&Take>,
    ) -> Result<Accepted, StoreError> {
        let accepted = self.accept([event].into(), take).await?.pop();
        accepted.ok_or_else(|| StoreError::new(StoreErrorKind::Corrupt, "no answer to an event"))
    }
}

impl<Q: AcceptEvents + ?Sized> AcceptOne for Q {}

/// The number of events that one step of [`ForgetChats::forget`](super::queue::ForgetChats::forget) looks at, at most.
pub const FORGET_STEP: usize = 200;

/// The result of a step of [`ForgetChats::forget`](super::queue::ForgetChats::forget).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forgotten {
    /// The number of bodies that were deleted.
    pub bodies: u64,
    /// The events that the next step begins with. `None` if all events of the chat are forgotten.
    pub rest: Option<RangeInclusive<EventId>>,
}

/// The most other events of a batch that a record has.
pub(crate) const MOST_OTHERS: usize = 20;

/// Those of a batch that are nearest to an event, in their order. The ones before it begin with the nearest, as the ones
/// after it do.
pub(crate) fn nearest<T>(mut before: Vec<T>, mut after: Vec<T>) -> Vec<T> {
    before.truncate(MOST_OTHERS.saturating_sub(after.len()).max(MOST_OTHERS / 2));
    after.truncate(MOST_OTHERS - before.len());
    before.reverse();
    before.append(&mut after);
    before
}

/// Forgets a chat in steps, and returns the number of bodies that were deleted.
///
/// # Errors
///
/// When the queue fails.
pub async fn forget_all(queue: &dyn ForgetChats, chat: &str, by: &By) -> Result<u64, StoreError> {
    let (mut bodies, mut rest) = (0, None);
    loop {
        let step = queue.forget(chat, rest, by).await?;
        bodies += step.bodies;
        rest = step.rest;
        if rest.is_none() {
            return Ok(bodies);
        }
    }
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

/// A pause.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pause {
    /// What is paused.
    pub of: Scope,
    /// When it was paused last.
    pub since: SystemTime,
    /// Who paused it and why.
    pub note: String,
}

/// The number of unsettled events and dead letters by event type, and whether they are paused.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// The event types, sorted by route and name. Those of the chat platform come first.
    pub kinds: Vec<KindStats>,
    /// The time at which the events were counted, by the queue's clock.
    pub at: SystemTime,
    /// What is paused: everything comes first, then routes, then event types.
    pub pauses: Vec<Pause>,
    /// What workers have noted that they handle, or did.
    pub handlers: Vec<HandlerNote>,
}

impl Stats {
    /// Whether everything is paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.pauses
            .iter()
            .any(|pause| pause.of == Scope::Everything)
    }

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

    /// Returns the routes whose events wait although a worker could have begun them, with the number of these events: they
    /// have waited for ten minutes, none is in progress or blocks others, nothing is paused, and no worker of the route
    /// has noted a handler in that time. Probably, no worker handles the route.
    #[must_use]
    pub fn unattended(&self) -> Vec<(RouteName, u64)> {
        let mut routes = BTreeMap::<_, (u64, bool)>::new();
        for kind in &self.kinds {
            let (waiting, is_attended) = routes.entry(kind.route.clone()).or_default();
            *waiting += kind.waiting;
            let is_late = self.age(kind).is_some_and(|age| age >= LATE);
            *is_attended |= kind.in_progress + kind.blocking > 0
                || kind.is_paused
                || (kind.waiting > 0 && !is_late);
        }
        for note in self
            .handlers
            .iter()
            .filter(|note| note.unseen(self.at) <= AWAY_AFTER)
        {
            if let Scope::Route(route) | Scope::Type(EventType { route, .. }) = &note.of
                && let Some((_, is_attended)) = routes.get_mut(route)
            {
                *is_attended = true;
            }
        }
        let late = routes.into_iter().filter(|(_, (waiting, is_attended))| {
            *waiting > 0 && !is_attended && !self.is_paused()
        });
        late.map(|(route, (waiting, _))| (route, waiting)).collect()
    }

    /// Returns the note that decides on a type, and for how long its worker was not seen: of the workers that are there, that of
    /// a handler, or otherwise the newest one of a fallback. If all are away, the same of these, and `None` if no worker has
    /// handled the type for the retention.
    #[must_use]
    pub fn handler(&self, of: &EventType) -> Option<(&HandlerNote, Duration)> {
        let note = deciding(&self.handlers, self.at, &of.route, &of.kind)?;
        Some((note, note.unseen(self.at)))
    }

    /// Whether nobody handles a type now, as the worker of the note that decides on it is away.
    #[cfg(feature = "metrics")]
    pub(super) fn is_away(&self, of: &EventType) -> bool {
        self.handler(of)
            .is_some_and(|(note, _)| note.is_away(self.at))
    }

    /// Returns the notes that decide on types which nobody handles now, as their workers are away, and for how long each was not
    /// seen: others have [missed](HandlerNote::missed_since) it for more than ten minutes.
    #[must_use]
    pub fn away(&self) -> Vec<(&HandlerNote, Duration)> {
        let decides = |note: &HandlerNote| match &note.of {
            Scope::Type(of) => self.handler(of).is_some_and(|(it, _)| it == note),
            _ => true,
        };
        let away = self
            .handlers
            .iter()
            .filter(|note| note.is_away(self.at) && decides(note));
        away.map(|note| (note, note.unseen(self.at))).collect()
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

/// For how long events of a route wait before it counts as unattended, and a worker has none before its route counts as
/// idle.
pub(super) const LATE: Duration = Duration::from_secs(10 * 60);

/// One line for each type that has unsettled events or dead letters, or is paused.
impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_paused() {
            f.write_str("everything is paused\n")?;
        }
        for kind in &self.kinds {
            if kind.waiting + kind.in_progress + kind.retrying + kind.dead == 0 && !kind.is_paused {
                continue;
            }
            write!(
                f,
                "{}: {} waiting, {} in progress, {} retrying, {} dead",
                kind.event_type(),
                kind.waiting,
                kind.in_progress,
                kind.retrying,
                kind.dead
            )?;
            if let Some(age) = self.age(kind) {
                write!(f, ", the oldest {} ago", in_words(age))?;
            }
            f.write_str(if kind.is_paused { ", paused\n" } else { "\n" })?;
        }
        Ok(())
    }
}

/// The number of events of one type, by state.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KindStats {
    /// The route.
    pub route: RouteName,
    /// The kind.
    pub kind: EventKind,
    /// Events without a failed attempt, and without an attempt in progress.
    pub waiting: u64,
    /// Those of them that wait for no other event: they are the first of their lanes, or have none.
    pub ready: u64,
    /// Events with an attempt in progress.
    pub in_progress: u64,
    /// Events that are tried again after an attempt failed or crashed.
    pub retrying: u64,
    /// Dead letters.
    pub dead: u64,
    /// Events that have failed and block their lanes: those of [`Inbox::blocked_lanes`](super::Inbox::blocked_lanes).
    pub blocking: u64,
    /// When the oldest unsettled event was accepted.
    pub oldest: Option<SystemTime>,
    /// Whether the type is paused, or its route.
    pub is_paused: bool,
}

impl KindStats {
    /// Returns the type.
    #[must_use]
    pub fn event_type(&self) -> EventType {
        EventType::new(self.route.clone(), self.kind.clone())
    }
}

/// An event, without its body.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EventSummary {
    /// Its number.
    pub id: EventId,
    /// The route at which it was accepted.
    pub route: RouteName,
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
    /// When it was last handled, ignored, discarded, or made a dead letter.
    pub settled_at: Option<SystemTime>,
    /// When its next attempt is due, if that is in the future.
    pub due_at: Option<SystemTime>,
    /// The number of counted attempts that failed, since it was last redriven. The attempt that made it a dead letter
    /// counts, too.
    pub failures: u32,
    /// Whether a person redrove it.
    pub is_redriven: bool,
    /// Its last attempt that did not succeed, unless that was snoozed or interrupted.
    pub last_failure: Option<PastFailure>,
}

/// An event with its body and its history.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EventRecord {
    /// The event.
    pub summary: EventSummary,
    /// The body as it was received. `None` after it was deleted.
    pub body: Option<Bytes>,
    /// The headers of the delivery that were [kept](super::Inbox::keep_headers). They are deleted with the body.
    pub headers: HeaderMap,
    /// Its place in its [batch](crate::docs::senders#batches), if it came in one. What is kept beside the item is deleted with
    /// the body.
    pub item: Option<Item>,
    /// The other events of that batch, by the number of their items: the 20 nearest to it.
    pub others: Vec<(u32, EventId)>,
    /// The attempts that did not succeed, oldest first, without snoozed and interrupted ones. A queue may keep only the
    /// latest: the queues of this crate keep 100.
    pub failures: Vec<PastFailure>,
}

/// An attempt that did not succeed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PastFailure {
    /// When it ended.
    pub at: SystemTime,
    /// The reason.
    pub failure: Failure,
}

/// Selects the events that meet all of these conditions. The default selects all events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Filter {
    /// The event is in one of these states. If empty, it may be in any state.
    pub states: Vec<EventState>,
    /// The event was accepted at one of these routes. If empty, it may be of any route.
    pub routes: Vec<RouteName>,
    /// The event is of one of these kinds. If empty, it may be of any kind.
    pub kinds: Vec<EventKind>,
    /// The event is of the chat with this id.
    pub chat: Option<String>,
    /// The event has this idempotency key.
    pub key: Option<IdempotencyKey>,
    /// The event was accepted at this time or later.
    pub accepted_from: Option<SystemTime>,
    /// The event was accepted before this time.
    pub accepted_until: Option<SystemTime>,
    /// A failure of the event has this text in its outcome or its reason. ASCII letters match in either case.
    pub error: Option<String>,
    /// The body of the event has this text: as it was received, or in its strings of JSON, in which `\u00e9` is `é`. ASCII
    /// letters match in either case. An event whose body was deleted has none.
    pub body: Option<String>,
    /// The last failure of the event was at this time or later.
    pub failed_from: Option<SystemTime>,
    /// The last failure of the event was before this time.
    pub failed_until: Option<SystemTime>,
    /// The last failure of the event has this shape.
    pub shape: Option<Shape>,
    /// The action with this number has changed the event: see [`Inbox::actions`](super::Inbox::actions).
    pub changed_by: Option<i64>,
}

impl Filter {
    /// Selects the events that have failed and were not handled since, that is, retried events and dead letters. Their
    /// last failures were at `from` or later, and before `until`.
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use tower_webhook::inbox::Filter;
    ///
    /// let an_hour_ago = SystemTime::now() - Duration::from_secs(60 * 60);
    /// let timed_out = Filter::failed(Some(an_hour_ago), None).error("timeout");
    /// ```
    #[must_use]
    pub fn failed(from: Option<SystemTime>, until: Option<SystemTime>) -> Self {
        Self {
            states: vec![EventState::Retrying, EventState::Dead],
            failed_from: from,
            failed_until: until,
            ..Self::default()
        }
    }

    /// Selects events in these states. A call replaces an earlier one, as for each setter.
    ///
    /// ```
    /// use tower_webhook::event::EventKind;
    /// use tower_webhook::inbox::{EventState, Filter};
    ///
    /// let dead = Filter::default().states([EventState::Dead]).kinds([EventKind::CHAT_RATED]).chat("chat-1");
    /// assert_eq!(dead.chat.as_deref(), Some("chat-1"));
    /// ```
    #[must_use]
    pub fn states(mut self, states: impl IntoIterator<Item = EventState>) -> Self {
        self.states = states.into_iter().collect();
        self
    }

    /// Selects events that were accepted at these routes.
    #[must_use]
    pub fn routes(mut self, routes: impl IntoIterator<Item = RouteName>) -> Self {
        self.routes = routes.into_iter().collect();
        self
    }

    /// Selects events of these kinds.
    #[must_use]
    pub fn kinds(mut self, kinds: impl IntoIterator<Item = EventKind>) -> Self {
        self.kinds = kinds.into_iter().collect();
        self
    }

    /// Selects the events of the chat with this id.
    #[must_use]
    pub fn chat(mut self, id: impl Into<String>) -> Self {
        self.chat = Some(id.into());
        self
    }

    /// Selects the event with this idempotency key.
    #[must_use]
    pub fn key(mut self, key: IdempotencyKey) -> Self {
        self.key = Some(key);
        self
    }

    /// Selects events that were accepted at `from` or later, and before `until`.
    #[must_use]
    pub fn accepted(mut self, from: Option<SystemTime>, until: Option<SystemTime>) -> Self {
        (self.accepted_from, self.accepted_until) = (from, until);
        self
    }

    /// Selects events that have this text in the outcome or the reason of a failure.
    #[must_use]
    pub fn error(mut self, text: impl Into<String>) -> Self {
        self.error = Some(text.into());
        self
    }

    /// Selects events that have this text in their bodies.
    #[must_use]
    pub fn body(mut self, text: impl Into<String>) -> Self {
        self.body = Some(text.into());
        self
    }

    /// Selects events whose last failures have this shape, as [`Inbox::causes`](super::Inbox::causes) returns it.
    #[must_use]
    pub fn shape(mut self, shape: Shape) -> Self {
        self.shape = Some(shape);
        self
    }

    /// Selects events that an [action](super::Inbox::actions) has changed, by its number.
    ///
    /// ```
    /// use tower_webhook::inbox::{EventState, Filter};
    ///
    /// let failed_again = Filter::default().states([EventState::Dead]).changed_by(7);
    /// assert_eq!(failed_again.changed_by, Some(7));
    /// ```
    #[must_use]
    pub fn changed_by(mut self, action: i64) -> Self {
        self.changed_by = Some(action);
        self
    }

    /// Whether an event meets all conditions but those on its failures, its body and its actions, which a summary does not
    /// have.
    ///
    /// ```
    /// # use tower_webhook::inbox::{EventState, EventSummary, Filter};
    /// # fn example(event: &EventSummary) {
    /// let dead = Filter::default().states([EventState::Dead]);
    /// assert_eq!(dead.matches(event), event.state == EventState::Dead);
    /// # }
    /// ```
    #[must_use]
    pub fn matches(&self, event: &EventSummary) -> bool {
        (self.states.is_empty() || self.states.contains(&event.state))
            && (self.routes.is_empty() || self.routes.contains(&event.route))
            && (self.kinds.is_empty() || self.kinds.contains(&event.kind))
            && self
                .chat
                .as_deref()
                .is_none_or(|chat| event.chat.as_deref() == Some(&*stored_chat(chat)))
            && (self.key.is_none() || self.key == event.key)
            && self
                .accepted_from
                .is_none_or(|from| event.accepted_at >= from)
            && self
                .accepted_until
                .is_none_or(|until| event.accepted_at < until)
    }

    /// The filter as a queue needs it, whose events have a chat's id [as it is stored](stored_chat).
    pub(super) fn of_stored(&self) -> Cow<'_, Self> {
        let chat = self.chat.as_deref().map(stored_chat);
        match chat {
            Some(Cow::Owned(chat)) => Cow::Owned(self.clone().chat(chat)),
            _ => Cow::Borrowed(self),
        }
    }

    /// Whether the failures of an event, oldest first, meet the conditions on them.
    pub(crate) fn matches_failures<'a>(
        &self,
        mut failures: impl DoubleEndedIterator<Item = (SystemTime, &'a Failure)> + Clone,
    ) -> bool {
        let error = self.error.as_deref();
        let last = failures.clone().next_back();
        self.matches_last_failure(last.map(|(at, failure)| (at, failure.shape)))
            && error.is_none_or(|text| failures.any(|(_, failure)| failure.contains(text)))
    }

    /// Whether the body of an event has the text.
    pub(crate) fn matches_body(&self, body: Option<&[u8]>) -> bool {
        let text = self.body.as_deref();
        text.is_none_or(|text| body.is_some_and(|body| has_text(body, text)))
    }

    /// Whether a condition is about the last failure of an event.
    pub(crate) fn reads_last_failure(&self) -> bool {
        self.failed_from.is_some() || self.failed_until.is_some() || self.shape.is_some()
    }

    /// Whether the last failure of an event was in time and of the shape, if these are limited.
    pub(crate) fn matches_last_failure(&self, last: Option<(SystemTime, Shape)>) -> bool {
        !self.reads_last_failure()
            || last.is_some_and(|(at, shape)| {
                self.failed_from.is_none_or(|from| at >= from)
                    && self.failed_until.is_none_or(|until| at < until)
                    && self.shape.is_none_or(|wanted| shape == wanted)
            })
    }
}

/// Selects a page of a list of events. The list is sorted by number.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Page {
    /// The last event of the previous page. `None` for the first page.
    pub after: Option<EventId>,
    /// The maximum number of events.
    pub limit: usize,
    /// Whether the newest event comes first.
    pub newest_first: bool,
    /// The time after which the search ends, even if the page is not full: if few of millions of events match, a full
    /// search takes seconds. With `None`, the search ends when the page is full or all events were searched. A queue may
    /// ignore it where it finds events by an index.
    pub within: Option<Duration>,
}

impl Page {
    /// Selects the first page of the oldest events.
    ///
    /// ```
    /// use tower_webhook::inbox::Page;
    ///
    /// let page = Page::oldest(100);
    /// assert_eq!((page.limit, page.newest_first), (100, false));
    /// ```
    #[must_use]
    pub fn oldest(limit: usize) -> Self {
        Self {
            after: None,
            limit,
            newest_first: false,
            within: None,
        }
    }

    /// Selects the first page of the newest events.
    #[must_use]
    pub fn newest(limit: usize) -> Self {
        Self {
            newest_first: true,
            ..Self::oldest(limit)
        }
    }

    /// Selects the events after this one, in the order of the page.
    #[must_use]
    pub fn after(mut self, id: EventId) -> Self {
        self.after = Some(id);
        self
    }

    /// Ends the search after this time.
    #[must_use]
    pub fn within(mut self, time: Duration) -> Self {
        self.within = Some(time);
        self
    }

    /// Whether an event is not on the pages before this one.
    pub(crate) fn is_after(&self, id: EventId) -> bool {
        self.after.is_none_or(|after| match self.newest_first {
            true => id < after,
            false => id > after,
        })
    }
}

/// A page of a list of events.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Listed {
    /// The events.
    pub events: Vec<EventSummary>,
    /// The last event that was searched, if the search ended by its [time](Page::within): the next page begins
    /// [after](Page::after) it. `None` if the page is full or all events were searched.
    pub searched: Option<EventId>,
}

impl Listed {
    /// Returns the event after which the next page begins, if there may be one. `limit` is that of this page.
    ///
    /// ```
    /// # use tower_webhook::inbox::{Filter, Inbox, Page};
    /// # use tower_webhook::store::StoreError;
    /// # async fn example(inbox: &Inbox, filter: &Filter) -> Result<(), StoreError> {
    /// let mut page = Page::oldest(100);
    /// loop {
    ///     let listed = inbox.list(filter, page).await?;
    ///     for event in &listed.events {
    ///         println!("{}", event.id);
    ///     }
    ///     match listed.next(page.limit) {
    ///         Some(last) => page = page.after(last),
    ///         None => return Ok(()),
    ///     }
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn next(&self, limit: usize) -> Option<EventId> {
        let last = self.events.last().filter(|_| self.events.len() >= limit);
        self.searched.or(last.map(|event| event.id))
    }
}

/// A lane that waits for an event that has failed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BlockedLane {
    /// The event for which the lane waits: it is tried again, or is a dead letter that holds the lane.
    pub event: EventSummary,
    /// When the event became a dead letter, or when it failed first with a failure that counts. Without such a failure,
    /// when it was accepted.
    pub since: SystemTime,
    /// The number of events that wait behind it. Not more than [`MOST_WAITING`](Self::MOST_WAITING) are counted.
    pub waiting: u64,
}

impl BlockedLane {
    /// How many of the events that wait are counted.
    pub const MOST_WAITING: u64 = 1000;
}
