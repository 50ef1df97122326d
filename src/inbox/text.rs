//! Whether a body has a text.

/// Whether a body has a text, as it was received, or when the escapes in its strings of JSON are decoded. ASCII letters
/// match in either case.
pub(crate) fn has_text(body: &[u8], text: &str) -> bool {
    let text = text.as_bytes();
    let is_in = |body: &[u8]| {
        let mut parts = body.windows(text.len().max(1));
        text.is_empty() || parts.any(|part| part.eq_ignore_ascii_case(text))
    };
    is_in(body) || body.contains(&b'\\') && is_in(&decoded(body))
}

/// Decodes the escapes of JSON, which occur in strings only.
fn decoded(body: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(body.len());
    let mut rest = body;
    while let Some(at) = rest.iter().position(|byte| *byte == b'\\') {
        decoded.extend_from_slice(&rest[..at]);
        let Some((escape, after)) = rest[at + 1..].split_first() else {
            return decoded;
        };
        rest = after;
        match escape {
            b'b' => decoded.push(0x08),
            b'f' => decoded.push(0x0c),
            b'n' => decoded.push(b'\n'),
            b'r' => decoded.push(b'\r'),
            b't' => decoded.push(b'\t'),
            b'u' => {
                let (char, after) = escaped(rest);
                rest = after;
                decoded.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
            }
            // `"`, `\` and `/`.
            other => decoded.push(*other),
        }
    }
    decoded.extend_from_slice(rest);
    decoded
}

/// The character after `\u`, which may take two escapes, and the rest.
fn escaped(text: &[u8]) -> (char, &[u8]) {
    let Some((first, rest)) = unit_of(text) else {
        return (char::REPLACEMENT_CHARACTER, text);
    };
    let second = rest.strip_prefix(b"\\u").and_then(unit_of);
    let pair = second.and_then(|(second, rest)| {
        let char = char::decode_utf16([first, second]).next()?.ok()?;
        (char.len_utf16() == 2).then_some((char, rest))
    });
    pair.unwrap_or_else(|| {
        let char = char::from_u32(first.into());
        (char.unwrap_or(char::REPLACEMENT_CHARACTER), rest)
    })
}

fn unit_of(text: &[u8]) -> Option<(u16, &[u8])> {
    let (digits, rest) = text.split_first_chunk::<4>()?;
    let digits = str::from_utf8(digits).ok()?;
    let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let unit = u16::from_str_radix(digits, 16).ok().filter(|_| is_hex);
    Some((unit?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_found_in_decoded_strings_and_as_they_are() {
        for (body, text) in [
            (r#"{"name":"Zoë Ünal"}"#, "zoë Ün"),
            (r#"{"name":"Zo\u00eb"}"#, "Zoë"),
            (r#"{"name":"Zo\u00EB"}"#, "ZOë"),
            (r#"{"name":"Zo\u00EB"}"#, r"zo\u00eb"),
            (r#"{"name":"\u005Aoe"}"#, "zoe"),
            (r#"{"text":"\ud83d\ude00!"}"#, "😀!"),
            (r#"{"text":"a\"b\\c\/d\n\te"}"#, "a\"b\\c/d\n\te"),
            (r#"{"text":"a\"b"}"#, r#"a\"b"#),
            (r#"{"text":"a"}"#, ""),
            ("not JSON: \\", "JSON: \\"),
            ("\\u12\\ud800x", "x"),
        ] {
            assert!(has_text(body.as_bytes(), text), "{text} in {body}");
        }
        for (body, text) in [
            (r#"{"name":"Zo\u00eb"}"#, "Zoe"),
            (r#"{"name":"Zoë"}"#, "ZoË"),
            ("", "a"),
            ("short", "shorter"),
            (r"\u00e", "\u{e}"),
        ] {
            assert!(!has_text(body.as_bytes(), text), "{text} in {body}");
        }
        assert!(has_text(b"\xff\xfe\\u0061", "A"), "no UTF-8");
    }
}
