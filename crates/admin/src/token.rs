//! The access token and its redaction.

use std::env::{self, VarError};
use std::error::Error as StdError;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::iter::successors;
use std::path::Path;

use bytes::Bytes;
use http::HeaderValue;
use serde_json::Value;
use zeroize::Zeroizing;

use super::BoxError;
use super::config::AdminConfigError;

const SCHEME: &str = "Bearer ";
const REDACTED: &str = "[redacted]";

/// An access token for the Admin API: an API key from the partner portal
/// ([Spec 5.1](https://docs.rs/tower-webhook/latest/tower_webhook/docs/platform/index.html#spec-5-1)).
///
/// It is wiped from memory when its last clone is dropped, and `Debug` does not show it. The
/// [module](super#how-the-token-is-protected) describes how it is protected.
#[derive(Clone)]
pub struct AccessToken {
    /// The whole header, so that the token exists only once in memory and is wiped with it.
    header: HeaderValue,
}

impl AccessToken {
    /// Creates a token from its characters.
    ///
    /// ```
    /// use tower_webhook_admin::AccessToken;
    ///
    /// let token = AccessToken::new("hunter2")?;
    /// assert_eq!(format!("{token:?}"), "AccessToken { .. }");
    /// # Ok::<_, tower_webhook_admin::AdminConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`AdminConfigError::EmptyToken`], or [`AdminConfigError::InvalidToken`] unless the token
    /// consists of visible ASCII characters other than `"` and `\`.
    pub fn new(token: impl Into<Vec<u8>>) -> Result<Self, AdminConfigError> {
        Self::parse(&Zeroizing::new(token.into()))
    }

    /// Reads a token from an environment variable, without trimming it.
    ///
    /// ```no_run
    /// use tower_webhook_admin::AccessToken;
    ///
    /// let token = AccessToken::from_env("ADMIN_TOKEN")?;
    /// # Ok::<_, tower_webhook_admin::AdminConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`AdminConfigError::TokenVariable`] if the variable is not set or is not Unicode, and
    /// the errors of [`new`](Self::new).
    pub fn from_env(name: &str) -> Result<Self, AdminConfigError> {
        let token = env::var(name).map_err(|source| AdminConfigError::TokenVariable {
            name: name.to_owned(),
            source: without_value(source),
        })?;
        Self::new(token)
    }

    /// Reads a token from a file that contains nothing else. Surrounding whitespace is ignored.
    ///
    /// ```no_run
    /// use tower_webhook_admin::AccessToken;
    ///
    /// let token = AccessToken::from_file("/run/secrets/admin-token")?;
    /// # Ok::<_, tower_webhook_admin::AdminConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`AdminConfigError::TokenFile`] if the file cannot be read, and the errors of
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
        // JSON and `Debug` escape `"` and `\`. Without them, a token that a server repeats is spelled
        // as it is, or in one of the few ways that `find` knows.
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

    /// Returns the value of the `Authorization` header, marked as sensitive.
    pub(super) fn header(&self) -> &HeaderValue {
        &self.header
    }

    fn bytes(&self) -> &[u8] {
        &self.header.as_bytes()[SCHEME.len()..]
    }

    /// Replaces the token in a text from another source, such as a response or an error.
    pub(super) fn redact(&self, text: &str) -> String {
        self.redact_from(text, false)
    }

    /// Redacts a text that was truncated, perhaps within the token.
    pub(super) fn redact_cut(&self, text: &str) -> String {
        self.redact_from(text, true)
    }

    /// Replaces the token in every string and key of `value`.
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

    /// Returns the error unchanged, or only its redacted text if it contains the token.
    pub(super) fn redact_error(&self, error: BoxError) -> BoxError {
        let chain = successors(Some(&*error as &(dyn StdError + 'static)), |error| {
            (*error).source()
        });
        let texts: Vec<_> = chain.map(ToString::to_string).collect();
        let text = texts.join(": ");
        // A type's `Debug` may show fields that its `Display` does not.
        let shown = format!("{text} {error:?}");
        if self.redact(&shown) == shown {
            return error;
        }
        self.redact(&text).into()
    }

    /// Takes time proportional to the text, whatever is in it: a server chooses it.
    fn redact_from(&self, text: &str, is_cut: bool) -> String {
        let token = self.bytes();
        // Each spelling of the token begins with its first character, or with that of an escape.
        let begins = [char::from(token[0]), '\\', '%'];
        let mut redacted = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(start) = rest.find(begins) {
            redacted.push_str(&rest[..start]);
            rest = &rest[start..];
            let passed = match find(rest.as_bytes(), token) {
                Found::Whole(length) => {
                    redacted.push_str(REDACTED);
                    rest = &rest[length..];
                    continue;
                }
                // Even one character of the token is one less to guess, so a possible beginning goes.
                Found::Beginning if is_cut => return redacted,
                // A run of backslashes reads the same from each of them, so `find` looks at it once.
                Found::Beginning | Found::No => backslashes(rest.as_bytes()).max(1),
            };
            redacted.push_str(&rest[..passed]);
            rest = &rest[passed..];
        }
        redacted.push_str(rest);
        redacted
    }
}

impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessToken").finish_non_exhaustive()
    }
}

/// Removes the value from the error: [`VarError::NotUnicode`] holds it, and its `Display` prints it.
fn without_value(error: VarError) -> VarError {
    match error {
        VarError::NotPresent => VarError::NotPresent,
        VarError::NotUnicode(_) => VarError::NotUnicode(OsString::new()),
    }
}

#[derive(Debug, PartialEq)]
enum Found {
    /// The text begins with the token, in this many bytes.
    Whole(usize),
    /// The text ends within the token.
    Beginning,
    No,
}

/// Returns whether `text` begins with the token, as it is or as JSON or a URL may spell it.
fn find(text: &[u8], token: &[u8]) -> Found {
    // Before any unescaping, because a token such as `a%41` looks escaped itself.
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

/// Returns the first character, if it is ASCII, and the rest of the text, or `None` if the text ends
/// within it. A character such as `/` may be spelled `\/`, `\u002F` or `%2F`.
fn unescape(text: &[u8]) -> Option<(u8, &[u8])> {
    // Any number of them: JSON within a JSON string, or within `Debug`, doubles each.
    let backslashes = backslashes(text);
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
        // A token is ASCII and has no NUL, so 0 differs from each of its characters.
        (true, Ok(code)) => Some((u8::try_from(code).unwrap_or(0), &rest[digits..])),
        _ => None,
    }
}

/// Returns how many backslashes a text begins with.
fn backslashes(text: &[u8]) -> usize {
    text.iter().take_while(|byte| **byte == b'\\').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(token: &str) -> AccessToken {
        AccessToken::new(token).unwrap()
    }

    #[test]
    fn variable_that_is_not_unicode_is_not_shown() {
        let error = without_value(VarError::NotUnicode(OsString::from("hunter2")));
        assert!(matches!(error, VarError::NotUnicode(_)));
        assert!(!format!("{error:?} {error}").contains("hunter2"));
    }

    use std::fmt;
    use std::time::Duration;

    #[test]
    fn header_is_sensitive_and_debug_shows_no_token() {
        let token = token("abc/+1");

        assert_eq!(token.header(), "Bearer abc/+1");
        assert!(token.header().is_sensitive());
        assert_eq!(format!("{token:?}"), "AccessToken { .. }");
    }

    #[test]
    fn invalid_characters_are_refused() {
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
    fn error_names_the_environment_variable() {
        let token = AccessToken::from_env("CARGO_PKG_NAME").unwrap(); // Cargo sets it for tests.
        assert_eq!(token.bytes(), b"tower-webhook-admin");

        let error = AccessToken::from_env("TOWER_WEBHOOK_NO_SUCH_VARIABLE").unwrap_err();
        assert!(
            error
                .to_string()
                .contains("`TOWER_WEBHOOK_NO_SUCH_VARIABLE`")
        );
    }

    #[test]
    fn whitespace_around_the_token_in_a_file_is_ignored() {
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

    /// What `redact_from` does, in quadratic time: it looks for the token at every character.
    fn redacted_slowly(token: &AccessToken, text: &str, is_cut: bool) -> String {
        let mut redacted = String::new();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            match find(rest.as_bytes(), token.bytes()) {
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

    proptest::proptest! {
        #[test]
        fn no_place_of_the_token_is_overlooked(
            secret in "[u%20aF/]{1,4}",
            text in r"([u%20aF/é\\]|u002F|%2F|%61|\\u0075|\\u0061){0,24}",
            is_cut: bool,
        ) {
            let token = token(&secret);
            let expected = redacted_slowly(&token, &text, is_cut);
            proptest::prop_assert_eq!(token.redact_from(&text, is_cut), expected);
        }
    }

    #[test]
    fn redaction_takes_linear_time() {
        let token = token("hunter2/abc+def==");
        for (unit, length) in [
            ("\\", 1_000 * 1_024),
            ("\\u", 100_000),
            (r"\\\\\\hunter2\", 100_000),
            ("%5", 100_000),
            ("h", 100_000),
            ("é", 100_000),
        ] {
            let text = unit.repeat(length / unit.len());
            // The time of this thread alone, which other programs do not prolong. A search that begins
            // anew at each backslash takes minutes.
            let began = cpu_time();
            assert_eq!(token.redact(&text), text, "{unit}");
            let took = cpu_time().saturating_sub(began);
            assert!(took < Duration::from_secs(10), "{unit}: {took:?}");
        }
    }

    fn cpu_time() -> Duration {
        let clock = nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID;
        nix::time::clock_gettime(clock).unwrap().into()
    }

    #[test]
    fn token_that_looks_escaped_is_redacted() {
        assert_eq!(token("a%41").redact("a%41 aA"), "[redacted] aA");
        assert_eq!(token("u0041").redact("u0041"), "[redacted]");
    }

    #[test]
    fn text_truncated_within_the_token_is_redacted() {
        let token = token("aB/c+d=");
        for end in ["a", "aB/c+d", r"aB\", r"aB\u00", r"aB\u002F", "aB%2", "aB%"] {
            assert_eq!(token.redact_cut(&format!("body {end}")), "body ", "{end}");
        }
        for text in ["aB/c+d= and more", "body", ""] {
            assert_eq!(token.redact_cut(text), token.redact(text));
        }
    }

    #[test]
    fn error_that_contains_the_token_is_redacted() {
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
