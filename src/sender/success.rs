//! What a sender wants to hear when a delivery was taken, if a status of 200 is not enough.

use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use serde_json::Value;

use super::challenge::Reply;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SuccessDescription {
    status: Option<u16>,
    /// A text as it is, or JSON.
    body: Option<Value>,
}

impl SuccessDescription {
    pub(super) fn read(&self) -> Result<Reply, String> {
        let (status, content_type, body) = reply(self.status, self.body.as_ref(), "success")?;
        Ok(Reply::new(status.as_u16(), content_type, body))
    }
}

/// A status of 200 to 299 with a text, JSON, or nothing.
pub(super) fn reply(
    status: Option<u16>,
    body: Option<&Value>,
    field: &str,
) -> Result<(StatusCode, Option<&'static str>, Bytes), String> {
    let default = if body.is_some() { 200 } else { 204 };
    let status = StatusCode::from_u16(status.unwrap_or(default)).ok();
    let is_possible =
        |it: &StatusCode| it.is_success() && (body.is_none() || *it != StatusCode::NO_CONTENT);
    let status = status
        .filter(is_possible)
        .ok_or_else(|| format!("{field}: use a status of 200 to 299, and 204 without a body"))?;
    Ok(match body {
        None => (status, None, Bytes::new()),
        Some(Value::String(text)) => (status, Some("text/plain"), text.clone().into()),
        Some(json) => (status, Some("application/json"), json.to_string().into()),
    })
}
