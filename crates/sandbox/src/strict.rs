//! Strict mode: payloads that rely on nothing but the spec.

use bytes::Bytes;
use fastrand::Rng;
use serde_json::{Map, Value};
use tower_webhook::event::{EventKind, sample};

/// Words that no receiver can know: the spec publishes none (Spec 3).
const UNKNOWN: [&str; 5] = ["ARCHIVED", "resolved_by_bot", "état-7", "rich/card", ""];

pub(super) fn unknown_word(rng: &mut Rng) -> String {
    UNKNOWN[rng.usize(..UNKNOWN.len())].to_owned()
}

/// Returns the payload with an unknown `status`, if it has one, and with `null` for some of the fields that
/// are omitted.
pub(super) fn harden(rng: &mut Rng, kind: &EventKind, payload: Bytes) -> Bytes {
    let Ok(mut fields) = serde_json::from_slice::<Map<String, Value>>(&payload) else {
        return payload;
    };
    if let Some(status) = fields.get_mut("status") {
        *status = unknown_word(rng).into();
    }
    // A sample of these kinds has all fields of its payload.
    let full = match kind.as_str() {
        "chat-assigned" | "message-created" => kind,
        _ => &EventKind::CHAT_RATED,
    };
    let all = sample(full).and_then(|sample| serde_json::from_str::<Map<_, Value>>(sample).ok());
    for (name, _) in all.unwrap_or_default() {
        if !fields.contains_key(&name) && rng.bool() {
            fields.insert(name, Value::Null);
        }
    }
    serde_json::to_vec(&fields).map_or(payload, Bytes::from)
}
