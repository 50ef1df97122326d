//! Both layers in one.

use tower_layer::Layer;

use crate::idempotency::{Idempotency, IdempotencyLayer, Runs};
use crate::signature::{Signature, SignatureLayer};
use crate::store::Store;

/// Verifies and deduplicates deliveries: a [`SignatureLayer`] around an [`IdempotencyLayer`].
///
/// [`Webhooks::into_layer`](crate::Webhooks::into_layer) returns one.
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
/// use tower_webhook::{Delivery, EventRouter, Secret, Webhooks};
///
/// let events = EventRouter::new().on::<ChatRated>(async |_: Delivery<ChatRated>| Ok(()));
/// let (layer, running) = Webhooks::new(Secret::new("8c1f…")?).into_layer()?;
/// let webhooks = layer.layer(events);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct WebhookLayer<St> {
    signature: SignatureLayer,
    idempotency: IdempotencyLayer<St>,
}

impl<St: Store> WebhookLayer<St> {
    pub(super) fn new(signature: SignatureLayer, idempotency: IdempotencyLayer<St>) -> Self {
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
