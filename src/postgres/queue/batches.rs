//! One statement at a time for many callers: while it is executed, later calls collect for the next one. Beside one that
//! hangs, others are executed.

use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{sleep, timeout};

use crate::inbox::event::{EventLease, Kinds};
use crate::store::{StoreError, StoreErrorKind};

/// How many calls a statement serves at most.
const LARGEST: usize = 128;

/// After a statement for so many calls, more are waited for this long before the next one: those that were answered
/// call again, and each statement costs the server as much as several calls.
const BUSY: usize = 8;
const LINGER: Duration = Duration::from_millis(1);

/// How long a statement may take before others are executed beside it, and how many there may be of those.
const SLOW: Duration = Duration::from_millis(500);
const MOST_SLOW: usize = 2;

/// How much longer such a statement may take, and one whose callers have all given up. Its connection is closed then.
pub(super) const GRACE: Duration = Duration::from_secs(5);

/// A statement that is executed for several calls, with a result for each.
type Execution<C> = Pin<Box<dyn Future<Output = Results<C>> + Send>>;
type Results<C> = Vec<Result<<C as Call>::Return, StoreError>>;

/// Gives up events that nobody waits for any more.
pub(super) type Release =
    Arc<dyn Fn(Vec<EventLease>) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// What a call asks for.
pub(super) trait Call: Clone + Send + 'static {
    /// What it returns.
    type Return: Send + 'static;

    /// The kinds of which an event may be taken. One statement has one set of them.
    fn kinds(&self) -> Option<&Kinds>;

    /// The lease of the event that was taken.
    fn lease(returned: &Self::Return) -> Option<EventLease>;
}

/// The calls of one kind of statement.
pub(super) struct Batches<C: Call> {
    execute: Box<dyn Fn(Vec<C>) -> Execution<C> + Send + Sync>,
    release: Release,
    state: Mutex<State<C>>,
    /// Statements whose callers have all given up: one at a time is waited for.
    abandoned: Arc<Semaphore>,
    /// Statements that take long, beside which others are executed.
    slow: Arc<Semaphore>,
}

struct State<C: Call> {
    waiting: VecDeque<Job<C>>,
    /// Whether a task executes statements.
    is_running: bool,
}

struct Job<C: Call> {
    call: C,
    caller: oneshot::Sender<Result<C::Return, StoreError>>,
}

impl<C: Call> Batches<C> {
    pub(super) fn new<F>(
        execute: impl Fn(Vec<C>) -> F + Send + Sync + 'static,
        release: Release,
    ) -> Arc<Self>
    where
        F: Future<Output = Results<C>> + Send + 'static,
    {
        Arc::new(Self {
            execute: Box::new(move |calls| Box::pin(execute(calls))),
            release,
            state: Mutex::new(State {
                waiting: VecDeque::new(),
                is_running: false,
            }),
            abandoned: Arc::new(Semaphore::new(1)),
            slow: Arc::new(Semaphore::new(MOST_SLOW)),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a call executed, by the task that does so, or by a new one.
    pub(super) async fn call(self: &Arc<Self>, call: C) -> Result<C::Return, StoreError> {
        let (caller, result) = oneshot::channel();
        let starts = {
            let mut state = self.lock();
            state.waiting.push_back(Job { call, caller });
            !mem::replace(&mut state.is_running, true)
        };
        if starts {
            // Not in the delivery's span, which would last until this ends.
            tokio::spawn(Arc::clone(self).run());
        }
        result.await.unwrap_or_else(|_| {
            let ended =
                "the statement took too long, or the runtime that executed it was shut down";
            Err(StoreError::new(StoreErrorKind::Unavailable, ended))
        })
    }

    /// Executes statements until no call waits.
    async fn run(self: Arc<Self>) {
        let mut running = Running {
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
                running.has_ended = true;
                return;
            }
            before = jobs.len();
            let calls = jobs.iter().map(|job| job.call.clone()).collect();
            let (release, abandoned) = (Arc::clone(&self.release), Arc::clone(&self.abandoned));
            let execution = (self.execute)(calls);
            let mut answered = Box::pin(answer(jobs, execution, release, abandoned));
            if timeout(SLOW, &mut answered).await.is_ok() {
                continue;
            }
            // It may wait for a lock, or on a dead connection. The next calls get another connection.
            let answered = timeout(GRACE, answered);
            match Arc::clone(&self.slow).try_acquire_owned() {
                Ok(permit) => drop(tokio::spawn(async move {
                    let _ = answered.await;
                    drop(permit);
                })),
                Err(_) => drop(answered.await),
            }
        }
    }

    /// The calls of the next statement, or none: then the task has to end.
    fn next(&self) -> Vec<Job<C>> {
        let mut state = self.lock();
        let mut jobs: Vec<Job<C>> = Vec::new();
        let mut kinds: Option<Kinds> = None;
        // Their callers have given up, and they took no effect. Their kinds must not keep others waiting.
        state.waiting.retain(|job| !job.caller.is_closed());
        while jobs.len() < LARGEST
            && let Some(job) = state.waiting.front()
        {
            let others = job.call.kinds();
            if let (Some(kinds), Some(others)) = (&kinds, others)
                && kinds != others
            {
                break;
            }
            kinds = kinds.or_else(|| others.cloned());
            jobs.extend(state.waiting.pop_front());
        }
        state.is_running = !jobs.is_empty();
        jobs
    }
}

/// Waits for a statement, and gives its results to the callers.
async fn answer<C: Call>(
    mut jobs: Vec<Job<C>>,
    execution: Execution<C>,
    release: Release,
    abandoned: Arc<Semaphore>,
) {
    let ended = {
        let given_up = pin!(async {
            for job in &mut jobs {
                job.caller.closed().await;
            }
        });
        match select(execution, given_up).await {
            Either::Left((results, _)) => Ok(results),
            Either::Right(((), execution)) => Err(execution),
        }
    };
    let results = match ended {
        Ok(results) => results,
        Err(execution) => {
            // Waited for a little: what it takes would be taken until its lease expires, and would count as crashed.
            if let Ok(permit) = abandoned.try_acquire_owned() {
                tokio::spawn(async move {
                    let results = timeout(GRACE, execution).await.unwrap_or_default();
                    drop(permit);
                    let taken: Vec<_> = results.iter().flatten().filter_map(C::lease).collect();
                    if !taken.is_empty() {
                        release(taken).await;
                    }
                });
            }
            return;
        }
    };
    let unwanted: Vec<_> = jobs
        .into_iter()
        .zip(results)
        .filter_map(|(job, result)| C::lease(&job.caller.send(result).err()?.ok()?))
        .collect();
    if !unwanted.is_empty() {
        tokio::spawn(release(unwanted));
    }
}

/// The task that executes statements. Dropped before its end, because its runtime is shut down, it fails those who
/// wait.
struct Running<'a, C: Call> {
    batches: &'a Batches<C>,
    has_ended: bool,
}

impl<C: Call> Drop for Running<'_, C> {
    fn drop(&mut self) {
        if !self.has_ended {
            let mut state = self.batches.lock();
            state.is_running = false;
            state.waiting.clear();
        }
    }
}

/// The error of a statement, for each of its calls.
pub(super) fn share<R>(error: StoreError, count: usize) -> Vec<Result<R, StoreError>> {
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
    use tokio::sync::Notify;

    use super::*;
    use crate::event::EventKind;

    /// A call that may take an event of these kinds.
    #[derive(Clone)]
    struct Any(Kinds);

    impl Call for Any {
        type Return = ();

        fn kinds(&self) -> Option<&Kinds> {
            Some(&self.0)
        }

        fn lease((): &()) -> Option<EventLease> {
            None
        }
    }

    fn releases_nothing() -> Release {
        Arc::new(|_| Box::pin(async {}))
    }

    #[tokio::test(start_paused = true)]
    async fn call_behind_others_that_were_given_up_is_executed() {
        let ends = Arc::new(Notify::new());
        let first_ends = Arc::clone(&ends);
        let execute = move |calls: Vec<Any>| {
            let ends = Arc::clone(&first_ends);
            async move {
                ends.notified().await;
                calls.iter().map(|_| Ok(())).collect()
            }
        };
        let batches = Batches::new(execute, releases_nothing());
        let call = |kinds| {
            let batches = Arc::clone(&batches);
            tokio::spawn(async move { batches.call(Any(kinds)).await })
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
}
