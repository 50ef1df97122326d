//! The statements that the queue is made of. What changes events is in functions of the schema.

use std::fmt::Write;
use std::sync::Arc;

use crate::inbox::event::{EventState, Filter, Page};
use crate::storage::postgres::{List, Schema, Value};

use super::rows;

/// The statements, with the schema's name in them.
pub(super) struct Statements {
    pub(super) accept: Arc<str>,
    pub(super) claim: Arc<str>,
    pub(super) extend: Arc<str>,
    pub(super) settle: Arc<str>,
    pub(super) get: Arc<str>,
    pub(super) failures: Arc<str>,
    pub(super) redrive: Arc<str>,
    pub(super) discard: Arc<str>,
    pub(super) forget: Arc<str>,
    pub(super) pause: Arc<str>,
    pub(super) purge: Arc<str>,
    pub(super) stats: Arc<str>,
    pub(super) size: Arc<str>,
}

impl Statements {
    pub(super) fn new(schema: &Schema) -> Self {
        let sql = |sql: &str| Arc::from(schema.sql(sql));
        Self {
            accept: sql(ACCEPT),
            claim: sql("SELECT * FROM {schema}.claim($1, $2, $3, $4, $5)"),
            extend: sql(EXTEND),
            settle: sql(SETTLE),
            get: sql(&format!(
                "SELECT {COLUMNS}, e.body FROM {} WHERE e.seq = $1",
                Source::Events.sql()
            )),
            failures: sql(
                "SELECT at, outcome, reason FROM {schema}.failures WHERE seq = $1 ORDER BY id",
            ),
            redrive: sql("SELECT {schema}.redrive($1)"),
            discard: sql("SELECT {schema}.discard($1)"),
            forget: sql("SELECT {schema}.forget($1[1])"),
            pause: sql("
                INSERT INTO {schema}.kinds (name, is_seen, is_paused) VALUES ($1, false, $2::bigint > 0)
                ON CONFLICT (name) DO UPDATE SET is_paused = excluded.is_paused
            "),
            purge: sql("SELECT {schema}.purge($1, $2)"),
            stats: sql(&stats()),
            size: sql(SIZE),
        }
    }

    /// A page of the events that match, and its parameters.
    pub(super) fn list(schema: &Schema, filter: &Filter, page: Page) -> (Arc<str>, Vec<Value>) {
        let mut values = Vec::new();
        let mut conditions = String::from("true");
        let mut and = |condition: &str, value: Value| {
            values.push(value);
            let parameter = format!("${}", values.len());
            let _ = write!(conditions, " AND {}", condition.replace('?', &parameter));
        };
        if !filter.states.is_empty() {
            let states = filter.states.iter().map(|state| Some(rows::code(*state)));
            and(
                "s.state = ANY (?)",
                Value::List(List::Numbers(states.collect())),
            );
        }
        if !filter.kinds.is_empty() {
            let kinds = filter.kinds.iter().map(ToString::to_string);
            and(
                "k.name = ANY (?)",
                Value::List(List::Texts(Some(kinds.collect()))),
            );
        }
        if let Some(chat) = &filter.chat {
            let chat = rows::bytes(chat.as_bytes());
            and(
                "e.chat = ?[1] AND substr(sha256(e.chat), 1, 8) = substr(sha256(?[1]), 1, 8)",
                chat,
            );
        }
        if let Some(key) = &filter.key {
            and("e.key = ?[1]", rows::bytes(key.as_bytes()));
        }
        if let Some(from) = filter.accepted_from {
            and("e.accepted >= ?", Value::Number(rows::micros_of(from)));
        }
        if let Some(until) = filter.accepted_until {
            and("e.accepted < ?", Value::Number(rows::micros_of(until)));
        }
        let (after, order) = match page.newest_first {
            true => ("e.seq < ?", "DESC"),
            false => ("e.seq > ?", "ASC"),
        };
        if let Some(id) = page.after {
            and(after, Value::Number(id.0));
        }
        values.push(Value::Number(i64::try_from(page.limit).unwrap_or(i64::MAX)));
        let sql = format!(
            "SELECT {COLUMNS} FROM {} WHERE {conditions} ORDER BY e.seq {order} LIMIT ${}",
            Source::of(filter).sql(),
            values.len()
        );
        (Arc::from(schema.sql(&sql)), values)
    }
}

/// Many events at once, in their order.
const ACCEPT: &str = "
    SELECT a.o_answer, a.o_same, a.o_remaining, a.o_seq, a.o_accepted, a.o_fence
    FROM {schema}.accept_all($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) AS a
    ORDER BY a.o_at";

const EXTEND: &str = "
    SELECT {schema}.extend(e.seq, e.fence, e.place, $4)
    FROM unnest($1::bigint[], $2::uuid[], $3::bigint[]) WITH ORDINALITY AS e (seq, fence, place, at)
    ORDER BY e.at";

const SETTLE: &str = "
    SELECT
        s.o_is_held, s.o_seq, s.o_fence, s.o_place, s.o_is_in_lane, s.o_kind, s.o_key, s.o_body, s.o_accepted,
        s.o_is_redriven, s.o_failures, s.o_crashes, s.o_tried_for
    FROM {schema}.settle_all($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) AS s
    ORDER BY s.o_at";

/// Where a list looks for events.
enum Source {
    /// All of them, by their numbers.
    Events,
    /// Only those that are unsettled or dead: few, beside those that were handled.
    Kept,
}

impl Source {
    fn of(filter: &Filter) -> Self {
        let is_kept = |state: &EventState| state.is_unsettled() || *state == EventState::Dead;
        let are_kept = !filter.states.is_empty() && filter.states.iter().all(is_kept);
        match are_kept && filter.chat.is_none() {
            true => Self::Kept,
            false => Self::Events,
        }
    }

    fn sql(&self) -> String {
        let unsettled = |table: &str, fence: &str, found: &str| {
            let state = state("t", fence);
            format!(
                "SELECT t.seq, {state} AS state, NULL::bigint AS at,
                    CASE WHEN t.due > {NOW} AND {fence} IS NULL THEN t.due END AS due, t.failures
                FROM {{schema}}.{table} AS t WHERE {found}"
            )
        };
        let (head, wait, aside, dead) = match self {
            Self::Events => (
                "t.lane = coalesce(e.lane, 0) AND t.own = CASE WHEN e.lane IS NULL THEN e.seq ELSE 0 END
                    AND t.seq = e.seq AND t.due < 9223372036854775807",
                "t.lane = e.lane AND t.seq = e.seq",
                "t.seq = e.seq",
                "t.seq = e.seq",
            ),
            Self::Kept => ("t.due < 9223372036854775807", "true", "true", "true"),
        };
        let mut tables = vec![
            unsettled("head", "t.fence", head),
            unsettled("wait", "NULL::uuid", wait),
            unsettled("aside", "NULL::uuid", aside),
            format!(
                "SELECT t.seq, 6 AS state, t.at, NULL::bigint AS due, t.failures
                FROM {{schema}}.dead AS t WHERE {dead}"
            ),
        ];
        if matches!(self, Self::Events) {
            tables.push(
                "SELECT t.seq, t.state::integer, t.at, NULL::bigint AS due, t.failures
                FROM {schema}.ended AS t WHERE t.seq = e.seq"
                    .to_owned(),
            );
        }
        let tables = tables.join(" UNION ALL ");
        match self {
            Self::Events => format!(
                "{{schema}}.events AS e JOIN {{schema}}.kinds AS k ON k.id = e.kind
                CROSS JOIN LATERAL ({tables}) AS s"
            ),
            Self::Kept => format!(
                "({tables}) AS s JOIN {{schema}}.events AS e ON e.seq = s.seq
                JOIN {{schema}}.kinds AS k ON k.id = e.kind"
            ),
        }
    }
}

const NOW: &str = "(SELECT {schema}.micros())";

/// What [`rows::summary`] reads.
const COLUMNS: &str =
    "e.seq, k.name, e.key, e.chat, s.state::bigint, e.accepted, s.at, s.due, s.failures,
    e.is_redriven";

/// The state of an event that is unsettled, in the numbers of [`rows::code`].
fn state(table: &str, fence: &str) -> String {
    format!(
        "CASE
            WHEN {fence} IS NOT NULL AND {table}.due > {NOW} THEN 1
            WHEN {table}.is_tried OR {table}.crashes > 0 OR {fence} IS NOT NULL THEN 2
            ELSE 0
        END"
    )
}

/// Kind, waiting, in progress, retrying, dead, when the oldest was accepted, whether it is paused.
fn stats() -> String {
    let counts = |table: &str, fence: &str, found: &str| {
        let state = state("t", fence);
        format!(
            "SELECT kind, {state} AS state, count(*) AS events, min(seq) AS oldest
            FROM {{schema}}.{table} AS t {found} GROUP BY 1, 2"
        )
    };
    let tables = [
        counts("head", "t.fence", "WHERE t.due < 9223372036854775807"),
        counts("wait", "NULL::uuid", ""),
        counts("aside", "NULL::uuid", ""),
        "SELECT kind, 6, count(*), NULL FROM {schema}.dead GROUP BY 1".to_owned(),
    ];
    let sum =
        |state: u8| format!("coalesce(sum(c.events) FILTER (WHERE c.state = {state}), 0)::bigint");
    format!(
        "SELECT k.name, {}, {}, {}, {},
            (SELECT e.accepted FROM {{schema}}.events AS e WHERE e.seq = min(c.oldest)), k.is_paused
        FROM {{schema}}.kinds AS k LEFT JOIN ({}) AS c ON c.kind = k.id
        WHERE k.is_seen OR k.is_paused OR k.name = ''
        GROUP BY k.id",
        sum(0),
        sum(1),
        sum(2),
        sum(6),
        tables.join(" UNION ALL ")
    )
}

/// Of a large table, a sample of some 1,000 pages: within some percent. An event without its body takes about 400
/// bytes, with its key and what the indexes have of it.
const SIZE: &str = "
    WITH pages AS MATERIALIZED (
        SELECT greatest(pg_relation_size($1::text::regclass) / current_setting('block_size')::bigint, 1)::float8
            AS pages
    ), share AS MATERIALIZED (
        SELECT CASE WHEN pages <= 2000 THEN 100 ELSE 100000 / pages END AS share FROM pages
    )
    SELECT (
        (SELECT coalesce(sum(400 + coalesce(pg_column_size(body), 0)), 0)
            FROM {schema}.events TABLESAMPLE SYSTEM ((SELECT share FROM share)))
        * 100 / (SELECT share FROM share)
    )::bigint";
