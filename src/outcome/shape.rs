//! The shape of a failure's reason: what is left of it without the parts that differ from event to event.

use std::fmt;
use std::str::FromStr;

use twox_hash::XxHash3_128;

/// What many failures have in common: a number made of the reason without numbers, ids, hexadecimal digits, quoted parts and
/// addresses. It is made once, when the failure happens, and does not tell retries and dead letters apart.
///
/// ```
/// use tower_webhook::inbox::Failure;
///
/// let refused = |order: u32| Failure::new("failed", format!("order {order} of 'Ada' was refused by 10.0.0.7:443"));
/// assert_eq!(refused(17).shape, refused(18).shape);
/// assert_ne!(refused(17).shape, Failure::new("failed", "the CRM is down").shape);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shape(pub(crate) i64);

/// Stands for each part that is left out.
const PART: &str = "#";

/// The fewest hexadecimal digits that are an id although all of them are letters, as few words are so long.
const HEX: usize = 8;

impl Shape {
    pub(super) fn of(reason: &str) -> Self {
        let digest = XxHash3_128::oneshot(folded(reason).as_bytes());
        // Half of the bits are as good.
        Self((digest as u64).cast_signed())
    }
}

/// 16 hexadecimal digits.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for Shape {
    type Err = UnknownShape;

    fn from_str(text: &str) -> Result<Self, UnknownShape> {
        let is_shape = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let digits = u64::from_str_radix(text, 16);
        match digits {
            Ok(digits) if is_shape => Ok(Self(digits.cast_signed())),
            _ => Err(UnknownShape),
        }
    }
}

/// The error for a text that is not a [`Shape`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownShape;

impl fmt::Display for UnknownShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a shape has 16 hexadecimal digits")
    }
}

impl std::error::Error for UnknownShape {}

/// A text without the parts that differ.
fn folded(text: &str) -> String {
    let text = without_quotes(text);
    let mut folded = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        let word = folded_word(word);
        // A list of ids has the shape of one id.
        let is_part = word.trim_end_matches([',', ';', '.']) == PART;
        if is_part && folded.ends_with(PART) {
            continue;
        }
        if !folded.is_empty() {
            folded.push(' ');
        }
        folded.push_str(match is_part {
            true => PART,
            false => &word,
        });
    }
    folded
}

/// A text with a part for each quoted one.
fn without_quotes(text: &str) -> String {
    let mut left = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['"', '\'', '`', '“', '‘', '«']) {
        let (before, quoted) = rest.split_at(at);
        let mut chars = quoted.chars();
        let open = chars.next().unwrap_or_default();
        let inner = chars.as_str();
        let close = match open {
            '“' => '”',
            '‘' => '’',
            '«' => '»',
            other => other,
        };
        left.push_str(before);
        // Neither an apostrophe within a word nor an unclosed quote quotes anything.
        let is_within = |before: &str| before.ends_with(char::is_alphanumeric);
        let end = inner.match_indices(close).map(|(end, _)| end).find(|end| {
            let after = &inner[end + close.len_utf8()..];
            close != '\'' || !after.starts_with(char::is_alphanumeric)
        });
        match end.filter(|_| open != '\'' || !is_within(before)) {
            Some(end) => {
                left.push_str(PART);
                rest = &inner[end + close.len_utf8()..];
            }
            None => {
                left.push(open);
                rest = inner;
            }
        }
    }
    left.push_str(rest);
    left
}

fn folded_word(word: &str) -> String {
    let is_edge = |char| {
        matches!(
            char,
            '(' | ')' | '[' | ']' | '{' | '}' | '<' | '>' | ',' | ';' | '.' | '!' | '?'
        )
    };
    let core = word.trim_matches(is_edge).trim_end_matches(':');
    if is_address(core) {
        return word.replacen(core, PART, 1);
    }
    // Parts such as those of `status=503`, and of `crm.example.com:443` all but the port.
    let mut folded = String::with_capacity(word.len());
    for piece in word.split_inclusive(|char: char| !is_of_id(char)) {
        let id = piece.trim_end_matches(|char| !is_of_id(char));
        folded.push_str(if is_id(id) { PART } else { id });
        folded.push_str(&piece[id.len()..]);
    }
    folded
}

fn is_of_id(char: char) -> bool {
    char.is_alphanumeric() || matches!(char, '-' | '_' | '.' | '+' | '%' | '#')
}

fn is_id(piece: &str) -> bool {
    let is_hex = |piece: &str| piece.bytes().all(|byte| byte.is_ascii_hexdigit());
    piece.contains(char::is_numeric) || piece.len() >= HEX && is_hex(piece)
}

/// A URL, a path, a mailbox, a host with a port, or an address of IPv6.
fn is_address(word: &str) -> bool {
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let is_of_ip = |byte: u8| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.' | b'%' | b']');
    word.contains("://")
        || word.contains('@')
        || word.starts_with('/')
        || word
            .rsplit_once(':')
            .is_some_and(|(host, port)| is_port(port) && !host.contains(['=', '/']))
        || word.matches(':').count() > 1 && word.bytes().all(is_of_ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_differ_from_event_to_event_are_left_out() {
        for (reason, shape) in [
            ("the CRM is down", "the CRM is down"),
            ("order 17 was refused", "order # was refused"),
            ("orders 17, 18, 19 were refused", "orders # were refused"),
            ("request 8f3ab2: timeout", "request #: timeout"),
            ("no chat deadbeef, nor decade", "no chat # nor decade"),
            (
                "request 0f8fad5b-d9cd-469f-a165-70867728950e failed.",
                "request # failed.",
            ),
            (
                "no customer 'Ada Lovelace' (\"x\" `y` “z” «v»)",
                "no customer # (# #)",
            ),
            (
                "can't, and the crew's 'chat' won't",
                "can't, and the crew's # won't",
            ),
            ("it's 'open", "it's 'open"),
            ("status=503, retry: true", "status=#, retry: true"),
            (
                "GET https://crm.example.com/v1/a?b=c failed",
                "GET # failed",
            ),
            ("mail ada@example.com: no such user", "mail #: no such user"),
            (
                "connect to crm.example.com:443 (10.0.0.7): refused",
                "connect to # (#): refused",
            ),
            (
                "connect to [::1]:80 or fe80::ab refused",
                "connect to [# or # refused",
            ),
            ("open /var/spool/x: no such file", "open #: no such file"),
            (
                "java.lang.NullPointerException",
                "java.lang.NullPointerException",
            ),
            ("and/or", "and/or"),
            ("{\"id\": 17, \"error\": \"no such chat\"}", "{#: # #: #}"),
            ("  a \n b  ", "a b"),
            ("٣٤ and 零", "# and 零"),
            ("", ""),
        ] {
            assert_eq!(folded(reason), shape, "{reason}");
        }
    }

    #[test]
    fn shape_is_written_and_read() {
        let shape = Shape::of("the CRM is down");
        assert_eq!(shape.to_string().parse(), Ok(shape));
        for text in [
            "",
            "1",
            "00000000000000000",
            "0123456789abcdeg",
            "+123456789abcdef",
        ] {
            assert_eq!(text.parse::<Shape>(), Err(UnknownShape), "{text}");
        }
    }
}
