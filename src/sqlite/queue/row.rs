//! Rows of `work` and `failures`, and the values of columns.

use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use rusqlite::types::{Type, ValueRef};
use rusqlite::{OptionalExtension, Result, Row, params};

use crate::delivery::{IdempotencyKey, Item};
use crate::error::BoxError;
use crate::inbox::event::{EventState, Failure};
use crate::sqlite::engine::{Tx, clock};
use crate::sqlite::schema::{Place, State};

/// A row of `work`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    pub(super) seq: i64,
    pub(super) kind: i64,
    pub(super) lane: Option<i64>,
    pub(super) place: Place,
    pub(super) due: i64,
    pub(super) failures: u32,
    pub(super) crashes: u32,
    pub(super) first_failed: Option<i64>,
    /// Whether an attempt failed since the event was accepted.
    pub(super) tried: bool,
    /// The number of attempts that failed and did not count.
    pub(super) uncounted: u32,
}

/// The columns of [`Work`].
macro_rules! columns {
    () => {
        "seq, kind, lane, place, due, failures, crashes, first_failed, tried, uncounted"
    };
}
pub(super) use columns;

const BY_SEQ: &str = concat!("SELECT ", columns!(), " FROM work WHERE seq = ?1");
const INSERT: &str = "
    INSERT INTO work
        (seq, kind, lane, place, due, fence, failures, crashes, first_failed, tried, uncounted)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";
const UPDATE: &str = "
    UPDATE work
    SET place = ?2, due = ?3, fence = NULL, failures = ?4, crashes = ?5, first_failed = ?6, tried = ?7, uncounted = ?8
    WHERE seq = ?1";
const REMOVE: &str = "DELETE FROM work WHERE seq = ?1";
const END: &str = "UPDATE events SET state = ?2, settled = ?3, failures = ?4 WHERE seq = ?1";
const FAIL: &str = "
    INSERT INTO failures (seq, number, at, took, outcome, reason, shape)
    SELECT ?1, ifnull(max(number), 0) + 1, ?2, ?3, ?4, ?5, ?6 FROM failures WHERE seq = ?1
    RETURNING number";
const FAILED_LONG_AGO: &str = "DELETE FROM failures WHERE seq = ?1 AND number <= ?2";
pub(super) const DELETE_FAILURES: &str = "DELETE FROM failures WHERE seq = ?1";

#[cfg(test)]
pub(super) const STATEMENTS: &[&str] = &[
    BY_SEQ,
    INSERT,
    UPDATE,
    REMOVE,
    END,
    FAIL,
    FAILED_LONG_AGO,
    DELETE_FAILURES,
];

impl Work {
    pub(super) fn read(row: &Row<'_>) -> Result<Self> {
        Ok(Self {
            seq: row.get(0)?,
            kind: row.get(1)?,
            lane: row.get(2)?,
            place: row.get(3)?,
            due: row.get(4)?,
            failures: row.get(5)?,
            crashes: row.get(6)?,
            first_failed: row.get(7)?,
            tried: row.get(8)?,
            uncounted: row.get(9)?,
        })
    }

    /// The row of an event that is unsettled or holds its lane.
    pub(super) fn read_by(tx: &Tx<'_>, seq: i64) -> Result<Self> {
        tx.prepare(BY_SEQ)?.query_row([seq], Self::read)
    }

    /// The same, if it is one of them.
    pub(super) fn find(tx: &Tx<'_>, seq: i64) -> Result<Option<Self>> {
        Self::read_by(tx, seq).optional()
    }

    /// The place of the event when it is first in its lane.
    pub(super) fn ready(&self) -> Place {
        match self.crashes {
            0 => Place::Ready,
            _ => Place::Suspect,
        }
    }

    /// Inserts the row, with a fence if the event is taken.
    pub(super) fn insert(&self, tx: &Tx<'_>, fence: Option<u128>) -> Result<()> {
        tx.prepare(INSERT)?.execute(params![
            self.seq,
            self.kind,
            self.lane,
            self.place,
            self.due,
            fence.map(u128::to_be_bytes),
            self.failures,
            self.crashes,
            self.first_failed,
            self.tried,
            self.uncounted,
        ])?;
        Ok(())
    }

    /// Writes the row of an event that is not taken.
    pub(super) fn update(&self, tx: &Tx<'_>) -> Result<()> {
        tx.prepare(UPDATE)?.execute(params![
            self.seq,
            self.place,
            self.due,
            self.failures,
            self.crashes,
            self.first_failed,
            self.tried,
            self.uncounted,
        ])?;
        Ok(())
    }

    pub(super) fn remove(tx: &Tx<'_>, seq: i64) -> Result<()> {
        tx.prepare(REMOVE)?.execute([seq])?;
        Ok(())
    }

    /// Whether its handler asked for another time, and no attempt has failed.
    pub(super) fn is_snoozed(&self) -> bool {
        self.first_failed.is_some() && !self.tried && self.failures == 0
    }

    /// Whether its lane waits for it since it failed.
    pub(super) fn is_blocking(&self) -> bool {
        let has_failed = self.tried || self.crashes > 0;
        has_failed && self.lane.is_some() && self.place < Place::Behind
    }

    /// The state that it shows, if it is not dead.
    pub(super) fn state(&self, now: i64) -> EventState {
        match self.place {
            Place::Taken if self.due > now => EventState::InProgress,
            Place::Taken => EventState::Retrying,
            _ if self.tried || self.crashes > 0 => EventState::Retrying,
            _ => EventState::Waiting,
        }
    }
}

/// Records that an event is settled, or a dead letter.
pub(super) fn end(tx: &Tx<'_>, seq: i64, state: State, failures: u32) -> Result<()> {
    tx.prepare(END)?
        .execute(params![seq, state, tx.now, failures])?;
    Ok(())
}

/// How many failures of an event are kept, and the bytes of their texts.
const FAILURES: i64 = 100;
const OUTCOME: usize = 64;
const REASON: usize = 1024;

/// Records an attempt that did not succeed.
pub(super) fn fail(tx: &Tx<'_>, seq: i64, failure: &Failure) -> Result<()> {
    let took = failure
        .took
        .map(|took| i64::try_from(took.as_micros()).unwrap_or(i64::MAX));
    let number: i64 = tx.prepare(FAIL)?.query_row(
        params![
            seq,
            tx.now,
            took,
            cut(&failure.outcome, OUTCOME),
            cut(&failure.reason, REASON),
            failure.shape.0
        ],
        |row| row.get(0),
    )?;
    if number > FAILURES {
        let last = number - FAILURES;
        tx.prepare(FAILED_LONG_AGO)?.execute([seq, last])?;
    }
    Ok(())
}

/// The beginning of a text.
fn cut(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len()))
        .rev()
        .find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// A time as it is shown.
pub(super) fn time(millis: i64) -> SystemTime {
    let since_1970 = Duration::from_millis(u64::try_from(millis).unwrap_or(0));
    UNIX_EPOCH.checked_add(since_1970).unwrap_or(UNIX_EPOCH)
}

/// Longer times are cut, so that all of them can be shown.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// The last millisecond of a `duration` that begins now.
pub(super) fn after(now: i64, duration: Duration) -> i64 {
    clock::after(now, duration.min(FOREVER))
}

/// When an event that is taken now can be taken again, in all processes.
pub(super) fn lease_end(now: i64, lease: Duration) -> i64 {
    clock::lease_end(now, lease.min(FOREVER)).saturating_add(1)
}

/// How long it is until then.
pub(super) fn until(due: i64, now: i64) -> Duration {
    Duration::from_millis(u64::try_from(due.saturating_sub(now)).unwrap_or(0))
}

/// What a text says.
pub(super) fn parse<T>(row: &Row<'_>, column: usize) -> Result<T>
where
    T: FromStr<Err: Into<BoxError>>,
{
    let text = row.get_ref(column)?.as_str()?;
    text.parse()
        .map_err(|error| invalid(column, Type::Text, error))
}

pub(super) fn read_key(row: &Row<'_>, column: usize) -> Result<Option<IdempotencyKey>> {
    let Some(bytes) = row.get_ref(column)?.as_blob_or_null()? else {
        return Ok(None);
    };
    match http::HeaderValue::from_bytes(bytes) {
        Ok(value) => Ok(IdempotencyKey::new(value)),
        Err(error) => Err(invalid(column, Type::Blob, error)),
    }
}

/// The place of an event in a batch, in the columns from one on: the numbers of the delivery and the item, the number of items,
/// and what is kept.
pub(super) fn read_item(row: &Row<'_>, column: usize) -> Result<Option<Item>> {
    // As a rule, there is none.
    if row.get_ref(column)? == ValueRef::Null {
        return Ok(None);
    }
    let kept: Option<Vec<u8>> = row.get(column + 3)?;
    Ok(Item::stored(
        row.get(column)?,
        row.get(column + 1)?,
        row.get(column + 2)?,
        kept.map(Bytes::from),
    ))
}

/// The error of a value that no release writes.
pub(super) fn invalid(column: usize, of: Type, error: impl Into<BoxError>) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, of, error.into())
}
