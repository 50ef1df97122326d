//! What workers have noted that they handle.

use rusqlite::{Result, params};

use super::row;
use crate::inbox::handlers::{HandlerNote, NewNote};
use crate::route::{EventType, Scope};
use crate::sqlite::engine::Tx;

const NOTE: &str = "
    INSERT INTO handlers (of, is_fallback, seen, keep_until, worker) VALUES (?1, ?2, ?3, ?4, ?5)
    ON CONFLICT DO UPDATE SET seen = excluded.seen, keep_until = excluded.keep_until, worker = excluded.worker";
// There are few.
const EXPIRE: &str = "DELETE FROM handlers NOT INDEXED WHERE keep_until < ?1";
const ALL: &str = "
    SELECT of, is_fallback, seen, worker FROM handlers NOT INDEXED WHERE keep_until >= ?1";
const IS_NOTED: &str = "SELECT 1 FROM handlers WHERE of = ?1";
const RETIRE: &str = "DELETE FROM handlers WHERE of = ?1";

#[cfg(test)]
pub(super) const STATEMENTS: &[&str] = &[NOTE, EXPIRE, ALL, IS_NOTED, RETIRE];

pub(super) fn note(tx: &Tx<'_>, worker: &str, notes: &[NewNote]) -> Result<()> {
    let mut note = tx.prepare(NOTE)?;
    for new in notes {
        let until = row::after(tx.now, new.keep);
        note.execute(params![
            new.of.to_string(),
            new.is_fallback,
            tx.now,
            until,
            worker
        ])?;
    }
    tx.prepare(EXPIRE)?.execute([tx.now])?;
    Ok(())
}

pub(super) fn all(tx: &Tx<'_>) -> Result<Vec<HandlerNote>> {
    let mut all = tx.prepare(ALL)?;
    let all = all.query_map([tx.now], |row| {
        Ok(HandlerNote {
            of: row::parse(row, 0)?,
            is_fallback: row.get(1)?,
            seen: row::time(row.get(2)?),
            worker: row.get(3)?,
        })
    });
    all?.collect()
}

/// Whether a worker has noted that it handles a type, and not only all others of its route.
pub(super) fn is_noted(tx: &Tx<'_>, of: &EventType) -> Result<bool> {
    tx.prepare(IS_NOTED)?.exists([of.to_string()])
}

pub(super) fn retire(tx: &Tx<'_>, of: &Scope) -> Result<bool> {
    let retired = tx.prepare(RETIRE)?.execute([of.to_string()])?;
    Ok(retired > 0)
}
