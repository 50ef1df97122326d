//! Text of a sender in the log, at a bounded length.

use std::fmt::{self, Write};

/// Displays at most 256 characters, since headers are not signed and can be hundreds of kilobytes long.
pub(crate) struct Short<T>(pub(crate) T);

const LONGEST: usize = 256;

impl<T: fmt::Display> fmt::Display for Short<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = Rest { f, room: LONGEST };
        // The error of `Rest` ends the formatting, so the rest of a long text is never made.
        match write!(rest, "{}", self.0) {
            Err(_) if rest.room == 0 => rest.f.write_char('…'),
            result => result,
        }
    }
}

/// Fails when the room is used up.
struct Rest<'a, 'b> {
    f: &'a mut fmt::Formatter<'b>,
    room: usize,
}

impl Write for Rest<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for char in text.chars() {
            self.room = self.room.checked_sub(1).ok_or(fmt::Error)?;
            self.f.write_char(char)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut_off() {
        assert_eq!(Short("chat-rated").to_string(), "chat-rated");
        let exact = "é".repeat(LONGEST);
        assert_eq!(Short(&exact).to_string(), exact);
        assert_eq!(Short(exact.clone() + "x").to_string(), exact.clone() + "…");
        let key = [0xe9; 1_000];
        assert_eq!(
            Short(key.escape_ascii()).to_string().chars().count(),
            LONGEST + 1
        );
    }
}
