//! How bodies and events are deleted, a few at a time.

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Result, Statement};

use super::row::DELETE_FAILURES;
use super::{SqliteQueue, accept, actions, chats, count, kinds};
use crate::inbox::queue::PurgeEvents;
use crate::sqlite::engine::{Need, Tx, clock};
use crate::sqlite::schema::sql;
use crate::store::StoreError;

// Without a LIMIT: the few rows that are needed are read one by one. An event that has a body is settled later than its
// body is deleted, though its retention may have ended before.
const BODIES: &str = sql!(
    "
    SELECT seq FROM events INDEXED BY events_body
    WHERE state BETWEEN $Handled AND $Ignored AND settled <= ?1 ORDER BY settled"
);
const EXPIRED: &str = sql!(
    "
    SELECT seq FROM events INDEXED BY events_expiry
    WHERE state BETWEEN $Handled AND $Deleted AND state > $Ignored AND keep_until < ?1
    ORDER BY keep_until"
);
const DELETE: &str = "DELETE FROM events WHERE seq = ?1";
const KEEP_NUMBER: &str = sql!(
    "
    UPDATE events SET state = $Deleted, key = NULL, chat = NULL WHERE seq = ?1"
);
const DELETE_BODY: &str = "DELETE FROM bodies WHERE seq = ?1";
const WITHOUT_BODY: &str = sql!(
    "
    UPDATE events
    SET state = iif(state = $Handled, $HandledWithoutBody, $IgnoredWithoutBody)
    WHERE seq = ?1 AND state BETWEEN $Handled AND $Ignored"
);

#[cfg(test)]
pub(super) const STATEMENTS: &[&str] = &[
    BODIES,
    EXPIRED,
    DELETE,
    KEEP_NUMBER,
    DELETE_BODY,
    WITHOUT_BODY,
];

/// How many rows of each sort a step deletes.
const STEP: usize = 256;

#[async_trait]
impl PurgeEvents for SqliteQueue {
    async fn purge(&self, keep_bodies: Duration) -> Result<bool, StoreError> {
        self.run(Need::Write, move |tx| purge(tx, keep_bodies))
            .await
    }
}

fn purge(tx: &mut Tx<'_>, keep_bodies: Duration) -> Result<bool> {
    let settled_before = tx.now.saturating_sub(clock::after(0, keep_bodies));
    let bodies = some(&mut *tx.prepare(BODIES)?, settled_before)?;
    for seq in &bodies {
        delete_body(tx, *seq)?;
    }
    let expired = some(&mut *tx.prepare(EXPIRED)?, tx.now)?;
    if !expired.is_empty() {
        let last = accept::last(tx)?;
        chats::remove(tx, &expired, last)?;
        for seq in &expired {
            delete_body(tx, *seq)?;
            tx.prepare(DELETE_FAILURES)?.execute([seq])?;
            actions::unlink(tx, *seq)?;
            let delete = match *seq == last {
                true => KEEP_NUMBER,
                false => DELETE,
            };
            tx.prepare(delete)?.execute([seq])?;
        }
    }
    if bodies.len() == STEP || expired.len() == STEP || actions::purge(tx)? || count::purge(tx)? {
        return Ok(true);
    }
    kinds::purge(tx)?;
    Ok(false)
}

fn some(statement: &mut Statement<'_>, until: i64) -> Result<Vec<i64>> {
    let rows = statement.query_map([until], |row| row.get(0))?;
    rows.take(STEP).collect()
}

/// Deletes the body of an event that is settled, and with it the headers, and returns whether it had one.
pub(super) fn delete_body(tx: &Tx<'_>, seq: i64) -> Result<bool> {
    let deleted = tx.prepare(DELETE_BODY)?.execute([seq])?;
    tx.prepare(WITHOUT_BODY)?.execute([seq])?;
    Ok(deleted == 1)
}
