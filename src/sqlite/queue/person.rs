//! What a person asks for: redrive, discard, forget.

use std::ops::RangeInclusive;

use rusqlite::{OptionalExtension, Result};

use super::kinds::Names;
use super::purge::delete_body;
use super::row::{DELETE_FAILURES, Work, end};
use super::{actions, chats, counts, lanes, list, search};
use crate::inbox::event::{EventId, EventState};
use crate::inbox::records::{Change, FORGET_STEP};
use crate::sqlite::engine::Tx;
use crate::sqlite::schema::{Place, State, sql};

const EVENT: &str = "SELECT kind, state, failures FROM events WHERE seq = ?1";
const HAS_BODY: &str = "SELECT 1 FROM bodies WHERE seq = ?1";
const HAS_FAILED: &str = "SELECT 1 FROM failures WHERE seq = ?1";
const REDRIVE: &str = sql!(
    "
    UPDATE events SET state = $Unsettled, settled = accepted, failures = 0, redriven = 1
    WHERE seq = ?1"
);

#[cfg(test)]
pub(super) const STATEMENTS: &[&str] = &[EVENT, HAS_BODY, HAS_FAILED, REDRIVE];

struct Event {
    kind: i64,
    state: State,
    failures: u32,
}

fn event(tx: &Tx<'_>, seq: i64) -> Result<Option<Event>> {
    let mut event = tx.prepare(EVENT)?;
    let event = event.query_row([seq], |row| {
        Ok(Event {
            kind: row.get(0)?,
            state: row.get(1)?,
            failures: row.get(2)?,
        })
    });
    Ok(event
        .optional()?
        .filter(|event| event.state != State::Deleted))
}

/// Whether an event is in the state that a person has seen.
fn is_in(tx: &Tx<'_>, seq: i64, from: Option<EventState>) -> Result<bool> {
    let Some(from) = from else { return Ok(true) };
    let event = list::summary(tx, EventId(seq), &mut Names::default())?;
    Ok(event.is_some_and(|event| event.state == from))
}

pub(super) fn redrive(
    tx: &Tx<'_>,
    EventId(seq): EventId,
    from: Option<EventState>,
) -> Result<Change> {
    let Some(event) = event(tx, seq)? else {
        return Ok(Change::NotFound);
    };
    if !is_in(tx, seq, from)? {
        return Ok(Change::WrongState);
    }
    if !tx.prepare(HAS_BODY)?.exists([seq])? {
        return Ok(Change::WithoutBody);
    }
    let Some(mut work) = Work::find(tx, seq)? else {
        tx.prepare(REDRIVE)?.execute([seq])?;
        let work = Work {
            seq,
            kind: event.kind,
            due: tx.now,
            tried: tx.prepare(HAS_FAILED)?.exists([seq])?,
            ..Work::default()
        };
        work.insert(tx, None)?;
        return Ok(Change::Made);
    };
    if work.place == Place::Taken {
        if work.due > tx.now {
            return Ok(Change::WrongState);
        }
        lanes::expire(tx, &mut work)?;
    }
    work.due = tx.now;
    match work.place {
        Place::Aside => lanes::join(tx, &mut work)?,
        Place::Holding => {
            tx.prepare(REDRIVE)?.execute([seq])?;
            work.failures = 0;
            work.uncounted = 0;
            work.first_failed = None;
            lanes::stand(tx, &mut work)?;
        }
        _ => work.update(tx)?,
    }
    Ok(Change::Made)
}

pub(super) fn discard(
    tx: &mut Tx<'_>,
    EventId(seq): EventId,
    from: Option<EventState>,
) -> Result<Change> {
    let Some(event) = event(tx, seq)? else {
        return Ok(Change::NotFound);
    };
    if !matches!(event.state, State::Unsettled | State::Dead) || !is_in(tx, seq, from)? {
        return Ok(Change::WrongState);
    }
    discard_row(tx, seq, &event)?;
    Ok(Change::Made)
}

/// Discards an event that is unsettled or dead.
fn discard_row(tx: &mut Tx<'_>, seq: i64, event: &Event) -> Result<()> {
    let failures = match Work::find(tx, seq)? {
        Some(work) => {
            Work::remove(tx, seq)?;
            lanes::advance(tx, work.lane, None)?;
            work.failures
        }
        None => event.failures,
    };
    end(tx, seq, State::Discarded, failures)
}

/// What a step of [`Records::forget`](crate::inbox::Records::forget) begins with.
pub(super) struct ToForget {
    pub(super) events: Vec<i64>,
    pub(super) rest: Option<RangeInclusive<EventId>>,
}

/// Finds the events of a step. In no transaction with what follows: the events of a chat up to the newest one become
/// fewer only.
pub(super) fn to_forget(
    tx: &Tx<'_>,
    chat: &str,
    events: Option<&RangeInclusive<EventId>>,
) -> Result<ToForget> {
    let newest = search::last(tx)?.unwrap_or(0);
    let (first, last) = events.map_or((i64::MIN, newest), |events| {
        (events.start().0, events.end().0)
    });
    let range = first..=last;
    let mut events = chats::find(tx, chat, &range, newest, false, FORGET_STEP + 1)?;
    let next = match events.len() > FORGET_STEP {
        true => events.pop(),
        false => None,
    };
    Ok(ToForget {
        events,
        rest: next.map(|next| EventId(next)..=EventId(last)),
    })
}

/// Deletes the bodies of these events, and returns their number. Those that are unsettled or dead are discarded.
pub(super) fn forget(tx: &mut Tx<'_>, events: &[i64]) -> Result<u64> {
    let mut bodies = 0;
    for seq in events {
        let Some(event) = event(tx, *seq)? else {
            continue;
        };
        if matches!(event.state, State::Unsettled | State::Dead) {
            discard_row(tx, *seq, &event)?;
        }
        actions::forget(tx, *seq)?;
        counts::forget(tx, *seq)?;
        // Their texts may quote the body.
        tx.prepare(DELETE_FAILURES)?.execute([seq])?;
        bodies += u64::from(delete_body(tx, *seq)?);
    }
    Ok(bodies)
}
