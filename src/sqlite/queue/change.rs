//! What a person changes: one event, all events that match, and what is paused.

use async_trait::async_trait;
use rusqlite::{OptionalExtension, Result, params};

use super::actions::{self, link};
use super::kinds::Names;
use super::row::{Work, end};
use super::{SqliteQueue, kinds, lanes, list};
use crate::inbox::actions::{ActionKind, BulkStep, By, NewBulk, paused};
use crate::inbox::event::{EventId, EventState};
use crate::inbox::queue::ChangeEvents;
use crate::inbox::records::Change;
use crate::route::Scope;
use crate::sqlite::engine::{Need, Tx};
use crate::sqlite::schema::{Place, State, sql};
use crate::store::StoreError;

const EVENT: &str = "SELECT kind, state, failures FROM events WHERE seq = ?1";
const HAS_BODY: &str = "SELECT 1 FROM bodies WHERE seq = ?1";
const HAS_FAILED: &str = "SELECT 1 FROM failures WHERE seq = ?1";
const REDRIVE: &str = sql!(
    "
    UPDATE events SET state = $Unsettled, settled = accepted, failures = 0, redriven = 1
    WHERE seq = ?1"
);
const BEGIN: &str = "
    INSERT INTO actions (at, who, reason, what, about, changed, state, chat, skipped, reached, rate, stepped)
    VALUES (?1, ?2, ?3, ?4, ?5, 0, 'running', ?6, 0, 0, ?7, ?1)";
const IS_AT: &str =
    "SELECT 1 FROM actions WHERE number = ?1 AND state = 'running' AND reached = ?2";
const STEP: &str = "
    UPDATE actions
    SET changed = changed + ?2, skipped = skipped + ?3, reached = ?4, state = iif(?5, 'done', state), stepped = ?6
    WHERE number = ?1";
const CANCEL: &str =
    "UPDATE actions SET state = 'cancelled' WHERE number = ?1 AND state = 'running'";

#[cfg(test)]
pub(super) const STATEMENTS: &[&str] = &[
    EVENT, HAS_BODY, HAS_FAILED, REDRIVE, BEGIN, IS_AT, STEP, CANCEL,
];

#[async_trait]
impl ChangeEvents for SqliteQueue {
    async fn change(
        &self,
        kind: ActionKind,
        id: EventId,
        from: Option<EventState>,
        by: &By,
    ) -> Result<Change, StoreError> {
        let by = by.clone();
        self.run(Need::Durable, move |tx| change(tx, kind, id, from, &by))
            .await
    }

    async fn pause(&self, of: &Scope, note: Option<&str>, by: &By) -> Result<(), StoreError> {
        let (of, note, by) = (of.clone(), note.map(str::to_owned), by.clone());
        self.run(Need::Durable, move |tx| {
            kinds::pause(tx, &of, note.as_deref())?;
            let (done, about) = (paused(note.as_deref()), of.to_string());
            actions::note(tx, &by, done, None, Some(&about), 0)
        })
        .await
    }

    async fn begin(&self, bulk: &NewBulk, by: &By) -> Result<i64, StoreError> {
        let (bulk, by) = (bulk.clone(), by.clone());
        self.run(Need::Durable, move |tx| begin(tx, &bulk, &by))
            .await
    }

    async fn step(&self, number: i64, step: &BulkStep) -> Result<bool, StoreError> {
        let step = step.clone();
        self.run(Need::Durable, move |tx| self::step(tx, number, &step))
            .await
    }

    async fn cancel(&self, number: i64, by: &By) -> Result<bool, StoreError> {
        let by = by.clone();
        self.run(Need::Durable, move |tx| cancel(tx, number, &by))
            .await
    }
}

/// Redrives or discards an event, and records who did it.
fn change(
    tx: &mut Tx<'_>,
    kind: ActionKind,
    id: EventId,
    from: Option<EventState>,
    by: &By,
) -> Result<Change> {
    let change = redrive_or_discard(tx, kind == ActionKind::Redrive, id, from)?;
    if change == Change::Made {
        actions::note(tx, by, kind, Some(id.0), None, 1)?;
    }
    Ok(change)
}

fn redrive_or_discard(
    tx: &mut Tx<'_>,
    redrives: bool,
    id: EventId,
    from: Option<EventState>,
) -> Result<Change> {
    match redrives {
        true => redrive(tx, id, from),
        false => discard(tx, id, from),
    }
}

pub(super) struct Event {
    kind: i64,
    pub(super) state: State,
    failures: u32,
}

pub(super) fn event(tx: &Tx<'_>, seq: i64) -> Result<Option<Event>> {
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

fn redrive(tx: &Tx<'_>, EventId(seq): EventId, from: Option<EventState>) -> Result<Change> {
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

fn discard(tx: &mut Tx<'_>, EventId(seq): EventId, from: Option<EventState>) -> Result<Change> {
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
pub(super) fn discard_row(tx: &mut Tx<'_>, seq: i64, event: &Event) -> Result<()> {
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

fn begin(tx: &Tx<'_>, bulk: &NewBulk, by: &By) -> Result<i64> {
    let row = params![
        tx.now,
        by.who(),
        by.reason(),
        bulk.kind.name(),
        bulk.about,
        bulk.chat,
        bulk.rate
    ];
    tx.prepare(BEGIN)?.execute(row)?;
    Ok(tx.db.last_insert_rowid())
}

fn step(tx: &mut Tx<'_>, number: i64, step: &BulkStep) -> Result<bool> {
    if !tx.prepare(IS_AT)?.exists([number, step.from.0])? {
        return Ok(false);
    }
    let (mut changed, mut skipped) = (0_i64, 0_i64);
    for (id, from) in &step.events {
        if redrive_or_discard(tx, step.redrives, *id, Some(*from))? == Change::Made {
            link(tx, id.0, number)?;
            changed += 1;
        } else {
            skipped += 1;
        }
    }
    let row = params![
        number,
        changed,
        skipped,
        step.reached.0,
        step.is_last,
        tx.now
    ];
    tx.prepare(STEP)?.execute(row)?;
    Ok(true)
}

fn cancel(tx: &Tx<'_>, number: i64, by: &By) -> Result<bool> {
    let is_running = tx.prepare(CANCEL)?.execute([number])? == 1;
    if is_running {
        let about = number.to_string();
        actions::note(tx, by, ActionKind::Cancel, None, Some(&about), 0)?;
    }
    Ok(is_running)
}
