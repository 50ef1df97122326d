//! Measures the bytes on the disk for each event that waits, and for each one that was handled and whose body was deleted.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::future::try_join_all;
use rusqlite::Connection;
use sqlx::postgres::PgPool;
use sqlx::{AssertSqlSafe, Row};
use tokio::runtime::Builder;
use tower_webhook::inbox::Queue;
use tower_webhook::inbox::internal::Settlement;
use tower_webhook::sqlite::SqliteQueue;

use crate::backlog::fill;
use crate::contest::Effort;
use crate::events::{Events, take};
use crate::postgres::{self, connect};
use crate::postgres_floor;
use crate::report::Target::AtMost;
use crate::report::{Spread, Table, Verdicts};
use support::postgres::PostgresServer;

/// So many that the empty tables do not count.
const LEAST: u64 = 1_000;

pub(crate) fn run(effort: &Effort, verdicts: &mut Verdicts) -> Result<()> {
    let directory = tempfile::tempdir_in(&effort.directory)?;
    let file = directory.path().join("inbox.db");
    let count = (effort.keys / 50).max(LEAST);
    let events = Arc::new(Events::of_chats(count));
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let (in_sqlite, in_postgres, bare) = runtime.block_on(async {
        let queue = Queue::from(SqliteQueue::open(&file)?);
        fill(&queue, &events, count).await?;
        drop(queue);
        let waiting = sqlite_size(&file, "SELECT 1")?;
        let queue = Queue::from(SqliteQueue::open(&file)?);
        handle(&queue, count).await?;
        drop(queue);
        let handled = sqlite_size(&file, "VACUUM")?;

        let server = PostgresServer::start();
        let queue = Queue::from(postgres::queue(&server.url()).await?);
        let pool = connect(&server.url(), 1).await?;
        let empty = postgres_size(&pool).await?;
        let events = Arc::new(Events::of_chats(count));
        fill(&queue, &events, count).await?;
        let full = postgres_size(&pool).await?;
        handle(&queue, count).await?;
        sqlx::query("VACUUM FULL").execute(&pool).await?;
        let after = postgres_size(&pool).await?;
        let bare = postgres_floor::sizes(&pool, count).await?;
        pool.close().await;
        let of = |size: u64| size.saturating_sub(empty);
        anyhow::Ok(([waiting, handled], [of(full), of(after)], bare))
    })?;
    let mut table = Table::new([
        "bytes for each event",
        "waiting, 607 of body",
        "handled, without body",
    ]);
    for (name, sizes) in [("sqlite", in_sqlite), ("postgres", in_postgres)] {
        let [waiting, handled] = sizes.map(|size| Spread::of([size as f64 / count as f64]));
        table.row([name.to_owned(), waiting.show(0), handled.show(0)]);
        let what = format!("{name}, bytes on the disk of a waiting event of 607 bytes");
        verdicts.add(what, AtMost(1200.0), waiting, 0);
        let what = format!("{name}, bytes on the disk of a handled event without body");
        verdicts.add(what, AtMost(200.0), handled, 0);
    }
    let [waiting, handled] = bare.map(|size| format!("{size:.0}"));
    table.row(["bare tables in Postgres".to_owned(), waiting, handled]);
    println!(
        "\n## On the disk, {count} events with keys of 36 bytes and chats of 29\n\n{table}\n\n\
         The room that deleted bodies leave is used again, and not counted. Bare tables have the key, its digest, the chat \
         and the times, and neither lanes nor what a `PostgresStore` knows of the key."
    );
    Ok(())
}

/// Handles all events, and deletes their bodies.
async fn handle(queue: &Queue, count: u64) -> Result<()> {
    let mut handled = 0;
    while handled < count {
        let events = queue.claim.claim(&[take().into()], 64, 1).await?.events;
        let settle = |lease| queue.settle.settle(lease, &Settlement::Handled, None);
        let settling = events.iter().map(|event| settle(&event.lease));
        handled += try_join_all(settling).await?.len() as u64;
    }
    // A body is deleted when the clock of the queue has moved on.
    tokio::time::sleep(Duration::from_millis(50)).await;
    while queue.purge.purge(Duration::ZERO).await? {}
    Ok(())
}

/// Returns the size of a file that nobody has open, after this statement.
fn sqlite_size(file: &Path, statement: &str) -> Result<u64> {
    let database = Connection::open(file).context("cannot open the file")?;
    database.execute_batch(statement)?;
    database.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    database.close().map_err(|(_, error)| error)?;
    Ok(file.metadata()?.len())
}

/// Returns the size of all tables and their indexes.
async fn postgres_size(pool: &PgPool) -> Result<u64> {
    let sizes = AssertSqlSafe(
        "SELECT coalesce(sum(pg_total_relation_size(relid)), 0)::bigint FROM pg_stat_user_tables",
    );
    let size: i64 = sqlx::query(sizes).fetch_one(pool).await?.try_get(0)?;
    Ok(size.unsigned_abs())
}
