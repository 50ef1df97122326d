use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tower_layer::Layer;

use super::buffer::{Bounds, Budget};
use super::config::Config;
use super::secret::Secrets;
use super::service::Signature;
use super::sign::check;
use super::verify::Authentication;
use crate::config::ConfigError;
use crate::event::{EventKind, SenderPolicy};
use crate::sender::Sender;
use crate::telemetry::{Observer, Observers};

/// Verifies deliveries, and passes them on as `Request<`[`Verified`](crate::Verified)`>`. Refuses all other requests.
///
/// See the [module](super) for an example.
#[derive(Clone, Debug)]
#[must_use]
pub struct SignatureLayer {
    config: Config,
}

impl SignatureLayer {
    /// Verifies with `secrets`: a [`Secret`](crate::Secret), or [`Secrets`], a handle to a set of them.
    pub fn new(secrets: impl Into<Secrets>) -> Self {
        Self::with(Authentication::Signed(secrets.into()))
    }

    /// Verifies **nothing**: anybody who reaches the URL can make handlers run.
    ///
    /// For a webhook without a secret in the partner portal, behind a proxy that authenticates the sender.
    pub fn dangerously_unsigned() -> Self {
        Self::with(Authentication::Unsigned)
    }

    fn with(authentication: Authentication) -> Self {
        Self {
            config: Config {
                authentication,
                sender: Sender::default(),
                bounds: Bounds {
                    max_body: 1024 * 1024,
                    timeout: Duration::from_secs(10),
                    // About 64 bodies of the largest size at a time.
                    budget: Budget::new(64 * 1024 * 1024, SenderPolicy::default().retry_every),
                },
                require_key: false,
                kept: None,
                throttle: Arc::default(),
                observers: Observers::default(),
            },
        }
    }

    /// Sets who sends the deliveries: the chat platform by default.
    ///
    /// ```
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// use tower_webhook::{Secret, Sender, SignatureLayer};
    ///
    /// let layer = SignatureLayer::new(Secret::new("8c1f…")?)
    ///     .sender(Sender::chat_platform().branded("acme")?)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConfigError::Sender`] when a secret is not written as this sender writes its secrets, or the token of its
    /// challenges is missing.
    pub fn sender(self, sender: Sender) -> Result<Self, ConfigError> {
        // Here and not at the first delivery, which would be refused.
        sender.check()?;
        if let Authentication::Signed(secrets) = &self.config.authentication {
            check(&sender, secrets)?;
        }
        // `Retry-After` asks for the time after which this sender retries anyway.
        let mut layer = self.sender_policy(sender.policy());
        layer.config.sender = sender;
        Ok(layer)
    }

    /// Sets the size limit of a body in bytes: 1 MiB by default. A larger one is answered with 413
    /// ([`Refusal::BodyTooLarge`](super::Refusal::BodyTooLarge)).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_webhook::{Secret, SignatureLayer};
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// let layer = SignatureLayer::new(Secret::new("8c1f…")?).max_body(256 * 1024);
    /// # Ok(())
    /// # }
    /// ```
    pub fn max_body(mut self, bytes: usize) -> Self {
        self.config.bounds.max_body = bytes;
        self
    }

    /// Sets the memory limit, in bytes, of all bodies that are being received at a time: 64 MiB by default.
    ///
    /// Clones of the layer share the limit. A body no longer counts once it is complete.
    /// Beyond the limit, the slowest body is given up for another, and answered with 503
    /// ([`Refusal::Overloaded`](super::Refusal::Overloaded)): the one with the most memory, multiplied by the time since its
    /// last 64 KiB (at least 0.1 s). Bodies that were given up may take as much memory again, until their tasks have run.
    ///
    /// The first 64 KiB of each body do not count, so that connections which hold back the end of large bodies
    /// cannot displace genuine deliveries. Limit the number of connections to limit their memory.
    pub fn max_buffered(mut self, bytes: usize) -> Self {
        self.config.bounds.budget.limit = bytes;
        self
    }

    /// Sets how long a body may take to arrive at most: 10 seconds by default. A body whose length is declared has less:
    /// 2 seconds, and another one for each 32 KiB. A slower one is answered with 408
    /// ([`Refusal::BodyTimeout`](super::Refusal::BodyTimeout)).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_webhook::{Secret, SignatureLayer};
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// let layer = SignatureLayer::new(Secret::new("8c1f…")?).body_timeout(Duration::from_secs(5));
    /// # Ok(())
    /// # }
    /// ```
    pub fn body_timeout(mut self, timeout: Duration) -> Self {
        self.config.bounds.timeout = timeout;
        self
    }

    /// Answers a delivery without an `Idempotency-Key` with 400
    /// ([`Refusal::MissingKey`](super::Refusal::MissingKey)). By default it is handled without
    /// deduplication, because the test request of
    /// [Spec 6, rule 5](crate::docs::platform#spec-6-rule-5) has no key.
    pub fn require_key(mut self) -> Self {
        self.config.require_key = true;
        self
    }

    /// Reports each delivery, and each request that is refused, to an observer: see [`telemetry`](crate::telemetry).
    ///
    /// ```
    /// # use tower_webhook::telemetry::FailureBudget;
    /// # use tower_webhook::{Secret, SignatureLayer};
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// let layer = SignatureLayer::new(Secret::new("8c1f…")?).observer(FailureBudget::default());
    /// # Ok(())
    /// # }
    /// ```
    pub fn observer(self, observer: impl Observer) -> Self {
        self.observers(Observers::new(observer))
    }

    pub(crate) fn observers(mut self, observers: Observers) -> Self {
        self.config.observers = observers;
        self
    }

    /// Returns the memory, in bytes, that bodies take now which are being received. The first 64 KiB of each do not count,
    /// as for [`max_buffered`](Self::max_buffered).
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.config.bounds.budget.used()
    }

    /// Records the memory of the bodies that are being received: see the [table of metrics](crate::docs::metrics).
    #[cfg(feature = "metrics")]
    pub fn record_metrics(&self) {
        metrics::gauge!(crate::telemetry::BUFFERED).set(self.buffered() as f64);
    }

    /// Answers authentic deliveries of other kinds than these. `None` is all.
    pub(crate) fn keep(mut self, kinds: Option<BTreeSet<EventKind>>) -> Self {
        self.config.kept = kinds.map(Arc::new);
        self
    }

    /// Derives `Retry-After` from the limits of a sender.
    pub(crate) fn sender_policy(mut self, policy: SenderPolicy) -> Self {
        self.config.bounds.budget.retry_after = policy.retry_every;
        self
    }
}

impl<S> Layer<S> for SignatureLayer {
    type Service = Signature<S>;

    fn layer(&self, inner: S) -> Signature<S> {
        Signature::new(inner, Arc::new(self.config.clone()))
    }
}
