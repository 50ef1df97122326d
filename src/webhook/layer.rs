//! Both layers in one.

use tower_layer::Layer;

use crate::idempotency::{Idempotency, IdempotencyLayer, Runs};
#[cfg(feature = "moka")]
use crate::memory::MokaStore;
use crate::signature::{Secrets, Signature, SignatureLayer};
use crate::store::Store;

/// Verifies and deduplicates deliveries: a [`SignatureLayer`] around an [`IdempotencyLayer`].
///
/// It has the defaults of both. [`Webhooks::into_layer`](crate::Webhooks::into_layer) returns one with other settings.
///
/// The inner service is an [`EventRouter`](crate::EventRouter), an axum `Router`, or any other
/// service of `Request<`[`Verified`](crate::Verified)`>`. Mount the service in an axum application with
/// `Router::route_service`, or the layer with `Router::route_layer`: `Router::layer` would also answer the
/// application's unknown paths. See [the order of other layers](crate::docs::recipes#beside-tower-http).
///
/// ```
/// # fn main() -> Result<(), tower_webhook::ConfigError> {
/// use tower::Layer;
/// use tower_webhook::event::ChatRated;
/// use tower_webhook::{Delivery, EventRouter, Secret, WebhookLayer};
///
/// let events = EventRouter::new().on::<ChatRated>(async |_: Delivery<ChatRated>| Ok(()));
/// let webhooks = WebhookLayer::new(Secret::new("8c1f…")?).layer(events);
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

    /// See [`IdempotencyLayer::runs`].
    #[must_use]
    pub fn runs(&self) -> Runs {
        self.idempotency.runs()
    }
}

impl<S, St: Clone> Layer<S> for WebhookLayer<St> {
    type Service = Signature<Idempotency<S, St>>;

    fn layer(&self, inner: S) -> Self::Service {
        self.signature.layer(self.idempotency.layer(inner))
    }
}
