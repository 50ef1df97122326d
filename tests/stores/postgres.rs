//! The Postgres store, against real servers.

use std::collections::HashSet;
use std::error::Error;
use std::iter::successors;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Row};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tower_webhook::ConfigError;
use tower_webhook::postgres::PostgresStore;
use tower_webhook::store::conformance::{self, Harness};
use tower_webhook::store::{
    Claim, EventKey, KeyState, Lease, OpenErrorKind, SettleError, Store, StoreError, StoreErrorKind,
};

use tracing::Level;

use support::log::Log;
use support::postgres::{PostgresServer, Stop};
use support::program::{Peer, say};

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const RETENTION: Duration = Duration::from_secs(8 * 24 * 60 * 60);

/// An empty database of a test's own, on a server that the tests of this process share.
struct Database {
    url: String,
}

static SERVER: LazyLock<PostgresServer> = LazyLock::new(PostgresServer::start);

impl Database {
    async fn create() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("test_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let server = tokio::task::spawn_blocking(|| &*SERVER).await.unwrap();
        let admin = connect(&server.url(), 1).await;
        execute(&admin, &format!("CREATE DATABASE {name}")).await;
        let url = server.url_of(&name);
        Self { url }
    }

    /// Changes what every session begins with.
    async fn set(&self, setting: &str) {
        let name = self.url.rsplit('/').next().unwrap();
        let pool = self.pool(1).await;
        execute(&pool, "SET default_transaction_read_only = off").await;
        execute(&pool, &format!("ALTER DATABASE {name} SET {setting}")).await;
    }

    async fn pool(&self, connections: u32) -> PgPool {
        connect(&self.url, connections).await
    }

    /// A store on a pool of its own.
    async fn store(&self) -> PostgresStore {
        let store = PostgresStore::new(self.pool(4).await);
        store.migrate().await.unwrap();
        store
    }
}

impl Harness for Database {
    type Store = PostgresStore;

    async fn open(&self) -> PostgresStore {
        self.store().await
    }
}

async fn connect(url: &str, connections: u32) -> PgPool {
    PgPoolOptions::new()
        .max_connections(connections)
        .connect(url)
        .await
        .unwrap()
}

async fn execute(pool: &PgPool, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(pool)
        .await
        .unwrap();
}

async fn count(pool: &PgPool, sql: &str) -> i64 {
    let count = sqlx::query_scalar(AssertSqlSafe(sql));
    count.fetch_one(pool).await.unwrap()
}

fn id(key: &str) -> EventKey {
    EventKey::new("", key.as_bytes(), b"{}")
}

async fn acquire(store: &PostgresStore, key: &str, lease: Duration) -> Lease {
    match store.claim(&id(key), lease, RETENTION).await.unwrap() {
        Claim::Acquired(lease) => lease,
        claim => panic!("{key} cannot be claimed: {claim:?}"),
    }
}

async fn complete(store: &PostgresStore, key: &str, retain: Duration) {
    let lease = acquire(store, key, MINUTE).await;
    store.complete(&lease, retain).await.unwrap();
}

async fn is_done(store: &PostgresStore, key: &str) -> bool {
    store.peek(&id(key)).await.unwrap() == KeyState::Done
}

async fn eventually(what: &str, holds: impl AsyncFn() -> bool) {
    let held = async {
        while !holds().await {
            sleep(Duration::from_millis(10)).await;
        }
    };
    let held = timeout(MINUTE, held).await;
    held.unwrap_or_else(|_| panic!("never: {what}"));
}

/// An error and its causes.
fn chain(error: &(dyn Error + 'static)) -> String {
    let errors = successors(Some(error), |error| (*error).source());
    let errors: Vec<_> = errors.map(ToString::to_string).collect();
    errors.join(": ")
}

/// Asserts that a store fails in a certain way, whatever it is asked to do, and returns what it says.
async fn fails_as(store: &PostgresStore, kind: StoreErrorKind) -> HashSet<String> {
    let lease = Lease::new(
        id("any"),
        tower_webhook::store::Fence(1),
        1.try_into().unwrap(),
    );
    let settled = |result: Result<(), SettleError>| match result {
        Err(SettleError::Store(error)) => error,
        other => panic!("a store that does not work said {other:?}"),
    };
    let errors: [StoreError; 5] = [
        store
            .claim(&id("any"), MINUTE, RETENTION)
            .await
            .unwrap_err(),
        store.peek(&id("any")).await.unwrap_err(),
        settled(store.renew(&lease, MINUTE).await),
        settled(store.complete(&lease, RETENTION).await),
        settled(store.release(&lease).await),
    ];
    errors
        .into_iter()
        .map(|error| {
            assert_eq!(error.kind(), kind, "{}", chain(&error));
            chain(&error)
        })
        .collect()
}

#[tokio::test]
async fn restarted_server_keeps_its_data_and_its_port() {
    let mut server = PostgresServer::start();
    let url = server.url();
    for stop in [Stop::Fast, Stop::Immediate] {
        let pool = connect(&url, 1).await;
        execute(&pool, "CREATE TABLE IF NOT EXISTS t (c integer)").await;
        execute(&pool, "INSERT INTO t VALUES (1)").await;
        server.stop(stop);
        server.restart();
    }
    let pool = connect(&url, 1).await;
    assert_eq!(count(&pool, "SELECT count(*) FROM t").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn conforms() {
    conformance::run(&Database::create().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conforms_with_other_session_defaults() {
    for setting in [
        "default_transaction_isolation = 'repeatable read'",
        "default_transaction_isolation = 'serializable'",
        "timezone = 'Pacific/Chatham'",
        "plan_cache_mode = 'force_generic_plan'",
    ] {
        let database = Database::create().await;
        database.set(setting).await;
        conformance::run(&database).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_64_claims_from_8_processes_wins() {
    const TEST: &str = "one_of_64_claims_from_8_processes_wins";
    const KEYS: usize = 50;
    const PROCESSES: usize = 8;

    if let Some(url) = Peer::argument() {
        return compete(&url).await;
    }
    let database = Database::create().await;
    let store = database.store().await;
    let mut processes: Vec<_> = (0..PROCESSES)
        .map(|_| Peer::start(Peer::command(module_path!(), TEST, &database.url)))
        .collect();
    for process in &mut processes {
        assert_eq!(process.hear(), "ready");
    }
    let mut winners = HashSet::new();
    for key in 0..KEYS {
        // Whoever is asked first is likely to win.
        for turn in 0..PROCESSES {
            let process = &mut processes[(key + turn) % PROCESSES];
            process.tell(key);
        }
        let mut won = 0;
        for (at, process) in processes.iter_mut().enumerate() {
            let its: u32 = process.hear().parse().unwrap();
            won += its;
            if its > 0 {
                winners.insert(at);
            }
        }
        assert_eq!(won, 1, "claims won on key {key}");
        let state = store.peek(&id(&key.to_string())).await.unwrap();
        assert!(matches!(state, KeyState::InFlight { .. }), "{state:?}");
    }
    assert!(winners.len() > 1, "the processes did not compete");
}

/// One of several processes: claims each key that it reads 8 times at once, and says how often it won.
async fn compete(url: &str) {
    let pool = connect(url, 8).await;
    let store = PostgresStore::new(pool);
    let mut keys = BufReader::new(tokio::io::stdin()).lines();
    say("ready");
    while let Some(key) = keys.next_line().await.unwrap() {
        let claims: Vec<_> = (0..8)
            .map(|_| {
                let (store, id) = (store.clone(), id(&key));
                tokio::spawn(async move { store.claim(&id, MINUTE, RETENTION).await.unwrap() })
            })
            .collect();
        let mut won = 0;
        for claim in claims {
            match claim.await.unwrap() {
                Claim::Acquired(_) => won += 1,
                Claim::InFlight { .. } => {}
                Claim::Done { .. } => panic!("nobody completed it"),
            }
        }
        say(won);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_migrations_succeed() {
    for setting in [
        "default_transaction_isolation = 'read committed'",
        "default_transaction_isolation = 'serializable'",
    ] {
        let database = Database::create().await;
        database.set(setting).await;
        let mut pools = Vec::new();
        for _ in 0..16 {
            pools.push(database.pool(1).await);
        }
        let migrations: Vec<_> = pools
            .into_iter()
            .map(|pool| tokio::spawn(async move { PostgresStore::new(pool).migrate().await }))
            .collect();
        for migration in migrations {
            migration.await.unwrap().unwrap();
        }

        let store = database.store().await;
        complete(&store, "kept", RETENTION).await;
        store.migrate().await.unwrap();
        assert!(is_done(&store, "kept").await);
        let pool = database.pool(1).await;
        let applied = "SELECT count(*) FROM tower_webhook.schema_versions";
        assert_eq!(count(&pool, applied).await, 1);
    }
}

#[tokio::test]
async fn commits_that_a_crash_loses_cause_a_warning() {
    for (setting, warnings) in [("on", 0), ("local", 0), ("off", 1)] {
        let database = Database::create().await;
        database
            .set(&format!("synchronous_commit = {setting}"))
            .await;
        let store = PostgresStore::new(database.pool(1).await);
        let logs = Log::capture(Level::INFO);
        store.migrate().await.unwrap();
        assert_eq!(
            logs.count(Level::WARN, "synchronous_commit"),
            warnings,
            "{setting}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn schema_may_have_any_name() {
    let longest = "n".repeat(63);
    let names = [
        "webhooks",
        "Webhooks",
        "Ünïcode and spaces",
        r#"x"; DROP SCHEMA public CASCADE; --"#,
        "x'; DROP SCHEMA public CASCADE; --",
        r"back\slash",
        "{schema}.keys",
        "$1 %s %I ?",
        &longest,
    ];
    let database = Database::create().await;
    let pool = database.pool(4).await;
    let mut stores = Vec::new();
    for name in names {
        let store = PostgresStore::new(pool.clone()).with_schema(name).unwrap();
        store.migrate().await.unwrap();
        complete(&store, name, RETENTION).await;
        complete(&store, "expired", Duration::ZERO).await;
        assert_eq!(store.purge().await.unwrap(), 1, "{name}");
        stores.push(store);
    }
    for (name, store) in names.iter().zip(&stores) {
        let mut others = stores.iter().zip(names).filter(|(_, other)| other != name);
        assert!(is_done(store, name).await, "{name}");
        for (other, _) in &mut others {
            assert!(!is_done(other, name).await, "{name}");
        }
        let exists = sqlx::query_scalar("SELECT count(*) FROM pg_namespace WHERE nspname = $1");
        let exists: i64 = exists.bind(*name).fetch_one(&pool).await.unwrap();
        assert_eq!(exists, 1, "{name}");
    }
    assert_eq!(
        count(
            &pool,
            "SELECT count(*) FROM pg_namespace WHERE nspname = 'public'"
        )
        .await,
        1
    );

    for name in ["", "pg_webhooks", "a\0b", &"n".repeat(64)] {
        let refused = PostgresStore::new(pool.clone()).with_schema(name);
        let Err(ConfigError::SchemaName(refused)) = refused else {
            panic!("{name:?} was not refused");
        };
        assert_eq!(refused, name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_schema_is_explained() {
    let database = Database::create().await;
    let store = PostgresStore::new(database.pool(4).await);
    for message in fails_as(&store, StoreErrorKind::Unavailable).await {
        assert!(
            message.contains("`tower_webhook`")
                && message.contains("call `PostgresStore::migrate`"),
            "{message}"
        );
    }
    store.migrate().await.unwrap();
    complete(&store, "key", RETENTION).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn newer_schema_is_refused_unless_its_release_allows_this_one() {
    let database = Database::create().await;
    let store = database.store().await;
    let pool = database.pool(1).await;
    let add = |version: u32, lowest: &str| {
        format!("INSERT INTO tower_webhook.schema_versions VALUES ({version}, '{lowest}')")
    };
    execute(&pool, &add(2, env!("CARGO_PKG_VERSION"))).await;
    store.migrate().await.unwrap();
    complete(&store, "kept", RETENTION).await;

    execute(&pool, &add(3, "999.0.0")).await;
    let error = store.migrate().await.unwrap_err();
    assert_eq!(error.kind(), OpenErrorKind::NewerSchema);
    let message = chain(&error);
    assert!(message.contains("of version 3"), "{message}");
    assert!(message.contains("release 999.0.0"), "{message}");
    assert!(message.contains("deploy the later release"), "{message}");
    let versions = "SELECT count(*) FROM tower_webhook.schema_versions";
    assert_eq!(count(&pool, versions).await, 3);
}

/// What a schema contains, and the transactions and files of its tables and functions.
async fn dump(pool: &PgPool) -> String {
    let dump = "SELECT concat(
        schema_to_xml_and_xmlschema('tower_webhook', true, true, ''),
        (
            SELECT string_agg(concat_ws(' ', relname, relfilenode, xmin), ',' ORDER BY relname)
            FROM pg_class WHERE relnamespace = 'tower_webhook'::regnamespace
        ),
        (
            SELECT string_agg(concat_ws(' ', oid, prosrc, xmin), ',' ORDER BY oid)
            FROM pg_proc WHERE pronamespace = 'tower_webhook'::regnamespace
        )
    )";
    sqlx::query_scalar(dump).fetch_one(pool).await.unwrap()
}

/// The first and the last schema that no release has had.
#[tokio::test(flavor = "multi_thread")]
async fn schema_of_a_draft_is_refused_and_left_as_it_is() {
    for draft in [
        include_str!("../fixtures/postgres-draft-first.sql"),
        include_str!("../fixtures/postgres-draft-last.sql"),
    ] {
        let database = Database::create().await;
        let pool = database.pool(1).await;
        execute(&pool, draft).await;
        let before = dump(&pool).await;
        let store = PostgresStore::new(pool.clone());
        let error = store.migrate().await.unwrap_err();
        assert_eq!(error.kind(), OpenErrorKind::Foreign);
        let message = chain(&error);
        assert!(message.contains("`tower_webhook`"), "{message}");
        assert!(message.contains("unreleased draft"), "{message}");
        assert!(message.contains("use another schema, or drop"), "{message}");
        assert_eq!(dump(&pool).await, before);

        let other = store.with_schema("other").unwrap();
        other.migrate().await.unwrap();
        complete(&other, "key", RETENTION).await;
    }
}

/// A table of somebody else that has a name of ours.
#[tokio::test(flavor = "multi_thread")]
async fn schema_of_another_program_is_refused_and_left_as_it_is() {
    let database = Database::create().await;
    let pool = database.pool(1).await;
    let other = "CREATE SCHEMA tower_webhook;
        CREATE TABLE tower_webhook.migrations (version integer, applied_at timestamptz);
        CREATE TABLE tower_webhook.keys (key text)";
    execute(&pool, other).await;
    let before = dump(&pool).await;
    let error = PostgresStore::new(pool.clone()).migrate().await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), OpenErrorKind::Foreign);
    let message = chain(&error);
    assert!(message.contains("of another program"), "{message}");
    assert_eq!(dump(&pool).await, before);

    // Its names do not matter where ours are free.
    let keys = "DROP TABLE tower_webhook.keys";
    execute(&pool, keys).await;
    complete(&database.store().await, "key", RETENTION).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_first_migration_needs_rights() {
    let database = Database::create().await;
    let admin = database.pool(1).await;
    let role = format!("app_{}", database.url.rsplit('_').next().unwrap());
    execute(&admin, &format!("CREATE ROLE {role} LOGIN")).await;
    let url = database.url.replace("postgres@", &format!("{role}@"));
    let store = PostgresStore::new(connect(&url, 4).await);

    let error = store.migrate().await.unwrap_err();
    assert_eq!(error.kind(), OpenErrorKind::Denied);
    assert!(chain(&error).contains("lacks rights"), "{}", chain(&error));

    // What the page says is enough.
    PostgresStore::new(admin.clone()).migrate().await.unwrap();
    let grants = format!(
        "GRANT USAGE ON SCHEMA tower_webhook TO {role};
         GRANT SELECT ON tower_webhook.schema_versions TO {role};
         GRANT SELECT, INSERT, UPDATE, DELETE ON tower_webhook.keys TO {role}"
    );
    execute(&admin, &grants).await;
    store.migrate().await.unwrap();
    complete(&store, "expired", Duration::ZERO).await;
    complete(&store, "kept", RETENTION).await;
    assert_eq!(store.purge().await.unwrap(), 1);
    assert!(is_done(&store, "kept").await);

    // A schema that an administrator made for it is enough as well.
    execute(&admin, &format!("CREATE SCHEMA made AUTHORIZATION {role}")).await;
    let store = store.with_schema("made").unwrap();
    store.migrate().await.unwrap();
    complete(&store, "key", RETENTION).await;
}

/// Rows that are expired, and rows that are not.
async fn fill(pool: &PgPool, expired: u32, kept: u32) {
    let rows = "INSERT INTO tower_webhook.keys (key, body, done_until)
        SELECT gen_random_uuid(), gen_random_uuid(), now() + interval";
    let of = |rows: &str, ago: &str, count: u32| {
        format!("{rows} '{ago}' FROM generate_series(1, {count})")
    };
    execute(pool, &of(rows, "-1 second", expired)).await;
    execute(pool, &of(rows, "8 days", kept)).await;
}

const KEYS: &str = "SELECT count(*) FROM tower_webhook.keys";

#[tokio::test(flavor = "multi_thread")]
async fn purge_deletes_only_expired_keys() {
    let database = Database::create().await;
    let store = database.store().await;
    let pool = database.pool(2).await;
    let short = Duration::from_millis(1);

    complete(&store, "done", RETENTION).await;
    acquire(&store, "in flight", MINUTE).await;
    let failed = acquire(&store, "failed", MINUTE).await;
    store.release(&failed).await.unwrap();
    acquire(&store, "died", short).await;
    // Its attempts are forgotten before its lease ends.
    store.claim(&id("held"), MINUTE, short).await.unwrap();
    for key in 0..10 {
        complete(&store, &format!("done {key}"), short).await;
        let failed = id(&format!("failed {key}"));
        store.claim(&failed, short, short).await.unwrap();
    }
    sleep(10 * short).await;

    assert_eq!(store.purge().await.unwrap(), 20);
    assert_eq!(count(&pool, KEYS).await, 5);
    assert!(is_done(&store, "done").await);
    for key in ["in flight", "held"] {
        let state = store.peek(&id(key)).await.unwrap();
        assert!(matches!(state, KeyState::InFlight { .. }), "{key}");
    }
    for key in ["failed", "died"] {
        assert_eq!(
            acquire(&store, key, MINUTE).await.attempt().get(),
            2,
            "{key}"
        );
    }
    assert_eq!(store.purge().await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_purges_succeed() {
    let database = Database::create().await;
    let store = database.store().await;
    let pool = database.pool(1).await;
    fill(&pool, 50_000, 1_000).await;

    let mut purges = Vec::new();
    for _ in 0..4 {
        let store = database.store().await;
        purges.push(tokio::spawn(async move { store.purge().await.unwrap() }));
    }
    let mut purged = 0;
    for purge in purges {
        purged += purge.await.unwrap();
    }
    // A row that another one is about to purge is passed over.
    purged += store.purge().await.unwrap();
    assert_eq!(purged, 50_000);
    assert_eq!(count(&pool, KEYS).await, 1_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn purge_skips_locked_rows() {
    let database = Database::create().await;
    let store = database.store().await;
    let pool = database.pool(2).await;
    complete(&store, "locked", Duration::ZERO).await;
    complete(&store, "expired", Duration::ZERO).await;

    let mut transaction = pool.begin().await.unwrap();
    let lock = "SELECT 1 FROM tower_webhook.keys WHERE key = $1::text::uuid FOR UPDATE";
    sqlx::query(lock)
        .bind(format!("{:032x}", id("locked").key()))
        .fetch_one(&mut *transaction)
        .await
        .unwrap();
    let purged = timeout(MINUTE, store.purge()).await;
    assert_eq!(purged.expect("purging waits for a lock").unwrap(), 1);
    transaction.rollback().await.unwrap();
    assert_eq!(store.purge().await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_purge_expired_keys() {
    let database = Database::create().await;
    let store = database.store().await;
    let pool = database.pool(1).await;
    fill(&pool, 20_000, 0).await;

    // Each step takes 3,456 of these rows at most. The first one begins anywhere, and the last one may
    // find no more than claims made meanwhile.
    let mut steps = 0;
    while count(
        &pool,
        "SELECT count(*) FROM tower_webhook.keys WHERE done_until < now()",
    )
    .await
        > 0
    {
        assert!(steps < 30, "so many steps do not suffice");
        for key in 0..128 {
            complete(&store, &format!("{steps} {key}"), RETENTION).await;
        }
        steps += 1;
        sleep(Duration::from_millis(50)).await;
    }
    assert!(steps >= 6, "{steps} steps were not small");
}

/// The store and the server cancel a step that takes too long.
#[tokio::test(flavor = "multi_thread")]
async fn hanging_purge_times_out() {
    let database = Database::create().await;
    let pool = database.pool(1).await;
    let options: PgConnectOptions = database.url.parse().unwrap();
    let options = options.options([("client_connection_check_interval", "1s")]);
    let store = PostgresStore::new(PgPool::connect_with(options).await.unwrap());
    store.migrate().await.unwrap();
    execute(
        &pool,
        "CREATE FUNCTION hang() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM pg_sleep(3600); RETURN old; END $$;
        CREATE TRIGGER hang BEFORE DELETE ON tower_webhook.keys
            FOR EACH ROW EXECUTE FUNCTION hang()",
    )
    .await;
    fill(&pool, 1, 0).await;
    // The first step begins anywhere.
    for key in 0..3 * 128 {
        acquire(&store, &key.to_string(), MINUTE).await;
    }

    let hanging = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event = 'PgSleep'";
    let becomes = async |expected| {
        while count(&pool, hanging).await != expected {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(MINUTE, becomes(1)).await.expect("a step hangs");
    timeout(MINUTE, becomes(0)).await.expect("it is given up");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_clock_of_the_server_counts() {
    let database = Database::create().await;
    let store = database.store().await;
    let pool = database.pool(1).await;
    // From now on the server's clock is what a table says.
    execute(
        &pool,
        "CREATE SCHEMA fake;
         CREATE TABLE fake.clock (ahead interval NOT NULL);
         INSERT INTO fake.clock VALUES ('0');
         CREATE FUNCTION fake.clock_timestamp() RETURNS timestamptz VOLATILE LANGUAGE sql
         AS 'SELECT pg_catalog.clock_timestamp() + ahead FROM fake.clock'",
    )
    .await;
    database.set("search_path = fake, pg_catalog").await;
    let one = database.store().await;
    let other = database.store().await;
    let jump = async |time: Duration| {
        let jump = "UPDATE fake.clock SET ahead = ahead + $1::text::interval";
        sqlx::query(jump)
            .bind(format!("{} seconds", time.as_secs_f64()))
            .execute(&pool)
            .await
            .unwrap();
    };

    let lease = acquire(&one, "key", MINUTE).await;
    jump(MINUTE - Duration::from_secs(20)).await;
    assert!(matches!(
        other.peek(&id("key")).await.unwrap(),
        KeyState::InFlight { remaining } if remaining <= Duration::from_secs(20)
    ));
    one.renew(&lease, MINUTE).await.unwrap();
    jump(MINUTE + Duration::from_secs(1)).await;
    assert_eq!(other.peek(&id("key")).await.unwrap(), KeyState::Free);
    let refused = one.complete(&lease, RETENTION).await;
    assert!(matches!(refused, Err(SettleError::LeaseExpired)));

    let lease = acquire(&other, "key", MINUTE).await;
    assert_eq!(lease.attempt().get(), 2);
    other.complete(&lease, RETENTION).await.unwrap();
    jump(RETENTION - MINUTE).await;
    assert!(is_done(&one, "key").await);
    assert_eq!(one.purge().await.unwrap(), 0);
    jump(2 * MINUTE).await;
    assert!(!is_done(&one, "key").await);
    assert_eq!(acquire(&one, "key", MINUTE).await.attempt().get(), 1);
    // The lease ends, and then what is known of the attempts.
    jump(RETENTION + DAY).await;
    assert_eq!(other.purge().await.unwrap(), 1);
    drop(store);
}

#[tokio::test]
async fn no_time_of_day_is_sent() {
    let database = Database::create().await;
    let pool = database.pool(1).await;
    let store = PostgresStore::new(pool.clone());
    store.migrate().await.unwrap();
    let lease = acquire(&store, "key", MINUTE).await;
    store.renew(&lease, MINUTE).await.unwrap();
    store.release(&lease).await.unwrap();
    complete(&store, "key", RETENTION).await;
    assert!(is_done(&store, "key").await);
    store.purge().await.unwrap();

    // On the one connection there is, all statements are prepared by now.
    let statements = sqlx::query(
        "SELECT statement, parameter_types::text[] FROM pg_prepared_statements
         WHERE statement LIKE '%tower_webhook%.keys%' AND statement NOT LIKE '%pg_prepared%'",
    );
    let statements = statements.fetch_all(&pool).await.unwrap();
    assert_eq!(
        statements.len(),
        6,
        "claim, peek, renew, complete, release, purge"
    );
    for statement in statements {
        let (sql, types): (String, Vec<String>) = (statement.get(0), statement.get(1));
        for told in types {
            assert!(
                ["uuid", "bigint", "text"].contains(&&*told),
                "{told} in {sql}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_of_the_server_are_classified() {
    let database = Database::create().await;
    let store = database.store().await;
    let pool = database.pool(1).await;
    execute(
        &pool,
        "CREATE TABLE public.refusal (code text);
         INSERT INTO public.refusal VALUES ('');
         CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
         DECLARE refusal text := (SELECT code FROM public.refusal);
         BEGIN
             RAISE EXCEPTION 'refused' USING ERRCODE = refusal;
         END $$;
         CREATE TRIGGER refuse BEFORE INSERT ON tower_webhook.keys
         FOR EACH ROW EXECUTE FUNCTION public.refuse()",
    )
    .await;
    use StoreErrorKind::{Corrupt, TimedOut, Unavailable};
    for (code, kind, says) in [
        ("53100", Unavailable, "refused"),                // disk_full
        ("53200", Unavailable, "refused"),                // out_of_memory
        ("57P01", Unavailable, "refused"),                // admin_shutdown
        ("57P02", Unavailable, "refused"),                // crash_shutdown
        ("25006", Unavailable, "connect to the primary"), // read_only_sql_transaction
        ("42501", Unavailable, "lacks rights"),           // insufficient_privilege
        ("42703", Unavailable, "PostgresStore::migrate"), // undefined_column
        ("57014", TimedOut, "refused"),                   // query_canceled
        ("55P03", TimedOut, "refused"),                   // lock_not_available
        ("XX001", Corrupt, "refused"),                    // data_corrupted
        ("23514", Corrupt, "refused"),                    // check_violation
    ] {
        execute(&pool, &format!("UPDATE public.refusal SET code = '{code}'")).await;
        let error = store
            .claim(&id("key"), MINUTE, RETENTION)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), kind, "{code}: {}", chain(&error));
        assert!(chain(&error).contains(says), "{code}: {}", chain(&error));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn read_only_server_is_reported() {
    let database = Database::create().await;
    let store = database.store().await;
    complete(&store, "key", RETENTION).await;
    database.set("default_transaction_read_only = on").await;

    let store = PostgresStore::new(database.pool(1).await);
    let error = store
        .claim(&id("new"), MINUTE, RETENTION)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(
        chain(&error).contains("connect to the primary"),
        "{}",
        chain(&error)
    );
    assert!(is_done(&store, "key").await);

    // After a failover, connections to the old primary are of no use any more.
    database.set("default_transaction_read_only = off").await;
    store
        .claim(&id("new"), MINUTE, RETENTION)
        .await
        .unwrap_err();
    acquire(&store, "new", MINUTE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn suppressed_row_does_not_cause_an_endless_loop() {
    let database = Database::create().await;
    let store = database.store().await;
    let pool = database.pool(1).await;
    execute(
        &pool,
        "CREATE FUNCTION public.suppress() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             RETURN NULL;
         END $$;
         CREATE TRIGGER suppress BEFORE INSERT ON tower_webhook.keys
         FOR EACH ROW EXECUTE FUNCTION public.suppress()",
    )
    .await;
    let error = store
        .claim(&id("key"), MINUTE, RETENTION)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_server_is_unavailable() {
    let mut server = PostgresServer::start();
    let url = server.url().replace("postgres@", "postgres:hunter2@");
    let patient = PostgresStore::new(connect(&url, 1).await);
    patient.migrate().await.unwrap();
    complete(&patient, "key", RETENTION).await;
    let pool = PgPoolOptions::new()
        .acquire_timeout(Duration::from_millis(200))
        .connect_lazy(&url)
        .unwrap();
    let store = PostgresStore::new(pool);
    let works = async || matches!(store.peek(&id("key")).await, Ok(KeyState::Done));
    eventually("the store works", works).await;

    server.stop(Stop::Immediate);
    for message in fails_as(&store, StoreErrorKind::Unavailable).await {
        assert!(!message.contains("hunter2"), "{message}");
    }
    let error = store.migrate().await.unwrap_err();
    assert_eq!(error.kind(), OpenErrorKind::Unavailable);
    assert!(!format!("{store:?} {error:?}").contains("hunter2"));
    let error = store.purge().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);

    server.restart();
    eventually("the store works again", works).await;
}

/// Passes bytes on between clients and a server, or drops them on request.
struct Network {
    url: String,
    passes: watch::Sender<bool>,
}

impl Network {
    async fn to(server: &PostgresServer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let target = ("127.0.0.1", server.port());
        let passes = watch::Sender::new(true);
        let subscribed = passes.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(target).await else {
                    continue;
                };
                let (client_reads, client_writes) = client.into_split();
                let (server_reads, server_writes) = server.into_split();
                for (mut from, mut to) in
                    [(client_reads, server_writes), (server_reads, client_writes)]
                {
                    let mut passes = subscribed.subscribe();
                    tokio::spawn(async move {
                        let swallowed = async {
                            let _ = passes.wait_for(|passes| !passes).await;
                        };
                        tokio::select! {
                            biased;
                            // Neither end notices.
                            () = swallowed => std::future::pending().await,
                            _ = tokio::io::copy(&mut from, &mut to) => {}
                        }
                    });
                }
            }
        });
        let url = format!("postgres://postgres@127.0.0.1:{port}/postgres");
        Self { url, passes }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hanging_connections_time_out() {
    let server = PostgresServer::start();
    let network = Network::to(&server).await;
    let store = PostgresStore::new(connect(&network.url, 2).await);
    store.migrate().await.unwrap();

    let mut underway = Vec::new();
    for at in 0..2 {
        let key = format!("key {at}");
        let lease = acquire(&store, &key, MINUTE).await;
        underway.push((key, lease));
    }
    // Statements that are under way when the network goes, on every connection that there may be.
    let hold = connect(&server.url(), 2).await;
    let mut lock = hold.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM tower_webhook.keys FOR UPDATE")
        .execute(&mut *lock)
        .await
        .unwrap();
    let settle = |lease: Lease| {
        let store = store.clone();
        async move { store.complete(&lease, RETENTION).await }
    };
    let settled: Vec<_> = underway
        .iter()
        .map(|(_, lease)| tokio::spawn(settle(lease.clone())))
        .collect();
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    eventually("both statements wait", async || {
        count(&hold, waiting).await == 2
    })
    .await;
    network.passes.send_replace(false);
    lock.rollback().await.unwrap();
    let direct = PostgresStore::new(hold);
    for (key, _) in &underway {
        eventually("the server goes on", async || is_done(&direct, key).await).await;
    }
    for settled in settled {
        settled.abort();
        let given_up = settled.await.expect_err("the network passes bytes");
        assert!(given_up.is_cancelled(), "{given_up}");
    }

    // The caller gave these two up, and so does the pool: new connections take their place.
    network.passes.send_replace(true);
    let recovered = timeout(Duration::from_secs(20), async {
        for (key, _) in &underway {
            assert!(is_done(&store, key).await, "{key}");
        }
        complete(&store, "new", RETENTION).await;
    });
    recovered.await.expect("the pool recovers");
}

/// Takes its time to open a connection, as over a long way with TLS, and loses all at will.
struct Doorman {
    url: String,
    is_open: watch::Sender<bool>,
}

impl Doorman {
    async fn before(server: &PostgresServer, delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let target = ("127.0.0.1", server.port());
        let is_open = watch::Sender::new(true);
        let subscribed = is_open.clone();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut is_open = subscribed.subscribe();
                tokio::spawn(async move {
                    let _ = is_open.wait_for(|is_open| *is_open).await;
                    sleep(delay).await;
                    let mut server = TcpStream::connect(target).await.unwrap();
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                        _ = is_open.wait_for(|is_open| !is_open) => {}
                    }
                });
            }
        });
        let url = format!("postgres://postgres@127.0.0.1:{port}/postgres");
        Self { url, is_open }
    }
}

/// Whoever waited longest gets the place of a connection, and has the least time left to open it.
#[tokio::test(flavor = "multi_thread")]
async fn connections_are_reopened_under_load() {
    const PATIENCE: Duration = Duration::from_millis(500);
    const OPENING: Duration = Duration::from_millis(200);

    let server = PostgresServer::start();
    let doorman = Doorman::before(&server, OPENING).await;
    let store = PostgresStore::new(connect(&doorman.url, 2).await);
    store.migrate().await.unwrap();

    let answered = Arc::new(AtomicU32::new(0));
    let load = {
        let (store, answered) = (store.clone(), Arc::clone(&answered));
        tokio::spawn(async move {
            let mut calls = JoinSet::new();
            loop {
                sleep(Duration::from_millis(10)).await;
                let (store, answered) = (store.clone(), Arc::clone(&answered));
                calls.spawn(async move {
                    if let Ok(Ok(_)) = timeout(PATIENCE, store.peek(&id("key"))).await {
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                });
                while calls.try_join_next().is_some() {}
            }
        })
    };
    let more = async |what: &str| {
        let before = answered.load(Ordering::Relaxed);
        let more = async {
            while answered.load(Ordering::Relaxed) < before + 100 {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(Duration::from_secs(20), more).await.expect(what);
    };
    more("it works").await;
    doorman.is_open.send_replace(false);
    sleep(PATIENCE * 3).await;
    doorman.is_open.send_replace(true);
    more("it works again").await;
    load.abort();
}
