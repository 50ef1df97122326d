//! The requests by which a sender asks whether somebody with the secret is there.

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::query::Query;
use super::scheme::{Place, only};
use super::tag::Coding;

/// When a request is a challenge, and its answer.
#[derive(Clone)]
pub(super) struct Challenge {
    pub(super) method: Method,
    pub(super) when: Vec<(Source, Condition)>,
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
    /// It has the user's token in this query parameter.
    Token(String),
    /// Nothing does.
    None,
}

/// Where something stands in a challenge.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Source {
    /// In a POST that is signed, or in a header of another request.
    Place(Place),
    /// In the query parameter of a request that is not signed.
    Query(String),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Condition {
    Is(String),
    /// It is there, whatever it is.
    Present,
}

#[derive(Clone)]
pub(super) enum Answer {
    /// The field as text.
    Raw(Source),
    /// The field in this member of an object.
    Json { source: Source, field: String },
    /// The field in this header.
    Header { source: Source, name: HeaderName },
    /// An object with the HMAC-SHA256 of the field, and perhaps the field.
    Hmac {
        source: Source,
        plain: Option<String>,
        tag: String,
        coding: Coding,
        prefix: String,
    },
    /// The same answer to all challenges.
    Constant {
        status: StatusCode,
        content_type: Option<&'static str>,
        body: Bytes,
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
    /// Boxed, as hardly any has one.
    pub(crate) header: Option<Box<(HeaderName, HeaderValue)>>,
}

impl Reply {
    /// An answer with this status, content type and body. A number that is no status, 100 to 999, becomes 500.
    #[must_use]
    pub fn new(status: u16, content_type: Option<&'static str>, body: impl Into<Bytes>) -> Self {
        Self {
            status: StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            content_type,
            body: body.into(),
            header: None,
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

impl Condition {
    fn holds(&self, found: &[u8]) -> bool {
        match self {
            Self::Is(value) => found == value.as_bytes(),
            Self::Present => true,
        }
    }
}

impl Challenge {
    /// Whether a POST that was verified is one.
    pub(super) fn is_signed(&self, headers: &HeaderMap, body: &[u8]) -> bool {
        let is_there = |(source, condition): &(Source, Condition)| {
            let found = source.in_post(headers, body);
            found.is_some_and(|found| condition.holds(&found))
        };
        // A challenge without a signature has no body: a POST with the same fields is an event.
        matches!(self.proof, Proof::Signature) && self.when.iter().all(is_there)
    }

    /// Whether a request that proved nothing is one: its conditions decide, or without any, what it wants back.
    pub(super) fn is_in(&self, head: &Parts) -> bool {
        let has = |(source, condition): &(Source, Condition)| match (source, condition) {
            (Source::Query(name), Condition::Present) => query(head).has(name),
            (source, condition) => source.in_head(head).is_some_and(|it| condition.holds(&it)),
        };
        let asks = match self.answer.source() {
            Some(Source::Query(name)) => query(head).has(name),
            Some(Source::Place(Place::Header(name))) => head.headers.contains_key(name),
            Some(Source::Place(_)) => false,
            None => head.method != Method::GET || !self.when.is_empty(),
        };
        let is_asked = self.method == head.method
            && !matches!(self.proof, Proof::Signature)
            && self.when.iter().all(has)
            && (asks || !self.when.is_empty());
        // A POST with a body is an event, whose signature was refused.
        is_asked && (head.method != Method::POST || is_empty(&head.headers))
    }

    /// Whether it is asked wherever `other` is.
    pub(super) fn hides(&self, other: &Self) -> bool {
        let is_weaker = |(source, condition): &(Source, Condition)| {
            let mut stronger = other.when.iter();
            stronger.any(|(at, it)| {
                at == source && (it == condition || *condition == Condition::Present)
            })
        };
        let is_signed = |it: &Self| matches!(it.proof, Proof::Signature);
        let wants_same = match self.answer.source() {
            source @ Some(_) if self.when.is_empty() => source == other.answer.source(),
            _ => self.when.iter().all(is_weaker),
        };
        self.method == other.method && is_signed(self) == is_signed(other) && wants_same
    }

    /// The answer to a POST. `None` if there is nothing that may be echoed. `hmac` returns the tag of a text under the
    /// secret that signed the challenge.
    pub(super) fn reply_to_post(
        &self,
        headers: &HeaderMap,
        body: &[u8],
        hmac: impl FnOnce(&[u8]) -> Option<Vec<u8>>,
    ) -> Option<Reply> {
        let find = |source: &Source| source.in_post(headers, body).and_then(echoed);
        self.answer.reply(find, hmac)
    }

    /// The same to a request that is not signed. Without a proof, it becomes a part of JSON, or has an HMAC, only if it can
    /// be no part of a body: otherwise anybody could have bodies signed.
    pub(super) fn reply_to_head(
        &self,
        head: &Parts,
        hmac: impl FnOnce(&[u8]) -> Option<Vec<u8>>,
    ) -> Option<Reply> {
        let is_proved = matches!(self.proof, Proof::Token(_));
        let is_plain = match self.answer {
            Answer::Hmac { .. } => false,
            Answer::Json { .. } => is_proved,
            _ => true,
        };
        // Microsoft Graph asks with a sentence.
        let may_be = match (&self.method, &self.answer) {
            (&Method::POST, Answer::Raw(_)) => sentence,
            _ => echoed,
        };
        let find = |source: &Source| {
            let field = source.in_head(head).and_then(may_be)?;
            (is_plain || field.bytes().all(is_of_token)).then_some(field)
        };
        self.answer.reply(find, hmac)
    }
}

fn query(head: &Parts) -> Query<'_> {
    Query(head.uri.query().unwrap_or_default())
}

/// Whether a request says that it has no body.
pub(super) fn is_empty(headers: &HeaderMap) -> bool {
    only(headers, &CONTENT_LENGTH).is_ok_and(|length| length == b"0")
}

/// Whether it stands in base64 of either alphabet, in hex, or in a UUID: no JSON can be written in these.
fn is_of_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_+/=-".contains(&byte)
}

impl Source {
    pub(super) fn is_header(&self) -> bool {
        matches!(self, Self::Place(Place::Header(_)))
    }

    fn in_post(&self, headers: &HeaderMap, body: &[u8]) -> Option<Vec<u8>> {
        match self {
            Self::Place(Place::Header(name)) => only(headers, name).ok().map(<[u8]>::to_vec),
            Self::Place(Place::Body(pointers)) => {
                // A body that is not JSON is an event, too: the reading of its type refuses it.
                let found = pointers.find(body).ok()??;
                Some(found.into_owned().into_bytes())
            }
            Self::Place(Place::None | Place::Made(_)) | Self::Query(_) => None,
        }
    }

    fn in_head(&self, head: &Parts) -> Option<Vec<u8>> {
        match self {
            Self::Query(name) => query(head).only(name),
            Self::Place(Place::Header(name)) => only(&head.headers, name).ok().map(<[u8]>::to_vec),
            Self::Place(_) => None,
        }
    }
}

impl Challenge {
    /// Whether anybody may have a text signed by it.
    pub(super) fn signs_for_anybody(&self) -> bool {
        matches!(
            (&self.proof, &self.answer),
            (Proof::None, Answer::Hmac { .. })
        )
    }
}

impl Answer {
    /// Where the field stands that it needs.
    fn source(&self) -> Option<&Source> {
        match self {
            Self::Raw(source)
            | Self::Json { source, .. }
            | Self::Header { source, .. }
            | Self::Hmac { source, .. } => Some(source),
            Self::Constant { .. } => None,
        }
    }

    fn reply(
        &self,
        field: impl FnOnce(&Source) -> Option<String>,
        hmac: impl FnOnce(&[u8]) -> Option<Vec<u8>>,
    ) -> Option<Reply> {
        let json = |object: Value| Reply::json(object.to_string());
        Some(match self {
            // Never HTML, since without a proof anybody chooses the text.
            Self::Raw(source) => Reply::text(field(source)?),
            Self::Json {
                source,
                field: name,
            } => json(json!({ name.as_str(): field(source)? })),
            Self::Header { source, name } => {
                let value = HeaderValue::from_str(&field(source)?).ok()?;
                Reply {
                    header: Some(Box::new((name.clone(), value))),
                    ..Reply::new(200, None, Bytes::new())
                }
            }
            Self::Hmac {
                source,
                plain,
                tag,
                coding,
                prefix,
            } => {
                let field = field(source)?;
                let own = format!("{prefix}{}", coding.encode(&hmac(field.as_bytes())?));
                let mut object = Map::new();
                if let Some(plain) = plain {
                    object.insert(plain.clone(), field.into());
                }
                object.insert(tag.clone(), own.into());
                json(object.into())
            }
            Self::Constant {
                status,
                content_type,
                body,
            } => Reply::new(status.as_u16(), *content_type, body.clone()),
        })
    }
}

/// The same with spaces between its words.
fn sentence(field: Vec<u8>) -> Option<String> {
    let is_word = |word: &[u8]| !word.is_empty() && word.iter().all(u8::is_ascii_graphic);
    let may_be = field.len() <= LONGEST && field.split(|&byte| byte == b' ').all(is_word);
    may_be.then(|| String::from_utf8(field).ok()).flatten()
}

/// The field, if it is short and visible ASCII, so that it cannot become anything else in the answer.
pub(super) fn echoed(field: Vec<u8>) -> Option<String> {
    let may_be = (1..=LONGEST).contains(&field.len()) && field.iter().all(u8::is_ascii_graphic);
    may_be.then(|| String::from_utf8(field).ok()).flatten()
}
