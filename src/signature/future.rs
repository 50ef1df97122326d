use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_service::Service;

use super::buffer::Receive;
use super::headers::{kind, kind_and_key};
use super::layer::Config;
use super::refusal::Refusal;
use super::verify::Hashing;
use crate::answer::{Answer, Decision, ResponseBody};
use crate::delivery::RawDelivery;
use crate::error::BoxError;
use crate::event::EventKind;
use crate::telemetry::{DeliverySpan, Throttle};
use crate::verified::Verified;

pin_project! {
    /// The response future of [`Signature`](super::Signature): receives the body, verifies it, and then polls the
    /// inner service in place.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, B>
    where
        S: Service<Request<Verified>>,
    {
        span: DeliverySpan,
        #[pin]
        state: State<S, B>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, B>
    where
        S: Service<Request<Verified>>,
    {
        Refused {
            refusal: Option<Refusal>,
            // The kind that the event header names.
            kind: Option<EventKind>,
            // For those that anybody can cause.
            throttle: Option<Arc<Throttle>>,
        },
        Receiving {
            #[pin]
            receive: Receive<B>,
            // Taken when the body is complete.
            rest: Option<(Parts, S)>,
            config: Arc<Config>,
        },
        // Waits for the inner service to be ready.
        Verified {
            inner: S,
            request: Option<Request<Verified>>,
        },
        Inner {
            #[pin]
            future: S::Future,
            kind: Option<EventKind>,
        },
    }
}

impl<S: Service<Request<Verified>>, B> ResponseFuture<S, B> {
    pub(super) fn refuse(refusal: Refusal, parts: &Parts, config: &Config) -> Self {
        Self {
            span: DeliverySpan::new(&parts.headers),
            state: State::refused(refusal, &parts.headers, config),
        }
    }

    pub(super) fn receive(
        receive: Receive<B>,
        parts: Parts,
        inner: S,
        config: Arc<Config>,
    ) -> Self {
        let span = DeliverySpan::new(&parts.headers);
        let rest = Some((parts, inner));
        Self {
            span,
            state: State::Receiving {
                receive,
                rest,
                config,
            },
        }
    }
}

impl<S, B, ResBody> Future for ResponseFuture<S, B>
where
    S: Service<Request<Verified>, Response = Response<ResBody>>,
    B: Body<Error: Into<BoxError>>,
{
    type Output = Result<Response<ResponseBody<ResBody>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let span = &*this.span;
        let _entered = span.enter();
        loop {
            match this.state.as_mut().project() {
                StateProj::Receiving {
                    receive,
                    rest,
                    config,
                } => {
                    let received = ready!(receive.poll(cx));
                    let Some((parts, inner)) = rest.take() else {
                        return Poll::Pending;
                    };
                    let verified = received.and_then(|(body, hashing)| {
                        verify(body, hashing, &parts.headers, config, span)
                    });
                    match verified {
                        Ok(verified) => {
                            let request = Some(verified.into_request(parts));
                            this.state.set(State::Verified { inner, request });
                        }
                        Err(refusal) => {
                            let refused = State::refused(refusal, &parts.headers, config);
                            this.state.set(refused);
                        }
                    }
                }
                StateProj::Verified { inner, request } => {
                    if let Err(error) = ready!(inner.poll_ready(cx)) {
                        span.finish(Decision::FAILED);
                        return Poll::Ready(Err(error));
                    }
                    let Some(request) = request.take() else {
                        return Poll::Pending;
                    };
                    let kind = Some(request.body().delivery().kind().clone());
                    let future = inner.call(request);
                    this.state.set(State::Inner { future, kind });
                }
                StateProj::Inner { future, kind } => {
                    let mut result = ready!(future.poll(cx));
                    span.finish(match (&mut result, kind.take()) {
                        (Ok(response), Some(kind)) => Decision::sent_as(response, kind),
                        _ => Decision::FAILED,
                    });
                    return Poll::Ready(result.map(|it| it.map(ResponseBody::service)));
                }
                StateProj::Refused {
                    refusal,
                    kind,
                    throttle,
                } => {
                    let Some(refusal) = refusal.take() else {
                        return Poll::Pending;
                    };
                    let kind = kind.take();
                    if let Some(kind) = &kind {
                        span.unverified(kind);
                    }
                    let row = refusal.row();
                    match throttle {
                        Some(throttle) => refusal.log_within(throttle),
                        None => refusal.log(&row),
                    }
                    let is_verified = refusal.is_of_verified_body();
                    let response = ResponseBody::refuse(refusal, kind, is_verified);
                    span.finish(row.name);
                    return Poll::Ready(Ok(response));
                }
            }
        }
    }
}

impl<S: Service<Request<Verified>>, B> State<S, B> {
    fn refused(refusal: Refusal, headers: &HeaderMap, config: &Config) -> Self {
        let is_anonymous = !refusal.is_of_verified_body() || config.authentication.is_unsigned();
        Self::Refused {
            refusal: Some(refusal),
            kind: kind(headers, &config.names.event)
                .ok()
                .filter(|kind| kind.as_str().len() <= LONGEST_KIND),
            throttle: is_anonymous.then(|| Arc::clone(&config.throttle)),
        }
    }
}

/// The longest kind in bytes that is recorded of a refused request, since anybody can send one.
const LONGEST_KIND: usize = 64;

fn verify(
    body: Bytes,
    hashing: Hashing,
    headers: &HeaderMap,
    config: &Config,
    span: &DeliverySpan,
) -> Result<Verified, Refusal> {
    let secret = hashing.verify(&body).map_err(Refusal::InvalidSignature)?;
    let (kind, key) = kind_and_key(headers, &config.names, config.require_key)?;
    let delivery = RawDelivery::received(kind, key, body);
    span.verified(
        &delivery,
        secret
            .as_ref()
            .map(|secret| (secret.index, secret.label.as_deref())),
    );
    Ok(Verified::new(delivery, secret.map(|secret| secret.digest)))
}

impl<S: Service<Request<Verified>>, B> fmt::Debug for ResponseFuture<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
