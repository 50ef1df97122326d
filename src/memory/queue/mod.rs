//! The queue in memory: for tests, and for the sandbox.

mod accept;
mod actions;
mod claim;
mod counts;
mod lanes;
mod list;
mod person;
mod purge;
mod settle;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::HeaderMap;
use tokio::time::Instant;

use crate::delivery::IdempotencyKey;
use crate::event::EventKind;
use crate::inbox::actions::{Action, ActionKind, BulkStep, By, NewBulk, Which, paused};
use crate::inbox::event::{
    EventId, EventLease, EventState, Lane, Namespace, NewEvent, Settlement, Take, TakenEvent,
};
use crate::inbox::queue::{Accepted, Claims, Settled, Work};
use crate::inbox::records::{
    BlockedLane, Change, EventRecord, Filter, Forgotten, Listed, Page, PastFailure, Pause, Records,
    Stats,
};
use crate::lock::lock;
use crate::store::StoreError;
use crate::telemetry::{Count, CountsOf};

/// Keeps events in memory: for tests, and for the sandbox.
///
/// **What it guarantees.** All promises of an inbox while the process runs. Events are not on disk, and are lost when
/// the process ends. Do not use it in production: the platform would count an event as delivered, and a restart would
/// lose it.
///
/// **Time** is that of [`tokio::time`], so a test can pause it.
///
/// Clones share their events.
///
/// # Testing
///
/// A handler that fails for a week takes milliseconds:
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use std::time::Duration;
///
/// use axum::body::Body;
/// use axum::http::{Request, StatusCode};
/// use tower::{Layer, ServiceExt};
/// use tower_webhook::event::ChatRated;
/// use tower_webhook::inbox::{EventState, Filter, Inbox, Page};
/// use tower_webhook::memory::MemoryQueue;
/// use tower_webhook::{Delivery, EventRouter, Secret, SignatureLayer};
///
/// #[tokio::main(flavor = "current_thread", start_paused = true)] // in a test, #[tokio::test(start_paused = true)]
/// async fn main() {
///     let attempts = Arc::new(AtomicU32::new(0));
///     let counted = attempts.clone();
///     let events = EventRouter::new().on::<ChatRated>(move |_: Delivery<ChatRated>| {
///         counted.fetch_add(1, Ordering::Relaxed);
///         async { Err("the CRM is down".into()) }
///     });
///     let secret = Secret::new("secret").unwrap();
///     let inbox = Inbox::new(MemoryQueue::new());
///     let worker = inbox.worker(events).spawn();
///     let webhooks = SignatureLayer::new(secret.clone()).layer(inbox.accept());
///
///     let body = r#"{"id":"chat-1","rating":1}"#;
///     let request = Request::post("/webhooks")
///         .header("content-type", "application/json")
///         .header("x-service-event", "chat-rated")
///         .header("idempotency-key", "event-1")
///         .header("x-service-hmac-sha256", secret.sign(body.as_bytes()))
///         .body(Body::from(body))
///         .unwrap();
///     let response = webhooks.oneshot(request).await.unwrap();
///     assert_eq!(response.status(), StatusCode::OK);
///
///     let page = Page::oldest(10);
///     tokio::time::sleep(Duration::from_secs(6 * 24 * 60 * 60)).await;
///     let listed = inbox.list(&Filter::default(), page).await.unwrap().events;
///     assert_eq!(listed[0].state, EventState::Retrying);
///     assert!(attempts.load(Ordering::Relaxed) > 100);
///
///     tokio::time::sleep(Duration::from_secs(2 * 24 * 60 * 60)).await;
///     let listed = inbox.list(&Filter::default(), page).await.unwrap().events;
///     assert_eq!(listed[0].state, EventState::Dead);
///     let event = inbox.get(listed[0].id).await.unwrap().unwrap();
///     assert_eq!(event.failures[0].failure.reason, "the CRM is down");
///     worker.drain(Duration::ZERO).await.unwrap();
/// }
/// ```
#[derive(Clone, Default)]
pub struct MemoryQueue {
    state: Arc<Mutex<State>>,
}

impl MemoryQueue {
    /// Creates an empty queue.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// All operations take effect at once, under one lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = lock(&self.state);
        // One time for all steps of an operation, so that no event becomes due between two of them.
        state.now = Instant::now();
        // No task watches leases: each operation first does what has become due since the last one.
        state.return_to_lines();
        state
    }
}

partial_debug!(MemoryQueue, |it| events = it.lock().events.len());

/// The name of an event that is due, in the order in which events are taken.
type Due = (Instant, i64);

/// A kind in a namespace.
type Kind = (Namespace, EventKind);

struct State {
    /// When the current operation began.
    now: Instant,
    /// The time of day at some moment, by which others are shown.
    anchor: (Instant, SystemTime),
    identity: i64,
    last_id: i64,
    last_fence: u128,
    events: BTreeMap<i64, Event>,
    keys: HashMap<u128, Key>,
    /// When keys are forgotten.
    forget: BTreeSet<(Instant, u128)>,
    /// When events that were handled or ignored were settled, for those that have their bodies.
    with_body: BTreeSet<Due>,
    /// When the retention of events ends.
    retained: BTreeSet<Due>,
    /// The events that stand in line, by lane.
    lanes: HashMap<Lane, BTreeSet<i64>>,
    /// The event that a lane waits for: in progress, or a dead letter that holds it. It stands in line, and only those
    /// that returned meanwhile stand before it.
    busy: HashMap<Lane, i64>,
    /// The events that can be taken when they are due, by kind.
    ready: BTreeMap<Kind, BTreeSet<Due>>,
    /// Those of them that crashed before.
    suspects: BTreeMap<Kind, BTreeSet<Due>>,
    /// The events in progress, by the end of their leases.
    taken: BTreeSet<Due>,
    /// The events that return to their lanes when they are due.
    aside: BTreeSet<Due>,
    paused: BTreeMap<EventKind, Paused>,
    all_paused: Option<Paused>,
    /// What persons did, by number.
    actions: BTreeMap<i64, actions::Done>,
    last_action: i64,
    counts: counts::Counts,
    bytes: u64,
}

impl Default for State {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            now,
            anchor: (now, SystemTime::now()),
            identity: fastrand::i64(..),
            last_id: 0,
            last_fence: 0,
            events: BTreeMap::new(),
            keys: HashMap::new(),
            forget: BTreeSet::new(),
            with_body: BTreeSet::new(),
            retained: BTreeSet::new(),
            lanes: HashMap::new(),
            busy: HashMap::new(),
            ready: BTreeMap::new(),
            suspects: BTreeMap::new(),
            taken: BTreeSet::new(),
            aside: BTreeSet::new(),
            paused: BTreeMap::new(),
            all_paused: None,
            actions: BTreeMap::new(),
            last_action: 0,
            counts: counts::Counts::default(),
            bytes: 0,
        }
    }
}

struct Key {
    body: u128,
    event: i64,
    until: Instant,
}

struct Event {
    kind: Kind,
    key: Option<IdempotencyKey>,
    body: Option<Bytes>,
    headers: HeaderMap,
    chat: Option<String>,
    /// `None` for an event that stands in no line.
    lane: Option<Lane>,
    accepted: Instant,
    place: Place,
    failures: u32,
    /// The first failure that counts, or the first one of all while none does. Before any failure, the first snooze.
    first_failed: Option<Instant>,
    uncounted: u32,
    crashes: u32,
    /// The fence of a lease that expired, while the event was not taken again.
    expired: Option<u128>,
    is_redriven: bool,
    past: Vec<(Instant, crate::inbox::event::Failure)>,
    /// The actions that changed it.
    actions: Vec<i64>,
}

/// When something was paused, and the note.
struct Paused {
    since: Instant,
    note: String,
}

/// Where an event is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In line, behind another event or at its head. At the head, it is in `ready`.
    Line { due: Instant },
    /// Retried out of order, and in `aside`.
    Aside { due: Instant },
    /// In progress, and in `taken`.
    Taken { until: Instant, fence: u128 },
    /// Settled.
    Ended { state: EventState, at: Instant },
    /// A dead letter that holds its lane, as its head.
    Holding { at: Instant },
}

/// What an event takes beside its body and its headers.
const OVERHEAD: u64 = 400;

fn size(body: &Bytes, headers: &HeaderMap) -> u64 {
    let lines = headers.iter();
    let headers: usize = lines
        .map(|(name, value)| name.as_str().len() + value.len())
        .sum();
    (body.len() + headers) as u64
}

impl State {
    fn time_of_day(&self, at: Instant) -> SystemTime {
        let (instant, time) = self.anchor;
        match at.checked_duration_since(instant) {
            Some(since) => time + since,
            None => time - instant.duration_since(at),
        }
    }

    fn event(&mut self, id: i64) -> &mut Event {
        self.events
            .get_mut(&id)
            .unwrap_or_else(|| unreachable!("event {id} is in an index"))
    }
}

impl Event {
    /// Whether the event is settled and its body is not kept for a redrive.
    fn is_over(&self) -> bool {
        match self.place {
            Place::Ended { state, .. } => match state {
                EventState::Handled | EventState::Ignored => self.body.is_none(),
                // A dead letter is kept until a person decides what becomes of it.
                state => state == EventState::Discarded,
            },
            _ => false,
        }
    }

    /// Whether its handler asked for another time, and no attempt has failed.
    fn is_snoozed(&self) -> bool {
        self.first_failed.is_some() && self.past.is_empty() && self.failures == 0
    }

    /// Whether the event is unsettled or dead, so that its key is kept.
    fn is_kept(&self) -> bool {
        match self.place {
            Place::Ended { state, .. } => state == EventState::Dead,
            _ => true,
        }
    }
}

/// Longer times are cut, so that no addition overflows.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

impl Work for MemoryQueue {
    const SHARED: bool = false;

    async fn accept(&self, event: NewEvent, take: Option<&Take>) -> Result<Accepted, StoreError> {
        Ok(self.lock().accept(event, take))
    }

    async fn claim(
        &self,
        take: &Take,
        limit: usize,
        suspects: usize,
    ) -> Result<Claims, StoreError> {
        Ok(self.lock().claim(take, limit, suspects))
    }

    async fn take(&self, id: EventId, take: &Take) -> Result<Option<TakenEvent>, StoreError> {
        let mut state = self.lock();
        // The order of a chat comes before a probe: an event behind another one is not taken.
        let can_take = state.may_take(take, id.0) && state.is_first(id.0);
        Ok(can_take.then(|| state.take(id.0, take)))
    }

    async fn extend(
        &self,
        leases: &[EventLease],
        lease: Duration,
    ) -> Result<Vec<Option<bool>>, StoreError> {
        let mut state = self.lock();
        Ok(leases
            .iter()
            // `None` is the answer of a database in which somebody else has locked the event.
            .map(|held| Some(state.extend(held, lease)))
            .collect())
    }

    async fn settle(
        &self,
        lease: &EventLease,
        settlement: &Settlement,
        next: Option<&Take>,
    ) -> Result<Settled, StoreError> {
        Ok(self.lock().settle(lease, settlement, next))
    }

    async fn find(&self, key: u128) -> Result<Option<EventId>, StoreError> {
        let state = self.lock();
        Ok(state.keys.get(&key).map(|key| EventId(key.event)))
    }

    async fn purge(&self, keep_bodies: Duration) -> Result<bool, StoreError> {
        Ok(self.lock().purge(keep_bodies))
    }

    async fn begin_bulk(&self, bulk: &NewBulk, by: &By) -> Result<i64, StoreError> {
        Ok(self.lock().begin_bulk(bulk, by))
    }

    async fn step_bulk(&self, number: i64, step: &BulkStep) -> Result<bool, StoreError> {
        Ok(self.lock().step_bulk(number, step))
    }

    async fn cancel_bulk(&self, number: i64, by: &By) -> Result<bool, StoreError> {
        Ok(self.lock().cancel_bulk(number, by))
    }

    async fn note_counts(&self, counts: &[Count]) -> Result<SystemTime, StoreError> {
        Ok(self.lock().note_counts(counts))
    }

    async fn counts(&self, of: &CountsOf) -> Result<Vec<Count>, StoreError> {
        Ok(self.lock().counts(of))
    }

    async fn size(&self) -> Result<u64, StoreError> {
        Ok(self.lock().bytes)
    }

    async fn identity(&self) -> Result<i64, StoreError> {
        Ok(self.lock().identity)
    }
}

impl Records for MemoryQueue {
    async fn list(&self, filter: &Filter, page: Page) -> Result<Listed, StoreError> {
        Ok(Listed {
            events: self.lock().list(filter, page),
            // `Page::within` has no effect here: a search in memory always reaches the end.
            searched: None,
        })
    }

    async fn blocked_lanes(
        &self,
        chat: Option<&str>,
        after: Option<EventId>,
        limit: usize,
    ) -> Result<Vec<BlockedLane>, StoreError> {
        Ok(self.lock().blocked_lanes(chat, after, limit))
    }

    async fn get(&self, id: EventId) -> Result<Option<EventRecord>, StoreError> {
        let state = self.lock();
        Ok(state.events.get(&id.0).map(|event| EventRecord {
            summary: state.summary(id.0, event),
            body: event.body.clone(),
            headers: event.headers.clone(),
            failures: event
                .past
                .iter()
                .map(|(at, failure)| PastFailure {
                    at: state.time_of_day(*at),
                    failure: failure.clone(),
                })
                .collect(),
        }))
    }

    async fn redrive(
        &self,
        id: EventId,
        from: Option<EventState>,
        by: &By,
    ) -> Result<Change, StoreError> {
        Ok(self.lock().change_by(ActionKind::Redrive, id, from, by))
    }

    async fn discard(
        &self,
        id: EventId,
        from: Option<EventState>,
        by: &By,
    ) -> Result<Change, StoreError> {
        Ok(self.lock().change_by(ActionKind::Discard, id, from, by))
    }

    async fn forget(
        &self,
        chat: &str,
        events: Option<RangeInclusive<EventId>>,
        by: &By,
    ) -> Result<Forgotten, StoreError> {
        Ok(self.lock().forget(chat, events, by))
    }

    async fn pause(
        &self,
        kind: Option<&EventKind>,
        note: Option<&str>,
        by: &By,
    ) -> Result<(), StoreError> {
        let mut state = self.lock();
        let (name, done) = paused(kind, note);
        state.note(by, done, None, Some(name), 0);
        let pause = note.map(|note| Paused {
            since: state.now,
            note: note.to_owned(),
        });
        match (kind, pause) {
            (None, pause) => state.all_paused = pause,
            (Some(kind), Some(pause)) => drop(state.paused.insert(kind.clone(), pause)),
            (Some(kind), None) => drop(state.paused.remove(kind)),
        }
        Ok(())
    }

    async fn pauses(&self) -> Result<Vec<Pause>, StoreError> {
        Ok(self.lock().pauses())
    }

    async fn actions(
        &self,
        which: Which,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<Action>, StoreError> {
        Ok(self.lock().actions(which, before, limit))
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        Ok(self.lock().stats())
    }
}
