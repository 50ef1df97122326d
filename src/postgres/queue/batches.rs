//! One statement at a time for many callers: while it is executed, later calls collect for the next one. Beside a
//! statement that hangs, others are executed. A call whose row somebody else has locked stands aside until that row is
//! free.

use std::collections::{BTreeSet, VecDeque};
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{sleep, timeout};

use super::parameters::unsort;
use crate::inbox::event::{EventLease, Kinds};
use crate::lock::lock;
use crate::store::{StoreError, StoreErrorKind};

/// The size of the calls that a statement serves, at most, or one call.
const LARGEST: usize = 128;

/// After a statement for so many calls, more are waited for this long before the next one, because callers that were
/// answered call again, and each statement costs the server as much as several calls.
const BUSY: usize = 8;
const LINGER: Duration = Duration::from_millis(1);

/// How long a statement may take before others are executed beside it, and how many there may be of those.
const SLOW: Duration = Duration::from_millis(500);
const MOST_SLOW: usize = 2;

/// A call of this size is executed beside others from the start, as it takes long for sure.
const LARGE: usize = LARGEST / 2;

/// How much longer such a statement may take, and one whose callers have all given up. Its connection is closed then.
pub(super) const GRACE: Duration = Duration::from_secs(5);

/// How much longer for each call, by its size.
const PER_SIZE: Duration = Duration::from_millis(20);

/// The interval at which locked rows are looked at.
const PROBE: Duration = Duration::from_millis(100);

/// The result of a call of the queue.
pub(super) type Result<T, E = StoreError> = std::result::Result<T, E>;

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What became of a statement for several calls.
pub(super) enum Executed<R> {
    /// Each call has a result.
    Done(Vec<Result<R>>),
    /// The statement waited for a lock until the server ended it, and had no effect.
    Blocked,
}

impl<R> Executed<R> {
    /// Returns results to the former positions of their calls.
    pub(super) fn unsort(self, order: &[usize]) -> Self {
        match self {
            Self::Done(results) => Self::Done(unsort(results, order)),
            Self::Blocked => Self::Blocked,
        }
    }
}

/// Executes a statement for several calls.
type Execute<C> = Box<dyn Fn(Vec<C>) -> Boxed<Executed<<C as Call>::Return>> + Send + Sync>;

/// A row of `head`, by its key.
pub(super) type Row = (i64, i64);

/// Returns those of the rows that others have locked, at once.
pub(super) type Locked = Box<dyn Fn(BTreeSet<Row>) -> Boxed<Result<BTreeSet<Row>>> + Send + Sync>;

/// Gives up events that nobody waits for any more.
pub(super) type Release = Arc<dyn Fn(Vec<EventLease>) -> Boxed<()> + Send + Sync>;

/// What a call asks for.
pub(super) trait Call: Clone + Send + 'static {
    /// What it returns.
    type Return: Send + 'static;

    /// Whether its statement may take events, and has the number of the call as its last parameter.
    const TAKES: bool = false;

    /// The kinds of which an event may be taken. One statement has one set of them for each route.
    fn kinds(&self) -> Option<&Kinds> {
        None
    }

    /// The rows that it locks, as far as they may exist.
    fn rows(&self) -> impl Iterator<Item = Row> {
        std::iter::empty()
    }

    /// The number of rows of its answer.
    fn answers(&self) -> usize {
        1
    }

    /// For how many calls it counts in its statement: by what it takes of time and memory.
    fn size(&self) -> usize {
        1
    }

    /// The lease of the event that was taken.
    fn lease(_: &Self::Return) -> Option<EventLease> {
        None
    }
}

/// The calls of one kind of statement.
pub(super) struct Batches<C: Call> {
    execute: Execute<C>,
    locked: Locked,
    release: Release,
    state: Mutex<State<C>>,
    /// Statements that take long, beside which others are executed.
    slow: Arc<Semaphore>,
}

struct State<C: Call> {
    waiting: VecDeque<Job<C>>,
    /// Rows that others have locked, which a task looks at. The calls that need them wait without a statement.
    locked: BTreeSet<Row>,
    /// The maximum size of the next statement, which serves at least one call. Smaller after a statement that was blocked for an
    /// unknown reason.
    largest: usize,
    /// Whether a task executes statements.
    is_running: bool,
}

struct Job<C: Call> {
    call: C,
    caller: oneshot::Sender<Result<C::Return>>,
}

impl<C: Call> Batches<C> {
    pub(super) fn new<F>(
        execute: impl Fn(Vec<C>) -> F + Send + Sync + 'static,
        locked: Locked,
        release: Release,
    ) -> Arc<Self>
    where
        F: Future<Output = Executed<C::Return>> + Send + 'static,
    {
        Arc::new(Self {
            execute: Box::new(move |calls| Box::pin(execute(calls))),
            locked,
            release,
            state: Mutex::new(State {
                waiting: VecDeque::new(),
                locked: BTreeSet::new(),
                largest: LARGEST,
                is_running: false,
            }),
            slow: Arc::new(Semaphore::new(MOST_SLOW)),
        })
    }

    /// Has a call executed, by the task that does so, or by a new one.
    pub(super) async fn call(self: &Arc<Self>, call: C) -> Result<C::Return> {
        let (caller, result) = oneshot::channel();
        lock(&self.state).waiting.push_back(Job { call, caller });
        self.start();
        let mut waits = Waits::<C> {
            result,
            release: Arc::clone(&self.release),
        };
        (&mut waits.result).await.unwrap_or_else(|_| {
            let ended =
                "the statement took too long, or the runtime that executed it was shut down";
            Err(StoreError::new(StoreErrorKind::TimedOut, ended))
        })
    }

    /// Starts the task that executes statements, if there is none.
    fn start(self: &Arc<Self>) {
        if !mem::replace(&mut lock(&self.state).is_running, true) {
            // Not in the delivery's span, which would last until this ends.
            tokio::spawn(Arc::clone(self).run());
        }
    }

    /// Executes statements until no call waits.
    async fn run(self: Arc<Self>) {
        let mut task = Task {
            batches: &self,
            has_ended: false,
        };
        let mut before = 0;
        loop {
            if before >= BUSY {
                sleep(LINGER).await;
            }
            let jobs = self.next();
            if jobs.is_empty() {
                task.has_ended = true;
                return;
            }
            before = jobs.len();
            let size: usize = jobs.iter().map(|job| job.call.size()).sum();
            let mut answered = Box::pin(Arc::clone(&self).answer(jobs));
            let patience = match size {
                LARGE.. => Duration::ZERO,
                _ => SLOW,
            };
            if timeout(patience, &mut answered).await.is_ok() {
                continue;
            }
            // It may be on a dead connection. The next calls get another connection.
            let grace = GRACE + PER_SIZE * u32::try_from(size).unwrap_or(u32::MAX).min(2_500);
            let answered = timeout(grace, answered);
            match Arc::clone(&self.slow).try_acquire_owned() {
                Ok(permit) => drop(tokio::spawn({
                    let batches = Arc::clone(&self);
                    async move {
                        let _ = answered.await;
                        drop(permit);
                        // A large call may have waited for it.
                        batches.start();
                    }
                })),
                Err(_) => drop(answered.await),
            }
        }
    }

    /// The calls of the next statement, or none: then the task has to end.
    fn next(&self) -> Vec<Job<C>> {
        let mut state = lock(&self.state);
        let mut jobs: Vec<Job<C>> = Vec::new();
        let mut kinds: Vec<Kinds> = Vec::new();
        // Their callers have given up, and they took no effect. Their kinds must not keep others waiting.
        state.waiting.retain(|job| !job.caller.is_closed());
        let mut aside = Vec::new();
        let mut size = 0;
        while let Some(job) = state.waiting.front() {
            if !state.locked.is_empty() && job.call.rows().any(|row| state.locked.contains(&row)) {
                aside.extend(state.waiting.pop_front());
                continue;
            }
            let added = job.call.size();
            // The others go on beside it.
            if added >= LARGE && self.slow.available_permits() == 0 {
                aside.extend(state.waiting.pop_front());
                continue;
            }
            if size > 0 && (size + added > state.largest || added >= LARGE) {
                break;
            }
            if let Some(of) = job.call.kinds() {
                match kinds.iter().find(|kinds| kinds.route == of.route) {
                    Some(kinds) if kinds != of => break,
                    Some(_) => {}
                    None => kinds.push(of.clone()),
                }
            }
            size += added;
            jobs.extend(state.waiting.pop_front());
        }
        state.put_back(aside);
        state.is_running = !jobs.is_empty();
        jobs
    }

    /// Executes a statement, and gives its results to the callers.
    async fn answer(self: Arc<Self>, jobs: Vec<Job<C>>) {
        let calls = jobs.iter().map(|job| job.call.clone()).collect();
        let results = match (self.execute)(calls).await {
            Executed::Done(results) => results,
            Executed::Blocked => return self.stand_aside(jobs).await,
        };
        {
            let mut state = lock(&self.state);
            state.largest = (2 * state.largest).min(LARGEST);
        }
        // What nobody waits for would be taken until its lease expires, and would count as crashed.
        let unwanted: Vec<_> = jobs
            .into_iter()
            .zip(results)
            .filter_map(|(job, result)| C::lease(&job.caller.send(result).err()?.ok()?))
            .collect();
        if !unwanted.is_empty() {
            tokio::spawn((self.release)(unwanted));
        }
    }

    /// Lets calls wait again. Those whose rows are locked wait until these are free.
    async fn stand_aside(self: &Arc<Self>, mut jobs: Vec<Job<C>>) {
        let rows = jobs.iter().flat_map(|job| job.call.rows()).collect();
        let locked = (self.locked)(rows).await.unwrap_or_default();
        let mut state = lock(&self.state);
        if locked.is_empty() {
            // Nobody sees a row that another transaction is about to insert. The call that needs it is found by halves.
            state.largest = (jobs.len() / 2).max(1);
            if jobs.len() == 1 {
                state.waiting.extend(jobs.pop());
            }
        } else if state.locked.is_empty() {
            tokio::spawn(Arc::clone(self).probe());
        }
        state.locked.extend(locked);
        state.put_back(jobs);
        drop(state);
        self.start();
    }

    /// Looks at locked rows until all are free.
    async fn probe(self: Arc<Self>) {
        let mut task = Task {
            batches: &self,
            has_ended: false,
        };
        while !task.has_ended {
            sleep(PROBE).await;
            let asked = lock(&self.state).locked.clone();
            let Ok(locked) = (self.locked)(asked.clone()).await else {
                continue;
            };
            let mut state = lock(&self.state);
            let others = |row: &Row| locked.contains(row) || !asked.contains(row);
            state.locked.retain(others);
            // Under the lock: a row that is found next needs another task.
            task.has_ended = state.locked.is_empty();
            drop(state);
            if locked.len() < asked.len() {
                self.start();
            }
        }
    }
}

/// A caller. One that gives up at the moment of the result gives up what was taken for it.
struct Waits<C: Call> {
    result: oneshot::Receiver<Result<C::Return>>,
    release: Release,
}

impl<C: Call> Drop for Waits<C> {
    fn drop(&mut self) {
        self.result.close();
        if let Ok(Ok(returned)) = self.result.try_recv()
            && let Some(lease) = C::lease(&returned)
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn((self.release)(vec![lease]));
        }
    }
}

impl<C: Call> State<C> {
    /// Lets calls wait before all others.
    fn put_back(&mut self, jobs: Vec<Job<C>>) {
        for job in jobs.into_iter().rev() {
            self.waiting.push_front(job);
        }
    }
}

/// A task for those who wait. Dropped before its end, because its runtime is shut down, it fails them.
struct Task<'a, C: Call> {
    batches: &'a Batches<C>,
    has_ended: bool,
}

impl<C: Call> Drop for Task<'_, C> {
    fn drop(&mut self) {
        if !self.has_ended {
            let mut state = lock(&self.batches.state);
            state.is_running = false;
            state.waiting.clear();
            state.locked.clear();
        }
    }
}

/// The error of a statement, for each of its calls.
pub(super) fn share<R>(error: StoreError, count: usize) -> Vec<Result<R>> {
    if count == 1 {
        return vec![Err(error)];
    }
    let kind = error.kind();
    let error = Arc::new(error);
    let shared = || StoreError::new(kind, Shared(Arc::clone(&error)));
    (0..count).map(|_| Err(shared())).collect()
}

/// The cause of an error that several calls share.
#[derive(Debug)]
struct Shared(Arc<StoreError>);

impl fmt::Display for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.source() {
            Some(cause) => fmt::Display::fmt(cause, f),
            None => fmt::Display::fmt(&self.0, f),
        }
    }
}

impl Error for Shared {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()?.source()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::sync::Notify;

    use super::*;
    use crate::event::EventKind;
    use crate::inbox::event::EventId;
    use crate::store::Fence;

    /// A call that may take an event of these kinds, and whether another transaction blocks it.
    #[derive(Clone)]
    struct Any(Kinds, bool);

    impl Call for Any {
        type Return = Option<EventLease>;

        fn kinds(&self) -> Option<&Kinds> {
            Some(&self.0)
        }

        fn lease(taken: &Self::Return) -> Option<EventLease> {
            *taken
        }
    }

    type Released = Arc<Mutex<Vec<EventLease>>>;

    /// Returns also what is released.
    fn batches<F>(
        execute: impl Fn(Vec<Any>) -> F + Send + Sync + 'static,
    ) -> (Arc<Batches<Any>>, Released)
    where
        F: Future<Output = Executed<Option<EventLease>>> + Send + 'static,
    {
        let nothing_is_locked = |_| -> Boxed<_> { Box::pin(async { Ok(BTreeSet::new()) }) };
        let released = Released::default();
        let all = Arc::clone(&released);
        let release = move |leases| -> Boxed<_> {
            all.lock().unwrap().extend::<Vec<_>>(leases);
            Box::pin(async {})
        };
        let batches = Batches::new(execute, Box::new(nothing_is_locked), Arc::new(release));
        (batches, released)
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_caller_never_read_is_released() {
        let lease = EventLease {
            id: EventId(1),
            fence: Fence(7),
            place: 0,
        };
        let execute = move |calls: Vec<Any>| async move {
            Executed::Done(calls.iter().map(|_| Ok(Some(lease))).collect())
        };
        let (batches, released) = batches(execute);
        assert_eq!(
            batches.call(Any(Kinds::all(), false)).await.unwrap(),
            Some(lease)
        );
        assert!(released.lock().unwrap().is_empty());

        let mut call = Box::pin(batches.call(Any(Kinds::all(), false)));
        assert!((&mut call).now_or_never().is_none());
        sleep(Duration::from_secs(1)).await;
        drop(call);
        assert_eq!(*released.lock().unwrap(), [lease]);
    }

    #[tokio::test(start_paused = true)]
    async fn call_behind_others_that_were_given_up_is_executed() {
        let ends = Arc::new(Notify::new());
        let first_ends = Arc::clone(&ends);
        let execute = move |calls: Vec<Any>| {
            let ends = Arc::clone(&first_ends);
            async move {
                ends.notified().await;
                Executed::Done(calls.iter().map(|_| Ok(None)).collect())
            }
        };
        let (batches, _) = batches(execute);
        let call = |kinds| {
            let batches = Arc::clone(&batches);
            tokio::spawn(async move { batches.call(Any(kinds, false)).await })
        };
        let first = call(Kinds::all());
        tokio::task::yield_now().await;
        let given_up = call(Kinds::only([EventKind::CHAT_RATED]));
        tokio::task::yield_now().await;
        let last = call(Kinds::only([EventKind::CHAT_CLOSED]));
        tokio::task::yield_now().await;
        given_up.abort();
        assert!(given_up.await.unwrap_err().is_cancelled());

        ends.notify_one();
        first.await.unwrap().unwrap();
        ends.notify_one();
        let last = timeout(Duration::from_secs(15), last).await;
        last.expect("it is stranded").unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_statement_has_one_set_of_kinds_for_each_route() {
        let sizes = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&sizes);
        let execute = move |calls: Vec<Any>| {
            all.lock().unwrap().push(calls.len());
            async move { Executed::Done(calls.iter().map(|_| Ok(None)).collect()) }
        };
        let (batches, _) = batches(execute);
        let crm = Kinds::all().at("crm".parse().unwrap());
        let other = crm.clone().except([EventKind::CHAT_RATED]);
        let kinds = [
            Kinds::all(),
            crm.clone(),
            Kinds::all(),
            crm,
            other,
            Kinds::all(),
        ];
        let calls = kinds.map(|kinds| batches.call(Any(kinds, false)));
        for answer in futures_util::future::join_all(calls).await {
            answer.unwrap();
        }
        assert_eq!(*sizes.lock().unwrap(), [4, 2]);
    }

    #[derive(Clone)]
    struct OfRow(Row);

    impl Call for OfRow {
        type Return = ();

        fn rows(&self) -> impl Iterator<Item = Row> {
            std::iter::once(self.0)
        }
    }

    /// Each look is a statement: there is one for all rows and callers, however many these are.
    #[tokio::test(start_paused = true)]
    async fn locked_rows_are_looked_at_ten_times_a_second() {
        let is_locked = Arc::new(std::sync::atomic::AtomicBool::new(true));
        let (looks, statements) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(0)));
        let locks = Arc::clone(&is_locked);
        let executed = Arc::clone(&statements);
        let execute = move |calls: Vec<OfRow>| {
            *executed.lock().unwrap() += 1;
            let is_blocked = locks.load(std::sync::atomic::Ordering::Relaxed);
            async move {
                match is_blocked {
                    true => Executed::Blocked,
                    false => Executed::Done(calls.iter().map(|_| Ok(())).collect()),
                }
            }
        };
        let (locks, looked) = (Arc::clone(&is_locked), Arc::clone(&looks));
        let locked = move |rows: BTreeSet<Row>| -> Boxed<_> {
            looked.lock().unwrap().push(rows.len());
            let is_locked = locks.load(std::sync::atomic::Ordering::Relaxed);
            Box::pin(async move { Ok(if is_locked { rows } else { BTreeSet::new() }) })
        };
        let batches = Batches::new(execute, Box::new(locked), Arc::new(|_| Box::pin(async {})));
        let callers: Vec<_> = (0..50)
            .map(|caller| {
                let batches = Arc::clone(&batches);
                tokio::spawn(async move { batches.call(OfRow((caller % 5, 0))).await })
            })
            .collect();
        sleep(Duration::from_secs(10)).await;
        let before = looks.lock().unwrap().clone();
        // One when they are found, and those of ten seconds.
        assert!((95..=102).contains(&before.len()), "{}", before.len());
        assert!(before.iter().all(|rows| *rows == 5), "{before:?}");
        assert_eq!(*statements.lock().unwrap(), 1);

        is_locked.store(false, std::sync::atomic::Ordering::Relaxed);
        for caller in callers {
            caller.await.unwrap().unwrap();
        }
        // Nobody looks at rows that are free.
        let looked = looks.lock().unwrap().len();
        sleep(Duration::from_secs(10)).await;
        assert_eq!(looks.lock().unwrap().len(), looked);
        assert!(looked <= before.len() + 1);
    }

    /// Nobody sees the row that the statement waits for, as another transaction is about to insert it.
    #[tokio::test(start_paused = true)]
    async fn the_call_that_blocks_its_statement_is_found_by_halves() {
        let blocking = Kinds::only([EventKind::CHAT_RATED]);
        let free = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let is_free = Arc::clone(&free);
        let execute = move |calls: Vec<Any>| {
            let is_blocked = calls.iter().any(|call| call.1)
                && !is_free.load(std::sync::atomic::Ordering::Relaxed);
            async move {
                match is_blocked {
                    true => {
                        sleep(Duration::from_millis(400)).await;
                        Executed::Blocked
                    }
                    false => Executed::Done(calls.iter().map(|_| Ok(None)).collect()),
                }
            }
        };
        let (batches, _) = batches(execute);
        let call = |blocks| {
            let (batches, kinds) = (Arc::clone(&batches), blocking.clone());
            tokio::spawn(async move { batches.call(Any(kinds, blocks)).await })
        };
        let blocked = call(true);
        let others: Vec<_> = (0..LARGEST).map(|_| call(false)).collect();
        let all = async {
            for other in others {
                other.await.unwrap().unwrap();
            }
        };
        let found = timeout(Duration::from_secs(8), all).await;
        found.expect("the others wait for it");
        assert!(!blocked.is_finished());
        free.store(true, std::sync::atomic::Ordering::Relaxed);
        blocked.await.unwrap().unwrap();
    }
}
