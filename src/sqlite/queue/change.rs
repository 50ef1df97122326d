//! What a person asks for: redrive, discard, forget.

use rusqlite::{OptionalExtension, params};

use super::kinds::Names;
use super::lanes;
use super::row::{DELETE_FAILURES, Work, place, state};
use super::settle::end;
use super::{list, row, search};
use crate::inbox::event::{EventId, EventState};
use crate::inbox::records::Change;
use crate::sqlite::engine::Tx;

const EVENT: &str = "SELECT kind, state, failures FROM events WHERE seq = ?1";
const HAS_BODY: &str = "SELECT 1 FROM bodies WHERE seq = ?1";
const HAS_FAILED: &str = "SELECT 1 FROM failures WHERE seq = ?1";
const REDRIVE: &str = "
    UPDATE events SET state = 2, settled = accepted, failures = 0, redriven = 1 WHERE seq = ?1";
const OF_CHAT: &str = "
    SELECT seq FROM events WHERE seq > ?1 AND seq <= ?2 AND chat = ?3 ORDER BY seq";
const DELETE_BODY: &str = "DELETE FROM bodies WHERE seq = ?1";
const WITHOUT_BODY: &str =
    "UPDATE events SET state = state + 2 WHERE seq = ?1 AND state BETWEEN 3 AND 4";

#[cfg(test)]
pub(super) const STATEMENTS: [&str; 7] = [
    EVENT,
    HAS_BODY,
    HAS_FAILED,
    REDRIVE,
    OF_CHAT,
    DELETE_BODY,
    WITHOUT_BODY,
];

struct Event {
    kind: i64,
    state: i64,
    failures: u32,
}

fn event(tx: &Tx<'_>, seq: i64) -> rusqlite::Result<Option<Event>> {
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
        .filter(|event| event.state != state::DELETED))
}

fn work(tx: &Tx<'_>, seq: i64) -> rusqlite::Result<Option<Work>> {
    let mut work = tx.prepare(row::BY_SEQ)?;
    work.query_row([seq], Work::read).optional()
}

/// Whether an event is in the state that a person has seen.
fn is_in(tx: &Tx<'_>, seq: i64, from: Option<EventState>) -> rusqlite::Result<bool> {
    let Some(from) = from else { return Ok(true) };
    let event = list::summary(tx, EventId(seq), &mut Names::default())?;
    Ok(event.is_some_and(|event| event.state == from))
}

pub(super) fn redrive(
    tx: &Tx<'_>,
    EventId(seq): EventId,
    from: Option<EventState>,
) -> rusqlite::Result<Change> {
    let Some(event) = event(tx, seq)? else {
        return Ok(Change::NotFound);
    };
    if !is_in(tx, seq, from)? {
        return Ok(Change::WrongState);
    }
    if !tx.prepare(HAS_BODY)?.exists([seq])? {
        return Ok(Change::WithoutBody);
    }
    let Some(mut work) = work(tx, seq)? else {
        tx.prepare(REDRIVE)?.execute([seq])?;
        let work = Work {
            seq,
            kind: event.kind,
            lane: None,
            place: place::READY,
            due: tx.now,
            failures: 0,
            crashes: 0,
            first_failed: None,
            tried: tx.prepare(HAS_FAILED)?.exists([seq])?,
        };
        work.insert(tx, None)?;
        return Ok(Change::Made);
    };
    if work.place == place::TAKEN {
        if work.due > tx.now {
            return Ok(Change::WrongState);
        }
        lanes::expire(tx, &mut work)?;
    }
    work.due = tx.now;
    match work.place {
        place::ASIDE => lanes::join(tx, &mut work)?,
        place::HOLDING => {
            tx.prepare(REDRIVE)?.execute([seq])?;
            work.failures = 0;
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
) -> rusqlite::Result<Change> {
    let Some(event) = event(tx, seq)? else {
        return Ok(Change::NotFound);
    };
    if !matches!(event.state, state::UNSETTLED | state::DEAD) || !is_in(tx, seq, from)? {
        return Ok(Change::WrongState);
    }
    give_up(tx, seq, &event)?;
    Ok(Change::Made)
}

/// Discards an event that is unsettled or dead.
fn give_up(tx: &mut Tx<'_>, seq: i64, event: &Event) -> rusqlite::Result<()> {
    let failures = match work(tx, seq)? {
        Some(work) => {
            Work::remove(tx, seq)?;
            lanes::advance(tx, work.lane, None)?;
            work.failures
        }
        None => event.failures,
    };
    end(tx, seq, state::DISCARDED, failures)
}

/// Returns the events of a chat, of those that a step looks at.
pub(super) fn of_chat(
    tx: &Tx<'_>,
    chat: &str,
    seen: i64,
) -> rusqlite::Result<(Vec<i64>, Option<i64>)> {
    let Some(window) = search::window(tx, seen)? else {
        return Ok((Vec::new(), None));
    };
    let mut of_chat = tx.prepare(OF_CHAT)?;
    let events = of_chat.query_map(params![window.start() - 1, window.end(), chat], |row| {
        row.get(0)
    })?;
    Ok((events.collect::<Result<_, _>>()?, Some(*window.end())))
}

/// Deletes the bodies of these events, and returns their number. Those that are unsettled or dead are discarded.
pub(super) fn forget(tx: &mut Tx<'_>, events: &[i64]) -> rusqlite::Result<u64> {
    let mut bodies = 0;
    for seq in events {
        let Some(event) = event(tx, *seq)? else {
            continue;
        };
        if matches!(event.state, state::UNSETTLED | state::DEAD) {
            give_up(tx, *seq, &event)?;
        }
        // Their texts may quote the body.
        tx.prepare(DELETE_FAILURES)?.execute([seq])?;
        bodies += u64::from(delete_body(tx, *seq)?);
    }
    Ok(bodies)
}

/// Deletes the body of an event that is settled, and with it the headers, and returns whether it had one.
pub(super) fn delete_body(tx: &Tx<'_>, seq: i64) -> rusqlite::Result<bool> {
    let deleted = tx.prepare(DELETE_BODY)?.execute([seq])?;
    tx.prepare(WITHOUT_BODY)?.execute([seq])?;
    Ok(deleted == 1)
}
