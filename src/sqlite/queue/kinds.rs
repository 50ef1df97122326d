//! The table of event types, and what is paused.

use std::collections::{BTreeSet, HashMap};

use rusqlite::{OptionalExtension, Result, Row, params};

use super::row;
use crate::event::EventKind;
use crate::inbox::event::{Share, Take};
use crate::inbox::records::Pause;
use crate::route::{EventType, RouteName, Scope};
use crate::sqlite::engine::Tx;

/// The platform's types with the numbers 1 to 7, which are a format on disk: a type that the platform adds gets one as all
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

/// Whether the type of a row is paused, its route, or everything. Look-ups, because SQLite would make a table of each list
/// of names.
macro_rules! paused {
    () => {
        "paused OR (SELECT paused FROM kinds WHERE id = 0)
            OR EXISTS (SELECT 1 FROM kinds WHERE name = '' AND route = of.route AND paused)"
    };
}

const BY_NAME: &str = concat!(
    "SELECT id, ",
    paused!(),
    " FROM kinds of WHERE name = ?1 AND route = ?2"
);
const BY_ID: &str = concat!(
    "SELECT name, route, ",
    paused!(),
    " FROM kinds of WHERE id = ?1"
);
// Without an index, because the name or the route may be NULL, for all.
const IS_KNOWN: &str = "
    SELECT 1 FROM kinds NOT INDEXED WHERE ifnull(name = ?1, 1) AND ifnull(route = ?2, 1)";
const ALL: &str = "SELECT name, route, id, paused, note FROM kinds";
const INSERT: &str = "
    INSERT INTO kinds (id, name, paused, route)
    SELECT ifnull(?3, max(max(id), 7) + 1), ?1, 0, ?2 FROM kinds";
// The header that names a kind is not signed: anybody who captured a delivery may make new ones.
const PURGE: &str = "
    DELETE FROM kinds WHERE id > 7 AND NOT paused
        AND NOT EXISTS (SELECT 1 FROM events INDEXED BY events_kind WHERE kind > 7 AND kind = kinds.id)";
const PAUSE: &str = "UPDATE kinds SET paused = ?2, note = ?3 WHERE id = ?1";

#[cfg(test)]
pub(super) const STATEMENTS: &[&str] = &[BY_NAME, BY_ID, IS_KNOWN, ALL, INSERT, PURGE, PAUSE];

/// A type, as the events of a transaction are accepted with it.
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

/// The numbers of the types that the shares take, if each share names them.
pub(super) fn named(tx: &Tx<'_>, of: &[Share]) -> Result<Option<Vec<i64>>> {
    let mut by_name = tx.prepare(BY_NAME)?;
    let mut ids = Vec::new();
    for share in of {
        let kinds = &share.take.kinds;
        let Some(included) = kinds.included() else {
            return Ok(None);
        };
        for kind in included {
            let known = by_name.query_row([kind.as_str(), kinds.route.as_str()], Known::read);
            ids.extend(known.optional()?.map(|known| known.id));
        }
    }
    Ok(Some(ids))
}

/// The types that a transaction has read, and would find unchanged.
type Memo = Vec<(RouteName, EventKind, Known)>;

/// Finds a type, and gives it a number if it has none.
pub(super) fn find(tx: &mut Tx<'_>, route: &RouteName, kind: &EventKind) -> Result<Known> {
    let memo = tx.memo::<Memo>();
    let is_it = |known: &&_| matches!(known, (at, of, _) if at == route && of == kind);
    if let Some((.., known)) = memo.iter().find(is_it) {
        return Ok(*known);
    }
    let known = row_of(tx, kind.as_str(), route.as_str())?;
    tx.memo::<Memo>().push((route.clone(), kind.clone(), known));
    Ok(known)
}

/// Finds a row, and inserts it if there is none.
fn row_of(tx: &Tx<'_>, name: &str, route: &str) -> Result<Known> {
    let mut by_name = tx.prepare(BY_NAME)?;
    let known = by_name.query_row([name, route], Known::read);
    if let Some(known) = known.optional()? {
        return Ok(known);
    }
    let own = (1..).zip(PLATFORM).find(|(_, own)| name == *own);
    let own = own.filter(|_| route == RouteName::default().as_str());
    let own = own.map(|(id, _): (i64, _)| id);
    tx.prepare(INSERT)?.execute(params![name, route, own])?;
    by_name.query_row([name, route], Known::read)
}

/// Deletes the types that have no event, and the rows of routes that are not paused.
pub(super) fn purge(tx: &mut Tx<'_>) -> Result<()> {
    tx.prepare(PURGE)?.execute([])?;
    tx.memo::<Memo>().clear();
    Ok(())
}

/// Whether there may be events of a kind, at a route.
pub(super) fn is_known(tx: &Tx<'_>, kind: Option<&str>, route: Option<&str>) -> Result<bool> {
    tx.prepare(IS_KNOWN)?.exists([kind, route])
}

pub(super) fn pause(tx: &mut Tx<'_>, of: &Scope, note: Option<&str>) -> Result<()> {
    let (name, route) = match of {
        Scope::Everything => ("", ""),
        Scope::Route(route) => ("", route.as_str()),
        Scope::Type(of) => (of.kind.as_str(), of.route.as_str()),
    };
    let id = row_of(tx, name, route)?.id;
    let since = note.map_or(0, |_| tx.now);
    tx.prepare(PAUSE)?.execute(params![id, since, note])?;
    tx.memo::<Memo>().clear();
    Ok(())
}

/// All types by number.
type Types = Vec<(i64, EventType)>;

/// All types, and all that is paused.
pub(super) fn all(tx: &Tx<'_>) -> Result<(Types, Vec<Pause>)> {
    let mut all = tx.prepare(ALL)?;
    let mut rows = all.query([])?;
    let (mut types, mut pauses) = (Vec::new(), Vec::new());
    while let Some(row) = rows.next()? {
        let of = read_scope(row)?;
        if row.get(3)? {
            pauses.push(Pause {
                of: of.clone(),
                since: row::time(row.get(3)?),
                note: row.get::<_, Option<String>>(4)?.unwrap_or_default(),
            });
        }
        if let Scope::Type(of) = of {
            types.push((row.get(2)?, of));
        }
    }
    Ok((types, pauses))
}

/// What a row is about, by its name and route.
fn read_scope(row: &Row<'_>) -> Result<Scope> {
    if row.get_ref(1)?.as_str()?.is_empty() {
        return Ok(Scope::Everything);
    }
    if row.get_ref(0)?.as_str()?.is_empty() {
        return Ok(Scope::Route(row::parse(row, 1)?));
    }
    Ok(Scope::Type(read_type(row)?))
}

fn read_type(row: &Row<'_>) -> Result<EventType> {
    Ok(EventType::new(row::parse(row, 1)?, row::parse(row, 0)?))
}

/// The routes of all types.
pub(super) fn routes(tx: &Tx<'_>) -> Result<BTreeSet<RouteName>> {
    let (types, _) = all(tx)?;
    Ok(types.into_iter().map(|(_, of)| of.route).collect())
}

/// Types that a call has met, each looked up once.
#[derive(Default)]
pub(super) struct Names(HashMap<i64, Named>);

struct Named {
    of: EventType,
    is_paused: bool,
}

impl Named {
    fn is_open(&self, take: &Take) -> bool {
        !self.is_paused && take.kinds.takes(&self.of.route, &self.of.kind)
    }
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
                        of: read_type(row)?,
                        is_paused: row.get(2)?,
                    })
                });
                Ok(new.insert(known?))
            }
        }
    }

    pub(super) fn event_type(&mut self, tx: &Tx<'_>, id: i64) -> Result<&EventType> {
        Ok(&self.find(tx, id)?.of)
    }

    /// Whether events of the type may be taken: the worker takes them, and they are not paused.
    pub(super) fn is_open(&mut self, tx: &Tx<'_>, id: i64, take: &Take) -> Result<bool> {
        Ok(self.find(tx, id)?.is_open(take))
    }

    /// In which of the shares they may be taken, and of which kind they are.
    pub(super) fn share(
        &mut self,
        tx: &Tx<'_>,
        id: i64,
        of: &[Share],
    ) -> Result<Option<(usize, EventKind)>> {
        let named = self.find(tx, id)?;
        let share = of.iter().position(|share| named.is_open(&share.take));
        Ok(share.map(|share| (share, named.of.kind.clone())))
    }
}
