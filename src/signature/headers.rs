//! Reads the headers of a request other than the signature.

use std::borrow::Cow;

use http::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, TRANSFER_ENCODING,
};

use super::refusal::Refusal;
use crate::delivery::IdempotencyKey;
use crate::event::EventKind;
use crate::sender::{Made, Media, Place, Sender, key as sender_key};

/// The length that the `Content-Length` header declares, if there is one. Refuses what a proxy may end elsewhere.
pub(super) fn declared_length(headers: &HeaderMap) -> Result<Option<u64>, Refusal> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    if let Some(coding) = codings.next() {
        // Servers take off `chunked` alone, so another coding would be left in the body (RFC 9112, section 6.1).
        let is_chunked = coding
            .as_bytes()
            .trim_ascii()
            .eq_ignore_ascii_case(b"chunked");
        if !is_chunked || codings.next().is_some() {
            let reason = "its `Transfer-Encoding` is not `chunked` alone";
            return Err(Refusal::malformed(reason));
        }
        if headers.contains_key(CONTENT_LENGTH) {
            let reason = "it has both `Content-Length` and `Transfer-Encoding`";
            return Err(Refusal::malformed(reason));
        }
    }
    let mut values = headers.get_all(CONTENT_LENGTH).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    // `parse` alone would accept `+1`.
    let is_number = !value.is_empty() && value.as_bytes().iter().all(u8::is_ascii_digit);
    // Equal values are one length (RFC 9110, section 8.6). Different ones would let a proxy end the body elsewhere.
    if !is_number || values.any(|other| other != value) {
        return Err(Refusal::malformed("its `Content-Length` is not one number"));
    }
    // More digits than a `u64` holds are more bytes than any limit.
    let length = value.to_str().ok().and_then(|digits| digits.parse().ok());
    Ok(Some(length.unwrap_or(u64::MAX)))
}

/// Returns kind and key of an authentic request, or why it cannot be a delivery of this sender.
#[inline]
pub(super) fn kind_and_key(
    headers: &HeaderMap,
    body: &[u8],
    sender: &Sender,
    require_key: bool,
) -> Result<(EventKind, Option<IdempotencyKey>), Refusal> {
    let described = sender.described();
    // Its tag may be that of a text which anybody had signed: none of these begins as an object or an array.
    if described.signs_for_anybody() && !matches!(body.trim_ascii_start(), [b'{' | b'[', ..]) {
        return Err(Refusal::unreadable("it is no JSON object or array"));
    }
    // Checked after the verification, so that nobody gets this answer without a signed body.
    if !is_accepted(headers, described.content_types()) {
        return Err(Refusal::UnsupportedMediaType);
    }
    let body = &*described.readable(body).map_err(Refusal::unreadable)?;
    let scheme = described.scheme(headers);
    let kind = match &scheme.kind {
        Place::None => EventKind::from_bytes(sender.name().as_bytes()).ok(),
        Place::Header(name) => Some(kind(headers, name)?),
        Place::Body(pointers) => {
            let found = pointers
                .find_in_delivery(body)
                .map_err(Refusal::unreadable)?;
            found.and_then(|kind| EventKind::from_bytes(kind.as_bytes()).ok())
        }
        Place::Made(made) => made_kind(headers, body, made)?,
    };
    let kind = kind.ok_or_else(|| {
        let place = scheme.kind.described();
        Refusal::unreadable(format!(
            "its event type is missing, or not 1 to 128 visible ASCII characters: expected in {place}"
        ))
    })?;
    // The event header is not signed. Other senders' types may have a slash, as Shopify's.
    if sender.described().is_platform() && !kind.is_token() {
        return Err(Refusal::InvalidEventHeader);
    }
    let key = key(headers, body, &scheme.key)?;
    if require_key && key.is_none() {
        return Err(Refusal::MissingKey);
    }
    Ok((kind, key))
}

/// The kind that the headers of an unverified request name.
pub(super) fn claimed_kind(headers: &HeaderMap, sender: &Sender) -> Option<EventKind> {
    match &sender.described().scheme(headers).kind {
        Place::Header(name) => kind(headers, name).ok(),
        _ => None,
    }
}

/// The header of an unverified request that has its key, if it is one alone.
pub(super) fn key_header<'a>(headers: &HeaderMap, sender: &'a Sender) -> Option<&'a HeaderName> {
    match sender.described().scheme(headers).key.as_slice() {
        [Place::Header(name)] => Some(name),
        _ => None,
    }
}

#[inline]
fn key(
    headers: &HeaderMap,
    body: &[u8],
    parts: &[Place],
) -> Result<Option<IdempotencyKey>, Refusal> {
    let text = |part: &Place| match part {
        Place::None | Place::Made(_) => Ok(None),
        Place::Header(name) => Ok(header_key(headers, name)?.map(|key| key.to_string().into())),
        Place::Body(pointers) => {
            let found = pointers.find_in_delivery(body);
            found.map_err(Refusal::unreadable)
        }
    };
    let found = match parts {
        [] => None,
        // A header's value is kept as it is, and the server limits its length.
        [Place::Header(name)] => return header_key(headers, name),
        [only] => text(only)?,
        several => {
            let mut texts = Vec::new();
            for part in several {
                match text(part)?.filter(|text| !text.is_empty()) {
                    Some(text) => texts.push(text),
                    // A key of fewer parts could be that of another event.
                    None => return Ok(None),
                }
            }
            Some(Cow::Owned(sender_key::joined(&texts)))
        }
    };
    let key = found.map_or(Ok(None), |text| sender_key::of(&text));
    key.map_err(Refusal::unreadable)
}

/// An event type that is put together, or else its default. `None` if it is none.
#[cold]
fn made_kind(headers: &HeaderMap, body: &[u8], made: &Made) -> Result<Option<EventKind>, Refusal> {
    let mut texts = Vec::new();
    for part in &made.parts {
        let text = match part {
            Place::Header(name) if headers.contains_key(name) => {
                Some(kind(headers, name)?.to_string())
            }
            // With a default, it may be missing for as long as it likes.
            Place::Body(pointers) => {
                let found = match &made.default {
                    Some(_) => pointers.find(body),
                    None => pointers.find_in_delivery(body),
                };
                found.map_err(Refusal::unreadable)?.map(Cow::into_owned)
            }
            _ => None,
        };
        match text.filter(|text| !text.is_empty()) {
            Some(text) => texts.push(text),
            None => return Ok(made.default.clone()),
        }
    }
    Ok(EventKind::from_bytes(texts.join(&made.with).as_bytes()).ok())
}

/// Whether the content type is one of these, or without any, `application/json`.
fn is_accepted(headers: &HeaderMap, types: Option<&[Media]>) -> bool {
    let mut values = headers.get_all(CONTENT_TYPE).iter();
    // Two content types would be two readings of one body.
    let (Some(value), None) = (values.next(), values.next()) else {
        return false;
    };
    let essence = value
        .as_bytes()
        .split(|&byte| byte == b';')
        .next()
        .unwrap_or_default()
        .trim_ascii();
    let is_it = match types {
        None => essence.eq_ignore_ascii_case(b"application/json"),
        Some(types) => types.iter().any(|it| it.is(essence)),
    };
    is_it
        // The signature covers the bytes as they arrive, and nothing here decompresses them.
        && !headers.contains_key(CONTENT_ENCODING)
}

fn kind(headers: &HeaderMap, name: &HeaderName) -> Result<EventKind, Refusal> {
    let mut values = headers.get_all(name).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return Err(Refusal::InvalidEventHeader);
    };
    EventKind::from_bytes(value.as_bytes()).map_err(|_| Refusal::InvalidEventHeader)
}

/// Several headers are one key as long as they agree.
fn header_key(headers: &HeaderMap, name: &HeaderName) -> Result<Option<IdempotencyKey>, Refusal> {
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
    use http::HeaderValue;

    use super::*;

    #[test]
    fn the_key_of_an_unverified_request_is_that_of_one_header() {
        for (sender, key) in [
            (Sender::default(), Some("idempotency-key")),
            (Sender::standard_webhooks(), Some("webhook-id")),
            // It is in the body.
            (Sender::stripe(), None),
        ] {
            let found = key_header(&HeaderMap::new(), &sender);
            assert_eq!(found.map(HeaderName::as_str), key);
        }
    }

    #[test]
    fn a_length_beside_chunks_and_unknown_codings_are_refused() {
        let declared = |pairs: &[(HeaderName, &'static str)]| {
            let pairs = pairs.iter().cloned();
            let headers = pairs.map(|(name, value)| (name, HeaderValue::from_static(value)));
            let mut all = HeaderMap::new();
            headers.for_each(|(name, value)| _ = all.append(name, value));
            declared_length(&all)
        };
        for right in ["chunked", "Chunked", " chunked "] {
            assert!(matches!(declared(&[(TRANSFER_ENCODING, right)]), Ok(None)));
        }
        for wrong in [
            &[(TRANSFER_ENCODING, "gzip, chunked")][..],
            &[(TRANSFER_ENCODING, "x-unknown, chunked")],
            &[(TRANSFER_ENCODING, "chunked, chunked")],
            &[(TRANSFER_ENCODING, "gzip"), (TRANSFER_ENCODING, "chunked")],
            &[(TRANSFER_ENCODING, "")],
            &[(CONTENT_LENGTH, "7"), (TRANSFER_ENCODING, "chunked")],
        ] {
            let refused = declared(wrong);
            assert!(
                matches!(refused, Err(Refusal::MalformedBody(_))),
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn a_declared_length_is_a_number() {
        let all = |values: &[&str]| {
            let headers = values
                .iter()
                .map(|it| (CONTENT_LENGTH, it.parse().unwrap()));
            declared_length(&HeaderMap::from_iter(headers))
        };
        let declared = |value| all(&[value]);
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
        assert!(matches!(all(&["7", "7"]), Ok(Some(7))));
        assert!(matches!(all(&["7", "8"]), Err(Refusal::MalformedBody(_))));
        for wrong in ["", "-1", "+1", "1.0", "0x10", "1, 1", "ten"] {
            assert!(
                matches!(declared(wrong), Err(Refusal::MalformedBody(_))),
                "{wrong:?}"
            );
        }
    }
}
