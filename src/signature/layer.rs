use std::sync::Arc;
use std::time::Duration;

use tower_layer::Layer;

use super::buffer::{Bounds, Budget, MAX_BUFFERED};
use super::config::Config;
use super::neighbours::Neighbours;
use super::secret::Secrets;
use super::service::Signature;
use super::sign::check;
use super::verifier::{Shared, Verifier};
use super::verify::Authentication;
use crate::config::ConfigError;
use crate::event::SenderPolicy;
use crate::route::RouteName;
use crate::sender::Sender;
use crate::telemetry::Observers;

/// Verifies deliveries, and passes them on as `Request<`[`Verified`](crate::Verified)`>`. Refuses all other requests.
///
/// [`new`](Self::new) gives it the defaults. With other settings, it is one of the layers that
/// [`Webhooks::into_layers`](crate::Webhooks::into_layers) returns. See the [module](super) for an example.
#[derive(Clone, Debug)]
#[must_use]
pub struct SignatureLayer {
    pub(crate) config: Config,
}

impl SignatureLayer {
    /// Verifies with `secrets`: a [`Secret`](crate::Secret), or [`Secrets`], a handle to a set of them.
    pub fn new(secrets: impl Into<Secrets>) -> Self {
        Self::with(Authentication::Signed(secrets.into()))
    }

    /// Verifies **nothing**: anybody who reaches the URL can make handlers run.
    ///
    /// For a webhook without a secret at the sender, behind a proxy that authenticates the sender.
    pub fn dangerously_unsigned() -> Self {
        Self::with(Authentication::Unsigned)
    }

    /// Verifies with a verifier of the application.
    pub(crate) fn by(verifier: Arc<dyn Verifier>) -> Self {
        Self::with(Authentication::By(Shared(verifier)))
    }

    fn with(authentication: Authentication) -> Self {
        Self {
            config: Config {
                authentication,
                route: RouteName::default(),
                sender: Sender::default(),
                bounds: Bounds {
                    max_body: 1024 * 1024,
                    timeout: Duration::from_secs(10),
                    // About 64 bodies of the largest size at a time.
                    budget: Budget::new(MAX_BUFFERED, SenderPolicy::default().retry_every),
                },
                require_key: false,
                kept: None,
                throttle: Arc::default(),
                observers: Observers::default(),
                lent: None,
                success: None,
                on_secret: None,
                neighbour: None,
            },
        }
    }

    /// Receives deliveries of a sender at a route. Refuses a secret that is not written as the sender writes its secrets.
    pub(crate) fn at(mut self, route: RouteName, sender: Sender) -> Result<Self, ConfigError> {
        // Here and not at the first delivery, which would be refused.
        sender.check()?;
        if let Authentication::Signed(secrets) = &self.config.authentication {
            check(&sender, secrets)?;
        }
        let verifier = self.config.authentication.verifier();
        if verifier.is_some() != sender.is_of_verifier() {
            return Err(
                sender.is_wrong("a verifier has its own sender: leave out `Webhooks::sender`")
            );
        }
        let success = verifier.and_then(|it| it.0.success());
        if success.as_ref().is_some_and(|it| !it.status.is_success()) {
            return Err(sender
                .is_wrong("its verifier answers a success with a status other than 200 to 299"));
        }
        let of_sender = || sender.described().success().cloned();
        self.config.success = success.or_else(of_sender).map(Arc::new);
        // Of its own, also in a clone. `Retry-After` asks for the time after which this sender retries anyway.
        let limit = self.config.bounds.budget.limit;
        self.config.bounds.budget = Budget::new(limit, sender.policy().retry_every);
        self.config.throttle = Arc::default();
        if let Some(bytes) = sender.max_body() {
            self.config.bounds.max_body = bytes;
        }
        self.config.route = route;
        self.config.sender = sender;
        Ok(self)
    }

    /// Makes it known to the other routes of the program.
    pub(crate) fn beside(&mut self, neighbours: &Neighbours) {
        let Config {
            route,
            sender,
            authentication,
            ..
        } = &self.config;
        self.config.neighbour = Some(neighbours.add(route, sender, authentication));
    }

    /// Returns the memory, in bytes, that bodies take now which are being received. The first 64 KiB of each do not count,
    /// as for [`max_buffered`](crate::Webhooks::max_buffered).
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.config.bounds.budget.used()
    }

    /// Records the memory of the bodies that are being received: see the [table of metrics](crate::docs::metrics).
    #[cfg(feature = "metrics")]
    pub fn record_metrics(&self) {
        Self::record_all(std::slice::from_ref(self));
    }

    /// Records the sum of several layers.
    #[cfg(feature = "metrics")]
    pub(crate) fn record_all(layers: &[Self]) {
        let buffered: usize = layers.iter().map(Self::buffered).sum();
        metrics::gauge!(crate::telemetry::BUFFERED).set(buffered as f64);
    }
}

impl<S> Layer<S> for SignatureLayer {
    type Service = Signature<S>;

    fn layer(&self, inner: S) -> Signature<S> {
        Signature::new(inner, Arc::new(self.config.clone()))
    }
}
