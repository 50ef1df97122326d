//! What is answered, and when: the one table of all answers.

use std::error::Error as StdError;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::header::{ALLOW, CONTENT_TYPE, HeaderName, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use pin_project_lite::pin_project;
use serde::Serialize;

use crate::delivery::DecodeError;
use crate::signature::SignatureError;
use crate::store::{SettleError, StoreError};

pub(crate) type BoxError = Box<dyn StdError + Send + Sync>;

/// How the claim on a delivery's key is to be settled.
///
/// A service behind [`IdempotencyLayer`](crate::IdempotencyLayer) may put one into the extensions
/// of its response. Without one a 2xx completes the claim, and everything else releases it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settle {
    /// The event was handled: remember it.
    Complete,
    /// It was not: let the next delivery try again.
    Release,
}

/// A row of the table, in the order in which the checks run.
#[derive(Debug)]
pub(crate) enum Answer {
    MethodNotAllowed,
    BodyTooLarge {
        limit: usize,
    },
    BuffersFull {
        retry_after: Duration,
    },
    BodySlow {
        limit: Duration,
    },
    BodyBroken(BoxError),
    Unauthentic(SignatureError),
    NotJson,
    KindUnclear,
    KeysDiffer,
    KeyMissing,
    StoreUnavailable {
        error: StoreError,
        retry_after: Duration,
    },
    Replayed,
    InFlight {
        remaining: Duration,
    },
    BodyChanged,
    BodyReplayed,
    Ignored,
    Unhandled,
    Undecodable(DecodeError),
    Handled,
    NotRecorded(SettleError),
    Discarded(BoxError),
    Failed(BoxError),
    Panicked,
    TimedOut {
        limit: Duration,
    },
    LeaseLost,
}

/// What a row says: its name in the log and in the problem's type, the status, and for an error
/// what the sender is told.
struct Row(&'static str, StatusCode, &'static str);

impl Answer {
    #[rustfmt::skip]
    fn row(&self) -> Row {
        use StatusCode as S;
        match self {
            Self::MethodNotAllowed        => Row("method-not-allowed", S::METHOD_NOT_ALLOWED, "Deliveries are sent with POST."),
            Self::BodyTooLarge { .. }     => Row("body-too-large", S::PAYLOAD_TOO_LARGE, "The body is larger than this receiver accepts."),
            Self::BuffersFull { .. }      => Row("buffers-full", S::SERVICE_UNAVAILABLE, "Too many bodies are being received at once."),
            Self::BodySlow { .. }         => Row("body-slow", S::REQUEST_TIMEOUT, "The body did not arrive in time."),
            Self::BodyBroken(_)           => Row("body-broken", S::BAD_REQUEST, "The body broke off or contradicts its headers."),
            Self::Unauthentic(_)          => Row("unauthentic", S::UNAUTHORIZED, "The signature header does not prove that the body is authentic."),
            Self::NotJson                 => Row("not-json", S::UNSUPPORTED_MEDIA_TYPE, "A delivery is `application/json` without a content encoding."),
            Self::KindUnclear             => Row("kind-unclear", S::BAD_REQUEST, "The event header must be there once and be a token."),
            Self::KeysDiffer              => Row("keys-differ", S::BAD_REQUEST, "There are several idempotency keys that differ."),
            Self::KeyMissing              => Row("key-missing", S::BAD_REQUEST, "This receiver requires an idempotency key."),
            Self::StoreUnavailable { .. } => Row("store-unavailable", S::SERVICE_UNAVAILABLE, "The store of idempotency keys is unavailable."),
            Self::Replayed                => Row("replayed", S::OK, ""),
            Self::InFlight { .. }         => Row("in-flight", S::CONFLICT, "A delivery of this event is being handled."),
            Self::BodyChanged             => Row("body-changed", S::UNPROCESSABLE_ENTITY, "The idempotency key was used with another body."),
            Self::BodyReplayed            => Row("body-replayed", S::UNPROCESSABLE_ENTITY, "The body was used with another idempotency key."),
            Self::Ignored                 => Row("ignored", S::OK, ""),
            Self::Unhandled               => Row("unhandled", S::NOT_FOUND, "This receiver does not handle this kind of event."),
            Self::Undecodable(_)          => Row("undecodable", S::UNPROCESSABLE_ENTITY, "The body is not the JSON object that this event should carry."),
            Self::Handled                 => Row("handled", S::OK, ""),
            Self::NotRecorded(_)          => Row("not-recorded", S::SERVICE_UNAVAILABLE, "The event was handled, but that could not be recorded."),
            Self::Discarded(_)            => Row("discarded", S::OK, ""),
            Self::Failed(_)               => Row("failed", S::INTERNAL_SERVER_ERROR, "The event could not be handled."),
            Self::Panicked                => Row("panicked", S::INTERNAL_SERVER_ERROR, "The event could not be handled."),
            Self::TimedOut { .. }         => Row("timed-out", S::SERVICE_UNAVAILABLE, "The event was not handled in time."),
            Self::LeaseLost               => Row("lease-lost", S::SERVICE_UNAVAILABLE, "The claim on the event was lost while it was handled."),
        }
    }

    /// Says in the log what happened, and makes the response.
    pub(crate) fn respond(self) -> Response<Full<Bytes>> {
        let Row(name, status, detail) = self.row();
        self.log(name);
        let mut response = Response::new(match status {
            StatusCode::OK => Full::default(),
            _ => Full::from(Problem::new(name, status, detail).to_json()),
        });
        *response.status_mut() = status;

        let headers = response.headers_mut();
        if status != StatusCode::OK {
            headers.insert(
                CONTENT_TYPE,
                HeaderValue::from_static("application/problem+json"),
            );
        }
        match &self {
            Self::MethodNotAllowed => {
                headers.insert(ALLOW, HeaderValue::from_static("POST"));
            }
            Self::BuffersFull { retry_after: wait }
            | Self::StoreUnavailable {
                retry_after: wait, ..
            }
            | Self::InFlight { remaining: wait } => {
                let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
                headers.insert(RETRY_AFTER, seconds.max(1).into());
            }
            Self::Replayed => {
                headers.insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
            }
            _ => {}
        }
        if matches!(self, Self::Ignored) {
            response.extensions_mut().insert(Settle::Release);
        }
        // A response without an `Outcome` tells it by its status.
        if !matches!(self, Self::Handled) {
            response.extensions_mut().insert(Outcome(name));
        }
        response
    }

    fn log(&self, outcome: &'static str) {
        match self {
            Self::Handled => tracing::debug!(outcome, "the event was handled"),
            Self::Replayed => tracing::debug!(outcome, "the event had been handled before"),
            Self::Ignored => tracing::debug!(outcome, "no handler wants this kind of event"),
            Self::Discarded(reason) => tracing::warn!(
                outcome,
                reason = %Chain(reason.as_ref()),
                "the handler gave the event up for good"
            ),
            Self::Failed(error) => tracing::error!(
                outcome,
                reason = %Chain(error.as_ref()),
                "the handler failed; the event is handled again when the sender retries"
            ),
            Self::Panicked => tracing::error!(
                outcome,
                "the handler panicked; the event is handled again when the sender retries"
            ),
            Self::TimedOut { limit } => tracing::error!(
                outcome,
                ?limit,
                "the handler exceeded its time limit and was dropped; the event is handled again \
                 when the sender retries"
            ),
            Self::LeaseLost => tracing::error!(
                outcome,
                "the claim on the key was lost and the handler was dropped: the store was away for \
                 longer than the lease, or another process has taken over"
            ),
            Self::NotRecorded(error) => tracing::error!(
                outcome,
                reason = %Chain(error),
                "the event was handled, but that could not be recorded: it will be handled again"
            ),
            Self::BodyTooLarge { limit } => {
                refused(outcome, &format_args!("more than {limit} bytes"))
            }
            Self::BodySlow { limit } => refused(outcome, &format_args!("not within {limit:?}")),
            Self::BodyBroken(error) => refused(outcome, &Chain(error.as_ref())),
            Self::Unauthentic(error) => refused(outcome, error),
            Self::StoreUnavailable { error, .. } => refused(outcome, &Chain(error)),
            Self::Undecodable(error) => refused(outcome, error),
            Self::MethodNotAllowed
            | Self::BuffersFull { .. }
            | Self::NotJson
            | Self::KindUnclear
            | Self::KeysDiffer
            | Self::KeyMissing
            | Self::InFlight { .. }
            | Self::BodyChanged
            | Self::BodyReplayed
            | Self::Unhandled => refused(outcome, &self.row().2),
        }
    }
}

const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

fn refused(outcome: &'static str, reason: &dyn fmt::Display) {
    tracing::warn!(outcome, %reason, "the delivery was refused");
}

/// The name of the row that answered, in a response's extensions.
#[derive(Clone, Copy)]
pub(crate) struct Outcome(&'static str);

impl Outcome {
    pub(crate) fn of<B>(response: &Response<B>) -> &'static str {
        match response.extensions().get::<Self>() {
            Some(Self(name)) => name,
            None if response.status().is_success() => "handled",
            None => "failed",
        }
    }
}

/// RFC 9457.
#[derive(Serialize)]
struct Problem {
    r#type: String,
    title: &'static str,
    status: u16,
    detail: &'static str,
}

impl Problem {
    fn new(name: &'static str, status: StatusCode, detail: &'static str) -> Self {
        Self {
            r#type: format!("https://docs.rs/tower-webhook/latest/tower_webhook/answers/#{name}"),
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            detail,
        }
    }

    fn to_json(&self) -> Bytes {
        serde_json::to_vec(self).unwrap_or_default().into()
    }
}

/// An error with its causes, in one line.
pub(crate) struct Chain<'a>(pub(crate) &'a (dyn StdError + 'a));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

pin_project! {
    /// The body of a response: an answer of this crate, or what the service behind it answered.
    pub struct ResponseBody<B> {
        #[pin]
        inner: Inner<B>,
    }
}

pin_project! {
    #[project = InnerProj]
    enum Inner<B> {
        Answer { body: Full<Bytes> },
        Service { #[pin] body: B },
    }
}

impl<B> ResponseBody<B> {
    pub(crate) fn answer(answer: Answer) -> Response<Self> {
        answer.respond().map(|body| Self {
            inner: Inner::Answer { body },
        })
    }

    pub(crate) fn service(body: B) -> Self {
        Self {
            inner: Inner::Service { body },
        }
    }
}

impl<B> fmt::Debug for ResponseBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseBody").finish_non_exhaustive()
    }
}

impl<B: Body<Data: Buf + From<Bytes>>> Body for ResponseBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        match self.project().inner.project() {
            InnerProj::Answer { body } => Pin::new(body)
                .poll_frame(cx)
                .map(|frame| frame.map(|Ok(frame)| Ok(frame.map_data(B::Data::from)))),
            InnerProj::Service { body } => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::Answer { body } => body.is_end_stream(),
            Inner::Service { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Answer { body } => body.size_hint(),
            Inner::Service { body } => body.size_hint(),
        }
    }
}
