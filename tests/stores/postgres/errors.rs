//! Clocks, refusals of the server, and rows that are suppressed.

use std::time::Duration;

use sqlx::Row;
use tower_webhook::postgres::PostgresStore;
use tower_webhook::store::{KeyState, SettleError, Store, StoreErrorKind};

use support::database::{Database, execute};
use support::{DAY, MINUTE, chain};

use super::{RETENTION, acquire, complete, id, is_done};

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
        ("XX000", Unavailable, "refused"), // internal_error, as of a file that may not grow
        ("23514", Corrupt, "refused"),     // check_violation
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
