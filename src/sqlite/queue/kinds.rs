//! The table of kinds, and which of them are paused.

use std::collections::{BTreeSet, HashMap};

use rusqlite::{OptionalExtension, Result, Row, params};

use super::row;
use crate::event::EventKind;
use crate::inbox::event::{Namespace, Take};
use crate::inbox::records::Pause;
use crate::sqlite::engine::Tx;

/// The platform's kinds with the numbers 1 to 7, which are a format on disk: a kind that the platform adds gets one as all
/// others do.
const PLATFORM: [&str; 7] = [
    "chat-assigned",
    "chat-opened",
    "chat-closed",
    "chat-reopened",
    "chat-transferred",
    "chat-rated",
    "message-created",
];

/// Whether the kind of this name is paused, or everything.
macro_rules! paused {
    ($name:literal) => {
        concat!(
            "(SELECT max(paused) FROM kinds WHERE name IN ('', ",
            $name,
            ") AND namespace = 0)"
        )
    };
}

const BY_NAME: &str = concat!(
    "SELECT id, ",
    paused!("?1"),
    " FROM kinds WHERE name = ?1 AND namespace = ?2"
);
const BY_ID: &str = concat!(
    "SELECT name, namespace, ",
    paused!("of.name"),
    " FROM kinds of WHERE id = ?1"
);
const IS_KNOWN: &str = "SELECT 1 FROM kinds WHERE name = ?1";
const ALL: &str = "SELECT id, name, paused, namespace, note FROM kinds";
const INSERT: &str = "
    INSERT INTO kinds (id, name, paused, namespace)
    SELECT ifnull(?3, max(max(id), 7) + 1), ?1, 0, ?2 FROM kinds";
// The header that names a kind is not signed: anybody who captured a delivery may make new ones.
const PURGE: &str = "
    DELETE FROM kinds WHERE id > 7 AND NOT paused
        AND NOT EXISTS (SELECT 1 FROM events INDEXED BY events_kind WHERE kind > 7 AND kind = kinds.id)";
const PAUSE: &str = "UPDATE kinds SET paused = ?2, note = ?3 WHERE id = ?1";

#[cfg(test)]
pub(super) const STATEMENTS: &[&str] = &[BY_NAME, BY_ID, IS_KNOWN, ALL, INSERT, PURGE, PAUSE];

/// A kind, as the events of a transaction are accepted with it.
#[derive(Clone, Copy)]
pub(super) struct Known {
    /// Its number.
    pub(super) id: i64,
    pub(super) is_paused: bool,
}

impl Known {
    fn read(row: &Row<'_>) -> Result<Self> {
        Ok(Self {
            id: row.get(0)?,
            is_paused: row.get(1)?,
        })
    }
}

/// The kinds that a transaction has read, and would find unchanged.
type Memo = Vec<(Namespace, EventKind, Known)>;

/// Finds a kind, and gives it a number if it has none.
pub(super) fn find(tx: &mut Tx<'_>, namespace: Namespace, kind: &EventKind) -> Result<Known> {
    let memo = tx.memo::<Memo>();
    let is_it = |known: &&_| matches!(known, (within, of, _) if *within == namespace && of == kind);
    if let Some((.., known)) = memo.iter().find(is_it) {
        return Ok(*known);
    }
    let name = params![kind.as_str(), namespace.0];
    let mut by_name = tx.prepare(BY_NAME)?;
    let known = by_name.query_row(name, Known::read);
    let known = match known.optional()? {
        Some(known) => known,
        None => {
            let own = (1..).zip(PLATFORM).find(|(_, own)| kind.as_str() == *own);
            let own = own.filter(|_| namespace == Namespace::default());
            let own = own.map(|(id, _): (i64, _)| id);
            tx.prepare(INSERT)?
                .execute(params![kind.as_str(), namespace.0, own])?;
            by_name.query_row(name, Known::read)?
        }
    };
    tx.memo::<Memo>().push((namespace, kind.clone(), known));
    Ok(known)
}

/// Deletes the kinds that have no event.
pub(super) fn purge(tx: &mut Tx<'_>) -> Result<()> {
    tx.prepare(PURGE)?.execute([])?;
    tx.memo::<Memo>().clear();
    Ok(())
}

/// Whether there may be events of a kind.
pub(super) fn is_known(tx: &Tx<'_>, kind: &EventKind) -> Result<bool> {
    tx.prepare(IS_KNOWN)?.exists([kind.as_str()])
}

pub(super) fn pause(tx: &mut Tx<'_>, kind: Option<&EventKind>, note: Option<&str>) -> Result<()> {
    let id = match kind {
        Some(kind) => find(tx, Namespace::default(), kind)?.id,
        None => 0,
    };
    let since = note.map_or(0, |_| tx.now);
    tx.prepare(PAUSE)?.execute(params![id, since, note])?;
    tx.memo::<Memo>().clear();
    Ok(())
}

pub(super) fn pauses(tx: &Tx<'_>) -> rusqlite::Result<Vec<Pause>> {
    let mut all = tx.prepare(ALL)?;
    let mut rows = all.query([])?;
    let mut pauses = Vec::new();
    while let Some(row) = rows.next()? {
        if row.get(2)? {
            pauses.push(Pause {
                kind: match row.get::<_, i64>(0)? {
                    0 => None,
                    _ => Some(row::read_kind(row, 1)?),
                },
                since: row::time(row.get(2)?),
                note: row.get::<_, Option<String>>(4)?.unwrap_or_default(),
            });
        }
    }
    pauses.sort_unstable_by(|a, b| a.kind.cmp(&b.kind));
    Ok(pauses)
}

/// All kinds by number, and whether they are paused themselves.
pub(super) fn all(tx: &Tx<'_>) -> Result<Vec<(i64, EventKind, bool)>> {
    let mut all = tx.prepare(ALL)?;
    let mut rows = all.query([])?;
    let mut kinds = Vec::new();
    while let Some(row) = rows.next()? {
        // 0 is the number of everything.
        if row.get::<_, i64>(0)? != 0 {
            kinds.push((row.get(0)?, row::read_kind(row, 1)?, row.get(2)?));
        }
    }
    Ok(kinds)
}

/// The namespaces of all kinds.
pub(super) fn namespaces(tx: &Tx<'_>) -> Result<BTreeSet<Namespace>> {
    let mut all = tx.prepare(ALL)?;
    let namespaces = all.query_map([], |row| row.get(3).map(Namespace))?;
    namespaces.collect()
}

/// Kinds that a call has met, each looked up once.
#[derive(Default)]
pub(super) struct Names(HashMap<i64, Named>);

struct Named {
    namespace: Namespace,
    name: EventKind,
    is_paused: bool,
}

impl Names {
    fn find(&mut self, tx: &Tx<'_>, id: i64) -> Result<&Named> {
        use std::collections::hash_map::Entry;

        match self.0.entry(id) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(new) => {
                let mut by_id = tx.prepare(BY_ID)?;
                let known = by_id.query_row([id], |row| {
                    Ok(Named {
                        name: row::read_kind(row, 0)?,
                        namespace: Namespace(row.get(1)?),
                        is_paused: row.get(2)?,
                    })
                });
                Ok(new.insert(known?))
            }
        }
    }

    pub(super) fn name(&mut self, tx: &Tx<'_>, id: i64) -> Result<EventKind> {
        Ok(self.find(tx, id)?.name.clone())
    }

    /// Whether events of the kind may be taken: the worker takes them, and they are not paused.
    pub(super) fn is_open(&mut self, tx: &Tx<'_>, id: i64, take: &Take) -> Result<bool> {
        let kind = self.find(tx, id)?;
        Ok(!kind.is_paused && take.kinds.takes(kind.namespace, &kind.name))
    }
}
