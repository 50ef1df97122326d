//! Repairs JSON that RFC 8259 allows and `serde_json` rejects.

use serde::de::IgnoredAny;

/// Rewrites the tokens that RFC 8259 allows and `serde_json` rejects, or returns `None` if `json`
/// contains no such token:
///
/// - Escapes of unpaired surrogates become `\ufffd`. JavaScript's `JSON.stringify` emits them for a
///   text that was cut in the middle of an emoji.
/// - Numbers that `serde_json` considers too large for an `f64` become the largest one of their sign.
///
/// A token is only replaced by a token of the same type, so that invalid JSON stays invalid.
pub(crate) fn repair(json: &str) -> Option<String> {
    let bytes = json.as_bytes();
    let mut repaired = String::new();
    let mut copied = 0;
    let mut at = 0;
    let mut in_string = false;

    // Bytes are enough: JSON's syntax is ASCII, no byte of a longer UTF-8 sequence looks like ASCII,
    // and so every slice below starts and ends at the boundary of a character.
    while let Some(&byte) = bytes.get(at) {
        let (length, replacement) = match byte {
            b'\\' if in_string => escape(&bytes[at..]),
            b'-' | b'0'..=b'9' if !in_string => number(&json[at..]),
            b'"' => {
                in_string = !in_string;
                (1, None)
            }
            _ => (1, None),
        };
        if let Some(replacement) = replacement {
            repaired.push_str(&json[copied..at]);
            repaired.push_str(replacement);
            copied = at + length;
        }
        at += length;
    }

    // A replacement advances `copied` by at least one byte, so 0 means that there was none.
    if copied == 0 {
        return None;
    }
    repaired.push_str(&json[copied..]);
    Some(repaired)
}

/// Returns the length of the escape at the start of `rest`, and its replacement.
fn escape(rest: &[u8]) -> (usize, Option<&'static str>) {
    const REPLACEMENT_CHARACTER: Option<&str> = Some(r"\ufffd");

    match code_unit(rest) {
        None => (2, None),
        // A pair is skipped as a whole: its second half alone would look unpaired.
        Some(0xD800..=0xDBFF) => match code_unit(&rest[6..]) {
            Some(0xDC00..=0xDFFF) => (12, None),
            _ => (6, REPLACEMENT_CHARACTER),
        },
        Some(0xDC00..=0xDFFF) => (6, REPLACEMENT_CHARACTER),
        Some(_) => (6, None),
    }
}

/// Parses an escape such as `\ud83d` as its UTF-16 code unit.
fn code_unit(rest: &[u8]) -> Option<u32> {
    let [b'\\', b'u', digits @ ..] = rest else {
        return None;
    };
    let digits = digits.first_chunk::<4>()?;
    digits.iter().try_fold(0, |unit, &digit| {
        Some(unit * 16 + char::from(digit).to_digit(16)?)
    })
}

/// Returns the length of the number at the start of `rest`, and its replacement.
fn number(rest: &str) -> (usize, Option<&'static str>) {
    let is_end = |c| !matches!(c, '0'..='9' | '+' | '-' | '.' | 'e' | 'E');
    let token = &rest[..rest.find(is_end).unwrap_or(rest.len())];

    // `IgnoredAny` checks the grammar alone, so only the size can be wrong if `f64` is an error.
    let is_number = serde_json::from_str::<IgnoredAny>(token).is_ok();
    let replacement = match serde_json::from_str::<f64>(token) {
        Err(_) if is_number && token.starts_with('-') => Some("-1.7976931348623157e308"),
        Err(_) if is_number => Some("1.7976931348623157e308"),
        _ => None,
    };
    (token.len(), replacement)
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use proptest::prelude::*;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;
    use crate::event::{Chat, ChatLifecycle, Message};

    fn decode<T: DeserializeOwned>(json: &str) -> Result<T, serde_json::Error> {
        serde_json::from_str(json).or_else(|error| match repair(json) {
            Some(repaired) => serde_json::from_str(&repaired),
            None => Err(error),
        })
    }

    #[test]
    fn replaces_unpaired_surrogates() {
        for (json, expected) in [
            (r#""\ud83d""#, r#""\ufffd""#),
            (r#""\uD83D and \uDE00""#, r#""\ufffd and \ufffd""#),
            (r#""\ude00\ud83d""#, r#""\ufffd\ufffd""#),
            (r#""\ud83d\ud83d\ude00""#, r#""\ufffd\ud83d\ude00""#),
            (r#""\ud83d\ude00\ude00""#, r#""\ud83d\ude00\ufffd""#),
            (r#""\ud83d\n""#, r#""\ufffd\n""#),
            (r#""\ud83d\\ude00""#, r#""\ufffd\\ude00""#),
            (r#""\\\ud83d""#, r#""\\\ufffd""#),
            (r#""\"\ud83d""#, r#""\"\ufffd""#),
            (
                r#"{"\udfff":"😀\ud800\u0041é"}"#,
                r#"{"\ufffd":"😀\ufffd\u0041é"}"#,
            ),
        ] {
            assert_eq!(repair(json).as_deref(), Some(expected), "{json}");
            assert!(serde_json::from_str::<Value>(expected).is_ok(), "{json}");
        }
    }

    #[test]
    fn replaces_numbers_beyond_f64() {
        let digits = "9".repeat(400);
        let fraction = format!("{digits}.5e-1");
        for number in [
            "1e999",
            "1.5E+309",
            "1e99999999999999999999",
            &digits,
            &fraction,
        ] {
            let json = format!(r#"[0,-{number},{{"a":{number}}} , {number}]"#);
            let repaired = repair(&json).unwrap();
            let expected = json!([0, -f64::MAX, {"a": f64::MAX}, f64::MAX]);
            assert_eq!(serde_json::from_str::<Value>(&repaired).unwrap(), expected);
        }
        assert_eq!(
            repair("[1.7976931348623157e308,-1.7976931348623157e308]"),
            None
        );
    }

    #[test]
    fn other_text_is_unchanged() {
        for json in [
            "",
            "{}",
            r#""\\ud83d""#,
            r#""\ud83d\ude00 \u00e9 \ufffd \ue000 \ud7ff""#,
            r#"{"1e999":"1e999 \"1e999"}"#,
            "[0,-0,0e999,0.0e99999999999,1e-999,1e308,1.0E+2,18446744073709551616]",
            // Invalid JSON, which must stay invalid.
            "01e999",
            "1e999.5",
            "-",
            "1e999e",
            r"\ud83d",
            r#""\ud83"#,
            r#""\ud83x""#,
            r#""\u+83d""#,
            r#""\"#,
            r#""\é""#,
        ] {
            assert_eq!(repair(json), None, "{json}");
        }
    }

    #[test]
    fn repaired_fields_are_decoded() {
        let json = r#"{"question":"cut \ud83d","rating":-1e999,"ratedAt":1e999,"id":"c"}"#;
        let chat: ChatLifecycle = decode(json).unwrap();

        let expected = ChatLifecycle {
            id: Some("c".into()),
            question: Some("cut \u{fffd}".into()),
            rating: Some(f64::MIN),
            ..ChatLifecycle::default()
        };
        assert_eq!(chat, expected);
    }

    proptest! {
        #[test]
        fn any_object_of_rfc_8259_decodes(json in object()) {
            prop_assert!(decode::<Chat>(&json).is_ok());
            prop_assert!(decode::<Message>(&json).is_ok());
            prop_assert!(decode::<ChatLifecycle>(&json).is_ok());

            let repaired = repair(&json);
            prop_assert_eq!(repaired.is_none(), serde_json::from_str::<Value>(&json).is_ok());
            if let Some(repaired) = repaired {
                prop_assert!(serde_json::from_str::<Value>(&repaired).is_ok());
                prop_assert_eq!(repair(&repaired), None);
            }
        }

        #[test]
        fn repair_does_not_make_invalid_json_valid(text in r#"([-+.eE0189{}\[\]:,"\\ux😀 ]|\\u[dD][89cf]00|1e999|"id")*"#) {
            let is_json = serde_json::from_str::<IgnoredAny>(&text).is_ok();
            if let Some(repaired) = repair(&text) {
                prop_assert_eq!(serde_json::from_str::<Value>(&repaired).is_ok(), is_json);
            }
        }
    }

    /// Generates objects of the RFC's grammar, token by token.
    fn object() -> impl Strategy<Value = String> {
        let scalar = prop_oneof![
            prop::sample::select(vec!["null", "true", "false"]).prop_map(str::to_owned),
            "-?(0|[1-9][0-9]{0,24})(\\.[0-9]{1,24})?([eE][-+]?[0-9]{1,12})?",
            "-?[1-9][0-9]{300,320}(\\.[0-9]{1,24})?",
            string(),
        ];
        let value = scalar.prop_recursive(4, 32, 6, |value| {
            prop_oneof![
                list("[", value.clone(), "]", 0..6),
                list("{", entry(value), "}", 0..6),
            ]
        });
        list("{", entry(value), "}", 0..12)
    }

    fn string() -> impl Strategy<Value = String> {
        r#""([^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4}|\\u[dD][89abAB][0-9a-f]{2}|\\u[dD][c-fC-F][0-9a-f]{2}){0,6}""#
    }

    fn entry(value: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
        let names = [
            "id",
            "user",
            "locale",
            "rating",
            "createdAt",
            "customMeta",
            "chat",
            "isUser",
        ];
        let known = prop::sample::select(names.to_vec()).prop_map(|name| format!("\"{name}\""));
        (prop_oneof![known, string()], space(), value)
            .prop_map(|(name, space, value)| format!("{name}{space}:{space}{value}"))
    }

    fn list(
        open: &'static str,
        item: impl Strategy<Value = String>,
        close: &'static str,
        length: Range<usize>,
    ) -> impl Strategy<Value = String> {
        (prop::collection::vec(item, length), space()).prop_map(move |(items, space)| {
            format!(
                "{space}{open}{space}{}{close}{space}",
                items.join(&format!("{space},{space}"))
            )
        })
    }

    fn space() -> impl Strategy<Value = String> {
        "[ \t\r\n]{0,2}"
    }
}
