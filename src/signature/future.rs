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

use super::buffer::{Receive, Share};
use super::config::Config;
use super::handshake;
use super::headers::{claimed_kind, key_header};
use super::read::{Read, judged, read};
use super::refusal::Refusal;
use super::verifier::Verifying;
use super::verify::Found;
use crate::answer::{Answer, Decision, ResponseBody};
use crate::error::BoxError;
use crate::event::EventKind;
use crate::outcome::Outcome;
use crate::sender::{Reply, SignatureError};
use crate::telemetry::{Asked, DeliverySpan, DeliveryWatch, Ending};
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
        watch: DeliveryWatch,
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
        // By the head of the request.
        Decided {
            // Taken when it is answered.
            decided: Option<(Result<Reply, Refusal>, HeaderMap)>,
            config: Arc<Config>,
        },
        // By the head, too, but the secrets of other routes are tried with the body.
        Refused {
            receive: Pin<Box<Receive<B>>>,
            refused: Option<(SignatureError, Parts)>,
            config: Arc<Config>,
        },
        Receiving {
            #[pin]
            receive: Receive<B>,
            // Taken when the body is complete.
            rest: Option<(Parts, S)>,
            config: Arc<Config>,
        },
        // Waits for a verifier of the application.
        Verifying {
            verifying: Box<Verifying>,
            inner: Option<S>,
            config: Arc<Config>,
        },
        // Waits for the inner service to be ready.
        Verified {
            inner: S,
            request: Option<Request<Verified>>,
            success: Option<Arc<Reply>>,
        },
        Inner {
            #[pin]
            future: S::Future,
            kind: Option<EventKind>,
            success: Option<Arc<Reply>>,
        },
    }
}

impl<S: Service<Request<Verified>>, B> ResponseFuture<S, B> {
    pub(super) fn decided(
        decided: Result<Reply, Refusal>,
        head: Parts,
        config: Arc<Config>,
    ) -> Self {
        let mut watch = DeliveryWatch::new(&config.observers, &config.route, &config.sender);
        watch.refused(|| asked(&head, None, &config));
        let headers = head.headers;
        Self {
            span: DeliverySpan::new(&headers, &config.route),
            watch,
            state: State::Decided {
                decided: Some((decided, headers)),
                config,
            },
        }
    }

    pub(super) fn refused(
        receive: Box<Receive<B>>,
        error: SignatureError,
        head: Parts,
        config: Arc<Config>,
    ) -> Self {
        let mut watch = DeliveryWatch::new(&config.observers, &config.route, &config.sender);
        // The client may disconnect before its body is complete.
        watch.refused(|| asked(&head, None, &config));
        Self {
            span: DeliverySpan::new(&head.headers, &config.route),
            watch,
            state: State::Refused {
                receive: Box::into_pin(receive),
                refused: Some((error, head)),
                config,
            },
        }
    }

    #[inline]
    pub(super) fn receive(
        receive: Receive<B>,
        parts: Parts,
        inner: S,
        config: Arc<Config>,
    ) -> Self {
        let span = DeliverySpan::new(&parts.headers, &config.route);
        let watch = DeliveryWatch::new(&config.observers, &config.route, &config.sender);
        let rest = Some((parts, inner));
        Self {
            span,
            watch,
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
        let (span, watch) = (&*this.span, this.watch);
        let _entered = span.enter();
        loop {
            // Which secret of another route would have matched.
            let mut other = None;
            let (read, mut parts, inner, config) = match this.state.as_mut().project() {
                StateProj::Receiving {
                    receive,
                    rest,
                    config,
                } => {
                    let received = ready!(receive.poll(cx));
                    let Some((parts, inner)) = rest.take() else {
                        // It is polled after its end: no panic, and no second run.
                        return Poll::Pending;
                    };
                    let read = match received {
                        Ok((body, Found::Secret(secret))) => {
                            read(body, Some(secret), &parts.headers, config, span)
                        }
                        Ok((body, Found::Unsigned)) => {
                            read(body, None, &parts.headers, config, span)
                        }
                        Ok((body, Found::Later(share))) => {
                            let config = Arc::clone(config);
                            let Some(verifying) = verifying(parts, body, *share, &config) else {
                                return Poll::Pending;
                            };
                            let inner = Some(inner);
                            this.state.set(State::Verifying {
                                verifying,
                                inner,
                                config,
                            });
                            continue;
                        }
                        Ok((body, Found::Handshake)) => {
                            handshake::in_body(&body, config).map(Read::Handshake)
                        }
                        Ok((body, Found::Wrong(error))) => {
                            other = config.would_match(error, &parts, &body);
                            Err(Refusal::InvalidSignature(error))
                        }
                        Err(refusal) => Err(refusal),
                    };
                    (read, parts, inner, config)
                }
                StateProj::Verifying {
                    verifying,
                    inner,
                    config,
                } => {
                    let (verdict, request) = ready!(verifying.poll(cx, config));
                    let Some(inner) = inner.take() else {
                        return Poll::Pending;
                    };
                    let (parts, body) = request.into_parts();
                    if let Err(Refusal::InvalidSignature(error)) = &verdict {
                        other = config.would_match(*error, &parts, &body);
                    }
                    let read = verdict.and_then(|it| judged(it, body, config, span));
                    (read, parts, inner, config)
                }
                StateProj::Verified {
                    inner,
                    request,
                    success,
                } => {
                    // Only verified deliveries wait for it: others cannot use up a concurrency limit.
                    if let Err(error) = ready!(inner.poll_ready(cx)) {
                        span.finish(Decision::FAILED);
                        failed(watch);
                        return Poll::Ready(Err(error));
                    }
                    let Some(request) = request.take() else {
                        return Poll::Pending;
                    };
                    let kind = Some(request.body().delivery().kind().clone());
                    let (future, success) = (inner.call(request), success.take());
                    this.state.set(State::Inner {
                        future,
                        kind,
                        success,
                    });
                    continue;
                }
                StateProj::Inner {
                    future,
                    kind,
                    success,
                } => {
                    let mut result = ready!(future.poll(cx));
                    let success = success.take().filter(|_| is_own_success(&result));
                    span.finish(match (&mut result, kind.take()) {
                        (Ok(response), Some(kind)) => Decision::sent_as(response, kind),
                        _ => Decision::FAILED,
                    });
                    let result = result.map(|it| match success {
                        None => it.map(ResponseBody::service),
                        Some(reply) => ResponseBody::instead(it, &reply),
                    });
                    ended(watch, &result);
                    return Poll::Ready(result);
                }
                StateProj::Decided { decided, config } => {
                    let response = match decided.take() {
                        None => return Poll::Pending,
                        Some((Ok(reply), _)) => replied(reply, None, span),
                        Some((Err(refusal), headers)) => {
                            refuse(refusal, headers, None, (config, span))
                        }
                    };
                    answered(watch, &response);
                    return Poll::Ready(Ok(response));
                }
                StateProj::Refused {
                    receive,
                    refused,
                    config,
                } => {
                    let received = ready!(receive.as_mut().poll(cx));
                    let Some((error, head)) = refused.take() else {
                        return Poll::Pending;
                    };
                    // Whatever became of the body, the answer is the same.
                    let body = received.ok().map(|(body, _)| body);
                    let other = body.and_then(|body| config.other(&head, &body));
                    let refusal = Refusal::InvalidSignature(error);
                    watch.refused(|| asked(&head, other.clone(), config));
                    let response = refuse(refusal, head.headers, other, (config, span));
                    answered(watch, &response);
                    return Poll::Ready(Ok(response));
                }
            };
            let response = match read {
                // Filtered after the verification, so that a forged delivery learns nothing about what is kept.
                Ok(Read::Event(verified)) if config.keeps(&verified) => {
                    watch.verified(verified.delivery(), &parts);
                    let verified = match config.sender.has_batches() {
                        true => config.with_items(verified, &mut parts, watch),
                        false => verified,
                    };
                    let success = config.success.clone();
                    let request = Some(verified.into_request(parts));
                    this.state.set(State::Verified {
                        inner,
                        request,
                        success,
                    });
                    continue;
                }
                Ok(Read::Event(verified)) => filtered(&verified, &parts, watch, span, config),
                Ok(Read::Challenge(reply)) => {
                    replied(reply, Some(EventKind::from_static("challenge")), span)
                }
                Ok(Read::Handshake(reply)) => {
                    // Nothing proves it, so it counts as a challenge that a head asks for.
                    watch.refused(|| asked(&parts, None, config));
                    replied(reply, None, span)
                }
                Err(refusal) => {
                    watch.refused(|| asked(&parts, other.clone(), config));
                    refuse(refusal, parts.headers, other, (config, span))
                }
            };
            answered(watch, &response);
            return Poll::Ready(Ok(response));
        }
    }
}

/// Begins the verification by the application. `None` if there is no verifier, whose bodies alone come to this.
#[cold]
fn verifying(head: Parts, body: Bytes, share: Share, config: &Config) -> Option<Box<Verifying>> {
    let verifier = config.authentication.verifier()?;
    Some(Box::new(Verifying::new(
        verifier, head, body, share, config,
    )))
}

/// Whether this crate answers that all is well, and not a service of another one, which has a body of its own.
#[cold]
fn is_own_success<B, E>(result: &Result<Response<B>, E>) -> bool {
    (result.as_ref()).is_ok_and(|it| it.status().is_success() && Decision::is_own(it))
}

/// What an observer may keep of a request that is refused. `other` is the secret of another route that would have matched.
fn asked(head: &Parts, other: Option<String>, config: &Config) -> Asked {
    let key = key_header(&head.headers, &config.sender);
    Asked::refused(&head.headers, &head.extensions, key).matched_by(other)
}

/// Answers a refused request, and logs why. The response takes over the request's header map without its headers,
/// which saves allocations in a flood.
fn refuse<B>(
    refusal: Refusal,
    mut headers: HeaderMap,
    other: Option<String>,
    (config, span): (&Config, &DeliverySpan),
) -> Response<ResponseBody<B>> {
    let kind =
        claimed_kind(&headers, &config.sender).filter(|kind| kind.as_str().len() <= LONGEST_KIND);
    if let Some(kind) = &kind {
        span.unverified(kind);
    }
    let row = refusal.row();
    let is_verified = refusal.is_of_verified_body();
    if is_verified && !config.authentication.is_unsigned() {
        // It takes a signed body, so a stranger cannot flood the log.
        refusal.log_of((&config.sender, &headers));
    } else {
        let head = (&config.sender, &headers);
        refusal.log_within(&config.throttle, head, other.as_deref()); // Anybody can cause it.
    }
    span.finish(row.name);
    headers.clear();
    ResponseBody::refuse_request(refusal, kind, is_verified, headers)
}

/// Answers an authentic delivery that the inner service never sees.
#[cold]
fn filtered<B>(
    verified: &Verified,
    head: &Parts,
    watch: &mut DeliveryWatch,
    span: &DeliverySpan,
    config: &Config,
) -> Response<ResponseBody<B>> {
    let delivery = verified.delivery();
    watch.verified(delivery, head);
    let mut response = ResponseBody::answer(Outcome::Filtered);
    span.finish(Decision::sent_as(&mut response, delivery.kind().clone()));
    match &config.success {
        None => response,
        Some(reply) => ResponseBody::instead(response, reply),
    }
}

fn said<B>(reply: Reply) -> Response<ResponseBody<B>> {
    let mut response = ResponseBody::plain(reply.status, reply.content_type, reply.body);
    if let Some(header) = reply.header {
        response.headers_mut().insert(header.0, header.1);
    }
    response
}

/// The response to a challenge, which has a kind if it was verified.
fn replied<B>(
    reply: Reply,
    kind: Option<EventKind>,
    span: &DeliverySpan,
) -> Response<ResponseBody<B>> {
    let mut response = said(reply);
    span.finish(match kind {
        Some(kind) => Decision::sent_as(&mut response, kind),
        None => {
            // Not `sent_as`, which would call it verified: anybody can send a GET.
            response.extensions_mut().insert(Outcome::Handled);
            Decision::adopt(&mut response);
            Decision::name_of(&response)
        }
    });
    response
}

/// Reports an answer to the observer.
#[inline]
fn answered<B>(watch: &mut DeliveryWatch, response: &Response<B>) {
    // Without an observer, a delivery pays nothing for the report.
    if !watch.is_observed() {
        return;
    }
    let decision = Decision::of(response);
    watch.ended(&Ending {
        outcome: decision.map_or(Decision::FAILED, Decision::name),
        status: Some(response.status()),
        kind: decision.and_then(Decision::kind),
        is_verified: decision.is_some_and(Decision::is_verified),
        reason: decision.and_then(Decision::reason),
    });
}

/// Reports to the observer how the inner service ended.
#[inline]
fn ended<B, E>(watch: &mut DeliveryWatch, result: &Result<Response<B>, E>) {
    match result {
        Ok(response) => answered(watch, response),
        Err(_) => failed(watch),
    }
}

/// Reports to the observer that the inner service failed, so that there is no answer.
fn failed(watch: &mut DeliveryWatch) {
    watch.ended(&Ending {
        outcome: Decision::FAILED,
        status: None,
        kind: None,
        is_verified: true,
        reason: None,
    });
}

/// The longest kind in bytes that is recorded of a refused request, since anybody can send one.
const LONGEST_KIND: usize = 64;

partial_debug!([S: Service<Request<Verified>>, B] ResponseFuture<S, B>);
