//! Renews leases from tasks that a handler which blocks its thread cannot starve.
//!
//! Few runs last until their lease has to be renewed. So all runs of a runtime share one task, which waits
//! until a lease is due, and then starts a task for that lease.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::{self, Handle};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, yield_now};
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::{Instrument, Span};

use super::clock::Clocks;
use super::lease::Leases;
use crate::error::Chain;
use crate::lock::lock;
use crate::store::{Lease, SettleError, Store};

/// The renewals of a layer's leases. Clones are handles to the same ones.
#[derive(Clone)]
pub(crate) struct Renewals<St> {
    waiting: Arc<Mutex<Queues<St>>>,
    /// Leases enqueued so far.
    count: Arc<AtomicU64>,
    clocks: Clocks,
}

type Queues<St> = HashMap<runtime::Id, Queue<St>>;

/// The leases of one runtime that were not renewed yet, in the order in which they are due.
struct Queue<St> {
    leases: BTreeMap<DueLease, Arc<Watched<St>>>,
    newest: u64,
    /// The time at which its task wakes up next.
    wakes_at: Instant,
    wake_now: Arc<Notify>,
}

/// The time at which a lease is due, and its number.
type DueLease = (Instant, u64);

impl<St: Store> Renewals<St> {
    /// Renews a lease, which was requested at `claimed`, until the returned value is dropped.
    pub(crate) async fn begin(
        leases: &Arc<Leases<St>>,
        lease: Lease,
        claimed: Instant,
    ) -> Renewal<St> {
        let this = &leases.renewals;
        let runtime = Handle::current();
        let duration = leases.limits.lease();
        this.clocks.keep_running(&runtime, duration);

        let due = claimed + duration / 3;
        let watched = Arc::new(Watched {
            leases: Arc::clone(leases),
            lease,
            runtime: runtime.id(),
            place: (due, this.count.fetch_add(1, Ordering::Relaxed)),
            span: Span::current(),
            state: Mutex::new(State {
                valid_until: claimed + duration,
                task: None,
                is_lost: false,
                is_needed: true,
                run: None,
            }),
        });
        let seen = this.enqueue(Arc::clone(&watched));
        // Made before the first `.await`, so that dropping this future ends the renewal.
        let renewal = Renewal(watched);
        match seen {
            NoticedBy::InTime => return renewal,
            NoticedBy::Now => {}
            NoticedBy::ByNew(scheduler) => drop(runtime.spawn(scheduler.run(duration / 3))),
        }
        // Lets the task run before the handler is polled: behind a handler that blocks, it would be late.
        yield_now().await;
        renewal
    }

    fn enqueue(&self, lease: Arc<Watched<St>>) -> NoticedBy<St> {
        let mut queues = lock(&self.waiting);
        let (queue, seen) = match queues.entry(lease.runtime) {
            Entry::Occupied(queue) => {
                let queue = queue.into_mut();
                let seen = if queue.wakes_at <= lease.place.0 {
                    NoticedBy::InTime
                } else {
                    queue.wake_now.notify_one();
                    NoticedBy::Now
                };
                (queue, seen)
            }
            Entry::Vacant(free) => {
                let scheduler = RenewalScheduler {
                    waiting: Arc::clone(&self.waiting),
                    runtime: lease.runtime,
                    wake_now: Arc::default(),
                    newest: None,
                };
                let queue = Queue {
                    leases: BTreeMap::new(),
                    newest: 0,
                    wakes_at: lease.place.0,
                    wake_now: Arc::clone(&scheduler.wake_now),
                };
                (free.insert(queue), NoticedBy::ByNew(scheduler))
            }
        };
        queue.newest = lease.place.1;
        queue.leases.insert(lease.place, lease);
        seen
    }
}

impl<St> Default for Renewals<St> {
    fn default() -> Self {
        Self {
            waiting: Arc::default(),
            count: Arc::default(),
            clocks: Clocks::default(),
        }
    }
}

partial_debug!([St] Renewals<St>);

/// Which task notices that a lease is due.
enum NoticedBy<St> {
    /// The queue's task, when it wakes up next.
    InTime,
    /// The queue's task, which was notified.
    Now,
    /// A new task, to be spawned.
    ByNew(RenewalScheduler<St>),
}

/// The task of a queue. The queue and its task end together.
struct RenewalScheduler<St> {
    waiting: Arc<Mutex<Queues<St>>>,
    runtime: runtime::Id,
    wake_now: Arc<Notify>,
    /// The newest lease when it last woke up.
    newest: Option<u64>,
}

impl<St: Store> RenewalScheduler<St> {
    /// Ends when no lease was enqueued for `every`, the time from a claim until it is due.
    async fn run(mut self, every: Duration) {
        while let Some(again) = self.wake(every) {
            let _ = timeout_at(again, self.wake_now.notified()).await;
        }
    }

    /// Starts the renewals that are due, and returns when to wake up again.
    fn wake(&mut self, every: Duration) -> Option<Instant> {
        let now = Instant::now();
        let mut queues = lock(&self.waiting);
        let queue = queues.get_mut(&self.runtime)?;
        let mut due = Vec::new();
        while let Some(first) = queue.leases.first_entry()
            && first.key().0 <= now
        {
            due.push(first.remove());
        }
        let again = match queue.leases.first_key_value() {
            Some(((due, _), _)) => Some(*due),
            None if self.newest != Some(queue.newest) => Some(now + every),
            None => None,
        };
        self.newest = Some(queue.newest);
        match again {
            Some(again) => queue.wakes_at = again,
            None => drop(queues.remove(&self.runtime)),
        }
        drop(queues);
        // Outside the lock: a runtime that shuts down drops these tasks at once, which takes the lock.
        due.into_iter().for_each(Watched::start_renewing);
        again
    }
}

impl<St> Drop for RenewalScheduler<St> {
    fn drop(&mut self) {
        let is_own = |queue: &Queue<St>| Arc::ptr_eq(&queue.wake_now, &self.wake_now);
        let mut queues = lock(&self.waiting);
        // Another task may have taken over since.
        let queue = match queues.get(&self.runtime).is_some_and(is_own) {
            true => queues.remove(&self.runtime),
            false => None,
        };
        drop(queues);
        // The runtime has ended, so nothing renews the leases that wait.
        for lease in queue
            .into_iter()
            .flat_map(|queue| queue.leases.into_values())
        {
            drop(LostAtEnd(lease));
        }
    }
}

/// Renews a lease until it is dropped.
pub(crate) struct Renewal<St>(Arc<Watched<St>>);

impl<St> Renewal<St> {
    /// Is ready when the lease is lost.
    pub(crate) fn poll_lost(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = lock(&self.0.state);
        if state.is_lost {
            return Poll::Ready(());
        }
        match &mut state.run {
            Some(run) => run.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Returns the end of the lease by this process's clock.
    pub(crate) fn valid_until(&self) -> Instant {
        lock(&self.0.state).valid_until
    }
}

impl<St> Drop for Renewal<St> {
    fn drop(&mut self) {
        let watched = &self.0;
        let mut queues = lock(&watched.leases.renewals.waiting);
        if let Some(queue) = queues.get_mut(&watched.runtime) {
            queue.leases.remove(&watched.place);
        }
        drop(queues);
        let mut state = lock(&watched.state);
        state.is_needed = false;
        let task = state.task.take();
        drop(state);
        if let Some(task) = task {
            task.abort();
        }
    }
}

/// A lease, shared by its run and its renewal.
struct Watched<St> {
    leases: Arc<Leases<St>>,
    lease: Lease,
    runtime: runtime::Id,
    place: DueLease,
    /// The delivery's span.
    span: Span,
    state: Mutex<State>,
}

struct State {
    valid_until: Instant,
    /// The renewal, once it has begun.
    task: Option<AbortHandle>,
    is_lost: bool,
    /// Until the run ends.
    is_needed: bool,
    /// Wakes the run when the lease is lost.
    run: Option<Waker>,
}

impl<St: Store> Watched<St> {
    fn start_renewing(this: Arc<Self>) {
        let watched = Arc::clone(&this);
        let renewals = LostAtEnd(this).renew().instrument(watched.span.clone());
        // Outside the lock: a runtime that shuts down drops the task at once.
        let task = tokio::spawn(renewals).abort_handle();
        let mut state = lock(&watched.state);
        match state.is_needed && !state.is_lost {
            true => state.task = Some(task),
            false => task.abort(),
        }
    }
}

/// The task that renews one lease. However it ends, the lease is lost then.
struct LostAtEnd<St>(Arc<Watched<St>>);

impl<St: Store> LostAtEnd<St> {
    async fn renew(self) {
        let Watched {
            leases,
            lease,
            state,
            ..
        } = &*self.0;
        let duration = leases.limits.lease();
        let every = duration / 3;
        let mut valid_until = lock(state).valid_until;
        loop {
            let asked = Instant::now();
            let renewal = leases.call("renew", leases.store.renew(lease, duration));
            let next = match timeout_at(valid_until, renewal).await {
                Ok(Ok(())) => {
                    valid_until = asked + duration;
                    lock(state).valid_until = valid_until;
                    asked + every
                }
                Ok(Err(SettleError::Store(error))) if Instant::now() < valid_until => {
                    tracing::warn!(
                        reason = Chain(&error).to_string(),
                        "the lease could not be renewed yet"
                    );
                    valid_until.min(Instant::now() + every / 10)
                }
                Ok(Err(_)) | Err(_) => return,
            };
            sleep_until(next).await;
        }
    }
}

impl<St> Drop for LostAtEnd<St> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        if !state.is_needed || state.is_lost {
            return;
        }
        state.is_lost = true;
        let run = state.run.take();
        drop(state);
        if let Some(run) = run {
            run.wake();
        }
    }
}
