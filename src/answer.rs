//! What is answered, and when: the one table of all answers.

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

use crate::delivery::DecodeError;
use crate::error::{BoxError, Chain};
use crate::signature::SignatureError;
use crate::store::{SettleError, StoreError};

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
    Overloaded {
        retry_after: Duration,
    },
    BodyTimeout {
        limit: Duration,
    },
    MalformedBody(BoxError),
    InvalidSignature(SignatureError),
    UnsupportedMediaType,
    InvalidEventHeader,
    ConflictingKeys,
    MissingKey,
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
    #[cfg_attr(not(feature = "postgres"), allow(dead_code))]
    NotCommitted {
        error: BoxError,
        retry_after: Duration,
    },
    Discarded(BoxError),
    Failed(BoxError),
    Panicked,
    TimedOut {
        limit: Duration,
    },
    LeaseLost,
}

/// What a row says: its name in the log and in the problem's type, the status, a sentence on it, and for
/// an error the problem document that the sender is told (RFC 9457); a success tells it nothing.
struct Row {
    name: &'static str,
    status: StatusCode,
    detail: &'static str,
    problem: &'static str,
}

macro_rules! row {
    ($name:literal, OK, $detail:literal) => {
        Row {
            name: $name,
            status: StatusCode::OK,
            detail: $detail,
            problem: "",
        }
    };
    ($name:literal, $status:ident $code:literal $title:literal, $detail:literal) => {
        Row {
            name: $name,
            status: StatusCode::$status,
            detail: $detail,
            problem: concat!(
                r#"{"type":"https://docs.rs/tower-webhook/latest/tower_webhook/docs/answers/#"#,
                $name,
                r#"","title":""#,
                $title,
                r#"","status":"#,
                $code,
                r#","detail":""#,
                $detail,
                r#""}"#
            ),
        }
    };
}

impl Answer {
    #[rustfmt::skip]
    fn row(&self) -> Row {
        match self {
            Self::MethodNotAllowed        => row!("method-not-allowed", METHOD_NOT_ALLOWED 405 "Method Not Allowed", "Deliveries are sent with POST."),
            Self::BodyTooLarge { .. }     => row!("body-too-large", PAYLOAD_TOO_LARGE 413 "Payload Too Large", "The body is larger than this receiver accepts."),
            Self::Overloaded { .. }      => row!("overloaded", SERVICE_UNAVAILABLE 503 "Service Unavailable", "Too many bodies are being received at once."),
            Self::BodyTimeout { .. }         => row!("body-timeout", REQUEST_TIMEOUT 408 "Request Timeout", "The body did not arrive in time."),
            Self::MalformedBody(_)           => row!("malformed-body", BAD_REQUEST 400 "Bad Request", "The body broke off or contradicts its headers."),
            Self::InvalidSignature(_)          => row!("invalid-signature", UNAUTHORIZED 401 "Unauthorized", "The signature header does not prove that the body is authentic."),
            Self::UnsupportedMediaType                 => row!("unsupported-media-type", UNSUPPORTED_MEDIA_TYPE 415 "Unsupported Media Type", "A delivery is `application/json` without a content encoding."),
            Self::InvalidEventHeader             => row!("invalid-event-header", BAD_REQUEST 400 "Bad Request", "The event header must be there once and be a token."),
            Self::ConflictingKeys              => row!("conflicting-keys", BAD_REQUEST 400 "Bad Request", "There are several idempotency keys that differ."),
            Self::MissingKey              => row!("missing-key", BAD_REQUEST 400 "Bad Request", "This receiver requires an idempotency key."),
            Self::StoreUnavailable { .. } => row!("store-unavailable", SERVICE_UNAVAILABLE 503 "Service Unavailable", "The store of idempotency keys is unavailable."),
            Self::Replayed                => row!("replayed", OK, "The event had been handled before."),
            Self::InFlight { .. }         => row!("in-flight", CONFLICT 409 "Conflict", "A delivery of this event is being handled."),
            Self::BodyChanged             => row!("body-changed", UNPROCESSABLE_ENTITY 422 "Unprocessable Entity", "The idempotency key was used with another body."),
            Self::BodyReplayed            => row!("body-replayed", UNPROCESSABLE_ENTITY 422 "Unprocessable Entity", "The body was used with another idempotency key."),
            Self::Ignored                 => row!("ignored", OK, ""),
            Self::Unhandled               => row!("unhandled", NOT_FOUND 404 "Not Found", "This receiver does not handle this kind of event."),
            Self::Undecodable(_)          => row!("undecodable", UNPROCESSABLE_ENTITY 422 "Unprocessable Entity", "The body is not the JSON object that this event should carry."),
            Self::Handled                 => row!("handled", OK, ""),
            Self::NotRecorded(_)          => row!("not-recorded", SERVICE_UNAVAILABLE 503 "Service Unavailable", "The event was handled, but that could not be recorded."),
            Self::NotCommitted { .. }     => row!("not-committed", SERVICE_UNAVAILABLE 503 "Service Unavailable", "The event was handled, but its transaction may not have been committed."),
            Self::Discarded(_)            => row!("discarded", OK, ""),
            Self::Failed(_)               => row!("failed", INTERNAL_SERVER_ERROR 500 "Internal Server Error", "The event could not be handled."),
            Self::Panicked                => row!("panicked", INTERNAL_SERVER_ERROR 500 "Internal Server Error", "The event could not be handled."),
            Self::TimedOut { .. }         => row!("handler-timeout", SERVICE_UNAVAILABLE 503 "Service Unavailable", "The event was not handled in time."),
            Self::LeaseLost               => row!("lease-lost", SERVICE_UNAVAILABLE 503 "Service Unavailable", "The claim on the event was lost while it was handled."),
        }
    }

    /// Says in the log what happened, and makes the response.
    pub(crate) fn respond(self) -> Response<Full<Bytes>> {
        let Row {
            name,
            status,
            problem,
            ..
        } = self.row();
        self.log(name);
        let mut response = Response::new(Full::from(problem));
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
            Self::Overloaded { retry_after: wait }
            | Self::StoreUnavailable {
                retry_after: wait, ..
            }
            | Self::NotCommitted {
                retry_after: wait, ..
            }
            | Self::InFlight { remaining: wait } => {
                let part = u64::from(wait.subsec_nanos() > 0);
                let seconds = wait.as_secs().saturating_add(part);
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

    pub(crate) fn detail(&self) -> &'static str {
        self.row().detail
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
            Self::NotCommitted { error, .. } => tracing::error!(
                outcome,
                reason = %Chain(error.as_ref()),
                "the event was handled, but its transaction may not have been committed; the \
                 sender's next attempt finds out"
            ),
            Self::BodyTooLarge { limit } => {
                refused(outcome, &format_args!("more than {limit} bytes"))
            }
            Self::BodyTimeout { limit } => refused(outcome, &format_args!("not within {limit:?}")),
            Self::MalformedBody(error) => refused(outcome, &Chain(error.as_ref())),
            Self::InvalidSignature(error) => refused(outcome, error),
            Self::StoreUnavailable { error, .. } => refused(outcome, &Chain(error)),
            Self::Undecodable(error) => refused(outcome, error),
            Self::MethodNotAllowed
            | Self::Overloaded { .. }
            | Self::UnsupportedMediaType
            | Self::InvalidEventHeader
            | Self::ConflictingKeys
            | Self::MissingKey
            | Self::InFlight { .. }
            | Self::BodyChanged
            | Self::BodyReplayed
            | Self::Unhandled => refused(outcome, &self.detail()),
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
    /// Of a run that ended with an error instead of a response.
    pub(crate) const FAILED: &'static str = "failed";

    pub(crate) fn is_told<B>(response: &Response<B>) -> bool {
        response.extensions().get::<Self>().is_some()
    }

    pub(crate) fn of<B>(response: &Response<B>) -> &'static str {
        match response.extensions().get::<Self>() {
            Some(Self(name)) => name,
            None if response.status().is_success() => "handled",
            None => Self::FAILED,
        }
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

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use http_body_util::BodyExt;

    use super::*;
    use crate::store::StoreErrorKind;

    const SECOND: Duration = Duration::from_secs(1);
    const SAID: &str = "what only the log may tell";

    fn every_answer() -> Vec<Answer> {
        let undecodable = |body: &'static str| {
            let raw = crate::RawDelivery::new(crate::EventKind::CHAT_RATED, body);
            Answer::Undecodable(raw.json().unwrap_err())
        };
        let store_error = || StoreError::new(StoreErrorKind::Unavailable, SAID);
        vec![
            Answer::MethodNotAllowed,
            Answer::BodyTooLarge { limit: 1 },
            Answer::Overloaded {
                retry_after: 600 * SECOND,
            },
            Answer::BodyTimeout { limit: SECOND },
            Answer::MalformedBody(SAID.into()),
            Answer::InvalidSignature(SignatureError::Wrong),
            Answer::UnsupportedMediaType,
            Answer::InvalidEventHeader,
            Answer::ConflictingKeys,
            Answer::MissingKey,
            Answer::StoreUnavailable {
                error: store_error(),
                retry_after: 600 * SECOND,
            },
            Answer::Replayed,
            Answer::InFlight {
                remaining: 42 * SECOND,
            },
            Answer::BodyChanged,
            Answer::BodyReplayed,
            Answer::Ignored,
            Answer::Unhandled,
            undecodable("{what only the log may tell"),
            Answer::Handled,
            Answer::NotRecorded(SettleError::Store(store_error())),
            Answer::NotCommitted {
                error: SAID.into(),
                retry_after: 600 * SECOND,
            },
            Answer::Discarded(SAID.into()),
            Answer::Failed(SAID.into()),
            Answer::Panicked,
            Answer::TimedOut { limit: SECOND },
            Answer::LeaseLost,
        ]
    }

    type Header = Option<(&'static str, &'static str)>;

    /// The table as it is documented.
    #[rustfmt::skip]
    const TABLE: [(u16, &str, Header); 26] = [
        (405, "method-not-allowed", Some(("allow", "POST"))),
        (413, "body-too-large", None),
        (503, "overloaded", Some(("retry-after", "600"))),
        (408, "body-timeout", None),
        (400, "malformed-body", None),
        (401, "invalid-signature", None),
        (415, "unsupported-media-type", None),
        (400, "invalid-event-header", None),
        (400, "conflicting-keys", None),
        (400, "missing-key", None),
        (503, "store-unavailable", Some(("retry-after", "600"))),
        (200, "replayed", Some(("idempotent-replayed", "true"))),
        (409, "in-flight", Some(("retry-after", "42"))),
        (422, "body-changed", None),
        (422, "body-replayed", None),
        (200, "ignored", None),
        (404, "unhandled", None),
        (422, "undecodable", None),
        (200, "handled", None),
        (503, "not-recorded", None),
        (503, "not-committed", Some(("retry-after", "600"))),
        (200, "discarded", None),
        (500, "failed", None),
        (500, "panicked", None),
        (503, "handler-timeout", None),
        (503, "lease-lost", None),
    ];

    #[tokio::test]
    async fn every_row_is_answered_as_the_table_says() {
        for (answer, (status, name, header)) in every_answer().into_iter().zip(TABLE) {
            let detail = answer.detail();
            let response = answer.respond();

            assert_eq!(response.status(), status, "{name}");
            assert_eq!(Outcome::of(&response), name);
            let settle = response.extensions().get().copied();
            assert_eq!(settle, (name == "ignored").then_some(Settle::Release));

            let mut expected: HashMap<_, _> = header.into_iter().collect();
            if status != 200 {
                expected.insert("content-type", "application/problem+json");
            }
            let found = response.headers().iter();
            let found: HashMap<_, _> = found
                .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
                .collect();
            assert_eq!(found, expected, "{name}");

            let title = response.status().canonical_reason().unwrap();
            let body = response.into_body().collect().await.unwrap().to_bytes();
            if status == 200 {
                assert!(body.is_empty(), "{name}");
                continue;
            }
            let text = str::from_utf8(&body).unwrap();
            assert!(!text.contains(SAID), "{text}");
            let problem: HashMap<String, serde_json::Value> = serde_json::from_str(text).unwrap();
            assert_eq!(problem.len(), 4, "{text}");
            assert_eq!(problem["status"], status);
            assert!(
                problem["type"]
                    .as_str()
                    .unwrap()
                    .ends_with(&format!("#{name}"))
            );
            assert_eq!(problem["title"], title);
            assert_eq!(problem["detail"], detail);
            assert!(detail.ends_with('.'));
        }
    }

    #[test]
    fn the_time_to_wait_is_rounded_up_to_a_second_at_least() {
        for (remaining, expected) in [
            (Duration::ZERO, "1"),
            (Duration::from_nanos(1), "1"),
            (SECOND, "1"),
            (SECOND + Duration::from_nanos(1), "2"),
            (Duration::MAX, "18446744073709551615"),
        ] {
            let response = Answer::InFlight { remaining }.respond();
            assert_eq!(response.headers()[RETRY_AFTER], expected);
        }
    }

    #[test]
    fn a_response_that_tells_no_outcome_tells_it_by_its_status() {
        for (status, outcome) in [
            (200, "handled"),
            (204, "handled"),
            (302, "failed"),
            (500, "failed"),
        ] {
            let response = Response::builder().status(status).body(()).unwrap();
            assert_eq!(Outcome::of(&response), outcome);
        }
    }
}
