//! Lines of JSON with a payload as it was received.

use serde::Serialize;

/// Returns `head`, an object, as a line of JSON with one more field: the payload, which is JSON.
pub(crate) fn line_with_payload(
    head: &impl Serialize,
    payload: &str,
) -> serde_json::Result<String> {
    let head = serde_json::to_string(head)?;
    let fields = head.strip_suffix('}').unwrap_or(&head);
    Ok(format!("{fields},\"payload\":{}}}\n", minify(payload)))
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
