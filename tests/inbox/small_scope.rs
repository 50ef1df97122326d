//! All states that two workers and three events in two lanes can reach within seven operations: the promises hold in
//! each, and the queues in databases do the same in a sample of the ways to them.
//!
//! The default are five operations; `SMALL_SCOPE_DEPTH=7` goes to all.

use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::time::advance;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
use tokio::time::sleep;
use tower_webhook::event::EventKind;
use tower_webhook::inbox::internal::{
    Accepted, EventLease, Kinds, Lane, NewEvent, Settled, Settlement, Take, TakenEvent,
};
use tower_webhook::inbox::{self, By, EventId, EventState, Filter, Page, Queue};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
use tower_webhook::memory::MemoryQueue;
use tower_webhook::store::EventKey;

use support::HOUR;
use support::history::{Entry, History, Mistake, Process, Spy, check, images};
use support::queue::{Calls, dead, new_event, retry, skip};

/// An operation. Leases last for an hour, or end at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    /// Accepts the next event, of a chat, for a worker.
    Accept(&'static str, Option<usize>),
    /// Accepts the first event once more.
    Duplicate,
    /// A worker claims an event, and dies if so.
    Claim(usize, bool),
    Extend(usize),
    /// A worker ends its attempt, and takes the next event if so.
    Settle(usize, End, bool),
    Redrive(usize),
    Discard(usize),
    Forget(&'static str),
    Pause(bool),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Handled,
    RetryNow,
    RetryLater,
    SkipLater,
    Holds,
    Released,
}

const ENDS: [End; 6] = [
    End::Handled,
    End::RetryNow,
    End::RetryLater,
    End::SkipLater,
    End::Holds,
    End::Released,
];
const CHATS: [&str; 2] = ["a", "b"];
const EVENTS: usize = 3;
const WORKERS: usize = 2;

impl End {
    fn settlement(self) -> Settlement {
        match self {
            Self::Handled => Settlement::Handled,
            Self::RetryNow => retry(Duration::ZERO),
            Self::RetryLater => retry(HOUR),
            Self::SkipLater => skip(HOUR),
            Self::Holds => dead(true),
            Self::Released => Settlement::Released,
        }
    }
}

/// A queue, and what its workers believe to hold.
struct Side {
    queue: Queue,
    /// Of its events alone, and in the names of its chats and keys.
    kind: EventKind,
    held: [Option<EventLease>; WORKERS],
    ids: Vec<EventId>,
    is_paused: bool,
}

impl Side {
    fn new(queue: impl Into<Queue>, number: usize) -> Self {
        Self {
            queue: queue.into(),
            kind: format!("small-scope-{number}").parse().unwrap(),
            held: [None; WORKERS],
            ids: Vec::new(),
            is_paused: false,
        }
    }

    /// The operations that mean something now. Where two are alike but for names, one of them.
    fn ops(&self) -> Vec<Op> {
        let mut ops = Vec::new();
        let free = || (0..WORKERS).filter(|worker| self.held[*worker].is_none());
        if self.ids.len() < EVENTS {
            let chats = if self.ids.is_empty() { 1 } else { 2 };
            for chat in &CHATS[..chats] {
                ops.push(Op::Accept(chat, None));
                ops.extend(free().map(|worker| Op::Accept(chat, Some(worker))));
            }
        }
        if !self.ids.is_empty() {
            ops.push(Op::Duplicate);
            ops.extend(CHATS.map(Op::Forget));
            ops.push(Op::Pause(!self.is_paused));
        }
        for worker in 0..WORKERS {
            match self.held[worker] {
                None => ops.extend([Op::Claim(worker, false), Op::Claim(worker, true)]),
                Some(_) => {
                    ops.push(Op::Extend(worker));
                    for end in ENDS {
                        ops.extend([false, true].map(|next| Op::Settle(worker, end, next)));
                    }
                }
            }
        }
        for event in 0..self.ids.len() {
            ops.extend([Op::Redrive(event), Op::Discard(event)]);
        }
        ops
    }

    fn took(&mut self, worker: usize, taken: Option<&TakenEvent>) -> String {
        let Some(taken) = taken else {
            return "nothing".to_owned();
        };
        self.held[worker] = Some(taken.lease);
        let place = self.ids.iter().position(|id| *id == taken.lease.id);
        format!(
            "{place:?} after {} failures and {} crashes, redriven {}",
            taken.failures,
            taken.crashes,
            taken.delivery.is_redriven(),
        )
    }

    fn take(&self, lease: Duration) -> Take {
        let kinds = Kinds::only([self.kind.clone()]);
        Take { lease, kinds }
    }

    fn chat(&self, chat: &str) -> String {
        format!("{} {chat}", self.kind)
    }

    fn event(&self, chat: &str, number: usize) -> NewEvent {
        let (key, chat) = (format!("{} {number}", self.kind), self.chat(chat));
        NewEvent {
            key: Some(EventKey::new("", key.as_bytes(), b"{}")),
            lane: Some(Lane::of_chat(&chat)),
            chat: Some(chat),
            ..new_event(self.kind.clone(), "{}")
        }
    }

    /// Does it, and returns what the queue has answered.
    async fn apply(&mut self, op: Op) -> String {
        let by = By::default();
        match op {
            Op::Accept(chat, worker) => {
                let take = worker.map(|_| self.take(HOUR));
                let event = self.event(chat, self.ids.len());
                match self.queue.accept_one(event, take.as_ref()).await.unwrap() {
                    Accepted::New { id, taken } => {
                        self.ids.push(id);
                        let worker = worker.unwrap_or_default();
                        self.took(worker, taken.as_deref())
                    }
                    other => format!("{other:?}"),
                }
            }
            Op::Duplicate => {
                let again = self.queue.accept_one(self.event(CHATS[0], 0), None);
                format!("{:?}", again.await.unwrap())
            }
            Op::Claim(worker, dies) => {
                let lease = if dies { Duration::ZERO } else { HOUR };
                let claims = self.queue.claim_of(&self.take(lease), 1, 1).await.unwrap();
                self.took(worker, claims.events.first())
            }
            Op::Extend(worker) => {
                let Some(held) = self.held[worker] else {
                    return String::new();
                };
                format!("{:?}", self.queue.extend(&[held], HOUR).await.unwrap())
            }
            Op::Settle(worker, end, next) => {
                let Some(held) = self.held[worker].take() else {
                    return String::new();
                };
                let next = next.then(|| self.take(HOUR));
                let end = end.settlement();
                let settle = self.queue.settle(&held, &end, next.as_ref());
                match settle.await.unwrap() {
                    Settled::Ended(next) => self.took(worker, next.as_deref()),
                    Settled::Lost => "lost".to_owned(),
                }
            }
            Op::Redrive(event) => {
                let change = self.queue.redrive(self.ids[event], None, &by);
                format!("{:?}", change.await.unwrap())
            }
            Op::Discard(event) => {
                let change = self.queue.discard(self.ids[event], None, &by);
                format!("{:?}", change.await.unwrap())
            }
            Op::Forget(chat) => {
                let chat = self.chat(chat);
                let forgotten = self.queue.forget_all(&chat, &by).await.unwrap();
                forgotten.to_string()
            }
            Op::Pause(pauses) => {
                self.is_paused = pauses;
                let note = pauses.then_some("");
                format!(
                    "{:?}",
                    self.queue
                        .pause(&inbox::Scope::Everything, note, &by)
                        .await
                        .unwrap()
                )
            }
        }
    }

    /// All events, as a person sees them.
    async fn shown(&self) -> String {
        let of_kind = Filter::default().kinds([self.kind.clone()]);
        let listed = self.queue.list(&of_kind, Page::oldest(1000)).await.unwrap();
        let mut shown = String::new();
        for event in listed.events {
            let record = self.queue.get(event.id).await.unwrap().unwrap();
            shown.push_str(&format!(
                "{} {} {} due {} settled {} body {} {}; ",
                event.state,
                event.failures,
                event.is_redriven,
                event.due_at.is_some(),
                event.settled_at.is_some(),
                record.body.is_some(),
                record.failures.len(),
            ));
        }
        shown
    }
}

/// A queue in memory, its history, and a side of it.
struct Scope {
    history: Arc<History>,
    spy: Spy,
    side: Side,
}

impl Scope {
    async fn after(path: &[Op], mistake: Mistake) -> Self {
        let history = History::begin();
        let spy = Spy::new(&history, mistake).of(Process::Ghost);
        let mut scope = Self {
            side: Side::new(spy.clone().shared(), 0),
            spy,
            history,
        };
        for op in path {
            scope.step(*op).await;
        }
        scope
    }

    async fn step(&mut self, op: Op) {
        // No two operations at one time: of two events that are due, one has waited for longer.
        advance(Duration::from_millis(1)).await;
        if let Op::Settle(worker, End::Handled, _) = op
            && let Some(held) = self.side.held[worker]
        {
            let event = held.id;
            self.history.write(Entry::Handled { event });
        }
        self.side.apply(op).await;
    }

    /// What decides about all that may follow. Workers are alike.
    async fn image(&self) -> u64 {
        let entries = self.history.entries();
        let mut held: Vec<_> = self.side.held.map(|held| self.holds(held)).to_vec();
        held.sort_unstable();
        let shown = self.side.shown().await;
        let image = (images(&entries), held, shown, self.side.is_paused);
        BuildHasherDefault::<DefaultHasher>::default().hash_one(image)
    }

    /// The event of a lease, and whether it is the newest lease of that.
    fn holds(&self, held: Option<EventLease>) -> Option<(i64, bool)> {
        let held = held?;
        let newest = self
            .history
            .entries()
            .into_iter()
            .rev()
            .find_map(|(_, entry)| match entry {
                Entry::Taken { event, fence, .. } if event == held.id => Some(fence),
                _ => None,
            });
        Some((held.id.0, newest == Some(held.fence)))
    }

    /// Handles all that is left, and returns the first promise that was broken.
    async fn ends(mut self) -> Option<String> {
        self.step(Op::Pause(false)).await;
        self.side.held = [None; WORKERS];
        for _ in 0..4 * EVENTS {
            advance(2 * HOUR).await;
            let page = Page::oldest(usize::MAX);
            let listed = self
                .side
                .queue
                .list(&Filter::default(), page)
                .await
                .unwrap();
            for (at, event) in listed.events.iter().enumerate() {
                if event.state == EventState::Dead {
                    self.step(Op::Redrive(at)).await;
                }
            }
            self.step(Op::Claim(0, false)).await;
            self.step(Op::Settle(0, End::Handled, false)).await;
        }
        self.spy.note_left().await.unwrap();
        let violations = check(&self.history.entries(), None);
        violations.first().map(ToString::to_string)
    }
}

/// Goes to all states, breadth first, and returns the ways to them: a way that breaks a promise is an error.
async fn explore(depth: usize, mistake: Mistake) -> Result<Vec<Vec<Op>>, String> {
    let mut seen = HashSet::from([Scope::after(&[], mistake).await.image().await]);
    let mut ways = vec![Vec::new()];
    let mut last = 0..1;
    for _ in 0..depth {
        let next = ways.len();
        for way in last {
            let path: Vec<Op> = ways[way].clone();
            let ops = Scope::after(&path, mistake).await.side.ops();
            for op in ops {
                let mut path = path.clone();
                path.push(op);
                let scope = Scope::after(&path, mistake).await;
                if !seen.insert(scope.image().await) {
                    continue;
                }
                if let Some(broken) = scope.ends().await {
                    return Err(format!("{broken}\nafter {path:?}"));
                }
                ways.push(path);
            }
        }
        last = next..ways.len();
    }
    Ok(ways)
}

fn paused<T>(run: impl Future<Output = T>) -> T {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    runtime.unwrap().block_on(run)
}

/// How many states there are within so many operations.
const STATES: [usize; 8] = [1, 3, 19, 98, 482, 2089, 7640, 24_435];

#[test]
fn every_promise_is_kept_in_each_state() {
    let depth = std::env::var("SMALL_SCOPE_DEPTH").map_or(5, |depth| depth.parse().unwrap());
    let states = paused(explore(depth, Mistake::None)).unwrap().len();
    println!("{states} states within {depth} operations");
    assert_eq!(states, STATES[depth]);
}

#[test]
fn planted_mistakes_are_found_within_four_operations() {
    let missed = |mistake: &Mistake| paused(explore(4, *mistake)).is_ok();
    let missed: Vec<_> = Mistake::ALL.into_iter().filter(missed).collect();
    // No time passes, no kind is left to others, a claim takes one event, events are too few for what is done seldom, and
    // each comes alone.
    let others = [
        Mistake::PurgesTooEarly,
        Mistake::TakesTwice,
        Mistake::CrashIsNotCounted,
        Mistake::IgnoresKinds,
        Mistake::ExtendsWhatIsLost,
        Mistake::ForgetsTheKey,
        Mistake::ReversesBatches,
        Mistake::StoresTheFirstItem,
    ];
    assert_eq!(missed, others);
}

/// A queue in a database does as the queue in memory on a sample of the longest ways.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
async fn steps_alike(queue: impl Into<Queue>, pause: Duration, ways: &[Vec<Op>]) {
    let queue = queue.into();
    for (number, way) in ways.iter().enumerate() {
        let mut memory = Side::new(MemoryQueue::new(), number);
        let mut other = Side::new(queue.clone(), number);
        for (at, op) in way.iter().enumerate() {
            let answers = [memory.apply(*op).await, other.apply(*op).await];
            assert_eq!(answers[0], answers[1], "operation {at} of {way:?}");
            // Until a lease has ended by the clocks of all processes, and the next event waits for less long.
            sleep(pause).await;
            // SQLite notices that when it is asked for events.
            let claims = other.queue.claim_of(&other.take(HOUR), 0, 0).await.unwrap();
            assert!(claims.events.is_empty());
            assert_eq!(
                memory.shown().await,
                other.shown().await,
                "operation {at} of {way:?}"
            );
        }
        other.apply(Op::Pause(false)).await;
    }
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
fn sample(number: usize) -> Vec<Vec<Op>> {
    let mut ways = paused(explore(5, Mistake::None)).unwrap();
    fastrand::Rng::with_seed(17).shuffle(&mut ways);
    ways.sort_by_key(Vec::len);
    ways.split_off(ways.len() - number)
}

#[cfg(feature = "sqlite")]
#[test]
fn sqlite_steps_as_the_queue_in_memory() {
    let ways = sample(60);
    let scratch = support::scratch::Scratch::new();
    let runtime = Builder::new_multi_thread().enable_all().build().unwrap();
    runtime
        .block_on(async { steps_alike(scratch.queue(), Duration::from_millis(15), &ways).await });
}

#[cfg(feature = "postgres")]
#[test]
fn postgres_steps_as_the_queue_in_memory() {
    let ways = sample(60);
    let runtime = Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let database = support::database::Database::create().await;
        steps_alike(database.queue().await, Duration::from_millis(2), &ways).await;
    });
}
