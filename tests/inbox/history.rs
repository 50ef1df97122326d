//! The history of a queue under random load, as seen from outside, and a checker that proves from it that the promises
//! were kept. The checker finds each of the mistakes that are planted.
//!
//! `HISTORY_SEEDS=100` lives that many histories; the default is 5.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower::service_fn;
use tower_webhook::event::EventKind;
use tower_webhook::inbox::internal::{
    Accepted, Claims, EventLease, Kinds, NewEvent, Settled, Settlement, Take, TakenEvent, Work,
};
use tower_webhook::inbox::{
    By, Change, EventId, EventState, Filter, Inbox, Lane, OnFailure, Page, Records, Retry,
};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::store::{EventKey, Fence, StoreError};
use tower_webhook::{HandlerError, Outcome, RawDelivery};

use support::forward;
use support::lock;
use support::queue::{new_event, take};
use support::{DAY, SECOND};

const LEASE: Duration = Duration::from_secs(10);
/// How long after the end of a dead process's lease its event may wait for its turn.
const SLACK: Duration = Duration::from_secs(30);
const MAX_CRASHES: u32 = 3;

const PLAIN: EventKind = EventKind::CHAT_RATED;
const SKIPPED: EventKind = EventKind::MESSAGE_CREATED;
const FOREIGN: EventKind = EventKind::CHAT_CLOSED;
const POISON: EventKind = EventKind::CHAT_OPENED;

/// What happened.
#[derive(Clone, Debug)]
enum Entry {
    /// The sender was told that the event is stored.
    Acknowledged {
        event: EventId,
        key: u128,
        kind: EventKind,
        lane: Option<Lane>,
    },
    /// A process took the event.
    Taken {
        event: EventId,
        fence: Fence,
        attempt: u32,
        by: Process,
        lease: Duration,
    },
    /// A handler was called.
    Ran {
        event: EventId,
    },
    Extended {
        fence: Fence,
        lease: Duration,
    },
    /// A process ended its attempt, and the queue recorded that, or refused.
    Ended {
        event: EventId,
        fence: Fence,
        how: How,
        recorded: bool,
    },
    /// The process that held the event died.
    Died {
        event: EventId,
    },
    Changed {
        event: EventId,
        by: Console,
    },
    Paused(bool),
    /// What is in the queue at the end.
    Left {
        event: EventId,
        state: EventState,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Process {
    Worker,
    /// A process that dies.
    Ghost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Settled(EventState),
    Retry {
        after: Duration,
        counts: bool,
        blocks: bool,
    },
    Released,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Console {
    Redrive,
    Discard,
}

/// A broken promise.
#[derive(Clone, Debug)]
struct Violation {
    rule: &'static str,
    text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.text)
    }
}

/// What the history says of one event.
#[derive(Debug)]
struct Known {
    kind: EventKind,
    lane: Option<Lane>,
    /// The current attempt: its fence, and the end of its lease.
    holder: Option<(Fence, Duration)>,
    /// When a process died that held it.
    died: Option<Duration>,
    last: Last,
    counted: u32,
    crashes: u32,
    is_redriven: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    Waiting,
    /// Not before this time, in line or not.
    Due(Duration, bool),
    Settled(EventState),
}

/// Proves order, single attempts, fences and completeness from a history.
fn check(entries: &[(Duration, Entry)], foreign: &EventKind) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut events: BTreeMap<EventId, Known> = BTreeMap::new();
    let mut keys: HashMap<u128, EventId> = HashMap::new();
    let mut is_paused = false;
    let mut left = HashMap::new();
    for (at, entry) in entries {
        let at = *at;
        let mut broken = |rule, text: String| violations.push(Violation { rule, text });
        match entry {
            Entry::Acknowledged {
                event,
                key,
                kind,
                lane,
            } => {
                if let Some(first) = keys.insert(*key, *event) {
                    broken("accepted twice", format!("{event} has the key of {first}"));
                }
                let known = Known {
                    kind: kind.clone(),
                    lane: *lane,
                    holder: None,
                    died: None,
                    last: Last::Waiting,
                    counted: 0,
                    crashes: 0,
                    is_redriven: false,
                };
                events.insert(*event, known);
            }
            Entry::Taken {
                event,
                fence,
                attempt,
                by,
                lease,
            } => {
                let Some(known) = events.get(event) else {
                    broken("unknown event", format!("{event} was taken"));
                    continue;
                };
                if is_paused {
                    broken("paused", format!("{event} was taken in a pause"));
                }
                if *by == Process::Worker && known.kind == *foreign {
                    broken(
                        "foreign kind",
                        format!("{event} was taken by a worker that leaves its kind"),
                    );
                }
                match known.last {
                    Last::Settled(state) => broken("taken again", format!("{event} was {state}")),
                    Last::Due(due, _) if at < due => {
                        broken("too early", format!("{event} was due {:?} later", due - at));
                    }
                    _ => {}
                }
                let crashed = match known.holder {
                    Some((_, until)) if at < until => {
                        broken(
                            "two attempts",
                            format!("{event} was taken while it was held"),
                        );
                        false
                    }
                    Some(_) => true,
                    None => false,
                };
                if let Some(died) = known.died
                    && known.kind != *foreign
                    && at > died + LEASE + SLACK
                {
                    broken(
                        "stuck",
                        format!("{event} was taken {:?} after its process died", at - died),
                    );
                }
                if let Some(lane) = known.lane.filter(|_| !known.is_redriven) {
                    for (other, of_other) in &events {
                        if of_other.lane != Some(lane) || of_other.is_redriven || other == event {
                            continue;
                        }
                        if of_other.holder.is_some_and(|(_, until)| at < until) {
                            broken("two in a lane", format!("{event} beside {other}"));
                        }
                        let is_before = other < event
                            && match of_other.last {
                                Last::Waiting | Last::Due(_, true) => true,
                                // Back in line a moment after it is due, at the next look.
                                Last::Due(due, false) => at > due + SLACK,
                                Last::Settled(_) => false,
                            };
                        if is_before {
                            broken("out of order", format!("{event} before {other}"));
                        }
                    }
                }
                let known = events.get_mut(event).unwrap();
                known.crashes += u32::from(crashed);
                let expected = 1 + known.counted + known.crashes;
                if *attempt != expected {
                    broken(
                        "attempt",
                        format!("attempt {attempt} of {event} is attempt {expected}"),
                    );
                }
                known.holder = Some((*fence, at + *lease));
                known.died = None;
            }
            Entry::Ran { event } => {
                let crashes = events.get(event).map_or(0, |known| known.crashes);
                if crashes >= MAX_CRASHES {
                    broken(
                        "crash limit",
                        format!("{event} was handled after {crashes} crashes"),
                    );
                }
            }
            Entry::Extended { fence, lease } => {
                for known in events.values_mut() {
                    if let Some((holder, until)) = &mut known.holder
                        && holder == fence
                    {
                        *until = at + *lease;
                    }
                }
            }
            Entry::Ended {
                event,
                fence,
                how,
                recorded,
            } => {
                let Some(known) = events.get_mut(event) else {
                    broken("unknown event", format!("{event} was settled"));
                    continue;
                };
                if !recorded {
                    continue;
                }
                if known.holder.map(|(holder, _)| holder) != Some(*fence) {
                    broken("fence", format!("a late attempt ended {event} as {how:?}"));
                }
                known.holder = None;
                known.died = None;
                if *how != How::Released {
                    known.crashes = 0;
                }
                known.last = match *how {
                    How::Settled(state) => Last::Settled(state),
                    How::Released => Last::Waiting,
                    How::Retry {
                        after,
                        counts,
                        blocks,
                    } => {
                        known.counted += u32::from(counts);
                        Last::Due(at + after, blocks)
                    }
                };
            }
            Entry::Died { event } => {
                if let Some(known) = events.get_mut(event) {
                    known.died = Some(at);
                }
            }
            Entry::Changed { event, by } => {
                let Some(known) = events.get_mut(event) else {
                    continue;
                };
                match by {
                    Console::Redrive => {
                        if known.holder.is_some_and(|(_, until)| at < until) {
                            broken("redriven in progress", format!("{event}"));
                        }
                        if matches!(known.last, Last::Settled(_)) {
                            known.is_redriven = true;
                            known.counted = 0;
                        }
                        known.last = Last::Waiting;
                    }
                    Console::Discard => known.last = Last::Settled(EventState::Discarded),
                }
                known.holder = None;
                known.crashes = 0;
            }
            Entry::Paused(paused) => is_paused = *paused,
            Entry::Left { event, state } => {
                left.insert(*event, *state);
            }
        }
    }
    for (event, known) in &events {
        let mut broken = |rule, text: String| violations.push(Violation { rule, text });
        match (known.last, left.get(event)) {
            (Last::Settled(state), Some(found)) if state == *found => {}
            (Last::Settled(state), found) => {
                broken("changed", format!("{event} was {state}, and is {found:?}"));
            }
            // No worker takes it.
            (_, Some(found)) if known.kind == *foreign && found.is_unsettled() => {}
            (last, found) => broken("lost", format!("{event}: {last:?}, and is {found:?}")),
        }
    }
    violations
}

/// A queue that writes the history.
#[derive(Clone)]
struct Spy {
    queue: Arc<Mistaken>,
    by: Process,
    history: Arc<History>,
}

struct History {
    began: Instant,
    entries: Mutex<Vec<(Duration, Entry)>>,
}

impl History {
    fn write(&self, entry: Entry) {
        lock(&self.entries).push((self.began.elapsed(), entry));
    }
}

impl Spy {
    fn inner(&self) -> Result<&MemoryQueue, StoreError> {
        Ok(&self.queue.inner)
    }

    fn taken(&self, event: &TakenEvent, take: &Take) {
        self.history.write(Entry::Taken {
            event: event.lease.id,
            fence: event.lease.fence,
            attempt: event.delivery.attempt().map_or(0, Into::into),
            by: self.by,
            lease: take.lease,
        });
    }
}

impl Work for Spy {
    const SHARED: bool = true;

    async fn accept(&self, event: NewEvent, take: Option<&Take>) -> Result<Accepted, StoreError> {
        let (kind, lane, key) = (
            event.delivery.kind().clone(),
            event.lane,
            event.key.unwrap().key(),
        );
        let accepted = self.queue.accept(event, take).await?;
        if let Accepted::New { id, taken } = &accepted {
            self.history.write(Entry::Acknowledged {
                event: *id,
                key,
                kind,
                lane,
            });
            if let (Some(taken), Some(take)) = (taken, take) {
                self.taken(taken, take);
            }
        }
        Ok(accepted)
    }

    async fn claim(
        &self,
        take: &Take,
        limit: usize,
        suspects: usize,
    ) -> Result<Claims, StoreError> {
        let claims = self.queue.claim(take, limit, suspects).await?;
        for event in &claims.events {
            self.taken(event, take);
        }
        Ok(claims)
    }

    async fn take(&self, id: EventId, take: &Take) -> Result<Option<TakenEvent>, StoreError> {
        let taken = self.queue.take(id, take).await?;
        if let Some(event) = &taken {
            self.taken(event, take);
        }
        Ok(taken)
    }

    async fn extend(
        &self,
        leases: &[EventLease],
        lease: Duration,
    ) -> Result<Vec<Option<bool>>, StoreError> {
        let extended = self.queue.extend(leases, lease).await?;
        for (held, _) in leases
            .iter()
            .zip(&extended)
            .filter(|(_, is_held)| **is_held == Some(true))
        {
            self.history.write(Entry::Extended {
                fence: held.fence,
                lease,
            });
        }
        Ok(extended)
    }

    async fn settle(
        &self,
        lease: &EventLease,
        settlement: &Settlement,
        next: Option<&Take>,
    ) -> Result<Settled, StoreError> {
        let settled = self.queue.settle(lease, settlement, next).await?;
        self.history.write(Entry::Ended {
            event: lease.id,
            fence: lease.fence,
            how: match settlement {
                Settlement::Handled => How::Settled(EventState::Handled),
                Settlement::Ignored => How::Settled(EventState::Ignored),
                Settlement::Discarded(_) => How::Settled(EventState::Discarded),
                Settlement::Dead { .. } => How::Settled(EventState::Dead),
                Settlement::Retry {
                    after,
                    counts,
                    is_probe: false,
                    blocks_lane,
                    ..
                } => How::Retry {
                    after: *after,
                    counts: *counts,
                    blocks: *blocks_lane,
                },
                _ => How::Released,
            },
            recorded: matches!(settled, Settled::Ended(_)),
        });
        if let (Settled::Ended(Some(event)), Some(take)) = (&settled, next) {
            self.taken(event, take);
        }
        Ok(settled)
    }

    forward!(find purge size counts jobs);
}

impl Records for Spy {
    async fn redrive(
        &self,
        id: EventId,
        from: Option<EventState>,
        by: &By,
    ) -> Result<Change, StoreError> {
        let change = self.queue.redrive(id, from, by).await?;
        if change == Change::Made {
            let by = Console::Redrive;
            self.history.write(Entry::Changed { event: id, by });
        }
        Ok(change)
    }

    async fn discard(
        &self,
        id: EventId,
        from: Option<EventState>,
        by: &By,
    ) -> Result<Change, StoreError> {
        let change = self.queue.inner.discard(id, from, by).await?;
        if change == Change::Made {
            let by = Console::Discard;
            self.history.write(Entry::Changed { event: id, by });
        }
        Ok(change)
    }

    async fn pause(
        &self,
        kind: Option<&EventKind>,
        note: Option<&str>,
        by: &By,
    ) -> Result<(), StoreError> {
        self.queue.inner.pause(kind, note, by).await?;
        self.history.write(Entry::Paused(note.is_some()));
        Ok(())
    }

    forward!(list blocked_lanes get forget pauses actions stats);
}

/// A mistake that a queue could make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    SettlesWithoutFence,
    ClaimSkipsTheHead,
    PurgesTooEarly,
    ShutdownCounts,
    TakesTwice,
    CrashIsNotCounted,
    LeaseNeverExpires,
    SettlementIsNotStored,
    AcceptsWithoutStoring,
    DropsDeadLetters,
    HandOverIgnoresPause,
    RetriesAtOnce,
    NeverBlocks,
    RedrivesInProgress,
    IgnoresKinds,
    ForgetsFailures,
    ReusesFences,
}

/// The queue in memory, with a mistake.
struct Mistaken {
    inner: MemoryQueue,
    mistake: Mistake,
    calls: Mutex<u64>,
    current: Mutex<HashMap<EventId, EventLease>>,
}

impl Mistaken {
    fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == mistake
    }

    /// Whether the mistake is made this time.
    fn every(&self, mistake: Mistake, times: u64) -> bool {
        let mut calls = lock(&self.calls);
        *calls += 1;
        self.makes(mistake) && calls.is_multiple_of(times)
    }

    fn note(&self, mut event: TakenEvent) -> TakenEvent {
        lock(&self.current).insert(event.lease.id, event.lease);
        if self.makes(Mistake::CrashIsNotCounted) {
            event.crashes = 0;
        }
        if self.makes(Mistake::ForgetsFailures) {
            event.delivery = event.delivery.with_attempt(std::num::NonZeroU32::MIN);
        }
        event
    }

    async fn accept(
        &self,
        mut event: NewEvent,
        take: Option<&Take>,
    ) -> Result<Accepted, StoreError> {
        if self.every(Mistake::AcceptsWithoutStoring, 7) {
            let id = EventId(1_000_000 + *lock(&self.calls) as i64);
            return Ok(Accepted::New { id, taken: None });
        }
        if self.every(Mistake::ClaimSkipsTheHead, 2) {
            event.lane = None;
        }
        if self.makes(Mistake::PurgesTooEarly) {
            event.retain = SECOND;
        }
        let accepted = self.inner.accept(event, take).await?;
        Ok(match accepted {
            Accepted::New { id, taken } => Accepted::New {
                id,
                taken: taken.map(|event| Box::new(self.note(*event))),
            },
            other => other,
        })
    }

    async fn claim(
        &self,
        take: &Take,
        limit: usize,
        suspects: usize,
    ) -> Result<Claims, StoreError> {
        let mut take = take.clone();
        if self.makes(Mistake::LeaseNeverExpires) {
            take.lease = 365 * DAY;
        }
        if self.makes(Mistake::IgnoresKinds) {
            take.kinds = Kinds::all();
        }
        let mut claims = self.inner.claim(&take, limit, suspects).await?;
        claims.events = claims
            .events
            .into_iter()
            .map(|event| self.note(event))
            .collect();
        if self.makes(Mistake::TakesTwice) && claims.events.len() < limit {
            // Of two suspects, the worker gives one back, and so both.
            let first = claims.events.iter().find(|event| event.crashes == 0);
            claims.events.extend(first.cloned());
        }
        Ok(claims)
    }

    async fn take(&self, id: EventId, take: &Take) -> Result<Option<TakenEvent>, StoreError> {
        let taken = self.inner.take(id, take).await?;
        Ok(taken.map(|event| self.note(event)))
    }

    async fn extend(
        &self,
        leases: &[EventLease],
        lease: Duration,
    ) -> Result<Vec<Option<bool>>, StoreError> {
        self.inner.extend(leases, lease).await
    }

    async fn settle(
        &self,
        lease: &EventLease,
        settlement: &Settlement,
        next: Option<&Take>,
    ) -> Result<Settled, StoreError> {
        let mut settlement = settlement.clone();
        match (&mut settlement, self.mistake) {
            (released @ Settlement::Released, Mistake::ShutdownCounts) => {
                *released = Settlement::Retry {
                    after: Duration::ZERO,
                    failure: None,
                    counts: true,
                    is_probe: false,
                    blocks_lane: true,
                };
            }
            (Settlement::Handled, _) if self.every(Mistake::SettlementIsNotStored, 5) => {
                return Ok(Settled::Ended(None));
            }
            (dead @ Settlement::Dead { .. }, Mistake::DropsDeadLetters) => {
                *dead = Settlement::Handled;
            }
            (Settlement::Retry { after, .. }, Mistake::RetriesAtOnce) => *after = Duration::ZERO,
            (Settlement::Retry { blocks_lane, .. }, Mistake::NeverBlocks) => *blocks_lane = false,
            _ => {}
        }
        let ignores_pause =
            self.makes(Mistake::HandOverIgnoresPause) && self.inner.stats().await?.is_paused;
        if ignores_pause {
            self.inner.pause(None, None, &By::default()).await?;
        }
        let mut settled = self.inner.settle(lease, &settlement, next).await?;
        if ignores_pause {
            self.inner.pause(None, Some(""), &By::default()).await?;
        }
        if self.makes(Mistake::SettlesWithoutFence) && matches!(settled, Settled::Lost) {
            let current = lock(&self.current).get(&lease.id).copied();
            if let Some(current) = current {
                settled = self.inner.settle(&current, &settlement, next).await?;
            }
        }
        Ok(match settled {
            Settled::Ended(next) => Settled::Ended(next.map(|event| Box::new(self.note(*event)))),
            // As if the late lease were the same as the current one.
            Settled::Lost if self.makes(Mistake::ReusesFences) => Settled::Ended(None),
            Settled::Lost => Settled::Lost,
        })
    }

    async fn redrive(
        &self,
        id: EventId,
        from: Option<EventState>,
        by: &By,
    ) -> Result<Change, StoreError> {
        let change = self.inner.redrive(id, from, by).await?;
        if change == Change::WrongState && self.makes(Mistake::RedrivesInProgress) {
            self.inner.discard(id, None, by).await?;
            return self.inner.redrive(id, None, by).await;
        }
        Ok(change)
    }
}

fn event_of(kind: &EventKind, chat: usize, number: usize) -> NewEvent {
    let body = format!(r#"{{"id":"chat-{chat}","number":{number}}}"#);
    let key = format!("event-{number}");
    let chat = format!("chat-{chat}");
    NewEvent {
        key: Some(EventKey::new("", key.as_bytes(), body.as_bytes())),
        lane: Some(Lane::of_chat(&chat)),
        chat: Some(chat),
        ..new_event(kind.clone(), body)
    }
}

/// Some minutes of a queue: random events, handlers that fail, processes that die or come too late, pauses, and a person
/// at a console.
async fn live(seed: u64, mistake: Mistake) -> Vec<Violation> {
    let mut random = fastrand::Rng::with_seed(seed);
    let history = Arc::new(History {
        began: Instant::now(),
        entries: Mutex::default(),
    });
    let spy = Spy {
        queue: Arc::new(Mistaken {
            inner: MemoryQueue::new(),
            mistake,
            calls: Mutex::default(),
            current: Mutex::default(),
        }),
        by: Process::Worker,
        history: Arc::clone(&history),
    };
    let ghost = Spy {
        by: Process::Ghost,
        ..spy.clone()
    };
    let all = take(LEASE);

    // An event that ends each process which takes it.
    spy.accept(event_of(&POISON, 99, 1_000_000), None)
        .await
        .unwrap();
    for _ in 0..MAX_CRASHES {
        for event in ghost.claim(&all, 1, 1).await.unwrap().events {
            history.write(Entry::Died {
                event: event.lease.id,
            });
        }
        sleep(LEASE + SECOND).await;
    }

    let inbox = Inbox::new(spy.clone());
    let ran = Arc::clone(&history);
    let seeds = Arc::new(Mutex::new(random.fork()));
    let service = service_fn(move |delivery: RawDelivery| {
        let (ran, seeds) = (Arc::clone(&ran), Arc::clone(&seeds));
        async move {
            let (millis, verdict) = {
                let mut random = lock(&seeds);
                (random.u64(0..3000), random.u8(..20))
            };
            let number: serde_json::Value = serde_json::from_slice(delivery.body()).unwrap();
            let event = lock(&ran.entries)
                .iter()
                .rev()
                .find_map(|(_, entry)| match entry {
                    Entry::Acknowledged { event, key, .. }
                        if *key
                            == EventKey::new(
                                "",
                                format!("event-{}", number["number"]).as_bytes(),
                                b"",
                            )
                            .key() =>
                    {
                        Some(*event)
                    }
                    _ => None,
                });
            if let Some(event) = event {
                ran.write(Entry::Ran { event });
            }
            sleep(Duration::from_millis(millis)).await;
            Ok::<Outcome, Infallible>(Outcome::from(match verdict {
                0..4 => Err(HandlerError::retry("failed")),
                4 => Err(HandlerError::dead_letter("dead")),
                5 => Err(HandlerError::discard("discarded")),
                6 => Err(HandlerError::snooze(5 * SECOND)),
                _ => Ok(()),
            }))
        }
    });
    let spawn = || {
        inbox
            .worker(service.clone())
            .concurrency(4)
            .except([FOREIGN])
            .retry(Retry::default().delays(SECOND, 20 * SECOND))
            .on_failure_of(SKIPPED, OnFailure::Skip)
            .max_crashes(MAX_CRASHES)
            .lease(LEASE)
            .unwrap()
            .spawn()
    };
    let mut worker = spawn();
    let mut late: Vec<(Instant, TakenEvent)> = Vec::new();
    let mut sent = 0;
    for _ in 0..400 {
        sleep(Duration::from_millis(random.u64(..1500))).await;
        match random.u8(..100) {
            0..70 => {
                let kind = match random.u8(..10) {
                    0 => FOREIGN,
                    1..4 => SKIPPED,
                    _ => PLAIN,
                };
                // An event of a foreign kind keeps its chat waiting, so it has a chat of its own.
                let chat = if kind == FOREIGN {
                    50
                } else {
                    random.usize(..6)
                };
                spy.accept(event_of(&kind, chat, sent), None).await.unwrap();
                sent += 1;
            }
            70..76 if sent > 0 => {
                // The sender's retry, which may come much later.
                let again = random.usize(..sent);
                let known = lock(&history.entries)
                    .iter()
                    .find_map(|(_, entry)| match entry {
                        Entry::Acknowledged {
                            key, kind, lane, ..
                        } if *key
                            == EventKey::new("", format!("event-{again}").as_bytes(), b"")
                                .key() =>
                        {
                            Some((kind.clone(), *lane))
                        }
                        _ => None,
                    });
                let Some((kind, lane)) = known else { continue };
                let event = NewEvent {
                    lane,
                    ..event_of(&kind, 0, again)
                };
                spy.accept(event, None).await.unwrap();
            }
            76..82 => {
                for event in ghost.claim(&all, 1, 0).await.unwrap().events {
                    match random.bool() {
                        true => history.write(Entry::Died {
                            event: event.lease.id,
                        }),
                        false => {
                            let late_by = Duration::from_millis(random.u64(..3000));
                            late.push((Instant::now() + LEASE + late_by, event));
                        }
                    }
                }
            }
            82..86 => {
                let _ = worker.drain(Duration::from_millis(random.u64(..500))).await;
                worker = spawn();
            }
            86..88 => {
                spy.pause(None, Some(""), &By::default()).await.unwrap();
                sleep(Duration::from_millis(random.u64(..5000))).await;
                inbox.resume(None).await.unwrap();
            }
            88..96 if sent > 0 => {
                let id = EventId(random.i64(1..=sent as i64 + 1));
                match random.u8(..4) {
                    0 => drop(inbox.discard(id, None).await.unwrap()),
                    _ => drop(inbox.redrive(id, None).await.unwrap()),
                }
            }
            _ => {}
        }
        let now = Instant::now();
        let (due, rest) = late.into_iter().partition(|(at, _)| *at <= now);
        late = rest;
        for (_, event) in due {
            // A process that was stopped, and goes on after its lease has expired.
            let _ = ghost
                .settle(&event.lease, &Settlement::Handled, None)
                .await
                .unwrap();
        }
    }
    // All that can be handled is handled.
    sleep(60 * 60 * SECOND).await;
    let _ = worker.drain(60 * SECOND).await;
    let page = Page::oldest(usize::MAX);
    for event in spy.list(&Filter::default(), page).await.unwrap().events {
        history.write(Entry::Left {
            event: event.id,
            state: event.state,
        });
    }
    let entries = lock(&history.entries).clone();
    check(&entries, &FOREIGN)
}

fn rules(violations: &[Violation]) -> HashSet<&'static str> {
    violations.iter().map(|violation| violation.rule).collect()
}

#[tokio::test(start_paused = true)]
async fn every_promise_is_kept_with_every_seed() {
    let seeds = std::env::var("HISTORY_SEEDS").map_or(5, |seeds| seeds.parse().unwrap());
    for seed in 0..seeds {
        let violations = live(seed, Mistake::None).await;
        assert!(violations.is_empty(), "seed {seed}: {}", violations[0]);
    }
}

#[tokio::test(start_paused = true)]
async fn each_planted_mistake_is_found() {
    use Mistake::*;

    const SEEDS: u64 = 200;

    for (mistake, rule) in [
        (SettlesWithoutFence, "fence"),
        (ClaimSkipsTheHead, "out of order"),
        (PurgesTooEarly, "accepted twice"),
        (ShutdownCounts, "attempt"),
        (TakesTwice, "two attempts"),
        (CrashIsNotCounted, "crash limit"),
        (LeaseNeverExpires, "lost"),
        (SettlementIsNotStored, "taken again"),
        (AcceptsWithoutStoring, "lost"),
        (DropsDeadLetters, "changed"),
        (HandOverIgnoresPause, "paused"),
        (RetriesAtOnce, "too early"),
        (NeverBlocks, "out of order"),
        (RedrivesInProgress, "redriven in progress"),
        (IgnoresKinds, "foreign kind"),
        (ForgetsFailures, "attempt"),
        (ReusesFences, "fence"),
    ] {
        let mut found = HashSet::new();
        // Some seeds give a mistake no opportunity. Tokio draws numbers, too, so a seed is not the same run each time.
        for seed in 0..SEEDS {
            found.extend(rules(&live(seed, mistake).await));
            if found.contains(rule) {
                break;
            }
        }
        assert!(found.contains(rule), "{mistake:?} was not found: {found:?}");
    }
}
