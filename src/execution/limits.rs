//! The settings of an attempt, checked together.

use std::time::Duration;

use crate::config::ConfigError;
use crate::event::SenderPolicy;

/// The limits of attempts: of the idempotency layer's, and of transactional handlers'.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) namespace: String,
    pub(crate) policy: SenderPolicy,
    pub(crate) retention: Duration,
    /// `None` for attempts that hold no lease.
    pub(crate) lease: Option<Duration>,
    pub(crate) in_flight_wait: Duration,
    pub(crate) store_timeout: Duration,
    pub(crate) handler_timeout: Duration,
}

/// A renewal at a third of a shorter lease might be late.
const SHORTEST_LEASE: Duration = Duration::from_millis(100);

/// Can be added to any time without an overflow.
const LONGEST_LEASE: Duration = Duration::from_secs(365 * 24 * 60 * 60);

impl Limits {
    /// The defaults, for attempts without a lease.
    pub(crate) fn new(store_timeout: Duration) -> Self {
        let policy = SenderPolicy::default();
        Self {
            namespace: String::new(),
            policy,
            retention: policy.retention(),
            lease: None,
            in_flight_wait: Duration::from_secs(5),
            store_timeout,
            handler_timeout: Duration::from_secs(30),
        }
    }

    /// The same, for attempts that hold a lease.
    pub(crate) fn with_lease(mut self) -> Self {
        self.lease = Some(self.policy.lease());
        self
    }

    pub(crate) fn lease(&self) -> Duration {
        self.lease.unwrap_or_else(|| self.policy.lease())
    }

    /// Changes the policy, and the limits that follow from it.
    pub(crate) fn set_policy(&mut self, policy: SenderPolicy) {
        self.policy = policy;
        self.retention = policy.retention();
        self.lease = self.lease.map(|_| policy.lease());
    }

    /// Changes the limits with `set`, and refuses a combination that would break a promise.
    pub(crate) fn change(&mut self, set: impl FnOnce(&mut Self)) -> Result<(), ConfigError> {
        set(self);
        self.check()
    }

    fn check(&self) -> Result<(), ConfigError> {
        if self.store_timeout.is_zero() {
            return Err(ConfigError::Zero("store_timeout"));
        }
        if self.handler_timeout.is_zero() {
            return Err(ConfigError::Zero("handler_timeout"));
        }
        let SenderPolicy {
            retry_every,
            retry_for,
            ..
        } = self.policy;
        if self.retention <= retry_for {
            return Err(ConfigError::RetentionTooShort {
                retention: self.retention,
                retry_for,
            });
        }
        let Some(lease) = self.lease else {
            return Ok(());
        };
        if lease < SHORTEST_LEASE {
            return Err(ConfigError::LeaseTooShort { lease });
        }
        if lease >= retry_every.min(LONGEST_LEASE) {
            return Err(ConfigError::LeaseTooLong { lease, retry_every });
        }
        let wait = self.in_flight_wait;
        if wait >= lease {
            return Err(ConfigError::WaitTooLong { wait, lease });
        }
        Ok(())
    }
}
