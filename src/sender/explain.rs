//! What the head of a request has, and what it should have, in words for a person whose signatures are refused.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName};
use sha2::{Digest, Sha256};

use super::error::SignatureError;
use super::scheme::{Algorithm, At, Coding, Piece, Scheme, Timestamps, millis, only};

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
    /// What the signature headers hold, element by element.
    pub(crate) fn explain(&self, headers: &HeaderMap) -> Vec<Step> {
        let mut steps = Vec::new();
        for name in &self.headers {
            let values: Vec<_> = headers.get_all(name).iter().collect();
            match values[..] {
                [] => {}
                [value] => {
                    steps.push(Step::right(format!("the header `{name}` is there once")));
                    self.elements_in(name, value.as_bytes(), &mut steps);
                }
                _ => {
                    let text = format!(
                        "the header `{name}` is there {} times, and not once",
                        values.len()
                    );
                    steps.push(Step::wrong(text));
                }
            }
        }
        steps
    }

    fn elements_in(&self, name: &HeaderName, value: &[u8], steps: &mut Vec<Step>) {
        let Some(split) = self.split else {
            return steps.push(self.tag_in(name, value));
        };
        let mut tags = 0;
        for element in value.split(|&byte| byte == split) {
            if element.starts_with(self.prefix.as_bytes()) {
                tags += 1;
                steps.push(self.tag_in(name, element));
                continue;
            }
            let mut parts = element.splitn(2, |&byte| byte == b'=');
            let found = cut(parts.next().unwrap_or_default());
            let is_read = self.elements().any(|it| it == found);
            steps.push(match (is_read, parts.next()) {
                (true, Some(value)) => {
                    Step::right(format!("its element `{found}` is `{}`", cut(value)))
                }
                (true, None) => Step::wrong(format!(
                    "its element `{found}` has no value: expected `{found}=`"
                )),
                (false, _) => Step::note(format!("its element `{found}` is skipped")),
            });
        }
        if tags == 0 {
            let expected = format!("`{name}` has no element that begins with `{}`", self.prefix);
            steps.push(Step::wrong(format!(
                "{expected}, separated by {:?}",
                char::from(split)
            )));
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

    /// Whether the timestamp of the head is in its window, and how far it is off.
    pub(crate) fn explain_time(&self, headers: &HeaderMap, now: SystemTime) -> Option<Step> {
        let time = self.timestamp.as_ref()?;
        let text = match &time.at {
            At::Header(name) => only(headers, name).ok()?.to_vec(),
            At::Element(name) => self.elements_of(headers).ok()?.source(name).ok()?.to_vec(),
            At::Body(_) => return None,
        };
        Some(time.explain(&text, now))
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

/// A text of the request that is no payload, at most 64 bytes of it.
fn cut(text: &[u8]) -> String {
    let rest = if text.len() > 64 { "…" } else { "" };
    format!("{}{rest}", text[..text.len().min(64)].escape_ascii())
}
