//! The lines in which events wait, and how the first one is taken.

use std::num::NonZeroU32;

use bytes::Bytes;
use rusqlite::{OptionalExtension, Result, params};

use super::kinds::Names;
use super::row::{self, Work};
use crate::delivery::RawDelivery;
use crate::error::Chain;
use crate::event::EventKind;
use crate::inbox::event::{EventId, EventLease, Lane, Take, TakenEvent, UNCOUNTED};
use crate::inbox::headers;
use crate::sqlite::engine::{Tx, is_damage};
use crate::sqlite::schema::{Place, sql};
use crate::store::Fence;

const FIRST: &str = concat!(
    "SELECT ",
    row::columns!(),
    " FROM work INDEXED BY work_line WHERE lane = ?1 ORDER BY place, seq"
);
const FIRST_BEHIND: &str = sql!(concat!(
    "SELECT ",
    row::columns!(),
    " FROM work INDEXED BY work_line WHERE lane = ?1 AND place = $Behind ORDER BY seq"
));
const FIRST_PLACE: &str =
    "SELECT place FROM work INDEXED BY work_line WHERE lane = ?1 ORDER BY place";
const MOVE: &str = "UPDATE work SET place = ?2 WHERE seq = ?1";
const PROMOTE: &str = "UPDATE work SET place = ?2, due = max(due, ?3) WHERE seq = ?1";
const EXPIRE: &str = "UPDATE work SET place = ?2, crashes = ?3 WHERE seq = ?1";
const RETURNED: &str = sql!(concat!(
    "SELECT ",
    row::columns!(),
    " FROM work INDEXED BY work_aside
    WHERE lane = ?1 AND place = $Aside AND due <= ?2 ORDER BY due"
));
const TAKE: &str = sql!("UPDATE work SET place = $Taken, due = ?2, fence = ?3 WHERE seq = ?1");
const CONTENT: &str = "
    SELECT e.key, e.accepted, e.redriven, b.body, b.headers, e.delivery, e.item, e.items, b.kept
    FROM events e CROSS JOIN bodies b WHERE e.seq = ?1 AND b.seq = ?1";

#[cfg(test)]
pub(super) const STATEMENTS: &[&str] = &[
    FIRST,
    FIRST_BEHIND,
    FIRST_PLACE,
    MOVE,
    PROMOTE,
    EXPIRE,
    RETURNED,
    TAKE,
    CONTENT,
];

/// Whether an event stands in the line now.
pub(super) fn is_busy(tx: &Tx<'_>, lane: i64) -> Result<bool> {
    let mut place = tx.prepare(FIRST_PLACE)?;
    let mut place = || place.query_row([lane], |row| row.get(0)).optional();
    let first: Option<Place> = place()?;
    // As a rule, no other event of the lane is unsettled.
    if first.is_none() {
        return Ok(false);
    }
    return_now(tx, lane)?;
    Ok(place()?.is_some_and(|place| place != Place::Aside))
}

fn set_place(tx: &Tx<'_>, seq: i64, place: Place) -> Result<()> {
    tx.prepare(MOVE)?.execute(params![seq, place])?;
    Ok(())
}

/// Makes an event ready that could not be taken before.
fn promote(tx: &Tx<'_>, work: &Work) -> Result<()> {
    let promoted = params![work.seq, work.ready(), tx.now];
    tx.prepare(PROMOTE)?.execute(promoted)?;
    Ok(())
}

/// Lets the events of a lane return to their line that were put aside until now.
pub(super) fn return_now(tx: &Tx<'_>, lane: i64) -> Result<()> {
    let mut returned = tx.prepare(RETURNED)?;
    while let Some(mut work) = returned.query_row([lane, tx.now], Work::read).optional()? {
        join(tx, &mut work)?;
    }
    Ok(())
}

/// The event that others of its lane wait for, or the first waiting event.
pub(super) fn first(tx: &Tx<'_>, lane: i64) -> Result<Option<Work>> {
    let mut first = tx.prepare(FIRST)?;
    first.query_row([lane], Work::read).optional()
}

/// Finds the event that is first after another one has left the line, and takes it if it can be taken.
pub(super) fn advance(
    tx: &mut Tx<'_>,
    lane: Option<i64>,
    take: Option<&Take>,
) -> Result<Option<TakenEvent>> {
    let Some(lane) = lane else { return Ok(None) };
    let Some(before) = first(tx, lane)? else {
        return Ok(None);
    };
    return_now(tx, lane)?;
    // The first event that has just returned could not be taken before, either.
    if before.place == Place::Aside
        && let Some(returned) = first(tx, lane)?
        && returned.place != Place::Aside
    {
        promote(tx, &returned)?;
    }
    take_first(tx, lane, take)
}

/// As [`advance`], without events that were put aside until now.
pub(super) fn take_first(
    tx: &mut Tx<'_>,
    lane: i64,
    take: Option<&Take>,
) -> Result<Option<TakenEvent>> {
    let Some(first) = first(tx, lane)? else {
        return Ok(None);
    };
    if matches!(first.place, Place::Taken | Place::Holding | Place::Aside) {
        return Ok(None);
    }
    let mut names = Names::default();
    match take {
        Some(take) if first.due <= tx.now && names.is_open(tx, first.kind, take)? => {
            let kind = names.event_type(tx, first.kind)?.kind.clone();
            self::take(tx, &first, kind, take)
        }
        _ if first.place == Place::Behind => {
            promote(tx, &first)?;
            Ok(None)
        }
        _ => Ok(None),
    }
}

/// The event that waits in the line of another one and has a smaller number, because it was aside before.
fn before(tx: &Tx<'_>, work: &Work) -> Result<Option<Work>> {
    let Some(lane) = work.lane else {
        return Ok(None);
    };
    let mut behind = tx.prepare(FIRST_BEHIND)?;
    let behind = behind.query_row([lane], Work::read).optional()?;
    Ok(behind.filter(|behind| behind.seq < work.seq))
}

/// Puts an event whose lease expired back in its line. It can still be settled under that lease while it is first
/// there.
pub(super) fn expire(tx: &Tx<'_>, work: &mut Work) -> Result<()> {
    work.crashes = work.crashes.saturating_add(1);
    work.place = place_in_line(tx, work)?;
    tx.prepare(EXPIRE)?
        .execute(params![work.seq, work.place, work.crashes])?;
    Ok(())
}

/// The place of an event that is put back in its line. If another one is before it, that one is made ready.
fn place_in_line(tx: &Tx<'_>, work: &Work) -> Result<Place> {
    match before(tx, work)? {
        Some(before) => {
            set_place(tx, before.seq, before.ready())?;
            Ok(Place::Behind)
        }
        None => Ok(work.ready()),
    }
}

/// Puts an event that was taken, or held its lane, back in its line by its number.
pub(super) fn stand(tx: &Tx<'_>, work: &mut Work) -> Result<()> {
    work.place = place_in_line(tx, work)?;
    work.update(tx)
}

/// Returns an event that was aside to its line.
pub(super) fn join(tx: &Tx<'_>, work: &mut Work) -> Result<()> {
    let first = match work.lane {
        Some(lane) => first(tx, lane)?.filter(|first| first.place != Place::Aside),
        None => None,
    };
    work.place = match first {
        None => work.ready(),
        Some(first) => {
            let is_ready = matches!(first.place, Place::Ready | Place::Suspect);
            if is_ready && work.seq < first.seq {
                set_place(tx, first.seq, Place::Behind)?;
                work.ready()
            } else {
                Place::Behind
            }
        }
    };
    work.update(tx)
}

/// Takes an event that is first in its line. Returns none if its content is damaged.
pub(super) fn take(
    tx: &mut Tx<'_>,
    work: &Work,
    kind: EventKind,
    take: &Take,
) -> Result<Option<TakenEvent>> {
    let fence = tx.token();
    tx.prepare(TAKE)?.execute(params![
        work.seq,
        row::lease_end(tx.now, take.lease),
        fence.to_be_bytes()
    ])?;
    let mut content = tx.prepare(CONTENT)?;
    let content = content.query_row([work.seq], |row| {
        let body = Bytes::copy_from_slice(row.get_ref(3)?.as_blob()?);
        let delivery = RawDelivery::received(kind, row::read_key(row, 0)?, body)
            .with_route(take.kinds.route.clone());
        let delivery = delivery.with_acceptance(row::time(row.get(1)?), row.get(2)?);
        let delivery = delivery.with_boxed_item(row::read_item(row, 5)?.map(Box::new));
        Ok(match row.get_ref(4)?.as_blob_or_null()? {
            Some(headers) => delivery.with_headers(headers::from_bytes(headers)),
            None => delivery,
        })
    });
    match content {
        Ok(delivery) => Ok(Some(taken(tx, work, fence, delivery))),
        // Others can be read. This one comes again when its lease expires.
        Err(error) if is_damage(&error) => {
            tracing::error!(
                event = work.seq,
                reason = Chain(&error).to_string(),
                "an event cannot be read, because the SQLite file is damaged"
            );
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// What the lease carries: the lane, if the event has not failed.
fn place_of(work: &Work) -> i64 {
    match work.lane {
        Some(lane) if work.failures == 0 => lane,
        _ => 0,
    }
}

/// The lane of an event that has not failed, unless it is 0. Whether it still has that lane is for the database to say.
pub(super) fn of_first_attempt(lease: &EventLease) -> Option<i64> {
    Some(lease.place).filter(|lane| *lane != 0)
}

/// An event that is taken, as the worker gets it.
pub(super) fn taken(tx: &Tx<'_>, work: &Work, fence: u128, delivery: RawDelivery) -> TakenEvent {
    let attempt = work.failures.saturating_add(work.crashes);
    TakenEvent {
        lease: EventLease {
            id: EventId(work.seq),
            fence: Fence(fence),
            place: place_of(work),
        },
        delivery: delivery.with_attempt(NonZeroU32::MIN.saturating_add(attempt)),
        lane: work.lane.map(Lane),
        failures: work.failures,
        crashes: work.crashes,
        tried_for: work
            .first_failed
            .filter(|_| !work.is_snoozed())
            .map(|first| row::until(tx.now, first)),
        uncounted: work.uncounted / UNCOUNTED,
    }
}
