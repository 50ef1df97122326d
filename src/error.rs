//! A type for errors of any kind, and their format in the log.

use std::error::Error as StdError;
use std::fmt::{self, Write};

/// Any error of a user or another crate.
pub(crate) type BoxError = Box<dyn StdError + Send + Sync>;

/// Displays an error with its causes, on one line. Some errors end with the text of their cause, which is not repeated.
pub(crate) struct Chain<'a>(pub(crate) &'a (dyn StdError + 'a));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = self.0.to_string();
        write!(OneLine(f), "{shown}")?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            let text = error.to_string();
            if !shown.ends_with(&text) {
                write!(OneLine(f), ": {text}")?;
                shown = text;
            }
            cause = error.source();
        }
        Ok(())
    }
}

/// Escapes characters that would begin a new line in a log, or control a terminal.
struct OneLine<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl fmt::Write for OneLine<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|char| match char.is_control() {
            true => write!(self.0, "{}", char.escape_default()),
            false => self.0.write_char(char),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error with a cause.
    #[derive(Debug)]
    struct Failure(&'static str, Option<BoxError>);

    impl fmt::Display for Failure {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl StdError for Failure {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            self.1.as_deref().map(|cause| cause as _)
        }
    }

    #[test]
    fn an_error_cannot_forge_a_line_of_the_log() {
        let forged = BoxError::from("bad\n2026-01-01 ERROR forged\u{1b}[2J");
        let shown = Chain(forged.as_ref()).to_string();
        assert_eq!(shown, r"bad\n2026-01-01 ERROR forged\u{1b}[2J");
    }

    #[test]
    fn an_error_is_displayed_with_its_causes() {
        let cause = Failure(
            "the store is unavailable",
            Some("connection refused".into()),
        );
        let outer = Failure("the store failed", Some(Box::new(cause)));
        assert_eq!(
            Chain(&outer).to_string(),
            "the store failed: the store is unavailable: connection refused"
        );
    }

    #[test]
    fn a_cause_that_its_error_shows_is_not_repeated() {
        let refused = || Box::new(Failure("connection refused", None));
        for shown in ["connection refused", "no answer: connection refused"] {
            let outer = Failure(
                "the store failed",
                Some(Box::new(Failure(shown, Some(refused())))),
            );
            assert_eq!(
                Chain(&outer).to_string(),
                format!("the store failed: {shown}")
            );
        }
    }
}
