//! The handle on an inbox: its settings, and what a person asks of its events.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, LazyLock, Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use http::HeaderName;
use tokio::time::{Instant, sleep, timeout};

use super::actions::{Action, ActionKind, By, Which};
use super::backlog::Backlog;
use super::event::{EventId, EventState, NewEvent};
use super::handlers::{AWAY_AFTER, Retired};
use super::headers;
use super::lane::stored_chat;
use super::queue::Queue;
use super::records::{
    BlockedLane, Change, EventRecord, EventSummary, Filter, LATE, Listed, Page, Stats, forget_all,
};
use super::rules::Rules;
use super::worker::Worker;
use super::workers::Workers;
use crate::delivery::{IdempotencyKey, RawDelivery};
use crate::lock::lock;
use crate::route::{EventType, RouteName, Scope};
use crate::store::{EventKey, StoreError};
use crate::telemetry::{Call, CallTarget, Observers};

/// Accepts events into a [`Queue`], and lists and changes them.
///
/// Clones share the queue and the workers. A setter changes only the clone on which it is called, and the services and
/// workers that this clone makes later.
///
/// The defaults of the setters are also in the [table of limits](crate::docs::guarantees#limits).
#[derive(Clone)]
#[must_use]
pub struct Inbox {
    pub(super) shared: Arc<Shared>,
    pub(super) settings: Arc<Settings>,
}

pub(super) struct Shared {
    pub(super) queue: Queue,
    pub(super) workers: Workers,
    pub(super) backlog: Backlog,
    /// The routes of the receivers and workers that clones of the inbox have made, at which keys are looked up, and whether
    /// deliveries are accepted here.
    routes: Mutex<BTreeMap<RouteName, bool>>,
    /// Set by the first route that has one: it sees all routes, the worker, and the calls of each clone.
    observers: OnceLock<Observers>,
    /// How far the counts of each process are written.
    pub(super) written: tokio::sync::Mutex<BTreeMap<i64, u64>>,
    /// The bytes of bodies that wait for the queue.
    pub(super) waiting: AtomicUsize,
    /// Whether the last try to write counts has failed.
    pub(super) loses_counts: AtomicBool,
    #[cfg(feature = "metrics")]
    pub(super) gauges: crate::telemetry::Gauges,
}

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) keep_bodies: Duration,
    pub(super) backlog_limit: u64,
    pub(super) keep_headers: Arc<[HeaderName]>,
    pub(super) rules: Rules,
    pub(super) by: By,
}

impl Shared {
    pub(super) fn observers(&self) -> &Observers {
        static NOBODY: LazyLock<Observers> = LazyLock::new(Observers::default);
        self.observers.get().unwrap_or(&NOBODY)
    }

    /// Calls the queue.
    pub(super) fn call<C>(&self, operation: &'static str, call: C) -> Call<'_, C> {
        self.observers()
            .call(CallTarget::Inbox, operation, None, call)
    }

    /// Calls the queue within a time limit.
    pub(super) fn call_within<C>(
        &self,
        limit: Duration,
        operation: &'static str,
        call: C,
    ) -> Call<'_, C> {
        self.observers()
            .call(CallTarget::Inbox, operation, Some(limit), call)
    }

    /// Whether an event with the key of this delivery was accepted before, or handled inline.
    async fn has(&self, delivery: &RawDelivery, limit: Duration) -> bool {
        let Some(key) = delivery.key() else {
            return false;
        };
        let find = self.queue.list.find(digest(delivery.route(), key));
        let found = self.call_within(limit, "find", find).await;
        found.is_ok_and(|event| event.is_some())
    }

    /// Whether the queue has the first event of a delivery and the last one: they are stored in one step.
    pub(super) async fn has_all(&self, events: &[NewEvent], limit: Duration) -> bool {
        let (Some(first), Some(last)) = (events.first(), events.last()) else {
            return true;
        };
        self.has(&first.delivery, limit).await
            && (events.len() == 1 || self.has(&last.delivery, limit).await)
    }

    /// Has keys looked up at this route, too.
    pub(super) fn note_route(&self, route: &RouteName, accepts: bool) {
        let mut routes = lock(&self.routes);
        *routes.entry(route.clone()).or_default() |= accepts;
    }

    /// See [`Inbox::idle_routes`].
    pub(super) fn idle_routes(&self) -> Vec<RouteName> {
        let mut idle = self.workers.idle(LATE);
        let routes = lock(&self.routes);
        idle.retain(|route| !routes.get(route).copied().unwrap_or_default());
        idle.into_iter().collect()
    }
}

impl Inbox {
    /// Creates an inbox on a queue.
    pub fn new(queue: impl Into<Queue>) -> Self {
        Self::on(queue.into())
    }

    fn on(queue: Queue) -> Self {
        Self {
            shared: Arc::new(Shared {
                queue,
                workers: Workers::default(),
                backlog: Backlog::default(),
                routes: Mutex::default(),
                observers: OnceLock::new(),
                written: tokio::sync::Mutex::default(),
                waiting: AtomicUsize::new(0),
                loses_counts: AtomicBool::new(false),
                #[cfg(feature = "metrics")]
                gauges: crate::telemetry::Gauges::default(),
            }),
            settings: Arc::new(Settings {
                keep_bodies: Duration::from_secs(24 * 60 * 60),
                backlog_limit: 10 << 30,
                keep_headers: Arc::new(headers::TRACE),
                rules: Rules::default(),
                by: By::default(),
            }),
        }
    }

    /// Has everything of this inbox observed. Returns whether nothing else was before.
    pub(crate) fn observe(&self, observers: Observers) -> bool {
        // A route without one could not get it any more.
        if !lock(&self.shared.routes).is_empty() {
            return false;
        }
        self.shared.queue.observed.by(&observers);
        self.shared.observers.set(observers).is_ok()
    }

    pub(crate) fn observers(&self) -> &Observers {
        self.shared.observers()
    }

    /// Changes the settings of the workers that are started for this inbox, such as [`concurrency`](Worker::concurrency) and
    /// [`retry`](Worker::retry).
    ///
    /// ```
    /// # use tower_webhook::inbox::Inbox;
    /// # use tower_webhook::memory::MemoryQueue;
    /// let inbox = Inbox::new(MemoryQueue::new()).worker(|worker| worker.concurrency(8));
    /// ```
    pub fn worker(mut self, change: impl FnOnce(Worker) -> Worker) -> Self {
        let settings = self.set();
        settings.rules = change(Worker(settings.rules.clone())).0;
        self
    }

    /// Sets how long the body of an event is kept after it was handled or ignored: 24 hours by default. With zero, it
    /// is deleted within about a minute. An event without its body cannot be redriven. See
    /// [personal data](crate::docs::inbox#personal-data).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_webhook::inbox::Inbox;
    /// # use tower_webhook::memory::MemoryQueue;
    /// let inbox = Inbox::new(MemoryQueue::new()).keep_bodies(Duration::ZERO);
    /// ```
    pub fn keep_bodies(mut self, duration: Duration) -> Self {
        self.set().keep_bodies = duration;
        self
    }

    /// Sets the size of the queue, in bytes, at which deliveries are answered with 503 (`backlog-full`): 10 GiB by
    /// default. A warning is logged at 80 % of it. Deliveries of events that are already stored are not refused.
    ///
    /// ```
    /// # use tower_webhook::inbox::Inbox;
    /// # use tower_webhook::memory::MemoryQueue;
    /// let inbox = Inbox::new(MemoryQueue::new()).backlog_limit(1 << 30);
    /// ```
    pub fn backlog_limit(mut self, bytes: u64) -> Self {
        self.set().backlog_limit = bytes;
        self
    }

    fn set(&mut self) -> &mut Settings {
        Arc::make_mut(&mut self.settings)
    }

    /// Sets the names of the headers that are kept with an event: by default `traceparent` and `tracestate`, which can
    /// link an attempt to its request days later. Their values are stored, so do not name a header that holds a secret.
    /// A value of more than 512 bytes is not kept. The headers are deleted with the body.
    ///
    /// A handler reads them with [`RawDelivery::headers`].
    ///
    /// ```
    /// # use http::HeaderName;
    /// # use tower_webhook::inbox::Inbox;
    /// # use tower_webhook::memory::MemoryQueue;
    /// let names = ["traceparent", "tracestate", "x-request-id"].map(HeaderName::from_static);
    /// let inbox = Inbox::new(MemoryQueue::new()).keep_headers(names);
    /// ```
    pub fn keep_headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.set().keep_headers = names.into_iter().collect();
        self
    }

    /// Sets who makes the changes of this clone, and why, for the [actions](Self::actions).
    ///
    /// ```
    /// # use tower_webhook::inbox::{By, EventId, Inbox};
    /// # use tower_webhook::store::StoreError;
    /// # async fn example(inbox: &Inbox) -> Result<(), StoreError> {
    /// let by = By::new("ada").because("the CRM is back");
    /// inbox.clone().by(by).redrive(EventId(17), None).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn by(mut self, by: By) -> Self {
        self.set().by = by;
        self
    }

    /// Returns a page of the events that match, without their bodies. If [`Listed::searched`] is set, a page that is not
    /// full is not the last one.
    ///
    /// The events of a chat, and the event of a key, are found by an index. A key is looked up at the filter's routes, at the
    /// chat platform's, and at those of the receivers and workers that were made from a clone of this inbox. At each, it finds
    /// one event: the last accepted one.
    ///
    /// # Errors
    ///
    /// When the queue fails.
    pub async fn list(&self, filter: &Filter, page: Page) -> Result<Listed, StoreError> {
        let filter = &*filter.of_stored();
        let list = async {
            let Some(key) = &filter.key else {
                return self.shared.queue.list.list(filter, page).await;
            };
            let mut events = self.with_key(key, &filter.routes).await?;
            events.retain(|event| {
                let failures = event.failures.iter().map(|past| (past.at, &past.failure));
                filter.matches(&event.summary)
                    && filter.matches_failures(failures)
                    && filter.matches_body(event.body.as_deref())
                    && page.is_after(event.summary.id)
            });
            if let Some(action) = filter.changed_by {
                events = self.changed_by(action, events).await?;
            }
            let mut events: Vec<_> = events.into_iter().map(|event| event.summary).collect();
            events.sort_unstable_by_key(|event| event.id);
            if page.newest_first {
                events.reverse();
            }
            events.truncate(page.limit);
            Ok(Listed {
                events,
                searched: None,
            })
        };
        self.shared.call("list", list).await
    }

    /// The last event with this key at each route that is known here or asked for.
    async fn with_key(
        &self,
        key: &IdempotencyKey,
        asked: &[RouteName],
    ) -> Result<Vec<EventRecord>, StoreError> {
        let mut routes = lock(&self.shared.routes).clone();
        for route in asked.iter().chain([&RouteName::default()]) {
            routes.entry(route.clone()).or_default();
        }
        let mut events = Vec::new();
        for route in routes.into_keys() {
            let Some(id) = self.shared.queue.list.find(digest(&route, key)).await? else {
                continue;
            };
            // The event may have been deleted.
            let event = self.shared.queue.list.get(id).await?;
            events.extend(event.filter(|event| event.summary.key.as_ref() == Some(key)));
        }
        Ok(events)
    }

    /// Those of some events that an action has changed.
    async fn changed_by(
        &self,
        action: i64,
        events: Vec<EventRecord>,
    ) -> Result<Vec<EventRecord>, StoreError> {
        let mut changed = Vec::new();
        for event in events {
            let of = Which::Of(event.summary.id);
            // The newest one up to this number.
            let before = Some(action.saturating_add(1));
            let found = self.shared.queue.list.actions(of, before, 1).await?;
            if found.iter().any(|it| it.number == action) {
                changed.push(event);
            }
        }
        Ok(changed)
    }

    /// Returns up to `limit` lanes that wait for an event that has failed: it is tried again, or is a dead letter that
    /// holds its lane. They are sorted by the numbers of these events, beginning after `after`. With `chat`, only the
    /// lane of that chat is returned, if it is blocked.
    ///
    /// # Errors
    ///
    /// When the queue fails.
    pub async fn blocked_lanes(
        &self,
        chat: Option<&str>,
        after: Option<EventId>,
        limit: usize,
    ) -> Result<Vec<BlockedLane>, StoreError> {
        let chat = chat.map(stored_chat);
        let list = &self.shared.queue.list;
        let lanes = list.blocked_lanes(chat.as_deref(), after, limit);
        self.shared.call("blocked-lanes", lanes).await
    }

    /// Returns an event with its body, its headers and its failures, if there is such an event.
    ///
    /// # Errors
    ///
    /// When the queue fails.
    pub async fn get(&self, id: EventId) -> Result<Option<EventRecord>, StoreError> {
        self.shared
            .call("get", self.shared.queue.list.get(id))
            .await
    }

    /// Tries a dead or settled event again. It does not wait for its lane, and its handler can recognise it by
    /// [`Delivery::is_redriven`](crate::Delivery::is_redriven). An event that waits for its next attempt is due at
    /// once, and keeps its place in its lane.
    ///
    /// Nothing is changed if an attempt is in progress ([`Change::WrongState`]), or if the event's body was deleted
    /// ([`Change::WithoutBody`]). With `from`, an event in another state is not changed either: use it when a person
    /// decides by the state that was shown, or when two programs may redrive the same events.
    ///
    /// # Errors
    ///
    /// When the queue fails.
    pub async fn redrive(
        &self,
        id: EventId,
        from: Option<EventState>,
    ) -> Result<Change, StoreError> {
        let redrive =
            self.shared
                .queue
                .change
                .change(ActionKind::Redrive, id, from, &self.settings.by);
        let change = self.shared.call("redrive", redrive).await?;
        if change == Change::Made && !self.shared.workers.slowed().is_empty() {
            // If this fails, the event waits for its turn as all others of its type.
            let event = self
                .shared
                .call("get", self.shared.queue.list.get(id))
                .await;
            if let Ok(Some(event)) = event {
                let EventSummary { route, kind, .. } = event.summary;
                self.shared.workers.want(&EventType::new(route, kind), id);
            }
        }
        self.shared.workers.wake();
        Ok(change)
    }

    /// Returns the event types whose attempts are [slowed down](crate::docs::inbox#types-that-fail) in a worker of this inbox, and
    /// when the next one of each may begin: now, if that is in the past.
    #[must_use]
    pub fn slowed(&self) -> BTreeMap<EventType, SystemTime> {
        let (now, time) = (Instant::now(), SystemTime::now());
        let slowed = self.shared.workers.slowed().into_iter();
        let at = |next: Instant| match next.checked_duration_since(now) {
            Some(left) => time + left,
            None => time - now.duration_since(next),
        };
        slowed.map(|(of, next)| (of, at(next))).collect()
    }

    /// Discards an event that is unsettled or dead. An attempt in progress loses its lease: its handler is dropped at
    /// once if a worker of this inbox runs it, and otherwise at the next renewal, within a third of the lease.
    ///
    /// Nothing is changed if the event is settled, or with `from`, if it is in another state ([`Change::WrongState`]).
    ///
    /// # Errors
    ///
    /// When the queue fails.
    pub async fn discard(
        &self,
        id: EventId,
        from: Option<EventState>,
    ) -> Result<Change, StoreError> {
        // The attempt of now: when this was discarded, the event may be redriven, and have another one.
        let revoke = self.shared.workers.revocation(id);
        let discard =
            self.shared
                .queue
                .change
                .change(ActionKind::Discard, id, from, &self.settings.by);
        let change = self.shared.call("discard", discard).await?;
        if change == Change::Made {
            match revoke {
                Some(revoke) => revoke(),
                // Another attempt has begun since.
                None if self.shared.workers.revocation(id).is_some() => self.shared.workers.check(),
                None => {}
            }
        }
        self.shared.workers.wake();
        Ok(change)
    }

    /// Deletes the bodies of all events of a chat, and returns their number. Events that are unsettled or dead are
    /// [discarded](Self::discard). The texts of their failures are deleted, too. The keys, kinds and times of the
    /// events, and the id of the chat, are kept for the retention. [Actions](Self::actions) on these events lose the
    /// numbers of the events, and their reasons. Events whose chat is unknown are not found. See
    /// [personal data](crate::docs::inbox#personal-data).
    ///
    /// # Errors
    ///
    /// When the queue fails.
    pub async fn forget(&self, chat: &str) -> Result<u64, StoreError> {
        let chat = stored_chat(chat);
        let forget = forget_all(&*self.shared.queue.forget, &chat, &self.settings.by);
        let deleted = self.shared.call("forget", forget).await?;
        self.shared.workers.check();
        self.shared.workers.wake();
        Ok(deleted)
    }

    /// Pauses the handling of an event type, of a route, or of all events. Events are still accepted. The pause is stored in
    /// the queue, with a note that says who paused it and why: all workers respect it within a second, and after a restart.
    /// Attempts in progress are not interrupted.
    ///
    /// ```
    /// # use tower_webhook::inbox::Inbox;
    /// use tower_webhook::EventKind;
    /// use tower_webhook::inbox::Scope;
    ///
    /// # async fn example(inbox: &Inbox) -> Result<(), Box<dyn std::error::Error>> {
    /// inbox.pause(EventKind::CHAT_RATED, "the CRM is down").await?;
    /// inbox.pause(Scope::Route("github".parse()?), "its handlers are being deployed").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When the queue fails.
    pub async fn pause(&self, of: impl Into<Scope>, note: &str) -> Result<(), StoreError> {
        self.set_pause(&of.into(), Some(note)).await
    }

    /// Ends a [`pause`](Self::pause). What was paused by itself within it stays paused.
    ///
    /// # Errors
    ///
    /// When the queue fails.
    pub async fn resume(&self, of: impl Into<Scope>) -> Result<(), StoreError> {
        self.set_pause(&of.into(), None).await?;
        self.shared.workers.wake();
        Ok(())
    }

    /// Ends the note on a handler, when its worker is not coming back: of an event type, or of a route's other types. Their events
    /// are then ignored, within about ten minutes, unless another worker handles them. The note of a worker that was seen in the
    /// last ten minutes is [kept](Retired::Kept). See [event types without a
    /// handler](crate::docs::inbox#event-types-without-a-handler), and [`Stats::handlers`] for all notes.
    ///
    /// ```
    /// # use tower_webhook::EventKind;
    /// # use tower_webhook::inbox::Inbox;
    /// # use tower_webhook::store::StoreError;
    /// # async fn example(inbox: &Inbox) -> Result<(), StoreError> {
    /// inbox.retire(EventKind::CHAT_RATED).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When the queue fails.
    pub async fn retire(&self, of: impl Into<Scope>) -> Result<Retired, StoreError> {
        let of = of.into();
        // That of all workers is nobody's.
        if of == Scope::Everything {
            return Ok(Retired::NotNoted);
        }
        let count = &self.shared.queue.count;
        let retire = count.retire(&of, AWAY_AFTER, &self.settings.by);
        self.shared.call("retire", retire).await
    }

    async fn set_pause(&self, of: &Scope, note: Option<&str>) -> Result<(), StoreError> {
        let pause = self.shared.queue.change.pause(of, note, &self.settings.by);
        self.shared.call("pause", pause).await
    }

    /// Returns up to `limit` actions of persons, newest first: redrives, discards, pauses, resumes, retired handlers, and forgotten chats. With
    /// `before`, those with smaller numbers. They are kept for 90 days, and
    /// at most 100,000 of them, or 1,000 in memory, beside changes that are running or interrupted.
    ///
    /// # Errors
    ///
    /// When the queue fails.
    pub async fn actions(
        &self,
        which: Which,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<Action>, StoreError> {
        let actions = self.shared.queue.list.actions(which, before, limit);
        self.shared.call("actions", actions).await
    }

    /// Counts the events that are unsettled or dead, by kind, and lists what is paused.
    ///
    /// # Errors
    ///
    /// When the queue fails.
    pub async fn stats(&self) -> Result<Stats, StoreError> {
        self.shared
            .call("stats", self.shared.queue.count.stats())
            .await
    }

    /// Whether a worker of this process handles a route. Another process may handle the other routes.
    #[must_use]
    pub fn handles(&self, route: &RouteName) -> bool {
        self.shared.workers.handle(route)
    }

    /// Returns the routes that a worker of this process handles and another process accepts, of which the worker has had no
    /// event in the ten minutes or more since it was started. Perhaps the accepting process has another name for the route.
    #[must_use]
    pub fn idle_routes(&self) -> Vec<RouteName> {
        self.shared.idle_routes()
    }

    /// Whether deliveries are accepted now, for the readiness of your application: within a second, also while the database is
    /// away. It is false only where deliveries would be answered with 503: the database cannot be written to, or the
    /// [`backlog_limit`](Self::backlog_limit) is reached. A spool in front of the database accepts until it is full.
    ///
    /// ```
    /// # use tower_webhook::inbox::Inbox;
    /// # use tower_webhook::memory::MemoryQueue;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let inbox = Inbox::new(MemoryQueue::new());
    /// assert!(inbox.is_ready().await);
    /// # }
    /// ```
    pub async fn is_ready(&self) -> bool {
        let shared = &*self.shared;
        let tables = shared.queue.measure.tables();
        let tables = shared.call_within(READY_WITHIN, "tables", tables);
        let size = shared.call("size", shared.queue.measure.size());
        let (tables, size) = tokio::join!(tables, timeout(READY_WITHIN, size));
        // That of a large table may take longer: as for deliveries, the last known one counts.
        let bytes = size.unwrap_or_else(|_| Ok(shared.backlog.bytes()));
        tables.is_ok_and(|tables| tables.is_writable)
            && bytes.is_ok_and(|bytes| bytes < self.settings.backlog_limit)
    }

    /// Whether the workers of this process can take events from the queue: false when none of a worker's claims has succeeded
    /// for 10 s. Events of new chats may still be handled, but no retried one. The log has the reason.
    ///
    /// This is an alarm, and no question for the readiness of your application, as deliveries are accepted: see
    /// [`is_ready`](Self::is_ready).
    #[must_use]
    pub fn can_claim(&self) -> bool {
        self.shared.workers.can_claim()
    }

    /// Waits until every event is settled or dead, and returns the counts, which are then those of dead letters.
    ///
    /// It asks the queue at intervals that double from 1 ms up to a minute. It can wait for days while an event is
    /// retried, and without end while one is paused, so it is meant for tests:
    ///
    /// ```
    /// # use tower_webhook::event::ChatAssigned;
    /// # use tower_webhook::inbox::Inbox;
    /// # use tower_webhook::memory::MemoryQueue;
    /// # use tower_webhook::{Delivery, EventRouter, Secret, Webhooks};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use tower_webhook_sandbox::{Sandbox, Webhook};
    /// # let events = EventRouter::new().on::<ChatAssigned>(async |_: Delivery<ChatAssigned>| Ok(()));
    /// let secret = Secret::new("secret")?;
    /// let inbox = Inbox::new(MemoryQueue::new());
    /// let (receiver, running) = Webhooks::new(secret.clone()).inbox(inbox.clone()).start(events)?;
    ///
    /// let sandbox = Sandbox::in_process(receiver);
    /// sandbox.configure_all(&Webhook::new("/webhooks").signed(secret));
    /// sandbox.chat().assign();
    ///
    /// let report = sandbox.finish().await;
    /// assert!(report.is_all_delivered(), "{report}");
    /// let stats = inbox.finish().await?;
    /// assert!(stats.is_all_handled(), "{stats}");
    /// # drop(running);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When the queue fails.
    pub async fn finish(&self) -> Result<Stats, StoreError> {
        let mut pause = Duration::from_millis(1);
        loop {
            let stats = self.stats().await?;
            if stats.unsettled() == 0 {
                return Ok(stats);
            }
            sleep(pause).await;
            pause = (2 * pause).min(Duration::from_secs(60));
        }
    }
}

/// How long a program that asks whether it is ready waits for the queue, so that its own response comes within a second.
const READY_WITHIN: Duration = Duration::from_millis(900);

fn digest(route: &RouteName, key: &IdempotencyKey) -> u128 {
    EventKey::new(route.namespace(), key.as_bytes(), b"").key()
}

impl<Q: Into<Queue>> From<Q> for Inbox {
    fn from(queue: Q) -> Self {
        Self::new(queue)
    }
}

partial_debug!(Inbox, |it| queue = it.shared.queue);
