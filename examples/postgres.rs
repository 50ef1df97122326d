//! Run with: cargo run --example postgres --features postgres,signal -- --database URL
//!
//! Writes ratings into a Postgres table exactly once, despite retries and crashes. List them with
//! `psql URL -c 'TABLE ratings'`.

use std::env::VarError;
use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, value_parser};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, Executor, PgConnection};
use tokio::net::TcpListener;
use tokio::time::timeout;
use tower::Layer;
use tower_webhook::event::ChatRated;
use tower_webhook::postgres::PostgresStore;
use tower_webhook::transactional::Transactions;
use tower_webhook::{Delivery, EventRouter, HandlerError, HandlerResult, Secret, SignatureLayer};

/// Receive the chat platform's webhooks, and write each rating into the table `ratings` exactly once.
///
/// The database's URL can also be passed in the environment variable DATABASE_URL, which does not show
/// in the list of processes. Tables are created at startup.
#[derive(Parser)]
#[command(name = "postgres")]
struct Args {
    /// The address to listen on; port 0 picks a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:3000")]
    listen: SocketAddr,

    /// The secret that is set in the partner portal; by default a random one, which is printed
    #[arg(long, value_name = "SECRET", env = "WEBHOOK_SECRET", hide_env_values = true, value_parser = |text: &str| Secret::new(text))]
    secret: Option<Secret>,

    /// The database's URL, such as postgres://user:password@localhost/crm
    #[arg(long, value_name = "URL")]
    database: Option<String>,

    /// The maximum number of connections, which is how many ratings are written concurrently
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = value_parser!(u32).range(1..))]
    connections: u32,
}

/// Handles one event, in the transaction that also records its key.
async fn rate(chat: Delivery<ChatRated>, db: &mut PgConnection) -> HandlerResult {
    let (Some(id), Some(rating)) = (&chat.payload.id, chat.payload.rating) else {
        return Err(HandlerError::discard("the rating has no chat or no value"));
    };
    sqlx::query("INSERT INTO ratings (chat, rating) VALUES ($1, $2)")
        .bind(id)
        .bind(rating)
        .execute(db)
        .await?;
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();

    let pool = connect(database(args.database), args.connections).await?;
    let store = PostgresStore::open(pool.clone()).await;
    let store = store.context("the tables for keys cannot be created")?;
    pool.execute(
        "CREATE TABLE IF NOT EXISTS ratings (
            chat text NOT NULL,
            rating double precision NOT NULL,
            written_at timestamptz NOT NULL DEFAULT now()
        )",
    )
    .await
    .context("the table `ratings` cannot be created")?;

    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("cannot listen on {}", args.listen))?;
    let url = format!("http://{}/webhooks", listener.local_addr()?);
    eprintln!("listening on {url}");
    let secret = match args.secret {
        Some(secret) => secret,
        None => random_secret(&url)?,
    };

    let transactions = Transactions::new(store);
    let events = EventRouter::new().on::<ChatRated>(transactions.handler(rate));
    let webhooks = SignatureLayer::new(secret).layer(events);
    let app = Router::new().route_service("/webhooks", webhooks);

    axum::serve(listener, app)
        .with_graceful_shutdown(tower_webhook::shutdown())
        .await?;
    Ok(())
}

/// Parses the database's URL. Errors must not show it, because it may contain a password.
fn database(given: Option<String>) -> PgConnectOptions {
    let url = match given.map_or_else(|| std::env::var("DATABASE_URL"), Ok) {
        Ok(url) => url,
        Err(VarError::NotPresent) => misused(
            ErrorKind::MissingRequiredArgument,
            "the database's URL is missing: use --database URL, or set DATABASE_URL",
        ),
        Err(VarError::NotUnicode(_)) => misused(
            ErrorKind::InvalidUtf8,
            "the environment variable DATABASE_URL is not Unicode",
        ),
    };
    let example = "use a URL such as postgres://user:password@localhost/crm";
    if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
        let message = format!("the database's URL does not begin with `postgres://`: {example}");
        misused(ErrorKind::ValueValidation, &message);
    }
    url.parse().unwrap_or_else(|error: sqlx::Error| {
        let cause = error
            .source()
            .map_or_else(|| error.to_string(), ToString::to_string);
        let message = format!("the database's URL is invalid ({cause}): {example}");
        misused(ErrorKind::ValueValidation, &message)
    })
}

/// Exits like clap does for an invalid argument.
fn misused(kind: ErrorKind, message: &str) -> ! {
    Args::command().error(kind, message).exit()
}

async fn connect(options: PgConnectOptions, connections: u32) -> anyhow::Result<PgPool> {
    // The server ends queries whose client has disconnected.
    let options = options.options([("client_connection_check_interval", "1s")]);
    // Without the pool first: it retries, and then reports only that it timed out.
    let first = timeout(Duration::from_secs(10), options.connect()).await;
    let reached = match first {
        Ok(Ok(connection)) => connection.close().await.map_err(anyhow::Error::from),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(anyhow::anyhow!("no response within 10 seconds")),
    };
    reached.with_context(|| {
        let (host, port) = (options.get_host(), options.get_port());
        format!("cannot connect to the database at {host}:{port}: check that it is running and that the URL is correct")
    })?;
    Ok(PgPoolOptions::new()
        .max_connections(connections)
        .connect_lazy_with(options))
}

fn random_secret(url: &str) -> anyhow::Result<Secret> {
    let mut bytes = [0; 20];
    getrandom::fill(&mut bytes)?;
    let secret = base16ct::lower::encode_string(&bytes);
    eprintln!(
        "send a first event with\n\n  \
         cargo run -p tower-webhook-receiver -- send --url {url} --secret {secret}\n"
    );
    Ok(Secret::new(secret)?)
}
