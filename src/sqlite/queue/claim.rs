//! How events are taken that wait.

use async_trait::async_trait;
use rusqlite::{OptionalExtension, Result, Row, params};

use super::kinds::Names;
use super::row::{self, Work};
use super::{SqliteQueue, lanes};
use crate::inbox::event::{EventId, Take, TakenEvent};
use crate::inbox::queue::{ClaimEvents, Claims};
use crate::sqlite::engine::{Need, Tx};
use crate::sqlite::schema::{Place, sql};
use crate::store::StoreError;

// Of the kinds that have an event in a place, the next one, with its event that is due first.
const NEXT_KIND: &str = sql!(
    "
    SELECT kind, due, seq FROM work INDEXED BY work_due
    WHERE place = ?1 AND place <> $Behind AND kind > ?2 ORDER BY kind, due, seq"
);
const FIRST: &str = sql!(
    "
    SELECT kind, due, seq FROM work INDEXED BY work_due
    WHERE place = ?1 AND place <> $Behind AND kind = ?2 ORDER BY due, seq"
);
#[cfg(test)]
pub(super) const STATEMENTS: &[&str] = &[NEXT_KIND, FIRST];

#[async_trait]
impl ClaimEvents for SqliteQueue {
    async fn claim(
        &self,
        take: &Take,
        limit: usize,
        suspects: usize,
    ) -> Result<Claims, StoreError> {
        let take = take.clone();
        self.run(Need::Write, move |tx| claim(tx, &take, limit, suspects))
            .await
    }

    async fn take(&self, id: EventId, take: &Take) -> Result<Option<TakenEvent>, StoreError> {
        let take = take.clone();
        self.run(Need::Write, move |tx| self::take(tx, id, &take))
            .await
    }
}

/// How many events a call returns to their lines at most.
const RETURNS: usize = 256;

/// The event that is due first, of those of a kind that are in a place.
#[derive(Clone, Copy)]
struct Head {
    place: Place,
    kind: i64,
    due: i64,
    seq: i64,
}

impl Head {
    fn read(place: Place) -> impl Fn(&Row<'_>) -> Result<Self> {
        move |row| {
            Ok(Self {
                place,
                kind: row.get(0)?,
                due: row.get(1)?,
                seq: row.get(2)?,
            })
        }
    }

    fn first(tx: &Tx<'_>, place: Place, kind: i64) -> Result<Option<Self>> {
        let mut first = tx.prepare(FIRST)?;
        first
            .query_row(params![place, kind], Self::read(place))
            .optional()
    }

    /// One for each kind.
    fn all(tx: &Tx<'_>, place: Place) -> Result<Vec<Self>> {
        let mut heads: Vec<Self> = Vec::new();
        let mut next = tx.prepare(NEXT_KIND)?;
        loop {
            let before = heads.last().map_or(0, |head| head.kind);
            let head = next.query_row(params![place, before], Self::read(place));
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

fn claim(tx: &mut Tx<'_>, take: &Take, limit: usize, suspects: usize) -> Result<Claims> {
    let mut names = Names::default();
    let mut next = Earliest::default();
    return_to_lines(tx, take, &mut names, &mut next)?;

    let mut claims = Claims::default();
    let mut suspects = suspects;
    let mut heads = Vec::new();
    for place in [Place::Ready, Place::Suspect] {
        for head in Head::all(tx, place)? {
            if names.is_open(tx, head.kind, take)? {
                heads.push(head);
            }
        }
    }
    loop {
        let is_allowed = |head: &Head| head.place == Place::Ready || suspects > 0;
        let first = (0..heads.len())
            .filter(|at| is_allowed(&heads[*at]))
            .min_by_key(|at| {
                let Head {
                    place, due, seq, ..
                } = heads[*at];
                // A suspect was in progress before all that waits.
                let is_first = place == Place::Suspect && due <= tx.now;
                (!is_first, due, seq)
            });
        let Some(at) = first else { break };
        let head = heads[at];
        if head.due > tx.now || claims.events.len() >= limit {
            next.add(head.due);
            break;
        }
        let work = Work::read_by(tx, head.seq)?;
        let kind = names.name(tx, work.kind)?;
        if let Some(taken) = lanes::take(tx, &work, kind, take)? {
            suspects = suspects.saturating_sub((taken.crashes > 0).into());
            claims.events.push(taken);
        }
        match Head::first(tx, head.place, head.kind)? {
            Some(head) => heads[at] = head,
            None => drop(heads.swap_remove(at)),
        }
    }
    claims.next_due = next.0.map(|due| row::until(due, tx.now));
    Ok(claims)
}

/// Takes one event, if it can be taken.
fn take(tx: &mut Tx<'_>, EventId(seq): EventId, take: &Take) -> Result<Option<TakenEvent>> {
    let Some(work) = Work::find(tx, seq)? else {
        return Ok(None);
    };
    let mut names = Names::default();
    let is_ready = matches!(work.place, Place::Ready | Place::Suspect) && work.due <= tx.now;
    if !is_ready || !names.is_open(tx, work.kind, take)? {
        return Ok(None);
    }
    let kind = names.name(tx, work.kind)?;
    lanes::take(tx, &work, kind, take)
}

/// Makes events ready whose leases expired, and lets those return to their lines that were put aside until now. Adds
/// to `next` when the next one does.
fn return_to_lines(tx: &Tx<'_>, take: &Take, names: &mut Names, next: &mut Earliest) -> Result<()> {
    let mut returns = RETURNS;
    for place in [Place::Taken, Place::Aside] {
        for head in Head::all(tx, place)? {
            let mut head = Some(head);
            while let Some(due) = head
                && due.due <= tx.now
                && returns > 0
            {
                returns -= 1;
                let mut work = Work::read_by(tx, due.seq)?;
                match place {
                    Place::Taken => lanes::expire(tx, &mut work)?,
                    _ => lanes::join(tx, &mut work)?,
                }
                head = Head::first(tx, place, due.kind)?;
            }
            if let Some(head) = head
                && (returns == 0 || names.is_open(tx, head.kind, take)?)
            {
                next.add(head.due);
            }
        }
    }
    Ok(())
}
