//! The floor of PostgreSQL: the least that keeps an event, takes it and ends it, by plain statements on tables without
//! lanes, retries or duplicates that are answered. As many events share a statement as callers share one of the queue.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures_util::future::try_join_all;
use sqlx::Row;
use sqlx::postgres::PgPool;
use tokio::runtime::Builder;
use tower_webhook::IdempotencyKey;

use crate::contest::Effort;
use crate::events::Events;
use crate::postgres::{CONNECTIONS, PROCESSES, connect, server_cpu};

const TABLES: &str = "
    CREATE TABLE bare_events (
        seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        digest uuid NOT NULL UNIQUE,
        key bytea NOT NULL,
        chat bytea NOT NULL,
        body bytea
    );
    CREATE TABLE bare_work (seq bigint PRIMARY KEY, due timestamptz NOT NULL);
    CREATE TABLE bare_ended (seq bigint PRIMARY KEY, at timestamptz NOT NULL)";
const ACCEPT: &str = "
    WITH new AS (
        INSERT INTO bare_events (digest, key, chat, body)
        SELECT * FROM unnest($1::text[]::uuid[], $2::bytea[], $3::bytea[], $4::bytea[])
        RETURNING seq
    )
    INSERT INTO bare_work SELECT seq, now() + interval '30 s' FROM new RETURNING seq";
const SIZE: &str = "
    SELECT sum(pg_total_relation_size(relid))::bigint FROM pg_stat_user_tables WHERE relname LIKE 'bare%'";
const SETTLE: &str = "
    WITH ended AS (DELETE FROM bare_work WHERE seq = ANY ($1) RETURNING seq)
    INSERT INTO bare_ended SELECT seq, now() FROM ended";

/// Creates the tables of the bare loop.
pub(crate) fn create(url: &str) -> Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let pool = connect(url, 1).await?;
        sqlx::raw_sql(TABLES).execute(&pool).await?;
        Ok(())
    })
}

/// The bytes that an event takes there while it waits, and after it was handled and its body deleted.
pub(crate) async fn sizes(pool: &PgPool, count: u64) -> Result<[f64; 2]> {
    let size = async || -> Result<f64> {
        let size: i64 = sqlx::query_scalar(SIZE).fetch_one(pool).await?;
        Ok(size as f64 / count as f64)
    };
    sqlx::raw_sql(TABLES).execute(pool).await?;
    let events = Events::of_chats(count);
    let mut seqs = Vec::new();
    while (seqs.len() as u64) < count {
        seqs.extend(accept(pool, &events, 100).await?);
    }
    let waiting = size().await?;
    settle(pool, seqs).await?;
    sqlx::raw_sql("UPDATE bare_events SET body = NULL")
        .execute(pool)
        .await?;
    sqlx::raw_sql("VACUUM FULL").execute(pool).await?;
    Ok([waiting, size().await?])
}

/// Accepts so many events by one statement, and returns their numbers.
async fn accept(pool: &PgPool, events: &Events, count: usize) -> Result<Vec<i64>> {
    let events: Vec<_> = (0..count).map(|_| events.next()).collect();
    let digests = events.iter().filter_map(|event| event.key.as_ref());
    let digests: Vec<_> = digests.map(|key| format!("{:032x}", key.key())).collect();
    let keys = events.iter().filter_map(|event| event.delivery.key());
    let keys: Vec<_> = keys.map(IdempotencyKey::as_bytes).collect();
    let chats = events.iter().filter_map(|event| event.chat.as_deref());
    let chats: Vec<_> = chats.map(str::as_bytes).collect();
    let bodies: Vec<_> = events
        .iter()
        .map(|event| &event.delivery.body()[..])
        .collect();
    let accept = sqlx::query(ACCEPT)
        .bind(digests)
        .bind(keys)
        .bind(chats)
        .bind(bodies);
    let rows = accept.fetch_all(pool).await?;
    let seqs = rows.iter().map(|row| row.try_get(0));
    Ok(seqs.collect::<sqlx::Result<_>>()?)
}

/// Ends them by one statement.
async fn settle(pool: &PgPool, seqs: Vec<i64>) -> Result<()> {
    sqlx::query(SETTLE).bind(seqs).execute(pool).await?;
    Ok(())
}

/// Events per second, and the server's microseconds of processor time for each of them.
pub(crate) fn measure(effort: &Effort, url: &str, server: u32) -> Result<(f64, f64)> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let loops = u32::try_from(PROCESSES)?;
        let pool = connect(url, loops).await?;
        let events = Events::of_chats(1_000);
        let (began, before) = (Instant::now(), server_cpu(server)?);
        let one = async || {
            let mut count = 0;
            while began.elapsed() < effort.time {
                settle(&pool, accept(&pool, &events, CONNECTIONS).await?).await?;
                count += CONNECTIONS;
            }
            anyhow::Ok(count)
        };
        let counts = try_join_all((0..PROCESSES).map(|_| one())).await?;
        let count = counts.into_iter().sum::<usize>() as f64;
        let cpu: Duration = server_cpu(server)?.saturating_sub(before);
        Ok((
            count / began.elapsed().as_secs_f64(),
            cpu.as_secs_f64() * 1e6 / count,
        ))
    })
}
