//! The receivers, which run in child processes of the benchmark.

use std::convert::Infallible;
use std::hint::black_box;
use std::net::Ipv4Addr;

use anyhow::{Context, Result, bail};
use axum::Router;
use axum::body::Body;
use axum::routing::post;
use bytes::Bytes;
use http::{Request, Response};
#[cfg(feature = "postgres")]
use sqlx::postgres::{PgPool, PgPoolOptions};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tower::Service;
use tower_webhook::event::ChatClosed;
use tower_webhook::memory::MokaStore;
#[cfg(feature = "postgres")]
use tower_webhook::postgres::PostgresStore;
#[cfg(feature = "redis")]
use tower_webhook::redis::RedisStore;
#[cfg(feature = "sqlite")]
use tower_webhook::sqlite::SqliteStore;
use tower_webhook::store::Store;
use tower_webhook::{Delivery, EventRouter, Secret, Webhooks};

use crate::machine::Cores;
use crate::{SECRET, by_hand, parts};

/// Prints a free port and serves on it until standard input is closed.
pub(crate) fn serve(what: &str, cores: &Cores) -> Result<()> {
    cores.pin()?;
    runtime(cores)?.block_on(async {
        let app = receiver(what).await?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        println!("{}", listener.local_addr()?.port());
        let closed = async {
            let _ = tokio::io::stdin().read_u8().await;
        };
        axum::serve(listener, app)
            .with_graceful_shutdown(closed)
            .await?;
        Ok(())
    })
}

pub(crate) fn runtime(cores: &Cores) -> Result<Runtime> {
    let mut builder = match cores.len() {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    if cores.len() > 1 {
        builder.worker_threads(cores.len());
    }
    Ok(builder.enable_all().build()?)
}

async fn receiver(what: &str) -> Result<Router> {
    let (kind, rest) = what.split_once(':').unwrap_or((what, ""));
    Ok(match kind {
        "bare" => bare(),
        "by-hand" => by_hand::router(),
        "memory" => pipeline(memory(rest)?),
        "parts" => on_axum(parts::service(memory(rest)?)),
        #[cfg(feature = "sqlite")]
        "sqlite" => pipeline(SqliteStore::open(rest)?),
        #[cfg(feature = "redis")]
        "redis" => pipeline(RedisStore::open(what).await?),
        #[cfg(feature = "postgres")]
        "postgres" => pipeline(PostgresStore::open(pool(what).await?).await?),
        _ => bail!("no receiver `{what}`"),
    })
}

fn memory(capacity: &str) -> Result<MokaStore> {
    let capacity = capacity.parse().context("how many keys to remember")?;
    Ok(MokaStore::with_capacity(capacity))
}

/// Enough connections to keep the server busy.
#[cfg(feature = "postgres")]
pub(crate) async fn pool(url: &str) -> Result<PgPool> {
    let options = PgPoolOptions::new().max_connections(16);
    Ok(options.connect(url).await?)
}

/// The floor: a route that receives the body and does nothing with it.
fn bare() -> Router {
    Router::new().route("/webhooks", post(async |body: Bytes| drop(black_box(body))))
}

/// A receiver with this crate.
fn pipeline<S: Store + Clone>(store: S) -> Router {
    let events = EventRouter::new().on::<ChatClosed>(async |chat: Delivery<ChatClosed>| {
        black_box(chat);
        Ok(())
    });
    let secret = Secret::new(SECRET).expect("it is not empty");
    let webhooks = Webhooks::new(secret).store(store);
    let (webhooks, _) = webhooks.start(events).expect("the defaults are valid");
    on_axum(webhooks)
}

fn on_axum<S, R>(service: S) -> Router
where
    S: Service<Request<Body>, Response = Response<R>, Error = Infallible, Future: Send + 'static>,
    S: Clone + Send + Sync + 'static,
    R: http_body::Body<Data = Bytes, Error: Into<axum::BoxError>> + Send + 'static,
{
    Router::new().route_service("/webhooks", service)
}
