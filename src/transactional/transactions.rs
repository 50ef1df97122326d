use std::time::Duration;

use super::run::Transactional;
use super::turns::Turns;
use crate::config::ConfigError;
use crate::event::SenderPolicy;
use crate::store::PostgresStore;

/// Gives each handler a transaction that also holds its event's key.
///
/// See the [module](super) for what that promises. Clones share their settings and the pool.
#[derive(Clone, Debug)]
#[must_use]
pub struct Transactions {
    pub(super) store: PostgresStore,
    pub(super) namespace: String,
    pub(super) policy: SenderPolicy,
    pub(super) retention: Duration,
    pub(super) in_flight_wait: Duration,
    pub(super) store_timeout: Duration,
    pub(super) handler_timeout: Duration,
    pub(super) turns: Turns,
}

impl Transactions {
    /// Keeps the keys in the table of `store`, and takes connections from its pool: one for each
    /// event that is being handled.
    pub fn new(store: PostgresStore) -> Self {
        let policy = SenderPolicy::default();
        Self {
            store,
            namespace: String::new(),
            policy,
            retention: policy.retention(),
            in_flight_wait: Duration::from_secs(5),
            store_timeout: Duration::from_secs(10),
            handler_timeout: Duration::from_secs(30),
            turns: Turns::default(),
        }
    }

    /// Keeps the keys apart from those of other applications on the same database.
    ///
    /// Keys are unique per event, whatever its kind, so webhooks of one platform can share the
    /// namespace, which is empty unless set.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Derives retention and `Retry-After` from another sender's limits. Call it before you set the
    /// retention.
    pub fn sender_policy(mut self, policy: SenderPolicy) -> Self {
        self.policy = policy;
        self.retention = policy.retention();
        self
    }

    /// Remembers a key for this long at least: 8 days unless set.
    ///
    /// # Errors
    ///
    /// When that is not longer than the sender retries, which is 7 days.
    pub fn retention(mut self, retention: Duration) -> Result<Self, ConfigError> {
        if retention <= self.policy.retry_for {
            return Err(ConfigError::RetentionTooShort {
                retention,
                retry_for: self.policy.retry_for,
            });
        }
        self.retention = retention;
        Ok(self)
    }

    /// Lets a delivery whose event is being handled wait this long for the outcome, before it is
    /// answered with 409: 5 seconds unless set. With zero it waits 100 ms at most, for
    /// one of another process.
    pub fn in_flight_wait(mut self, wait: Duration) -> Self {
        self.in_flight_wait = wait;
        self
    }

    /// Gives the database this long for each step besides the handler's own: a connection from the
    /// pool, the key, the commit. 10 seconds unless set.
    ///
    /// # Errors
    ///
    /// When it is zero.
    pub fn store_timeout(mut self, timeout: Duration) -> Result<Self, ConfigError> {
        if timeout.is_zero() {
            return Err(ConfigError::Zero("store_timeout"));
        }
        self.store_timeout = timeout;
        Ok(self)
    }

    /// Gives a handler this long for an event, and then drops its future and rolls back: 30 seconds
    /// unless set. A handler that blocks its thread cannot be dropped.
    ///
    /// The same limit ends a statement that the server works on, and a transaction that it waits for
    /// in vain. Shorter limits of the connection's own stay.
    ///
    /// # Errors
    ///
    /// When it is zero.
    pub fn handler_timeout(mut self, timeout: Duration) -> Result<Self, ConfigError> {
        if timeout.is_zero() {
            return Err(ConfigError::Zero("handler_timeout"));
        }
        self.handler_timeout = timeout;
        Ok(self)
    }

    /// Makes a [`Handler`](crate::Handler) of one that works in the transaction, for
    /// [`EventRouter::on`](crate::EventRouter::on).
    pub fn handler<H>(&self, handler: H) -> Transactional<H> {
        Transactional {
            handler,
            transactions: self.clone(),
        }
    }
}
