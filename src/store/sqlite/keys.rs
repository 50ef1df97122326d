//! What is in the tables, and the statements that the store is made of.

use std::num::NonZeroU32;
use std::time::Duration;

use rusqlite::{OptionalExtension, Row, params};

use super::clock::{self, after};
use super::writer::Tx;
use crate::store::{Claim, EventKey, Fence, KeyState, Lease};

/// Times are milliseconds since 1970, and the last ones of what they limit.
///
/// A row does not change its size when its key is done, so that it is changed in place.
pub(super) const SCHEMA: &str = "
    CREATE TABLE keys (
        id          INTEGER PRIMARY KEY,
        key         BLOB    NOT NULL UNIQUE,
        body        BLOB    NOT NULL,
        fence       BLOB    NOT NULL,
        attempt     INTEGER NOT NULL,
        done        INTEGER NOT NULL,
        lease_until INTEGER NOT NULL,
        keep_until  INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE clock (highest INTEGER NOT NULL) STRICT;
    INSERT INTO clock VALUES (0);
";

/// A row, without what is compared in the database.
struct Known {
    id: i64,
    body: [u8; 16],
    attempt: u32,
    done: bool,
    lease_until: i64,
    keep_until: i64,
}

impl Known {
    const BY_KEY: &str =
        "SELECT id, body, attempt, done, lease_until, keep_until FROM keys WHERE key = ?1";

    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
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

    fn next_attempt(&self, now: i64) -> NonZeroU32 {
        if self.done || self.keep_until < now {
            return NonZeroU32::MIN;
        }
        NonZeroU32::MIN.saturating_add(self.attempt)
    }
}

pub(super) fn claim(
    tx: &mut Tx<'_>,
    id: EventKey,
    lease: Duration,
    retain: Duration,
) -> rusqlite::Result<Claim> {
    const NEW: &str = "
        INSERT INTO keys (key, body, fence, attempt, done, lease_until, keep_until)
        VALUES (?1, ?2, ?3, 1, 0, ?4, ?5)
        ON CONFLICT (key) DO NOTHING";
    const AGAIN: &str = "
        UPDATE keys
        SET body = ?2, fence = ?3, attempt = ?4, done = 0, lease_until = ?5, keep_until = ?6
        WHERE id = ?1";

    let (key, body) = (id.key().to_be_bytes(), id.body().to_be_bytes());
    let fence = tx.fence();
    let lease_until = clock::lease_end(tx.now, lease);
    let keep_until = after(tx.now, retain);
    let new = tx.db.prepare_cached(NEW)?.execute(params![
        key,
        body,
        fence.0.to_be_bytes(),
        lease_until,
        keep_until
    ])?;
    if new == 1 {
        return Ok(Claim::Acquired(Lease::new(id, fence, NonZeroU32::MIN)));
    }

    let mut by_key = tx.db.prepare_cached(Known::BY_KEY)?;
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
    tx.db.prepare_cached(AGAIN)?.execute(params![
        known.id,
        body,
        fence.0.to_be_bytes(),
        attempt.get(),
        lease_until,
        keep_until
    ])?;
    Ok(Claim::Acquired(Lease::new(id, fence, attempt)))
}

pub(super) fn peek(tx: &Tx<'_>, key: u128) -> rusqlite::Result<KeyState> {
    let mut by_key = tx.db.prepare_cached(Known::BY_KEY)?;
    let known = by_key
        .query_row([key.to_be_bytes()], Known::read)
        .optional()?;
    Ok(known.map_or(KeyState::Free, |known| known.state(tx.now)))
}

/// What is done with a lease that is still valid.
#[derive(Clone, Copy)]
pub(super) enum Settle {
    Renew(Duration),
    Complete(Duration),
    Release,
}

/// Whether the lease was still valid.
pub(super) fn settle(tx: &Tx<'_>, key: u128, fence: Fence, how: Settle) -> rusqlite::Result<bool> {
    const RENEW: &str = "
        UPDATE keys SET lease_until = ?4
        WHERE key = ?1 AND fence = ?2 AND NOT done AND lease_until >= ?3";
    const COMPLETE: &str = "
        UPDATE keys SET done = 1, keep_until = ?4
        WHERE key = ?1 AND fence = ?2 AND NOT done AND lease_until >= ?3";

    let (statement, until) = match how {
        Settle::Renew(extend) => (RENEW, clock::lease_end(tx.now, extend)),
        Settle::Complete(retain) => (COMPLETE, after(tx.now, retain)),
        Settle::Release => (RENEW, clock::past(tx.now)),
    };
    let settled = tx.db.prepare_cached(statement)?.execute(params![
        key.to_be_bytes(),
        fence.0.to_be_bytes(),
        tx.now,
        until
    ])?;
    Ok(settled == 1)
}

/// Looks at all rows again and again, a few at a time, and drops those that are out of date.
///
/// In the order of their ids, which needs no index: it is about the order in which they expire.
#[derive(Default)]
pub(super) struct Purge {
    seen: i64,
    /// How many ids are passed over if they cannot be read: ever more, to get past what is damaged.
    skip: i64,
}

impl Purge {
    pub(super) fn step(&mut self, tx: &Tx<'_>, rows: u16) -> rusqlite::Result<()> {
        // Without a LIMIT, whose every new value would have SQLite compile the statement again.
        const NEXT: &str = "
            SELECT id, max(keep_until, iif(done, keep_until, lease_until)) < ?1
            FROM keys WHERE id > ?2 ORDER BY id";
        const DROP: &str = "DELETE FROM keys WHERE id = ?1";
        const FARTHEST: i64 = 1 << 20;

        // Before anything can fail, so that the next step is another one.
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
        let mut next = tx.db.prepare_cached(NEXT)?;
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
            tx.db.prepare_cached(DROP)?.execute([id])?;
        }
        Ok(())
    }
}

/// The latest time that any process has seen.
pub(super) fn highest_time(db: &rusqlite::Connection) -> rusqlite::Result<i64> {
    db.prepare_cached("SELECT highest FROM clock")?
        .query_row([], |row| row.get(0))
}

pub(super) fn set_highest_time(tx: &Tx<'_>) -> rusqlite::Result<()> {
    tx.db
        .prepare_cached("UPDATE clock SET highest = ?1")?
        .execute([tx.now])?;
    Ok(())
}
