//! The Postgres store, on sqlx.

mod pool;
pub(crate) mod transaction;

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::pool::PoolConnection;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{
    PgArgumentBuffer, PgPool, PgRow, PgTypeInfo, PgValueFormat, PgValueRef, Postgres,
};
use sqlx::{AssertSqlSafe, Decode, Encode, Row, Type};
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::time::timeout;

use self::pool::Pool;
use super::{
    Claim, EventKey, Fence, KeyState, Lease, SettleError, Store, StoreError, StoreErrorKind,
};
use crate::config::ConfigError;
use crate::error::Chain;

/// Remembers keys in PostgreSQL, on your application's own pool of connections: for several machines
/// that share their keys, or where a PostgreSQL is at hand.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use sqlx::PgPool;
/// use tower_webhook::store::PostgresStore;
/// use tower_webhook::{Secret, WebhookLayer};
///
/// let pool = PgPool::connect("postgres://app@db.internal/app").await?;
/// let store = PostgresStore::new(pool);
/// store.migrate().await?;
/// let layer = WebhookLayer::with_store(Secret::from_env("WEBHOOK_SECRET")?, store);
/// # Ok(())
/// # }
/// ```
///
/// **What it guarantees.** One run at a time per key, and none after a success, over all processes
/// that use the same schema of one database. Receivers and server may restart.
///
/// **How it claims.** By one statement, `INSERT … ON CONFLICT DO UPDATE`, which is right at any
/// isolation level that the pool's transactions begin with. Whether a lease or a retention has ended is
/// decided by the server's clock; it is told durations and no time of day, so the clocks of the
/// receivers do not matter; should the server's own jump forward, leases and retentions end early, and
/// later by as much should it jump back. A duplicate of an event that is done, or in flight, writes
/// nothing.
///
/// **What a crash costs.** That of a receiver: what it had claimed stays claimed until the lease
/// ends, at most 60 s unless set. That of the server: while it is away deliveries are answered with
/// 503, the handler is not run, and it goes on by itself as soon as the server does. An event whose
/// handler had succeeded just then is recorded late, when the server is back before its lease ends;
/// else it is handled again.
///
/// **Durability** is the server's. With `synchronous_commit = on`, its default, what was recorded
/// survives a crash. With `off`, a crash of the server forgets what it was told in the last
/// `3 × wal_writer_delay` (0.6 s): such an event is handled again when the sender delivers it again,
/// and a second run may begin beside one whose claim was forgotten. The same goes for a failover to a
/// standby that replicates asynchronously, for as long as it lags behind. Where the application
/// wants `off`, give this store a pool of its own whose user has it `on`
/// (`ALTER ROLE … SET synchronous_commit = on`); where a failover must forget nothing, replicate
/// synchronously (`synchronous_standby_names`). Connect to the primary: a standby takes no writes.
///
/// **Connections.** A delivery needs one for the moment of its claim and one for the moment of its
/// record, and none while the handler works. The layer gives each operation 2 s (`store_timeout`) with
/// the wait for a connection included: handlers that hold the connections of the same pool for longer
/// than that let deliveries fail with 503, so give the store some of its own then; four are plenty. A
/// connection that is being opened when its caller's time is up has another second for that, for the
/// sake of those who come later (`PgPool::close` waits for it): leave the pool's `acquire_timeout`
/// longer than `store_timeout`, as it is unless set, because sqlx would give that connection up. An
/// operation that failed or exceeded its time closes its connection: a network that swallows everything
/// would else take the pool all of its connections. The server does not notice that while it is at work
/// or waits for a lock: so that it does not run out of connections then, give the pool
/// `PgConnectOptions::options([("client_connection_check_interval", "1s")])`. sqlx asks a connection
/// whether it lives before each use: `PgPoolOptions::test_before_acquire(false)` saves that round trip,
/// and costs a 503 per connection after the server restarted. For TLS, enable one of the features of
/// `sqlx` such as `tls-rustls-ring-native-roots` in your own `Cargo.toml`.
///
/// **PgBouncer** refuses parameters that it does not know. Leave out the one that sqlx sends by itself,
/// with `PgConnectOptions::extra_float_digits(None)`, and in place of the `options` above say
/// `ALTER ROLE … SET client_connection_check_interval = '1s'`. In its mode `transaction` it has to track
/// prepared statements: take 1.21 or later, and set `max_prepared_statements`.
///
/// **Size.** 136 bytes on disk per completed key, index included (measured with a million keys): a
/// million events in 8 days take 136 MB. The table has no index but that of its primary key, and
/// what changes after a claim changes within a page.
///
/// **Purge.** With every 128th claim, a small step deletes what expired in the next 32 pages of the
/// table, in the background: at most some 3,500 rows, in a few milliseconds. It passes over rows that
/// somebody is at work on, so several receivers purge beside each other. autovacuum, which must be on,
/// makes the space free for the next keys. The file does not shrink by itself after a peak; to that end
/// call [`purge`](Self::purge) and then `VACUUM FULL`, which blocks deliveries while it lasts.
///
/// **Requirements.** PostgreSQL 14 or later (the tests were run with 14, 15, 17 and 18); Rust 1.94 or
/// later, as sqlx 0.9 does. Once the schema is made, the pool's user needs no more than `USAGE` on it,
/// `SELECT` on its table `migrations`, and `SELECT, INSERT, UPDATE, DELETE` on its table `keys`.
///
/// Clones share their pool.
#[derive(Clone)]
pub struct PostgresStore {
    pool: Pool,
    shared: Arc<Shared>,
}

struct Shared {
    schema: Schema,
    statements: Statements,
    /// How many keys were claimed here.
    claims: AtomicU64,
    /// Where in the table the next step of purging begins. Locked by the one under way.
    page: Mutex<i64>,
}

impl PostgresStore {
    /// Keeps the keys in the schema `tower_webhook` of the pool's database.
    ///
    /// Call [`migrate`](Self::migrate) before the first delivery.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        Self::in_schema(Pool::new(pool), Schema::default())
    }

    /// Keeps the keys in another schema, of any name that PostgreSQL takes: it is quoted, so upper
    /// and lower case differ.
    ///
    /// # Errors
    ///
    /// [`ConfigError::SchemaName`] when the name is empty, longer than 63 bytes, contains a NUL, or
    /// begins with `pg_`, which PostgreSQL keeps for itself.
    pub fn with_schema(self, name: impl Into<String>) -> Result<Self, ConfigError> {
        Ok(Self::in_schema(self.pool, Schema::new(name.into())?))
    }

    fn in_schema(pool: Pool, schema: Schema) -> Self {
        Self {
            pool,
            shared: Arc::new(Shared {
                statements: Statements::new(&schema),
                schema,
                claims: AtomicU64::new(0),
                page: Mutex::new(ANYWHERE),
            }),
        }
    }

    /// Creates the schema and its tables, or brings them up to date.
    ///
    /// Does nothing where they are: call it whenever a process starts. Several that start at once
    /// wait for each other.
    ///
    /// Its first call in a database needs the right to create a schema there, or a schema of that
    /// name in which the user may create tables.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached, the right is missing, or the schema was made by a later
    /// release of this crate.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        migrate(self.pool.connections(), &self.shared.schema).await
    }

    /// Deletes all expired rows, in small steps, and tells how many they were.
    ///
    /// There is no need to call it, as claims do it little by little; but nothing else does where no
    /// more claims are made.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached, or refuses to work. What was deleted until then stays so.
    pub async fn purge(&self) -> Result<u64, StoreError> {
        let mut purged = 0;
        let mut page = 0;
        loop {
            let step = self.purge_step(page).await?;
            purged += step.purged;
            if step.is_last {
                return Ok(purged);
            }
            page = step.next;
        }
    }

    /// Deletes the expired rows of a few pages from `page` on: [`ANYWHERE`], or where the step before
    /// ended.
    async fn purge_step(&self, page: i64) -> Result<Purged, StoreError> {
        let values = [
            Value::Text(self.shared.schema.table("keys")),
            Value::Number(page),
            Value::Number(PAGES_PER_STEP),
        ];
        let row = self.fetch(&self.shared.statements.purge, &values).await?;
        let row = row.ok_or_else(|| corrupt("no row"))?;
        Ok(Purged {
            purged: column::<i64>(&row, 0)?.unsigned_abs(),
            next: column(&row, 1)?,
            is_last: column(&row, 2)?,
        })
    }

    /// Counts a key that was claimed, and purges a little now and then.
    fn claimed(&self) {
        let claims = self.shared.claims.fetch_add(1, Ordering::Relaxed) + 1;
        if !claims.is_multiple_of(CLAIMS_PER_STEP) {
            return;
        }
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let store = self.clone();
        let purge = async move {
            // A step that is still under way does for this one too.
            let Ok(mut page) = store.shared.page.try_lock() else {
                return;
            };
            let step = timeout(PURGE_TIMEOUT, store.purge_step(*page)).await;
            match step.unwrap_or_else(|_| Err(StoreError::timed_out())) {
                Ok(step) => *page = step.next,
                Err(error) => {
                    tracing::warn!(reason = %Chain(&error), "expired keys could not be purged");
                }
            }
        };
        // Not in the delivery's span, which would last until this ends.
        runtime.spawn(purge);
    }

    /// Executes a statement, again when it lost against another one, and returns its row if it has
    /// one.
    async fn fetch(&self, sql: &Arc<str>, values: &[Value]) -> Result<Option<PgRow>, StoreError> {
        loop {
            let mut query = sqlx::query(AssertSqlSafe(Arc::clone(sql)));
            for value in values {
                query = match value {
                    Value::Id(id) => query.bind(Uuid(*id)),
                    Value::Number(number) => query.bind(*number),
                    Value::Text(text) => query.bind(text.clone()),
                };
            }
            let connection = self.pool.acquire().await;
            let mut busy = Busy::new(connection.map_err(|error| self.error(error))?);
            let result = query.fetch_optional(&mut *busy.connection).await;
            match result {
                Ok(row) => {
                    busy.is_sound = true;
                    return Ok(row);
                }
                // Only where transactions are repeatable reads or serializable by default.
                Err(error) if lost_a_race(&error) => busy.is_sound = true,
                Err(error) => return Err(self.error(error)),
            }
        }
    }

    /// Executes a statement that changes the row of a lease, if the lease has not ended.
    async fn settle(
        &self,
        sql: &Arc<str>,
        lease: &Lease,
        time: Option<Duration>,
    ) -> Result<(), SettleError> {
        let Fence(fence) = lease.fence();
        let mut values = vec![Value::Id(lease.id().key()), Value::Id(fence)];
        values.extend(time.map(|time| Value::Number(micros(time))));
        match self.fetch(sql, &values).await? {
            Some(_) => Ok(()),
            None => Err(SettleError::LeaseExpired),
        }
    }

    fn error(&self, error: sqlx::Error) -> StoreError {
        store_error(error, &self.shared.schema)
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore")
            .field("schema", &self.shared.schema.name)
            .finish_non_exhaustive()
    }
}

impl Store for PostgresStore {
    const DURABLE_LEASES: bool = true;

    async fn claim(
        &self,
        id: &EventKey,
        lease: Duration,
        retain: Duration,
    ) -> Result<Claim, StoreError> {
        let values = [
            Value::Id(id.key()),
            Value::Id(id.body()),
            Value::Number(micros(lease)),
            Value::Number(micros(retain)),
        ];
        for _ in 0..MOST_LOSSES {
            let row = self.fetch(&self.shared.statements.claim, &values).await?;
            // Somebody else took the key after the statement began: the next one sees what it did.
            let Some(row) = row else { continue };

            if let Some(Uuid(fence)) = column(&row, 0)? {
                let attempt = u32::try_from(column::<i32>(&row, 1)?).ok();
                let attempt = attempt.and_then(NonZeroU32::new);
                let attempt =
                    attempt.ok_or_else(|| corrupt("an attempt that is not above zero"))?;
                self.claimed();
                return Ok(Claim::Acquired(Lease::new(*id, Fence(fence), attempt)));
            }
            let same_body = column(&row, 2)?;
            return Ok(match remaining(&row, 3)? {
                Some(remaining) => Claim::InFlight {
                    remaining,
                    same_body,
                },
                None => Claim::Done { same_body },
            });
        }
        Err(corrupt(
            "a key could not be claimed although it is neither in flight nor done",
        ))
    }

    async fn peek(&self, id: &EventKey) -> Result<KeyState, StoreError> {
        let values = [Value::Id(id.key())];
        let row = self.fetch(&self.shared.statements.peek, &values).await?;
        let Some(row) = row else {
            return Ok(KeyState::Free);
        };
        Ok(match remaining(&row, 0)? {
            Some(remaining) => KeyState::InFlight { remaining },
            None => KeyState::Done,
        })
    }

    async fn renew(&self, lease: &Lease, extend: Duration) -> Result<(), SettleError> {
        let sql = &self.shared.statements.renew;
        self.settle(sql, lease, Some(extend)).await
    }

    async fn complete(&self, lease: &Lease, retain: Duration) -> Result<(), SettleError> {
        let sql = &self.shared.statements.complete;
        self.settle(sql, lease, Some(retain)).await
    }

    async fn release(&self, lease: &Lease) -> Result<(), SettleError> {
        let sql = &self.shared.statements.release;
        self.settle(sql, lease, None).await
    }
}

/// Creates the tables in `schema`, or brings them up to date.
pub(crate) async fn migrate(pool: &PgPool, schema: &Schema) -> Result<(), StoreError> {
    let error = |error| store_error(error, schema);

    // Needs no right to change anything, and no lock.
    let sql = schema.sql("SELECT max(version) FROM {schema}.migrations");
    let version = sqlx::query_scalar(AssertSqlSafe(sql.clone()));
    match version.fetch_one(pool).await {
        Ok(version) if is_current(version, schema)? => return Ok(()),
        Ok(_) => {}
        Err(cause) if is_missing(&cause) => {}
        Err(cause) => return Err(error(cause)),
    }

    // What was committed while the lock was waited for has to be seen.
    let begin = "BEGIN ISOLATION LEVEL READ COMMITTED";
    let mut transaction = pool.begin_with(begin).await.map_err(error)?;
    // Unlike a lock of the session, this one works behind PgBouncer too.
    sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended('tower_webhook ' || $1, 0))")
        .bind(&schema.name)
        .execute(&mut *transaction)
        .await
        .map_err(error)?;
    let exists: bool =
        sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)")
            .bind(&schema.name)
            .fetch_one(&mut *transaction)
            .await
            .map_err(error)?;
    let mut steps = Vec::new();
    if !exists {
        steps.push(schema.sql("CREATE SCHEMA {schema}"));
    }
    steps.push(schema.sql(
        "CREATE TABLE IF NOT EXISTS {schema}.migrations (
            version integer PRIMARY KEY,
            applied_at timestamptz NOT NULL DEFAULT now()
        )",
    ));
    for step in steps {
        sqlx::raw_sql(AssertSqlSafe(step))
            .execute(&mut *transaction)
            .await
            .map_err(error)?;
    }
    let version: Option<i32> = sqlx::query_scalar(AssertSqlSafe(sql))
        .fetch_one(&mut *transaction)
        .await
        .map_err(error)?;
    if is_current(version, schema)? {
        return Ok(());
    }
    for (version, migration) in (1..).zip(MIGRATIONS).skip(version.unwrap_or(0) as usize) {
        sqlx::raw_sql(AssertSqlSafe(schema.sql(migration)))
            .execute(&mut *transaction)
            .await
            .map_err(error)?;
        let record = schema.sql("INSERT INTO {schema}.migrations (version) VALUES ($1)");
        sqlx::query(AssertSqlSafe(record))
            .bind(version)
            .execute(&mut *transaction)
            .await
            .map_err(error)?;
    }
    transaction.commit().await.map_err(error)
}

/// Each brings the schema from the version before it to the next one, the first of which is 1.
const MIGRATIONS: [&str; 1] = [
    // A key that is done has only `done_until`; one that is claimed, all the others; one that failed
    // or whose lease ended, its attempts. None of these is indexed, so that an update may stay in
    // its page (HOT) and leaves nothing to an index; the spare room is for these.
    "CREATE TABLE {schema}.keys (
        key uuid PRIMARY KEY,
        body uuid NOT NULL,
        done_until timestamptz,
        fence uuid,
        lease_until timestamptz,
        known_until timestamptz,
        attempts integer,
        CHECK (num_nonnulls(done_until, attempts) = 1),
        CHECK (num_nonnulls(known_until, attempts) <> 1),
        CHECK (num_nonnulls(fence, lease_until) <> 1)
    ) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.05)",
];

fn is_current(version: Option<i32>, schema: &Schema) -> Result<bool, StoreError> {
    let newest = MIGRATIONS.len() as i32;
    match version.unwrap_or(0) {
        version if version > newest => Err(StoreError::new(
            StoreErrorKind::Unavailable,
            format!(
                "the schema `{}` is of version {version}, which a later release of tower-webhook \
                 made, and this one knows up to version {newest}: deploy the later release, or use \
                 another schema",
                schema.name
            ),
        )),
        version => Ok(version == newest),
    }
}

/// The schema that holds the tables.
pub(crate) struct Schema {
    name: String,
    quoted: String,
}

impl Schema {
    pub(crate) fn new(name: String) -> Result<Self, ConfigError> {
        /// Longer names would be cut.
        const LONGEST: usize = 63;

        let is_valid =
            (1..=LONGEST).contains(&name.len()) && !name.contains('\0') && !name.starts_with("pg_");
        match is_valid {
            true => Ok(Self {
                quoted: format!("\"{}\"", name.replace('"', "\"\"")),
                name,
            }),
            false => Err(ConfigError::SchemaName(name)),
        }
    }

    /// SQL in which `{schema}` stands for the schema.
    pub(crate) fn sql(&self, sql: &str) -> String {
        sql.replace("{schema}", &self.quoted)
    }

    /// The name of a table in it, as it is written in SQL.
    fn table(&self, table: &str) -> String {
        format!("{}.{table}", self.quoted)
    }
}

impl Default for Schema {
    fn default() -> Self {
        let name = "tower_webhook";
        Self {
            name: name.to_owned(),
            quoted: format!("\"{name}\""),
        }
    }
}

/// A step of purging looks at so many pages, which have room for some 100 rows each.
const PAGES_PER_STEP: i64 = 32;

/// The page that the first step begins with: several instances take different ones.
const ANYWHERE: i64 = -1;

/// A step of purging is done with every so-manieth claim. A page then is looked at four times as
/// often as one is filled: a table of n rows is walked through within n / 20 claims.
const CLAIMS_PER_STEP: u64 = 128;

/// How long such a step may take, which holds a connection that others may wait for.
const PURGE_TIMEOUT: Duration = Duration::from_secs(10);

/// How often in a row a claim may lose against another one whose run then ends before it is seen:
/// more often than that cannot be, and something else suppresses the row.
const MOST_LOSSES: u32 = 100;

/// What is executed, with the schema's name in it.
struct Statements {
    claim: Arc<str>,
    peek: Arc<str>,
    renew: Arc<str>,
    complete: Arc<str>,
    release: Arc<str>,
    insert: Arc<str>,
    number: Arc<str>,
    body: Arc<str>,
    purge: Arc<str>,
}

impl Statements {
    // Time is `clock_timestamp()`: unlike `now()` it also goes on while a statement waits for a row.
    fn new(schema: &Schema) -> Self {
        let sql = |sql: &str| Arc::from(schema.sql(sql));
        let limited =
            |limit: &str, text: &str| sql(&text.replace("{limits}", &Self::limits(limit)));
        Self {
            // `seen` answers duplicates without a write. What it does not see, because it came after
            // the statement began, the insertion meets: then there is no row at all.
            claim: sql("
                WITH seen AS MATERIALIZED (
                    SELECT
                        body = $2 AS same_body,
                        extract(epoch FROM lease_until - clock_timestamp()) AS remaining
                    FROM {schema}.keys
                    WHERE key = $1
                        AND (done_until > clock_timestamp() OR lease_until > clock_timestamp())
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
                        OR known.lease_until > clock_timestamp()) IS NOT TRUE
                    RETURNING fence, attempts
                )
                SELECT fence, attempts, NULL AS same_body, NULL AS remaining FROM claimed
                UNION ALL
                SELECT NULL, NULL, same_body, ceil(remaining * 1000000)::bigint FROM seen
            "),
            peek: sql("
                SELECT ceil(extract(epoch FROM lease_until - clock_timestamp()) * 1000000)::bigint
                FROM {schema}.keys
                WHERE key = $1
                    AND (done_until > clock_timestamp() OR lease_until > clock_timestamp())
            "),
            renew: sql("
                UPDATE {schema}.keys
                SET lease_until = clock_timestamp() + $3 * interval '1 microsecond'
                WHERE key = $1 AND fence = $2 AND lease_until > clock_timestamp()
                RETURNING true
            "),
            complete: sql("
                UPDATE {schema}.keys
                SET done_until = clock_timestamp() + $3 * interval '1 microsecond',
                    fence = NULL,
                    lease_until = NULL,
                    known_until = NULL,
                    attempts = NULL
                WHERE key = $1 AND fence = $2 AND lease_until > clock_timestamp()
                RETURNING true
            "),
            release: sql("
                UPDATE {schema}.keys
                SET fence = NULL, lease_until = NULL
                WHERE key = $1 AND fence = $2 AND lease_until > clock_timestamp()
                RETURNING true
            "),
            // What is in `limited` is computed once, and before the insertion, which is what waits;
            // what is returned, after it. So each limit is in force for what it is meant for.
            insert: limited(
                "$5",
                "
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
                    {limits}
            ",
            ),
            number: limited(
                "$1",
                "
                SELECT
                    pg_current_xact_id()::text,
                    {limits}
            ",
            ),
            body: sql("SELECT body FROM {schema}.keys WHERE key = $1"),
            // The rows are found by where they lie, which takes no index. Those that somebody else is
            // at work on are left alone. What lies behind the last page is its first one.
            purge: sql("
                WITH size AS MATERIALIZED (
                    SELECT pg_relation_size($1::text::regclass)
                        / current_setting('block_size')::bigint AS pages
                ), step AS MATERIALIZED (
                    SELECT CASE
                        WHEN $2 < 0 THEN floor(random() * pages)::bigint
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
                        FOR UPDATE SKIP LOCKED
                    ))
                    RETURNING true
                )
                SELECT (SELECT count(*) FROM purged), page + $3, page + $3 >= pages
                FROM size, step
            "),
        }
    }

    /// Sets the limits for the rest of a transaction to so many milliseconds. A shorter one of the
    /// connection's own stays, and zero is none.
    fn limits(milliseconds: &str) -> String {
        ["statement_timeout", "idle_in_transaction_session_timeout"]
            .map(|setting| {
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
            })
            .join(", ")
    }
}

/// A parameter of a statement.
enum Value {
    Id(u128),
    Number(i64),
    Text(String),
}

/// What a step of purging did.
struct Purged {
    purged: u64,
    /// Where the next one begins.
    next: i64,
    is_last: bool,
}

/// A connection with a statement under way. Dropped, it is closed unless that went well: one that
/// exceeded its time may hang, and would take the pool a place; and one that failed may lead to a
/// server that was the primary before a failover.
struct Busy {
    connection: PoolConnection<Postgres>,
    is_sound: bool,
}

impl Busy {
    fn new(connection: PoolConnection<Postgres>) -> Self {
        Self {
            connection,
            is_sound: false,
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        if !self.is_sound {
            self.connection.close_on_drop();
        }
    }
}

/// 128 bits as PostgreSQL's `uuid`.
struct Uuid(u128);

impl Type<Postgres> for Uuid {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(2950))
    }
}

impl Encode<'_, Postgres> for Uuid {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        buffer.extend_from_slice(&self.0.to_be_bytes());
        Ok(IsNull::No)
    }
}

impl Decode<'_, Postgres> for Uuid {
    fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
        match value.format() {
            PgValueFormat::Binary => Ok(Self(u128::from_be_bytes(value.as_bytes()?.try_into()?))),
            PgValueFormat::Text => Err("a uuid as text".into()),
        }
    }
}

/// A time in microseconds, rounded up, which no timestamp overflows with.
fn micros(time: Duration) -> i64 {
    const YEARS_100: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
    let micros = time.min(YEARS_100).as_nanos().div_ceil(1000);
    i64::try_from(micros).unwrap_or(i64::MAX)
}

/// What remains of a lease, in a column of microseconds. `None` where there is none.
fn remaining(row: &PgRow, at: usize) -> Result<Option<Duration>, StoreError> {
    let micros: Option<i64> = column(row, at)?;
    // It may have ended while the statement was executed.
    Ok(micros.map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0).max(1))))
}

fn column<'r, T>(row: &'r PgRow, at: usize) -> Result<T, StoreError>
where
    T: Decode<'r, Postgres> + Type<Postgres>,
{
    row.try_get(at).map_err(corrupt)
}

fn corrupt(cause: impl Into<BoxDynError>) -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, cause)
}

/// What the server says, by its codes of errors:
/// <https://www.postgresql.org/docs/current/errcodes-appendix.html>.
pub(crate) fn store_error(error: sqlx::Error, schema: &Schema) -> StoreError {
    let name = &schema.name;
    let (kind, advice) = match code(&error).as_deref() {
        Some("42P01" | "3F000" | "42703") => (
            StoreErrorKind::Unavailable,
            format!("the schema `{name}` lacks its tables: call `PostgresStore::migrate` at start"),
        ),
        Some("42501") => (
            StoreErrorKind::Unavailable,
            format!("the user of the pool lacks rights in the schema `{name}`"),
        ),
        Some("25006") => (
            StoreErrorKind::Unavailable,
            "the server takes no writes: connect to the primary".to_owned(),
        ),
        // A time limit of the server's, on statements or on locks.
        Some("57014" | "55P03" | "25P03") => {
            return StoreError::new(StoreErrorKind::TimedOut, error);
        }
        Some(code) if code.starts_with("XX") || code.starts_with("23") => return corrupt(error),
        Some(_) => return StoreError::new(StoreErrorKind::Unavailable, error),
        None => return StoreError::new(kind_without_code(&error), error),
    };
    let cause = Advised { advice, error };
    StoreError::new(kind, cause)
}

fn kind_without_code(error: &sqlx::Error) -> StoreErrorKind {
    match error {
        sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::ColumnIndexOutOfBounds { .. }
        | sqlx::Error::ColumnNotFound(_)
        | sqlx::Error::Decode(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::RowNotFound
        | sqlx::Error::TypeNotFound { .. } => StoreErrorKind::Corrupt,
        _ => StoreErrorKind::Unavailable,
    }
}

fn code(error: &sqlx::Error) -> Option<String> {
    let code = error.as_database_error()?.code()?;
    Some(code.into_owned())
}

/// Whether tables are not there.
fn is_missing(error: &sqlx::Error) -> bool {
    matches!(code(error).as_deref(), Some("42P01" | "3F000"))
}

/// Whether a statement had no effect only because another one was at work on the same row.
fn lost_a_race(error: &sqlx::Error) -> bool {
    matches!(code(error).as_deref(), Some("40001" | "40P01"))
}

/// An error of the server's, and what to do about it.
#[derive(Debug)]
struct Advised {
    advice: String,
    error: sqlx::Error,
}

impl fmt::Display for Advised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.advice)
    }
}

impl std::error::Error for Advised {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up_and_limited() {
        assert_eq!(micros(Duration::ZERO), 0);
        assert_eq!(micros(Duration::from_nanos(1)), 1);
        assert_eq!(micros(Duration::from_micros(1)), 1);
        assert_eq!(micros(Duration::from_nanos(1_001)), 2);
        assert_eq!(micros(Duration::MAX), 100 * 365 * 24 * 60 * 60 * 1_000_000);
    }

    #[test]
    fn names_are_quoted() {
        let quoted = |name: &str| Schema::new(name.to_owned()).unwrap().sql("{schema}.keys");
        assert_eq!(quoted("Hooks"), r#""Hooks".keys"#);
        assert_eq!(quoted(r#"a"b"#), r#""a""b".keys"#);
        assert_eq!(quoted("\""), "\"\"\"\".keys");
        assert_eq!(quoted("{schema}"), r#""{schema}".keys"#);
        assert_eq!(
            Schema::default().sql("{schema}"),
            quoted("tower_webhook").replace(".keys", "")
        );
    }
}
