//! How an event is stored, or recognised as a duplicate.

use rusqlite::params;

use super::row::{self, Work, place, state};
use super::{kinds, lanes, memo};
use crate::delivery::IdempotencyKey;
use crate::inbox::event::{EventId, NewEvent, Take};
use crate::inbox::headers;
use crate::inbox::queue::Accepted;
use crate::sqlite::engine::Tx;
use crate::sqlite::keys::rows::{self as keys, Taken};
use crate::store::EventKey;

const INSERT: &str = "
    INSERT INTO events
        (seq, kind, state, key, chat, accepted, keep_until, settled, failures, redriven)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?6, 0, 0)";
const INSERT_BODY: &str = "INSERT INTO bodies (seq, body) VALUES (?1, ?2)";
const INSERT_HEADERS: &str = "INSERT INTO headers (seq, headers) VALUES (?1, ?2)";

#[cfg(test)]
pub(super) const STATEMENTS: [&str; 3] = [INSERT, INSERT_BODY, INSERT_HEADERS];

pub(super) fn accept(
    tx: &mut Tx<'_>,
    event: &NewEvent,
    take: Option<&Take>,
) -> rusqlite::Result<Accepted> {
    let guard = event
        .guard
        .filter(|guard| event.key.is_none_or(|key| key.key() != guard.key()));
    if guard.is_some() {
        // Neither is recorded unless both can be.
        for digests in [event.key, guard].into_iter().flatten() {
            if let Some(taken) = keys::taken(tx, digests)? {
                return Ok(refusal(event, digests, &taken));
            }
        }
    }
    let delivery = &event.delivery;
    let kind = kinds::find(tx, delivery.kind())?;
    let seq = memo::last(tx)? + 1;
    let keep_until = row::after(tx.now, event.retain);
    for digests in [event.key, guard].into_iter().flatten() {
        if let Some(taken) = keys::record(tx, digests, seq, keep_until)? {
            return Ok(refusal(event, digests, &taken));
        }
    }

    tx.prepare(INSERT)?.execute(params![
        seq,
        kind.id,
        match event.dead {
            Some(_) => state::DEAD,
            None => state::UNSETTLED,
        },
        delivery.key().map(IdempotencyKey::as_bytes),
        event.chat,
        tx.now,
        keep_until,
    ])?;
    tx.prepare(INSERT_BODY)?
        .execute(params![seq, &delivery.body()[..]])?;
    if let Some(headers) = headers::to_bytes(delivery.headers()) {
        tx.prepare(INSERT_HEADERS)?.execute(params![seq, headers])?;
    }
    memo::set_last(tx, seq);
    let id = EventId(seq);
    if let Some(failure) = &event.dead {
        row::fail(tx, seq, failure)?;
        return Ok(Accepted::New { id, taken: None });
    }

    let mut work = Work {
        seq,
        kind: kind.id,
        lane: event.lane.map(|lane| lane.0),
        place: place::READY,
        due: tx.now,
        failures: 0,
        crashes: 0,
        first_failed: None,
        tried: false,
    };
    if let Some(lane) = work.lane
        && lanes::is_busy(tx, lane)?
    {
        work.place = place::BEHIND;
    }
    let is_open = |take: &&Take| !kind.is_paused && take.kinds.contains(delivery.kind());
    let take = take.filter(is_open);
    let Some(take) = take.filter(|_| work.place == place::READY) else {
        work.insert(tx, None)?;
        return Ok(Accepted::New { id, taken: None });
    };
    let fence = tx.token();
    work.place = place::TAKEN;
    work.due = row::lease_end(tx.now, take.lease);
    work.insert(tx, Some(fence))?;
    let delivery = delivery.clone().with_acceptance(row::time(tx.now), false);
    Ok(Accepted::New {
        id,
        taken: Some(Box::new(lanes::taken(tx, &work, fence, delivery))),
    })
}

/// Why an event is not accepted whose key, or guard, is taken.
fn refusal(event: &NewEvent, digests: EventKey, taken: &Taken) -> Accepted {
    let same_body = taken.same_body;
    match taken.in_flight {
        Some(remaining) => Accepted::InFlight { remaining },
        None if event.key == Some(digests) || same_body => Accepted::Duplicate { same_body },
        None => Accepted::BodyReplayed,
    }
}
