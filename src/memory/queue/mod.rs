//! The queue in memory: for tests, and for the sandbox.

mod accept;
mod actions;
mod blocked;
mod change;
mod claim;
mod count;
mod forget;
mod handlers;
mod lanes;
mod list;
mod measure;
mod purge;
mod settle;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::HeaderMap;
use tokio::time::Instant;

use crate::delivery::{IdempotencyKey, Item};
use crate::inbox::Queue;
use crate::inbox::event::{EventState, Lane};
use crate::inbox::handlers::HandlerNote;
use crate::lock::lock;
use crate::route::{EventType, Scope};

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
/// use tower::ServiceExt;
/// use tower_webhook::event::ChatRated;
/// use tower_webhook::inbox::{EventState, Filter, Inbox, Page};
/// use tower_webhook::memory::MemoryQueue;
/// use tower_webhook::{Delivery, EventRouter, Secret, Webhooks};
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
///     let webhooks = Webhooks::new(secret.clone()).inbox(inbox.clone());
///     let (webhooks, running) = webhooks.start(events).unwrap();
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
///     running.drain(Duration::ZERO).await.unwrap();
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

impl From<MemoryQueue> for Queue {
    fn from(queue: MemoryQueue) -> Self {
        Self::of(queue, false)
    }
}

partial_debug!(MemoryQueue, |it| events = it.lock().events.len());

/// The name of an event that is due, in the order in which events are taken.
type Due = (Instant, i64);

type Ready = BTreeMap<EventType, BTreeSet<Due>>;

struct State {
    /// When the current operation began.
    now: Instant,
    /// The time of day at some moment, by which others are shown.
    anchor: (Instant, SystemTime),
    identity: i64,
    last_id: i64,
    last_fence: u128,
    events: BTreeMap<i64, Event>,
    keys: HashMap<u128, KnownKey>,
    /// When keys are forgotten.
    forget: BTreeSet<(Instant, u128)>,
    /// When handled and ignored events were settled, as long as they have their bodies.
    with_body: BTreeSet<Due>,
    /// When the retention of events ends.
    retained: BTreeSet<Due>,
    /// The events that stand in line, by lane.
    lanes: HashMap<Lane, BTreeSet<i64>>,
    /// The event that a lane waits for: in progress, or a dead letter that holds it. It stands in line, and only events
    /// that returned since stand before it.
    busy: HashMap<Lane, i64>,
    /// The events that can be taken when they are due, by type.
    ready: Ready,
    /// Those of them that crashed before.
    suspects: Ready,
    /// The events in progress, by the end of their leases.
    taken: BTreeSet<Due>,
    /// The events that return to their lanes when they are due.
    aside: BTreeSet<Due>,
    paused: BTreeMap<Scope, Paused>,
    /// What persons did, by number.
    actions: BTreeMap<i64, actions::Done>,
    last_action: i64,
    counts: count::Counts,
    /// What workers have noted that they handle, and whether by a fallback, and until when the note is kept. Each note with the
    /// time since when it has been kept without an end.
    handlers: BTreeMap<(Scope, bool), (HandlerNote, Instant)>,
    /// The events of batches, by the numbers of their deliveries.
    batches: BTreeSet<(i64, i64)>,
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
            actions: BTreeMap::new(),
            last_action: 0,
            counts: count::Counts::default(),
            handlers: BTreeMap::new(),
            batches: BTreeSet::new(),
            bytes: 0,
        }
    }
}

struct KnownKey {
    body: u128,
    event: i64,
    until: Instant,
}

struct Event {
    of: EventType,
    key: Option<IdempotencyKey>,
    body: Option<Bytes>,
    headers: HeaderMap,
    item: Option<Box<Item>>,
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

fn size(body: &Bytes, headers: &HeaderMap, item: Option<&Item>) -> u64 {
    let lines = headers.iter();
    let headers: usize = lines
        .map(|(name, value)| name.as_str().len() + value.len())
        .sum();
    let kept = item.and_then(Item::kept_bytes).map_or(0, Bytes::len);
    (body.len() + headers + kept) as u64
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
