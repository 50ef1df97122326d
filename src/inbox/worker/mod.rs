//! The worker: takes events from the queue, and runs their handlers.

mod attempt;
mod extension;
mod leases;
mod others;
mod pool;
mod producer;
mod registry;
mod suspects;
mod tasks;
mod watch;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::timeout;

pub(crate) use self::pool::{Handled, Handler, handler};
use self::pool::{Pool, Stop};
use super::handle::Inbox;
use super::retry::Retry;
use super::rules::{OnFailure, Rules};
use super::workers::Registration;
use crate::config::ConfigError;
use crate::execution::DrainTimeout;
use crate::route::EventType;
#[cfg(feature = "metrics")]
use crate::store::StoreError;

/// The settings of the worker of an inbox: [`Inbox::worker`] changes them.
///
/// ```
/// use tower_webhook::EventKind;
/// use tower_webhook::inbox::{Inbox, OnFailure, Retry};
/// use tower_webhook::memory::MemoryQueue;
///
/// let inbox = Inbox::new(MemoryQueue::new()).worker(|worker| {
///     worker
///         .concurrency(8)
///         .retry(Retry::default().max_attempts(50))
///         .on_failure_of(EventKind::CHAT_RATED, OnFailure::Skip)
/// });
/// ```
///
/// What concerns one route, such as the [time limit of a handler](crate::Webhooks::handler_timeout), is set with the route.
#[must_use]
pub struct Worker(pub(super) Rules);

impl Worker {
    /// Sets the number of events that are handled at the same time: 32 by default, and at least 1.
    pub fn concurrency(mut self, events: usize) -> Self {
        self.0.concurrency = events.clamp(1, MOST);
        self
    }

    /// Takes events of these types only. Events of other types wait for another worker, and so do the later events of
    /// their chats. A call replaces an earlier one.
    ///
    /// By default, a worker takes all types of its routes that [no other worker](crate::docs::inbox#event-types-without-a-handler)
    /// handles.
    pub fn only(mut self, types: impl IntoIterator<Item = impl Into<EventType>>) -> Self {
        self.0.only = Some(types.into_iter().map(Into::into).collect());
        self
    }

    /// Sets when an event is tried again after a failure, and when it becomes a dead letter.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.0.retry = retry;
        self
    }

    /// Sets whether the later events of a chat wait when an attempt fails or is snoozed. By default, they
    /// [wait](OnFailure::Block).
    pub fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.0.on_failure = on_failure;
        self
    }

    /// Sets [`on_failure`](Self::on_failure) for events of one type. It takes precedence over the setting for all types.
    ///
    /// ```
    /// use tower_webhook::EventKind;
    /// use tower_webhook::inbox::{Inbox, OnFailure};
    /// use tower_webhook::memory::MemoryQueue;
    ///
    /// # fn main() -> Result<(), tower_webhook::UnknownType> {
    /// let pushed = "github/push".parse::<tower_webhook::EventType>()?;
    /// let inbox = Inbox::new(MemoryQueue::new()).worker(|worker| {
    ///     worker
    ///         .on_failure_of(EventKind::MESSAGE_CREATED, OnFailure::Skip) // of the chat platform
    ///         .on_failure_of(pushed, OnFailure::Skip)
    /// });
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_failure_of(mut self, of: impl Into<EventType>, on_failure: OnFailure) -> Self {
        self.0.on_failure_of.insert(of.into(), on_failure);
        self
    }

    /// Lets the later events of a chat wait for a dead letter, until a person discards it, or redrives it and it is
    /// settled. By default, they are handled.
    ///
    /// An event that cannot be read from PostgreSQL holds no chat: nobody could handle it before the later ones.
    pub fn hold_lane_on_dead(mut self) -> Self {
        self.0.hold_lane_on_dead = true;
        self
    }
}

/// The settings of a worker that only tests change.
pub trait Tuning {
    /// Sets the number of crashes in a row after which an event is a dead letter.
    #[must_use]
    fn max_crashes(self, crashes: u32) -> Self;

    /// Sets the calls that a type may make before its first success.
    #[must_use]
    fn credit(self, calls: usize) -> Self;

    /// Sets the interval at which a queue that several processes share is asked for events.
    #[must_use]
    fn poll_every(self, interval: Duration) -> Self;
}

impl Tuning for Worker {
    fn max_crashes(mut self, crashes: u32) -> Self {
        self.0.max_crashes = crashes;
        self
    }

    fn credit(mut self, calls: usize) -> Self {
        self.0.credit = calls;
        self
    }

    fn poll_every(mut self, interval: Duration) -> Self {
        self.0.poll_every = interval;
        self
    }
}

impl Inbox {
    /// Starts a worker for these routes on the current runtime.
    pub(crate) fn start_worker(&self, routes: Vec<Handled>) -> WorkerHandle {
        let pool = Arc::new(Pool::new(self, routes));
        pool.clocks
            .keep_running(&Handle::current(), pool.shortest_lease());
        let place = registry::register(&pool);
        // Not aborted, but stopped, so that events which it is just taking are released.
        let of = || Arc::clone(&pool);
        tokio::spawn(tasks::keep(of(), "claims", producer::produce));
        let mut tasks = vec![
            tokio::spawn(tasks::keep(of(), "leases", extension::extend)).abort_handle(),
            tokio::spawn(tasks::keep(of(), "purge", producer::purge)).abort_handle(),
            tokio::spawn(tasks::keep(of(), "watch", watch::watch)).abort_handle(),
            tokio::spawn(tasks::keep(of(), "handlers", others::note)).abort_handle(),
        ];
        if !pool.kept.is_empty() {
            let count = tasks::keep(of(), "counts", async |pool: Arc<Pool>| {
                pool.shared.keep_counts(&pool.kept).await;
            });
            tasks.push(tokio::spawn(count).abort_handle());
        }
        WorkerHandle {
            pool,
            place,
            tasks,
            is_drained: false.into(),
        }
    }

    /// Refuses settings that name a route which its worker does not handle.
    pub(crate) fn check_worker(&self, routes: &[Handled]) -> Result<(), ConfigError> {
        let rules = &self.settings.rules;
        let only = rules.only.iter().flatten().map(|of| ("only", of));
        let failures = rules.on_failure_of.keys().map(|of| ("on_failure_of", of));
        for (setting, of) in only.chain(failures) {
            if !routes.iter().any(|(route, _)| route.name == of.route) {
                let routes = routes.iter().map(|(route, _)| route.name.clone());
                return Err(ConfigError::NotHandled {
                    setting,
                    of: of.clone(),
                    routes: routes.collect(),
                });
            }
        }
        Ok(())
    }
}

partial_debug!(Worker, |it| rules = it.0);

/// The most events that are handled at the same time, which a drain can wait for in one call.
const MOST: usize = if Semaphore::MAX_PERMITS < u32::MAX as usize {
    Semaphore::MAX_PERMITS
} else {
    u32::MAX as usize
};

/// How long a drain waits for the last counts.
const FLUSH: Duration = Duration::from_secs(1);

/// A running worker. Dropping it stops the worker, and interrupts its attempts as a drain does at its deadline.
pub(crate) struct WorkerHandle {
    pool: Arc<Pool>,
    place: Registration,
    tasks: Vec<AbortHandle>,
    is_drained: AtomicBool,
}

impl WorkerHandle {
    /// Stops the worker: it begins no more attempts. Waits until those in progress have ended, or until `cut` is ready.
    /// Attempts that are then still in progress are interrupted.
    pub(crate) async fn drain_until(
        &self,
        cut: impl Future<Output = ()>,
    ) -> Result<(), DrainTimeout> {
        self.is_drained.store(true, Ordering::Relaxed);
        self.place.leave();
        self.pool.stop(Stop::Draining);
        let permits = &self.pool.permits;
        let all = u32::try_from(self.pool.rules().concurrency).unwrap_or(u32::MAX);
        let left = tokio::select! {
            biased;
            _ = permits.acquire_many(all) => 0,
            () = cut => {
                let left = all as usize - permits.available_permits();
                self.pool.stop(Stop::Now);
                let limit = self.pool.store_timeout();
                let _ = timeout(limit, permits.acquire_many(all)).await;
                left
            }
        };
        let written = self.pool.shared.write_counts(&self.pool.kept);
        if !matches!(timeout(FLUSH, written).await, Ok(Ok(_))) {
            tracing::warn!("the counts of the last second could not be kept in the database");
        }
        self.end();
        DrainTimeout::check(left, self.pool.panics.load(Ordering::Relaxed))
    }

    /// Records the metrics of the worker's inbox.
    #[cfg(feature = "metrics")]
    pub(crate) async fn record_metrics(&self) -> Result<(), StoreError> {
        let inbox = Inbox {
            shared: Arc::clone(&self.pool.shared),
            settings: Arc::clone(&self.pool.settings),
        };
        inbox.record_metrics().await
    }

    fn end(&self) {
        self.place.leave();
        self.pool.stop(Stop::Now);
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Drop for WorkerHandle {
    fn drop(&mut self) {
        if !*self.is_drained.get_mut() && !std::thread::panicking() {
            tracing::error!(
                routes = %self.pool.names(),
                "a worker was dropped without being drained: the events of its routes are accepted, and wait for another \
                 worker; keep the `Running` that `start` returns, and drain it when the server has stopped"
            );
        }
        self.end();
    }
}

partial_debug!(WorkerHandle);
