//! Events, their kinds and their payloads.
//!
//! An [`Event`] ties an [`EventKind`], the value of the `X-Service-Event` header
//! ([Spec 6](crate::docs::platform#spec-6)), to the payload of its deliveries. The platform's seven
//! events are defined here:
//!
//! | event | kind | payload |
//! |---|---|---|
//! | [`ChatAssigned`] | [`CHAT_ASSIGNED`](EventKind::CHAT_ASSIGNED) | [`Chat`] |
//! | [`ChatOpened`] | [`CHAT_OPENED`](EventKind::CHAT_OPENED) | [`ChatLifecycle`] |
//! | [`ChatClosed`] | [`CHAT_CLOSED`](EventKind::CHAT_CLOSED) | [`ChatLifecycle`] |
//! | [`ChatReopened`] | [`CHAT_REOPENED`](EventKind::CHAT_REOPENED) | [`ChatLifecycle`] |
//! | [`ChatTransferred`] | [`CHAT_TRANSFERRED`](EventKind::CHAT_TRANSFERRED) | [`ChatLifecycle`] |
//! | [`ChatRated`] | [`CHAT_RATED`](EventKind::CHAT_RATED) | [`ChatLifecycle`] |
//! | [`MessageCreated`] | [`MESSAGE_CREATED`](EventKind::MESSAGE_CREATED) | [`Message`] |
//!
//! [`sample`] returns a complete payload of each kind, for tests. [`SenderPolicy`] holds the sender's
//! limits.
//!
//! # Example
//!
//! An event that the platform adds later takes four lines in your own crate:
//!
//! ```
//! use serde::Deserialize;
//! use tower_webhook::event::{Event, EventKind};
//!
//! #[derive(Deserialize)]
//! struct Archived {
//!     id: Option<String>,
//! }
//!
//! enum ChatArchived {}
//!
//! impl Event for ChatArchived {
//!     const KIND: EventKind = EventKind::from_static("chat-archived");
//!     type Payload = Archived;
//! }
//! ```
//!
//! # Order
//!
//! Without an inbox, events arrive in any order: retries overtake each other, and deliveries are handled
//! concurrently. Each kind has a timestamp; the platform publishes their names, and not when each is set. Any
//! field can be missing ([Spec 2](crate::docs::platform#spec-2)).
//!
//! | kind | its timestamp |
//! |---|---|
//! | `chat-assigned` | `assignedAt` |
//! | `chat-opened` | `lastOpenedAt`; the first time also `acceptedAt` |
//! | `chat-reopened` | `lastOpenedAt` |
//! | `chat-closed` | `closedAt` |
//! | `chat-transferred` | none is named after it; perhaps `closedAt` |
//! | `chat-rated` | `ratedAt` |
//! | `message-created` | `createdAt`. In all other kinds, `createdAt` is when the chat was created |
//!
//! To keep the state of a chat, compare the newest timestamp of each payload, whichever it is, and ignore an event
//! that is older than the one applied last. Two events of the same millisecond are compared by the usual order of a
//! chat's life. The last state is then the same in whichever order the events arrive:
//!
//! ```
//! use std::collections::HashMap;
//! use std::hash::{DefaultHasher, Hash, Hasher};
//! use std::sync::{Arc, Mutex};
//!
//! use tower_webhook::event::{
//!     ChatAssigned, ChatClosed, ChatLifecycle, ChatOpened, ChatRated, ChatReopened, ChatTransferred,
//!     Event, Timestamp, sample,
//! };
//! use tower_webhook::{
//!     Delivery, EventKind, EventRouter, Handler, HandlerError, HandlerResult, RawDelivery,
//! };
//!
//! /// The usual order of a chat's life.
//! const LIFE: [EventKind; 6] = [
//!     EventKind::CHAT_ASSIGNED,
//!     EventKind::CHAT_OPENED,
//!     EventKind::CHAT_REOPENED,
//!     EventKind::CHAT_TRANSFERRED,
//!     EventKind::CHAT_CLOSED,
//!     EventKind::CHAT_RATED,
//! ];
//!
//! /// The newest timestamp of the event that was applied last, and the position of its kind in `LIFE`.
//! type State = (Timestamp, usize);
//!
//! #[derive(Clone, Default)]
//! struct Chats(Arc<Mutex<HashMap<String, State>>>);
//!
//! impl Chats {
//!     fn apply(&self, kind: EventKind, id: Option<String>, times: &[Option<Timestamp>]) -> HandlerResult {
//!         let newest = times.iter().flatten().max();
//!         let step = LIFE.iter().position(|it| *it == kind);
//!         let (Some(id), Some(newest), Some(step)) = (id, newest, step) else {
//!             return Err(HandlerError::discard("an event without a chat or a timestamp"));
//!         };
//!         let mut chats = self.0.lock().expect("no handler panics here");
//!         let state = chats.entry(id).or_insert((*newest, step));
//!         *state = (*state).max((*newest, step)); // an older event changes nothing
//!         Ok(())
//!     }
//! }
//!
//! impl<E: Event<Payload = ChatLifecycle>> Handler<E> for Chats {
//!     async fn handle(&self, delivery: Delivery<E>) -> HandlerResult {
//!         let chat = delivery.payload;
//!         let times = [chat.created_at, chat.accepted_at, chat.last_opened_at, chat.closed_at, chat.rated_at];
//!         self.apply(E::KIND, chat.id, &times)
//!     }
//! }
//!
//! fn router(chats: &Chats) -> EventRouter {
//!     let assigned = chats.clone();
//!     EventRouter::new()
//!         .on::<ChatAssigned>(move |delivery: Delivery<ChatAssigned>| {
//!             let chat = delivery.payload;
//!             let times = [chat.created_at, chat.assigned_at];
//!             std::future::ready(assigned.apply(EventKind::CHAT_ASSIGNED, chat.id, &times))
//!         })
//!         .on::<ChatOpened>(chats.clone())
//!         .on::<ChatReopened>(chats.clone())
//!         .on::<ChatTransferred>(chats.clone())
//!         .on::<ChatClosed>(chats.clone())
//!         .on::<ChatRated>(chats.clone())
//! }
//!
//! #[tokio::main]
//! async fn main() {
//!     for seed in 0..1_000 {
//!         let mut shuffled = LIFE;
//!         shuffled.sort_by_cached_key(|kind| {
//!             let mut hasher = DefaultHasher::new();
//!             (seed, kind).hash(&mut hasher);
//!             hasher.finish()
//!         });
//!         let chats = Chats::default();
//!         for kind in &shuffled {
//!             let payload = sample(kind).expect("a kind of the platform"); // all of one chat
//!             router(&chats).handle(RawDelivery::new(kind.clone(), payload)).await;
//!         }
//!         let chats = chats.0.lock().expect("no handler panics here");
//!         let (_, step) = chats["c-7Kq2mXw9"];
//!         assert_eq!(LIFE[step], EventKind::CHAT_RATED, "{shuffled:?}");
//!     }
//! }
//! ```

mod chat_id;
mod field;
mod lenient;
mod payload;
mod policy;
mod repair;
mod sample;

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::de::DeserializeOwned;

pub(crate) use self::chat_id::chat_id;
pub(crate) use self::field::{field_at, is_name};
pub use self::payload::{
    Attachment, Category, Chat, ChatLifecycle, Expert, Message, Reference, Timestamp, User,
};
pub use self::policy::SenderPolicy;
pub(crate) use self::repair::repair;
pub use self::sample::sample;

/// A kind of event and the payload that its deliveries carry.
///
/// The implementing type is only a name, so it can be an uninhabited `enum`. The
/// [module's example](self#example) implements it.
pub trait Event: 'static {
    /// The value of the event header, which [`EventRouter`](crate::EventRouter) routes by.
    const KIND: EventKind;

    /// The type that the body is decoded into.
    ///
    /// The payloads in this module decode from any JSON object. If a stricter type of your own cannot
    /// decode a delivery, the delivery is answered with 422 and the sender counts a failed attempt
    /// ([Spec 6, rule 4](crate::docs::platform#spec-6-rule-4)). A type that contains `serde_json::Value`
    /// refuses JSON of more than 127 levels.
    type Payload: DeserializeOwned + Send + 'static;
}

/// The kind of event that a delivery carries: the value of the event header
/// ([Spec 6](crate::docs::platform#spec-6)).
///
/// The set of kinds is open: any visible ASCII of at most 128 bytes is a kind. Kinds are compared exactly, including case.
///
/// ```
/// use tower_webhook::event::EventKind;
///
/// assert_eq!("chat-rated".parse(), Ok(EventKind::CHAT_RATED));
/// assert!("chat rated".parse::<EventKind>().is_err());
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventKind(Cow<'static, str>);

impl EventKind {
    /// A chat was offered to experts for acceptance: [`ChatAssigned`].
    pub const CHAT_ASSIGNED: Self = Self::from_static("chat-assigned");
    /// An expert handles the chat: [`ChatOpened`].
    pub const CHAT_OPENED: Self = Self::from_static("chat-opened");
    /// The chat was closed and is considered resolved: [`ChatClosed`].
    pub const CHAT_CLOSED: Self = Self::from_static("chat-closed");
    /// An expert or the customer reopened the chat: [`ChatReopened`].
    pub const CHAT_REOPENED: Self = Self::from_static("chat-reopened");
    /// The chat was handed to a company representative: [`ChatTransferred`].
    pub const CHAT_TRANSFERRED: Self = Self::from_static("chat-transferred");
    /// The customer finished and rated the chat: [`ChatRated`].
    pub const CHAT_RATED: Self = Self::from_static("chat-rated");
    /// A message was sent to a chat: [`MessageCreated`].
    pub const MESSAGE_CREATED: Self = Self::from_static("message-created");

    /// The platform's seven kinds, in the order of [Spec 6](crate::docs::platform#spec-6).
    pub const ALL: [Self; 7] = [
        Self::CHAT_ASSIGNED,
        Self::CHAT_OPENED,
        Self::CHAT_CLOSED,
        Self::CHAT_REOPENED,
        Self::CHAT_TRANSFERRED,
        Self::CHAT_RATED,
        Self::MESSAGE_CREATED,
    ];

    /// Creates a kind from a string that is known at compile time.
    ///
    /// ```
    /// use tower_webhook::EventKind;
    ///
    /// const ARCHIVED: EventKind = EventKind::from_static("chat-archived");
    /// assert_eq!(ARCHIVED.as_str(), "chat-archived");
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `kind` is not visible ASCII of at most 128 bytes. In a `const`, such as [`Event::KIND`], that is a compile error.
    #[must_use]
    pub const fn from_static(kind: &'static str) -> Self {
        assert!(
            is_kind(kind.as_bytes()),
            "an event kind must be visible ASCII of at most 128 bytes"
        );
        Self(Cow::Borrowed(kind))
    }

    /// Parses a header's value.
    pub(crate) fn from_bytes(kind: &[u8]) -> Result<Self, InvalidKind> {
        // Every delivery passes here, and the platform's own kinds need no allocation.
        // Not the constant itself, of which each use would build and drop an array.
        static KNOWN: [EventKind; 7] = EventKind::ALL;
        if let Some(known) = KNOWN.iter().find(|known| known.0.as_bytes() == kind) {
            return Ok(known.clone());
        }
        match str::from_utf8(kind) {
            Ok(text) if is_kind(kind) => Ok(Self(Cow::Owned(text.to_owned()))),
            _ => Err(InvalidKind(())),
        }
    }

    /// Whether it is a kind of the chat platform's: a token of HTTP.
    pub(crate) fn is_token(&self) -> bool {
        matches!(self.0, Cow::Borrowed(_)) || is_token(self.0.as_bytes())
    }

    /// Returns the kind as it is spelled in the header.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for EventKind {
    type Err = InvalidKind;

    fn from_str(kind: &str) -> Result<Self, InvalidKind> {
        Self::from_bytes(kind.as_bytes())
    }
}

display!(EventKind, |it| &it.0);

impl fmt::Debug for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The error of parsing an [`EventKind`]: the text is not visible ASCII of at most 128 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidKind(());

display!(
    InvalidKind,
    |_it| "an event kind must be visible ASCII of at most 128 bytes, such as `chat-rated`"
);

impl std::error::Error for InvalidKind {}

/// The longest kind in bytes, which every queue can have in an index.
const LONGEST: usize = 128;

/// Whether `text` is a `token` of RFC 9110, section 5.6.2, or empty.
fn is_token(text: &[u8]) -> bool {
    let tchar = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    text.iter().all(tchar)
}

/// Whether `text` is visible ASCII, and not too long. Shopify's kinds have a slash.
const fn is_kind(text: &[u8]) -> bool {
    let mut at = 0;
    while at < text.len() {
        if !text[at].is_ascii_graphic() {
            return false;
        }
        at += 1;
    }
    !text.is_empty() && text.len() <= LONGEST
}

macro_rules! events {
    ($($(#[$doc:meta])* $name:ident = $kind:ident => $payload:ty;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub enum $name {}

        impl Event for $name {
            const KIND: EventKind = EventKind::$kind;
            type Payload = $payload;
        }
    )*};
}

events! {
    /// `chat-assigned`: a chat was offered to experts for acceptance. Carries a [`Chat`].
    ChatAssigned = CHAT_ASSIGNED => Chat;
    /// `chat-opened`: an expert handles the chat. Carries a [`ChatLifecycle`].
    ChatOpened = CHAT_OPENED => ChatLifecycle;
    /// `chat-closed`: the chat was closed and is considered resolved. Carries a [`ChatLifecycle`]; a
    /// [`ChatRated`] follows eventually ([Spec 3, rule 1](crate::docs::platform#spec-3-rule-1)).
    ChatClosed = CHAT_CLOSED => ChatLifecycle;
    /// `chat-reopened`: an expert or the customer reopened the chat. Carries a [`ChatLifecycle`].
    ChatReopened = CHAT_REOPENED => ChatLifecycle;
    /// `chat-transferred`: the chat was handed to a company representative. Carries a
    /// [`ChatLifecycle`]; a [`ChatRated`] follows eventually
    /// ([Spec 3, rule 1](crate::docs::platform#spec-3-rule-1)).
    ChatTransferred = CHAT_TRANSFERRED => ChatLifecycle;
    /// `chat-rated`: the customer finished and rated the chat. Carries a [`ChatLifecycle`].
    ChatRated = CHAT_RATED => ChatLifecycle;
    /// `message-created`: a message was sent to a chat. Carries a [`Message`].
    MessageCreated = MESSAGE_CREATED => Message;
}
