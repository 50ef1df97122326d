use std::sync::Arc;
use std::time::Duration;

use tower_layer::Layer;

use super::renewal::Renewals;
use super::run::Runs;
use super::service::Idempotency;
use crate::config::ConfigError;
use crate::event::SenderPolicy;
use crate::store::Store;

/// Lets each event be handled once: claims its key in a [`Store`] before the inner service runs,
/// and settles the claim by what that answers.
///
/// See the [module](super) for the states of a key.
#[derive(Clone, Debug)]
#[must_use]
pub struct IdempotencyLayer<St> {
    config: Config<St>,
}

#[derive(Clone, Debug)]
pub(super) struct Config<St> {
    pub(super) store: St,
    pub(super) namespace: String,
    pub(super) policy: SenderPolicy,
    pub(super) lease: Duration,
    pub(super) retention: Duration,
    pub(super) in_flight_wait: Duration,
    pub(super) store_timeout: Duration,
    pub(super) handler_timeout: Duration,
    pub(super) handle_without_store: bool,
    pub(super) reject_changed_bodies: bool,
    pub(super) replay_guard: bool,
    pub(super) renewals: Renewals<St>,
    pub(super) runs: Runs,
}

/// What a renewal at a third of the lease can keep up with.
const SHORTEST_LEASE: Duration = Duration::from_millis(100);

/// What can be added to any time without an overflow.
const LONGEST_LEASE: Duration = Duration::from_secs(365 * 24 * 60 * 60);

impl<St: Store> IdempotencyLayer<St> {
    /// Remembers keys in `store`, for as long as [`SenderPolicy::default`] asks for.
    pub fn new(store: St) -> Self {
        let policy = SenderPolicy::default();
        Self {
            config: Config {
                store,
                namespace: String::new(),
                policy,
                lease: policy.lease(),
                retention: policy.retention(),
                in_flight_wait: Duration::from_secs(5),
                store_timeout: Duration::from_secs(2),
                handler_timeout: Duration::from_secs(30),
                handle_without_store: false,
                reject_changed_bodies: false,
                replay_guard: false,
                renewals: Renewals::default(),
                runs: Runs::new(1024),
            },
        }
    }

    /// Keeps the keys of this layer apart from those of other layers on the same store.
    ///
    /// Keys are unique per event, whatever its kind, so webhooks of one platform can share the
    /// namespace, which is empty unless set.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.config.namespace = namespace.into();
        self
    }

    /// Derives retention, lease and `Retry-After` from another sender's limits. Call it before you
    /// set any of them.
    ///
    /// # Errors
    ///
    /// When the wait for an outcome is not shorter than the new lease.
    pub fn sender_policy(mut self, policy: SenderPolicy) -> Result<Self, ConfigError> {
        self.config.policy = policy;
        self.config.lease = policy.lease();
        self.config.retention = policy.retention();
        self.checked()
    }

    /// Remembers a completed key for this long: 8 days unless set.
    ///
    /// # Errors
    ///
    /// When that is not longer than the sender retries, which is 7 days.
    pub fn retention(mut self, retention: Duration) -> Result<Self, ConfigError> {
        self.config.retention = retention;
        self.checked()
    }

    /// Claims a key for this long at a time: 60 seconds unless set. A lease is renewed while the
    /// handler runs, so this is how long a key stays taken after its process died. A handler that
    /// blocks its thread is covered as long as the runtime has another worker that is free.
    ///
    /// # Errors
    ///
    /// When it is less than 100 milliseconds, not shorter than the sender's 600 seconds between two
    /// attempts, or not longer than the wait for an outcome.
    pub fn lease(mut self, lease: Duration) -> Result<Self, ConfigError> {
        self.config.lease = lease;
        self.checked()
    }

    /// Lets a delivery whose key is in flight wait this long for the outcome, before it is answered
    /// with 409: 5 seconds unless set, and zero does not wait.
    ///
    /// # Errors
    ///
    /// When it is not shorter than the lease.
    pub fn in_flight_wait(mut self, wait: Duration) -> Result<Self, ConfigError> {
        self.config.in_flight_wait = wait;
        self.checked()
    }

    /// Gives the store this long for each operation: 2 seconds unless set.
    ///
    /// # Errors
    ///
    /// When it is zero.
    pub fn store_timeout(mut self, timeout: Duration) -> Result<Self, ConfigError> {
        self.config.store_timeout = timeout;
        self.checked()
    }

    /// Gives the inner service this long for an event, and then drops its future: 30 seconds unless
    /// set, from when it first waits for something. A handler that blocks its thread cannot be dropped.
    ///
    /// # Errors
    ///
    /// When it is zero.
    pub fn handler_timeout(mut self, timeout: Duration) -> Result<Self, ConfigError> {
        self.config.handler_timeout = timeout;
        self.checked()
    }

    /// Lets at most this many runs go on whose client has left: 1,024 unless set. One more is
    /// dropped, and its event handled again when the sender retries.
    pub fn max_detached(self, runs: usize) -> Self {
        self.config.runs.set_limit(runs);
        self
    }

    /// Handles events **without deduplication** while the store fails, instead of answering 503: an
    /// event may then be handled several times, also at the same time.
    pub fn dangerously_handle_without_store(mut self) -> Self {
        self.config.handle_without_store = true;
        self
    }

    /// Answers a key that comes again with another body with 422, instead of taking it for the same
    /// event.
    ///
    /// Bodies are told apart by their signatures. Thus a body that is sent again under a new secret
    /// counts as changed: while you rotate secrets, an event that was handled is answered with 422
    /// should the sender deliver it again, signed anew.
    pub fn reject_changed_bodies(mut self) -> Self {
        self.config.reject_changed_bodies = true;
        self
    }

    /// Answers a body that was handled with a key, and comes again with another one or without one,
    /// with 422. The key is not signed, so without this guard whoever captured a delivery can have
    /// it handled again under another key. A body that has no key either time is answered as a
    /// replay.
    ///
    /// Off unless called, because two events may legitimately share a body. It costs a second claim
    /// for each delivery. Like [`reject_changed_bodies`](Self::reject_changed_bodies) it tells
    /// bodies apart by their signatures.
    pub fn replay_guard(mut self) -> Self {
        self.config.replay_guard = true;
        self
    }

    /// A handle to the runs that go on after their client left, to wait for them at shutdown.
    #[must_use]
    pub fn runs(&self) -> Runs {
        self.config.runs.clone()
    }

    fn checked(self) -> Result<Self, ConfigError> {
        let Config {
            lease,
            retention,
            in_flight_wait: wait,
            ref policy,
            ..
        } = self.config;
        if self.config.store_timeout.is_zero() {
            return Err(ConfigError::Zero("store_timeout"));
        }
        if self.config.handler_timeout.is_zero() {
            return Err(ConfigError::Zero("handler_timeout"));
        }
        if retention <= policy.retry_for {
            return Err(ConfigError::RetentionTooShort {
                retention,
                retry_for: policy.retry_for,
            });
        }
        if lease < SHORTEST_LEASE {
            return Err(ConfigError::LeaseTooShort { lease });
        }
        if lease >= policy.retry_every.min(LONGEST_LEASE) {
            return Err(ConfigError::LeaseTooLong {
                lease,
                retry_every: policy.retry_every,
            });
        }
        if wait >= lease {
            return Err(ConfigError::WaitTooLong { wait, lease });
        }
        Ok(self)
    }
}

impl<S, St: Clone> Layer<S> for IdempotencyLayer<St> {
    type Service = Idempotency<S, St>;

    fn layer(&self, inner: S) -> Idempotency<S, St> {
        Idempotency::new(inner, Arc::new(self.config.clone()))
    }
}
