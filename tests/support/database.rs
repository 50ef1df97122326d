//! Databases on one PostgreSQL server for all tests of a process, also those in `src`.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sqlx::AssertSqlSafe;
use sqlx::postgres::{PgPool, PgPoolOptions};

use super::postgres::PostgresServer;

/// An empty database of a test's own, on a server that the tests of this process share.
pub struct Database {
    pub url: String,
}

static SERVER: LazyLock<PostgresServer> = LazyLock::new(PostgresServer::start);

impl Database {
    pub async fn create() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("test_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let server = tokio::task::spawn_blocking(|| &*SERVER).await.unwrap();
        let admin = connect(&server.url(), 1).await;
        execute(&admin, &format!("CREATE DATABASE {name}")).await;
        let url = server.url_of(&name);
        Self { url }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Changes what every session begins with.
    pub async fn set(&self, setting: &str) {
        let name = self.url.rsplit('/').next().unwrap();
        let pool = self.pool(1).await;
        execute(&pool, "SET default_transaction_read_only = off").await;
        execute(&pool, &format!("ALTER DATABASE {name} SET {setting}")).await;
    }

    pub async fn pool(&self, connections: u32) -> PgPool {
        connect(&self.url, connections).await
    }
}

pub async fn connect(url: &str, connections: u32) -> PgPool {
    PgPoolOptions::new()
        .max_connections(connections)
        // By default, a connection ends after half an hour, and with it what a test has set for its session.
        .max_lifetime(None)
        .connect(url)
        .await
        .unwrap()
}

pub async fn execute(pool: &PgPool, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(pool)
        .await
        .unwrap();
}

pub async fn count(pool: &PgPool, sql: &str) -> i64 {
    let count = sqlx::query_scalar(AssertSqlSafe(sql));
    count.fetch_one(pool).await.unwrap()
}

/// Has the server's statistics contain what the connection of a pool has done.
pub async fn flush_statistics(pool: &PgPool) {
    let flush = "SELECT count(*) FROM pg_proc WHERE proname = 'pg_stat_force_next_flush'";
    if count(pool, flush).await > 0 {
        return execute(pool, "SELECT pg_stat_force_next_flush()").await;
    }
    // Before version 15, a statement does it at its end, if half a second has passed since the last time. What is read may
    // be as old as that.
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(600)).await;
        execute(pool, "SELECT 1").await;
    }
}
