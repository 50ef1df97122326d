//! The paved road: both layers behind one builder.

use std::time::Duration;

use tower_layer::Layer;

use crate::config::ConfigError;
use crate::idempotency::{Idempotency, IdempotencyLayer, Runs};
use crate::sender::SenderPolicy;
use crate::signature::{HeaderNames, Secrets, Signature, SignatureLayer};
#[cfg(feature = "moka")]
use crate::store::MokaStore;
use crate::store::Store;

/// Verifies deliveries and lets each event be handled once: [`SignatureLayer`] around
/// [`IdempotencyLayer`].
///
/// The inner service is an [`EventRouter`](crate::EventRouter), an axum `Router`, or any other
/// service of `Request<Verified>`.
#[derive(Clone, Debug)]
#[must_use]
pub struct WebhookLayer<St> {
    signature: SignatureLayer,
    idempotency: IdempotencyLayer<St>,
}

#[cfg(feature = "moka")]
impl WebhookLayer<MokaStore> {
    /// Verifies with `secrets`, and remembers keys in memory.
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
    pub fn with_store(secrets: impl Into<Secrets>, store: St) -> Self {
        Self::from_layers(SignatureLayer::new(secrets), IdempotencyLayer::new(store))
    }

    /// Puts two layers together that were set up by themselves.
    pub fn from_layers(signature: SignatureLayer, idempotency: IdempotencyLayer<St>) -> Self {
        Self {
            signature,
            idempotency,
        }
    }

    /// Derives every default from another sender's limits.
    ///
    /// # Errors
    ///
    /// See [`IdempotencyLayer::sender_policy`].
    pub fn sender_policy(mut self, policy: SenderPolicy) -> Result<Self, ConfigError> {
        self.signature = self.signature.sender_policy(policy);
        self.idempotency = self.idempotency.sender_policy(policy)?;
        Ok(self)
    }

    /// See [`IdempotencyLayer::runs`].
    #[must_use]
    pub fn runs(&self) -> Runs {
        self.idempotency.runs()
    }
}

/// The settings of the two layers, under the same names.
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
        /// Those given there.
        pub fn $setter(mut self $(, $value: $kind)?) -> Result<Self, ConfigError> {
            self.$layer = self.$layer.$setter($($value)?)?;
            Ok(self)
        }
    };
}

forward! {
    signature: SignatureLayer {
        header_names(names: HeaderNames);
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
        max_detached(runs: u32);
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
