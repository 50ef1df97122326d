//! A delivery, as it was received and as a handler gets it.

mod item;

use std::any::Any;
use std::fmt;
use std::num::NonZeroU32;
use std::str::{FromStr, Utf8Error};
use std::sync::{Arc, LazyLock};
use std::time::SystemTime;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::error::Category;

pub use self::item::Item;
use crate::event::{Event, EventKind, field_at, is_name, repair};
use crate::route::{EventType, RouteName};

/// The value of an `Idempotency-Key` header: the same for all deliveries of an event, and unique to it
/// ([Spec 6, rule 2](crate::docs::platform#spec-6-rule-2)).
///
/// A key is opaque: it may have any bytes and any length that HTTP allows. It is never empty.
///
/// ```
/// use http::HeaderValue;
/// use tower_webhook::IdempotencyKey;
///
/// let key = IdempotencyKey::new(HeaderValue::from_static("event-1")).unwrap();
/// assert_eq!(key.as_bytes(), b"event-1");
/// assert!(IdempotencyKey::new(HeaderValue::from_static("")).is_none());
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(HeaderValue);

impl IdempotencyKey {
    /// Creates a key from a header's value. Returns `None` when it is empty, which counts as no key.
    #[must_use]
    pub fn new(value: HeaderValue) -> Option<Self> {
        (!value.is_empty()).then_some(Self(value))
    }

    /// Returns the bytes of the header's value.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    pub(crate) fn value(&self) -> &HeaderValue {
        &self.0
    }
}

/// The key as text, different for each key: a backslash is doubled, and a key that is not UTF-8 is escaped, as in
/// `caf\xe9`. Parsing it returns the key.
impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match str::from_utf8(self.as_bytes()) {
            Ok(text) => f.write_str(&text.replace('\\', r"\\")),
            Err(_) => write!(f, "{}", self.as_bytes().escape_ascii()),
        }
    }
}

/// Reads a key as it is shown: as `Display` writes it, or as in the log, where letters other than ASCII and quotes are
/// escaped, too. Any other text is the key itself, as a sender shows it.
///
/// ```
/// use tower_webhook::IdempotencyKey;
///
/// for (text, key) in [(r"a\\b", &br"a\b"[..]), (r"a\b", br"a\b"), (r"caf\xe9", b"caf\xe9"), ("\u{e9}", b"\xc3\xa9")] {
///     assert_eq!(text.parse::<IdempotencyKey>()?.as_bytes(), key);
/// }
/// # Ok::<(), tower_webhook::InvalidKey>(())
/// ```
impl FromStr for IdempotencyKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        let key = |bytes: &[u8]| Self::new(HeaderValue::from_bytes(bytes).ok()?);
        let read = unescaped(text.as_bytes()).and_then(|bytes| key(&bytes));
        let is_it = |read: &Self| {
            read.to_string() == text || read.as_bytes().escape_ascii().to_string() == text
        };
        let found = read.filter(is_it).or_else(|| key(text.as_bytes()));
        found.ok_or(InvalidKey(()))
    }
}

/// Reads what `escape_ascii` writes.
fn unescaped(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.iter().copied();
    let hex = |digit: u8| char::from(digit).to_digit(16);
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next()? {
                b't' => b'\t',
                b'x' => u8::try_from(16 * hex(rest.next()?)? + hex(rest.next()?)?).ok()?,
                quoted @ (b'\\' | b'\'' | b'"') => quoted,
                _ => return None,
            },
            other => other,
        });
    }
    Some(bytes)
}

/// The error for a text that is no [`IdempotencyKey`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidKey(());

display!(
    InvalidKey,
    |_it| "a key is not empty, and has no control characters but tabs, as the value of a header"
);

impl std::error::Error for InvalidKey {}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.as_bytes().escape_ascii())
    }
}

/// The header that a spool adds to the event of a delivery. That of a request is not kept.
pub(crate) const SPOOLED: HeaderName = HeaderName::from_static("tower-webhook-spooled");

/// A delivery before its payload is decoded: kind, key and the raw bytes of the body.
///
/// It proves nothing: anybody can create one, for instance to pass a stored delivery to
/// [`EventRouter::handle`](crate::EventRouter::handle). The proof is [`Verified`](crate::Verified).
///
/// `Debug` shows the length of the body, not its bytes. Clones are cheap.
///
/// ```
/// use tower_webhook::event::EventKind;
/// use tower_webhook::RawDelivery;
///
/// let delivery = RawDelivery::new(EventKind::CHAT_RATED, r#"{"id":"chat-1"}"#);
/// assert_eq!(delivery.json().unwrap(), r#"{"id":"chat-1"}"#);
/// assert!(delivery.key().is_none());
/// ```
#[derive(Clone)]
pub struct RawDelivery {
    content: Arc<Content>,
    attempt: Option<NonZeroU32>,
    /// Whether a layer or a worker makes the attempt, and reports it.
    is_reported: bool,
}

#[derive(Clone)]
struct Content {
    route: RouteName,
    kind: EventKind,
    key: Option<IdempotencyKey>,
    body: Bytes,
    /// Boxed, because most deliveries have none.
    headers: Option<Box<HeaderMap>>,
    /// Of an event that an inbox accepted.
    inbox: Option<FromInbox>,
    /// The notes of a verifier. Boxed, because most senders have none.
    noted: Option<Box<Noted>>,
    /// Of an event that came with others in a batch.
    item: Option<Box<Item>>,
    /// What its route sets for handlers that make attempts of their own. Only these know more of it.
    lent: Option<Arc<dyn Any + Send + Sync>>,
    /// Its body may be a form, which a handler of all types gets as it was signed.
    is_form: bool,
}

#[derive(Clone)]
struct Noted {
    order: Option<String>,
    has_success: bool,
}

#[derive(Clone)]
struct FromInbox {
    accepted_at: SystemTime,
    is_redriven: bool,
    lease: Option<Arc<dyn AttemptLease>>,
}

/// The lease of an attempt whose handler may end it, in a transaction of its own. Only the queue and the handler know
/// more of it.
pub(crate) trait AttemptLease: Any + Send + Sync {
    /// Whether a transaction that ends the attempt is about to be committed, or may have been.
    fn is_settling(&self) -> bool;

    /// Whether a transaction that ended the attempt was committed.
    fn is_settled(&self) -> bool;
}

impl RawDelivery {
    /// Creates a delivery of `kind` with the given body, without a key.
    pub fn new(kind: EventKind, body: impl Into<Bytes>) -> Self {
        Self::received(kind, None, body.into())
    }

    /// Creates a delivery of an event with the given payload, without a key: for tests, in which
    /// [`Sender::sign`](crate::Sender::sign) signs it. See [testing](crate::docs::testing#a-signed-event).
    ///
    /// If the sender reads event type or key from the body, such as Stripe from `/type` and `/id`, the payload must have
    /// them there: without its type, a delivery is answered with 400. The [table of senders](crate::docs::senders) says where
    /// each has them.
    ///
    /// ```
    /// use tower_webhook::RawDelivery;
    /// use tower_webhook::event::{ChatLifecycle, ChatRated};
    ///
    /// let chat = ChatLifecycle::default().rating(0.5);
    /// let delivery = RawDelivery::of::<ChatRated>(&chat)?;
    /// assert_eq!(delivery.json().unwrap(), r#"{"rating":0.5}"#);
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// When the payload cannot be written as JSON.
    pub fn of<E: Event<Payload: Serialize>>(
        payload: &E::Payload,
    ) -> Result<Self, serde_json::Error> {
        Ok(Self::new(E::KIND, serde_json::to_vec(payload)?))
    }

    pub(crate) fn received(kind: EventKind, key: Option<IdempotencyKey>, body: Bytes) -> Self {
        let content = Content {
            route: RouteName::default(),
            kind,
            key,
            body,
            headers: None,
            inbox: None,
            noted: None,
            item: None,
            lent: None,
            is_form: false,
        };
        Self {
            content: Arc::new(content),
            attempt: None,
            is_reported: false,
        }
    }

    /// Returns an item of this delivery, at the same route.
    pub(crate) fn part(
        &self,
        kind: EventKind,
        key: IdempotencyKey,
        body: Bytes,
        item: Item,
    ) -> Self {
        let content = Content {
            kind,
            key: Some(key),
            body,
            item: Some(Box::new(item)),
            ..(*self.content).clone()
        };
        Self {
            content: Arc::new(content),
            ..self.clone()
        }
    }

    /// Sets the key.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<Option<IdempotencyKey>>) -> Self {
        Arc::make_mut(&mut self.content).key = key.into();
        self
    }

    /// Sets the number of the attempt.
    #[must_use]
    pub fn with_attempt(mut self, attempt: impl Into<Option<NonZeroU32>>) -> Self {
        self.attempt = attempt.into();
        self
    }

    /// Notes that a layer or a worker makes the attempt, and its number if it is known.
    pub(crate) fn begin_attempt(&mut self, number: Option<NonZeroU32>) {
        self.is_reported = true;
        self.attempt = number.or(self.attempt);
    }

    /// Whether a layer or a worker makes the attempt, and reports it to an observer.
    #[cfg(feature = "postgres")]
    pub(crate) fn is_reported(&self) -> bool {
        self.is_reported
    }

    /// Sets the name of the route.
    #[must_use]
    pub fn with_route(mut self, route: RouteName) -> Self {
        Arc::make_mut(&mut self.content).route = route;
        self
    }

    /// Notes the order that a verifier found, and whether the verifier answers a success itself.
    pub(crate) fn note(&mut self, order: Option<String>, has_success: bool) {
        if order.is_some() || has_success {
            let noted = Noted { order, has_success };
            Arc::make_mut(&mut self.content).noted = Some(Box::new(noted));
        }
    }

    /// Returns the order that a verifier found: events with the same order are handled one after another.
    pub(crate) fn order(&self) -> Option<&str> {
        self.content.noted.as_ref()?.order.as_deref()
    }

    /// Whether its verifier has an answer of its own for a success.
    pub(crate) fn has_own_success(&self) -> bool {
        (self.content.noted.as_ref()).is_some_and(|it| it.has_success)
    }

    /// Says that its sender sends forms.
    pub(crate) fn allow_form(&mut self) {
        Arc::make_mut(&mut self.content).is_form = true;
    }

    /// An error if its body is none that its sender sends: a JSON object, or a form.
    pub(crate) fn check_body(&self) -> Result<(), DecodeError> {
        match self.content.is_form {
            true => Ok(()),
            false => self.json().map(drop),
        }
    }

    /// Lends what its route sets to the handler.
    pub(crate) fn lend_settings(&mut self, lent: &Arc<dyn Any + Send + Sync>) {
        Arc::make_mut(&mut self.content).lent = Some(Arc::clone(lent));
    }

    /// Returns what its route lends, if that is a `T`.
    #[cfg(feature = "postgres")]
    pub(crate) fn lent<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        let lent = self.content.lent.clone()?;
        lent.downcast().ok()
    }

    /// Returns the name of the route at which it arrived: that of its sender, unless
    /// [another](crate::Webhooks::name) was set.
    #[must_use]
    pub fn route(&self) -> &RouteName {
        &self.content.route
    }

    /// Returns the value of the event header. It is not signed.
    #[must_use]
    pub fn kind(&self) -> &EventKind {
        &self.content.kind
    }

    pub(crate) fn event_type(&self) -> EventType {
        EventType::new(self.route().clone(), self.kind().clone())
    }

    /// Returns the idempotency key, if the delivery has one. It is not signed.
    #[must_use]
    pub fn key(&self) -> Option<&IdempotencyKey> {
        self.content.key.as_ref()
    }

    /// Returns the number of this attempt to handle the event, counted from 1 for as long as the store
    /// remembers failed ones. `None` without a key, or without a claim on it.
    ///
    /// In an [inbox](crate::docs::inbox), every attempt has a number: one more than the number of counted failures and
    /// of crashes in a row. Attempts that do not count, such as a snoozed one, do not increase it, and a redrive of a
    /// settled or dead event resets it to 1.
    #[must_use]
    pub fn attempt(&self) -> Option<NonZeroU32> {
        self.attempt
    }

    /// Sets when an inbox accepted the event, and whether a person redrove it. For queues, and for tests of handlers.
    ///
    /// ```
    /// # use std::time::SystemTime;
    /// # use tower_webhook::event::EventKind;
    /// # use tower_webhook::RawDelivery;
    /// let delivery = RawDelivery::new(EventKind::CHAT_RATED, "{}").with_acceptance(SystemTime::now(), true);
    /// assert!(delivery.is_redriven());
    /// ```
    #[must_use]
    pub fn with_acceptance(mut self, accepted_at: SystemTime, is_redriven: bool) -> Self {
        Arc::make_mut(&mut self.content).inbox = Some(FromInbox {
            accepted_at,
            is_redriven,
            lease: None,
        });
        self
    }

    /// Lends the lease of the attempt to its handler.
    #[cfg(feature = "postgres")]
    pub(crate) fn lend(&mut self, lease: Arc<dyn AttemptLease>) {
        if let Some(inbox) = &mut Arc::make_mut(&mut self.content).inbox {
            inbox.lease = Some(lease);
        }
    }

    /// The lease of the attempt, if its queue lends it.
    pub(crate) fn lease(&self) -> Option<Arc<dyn AttemptLease>> {
        self.content.inbox.as_ref()?.lease.clone()
    }

    /// Returns when an [inbox](crate::docs::inbox) accepted the event. `None` for a delivery that is handled inline.
    #[must_use]
    pub fn accepted_at(&self) -> Option<SystemTime> {
        self.content.inbox.as_ref().map(|inbox| inbox.accepted_at)
    }

    /// Whether a person redrove the event in an [inbox](crate::docs::inbox). It may have been handled before, and is
    /// handled out of order.
    #[must_use]
    pub fn is_redriven(&self) -> bool {
        let inbox = self.content.inbox.as_ref();
        inbox.is_some_and(|inbox| inbox.is_redriven)
    }

    /// Whether the event was stored in a spool when it was accepted, because the database could not be reached: see the
    /// module `spool` (feature `sqlite`). An event of another chat or of another process, which was accepted later,
    /// may have been handled before it.
    ///
    /// It is noted in the header `tower-webhook-spooled`, whose value is the time, in milliseconds since 1970.
    #[must_use]
    pub fn was_spooled(&self) -> bool {
        self.headers().contains_key(&SPOOLED)
    }

    /// Sets the headers. For queues, and for tests of handlers.
    #[must_use]
    pub fn with_headers(mut self, headers: HeaderMap) -> Self {
        let headers = (!headers.is_empty()).then(|| Box::new(headers));
        Arc::make_mut(&mut self.content).headers = headers;
        self
    }

    /// Returns the headers of the request that an inbox [keeps](crate::inbox::Inbox::keep_headers): by default those
    /// that identify its trace. They are not signed. Empty for a delivery that is handled inline.
    ///
    /// ```
    /// use http::HeaderMap;
    /// use tower_webhook::RawDelivery;
    /// use tower_webhook::event::EventKind;
    ///
    /// let mut headers = HeaderMap::new();
    /// headers.insert("x-request-id", "17".parse().unwrap());
    /// let delivery = RawDelivery::new(EventKind::CHAT_RATED, "{}").with_headers(headers);
    /// assert_eq!(delivery.headers()["x-request-id"], "17");
    /// ```
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        static NONE: LazyLock<HeaderMap> = LazyLock::new(HeaderMap::new);
        self.content.headers.as_deref().unwrap_or(&NONE)
    }

    /// Returns the body as it was received and signed, or what a [`Proof`](crate::signature::Proof) has in its place.
    /// Sets the place of the event in a batch. For queues, and for tests of handlers.
    #[must_use]
    pub fn with_item(self, item: Item) -> Self {
        self.with_boxed_item(Some(Box::new(item)))
    }

    pub(crate) fn with_boxed_item(mut self, item: Option<Box<Item>>) -> Self {
        // As a rule, there is none.
        if item.is_some() {
            Arc::make_mut(&mut self.content).item = item;
        }
        self
    }

    /// Returns the place of the event in its [batch](crate::docs::senders#batches), if it came in one.
    ///
    /// ```
    /// use tower_webhook::event::EventKind;
    /// use tower_webhook::{Item, RawDelivery};
    ///
    /// let item = Item::new(3, 17).keep(r#"{"destination":"U-1"}"#);
    /// let delivery = RawDelivery::new(EventKind::CHAT_RATED, "{}").with_item(item);
    /// let item = delivery.item().unwrap();
    /// assert_eq!(item.to_string(), "item 3 of 17");
    /// assert_eq!(item.kept(), Some(r#"{"destination":"U-1"}"#));
    /// ```
    #[must_use]
    pub fn item(&self) -> Option<&Item> {
        self.content.item.as_deref()
    }

    /// Returns the body as it was received and signed. That of an [item](Self::item) is its part of the batch.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.content.body
    }

    /// Decodes the body into a type of your choice.
    ///
    /// An unpaired surrogate such as `\ud83d`, which a sender leaves when it cuts a text in the middle of a
    /// character, is read as U+FFFD. A number above the range of `f64` is read as the largest one.
    ///
    /// # Errors
    ///
    /// When the body is not a JSON object in UTF-8, or when `T` does not accept it.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, DecodeError> {
        let text = self.text()?;
        let error = match serde_json::from_str(text) {
            Ok(decoded) => return Ok(decoded),
            Err(error) => error,
        };
        match repair(text) {
            Some(repaired) => {
                serde_json::from_str(&repaired).map_err(|error| undecodable(error, &repaired))
            }
            None => Err(undecodable(error, text)),
        }
    }

    /// Returns the body as text, if it is a JSON object.
    ///
    /// # Errors
    ///
    /// When the body is not a JSON object in UTF-8.
    pub fn json(&self) -> Result<&str, DecodeError> {
        let text = self.text()?;
        match serde_json::from_str(text) {
            Ok(IgnoredAny) => Ok(text),
            Err(error) => Err(undecodable(error, text)),
        }
    }

    /// Returns the body if it is UTF-8 and begins as a JSON object does.
    pub(crate) fn text(&self) -> Result<&str, DecodeError> {
        let text = str::from_utf8(self.body()).map_err(Cause::NotUtf8)?;
        if text.trim_ascii_start().starts_with('{') {
            Ok(text)
        } else {
            Err(Cause::NotAnObject.into())
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

/// A delivery as a [`Handler`](crate::Handler) gets it: the decoded payload, and the raw delivery.
///
/// With the feature `axum` it is also an extractor for ordinary axum handlers behind the layers.
pub struct Delivery<E: Event> {
    /// The decoded body.
    pub payload: E::Payload,
    raw: RawDelivery,
}

impl<E: Event> Delivery<E> {
    /// Decodes the body of `raw`, without comparing its kind with [`Event::KIND`].
    ///
    /// ```
    /// use tower_webhook::event::{ChatRated, EventKind};
    /// use tower_webhook::{Delivery, RawDelivery};
    ///
    /// let raw = RawDelivery::new(EventKind::CHAT_RATED, r#"{"rating":0.5}"#);
    /// let delivery = Delivery::<ChatRated>::decode(raw).unwrap();
    /// assert_eq!(delivery.payload.rating, Some(0.5));
    /// ```
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

    /// Returns the value of the event header, which is [`Event::KIND`] of `E`.
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

    /// See [`RawDelivery::accepted_at`].
    #[must_use]
    pub fn accepted_at(&self) -> Option<SystemTime> {
        self.raw.accepted_at()
    }

    /// See [`RawDelivery::is_redriven`].
    #[must_use]
    pub fn is_redriven(&self) -> bool {
        self.raw.is_redriven()
    }

    /// See [`RawDelivery::was_spooled`].
    #[must_use]
    pub fn was_spooled(&self) -> bool {
        self.raw.was_spooled()
    }

    /// Returns the delivery before it was decoded, with the raw bytes.
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

/// Shows the payload: do not log it where payloads must not appear.
impl<E: Event<Payload: fmt::Debug>> fmt::Debug for Delivery<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("payload", &self.payload)
            .field("raw", &self.raw)
            .finish()
    }
}

/// The error of decoding the body of a delivery.
///
/// `Display` says what is wrong and where, with the field's path. Neither it nor a `source` quotes the body's values, because a
/// handler may return this error, which is then logged; `Debug` is the same text.
#[derive(Clone)]
pub struct DecodeError(Arc<Cause>);

impl DecodeError {
    /// Returns the error of `serde_json`, if there is one. It may quote the body: do not log it where payloads
    /// must not appear.
    #[must_use]
    pub fn json_error(&self) -> Option<&serde_json::Error> {
        match &*self.0 {
            Cause::Json(error) | Cause::Field(error, _) => Some(error),
            Cause::NotUtf8(_) | Cause::NotAnObject => None,
        }
    }
}

#[derive(Debug)]
enum Cause {
    NotUtf8(Utf8Error),
    NotAnObject,
    Json(serde_json::Error),
    /// The payload's type does not accept the body: what it does not accept.
    Field(serde_json::Error, String),
}

/// The error of decoding a text. Not generic, so that it is compiled once.
fn undecodable(error: serde_json::Error, text: &str) -> DecodeError {
    if error.classify() != Category::Data {
        return Cause::Json(error).into();
    }
    let field = field_at(text, error.line(), error.column());
    // The error's text may quote the body, but not the name of a field that is missing.
    let reason = error.to_string();
    let missing = reason.strip_prefix("missing field `");
    let missing = missing.and_then(|rest| rest.split('`').next());
    let what = match (missing.filter(|name| is_name(name.as_bytes())), &*field) {
        (Some(name), _) => format!("a body without `{field}/{name}`"),
        (None, "") => "the body".to_owned(),
        (None, field) => format!("what stands at `{field}`"),
    };
    Cause::Field(error, what).into()
}

impl From<Cause> for DecodeError {
    fn from(cause: Cause) -> Self {
        Self(Arc::new(cause))
    }
}

messages! {
    Cause {
        Self::NotUtf8(error) => "the body is not UTF-8 from byte {} on", error.valid_up_to();
        Self::NotAnObject => "the body is not a JSON object";
        Self::Json(error) => "{}: line {}, column {}", refused(error), error.line(), error.column();
        Self::Field(error, what) => "the payload's type does not accept {what}: line {}, column {}", error.line(),
            error.column();
    }
}

fn refused(error: &serde_json::Error) -> &'static str {
    match error.classify() {
        Category::Eof => "the body ends within its JSON",
        Category::Syntax | Category::Io | Category::Data => "the body is not JSON",
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DecodeError({self})")
    }
}

impl std::error::Error for DecodeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &*self.0 {
            Cause::NotUtf8(error) => Some(error),
            Cause::NotAnObject | Cause::Json(_) | Cause::Field(..) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_keys_are_displayed_differently() {
        let shown: Vec<_> = [
            &b"event-1"[..],
            "café".as_bytes(),
            b"caf\xe9",
            br"caf\xe9",
            br"caf\\xe9",
            b"caf\xc3",
        ]
        .into_iter()
        .map(|key| {
            let value = HeaderValue::from_bytes(key).unwrap();
            IdempotencyKey::new(value).unwrap().to_string()
        })
        .collect();
        let expected = [
            "event-1",
            "café",
            r"caf\xe9",
            r"caf\\xe9",
            r"caf\\\\xe9",
            r"caf\xc3",
        ];
        assert_eq!(shown, expected);
    }
}
