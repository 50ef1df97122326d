//! What travels through the pipeline: a delivery as it came, the proof that it is authentic, and
//! the decoded form that a handler sees.

use std::convert::Infallible;
use std::fmt;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::str::Utf8Error;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Request};
use http_body::{Body, Frame, SizeHint};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::error::Category;

use crate::event::{Event, EventKind, repair};

/// The value of an `Idempotency-Key` header: the same for all deliveries of one event, and unique
/// to it (Spec 6, rule 2).
///
/// A key is opaque: any bytes and any length that HTTP allows. It is never empty.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(HeaderValue);

impl IdempotencyKey {
    /// A key from a header's value; `None` when it is empty, which counts as no key.
    #[must_use]
    pub fn new(value: HeaderValue) -> Option<Self> {
        (!value.is_empty()).then_some(Self(value))
    }

    /// The bytes of the header's value.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// The key as text. Bytes that are not UTF-8 are read as ISO-8859-1, so that none is lost.
impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match str::from_utf8(self.as_bytes()) {
            Ok(text) => f.write_str(text),
            Err(_) => self
                .as_bytes()
                .iter()
                .try_for_each(|&byte| write!(f, "{}", char::from(byte))),
        }
    }
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.as_bytes().escape_ascii())
    }
}

/// A delivery before its payload is decoded: kind, key and the raw bytes of the body.
///
/// It proves nothing: anybody can make one, for instance to feed a stored delivery to
/// [`EventRouter::dispatch`](crate::EventRouter::dispatch). The proof is [`Verified`].
///
/// `Debug` shows the body's length, not the body. Clones are cheap.
#[derive(Clone)]
pub struct RawDelivery {
    content: Arc<Content>,
    attempt: Option<NonZeroU32>,
}

#[derive(Clone)]
struct Content {
    kind: EventKind,
    key: Option<IdempotencyKey>,
    body: Bytes,
}

impl RawDelivery {
    /// A delivery of `kind` with the given body, without a key.
    pub fn new(kind: EventKind, body: impl Into<Bytes>) -> Self {
        let content = Content {
            kind,
            key: None,
            body: body.into(),
        };
        Self {
            content: Arc::new(content),
            attempt: None,
        }
    }

    /// The same with a key.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<Option<IdempotencyKey>>) -> Self {
        Arc::make_mut(&mut self.content).key = key.into();
        self
    }

    /// The same with the number of the attempt.
    #[must_use]
    pub fn with_attempt(mut self, attempt: impl Into<Option<NonZeroU32>>) -> Self {
        self.attempt = attempt.into();
        self
    }

    /// The value of the event header. It is not signed.
    #[must_use]
    pub fn kind(&self) -> &EventKind {
        &self.content.kind
    }

    /// The idempotency key, where the delivery has one. It is not signed.
    #[must_use]
    pub fn key(&self) -> Option<&IdempotencyKey> {
        self.content.key.as_ref()
    }

    /// Which run of this event's handler this is, counted from 1 across failed runs for as long as
    /// the store remembers them. `None` without a key, or without a claim on it.
    #[must_use]
    pub fn attempt(&self) -> Option<NonZeroU32> {
        self.attempt
    }

    /// The body as it was received: what was signed, byte by byte.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.content.body
    }

    /// Decodes the body into a type of your choice.
    ///
    /// Text that was cut in the middle of a character by the sender (an unpaired `\ud83d`) is read
    /// with U+FFFD in its place, and a number that no `f64` can hold as the largest that one can.
    ///
    /// # Errors
    ///
    /// When the body is not a JSON object in UTF-8, or when `T` does not accept it.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, DecodeError> {
        let text = self.text()?;
        serde_json::from_str(text)
            .or_else(|error| match repair(text) {
                Some(repaired) => serde_json::from_str(&repaired),
                None => Err(error),
            })
            .map_err(|error| DecodeError(Cause::Json(error)))
    }

    /// The body as text, when it is what every payload must be.
    ///
    /// # Errors
    ///
    /// When the body is not a JSON object in UTF-8.
    pub fn json(&self) -> Result<&str, DecodeError> {
        let text = self.text()?;
        match serde_json::from_str(text) {
            Ok(IgnoredAny) => Ok(text),
            Err(error) => Err(DecodeError(Cause::Json(error))),
        }
    }

    fn text(&self) -> Result<&str, DecodeError> {
        let text =
            str::from_utf8(self.body()).map_err(|error| DecodeError(Cause::NotUtf8(error)))?;
        if text.trim_ascii_start().starts_with('{') {
            Ok(text)
        } else {
            Err(DecodeError(Cause::NotAnObject))
        }
    }
}

impl fmt::Debug for RawDelivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawDelivery")
            .field("kind", self.kind())
            .field("key", &self.key())
            .field("attempt", &self.attempt)
            .field("body", &format_args!("{} bytes", self.body().len()))
            .finish()
    }
}

/// The body of a request whose signature was verified: the proof of promise P1.
///
/// Only [`SignatureLayer`](crate::SignatureLayer) makes one, so a service of
/// `Request<Verified>` cannot be reached by anything else. It is also an `http_body::Body`, so
/// that any service over bodies, such as an axum `Router`, can stand behind the layers.
#[derive(Clone)]
pub struct Verified {
    raw: RawDelivery,
    body_digest: [u8; 32],
    read: bool,
}

impl Verified {
    /// `body_digest` tells bodies apart: equal for equal bodies under one secret.
    pub(crate) fn new(raw: RawDelivery, body_digest: [u8; 32]) -> Self {
        Self {
            raw,
            body_digest,
            read: false,
        }
    }

    /// The delivery: kind, key, attempt, bytes.
    #[must_use]
    pub fn delivery(&self) -> &RawDelivery {
        &self.raw
    }

    /// Gives up the proof and keeps the delivery.
    #[must_use]
    pub fn into_delivery(self) -> RawDelivery {
        self.raw
    }

    pub(crate) fn body_digest(&self) -> &[u8; 32] {
        &self.body_digest
    }

    /// The request that the next service gets.
    pub(crate) fn into_request(self, head: Parts) -> Request<Self> {
        #[cfg(feature = "axum")]
        let head = crate::extract::offer(&self, head);
        Request::from_parts(head, self)
    }

    pub(crate) fn set_attempt(&mut self, attempt: NonZeroU32) {
        self.raw.attempt = Some(attempt);
    }
}

impl fmt::Debug for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Verified").field(&self.raw).finish()
    }
}

impl Body for Verified {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.is_end_stream() {
            return Poll::Ready(None);
        }
        self.read = true;
        Poll::Ready(Some(Ok(Frame::data(self.raw.body().clone()))))
    }

    fn is_end_stream(&self) -> bool {
        self.read || self.raw.body().is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let left = if self.read { 0 } else { self.raw.body().len() };
        SizeHint::with_exact(left as u64)
    }
}

/// A delivery as a handler sees it: the decoded payload, and the delivery that it came in.
///
/// With the feature `axum` it is also an extractor for ordinary axum handlers behind the layers;
/// without the feature, axum refuses such a handler.
pub struct Delivery<E: Event> {
    /// The decoded body.
    pub payload: E::Payload,
    raw: RawDelivery,
}

impl<E: Event> Delivery<E> {
    /// Decodes the body of `raw`. Its kind is not compared with the event's.
    ///
    /// # Errors
    ///
    /// When the body is not a JSON object in UTF-8, or when the payload does not accept it.
    pub fn decode(raw: RawDelivery) -> Result<Self, (RawDelivery, DecodeError)> {
        match raw.decode() {
            Ok(payload) => Ok(Self { payload, raw }),
            Err(error) => Err((raw, error)),
        }
    }

    /// The value of the event header, which is [`Event::KIND`] of `E`.
    #[must_use]
    pub fn kind(&self) -> &EventKind {
        self.raw.kind()
    }

    /// See [`RawDelivery::key`].
    #[must_use]
    pub fn key(&self) -> Option<&IdempotencyKey> {
        self.raw.key()
    }

    /// See [`RawDelivery::attempt`].
    #[must_use]
    pub fn attempt(&self) -> Option<NonZeroU32> {
        self.raw.attempt()
    }

    /// The delivery before it was decoded, for the raw bytes.
    #[must_use]
    pub fn raw(&self) -> &RawDelivery {
        &self.raw
    }
}

impl<E: Event<Payload: Clone>> Clone for Delivery<E> {
    fn clone(&self) -> Self {
        Self {
            payload: self.payload.clone(),
            raw: self.raw.clone(),
        }
    }
}

/// Shows the payload: mind where it is written.
impl<E: Event<Payload: fmt::Debug>> fmt::Debug for Delivery<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("payload", &self.payload)
            .field("raw", &self.raw)
            .finish()
    }
}

/// The body of an authentic delivery is not what it should be.
///
/// `Display` says what is wrong and where, and neither it nor a `source` tells a byte of the body:
/// a handler may return this error, and the log shows it with its sources. `Debug` may quote the
/// body.
#[derive(Debug)]
pub struct DecodeError(Cause);

impl DecodeError {
    /// What serde_json says, when that is why. It may quote the body: mind where it is written.
    #[must_use]
    pub fn json_error(&self) -> Option<&serde_json::Error> {
        match &self.0 {
            Cause::Json(error) => Some(error),
            Cause::NotUtf8(_) | Cause::NotAnObject => None,
        }
    }
}

#[derive(Debug)]
enum Cause {
    NotUtf8(Utf8Error),
    NotAnObject,
    Json(serde_json::Error),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Cause::NotUtf8(error) => {
                write!(
                    f,
                    "the body is not UTF-8 from byte {} on",
                    error.valid_up_to()
                )
            }
            Cause::NotAnObject => f.write_str("the body is not a JSON object"),
            Cause::Json(error) => {
                let what = match error.classify() {
                    Category::Data => "the payload's type does not accept the body",
                    Category::Eof => "the body ends within its JSON",
                    Category::Syntax | Category::Io => "the body is not JSON",
                };
                write!(
                    f,
                    "{what}: line {}, column {}",
                    error.line(),
                    error.column()
                )
            }
        }
    }
}

impl std::error::Error for DecodeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0 {
            Cause::NotUtf8(error) => Some(error),
            Cause::NotAnObject | Cause::Json(_) => None,
        }
    }
}
