//! The chat that an event belongs to.

use std::borrow::Cow;

use serde::Deserialize;

use super::EventKind;

#[derive(Deserialize)]
struct Ids<'a> {
    #[serde(borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    chat: Option<ChatIds<'a>>,
}

#[derive(Deserialize)]
struct ChatIds<'a> {
    #[serde(borrow)]
    id: Option<Cow<'a, str>>,
}

/// Returns the id of the chat that an event belongs to: `chat.id` of a message, and `id` of the other kinds that the
/// platform documents (Spec 2).
///
/// Returns `None` for other kinds and for a body in which it cannot be found.
pub(crate) fn chat_id<'a>(kind: &EventKind, body: &'a [u8]) -> Option<Cow<'a, str>> {
    if !EventKind::ALL.contains(kind) {
        return None;
    }
    let ids: Ids<'_> = serde_json::from_slice(body).ok()?;
    match *kind == EventKind::MESSAGE_CREATED {
        true => ids.chat?.id,
        false => ids.id,
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
            b"{",
            b"\xff",
            b"",
            br#"{"id":null}"#,
            br#"{"id":7}"#,
            br#"{"chat":{"id":"c-1"}}"#,
        ] {
            assert_eq!(chat_id(&rated, body), None);
        }
        let escaped = chat_id(&rated, br#"{"id":"a\u0062"}"#);
        assert_eq!(escaped.as_deref(), Some("ab"));
        let unknown = EventKind::from_static("chat-archived");
        assert_eq!(chat_id(&unknown, br#"{"id":"c-1"}"#), None);
        let message = EventKind::MESSAGE_CREATED;
        assert_eq!(chat_id(&message, br#"{"id":"m-1","chat":{}}"#), None);
    }
}
