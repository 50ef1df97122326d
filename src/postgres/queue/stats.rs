//! The numbers of events by kind and state, and what is paused.

use std::time::SystemTime;

use sqlx::postgres::PgRow;

use super::places::{NO_FENCE, NOW, state};
use super::{blocked, rows};
use crate::inbox::event::EventState;
use crate::inbox::handlers::HandlerNote;
use crate::inbox::records::{KindStats, Pause, Stats};
use crate::postgres::engine::{column, corrupt};
use crate::route::{EventType, Scope};
use crate::store::OpenError as Error;

/// Route, kind, waiting, in progress, retrying, dead, when the oldest was accepted, since when it is paused (0: it is not),
/// blocked lanes, the time, the note of the pause, events that wait for no other event.
pub(super) fn count() -> String {
    let counts = |table: &str, fence: &str, found: &str| {
        format!(
            "SELECT kind, {} AS state, count(*) AS events, min(seq) AS oldest, '{table}' <> 'wait' AS is_ready
            FROM {{schema}}.{table} AS t {found} GROUP BY 1, 2",
            state(fence)
        )
    };
    let tables = [
        counts("head", "t.fence", "WHERE t.due IS NOT NULL"),
        counts("wait", NO_FENCE, ""),
        counts("aside", NO_FENCE, ""),
        "SELECT kind, 'dead', count(*), NULL, false FROM {schema}.dead GROUP BY 1".to_owned(),
    ];
    let [waiting, in_progress, retrying, dead] = [
        EventState::Waiting,
        EventState::InProgress,
        EventState::Retrying,
        EventState::Dead,
    ]
    .map(|state| format!("coalesce(sum(c.events) FILTER (WHERE c.state = '{state}'), 0)::bigint"));
    format!(
        "WITH clock AS MATERIALIZED (SELECT {{schema}}.micros() AS now)
        SELECT k.route, k.name, {waiting}, {in_progress}, {retrying}, {dead},
            (SELECT e.accepted FROM {{schema}}.events AS e WHERE e.seq = min(c.oldest)), k.paused,
            coalesce(max(b.lanes), 0), (SELECT now FROM clock), k.note,
            coalesce(sum(c.events) FILTER (WHERE c.state = 'waiting' AND c.is_ready), 0)::bigint
        FROM {{schema}}.kinds AS k LEFT JOIN ({}) AS c ON c.kind = k.id LEFT JOIN (
            {}
        ) AS b ON b.o_kind = k.id
        WHERE k.is_seen OR k.paused > 0 OR k.name = ''
        GROUP BY k.id ORDER BY k.name, k.route",
        tables
            .join(" UNION ALL ")
            .replace(NOW, "(SELECT now FROM clock)"),
        blocked::COUNT
    )
}

pub(super) fn stats(rows: &[PgRow]) -> Result<Stats, Error> {
    let first = rows.first();
    let first = first.ok_or_else(|| corrupt("counts without the row of everything"))?;
    let mut stats = Stats {
        kinds: Vec::new(),
        at: rows::time(column(first, 9)?),
        pauses: Vec::new(),
        handlers: Vec::new(),
    };
    for row in rows {
        stats.pauses.extend(pause(row)?);
        if !column::<&str>(row, 1)?.is_empty() {
            stats.kinds.push(kind_stats(row, &stats.pauses)?);
        }
    }
    stats
        .kinds
        .sort_by(|a, b| (&a.route, &a.kind).cmp(&(&b.route, &b.kind)));
    stats.pauses.sort_by(|a, b| a.of.cmp(&b.of));
    Ok(stats)
}

/// The notes on handlers, and the time. Without a note, the time alone.
pub(super) const HANDLERS: &str = "
    SELECT now, handled, is_fallback, since, seen, worker
    FROM {schema}.micros() AS now LEFT JOIN {schema}.handlers ON keep_until >= now";

pub(super) fn handlers(rows: &[PgRow]) -> Result<(Vec<HandlerNote>, SystemTime), Error> {
    let first = rows.first();
    let first = first.ok_or_else(|| corrupt("notes on handlers without the time"))?;
    let mut notes = Vec::new();
    for row in rows {
        let Some(of) = column::<Option<&str>>(row, 1)? else {
            continue;
        };
        notes.push(HandlerNote {
            of: of.parse().map_err(corrupt)?,
            is_fallback: column(row, 2)?,
            missed_since: Some(rows::time(column(row, 3)?)),
            seen: rows::time(column(row, 4)?),
            worker: column(row, 5)?,
        });
    }
    let notes = HandlerNote::with_missed(notes);
    Ok((notes, rows::time(column(first, 0)?)))
}

/// The pause of a row.
fn pause(row: &PgRow) -> Result<Option<Pause>, Error> {
    let since = column(row, 7)?;
    if since == 0 {
        return Ok(None);
    }
    Ok(Some(Pause {
        of: match (column(row, 0)?, column(row, 1)?) {
            ("", _) => Scope::Everything,
            (_, "") => Scope::Route(rows::route(row, 0)?),
            _ => EventType::new(rows::route(row, 0)?, rows::kind(row, 1)?).into(),
        },
        since: rows::time(since),
        note: column::<Option<String>>(row, 10)?.unwrap_or_default(),
    }))
}

/// The counts of a kind, whose pause and that of its route are known.
fn kind_stats(row: &PgRow, pauses: &[Pause]) -> Result<KindStats, Error> {
    let count = |at| column::<i64>(row, at).map(i64::unsigned_abs);
    let (route, kind) = (rows::route(row, 0)?, rows::kind(row, 1)?);
    let is_paused = |of: &Scope| *of != Scope::Everything && of.has(&route, &kind);
    Ok(KindStats {
        waiting: count(2)?,
        ready: count(11)?,
        in_progress: count(3)?,
        retrying: count(4)?,
        dead: count(5)?,
        blocking: count(8)?,
        oldest: column::<Option<i64>>(row, 6)?.map(rows::time),
        is_paused: pauses.iter().any(|pause| is_paused(&pause.of)),
        route,
        kind,
    })
}
