//! The payload of an event, as its page shows it.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use maud::{Markup, html};
use serde::de::IgnoredAny;
use tower_webhook::inbox::EventRecord;

use super::text::{clip, labelled_time};
use super::view::View;

/// The longest payload that is shown, in bytes of HTML.
pub(super) const MOST: usize = 14_500;

pub(super) fn payload(view: &View, record: &EventRecord) -> Markup {
    if view.console.hides_payloads {
        return html! { p.quiet { "Payloads are hidden." } };
    }
    let Some(body) = &record.body else {
        return html! { p.quiet { "The body was deleted." } };
    };
    let (shown, is_cut) = beginning(body);
    let mut times = 0;
    html! {
        pre tabindex="0" aria-label="Payload" {
            @for line in shown.split_inclusive('\n') {
                @match in_millis(line).filter(|_| times < TIMES) {
                    Some((before, at, after)) => {
                        @let () = times += 1;
                        (before) (labelled_time(at)) (after)
                    },
                    None => (line),
                }
            }
        }
        @if is_cut { p.quiet { "This is the beginning of " (body.len()) " bytes." } }
    }
}

/// Returns what is shown of a body, and whether that is only its beginning. The page asks again each second, so nothing
/// reads more of the body than can be shown: [`MOST`] characters of an escape each.
fn beginning(body: &[u8]) -> (String, bool) {
    let read = &body[..body.len().min(6 * MOST)];
    let text = String::from_utf8_lossy(read);
    // Only whether it is JSON: parsed values would lose the order of keys and digits of large numbers.
    let is_json = match serde_json::from_slice::<IgnoredAny>(read) {
        Ok(_) => true,
        Err(error) => error.is_eof() && read.len() < body.len(),
    };
    let text = match is_json {
        true => Cow::Owned(indented(&text, MOST)),
        false => text,
    };
    let shown = clip(&text, MOST);
    let is_cut = shown != text || read.len() < body.len();
    (shown, is_cut)
}

/// Indents JSON, keeps the order of its keys, and decodes its strings. Ends after `most` bytes: a line costs its depth, so
/// a body of n brackets would become n² bytes.
pub(super) fn indented(json: &str, most: usize) -> String {
    let (mut text, mut depth, mut is_empty) = (String::new(), 0_usize, false);
    let mut chars = json.char_indices();
    while text.len() <= most
        && let Some((start, char)) = chars.next()
    {
        if matches!(char, '}' | ']') {
            depth = depth.saturating_sub(1);
        }
        let is_first = std::mem::take(&mut is_empty);
        match char {
            ' ' | '\t' | '\r' | '\n' => is_empty = is_first,
            '}' | ']' if is_first => text.push(char),
            '}' | ']' => push_line(&mut text, depth.min(most), char),
            _ if is_first => push_line(&mut text, depth.min(most), char),
            _ => text.push(char),
        }
        match char {
            '{' | '[' => (depth, is_empty) = (depth + 1, true),
            ',' => is_empty = true,
            ':' => text.push(' '),
            '"' => {
                let mut is_escaped = false;
                let end = chars.find(|(_, char)| {
                    let is_end = *char == '"' && !is_escaped;
                    is_escaped = *char == '\\' && !is_escaped;
                    is_end
                });
                let string = &json[start..end.map_or(json.len(), |(end, _)| end + 1)];
                // The quote was pushed above, and `decoded` has its own.
                text.pop();
                text += &decoded(string, most).unwrap_or_else(|| string.to_owned());
            }
            _ => {}
        }
    }
    text
}

/// Writes a string of JSON without needless escapes. `None` if even without its escapes, of six bytes for a byte, it is
/// longer than `most`.
fn decoded(string: &str, most: usize) -> Option<String> {
    let string = Some(string).filter(|string| string.len() / 6 <= most)?;
    let decoded = serde_json::from_str(string).map(serde_json::Value::String);
    Some(decoded.ok()?.to_string())
}

fn push_line(text: &mut String, depth: usize, char: char) {
    text.push('\n');
    text.extend(std::iter::repeat_n("  ", depth));
    text.push(char);
}

/// The number of times in a payload that are readable.
const TIMES: usize = 50;

/// Splits a line of JSON whose value is a time in milliseconds since 1970, from 2001 to 2100.
fn in_millis(line: &str) -> Option<(&str, SystemTime, &str)> {
    let end = line.trim_end().trim_end_matches(',').len();
    let start = line[..end]
        .trim_end_matches(|char: char| char.is_ascii_digit())
        .len();
    let (before, digits, after) = (&line[..start], &line[start..end], &line[end..]);
    // Digits after anything else end a text, a fraction or a negative number.
    let is_value = before.ends_with(": ") || before.trim().is_empty();
    let millis = digits.parse().ok().filter(|_| is_value)?;
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
    (1_000_000_000_000..4_102_444_800_000)
        .contains(&millis)
        .then_some((before, at, after))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::de::IgnoredAny;
    use serde_json::Value;

    use super::{MOST, beginning, in_millis, indented};

    #[test]
    fn payloads_keep_the_order_of_their_keys() {
        let json = r#"{"z":[],"a":{ "\u00eb\"\\":[1,{"b":null}]},"n":12345678901234567890123}"#;
        let lines = [
            "{",
            r#"  "z": [],"#,
            r#"  "a": {"#,
            r#"    "ë\"\\": ["#,
            "      1,",
            "      {",
            r#"        "b": null"#,
            "      }",
            "    ]",
            "  },",
            r#"  "n": 12345678901234567890123"#,
            "}",
        ];
        assert_eq!(indented(json, MOST).lines().collect::<Vec<_>>(), lines);
    }

    #[test]
    fn indented_json_costs_what_is_shown() {
        let depth = 500_000;
        let (nested, string) = (
            "[".repeat(depth) + &"]".repeat(depth),
            "\\u00eb".repeat(depth),
        );
        for json in [
            nested,
            format!("[\"{string}\"]"),
            format!("{{\"{string}\":1}}"),
        ] {
            assert!(serde_json::from_str::<IgnoredAny>(&json).is_ok());
            let text = indented(&json, MOST);
            assert!(
                text.len() > MOST && text.capacity() < 4 * json.len(),
                "{}",
                text.len()
            );
        }
        let nested = indented(&"[".repeat(depth), MOST);
        assert!(nested.len() < 4 * MOST, "{}", nested.len());
    }

    #[test]
    fn a_body_is_read_as_far_as_it_is_shown() {
        let half = 1 << 19;
        for json in [
            "[".repeat(half) + &"]".repeat(half),
            format!("{{\"{}\":1}}", "x".repeat(2 * half)),
            format!("[\"{}\"]", "\\u00eb".repeat(half / 3)),
            format!("[1{}]", ",1".repeat(500_000)),
            format!("{{{}\"a\":1}}", " ".repeat(2 * half)),
        ] {
            let (shown, is_cut) = beginning(json.as_bytes());
            assert!(is_cut && shown.len() <= MOST + "…".len(), "{}", shown.len());
            // What is behind can say anything.
            let (mut other, read) = (json.clone().into_bytes(), 6 * MOST);
            other[read..].fill(b'!');
            assert_eq!(beginning(&other), (shown, true));
        }
        let (shown, is_cut) = beginning(br#"{"a":[1]}"#);
        assert_eq!(
            (shown.as_str(), is_cut),
            ("{\n  \"a\": [\n    1\n  ]\n}", false)
        );
        // What is cut, and what is no JSON.
        for text in ["[1,", "plain", "{\"a\":}"] {
            assert_eq!(beginning(text.as_bytes()), (text.to_owned(), false));
        }
        let text = "plain ".repeat(50_000);
        assert_eq!(beginning(text.as_bytes()).0, format!("{}…", &text[..MOST]));
    }

    #[test]
    fn milliseconds_are_times_where_they_are_values() {
        for line in [
            r#"  "at": 1732567890123,"#,
            "1732567890123",
            "    1732567890123\n",
        ] {
            let (before, _, after) = in_millis(line).unwrap();
            assert_eq!(format!("{before}1732567890123{after}"), line);
        }
        for line in [
            r#"  "at": "1732567890123","#,
            r#"  "at": 17.1732567890123"#,
            r#"  "at": -1732567890123"#,
            r#"  "id": 17325678901234,"#,
            r#"  "n": 999999999999,"#,
            "",
        ] {
            assert!(in_millis(line).is_none(), "{line}");
        }
    }

    proptest! {
        #[test]
        fn indented_json_is_the_same_value(texts: Vec<String>, number: i64) {
            let value = serde_json::json!({ "a": texts, "b": [[], {}, number, { "c": texts }] });
            let same: Value = serde_json::from_str(&indented(&value.to_string(), usize::MAX)).unwrap();
            prop_assert_eq!(same, value);
        }

        #[test]
        fn any_text_is_indented(text: String) {
            indented(&text, MOST);
            in_millis(&text);
        }
    }
}
