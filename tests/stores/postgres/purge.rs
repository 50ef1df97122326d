//! Expired keys are deleted.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPool};
use tokio::time::{sleep, timeout};
use tower_webhook::postgres::PostgresStore;
use tower_webhook::store::{KeyState, Store};

use support::MINUTE;
use support::database::{Database, count, execute};

use super::{RETENTION, acquire, complete, id, is_done};

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
