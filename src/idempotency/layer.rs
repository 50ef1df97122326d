use std::sync::Arc;
use std::time::Duration;

use tower_layer::Layer;

use super::rules::Rules;
use super::service::Idempotency;
use crate::config::ConfigError;
use crate::event::SenderPolicy;
use crate::execution::{Defaults, Given, Leases, Limits, Runs};
use crate::store::Store;
use crate::telemetry::{Observer, Observers};

/// Deduplicates deliveries: claims the key of an event in a [`Store`] before the inner service runs, and
/// settles the claim by the [`Outcome`](crate::Outcome) or the status of its response.
///
/// See the [module](super) for the states of a key.
#[derive(Clone, Debug)]
#[must_use]
pub struct IdempotencyLayer<St> {
    pub(crate) leases: Leases<St>,
    pub(crate) rules: Rules,
}

impl<St: Store> IdempotencyLayer<St> {
    /// Remembers keys in `store`, for as long as [`SenderPolicy::default`] requires.
    pub fn new(store: St) -> Self {
        let defaults = Defaults {
            store_timeout: Duration::from_secs(2),
            in_flight_wait: Duration::from_secs(5),
            lease: Some(SenderPolicy::lease),
        };
        Self {
            leases: Leases::new(store, Limits::new(defaults)),
            rules: Rules::default(),
        }
    }

    /// Keeps the keys of this layer apart from those of other layers on the same store.
    ///
    /// The namespace defaults to an empty string. Keys are unique per event, whatever its kind, so the
    /// webhooks of one platform can share it. Receivers of different platforms or accounts on one store need
    /// different namespaces.
    ///
    /// ```
    /// # use tower_webhook::{IdempotencyLayer, memory::MokaStore};
    /// let store = MokaStore::new();
    /// let europe = IdempotencyLayer::new(store.clone()).namespace("europe");
    /// let america = IdempotencyLayer::new(store).namespace("america");
    /// ```
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        let namespace = namespace.into();
        self.leases
            .limits
            .set(|given| given.namespace = Some(namespace));
        self
    }

    /// Reports each attempt, and each call of the store, to an observer: see [`telemetry`](crate::telemetry).
    ///
    /// Without it, [`SignatureLayer::observer`](crate::SignatureLayer::observer) still reports the deliveries.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.leases.observers = Observers::new(observer);
        self
    }

    /// Records the number of detached runs: see the [table of metrics](crate::docs::metrics).
    #[cfg(feature = "metrics")]
    pub fn record_metrics(&self) {
        self.leases.runs.record_metrics();
    }

    /// Derives retention, lease and `Retry-After` from the limits of another sender.
    ///
    /// A [`retention`](Self::retention) and a [`lease`](Self::lease) that were set before or are set later take
    /// precedence.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_webhook::{IdempotencyLayer, SenderPolicy, memory::MokaStore};
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// let (minute, day) = (Duration::from_secs(60), Duration::from_secs(24 * 60 * 60));
    /// let policy = SenderPolicy::new(10 * minute, 3 * day);
    /// let layer = IdempotencyLayer::new(MokaStore::new()).sender_policy(policy)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When a limit that was set before does not suit this sender, or [`in_flight_wait`](Self::in_flight_wait) is not
    /// shorter than the new lease.
    pub fn sender_policy(self, policy: SenderPolicy) -> Result<Self, ConfigError> {
        self.change(|given| given.sender_policy = Some(policy))
    }

    /// Sets how long a completed key is remembered: 8 days by default, from [`SenderPolicy::retention`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_webhook::{IdempotencyLayer, memory::MokaStore};
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// let layer = IdempotencyLayer::new(MokaStore::new()).retention(Duration::from_secs(14 * 24 * 60 * 60))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When it is not longer than [`SenderPolicy::retry_for`], 7 days: a forgotten key would be handled
    /// again.
    pub fn retention(self, retention: Duration) -> Result<Self, ConfigError> {
        self.change(|given| given.retention = Some(retention))
    }

    /// Sets how long a claim on a key lasts: 60 seconds by default.
    ///
    /// While the handler runs, its lease is renewed after each third of this time, so a key stays claimed for
    /// at most this long after its process died. The lease of a handler that blocks its thread is renewed as
    /// long as the runtime has another worker that is idle.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_webhook::{IdempotencyLayer, memory::MokaStore};
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// let layer = IdempotencyLayer::new(MokaStore::new()).lease(Duration::from_secs(20))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When it is shorter than 100 milliseconds, not shorter than [`SenderPolicy::retry_every`], 600
    /// seconds, or not longer than [`in_flight_wait`](Self::in_flight_wait).
    pub fn lease(self, lease: Duration) -> Result<Self, ConfigError> {
        self.change(|given| given.lease = Some(lease))
    }

    /// Sets how long a duplicate waits for the run that holds its key, before it is answered with 409: 5
    /// seconds by default. Zero does not wait.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_webhook::{IdempotencyLayer, memory::MokaStore};
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// let layer = IdempotencyLayer::new(MokaStore::new()).in_flight_wait(Duration::ZERO)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When it is not shorter than the [`lease`](Self::lease).
    pub fn in_flight_wait(self, wait: Duration) -> Result<Self, ConfigError> {
        self.change(|given| given.in_flight_wait = Some(wait))
    }

    /// Sets the time limit of each operation of the store: 2 seconds by default.
    ///
    /// A delivery whose key cannot be claimed in that time is answered with 503. See
    /// [`Outcome::Unavailable`](crate::Outcome::Unavailable).
    ///
    /// # Errors
    ///
    /// When it is zero.
    pub fn store_timeout(self, timeout: Duration) -> Result<Self, ConfigError> {
        self.change(|given| given.store_timeout = Some(timeout))
    }

    /// Sets the time limit of a handler: 30 seconds by default, counted from when its future first
    /// returns pending.
    ///
    /// When the limit has passed, the future is dropped and the delivery is answered with 503. A handler
    /// that blocks its thread cannot be dropped, and work that it started with `spawn_blocking` continues
    /// beside the next attempt. See [`Outcome::TimedOut`](crate::Outcome::TimedOut).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_webhook::{IdempotencyLayer, memory::MokaStore};
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// let layer = IdempotencyLayer::new(MokaStore::new()).handler_timeout(Duration::from_secs(10))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When it is zero.
    pub fn handler_timeout(self, timeout: Duration) -> Result<Self, ConfigError> {
        self.change(|given| given.handler_timeout = Some(timeout))
    }

    /// Handles events **without deduplication** while the store fails, instead of answering 503.
    ///
    /// An event may then be handled several times, even concurrently.
    pub fn dangerously_handle_without_store(mut self) -> Self {
        self.rules.handle_without_store = true;
        self
    }

    /// Answers with 422 when a delivery's key was used with another body, instead of treating it as the
    /// same event.
    ///
    /// Bodies are compared by a 128-bit digest, so a retry that was signed with another secret is still
    /// the same body.
    ///
    /// ```
    /// # use tower_webhook::{IdempotencyLayer, memory::MokaStore};
    /// let layer = IdempotencyLayer::new(MokaStore::new()).reject_changed_bodies();
    /// ```
    pub fn reject_changed_bodies(mut self) -> Self {
        self.rules.reject_changed_bodies = true;
        self
    }

    /// Answers with 422 when a delivery's body was handled under another key, for as long as the
    /// [`retention`](Self::retention) lasts.
    ///
    /// The key is not signed. Without this guard, an attacker who captured a delivery can have it handled
    /// again under another key. A body that had no key either time is answered as a replay.
    ///
    /// The guard is off by default, because two events may legitimately share a body. It costs a second
    /// claim for each delivery. See the [threat model](crate::docs::threat_model).
    ///
    /// ```
    /// # use tower_webhook::{IdempotencyLayer, memory::MokaStore};
    /// let layer = IdempotencyLayer::new(MokaStore::new()).replay_guard();
    /// ```
    pub fn replay_guard(mut self) -> Self {
        self.rules.replay_guard = true;
        self
    }

    /// Returns a handle to the runs that continue after their client disconnected, to wait for them at
    /// shutdown. See [`Runs::drain`].
    #[must_use]
    pub fn runs(&self) -> Runs {
        self.leases.runs.clone()
    }

    fn change(mut self, set: impl FnOnce(&mut Given)) -> Result<Self, ConfigError> {
        // Checked at each change, so that the error names the call that is wrong.
        self.leases.limits.change(set)?;
        Ok(self)
    }
}

impl<S, St: Clone> Layer<S> for IdempotencyLayer<St> {
    type Service = Idempotency<S, St>;

    fn layer(&self, inner: S) -> Idempotency<S, St> {
        // A clone has the same runs and renewals: `runs` drains those of each service.
        Idempotency::new(inner, Arc::new(self.leases.clone()), self.rules)
    }
}

#[cfg(all(test, feature = "moka"))]
mod tests {
    use super::*;
    use crate::memory::MokaStore;

    const NANO: Duration = Duration::from_nanos(1);
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    const MINUTE: Duration = Duration::from_secs(60);

    fn layer() -> IdempotencyLayer<MokaStore> {
        IdempotencyLayer::new(MokaStore::new())
    }

    fn refusal(result: Result<IdempotencyLayer<MokaStore>, ConfigError>) -> String {
        result.map(drop).unwrap_err().to_string()
    }

    #[test]
    fn the_retention_must_be_longer_than_the_sender_retries() {
        assert!(layer().retention(7 * DAY + NANO).is_ok());
        assert!(layer().retention(Duration::MAX).is_ok());
        for retention in [7 * DAY, DAY, Duration::ZERO] {
            assert!(matches!(
                layer().retention(retention),
                Err(ConfigError::RetentionTooShort { retention: asked, retry_for })
                    if asked == retention && retry_for == 7 * DAY
            ));
        }
        assert_eq!(
            refusal(layer().retention(7 * DAY)),
            "a retention of 604800s is too short: the sender retries for 604800s, and an event \
             whose key is forgotten is handled again; choose a longer retention"
        );
    }

    #[test]
    fn the_lease_must_be_shorter_than_the_time_between_two_retries() {
        assert!(layer().lease(10 * MINUTE - NANO).is_ok());
        for lease in [10 * MINUTE, Duration::MAX] {
            assert!(matches!(
                layer().lease(lease),
                Err(ConfigError::LeaseTooLong { lease: asked, retry_every })
                    if asked == lease && retry_every == 10 * MINUTE
            ));
        }
        assert_eq!(
            refusal(layer().lease(10 * MINUTE)),
            "a lease of 600s is too long: the sender retries every 600s, and the first retry after \
             a crash would find the key claimed; choose a shorter lease"
        );
    }

    #[test]
    fn the_wait_must_be_shorter_than_the_lease() {
        assert!(layer().in_flight_wait(Duration::ZERO).is_ok());
        assert!(layer().in_flight_wait(MINUTE - NANO).is_ok());
        assert!(layer().lease(Duration::from_secs(5) + NANO).is_ok());
        for refused in [
            layer().in_flight_wait(MINUTE),
            layer().lease(Duration::from_secs(5)),
            layer()
                .lease(3 * MINUTE)
                .and_then(|it| it.in_flight_wait(3 * MINUTE)),
        ] {
            assert!(matches!(refused, Err(ConfigError::WaitTooLong { .. })));
        }
        assert_eq!(
            refusal(layer().in_flight_wait(MINUTE)),
            "duplicates cannot wait 60s for a run whose lease is 60s: choose a shorter wait, or set \
             a longer lease first"
        );
    }

    #[test]
    fn no_time_limit_is_zero() {
        for (refused, limit) in [
            (layer().store_timeout(Duration::ZERO), "store_timeout"),
            (layer().handler_timeout(Duration::ZERO), "handler_timeout"),
        ] {
            assert!(matches!(&refused, Err(ConfigError::Zero(name)) if *name == limit));
            assert_eq!(
                refusal(refused),
                format!("`{limit}` must be more than zero")
            );
        }
        assert!(layer().store_timeout(NANO).is_ok());
        assert!(layer().handler_timeout(Duration::MAX).is_ok());
    }

    #[test]
    fn a_lease_can_be_renewed_in_time() {
        let wait_none = || layer().in_flight_wait(Duration::ZERO);
        for short in [Duration::ZERO, NANO, Duration::from_millis(100) - NANO] {
            let refused = wait_none().and_then(|layer| layer.lease(short));
            assert!(matches!(refused, Err(ConfigError::LeaseTooShort { lease }) if lease == short));
        }
        let shortest = Duration::from_millis(100);
        assert!(wait_none().and_then(|layer| layer.lease(shortest)).is_ok());

        // However slow the sender is, a lease can be added to any time.
        let policy = SenderPolicy {
            retry_every: Duration::MAX,
            ..SenderPolicy::default()
        };
        let refused = layer().sender_policy(policy);
        assert!(matches!(refused, Err(ConfigError::LeaseTooLong { .. })));
    }

    #[test]
    fn another_sender_brings_limits_of_its_own() {
        let policy = SenderPolicy {
            retry_every: MINUTE,
            retry_for: 30 * DAY,
            ..SenderPolicy::default()
        };
        let layer = || layer().sender_policy(policy);
        assert!(layer().is_ok());
        let retention = layer().and_then(|it| it.retention(30 * DAY));
        assert!(matches!(
            retention,
            Err(ConfigError::RetentionTooShort { .. })
        ));
        let lease = layer().and_then(|it| it.lease(MINUTE));
        assert!(matches!(lease, Err(ConfigError::LeaseTooLong { .. })));

        // Its leases of 5 seconds do not leave room for a wait of 5 seconds.
        let hasty = SenderPolicy {
            retry_every: Duration::from_secs(50),
            ..policy
        };
        let refused = self::layer().sender_policy(hasty);
        assert!(matches!(refused, Err(ConfigError::WaitTooLong { .. })));
        let patient = self::layer().in_flight_wait(Duration::from_secs(4));
        assert!(patient.and_then(|it| it.sender_policy(hasty)).is_ok());
        let never = SenderPolicy {
            retry_for: Duration::MAX,
            ..policy
        };
        let refused = self::layer().sender_policy(never);
        assert!(matches!(
            refused,
            Err(ConfigError::RetentionTooShort { .. })
        ));
    }
}
