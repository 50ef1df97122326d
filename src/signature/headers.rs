//! Reads the headers of a request other than the signature.

use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName};

use super::refusal::Refusal;
use crate::delivery::IdempotencyKey;
use crate::event::EventKind;
use crate::sender::Names;

/// The length that the `Content-Length` header declares, if there is one.
pub(super) fn declared_length(headers: &HeaderMap) -> Result<Option<u64>, Refusal> {
    let mut values = headers.get_all(CONTENT_LENGTH).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let is_number = !value.is_empty() && value.as_bytes().iter().all(u8::is_ascii_digit);
    if !is_number || values.any(|other| other != value) {
        return Err(Refusal::malformed("its `Content-Length` is not one number"));
    }
    // More digits than a `u64` holds are more bytes than any limit.
    let length = value.to_str().ok().and_then(|digits| digits.parse().ok());
    Ok(Some(length.unwrap_or(u64::MAX)))
}

/// Returns kind and key of an authentic request, or why it cannot be a delivery of this platform.
pub(super) fn kind_and_key(
    headers: &HeaderMap,
    names: &Names,
    require_key: bool,
) -> Result<(EventKind, Option<IdempotencyKey>), Refusal> {
    if !is_plain_json(headers) {
        return Err(Refusal::UnsupportedMediaType);
    }
    let kind = kind(headers, &names.event)?;
    let key = key(headers, &names.key)?;
    if require_key && key.is_none() {
        return Err(Refusal::MissingKey);
    }
    Ok((kind, key))
}

fn is_plain_json(headers: &HeaderMap) -> bool {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let (Some(value), None) = (types.next(), types.next()) else {
        return false;
    };
    let essence = value
        .as_bytes()
        .split(|&byte| byte == b';')
        .next()
        .unwrap_or_default();
    essence
        .trim_ascii()
        .eq_ignore_ascii_case(b"application/json")
        && !headers.contains_key(CONTENT_ENCODING)
}

pub(super) fn kind(headers: &HeaderMap, name: &HeaderName) -> Result<EventKind, Refusal> {
    let mut values = headers.get_all(name).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return Err(Refusal::InvalidEventHeader);
    };
    EventKind::from_bytes(value.as_bytes()).map_err(|_| Refusal::InvalidEventHeader)
}

/// Several headers are one key as long as they agree.
fn key(headers: &HeaderMap, name: &HeaderName) -> Result<Option<IdempotencyKey>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let Some(first) = values.next() else {
        return Ok(None);
    };
    if values.any(|value| value != first) {
        return Err(Refusal::ConflictingKeys);
    }
    Ok(IdempotencyKey::new(first.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_declared_length_is_a_number() {
        let declared = |value: &str| {
            let headers = [(http::header::CONTENT_LENGTH, value.parse().unwrap())];
            declared_length(&HeaderMap::from_iter(headers))
        };
        assert!(matches!(declared_length(&HeaderMap::new()), Ok(None)));
        assert!(matches!(declared("0"), Ok(Some(0))));
        assert!(matches!(
            declared("18446744073709551615"),
            Ok(Some(u64::MAX))
        ));
        assert!(matches!(
            declared("99999999999999999999"),
            Ok(Some(u64::MAX))
        ));
        for wrong in ["", "-1", "+1", "1.0", "0x10", "1, 1", "ten"] {
            assert!(
                matches!(declared(wrong), Err(Refusal::MalformedBody(_))),
                "{wrong:?}"
            );
        }
    }
}
