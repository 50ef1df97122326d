//! What is read of events: pages of a list, and single events.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use bytes::Bytes;
use http::HeaderMap;
use rusqlite::{OptionalExtension, Result, Row, params};

use super::kinds::Names;
use super::row::{self, Work};
use super::search::{self, FIRST};
use super::{SqliteQueue, actions, blocked};
use crate::inbox::actions::{Action, Which};
use crate::inbox::event::{EventId, EventState, Failure, Shape};
use crate::inbox::headers;
use crate::inbox::queue::ListEvents;
use crate::inbox::records::{
    BlockedLane, EventRecord, EventSummary, Filter, Listed, Page, PastFailure, nearest,
};
use crate::route::EventType;
use crate::sqlite::engine::{Tx, clock};
use crate::sqlite::keys;
use crate::sqlite::schema::{Place, State};
use crate::store::StoreError;

const SUMMARY: &str = "
    SELECT e.kind, e.state, e.key, e.chat, e.accepted, e.settled, e.failures, e.redriven,
        w.place, w.due, w.failures, w.crashes, w.tried
    FROM events e LEFT JOIN work w ON w.seq = e.seq WHERE e.seq = ?1";
const CONTENT: &str = "SELECT body, headers FROM bodies WHERE seq = ?1";
const ITEM: &str = "
    SELECT e.delivery, e.item, e.items, b.kept FROM events e LEFT JOIN bodies b ON b.seq = e.seq WHERE e.seq = ?1";
/// As many of each as `MOST_OTHERS`.
const BEFORE: &str =
    "SELECT item, seq FROM events WHERE delivery = ?1 AND seq < ?2 ORDER BY seq DESC LIMIT 20";
const AFTER: &str =
    "SELECT item, seq FROM events WHERE delivery = ?1 AND seq > ?2 ORDER BY seq LIMIT 20";
const FAILURES: &str =
    "SELECT at, outcome, reason, took, shape FROM failures WHERE seq = ?1 ORDER BY number";
const HAS_ERROR: &str = "
    SELECT 1 FROM failures
    WHERE seq = ?1 AND (instr(lower(outcome), ?2) > 0 OR instr(lower(reason), ?2) > 0)";
const LAST_FAILURE: &str =
    "SELECT at, outcome, reason, took, shape FROM failures WHERE seq = ?1 ORDER BY number DESC";
#[cfg(test)]
pub(super) const STATEMENTS: &[&str] = &[
    SUMMARY,
    CONTENT,
    ITEM,
    BEFORE,
    AFTER,
    FAILURES,
    HAS_ERROR,
    LAST_FAILURE,
];

/// How many blocked lanes a step returns.
const LANES_AT_ONCE: usize = 50;

#[async_trait]
impl ListEvents for SqliteQueue {
    async fn list(&self, filter: &Filter, page: Page) -> Result<Listed, StoreError> {
        let began = Instant::now();
        let mut listed = Listed::default();
        let mut page = page;
        if filter.chat.is_some() && filter.body.is_none() {
            // These are found by an index.
            page.within = None;
        }
        let limit = page.limit;
        while listed.events.len() < limit {
            page.limit = limit - listed.events.len();
            let filter = filter.clone();
            let step = self.read(move |tx| list(tx, &filter, page));
            let found = step.await?;
            listed.events.extend(found.events);
            if found.seen.is_none() {
                break;
            }
            page.after = found.seen;
            if page.within.is_some_and(|time| began.elapsed() >= time) {
                listed.searched = found.seen;
                break;
            }
        }
        Ok(listed)
    }

    async fn get(&self, id: EventId) -> Result<Option<EventRecord>, StoreError> {
        self.read(move |tx| get(tx, id)).await
    }

    async fn find(&self, key: u128) -> Result<Option<EventId>, StoreError> {
        let event = self.read(move |tx| keys::rows::event(tx, key)).await?;
        Ok(event.map(EventId))
    }

    async fn blocked_lanes(
        &self,
        chat: Option<&str>,
        after: Option<EventId>,
        limit: usize,
    ) -> Result<Vec<BlockedLane>, StoreError> {
        let chat = chat.map(Arc::<str>::from);
        let (mut lanes, mut after) = (Vec::new(), after);
        while lanes.len() < limit {
            let most = (limit - lanes.len()).min(LANES_AT_ONCE);
            let chat = chat.clone();
            let step = self.read(move |tx| blocked::lanes(tx, chat.as_deref(), after, most));
            let found = step.await?;
            let is_last = found.len() < most;
            lanes.extend(found);
            after = lanes.last().map(|lane: &BlockedLane| lane.event.id);
            if is_last {
                break;
            }
        }
        Ok(lanes)
    }

    async fn actions(
        &self,
        which: Which,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<Action>, StoreError> {
        self.read(move |tx| actions::list(tx, which, before, limit))
            .await
    }
}

/// A part of a list.
struct Found {
    events: Vec<EventSummary>,
    /// The event after which the search goes on.
    seen: Option<EventId>,
}

fn list(tx: &Tx<'_>, filter: &Filter, page: Page) -> Result<Found> {
    let mut found = Found {
        events: Vec::new(),
        seen: None,
    };
    let Some(newest) = search::last(tx)? else {
        return Ok(found);
    };
    let Some(range) = range(tx, filter, page, newest)? else {
        return Ok(found);
    };
    let (candidates, seen) = search::candidates(tx, filter, &range, newest, page)?;
    let error = filter.error.as_deref().map(str::to_ascii_lowercase);
    found.seen = seen.map(EventId);
    let mut names = Names::default();
    for seq in candidates {
        let Some(mut event) = summary(tx, EventId(seq), &mut names)? else {
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
        if let Some(action) = filter.changed_by
            && !actions::has_changed(tx, action, seq)?
        {
            continue;
        }
        event.last_failure = last_failure(tx, event.id)?;
        let last = event.last_failure.as_ref();
        if !filter.matches_last_failure(last.map(|last| (last.at, last.failure.shape))) {
            continue;
        }
        if filter.body.is_some() {
            let mut content = tx.prepare(CONTENT)?;
            let matches = |row: &Row<'_>| Ok(filter.matches_body(Some(row.get_ref(0)?.as_blob()?)));
            if !content
                .query_row([seq], matches)
                .optional()?
                .unwrap_or(false)
            {
                continue;
            }
        }
        found.events.push(event);
        if found.events.len() >= page.limit {
            found.seen = None;
            break;
        }
    }
    Ok(found)
}

/// The numbers that may match by the page and the time of acceptance, up to that of the newest event.
fn range(
    tx: &Tx<'_>,
    filter: &Filter,
    page: Page,
    newest: i64,
) -> Result<Option<RangeInclusive<i64>>> {
    let mut first = tx.prepare(FIRST)?;
    let mut first: i64 = first.query_row([i64::MIN], |row| row.get(0))?;
    let mut last = newest;
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
fn accepted_at(tx: &Tx<'_>, first: i64, last: i64, time: i64) -> Result<i64> {
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

/// An event, without its last failure.
pub(super) fn summary(tx: &Tx<'_>, id: EventId, names: &mut Names) -> Result<Option<EventSummary>> {
    let mut summary = tx.prepare(SUMMARY)?;
    let found = summary.query_row([id.0], |row| read_summary(tx, row, id, names));
    Ok(found.optional()?.flatten())
}

fn read_summary(
    tx: &Tx<'_>,
    row: &Row<'_>,
    id: EventId,
    names: &mut Names,
) -> Result<Option<EventSummary>> {
    let settled_at = || Ok::<_, rusqlite::Error>(Some(row::time(row.get(5)?)));
    let mut failures = row.get(6)?;
    let mut due_at = None;
    let (state, settled_at) = match row.get(1)? {
        State::Unsettled => {
            let work = Work {
                seq: id.0,
                place: row.get(8)?,
                due: row.get(9)?,
                failures: row.get(10)?,
                crashes: row.get(11)?,
                tried: row.get(12)?,
                ..Work::default()
            };
            failures = work.failures;
            if work.place != Place::Taken && work.due > tx.now {
                due_at = Some(row::time(work.due));
            }
            (work.state(tx.now), None)
        }
        State::Handled | State::HandledWithoutBody => (EventState::Handled, settled_at()?),
        State::Ignored | State::IgnoredWithoutBody => (EventState::Ignored, settled_at()?),
        State::Discarded => (EventState::Discarded, settled_at()?),
        State::Dead => (EventState::Dead, settled_at()?),
        State::Deleted => return Ok(None),
    };
    let EventType { route, kind } = names.event_type(tx, row.get(0)?)?.clone();
    Ok(Some(EventSummary {
        id,
        route,
        kind,
        key: row::read_key(row, 2)?,
        chat: row.get(3)?,
        state,
        accepted_at: row::time(row.get(4)?),
        settled_at,
        due_at,
        failures,
        is_redriven: row.get(7)?,
        last_failure: None,
    }))
}

fn get(tx: &Tx<'_>, id: EventId) -> Result<Option<EventRecord>> {
    let Some(mut summary) = summary(tx, id, &mut Names::default())? else {
        return Ok(None);
    };
    let mut content = tx.prepare(CONTENT)?;
    let content = content.query_row([id.0], |row| {
        let body: Vec<u8> = row.get(0)?;
        let headers = row.get_ref(1)?.as_blob_or_null()?;
        let headers = headers.map_or_else(HeaderMap::new, headers::from_bytes);
        Ok((Bytes::from(body), headers))
    });
    let (body, headers) = content.optional()?.unzip();
    let mut failures = tx.prepare(FAILURES)?;
    let failures = failures.query_map([id.0], read_failure)?;
    let failures: Vec<_> = failures.collect::<Result<_, _>>()?;
    summary.last_failure = failures.last().cloned();
    let mut item = tx.prepare(ITEM)?;
    let item = item.query_row([id.0], |row| row::read_item(row, 0))?;
    let mut others = Vec::new();
    if let Some(item) = &item {
        let find = |others| {
            let mut statement = tx.prepare(others)?;
            let found = statement.query_map([item.delivery, id.0], |row| {
                Ok((row.get(0)?, EventId(row.get(1)?)))
            })?;
            found.collect::<Result<_>>()
        };
        others = nearest(find(BEFORE)?, find(AFTER)?);
    }
    Ok(Some(EventRecord {
        summary,
        body,
        headers: headers.unwrap_or_default(),
        others,
        item,
        failures,
    }))
}

pub(super) fn last_failure(tx: &Tx<'_>, EventId(seq): EventId) -> Result<Option<PastFailure>> {
    let mut last = tx.prepare(LAST_FAILURE)?;
    last.query_row([seq], read_failure).optional()
}

fn read_failure(row: &Row<'_>) -> Result<PastFailure> {
    let took: Option<i64> = row.get(3)?;
    Ok(PastFailure {
        at: row::time(row.get(0)?),
        failure: Failure {
            outcome: row.get(1)?,
            reason: row.get(2)?,
            took: took.map(|took| Duration::from_micros(took.unsigned_abs())),
            shape: Shape(row.get(4)?),
        },
    })
}
