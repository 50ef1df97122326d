//! Finds the field of a body at which its decoding ended.

use std::ops::Range;

/// A container that is open at some place of a text, and what it was reading there.
enum Step {
    /// An object: where the name of the field stands, without its quotes.
    Field(Range<usize>),
    Element(usize),
}

/// The longest name of a field that is shown, in bytes.
const LONGEST: usize = 64;

/// Returns the JSON pointer of what ends at a line and a column, as `serde_json` counts them: empty for the whole body. A
/// name that may be a part of the payload, such as an address in a map, is shown as `…`.
pub(crate) fn field_at(json: &str, line: usize, column: usize) -> String {
    let lines = json.split_inclusive('\n').take(line.saturating_sub(1));
    let end = lines.map(str::len).sum::<usize>().saturating_add(column);
    let bytes = &json.as_bytes()[..end.min(json.len())];
    let mut steps = Vec::new();
    let (mut text, mut at) = (0..0, 0);
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => {
                let from = at + 1;
                at = from;
                while let Some(&byte) = bytes.get(at).filter(|byte| **byte != b'"') {
                    at += if byte == b'\\' { 2 } else { 1 };
                }
                text = from..at.min(bytes.len());
            }
            b':' => {
                if let Some(Step::Field(name)) = steps.last_mut() {
                    name.clone_from(&text);
                }
            }
            b',' => match steps.last_mut() {
                Some(Step::Field(name)) => *name = 0..0,
                Some(Step::Element(index)) => *index += 1,
                None => {}
            },
            // One that begins at the end is what was not expected.
            b'{' if at + 1 < bytes.len() => steps.push(Step::Field(0..0)),
            b'[' if at + 1 < bytes.len() => steps.push(Step::Element(0)),
            b'}' | b']' => {
                steps.pop();
            }
            _ => {}
        }
        at += 1;
    }
    let steps = steps.into_iter().map(|step| match step {
        Step::Field(name) if name.is_empty() => String::new(),
        Step::Field(name) => match &bytes[name] {
            name if is_name(name) => format!("/{}", String::from_utf8_lossy(name)),
            _ => "/…".to_owned(),
        },
        Step::Element(index) => format!("/{index}"),
    });
    steps.collect()
}

/// Whether a text looks like the name of a field.
pub(crate) fn is_name(text: &[u8]) -> bool {
    let is_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    let starts = text.first().is_some_and(|byte| !byte.is_ascii_digit());
    starts && text.len() <= LONGEST && text.iter().all(is_of_name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[allow(dead_code, reason = "only decoded")]
    struct Event {
        id: String,
        data: Option<Data>,
        all: Option<Vec<Data>>,
        by: Option<BTreeMap<String, u8>>,
    }

    #[derive(Debug, Deserialize)]
    #[allow(dead_code, reason = "only decoded")]
    struct Data {
        amount: f64,
        #[serde(default)]
        tags: Vec<String>,
    }

    #[test]
    fn the_field_is_the_one_that_was_not_accepted() {
        for (json, field) in [
            (r#"{"id":7}"#, "/id"),
            (r#"{"id":{"a":1}}"#, "/id"),
            (r#"{"id":["a"]}"#, "/id"),
            (r#"{"id":null}"#, "/id"),
            (r#"{"a":[{"b":1},{"id":[2]}],"id":true}"#, "/id"),
            (r#"{"id":"x","data":{"amount":"1"}}"#, "/data/amount"),
            (
                "{\"id\":\"x\",\n \"data\":{\n\"amount\": \"1\"}}",
                "/data/amount",
            ),
            (
                r#"{"id":"}\"]","data":{"amount":1,"tags":["a",{}]}}"#,
                "/data/tags/1",
            ),
            (r#"{"id":"x","data":{"tags":[]}}"#, "/data"),
            (
                r#"{"id":"x","all":[{"amount":1},{"amount":[]}]}"#,
                "/all/1/amount",
            ),
            (r#"{"id":"x","all":[{"amount":1},{}]}"#, "/all/1"),
            (r#"{"id":"x","by":{"a":1,"ada@example.com":"x"}}"#, "/by/…"),
            (r#"{"id":"x","by":{"\u00e9":"x"}}"#, "/by/…"),
            (r#"{"data":null}"#, ""),
            ("[]", ""),
        ] {
            let error = serde_json::from_str::<Event>(json).unwrap_err();
            assert_eq!(
                field_at(json, error.line(), error.column()),
                field,
                "{json}: {error}"
            );
        }
    }
}
