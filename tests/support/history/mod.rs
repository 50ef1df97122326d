//! The history of a queue, as seen from outside, and a checker that proves from it that the promises were kept.

mod spy;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::hash::{DefaultHasher, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;
use tower_webhook::EventType;
use tower_webhook::inbox::internal::Lane;
use tower_webhook::inbox::{EventId, EventState, Scope};
use tower_webhook::store::{EventKey, Fence};

pub use self::spy::{Mistake, Spy};
use super::lock;

pub const LEASE: Duration = Duration::from_secs(10);
/// How long after the end of a dead process's lease its event may wait for its turn.
pub const SLACK: Duration = Duration::from_secs(30);
pub const MAX_CRASHES: u32 = 3;

/// What happened.
#[derive(Clone, Debug)]
pub enum Entry {
    /// The event was stored.
    Stored {
        event: EventId,
        key: u128,
        of: EventType,
        lane: Option<Lane>,
    },
    /// The sender was told that the event is stored.
    Answered {
        key: u128,
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
    /// A handler has done its work.
    Handled {
        event: EventId,
    },
    /// A handler ended in any way, or was dropped.
    Stopped {
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
    /// A person had the event's chat forgotten.
    Forgotten {
        event: EventId,
    },
    Paused {
        of: Scope,
        is_paused: bool,
    },
    /// Clocks jump by this much, so that a process may believe that it holds a lease which has expired.
    Jumped {
        by: Duration,
    },
    /// Something is wrong for this long that may cost leases.
    Trouble {
        lasts: Duration,
    },
    /// Anything else, for whoever reads the history.
    Note(String),
    /// What is in the queue at the end.
    Left {
        event: EventId,
        state: EventState,
        has_body: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// A worker, by its number.
    Worker(usize),
    /// A process that dies.
    Ghost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    Settled(EventState),
    Retry {
        after: Duration,
        counts: bool,
        blocks: bool,
    },
    Released,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Console {
    Redrive,
    Discard,
}

/// A broken promise.
#[derive(Clone, Debug)]
pub struct Violation {
    pub rule: &'static str,
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.text)
    }
}

/// All that happened, in order.
pub struct History {
    began: Instant,
    entries: Mutex<Vec<(Duration, Entry)>>,
    /// The newest event of each key.
    events: Mutex<HashMap<u128, EventId>>,
}

impl History {
    pub fn begin() -> Arc<Self> {
        Arc::new(Self {
            began: Instant::now(),
            entries: Mutex::default(),
            events: Mutex::default(),
        })
    }

    pub fn write(&self, entry: Entry) {
        if let Entry::Stored { event, key, .. } = &entry {
            lock(&self.events).insert(*key, *event);
        }
        lock(&self.entries).push((self.began.elapsed(), entry));
    }

    pub fn entries(&self) -> Vec<(Duration, Entry)> {
        lock(&self.entries).clone()
    }

    /// The event that was stored with a key.
    pub fn event(&self, key: &[u8]) -> Option<EventId> {
        lock(&self.events).get(&digest(key)).copied()
    }

    /// The number of the newest event.
    pub fn newest(&self) -> i64 {
        lock(&self.events).values().max().map_or(0, |event| event.0)
    }

    /// Notes that a handler of this event runs, until the returned value is dropped.
    pub fn runs(self: &Arc<Self>, event: EventId) -> Running {
        self.write(Entry::Ran { event });
        let history = Arc::clone(self);
        Running { history, event }
    }

    /// One line for each entry.
    pub fn lines(&self) -> Vec<String> {
        let entries = lock(&self.entries);
        let lines = entries.iter();
        lines
            .map(|(at, entry)| format!("{at:?} {entry:?}"))
            .collect()
    }
}

/// The digest by which a queue knows a key at the chat platform's route.
pub fn digest(key: &[u8]) -> u128 {
    EventKey::new("", key, b"").key()
}

/// The same for the same lines only.
pub fn hash(lines: &[String]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for line in lines {
        hasher.write(line.as_bytes());
        hasher.write_u8(b'\n');
    }
    hasher.finish()
}

/// A handler that runs.
pub struct Running {
    history: Arc<History>,
    pub event: EventId,
}

impl Running {
    pub fn handled(&self) {
        let event = self.event;
        self.history.write(Entry::Handled { event });
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let event = self.event;
        self.history.write(Entry::Stopped { event });
    }
}

/// Proves order, single attempts, fences and completeness from a history. Workers leave events of the foreign type.
pub fn check(entries: &[(Duration, Entry)], foreign: Option<&EventType>) -> Vec<Violation> {
    let mut checker = Checker {
        foreign,
        ..Checker::default()
    };
    for (at, entry) in entries {
        checker.at = *at;
        checker.see(entry);
    }
    checker.end();
    checker.violations
}

/// What a history says of each event, without times and fences: the same for the same prospects.
pub fn images(entries: &[(Duration, Entry)]) -> Vec<String> {
    let mut checker = Checker::default();
    let mut changed = BTreeMap::new();
    for (number, (at, entry)) in entries.iter().enumerate() {
        checker.at = *at;
        checker.see(entry);
        match entry {
            Entry::Stored { event, .. }
            | Entry::Ended { event, .. }
            | Entry::Changed { event, .. }
            | Entry::Taken { event, .. } => drop(changed.insert(*event, number)),
            _ => {}
        }
    }
    let at = checker.at;
    // Of two events that wait, the one that has waited for longer is taken.
    let waits = |event: &EventId| {
        let known = checker.events.get(event);
        known.is_some_and(|known| !known.is_held(at) && !matches!(known.last, Last::Settled(_)))
    };
    changed.retain(|event, _| waits(event));
    let mut order: Vec<_> = changed.values().copied().collect();
    order.sort_unstable();
    let image = |(event, known): (&EventId, &Known)| {
        let last = match known.last {
            Last::Due(due, blocks) => format!("due {} {blocks}", at < due),
            last => format!("{last:?}"),
        };
        let held = known.holder.map(|(_, until)| at < until);
        let (counted, crashes, is_redriven) = (known.counted, known.crashes, known.is_redriven);
        let since = changed.get(event).map(|number| order.binary_search(number));
        format!("{last} {held:?} {counted} {crashes} {is_redriven} {since:?}")
    };
    checker.events.iter().map(image).collect()
}

/// What the history says of one event.
#[derive(Debug)]
struct Known {
    of: EventType,
    lane: Option<Lane>,
    /// The current attempt: its fence, and the end of its lease.
    holder: Option<(Fence, Duration)>,
    /// Who began it.
    by: Process,
    /// When a process died that held it.
    died: Option<Duration>,
    last: Last,
    counted: u32,
    crashes: u32,
    is_redriven: bool,
    /// A handler has done its work.
    is_handled: bool,
    is_forgotten: bool,
    left: Option<(EventState, bool)>,
}

impl Known {
    fn is_held(&self, at: Duration) -> bool {
        self.holder.is_some_and(|(_, until)| at < until)
    }

    /// Counts the crash of an attempt whose lease has expired.
    fn count_crash(&mut self, at: Duration) {
        if self.holder.take_if(|(_, until)| *until <= at).is_some() {
            self.crashes += 1;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    Waiting,
    /// Not before this time, in line or not.
    Due(Duration, bool),
    Settled(EventState),
}

#[derive(Default)]
struct Checker<'a> {
    foreign: Option<&'a EventType>,
    at: Duration,
    events: BTreeMap<EventId, Known>,
    keys: HashMap<u128, EventId>,
    paused: BTreeSet<Scope>,
    /// The events whose handlers run.
    running: Vec<EventId>,
    /// Until then, a process may hold a lease that has expired.
    excused: Duration,
    /// Until then, processes may lose leases.
    trouble: Duration,
    violations: Vec<Violation>,
}

impl Checker<'_> {
    fn broken(&mut self, rule: &'static str, text: String) {
        let text = format!("{text} (at {:?})", self.at);
        self.violations.push(Violation { rule, text });
    }

    fn see(&mut self, entry: &Entry) {
        let at = self.at;
        match entry {
            Entry::Stored {
                event,
                key,
                of,
                lane,
            } => self.stored(*event, *key, of, *lane),
            Entry::Answered { key } if !self.keys.contains_key(key) => {
                self.broken("answered, not stored", format!("key {key:x}"));
            }
            Entry::Taken {
                event,
                fence,
                attempt,
                by,
                lease,
            } => self.taken(*event, *fence, *attempt, *by, *lease),
            Entry::Ran { event } => self.ran(*event),
            Entry::Stopped { event } => {
                let first = self.running.iter().position(|running| running == event);
                first.map(|first| self.running.swap_remove(first));
            }
            Entry::Extended { fence, lease } => {
                for known in self.events.values_mut() {
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
            } => self.ended(*event, *fence, *how, *recorded),
            Entry::Changed { event, by } => self.changed(*event, *by),
            Entry::Paused { of, is_paused } => {
                let _ = match is_paused {
                    true => self.paused.insert(of.clone()),
                    false => self.paused.remove(of),
                };
            }
            Entry::Jumped { by } => {
                self.excused = at + *by + LEASE;
                self.trouble = self.trouble.max(self.excused);
            }
            Entry::Trouble { lasts } => self.trouble = self.trouble.max(at + *lasts),
            Entry::Handled { event }
            | Entry::Died { event }
            | Entry::Forgotten { event }
            | Entry::Left { event, .. } => {
                let Some(known) = self.events.get_mut(event) else {
                    return self.broken("unknown event", format!("{event}: {entry:?}"));
                };
                match entry {
                    Entry::Handled { .. } => known.is_handled = true,
                    Entry::Died { .. } => known.died = Some(at),
                    Entry::Left {
                        state, has_body, ..
                    } => known.left = Some((*state, *has_body)),
                    _ => known.is_forgotten = true,
                }
            }
            Entry::Answered { .. } | Entry::Note(_) => {}
        }
    }

    fn stored(&mut self, event: EventId, key: u128, of: &EventType, lane: Option<Lane>) {
        if let Some(first) = self.keys.insert(key, event) {
            self.broken("accepted twice", format!("{event} has the key of {first}"));
        }
        // The items of a delivery are noted in their order.
        let mut later = self.events.range(event..);
        let later = later.find(|(_, known)| lane.is_some() && known.lane == lane);
        if let Some(later) = later.map(|(later, _)| *later) {
            self.broken("stored out of order", format!("{event} after {later}"));
        }
        let known = Known {
            of: of.clone(),
            lane,
            holder: None,
            by: Process::Ghost,
            died: None,
            last: Last::Waiting,
            counted: 0,
            crashes: 0,
            is_redriven: false,
            is_handled: false,
            is_forgotten: false,
            left: None,
        };
        self.events.insert(event, known);
    }

    fn taken(&mut self, event: EventId, fence: Fence, attempt: u32, by: Process, lease: Duration) {
        let at = self.at;
        let Some(known) = self.events.get(&event) else {
            return self.broken("unknown event", format!("{event} was taken"));
        };
        let (of, last, died) = (known.of.clone(), known.last, known.died);
        let expired = known.holder.filter(|_| known.by != Process::Ghost);
        let is_held = known.is_held(at);
        let scopes = [
            Scope::Everything,
            Scope::Route(of.route.clone()),
            Scope::Type(of.clone()),
        ];
        if scopes.iter().any(|scope| self.paused.contains(scope)) {
            self.broken("paused", format!("{event} was taken in a pause"));
        }
        let is_foreign = self.foreign == Some(&of);
        if by != Process::Ghost && is_foreign {
            self.broken(
                "foreign type",
                format!("{event} was taken by a worker that leaves its type"),
            );
        }
        match last {
            Last::Settled(state) => self.broken("taken again", format!("{event} was {state}")),
            Last::Due(due, _) if at < due => {
                self.broken("too early", format!("{event} was due {:?} later", due - at));
            }
            _ => {}
        }
        if is_held {
            self.broken(
                "two attempts",
                format!("{event} was taken while it was held"),
            );
        }
        if let Some(died) = died.filter(|died| !is_foreign && at > *died + LEASE + SLACK) {
            let late = at - died;
            self.broken(
                "stuck",
                format!("{event} was taken {late:?} after its process died"),
            );
        }
        if let Some((_, until)) = expired.filter(|(_, until)| *until <= at)
            && until.saturating_sub(LEASE) > self.trouble
        {
            self.broken(
                "expired at rest",
                format!("the lease of {event}, at {until:?}"),
            );
        }
        self.in_order(event);
        let Some(known) = self.events.get_mut(&event) else {
            return;
        };
        known.count_crash(at);
        let expected = 1 + known.counted + known.crashes;
        known.holder = Some((fence, at + lease));
        known.by = by;
        known.died = None;
        if attempt != expected {
            self.broken(
                "attempt",
                format!("attempt {attempt} of {event} is attempt {expected}"),
            );
        }
    }

    /// The event that is taken is the first one of its lane.
    fn in_order(&mut self, event: EventId) {
        let at = self.at;
        let lane = |known: &Known| known.lane.filter(|_| !known.is_redriven);
        let Some(of) = self.events.get(&event).and_then(lane) else {
            return;
        };
        let mut broken = Vec::new();
        for (other, known) in &self.events {
            if *other == event || lane(known) != Some(of) {
                continue;
            }
            if known.is_held(at) {
                broken.push(("two in a lane", format!("{event} beside {other}")));
            }
            let is_before = *other < event
                && match known.last {
                    Last::Waiting | Last::Due(_, true) => true,
                    // Back in line a moment after it is due, at the next look.
                    Last::Due(due, false) => at > due + SLACK,
                    Last::Settled(_) => false,
                };
            if is_before {
                broken.push(("out of order", format!("{event} before {other}")));
            }
        }
        for (rule, text) in broken {
            self.broken(rule, text);
        }
    }

    fn ran(&mut self, event: EventId) {
        let crashes = self.events.get(&event).map_or(0, |known| known.crashes);
        if crashes >= MAX_CRASHES {
            self.broken(
                "crash limit",
                format!("{event} was handled after {crashes} crashes"),
            );
        }
        let lane = |event| {
            let known = self.events.get(event)?;
            known.lane.filter(|_| !known.is_redriven)
        };
        let of = lane(&event);
        let beside = self
            .running
            .iter()
            .find(|other| **other == event || of.is_some() && lane(other) == of);
        if let Some(other) = beside.copied()
            && self.at >= self.excused
        {
            self.broken("two handlers", format!("{event} beside {other}"));
        }
        self.running.push(event);
    }

    fn ended(&mut self, event: EventId, fence: Fence, how: How, recorded: bool) {
        let at = self.at;
        let Some(known) = self.events.get_mut(&event) else {
            return self.broken("unknown event", format!("{event} was settled"));
        };
        if !recorded {
            return;
        }
        let is_holder = known.holder.is_some_and(|(holder, _)| holder == fence);
        let is_handled = known.is_handled || how != How::Settled(EventState::Handled);
        known.holder = None;
        known.died = None;
        if how != How::Released {
            known.crashes = 0;
        }
        known.last = match how {
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
        if !is_holder {
            self.broken("fence", format!("a late attempt ended {event} as {how:?}"));
        }
        if !is_handled {
            self.broken(
                "never handled",
                format!("{event} is handled, but by no handler"),
            );
        }
    }

    fn changed(&mut self, event: EventId, by: Console) {
        let at = self.at;
        let Some(known) = self.events.get_mut(&event) else {
            return self.broken("unknown event", format!("{event}: {by:?}"));
        };
        let is_held = known.is_held(at);
        known.count_crash(at);
        match by {
            Console::Redrive => {
                if matches!(known.last, Last::Settled(_)) {
                    known.is_redriven = true;
                    known.counted = 0;
                    known.crashes = 0;
                    known.is_handled = false;
                }
                known.last = Last::Waiting;
            }
            Console::Discard => known.last = Last::Settled(EventState::Discarded),
        }
        known.holder = None;
        // Its process learns that at the next extension, and others need not wait for it.
        self.running.retain(|running| *running != event);
        if by == Console::Redrive && is_held {
            self.broken("redriven in progress", format!("{event}"));
        }
    }

    fn end(&mut self) {
        let mut broken = Vec::new();
        for (event, known) in &self.events {
            match (known.last, known.left) {
                (Last::Settled(state), Some((found, _))) if state == found => {}
                (Last::Settled(state), found) => {
                    broken.push(("changed", format!("{event} was {state}, and is {found:?}")));
                }
                // No worker takes it.
                (_, Some((found, _)))
                    if self.foreign == Some(&known.of) && found.is_unsettled() => {}
                (last, found) => {
                    broken.push(("lost", format!("{event}: {last:?}, and is {found:?}")));
                }
            }
            if known.is_forgotten && known.left.is_some_and(|(_, has_body)| has_body) {
                broken.push((
                    "remembered",
                    format!("{event} was forgotten, and has its body"),
                ));
            }
        }
        for (rule, text) in broken {
            self.broken(rule, text);
        }
    }
}
