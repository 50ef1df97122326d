//! The receivers, which run in child processes of the benchmark.

use std::future::ready;
use std::hint::black_box;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use axum::Router;
use axum::routing::{get, post};
use bytes::Bytes;
use sqlx::postgres::PgPool;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::time::sleep;
use tower::{Layer, service_fn};
use tower_webhook::inbox::{Inbox, Queue};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::postgres::PostgresQueue;
use tower_webhook::spool::{Spool, Spooled};
use tower_webhook::sqlite::SqliteQueue;
use tower_webhook::{Outcome, RawDelivery, Running, SignatureLayer};

use crate::events::secret;
use crate::machine::Cores;
use crate::postgres::queue;
use support::inbox::Works;

/// Prints a free port and serves on it until standard input is closed.
pub(crate) fn serve(what: &str, cores: &Cores) -> Result<()> {
    cores.pin()?;
    runtime(cores)?.block_on(async {
        let (app, worker) = receiver(what).await?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        println!("{}", listener.local_addr()?.port());
        let closed = async {
            let _ = tokio::io::stdin().read_u8().await;
        };
        axum::serve(listener, app)
            .with_graceful_shutdown(closed)
            .await?;
        if let Some(worker) = worker {
            worker.drain(Duration::from_secs(10)).await?;
        }
        Ok(())
    })
}

fn runtime(cores: &Cores) -> Result<Runtime> {
    let mut builder = match cores.len() {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    if cores.len() > 1 {
        builder.worker_threads(cores.len());
    }
    Ok(builder.enable_all().build()?)
}

/// `bare`, `accept:QUEUE`, or `handle:CONCURRENCY:QUEUE`.
async fn receiver(what: &str) -> Result<(Router, Option<Running>)> {
    let (kind, rest) = what.split_once(':').unwrap_or((what, ""));
    let (concurrency, queue) = match kind {
        "bare" => return Ok((bare(), None)),
        "accept" => (None, rest),
        "handle" => {
            let (concurrency, queue) = rest.split_once(':').context("a concurrency")?;
            (Some(concurrency.parse()?), queue)
        }
        _ => bail!("no receiver `{what}`"),
    };
    match queue.split_once(':').unwrap_or((queue, "")) {
        ("memory", _) => Ok(inbox(MemoryQueue::new(), concurrency)),
        ("sqlite", path) => Ok(inbox(SqliteQueue::open(path)?, concurrency)),
        ("spool", path) => Ok(inbox(spool(path).await?, concurrency)),
        ("postgres", _) => Ok(inbox(self::queue(queue).await?, concurrency)),
        _ => bail!("no queue `{queue}`"),
    }
}

/// A spool in front of a database that is away.
async fn spool(path: &str) -> Result<Spooled> {
    let nowhere = PgPool::connect_lazy("postgres://nobody@127.0.0.1:1/nothing")?;
    let spool = Spool::new(path).on_any_disk();
    Ok(spool.open(PostgresQueue::new(nowhere)).await?)
}

/// The floor: a route that receives the body and does nothing with it.
fn bare() -> Router {
    Router::new().route("/webhooks", post(async |body: Bytes| drop(black_box(body))))
}

/// A receiver with an inbox, and with a handler that does nothing if there is a concurrency.
fn inbox(queue: impl Into<Queue>, concurrency: Option<usize>) -> (Router, Option<Running>) {
    let handled = Arc::new(AtomicU64::new(0));
    let inbox = Inbox::new(queue).backlog_limit(u64::MAX);
    let webhooks = SignatureLayer::new(secret()).layer(inbox.accept());
    let worker = concurrency.map(|concurrency| {
        let handled = Arc::clone(&handled);
        let nothing = service_fn(move |delivery: RawDelivery| {
            black_box(delivery);
            handled.fetch_add(1, Ordering::Relaxed);
            ready(Ok::<_, std::convert::Infallible>(Outcome::Handled))
        });
        inbox.work(nothing).concurrency(concurrency).spawn()
    });
    let settled = async move || {
        loop {
            match inbox.stats().await {
                Ok(stats) if stats.is_all_handled() => {
                    return Ok(handled.load(Ordering::Relaxed).to_string());
                }
                Ok(_) => sleep(Duration::from_millis(1)).await,
                Err(error) => return Err(error.to_string()),
            }
        }
    };
    let router = Router::new()
        .route_service("/webhooks", webhooks)
        .route("/settled", get(settled));
    (router, worker)
}
