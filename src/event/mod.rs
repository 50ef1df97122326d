//! The kinds of events, and what each of them carries.
//!
//! An [`Event`] ties an [`EventKind`] (the value of the `X-Service-Event` header, Spec 6) to the
//! payload of its deliveries. The seven events of the platform are defined here; an event that the
//! platform adds tomorrow is four lines in your own crate:
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

mod lenient;
mod payload;
mod policy;
mod repair;
mod sample;

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::de::DeserializeOwned;

pub use self::payload::{
    Attachment, Category, Chat, ChatLifecycle, Expert, Message, Reference, Timestamp, User,
};
pub use self::policy::SenderPolicy;
pub(crate) use self::repair::repair;
pub use self::sample::sample;

/// A kind of event and the payload that its deliveries carry.
///
/// The implementing type is only a name for the kind, so an uninhabited `enum` does.
pub trait Event: 'static {
    /// The value of the event header.
    const KIND: EventKind;

    /// What the body is decoded into.
    ///
    /// The payloads in this module decode from any JSON object. A stricter type of your own makes
    /// the deliveries that it cannot decode fail with 422, and the sender counts each as a failed
    /// attempt.
    type Payload: DeserializeOwned + Send + 'static;
}

/// The value of the event header: which kind of event a delivery carries (Spec 6).
///
/// Kinds are open: any token of HTTP is one, and kinds are compared exactly, case included.
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
    /// A chat was offered to experts so that one accepts it.
    pub const CHAT_ASSIGNED: Self = Self::from_static("chat-assigned");
    /// An expert handles the chat.
    pub const CHAT_OPENED: Self = Self::from_static("chat-opened");
    /// The chat was closed and counts as resolved.
    pub const CHAT_CLOSED: Self = Self::from_static("chat-closed");
    /// An expert or the customer opened the chat again.
    pub const CHAT_REOPENED: Self = Self::from_static("chat-reopened");
    /// The chat was handed to a company representative.
    pub const CHAT_TRANSFERRED: Self = Self::from_static("chat-transferred");
    /// The customer finished and rated the chat.
    pub const CHAT_RATED: Self = Self::from_static("chat-rated");
    /// A message was sent to a chat.
    pub const MESSAGE_CREATED: Self = Self::from_static("message-created");

    /// The kinds of the spec's section 6, in its order.
    pub const ALL: [Self; 7] = [
        Self::CHAT_ASSIGNED,
        Self::CHAT_OPENED,
        Self::CHAT_CLOSED,
        Self::CHAT_REOPENED,
        Self::CHAT_TRANSFERRED,
        Self::CHAT_RATED,
        Self::MESSAGE_CREATED,
    ];

    /// A kind that is known when the program is compiled.
    ///
    /// # Panics
    ///
    /// When `kind` is not a token of HTTP (letters, digits and ``!#$%&'*+-.^_`|~``, at least one of
    /// them). In a `const`, as in [`Event::KIND`], that is an error of the compiler.
    #[must_use]
    pub const fn from_static(kind: &'static str) -> Self {
        assert!(
            is_token(kind.as_bytes()),
            "an event kind must be a token of HTTP"
        );
        Self(Cow::Borrowed(kind))
    }

    /// Reads a header's value. A kind of the platform is found without allocating.
    pub(crate) fn from_bytes(kind: &[u8]) -> Result<Self, InvalidKind> {
        if let Some(known) = Self::ALL.iter().find(|known| known.0.as_bytes() == kind) {
            return Ok(known.clone());
        }
        match str::from_utf8(kind) {
            Ok(token) if is_token(kind) => Ok(Self(Cow::Owned(token.to_owned()))),
            _ => Err(InvalidKind(())),
        }
    }

    /// The kind as it stands in the header.
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

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The text is not a token of HTTP, and so no [`EventKind`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidKind(());

impl fmt::Display for InvalidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an event kind must be a token of HTTP, such as `chat-rated`")
    }
}

impl std::error::Error for InvalidKind {}

/// RFC 9110, section 5.6.2.
const fn is_token(text: &[u8]) -> bool {
    let mut at = 0;
    while at < text.len() {
        let tchar = matches!(
            text[at],
            b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_'
                | b'`' | b'|' | b'~' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z'
        );
        if !tchar {
            return false;
        }
        at += 1;
    }
    !text.is_empty()
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
    /// `chat-assigned`: a chat was offered to experts so that one accepts it.
    ChatAssigned = CHAT_ASSIGNED => Chat;
    /// `chat-opened`: an expert handles the chat.
    ChatOpened = CHAT_OPENED => ChatLifecycle;
    /// `chat-closed`: the chat was closed and counts as resolved. A [`ChatRated`] follows eventually.
    ChatClosed = CHAT_CLOSED => ChatLifecycle;
    /// `chat-reopened`: an expert or the customer opened the chat again.
    ChatReopened = CHAT_REOPENED => ChatLifecycle;
    /// `chat-transferred`: the chat was handed to a company representative. A [`ChatRated`] follows
    /// eventually.
    ChatTransferred = CHAT_TRANSFERRED => ChatLifecycle;
    /// `chat-rated`: the customer finished and rated the chat.
    ChatRated = CHAT_RATED => ChatLifecycle;
    /// `message-created`: a message was sent to a chat.
    MessageCreated = MESSAGE_CREATED => Message;
}
