use std::sync::Arc;

use tower_layer::Layer;

use super::rules::Rules;
use super::service::Idempotency;
use crate::execution::{Defaults, Given, Leases, Limits, Runs};
use crate::store::Store;

/// Deduplicates deliveries: claims the key of an event in a [`Store`] before the inner service runs, and
/// settles the claim by the [`Outcome`](crate::Outcome) or the status of its response.
///
/// [`new`](Self::new) gives it the defaults. With other settings, it is one of the layers that
/// [`Webhooks::into_layers`](crate::Webhooks::into_layers) returns. See the [module](super) for the states of a key.
#[derive(Clone, Debug)]
#[must_use]
pub struct IdempotencyLayer<St> {
    pub(crate) leases: Leases<St>,
    pub(crate) rules: Rules,
}

impl<St: Store> IdempotencyLayer<St> {
    /// Remembers keys in `store`, for as long as [`SenderPolicy::default`](crate::SenderPolicy) requires.
    pub fn new(store: St) -> Self {
        let limits = Limits::unchecked(&Given::default(), Defaults::STORE);
        Self {
            leases: Leases::new(store, limits),
            rules: Rules::default(),
        }
    }

    /// Records the number of detached runs: see the [table of metrics](crate::docs::metrics).
    #[cfg(feature = "metrics")]
    pub fn record_metrics(&self) {
        self.leases.runs.record_metrics();
    }

    /// Returns a handle to the runs that continue after their client disconnected, to wait for them at
    /// shutdown. See [`Runs::drain`].
    #[must_use]
    pub fn runs(&self) -> Runs {
        self.leases.runs.clone()
    }
}

impl<S, St: Clone> Layer<S> for IdempotencyLayer<St> {
    type Service = Idempotency<S, St>;

    fn layer(&self, inner: S) -> Idempotency<S, St> {
        // A clone has the same runs and renewals: `runs` drains those of each service.
        Idempotency::new(inner, Arc::new(self.leases.clone()), self.rules)
    }
}
