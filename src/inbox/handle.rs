//! The handle on an inbox: its settings, and what a person asks of its events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use http::HeaderName;
use tokio::time::{Instant, sleep};

use super::actions::{Action, ActionKind, By, Which};
use super::backlog::Backlog;
use super::event::{EventId, EventState};
use super::headers;
use super::lane::LaneOf;
use super::queue::Queue;
use super::records::{BlockedLane, Change, EventRecord, Filter, Listed, Page, Stats, forget_all};
use super::workers::Workers;
use crate::config::ConfigError;
use crate::delivery::{IdempotencyKey, RawDelivery};
use crate::event::{EventKind, SenderPolicy};
use crate::execution::{Defaults, Given, Limits};
use crate::lock::lock;
use crate::store::{EventKey, StoreError};
use crate::telemetry::{Call, CallTarget, Observer, Observers};

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
    pub(crate) settings: Arc<Settings>,
}

pub(super) struct Shared {
    pub(super) queue: Queue,
    pub(super) workers: Workers,
    pub(super) backlog: Backlog,
    /// Those of the receivers and workers that clones of the inbox have made. A queue knows only their digests, which no
    /// key can be looked up with.
    namespaces: Mutex<BTreeSet<Arc<str>>>,
    /// How far the counts of each process are written.
    pub(super) written: tokio::sync::Mutex<BTreeMap<i64, u64>>,
    #[cfg(feature = "metrics")]
    pub(super) gauges: crate::telemetry::Gauges,
}

#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) limits: Limits,
    pub(super) keep_bodies: Duration,
    pub(super) backlog_limit: u64,
    pub(crate) reject_changed_bodies: bool,
    pub(crate) replay_guard: bool,
    pub(crate) lane_of: LaneOf,
    pub(super) keep_headers: Arc<[HeaderName]>,
    pub(crate) observers: Observers,
    pub(super) by: By,
}

impl Settings {
    /// Calls the queue.
    pub(super) fn call<C>(&self, operation: &'static str, call: C) -> Call<'_, C> {
        self.observers
            .call(CallTarget::Queue, operation, None, call)
    }

    /// Calls the queue within a time limit.
    pub(super) fn call_within<C>(
        &self,
        limit: Duration,
        operation: &'static str,
        call: C,
    ) -> Call<'_, C> {
        self.observers
            .call(CallTarget::Queue, operation, Some(limit), call)
    }
}

impl Inbox {
    /// Creates an inbox on a queue.
    pub fn new(queue: impl Into<Queue>) -> Self {
        Self::on(queue.into())
    }

    fn on(queue: Queue) -> Self {
        let defaults = Defaults {
            store_timeout: Duration::from_secs(2),
            in_flight_wait: Duration::ZERO,
            lease: Some(|_| Duration::from_secs(30)),
        };
        Self {
            shared: Arc::new(Shared {
                queue,
                workers: Workers::default(),
                backlog: Backlog::default(),
                namespaces: Mutex::default(),
                written: tokio::sync::Mutex::default(),
                #[cfg(feature = "metrics")]
                gauges: crate::telemetry::Gauges::default(),
            }),
            settings: Arc::new(Settings {
                limits: Limits::new(defaults),
                keep_bodies: Duration::from_secs(24 * 60 * 60),
                backlog_limit: 10 << 30,
                reject_changed_bodies: false,
                replay_guard: false,
                lane_of: LaneOf::default(),
                keep_headers: Arc::new(headers::TRACE),
                observers: Observers::default(),
                by: By::default(),
            }),
        }
    }

    /// Sets the namespace of the keys, an empty string by default.
    ///
    /// A queue shares its keys with the store in the same file or schema, if both use the same namespace: an event that
    /// an [`IdempotencyLayer`](crate::IdempotencyLayer) handled is then a duplicate. Receivers of different
    /// platforms or accounts have a namespace each, or a queue each: a worker takes only the events of its own namespace.
    /// So those that wait when the namespace of an inbox is changed wait until it is changed back.
    ///
    /// ```
    /// # use tower_webhook::inbox::Inbox;
    /// # use tower_webhook::memory::MemoryQueue;
    /// let inbox = Inbox::new(MemoryQueue::new()).namespace("crm");
    /// ```
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        let namespace = namespace.into();
        let limits = &mut self.set().limits;
        limits.set(|given| given.namespace = Some(namespace));
        self
    }

    /// Derives the retention and `Retry-After` from the limits of another sender.
    ///
    /// ```
    /// # use tower_webhook::SenderPolicy;
    /// # use tower_webhook::inbox::Inbox;
    /// # use tower_webhook::memory::MemoryQueue;
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// let inbox = Inbox::new(MemoryQueue::new()).sender_policy(SenderPolicy::default())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When the lease of attempts, 30 seconds, is not shorter than [`SenderPolicy::retry_every`], or a retention that
    /// was set before is not longer than [`SenderPolicy::retry_for`].
    pub fn sender_policy(self, policy: SenderPolicy) -> Result<Self, ConfigError> {
        self.change(|given| given.sender_policy = Some(policy))
    }

    /// Sets how long the key of an event is remembered after it was accepted: 8 days by default. The key of an
    /// unsettled event or dead letter is remembered for longer if necessary, until the event is settled.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_webhook::inbox::Inbox;
    /// # use tower_webhook::memory::MemoryQueue;
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// let inbox = Inbox::new(MemoryQueue::new()).retention(Duration::from_secs(14 * 24 * 60 * 60))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When it is not longer than [`SenderPolicy::retry_for`], 7 days.
    pub fn retention(self, retention: Duration) -> Result<Self, ConfigError> {
        self.change(|given| given.retention = Some(retention))
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

    /// Sets the time limit for storing an event: 2 seconds by default. When it has passed, the answer is 503. The event
    /// may be stored nevertheless; its next delivery is then a duplicate.
    ///
    /// The workers of this inbox use the same limit for each renewal of leases.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_webhook::inbox::Inbox;
    /// # use tower_webhook::memory::MemoryQueue;
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// let inbox = Inbox::new(MemoryQueue::new()).store_timeout(Duration::from_secs(5))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When it is zero.
    pub fn store_timeout(self, limit: Duration) -> Result<Self, ConfigError> {
        self.change(|given| given.store_timeout = Some(limit))
    }

    pub(crate) fn set(&mut self) -> &mut Settings {
        Arc::make_mut(&mut self.settings)
    }

    pub(super) fn change(mut self, set: impl FnOnce(&mut Given)) -> Result<Self, ConfigError> {
        self.set().limits.change(set)?;
        Ok(self)
    }

    /// Answers with 422 when a key was accepted before with another body. By default, such a delivery is a duplicate: a
    /// warning is logged, and only the first body is handled.
    pub fn reject_changed_bodies(mut self) -> Self {
        self.set().reject_changed_bodies = true;
        self
    }

    /// Answers with 422 when a body was accepted before under another key, because an attacker may have captured it and
    /// sent it again. See [`IdempotencyLayer::replay_guard`](crate::IdempotencyLayer::replay_guard).
    pub fn replay_guard(mut self) -> Self {
        self.set().replay_guard = true;
        self
    }

    /// Sets a function that returns the id of an event's chat, for kinds that this crate does not know. Without such a
    /// function, or if it returns `None` or panics, the event has a lane of its own. The function is called before the
    /// event is stored, so it should be fast. It takes the place of the `order` in a
    /// [sender's description](crate::docs::senders#another-sender).
    ///
    /// ```
    /// # use tower_webhook::inbox::Inbox;
    /// # use tower_webhook::memory::MemoryQueue;
    /// #[derive(serde::Deserialize)]
    /// struct Ticket {
    ///     chat_id: Option<String>,
    /// }
    ///
    /// let inbox = Inbox::new(MemoryQueue::new()).chat_by(|delivery| {
    ///     let ticket: Ticket = delivery.decode().ok()?;
    ///     ticket.chat_id
    /// });
    /// ```
    pub fn chat_by(
        mut self,
        chat: impl Fn(&RawDelivery) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.set().lane_of = LaneOf::with(chat);
        self
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

    /// Reports each attempt of the workers, and each call of the queue, to an observer: see
    /// [`telemetry`](crate::telemetry). The deliveries are reported by
    /// [`SignatureLayer::observer`](crate::SignatureLayer::observer), which should have the same observer.
    ///
    /// ```
    /// # use tower::Layer;
    /// # use tower_webhook::inbox::Inbox;
    /// # use tower_webhook::memory::MemoryQueue;
    /// # use tower_webhook::telemetry::FailureBudget;
    /// # use tower_webhook::{Secret, SignatureLayer};
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// let budget = FailureBudget::default();
    /// let inbox = Inbox::new(MemoryQueue::new()).observer(budget.clone());
    /// let webhooks = SignatureLayer::new(Secret::new("8c1f…")?)
    ///     .observer(budget.clone())
    ///     .layer(inbox.accept());
    /// # Ok(())
    /// # }
    /// ```
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.set().observers = Observers::new(observer);
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
    /// The events of a chat, and the event of a key, are found by an index. A key is looked up in this inbox's
    /// [`namespace`](Self::namespace), and in those of the receivers and workers that were made from its clones. In each, it
    /// finds one event: the last one that was accepted with it.
    ///
    /// # Errors
    ///
    /// When the queue fails.
    pub async fn list(&self, filter: &Filter, page: Page) -> Result<Listed, StoreError> {
        let list = async {
            let Some(key) = &filter.key else {
                return self.shared.queue.list.list(filter, page).await;
            };
            let mut events = self.with_key(key).await?;
            events.retain(|event| {
                let failures = event.failures.iter().map(|past| (past.at, &past.failure));
                filter.matches(&event.summary)
                    && filter.matches_failures(failures)
                    && filter.matches_body(event.body.as_deref())
                    && page.is_after(event.summary.id)
            });
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
        self.settings.call("list", list).await
    }

    /// Whether an event with this key was accepted before, or handled inline.
    pub(super) async fn has(&self, key: Option<&IdempotencyKey>) -> bool {
        let Some(key) = key else { return false };
        let limit = self.settings.limits.store_timeout;
        let find = self
            .shared
            .queue
            .list
            .find(digest(&self.settings.limits.namespace, key));
        let found = self.settings.call_within(limit, "find", find).await;
        found.is_ok_and(|event| event.is_some())
    }

    /// Has keys looked up in the namespace of this clone, too.
    pub(super) fn note_namespace(&self) {
        lock(&self.shared.namespaces).insert(self.settings.limits.namespace.clone());
    }

    /// The last event with this key in each namespace that is known here.
    async fn with_key(&self, key: &IdempotencyKey) -> Result<Vec<EventRecord>, StoreError> {
        let mut namespaces = lock(&self.shared.namespaces).clone();
        namespaces.insert(self.settings.limits.namespace.clone());
        let mut events = Vec::new();
        for namespace in namespaces {
            let Some(id) = self.shared.queue.list.find(digest(&namespace, key)).await? else {
                continue;
            };
            // The event may have been deleted.
            let event = self.shared.queue.list.get(id).await?;
            events.extend(event.filter(|event| event.summary.key.as_ref() == Some(key)));
        }
        Ok(events)
    }

    /// Returns up to `limit` lanes that wait for an event that has failed: one that is tried again, or a dead letter
    /// that holds its lane. They are sorted by the numbers of these events, beginning after `after`. With `chat`, only
    /// the lane of that chat is returned, if it is blocked.
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
        let lanes = self.shared.queue.list.blocked_lanes(chat, after, limit);
        self.settings.call("blocked-lanes", lanes).await
    }

    /// Returns an event with its body, its headers and its failures, if there is such an event.
    ///
    /// # Errors
    ///
    /// When the queue fails.
    pub async fn get(&self, id: EventId) -> Result<Option<EventRecord>, StoreError> {
        self.settings
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
        let change = self.settings.call("redrive", redrive).await?;
        if change == Change::Made && !self.shared.workers.tripped().is_empty() {
            // If this fails, the event waits for a probe as all others of its kind.
            let event = self
                .settings
                .call("get", self.shared.queue.list.get(id))
                .await;
            if let Ok(Some(event)) = event {
                self.shared.workers.probe(&event.summary.kind, id);
            }
        }
        self.shared.workers.wake();
        Ok(change)
    }

    /// Returns the kinds that are [tripped](crate::docs::inbox#tripped-event-types) in a worker of this inbox, and when the
    /// next event of each is tried. A time in the past means that an attempt is in progress.
    #[must_use]
    pub fn tripped(&self) -> BTreeMap<EventKind, SystemTime> {
        let (now, time) = (Instant::now(), SystemTime::now());
        let tripped = self.shared.workers.tripped().into_iter();
        let at = |next: Instant| match next.checked_duration_since(now) {
            Some(left) => time + left,
            None => time - now.duration_since(next),
        };
        tripped.map(|(kind, next)| (kind, at(next))).collect()
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
        let change = self.settings.call("discard", discard).await?;
        if change == Change::Made {
            match revoke {
                Some(revoke) => revoke(),
                // Another one has begun meanwhile.
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
        let forget = forget_all(&*self.shared.queue.forget, chat, &self.settings.by);
        let deleted = self.settings.call("forget", forget).await?;
        self.shared.workers.check();
        self.shared.workers.wake();
        Ok(deleted)
    }

    /// Pauses the handling of events of one kind, or with `None` of all events. Events are still accepted. The pause is
    /// stored in the queue, with a note that says who paused it and why: all workers respect it within a second, and
    /// after a restart. Attempts in progress are not interrupted.
    ///
    /// # Errors
    ///
    /// When the queue fails.
    pub async fn pause(&self, kind: Option<&EventKind>, note: &str) -> Result<(), StoreError> {
        let pause = self
            .shared
            .queue
            .change
            .pause(kind, Some(note), &self.settings.by);
        self.settings.call("pause", pause).await
    }

    /// Ends the [`pause`](Self::pause) of a kind, or with `None` the pause of all events. A kind that was paused on its
    /// own stays paused.
    ///
    /// # Errors
    ///
    /// When the queue fails.
    pub async fn resume(&self, kind: Option<&EventKind>) -> Result<(), StoreError> {
        let resume = self
            .shared
            .queue
            .change
            .pause(kind, None, &self.settings.by);
        self.settings.call("pause", resume).await?;
        self.shared.workers.wake();
        Ok(())
    }

    /// Returns up to `limit` actions of persons, newest first: redrives, discards, pauses, resumes, and forgotten chats. With
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
        self.settings.call("actions", actions).await
    }

    /// Counts the events that are unsettled or dead, by kind, and lists what is paused.
    ///
    /// # Errors
    ///
    /// When the queue fails.
    pub async fn stats(&self) -> Result<Stats, StoreError> {
        self.settings
            .call("stats", self.shared.queue.count.stats())
            .await
    }

    /// Waits until every event is settled or dead, and returns the counts, which are then those of dead letters.
    ///
    /// It asks the queue at intervals that double from 1 ms up to a minute. It can wait for days while an event is
    /// retried, and for ever while one is paused, so it is meant for tests:
    ///
    /// ```
    /// # use tower::Layer;
    /// # use tower_webhook::event::ChatAssigned;
    /// # use tower_webhook::inbox::Inbox;
    /// # use tower_webhook::memory::MemoryQueue;
    /// # use tower_webhook::{Delivery, EventRouter, Secret, SignatureLayer};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use tower_webhook_sandbox::{Sandbox, Webhook};
    /// # let events = EventRouter::new().on::<ChatAssigned>(async |_: Delivery<ChatAssigned>| Ok(()));
    /// let secret = Secret::new("secret")?;
    /// let inbox = Inbox::new(MemoryQueue::new());
    /// let worker = inbox.worker(events).spawn();
    ///
    /// let receiver = SignatureLayer::new(secret.clone()).layer(inbox.accept());
    /// let sandbox = Sandbox::in_process(receiver);
    /// sandbox.configure_all(&Webhook::new("/webhooks").signed(secret));
    /// sandbox.chat().assign();
    ///
    /// let report = sandbox.finish().await;
    /// assert!(report.is_all_delivered(), "{report}");
    /// let stats = inbox.finish().await?;
    /// assert!(stats.is_all_handled(), "{stats}");
    /// # drop(worker);
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

fn digest(namespace: &str, key: &IdempotencyKey) -> u128 {
    EventKey::new(namespace, key.as_bytes(), b"").key()
}

impl<Q: Into<Queue>> From<Q> for Inbox {
    fn from(queue: Q) -> Self {
        Self::new(queue)
    }
}

partial_debug!(Inbox, |it| queue = it.shared.queue);
