//! What a person sees beside lists, and changes. Concurrent calls for events share a statement.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use sqlx::postgres::PgRow;

use super::batches::{Batches, Call, Executed, Result, share};
use super::database::Database;
use super::places::{COLUMNS, NO_FENCE, NOW, every_event, state};
use super::{actions, parameters, rows};
use crate::event::EventKind;
use crate::inbox::actions::{By, chat_digest, paused};
use crate::inbox::event::{EventId, EventState, Failure, Lane};
use crate::inbox::records::{
    BlockedLane, Change, EventRecord, FORGET_STEP, Forgotten, KindStats, PastFailure, Pause, Stats,
};
use crate::postgres::engine::{Value, column, corrupt};
use crate::store::OpenError as Error;

const FAILURES: &str = "SELECT at, outcome, reason, took, seq FROM {schema}.failures WHERE seq = ANY ($1) ORDER BY seq, id";

const BLOCKED_LANES: &str = "SELECT * FROM {schema}.blocked_lanes($1, $2, $3) ORDER BY o_seq";

/// Many events at once, in their order.
const CHANGE: &str = "SELECT o_answer FROM {schema}.change($1, $2, $3, $4, $5) ORDER BY o_at";

const FORGET: &str =
    "SELECT o_bodies, o_next, o_last FROM {schema}.forget($1, $2, $3, $4, $5, $6, $7, $8)";

const PAUSE: &str = "
    WITH paused AS (
        INSERT INTO {schema}.kinds (name, is_seen, paused, note)
        VALUES ($1, false, CASE WHEN $2 > 0 THEN {schema}.micros() ELSE 0 END, CASE WHEN $2 > 0 THEN $3 END)
        ON CONFLICT (name, namespace) DO UPDATE SET paused = excluded.paused, note = excluded.note
    )
    INSERT INTO {schema}.actions (at, who, reason, what, about, changed) VALUES ({schema}.micros(), $4, $5, $6, $1, 0)";

const PAUSES: &str = "SELECT name, paused, note FROM {schema}.kinds WHERE paused > 0 ORDER BY name";

pub(super) struct Person {
    database: Arc<Database>,
    gets: Arc<Batches<Get>>,
    changes: Arc<Batches<Changing>>,
}

impl Person {
    pub(super) fn new(database: &Arc<Database>) -> Self {
        let get = format!(
            "SELECT {COLUMNS}, e.body, e.headers FROM {} WHERE e.seq = ANY ($1)",
            every_event()
        );
        let get: Arc<str> = get.into();
        let gets = move |database: Arc<Database>, calls| {
            let get = Arc::clone(&get);
            async move { records(&database, &get, calls).await }
        };
        let changes = |database: Arc<Database>, calls: Vec<Changing>| async move {
            database.execute(CHANGE, &calls, changed, change).await
        };
        Self {
            database: Arc::clone(database),
            gets: database.batches(gets),
            changes: database.batches(changes),
        }
    }

    pub(super) async fn get(&self, id: EventId) -> Result<Option<EventRecord>> {
        self.gets.call(Get(id)).await
    }

    pub(super) async fn blocked_lanes(
        &self,
        chat: Option<&str>,
        after: Option<EventId>,
        limit: usize,
    ) -> Result<Vec<BlockedLane>> {
        let values = [
            Value::Optional(chat.map(|chat| Lane::of_chat(chat).0)),
            Value::Number(after.map_or(i64::MIN, |id| id.0)),
            parameters::number(limit),
        ];
        let lanes = self.database.read(BLOCKED_LANES, &values).await?;
        Ok(lanes.iter().map(blocked_lane).collect::<Result<_, _>>()?)
    }

    /// Redrives an event, or discards it.
    pub(super) async fn change(
        &self,
        id: EventId,
        from: Option<EventState>,
        redrives: bool,
        by: &By,
    ) -> Result<Change> {
        let change = Changing {
            id,
            from,
            redrives,
            by: by.clone(),
        };
        self.changes.call(change).await
    }

    pub(super) async fn forget(
        &self,
        chat: &str,
        events: Option<RangeInclusive<EventId>>,
        by: &By,
    ) -> Result<Forgotten> {
        let (first, last) = events.map_or((i64::MIN, None), |events| {
            (events.start().0, Some(events.end().0))
        });
        let [who, reason] = actions::by(by);
        let values = [
            Value::Number(Lane::of_chat(chat).0),
            Value::Bytes(Bytes::copy_from_slice(chat.as_bytes())),
            Value::Number(first),
            Value::Optional(last),
            parameters::number(FORGET_STEP),
            who,
            reason,
            Value::Text(chat_digest(chat)),
        ];
        let row = self.database.call_when_free(FORGET, &values).await?;
        let (next, last): (Option<i64>, Option<i64>) = (column(&row, 1)?, column(&row, 2)?);
        Ok(Forgotten {
            bodies: column::<i64>(&row, 0)?.unsigned_abs(),
            rest: next
                .zip(last)
                .map(|(next, last)| EventId(next)..=EventId(last)),
        })
    }

    pub(super) async fn pause(
        &self,
        kind: Option<&EventKind>,
        note: Option<&str>,
        by: &By,
    ) -> Result<()> {
        let (kind, done) = paused(kind, note);
        let [who, reason] = actions::by(by);
        let is_paused = Value::Number(note.is_some().into());
        let note = note.unwrap_or_default().replace('\0', " ");
        let values = [
            Value::Text(kind),
            is_paused,
            Value::Text(note),
            who,
            reason,
            Value::Text(done.name().to_owned()),
        ];
        self.database.call(PAUSE, values).await?;
        Ok(())
    }

    pub(super) async fn pauses(&self) -> Result<Vec<Pause>> {
        let pauses = self.database.read(PAUSES, &[]).await?;
        Ok(pauses.iter().map(pause).collect::<Result<_, Error>>()?)
    }

    pub(super) async fn stats(&self) -> Result<Stats> {
        let rows = self.database.read(&count(), &[]).await?;
        let first = rows.first();
        let first = first.ok_or_else(|| corrupt("counts without the row of all kinds"))?;
        let mut stats = Stats {
            kinds: Vec::new(),
            at: rows::time(column(first, 8)?),
            is_paused: false,
        };
        for row in &rows {
            match column::<&str>(row, 0)? {
                "" => stats.is_paused = column(row, 6)?,
                _ => stats.kinds.push(kind_stats(row)?),
            }
        }
        stats.kinds = KindStats::by_name(stats.kinds);
        Ok(stats)
    }
}

/// A call for an event with its body.
#[derive(Clone)]
struct Get(EventId);

impl Call for Get {
    type Return = Option<EventRecord>;
}

/// A call for a change.
#[derive(Clone)]
struct Changing {
    id: EventId,
    from: Option<EventState>,
    redrives: bool,
    by: By,
}

impl Call for Changing {
    type Return = Change;
}

/// Reads events, and then their failures.
async fn records(database: &Database, get: &str, calls: Vec<Get>) -> Executed<Option<EventRecord>> {
    let ids = [Value::numbers(calls.iter().map(|Get(id)| id.0))];
    let read = async {
        let (events, _) = database.search(get, &ids).await?;
        let (failures, _) = database.search(FAILURES, &ids).await?;
        let mut found = HashMap::new();
        for event in &events {
            found.insert(column::<i64>(event, 0)?, (event, Vec::new()));
        }
        for failure in &failures {
            if let Some((_, failures)) = found.get_mut(&column::<i64>(failure, 4)?) {
                failures.push(failure);
            }
        }
        let records = calls.iter().map(|Get(id)| {
            let found = found.get(&id.0);
            Ok(found
                .map(|(event, failures)| record(event, failures))
                .transpose()?)
        });
        Ok(records.collect())
    };
    let read: Result<_> = read.await;
    Executed::Done(read.unwrap_or_else(|error| share(error, calls.len())))
}

fn record(event: &PgRow, failures: &[&PgRow]) -> Result<EventRecord, Error> {
    Ok(EventRecord {
        summary: rows::summary(event)?,
        body: column::<Option<Vec<u8>>>(event, 10)?.map(Into::into),
        headers: rows::headers(event, 11)?,
        failures: failures
            .iter()
            .map(|row| failure(row))
            .collect::<Result<_, _>>()?,
    })
}

fn changed(calls: &[Changing]) -> Vec<Value> {
    let froms = calls
        .iter()
        .map(|call| call.from.map_or("", EventState::name));
    let texts = |text: fn(&By) -> &str| {
        Value::Texts(calls.iter().map(|call| text(&call.by).to_owned()).collect())
    };
    vec![
        Value::numbers(calls.iter().map(|call| call.id.0)),
        Value::Texts(froms.map(str::to_owned).collect()),
        Value::Flags(calls.iter().map(|call| call.redrives).collect()),
        texts(By::who),
        texts(By::reason),
    ]
}

fn change(_: &Changing, row: &PgRow) -> Result<Change, Error> {
    match column::<&str>(row, 0)? {
        "made" => Ok(Change::Made),
        "not-found" => Ok(Change::NotFound),
        "wrong-state" => Ok(Change::WrongState),
        "without-body" => Ok(Change::WithoutBody),
        _ => Err(corrupt("an unknown answer to a change")),
    }
}

/// Kind, waiting, in progress, retrying, dead, when the oldest was accepted, whether it is paused, blocked lanes, the
/// time.
fn count() -> String {
    let counts = |table: &str, fence: &str, found: &str| {
        format!(
            "SELECT kind, {} AS state, count(*) AS events, min(seq) AS oldest
            FROM {{schema}}.{table} AS t {found} GROUP BY 1, 2",
            state(fence)
        )
    };
    let tables = [
        counts("head", "t.fence", "WHERE t.due IS NOT NULL"),
        counts("wait", NO_FENCE, ""),
        counts("aside", NO_FENCE, ""),
        "SELECT kind, 'dead', count(*), NULL FROM {schema}.dead GROUP BY 1".to_owned(),
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
        SELECT k.name, {waiting}, {in_progress}, {retrying}, {dead},
            (SELECT e.accepted FROM {{schema}}.events AS e WHERE e.seq = min(c.oldest)), k.paused > 0,
            coalesce(max(b.lanes), 0), (SELECT now FROM clock)
        FROM {{schema}}.kinds AS k LEFT JOIN ({}) AS c ON c.kind = k.id LEFT JOIN (
            SELECT o_kind, count(*) AS lanes FROM {{schema}}.blocked((SELECT now FROM clock), NULL) GROUP BY o_kind
        ) AS b ON b.o_kind = k.id
        WHERE k.is_seen OR k.paused > 0 OR k.name = ''
        GROUP BY k.id",
        tables.join(" UNION ALL ").replace(NOW, "(SELECT now FROM clock)")
    )
}

fn pause(row: &PgRow) -> Result<Pause, Error> {
    Ok(Pause {
        kind: match column::<&str>(row, 0)? {
            "" => None,
            _ => Some(rows::kind(row, 0)?),
        },
        since: rows::time(column(row, 1)?),
        note: column::<Option<String>>(row, 2)?.unwrap_or_default(),
    })
}

fn blocked_lane(row: &PgRow) -> Result<BlockedLane, Error> {
    Ok(BlockedLane {
        event: rows::summary(row)?,
        since: rows::time(column(row, 10)?),
        waiting: column::<i64>(row, 11)?.unsigned_abs(),
    })
}

/// The counts of a kind.
fn kind_stats(row: &PgRow) -> Result<KindStats, Error> {
    let count = |at| column::<i64>(row, at).map(i64::unsigned_abs);
    Ok(KindStats {
        kind: rows::kind(row, 0)?,
        waiting: count(1)?,
        in_progress: count(2)?,
        retrying: count(3)?,
        dead: count(4)?,
        blocking: count(7)?,
        oldest: column::<Option<i64>>(row, 5)?.map(rows::time),
        is_paused: column(row, 6)?,
    })
}

fn failure(row: &PgRow) -> Result<PastFailure, Error> {
    Ok(PastFailure {
        at: rows::time(column(row, 0)?),
        failure: Failure {
            outcome: rows::text(row, 1)?.unwrap_or_default(),
            reason: rows::text(row, 2)?.unwrap_or_default(),
            took: rows::duration(row, 3)?,
        },
    })
}
