//! The access token, and keeping it out of sight.

use std::error::Error as StdError;
use std::fmt;
use std::fs;
use std::iter::successors;
use std::path::Path;

use bytes::Bytes;
use http::HeaderValue;
use serde_json::Value;
use zeroize::Zeroizing;

use super::config::AdminConfigError;
use crate::config::secret_variable;
use crate::error::BoxError;

const SCHEME: &str = "Bearer ";
const REDACTED: &str = "[redacted]";

/// An access token for the Admin API: an API key from the partner portal (Spec 5.1).
///
/// It is wiped from memory with its last clone, and `Debug` does not show it.
#[derive(Clone)]
pub struct AccessToken {
    /// The whole header, on the one copy of the token that there is.
    header: HeaderValue,
}

impl AccessToken {
    /// A token from its characters.
    ///
    /// # Errors
    ///
    /// [`AdminConfigError::EmptyToken`], and [`AdminConfigError::InvalidToken`] unless it is made of
    /// visible ASCII characters other than `"` and `\`.
    pub fn new(token: impl Into<Vec<u8>>) -> Result<Self, AdminConfigError> {
        Self::parse(&Zeroizing::new(token.into()))
    }

    /// A token from an environment variable, used as it stands there.
    ///
    /// # Errors
    ///
    /// [`AdminConfigError::TokenVariable`] when the variable is not set or is not Unicode, and those
    /// of [`new`](Self::new).
    pub fn from_env(name: &str) -> Result<Self, AdminConfigError> {
        secret_variable(name)
            .map_err(|source| AdminConfigError::TokenVariable {
                name: name.to_owned(),
                source,
            })
            .and_then(Self::new)
    }

    /// A token from a file that holds nothing else. White space around it is left out.
    ///
    /// # Errors
    ///
    /// [`AdminConfigError::TokenFile`] when the file cannot be read, and those of
    /// [`new`](Self::new).
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, AdminConfigError> {
        let path = path.as_ref();
        let bytes =
            fs::read(path)
                .map(Zeroizing::new)
                .map_err(|source| AdminConfigError::TokenFile {
                    path: path.to_owned(),
                    source,
                })?;
        let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
        Self::parse(text.trim_ascii())
    }

    fn parse(token: &[u8]) -> Result<Self, AdminConfigError> {
        if token.is_empty() {
            return Err(AdminConfigError::EmptyToken);
        }
        // Neither `"` nor `\`, so that a token stands in JSON and in `Debug` as it is and is found.
        let is_valid = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\');
        if !token.iter().all(is_valid) {
            return Err(AdminConfigError::InvalidToken);
        }
        let header = Zeroizing::new([SCHEME.as_bytes(), token].concat());
        let mut header = HeaderValue::from_maybe_shared(Bytes::from_owner(header))
            .map_err(|_| AdminConfigError::InvalidToken)?;
        header.set_sensitive(true);
        Ok(Self { header })
    }

    /// The value of the `Authorization` header, marked as sensitive.
    pub(super) fn header(&self) -> &HeaderValue {
        &self.header
    }

    fn bytes(&self) -> &[u8] {
        &self.header.as_bytes()[SCHEME.len()..]
    }

    /// Takes the token out of what came from elsewhere.
    pub(super) fn redact(&self, text: &str) -> String {
        self.redact_from(text, false)
    }

    /// The same for text that was cut off, perhaps within the token.
    pub(super) fn redact_cut(&self, text: &str) -> String {
        self.redact_from(text, true)
    }

    /// Takes the token out of every string in `value`.
    pub(super) fn redact_json(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.redact(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.redact_json(item)),
            Value::Object(fields) => {
                *fields = std::mem::take(fields)
                    .into_iter()
                    .map(|(name, mut value)| {
                        self.redact_json(&mut value);
                        (self.redact(&name), value)
                    })
                    .collect();
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Gives an error back as it is; or its text, when that repeats the token.
    pub(super) fn redact_error(&self, error: BoxError) -> BoxError {
        let chain = successors(Some(&*error as &(dyn StdError + 'static)), |error| {
            (*error).source()
        });
        let texts: Vec<_> = chain.map(|error| error.to_string()).collect();
        let text = texts.join(": ");
        let shown = format!("{text} {error:?}");
        if self.redact(&shown) == shown {
            return error;
        }
        self.redact(&text).into()
    }

    fn redact_from(&self, text: &str, is_cut: bool) -> String {
        let mut redacted = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            match find(rest.as_bytes(), self.bytes()) {
                Found::Whole(length) => {
                    redacted.push_str(REDACTED);
                    rest = &rest[length..];
                }
                Found::Beginning if is_cut => break,
                Found::Beginning | Found::No => {
                    redacted.push(first);
                    rest = &rest[first.len_utf8()..];
                }
            }
        }
        redacted
    }
}

impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessToken").finish_non_exhaustive()
    }
}

#[derive(Debug, PartialEq)]
enum Found {
    /// The text begins with the token, in so many bytes.
    Whole(usize),
    /// The text ends within the token.
    Beginning,
    No,
}

/// Whether `text` begins with the token: as it is, or as JSON or a URL may spell it.
fn find(text: &[u8], token: &[u8]) -> Found {
    if text.starts_with(token) {
        return Found::Whole(token.len());
    }
    if token.starts_with(text) {
        return Found::Beginning;
    }
    let mut rest = text;
    for expected in token {
        match unescape(rest) {
            Some((byte, after)) if byte == *expected => rest = after,
            Some(_) => return Found::No,
            None => return Found::Beginning,
        }
    }
    Found::Whole(text.len() - rest.len())
}

/// The first character, if it is ASCII, and what follows it: `/` may be spelled `\/`, `\u002F` or
/// `%2F`. Nothing when the text ends before.
fn unescape(text: &[u8]) -> Option<(u8, &[u8])> {
    let backslashes = text.iter().take_while(|byte| **byte == b'\\').count();
    let (first, rest) = text[backslashes..].split_first()?;
    let digits = match first {
        b'u' if backslashes > 0 => 4,
        b'%' => 2,
        _ => return Some((*first, rest)),
    };
    let hex = &rest[..digits.min(rest.len())];
    if !hex.iter().all(u8::is_ascii_hexdigit) {
        return Some((*first, rest));
    }
    let code = u32::from_str_radix(str::from_utf8(hex).ok()?, 16);
    match (hex.len() == digits, code) {
        (true, Ok(code)) => Some((u8::try_from(code).unwrap_or(0), &rest[digits..])),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(token: &str) -> AccessToken {
        AccessToken::new(token).unwrap()
    }

    #[test]
    fn the_header_is_sensitive_and_debug_shows_nothing() {
        let token = token("abc/+1");

        assert_eq!(token.header(), "Bearer abc/+1");
        assert!(token.header().is_sensitive());
        assert_eq!(format!("{token:?}"), "AccessToken { .. }");
    }

    #[test]
    fn what_no_token_contains_is_refused() {
        assert!(matches!(
            AccessToken::new(""),
            Err(AdminConfigError::EmptyToken)
        ));
        for text in [
            "a b",
            " a",
            "a\n",
            "a\r\nHost: b",
            "a\0",
            "a\t",
            "a\x7f",
            "é",
            "a\"b",
            "a\\b",
        ] {
            let error = AccessToken::new(text).unwrap_err();
            assert!(matches!(error, AdminConfigError::InvalidToken), "{text:?}");
        }
        assert!(AccessToken::new(b"\xff".as_slice()).is_err());
        for text in ["a", "0", "1|abc", "a.b-c_d~e+f/g==", "%41", "{a}", "'`"] {
            assert_eq!(token(text).bytes(), text.as_bytes());
        }
    }

    #[test]
    fn the_environment_holds_a_token_or_the_error_names_the_variable() {
        let token = AccessToken::from_env("CARGO_PKG_NAME").unwrap(); // Cargo sets it for tests.
        assert_eq!(token.bytes(), b"tower-webhook");

        let error = AccessToken::from_env("TOWER_WEBHOOK_NO_SUCH_VARIABLE").unwrap_err();
        assert!(
            error
                .to_string()
                .contains("`TOWER_WEBHOOK_NO_SUCH_VARIABLE`")
        );
    }

    #[test]
    fn a_file_holds_a_token_and_white_space() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for text in ["abc", "abc\n", "\u{feff} abc \r\n\n"] {
            fs::write(&file, text).unwrap();
            assert_eq!(AccessToken::from_file(&file).unwrap().bytes(), b"abc");
        }
        fs::write(&file, "\n").unwrap();
        assert!(matches!(
            AccessToken::from_file(&file),
            Err(AdminConfigError::EmptyToken)
        ));
        fs::write(&file, "abc\ndef\n").unwrap();
        assert!(matches!(
            AccessToken::from_file(&file),
            Err(AdminConfigError::InvalidToken)
        ));
        let error = AccessToken::from_file("/no/such/file").unwrap_err();
        assert!(error.to_string().contains("`/no/such/file`"));
        assert!(error.source().is_some());
    }

    #[test]
    fn every_spelling_of_the_token_is_redacted() {
        let token = token("aB/c+d=");
        for spelled in [
            "aB/c+d=",
            r"aB\/c+d=",
            r"aB\\/c+d=",
            r"aB\u002Fc\u002bd\u003D",
            r"\u0061B/c+d=",
            "aB%2Fc%2Bd%3D",
            "aB%2fc+d=",
        ] {
            let text = format!("é{spelled}{spelled}, aB/c {spelled}");
            assert_eq!(
                token.redact(&text),
                "é[redacted][redacted], aB/c [redacted]",
                "{spelled}"
            );
        }
        for other in [
            "",
            "aB/c",
            "aB/c+d",
            "b aB/c+e=",
            r"\",
            r"a\u00",
            "a%4",
            "%zz",
            r"\uéé",
            "🧾",
        ] {
            assert_eq!(token.redact(other), other);
        }
    }

    #[test]
    fn a_token_may_look_escaped() {
        assert_eq!(token("a%41").redact("a%41 aA"), "[redacted] aA");
        assert_eq!(token("u0041").redact("u0041"), "[redacted]");
    }

    #[test]
    fn text_that_ends_within_the_token_is_redacted() {
        let token = token("aB/c+d=");
        for end in ["a", "aB/c+d", r"aB\", r"aB\u00", r"aB\u002F", "aB%2", "aB%"] {
            assert_eq!(token.redact_cut(&format!("body {end}")), "body ", "{end}");
        }
        for text in ["aB/c+d= and more", "body", ""] {
            assert_eq!(token.redact_cut(text), token.redact(text));
        }
    }

    #[test]
    fn an_error_is_kept_unless_it_repeats_the_token() {
        #[derive(Debug)]
        struct Outer(std::io::Error);
        impl fmt::Display for Outer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("outer")
            }
        }
        impl StdError for Outer {
            fn source(&self) -> Option<&(dyn StdError + 'static)> {
                Some(&self.0)
            }
        }
        let token = token("hunter2");

        let kept = token.redact_error(Outer(std::io::Error::other("inner")).into());
        assert!(kept.is::<Outer>());
        let redacted = token.redact_error(Outer(std::io::Error::other("a hunter2")).into());
        assert_eq!(redacted.to_string(), "outer: a [redacted]");
        assert!(!format!("{redacted:?}").contains("hunter2"));
    }
}
