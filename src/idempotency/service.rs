use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower_service::Service;

use super::future::{BoxFuture, ResponseFuture};
use super::items::run_items;
use super::rules::Rules;
use super::run::run;
use crate::answer::ResponseBody;
use crate::execution::Leases;
use crate::sender::Batches;
use crate::store::Store;
use crate::verified::Verified;

/// The service of [`IdempotencyLayer`](super::IdempotencyLayer).
#[derive(Debug)]
pub struct Idempotency<S, St> {
    inner: S,
    leases: Arc<Leases<St>>,
    rules: Rules,
}

impl<S, St> Idempotency<S, St> {
    pub(super) fn new(inner: S, leases: Arc<Leases<St>>, rules: Rules) -> Self {
        Self {
            inner,
            leases,
            rules,
        }
    }
}

impl<S, St, ResBody> Service<Request<Verified>> for Idempotency<S, St>
where
    S: Service<Request<Verified>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    ResBody: Send + 'static,
    St: Store,
{
    type Response = Response<ResponseBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<ResBody, S::Error, St>;

    /// Always ready: only a run that claimed its key waits for the inner service.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Verified>) -> Self::Future {
        // The run polls the clone until it is ready, so `self.inner` is never reserved.
        let inner = self.inner.clone();
        let leases = Arc::clone(&self.leases);
        let (rules, batches) = (self.rules, Batches::of(&request));
        let request = Box::new(request);
        // Boxed, so that `Drop` can move a run that has begun into a task.
        let run: BoxFuture<_> = match batches {
            None => Box::pin(run(leases, rules, inner, request)),
            Some(batches) => Box::pin(run_items(leases, rules, inner, request, batches)),
        };
        ResponseFuture::new(run, Arc::clone(&self.leases))
    }
}

impl<S: Clone, St> Clone for Idempotency<S, St> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            leases: Arc::clone(&self.leases),
            rules: self.rules,
        }
    }
}
