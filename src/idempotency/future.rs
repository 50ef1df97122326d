use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Response;

use super::duplicate::Refusal;
use super::run::{Ended, refuse};
use crate::answer::{Decision, ResponseBody};
use crate::execution::Leases;
use crate::outcome::Outcome;
use crate::store::Store;
use crate::telemetry::{DeliverySpan, Observation};

/// The response future of [`Idempotency`](super::Idempotency). If it is dropped while the event is
/// handled, the run continues as a task.
#[must_use = "futures do nothing unless polled"]
pub struct ResponseFuture<B: 'static, E: 'static, St> {
    state: State<B, E>,
    leases: Arc<Leases<St>>,
    /// The span in which a detached run continues. Most runs never wait, and need none.
    span: Option<DeliverySpan>,
}

pub(super) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

enum State<B, E> {
    /// Not polled yet: dropping it loses nothing.
    New(BoxFuture<Ended<B, E>>),
    Running(BoxFuture<Ended<B, E>>),
    /// Waiting for the outcome of another delivery's run.
    Waiting(BoxFuture<Result<Outcome, Refusal>>),
    Ended,
}

impl<B, E, St> ResponseFuture<B, E, St> {
    pub(super) fn new(run: BoxFuture<Ended<B, E>>, leases: Arc<Leases<St>>) -> Self {
        Self {
            state: State::New(run),
            leases,
            span: None,
        }
    }
}

impl<B, E, St: Store> Future for ResponseFuture<B, E, St> {
    type Output = Result<Response<ResponseBody<B>>, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            // Taken out, so that a future that panics is never polled again.
            match mem::replace(&mut this.state, State::Ended) {
                // Before the first poll: from here on, a claim may exist, so dropping must not end the run.
                State::New(run) => this.state = State::Running(run),
                State::Running(mut run) => match run.as_mut().poll(cx) {
                    Poll::Ready(Ended::Answered(result)) => return Poll::Ready(result),
                    Poll::Ready(Ended::InFlight(other)) => {
                        // A future of its own: it holds no claim, so it ends with its client.
                        let outcome = other.outcome(Arc::clone(&this.leases));
                        this.state = State::Waiting(Box::pin(outcome));
                    }
                    Poll::Pending => {
                        this.state = State::Running(run);
                        // Noted here, since another span may be current when the future is dropped.
                        this.span.get_or_insert_with(DeliverySpan::current);
                        return Poll::Pending;
                    }
                },
                State::Waiting(mut outcome) => {
                    let Poll::Ready(outcome) = outcome.as_mut().poll(cx) else {
                        this.state = State::Waiting(outcome);
                        return Poll::Pending;
                    };
                    return Poll::Ready(Ok(match outcome {
                        Ok(outcome) => ResponseBody::answer(outcome),
                        Err(refusal) => refuse(refusal),
                    }));
                }
                // It is polled after its end, or after a panic.
                State::Ended => return Poll::Pending,
            }
        }
    }
}

impl<B: 'static, E: 'static, St> Drop for ResponseFuture<B, E, St> {
    fn drop(&mut self) {
        if let State::Running(run) = mem::replace(&mut self.state, State::Ended) {
            let span = self.span.take().unwrap_or_else(DeliverySpan::current);
            let _entered = span.enter();
            let span = span.clone();
            self.leases.observers.observe(&Observation::Detached);
            self.leases.runs.adopt(async move {
                // Without a client, nobody waits for another run's outcome.
                if let Ended::Answered(result) = run.await {
                    span.finish(result.as_ref().map_or(Decision::FAILED, Decision::name_of));
                }
            });
        }
    }
}

partial_debug!([B, E, St] ResponseFuture<B, E, St>);
