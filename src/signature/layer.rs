use std::sync::Arc;
use std::time::Duration;

use tower_layer::Layer;

use super::buffer::{Bounds, Budget};
use super::headers::HeaderNames;
use super::secret::Secrets;
use super::service::Signature;
use super::verify::Authentication;
use crate::config::ConfigError;
use crate::event::SenderPolicy;

/// Lets authentic deliveries through, as `Request<Verified>`, and answers all others.
///
/// See the [module](super) for what is checked.
#[derive(Clone, Debug)]
#[must_use]
pub struct SignatureLayer {
    config: Config,
}

#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) authentication: Authentication,
    pub(super) names: HeaderNames,
    pub(super) bounds: Bounds,
    pub(super) require_key: bool,
}

impl SignatureLayer {
    /// Verifies with `secrets`: a [`Secret`](crate::Secret), or a handle to a set of them.
    pub fn new(secrets: impl Into<Secrets>) -> Self {
        Self::with(Authentication::Signed(secrets.into()))
    }

    /// Verifies **nothing**: whoever reaches the URL can make handlers run. For a webhook that has
    /// no secret in the partner portal, behind something else that authenticates the sender.
    pub fn dangerously_unsigned() -> Self {
        Self::with(Authentication::Unsigned)
    }

    fn with(authentication: Authentication) -> Self {
        Self {
            config: Config {
                authentication,
                names: HeaderNames::default(),
                bounds: Bounds {
                    max_body: 1024 * 1024,
                    timeout: Duration::from_secs(10),
                    budget: Budget::new(64 * 1024 * 1024, SenderPolicy::default().retry_every),
                },
                require_key: false,
            },
        }
    }

    /// Reads other headers than `X-Service-*`.
    ///
    /// # Errors
    ///
    /// [`ConfigError::SameHeader`] when two of the names are the same.
    pub fn header_names(mut self, names: HeaderNames) -> Result<Self, ConfigError> {
        let HeaderNames {
            signature,
            event,
            key,
        } = &names;
        if event == key || event == signature {
            return Err(ConfigError::SameHeader(event.clone()));
        }
        if key == signature {
            return Err(ConfigError::SameHeader(key.clone()));
        }
        self.config.names = names;
        Ok(self)
    }

    /// Accepts bodies of up to this many bytes: 1 MiB unless set.
    pub fn max_body(mut self, bytes: usize) -> Self {
        self.config.bounds.max_body = bytes;
        self
    }

    /// Spends at most this many bytes of memory on all the bodies that are being received at one
    /// time, over all clones of this layer: 64 MiB unless set. What a body takes is given back when
    /// it is complete. A body that is larger than this is never accepted, whatever
    /// [`max_body`](Self::max_body) says.
    pub fn max_buffered(mut self, bytes: usize) -> Self {
        self.config.bounds.budget.limit = bytes;
        self
    }

    /// Gives a body this long to arrive: 10 seconds unless set.
    pub fn body_timeout(mut self, timeout: Duration) -> Self {
        self.config.bounds.timeout = timeout;
        self
    }

    /// Answers a delivery without an `Idempotency-Key` with 400, instead of letting it through
    /// without deduplication. The test request of Spec 6, rule 5 has no key.
    pub fn require_key(mut self) -> Self {
        self.config.require_key = true;
        self
    }

    /// Takes `Retry-After` from another sender's limits.
    pub fn sender_policy(mut self, policy: SenderPolicy) -> Self {
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
