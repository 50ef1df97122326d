//! Keys that are not the value of one header.

use std::borrow::Cow;

use http::HeaderValue;

use crate::delivery::IdempotencyKey;

/// The longest key in bytes that is taken from a body or joined.
const LONGEST: usize = 1024;

/// Several texts as one.
pub(crate) fn joined(texts: &[Cow<'_, str>]) -> String {
    // A separator alone could stand in a part, too.
    serde_json::Value::from(texts).to_string()
}

/// The key that is this text. `None` if it is empty. An error says why it is none.
pub(crate) fn of(text: &str) -> Result<Option<IdempotencyKey>, &'static str> {
    if text.len() > LONGEST {
        return Err("its key has more than 1,024 bytes");
    }
    let value = HeaderValue::from_bytes(text.as_bytes());
    let value = value.map_err(|_| "its key has control characters")?;
    Ok(IdempotencyKey::new(value))
}
