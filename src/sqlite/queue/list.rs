//! What is read: events, their number, and the size of the file.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::HeaderMap;
use rusqlite::types::Type;
use rusqlite::{OptionalExtension, Row, params};

use super::kinds::{self, Names};
use super::row::{self, Work, place, state};
use super::search;
use crate::event::EventKind;
use crate::inbox::event::{EventId, EventState, Failure};
use crate::inbox::headers;
use crate::inbox::records::{
    EventRecord, EventSummary, Filter, KindStats, Page, PastFailure, Stats,
};
use crate::sqlite::engine::{Tx, clock};

const SUMMARY: &str = "
    SELECT e.kind, e.state, e.key, e.chat, e.accepted, e.settled, e.failures, e.redriven,
        w.place, w.due, w.failures, w.crashes, w.tried
    FROM events e LEFT JOIN work w ON w.seq = e.seq WHERE e.seq = ?1";
const BODY: &str = "SELECT body FROM bodies WHERE seq = ?1";
const HEADERS: &str = "SELECT headers FROM headers WHERE seq = ?1";
const FAILURES: &str = "
    SELECT f.at, f.outcome, f.reason, d.took
    FROM failures f LEFT JOIN durations d ON d.seq = ?1 AND d.number = f.number
    WHERE f.seq = ?1 ORDER BY f.number";
const HAS_ERROR: &str = "
    SELECT 1 FROM failures
    WHERE seq = ?1 AND (instr(lower(outcome), ?2) > 0 OR instr(lower(reason), ?2) > 0)";
pub(super) const FIRST: &str = "SELECT seq, accepted FROM events WHERE seq >= ?1 ORDER BY seq";
const LAST: &str = "SELECT seq FROM events WHERE seq <= ?1 ORDER BY seq DESC";
const WORK: &str = "
    SELECT seq, kind, place, tried OR crashes > 0, due, lane IS NOT NULL
    FROM work WHERE seq > ?1 ORDER BY seq";
const DEAD: &str = "
    SELECT seq, kind FROM events INDEXED BY events_dead WHERE state = 9 AND seq > ?1 ORDER BY seq";
const PAGES: &str = "PRAGMA page_count";
const FREE_PAGES: &str = "PRAGMA freelist_count";
const PAGE_SIZE: &str = "PRAGMA page_size";

#[cfg(test)]
pub(super) const STATEMENTS: [&str; 9] = [
    SUMMARY, BODY, HEADERS, FAILURES, HAS_ERROR, FIRST, LAST, WORK, DEAD,
];

/// How many events a step counts, which takes less time than a commit.
const COUNTED: usize = 1000;

/// A part of a list.
pub(super) struct Found {
    pub(super) events: Vec<EventSummary>,
    /// The event after which the search goes on.
    pub(super) seen: Option<EventId>,
}

pub(super) fn list(tx: &Tx<'_>, filter: &Filter, page: Page) -> rusqlite::Result<Found> {
    let mut found = Found {
        events: Vec::new(),
        seen: None,
    };
    let Some(range) = range(tx, filter, page)? else {
        return Ok(found);
    };
    let (candidates, seen) = search::candidates(tx, filter, &range, page)?;
    let error = filter.error.as_deref().map(str::to_ascii_lowercase);
    found.seen = seen.map(EventId);
    let mut names = Names::default();
    for seq in candidates {
        let Some(event) = summary(tx, EventId(seq), &mut names)? else {
            continue;
        };
        if !filter.matches(&event) {
            continue;
        }
        if let Some(text) = &error
            && !tx.prepare(HAS_ERROR)?.exists(params![seq, text])?
        {
            continue;
        }
        found.events.push(event);
        if found.events.len() >= page.limit {
            found.seen = None;
            break;
        }
    }
    Ok(found)
}

/// The numbers that may match by the page and the time of acceptance.
fn range(
    tx: &Tx<'_>,
    filter: &Filter,
    page: Page,
) -> rusqlite::Result<Option<RangeInclusive<i64>>> {
    let mut first = tx.prepare(FIRST)?;
    let first: Option<i64> = first.query_row([i64::MIN], |row| row.get(0)).optional()?;
    let mut last = tx.prepare(LAST)?;
    let last: Option<i64> = last.query_row([i64::MAX], |row| row.get(0)).optional()?;
    let (Some(mut first), Some(mut last)) = (first, last) else {
        return Ok(None);
    };
    // Processes agree on the time to so many milliseconds.
    if let Some(from) = filter.accepted_from {
        first = accepted_at(
            tx,
            first,
            last,
            millis(from).saturating_sub(clock::AGREEMENT),
        )?;
    }
    if let Some(until) = filter.accepted_until {
        let until = millis(until).saturating_add(clock::AGREEMENT + 1);
        last = last.min(accepted_at(tx, first, last, until)?);
    }
    match (page.after, page.newest_first) {
        (Some(EventId(after)), true) => last = last.min(after.saturating_sub(1)),
        (Some(EventId(after)), false) => first = first.max(after.saturating_add(1)),
        (None, _) => {}
    }
    Ok((first <= last).then_some(first..=last))
}

/// The first event that was accepted at a time or later, or a number beyond the last one.
fn accepted_at(tx: &Tx<'_>, first: i64, last: i64, time: i64) -> rusqlite::Result<i64> {
    let mut at_least = tx.prepare(FIRST)?;
    let (mut low, mut high) = (first, last.saturating_add(1));
    while low < high {
        let middle = low + (high - low) / 2;
        let row = at_least.query_row([middle], |row| Ok((row.get(0)?, row.get(1)?)));
        let (seq, accepted): (i64, i64) = row?;
        if accepted < time {
            low = seq.saturating_add(1);
        } else {
            high = middle;
        }
    }
    Ok(low)
}

fn millis(time: SystemTime) -> i64 {
    let since_1970 = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX)
}

pub(super) fn summary(
    tx: &Tx<'_>,
    id: EventId,
    names: &mut Names,
) -> rusqlite::Result<Option<EventSummary>> {
    let mut summary = tx.prepare(SUMMARY)?;
    let found = summary.query_row([id.0], |row| {
        let stored: i64 = row.get(1)?;
        if stored == state::DELETED {
            return Ok(None);
        }
        let kind = names.name(tx, row.get(0)?)?;
        Ok(Some(read_summary(tx, row, id, kind, stored)?))
    });
    Ok(found.optional()?.flatten())
}

fn read_summary(
    tx: &Tx<'_>,
    row: &Row<'_>,
    id: EventId,
    kind: EventKind,
    stored: i64,
) -> rusqlite::Result<EventSummary> {
    let settled_at = || Ok::<_, rusqlite::Error>(Some(row::time(row.get(5)?)));
    let mut failures = row.get(6)?;
    let mut due_at = None;
    let (state, settled_at) = match stored {
        state::UNSETTLED => {
            let work = Work {
                seq: id.0,
                kind: 0,
                lane: None,
                place: row.get(8)?,
                due: row.get(9)?,
                failures: row.get(10)?,
                crashes: row.get(11)?,
                first_failed: None,
                tried: row.get(12)?,
            };
            failures = work.failures;
            if work.place != place::TAKEN && work.due > tx.now {
                due_at = Some(row::time(work.due));
            }
            (work.state(tx.now), None)
        }
        state::HANDLED | state::HANDLED_WITHOUT_BODY => (EventState::Handled, settled_at()?),
        state::IGNORED | state::IGNORED_WITHOUT_BODY => (EventState::Ignored, settled_at()?),
        state::DISCARDED => (EventState::Discarded, settled_at()?),
        state::DEAD => (EventState::Dead, settled_at()?),
        _ => return Err(row::invalid(1, Type::Integer, "there is no such state")),
    };
    Ok(EventSummary {
        id,
        kind,
        key: row::read_key(row, 2)?,
        chat: row.get(3)?,
        state,
        accepted_at: row::time(row.get(4)?),
        settled_at,
        due_at,
        failures,
        is_redriven: row.get(7)?,
    })
}

pub(super) fn get(tx: &Tx<'_>, id: EventId) -> rusqlite::Result<Option<EventRecord>> {
    let Some(summary) = summary(tx, id, &mut Names::default())? else {
        return Ok(None);
    };
    let mut body = tx.prepare(BODY)?;
    let body = body.query_row([id.0], |row| row.get(0)).optional()?;
    let mut headers = tx.prepare(HEADERS)?;
    let headers = headers
        .query_row([id.0], |row| row.get::<_, Vec<u8>>(0))
        .optional()?;
    let mut failures = tx.prepare(FAILURES)?;
    let failures = failures.query_map([id.0], |row| {
        Ok(PastFailure {
            at: row::time(row.get(0)?),
            failure: Failure {
                outcome: row.get(1)?,
                reason: row.get(2)?,
                took: row
                    .get::<_, Option<i64>>(3)?
                    .map(|took| Duration::from_micros(took.unsigned_abs())),
            },
        })
    })?;
    Ok(Some(EventRecord {
        summary,
        body: body.map(|body: Vec<u8>| Bytes::from(body)),
        headers: headers.map_or_else(HeaderMap::new, |bytes| headers::from_bytes(&bytes)),
        failures: failures.collect::<Result<_, _>>()?,
    }))
}

/// The number of events of a kind.
#[derive(Clone, Copy, Default)]
pub(super) struct Count {
    waiting: u64,
    in_progress: u64,
    retrying: u64,
    dead: u64,
    blocking: u64,
    oldest: Option<i64>,
}

/// Events that were counted, by the number of their kind.
#[derive(Clone, Default)]
pub(super) struct Counts {
    kinds: BTreeMap<i64, Count>,
    /// Up to which number, of those that are unsettled and of those that are dead.
    seen: [Option<i64>; 2],
    /// Whether that is all.
    done: [bool; 2],
}

impl Counts {
    pub(super) fn is_complete(&self) -> bool {
        self.done == [true; 2]
    }

    /// Counts some events more.
    pub(super) fn step(&mut self, tx: &Tx<'_>) -> rusqlite::Result<()> {
        if !self.done[0] {
            self.count_work(tx)
        } else {
            self.count_dead(tx)
        }
    }

    fn count_work(&mut self, tx: &Tx<'_>) -> rusqlite::Result<()> {
        let mut work = tx.prepare(WORK)?;
        let mut rows = work.query([self.seen[0].unwrap_or(i64::MIN)])?;
        for _ in 0..COUNTED {
            let Some(row) = rows.next()? else {
                self.done[0] = true;
                return Ok(());
            };
            let seq = row.get(0)?;
            self.seen[0] = Some(seq);
            let count = self.kinds.entry(row.get(1)?).or_default();
            let (place, has_failed): (_, bool) = (row.get(2)?, row.get(3)?);
            if has_failed && place < place::BEHIND && row.get(5)? {
                count.blocking += 1;
            }
            match place {
                place::HOLDING => continue,
                place::TAKEN if row.get::<_, i64>(4)? > tx.now => count.in_progress += 1,
                place::TAKEN => count.retrying += 1,
                _ if has_failed => count.retrying += 1,
                _ => count.waiting += 1,
            }
            if count.oldest.is_none() {
                let mut first = tx.prepare(FIRST)?;
                count.oldest = Some(first.query_row([seq], |row| row.get(1))?);
            }
        }
        Ok(())
    }

    fn count_dead(&mut self, tx: &Tx<'_>) -> rusqlite::Result<()> {
        let mut dead = tx.prepare(DEAD)?;
        let mut rows = dead.query([self.seen[1].unwrap_or(i64::MIN)])?;
        for _ in 0..COUNTED {
            let Some(row) = rows.next()? else {
                self.done[1] = true;
                return Ok(());
            };
            self.seen[1] = Some(row.get(0)?);
            self.kinds.entry(row.get(1)?).or_default().dead += 1;
        }
        Ok(())
    }

    pub(super) fn stats(&self, tx: &Tx<'_>) -> rusqlite::Result<Stats> {
        let mut stats = Stats {
            kinds: Vec::new(),
            at: row::time(tx.now),
            is_paused: false,
        };
        for (id, kind, is_paused) in kinds::all(tx)? {
            let Some(kind) = kind else {
                stats.is_paused = is_paused;
                continue;
            };
            let count = self.kinds.get(&id).copied().unwrap_or_default();
            stats.kinds.push(KindStats {
                kind,
                waiting: count.waiting,
                in_progress: count.in_progress,
                retrying: count.retrying,
                dead: count.dead,
                blocking: count.blocking,
                oldest: count.oldest.map(row::time),
                is_paused,
            });
        }
        stats.kinds.sort_by(|a, b| a.kind.cmp(&b.kind));
        Ok(stats)
    }
}

/// The bytes of the file that are in use.
pub(super) fn size(tx: &Tx<'_>) -> rusqlite::Result<u64> {
    let number = |sql| -> rusqlite::Result<u64> {
        let mut pragma = tx.prepare(sql)?;
        pragma.query_row([], |row| Ok(row.get::<_, u32>(0)?.into()))
    };
    let used = number(PAGES)?.saturating_sub(number(FREE_PAGES)?);
    Ok(used.saturating_mul(number(PAGE_SIZE)?))
}
