//! The requests by which a sender asks whether somebody with the secret is there.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::query::Query;
use super::scheme::{Place, only};

/// When a request is a challenge, and its answer.
#[derive(Clone)]
pub(super) struct Challenge {
    pub(super) when: Vec<(Source, String)>,
    pub(super) proof: Proof,
    pub(super) answer: Answer,
}

/// What shows that the sender asks.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) enum Proof {
    #[default]
    /// It is a POST that was verified before.
    Signature,
    /// It is a GET with the user's token in this query parameter.
    Token(String),
    /// It is a GET.
    None,
}

/// Where something stands in a challenge.
#[derive(Clone)]
pub(super) enum Source {
    /// In a POST.
    Place(Place),
    /// In the query parameter of a GET.
    Query(String),
}

#[derive(Clone)]
pub(super) enum Answer {
    /// The field as text.
    Raw(Source),
    /// The field in this member of an object.
    Json { source: Source, field: String },
    /// The field, and its HMAC-SHA256 in hex.
    Hmac {
        source: Source,
        plain: String,
        tag: String,
    },
    /// The same for every challenge.
    Constant {
        status: StatusCode,
        body: Option<Value>,
    },
}

/// An answer of a [`Verifier`](crate::signature::Verifier): to a challenge, or to each success.
///
/// It also has the header `X-Content-Type-Options: nosniff`, so that no browser takes an echoed text for HTML.
///
/// ```
/// use tower_webhook::signature::Reply;
///
/// let reply = Reply::new(200, Some("text/xml"), "<Response/>");
/// ```
#[derive(Clone, Debug)]
pub struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) content_type: Option<&'static str>,
    pub(crate) body: Bytes,
}

impl Reply {
    /// An answer with this status, content type and body. A number that is no status, 100 to 999, becomes 500.
    #[must_use]
    pub fn new(status: u16, content_type: Option<&'static str>, body: impl Into<Bytes>) -> Self {
        Self {
            status: StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            content_type,
            body: body.into(),
        }
    }

    /// 200 with this text as `text/plain`.
    #[must_use]
    pub fn text(text: impl Into<Bytes>) -> Self {
        Self::new(200, Some("text/plain"), text)
    }

    /// 200 with this text as `application/json`.
    #[must_use]
    pub fn json(text: impl Into<Bytes>) -> Self {
        Self::new(200, Some("application/json"), text)
    }
}

/// The longest field that is echoed.
const LONGEST: usize = 512;

impl Challenge {
    /// Whether a POST that was verified is one.
    pub(super) fn is_signed(&self, headers: &HeaderMap, body: &[u8]) -> bool {
        let is_there = |(source, value): &(Source, String)| {
            let found = source.in_post(headers, body);
            found.is_some_and(|found| found == value.as_bytes())
        };
        // A challenge without a signature is a GET: a POST with the same fields is an event.
        matches!(self.proof, Proof::Signature) && self.when.iter().all(is_there)
    }

    /// Whether a GET is one: its conditions decide, or without any, what it wants back.
    pub(super) fn is_in(&self, query: &Query<'_>) -> bool {
        let is_there = |(source, value): &(Source, String)| match source {
            Source::Query(name) => query.only(name).is_some_and(|it| it == value.as_bytes()),
            Source::Place(_) => false,
        };
        let asks = match &self.answer {
            Answer::Raw(Source::Query(name))
            | Answer::Json {
                source: Source::Query(name),
                ..
            } => query.has(name),
            _ => false,
        };
        let is_get = !matches!(self.proof, Proof::Signature);
        is_get && self.when.iter().all(is_there) && (asks || !self.when.is_empty())
    }

    /// The answer to a POST. `None` if there is nothing that may be echoed. `hmac` returns the tag of a text under the
    /// secret that signed the challenge.
    pub(super) fn reply_to_post(
        &self,
        headers: &HeaderMap,
        body: &[u8],
        hmac: impl FnOnce(&[u8]) -> Option<String>,
    ) -> Option<Reply> {
        self.answer
            .reply(|source| source.in_post(headers, body), hmac)
    }

    /// The same to a GET. It has no HMAC, since anybody could have bodies signed by it.
    pub(super) fn reply_to_get(&self, query: &Query<'_>) -> Option<Reply> {
        let find = |source: &Source| match source {
            Source::Query(name) => query.only(name),
            Source::Place(_) => None,
        };
        self.answer.reply(find, |_| None)
    }
}

impl Source {
    fn in_post(&self, headers: &HeaderMap, body: &[u8]) -> Option<Vec<u8>> {
        match self {
            Self::Place(Place::Header(name)) => only(headers, name).ok().map(<[u8]>::to_vec),
            Self::Place(Place::Body(pointers)) => {
                // A body that is not JSON is an event, too: the reading of its type refuses it.
                let found = pointers.find(body).ok()??;
                Some(found.into_owned().into_bytes())
            }
            Self::Place(Place::None) | Self::Query(_) => None,
        }
    }
}

impl Answer {
    fn reply(
        &self,
        find: impl FnOnce(&Source) -> Option<Vec<u8>>,
        hmac: impl FnOnce(&[u8]) -> Option<String>,
    ) -> Option<Reply> {
        let field = |source: &Source| find(source).and_then(echoed);
        let object = match self {
            Self::Raw(source) => {
                return Some(Reply {
                    status: StatusCode::OK,
                    // Never HTML, since without a proof anybody chooses the text.
                    content_type: Some("text/plain"),
                    body: field(source)?.into(),
                });
            }
            Self::Json {
                source,
                field: name,
            } => json!({ name.as_str(): field(source)? }),
            Self::Hmac { source, plain, tag } => {
                let field = field(source)?;
                let own = hmac(field.as_bytes())?;
                json!({ plain.as_str(): field, tag.as_str(): own })
            }
            Self::Constant { status, body } => {
                return Some(Reply {
                    status: *status,
                    content_type: body.as_ref().map(|_| "application/json"),
                    body: body
                        .as_ref()
                        .map(Value::to_string)
                        .unwrap_or_default()
                        .into(),
                });
            }
        };
        Some(Reply {
            status: StatusCode::OK,
            content_type: Some("application/json"),
            body: object.to_string().into(),
        })
    }
}

/// The field, if it is short and visible ASCII, so that it cannot become anything else in the answer.
fn echoed(field: Vec<u8>) -> Option<String> {
    let may_be = (1..=LONGEST).contains(&field.len()) && field.iter().all(u8::is_ascii_graphic);
    may_be.then(|| String::from_utf8(field).ok()).flatten()
}
