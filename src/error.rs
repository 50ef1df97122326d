//! A type for errors of any kind, and their format in the log.

use std::cell::Cell;
use std::error::Error as StdError;
use std::fmt::{self, Write};
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::Once;
use std::task::{Context, Poll};
use std::thread;

use pin_project_lite::pin_project;

/// Any error of a user or another crate.
pub(crate) type BoxError = Box<dyn StdError + Send + Sync>;

/// Displays an error with its causes on one line, as the log does. Characters that would end the line or control a
/// terminal are escaped. The text of a cause that its error contains is not repeated.
///
/// ```
/// use tower_webhook::telemetry::Chain;
///
/// let error = std::io::Error::other("the CRM\nis closed");
/// assert_eq!(Chain(&error).to_string(), r"the CRM\nis closed");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Chain<'a>(pub &'a (dyn StdError + 'a));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = self.0.to_string();
        let mut cause = self.0.source();
        while let Some(error) = cause {
            let text = error.to_string();
            if !shown.contains(&text) {
                // The details of answers are sentences.
                write!(OneLine(f), "{}: ", shown.trim_end_matches('.'))?;
                shown = text;
            }
            cause = error.source();
        }
        write!(OneLine(f), "{shown}")
    }
}

/// Escapes characters that would begin a new line in a log, or control a terminal.
struct OneLine<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl fmt::Write for OneLine<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|char| match is_control(char) {
            true => write!(self.0, "{}", char.escape_default()),
            false => self.0.write_char(char),
        })
    }
}

/// Whether a character controls a terminal, ends a line, or changes the direction of the text after it.
fn is_control(char: char) -> bool {
    let is_bidi = matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    is_bidi || char.is_control()
}

/// A panic, as an error: its message and its place in the code.
#[derive(Debug)]
pub(crate) struct Panic {
    who: &'static str,
    message: String,
    place: Option<String>,
}

thread_local! {
    /// The place of the last panic of this thread.
    static PLACE: Cell<Option<String>> = const { Cell::new(None) };
}

impl Panic {
    /// Catches the panic of a call. The first call has the places of panics noted, by a hook before the
    /// application's.
    pub(crate) fn catch<T>(poll: impl FnOnce() -> T) -> Result<T, Self> {
        static NOTED: Once = Once::new();
        if !NOTED.is_completed() && !thread::panicking() {
            NOTED.call_once(|| {
                let hook = panic::take_hook();
                panic::set_hook(Box::new(move |panic| {
                    PLACE.set(panic.location().map(ToString::to_string));
                    hook(panic);
                }));
            });
        }
        PLACE.set(None);
        panic::catch_unwind(AssertUnwindSafe(poll)).map_err(|panic| Self {
            who: "the handler",
            message: match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
                (Some(message), _) => (*message).to_owned(),
                (None, Some(message)) => message.clone(),
                (None, None) => "its value is no text".to_owned(),
            },
            place: PLACE.take(),
        })
    }

    /// Says whose panic it is: of a handler, unless this says so.
    pub(crate) fn of(self, who: &'static str) -> Self {
        Self { who, ..self }
    }
}

pin_project! {
    /// A future whose panics are caught.
    #[must_use = "futures do nothing unless polled"]
    pub(crate) struct CatchPanic<F> {
        #[pin]
        run: F,
    }
}

impl<F> CatchPanic<F> {
    pub(crate) fn new(run: F) -> Self {
        Self { run }
    }
}

impl<F: Future> Future for CatchPanic<F> {
    type Output = Result<F::Output, Panic>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match Panic::catch(|| self.project().run.poll(cx)) {
            Ok(polled) => polled.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    }
}

impl fmt::Display for Panic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} panicked: {}", self.who, self.message)?;
        match &self.place {
            Some(place) => write!(f, " ({place})"),
            None => Ok(()),
        }
    }
}

impl StdError for Panic {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_direction_of_text_is_not_changed() {
        let turned = BoxError::from("a\u{202e}b\u{9b}c");
        let shown = Chain(turned.as_ref()).to_string();
        assert_eq!(shown, r"a\u{202e}b\u{9b}c");
    }

    #[test]
    fn a_panic_has_its_message_and_its_place() {
        for (panic, message) in [
            (Panic::catch(|| panic!("no CRM")), "no CRM"),
            (Panic::catch(|| panic!("no {}", "CRM")), "no CRM"),
        ] {
            let text = panic.map(|()| "").unwrap_err().to_string();
            let start = format!("the handler panicked: {message} (src/error.rs:");
            assert!(text.starts_with(&start), "{text}");
        }
        // A value that is thrown again has no place.
        let again = Panic::catch(|| panic::resume_unwind(Box::new(7)));
        let text = again.map(|()| "").unwrap_err().to_string();
        assert_eq!(text, "the handler panicked: its value is no text");
    }

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
            "the database is unavailable",
            Some("connection refused".into()),
        );
        let outer = Failure("the store failed", Some(Box::new(cause)));
        assert_eq!(
            Chain(&outer).to_string(),
            "the store failed: the database is unavailable: connection refused"
        );
    }

    #[test]
    fn a_cause_that_its_error_shows_is_not_repeated() {
        let refused = || Box::new(Failure("connection refused", None));
        for shown in [
            "connection refused",
            "no answer: connection refused",
            "no answer (connection refused) of the server",
        ] {
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
