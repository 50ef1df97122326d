//! What persons did, in the transactions of the changes.

use rusqlite::{Result, Row, params};

use super::row;
use crate::inbox::actions::{Action, ActionKind, By, KEPT, MOST};
use crate::inbox::event::EventId;
use crate::sqlite::engine::{Tx, clock};

const INSERT: &str = "
    INSERT INTO actions (at, who, reason, what, event, about, changed) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
const LINK: &str = "
    INSERT INTO changed (event, action) VALUES (?1, ?2)";
const UNLINK: &str = "DELETE FROM changed WHERE event = ?1";
const FORGET: &str = "
    UPDATE actions SET event = NULL, reason = ''
    WHERE number IN (SELECT action FROM changed WHERE event = ?1) AND event = ?1";

macro_rules! columns {
    () => {
        "a.number, a.at, a.who, a.reason, a.what, a.event, a.about, a.changed"
    };
}

const ALL: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM actions a WHERE number < ?1 ORDER BY number DESC LIMIT ?2"
);
const OF_EVENT: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM changed c CROSS JOIN actions a ON a.number = c.action
    WHERE c.event = ?3 AND c.action < ?1 ORDER BY c.action DESC LIMIT ?2"
);
// The last row is kept, so that no number is used twice.
const PURGE: &str = "
    DELETE FROM actions
    WHERE number < (SELECT min(number) FROM actions) + ?3
        AND (at < ?1 OR number <= (SELECT max(number) FROM actions) - ?2)
        AND number < (SELECT max(number) FROM actions)";

#[cfg(test)]
pub(super) const STATEMENTS: &[&str] = &[INSERT, LINK, UNLINK, FORGET, ALL, OF_EVENT, PURGE];

/// How many a step deletes at most.
const STEP: i64 = 256;

/// Records what a person did.
pub(super) fn note(
    tx: &Tx<'_>,
    by: &By,
    kind: ActionKind,
    event: Option<i64>,
    about: Option<&str>,
    changed: u64,
) -> Result<()> {
    let changed = i64::try_from(changed).unwrap_or(i64::MAX);
    let row = params![
        tx.now,
        by.who(),
        by.reason(),
        kind.name(),
        event,
        about,
        changed
    ];
    tx.prepare(INSERT)?.execute(row)?;
    if let Some(event) = event {
        let link = params![event, tx.db.last_insert_rowid()];
        tx.prepare(LINK)?.execute(link)?;
    }
    Ok(())
}

/// Deletes what actions have of an event, whose chat is forgotten.
pub(super) fn forget(tx: &Tx<'_>, seq: i64) -> Result<()> {
    tx.prepare(FORGET)?.execute([seq])?;
    unlink(tx, seq)
}

/// Deletes the links of an event, which is deleted.
pub(super) fn unlink(tx: &Tx<'_>, seq: i64) -> Result<()> {
    tx.prepare(UNLINK)?.execute([seq])?;
    Ok(())
}

/// Deletes some of those that are old or too many, and returns whether there may be more.
pub(super) fn purge(tx: &Tx<'_>) -> Result<bool> {
    let before = tx.now.saturating_sub(clock::after(0, KEPT));
    Ok(tx.prepare(PURGE)?.execute([before, MOST, STEP])? > 0)
}

pub(super) fn list(
    tx: &Tx<'_>,
    of: Option<EventId>,
    before: Option<i64>,
    limit: usize,
) -> Result<Vec<Action>> {
    let (before, limit) = (
        before.unwrap_or(i64::MAX),
        i64::try_from(limit).unwrap_or(i64::MAX),
    );
    match of {
        Some(EventId(seq)) => tx
            .prepare(OF_EVENT)?
            .query_map([before, limit, seq], action)?
            .collect(),
        None => tx
            .prepare(ALL)?
            .query_map([before, limit], action)?
            .collect(),
    }
}

fn action(row: &Row<'_>) -> Result<Action> {
    let what = row.get_ref(4)?.as_str()?;
    let unknown = || row::invalid(4, rusqlite::types::Type::Text, "no action");
    Ok(Action {
        number: row.get(0)?,
        at: row::time(row.get(1)?),
        by: By::new(row.get_ref(2)?.as_str()?).because(row.get_ref(3)?.as_str()?),
        kind: ActionKind::parse(what).ok_or_else(unknown)?,
        event: row.get::<_, Option<i64>>(5)?.map(EventId),
        about: row.get(6)?,
        changed: row.get::<_, i64>(7)?.unsigned_abs(),
    })
}
