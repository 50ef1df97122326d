//! Why a query got no answer.

use std::fmt;
use std::time::Duration;

use http::StatusCode;

use super::response::GraphQlError;
use crate::error::BoxError;

/// How many characters of what a server wrote are shown.
pub(super) const EXCERPT: usize = 512;

/// A query got no answer that can be used.
///
/// The access token is in none of it: where the server repeated it, `[redacted]` stands.
#[derive(Debug)]
pub struct AdminError {
    kind: AdminErrorKind,
    source: Option<BoxError>,
}

/// What kind of trouble an [`AdminError`] is.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum AdminErrorKind {
    /// No answer came, or it broke off: no connection, no TLS, or the service below failed.
    Transport,
    /// The answer was not complete within the time limit.
    TimedOut {
        /// The limit.
        limit: Duration,
    },
    /// The answer was no 2xx.
    #[non_exhaustive]
    Status {
        /// The answer's status.
        status: StatusCode,
        /// Where a redirect led. It was not followed.
        location: Option<String>,
        /// The beginning of the body, at most 512 characters, with control characters escaped.
        excerpt: String,
        /// The errors in the body, if it was one of GraphQL.
        errors: Vec<GraphQlError>,
    },
    /// GraphQL reported errors. What data came with them is given by
    /// [`AdminClient::execute`](super::AdminClient::execute).
    GraphQl {
        /// All of them, at least one.
        errors: Vec<GraphQlError>,
    },
    /// There was neither data nor an error.
    NoData,
    /// The answer was no GraphQL response, or its data was not of the type asked for.
    Decode,
    /// The answer was larger than is allowed.
    TooLarge {
        /// The limit in bytes.
        limit: usize,
    },
}

impl AdminError {
    pub(super) fn new(kind: AdminErrorKind) -> Self {
        Self { kind, source: None }
    }

    pub(super) fn with_source(kind: AdminErrorKind, source: BoxError) -> Self {
        Self {
            kind,
            source: Some(source),
        }
    }

    /// What kind of trouble it is.
    #[must_use]
    pub fn kind(&self) -> &AdminErrorKind {
        &self.kind
    }

    /// Whether the same query may get an answer later: after [`Transport`](AdminErrorKind::Transport),
    /// [`TimedOut`](AdminErrorKind::TimedOut), and a status of 408, 425, 429, 500, 502, 503 or 504.
    ///
    /// None of these tells whether a mutation was carried out.
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

    /// What GraphQL reported, whatever the answer's status was.
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
            AdminErrorKind::NoData => f.write_str("the answer holds neither data nor an error"),
            AdminErrorKind::Decode => f.write_str("the answer is not what was asked for"),
            AdminErrorKind::TooLarge { limit } => {
                write!(f, "the answer is larger than {limit} bytes")
            }
        }
    }
}

impl std::error::Error for AdminError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// The beginning of a text, such that it cannot forge lines of a log or the look of a terminal.
pub(super) fn excerpt(text: &str) -> String {
    let mut excerpt = String::new();
    for (length, character) in text.trim().chars().enumerate() {
        if length == EXCERPT {
            excerpt.push('…');
            break;
        }
        // Also what reorders or breaks lines without being a control character.
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
    fn an_excerpt_is_bounded_and_printable() {
        assert_eq!(excerpt(" a \"b\\\" é🧾\n"), "a \"b\\\" é🧾");
        assert_eq!(
            excerpt("a\r\n\x1b[31mb\0\u{85}\u{202e}\u{2028}c"),
            r"a\r\n\u{1b}[31mb\u{0}\u{85}\u{202e}\u{2028}c"
        );
        assert_eq!(excerpt(&"é".repeat(512)), "é".repeat(512));
        assert_eq!(excerpt(&"é".repeat(513)), "é".repeat(512) + "…");
    }

    #[test]
    fn only_what_may_pass_is_retryable() {
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
