//! How events are taken that wait.

use std::time::Duration;

use rusqlite::{OptionalExtension, Row, params};

use super::kinds::Names;
use super::lanes;
use super::row::{self, Work, place};
use crate::inbox::event::{EventLease, Take};
use crate::inbox::queue::Claims;
use crate::storage::sqlite::Tx;

// Of the kinds that have an event in a place, the next one, with its event that is due first.
const NEXT_KIND: &str = "
    SELECT kind, due, seq FROM work INDEXED BY work_due
    WHERE place = ?1 AND place < 6 AND kind > ?2 ORDER BY kind, due, seq";
const FIRST: &str = "
    SELECT kind, due, seq FROM work INDEXED BY work_due
    WHERE place = ?1 AND place < 6 AND kind = ?2 ORDER BY due, seq";
const FIRST_AFTER: &str = "
    SELECT due FROM work INDEXED BY work_due
    WHERE place = ?1 AND place < 6 AND kind = ?2 AND due > ?3 ORDER BY due";
const EXTEND: &str = "UPDATE work SET due = ?3 WHERE seq = ?1 AND place = 4 AND fence = ?2";

#[cfg(test)]
pub(super) const STATEMENTS: [&str; 4] = [NEXT_KIND, FIRST, FIRST_AFTER, EXTEND];

/// How many events a call returns to their lines at most.
const RETURNS: usize = 256;

/// The event that is due first, of those of a kind that are in a place.
#[derive(Clone, Copy)]
struct Head {
    place: i64,
    kind: i64,
    due: i64,
    seq: i64,
}

impl Head {
    fn read(place: i64) -> impl Fn(&Row<'_>) -> rusqlite::Result<Self> {
        move |row| {
            Ok(Self {
                place,
                kind: row.get(0)?,
                due: row.get(1)?,
                seq: row.get(2)?,
            })
        }
    }

    fn first(tx: &Tx<'_>, place: i64, kind: i64) -> rusqlite::Result<Option<Self>> {
        let mut first = tx.db.prepare_cached(FIRST)?;
        first.query_row([place, kind], Self::read(place)).optional()
    }

    /// One for each kind.
    fn all(tx: &Tx<'_>, place: i64) -> rusqlite::Result<Vec<Self>> {
        let mut heads: Vec<Self> = Vec::new();
        let mut next = tx.db.prepare_cached(NEXT_KIND)?;
        loop {
            let before = heads.last().map_or(0, |head| head.kind);
            let head = next.query_row([place, before], Self::read(place));
            match head.optional()? {
                Some(head) => heads.push(head),
                None => return Ok(heads),
            }
        }
    }
}

/// Collects the earliest time.
#[derive(Clone, Copy, Default)]
struct Earliest(Option<i64>);

impl Earliest {
    fn add(&mut self, due: i64) {
        self.0 = Some(self.0.map_or(due, |earliest| earliest.min(due)));
    }
}

pub(super) fn claim(
    tx: &mut Tx<'_>,
    take: &Take,
    limit: usize,
    suspects: usize,
) -> rusqlite::Result<Claims> {
    let mut names = Names::default();
    let mut next = Earliest::default();
    return_to_lines(tx, take, &mut names, &mut next)?;

    let mut claims = Claims::default();
    let mut suspects = suspects;
    let mut heads = heads(tx, take, &mut names, &mut next)?;
    loop {
        let is_allowed = |head: &Head| head.place == place::READY || suspects > 0;
        let first = (0..heads.len())
            .filter(|at| is_allowed(&heads[*at]))
            .min_by_key(|at| (heads[*at].due, heads[*at].seq));
        let Some(at) = first else { break };
        let head = heads[at];
        if head.due > tx.now || claims.events.len() >= limit {
            next.add(head.due);
            break;
        }
        let mut by_seq = tx.db.prepare_cached(row::BY_SEQ)?;
        let mut work = by_seq.query_row([head.seq], Work::read)?;
        drop(by_seq);
        if work.place == place::TAKEN && !lanes::is_before_others(tx, &work)? {
            // While it was taken, an event of a smaller number returned to its line, and is ready now.
            work.crashes = work.crashes.saturating_add(1);
            lanes::stand(tx, &mut work)?;
            heads = self::heads(tx, take, &mut names, &mut Earliest::default())?;
            continue;
        }
        let kind = names.name(tx, work.kind)?;
        if let Some(taken) = lanes::take(tx, &work, kind, take)? {
            suspects = suspects.saturating_sub((taken.crashes > 0).into());
            claims.events.push(taken);
        }
        match Head::first(tx, head.place, head.kind)? {
            Some(head) if head.place != place::TAKEN || head.due <= tx.now => heads[at] = head,
            _ => drop(heads.swap_remove(at)),
        }
    }
    claims.next_due = next.0.map(|due| row::until(due, tx.now));
    Ok(claims)
}

/// The first events of all kinds that may be taken. Leases that have not expired are only added to `next`.
fn heads(
    tx: &Tx<'_>,
    take: &Take,
    names: &mut Names,
    next: &mut Earliest,
) -> rusqlite::Result<Vec<Head>> {
    let mut heads = Vec::new();
    for place in [place::READY, place::SUSPECT, place::TAKEN] {
        for head in Head::all(tx, place)? {
            if !names.is_open(tx, head.kind, take)? {
                continue;
            }
            if place == place::TAKEN {
                let mut after = tx.db.prepare_cached(FIRST_AFTER)?;
                let after = after.query_row([place, head.kind, tx.now], |row| row.get(0));
                if let Some(due) = after.optional()? {
                    next.add(due);
                }
                if head.due > tx.now {
                    continue;
                }
            }
            heads.push(head);
        }
    }
    Ok(heads)
}

/// Lets events return to their lines that were put aside until now.
fn return_to_lines(
    tx: &Tx<'_>,
    take: &Take,
    names: &mut Names,
    next: &mut Earliest,
) -> rusqlite::Result<()> {
    let mut returns = RETURNS;
    for mut head in Head::all(tx, place::ASIDE)? {
        while head.due <= tx.now && returns > 0 {
            returns -= 1;
            let mut by_seq = tx.db.prepare_cached(row::BY_SEQ)?;
            let mut work = by_seq.query_row([head.seq], Work::read)?;
            lanes::join(tx, &mut work)?;
            match Head::first(tx, place::ASIDE, head.kind)? {
                Some(first) => head = first,
                None => {
                    // None of this kind is left.
                    head.due = i64::MAX;
                }
            }
        }
        let is_left = head.due < i64::MAX;
        if is_left && names.is_open(tx, head.kind, take)? {
            next.add(head.due);
        }
    }
    Ok(())
}

pub(super) fn extend(
    tx: &Tx<'_>,
    leases: &[EventLease],
    lease: Duration,
) -> rusqlite::Result<Vec<bool>> {
    let until = row::lease_end(tx.now, lease);
    let mut extend = tx.db.prepare_cached(EXTEND)?;
    leases
        .iter()
        .map(|held| {
            let fence = held.fence.0.to_be_bytes();
            Ok(extend.execute(params![held.id.0, fence, until])? == 1)
        })
        .collect()
}
