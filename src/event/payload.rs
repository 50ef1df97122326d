//! The payloads of deliveries (Spec 2).

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime};

use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};
use serde::ser::{Serialize, Serializer};

use super::lenient::{self, Scalar, Shape, payload};

payload! {
    /// The payload of a [`ChatAssigned`](super::ChatAssigned) event
    /// ([Spec 2.1](crate::docs::platform#spec-2-1)).
    ///
    /// Like every payload in this module, it decodes from any JSON object. A field is `None` or empty
    /// if the sender omitted it, sent `null`, or sent another JSON type than the spec's. Only the
    /// last is logged, as a warning with the field's path (`user.locale`) and without its value.
    /// Fields that are `None` or empty are not encoded.
    ///
    /// ```
    /// use tower_webhook::event::{Chat, User};
    ///
    /// let chat: Chat = serde_json::from_str(r#"{"id":"c-1","user":{"name":"Ada","locale":7}}"#)?;
    ///
    /// let ada = User::default().name("Ada".to_owned());
    /// assert_eq!(chat, Chat::default().id("c-1".to_owned()).user(ada));
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    #[derive(Eq)]
    pub struct Chat {
        /// The chat's identifier.
        pub id: Option<String> = "id",
        /// The requested experts. Elements that are not strings are dropped.
        pub requested_experts: Vec<String> = "requestedExperts",
        /// The chat's topic.
        pub category: Option<Category> = "category",
        /// The customer.
        pub user: Option<User> = "user",
        /// The customer's question.
        pub question: Option<String> = "question",
        /// The chat's language: an ISO 639-1 two-letter code, according to the spec.
        pub language_code: Option<String> = "languageCode",
        /// When the chat was created.
        pub created_at: Option<Timestamp> = "createdAt",
        /// The page from which the chat was started.
        pub referer: Option<String> = "referer",
        /// The entries that the chat loader defined. Those whose value is not a string are dropped.
        pub custom_meta: BTreeMap<String, String> = "customMeta",
        /// When the chat was offered to experts.
        pub assigned_at: Option<Timestamp> = "assignedAt",
    }

    /// The payload of a [`MessageCreated`](super::MessageCreated) event
    /// ([Spec 2.2](crate::docs::platform#spec-2-2)).
    ///
    /// It decodes and encodes like [`Chat`].
    ///
    /// ```
    /// use tower_webhook::event::{EventKind, Message, sample};
    ///
    /// let json = sample(&EventKind::MESSAGE_CREATED).expect("a kind of the platform");
    /// let message: Message = serde_json::from_str(json)?;
    ///
    /// assert_eq!(message.is_user, Some(true));
    /// assert_eq!(serde_json::to_string(&message)?, json);
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    #[derive(Eq)]
    pub struct Message {
        /// The chat that the message was sent to.
        pub chat: Option<Reference> = "chat",
        /// The message's identifier.
        pub id: Option<String> = "id",
        /// The customer that the message belongs to.
        pub user: Option<Reference> = "user",
        /// The expert that the message belongs to.
        pub expert: Option<Reference> = "expert",
        /// Whether the customer wrote the message.
        pub is_user: Option<bool> = "isUser",
        /// The message's text.
        pub text: Option<String> = "text",
        /// The type of message: `type` on the wire, a keyword in Rust. The spec does not list its
        /// values.
        pub kind: Option<String> = "type",
        /// Whether the message is hidden from the customer.
        pub hide_for_user: Option<bool> = "hideForUser",
        /// Whether the message is hidden from the expert.
        pub hide_for_expert: Option<bool> = "hideForExpert",
        /// When the message was created.
        pub created_at: Option<Timestamp> = "createdAt",
        /// The file attached to the message.
        pub attachment: Option<Attachment> = "attachment",
    }

    /// The payload of [`ChatOpened`](super::ChatOpened), [`ChatClosed`](super::ChatClosed),
    /// [`ChatReopened`](super::ChatReopened), [`ChatTransferred`](super::ChatTransferred) and
    /// [`ChatRated`](super::ChatRated) events ([Spec 2.3](crate::docs::platform#spec-2-3)).
    ///
    /// It decodes and encodes like [`Chat`].
    ///
    /// ```
    /// use tower_webhook::event::{ChatLifecycle, Timestamp};
    ///
    /// let chat: ChatLifecycle = serde_json::from_str(r#"{"rating":0.5,"ratedAt":1718191266440}"#)?;
    ///
    /// assert_eq!(chat.rating, Some(0.5));
    /// assert_eq!(chat.rated_at, Some(Timestamp::from_millis(1_718_191_266_440)));
    /// assert_eq!(chat.expert, None);
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    pub struct ChatLifecycle {
        /// The chat's identifier.
        pub id: Option<String> = "id",
        /// The customer.
        pub user: Option<User> = "user",
        /// The expert who handles the chat.
        pub expert: Option<Expert> = "expert",
        /// The chat's topic.
        pub category: Option<Category> = "category",
        /// The customer's question.
        pub question: Option<String> = "question",
        /// The chat's language: an ISO 639-1 two-letter code, according to the spec.
        pub language_code: Option<String> = "languageCode",
        /// The chat's state. The spec does not list its values.
        pub status: Option<String> = "status",
        /// The customer's rating: 0, 0.5 or 1 according to the spec; any other number is kept.
        #[serde(serialize_with = "serialize_rating")]
        pub rating: Option<f64> = "rating",
        /// The URL of the transcript: `transcriptURL` on the wire.
        pub transcript_url: Option<String> = "transcriptURL",
        /// When the chat was created.
        pub created_at: Option<Timestamp> = "createdAt",
        /// When an expert accepted the chat.
        pub accepted_at: Option<Timestamp> = "acceptedAt",
        /// When the chat was closed.
        pub closed_at: Option<Timestamp> = "closedAt",
        /// When the customer rated the chat.
        pub rated_at: Option<Timestamp> = "ratedAt",
        /// When the chat was last opened.
        pub last_opened_at: Option<Timestamp> = "lastOpenedAt",
        /// The page from which the chat was started.
        pub referer: Option<String> = "referer",
        /// The entries that the chat loader defined. Those whose value is not a string are dropped.
        pub custom_meta: BTreeMap<String, String> = "customMeta",
    }

    /// The topic of a [`Chat`] or [`ChatLifecycle`].
    #[derive(Eq)]
    pub struct Category {
        /// The category's identifier.
        pub id: Option<String> = "id",
        /// The category's title.
        pub title: Option<String> = "title",
    }

    /// The customer of a [`Chat`] or [`ChatLifecycle`].
    #[derive(Eq)]
    pub struct User {
        /// The customer's identifier.
        pub id: Option<String> = "id",
        /// The customer's name.
        pub name: Option<String> = "name",
        /// The customer's e-mail address.
        pub email: Option<String> = "email",
        /// The customer's country: an ISO 3166 two-letter code, according to the spec.
        pub locale: Option<String> = "locale",
    }

    /// The expert of a [`ChatLifecycle`].
    #[derive(Eq)]
    pub struct Expert {
        /// The expert's identifier.
        pub id: Option<String> = "id",
        /// The expert's name.
        pub name: Option<String> = "name",
        /// The expert's e-mail address.
        pub email: Option<String> = "email",
    }

    /// The chat, user or expert of a [`Message`], by its identifier alone.
    #[derive(Eq)]
    pub struct Reference {
        /// The identifier.
        pub id: Option<String> = "id",
    }

    /// The file attached to a [`Message`].
    #[derive(Eq)]
    pub struct Attachment {
        /// The file's URL.
        pub url: Option<String> = "url",
        /// The file's name.
        pub filename: Option<String> = "filename",
        /// The file's media type, such as `image/png`.
        pub mimetype: Option<String> = "mimetype",
    }
}

/// Encodes a whole rating as an integer, because the sender writes `1` and not `1.0`.
fn serialize_rating<S: Serializer>(rating: &Option<f64>, to: S) -> Result<S::Ok, S::Error> {
    match *rating {
        // Compared by bits, so that -0.0 keeps its sign.
        Some(rating) if (rating as i64 as f64).to_bits() == rating.to_bits() => {
            to.serialize_i64(rating as i64)
        }
        rating => rating.serialize(to),
    }
}

/// A point in time: whole milliseconds since the Unix epoch, negative before it
/// ([Spec 2](crate::docs::platform#spec-2)).
///
/// It decodes from any whole JSON number that fits into an `i64`, including `1.7e12`, and is encoded
/// and displayed as an integer.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use tower_webhook::event::Timestamp;
///
/// let at = Timestamp::from_millis(1_500);
/// assert_eq!(at.to_system_time(), Some(SystemTime::UNIX_EPOCH + Duration::from_millis(1_500)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Creates the timestamp `millis` milliseconds after the Unix epoch.
    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Returns the milliseconds since the Unix epoch.
    #[must_use]
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// Converts to a [`SystemTime`], or returns `None` if the operating system cannot represent the
    /// time.
    #[must_use]
    pub fn to_system_time(self) -> Option<SystemTime> {
        let distance = Duration::from_millis(self.0.unsigned_abs());
        if self.0 < 0 {
            SystemTime::UNIX_EPOCH.checked_sub(distance)
        } else {
            SystemTime::UNIX_EPOCH.checked_add(distance)
        }
    }

    fn from_float(millis: f64) -> Option<Self> {
        // 2^63 is the first float above every i64. `i64::MAX as f64` rounds up to it, so a closed
        // range would accept a number that saturates in the cast.
        const END: f64 = -(i64::MIN as f64);
        (millis.fract() == 0.0 && (-END..END).contains(&millis)).then_some(Self(millis as i64))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_i64(self.0)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_i64(TimestampVisitor)
    }
}

struct TimestampVisitor;

impl Visitor<'_> for TimestampVisitor {
    type Value = Timestamp;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Timestamp::EXPECTED)
    }

    fn visit_i64<E: Error>(self, millis: i64) -> Result<Timestamp, E> {
        Ok(Timestamp(millis))
    }

    fn visit_u64<E: Error>(self, millis: u64) -> Result<Timestamp, E> {
        let timestamp = i64::try_from(millis).map(Timestamp);
        timestamp.map_err(|_| E::invalid_value(Unexpected::Unsigned(millis), &self))
    }

    // Only a `Timestamp` that is decoded alone comes here; in a payload, `Shape` reads it.
    fn visit_f64<E: Error>(self, millis: f64) -> Result<Timestamp, E> {
        let timestamp = Timestamp::from_float(millis);
        timestamp.ok_or_else(|| E::invalid_value(Unexpected::Float(millis), &self))
    }
}

impl Shape for Timestamp {
    const EXPECTED: &'static str = "whole milliseconds";

    #[inline]
    fn from_scalar(scalar: Scalar<'_>) -> Option<Self> {
        match scalar {
            Scalar::Integer(millis) => i64::try_from(millis).ok().map(Self),
            Scalar::Float(millis) => Self::from_float(millis),
            _ => None,
        }
    }
}
