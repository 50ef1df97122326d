use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::Response;

use super::layer::Config;
use super::run::Ended;
use crate::answer::{Answer, ResponseBody};
use crate::store::Store;
use crate::trace::DeliverySpan;

/// The response of [`Idempotency`](super::Idempotency). Dropped while the event is handled, it
/// leaves the run to go on by itself.
#[must_use = "futures do nothing unless polled"]
pub struct ResponseFuture<B: 'static, E: 'static, St> {
    state: State<B, E>,
    config: Arc<Config<St>>,
    /// Where the run goes on without its client. Most never wait, and need none.
    span: Option<DeliverySpan>,
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

enum State<B, E> {
    /// Nothing has happened yet: dropping it loses nothing.
    New(BoxFuture<Ended<B, E>>),
    Running(BoxFuture<Ended<B, E>>),
    /// For the outcome of another delivery's run.
    Waiting(BoxFuture<Answer>),
    Ended,
}

impl<B, E, St> ResponseFuture<B, E, St> {
    pub(super) fn new(run: BoxFuture<Ended<B, E>>, config: Arc<Config<St>>) -> Self {
        Self {
            state: State::New(run),
            config,
            span: None,
        }
    }
}

impl<B, E, St: Store> Future for ResponseFuture<B, E, St> {
    type Output = Result<Response<ResponseBody<B>>, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            match &mut this.state {
                State::New(_) => {
                    if let State::New(run) = mem::replace(&mut this.state, State::Ended) {
                        this.state = State::Running(run);
                    }
                }
                State::Running(run) => match run.as_mut().poll(cx) {
                    Poll::Ready(Ended::Answered(result)) => {
                        this.state = State::Ended;
                        return Poll::Ready(result);
                    }
                    Poll::Ready(Ended::InFlight(other)) => {
                        let outcome = other.outcome(Arc::clone(&this.config));
                        this.state = State::Waiting(Box::pin(outcome));
                    }
                    Poll::Pending => {
                        this.span.get_or_insert_with(DeliverySpan::current);
                        return Poll::Pending;
                    }
                },
                State::Waiting(outcome) => {
                    let answer = ready!(outcome.as_mut().poll(cx));
                    this.state = State::Ended;
                    return Poll::Ready(Ok(ResponseBody::answer(answer)));
                }
                State::Ended => return Poll::Pending,
            }
        }
    }
}

impl<B: 'static, E: 'static, St> Drop for ResponseFuture<B, E, St> {
    fn drop(&mut self) {
        if let State::Running(run) = mem::replace(&mut self.state, State::Ended) {
            let span = self.span.take().unwrap_or_else(DeliverySpan::current);
            self.config.runs.adopt(run, &span);
        }
    }
}

impl<B, E, St> fmt::Debug for ResponseFuture<B, E, St> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
