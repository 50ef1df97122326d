//! Texts of others, in a log or at a terminal.

use std::error::Error;

/// Formats an error with its causes on one line. A cause that its error shows is not repeated.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// Whether a character controls a terminal, ends a line, or changes the direction of the text after it.
pub(crate) fn is_control(char: char) -> bool {
    let is_bidi = matches!(
        char,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    is_bidi || char.is_control()
}

/// Text of a sender or another program, without the characters that could forge a line.
pub(crate) fn printable(text: &str) -> String {
    let mut printable = String::new();
    for char in text.trim().chars() {
        match is_control(char) {
            true => printable.extend(char.escape_default()),
            false => printable.push(char),
        }
    }
    printable
}
