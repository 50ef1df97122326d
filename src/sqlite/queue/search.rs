//! The search for the events of a filter, in steps of a few milliseconds.

use std::ops::RangeInclusive;

use rusqlite::{OptionalExtension, Params, Result, params};

use super::{chats, kinds};
use crate::delivery::IdempotencyKey;
use crate::event::EventKind;
use crate::inbox::event::EventState;
use crate::inbox::records::{Filter, Page};
use crate::inbox::text::has_text;
use crate::route::RouteName;
use crate::sqlite::engine::Tx;
use crate::sqlite::schema::sql;

/// A statement in both orders.
macro_rules! both {
    ($sql:expr) => {
        [
            sql!(concat!($sql, " ORDER BY 1")),
            sql!(concat!($sql, " ORDER BY 1 DESC")),
        ]
    };
}

pub(super) const FIRST: &str = "SELECT seq, accepted FROM events WHERE seq >= ?1 ORDER BY seq";
const LAST: &str = "SELECT max(seq) FROM events";
// The columns of the filter are compared where they are read. `?5`: only events that are settled. The table of types is read
// whole, because an index would not serve a name or a route that may be NULL.
const ALL: [&str; 2] = both!(
    "SELECT seq FROM events
    WHERE seq BETWEEN ?1 AND ?2 AND (?3 IS NULL OR key = ?3) AND (?5 = 0 OR state <> $Unsettled)
        AND (?4 IS NULL AND ?6 IS NULL
            OR kind IN (SELECT id FROM kinds NOT INDEXED WHERE ifnull(name = ?4, 1) AND ifnull(route = ?6, 1)))"
);
const BODIES: [&str; 2] = both!("SELECT seq, body FROM bodies WHERE seq BETWEEN ?1 AND ?2");
const FAILED: [&str; 2] = both!("SELECT DISTINCT seq FROM failures WHERE seq BETWEEN ?1 AND ?2");
const DEAD: [&str; 2] = both!(
    "SELECT seq FROM events INDEXED BY events_dead WHERE state = $Dead AND seq BETWEEN ?1 AND ?2"
);
const UNSETTLED: [&str; 2] = both!("SELECT seq FROM work WHERE seq BETWEEN ?1 AND ?2");
const TRIED_OR_DEAD: [&str; 2] = both!(
    "SELECT seq FROM work INDEXED BY work_tried
    WHERE (tried OR crashes > 0) AND seq BETWEEN ?1 AND ?2
    UNION
    SELECT seq FROM events INDEXED BY events_dead WHERE state = $Dead AND seq BETWEEN ?1 AND ?2"
);
const KEPT: [&str; 2] = both!(
    "SELECT seq FROM work WHERE seq BETWEEN ?1 AND ?2
    UNION
    SELECT seq FROM events INDEXED BY events_dead WHERE state = $Dead AND seq BETWEEN ?1 AND ?2"
);
const TRIED: [&str; 2] = both!(
    "SELECT seq FROM work INDEXED BY work_tried
    WHERE (tried OR crashes > 0) AND seq BETWEEN ?1 AND ?2"
);
/// Those in progress, which are few, and those whose leases have expired.
const TAKEN: &str =
    sql!("SELECT seq FROM work INDEXED BY work_due WHERE place = $Taken AND place <> $Behind");

#[cfg(test)]
pub(super) const STATEMENTS: &[&str] = &[
    FIRST,
    LAST,
    ALL[0],
    ALL[1],
    BODIES[0],
    BODIES[1],
    FAILED[0],
    FAILED[1],
    DEAD[0],
    DEAD[1],
    UNSETTLED[0],
    UNSETTLED[1],
    KEPT[0],
    KEPT[1],
    TRIED[0],
    TRIED[1],
    TRIED_OR_DEAD[0],
    TRIED_OR_DEAD[1],
    TAKEN,
];

/// How many numbers of events a step looks at, and how many of the events that may match.
const WINDOW: i64 = 10_000;
const CANDIDATES: usize = 1000;
/// How many of those whose failures or bodies are read.
const FAILURES: usize = 50;
/// How many bytes of bodies a step reads, of which each takes some more.
const BYTES: usize = 2 << 20;
const OVERHEAD: usize = 200;

/// The number of the event that was accepted last.
pub(super) fn last(tx: &Tx<'_>) -> Result<Option<i64>> {
    tx.prepare(LAST)?.query_row([], |row| row.get(0))
}

/// The next events that may match, and where the search goes on.
type Candidates = (Vec<i64>, Option<i64>);

pub(super) fn candidates(
    tx: &Tx<'_>,
    filter: &Filter,
    range: &RangeInclusive<i64>,
    newest: i64,
    page: Page,
) -> Result<Candidates> {
    if let Some(chat) = &filter.chat {
        // As a rule, there is no other condition, so that these are the page.
        let most = page.limit.clamp(FAILURES, CANDIDATES);
        let found = chats::find(tx, chat, range, newest, page.newest_first, most)?;
        let seen = found.last().copied().filter(|_| found.len() == most);
        return Ok((found, seen));
    }
    let order = usize::from(page.newest_first);
    let (first, last) = (range.start(), range.end());
    let only =
        |of: fn(&EventState) -> bool| !filter.states.is_empty() && filter.states.iter().all(of);
    let has_failed = |state: &EventState| {
        use EventState::{Dead, InProgress, Retrying};
        matches!(state, InProgress | Retrying | Dead)
    };
    let reads_failures = filter.error.is_some() || filter.reads_last_failure();
    if reads_failures && !only(has_failed) {
        return some(tx, FAILED[order], params![first, last], FAILURES);
    }
    if !only(|state| state.is_unsettled() || *state == EventState::Dead) {
        return match &filter.body {
            Some(text) => with_text(tx, text, range, order),
            None => within_window(tx, filter, range, page),
        };
    }
    let most = match filter.error.is_some() || filter.body.is_some() {
        true => FAILURES,
        false => CANDIDATES,
    };
    if only(|state| *state == EventState::Dead) {
        return some(tx, DEAD[order], params![first, last], most);
    }
    if only(has_failed) {
        let sql = match filter.states.contains(&EventState::Dead) {
            true => TRIED_OR_DEAD[order],
            false => TRIED[order],
        };
        return tried_or_taken(tx, sql, range, page, most);
    }
    let sql = match only(|state| state.is_unsettled()) {
        true => UNSETTLED[order],
        false => KEPT[order],
    };
    some(tx, sql, params![first, last], most)
}

fn some(tx: &Tx<'_>, sql: &'static str, values: impl Params, most: usize) -> Result<Candidates> {
    let mut found = tx.prepare(sql)?;
    let rows = found.query_map(values, |row| row.get(0))?;
    let found: Vec<i64> = rows.take(most).collect::<Result<_, _>>()?;
    let seen = found.last().copied().filter(|_| found.len() == most);
    Ok((found, seen))
}

/// Events that a statement finds, as they have failed, and those in progress.
fn tried_or_taken(
    tx: &Tx<'_>,
    tried: &'static str,
    range: &RangeInclusive<i64>,
    page: Page,
    most: usize,
) -> Result<Candidates> {
    let values = params![range.start(), range.end()];
    let (mut found, seen) = some(tx, tried, values, most)?;
    let is_passed = |seq: i64| match (seen, page.newest_first) {
        (None, _) => true,
        (Some(seen), true) => seq >= seen,
        (Some(seen), false) => seq <= seen,
    };
    let mut taken = tx.prepare(TAKEN)?;
    for seq in taken.query_map([], |row| row.get(0))? {
        let seq = seq?;
        if range.contains(&seq) && is_passed(seq) {
            found.push(seq);
        }
    }
    found.sort_unstable();
    found.dedup();
    if page.newest_first {
        found.reverse();
    }
    Ok((found, seen))
}

/// Events whose bodies have a text.
fn with_text(
    tx: &Tx<'_>,
    text: &str,
    range: &RangeInclusive<i64>,
    order: usize,
) -> Result<Candidates> {
    let mut bodies = tx.prepare(BODIES[order])?;
    let mut bodies = bodies.query(params![range.start(), range.end()])?;
    let (mut found, mut read) = (Vec::new(), 0);
    while let Some(row) = bodies.next()? {
        let (seq, body) = (row.get(0)?, row.get_ref(1)?.as_blob()?);
        if has_text(body, text) {
            found.push(seq);
        }
        read += OVERHEAD + body.len();
        if read >= BYTES {
            return Ok((found, Some(seq)));
        }
    }
    Ok((found, None))
}

/// Events of one window.
fn within_window(
    tx: &Tx<'_>,
    filter: &Filter,
    range: &RangeInclusive<i64>,
    page: Page,
) -> Result<Candidates> {
    let (first, last) = (*range.start(), *range.end());
    let (from, to) = match page.newest_first {
        true => (last.saturating_sub(WINDOW - 1).max(first), last),
        false => {
            // Where many events were deleted, their numbers are passed over.
            let mut next = tx.prepare(FIRST)?;
            let next = next.query_row([first], |row| row.get(0)).optional()?;
            let from: i64 = next.unwrap_or(last);
            (from, from.saturating_add(WINDOW - 1).min(last))
        }
    };
    let kind = one(&filter.kinds).map(EventKind::as_str);
    let route = one(&filter.routes).map(RouteName::as_str);
    if !kinds::is_known(tx, kind, route)? {
        return Ok((Vec::new(), None));
    }
    let is_settled =
        !filter.states.is_empty() && !filter.states.iter().any(|state| state.is_unsettled());
    let key = filter.key.as_ref().map(IdempotencyKey::as_bytes);
    let values = params![from, to, key, kind, is_settled, route];
    let order = usize::from(page.newest_first);
    let (events, seen) = some(tx, ALL[order], values, CANDIDATES)?;
    let seen = seen.or(match page.newest_first {
        true => (from > first).then_some(from),
        false => (to < last).then_some(to),
    });
    Ok((events, seen))
}

/// The selected value, if there is exactly one. Several are compared where the events are read.
fn one<T>(selected: &[T]) -> Option<&T> {
    match selected {
        [one] => Some(one),
        _ => None,
    }
}
