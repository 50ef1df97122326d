//! What workers have noted that they handle.

use std::time::Duration;

use rusqlite::{Result, params};

use super::row;
use crate::inbox::handlers::{HandlerNote, NewNote, Retired};
use crate::route::{EventType, Scope};
use crate::sqlite::engine::Tx;

const NOTE: &str = "
    INSERT INTO handlers (of, is_fallback, since, seen, keep_until, worker) VALUES (?1, ?2, ?3, ?3, ?4, ?5)
    ON CONFLICT DO UPDATE SET since = iif(keep_until < excluded.seen, excluded.seen, min(since, excluded.seen)),
        seen = excluded.seen, keep_until = excluded.keep_until, worker = excluded.worker";
// There are few.
const EXPIRE: &str = "DELETE FROM handlers NOT INDEXED WHERE keep_until < ?1";
const ALL: &str = "
    SELECT of, is_fallback, since, seen, worker FROM handlers NOT INDEXED WHERE keep_until >= ?1";
const IS_NOTED: &str = "SELECT 1 FROM handlers WHERE of = ?1";
const RETIRE: &str = "DELETE FROM handlers WHERE of = ?1 AND seen <= ?2";
const SEEN: &str = "SELECT max(seen) FROM handlers WHERE of = ?1 AND keep_until >= ?2";

#[cfg(test)]
pub(super) const STATEMENTS: &[&str] = &[NOTE, EXPIRE, ALL, IS_NOTED, RETIRE, SEEN];

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
            missed_since: Some(row::time(row.get(2)?)),
            seen: row::time(row.get(3)?),
            worker: row.get(4)?,
        })
    });
    let all = all?.collect::<Result<_>>()?;
    Ok(HandlerNote::with_missed(all))
}

/// Whether a worker has noted that it handles a type, and not only all others of its route.
pub(super) fn is_noted(tx: &Tx<'_>, of: &EventType) -> Result<bool> {
    tx.prepare(IS_NOTED)?.exists([of.to_string()])
}

pub(super) fn retire(tx: &Tx<'_>, of: &Scope, unseen: Duration) -> Result<Retired> {
    let of = of.to_string();
    let unseen = i64::try_from(unseen.as_millis()).unwrap_or(i64::MAX);
    let latest = tx.now.saturating_sub(unseen);
    let retired = tx.prepare(RETIRE)?.execute(params![of, latest])?;
    if retired > 0 {
        return Ok(Retired::Ended);
    }
    let seen = tx
        .prepare(SEEN)?
        .query_row(params![of, tx.now], |row| row.get(0));
    let seen: Option<i64> = seen?;
    Ok(seen.map_or(Retired::NotNoted, |seen| Retired::Kept {
        until: row::time(seen.saturating_add(unseen)),
    }))
}
