//! The worker: takes events from the queue, and runs their handlers.

mod attempt;
mod extension;
mod leases;
mod pool;
mod producer;
mod registry;
mod suspects;
mod tasks;

use std::future::Future;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tower_service::Service;

use self::leases::HeldLeases;
pub(crate) use self::pool::{Handler, handler};
use self::pool::{Pool, Stop};
use super::event::{Kinds, Namespace, Take};
use super::handle::Inbox;
use super::retry::Retry;
use super::rules::{OnFailure, Rules};
use super::trip::Trips;
use super::workers::Registration;
use crate::config::ConfigError;
use crate::delivery::RawDelivery;
use crate::error::BoxError;
use crate::event::EventKind;
use crate::execution::{Clocks, DrainTimeout};
use crate::outcome::Outcome;
#[cfg(feature = "metrics")]
use crate::store::StoreError;

/// Takes events from an inbox, and handles them. It is made by [`Inbox::worker`], and started by
/// [`spawn`](Self::spawn).
///
/// ```
/// # use std::time::Duration;
/// # use tower_webhook::EventRouter;
/// # use tower_webhook::event::EventKind;
/// use tower_webhook::inbox::{Inbox, OnFailure, Retry};
/// use tower_webhook::memory::MemoryQueue;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let events = EventRouter::new();
/// let inbox = Inbox::new(MemoryQueue::new());
/// let worker = inbox
///     .worker(events)
///     .concurrency(8)
///     .handler_timeout(Duration::from_secs(10))?
///     .retry(Retry::default().max_attempts(50))
///     .on_failure_of(EventKind::CHAT_RATED, OnFailure::Skip)
///     .spawn();
/// worker.drain(Duration::from_secs(30)).await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a worker does nothing until it is spawned"]
pub struct Worker {
    pub(crate) inbox: Inbox,
    pub(crate) handler: Handler,
    rules: Rules,
}

impl Inbox {
    /// Returns a worker that handles events with `service`: an [`EventRouter`](crate::EventRouter), or any service of
    /// [`RawDelivery`] whose response is an [`Outcome`](crate::Outcome).
    pub fn worker<S>(&self, service: S) -> Worker
    where
        S: Service<RawDelivery, Response = Outcome, Error: Into<BoxError>, Future: Send>
            + Clone
            + Send
            + 'static,
    {
        Worker {
            inbox: self.clone(),
            handler: pool::handler(service),
            rules: Rules::default(),
        }
    }
}

impl Worker {
    /// Sets the number of events that are handled at the same time: 32 by default, and at least 1.
    pub fn concurrency(mut self, events: usize) -> Self {
        self.rules.concurrency = events.clamp(1, MOST);
        self
    }

    /// Takes events of these kinds only. Events of other kinds wait for another worker, and so do the later events of
    /// their chats. A call replaces an earlier one.
    ///
    /// By default, a worker takes all kinds. In a rolling deploy, the older version would then settle events of a kind
    /// that only the newer version handles as *ignored*. To prevent that, pass the kinds that have a handler.
    pub fn only(mut self, kinds: impl IntoIterator<Item = EventKind>) -> Self {
        self.rules.kinds = Kinds::only(kinds);
        self
    }

    /// Sets when an event is tried again after a failure, and when it becomes a dead letter.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.rules.retry = retry;
        self
    }

    /// Sets whether the later events of a chat wait when an attempt fails or is snoozed. By default, they
    /// [wait](OnFailure::Block).
    pub fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.rules.on_failure = on_failure;
        self
    }

    /// Sets [`on_failure`](Self::on_failure) for events of one kind. It takes precedence over the setting for all
    /// kinds.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use tower_webhook::event::EventKind;
    /// use tower_webhook::inbox::{OnFailure, Retry};
    /// use tower_webhook::memory::MemoryQueue;
    /// use tower_webhook::{Secret, Webhooks};
    ///
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// let retry = Retry::default()
    ///     .delays(Duration::from_secs(1), Duration::from_secs(600))
    ///     .give_up_after(Duration::from_secs(24 * 60 * 60));
    /// let webhooks = Webhooks::new(Secret::new("8c1f…")?)
    ///     .inbox(MemoryQueue::new())
    ///     .handler_timeout(Duration::from_secs(10))
    ///     .worker(|worker| {
    ///         worker
    ///             .retry(retry)
    ///             .on_failure_of(EventKind::MESSAGE_CREATED, OnFailure::Skip)
    ///     });
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_failure_of(mut self, kind: EventKind, on_failure: OnFailure) -> Self {
        self.rules.on_failure_of.insert(kind, on_failure);
        self
    }

    /// Lets the later events of a chat wait for a dead letter, until a person discards it, or redrives it and it is
    /// settled. By default, they are handled.
    ///
    /// An event that cannot be read from PostgreSQL holds no chat: nobody could handle it before the later ones.
    pub fn hold_lane_on_dead(mut self) -> Self {
        self.rules.hold_lane_on_dead = true;
        self
    }

    /// Sets the time after which the lease of an attempt expires if it is not renewed: 30 seconds by default. It is
    /// renewed whenever a third of it has passed. After a crash, an event is tried again when its lease has expired.
    ///
    /// # Errors
    ///
    /// When it is shorter than 100 milliseconds, or not shorter than
    /// [`SenderPolicy::retry_every`](crate::SenderPolicy::retry_every), 600 seconds.
    pub fn lease(mut self, lease: Duration) -> Result<Self, ConfigError> {
        self.inbox = self.inbox.change(|given| given.lease = Some(lease))?;
        Ok(self)
    }

    /// Sets the time limit of an attempt: 30 seconds by default. A handler that exceeds it is dropped, and the attempt
    /// has failed.
    ///
    /// # Errors
    ///
    /// When it is zero.
    pub fn handler_timeout(mut self, limit: Duration) -> Result<Self, ConfigError> {
        self.inbox = self
            .inbox
            .change(|given| given.handler_timeout = Some(limit))?;
        Ok(self)
    }
}

/// The settings of a worker that only tests change.
pub trait Tuning {
    /// Sets the number of crashes in a row after which an event is a dead letter.
    #[must_use]
    fn max_crashes(self, crashes: u32) -> Self;

    /// Sets the number of lanes in which events of a kind fail before it is tripped.
    #[must_use]
    fn trip_after(self, lanes: usize) -> Self;

    /// Sets the interval at which a queue that several processes share is asked for events.
    #[must_use]
    fn poll_every(self, interval: Duration) -> Self;
}

impl Tuning for Worker {
    fn max_crashes(mut self, crashes: u32) -> Self {
        self.rules.max_crashes = crashes;
        self
    }

    fn trip_after(mut self, lanes: usize) -> Self {
        self.rules.trip_after = lanes;
        self
    }

    fn poll_every(mut self, interval: Duration) -> Self {
        self.rules.poll_every = interval;
        self
    }
}

impl Worker {
    /// Starts the worker on the current runtime.
    ///
    /// # Panics
    ///
    /// When it is called outside of a tokio runtime.
    pub fn spawn(self) -> WorkerHandle {
        let Self {
            inbox,
            handler,
            mut rules,
        } = self;
        inbox.note_namespace();
        let Inbox { shared, settings } = inbox;
        let namespace = Namespace::of(&settings.limits.namespace);
        rules.kinds = rules.kinds.within(namespace);
        let permits = Arc::new(Semaphore::new(rules.concurrency));
        let (stop, _) = watch::channel(Stop::No);
        let pool = Arc::new(Pool {
            take: Mutex::new(Arc::new(Take {
                lease: settings.limits.lease(),
                kinds: rules.kinds.clone(),
            })),
            trips: Mutex::new(Trips::new(rules.trip_after)),
            has_trips: false.into(),
            permits,
            accepts: false.into(),
            plan: Mutex::default(),
            wake: Notify::new(),
            suspects: Mutex::default(),
            panics: 0.into(),
            leases: HeldLeases::default(),
            clocks: Clocks::default(),
            stop,
            kept: settings.observers.kept(),
            shared,
            settings,
            rules,
        });
        let lease = pool.settings.limits.lease();
        pool.clocks.keep_running(&Handle::current(), lease);
        let place = registry::register(&pool, &handler);
        // Not aborted, but stopped: what it takes meanwhile is released.
        let of = || Arc::clone(&pool);
        let produce = move |pool| producer::produce(pool, Arc::clone(&handler));
        tokio::spawn(tasks::keep(of(), "claims", produce));
        let mut tasks = vec![
            tokio::spawn(tasks::keep(of(), "leases", extension::extend)).abort_handle(),
            tokio::spawn(tasks::keep(of(), "purge", producer::purge)).abort_handle(),
        ];
        if !pool.kept.is_empty() {
            let count = tasks::keep(of(), "counts", async |pool: Arc<Pool>| {
                pool.shared.keep_counts(&pool.settings, &pool.kept).await;
            });
            tasks.push(tokio::spawn(count).abort_handle());
        }
        WorkerHandle { pool, place, tasks }
    }
}

partial_debug!(Worker, |it| inbox = it.inbox, rules = it.rules);

/// The most events that are handled at the same time, which a drain can wait for in one call.
const MOST: usize = if Semaphore::MAX_PERMITS < u32::MAX as usize {
    Semaphore::MAX_PERMITS
} else {
    u32::MAX as usize
};

/// How long a drain waits for the last counts.
const FLUSH: Duration = Duration::from_secs(1);

/// A running worker. Dropping it stops the worker, and interrupts its attempts as a drain does at its deadline.
#[must_use = "dropping it stops the worker"]
pub struct WorkerHandle {
    pool: Arc<Pool>,
    place: Registration,
    tasks: Vec<AbortHandle>,
}

impl WorkerHandle {
    /// Stops the worker: it begins no more attempts. Waits until those in progress have ended, or until `deadline` from
    /// now has passed. Attempts that are then still in progress are interrupted: their handlers are dropped, their events
    /// are released at once, and the attempts do not count.
    ///
    /// # Errors
    ///
    /// When attempts were interrupted, or a background task of the worker [has panicked](DrainTimeout::panics) since it
    /// was spawned. Such a task is started again, and each panic is logged.
    pub async fn drain(&self, deadline: Duration) -> Result<(), DrainTimeout> {
        self.drain_until(sleep(deadline)).await
    }

    /// Like [`drain`](Self::drain), until `cut` is ready: a deadline, or a second signal.
    ///
    /// # Errors
    ///
    /// As for [`drain`](Self::drain).
    pub async fn drain_until(&self, cut: impl Future<Output = ()>) -> Result<(), DrainTimeout> {
        self.place.leave();
        self.pool.stop(Stop::Draining);
        let permits = &self.pool.permits;
        let all = u32::try_from(self.pool.rules.concurrency).unwrap_or(u32::MAX);
        let left = tokio::select! {
            biased;
            _ = permits.acquire_many(all) => 0,
            () = cut => {
                let left = all as usize - permits.available_permits();
                self.pool.stop(Stop::Now);
                let limit = self.pool.settings.limits.store_timeout;
                let _ = timeout(limit, permits.acquire_many(all)).await;
                left
            }
        };
        let written = self
            .pool
            .shared
            .write_counts(&self.pool.settings, &self.pool.kept);
        if !matches!(timeout(FLUSH, written).await, Ok(Ok(()))) {
            tracing::warn!("the counts of the last second could not be kept in the queue");
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
        self.end();
    }
}

partial_debug!(WorkerHandle);
