use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::request::Parts;
use http::{Method, Request, Response};
use http_body::Body;
use tower_service::Service;

use super::buffer::Receive;
use super::config::Config;
use super::future::ResponseFuture;
use super::headers::declared_length;
use super::refusal::Refusal;
use super::verify::Hashing;
use crate::answer::ResponseBody;
use crate::error::BoxError;
use crate::sender::{Reply, Sender};
use crate::verified::Verified;

/// The service of [`SignatureLayer`](super::SignatureLayer).
#[derive(Clone)]
pub struct Signature<S> {
    inner: S,
    config: Arc<Config>,
}

impl<S> Signature<S> {
    pub(super) fn new(inner: S, config: Arc<Config>) -> Self {
        Self { inner, config }
    }
}

impl<S, B, ResBody> Service<Request<B>> for Signature<S>
where
    S: Service<Request<Verified>, Response = Response<ResBody>> + Clone,
    B: Body<Error: Into<BoxError>>,
{
    type Response = Response<ResponseBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B>;

    /// Always ready: only a verified delivery waits for the inner service.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> ResponseFuture<S, B> {
        let (parts, body) = request.into_parts();
        match receive(&parts, body, &self.config) {
            Ok(receive) => ResponseFuture::receive(
                receive,
                parts,
                self.inner.clone(),
                Arc::clone(&self.config),
            ),
            Err(refusal) => {
                let decided = challenge(refusal, &parts, &self.config.sender);
                ResponseFuture::decided(decided, parts.headers, Arc::clone(&self.config))
            }
        }
    }
}

/// Begins to receive the body, unless the request's head is reason enough to refuse it.
#[inline]
fn receive<B>(parts: &Parts, body: B, config: &Config) -> Result<Receive<B>, Refusal>
where
    B: Body<Error: Into<BoxError>>,
{
    if parts.method != Method::POST {
        return Err(Refusal::MethodNotAllowed);
    }
    let (method, headers) = (&parts.method, &parts.headers);
    let hashing = Hashing::new(&config.authentication, &config.sender, method, headers)
        .map_err(Refusal::InvalidSignature)?;
    Receive::new(body, declared_length(headers)?, &config.bounds, hashing)
}

/// The answer to a refused request after all, if it is a challenge that is sent with GET.
fn challenge(refusal: Refusal, parts: &Parts, sender: &Sender) -> Result<Reply, Refusal> {
    if parts.method != Method::GET {
        return Err(refusal);
    }
    let greeted = parts.uri.query().and_then(|query| sender.greeted(query));
    match greeted {
        None => Err(refusal),
        Some(reply) => reply.map_err(Refusal::InvalidChallenge),
    }
}

impl<S: fmt::Debug> fmt::Debug for Signature<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signature")
            .field("inner", &self.inner)
            .field("config", &self.config)
            .finish()
    }
}
