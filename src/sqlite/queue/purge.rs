//! How bodies and events are deleted, a few at a time.

use std::time::Duration;

use rusqlite::Statement;

use super::change::delete_body;
use super::memo;
use super::row::DELETE_FAILURES;
use crate::sqlite::engine::{Tx, clock};

// Without a LIMIT: the few rows that are needed are read one by one. The states 3 and 4 have a body, which is deleted
// first: an event may be settled when its retention has ended.
const BODIES: &str = "
    SELECT seq FROM events INDEXED BY events_body
    WHERE state BETWEEN 3 AND 4 AND settled <= ?1 ORDER BY settled";
const EXPIRED: &str = "
    SELECT seq FROM events INDEXED BY events_expiry
    WHERE state BETWEEN 3 AND 8 AND state > 4 AND keep_until < ?1 ORDER BY keep_until";
const DELETE: &str = "DELETE FROM events WHERE seq = ?1";
const KEEP_NUMBER: &str = "
    UPDATE events SET state = 8, key = NULL, chat = NULL WHERE seq = ?1";

#[cfg(test)]
pub(super) const STATEMENTS: [&str; 4] = [BODIES, EXPIRED, DELETE, KEEP_NUMBER];

/// How many rows of each sort a step deletes.
const STEP: usize = 256;

pub(super) fn purge(tx: &mut Tx<'_>, keep_bodies: Duration) -> rusqlite::Result<bool> {
    let settled_before = tx.now.saturating_sub(clock::after(0, keep_bodies));
    let bodies = some(&mut *tx.prepare(BODIES)?, settled_before)?;
    for seq in &bodies {
        delete_body(tx, *seq)?;
    }
    let expired = some(&mut *tx.prepare(EXPIRED)?, tx.now)?;
    if !expired.is_empty() {
        let last = memo::last(tx)?;
        for seq in &expired {
            delete_body(tx, *seq)?;
            tx.prepare(DELETE_FAILURES)?.execute([seq])?;
            let delete = match *seq == last {
                true => KEEP_NUMBER,
                false => DELETE,
            };
            tx.prepare(delete)?.execute([seq])?;
        }
    }
    Ok(bodies.len() == STEP || expired.len() == STEP)
}

fn some(statement: &mut Statement<'_>, until: i64) -> rusqlite::Result<Vec<i64>> {
    let rows = statement.query_map([until], |row| row.get(0))?;
    rows.take(STEP).collect()
}
