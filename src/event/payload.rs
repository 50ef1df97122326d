//! The resources that deliveries carry (Spec 2).

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime};

use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};
use serde::ser::{Serialize, Serializer};

use super::lenient::{self, Scalar, Shape, payload};

payload! {
    /// The chat of a `chat-assigned` event (Spec 2.1).
    ///
    /// Like every payload here, it decodes from any JSON object. A field is `None` or empty when
    /// the sender omitted it, sent `null`, or sent another JSON type than the spec's; only the last
    /// is worth a warning, which names the field (`user.locale`) and never its value. Encoding
    /// leaves omitted fields out.
    ///
    /// ```
    /// use tower_webhook::event::{Chat, User};
    ///
    /// let chat: Chat = serde_json::from_str(r#"{"id":"c-1","user":{"name":"Ada","locale":7}}"#)?;
    ///
    /// assert_eq!(chat, Chat {
    ///     id: Some("c-1".into()),
    ///     user: Some(User { name: Some("Ada".into()), ..User::default() }),
    ///     ..Chat::default()
    /// });
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    #[derive(Eq)]
    pub struct Chat {
        /// The chat's identifier.
        pub id: Option<String> = "id",
        /// The experts who are asked for. Elements that are no strings are dropped.
        pub requested_experts: Vec<String> = "requestedExperts",
        /// What the chat is about.
        pub category: Option<Category> = "category",
        /// The customer.
        pub user: Option<User> = "user",
        /// What the customer asks.
        pub question: Option<String> = "question",
        /// The chat's language: by the spec two letters of ISO 639-1.
        pub language_code: Option<String> = "languageCode",
        /// When the chat was created.
        pub created_at: Option<Timestamp> = "createdAt",
        /// The page on which the chat was started.
        pub referer: Option<String> = "referer",
        /// What the chat loader added. Entries whose value is no string are dropped.
        pub custom_meta: BTreeMap<String, String> = "customMeta",
        /// When the chat was offered to experts.
        pub assigned_at: Option<Timestamp> = "assignedAt",
    }

    /// The message of a `message-created` event (Spec 2.2).
    ///
    /// It decodes and encodes as [`Chat`] says.
    #[derive(Eq)]
    pub struct Message {
        /// The chat that the message was sent to.
        pub chat: Option<Reference> = "chat",
        /// The message's identifier.
        pub id: Option<String> = "id",
        /// The customer of the message.
        pub user: Option<Reference> = "user",
        /// The expert of the message.
        pub expert: Option<Reference> = "expert",
        /// Whether the customer wrote it.
        pub is_user: Option<bool> = "isUser",
        /// What was written.
        pub text: Option<String> = "text",
        /// The type of message: `type` on the wire, which is a keyword in Rust. The spec does not
        /// show its values.
        pub kind: Option<String> = "type",
        /// Whether the customer does not see it.
        pub hide_for_user: Option<bool> = "hideForUser",
        /// Whether the expert does not see it.
        pub hide_for_expert: Option<bool> = "hideForExpert",
        /// When the message was created.
        pub created_at: Option<Timestamp> = "createdAt",
        /// The file that came with the message.
        pub attachment: Option<Attachment> = "attachment",
    }

    /// The chat of the events `chat-opened`, `chat-closed`, `chat-reopened`, `chat-transferred` and
    /// `chat-rated` (Spec 2.3).
    ///
    /// It decodes and encodes as [`Chat`] says.
    pub struct ChatLifecycle {
        /// The chat's identifier.
        pub id: Option<String> = "id",
        /// The customer.
        pub user: Option<User> = "user",
        /// The expert who handles the chat.
        pub expert: Option<Expert> = "expert",
        /// What the chat is about.
        pub category: Option<Category> = "category",
        /// What the customer asked.
        pub question: Option<String> = "question",
        /// The chat's language: by the spec two letters of ISO 639-1.
        pub language_code: Option<String> = "languageCode",
        /// The chat's state. The spec does not show its values.
        pub status: Option<String> = "status",
        /// The customer's rating: by the spec 0, 0.5 or 1, but any other number is kept.
        #[serde(serialize_with = "serialize_rating")]
        pub rating: Option<f64> = "rating",
        /// Where the transcript is found: `transcriptURL` on the wire.
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
        /// The page on which the chat was started.
        pub referer: Option<String> = "referer",
        /// What the chat loader added. Entries whose value is no string are dropped.
        pub custom_meta: BTreeMap<String, String> = "customMeta",
    }

    /// What a chat is about.
    #[derive(Eq)]
    pub struct Category {
        /// The category's identifier.
        pub id: Option<String> = "id",
        /// The category's title.
        pub title: Option<String> = "title",
    }

    /// The customer of a chat.
    #[derive(Eq)]
    pub struct User {
        /// The customer's identifier.
        pub id: Option<String> = "id",
        /// The customer's name.
        pub name: Option<String> = "name",
        /// The customer's e-mail address.
        pub email: Option<String> = "email",
        /// The customer's country: by the spec two letters of ISO 3166.
        pub locale: Option<String> = "locale",
    }

    /// The expert who handles a chat.
    #[derive(Eq)]
    pub struct Expert {
        /// The expert's identifier.
        pub id: Option<String> = "id",
        /// The expert's name.
        pub name: Option<String> = "name",
        /// The expert's e-mail address.
        pub email: Option<String> = "email",
    }

    /// What a message names by its identifier only: its chat, user or expert.
    #[derive(Eq)]
    pub struct Reference {
        /// The identifier.
        pub id: Option<String> = "id",
    }

    /// A file that came with a message.
    #[derive(Eq)]
    pub struct Attachment {
        /// Where the file is found.
        pub url: Option<String> = "url",
        /// The file's name.
        pub filename: Option<String> = "filename",
        /// The file's media type, such as `image/png`.
        pub mimetype: Option<String> = "mimetype",
    }
}

/// Encodes a whole rating as an integer: `1.0` would be another JSON number than the sender's `1`.
fn serialize_rating<S: Serializer>(rating: &Option<f64>, to: S) -> Result<S::Ok, S::Error> {
    match *rating {
        // Compared by bits, so that -0.0 keeps its sign.
        Some(rating) if (rating as i64 as f64).to_bits() == rating.to_bits() => {
            to.serialize_i64(rating as i64)
        }
        rating => rating.serialize(to),
    }
}

/// A point in time: whole milliseconds since the Unix epoch, before it when negative (Spec 2).
///
/// It decodes from any JSON number that is whole and fits an `i64`, so also from `1.7e12`, and
/// encodes and displays as an integer.
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
    /// The time `millis` milliseconds after the Unix epoch.
    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the Unix epoch.
    #[must_use]
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// The same time for the standard library, or `None` when this platform cannot represent it.
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
        // 2^63: the first whole float above every i64.
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
