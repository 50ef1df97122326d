//! The statements that the queue is made of. What changes events is in functions of the schema.

use std::sync::Arc;

use super::list;
use crate::postgres::pool::Schema;

/// The statements, with the schema's name in them.
pub(super) struct Statements {
    pub(super) accept: Arc<str>,
    pub(super) claim: Arc<str>,
    pub(super) extend: Arc<str>,
    pub(super) settle: Arc<str>,
    pub(super) get: Arc<str>,
    pub(super) failures: Arc<str>,
    pub(super) find: Arc<str>,
    pub(super) kinds: Arc<str>,
    pub(super) numbers: Arc<str>,
    pub(super) from_number: Arc<str>,
    pub(super) blocked_lanes: Arc<str>,
    pub(super) redrive: Arc<str>,
    pub(super) redrive_from: Arc<str>,
    pub(super) discard: Arc<str>,
    pub(super) discard_from: Arc<str>,
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
            claim: sql(CLAIM),
            extend: sql(EXTEND),
            settle: sql(SETTLE),
            get: sql(&format!(
                "SELECT {COLUMNS}, e.body, e.headers FROM {} WHERE e.seq = $1",
                list::every_event()
            )),
            failures: sql(
                "SELECT at, outcome, reason, took FROM {schema}.failures WHERE seq = $1 ORDER BY id",
            ),
            find: sql("SELECT event FROM {schema}.keys WHERE key = $1 AND event IS NOT NULL"),
            kinds: sql("SELECT id::bigint FROM {schema}.kinds WHERE name = ANY ($1)"),
            numbers: sql("SELECT min(seq), max(seq) FROM {schema}.events"),
            from_number: sql(
                "SELECT seq, accepted FROM {schema}.events WHERE seq >= $1 ORDER BY seq LIMIT 1",
            ),
            blocked_lanes: sql("SELECT * FROM {schema}.blocked_lanes($1[1], $2, $3) ORDER BY o_seq"),
            redrive: sql("SELECT {schema}.redrive($1)"),
            redrive_from: sql("SELECT {schema}.redrive_from($1, $2)"),
            discard: sql("SELECT {schema}.discard($1)"),
            discard_from: sql("SELECT {schema}.discard_from($1, $2)"),
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
}

/// Many events at once, in their order.
const ACCEPT: &str = "
    SELECT
        a.o_answer, a.o_same, a.o_remaining, a.o_seq, a.o_accepted, a.o_fence,
        CASE WHEN a.o_answer = 0 THEN {schema}.note_duration(a.o_seq, $16[a.o_at]) END
    FROM {schema}.accept_all($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15) AS a
    ORDER BY a.o_at";

const CLAIM: &str = "SELECT * FROM {schema}.claim($1, $2, $3, $4, $5, $6, $7, $8, $9)";

const EXTEND: &str = "
    SELECT {schema}.extend(e.seq, e.fence, e.place, $4)
    FROM unnest($1::bigint[], $2::uuid[], $3::bigint[]) WITH ORDINALITY AS e (seq, fence, place, at)
    ORDER BY e.at";

/// The durations of attempts are noted for those that failed. The headers are looked up once for all events: few have
/// any.
const SETTLE: &str = "
    WITH settled AS MATERIALIZED (
        SELECT s.*, CASE WHEN s.o_is_held THEN {schema}.note_duration($1[s.o_at], $14[s.o_at]) END AS is_noted
        FROM {schema}.settle_all($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) AS s
    ), kept AS MATERIALIZED (
        SELECT * FROM {schema}.headers_of((SELECT array_agg(s.o_seq) FROM settled AS s WHERE s.o_seq IS NOT NULL))
    )
    SELECT
        s.o_is_held, s.o_seq, s.o_fence, s.o_place, s.o_is_in_lane, s.o_kind, s.o_key, s.o_body, s.o_accepted,
        s.o_is_redriven, s.o_failures, s.o_crashes, s.o_tried_for, k.o_headers
    FROM settled AS s LEFT JOIN kept AS k ON k.o_event = s.o_seq
    ORDER BY s.o_at";

pub(super) const NOW: &str = "(SELECT {schema}.micros())";

/// What [`rows::summary`](super::rows::summary) reads.
pub(super) const COLUMNS: &str =
    "e.seq, k.name, e.key, e.chat, s.state::bigint, e.accepted, s.at, s.due, s.failures,
    e.is_redriven";

/// The state of an event that is unsettled, in the numbers of [`rows::code`](super::rows::code).
pub(super) fn state(table: &str, fence: &str) -> String {
    format!(
        "CASE
            WHEN {fence} IS NOT NULL AND {table}.due > {NOW} THEN 1
            WHEN {table}.is_tried OR {table}.crashes > 0 OR {fence} IS NOT NULL THEN 2
            ELSE 0
        END"
    )
}

/// Kind, waiting, in progress, retrying, dead, when the oldest was accepted, whether it is paused, blocked lanes, the
/// time.
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
        "WITH clock AS MATERIALIZED (SELECT {{schema}}.micros() AS now)
        SELECT k.name, {}, {}, {}, {},
            (SELECT e.accepted FROM {{schema}}.events AS e WHERE e.seq = min(c.oldest)), k.is_paused,
            coalesce(max(b.lanes), 0), (SELECT now FROM clock)
        FROM {{schema}}.kinds AS k LEFT JOIN ({}) AS c ON c.kind = k.id LEFT JOIN (
            SELECT o_kind, count(*) AS lanes FROM {{schema}}.blocked((SELECT now FROM clock), NULL) GROUP BY o_kind
        ) AS b ON b.o_kind = k.id
        WHERE k.is_seen OR k.is_paused OR k.name = ''
        GROUP BY k.id",
        sum(0),
        sum(1),
        sum(2),
        sum(6),
        tables.join(" UNION ALL ").replace(NOW, "(SELECT now FROM clock)")
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
        (SELECT coalesce(sum(400 + coalesce(pg_column_size(body), 0) + coalesce(pg_column_size(headers), 0)), 0)
            FROM {schema}.events TABLESAMPLE SYSTEM ((SELECT share FROM share)))
        * 100 / (SELECT share FROM share)
    )::bigint";
