//! The chat that an event belongs to.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::EventKind;

/// Returns the id of the chat that an event belongs to: `chat.id` of a message, and `id` of the other kinds that the
/// platform documents (Spec 2).
///
/// Returns `None` for other kinds and for a body in which it cannot be found.
pub(crate) fn chat_id(kind: &EventKind, body: &[u8]) -> Option<String> {
    if *kind == EventKind::MESSAGE_CREATED {
        let message: Id<true> = serde_json::from_slice(body).ok()?;
        return message.0;
    }
    if !EventKind::ALL.contains(kind) {
        return None;
    }
    let chat: Id<false> = serde_json::from_slice(body).ok()?;
    chat.0
}

/// The `id` of an object or, in a message, that of its `chat`. Derived code would accept arrays, too.
struct Id<const IN_CHAT: bool>(Option<String>);

#[derive(serde::Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum Key {
    Id,
    Chat,
    #[serde(other)]
    Other,
}

impl<'de, const IN_CHAT: bool> Deserialize<'de> for Id<IN_CHAT> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object<const IN_CHAT: bool>;

        impl<'de, const IN_CHAT: bool> Visitor<'de> for Object<IN_CHAT> {
            type Value = Id<IN_CHAT>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut id = None;
                while let Some(key) = map.next_key()? {
                    match key {
                        Key::Id if !IN_CHAT => id = map.next_value()?,
                        Key::Chat if IN_CHAT => {
                            let chat: Option<Id<false>> = map.next_value()?;
                            id = chat.and_then(|chat| chat.0);
                        }
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(Id(id))
            }
        }

        deserializer.deserialize_map(Object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::sample;

    #[test]
    fn every_sample_has_its_chat() {
        for kind in EventKind::ALL {
            let body = sample(&kind).unwrap();
            let body: serde_json::Value = serde_json::from_str(body).unwrap();
            let expected = match kind == EventKind::MESSAGE_CREATED {
                true => &body["chat"]["id"],
                false => &body["id"],
            };
            let body = body.to_string();
            let found = chat_id(&kind, body.as_bytes());
            assert!(found.is_some(), "{kind}");
            assert_eq!(found.as_deref(), expected.as_str(), "{kind}");
        }
    }

    #[test]
    fn other_bodies_have_none() {
        let rated = EventKind::CHAT_RATED;
        for body in [
            &b"{}"[..],
            b"[]",
            br#"["c-1"]"#,
            b"{",
            b"\xff",
            b"",
            br#"{"id":null}"#,
            br#"{"id":7}"#,
            br#"{"chat":{"id":"c-1"}}"#,
        ] {
            assert_eq!(chat_id(&rated, body), None);
        }
        let odd = chat_id(&rated, br#"{"id":"c-1","chat":7}"#);
        assert_eq!(odd.as_deref(), Some("c-1"));
        let escaped = chat_id(&rated, br#"{"id":"a\u0062"}"#);
        assert_eq!(escaped.as_deref(), Some("ab"));
        let unknown = EventKind::from_static("chat-archived");
        assert_eq!(chat_id(&unknown, br#"{"id":"c-1"}"#), None);
        let message = EventKind::MESSAGE_CREATED;
        for body in [
            r#"{"id":"m-1","chat":{}}"#,
            r#"{"id":"m-1","chat":["c-1"]}"#,
            r#"["m-1",{"id":"c-1"}]"#,
            r#"{"id":"m-1","chat":null}"#,
        ] {
            assert_eq!(chat_id(&message, body.as_bytes()), None);
        }
    }
}
