//! What a transaction has read, and would find unchanged if it read it again.

use super::kinds::Known;
use crate::event::EventKind;
use crate::sqlite::engine::Tx;

// Its row is never deleted, so that no number is used twice.
const LAST: &str = "SELECT ifnull(max(seq), 0) FROM events";

#[cfg(test)]
pub(super) const STATEMENTS: [&str; 1] = [LAST];

/// What a transaction has read.
#[derive(Default)]
pub(super) struct Memo {
    pub(super) kinds: Vec<(EventKind, Known)>,
    last: Option<i64>,
}

/// The number of the event that was accepted last.
pub(super) fn last(tx: &mut Tx<'_>) -> rusqlite::Result<i64> {
    if let Some(last) = tx.memo::<Memo>().last {
        return Ok(last);
    }
    let last = tx.prepare(LAST)?.query_row([], |row| row.get(0))?;
    set_last(tx, last);
    Ok(last)
}

pub(super) fn set_last(tx: &mut Tx<'_>, last: i64) {
    tx.memo::<Memo>().last = Some(last);
}
