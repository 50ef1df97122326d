//! The statements that the store is made of.

use std::sync::Arc;

use crate::postgres::engine::Schema;

/// The statements, with the schema's name in them.
pub(super) struct Statements {
    pub(super) claim: Arc<str>,
    pub(super) peek: Arc<str>,
    pub(super) renew: Arc<str>,
    pub(super) complete: Arc<str>,
    pub(super) release: Arc<str>,
    pub(super) insert: Arc<str>,
    pub(super) number: Arc<str>,
    pub(super) same_body: Arc<str>,
    pub(super) end_attempt: Arc<str>,
    pub(super) purge: Arc<str>,
}

impl Statements {
    pub(super) fn new(schema: &Schema) -> Self {
        let sql = |sql: &str| Arc::from(schema.sql(sql));
        let limited = |settings: &[&str], milliseconds: &str, text: &str| {
            let limits = settings.iter().map(|setting| limit(setting, milliseconds));
            let limits: Vec<_> = limits.collect();
            sql(&text.replace("{limits}", &limits.join(", ")))
        };
        let (statement, idle) = ("statement_timeout", "idle_in_transaction_session_timeout");
        Self {
            claim: sql(CLAIM),
            peek: sql(PEEK),
            renew: sql(RENEW),
            complete: sql(COMPLETE),
            release: sql(RELEASE),
            insert: limited(&[statement, idle], "$5", INSERT),
            number: limited(&[statement, idle], "$1", NUMBER),
            same_body: sql("SELECT body = $2 FROM {schema}.keys WHERE key = $1"),
            end_attempt: limited(&[idle], "$5", END_ATTEMPT),
            purge: sql(PURGE),
        }
    }
}

/// Sets a limit for the rest of a transaction, in milliseconds. A shorter limit of the connection remains, and zero is
/// no limit.
fn limit(setting: &str, milliseconds: &str) -> String {
    format!(
        "set_config(
            '{setting}',
            CASE
                WHEN nullif(current_setting('{setting}'), '0')::interval
                    < ({milliseconds}::text || 'ms')::interval
                    THEN current_setting('{setting}')
                ELSE {milliseconds}::text
            END,
            true
        )"
    )
}

// Time is `clock_timestamp()`: unlike `now()` it also advances while a statement waits for a row.

/// The key of an event that the inbox has accepted is done until the inbox deletes both: the event may be
/// unsettled for longer than its key is kept.
///
/// `seen` answers duplicates without a write. What it does not see, because it came after
/// the statement began, the insertion meets: then there is no row at all.
const CLAIM: &str = "
    WITH seen AS MATERIALIZED (
        SELECT
            body = $2 AS same_body,
            extract(epoch FROM lease_until - clock_timestamp()) AS remaining
        FROM {schema}.keys
        WHERE key = $1
            AND (done_until > clock_timestamp() OR lease_until > clock_timestamp()
                OR event IS NOT NULL)
    ), claimed AS (
        INSERT INTO {schema}.keys AS known
            (key, body, fence, lease_until, known_until, attempts)
        SELECT
            $1,
            $2,
            gen_random_uuid(),
            clock_timestamp() + $3 * interval '1 microsecond',
            clock_timestamp() + $4 * interval '1 microsecond',
            1
        WHERE NOT EXISTS (SELECT FROM seen)
        ON CONFLICT (key) DO UPDATE SET
            body = excluded.body,
            done_until = NULL,
            fence = excluded.fence,
            lease_until = clock_timestamp() + $3 * interval '1 microsecond',
            known_until = clock_timestamp() + $4 * interval '1 microsecond',
            attempts = CASE
                WHEN known.known_until > clock_timestamp()
                    THEN least(known.attempts, 2147483646) + 1
                ELSE 1
            END
        WHERE (known.done_until > clock_timestamp()
            OR known.lease_until > clock_timestamp()
            OR known.event IS NOT NULL) IS NOT TRUE
        RETURNING fence, attempts
    )
    SELECT fence, attempts, NULL AS same_body, NULL AS remaining FROM claimed
    UNION ALL
    SELECT NULL, NULL, same_body, ceil(remaining * 1000000)::bigint FROM seen";

const PEEK: &str = "
    SELECT ceil(extract(epoch FROM lease_until - clock_timestamp()) * 1000000)::bigint
    FROM {schema}.keys
    WHERE key = $1
        AND (done_until > clock_timestamp() OR lease_until > clock_timestamp()
            OR event IS NOT NULL)";

const RENEW: &str = "
    UPDATE {schema}.keys
    SET lease_until = clock_timestamp() + $3 * interval '1 microsecond'
    WHERE key = $1 AND fence = $2 AND lease_until > clock_timestamp()
    RETURNING true";

const COMPLETE: &str = "
    UPDATE {schema}.keys
    SET done_until = clock_timestamp() + $3 * interval '1 microsecond',
        fence = NULL,
        lease_until = NULL,
        known_until = NULL,
        attempts = NULL
    WHERE key = $1 AND fence = $2 AND lease_until > clock_timestamp()
    RETURNING true";

const RELEASE: &str = "
    UPDATE {schema}.keys
    SET fence = NULL, lease_until = NULL
    WHERE key = $1 AND fence = $2 AND lease_until > clock_timestamp()
    RETURNING true";

/// `limited` is computed once, before the insertion, which may wait; the returned columns are
/// computed after it. So each limit is in force for the statements that it is meant for.
const INSERT: &str = "
    WITH limited AS MATERIALIZED (
        SELECT
            current_setting('lock_timeout') AS before,
            set_config('lock_timeout', $4, true)
    )
    INSERT INTO {schema}.keys (key, body, done_until)
    SELECT $1, $2, clock_timestamp() + $3 * interval '1 microsecond' FROM limited
    ON CONFLICT (key) DO NOTHING
    RETURNING
        pg_current_xact_id()::text,
        set_config('lock_timeout', (SELECT before FROM limited), true),
        {limits}";

const NUMBER: &str = "
    SELECT
        pg_current_xact_id()::text,
        {limits}";

/// `settle` is called in a transaction that is the one of this number, and not elsewhere.
const END_ATTEMPT: &str = "
    SELECT
        pg_current_xact_id()::text = $1,
        CASE WHEN pg_current_xact_id()::text = $1
            AND current_setting('transaction_isolation') = 'read committed'
        THEN (
            SELECT s.o_is_held
            FROM {schema}.settle(
                ARRAY[$2], ARRAY[$3], ARRAY[$4], '{handled}', '{0}', '{0}', '{false}', '{false}',
                ARRAY[NULL::bigint], ARRAY[NULL::text], '{}', '{}', '{}', '{}', '{}', '{}', '{}'
            ) AS s
        ) END,
        {limits}";

/// The rows are found by where they lie, which takes no index. Those that another transaction has
/// locked are left alone. The page after the last one is the first.
const PURGE: &str = "
    WITH size AS MATERIALIZED (
        SELECT pg_relation_size($1::text::regclass)
            / current_setting('block_size')::bigint AS pages
    ), step AS MATERIALIZED (
        SELECT CASE
            WHEN $2 IS NULL THEN floor(random() * pages)::bigint
            WHEN $2 < pages THEN $2
            ELSE 0
        END AS page
        FROM size
    ), purged AS (
        DELETE FROM {schema}.keys WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM {schema}.keys
            WHERE ctid >= format('(%s,0)', (SELECT page FROM step))::tid
                AND ctid < format('(%s,0)', (SELECT page + $3 FROM step))::tid
                AND greatest(done_until, lease_until, known_until) <= clock_timestamp()
                AND event IS NULL
            FOR UPDATE SKIP LOCKED
        ))
        RETURNING true
    )
    SELECT (SELECT count(*) FROM purged), page + $3, page + $3 >= pages
    FROM size, step";
