//! What a sender signs, and what the head of a request claims.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use serde::Deserialize;
use serde_json::Value;

use super::error::SignatureError;
use super::pointer::Pointers;
use super::rare::Rare;
use super::tag::MOST_TAGS;
pub(crate) use super::tag::{Algorithm, Coding, TOKEN, Tag, Tags};
pub(crate) use super::timestamp::Unit;
use crate::event::EventKind;

/// How one sender signs, and where key and event type stand.
#[derive(Clone, Debug)]
pub(crate) struct Scheme {
    pub(super) headers: Vec<HeaderName>,
    pub(super) split: Option<u8>,
    pub(super) prefix: String,
    pub(crate) algorithm: Algorithm,
    /// `None` for a token.
    pub(super) coding: Option<Coding>,
    pub(super) before: Vec<Piece>,
    pub(super) after: Vec<Piece>,
    pub(super) timestamp: Option<Timestamps>,
    pub(super) require: Vec<(HeaderName, HeaderValue)>,
    pub(crate) secret: SecretCoding,
    /// Empty for a sender without keys. Several are one key together.
    pub(crate) key: Vec<Place>,
    pub(crate) kind: Place,
    /// What only few senders have.
    pub(super) rare: Option<Box<Rare>>,
}

/// How a secret is written.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SecretCoding {
    #[default]
    Text,
    /// After `whsec_`, if that stands there.
    Base64,
    Hex,
    /// Either counts, because the sender has changed its mind.
    TextOrBase64,
}

/// Where a key or an event type stands.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Place {
    None,
    Header(HeaderName),
    Body(Pointers),
    /// An event type that is put together.
    Made(Box<Made>),
}

/// An event type of several texts, or which may be missing.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Made {
    pub(crate) parts: Vec<Place>,
    /// What stands between them.
    pub(crate) with: String,
    /// In place of a missing type.
    pub(crate) default: Option<EventKind>,
}

impl Place {
    pub(super) fn header(&self) -> Option<&HeaderName> {
        match self {
            Self::Header(name) => Some(name),
            _ => None,
        }
    }
}

/// A part of what is signed.
#[derive(Clone, Debug)]
pub(crate) enum Piece {
    Text(String),
    Header(HeaderName),
    Element(String),
    Method,
}

#[derive(Clone, Debug)]
pub(crate) struct Timestamps {
    pub(super) at: At,
    pub(super) unit: Unit,
    pub(super) past: Duration,
    pub(super) ahead: Duration,
}

#[derive(Clone, Debug)]
pub(super) enum At {
    Header(HeaderName),
    Element(String),
    Body(Pointers),
}

/// What the head of a request claims: the tags, and what is signed around the body.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) tags: Tags,
    /// Before and after it. Boxed, since many sign the body alone, and a claim is moved with the state of a request.
    around: Option<Box<Around>>,
}

#[derive(Debug, Default)]
struct Around {
    before: Vec<u8>,
    after: Vec<u8>,
    /// Of further lists of elements, of which one is enough.
    others: Vec<Claim>,
    /// Of further elements of an array, each of which must be right.
    every: Vec<Claim>,
}

/// The head of a request. The target is known where a request is received.
#[derive(Clone, Copy)]
pub(crate) struct Head<'a> {
    pub(crate) method: &'a Method,
    pub(crate) uri: Option<&'a Uri>,
    pub(crate) headers: &'a HeaderMap,
}

impl<'a> Head<'a> {
    /// Of a POST.
    pub(crate) fn of_post(uri: Option<&'a Uri>, headers: &'a HeaderMap) -> Self {
        let method = &Method::POST;
        Self {
            method,
            uri,
            headers,
        }
    }
}

impl Claim {
    /// What a signature of the body alone claims, in the chat platform's form: 64 lowercase hex digits.
    pub(crate) fn of_body(signature: &[u8]) -> Result<Self, SignatureError> {
        let tag = Tag::decode(signature, Algorithm::HmacSha256, Some(Coding::Hex));
        Ok(Self {
            tags: Tags::One(tag.ok_or(SignatureError::Malformed)?),
            around: None,
        })
    }

    /// What a tag in base64 claims, of a text that is none of a description.
    pub(crate) fn in_base64(tag: &[u8], algorithm: Algorithm) -> Result<Self, SignatureError> {
        let tag = Tag::decode(tag, algorithm, Some(Coding::Base64));
        Ok(Self {
            tags: Tags::One(tag.ok_or(SignatureError::Malformed)?),
            around: None,
        })
    }

    /// The same tags, around which something else is signed.
    pub(crate) fn around(&self, before: Vec<u8>, after: Vec<u8>) -> Self {
        Self {
            tags: self.tags.clone(),
            around: Some(Box::new(Around {
                before,
                after,
                ..Around::default()
            })),
        }
    }

    #[inline]
    pub(crate) fn before(&self) -> &[u8] {
        self.around.as_ref().map_or(b"", |around| &around.before)
    }

    #[inline]
    pub(crate) fn after(&self) -> &[u8] {
        self.around.as_ref().map_or(b"", |around| &around.after)
    }

    #[inline]
    pub(crate) fn others(&self) -> &[Self] {
        self.around.as_ref().map_or(&[], |around| &around.others)
    }

    #[inline]
    pub(crate) fn every(&self) -> &[Self] {
        self.around.as_ref().map_or(&[], |around| &around.every)
    }

    /// Adds tokens that stand in the body, which all must be right.
    pub(crate) fn add(&mut self, tokens: Vec<Tag>) {
        let mut claims = tokens.into_iter().map(|tag| Self {
            tags: Tags::One(tag),
            around: None,
        });
        if let Some(first) = claims.next() {
            self.tags = first.tags;
        }
        let every: Vec<_> = claims.collect();
        if !every.is_empty() {
            self.around.get_or_insert_default().every = every;
        }
    }

    pub(super) fn with_others(mut self, others: Vec<Self>) -> Self {
        self.around.get_or_insert_default().others = others;
        self
    }
}

impl Scheme {
    /// Whether one of its signature headers is there.
    pub(super) fn is_in(&self, headers: &HeaderMap) -> bool {
        self.headers.iter().any(|name| headers.contains_key(name))
    }

    /// The elements of the signature header that are signed or say when.
    pub(super) fn elements(&self) -> impl Iterator<Item = &str> {
        let pieces = self.before.iter().chain(&self.after);
        let signed = pieces.filter_map(|piece| match piece {
            Piece::Element(name) => Some(name.as_str()),
            _ => None,
        });
        let time = self.timestamp.iter().filter_map(|it| match &it.at {
            At::Element(name) => Some(name.as_str()),
            _ => None,
        });
        signed.chain(time)
    }

    /// Whether a header is signed, and alone but for the timestamp: of two texts in a row, an attacker could move the
    /// boundary.
    fn signs(&self, header: &HeaderName) -> bool {
        // A moved boundary would change the time, too, which must keep its form and lie within its window.
        let mut free = self.free().filter(|piece| !self.is_time(piece));
        let first = free.next();
        let is_it = matches!(first, Some(Piece::Header(name)) if name == header);
        is_it && free.next().is_none()
    }

    /// Whether what stands there cannot be changed without the secret.
    pub(super) fn covers(&self, place: &Place) -> bool {
        match place {
            Place::None | Place::Made(_) => false,
            Place::Header(name) => self.signs(name),
            Place::Body(_) => true,
        }
    }

    /// Whether the timestamp is signed, or none is needed.
    pub(super) fn signs_time(&self) -> bool {
        match self.timestamp.as_ref().map(|it| &it.at) {
            None => true,
            // Whoever has the token writes any time beside it.
            Some(_) if self.algorithm == Algorithm::Token => false,
            Some(At::Body(_)) => true,
            Some(_) => self.free().any(|piece| self.is_time(piece)),
        }
    }

    /// What is signed that a request names itself.
    fn free(&self) -> impl Iterator<Item = &Piece> {
        let pieces = self.before.iter().chain(&self.after);
        pieces.filter(|piece| matches!(piece, Piece::Header(_) | Piece::Element(_)))
    }

    fn is_time(&self, piece: &Piece) -> bool {
        match (piece, self.timestamp.as_ref().map(|it| &it.at)) {
            (Piece::Header(name), Some(At::Header(time))) => name == time,
            (Piece::Element(name), Some(At::Element(time))) => name == time,
            _ => false,
        }
    }

    /// Reads the head of a request, and refuses a head that cannot prove anything. Most senders need no `now`.
    #[inline]
    pub(super) fn claim(
        &self,
        head: Head<'_>,
        now: impl Fn() -> SystemTime,
    ) -> Result<Claim, SignatureError> {
        match &self.rare {
            None => self.claim_of(self.elements_of(head.headers)?, head, now),
            Some(rare) => self.rare_claim(rare, head, &now),
        }
    }

    /// The same, of the elements of its signature headers.
    #[inline]
    pub(super) fn claim_of(
        &self,
        read: Elements<'_>,
        head: Head<'_>,
        now: impl Fn() -> SystemTime,
    ) -> Result<Claim, SignatureError> {
        let Head {
            method, headers, ..
        } = head;
        for (name, value) in &self.require {
            if only(headers, name)? != value.as_bytes() {
                return Err(SignatureError::Incomplete);
            }
        }
        let mut time = None;
        if let Some(timestamps) = &self.timestamp {
            match &timestamps.at {
                At::Header(name) => {
                    let value = only(headers, name).map_err(|_| SignatureError::Timestamp)?;
                    timestamps.check(value, now())?;
                    time = Some((name, value));
                }
                // The clock is read only here and above, since most senders sign no time.
                At::Element(name) => {
                    let value = read.source(name).map_err(|_| SignatureError::Timestamp)?;
                    timestamps.check(value, now())?;
                }
                // The body has not arrived yet: `check_body` follows after its verification.
                At::Body(_) => {}
            }
        }
        let write = |pieces: &[Piece]| -> Result<Vec<u8>, SignatureError> {
            // At once as much as nearly all need.
            let mut text = Vec::with_capacity(if pieces.is_empty() { 0 } else { 128 });
            for piece in pieces {
                text.extend_from_slice(match piece {
                    Piece::Text(text) => text.as_bytes(),
                    Piece::Header(name) => match time {
                        // It was looked up for its check above.
                        Some((at, value)) if at == name => value,
                        _ => only(headers, name)?,
                    },
                    Piece::Element(name) => read.source(name)?,
                    Piece::Method => method.as_str().as_bytes(),
                });
            }
            Ok(text)
        };
        let around = match (&self.before[..], &self.after[..]) {
            ([], []) => None,
            (before, after) => Some(Box::new(Around {
                before: write(before)?,
                after: write(after)?,
                ..Around::default()
            })),
        };
        Ok(Claim {
            tags: read.tags,
            around,
        })
    }

    /// Whether something of it stands in the body.
    #[inline]
    pub(crate) fn reads_body(&self) -> bool {
        let time = self.timestamp.as_ref();
        time.is_some_and(|it| matches!(it.at, At::Body(_))) || self.has_token_in_body()
    }

    /// The timestamp, if it stands in the body.
    pub(crate) fn body_time(&self) -> Option<&Timestamps> {
        let time = self.timestamp.as_ref();
        time.filter(|it| matches!(it.at, At::Body(_)))
    }

    /// Checks a timestamp that stands in the verified body.
    pub(crate) fn check_body(&self, body: &[u8], now: SystemTime) -> Result<(), SignatureError> {
        let time = self.timestamp.as_ref();
        time.map_or(Ok(()), |time| time.check_body(body, now))
    }

    #[inline]
    pub(super) fn elements_of<'a>(
        &self,
        headers: &'a HeaderMap,
    ) -> Result<Elements<'a>, SignatureError> {
        let mut read = Elements::default();
        let mut is_missing = true;
        for name in &self.headers {
            let mut values = headers.get_all(name).iter();
            // One header is enough, such as Box's primary signature without the secondary one.
            let Some(value) = values.next() else { continue };
            is_missing = false;
            if values.next().is_some() {
                return Err(SignatureError::Doubled);
            }
            match self.split {
                None => self.element(value.as_bytes(), &mut read)?,
                Some(split) => {
                    let mut elements = value.as_bytes().split(|&byte| byte == split);
                    elements.try_for_each(|element| self.element(element, &mut read))?;
                }
            }
        }
        match read.tags {
            Tags::None if is_missing => Err(SignatureError::Missing),
            Tags::None => Err(SignatureError::Malformed),
            _ => Ok(read),
        }
    }

    pub(super) fn element<'a>(
        &self,
        element: &'a [u8],
        read: &mut Elements<'a>,
    ) -> Result<(), SignatureError> {
        if let Some(tag) = element.strip_prefix(self.prefix.as_bytes()) {
            let tag = Tag::decode(tag, self.algorithm, self.coding);
            let most = MOST_TAGS.max(self.headers.len());
            return read.tags.push(tag.ok_or(SignatureError::Malformed)?, most);
        }
        let Some(at) = element.iter().position(|&byte| byte == b'=') else {
            // In a list, a piece without a name is skipped. A value alone must be a tag.
            return self.split.map(drop).ok_or(SignatureError::Malformed);
        };
        let (name, value) = (&element[..at], &element[at + 1..]);
        if self.split.is_none() {
            return Err(SignatureError::Malformed);
        }
        // Other elements are not kept, such as `v1a` beside `v1`: a header of many costs no memory.
        if self.elements().any(|source| source.as_bytes() == name) {
            // Two values for one element would leave open which one the sender signed.
            if read.sources.iter().any(|(other, _)| *other == name) {
                return Err(SignatureError::Doubled);
            }
            read.sources.push((name, value));
        }
        Ok(())
    }

    /// Adds the headers that a delivery has before it is signed: constants, and the time if it is not there.
    pub(crate) fn prepare(&self, headers: &mut HeaderMap, now: SystemTime) {
        for (name, value) in &self.require {
            headers.entry(name).or_insert_with(|| value.clone());
        }
        if let Some(Timestamps {
            at: At::Header(name),
            unit,
            ..
        }) = &self.timestamp
            && let Ok(time) = HeaderValue::from_str(&unit.write(millis(now)))
        {
            // The time of the delivery itself stays, as its other headers do.
            headers.entry(name).or_insert(time);
        }
    }

    /// What is signed before and after the body, as the sender has it, and the elements of the header before the tag.
    /// `None` if a header is missing that is signed.
    pub(crate) fn signed(&self, headers: &HeaderMap, now: SystemTime) -> Option<[Vec<u8>; 2]> {
        let time = self.time(now);
        let write = |pieces: &[Piece]| -> Option<Vec<u8>> {
            let mut text = Vec::new();
            for piece in pieces {
                text.extend_from_slice(match piece {
                    Piece::Text(text) => text.as_bytes(),
                    Piece::Header(name) => only(headers, name).ok()?,
                    // Of the time or of anything else: `header` writes the same.
                    Piece::Element(_) => time.as_bytes(),
                    Piece::Method => b"POST",
                });
            }
            Some(text)
        };
        Some([write(&self.before)?, write(&self.after)?])
    }

    /// The signature header with this tag. `None` if it stands elsewhere.
    pub(crate) fn header(&self, tag: &[u8], now: SystemTime) -> Option<(&HeaderName, HeaderValue)> {
        let tag = self.written(tag)?;
        let mut value = String::new();
        // The verification accepts any order. The tag comes last, as Stripe and Paddle send it.
        for element in self.elements().collect::<BTreeSet<_>>() {
            let split = char::from(self.split?);
            value += &format!("{element}={}{split}", self.time(now));
        }
        value += &self.prefix;
        value += &tag;
        Some((self.headers.first()?, HeaderValue::from_str(&value).ok()?))
    }

    /// A tag as the header has it, without its prefix.
    pub(crate) fn written(&self, tag: &[u8]) -> Option<String> {
        match self.coding {
            None => String::from_utf8(tag.to_vec()).ok(),
            Some(coding) => Some(coding.encode(tag)),
        }
    }

    /// Whether a text is a tag as the header has it.
    pub(super) fn decodes(&self, tag: &[u8]) -> bool {
        Tag::decode(tag, self.algorithm, self.coding).is_some()
    }

    pub(crate) fn is_token(&self) -> bool {
        self.algorithm == Algorithm::Token
    }

    /// The time, if it stands in the body, as the sender writes it.
    pub(super) fn time_in_body(&self, now: SystemTime) -> Option<(&Pointers, Value)> {
        let time = self.timestamp.as_ref()?;
        let At::Body(pointers) = &time.at else {
            return None;
        };
        let text = time.unit.write(millis(now));
        let value = text
            .parse::<i64>()
            .map_or_else(|_| Value::from(text), Value::from);
        Some((pointers, value))
    }

    fn time(&self, now: SystemTime) -> String {
        let unit = self.timestamp.as_ref().map_or(Unit::Seconds, |it| it.unit);
        unit.write(millis(now))
    }
}

/// What the signature headers of a request hold.
#[derive(Default)]
pub(super) struct Elements<'a> {
    pub(super) tags: Tags,
    sources: Vec<(&'a [u8], &'a [u8])>,
}

impl<'a> Elements<'a> {
    pub(super) fn source(&self, name: &str) -> Result<&'a [u8], SignatureError> {
        let mut sources = self.sources.iter();
        let source =
            sources.find(|(source, value)| *source == name.as_bytes() && !value.is_empty());
        source
            .map(|(_, value)| *value)
            .ok_or(SignatureError::Malformed)
    }
}

impl Timestamps {
    /// Checks a timestamp that stands in the verified body.
    pub(crate) fn check_body(&self, body: &[u8], now: SystemTime) -> Result<(), SignatureError> {
        if !matches!(self.at, At::Body(_)) {
            return Ok(());
        }
        let found = self.text_in(body);
        self.check(found.ok_or(SignatureError::Timestamp)?.as_bytes(), now)
    }

    /// The timestamp in a body, if it stands there.
    pub(crate) fn text_in<'a>(&self, body: &'a [u8]) -> Option<Cow<'a, str>> {
        let At::Body(pointers) = &self.at else {
            return None;
        };
        match self.unit {
            Unit::Rfc3339 | Unit::Iso8601 => pointers.find(body).ok().flatten(),
            // A sender that writes numbers has not written a string of digits.
            Unit::Seconds | Unit::Milliseconds => pointers.find_number(body).map(Cow::Owned),
        }
    }

    pub(super) fn check(&self, text: &[u8], now: SystemTime) -> Result<(), SignatureError> {
        let time = self.unit.millis(text).ok_or(SignatureError::Timestamp)?;
        let now = millis(now);
        let limit = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        let age = now.saturating_sub(time);
        let most = if age < 0 { self.ahead } else { self.past };
        if age.saturating_abs() <= limit(most) {
            return Ok(());
        }
        Err(SignatureError::Stale {
            // Away from 0, so that 300.5 s do not seem to be within 300 s.
            age: age.signum() * age.saturating_abs().saturating_add(999) / 1000,
            most: limit(most) / 1000,
        })
    }
}

pub(super) fn millis(time: SystemTime) -> i64 {
    let time = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// The value of a header that occurs once and is not empty.
pub(super) fn only<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> Result<&'a [u8], SignatureError> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) if !value.is_empty() => Ok(value.as_bytes()),
        _ => Err(SignatureError::Incomplete),
    }
}
