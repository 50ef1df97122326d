use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_service::Service;

use super::buffer::Receive;
use super::config::Config;
use super::headers::{claimed_kind, key_header, kind_and_key};
use super::refusal::Refusal;
use super::verify::Matched;
use crate::answer::{Answer, Decision, ResponseBody};
use crate::delivery::RawDelivery;
use crate::error::BoxError;
use crate::event::EventKind;
use crate::outcome::Outcome;
use crate::sender::Reply;
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
            succeeds: Option<Arc<Config>>,
        },
        Inner {
            #[pin]
            future: S::Future,
            kind: Option<EventKind>,
            // Of a sender that wants another answer than this crate's.
            succeeds: Option<Arc<Config>>,
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
        watch.refused(|| asked(&head, &config));
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
            match this.state.as_mut().project() {
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
                    let read = received.and_then(|(body, secret)| {
                        read(body, secret, &parts.headers, config, span)
                    });
                    let response = match read {
                        // Filtered after the verification, so that a forged delivery learns nothing about what is kept.
                        Ok(Read::Event(verified)) if config.keeps(&verified) => {
                            watch.verified(verified.delivery(), &parts);
                            let request = Some(verified.into_request(parts));
                            let succeeds = success_of(config).map(|_| Arc::clone(config));
                            this.state.set(State::Verified {
                                inner,
                                request,
                                succeeds,
                            });
                            continue;
                        }
                        Ok(Read::Event(verified)) => {
                            let response = filtered(&verified, &parts, watch, span);
                            succeeded(response, success_of(config))
                        }
                        Ok(Read::Challenge(reply)) => {
                            replied(reply, Some(EventKind::from_static("challenge")), span)
                        }
                        Err(refusal) => {
                            watch.refused(|| asked(&parts, config));
                            refuse(refusal, parts.headers, config, span)
                        }
                    };
                    answered(watch, &response);
                    return Poll::Ready(Ok(response));
                }
                StateProj::Verified {
                    inner,
                    request,
                    succeeds,
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
                    let (future, succeeds) = (inner.call(request), succeeds.take());
                    this.state.set(State::Inner {
                        future,
                        kind,
                        succeeds,
                    });
                }
                StateProj::Inner {
                    future,
                    kind,
                    succeeds,
                } => {
                    let mut result = ready!(future.poll(cx));
                    span.finish(match (&mut result, kind.take()) {
                        (Ok(response), Some(kind)) => Decision::sent_as(response, kind),
                        _ => Decision::FAILED,
                    });
                    ended(watch, &result);
                    let success = succeeds.as_ref().and_then(|it| success_of(it));
                    return Poll::Ready(
                        result.map(|response| {
                            succeeded(response.map(ResponseBody::service), success)
                        }),
                    );
                }
                StateProj::Decided { decided, config } => {
                    let response = match decided.take() {
                        None => return Poll::Pending,
                        Some((Ok(reply), _)) => replied(reply, None, span),
                        Some((Err(refusal), headers)) => refuse(refusal, headers, config, span),
                    };
                    answered(watch, &response);
                    return Poll::Ready(Ok(response));
                }
            }
        }
    }
}

/// What an observer may keep of a request that is refused.
fn asked(head: &Parts, config: &Config) -> Asked {
    let key = key_header(&head.headers, &config.sender);
    Asked::refused(&head.headers, &head.extensions, key)
}

/// Answers a refused request, and logs why. The response takes over the request's header map without its headers,
/// which saves allocations in a flood.
fn refuse<B>(
    refusal: Refusal,
    mut headers: HeaderMap,
    config: &Config,
    span: &DeliverySpan,
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
        refusal.log_within(&config.throttle, (&config.sender, &headers)); // Anybody can cause it.
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
) -> Response<ResponseBody<B>> {
    let delivery = verified.delivery();
    watch.verified(delivery, head);
    let mut response = ResponseBody::answer(Outcome::Filtered);
    span.finish(Decision::sent_as(&mut response, delivery.kind().clone()));
    response
}

fn said<B>(reply: Reply) -> Response<ResponseBody<B>> {
    let mut response = ResponseBody::plain(reply.status, reply.content_type, reply.body);
    if let Some(header) = reply.header {
        response.headers_mut().insert(header.0, header.1);
    }
    response
}

#[inline]
fn success_of(config: &Config) -> Option<&Reply> {
    config.sender.described().success()
}

/// The answer that the sender wants to a delivery that was taken, in place of this crate's.
fn succeeded<B>(
    mut response: Response<ResponseBody<B>>,
    success: Option<&Reply>,
) -> Response<ResponseBody<B>> {
    let is_success = Decision::of(&response).is_some_and(|it| it.outcome().is_some());
    let Some(success) = success.filter(|_| is_success && response.status() == StatusCode::OK)
    else {
        return response;
    };
    let said = said(success.clone());
    *response.status_mut() = said.status();
    response.headers_mut().extend(said.headers().clone());
    *response.body_mut() = said.into_body();
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

/// The answer to a challenge, which never reaches the inner service.
#[inline]
fn challenge(
    body: &Bytes,
    secret: Option<&Matched>,
    headers: &HeaderMap,
    config: &Config,
) -> Option<Result<Reply, Refusal>> {
    let it = config.sender.described();
    let hmac = |text: &[u8]| {
        // Not any secret of the set: the sender compares the answer with its own.
        let secret = config.authentication.secret(secret?)?;
        secret.sign_as(it.scheme(headers).secret, text)
    };
    let answer = it.challenge(headers, body, hmac)?;
    Some(
        answer.ok_or_else(|| {
            Refusal::unreadable("there is nothing in the challenge that may be echoed")
        }),
    )
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

/// What an authentic request is.
#[allow(
    clippy::large_enum_variant,
    reason = "the path of the chat platform takes no allocation"
)]
enum Read {
    Event(Verified),
    Challenge(Reply),
}

/// Reads kind and key of an authentic request, unless it is a challenge.
#[inline]
fn read(
    body: Bytes,
    secret: Option<Matched>,
    headers: &HeaderMap,
    config: &Config,
    span: &DeliverySpan,
) -> Result<Read, Refusal> {
    // Before kind and key are read, which a challenge may lack.
    if let Some(reply) = challenge(&body, secret.as_ref(), headers, config) {
        return reply.map(Read::Challenge);
    }
    let (kind, key) = kind_and_key(headers, &body, &config.sender, config.require_key)?;
    let mut delivery = RawDelivery::received(kind, key, body).with_route(config.route.clone());
    if let Some(lent) = &config.lent {
        delivery.lend_settings(lent);
    }
    span.verified(
        &delivery,
        secret
            .as_ref()
            .map(|secret| (secret.index, secret.label.as_deref())),
    );
    Ok(Read::Event(Verified::new(delivery)))
}

partial_debug!([S: Service<Request<Verified>>, B] ResponseFuture<S, B>);
