//! How events are taken that wait.

use async_trait::async_trait;
use rusqlite::{OptionalExtension, Result, Row, params};

use super::kinds::{self, Names};
use super::row::{self, Work};
use super::{SqliteQueue, lanes};
use crate::event::EventKind;
use crate::inbox::event::{EventId, Share, Shares, Take, TakenEvent};
use crate::inbox::queue::{BYTES_OF_CLAIM, ClaimEvents, Claims};
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
        of: &[Share],
        limit: usize,
        suspects: usize,
    ) -> Result<Claims, StoreError> {
        let of = of.to_vec();
        self.run(Need::Write, move |tx| claim(tx, &of, limit, suspects))
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
pub(super) struct Head {
    place: Place,
    pub(super) kind: i64,
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

    pub(super) fn first(tx: &Tx<'_>, place: Place, kind: i64) -> Result<Option<Self>> {
        let mut first = tx.prepare(FIRST)?;
        first
            .query_row(params![place, kind], Self::read(place))
            .optional()
    }

    /// One for each kind.
    pub(super) fn all(tx: &Tx<'_>, place: Place) -> Result<Vec<Self>> {
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

fn claim(tx: &mut Tx<'_>, of: &[Share], limit: usize, suspects: usize) -> Result<Claims> {
    let mut names = Names::default();
    let later = return_to_lines(tx, of, &mut names)?;

    let mut claims = Claims::default();
    let mut suspects = suspects;
    let mut shares = Shares::new(of);
    let (mut heads, mut bytes) = (Vec::new(), 0);
    let named = kinds::named(tx, of)?;
    for place in [Place::Ready, Place::Suspect] {
        // Kinds that nobody takes cost nothing, unless a worker takes what it does not name.
        let firsts = match &named {
            Some(named) => {
                let firsts = named.iter().map(|kind| Head::first(tx, place, *kind));
                firsts.filter_map(Result::transpose).collect()
            }
            None => Head::all(tx, place),
        };
        for head in firsts? {
            if let Some((share, kind)) = names.share(tx, head.kind, of)? {
                heads.push((head, share, kind));
            }
        }
    }
    loop {
        heads.retain(|(head, share, kind)| {
            shares.has_room(*share, kind) && (head.place == Place::Ready || suspects > 0)
        });
        let has_room = claims.events.len() < limit && bytes < BYTES_OF_CLAIM;
        let is_due = |at: &usize| heads[*at].0.due <= tx.now && has_room;
        let first = (0..heads.len()).filter(is_due).min_by_key(|at| {
            let (head, share, kind) = &heads[*at];
            // A suspect was in progress before all that waits.
            (
                head.place != Place::Suspect,
                shares.busy(*share, kind),
                head.due,
                head.seq,
            )
        });
        let Some(at) = first else { break };
        let (head, share, kind) = &heads[at];
        let (head, share) = (*head, *share);
        let work = Work::read_by(tx, head.seq)?;
        if let Some(taken) = lanes::take(tx, &work, kind.clone(), &of[share].take)? {
            suspects = suspects.saturating_sub((taken.crashes > 0).into());
            shares.take(share, kind);
            bytes += taken.delivery.body().len();
            claims.events.push(taken);
        }
        match Head::first(tx, head.place, head.kind)? {
            Some(head) => heads[at].0 = head,
            None => drop(heads.swap_remove(at)),
        }
    }
    let later = later.into_iter().filter(|(_, of)| {
        of.as_ref()
            .is_none_or(|(share, kind)| shares.has_room(*share, kind))
    });
    let later = later.map(|(due, _)| due);
    let next = heads.iter().map(|(head, ..)| head.due).chain(later).min();
    claims.next_due = next.map(|due| row::until(due, tx.now));
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
    let kind = names.event_type(tx, work.kind)?.kind.clone();
    lanes::take(tx, &work, kind, take)
}

/// Makes events ready whose leases expired, and lets those return to their lines that were put aside until now. Returns when
/// the next ones do, each with its share, or with none if that does not matter.
fn return_to_lines(
    tx: &Tx<'_>,
    of: &[Share],
    names: &mut Names,
) -> Result<Vec<(i64, Option<(usize, EventKind)>)>> {
    let mut returns = RETURNS;
    let mut later = Vec::new();
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
            let Some(head) = head else { continue };
            let share = names.share(tx, head.kind, of)?;
            if returns == 0 {
                // More may return now, which may let events of any type be ready.
                later.push((head.due, None));
            } else if share.is_some() {
                later.push((head.due, share));
            }
        }
    }
    Ok(later)
}
