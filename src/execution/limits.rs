//! The settings of an attempt: what callers set, what follows from it, and whether it keeps the promises.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use crate::config::ConfigError;
use crate::event::SenderPolicy;
use crate::telemetry::Observers;

/// The limits of attempts: of the idempotency layer's, of a worker's, and of transactional handlers'.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) policy: SenderPolicy,
    pub(crate) retention: Duration,
    /// `None` for attempts that hold no lease.
    lease: Option<Duration>,
    pub(crate) in_flight_wait: Duration,
    pub(crate) store_timeout: Duration,
    pub(crate) handler_timeout: Duration,
}

/// What callers set. Everything else follows from the policy and the [`Defaults`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Given {
    pub(crate) sender_policy: Option<SenderPolicy>,
    pub(crate) retention: Option<Duration>,
    pub(crate) lease: Option<Duration>,
    pub(crate) in_flight_wait: Option<Duration>,
    pub(crate) store_timeout: Option<Duration>,
    pub(crate) handler_timeout: Option<Duration>,
}

/// The defaults in which the pieces differ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Defaults {
    pub(crate) store_timeout: Duration,
    pub(crate) in_flight_wait: Duration,
    /// `None` for attempts that hold no lease.
    pub(crate) lease: Option<fn(&SenderPolicy) -> Duration>,
}

impl Defaults {
    /// With a store.
    pub(crate) const STORE: Self = Self {
        store_timeout: Duration::from_secs(2),
        in_flight_wait: Duration::from_secs(5),
        lease: Some(SenderPolicy::lease),
    };

    /// With an inbox.
    pub(crate) const INBOX: Self = Self {
        store_timeout: Duration::from_secs(2),
        in_flight_wait: Duration::ZERO,
        // Half of the pause before the sender's next try, so that a lost lease does not outlast it.
        lease: Some(|policy| Duration::from_secs(30).min(policy.retry_every / 2)),
    };

    /// Of transactional handlers.
    pub(crate) const TRANSACTION: Self = Self {
        store_timeout: Duration::from_secs(10),
        in_flight_wait: Duration::from_secs(5),
        lease: None,
    };
}

/// A renewal at a third of a shorter lease might be late.
const SHORTEST_LEASE: Duration = Duration::from_millis(100);

/// Longer times are cut. Can be added to any time without an overflow.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// What a route sets for a handler that makes attempts of its own: a transactional one.
#[cfg_attr(
    not(feature = "postgres"),
    expect(dead_code, reason = "no other handler does")
)]
#[derive(Debug, Default)]
pub(crate) struct Lent {
    pub(crate) given: Given,
    pub(crate) observers: Observers,
    /// Whether one body under two keys is one event. An inbox has seen to it before.
    pub(crate) replay_guard: bool,
}

impl Lent {
    /// For the route's deliveries, which do not know what they carry.
    pub(crate) fn into_any(self) -> Arc<dyn Any + Send + Sync> {
        Arc::new(self)
    }
}

/// How much longer a body may take to be stored than an event of no size: a second for each 4 MB.
pub(crate) fn time_for(bytes: usize) -> Duration {
    Duration::from_micros(bytes as u64 / 4)
}

impl Limits {
    /// Refuses a combination that would break a promise.
    pub(crate) fn new(given: &Given, defaults: Defaults) -> Result<Self, ConfigError> {
        let limits = Self::unchecked(given, defaults);
        limits.check()?;
        Ok(limits)
    }

    /// Of what was checked before, or is not given.
    pub(crate) fn unchecked(given: &Given, defaults: Defaults) -> Self {
        let policy = given.sender_policy.unwrap_or_default();
        let cut = |given: Option<Duration>, default| given.unwrap_or(default).min(LONGEST);
        let lease = defaults
            .lease
            .map(|default| given.lease.unwrap_or_else(|| default(&policy)));
        // Shorter than the lease, which somebody may have shortened.
        let wait = lease.map_or(Duration::MAX, |lease| lease / 2);
        Self {
            policy,
            retention: given.retention.unwrap_or_else(|| policy.retention()),
            lease,
            in_flight_wait: cut(given.in_flight_wait, defaults.in_flight_wait.min(wait)),
            store_timeout: cut(given.store_timeout, defaults.store_timeout),
            handler_timeout: cut(given.handler_timeout, Duration::from_secs(30)),
        }
    }

    /// Says so if the answer to a slow handler comes too late for its sender.
    pub(crate) fn warn_of_deadline(&self) {
        if let Some(deadline) = self.policy.deadline.filter(|it| *it < self.handler_timeout) {
            tracing::warn!(
                ?deadline,
                handler_timeout = ?self.handler_timeout,
                "the sender stops waiting before a slow handler ends, and takes its delivery for failed: use an inbox, or set \
                 `handler_timeout` below this deadline"
            );
        }
    }

    pub(crate) fn lease(&self) -> Duration {
        self.lease.unwrap_or_else(|| self.policy.lease())
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
        if lease >= retry_every.min(LONGEST) {
            return Err(ConfigError::LeaseTooLong { lease, retry_every });
        }
        let wait = self.in_flight_wait;
        if wait >= lease {
            return Err(ConfigError::WaitTooLong { wait, lease });
        }
        Ok(())
    }
}
