//! The reasons for refusing a request, and their answers.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ALLOW, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap};
use http::{HeaderName, HeaderValue};

use crate::answer::{Answer, Row, SharedError, insert_retry_after, log_refusal, row};
use crate::error::{BoxError, Chain};
use crate::sender::{Place, Sender, SignatureError};
use crate::telemetry::Throttle;

/// The reason why a request was refused, in the order of the checks. A signature header that cannot prove anything is
/// refused right after the method.
///
/// It is the error of [`Decision::refusal`](crate::Decision::refusal). The
/// [table of responses](crate::docs::responses) has a row for each.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// The method is not POST.
    MethodNotAllowed,
    /// The body, or its `Content-Length`, exceeds [`max_body`](crate::Webhooks::max_body).
    BodyTooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// The bodies that are being received exceed [`max_buffered`](crate::Webhooks::max_buffered), and this one was
    /// the slowest.
    Overloaded {
        /// The delay that the answer asks for.
        retry_after: Duration,
    },
    /// The body did not arrive in time: see [`body_timeout`](crate::Webhooks::body_timeout).
    BodyTimeout {
        /// The time limit.
        limit: Duration,
    },
    /// The body broke off, or contradicts its `Content-Length`.
    MalformedBody(Arc<dyn Error + Send + Sync>),
    /// The signature does not prove that the body is authentic.
    InvalidSignature(SignatureError),
    /// A [`Verifier`](super::Verifier) could not decide: it failed, panicked, or took longer than
    /// [`body_timeout`](crate::Webhooks::body_timeout).
    VerifierFailed {
        /// Why.
        error: Arc<dyn Error + Send + Sync>,
        /// The delay that the answer asks for.
        retry_after: Duration,
    },
    /// A challenge that is not signed carries another token, nothing that may be echoed, or a secret that nobody asks for. The text
    /// is for the log.
    InvalidChallenge(&'static str),
    /// The content type is not `application/json`, or there is a content encoding.
    UnsupportedMediaType,
    /// The event header is missing, repeated, or not a token of at most 128 bytes.
    InvalidEventHeader,
    /// The body is not JSON with event type and key where this sender puts them.
    UnreadableEvent(Arc<dyn Error + Send + Sync>),
    /// There are several idempotency keys, and they differ.
    ConflictingKeys,
    /// There is no idempotency key, and [`require_key`](crate::Webhooks::require_key) was called.
    MissingKey,
}

impl Refusal {
    pub(super) fn malformed(reason: impl Into<BoxError>) -> Self {
        Self::MalformedBody(reason.into().into())
    }

    pub(super) fn unreadable(reason: impl Into<BoxError>) -> Self {
        Self::UnreadableEvent(reason.into().into())
    }

    pub(super) fn name(&self) -> &'static str {
        self.row().name
    }

    /// Logs the refusal of a request with this head, within `throttle`, because anybody can cause refusals, and which secret
    /// of another route would have matched.
    pub(super) fn log_within(
        &self,
        throttle: &Throttle,
        head: Head<'_>,
        would_match: Option<&str>,
    ) {
        // A line that nobody reads needs no clock.
        if !tracing::enabled!(tracing::Level::WARN) {
            return;
        }
        // Otherwise a flood of one kind would hide another kind.
        let reason = match self {
            Self::InvalidSignature(_) if would_match.is_some() => "another secret would match",
            Self::InvalidSignature(error) => error.as_str(),
            _ => self.name(),
        };
        if let Some(left_out) = throttle.admit(reason) {
            tracing::warn!(
                outcome = self.name(),
                reason = Reason(self, head).to_string(),
                would_match,
                left_out = (left_out > 0).then_some(left_out),
                "the delivery was refused"
            );
        }
    }

    /// Logs the refusal of a request with this head.
    pub(super) fn log_of(&self, head: Head<'_>) {
        log_refusal(self.name(), &Reason(self, head));
    }

    /// What was expected of the head and what came, for the log alone.
    fn found(&self, (sender, headers): Head<'_>) -> Option<String> {
        let scheme = sender.described().scheme(headers);
        let key = scheme.key.first().unwrap_or(&Place::None);
        // Only a value that can be no part of a payload is shown.
        let came = |name: &HeaderName, is_shown: fn(&str) -> bool| {
            let values: Vec<_> = headers.get_all(name).iter().collect();
            match values[..] {
                [] => format!("there is no `{name}`"),
                [one] => match one.to_str().ok().filter(|it| is_shown(it)) {
                    Some(value) => format!("`{name}` is `{value}`"),
                    None => format!("`{name}` is another text of {} bytes", one.len()),
                },
                _ => format!("there are {} of `{name}`", values.len()),
            }
        };
        Some(match (self, &scheme.kind, key) {
            // A verifier has no headers that a description names.
            (Self::InvalidSignature(_), ..) if sender.is_of_verifier() => return None,
            (Self::InvalidSignature(error), ..) => {
                format!("expected {}", sender.described().expected(*error, headers)?)
            }
            (Self::UnsupportedMediaType, ..) if headers.contains_key(CONTENT_ENCODING) => {
                came(&CONTENT_ENCODING, |it| CODINGS.contains(&it))
            }
            (Self::UnsupportedMediaType, ..) => came(&CONTENT_TYPE, is_media_type),
            (Self::InvalidEventHeader, Place::Header(name), _) => came(name, |_| false),
            (Self::ConflictingKeys, _, Place::Header(name)) => came(name, |_| false),
            (Self::MissingKey, ..) => format!("expected in {}", key.described()),
            _ => return None,
        })
    }

    /// Whether the check that failed comes after the one of the signature.
    pub(super) fn is_of_verified_body(&self) -> bool {
        match self {
            Self::MethodNotAllowed
            | Self::BodyTooLarge { .. }
            | Self::Overloaded { .. }
            | Self::BodyTimeout { .. }
            | Self::MalformedBody(_)
            | Self::InvalidSignature(_)
            | Self::VerifierFailed { .. }
            // Each variant is named, so that a new one cannot pass for verified, and be logged without a throttle.
            | Self::InvalidChallenge(_) => false,
            Self::UnsupportedMediaType
            | Self::InvalidEventHeader
            | Self::UnreadableEvent(_)
            | Self::ConflictingKeys
            | Self::MissingKey => true,
        }
    }
}

impl Answer for Refusal {
    #[rustfmt::skip]
    fn row(&self) -> Row {
        match self {
            Self::MethodNotAllowed     => row!("method-not-allowed", METHOD_NOT_ALLOWED 405 "Method Not Allowed", "Deliveries are sent with POST."),
            Self::BodyTooLarge { .. }  => row!("body-too-large", PAYLOAD_TOO_LARGE 413 "Payload Too Large", "The body is larger than this receiver accepts."),
            Self::Overloaded { .. }    => row!("overloaded", SERVICE_UNAVAILABLE 503 "Service Unavailable", "Too many bodies are being received at once."),
            Self::BodyTimeout { .. }   => row!("body-timeout", REQUEST_TIMEOUT 408 "Request Timeout", "The body did not arrive in time."),
            Self::MalformedBody(_)     => row!("malformed-body", BAD_REQUEST 400 "Bad Request", "The body broke off or contradicts its headers."),
            Self::InvalidSignature(_)  => row!("invalid-signature", UNAUTHORIZED 401 "Unauthorized", "The signature header does not prove that the body is authentic."),
            Self::VerifierFailed { .. } => row!("verifier-failed", SERVICE_UNAVAILABLE 503 "Service Unavailable", "The delivery cannot be verified at the moment."),
            Self::InvalidChallenge(_)  => row!("invalid-challenge", FORBIDDEN 403 "Forbidden", "The challenge carries another token, nothing that may be echoed, or a secret that nobody asks for."),
            Self::UnsupportedMediaType => row!("unsupported-media-type", UNSUPPORTED_MEDIA_TYPE 415 "Unsupported Media Type", "A delivery is `application/json` without a content encoding."),
            Self::InvalidEventHeader   => row!("invalid-event-header", BAD_REQUEST 400 "Bad Request", "The event header must occur exactly once and be a token of at most 128 bytes."),
            Self::UnreadableEvent(_)   => row!("unreadable-event", BAD_REQUEST 400 "Bad Request", "The body is not JSON with event type and key where this sender puts them."),
            Self::ConflictingKeys      => row!("conflicting-keys", BAD_REQUEST 400 "Bad Request", "There are several idempotency keys that differ."),
            Self::MissingKey           => row!("missing-key", BAD_REQUEST 400 "Bad Request", "This receiver requires an idempotency key."),
        }
    }

    fn headers(&self, headers: &mut HeaderMap) {
        match self {
            Self::MethodNotAllowed => {
                headers.insert(ALLOW, HeaderValue::from_static("POST"));
            }
            Self::Overloaded { retry_after } | Self::VerifierFailed { retry_after, .. } => {
                insert_retry_after(headers, *retry_after);
            }
            _ => {}
        }
    }

    fn constant(&self) -> Option<&'static SharedError> {
        match self {
            // A flood of forged deliveries ends here, so none of them allocates an error.
            Self::InvalidSignature(error) => Some(match error {
                SignatureError::Missing => &Self::InvalidSignature(SignatureError::Missing),
                SignatureError::Doubled => &Self::InvalidSignature(SignatureError::Doubled),
                SignatureError::Malformed => &Self::InvalidSignature(SignatureError::Malformed),
                SignatureError::Wrong => &Self::InvalidSignature(SignatureError::Wrong),
                SignatureError::Incomplete => &Self::InvalidSignature(SignatureError::Incomplete),
                SignatureError::Timestamp => &Self::InvalidSignature(SignatureError::Timestamp),
                // It says how far the timestamp is off.
                SignatureError::Stale { .. } | SignatureError::Other(_) => return None,
            }),
            _ => None,
        }
    }
}

const CODINGS: [&str; 5] = ["gzip", "br", "deflate", "zstd", "identity"];

/// Whether a text is a media type such as `text/plain`, perhaps with parameters that are short.
fn is_media_type(text: &str) -> bool {
    let is_short = |it: &str| {
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-+.".contains(&byte);
        (1..=40).contains(&it.len()) && it.bytes().all(is_of_name)
    };
    let (media_type, parameters) = text.split_once(';').unwrap_or((text, ""));
    let is_it = media_type.split_once('/');
    parameters.len() <= 40 && is_it.is_some_and(|(of, it)| is_short(of) && is_short(it))
}

/// The head of a request, and whose it should be.
pub(super) type Head<'a> = (&'a Sender, &'a HeaderMap);

/// The reason as the log shows it: more than the sender may know.
struct Reason<'a>(&'a Refusal, Head<'a>);

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Refusal::BodyTooLarge { limit } => write!(f, "more than {limit} bytes"),
            Refusal::BodyTimeout { limit } => write!(f, "not within {limit:?}"),
            Refusal::MalformedBody(error)
            | Refusal::UnreadableEvent(error)
            | Refusal::VerifierFailed { error, .. } => Chain(error.as_ref()).fmt(f),
            Refusal::InvalidSignature(error) => error.fmt(f),
            Refusal::InvalidChallenge(reason) => f.write_str(reason),
            other => f.write_str(other.row().detail.trim_end_matches('.')),
        }?;
        match self.0.found(self.1) {
            Some(found) => write!(f, ": {found}"),
            None => Ok(()),
        }
    }
}

display!(Refusal, |it| it.row().detail);

impl Error for Refusal {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::MalformedBody(error)
            | Self::UnreadableEvent(error)
            | Self::VerifierFailed { error, .. } => Some(error.as_ref()),
            Self::InvalidSignature(error) => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::tests::{CONFIDENTIAL, Documented, SECOND, assert_refused};

    #[tokio::test]
    async fn every_refusal_is_answered_as_documented() {
        let limit = SECOND;
        #[rustfmt::skip]
        let table: [(Refusal, Documented); 13] = [
            (Refusal::MethodNotAllowed, (405, "method-not-allowed", Some(("allow", "POST")))),
            (Refusal::BodyTooLarge { limit: 1 }, (413, "body-too-large", None)),
            (Refusal::Overloaded { retry_after: 600 * SECOND }, (503, "overloaded", Some(("retry-after", "600")))),
            (Refusal::BodyTimeout { limit }, (408, "body-timeout", None)),
            (Refusal::malformed(CONFIDENTIAL), (400, "malformed-body", None)),
            (Refusal::InvalidSignature(SignatureError::Wrong), (401, "invalid-signature", None)),
            (Refusal::VerifierFailed { error: BoxError::from(CONFIDENTIAL).into(), retry_after: 60 * SECOND }, (503, "verifier-failed", Some(("retry-after", "60")))),
            (Refusal::InvalidChallenge(CONFIDENTIAL), (403, "invalid-challenge", None)),
            (Refusal::UnsupportedMediaType, (415, "unsupported-media-type", None)),
            (Refusal::InvalidEventHeader, (400, "invalid-event-header", None)),
            (Refusal::unreadable(CONFIDENTIAL), (400, "unreadable-event", None)),
            (Refusal::ConflictingKeys, (400, "conflicting-keys", None)),
            (Refusal::MissingKey, (400, "missing-key", None)),
        ];
        for (refusal, documented) in table {
            assert_refused(refusal, documented).await;
        }
    }

    #[test]
    fn a_refusal_keeps_its_reason() {
        for (refusal, reason) in [
            (Refusal::malformed("broken"), "broken"),
            (Refusal::unreadable("no JSON"), "no JSON"),
            (
                Refusal::InvalidSignature(SignatureError::Wrong),
                SignatureError::Wrong.as_str(),
            ),
        ] {
            assert_eq!(refusal.source().unwrap().to_string(), reason);
        }
    }

    #[test]
    fn a_constant_refusal_is_equal_to_the_one_it_stands_for() {
        use SignatureError::{Doubled, Incomplete, Malformed, Missing, Timestamp, Wrong};

        for error in [Missing, Doubled, Malformed, Incomplete, Timestamp, Wrong] {
            let constant = Refusal::InvalidSignature(error).constant().unwrap();
            let Some(Refusal::InvalidSignature(found)) = constant.downcast_ref() else {
                panic!("{constant:?}");
            };
            assert_eq!(*found, error);
        }
    }
}
