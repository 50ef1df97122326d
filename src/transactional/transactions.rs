//! The settings that transactional handlers share.

use std::time::Duration;

use super::turns::Turns;
use crate::config::ConfigError;
use crate::event::SenderPolicy;
use crate::execution::{Defaults, Given, Limits};
use crate::postgres::PostgresStore;
use crate::telemetry::{Observer, Observers};

/// Gives each handler a transaction that also holds its event's key.
///
/// See the [module](super) for what that promises. Clones share their settings and the pool.
#[derive(Clone, Debug)]
#[must_use]
pub struct Transactions {
    pub(super) store: PostgresStore,
    pub(super) limits: Limits,
    pub(super) turns: Turns,
    pub(super) observers: Observers,
}

impl Transactions {
    /// Keeps the keys in the table of `store`, and takes connections from its pool: one for each
    /// event that is being handled.
    ///
    /// In a worker of an [inbox](crate::docs::inbox#transactional-handlers), these are at most its `concurrency`. If
    /// the queue shares the pool, it needs five more.
    pub fn new(store: PostgresStore) -> Self {
        let defaults = Defaults {
            store_timeout: Duration::from_secs(10),
            in_flight_wait: Duration::from_secs(5),
            lease: None,
        };
        Self {
            store,
            limits: Limits::new(defaults),
            turns: Turns::default(),
            observers: Observers::default(),
        }
    }

    /// Derives retention and `Retry-After` from the limits of another sender.
    ///
    /// A [`retention`](Self::retention) that was set before or is set later takes precedence.
    ///
    /// # Errors
    ///
    /// When the retention is not longer than the sender retries.
    pub fn sender_policy(self, policy: SenderPolicy) -> Result<Self, ConfigError> {
        self.change(|given| given.sender_policy = Some(policy))
    }

    /// Sets how long a key is remembered: 8 days by default.
    ///
    /// # Errors
    ///
    /// When it is not longer than [`SenderPolicy::retry_for`], 7 days: a forgotten event would be handled
    /// again.
    pub fn retention(self, retention: Duration) -> Result<Self, ConfigError> {
        self.change(|given| given.retention = Some(retention))
    }

    /// Sets how long a duplicate waits for the delivery that is being handled, before it is answered with
    /// 409: 5 seconds by default. With zero, it waits at most 100 ms, and only for another process.
    pub fn in_flight_wait(mut self, wait: Duration) -> Self {
        self.limits.set(|given| given.in_flight_wait = Some(wait));
        self
    }

    /// Sets the time limit of each step of the database besides the handler's own: a connection from the
    /// pool, the key, the commit. 10 seconds by default.
    ///
    /// # Errors
    ///
    /// When it is zero.
    pub fn store_timeout(self, timeout: Duration) -> Result<Self, ConfigError> {
        self.change(|given| given.store_timeout = Some(timeout))
    }

    /// Sets the time limit of a handler: 30 seconds by default. When it has passed, the handler's future is
    /// dropped and its transaction rolled back. A handler that blocks its thread cannot be dropped.
    ///
    /// The server ends a statement, or an idle transaction, of a handler after the same time. Shorter limits
    /// that are set on the connection remain.
    ///
    /// # Errors
    ///
    /// When it is zero.
    pub fn handler_timeout(self, timeout: Duration) -> Result<Self, ConfigError> {
        self.change(|given| given.handler_timeout = Some(timeout))
    }

    /// Observes the attempts, and the calls of the database, each a [`Call`](crate::telemetry::Observation::Call) with
    /// the operation `acquire`, `begin`, `insert`, `commit`, `roll-back` or `can-end`. It replaces an earlier observer.
    ///
    /// The deliveries are observed by an observer of the [`SignatureLayer`](crate::SignatureLayer). An attempt
    /// is not reported twice: behind an [`IdempotencyLayer`](crate::IdempotencyLayer) or in a worker of an
    /// [inbox](crate::docs::inbox), only the observer of that one sees it. An attempt ends without a report if its client
    /// disconnects, which drops the handler.
    ///
    /// `insert` includes the time for which another delivery of the event is waited for.
    ///
    /// ```no_run
    /// use tower_webhook::telemetry::{Observation, Observer};
    /// use tower_webhook::transactional::Transactions;
    ///
    /// struct Errors;
    ///
    /// impl Observer for Errors {
    ///     fn observe(&self, observation: &Observation<'_>) {
    ///         if let Observation::Call(call) = observation
    ///             && let Some(error) = call.error
    ///         {
    ///             eprintln!("{} failed: {error}", call.operation);
    ///         }
    ///     }
    /// }
    ///
    /// # fn example(store: tower_webhook::postgres::PostgresStore) {
    /// let transactions = Transactions::new(store).observer(Errors);
    /// # }
    /// ```
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observers = Observers::new(observer);
        self
    }

    fn change(mut self, set: impl FnOnce(&mut Given)) -> Result<Self, ConfigError> {
        self.limits.change(set)?;
        Ok(self)
    }
}
