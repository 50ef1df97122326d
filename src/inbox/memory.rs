//! The queue in memory: for tests, and for the sandbox.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::time::Instant;

use super::event::{
    EventId, EventLease, EventRecord, EventState, EventSummary, Filter, Lane, NewEvent, Page,
    PastFailure, Settlement, Take, TakenEvent,
};
use super::queue::{Accepted, Change, Claims, KindStats, Queue, Settled, Stats};
use crate::delivery::{IdempotencyKey, RawDelivery};
use crate::event::EventKind;
use crate::store::{Fence, StoreError};

/// Keeps events in memory: for tests, and for the sandbox.
///
/// **What it guarantees.** All promises of an inbox but that on disk: events end with the process. So it is no choice
/// for production, where the platform would count an event as delivered that a restart forgets.
///
/// **Time** is [`tokio::time`], so a test can pause it.
///
/// Clones share their events.
///
/// ```
/// use tower_webhook::inbox::{Inbox, MemoryQueue};
///
/// let inbox = Inbox::new(MemoryQueue::new());
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
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.now = Instant::now();
        state.return_to_lines();
        state
    }
}

impl fmt::Debug for MemoryQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryQueue")
            .field("events", &self.lock().events.len())
            .finish_non_exhaustive()
    }
}

/// The name of an event that is due, in the order in which events are taken.
type Due = (Instant, i64);

struct State {
    /// When the current operation began.
    now: Instant,
    /// The time of day at some moment, by which others are shown.
    anchor: (Instant, SystemTime),
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
    ready: BTreeMap<EventKind, BTreeSet<Due>>,
    /// Those of them that crashed before.
    suspects: BTreeMap<EventKind, BTreeSet<Due>>,
    /// The events in progress, by the end of their leases.
    taken: BTreeSet<Due>,
    /// The events that return to their lanes when they are due.
    aside: BTreeSet<Due>,
    paused: BTreeSet<EventKind>,
    is_paused: bool,
    bytes: u64,
}

impl Default for State {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            now,
            anchor: (now, SystemTime::now()),
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
            paused: BTreeSet::new(),
            is_paused: false,
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
    kind: EventKind,
    key: Option<IdempotencyKey>,
    body: Option<Bytes>,
    chat: Option<String>,
    /// `None` for an event that stands in no line.
    lane: Option<Lane>,
    accepted: Instant,
    place: Place,
    failures: u32,
    first_failed: Option<Instant>,
    crashes: u32,
    /// The fence of a lease that expired, while the event was not taken again.
    expired: Option<u128>,
    is_redriven: bool,
    past: Vec<(Instant, super::event::Failure)>,
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

/// What an event takes beside its body.
const OVERHEAD: u64 = 400;

impl State {
    fn time_of_day(&self, at: Instant) -> SystemTime {
        let (instant, time) = self.anchor;
        match at.checked_duration_since(instant) {
            Some(since) => time + since,
            None => time - instant.duration_since(at),
        }
    }

    fn accept(&mut self, new: NewEvent, take: Option<&Take>) -> Accepted {
        for digests in [new.key, new.guard].into_iter().flatten() {
            let Some(key) = self.keys.get(&digests.key()) else {
                continue;
            };
            let is_unsettled = || self.events.get(&key.event).is_some_and(Event::is_kept);
            if key.until <= self.now && !is_unsettled() {
                continue;
            }
            let same_body = key.body == digests.body();
            return match new.key == Some(digests) || same_body {
                true => Accepted::Duplicate { same_body },
                false => Accepted::BodyReplayed,
            };
        }

        self.last_id += 1;
        let id = self.last_id;
        let until = self.now + new.retain.min(FOREVER);
        for digests in [new.key, new.guard].into_iter().flatten() {
            let key = Key {
                body: digests.body(),
                event: id,
                until,
            };
            self.keys.insert(digests.key(), key);
            self.forget.insert((until, digests.key()));
        }
        let now = self.now;
        let is_dead = new.dead.is_some();
        self.bytes += OVERHEAD + new.delivery.body().len() as u64;
        let event = Event {
            kind: new.delivery.kind().clone(),
            key: new.delivery.key().cloned(),
            body: Some(new.delivery.body().clone()),
            chat: new.chat,
            lane: new.lane,
            accepted: now,
            place: match is_dead {
                true => Place::Ended {
                    state: EventState::Dead,
                    at: now,
                },
                false => Place::Line { due: now },
            },
            failures: 0,
            first_failed: None,
            crashes: 0,
            expired: None,
            is_redriven: false,
            past: new.dead.map(|failure| (now, failure)).into_iter().collect(),
        };
        self.events.insert(id, event);
        self.retained.insert((until, id));
        if is_dead {
            return Accepted::New {
                id: EventId(id),
                taken: None,
            };
        }
        let is_first = self.join_line(id);
        let taken = take
            .filter(|take| is_first && self.may_take(take, id))
            .map(|take| Box::new(self.take(id, take)));
        Accepted::New {
            id: EventId(id),
            taken,
        }
    }

    fn event(&mut self, id: i64) -> &mut Event {
        self.events
            .get_mut(&id)
            .unwrap_or_else(|| unreachable!("event {id} is in an index"))
    }

    /// Puts an event in line, and returns whether it is the first one.
    fn join_line(&mut self, id: i64) -> bool {
        let Some(lane) = self.event(id).lane else {
            self.set_ready(id);
            return true;
        };
        let line = self.lanes.entry(lane).or_default();
        let was_first = line.first().copied();
        line.insert(id);
        match was_first {
            None => {
                self.set_ready(id);
                true
            }
            // Only an event that returns to its line can be before the first one.
            Some(first) if id < first => {
                self.unset_ready(first);
                self.set_ready(id);
                true
            }
            Some(_) => false,
        }
    }

    /// Removes an event from its line, and returns the event that is first now.
    fn leave_line(&mut self, id: i64) -> Option<i64> {
        let lane = self.event(id).lane?;
        let line = self.lanes.get_mut(&lane)?;
        line.remove(&id);
        let first = line.first().copied();
        match first {
            Some(first) => self.set_ready(first),
            None => drop(self.lanes.remove(&lane)),
        }
        first
    }

    /// Makes an event ready, unless its lane waits for another one.
    fn set_ready(&mut self, id: i64) {
        let event = self.event(id);
        let Place::Line { due } = event.place else {
            return;
        };
        let lane = event.lane;
        if lane.is_some_and(|lane| self.busy.contains_key(&lane)) {
            return;
        }
        let event = self.event(id);
        let (kind, is_suspect) = (event.kind.clone(), event.crashes > 0);
        let ready = match is_suspect {
            true => &mut self.suspects,
            false => &mut self.ready,
        };
        ready.entry(kind).or_default().insert((due, id));
    }

    fn unset_ready(&mut self, id: i64) {
        let event = self.event(id);
        let Place::Line { due } = event.place else {
            return;
        };
        let kind = event.kind.clone();
        for ready in [&mut self.ready, &mut self.suspects] {
            if let Some(events) = ready.get_mut(&kind) {
                events.remove(&(due, id));
            }
        }
    }

    fn may_take(&self, take: &Take, id: i64) -> bool {
        self.events.get(&id).is_some_and(|event| {
            let is_due = matches!(event.place, Place::Line { due } if due <= self.now);
            is_due && self.is_open(take, &event.kind)
        })
    }

    fn is_open(&self, take: &Take, kind: &EventKind) -> bool {
        !self.is_paused && !self.paused.contains(kind) && take.kinds.contains(kind)
    }

    /// Takes the first event of a line.
    fn take(&mut self, id: i64, take: &Take) -> TakenEvent {
        self.unset_ready(id);
        self.last_fence += 1;
        let fence = self.last_fence;
        let until = self.now + take.lease.min(FOREVER);
        self.taken.insert((until, id));
        let now = self.now;
        let accepted = self.event(id).accepted;
        let accepted_at = self.time_of_day(accepted);
        let event = self.event(id);
        event.place = Place::Taken { until, fence };
        event.expired = None;
        let lane = event.lane;
        self.busy.extend(lane.map(|lane| (lane, id)));
        let event = self.event(id);
        let body = event.body.clone().unwrap_or_default();
        let attempt = event.failures.saturating_add(event.crashes);
        let delivery = RawDelivery::new(event.kind.clone(), body)
            .with_key(event.key.clone())
            .with_attempt(NonZeroU32::MIN.saturating_add(attempt))
            .with_acceptance(accepted_at, event.is_redriven);
        TakenEvent {
            lease: EventLease {
                id: EventId(id),
                fence: Fence(fence),
                place: 0,
            },
            delivery,
            lane: event.lane,
            failures: event.failures,
            crashes: event.crashes,
            tried_for: event.first_failed.map(|first| now - first),
        }
    }

    /// Lets events return to their lines: those whose lease expired, and those that were put aside until now.
    fn return_to_lines(&mut self) {
        while let Some(&(until, id)) = self.taken.first()
            && until <= self.now
        {
            self.taken.pop_first();
            let event = self.event(id);
            if let Place::Taken { fence, .. } = event.place {
                event.expired = Some(fence);
            }
            event.crashes = event.crashes.saturating_add(1);
            event.place = Place::Line { due: until };
            self.set_free(id);
            self.set_first_ready(id);
        }
        while let Some(&(due, id)) = self.aside.first()
            && due <= self.now
        {
            self.aside.pop_first();
            self.event(id).place = Place::Line { due };
            self.join_line(id);
        }
    }

    fn claim(&mut self, take: &Take, limit: usize, suspects: usize) -> Claims {
        let mut claims = Claims::default();
        let mut suspects = suspects;
        let is_open = |id: i64| {
            let event = self.events.get(&id);
            event.is_some_and(|event| self.is_open(take, &event.kind))
        };
        let mut next = [&self.taken, &self.aside]
            .into_iter()
            .filter_map(|events| events.iter().find(|(_, id)| is_open(*id)))
            .map(|(due, _)| *due)
            .min();
        loop {
            let open = |ready: &BTreeMap<EventKind, BTreeSet<Due>>| {
                ready
                    .iter()
                    .filter(|(kind, _)| self.is_open(take, kind))
                    .filter_map(|(_, events)| events.first().copied())
                    .min()
            };
            let suspect = (suspects > 0).then(|| open(&self.suspects)).flatten();
            // It was in progress before all that waits.
            let first = suspect
                .filter(|(due, _)| *due <= self.now)
                .or_else(|| [open(&self.ready), suspect].into_iter().flatten().min());
            let Some((due, id)) = first else { break };
            if due > self.now || claims.events.len() == limit {
                next = next.into_iter().chain([due]).min();
                break;
            }
            let taken = self.take(id, take);
            suspects -= usize::from(taken.crashes > 0);
            claims.events.push(taken);
        }
        claims.next_due = next.map(|due| due.saturating_duration_since(self.now));
        claims
    }

    fn extend(&mut self, lease: &EventLease, by: Duration) -> bool {
        let Some((id, until)) = self.held(lease) else {
            return false;
        };
        self.taken.remove(&(until, id));
        let until = self.now + by.min(FOREVER);
        self.taken.insert((until, id));
        self.event(id).place = Place::Taken {
            until,
            fence: lease.fence.0,
        };
        true
    }

    /// The event of a lease that is held, and the end of that lease. One that expired is held again, unless another
    /// event of the lane comes first now.
    fn held(&mut self, lease: &EventLease) -> Option<(i64, Instant)> {
        let (id, fence) = (lease.id.0, lease.fence.0);
        let event = self.events.get(&id)?;
        match event.place {
            Place::Taken { until, fence: held } if held == fence => Some((id, until)),
            Place::Line { .. } if event.expired == Some(fence) && self.is_first(id) => {
                let until = self.now;
                self.unset_ready(id);
                let event = self.event(id);
                event.expired = None;
                event.crashes -= 1;
                event.place = Place::Taken { until, fence };
                let lane = event.lane;
                self.busy.extend(lane.map(|lane| (lane, id)));
                Some((id, until))
            }
            _ => None,
        }
    }

    /// Whether an event that stands in line is the first one, and its lane waits for no other.
    fn is_first(&self, id: i64) -> bool {
        let lane = self.events.get(&id).and_then(|event| event.lane);
        lane.is_none_or(|lane| {
            let first = self.lanes.get(&lane).and_then(BTreeSet::first);
            first == Some(&id) && !self.busy.contains_key(&lane)
        })
    }

    /// Ends the wait of a lane for an event.
    fn set_free(&mut self, id: i64) {
        if let Some(lane) = self.event(id).lane
            && self.busy.get(&lane) == Some(&id)
        {
            self.busy.remove(&lane);
        }
    }

    fn settle(
        &mut self,
        lease: &EventLease,
        settlement: &Settlement,
        take: Option<&Take>,
    ) -> Settled {
        let Some((id, until)) = self.held(lease) else {
            return Settled::Lost;
        };
        self.taken.remove(&(until, id));
        let holds = matches!(
            settlement,
            Settlement::Dead {
                hold_lane: true,
                ..
            }
        );
        if !holds {
            self.set_free(id);
        }
        let now = self.now;
        let event = self.event(id);
        if !matches!(settlement, Settlement::Released) {
            event.crashes = 0;
        }
        let ended = |state| Place::Ended { state, at: now };
        let fail = |event: &mut Event, failure: &super::event::Failure| {
            event.past.push((now, failure.clone()));
        };
        let leaves = match settlement {
            Settlement::Handled => {
                event.place = ended(EventState::Handled);
                true
            }
            Settlement::Ignored => {
                event.place = ended(EventState::Ignored);
                true
            }
            Settlement::Discarded(failure) => {
                fail(event, failure);
                event.place = ended(EventState::Discarded);
                true
            }
            Settlement::Dead { failure, hold_lane } => {
                fail(event, failure);
                let holds = *hold_lane && event.lane.is_some();
                event.place = match holds {
                    true => Place::Holding { at: now },
                    false => ended(EventState::Dead),
                };
                !holds
            }
            Settlement::Retry {
                after,
                failure,
                counts,
                blocks_lane,
            } => {
                if let Some(failure) = failure {
                    fail(event, failure);
                }
                if *counts {
                    event.failures = event.failures.saturating_add(1);
                    event.first_failed.get_or_insert(now);
                }
                let due = now + (*after).min(FOREVER);
                let goes_aside = !blocks_lane && event.lane.is_some();
                event.place = match goes_aside {
                    true => Place::Aside { due },
                    false => Place::Line { due },
                };
                if goes_aside {
                    self.aside.insert((due, id));
                }
                goes_aside
            }
            Settlement::Released => {
                event.place = Place::Line { due: now };
                false
            }
        };
        if matches!(settlement, Settlement::Handled | Settlement::Ignored) {
            self.with_body.insert((now, id));
        }
        if !leaves {
            self.set_first_ready(id);
            return Settled::Ended(None);
        }
        let next = self.leave_line(id);
        let next = next.zip(take).filter(|(id, take)| self.may_take(take, *id));
        Settled::Ended(next.map(|(id, take)| Box::new(self.take(id, take))))
    }

    /// Makes an event ready that stays in its line, unless another one came before it meanwhile.
    fn set_first_ready(&mut self, id: i64) {
        let lane = self.event(id).lane;
        let line = lane.and_then(|lane| self.lanes.get(&lane));
        let first = line.and_then(|line| line.first().copied()).unwrap_or(id);
        self.set_ready(first);
    }

    /// Removes an unsettled or held event from every index.
    fn remove(&mut self, id: i64) {
        self.set_free(id);
        let event = self.event(id);
        match event.place {
            Place::Line { .. } => self.unset_ready(id),
            Place::Aside { due } => {
                self.aside.remove(&(due, id));
                return;
            }
            Place::Taken { until, .. } => {
                self.taken.remove(&(until, id));
            }
            Place::Holding { .. } => {}
            Place::Ended { .. } => return,
        }
        self.leave_line(id);
    }

    fn redrive(&mut self, id: EventId) -> Change {
        let now = self.now;
        let Some(event) = self.events.get_mut(&id.0) else {
            return Change::NotFound;
        };
        if event.body.is_none() {
            return Change::WithoutBody;
        }
        match event.place {
            Place::Taken { .. } => return Change::WrongState,
            Place::Line { .. } => {
                self.unset_ready(id.0);
                let event = self.event(id.0);
                event.expired = None;
                event.place = Place::Line { due: now };
                self.set_first_ready(id.0);
                return Change::Made;
            }
            Place::Aside { due } => {
                self.aside.remove(&(due, id.0));
                self.event(id.0).place = Place::Line { due: now };
                self.join_line(id.0);
                return Change::Made;
            }
            Place::Ended { .. } => event.lane = None,
            Place::Holding { .. } => {}
        }
        event.is_redriven = true;
        event.failures = 0;
        event.first_failed = None;
        event.crashes = 0;
        event.place = Place::Line { due: now };
        self.set_free(id.0);
        self.set_first_ready(id.0);
        Change::Made
    }

    fn discard(&mut self, id: EventId) -> Change {
        let Some(event) = self.events.get(&id.0) else {
            return Change::NotFound;
        };
        let is_settled = matches!(
            event.place,
            Place::Ended { state, .. } if state != EventState::Dead
        );
        if is_settled {
            return Change::WrongState;
        }
        self.end(id.0);
        Change::Made
    }

    /// Discards an event that is unsettled or dead.
    fn end(&mut self, id: i64) {
        self.remove(id);
        let at = self.now;
        let event = self.event(id);
        event.expired = None;
        event.place = Place::Ended {
            state: EventState::Discarded,
            at,
        };
    }

    fn forget_chat(&mut self, chat: &str) -> u64 {
        let of_chat = |event: &Event| event.chat.as_deref() == Some(chat) && event.body.is_some();
        let ids: Vec<i64> = self
            .events
            .iter()
            .filter(|(_, event)| of_chat(event))
            .map(|(id, _)| *id)
            .collect();
        for id in &ids {
            if self.event(*id).is_kept() {
                self.end(*id);
            }
            // Their texts may quote the body.
            self.event(*id).past.clear();
            self.delete_body(*id);
        }
        ids.len() as u64
    }

    fn delete_body(&mut self, id: i64) {
        if let Some(body) = self.event(id).body.take() {
            self.bytes -= body.len() as u64;
        }
    }

    fn purge(&mut self, keep_bodies: Duration) -> bool {
        const STEP: usize = 1000;

        let mut keys = 0;
        while let Some((until, key)) = self.forget.first().copied()
            && until <= self.now
            && keys < STEP
        {
            self.forget.pop_first();
            keys += 1;
            match self.keys.get(&key) {
                Some(known) if self.events.get(&known.event).is_some_and(Event::is_kept) => {
                    // Looked at again, when it may be settled.
                    let again = self.now + Duration::from_secs(60);
                    self.forget.insert((again, key));
                }
                Some(known) if known.until <= self.now => {
                    self.keys.remove(&key);
                }
                _ => {}
            }
        }
        let mut bodies = 0;
        while let Some(&(settled, id)) = self.with_body.first()
            && self.now.saturating_duration_since(settled) >= keep_bodies
            && bodies < STEP
        {
            self.with_body.pop_first();
            bodies += 1;
            let is_settled = |event: &Event| {
                matches!(event.place, Place::Ended { state, at }
                    if at == settled && matches!(state, EventState::Handled | EventState::Ignored))
            };
            // One that was redriven since is settled at another time.
            if self.events.get(&id).is_some_and(is_settled) {
                self.delete_body(id);
            }
        }
        let expired: Vec<_> = self
            .retained
            .range(..=(self.now, i64::MAX))
            .filter(|(_, id)| self.events.get(id).is_none_or(|event| !event.is_kept()))
            .take(STEP)
            .copied()
            .collect();
        let events = expired.len();
        for (until, id) in expired {
            self.retained.remove(&(until, id));
            self.delete_body(id);
            self.events.remove(&id);
            self.bytes -= OVERHEAD;
        }
        keys == STEP || bodies == STEP || events == STEP
    }

    fn summary(&self, id: i64, event: &Event) -> EventSummary {
        let at = |time| Some(self.time_of_day(time));
        let (state, settled_at, due_at) = match event.place {
            Place::Line { due } | Place::Aside { due } => {
                let state = match event.past.is_empty() && event.crashes == 0 {
                    true => EventState::Waiting,
                    false => EventState::Retrying,
                };
                (state, None, if due > self.now { at(due) } else { None })
            }
            Place::Taken { .. } => (EventState::InProgress, None, None),
            Place::Ended { state, at: ended } => (state, at(ended), None),
            Place::Holding { at: ended } => (EventState::Dead, at(ended), None),
        };
        EventSummary {
            id: EventId(id),
            kind: event.kind.clone(),
            key: event.key.clone(),
            chat: event.chat.clone(),
            state,
            accepted_at: self.time_of_day(event.accepted),
            settled_at,
            due_at,
            failures: event.failures,
            is_redriven: event.is_redriven,
        }
    }

    fn list(&self, filter: &Filter, page: Page) -> Vec<EventSummary> {
        let matches = |summary: &EventSummary| {
            (filter.states.is_empty() || filter.states.contains(&summary.state))
                && (filter.kinds.is_empty() || filter.kinds.contains(&summary.kind))
                && (filter.chat.is_none() || filter.chat == summary.chat)
                && (filter.key.is_none() || filter.key == summary.key)
                && filter
                    .accepted_from
                    .is_none_or(|from| summary.accepted_at >= from)
                && filter
                    .accepted_until
                    .is_none_or(|until| summary.accepted_at < until)
        };
        let is_after = |id: i64| {
            page.after
                .is_none_or(|EventId(after)| match page.newest_first {
                    true => id < after,
                    false => id > after,
                })
        };
        let select = |(id, event): (&i64, &Event)| {
            let summary = is_after(*id).then(|| self.summary(*id, event))?;
            matches(&summary).then_some(summary)
        };
        match page.newest_first {
            true => self
                .events
                .iter()
                .rev()
                .filter_map(select)
                .take(page.limit)
                .collect(),
            false => self
                .events
                .iter()
                .filter_map(select)
                .take(page.limit)
                .collect(),
        }
    }

    fn stats(&self) -> Stats {
        let mut kinds: BTreeMap<&EventKind, KindStats> = BTreeMap::new();
        let of = |kind: &EventKind| KindStats {
            kind: kind.clone(),
            waiting: 0,
            in_progress: 0,
            retrying: 0,
            dead: 0,
            oldest: None,
            is_paused: self.paused.contains(kind),
        };
        for kind in &self.paused {
            kinds.insert(kind, of(kind));
        }
        for (id, event) in &self.events {
            let summary = self.summary(*id, event);
            let stats = kinds.entry(&event.kind).or_insert_with(|| of(&event.kind));
            *match summary.state {
                EventState::Waiting => &mut stats.waiting,
                EventState::InProgress => &mut stats.in_progress,
                EventState::Retrying => &mut stats.retrying,
                EventState::Dead => &mut stats.dead,
                EventState::Handled | EventState::Ignored | EventState::Discarded => continue,
            } += 1;
            if summary.state.is_unsettled() {
                stats.oldest.get_or_insert(summary.accepted_at);
            }
        }
        Stats {
            kinds: kinds.into_values().collect(),
            is_paused: self.is_paused,
        }
    }
}

impl Event {
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

impl Queue for MemoryQueue {
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

    async fn extend(
        &self,
        leases: &[EventLease],
        lease: Duration,
    ) -> Result<Vec<bool>, StoreError> {
        let mut state = self.lock();
        Ok(leases
            .iter()
            .map(|held| state.extend(held, lease))
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

    async fn list(&self, filter: &Filter, page: Page) -> Result<Vec<EventSummary>, StoreError> {
        Ok(self.lock().list(filter, page))
    }

    async fn get(&self, id: EventId) -> Result<Option<EventRecord>, StoreError> {
        let state = self.lock();
        Ok(state.events.get(&id.0).map(|event| EventRecord {
            summary: state.summary(id.0, event),
            body: event.body.clone(),
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

    async fn redrive(&self, id: EventId) -> Result<Change, StoreError> {
        Ok(self.lock().redrive(id))
    }

    async fn discard(&self, id: EventId) -> Result<Change, StoreError> {
        Ok(self.lock().discard(id))
    }

    async fn forget(&self, chat: &str) -> Result<u64, StoreError> {
        Ok(self.lock().forget_chat(chat))
    }

    async fn pause(&self, kind: Option<&EventKind>, paused: bool) -> Result<(), StoreError> {
        let mut state = self.lock();
        match (kind, paused) {
            (None, paused) => state.is_paused = paused,
            (Some(kind), true) => drop(state.paused.insert(kind.clone())),
            (Some(kind), false) => drop(state.paused.remove(kind)),
        }
        Ok(())
    }

    async fn purge(&self, keep_bodies: Duration) -> Result<bool, StoreError> {
        Ok(self.lock().purge(keep_bodies))
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        Ok(self.lock().stats())
    }

    async fn size(&self) -> Result<u64, StoreError> {
        Ok(self.lock().bytes)
    }
}
