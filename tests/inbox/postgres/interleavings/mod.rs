//! Two operations on one lane, in every order of their points: they return and leave what the queue in memory makes of one
//! after the other, and claims find all that is left, in its order.
//!
//! A point is a statement of the schema's functions that names a table, or a commit. Orders count as one if they differ
//! only in steps of which neither notices the other: a step notices rows that the other operation has locked, and what it
//! has committed. The default are orders in which the second operation begins at any point of the first one, for a lane
//! with one event, which is in progress. `INTERLEAVINGS=TEXT` goes through all orders of the pairs whose names contain
//! the text.
//!
//! Four promises are weaker than one after the other. `claim`, `extend` and `purge` may leave out what the other operation
//! has locked. An acceptance may leave its event to a later claim, and the end of an attempt the next event if that was set
//! aside. And an event that was set aside until now may be due only after the other operation.

mod points;

use std::collections::BTreeSet;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgPool;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;
use tower_webhook::event::EventKind;
use tower_webhook::inbox::internal::{
    Accepted, EventLease, Lane, NewEvent, Settled, Settlement, Take, TakenEvent, in_delivery,
};
use tower_webhook::inbox::{By, Change, EventId, EventState, Filter, Page, Queue, Scope};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::postgres::PostgresQueue;
use tower_webhook::store::EventKey;
use tower_webhook::{IdempotencyKey, Item, RawDelivery};

use support::database::{Database, connect, count, execute};
use support::queue::{Calls, dead, new_event, retry, skip};
use support::{DAY, HOUR};

use self::points::{COMMIT, Point, START, Touched, plant};
use super::{MISPLACED, queue};

const PATIENCE: Duration = Duration::from_secs(30);

/// Later than both operations, where it matters.
const SOON: Duration = Duration::from_millis(20);

/// More points than an operation has.
const FAR: i64 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    /// Accepts an event and takes it, if it can; or another one, which is left to others; or the first one once more.
    Accept,
    AcceptOther,
    AcceptAgain,
    /// Accepts three items without keys of their own, of a delivery with this key. All such deliveries have one body.
    AcceptItems(&'static str),
    Claim,
    /// These two need the lease of an event. Its end takes the next event.
    Extend,
    Settle(End),
    /// Of the first event.
    Redrive,
    Discard,
    Forget,
    Purge,
    Pause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Handled,
    Retry,
    Skip,
    Dead,
    Hold,
}

const OPS: [Op; 15] = [
    Op::Accept,
    Op::AcceptOther,
    Op::AcceptAgain,
    Op::Claim,
    Op::Extend,
    Op::Settle(End::Handled),
    Op::Settle(End::Retry),
    Op::Settle(End::Skip),
    Op::Settle(End::Dead),
    Op::Settle(End::Hold),
    Op::Redrive,
    Op::Discard,
    Op::Forget,
    Op::Purge,
    Op::Pause,
];

impl End {
    fn settlement(self) -> Settlement {
        match self {
            Self::Handled => Settlement::Handled,
            Self::Retry => retry(Duration::ZERO),
            Self::Skip => skip(Duration::ZERO),
            Self::Dead => dead(false),
            Self::Hold => dead(true),
        }
    }
}

/// What is in the lane before: up to two events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lanes {
    Empty,
    /// The first event is in progress, and nothing waits behind it.
    Alone,
    /// It is in progress, and another one waits.
    Busy,
    Waiting,
    /// The lease of the first one has expired.
    Crashed,
    /// The first one is a dead letter that holds the lane.
    Held,
    /// It is a dead letter, and the second one waits.
    Dead,
    /// It was set aside and is due again, and the second one is in progress.
    Aside,
    /// It was handled, and the second one is in progress.
    Handled,
}

const LANES: [Lanes; 9] = [
    Lanes::Empty,
    Lanes::Alone,
    Lanes::Busy,
    Lanes::Waiting,
    Lanes::Crashed,
    Lanes::Held,
    Lanes::Dead,
    Lanes::Aside,
    Lanes::Handled,
];

const CHAT: &str = "chat";

/// An event in progress: its key, and whether it stands in its lane.
type Held = (String, bool, EventLease);

/// A queue, and what both operations know of the lane.
#[derive(Clone)]
struct Side {
    queue: Queue,
    first: Option<EventId>,
    held: Option<Held>,
}

fn event(key: &str, retain: Duration) -> NewEvent {
    let raw = IdempotencyKey::new(key.parse().unwrap()).unwrap();
    NewEvent {
        key: Some(EventKey::new("", key.as_bytes(), b"{}")),
        chat: Some(CHAT.to_owned()),
        lane: Some(Lane::of_chat(CHAT)),
        delivery: RawDelivery::new(EventKind::MESSAGE_CREATED, "{}").with_key(Some(raw)),
        retain,
        ..new_event(EventKind::MESSAGE_CREATED, "{}")
    }
}

/// The items of a delivery with this key.
fn items(key: &str) -> Arc<[NewEvent]> {
    let delivery = i64::from(key.as_bytes()[0]);
    let item = |number| {
        let event = event(&format!("{key}-{number}"), 8 * DAY);
        let item = in_delivery(Item::new(number, 3), delivery);
        NewEvent {
            delivery: event.delivery.with_item(item),
            guard: Some(EventKey::new("", b"the body", key.as_bytes())),
            ..event
        }
    };
    (1..=3).map(item).collect()
}

fn held(taken: &TakenEvent) -> Held {
    let key = taken.delivery.key().unwrap().to_string();
    (key, taken.lane.is_some(), taken.lease)
}

/// What an operation returned, and what it took.
type Answer = (String, Vec<Held>);

fn took<'a>(taken: impl IntoIterator<Item = &'a TakenEvent>) -> Answer {
    let mut shown = Vec::new();
    let mut all = Vec::new();
    for taken in taken {
        let (delivery, held) = (&taken.delivery, held(taken));
        let counts = [taken.failures, taken.crashes];
        shown.push(format!(
            "{} {counts:?} {} {}",
            held.0,
            held.1,
            delivery.is_redriven()
        ));
        all.push(held);
    }
    shown.sort();
    (format!("took {shown:?}"), all)
}

impl Side {
    /// Brings a lane into its state.
    async fn begin(queue: impl Into<Queue>, lanes: Lanes) -> Self {
        let mut side = Self {
            queue: queue.into(),
            first: None,
            held: None,
        };
        if lanes == Lanes::Empty {
            return side;
        }
        let lease = match lanes {
            Lanes::Crashed => Duration::from_micros(1),
            _ => HOUR,
        };
        let take = (lanes != Lanes::Waiting).then(|| queue::take(lease));
        let first = side
            .queue
            .accept_one(event("1", Duration::ZERO), take.as_ref());
        let Accepted::New { id, taken } = first.await.unwrap() else {
            panic!("it is new");
        };
        side.first = Some(id);
        side.held = taken.as_deref().map(held);
        if lanes == Lanes::Alone {
            return side;
        }
        side.queue
            .accept_one(event("2", 8 * DAY), None)
            .await
            .unwrap();
        let (end, next) = match lanes {
            Lanes::Held => (End::Hold, false),
            Lanes::Dead => (End::Dead, false),
            Lanes::Aside => (End::Skip, true),
            Lanes::Handled => (End::Handled, true),
            _ => return side,
        };
        let (_, _, lease) = side.held.take().unwrap();
        let next = next.then(|| queue::take(HOUR));
        let end = end.settlement();
        let settled = side.queue.settle(&lease, &end, next.as_ref()).await;
        let Settled::Ended(next) = settled.unwrap() else {
            panic!("nobody else settles");
        };
        side.held = next.as_deref().map(held);
        side
    }

    /// Whether an operation means something.
    fn has(&self, op: Op) -> bool {
        match op {
            Op::Extend | Op::Settle(_) => self.held.is_some(),
            Op::Redrive | Op::Discard | Op::AcceptAgain => self.first.is_some(),
            _ => true,
        }
    }

    async fn apply(&self, op: Op) -> Answer {
        let Self { queue, first, held } = self;
        let by = By::default();
        let (first, lease) = (*first, held.as_ref().map(|held| held.2));
        let shown = match op {
            Op::Accept => return self.accept("8", Some(&queue::take(HOUR))).await,
            Op::AcceptOther => return self.accept("9", None).await,
            Op::AcceptAgain => return self.accept("1", Some(&queue::take(HOUR))).await,
            Op::AcceptItems(key) => {
                let accepted = queue.accept.accept(items(key), None).await.unwrap();
                let name = |accepted: &Accepted| match accepted {
                    Accepted::New { .. } => "new".to_owned(),
                    other => format!("{other:?}"),
                };
                accepted.iter().map(name).collect::<Vec<_>>().join(" ")
            }
            Op::Claim => {
                let claims = queue.claim_of(&queue::take(HOUR), 9, 9).await;
                return took(&claims.unwrap().events);
            }
            Op::Settle(end) => {
                let next = queue::take(HOUR);
                return self.settle(&end.settlement(), Some(&next)).await;
            }
            Op::Extend => format!("{:?}", queue.extend(&[lease.unwrap()], HOUR).await.unwrap()),
            Op::Redrive => format!(
                "{:?}",
                queue.redrive(first.unwrap(), None, &by).await.unwrap()
            ),
            Op::Discard => format!(
                "{:?}",
                queue.discard(first.unwrap(), None, &by).await.unwrap()
            ),
            Op::Forget => queue.forget_all(CHAT, &by).await.unwrap().to_string(),
            Op::Purge => queue.purge(Duration::ZERO).await.unwrap().to_string(),
            Op::Pause => format!(
                "{:?}",
                queue
                    .pause(&Scope::Everything, Some(""), &by)
                    .await
                    .unwrap()
            ),
        };
        (shown, Vec::new())
    }

    async fn accept(&self, key: &str, take: Option<&Take>) -> Answer {
        match self
            .queue
            .accept_one(event(key, 8 * DAY), take)
            .await
            .unwrap()
        {
            Accepted::New { taken, .. } => took(taken.as_deref()),
            other => (format!("{other:?}"), Vec::new()),
        }
    }

    async fn settle(&self, settlement: &Settlement, next: Option<&Take>) -> Answer {
        let (_, _, lease) = self.held.as_ref().unwrap();
        let settled = self.queue.settle(lease, settlement, next).await;
        match settled.unwrap() {
            Settled::Ended(next) => took(next.as_deref()),
            Settled::Lost => ("lost".to_owned(), Vec::new()),
        }
    }

    /// All events, as a person sees them, and their numbers.
    async fn shown(&self, has_bodies: bool) -> (String, Vec<EventId>) {
        let mut shown = Vec::new();
        let all = self.queue.list(&Filter::default(), Page::oldest(100)).await;
        let all = all.unwrap().events;
        let ids: Vec<_> = all.iter().map(|event| event.id).collect();
        let looked_at = ids.iter().filter(|_| has_bodies);
        let records = join_all(looked_at.map(|id| self.queue.get(*id))).await;
        for (at, event) in all.iter().enumerate() {
            let record = records
                .get(at)
                .map(|record| record.as_ref().unwrap().as_ref().unwrap());
            let content = record.map(|record| (record.body.is_some(), record.failures.len()));
            shown.push(format!(
                "{} {} {} {} {} {content:?}",
                event.key.as_ref().unwrap(),
                event.state,
                event.failures,
                event.is_redriven,
                event.due_at.is_some(),
            ));
        }
        shown.sort();
        (shown.join(", "), ids)
    }

    /// What a person sees, and in which order all that is left is handled: what stands in the lane, and then the rest.
    async fn outcome(&self, answers: [Answer; 2]) -> String {
        let by = By::default();
        let (before, ids) = self.shown(true).await;
        let shown = format!("{} | {} | {before}", answers[0].0, answers[1].0);
        self.queue
            .pause(&Scope::Everything, None, &by)
            .await
            .unwrap();
        let (mut line, mut others) = (Vec::new(), BTreeSet::new());
        let mut left: Vec<_> = self.held.clone().into_iter().collect();
        left.extend(answers.into_iter().flat_map(|(_, held)| held));
        loop {
            for (key, is_in_lane, lease) in mem::take(&mut left) {
                let settled = self.queue.settle(&lease, &Settlement::Handled, None).await;
                if let Settled::Ended(_) = settled.unwrap() {
                    match is_in_lane {
                        true => line.push(key),
                        false => assert!(others.insert(key), "handled twice"),
                    }
                }
            }
            let claims = self.queue.claim_of(&queue::take(HOUR), 9, 9).await.unwrap();
            left.extend(claims.events.iter().map(held));
            if !left.is_empty() {
                continue;
            }
            let dead = Some(EventState::Dead);
            let redriven = ids.iter().map(|id| self.queue.redrive(*id, dead, &by));
            let redriven = join_all(redriven).await.into_iter().map(Result::unwrap);
            if redriven.filter(|change| *change == Change::Made).count() == 0 {
                break;
            }
        }
        let (after, _) = self.shown(false).await;
        format!("{shown} | then {line:?} {others:?}: {after}")
    }
}

/// In what an operation may differ from what it does alone.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Less {
    Nothing,
    /// This one leaves out what the other one has locked.
    LeavesOut(usize),
    /// An event that is set aside is not due again before both have ended.
    IsDueLater,
}

/// Whether an operation locks an event that was set aside before the head of its lane.
fn locks_first(op: Op) -> bool {
    matches!(op, Op::Redrive | Op::Discard | Op::Forget)
}

/// What the queue in memory makes of two operations, one after the other.
async fn serial(lanes: Lanes, ops: [Op; 2]) -> BTreeSet<String> {
    let (mut outcomes, next) = (BTreeSet::new(), queue::take(HOUR));
    let less = [
        Less::Nothing,
        Less::LeavesOut(0),
        Less::LeavesOut(1),
        Less::IsDueLater,
    ];
    for (order, less) in less
        .iter()
        .flat_map(|less| [([0, 1], *less), ([1, 0], *less)])
    {
        let side = Side::begin(MemoryQueue::new(), lanes).await;
        let mut answers = [const { (String::new(), Vec::new()) }; 2];
        for who in order {
            let is_less = less == Less::LeavesOut(who);
            answers[who] = match ops[who] {
                Op::Claim if is_less => took(None),
                Op::Extend if is_less => ("[None]".to_owned(), Vec::new()),
                Op::Purge if is_less => ("false".to_owned(), Vec::new()),
                // Claims find it.
                Op::Accept if is_less => side.accept("8", None).await,
                Op::AcceptAgain if is_less => side.accept("1", None).await,
                Op::Settle(end)
                    if is_less && lanes == Lanes::Aside && locks_first(ops[1 - who]) =>
                {
                    side.settle(&end.settlement(), None).await
                }
                Op::Settle(End::Skip) if less == Less::IsDueLater => {
                    side.settle(&skip(SOON), Some(&next)).await
                }
                op => side.apply(op).await,
            };
        }
        if less == Less::IsDueLater {
            sleep(SOON).await;
        }
        outcomes.insert(side.outcome(answers).await);
    }
    outcomes
}

/// A point that an operation goes beyond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    who: usize,
    point: usize,
}

/// Where an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// At the point with this number, the count of which it waits for.
    Point(usize),
    /// It waits for the other one.
    Blocked,
    Ended,
}

/// An operation in one session.
struct Running {
    at: At,
    /// The point that it does not go beyond, by how many it has reached then.
    count: i64,
    task: Option<JoinHandle<Answer>>,
    answer: Answer,
    /// The points that it has gone beyond, all of them when it has ended.
    points: Vec<usize>,
    touched: Touched,
}

struct Driver {
    control: PgPool,
    pools: [PgPool; 2],
    pids: Vec<i32>,
    points: Vec<Point>,
    clean: String,
}

/// One order.
struct Run {
    steps: Vec<Step>,
    /// The other step that was possible instead of each.
    others: Vec<Option<Step>>,
    outcome: String,
}

impl Driver {
    async fn new() -> Self {
        let database = Database::create().await;
        database.queue().await;
        let (points, tables) = plant(&database).await;
        database.set("synchronous_commit TO off").await;
        database.set("deadlock_timeout TO '50ms'").await;
        // The clock is noted from time to time, and here it is not.
        let mut clean = "UPDATE tower_webhook.clock SET seen = tower_webhook.micros();
            UPDATE tower_webhook.kinds SET is_seen = false, paused = 0"
            .to_owned();
        let kept = ["kinds", "clock", "schema_versions"];
        for table in tables
            .iter()
            .filter(|table| !kept.contains(&table.as_str()))
        {
            if !table.ends_with("_seq") {
                clean += &format!("; DELETE FROM tower_webhook.{table}");
            }
        }
        let url = &database.url;
        let session =
            |number| async move { connect(&format!("{url}?application_name={number}"), 1).await };
        let pools = [session(1).await, session(2).await];
        let mut pids = Vec::new();
        for pool in &pools {
            pids.push(count(pool, "SELECT pg_backend_pid()::bigint").await as i32);
        }
        Self {
            control: connect(url, 1).await,
            pools,
            pids,
            points,
            clean,
        }
    }

    /// Executes two operations in an order that begins with these steps. After them, the first one goes on before the
    /// second one, unless it would not notice what this one did last: that order is another one's, too.
    async fn run(&self, lanes: Lanes, ops: [Op; 2], begin: &[Step]) -> Run {
        execute(&self.control, &self.clean).await;
        let [one, other] = self
            .pools
            .each_ref()
            .map(|pool| PostgresQueue::new(pool.clone()));
        let one = Side::begin(one, lanes).await;
        let sides = [
            one.clone(),
            Side {
                queue: other.into(),
                ..one
            },
        ];
        let mut running = [0, 1].map(|_| Running {
            at: At::Point(START),
            count: 1,
            task: None,
            answer: (String::new(), Vec::new()),
            points: Vec::new(),
            touched: Touched::default(),
        });
        execute(&self.control, "SELECT public.prepare(1), public.prepare(2)").await;
        // Whose steps they are, and the other step that was possible.
        let mut order: Vec<(usize, Option<Step>)> = Vec::new();
        let mut last = None;
        while running.iter().any(|it| it.at != At::Ended) {
            let free = [0, 1].map(|who| match running[who].at {
                At::Point(point) => Some(Step { who, point }),
                At::Blocked | At::Ended => None,
            });
            let ahead = &begin[order.len().min(begin.len())..];
            let (who, steps) = match (ahead.first(), free) {
                (Some(step), _) => {
                    let same = ahead.iter().take_while(|next| next.who == step.who).count();
                    let is_same = free[step.who] == Some(*step);
                    assert!(
                        is_same,
                        "{lanes:?} {ops:?} differs: {}, then {free:?}",
                        self.shown(begin)
                    );
                    last = ahead.get(same - 1).copied();
                    (step.who, Some(&ahead[..same]))
                }
                (None, [Some(one), Some(other)])
                    if last.is_some_and(|last| !self.notices(&running, one, last)) =>
                {
                    last = Some(other);
                    (1, Some(last.as_slice()))
                }
                // To its end, or until it waits.
                (None, [Some(_), _]) => (0, None),
                (None, [None, Some(_)]) => (1, None),
                // The server ends one of them.
                (None, [None, None]) => {
                    self.look(&mut running, 0).await;
                    self.look(&mut running, 1).await;
                    continue;
                }
            };
            for step in steps.unwrap_or_default() {
                running[who].points.push(step.point);
                running[who].touched.add(self.points[step.point].touched);
            }
            let many = steps.map_or(FAR, |steps| steps.len() as i64);
            self.go(&mut running, &sides, ops, who, many).await;
            let other = free[1].filter(|other| other.who != who);
            let gone = order.iter().filter(|step| step.0 == who).count();
            order.extend((gone..running[who].points.len()).map(|_| (who, other)));
            if running[who].at == At::Ended && running[1 - who].at == At::Blocked {
                let gone = running[1 - who].points.len();
                self.look(&mut running, 1 - who).await;
                order.extend((gone..running[1 - who].points.len()).map(|_| (1 - who, None)));
            }
        }
        execute(&self.control, "SELECT pg_advisory_unlock_all()").await;
        let mut points = running.each_ref().map(|it| it.points.iter());
        let steps = order.iter().map(|(who, _)| Step {
            who: *who,
            point: *points[*who].next().unwrap(),
        });
        let steps = steps.collect();
        let mut outcome = sides[0].outcome(running.map(|it| it.answer)).await;
        if count(&self.control, MISPLACED).await > 0 {
            outcome += " and an event is not in its table";
        }
        Run {
            steps,
            others: order.into_iter().map(|(_, other)| other).collect(),
            outcome,
        }
    }

    /// Lets an operation go beyond so many points.
    async fn go(
        &self,
        running: &mut [Running; 2],
        sides: &[Side; 2],
        ops: [Op; 2],
        who: usize,
        points: i64,
    ) {
        let it = &mut running[who];
        let mut more = points;
        if it.task.is_none() {
            let (side, op) = (sides[who].clone(), ops[who]);
            it.task = Some(tokio::spawn(async move { side.apply(op).await }));
            more -= 1;
        }
        if more > 0 {
            let (from, to) = (it.count, it.count + more);
            it.count = to;
            let go = format!("SELECT public.go({}, {from}, {to}, $1)", who + 1);
            if self.is_at(it, who, &go).await {
                return;
            }
        }
        self.look(running, who).await;
    }

    /// Waits until an operation is at a point, waits for the other one, or has ended.
    async fn look(&self, running: &mut [Running; 2], who: usize) {
        let it = &mut running[who];
        let began = Instant::now();
        let look = format!("SELECT public.look({}, {}, $1)", who + 1, it.count);
        while !it.task.as_ref().is_some_and(JoinHandle::is_finished) {
            if self.is_at(it, who, &look).await {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "it neither ends nor waits");
        }
        it.answer = it.task.take().unwrap().await.unwrap();
        it.at = At::Ended;
        let points = format!(
            "SELECT current_setting('test.points'), last_value FROM public.count_{}",
            who + 1
        );
        let points = sqlx::query_as(AssertSqlSafe(points));
        let (points, count): (String, i64) = points.fetch_one(&self.pools[who]).await.unwrap();
        let points = points.split(' ').map(|point| point.parse().unwrap());
        it.points = [START].into_iter().chain(points).collect();
        if it.points.len() as i64 != count + 1 {
            it.answer.0 += " in a second transaction";
        }
    }

    /// Whether an operation is at a point, or waits for the other one.
    async fn is_at(&self, it: &mut Running, who: usize, sql: &str) -> bool {
        let at = sqlx::query_scalar(AssertSqlSafe(sql)).bind(&self.pids);
        let at: Option<i64> = at.fetch_one(&self.control).await.unwrap();
        it.at = match at {
            Some(-1) => At::Blocked,
            Some(point) => At::Point(point as usize),
            None => return false,
        };
        if it.at == At::Blocked {
            let reached = format!("SELECT last_value FROM public.count_{}", who + 1);
            let reached = count(&self.control, &reached).await;
            // Which ones is known when it has ended.
            it.points.resize(reached as usize + 1, START);
        }
        true
    }

    /// Whether the next step of the first operation depends on the last one of the second, which has not ended.
    fn notices(&self, running: &[Running; 2], next: Step, last: Step) -> bool {
        let [one, other] = [next, last].map(|step| self.points[step.point].touched);
        one.locks & other.locks != 0
            || next.point == COMMIT && running[0].touched.changes() & other.all() != 0
    }

    /// Where an order goes from one operation to the other.
    fn shown(&self, steps: &[Step]) -> String {
        let runs = steps
            .chunk_by(|one, other| one.who == other.who)
            .map(|run| {
                let last = run.last().unwrap();
                format!(
                    "{} until it has done `{}`",
                    last.who + 1,
                    self.points[last.point].name
                )
            });
        runs.collect::<Vec<_>>().join(", ")
    }

    /// Executes two operations in all orders, and returns their number and those with a wrong outcome.
    async fn explore(&self, lanes: Lanes, ops: [Op; 2], is_brief: bool) -> (usize, Vec<String>) {
        let expected = serial(lanes, ops).await;
        let (mut orders, mut wrong) = (0, Vec::new());
        let mut begins = vec![Vec::new()];
        while let Some(begin) = begins.pop() {
            let run = self.run(lanes, ops, &begin).await;
            orders += 1;
            let ways = match is_brief && orders > 1 {
                true => 0..0,
                false => begin.len()..run.steps.len(),
            };
            for at in ways {
                if let Some(other) = run.others[at] {
                    begins.push([&run.steps[..at], &[other]].concat());
                }
            }
            if !expected.contains(&run.outcome) {
                wrong.push(format!(
                    "{lanes:?} {ops:?}: {}\n  {}\n  is none of\n  {}",
                    self.shown(&run.steps),
                    run.outcome,
                    expected.iter().cloned().collect::<Vec<_>>().join("\n  "),
                ));
            }
        }
        (orders, wrong)
    }
}

/// All pairs of operations that mean something in these states.
async fn pairs(all: &[Lanes]) -> Vec<(Lanes, [Op; 2])> {
    let mut pairs = Vec::new();
    for lanes in all {
        let side = Side::begin(MemoryQueue::new(), *lanes).await;
        let ops: Vec<_> = OPS.into_iter().filter(|op| side.has(*op)).collect();
        for (at, one) in ops.iter().enumerate() {
            pairs.extend(ops[at..].iter().map(|other| (*lanes, [*one, *other])));
        }
    }
    pairs
}

#[tokio::test(flavor = "multi_thread")]
async fn any_order_of_points_is_one_operation_after_the_other() {
    let wanted = std::env::var("INTERLEAVINGS");
    let is_brief = wanted.is_err();
    let wanted = wanted.unwrap_or_else(|_| "(Alone, ".to_owned());
    let mut pairs = pairs(&LANES).await;
    pairs.retain(|pair| format!("{pair:?}").contains(&wanted));
    // These two are much like others.
    let is_left_out = |op: &Op| is_brief && [End::Skip, End::Hold].map(Op::Settle).contains(op);
    pairs.retain(|(_, ops)| !ops.iter().any(is_left_out));
    let (pairs, next) = (Arc::new(pairs), Arc::new(AtomicUsize::new(0)));
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        let (pairs, next) = (Arc::clone(&pairs), Arc::clone(&next));
        tasks.spawn(async move {
            let driver = Driver::new().await;
            let (mut orders, mut wrong) = (0, Vec::new());
            while let Some((lanes, ops)) = pairs.get(next.fetch_add(1, Ordering::Relaxed)) {
                let began = Instant::now();
                let (more, others) = driver.explore(*lanes, *ops, is_brief).await;
                let (bad, took) = (others.len(), began.elapsed());
                println!("{lanes:?} {ops:?}: {more} orders, {bad} wrong, {took:.1?}");
                orders += more;
                wrong.extend(others);
            }
            (orders, wrong)
        });
    }
    let (mut orders, mut wrong) = (0, Vec::new());
    while let Some(task) = tasks.join_next().await {
        let (more, others) = task.unwrap();
        orders += more;
        wrong.extend(others);
    }
    println!("{} pairs of operations in {orders} orders", pairs.len());
    assert!(orders > pairs.len(), "no operation is held");
    let count = wrong.len();
    wrong.truncate(5);
    assert_eq!(count, 0, "wrong orders:\n{}", wrong.join("\n"));
}

/// Under two keys: one of them is refused, and nothing of it is stored.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_deliveries_of_one_body_one_is_stored() {
    let ops = ["a", "b"].map(Op::AcceptItems);
    let driver = Driver::new().await;
    let (orders, wrong) = driver.explore(Lanes::Empty, ops, true).await;
    assert!(orders > 4, "no operation is held");
    assert!(wrong.is_empty(), "wrong orders:\n{}", wrong.join("\n"));
}
