//! What persons did, in the transactions of the changes.

use rusqlite::types::Type;
use rusqlite::{Result, Row, params};

use super::row;
use crate::inbox::actions::{
    Action, ActionKind, Bulk, BulkState, By, INTERRUPTED_AFTER, KEPT, MOST, Which,
};
use crate::inbox::event::EventId;
use crate::sqlite::engine::{Tx, clock};

const INSERT: &str = "
    INSERT INTO actions (at, who, reason, what, event, about, changed) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
const LINK: &str = "
    INSERT INTO changed (event, action) VALUES (?1, ?2)";
const HAS_CHANGED: &str = "SELECT 1 FROM changed WHERE event = ?1 AND action = ?2";
const UNLINK: &str = "DELETE FROM changed WHERE event = ?1";
const FORGET: &str = "
    UPDATE actions SET event = NULL, reason = ''
    WHERE number IN (SELECT action FROM changed WHERE event = ?1) AND event = ?1";

macro_rules! columns {
    () => {
        "a.number, a.at, a.who, a.reason, a.what, a.event, a.about, a.changed, a.state, a.skipped, a.reached, a.rate,
        a.stepped"
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
const RUNNING: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM actions a WHERE state = 'running' AND number < ?1 ORDER BY number DESC LIMIT ?2"
);
const FORGET_BULKS: &str = "
    UPDATE actions
    SET chat = NULL, about = NULL, reason = '', state = iif(state = 'running', 'cancelled', state)
    WHERE chat = ?1";
// The last row is kept, so that no number is used twice, and so is a change that is running.
const PURGE: &str = "
    DELETE FROM actions
    WHERE number < (SELECT min(number) FROM actions WHERE state IS NOT 'running') + ?3
        AND state IS NOT 'running'
        AND (at < ?1 OR number <= (SELECT max(number) FROM actions) - ?2)
        AND number < (SELECT max(number) FROM actions)";

#[cfg(test)]
pub(super) const STATEMENTS: &[&str] = &[
    INSERT,
    LINK,
    HAS_CHANGED,
    UNLINK,
    FORGET,
    ALL,
    OF_EVENT,
    RUNNING,
    FORGET_BULKS,
    PURGE,
];

/// How many a step deletes at most.
const AT_ONCE: i64 = 256;

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
        link(tx, event, tx.db.last_insert_rowid())?;
    }
    Ok(())
}

pub(super) fn link(tx: &Tx<'_>, event: i64, action: i64) -> Result<()> {
    tx.prepare(LINK)?.execute([event, action])?;
    Ok(())
}

pub(super) fn has_changed(tx: &Tx<'_>, action: i64, event: i64) -> Result<bool> {
    tx.prepare(HAS_CHANGED)?.exists([event, action])
}

/// Deletes what bulk changes have of a chat, which is forgotten.
pub(super) fn forget_bulks(tx: &Tx<'_>, chat: &str) -> Result<()> {
    tx.prepare(FORGET_BULKS)?.execute([chat])?;
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

/// Deletes some actions that are old or too many, and returns whether there may be more.
pub(super) fn purge(tx: &Tx<'_>) -> Result<bool> {
    let before = tx.now.saturating_sub(clock::after(0, KEPT));
    Ok(tx.prepare(PURGE)?.execute([before, MOST, AT_ONCE])? > 0)
}

pub(super) fn list(
    tx: &Tx<'_>,
    which: Which,
    before: Option<i64>,
    limit: usize,
) -> Result<Vec<Action>> {
    let (before, limit) = (
        before.unwrap_or(i64::MAX),
        i64::try_from(limit).unwrap_or(i64::MAX),
    );
    let read = |row: &Row<'_>| action(row, tx.now);
    let sql = match which {
        Which::Of(EventId(seq)) => {
            let mut of_event = tx.prepare(OF_EVENT)?;
            return of_event.query_map([before, limit, seq], read)?.collect();
        }
        Which::All => ALL,
        Which::Running => RUNNING,
    };
    let mut actions = tx.prepare(sql)?;
    actions.query_map([before, limit], read)?.collect()
}

fn action(row: &Row<'_>, now: i64) -> Result<Action> {
    let what = row.get_ref(4)?.as_str()?;
    let unknown = || row::invalid(4, Type::Text, "no action");
    let bulk = match row.get_ref(8)?.as_str_or_null()? {
        None => None,
        Some(state) => {
            let stepped: i64 = row.get(12)?;
            let is_late = now > clock::after(stepped, INTERRUPTED_AFTER);
            let state = BulkState::parse(state, is_late)
                .ok_or_else(|| row::invalid(8, Type::Text, "no state of a bulk change"))?;
            Some(Bulk {
                state,
                skipped: row.get::<_, i64>(9)?.unsigned_abs(),
                reached: EventId(row.get(10)?),
                rate: row.get(11)?,
            })
        }
    };
    Ok(Action {
        number: row.get(0)?,
        at: row::time(row.get(1)?),
        by: By::new(row.get_ref(2)?.as_str()?).because(row.get_ref(3)?.as_str()?),
        kind: ActionKind::parse(what).ok_or_else(unknown)?,
        event: row.get::<_, Option<i64>>(5)?.map(EventId),
        about: row.get(6)?,
        changed: row.get::<_, i64>(7)?.unsigned_abs(),
        bulk,
    })
}
