//! Both layers behind one builder.

use std::sync::Arc;
use std::time::Duration;

use tower_layer::Layer;

use crate::config::ConfigError;
use crate::event::SenderPolicy;
use crate::idempotency::{Idempotency, IdempotencyLayer, Runs};
#[cfg(feature = "moka")]
use crate::memory::MokaStore;
use crate::signature::{HeaderNames, Secrets, Signature, SignatureLayer};
use crate::store::Store;
use crate::telemetry::Observer;

/// Verifies and deduplicates deliveries: a [`SignatureLayer`] around an [`IdempotencyLayer`].
///
/// The inner service is an [`EventRouter`](crate::EventRouter), an axum `Router`, or any other
/// service of `Request<`[`Verified`](crate::Verified)`>`. Mount the service in an axum application with
/// `Router::route_service`, or the layer with `Router::route_layer`: `Router::layer` would also answer the
/// application's unknown paths. See [the order of other layers](crate::docs::tower_http).
///
/// ```
/// # fn main() -> Result<(), tower_webhook::ConfigError> {
/// use std::time::Duration;
///
/// use tower::Layer;
/// use tower_webhook::event::ChatRated;
/// use tower_webhook::{Delivery, EventRouter, Secret, WebhookLayer};
///
/// let events = EventRouter::new().on::<ChatRated>(async |_: Delivery<ChatRated>| Ok(()));
/// let webhooks = WebhookLayer::new(Secret::new("8c1f…")?)
///     .max_body(256 * 1024)
///     .handler_timeout(Duration::from_secs(10))?
///     .layer(events);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct WebhookLayer<St> {
    signature: SignatureLayer,
    idempotency: IdempotencyLayer<St>,
}

#[cfg(feature = "moka")]
impl WebhookLayer<MokaStore> {
    /// Verifies with `secrets`, and remembers keys in memory, in a new [`MokaStore`].
    pub fn new(secrets: impl Into<Secrets>) -> Self {
        Self::with_store(secrets, MokaStore::new())
    }

    /// Verifies **nothing**, and remembers keys in memory. See
    /// [`SignatureLayer::dangerously_unsigned`].
    pub fn dangerously_unsigned() -> Self {
        let idempotency = IdempotencyLayer::new(MokaStore::new());
        Self::from_layers(SignatureLayer::dangerously_unsigned(), idempotency)
    }
}

impl<St: Store> WebhookLayer<St> {
    /// Verifies with `secrets`, and remembers keys in `store`. Several layers may share one store.
    ///
    /// ```no_run
    /// # #[cfg(feature = "sqlite")]
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tower_webhook::sqlite::SqliteStore;
    /// use tower_webhook::{Secret, WebhookLayer};
    ///
    /// let secret = Secret::from_env("WEBHOOK_SECRET")?;
    /// let layer = WebhookLayer::with_store(secret, SqliteStore::open("webhooks.db")?);
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "sqlite"))]
    /// # fn main() {}
    /// ```
    pub fn with_store(secrets: impl Into<Secrets>, store: St) -> Self {
        Self::from_layers(SignatureLayer::new(secrets), IdempotencyLayer::new(store))
    }

    /// Combines two layers that were configured separately.
    pub fn from_layers(signature: SignatureLayer, idempotency: IdempotencyLayer<St>) -> Self {
        Self {
            signature,
            idempotency,
        }
    }

    /// Derives all defaults from the limits of another sender.
    ///
    /// # Errors
    ///
    /// See [`IdempotencyLayer::sender_policy`].
    pub fn sender_policy(mut self, policy: SenderPolicy) -> Result<Self, ConfigError> {
        self.signature = self.signature.sender_policy(policy);
        self.idempotency = self.idempotency.sender_policy(policy)?;
        Ok(self)
    }

    /// Reports each delivery, each attempt, and each call of the store to an observer: see
    /// [`telemetry`](crate::telemetry).
    ///
    /// ```
    /// # use tower_webhook::telemetry::FailureBudget;
    /// # use tower_webhook::{Secret, WebhookLayer};
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// let budget = FailureBudget::default();
    /// let layer = WebhookLayer::new(Secret::new("8c1f…")?).observer(budget.clone());
    /// # Ok(())
    /// # }
    /// ```
    pub fn observer(mut self, observer: impl Observer) -> Self {
        let observer = Arc::new(observer);
        self.signature = self.signature.observer(Arc::clone(&observer));
        self.idempotency = self.idempotency.observer(observer);
        self
    }

    /// See [`SignatureLayer::buffered`].
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.signature.buffered()
    }

    /// Records the memory of the bodies that are being received, and the number of detached runs: see the
    /// [table of metrics](crate::docs::metrics).
    #[cfg(feature = "metrics")]
    pub fn record_metrics(&self) {
        self.signature.record_metrics();
        self.idempotency.record_metrics();
    }

    /// See [`IdempotencyLayer::runs`].
    #[must_use]
    pub fn runs(&self) -> Runs {
        self.idempotency.runs()
    }
}

/// The setters of the two layers, under the same names.
macro_rules! forward {
    ($($layer:ident: $type:ident {
        $($setter:ident($($value:ident: $kind:ty)?) $(-> $fallible:ident)?;)*
    })*) => {
        impl<St: Store> WebhookLayer<St> {$($(
            forward!(@ $layer $type $setter ($($value: $kind)?) $($fallible)?);
        )*)*}
    };
    (@ $layer:ident $type:ident $setter:ident ($($value:ident: $kind:ty)?)) => {
        #[doc = concat!("See [`", stringify!($type), "::", stringify!($setter), "`].")]
        pub fn $setter(mut self $(, $value: $kind)?) -> Self {
            self.$layer = self.$layer.$setter($($value)?);
            self
        }
    };
    (@ $layer:ident $type:ident $setter:ident ($($value:ident: $kind:ty)?) fallible) => {
        #[doc = concat!("See [`", stringify!($type), "::", stringify!($setter), "`].")]
        ///
        /// # Errors
        ///
        /// See there.
        pub fn $setter(mut self $(, $value: $kind)?) -> Result<Self, ConfigError> {
            self.$layer = self.$layer.$setter($($value)?)?;
            Ok(self)
        }
    };
}

forward! {
    signature: SignatureLayer {
        header_names(names: HeaderNames) -> fallible;
        max_body(bytes: usize);
        max_buffered(bytes: usize);
        body_timeout(timeout: Duration);
        require_key();
    }
    idempotency: IdempotencyLayer {
        namespace(namespace: impl Into<String>);
        retention(retention: Duration) -> fallible;
        lease(lease: Duration) -> fallible;
        in_flight_wait(wait: Duration) -> fallible;
        store_timeout(timeout: Duration) -> fallible;
        handler_timeout(timeout: Duration) -> fallible;
        max_detached(runs: usize);
        dangerously_handle_without_store();
        reject_changed_bodies();
        replay_guard();
    }
}

impl<S, St: Clone> Layer<S> for WebhookLayer<St> {
    type Service = Signature<Idempotency<S, St>>;

    fn layer(&self, inner: S) -> Self::Service {
        self.signature.layer(self.idempotency.layer(inner))
    }
}

#[cfg(all(test, feature = "moka"))]
mod tests {
    use super::*;
    use crate::signature::Secret;

    const NANO: Duration = Duration::from_nanos(1);
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    const MINUTE: Duration = Duration::from_secs(60);

    fn layer() -> WebhookLayer<MokaStore> {
        WebhookLayer::new(Secret::new("secret").unwrap())
    }

    fn refusal(result: Result<WebhookLayer<MokaStore>, ConfigError>) -> String {
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
    fn each_header_has_a_name_of_its_own() {
        let same = http::HeaderName::from_static("x-acme-event");
        let branded = || HeaderNames::branded("acme").unwrap();
        for names in [
            HeaderNames {
                key: same.clone(),
                ..branded()
            },
            HeaderNames {
                signature: same.clone(),
                ..branded()
            },
            HeaderNames {
                key: same.clone(),
                signature: same.clone(),
                ..HeaderNames::default()
            },
        ] {
            let refused = layer().header_names(names);
            assert!(matches!(refused, Err(ConfigError::SameHeader(name)) if name == same));
        }
        assert!(layer().header_names(branded()).is_ok());
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

    #[test]
    fn what_is_wrong_with_secrets_and_names_is_said() {
        use std::error::Error as _;

        let text = |error: ConfigError| error.to_string();
        assert_eq!(
            text(Secret::new("").unwrap_err()),
            "the secret is empty: set the secret that is configured in the partner portal"
        );
        assert_eq!(
            text(Secrets::new([]).unwrap_err()),
            "there is no secret: pass at least one that is configured in the partner portal"
        );
        let missing = Secret::from_env("NO_SUCH_VARIABLE").unwrap_err();
        assert!(missing.source().is_some());
        assert_eq!(
            text(missing),
            "the environment variable `NO_SUCH_VARIABLE` holds no secret: set it to the secret \
             that is configured in the partner portal"
        );
        let unreadable = Secrets::from_file("/nonexistent/secrets").unwrap_err();
        assert!(unreadable.source().is_some());
        assert_eq!(
            text(unreadable),
            "a file of secrets must be readable UTF-8 with one secret per line: `/nonexistent/secrets` cannot be read"
        );
        assert_eq!(
            text(HeaderNames::branded("a b").unwrap_err()),
            "`a b` cannot be the prefix of a header: use letters, digits and hyphens"
        );
    }
}
