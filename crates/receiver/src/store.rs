//! The stores of `--store`, and the queues of `--inbox`.

#[cfg(feature = "sqlite")]
use std::path::PathBuf;

#[cfg(feature = "postgres")]
use anyhow::Context;
#[cfg(feature = "postgres")]
use sqlx::postgres::PgPool;
#[cfg(feature = "postgres")]
use tokio::time::error::Elapsed;
#[cfg(feature = "postgres")]
use tokio::time::{Duration, timeout};
#[cfg(feature = "postgres")]
use tower_webhook::postgres::{PostgresQueue, PostgresStore};
#[cfg(feature = "redis")]
use tower_webhook::redis::RedisStore;
#[cfg(feature = "sqlite")]
use tower_webhook::sqlite::{SqliteQueue, SqliteStore};
#[cfg(feature = "postgres")]
use tower_webhook::store::OpenError;

#[cfg(feature = "postgres")]
use crate::hosts::{Hosts, NoPrimary};

/// Says how to run this program with other features.
pub(crate) fn rebuilt(without: &str, features: &str) -> String {
    format!(
        "this program was built without {without}: run it with \
         `cargo run -p tower-webhook-receiver --features {features} -- …`"
    )
}

#[cfg(feature = "sqlite")]
pub(crate) fn sqlite(path: PathBuf) -> anyhow::Result<SqliteStore> {
    Ok(SqliteStore::open(path)?)
}

#[cfg(feature = "redis")]
pub(crate) async fn redis(url: String) -> anyhow::Result<RedisStore> {
    Ok(RedisStore::open(&url).await?)
}

#[cfg(feature = "sqlite")]
pub(crate) fn sqlite_queue(path: PathBuf) -> anyhow::Result<SqliteQueue> {
    Ok(SqliteQueue::open(path)?)
}

#[cfg(feature = "postgres")]
pub(crate) async fn postgres(hosts: Hosts) -> anyhow::Result<PostgresStore> {
    open_postgres(hosts, PostgresStore::open).await
}

#[cfg(feature = "postgres")]
pub(crate) async fn postgres_queue(hosts: Hosts) -> anyhow::Result<PostgresQueue> {
    open_postgres(hosts, PostgresQueue::open).await
}

/// The queue, even if its server is away: then its tables are looked at as soon as it is back.
#[cfg(all(feature = "postgres", feature = "sqlite"))]
pub(crate) async fn postgres_queue_or_later(hosts: Hosts) -> anyhow::Result<PostgresQueue> {
    const TRY_AGAIN: Duration = Duration::from_secs(1);
    /// While a receiver waits for its database, it does not accept events.
    const PATIENCE: Duration = Duration::from_secs(2);

    let opened = timeout(PATIENCE, postgres_queue(hosts.clone())).await;
    let away = match opened.unwrap_or_else(|elapsed| Err(elapsed.into())) {
        Err(error) if is_away(&error) => error,
        opened => return opened,
    };
    tracing::warn!(
        reason = format!("{away:#}"),
        "the receiver starts without its database, and accepts events into the spool"
    );
    let queue = PostgresQueue::new(hosts.pool(0));
    let later = queue.clone();
    tokio::spawn(async move {
        while let Err(error) = later.migrate().await {
            tracing::debug!(
                %error,
                "the tables cannot be used yet"
            );
            tokio::time::sleep(TRY_AGAIN).await;
        }
    });
    Ok(queue)
}

/// Whether an error is about the server, and not about how it is used.
#[cfg(feature = "postgres")]
pub(crate) fn is_away(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.is::<Elapsed>()
            || cause.is::<NoPrimary>()
            || match cause.downcast_ref() {
                Some(sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut) => true,
                // It starts, stops or recovers, or has no connection to spare.
                Some(sqlx::Error::Database(error)) => {
                    let code = error.code().unwrap_or_default();
                    // A pooler reports with 08P01 that it has no server, and also that it refuses a connection.
                    let refusals = ["authentication", "no such", "config error", "parameter"];
                    let message = error.message();
                    let is_refused = refusals.iter().any(|refusal| message.contains(refusal));
                    code.starts_with("57P")
                        || code == "53300"
                        || code.starts_with("08") && !is_refused
                }
                _ => false,
            }
    })
}

#[cfg(feature = "postgres")]
async fn open_postgres<T>(
    hosts: Hosts,
    open: impl AsyncFnOnce(PgPool) -> Result<T, OpenError>,
) -> anyhow::Result<T> {
    const CONNECTING: Duration = Duration::from_secs(10);
    /// Longer than an upgrade of the schema waits for the transactions of other receivers.
    const MIGRATING: Duration = Duration::from_secs(100);

    async fn within<T>(
        limit: Duration,
        step: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        let result = timeout(limit, step).await;
        result.unwrap_or_else(|elapsed| {
            Err(anyhow::Error::new(elapsed).context(format!("no response within {limit:?}")))
        })
    }

    let common = hosts.common();
    let database = common.get_database().unwrap_or(common.get_username());
    let database = format!("the database `{database}` at {hosts} cannot be used");
    // Without the pool first: it retries, and then does not report the reason.
    let found = within(CONNECTING, hosts.primary()).await;
    let found = found.map_err(|error| {
        // The crate has no kind for this error, only its text.
        let advice = if error.to_string().contains("without TLS") {
            rebuilt(
                "TLS to a database",
                "postgres,sqlx/tls-rustls-ring-native-roots",
            )
        } else {
            format!(
                "the database at {hosts} cannot be used: check that the server is running, that the \
                 user, password and database exist, and that the user may create tables"
            )
        };
        error.context(advice)
    })?;
    // What does not fit of its settings says what to change.
    let opened = within(MIGRATING, async { Ok(open(hosts.pool(found)).await?) }).await;
    opened.with_context(|| database)
}
