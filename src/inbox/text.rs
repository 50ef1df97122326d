//! Texts of senders: whether a body has one, and how one is written on a line.

use std::array::IntoIter;
use std::borrow::Cow;
use std::fmt::Write;
use std::iter::Take;
use std::time::Duration;

/// Whether a body has a text, as it was received, or when the escapes in its strings of JSON are decoded. ASCII letters
/// match in either case. It looks at each byte of the body at most four times, whatever both are: senders choose bodies.
pub(crate) fn has_text(body: &[u8], text: &str) -> bool {
    let text = text.to_ascii_lowercase().into_bytes();
    let again = starts_again(&text);
    is_in(&text, &again, body.iter().copied())
        || body.contains(&b'\\') && is_in(&text, &again, Decoded::of(body))
}

fn is_in(text: &[u8], again: &[usize], body: impl Iterator<Item = u8>) -> bool {
    let mut found = 0;
    for byte in body {
        if found == text.len() {
            break;
        }
        found = step(text, again, found, byte.to_ascii_lowercase());
    }
    found == text.len()
}

/// For each number of bytes of the text that were found, how many of its first bytes are also the last of these (Knuth,
/// Morris and Pratt).
fn starts_again(text: &[u8]) -> Vec<usize> {
    let mut again = vec![0; text.len()];
    let mut found = 0;
    for at in 1..text.len() {
        found = step(text, &again, found, text[at]);
        again[at] = found;
    }
    again
}

/// How many bytes of the text are found with the next byte of a body, after `found` were.
fn step(text: &[u8], again: &[usize], mut found: usize, byte: u8) -> usize {
    loop {
        #[cfg(test)]
        tests::STEPS.set(tests::STEPS.get() + 1);
        match found {
            _ if text[found] == byte => return found + 1,
            0 => return 0,
            _ => found = again[found - 1],
        }
    }
}

/// A body with its escapes of JSON decoded, which occur in strings only.
struct Decoded<'a> {
    rest: &'a [u8],
    /// What is left of a character.
    char: Take<IntoIter<u8, 4>>,
}

impl<'a> Decoded<'a> {
    fn of(rest: &'a [u8]) -> Self {
        let char = [0; 4].into_iter().take(0);
        Self { rest, char }
    }

    fn take(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }
}

impl Iterator for Decoded<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        if let Some(byte) = self.char.next() {
            return Some(byte);
        }
        let byte = self.take()?;
        if byte != b'\\' {
            return Some(byte);
        }
        Some(match self.take()? {
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                let (char, rest) = char_of(self.rest);
                self.rest = rest;
                let mut bytes = [0; 4];
                let length = char.encode_utf8(&mut bytes).len();
                self.char = bytes.into_iter().take(length);
                return self.char.next();
            }
            // `"`, `\` and `/`.
            other => other,
        })
    }
}

/// The character after `\u`, which may take two escapes, and the rest.
fn char_of(text: &[u8]) -> (char, &[u8]) {
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

/// Returns a duration in the words in which pages and programs say how old something is, such as `2 h 5 min` or `3 days`.
///
/// ```
/// use std::time::Duration;
/// use tower_webhook::inbox::in_words;
///
/// let words = |seconds| in_words(Duration::from_secs(seconds));
/// assert_eq!([words(45), words(200), words(7_500), words(292_799)], ["45 s", "3 min", "2 h 5 min", "3 days"]);
/// ```
#[must_use]
pub fn in_words(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min"),
        (0, _, 0) => format!("{hours} h"),
        (0, ..) => format!("{hours} h {minutes} min"),
        (1, 0, _) => "1 day".to_owned(),
        (1, ..) => format!("1 day {hours} h"),
        _ => format!("{days} days"),
    }
}

/// Writes a text of a sender, such as the id of a chat, on a line that forms, terminals and command lines leave as it is.
/// [`unescaped`] reads it.
///
/// Nearly all texts are as they are. If one has control characters, or others that change how a line is read, or white
/// space at its ends, these are written as in `\u{a}`, and a backslash as two.
///
/// ```
/// use tower_webhook::inbox::{escaped, unescaped};
///
/// for (text, line) in [("chat 1", "chat 1"), (r"a\b", r"a\b"), ("a\n\\", r"a\u{a}\\"), (" a", r"\u{20}a")] {
///     assert_eq!((escaped(text).as_ref(), unescaped(line).as_ref()), (line, text));
/// }
/// ```
#[must_use]
pub fn escaped(text: &str) -> Cow<'_, str> {
    match needs_escapes(text) {
        true => with_escapes(text).into(),
        false => text.into(),
    }
}

/// Reads a text as [`escaped`] writes it. A text that it would not write is returned as it is.
#[must_use]
pub fn unescaped(line: &str) -> Cow<'_, str> {
    // Without an escape, it stands for itself. With some, it is longer than its text, so this ends.
    let text = line.contains('\\').then(|| without_escapes(line)).flatten();
    match text.filter(|text| needs_escapes(text) && with_escapes(text) == line) {
        Some(text) => text.into(),
        None => line.into(),
    }
}

fn needs_escapes(text: &str) -> bool {
    // One that would be read as the escapes of another text has to have some, too.
    text.trim() != text || text.chars().any(is_control) || unescaped(text) != text
}

/// Whether a character controls a terminal, ends a line, or changes the direction of the text after it.
fn is_control(char: char) -> bool {
    let is_direction = matches!(
        char,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    is_direction || char.is_control()
}

fn with_escapes(text: &str) -> String {
    let start = text.len() - text.trim_start().len();
    let inner = start..text.trim_end().len();
    let mut line = String::with_capacity(text.len());
    for (at, char) in text.char_indices() {
        if char == '\\' {
            line.push_str(r"\\");
        } else if is_control(char) || !inner.contains(&at) {
            let _ = write!(line, "\\u{{{:x}}}", u32::from(char));
        } else {
            line.push(char);
        }
    }
    line
}

fn without_escapes(line: &str) -> Option<String> {
    let (mut text, mut rest) = (String::with_capacity(line.len()), line);
    while let Some((before, escape)) = rest.split_once('\\') {
        text.push_str(before);
        rest = if let Some(rest) = escape.strip_prefix('\\') {
            text.push('\\');
            rest
        } else {
            let (digits, rest) = escape.strip_prefix("u{")?.split_once('}')?;
            text.push(char::from_u32(u32::from_str_radix(digits, 16).ok()?)?);
            rest
        };
    }
    text.push_str(rest);
    Some(text)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    thread_local! {
        /// The number of bytes that were compared.
        pub(super) static STEPS: Cell<usize> = const { Cell::new(0) };
    }

    #[test]
    fn a_search_costs_what_the_body_is_long() {
        let half = 1 << 19;
        for (body, text) in [
            ("[".repeat(2 * half), "[".repeat(199) + "]"),
            (
                format!(r#"{{"{}":1}}"#, "a".repeat(2 * half)),
                "a".repeat(199) + "b",
            ),
            (r"\u0061".repeat(2 * half / 6), "A".repeat(199) + "b"),
            (",1".repeat(half), ",1".repeat(99) + ",2"),
        ] {
            STEPS.set(0);
            assert!(!has_text(body.as_bytes(), &text));
            let steps = STEPS.get();
            assert!(steps <= 4 * (body.len() + text.len()), "{steps}");
        }
    }

    proptest! {
        #[test]
        fn a_line_returns_its_text(text in any::<String>(), odd in r"[\\u{}0a5c \n\x00\u{202e}]{0,12}") {
            for text in [&text, &odd] {
                let line = escaped(text);
                prop_assert_eq!(line.trim(), line.as_ref());
                prop_assert!(!line.chars().any(is_control));
                prop_assert_eq!(unescaped(&line), text.as_str());
                let again = escaped(&line);
                prop_assert_eq!(unescaped(&again), line.as_ref());
            }
        }

        #[test]
        fn a_text_is_found_as_by_comparing_all(body in "[abA\\\\nu06]{0,24}", text in "[abAn\\\\]{0,4}") {
            let decoded: Vec<_> = Decoded::of(body.as_bytes()).collect();
            let is_in = |body: &[u8]| {
                let mut parts = body.windows(text.len().max(1));
                text.is_empty() || parts.any(|part| part.eq_ignore_ascii_case(text.as_bytes()))
            };
            let found = is_in(body.as_bytes()) || is_in(&decoded);
            prop_assert_eq!(has_text(body.as_bytes(), &text), found);
        }
    }

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
