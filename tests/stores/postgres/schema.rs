//! Migrations, schemas of other programs, and rights.

use std::time::Duration;

use sqlx::postgres::PgPool;
use tower_webhook::ConfigError;
use tower_webhook::postgres::PostgresStore;
use tower_webhook::store::{OpenErrorKind, StoreErrorKind};

use tracing::Level;

use support::chain;
use support::database::{Database, connect, count, execute};
use support::log::Log;

use super::{RETENTION, complete, fails_as, is_done};

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
