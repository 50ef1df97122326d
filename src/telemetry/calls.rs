//! Observes calls of stores and queues.

use std::error::Error;

use tokio::time::Instant;

use super::observer::{CallEnded, CallTarget, Observation, Observers};
use crate::store::{SettleError, StoreError};

/// A call that has begun.
#[must_use = "it reports nothing until it ends"]
pub(crate) struct Call<'a>(Option<Begun<'a>>);

struct Begun<'a> {
    observers: &'a Observers,
    target: CallTarget,
    operation: &'static str,
    started: Instant,
}

impl Observers {
    #[inline]
    pub(crate) fn begin(&self, target: CallTarget, operation: &'static str) -> Call<'_> {
        Call(self.any().then(|| Begun {
            observers: self,
            target,
            operation,
            started: Instant::now(),
        }))
    }
}

impl Call<'_> {
    /// Reports the end of the call. A call that is dropped instead is not reported.
    #[inline]
    pub(crate) fn end<T, E: CallError>(self, result: &Result<T, E>) {
        if let Some(begun) = self.0 {
            begun.report(result.as_ref().err().and_then(CallError::failure));
        }
    }
}

impl Begun<'_> {
    fn report(&self, error: Option<&(dyn Error + 'static)>) {
        self.observers.observe(&Observation::Call(CallEnded {
            target: self.target,
            operation: self.operation,
            duration: self.started.elapsed(),
            error,
        }));
    }
}

/// The error of a call.
pub(crate) trait CallError: From<StoreError> {
    /// The failure of the store or queue. `None` if it worked as it should.
    fn failure(&self) -> Option<&(dyn Error + 'static)>;
}

impl CallError for StoreError {
    fn failure(&self) -> Option<&(dyn Error + 'static)> {
        Some(self)
    }
}

impl CallError for SettleError {
    fn failure(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::LeaseExpired => None,
            Self::Store(error) => Some(error),
        }
    }
}
