use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower_service::Service;

use super::future::ResponseFuture;
use super::layer::Config;
use super::run::run;
use crate::answer::ResponseBody;
use crate::delivery::Verified;
use crate::store::Store;

/// The service that [`IdempotencyLayer`](super::IdempotencyLayer) makes.
pub struct Idempotency<S, St> {
    inner: S,
    config: Arc<Config<St>>,
}

impl<S, St> Idempotency<S, St> {
    pub(super) fn new(inner: S, config: Arc<Config<St>>) -> Self {
        Self { inner, config }
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

    /// Always ready: the inner service is waited for by those runs that claimed their key.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Verified>) -> Self::Future {
        let inner = self.inner.clone();
        let run = Box::pin(run(Arc::clone(&self.config), inner, Box::new(request)));
        ResponseFuture::new(run, Arc::clone(&self.config))
    }
}

impl<S: Clone, St> Clone for Idempotency<S, St> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            config: Arc::clone(&self.config),
        }
    }
}

impl<S: fmt::Debug, St: fmt::Debug> fmt::Debug for Idempotency<S, St> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotency")
            .field("inner", &self.inner)
            .field("config", &self.config)
            .finish()
    }
}
