//! What the head of a request has, and what it should have, in words for a person whose signatures are refused.

use std::time::{Duration, SystemTime};

use http::{HeaderName, HeaderValue};
use sha2::{Digest, Sha256};

use super::error::SignatureError;
use super::scheme::{Algorithm, At, Coding, Head, Piece, Scheme, Timestamps, millis, only};

/// A step of an [`Explanation`](crate::signature::Explanation).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step {
    /// Whether it is right.
    pub finding: Finding,
    /// What was found, on one line. It has no secret, no payload, and of tags only the first eight characters.
    pub text: String,
}

/// Whether a [`Step`] is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// It is as it should be.
    Right,
    /// The request is refused for it.
    Wrong,
    /// It decides nothing, and may explain what does.
    Note,
}

impl Step {
    pub(crate) fn new(finding: Finding, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { finding, text }
    }

    pub(crate) fn right(text: impl Into<String>) -> Self {
        Self::new(Finding::Right, text)
    }

    pub(crate) fn wrong(text: impl Into<String>) -> Self {
        Self::new(Finding::Wrong, text)
    }

    pub(crate) fn note(text: impl Into<String>) -> Self {
        Self::new(Finding::Note, text)
    }
}

/// The characters of a tag that are shown: enough to compare it by eye, and too few to send it.
const SHOWN: usize = 8;

/// The start of a tag.
pub(crate) fn start_of(tag: &[u8]) -> String {
    let shown = &tag[..tag.len().min(SHOWN)];
    let rest = if tag.len() > SHOWN { "…" } else { "" };
    format!("`{}{rest}`", shown.escape_ascii())
}

/// Bytes that are not shown: their number and digest.
pub(crate) fn digest_of(bytes: &[u8]) -> String {
    let digest = base16ct::lower::encode_string(&Sha256::digest(bytes));
    let s = if bytes.len() == 1 { "" } else { "s" };
    format!("{} byte{s} with the SHA-256 {digest}", bytes.len())
}

impl Scheme {
    /// What the signature headers hold, element by element. Something is wrong only if the verification refuses it.
    pub(crate) fn explain(&self, head: Head<'_>) -> Vec<Step> {
        let mut steps = Vec::new();
        for name in &self.headers {
            let values = head.headers.get_all(name).iter();
            let lines: Vec<_> = values.map(HeaderValue::as_bytes).collect();
            steps.push(match lines.len() {
                0 => continue,
                1 => Step::right(format!("the header `{name}` is there once")),
                count if self.is_lenient() => Step::right(format!(
                    "the header `{name}` is there {count} times, as one list"
                )),
                count => {
                    let text = format!("the header `{name}` is there {count} times, and not once");
                    steps.push(Step::wrong(text));
                    continue;
                }
            });
            self.explain_lines(name, &lines, &mut steps);
        }
        // Several headers may have the tag, and an element may be there again with a value.
        if self.lists(head).is_ok() {
            for step in steps.iter_mut().filter(|it| it.finding == Finding::Wrong) {
                step.finding = Finding::Note;
            }
        }
        steps
    }

    fn explain_lines(&self, name: &HeaderName, lines: &[&[u8]], steps: &mut Vec<Step>) {
        let Some(split) = self.split else {
            return steps.extend(lines.iter().map(|line| self.tag_in(name, line)));
        };
        // Of each list.
        let mut tags = vec![0];
        for line in lines {
            for (number, list) in self.lists_in(line).enumerate() {
                tags.resize(tags.len().max(number + 1), 0);
                for element in self.elements_in(list) {
                    let is_tag = element.starts_with(self.prefix.as_bytes());
                    tags[number] += usize::from(is_tag);
                    steps.push(match is_tag {
                        true => self.tag_in(name, element),
                        false => self.explain_element(element),
                    });
                }
            }
        }
        if tags.contains(&0) {
            let expected = format!("`{name}` has no element that begins with `{}`", self.prefix);
            steps.push(Step::wrong(format!(
                "{expected}, separated by {:?}",
                char::from(split)
            )));
        }
    }

    /// What an element is that is no tag.
    fn explain_element(&self, element: &[u8]) -> Step {
        let mut parts = element.splitn(2, |&byte| byte == b'=');
        let found = parts.next().unwrap_or_default();
        let is_read = self.elements().any(|it| it.as_bytes() == found);
        match (is_read, parts.next()) {
            (true, Some(value)) => {
                Step::right(format!("its element `{}` is `{}`", cut(found), cut(value)))
            }
            (true, None) => {
                let found = cut(found);
                Step::wrong(format!(
                    "its element `{found}` has no value: expected `{found}=`"
                ))
            }
            // It may be the signature of another version.
            (false, _) => Step::note(format!("its element {} is skipped", start_of(found))),
        }
    }

    /// Whether a text is a tag as this sender writes it, after its prefix.
    fn tag_in(&self, name: &HeaderName, text: &[u8]) -> Step {
        let Some(tag) = text.strip_prefix(self.prefix.as_bytes()) else {
            return Step::wrong(format!(
                "`{name}` begins with {}, and not with `{}`",
                start_of(text),
                self.prefix
            ));
        };
        if self.algorithm == Algorithm::Token {
            return Step::right(format!("`{name}` holds a token of {} bytes", tag.len()));
        }
        match self.decodes(tag) {
            true => Step::right(format!(
                "`{name}` holds a signature in its form, {}",
                start_of(tag)
            )),
            false => Step::wrong(format!(
                "`{name}` holds {} after its prefix, which is {}: expected {}",
                start_of(tag),
                self.fault(tag),
                self.form()
            )),
        }
    }

    /// Why a text is no tag of this sender.
    fn fault(&self, tag: &[u8]) -> String {
        let is_hex = |it: &[u8]| !it.is_empty() && it.iter().all(u8::is_ascii_hexdigit);
        let trimmed = tag.trim_ascii();
        let unquoted = trimmed
            .strip_prefix(b"\"")
            .and_then(|it| it.strip_suffix(b"\""));
        let length = tag.len();
        let hash = match length {
            32 => ", as of MD5",
            40 => ", as of SHA-1",
            64 => ", as of SHA-256",
            96 => ", as of SHA-384",
            128 => ", as of SHA-512 or Ed25519",
            _ => "",
        };
        match self.coding {
            _ if tag.is_empty() => "empty".to_owned(),
            _ if unquoted.is_some() => "in quotes".to_owned(),
            _ if trimmed.len() != length => "with blanks around it".to_owned(),
            Some(Coding::Hex) if self.decodes(&tag.to_ascii_lowercase()) => {
                "in uppercase".to_owned()
            }
            _ if is_hex(tag) => format!("{length} hex digits{hash}"),
            Some(Coding::Base64) if tag.iter().any(|it| b"-_".contains(it)) => {
                "base64 for URLs, with `-` and `_`".to_owned()
            }
            Some(Coding::Base64) if !length.is_multiple_of(4) => {
                "base64 without all of its padding".to_owned()
            }
            _ => format!("{length} bytes of another form"),
        }
    }

    /// Whether the timestamps of the head are in their window, and how far they are off: one of each list of elements.
    pub(crate) fn explain_time(&self, head: Head<'_>, now: SystemTime) -> Vec<Step> {
        let Some(time) = &self.timestamp else {
            return Vec::new();
        };
        let texts: Vec<_> = match &time.at {
            At::Header(name) => only(head.headers, name).into_iter().collect(),
            At::Element(name) => {
                let lists = self.lists(head).unwrap_or_default();
                let texts = lists.iter().filter_map(|it| it.source(name).ok());
                texts.collect()
            }
            At::Body(_) => Vec::new(),
        };
        let mut steps: Vec<_> = texts.iter().map(|text| time.explain(text, now)).collect();
        steps.dedup();
        steps
    }

    /// The pieces of what is signed, in their order.
    pub(crate) fn explain_content(&self, body: &[u8]) -> String {
        let piece = |piece: &Piece| match piece {
            Piece::Text(text) => format!("the text `{}`", text.escape_debug()),
            Piece::Header(name) => format!("the header `{name}`"),
            Piece::Element(name) => format!("the element `{name}`"),
            Piece::Method => "the method".to_owned(),
        };
        let body = format!("the body of {}", digest_of(body));
        let before = self.before.iter().map(piece);
        let pieces = before.chain([body]).chain(self.after.iter().map(piece));
        pieces.collect::<Vec<_>>().join(", then ")
    }
}

impl Timestamps {
    /// Whether a timestamp is in its window, and how far it is off.
    pub(crate) fn explain(&self, text: &[u8], now: SystemTime) -> Step {
        let window = format!(
            "at most {} s old and {} s ahead is accepted",
            self.past.as_secs(),
            self.ahead.as_secs()
        );
        let Some(time) = self.unit.millis(text) else {
            return Step::wrong(format!("the timestamp `{}` is not in its form", cut(text)));
        };
        let age = millis(now).saturating_sub(time);
        let off = Duration::from_millis(age.unsigned_abs());
        let side = if age < 0 { "ahead of" } else { "behind" };
        let found = format!(
            "the timestamp `{}` is {off:?} {side} this machine's clock",
            cut(text)
        );
        match self.check(text, now) {
            Ok(()) => Step::right(format!("{found}: {window}")),
            Err(SignatureError::Stale {
                age: ..-100_000_000_000,
                ..
            }) => Step::wrong(format!(
                "{found}: it is in milliseconds, and not in seconds"
            )),
            Err(_) => Step::wrong(format!("{found}: {window}")),
        }
    }
}

/// The longest text that is shown, such as a time in RFC 3339: a signature in its place is cut.
const LONGEST: usize = 36;

/// A text of the request that is no payload.
fn cut(text: &[u8]) -> String {
    let rest = if text.len() > LONGEST { "…" } else { "" };
    let shown = &text[..text.len().min(LONGEST)];
    format!("{}{rest}", shown.escape_ascii())
}
