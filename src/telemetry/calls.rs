//! Limits the time of calls of stores and queues, and observes them.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::FutureExt;
use pin_project_lite::pin_project;
use tokio::time::Instant;

use super::observer::{CallEnded, CallTarget, Observation, Observers};
use crate::deadline::Deadline;
use crate::store::{SettleError, StoreError};

pin_project! {
    /// A call that fails if it takes longer than its limit. One that is dropped before its end is not reported.
    // Not an `async fn`, which would make room for the call several times over.
    #[must_use = "futures do nothing unless polled"]
    pub(crate) struct Call<'a, C> {
        #[pin]
        call: C,
        limit: Option<Deadline>,
        begun: Option<Begun<'a>>,
    }
}

struct Begun<'a> {
    observers: &'a Observers,
    target: CallTarget,
    operation: &'static str,
    started: Instant,
}

impl Observers {
    #[inline]
    pub(crate) fn call<C>(
        &self,
        target: CallTarget,
        operation: &'static str,
        limit: Option<Duration>,
        call: C,
    ) -> Call<'_, C> {
        Call {
            call,
            limit: limit.map(Deadline::new),
            begun: self.any().then(|| Begun {
                observers: self,
                target,
                operation,
                started: Instant::now(),
            }),
        }
    }
}

impl<T, E: CallError, C: Future<Output = Result<T, E>>> Future for Call<'_, C> {
    type Output = Result<T, E>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T, E>> {
        let this = self.project();
        // The call comes first: its answer counts even at the deadline, and a call that is ready needs no timer.
        let result = match (this.call.poll(cx), this.limit) {
            (Poll::Ready(result), _) => result,
            (Poll::Pending, None) => return Poll::Pending,
            (Poll::Pending, Some(limit)) => {
                ready!(limit.poll_unpin(cx));
                Err(StoreError::timed_out().into())
            }
        };
        if let Some(begun) = this.begun.take() {
            begun.report(result.as_ref().err().and_then(CallError::failure));
        }
        Poll::Ready(result)
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
            // The store has worked. A lost lease is counted with its attempt, and not as a failed call.
            Self::LeaseExpired => None,
            Self::Store(error) => Some(error),
        }
    }
}
