//! The table of keys: the statements that the store is made of.

use std::num::NonZeroU32;
use std::time::Duration;

use rusqlite::{OptionalExtension, Result, Row, params};

use crate::sqlite::engine::clock::{self, after};
use crate::sqlite::engine::{Tx, Upkeep};
#[cfg(test)]
use crate::sqlite::schema::FORMAT;
use crate::sqlite::schema::sql;
use crate::store::{Claim, EventKey, Fence, KeyState, Lease};

const NEW: &str = "
    INSERT INTO keys (key, body, fence, attempt, done, lease_until, keep_until)
    VALUES (?1, ?2, ?3, 1, 0, ?4, ?5)
    ON CONFLICT (key) DO NOTHING";
const AGAIN: &str = "
    UPDATE keys
    SET body = ?2, event = NULL, fence = ?3, attempt = ?4, done = 0, lease_until = ?5, keep_until = ?6
    WHERE id = ?1";
// The key of an event that is unsettled or dead is kept for as long.
const BY_KEY: &str = sql!(
    "
    SELECT id, body, attempt, done, lease_until,
        iif(event IS NOT NULL AND EXISTS (
            SELECT 1 FROM events WHERE seq = event AND state IN ($Unsettled, $Dead)
        ), 9223372036854775807, keep_until)
    FROM keys WHERE key = ?1"
);
const RENEW: &str = "
    UPDATE keys SET lease_until = ?4
    WHERE key = ?1 AND fence = ?2 AND NOT done AND lease_until >= ?3";
const COMPLETE: &str = "
    UPDATE keys SET done = 1, keep_until = ?4
    WHERE key = ?1 AND fence = ?2 AND NOT done AND lease_until >= ?3";
// Without a LIMIT: the few rows that are needed are read one by one. By `iif`, because SQLite evaluates both sides of an
// AND, and few rows have expired.
const NEXT: &str = sql!(
    "
    SELECT id, iif(
        max(keep_until, iif(done, keep_until, lease_until)) < ?1,
        event IS NULL OR NOT EXISTS (
            SELECT 1 FROM events WHERE seq = event AND state IN ($Unsettled, $Dead)
        ),
        0
    )
    FROM keys WHERE id > ?2 ORDER BY id"
);
const DROP: &str = "DELETE FROM keys WHERE id = ?1";

// Of the inbox.
const NEW_OF_EVENT: &str = "
    INSERT INTO keys (key, body, event, attempt, done, lease_until, keep_until)
    VALUES (?1, ?2, ?3, 1, 1, 0, ?4)
    ON CONFLICT (key) DO NOTHING";
const AGAIN_OF_EVENT: &str = "
    UPDATE keys
    SET body = ?2, event = ?3, fence = NULL, attempt = 1, done = 1, lease_until = 0, keep_until = ?4
    WHERE id = ?1";
const EVENT: &str = "SELECT ifnull(event, 0) FROM keys WHERE key = ?1 AND done";
const DROP_OF_EVENT: &str = "DELETE FROM keys WHERE key = ?1 AND event = ?2";

#[cfg(test)]
pub(in crate::sqlite) const STATEMENTS: &[&str] = &[
    NEW,
    AGAIN,
    BY_KEY,
    RENEW,
    COMPLETE,
    NEXT,
    DROP,
    FORMAT.highest_time,
    FORMAT.set_highest_time,
];
#[cfg(test)]
pub(in crate::sqlite) const STATEMENTS_OF_EVENTS: &[&str] =
    &[BY_KEY, NEW_OF_EVENT, AGAIN_OF_EVENT, EVENT];

/// A row, without the columns that are compared in the database.
struct Known {
    id: i64,
    body: [u8; 16],
    attempt: u32,
    done: bool,
    lease_until: i64,
    keep_until: i64,
}

impl Known {
    fn read(row: &Row<'_>) -> Result<Self> {
        Ok(Self {
            id: row.get(0)?,
            body: row.get(1)?,
            attempt: row.get(2)?,
            done: row.get(3)?,
            lease_until: row.get(4)?,
            keep_until: row.get(5)?,
        })
    }

    fn state(&self, now: i64) -> KeyState {
        if self.done && self.keep_until >= now {
            KeyState::Done
        } else if !self.done && self.lease_until >= now {
            KeyState::InFlight {
                remaining: clock::remaining(now, self.lease_until),
            }
        } else {
            KeyState::Free
        }
    }

    fn taken(&self, now: i64, id: EventKey) -> Option<Taken> {
        let in_flight = match self.state(now) {
            KeyState::Free => return None,
            KeyState::InFlight { remaining } => Some(remaining),
            KeyState::Done => None,
        };
        Some(Taken {
            in_flight,
            same_body: self.body == id.body().to_be_bytes(),
        })
    }

    fn next_attempt(&self, now: i64) -> NonZeroU32 {
        if self.done || self.keep_until < now {
            return NonZeroU32::MIN;
        }
        NonZeroU32::MIN.saturating_add(self.attempt)
    }
}

pub(in crate::sqlite) fn claim(
    tx: &mut Tx<'_>,
    id: EventKey,
    lease: Duration,
    retain: Duration,
) -> Result<Claim> {
    let (key, body) = (id.key().to_be_bytes(), id.body().to_be_bytes());
    let fence = Fence(tx.token());
    let lease_until = clock::lease_end(tx.now, lease);
    let keep_until = after(tx.now, retain);
    let new = tx.prepare(NEW)?.execute(params![
        key,
        body,
        fence.0.to_be_bytes(),
        lease_until,
        keep_until
    ])?;
    if new == 1 {
        return Ok(Claim::Acquired(Lease::new(id, fence, NonZeroU32::MIN)));
    }

    let mut by_key = tx.prepare(BY_KEY)?;
    let known = by_key.query_row([key], Known::read)?;
    let same_body = known.body == body;
    match known.state(tx.now) {
        KeyState::Done => return Ok(Claim::Done { same_body }),
        KeyState::InFlight { remaining } => {
            return Ok(Claim::InFlight {
                remaining,
                same_body,
            });
        }
        KeyState::Free => {}
    }
    let attempt = known.next_attempt(tx.now);
    tx.prepare(AGAIN)?.execute(params![
        known.id,
        body,
        fence.0.to_be_bytes(),
        attempt.get(),
        lease_until,
        keep_until
    ])?;
    Ok(Claim::Acquired(Lease::new(id, fence, attempt)))
}

pub(in crate::sqlite) fn peek(tx: &Tx<'_>, key: u128) -> Result<KeyState> {
    let mut by_key = tx.prepare(BY_KEY)?;
    let known = by_key
        .query_row([key.to_be_bytes()], Known::read)
        .optional()?;
    Ok(known.map_or(KeyState::Free, |known| known.state(tx.now)))
}

/// What is known of a key that is done or in flight.
pub(in crate::sqlite) struct Taken {
    /// Unless it is done: how long its lease lasts.
    pub(in crate::sqlite) in_flight: Option<Duration>,
    pub(in crate::sqlite) same_body: bool,
}

/// Returns whether the key is done or in flight.
pub(in crate::sqlite) fn taken(tx: &Tx<'_>, id: EventKey) -> Result<Option<Taken>> {
    let mut by_key = tx.prepare(BY_KEY)?;
    let known = by_key
        .query_row([id.key().to_be_bytes()], Known::read)
        .optional()?;
    Ok(known.and_then(|known| known.taken(tx.now, id)))
}

/// The number of the event that was accepted with a key, or 0 if a run has completed it.
pub(in crate::sqlite) fn event(tx: &Tx<'_>, key: u128) -> Result<Option<i64>> {
    let mut event = tx.prepare(EVENT)?;
    let event = event.query_row([key.to_be_bytes()], |row| row.get(0));
    event.optional()
}

/// Drops the key of an event, if it is still of this one.
pub(in crate::sqlite) fn drop_of_event(tx: &Tx<'_>, key: u128, event: i64) -> Result<()> {
    tx.prepare(DROP_OF_EVENT)?
        .execute(params![key.to_be_bytes(), event])?;
    Ok(())
}

/// Records the key as that of an event, unless it is done or in flight.
pub(in crate::sqlite) fn record(
    tx: &Tx<'_>,
    id: EventKey,
    event: i64,
    keep_until: i64,
) -> Result<Option<Taken>> {
    let (key, body) = (id.key().to_be_bytes(), id.body().to_be_bytes());
    let new = tx
        .prepare(NEW_OF_EVENT)?
        .execute(params![key, body, event, keep_until])?;
    if new == 1 {
        return Ok(None);
    }
    let mut by_key = tx.prepare(BY_KEY)?;
    let known = by_key.query_row([key], Known::read)?;
    let taken = known.taken(tx.now, id);
    if taken.is_none() {
        tx.prepare(AGAIN_OF_EVENT)?
            .execute(params![known.id, body, event, keep_until])?;
    }
    Ok(taken)
}

/// What a lease that is still valid is used for.
#[derive(Clone, Copy)]
pub(in crate::sqlite) enum Settle {
    Renew(Duration),
    Complete(Duration),
    Release,
}

/// Renews or settles a lease, and returns whether it was still valid.
pub(in crate::sqlite) fn settle(tx: &Tx<'_>, key: u128, fence: Fence, how: Settle) -> Result<bool> {
    let (statement, until) = match how {
        Settle::Renew(extend) => (RENEW, clock::lease_end(tx.now, extend)),
        Settle::Complete(retain) => (COMPLETE, after(tx.now, retain)),
        Settle::Release => (RENEW, clock::past(tx.now)),
    };
    let settled = tx.prepare(statement)?.execute(params![
        key.to_be_bytes(),
        fence.0.to_be_bytes(),
        tx.now,
        until
    ])?;
    Ok(settled == 1)
}

/// How many rows a call looks at, whether they have expired. A key takes two calls.
const ROWS_PER_CALL: u16 = 2;

/// Looks at all rows again and again, a few at a time, and drops expired ones.
///
/// In the order of their ids, which needs no index: they expire in about that order.
#[derive(Default)]
pub(in crate::sqlite) struct Purge {
    every: u32,
    steps: u32,
    seen: i64,
    /// How many ids are passed over if they cannot be read: ever more, to get past damage.
    skip: i64,
}

impl Purge {
    /// One of so many steps looks at rows.
    pub(in crate::sqlite) fn each(every: u32) -> Self {
        Self {
            every,
            ..Self::default()
        }
    }
}

impl Upkeep for Purge {
    fn step(&mut self, tx: &Tx<'_>, calls: u16) -> Result<()> {
        const FARTHEST: i64 = 1 << 20;

        self.steps = self.steps.wrapping_add(1);
        if !self.steps.is_multiple_of(self.every) {
            return Ok(());
        }
        // Before anything can fail, so that the next step looks at other rows.
        let rows = ROWS_PER_CALL * calls;
        let from = self.seen;
        self.skip = self.skip.saturating_mul(2).max(rows.into());
        self.seen = match from.checked_add(self.skip) {
            Some(past) if self.skip <= FARTHEST => past,
            _ => {
                self.skip = 0;
                0
            }
        };
        let mut expired = Vec::new();
        let (mut last, mut left) = (from, rows);
        let mut next = tx.prepare(NEXT)?;
        let mut next = next.query(params![tx.now, from])?;
        while left > 0
            && let Some(row) = next.next()?
        {
            left -= 1;
            last = row.get(0)?;
            if row.get(1)? {
                expired.push(last);
            }
        }
        drop(next);
        self.skip = 0;
        self.seen = if left == 0 { last } else { 0 };
        for id in expired {
            tx.prepare(DROP)?.execute([id])?;
        }
        Ok(())
    }
}
