//! Lines of JSON with a payload as it was received.

use serde::Serialize;
use serde_json::Value;
use tower_webhook::Item;

/// Returns `head`, an object, as a line of JSON with one more field: the payload, which is JSON.
pub(crate) fn line_with_payload(
    head: &impl Serialize,
    payload: &str,
) -> serde_json::Result<String> {
    let head = serde_json::to_string(head)?;
    let fields = head.strip_suffix('}').unwrap_or(&head);
    Ok(format!("{fields},\"payload\":{}}}\n", minify(payload)))
}

/// The place of an event in a batch.
#[derive(Serialize)]
pub(crate) struct Batch {
    item: u32,
    items: u32,
    /// What is kept of its delivery, a JSON object.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<Value>,
    /// In an inbox, the numbers of the other events: the 20 nearest.
    #[serde(skip_serializing_if = "Option::is_none")]
    others: Option<Vec<i64>>,
}

impl Batch {
    pub(crate) fn of(item: &Item, others: Option<Vec<i64>>) -> Self {
        Self {
            item: item.number(),
            items: item.count(),
            kept: item.kept().and_then(|kept| serde_json::from_str(kept).ok()),
            others,
        }
    }
}

/// Removes the whitespace between the tokens of valid JSON. Decoding and encoding it again would change
/// numbers such as `1.50`.
fn minify(json: &str) -> String {
    let mut in_string = false;
    let mut escaped = false;
    let is_kept = |char: &char| {
        match char {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => in_string = !in_string,
            ' ' | '\t' | '\r' | '\n' => return in_string,
            _ => {}
        }
        true
    };
    json.chars().filter(is_kept).collect()
}
