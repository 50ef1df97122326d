//! Errors of a query.

use std::fmt;
use std::time::{Duration, SystemTime};

use http::StatusCode;
use http::header::{DATE, HeaderMap, RETRY_AFTER};

use super::BoxError;
use super::response::GraphQlError;

/// How many characters of a server's text are shown.
pub(super) const EXCERPT: usize = 512;

/// The longest delay of `Retry-After`, as for other headers in seconds (RFC 9111, section 1.2.2).
const LONGEST: Duration = Duration::from_secs(1 << 31);

/// The error of a query: no usable response was received.
///
/// It never contains the [`AccessToken`](super::AccessToken): where the server repeated it, the error
/// shows `[redacted]`.
///
/// ```
/// use tower_webhook_admin::{AdminClient, AdminErrorKind};
///
/// async fn chat_is_available(admin: &AdminClient) -> anyhow::Result<bool> {
///     match admin.chat_is_available().await {
///         Ok(is_available) => Ok(is_available),
///         Err(error) if error.is_retryable() => Ok(false),
///         Err(error) => match error.kind() {
///             AdminErrorKind::Status { status, .. } if *status == 401 => {
///                 anyhow::bail!("the access token was revoked")
///             }
///             _ => Err(error.into()),
///         },
///     }
/// }
/// ```
#[derive(Debug)]
pub struct AdminError {
    kind: AdminErrorKind,
    source: Option<BoxError>,
    retry_after: Option<Duration>,
}

/// The category of an [`AdminError`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum AdminErrorKind {
    /// No complete response was received: the connection, TLS or the underlying service failed.
    Transport,
    /// The response was not complete within the [timeout](super::AdminClient::timeout).
    TimedOut {
        /// The limit.
        limit: Duration,
    },
    /// The response's status was not 2xx.
    #[non_exhaustive]
    Status {
        /// The response's status.
        status: StatusCode,
        /// The target of a redirect, which was not followed.
        location: Option<String>,
        /// The beginning of the body, at most 512 characters, with control characters escaped.
        excerpt: String,
        /// The errors in the body, if it was a GraphQL response.
        errors: Vec<GraphQlError>,
    },
    /// GraphQL reported errors. [`AdminClient::execute`](super::AdminClient::execute) returns partial
    /// data with them.
    GraphQl {
        /// The errors; at least one.
        errors: Vec<GraphQlError>,
    },
    /// The response had neither data nor errors.
    NoData,
    /// The response was not a GraphQL response, or its data did not decode into the requested type.
    Decode,
    /// The response was larger than [allowed](super::AdminClient::max_response).
    TooLarge {
        /// The limit in bytes.
        limit: usize,
    },
}

impl AdminError {
    pub(super) fn new(kind: AdminErrorKind) -> Self {
        Self {
            kind,
            source: None,
            retry_after: None,
        }
    }

    pub(super) fn with_source(kind: AdminErrorKind, source: BoxError) -> Self {
        Self {
            source: Some(source),
            ..Self::new(kind)
        }
    }

    /// Keeps the `Retry-After` of a 429 or 503 response.
    pub(super) fn with_retry_after(mut self, headers: &HeaderMap) -> Self {
        if let AdminErrorKind::Status { status, .. } = &self.kind
            && matches!(status.as_u16(), 429 | 503)
        {
            self.retry_after = retry_after(headers, SystemTime::now());
        }
        self
    }

    /// Returns the category of this error.
    #[must_use]
    pub fn kind(&self) -> &AdminErrorKind {
        &self.kind
    }

    /// Returns whether the same query may succeed later: after
    /// [`Transport`](AdminErrorKind::Transport), [`TimedOut`](AdminErrorKind::TimedOut), and a
    /// [`Status`](AdminErrorKind::Status) of 408, 425, 429, 500, 502, 503 or 504.
    ///
    /// A mutation may have been executed despite the error.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match &self.kind {
            AdminErrorKind::Transport | AdminErrorKind::TimedOut { .. } => true,
            AdminErrorKind::Status { status, .. } => {
                matches!(status.as_u16(), 408 | 425 | 429 | 500 | 502 | 503 | 504)
            }
            _ => false,
        }
    }

    /// Returns the delay after which the server asks to send the query again: the `Retry-After` header of
    /// a response with the status 429 or 503, in seconds or as a date.
    ///
    /// A date in the past is a delay of zero. A value that is neither is ignored. The server chooses the
    /// delay, which may be up to 2^31 seconds (68 years), so limit it:
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_webhook::HandlerError;
    /// use tower_webhook_admin::AdminError;
    ///
    /// fn to_handler_error(error: AdminError) -> HandlerError {
    ///     match error.retry_after() {
    ///         Some(delay) => HandlerError::retry_after(delay.min(Duration::from_secs(3_600)), error),
    ///         None => error.into(),
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Returns the errors that GraphQL reported, whatever the response's status was.
    #[must_use]
    pub fn graphql_errors(&self) -> &[GraphQlError] {
        match &self.kind {
            AdminErrorKind::Status { errors, .. } | AdminErrorKind::GraphQl { errors } => errors,
            _ => &[],
        }
    }
}

impl fmt::Display for AdminError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            AdminErrorKind::Transport => f.write_str("the Admin API could not be reached"),
            AdminErrorKind::TimedOut { limit } => {
                write!(f, "the Admin API did not answer within {limit:?}")
            }
            AdminErrorKind::Status {
                status,
                location,
                excerpt,
                ..
            } => {
                write!(f, "the Admin API answered {status}")?;
                if let Some(delay) = self.retry_after {
                    write!(f, ", to be retried after {} s", delay.as_secs())?;
                }
                match location {
                    Some(location) => write!(
                        f,
                        ", a redirect to `{location}`, which is not followed because the access \
                         token would go there too: correct the base URL"
                    ),
                    None if excerpt.is_empty() => Ok(()),
                    None => write!(f, ": {excerpt}"),
                }
            }
            AdminErrorKind::GraphQl { errors } => {
                f.write_str("the query failed")?;
                if let Some(first) = errors.first() {
                    write!(f, ": {}", excerpt(&first.to_string()))?;
                }
                match errors.len() {
                    0 | 1 => Ok(()),
                    all => write!(f, ", and {} more", all - 1),
                }
            }
            AdminErrorKind::NoData => f.write_str("the response has neither data nor errors"),
            AdminErrorKind::Decode => f.write_str("the response cannot be decoded"),
            AdminErrorKind::TooLarge { limit } => {
                write!(f, "the response is larger than {limit} bytes")
            }
        }
    }
}

impl std::error::Error for AdminError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// Reads `Retry-After` (RFC 9110, section 10.2.3). A date counts from the response's `Date`, by the same
/// clock, else from `now`.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name| headers.get(name)?.to_str().ok().map(str::trim);
    let date = |name| httpdate::parse_http_date(text(name)?).ok();
    let value = text(RETRY_AFTER)?;
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let delay = if is_number {
        // It fails only if the number is too large.
        value.parse().map_or(LONGEST, Duration::from_secs)
    } else {
        let sent = date(DATE).unwrap_or(now);
        date(RETRY_AFTER)?.duration_since(sent).unwrap_or_default()
    };
    Some(delay.min(LONGEST))
}

/// Returns the beginning of a text with escapes, so that it can neither forge lines of a log nor control
/// a terminal.
pub(super) fn excerpt(text: &str) -> String {
    let mut excerpt = String::new();
    for (length, character) in text.trim().chars().enumerate() {
        if length == EXCERPT {
            excerpt.push('…');
            break;
        }
        // These reorder text or break lines, and are not control characters.
        match character {
            '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                excerpt.extend(character.escape_unicode());
            }
            _ if character.is_control() => excerpt.extend(character.escape_default()),
            _ => excerpt.push(character),
        }
    }
    excerpt
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excerpt_is_bounded_and_printable() {
        assert_eq!(excerpt(" a \"b\\\" é🧾\n"), "a \"b\\\" é🧾");
        assert_eq!(
            excerpt("a\r\n\x1b[31mb\0\u{85}\u{202e}\u{2028}c"),
            r"a\r\n\u{1b}[31mb\u{0}\u{85}\u{202e}\u{2028}c"
        );
        assert_eq!(excerpt(&"é".repeat(512)), "é".repeat(512));
        assert_eq!(excerpt(&"é".repeat(513)), "é".repeat(512) + "…");
    }

    #[test]
    fn retry_after_is_a_number_of_seconds_or_a_date() {
        let now = httpdate::parse_http_date("Sun, 22 Nov 2026 12:00:00 GMT").unwrap();
        let later = "Sun, 22 Nov 2026 12:01:30 GMT";
        for (value, date, seconds) in [
            ("0", None, Some(0)),
            ("120", None, Some(120)),
            (" 7 ", None, Some(7)),
            ("99999999999999999999999", None, Some(1 << 31)),
            ("2147483649", None, Some(1 << 31)),
            (later, None, Some(90)),
            (later, Some("Sun, 22 Nov 2026 12:01:00 GMT"), Some(30)),
            (later, Some("yesterday"), Some(90)),
            ("Sunday, 22-Nov-26 12:01:30 GMT", None, Some(90)),
            ("Sun, 22 Nov 2026 11:59:59 GMT", None, Some(0)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", None, Some(1 << 31)),
            ("", None, None),
            ("-1", None, None),
            ("+1", None, None),
            ("1.5", None, None),
            ("soon", None, None),
            ("\u{fc}", None, None),
        ] {
            let mut headers = HeaderMap::new();
            let header = |text: &str| http::HeaderValue::from_bytes(text.as_bytes()).unwrap();
            headers.insert(RETRY_AFTER, header(value));
            headers.extend(date.map(|date| (DATE, header(date))));
            let expected = seconds.map(Duration::from_secs);
            assert_eq!(retry_after(&headers, now), expected, "{value}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }

    #[test]
    fn only_transient_errors_are_retryable() {
        let status = |code| AdminErrorKind::Status {
            status: StatusCode::from_u16(code).unwrap(),
            location: None,
            excerpt: String::new(),
            errors: Vec::new(),
        };
        let limit = Duration::from_secs(1);
        for kind in [
            AdminErrorKind::Transport,
            AdminErrorKind::TimedOut { limit },
        ]
        .into_iter()
        .chain([408, 425, 429, 500, 502, 503, 504].map(status))
        {
            assert!(AdminError::new(kind.clone()).is_retryable(), "{kind:?}");
        }
        let errors = vec![GraphQlError::default()];
        for kind in [
            AdminErrorKind::GraphQl { errors },
            AdminErrorKind::NoData,
            AdminErrorKind::Decode,
            AdminErrorKind::TooLarge { limit: 1 },
        ]
        .into_iter()
        .chain([301, 307, 400, 401, 403, 404, 422, 501, 505].map(status))
        {
            assert!(!AdminError::new(kind.clone()).is_retryable(), "{kind:?}");
        }
    }
}
