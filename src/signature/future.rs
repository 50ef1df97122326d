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
use super::headers::kind_and_key;
use super::layer::Config;
use super::verify::Hashing;
use crate::answer::{Answer, ResponseBody};
use crate::delivery::{RawDelivery, Verified};
use crate::error::BoxError;
use crate::trace::DeliverySpan;

pin_project! {
    /// The response of [`Signature`](super::Signature): receives the body, verifies it, and then
    /// polls the inner service in place.
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
            answer: Option<Answer>,
        },
        Receiving {
            #[pin]
            receive: Receive<B>,
            // Taken when the body is complete.
            rest: Option<(Parts, S)>,
            config: Arc<Config>,
        },
        // For the inner service to be ready.
        Verified {
            inner: S,
            request: Option<Request<Verified>>,
        },
        Inner {
            #[pin]
            future: S::Future,
        },
    }
}

impl<S: Service<Request<Verified>>, B> ResponseFuture<S, B> {
    pub(super) fn refuse(answer: Answer) -> Self {
        Self {
            span: DeliverySpan::new(),
            state: State::Refused {
                answer: Some(answer),
            },
        }
    }

    pub(super) fn receive(
        receive: Receive<B>,
        parts: Parts,
        inner: S,
        config: Arc<Config>,
    ) -> Self {
        let rest = Some((parts, inner));
        Self {
            span: DeliverySpan::new(),
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
                        Err(answer) => this.state.set(State::Refused {
                            answer: Some(answer),
                        }),
                    }
                }
                StateProj::Verified { inner, request } => {
                    if let Err(error) = ready!(inner.poll_ready(cx)) {
                        let result = Err(error);
                        span.finish(&result);
                        return Poll::Ready(result);
                    }
                    let Some(request) = request.take() else {
                        return Poll::Pending;
                    };
                    let future = inner.call(request);
                    this.state.set(State::Inner { future });
                }
                StateProj::Inner { future } => {
                    let result = ready!(future.poll(cx));
                    span.finish(&result);
                    return Poll::Ready(result.map(|it| it.map(ResponseBody::service)));
                }
                StateProj::Refused { answer } => {
                    let Some(answer) = answer.take() else {
                        return Poll::Pending;
                    };
                    let result = Ok(ResponseBody::answer(answer));
                    span.finish(&result);
                    return Poll::Ready(result);
                }
            }
        }
    }
}

fn verify(
    body: Bytes,
    hashing: Hashing,
    headers: &HeaderMap,
    config: &Config,
    span: &DeliverySpan,
) -> Result<Verified, Answer> {
    let authentic = hashing
        .verify(&body, headers, &config.names.signature)
        .map_err(Answer::InvalidSignature)?;
    let (kind, key) = kind_and_key(headers, &config.names, config.require_key)?;
    let delivery = RawDelivery::new(kind, body).with_key(key);
    let secret = authentic
        .secret
        .as_ref()
        .map(|secret| (secret.index, secret.label.as_deref()));
    span.verified(&delivery, secret);
    Ok(Verified::new(delivery, authentic.body_digest))
}

impl<S: Service<Request<Verified>>, B> fmt::Debug for ResponseFuture<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
