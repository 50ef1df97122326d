//! The headers of a delivery that are kept with its event.

#[cfg(any(test, feature = "sqlite", feature = "postgres"))]
use http::header::HeaderValue;
use http::header::{HeaderMap, HeaderName};

use crate::delivery::SPOOLED;

/// The headers that identify the trace of a request: see <https://www.w3.org/TR/trace-context/>.
pub(super) const TRACE: [HeaderName; 2] = [
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
];

/// The maximum length of a kept value: the specification asks to propagate at least 512 characters of `tracestate`.
const LONGEST: usize = 512;

/// The headers of these names, without values that are too long.
pub(crate) fn kept(headers: &HeaderMap, names: &[HeaderName]) -> HeaderMap {
    let mut kept = HeaderMap::new();
    for name in names {
        if kept.contains_key(name) || *name == SPOOLED {
            continue;
        }
        for value in headers.get_all(name) {
            if value.len() <= LONGEST {
                kept.append(name, value.clone());
            }
        }
    }
    kept
}

/// The headers as a queue stores them: a line `name: value` for each. `None` if there are none.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn to_bytes(headers: &HeaderMap) -> Option<Vec<u8>> {
    if headers.is_empty() {
        return None;
    }
    let mut bytes = Vec::new();
    for (name, value) in headers {
        bytes.extend(line(name, value.as_bytes()));
    }
    Some(bytes)
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn line(name: &HeaderName, value: &[u8]) -> Vec<u8> {
    [name.as_str().as_bytes(), b": ", value, b"\n"].concat()
}

/// Parses stored headers, and skips lines that are not valid headers.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn from_bytes(bytes: &[u8]) -> HeaderMap {
    let header = |line: &[u8]| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = (line.get(..colon)?, line.get(colon + 2..)?);
        let name = HeaderName::from_bytes(name).ok()?;
        Some((name, HeaderValue::from_bytes(value).ok()?))
    };
    let mut headers = HeaderMap::new();
    for (name, value) in bytes.split(|byte| *byte == b'\n').filter_map(header) {
        headers.append(name, value);
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(name: &'static str, value: &[u8]) -> (HeaderName, HeaderValue) {
        let name = HeaderName::from_static(name);
        (name, HeaderValue::from_bytes(value).unwrap())
    }

    #[test]
    fn no_sender_can_say_that_its_event_was_spooled() {
        let mut headers = HeaderMap::new();
        headers.append(SPOOLED, HeaderValue::from_static("1"));
        assert!(kept(&headers, &[SPOOLED]).is_empty());
    }

    #[test]
    fn only_headers_with_these_names_and_short_values_are_kept() {
        let mut headers = HeaderMap::new();
        headers.extend([
            header("traceparent", b"00-1-2-01"),
            header("tracestate", &[b'a'; LONGEST + 1]),
            header("cookie", b"secret"),
        ]);
        headers.append("tracestate", HeaderValue::from_static("b=1"));
        let kept = kept(&headers, &TRACE);
        let kept: Vec<_> = kept
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        assert_eq!(kept, [("traceparent", "00-1-2-01"), ("tracestate", "b=1")]);
    }

    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    #[test]
    fn stored_headers_return_as_they_were() {
        let mut headers = HeaderMap::new();
        assert_eq!(to_bytes(&headers), None);
        for (name, value) in [
            header("x-a", b"caf\xe9: 1"),
            header("x-a", b""),
            header("x-b", b"\t"),
        ] {
            headers.append(name, value);
        }
        let bytes = to_bytes(&headers).unwrap();
        assert_eq!(bytes, b"x-a: caf\xe9: 1\nx-a: \nx-b: \t\n");
        assert_eq!(from_bytes(&bytes), headers);
        assert_eq!(from_bytes(b"nothing\n: x\nx y: z\nx\nx:"), HeaderMap::new());
    }
}
