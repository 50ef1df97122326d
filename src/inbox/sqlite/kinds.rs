//! The table of kinds, and which of them are paused.

use std::collections::HashMap;

use rusqlite::{OptionalExtension, Row, params};

use super::row;
use crate::event::EventKind;
use crate::inbox::event::Take;
use crate::storage::sqlite::Tx;

// The row of number 0 is for everything. With the number of the last event, whose row is never deleted, so that no
// number is used twice.
const BY_NAME: &str = "
    SELECT id, paused OR (SELECT paused FROM kinds WHERE id = 0), (SELECT max(seq) FROM events)
    FROM kinds WHERE name = ?1";
const BY_ID: &str = "
    SELECT name, paused OR (SELECT paused FROM kinds WHERE id = 0) FROM kinds WHERE id = ?1";
const ALL: &str = "SELECT id, name, paused FROM kinds";
const INSERT: &str = "INSERT INTO kinds (name, paused) VALUES (?1, 0)";
const PAUSE: &str = "UPDATE kinds SET paused = ?2 WHERE id = ?1";

#[cfg(test)]
pub(super) const STATEMENTS: [&str; 5] = [BY_NAME, BY_ID, ALL, INSERT, PAUSE];

/// What an event is accepted with.
pub(super) struct Known {
    /// The number of its kind.
    pub(super) id: i64,
    pub(super) is_paused: bool,
    /// The number of the event before.
    pub(super) last: i64,
}

impl Known {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: row.get(0)?,
            is_paused: row.get(1)?,
            last: row.get::<_, Option<i64>>(2)?.unwrap_or(0),
        })
    }
}

/// Finds a kind, and gives it a number if it has none.
pub(super) fn find(tx: &Tx<'_>, kind: &EventKind) -> rusqlite::Result<Known> {
    let mut by_name = tx.db.prepare_cached(BY_NAME)?;
    let known = by_name.query_row([kind.as_str()], Known::read);
    if let Some(known) = known.optional()? {
        return Ok(known);
    }
    tx.db.prepare_cached(INSERT)?.execute([kind.as_str()])?;
    by_name.query_row([kind.as_str()], Known::read)
}

pub(super) fn pause(tx: &Tx<'_>, kind: Option<&EventKind>, paused: bool) -> rusqlite::Result<()> {
    let id = match kind {
        Some(kind) => find(tx, kind)?.id,
        None => 0,
    };
    tx.db.prepare_cached(PAUSE)?.execute(params![id, paused])?;
    Ok(())
}

/// All kinds by number, and whether they are paused themselves. With that of everything, which is 0.
pub(super) fn all(tx: &Tx<'_>) -> rusqlite::Result<Vec<(i64, Option<EventKind>, bool)>> {
    let mut all = tx.db.prepare_cached(ALL)?;
    let kinds = all.query_map([], |row| {
        let id = row.get(0)?;
        let kind = match id {
            0 => None,
            _ => Some(row::read_kind(row, 1)?),
        };
        Ok((id, kind, row.get(2)?))
    })?;
    kinds.collect()
}

/// Kinds that a call has met, each looked up once.
#[derive(Default)]
pub(super) struct Names(HashMap<i64, (EventKind, bool)>);

impl Names {
    fn find(&mut self, tx: &Tx<'_>, id: i64) -> rusqlite::Result<&(EventKind, bool)> {
        use std::collections::hash_map::Entry;

        match self.0.entry(id) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(new) => {
                let mut by_id = tx.db.prepare_cached(BY_ID)?;
                let known =
                    by_id.query_row([id], |row| Ok((row::read_kind(row, 0)?, row.get(1)?)))?;
                Ok(new.insert(known))
            }
        }
    }

    pub(super) fn name(&mut self, tx: &Tx<'_>, id: i64) -> rusqlite::Result<EventKind> {
        Ok(self.find(tx, id)?.0.clone())
    }

    /// Whether events of the kind may be taken: the worker takes them, and they are not paused.
    pub(super) fn is_open(&mut self, tx: &Tx<'_>, id: i64, take: &Take) -> rusqlite::Result<bool> {
        let (kind, is_paused) = self.find(tx, id)?;
        Ok(!*is_paused && take.kinds.contains(kind))
    }
}
