//! The Postgres store, against real servers.

#[path = "servers/postgres.rs"]
mod server;

use sqlx::postgres::PgPoolOptions;
use tower_webhook::store::PostgresStore;
use tower_webhook::store::conformance::{self, Harness};

use self::server::{PostgresServer, Stop};

#[tokio::test]
async fn servers_keep_their_data_and_their_port() {
    let mut server = PostgresServer::start();
    let url = server.url();
    for stop in [Stop::Fast, Stop::Immediate] {
        let pool = PgPoolOptions::new().connect(&url).await.unwrap();
        sqlx::query("CREATE TABLE IF NOT EXISTS t (c integer)")
            .execute(&pool)
            .await
            .unwrap();
        sqlx::query("INSERT INTO t VALUES (1)")
            .execute(&pool)
            .await
            .unwrap();
        server.stop(stop);
        server.restart();
    }
    let pool = PgPoolOptions::new().connect(&url).await.unwrap();
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM t")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(rows, 2);
}

struct Shared(PostgresServer);

impl Harness for Shared {
    type Store = PostgresStore;

    async fn open(&self) -> PostgresStore {
        let pool = PgPoolOptions::new()
            .max_connections(4)
            .connect(&self.0.url())
            .await
            .unwrap();
        let store = PostgresStore::new(pool);
        store.migrate().await.unwrap();
        store
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keeps_every_rule() {
    conformance::run(&Shared(PostgresServer::start())).await;
}
