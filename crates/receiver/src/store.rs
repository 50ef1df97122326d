//! The stores of `--store`, and the queues of `--inbox`.

use std::fmt;
#[cfg(feature = "sqlite")]
use std::path::PathBuf;

#[cfg(feature = "postgres")]
use sqlx::Connection;
#[cfg(feature = "postgres")]
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
#[cfg(all(feature = "postgres", feature = "sqlite"))]
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

#[derive(Clone)]
pub(crate) enum Place {
    Memory,
    #[cfg(feature = "sqlite")]
    Sqlite(PathBuf),
    #[cfg(feature = "redis")]
    Redis(String),
    #[cfg(feature = "postgres")]
    Postgres(Box<PgConnectOptions>),
}

impl Place {
    /// Parses the value of `--store`. Errors do not repeat it, because it may contain a password.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "memory" => Ok(Self::Memory),
            Some(("sqlite", path)) => sqlite_at(path.strip_prefix("//").unwrap_or(path)),
            Some(("redis" | "rediss" | "valkey" | "valkeys", _)) => redis_at(text),
            Some(("postgres" | "postgresql", _)) => postgres_at(text),
            _ => Err(unknown(
                text,
                "a store is `memory`, `sqlite:PATH`, `redis://HOST` or `postgres://HOST/DATABASE`",
            )),
        }
    }

    /// Parses the value of `--inbox`, in the same way.
    pub(crate) fn parse_inbox(text: &str) -> Result<Self, String> {
        let is_durable = |scheme| matches!(scheme, "sqlite" | "postgres" | "postgresql");
        match text.split_once(':') {
            Some((scheme, _)) if is_durable(scheme) => Self::parse(text),
            _ => Err(unknown(
                text,
                "an inbox is `sqlite:PATH` or `postgres://HOST/DATABASE`",
            )),
        }
    }

    pub(crate) fn is_server(&self) -> bool {
        match self {
            Self::Memory => false,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => false,
            #[cfg(any(feature = "redis", feature = "postgres"))]
            _ => true,
        }
    }

    /// Two places with the same text are one database.
    pub(crate) fn identity(&self) -> String {
        match self {
            Self::Memory => "memory".to_owned(),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(path) => {
                // The file may not exist yet, unlike its directory.
                let directory = match path.parent() {
                    Some(directory) if !directory.as_os_str().is_empty() => {
                        directory.canonicalize()
                    }
                    _ => std::env::current_dir(),
                };
                let beside = path.file_name().zip(directory.ok());
                let path = match path.canonicalize() {
                    Ok(path) => path,
                    Err(_) => beside.map_or(path.clone(), |(name, at)| at.join(name)),
                };
                path.display().to_string()
            }
            #[cfg(feature = "redis")]
            Self::Redis(url) => url.clone(),
            #[cfg(feature = "postgres")]
            Self::Postgres(it) => {
                let (host, port) = (it.get_host(), it.get_port());
                let database = it.get_database().unwrap_or(it.get_username());
                format!(
                    "{host}:{port}/{database} {:?} {:?}",
                    it.get_socket(),
                    it.get_options()
                )
            }
        }
    }
}

/// Names the scheme that came, unless it may be a user, as in `user:password@host`, or has what no scheme has, as the
/// keywords of a connection.
fn unknown(text: &str, expected: &str) -> String {
    let is_scheme = |scheme: &str| {
        let mut bytes = scheme.bytes();
        bytes.all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    };
    match text.split_once(':') {
        Some((scheme, _)) if is_scheme(scheme) && (!text.contains('@') || text.contains("://")) => {
            format!("`{scheme}:` is none: {expected}")
        }
        _ => expected.to_owned(),
    }
}

/// The name in the log, without a user or a password.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(path) => write!(f, "the SQLite file `{}`", path.display()),
            #[cfg(feature = "redis")]
            Self::Redis(url) => match redis::Client::open(url.as_str()) {
                Ok(client) => write!(f, "Redis at {}", client.get_connection_info().addr()),
                Err(_) => f.write_str("Redis"),
            },
            #[cfg(feature = "postgres")]
            Self::Postgres(options) => {
                write!(
                    f,
                    "PostgreSQL at {}:{}",
                    options.get_host(),
                    options.get_port()
                )?;
                match options.get_database() {
                    Some(database) => write!(f, ", database `{database}`"),
                    None => Ok(()),
                }
            }
        }
    }
}

#[cfg(feature = "sqlite")]
fn sqlite_at(path: &str) -> Result<Place, String> {
    match path {
        "" => Err("the store needs a file, such as `sqlite:webhooks.db`".to_owned()),
        ":memory:" => Err("the in-memory store is called `memory`".to_owned()),
        _ => Ok(Place::Sqlite(path.into())),
    }
}

#[cfg(feature = "redis")]
fn redis_at(url: &str) -> Result<Place, String> {
    match redis::Client::open(url) {
        Ok(_) => Ok(Place::Redis(url.to_owned())),
        // The crate has no kind for this error, only its text.
        Err(error) if error.to_string().contains("TLS") => Err(rebuilt(
            "TLS to a store",
            "redis,redis/tokio-rustls-comp,rustls/ring",
        )),
        Err(error) => Err(format!(
            "the store's URL is invalid: {error}; use one such as \
             `redis://USER:PASSWORD@HOST:6379`, and percent-encode special characters in a password"
        )),
    }
}

#[cfg(feature = "postgres")]
fn postgres_at(url: &str) -> Result<Place, String> {
    match url.parse::<PgConnectOptions>() {
        Ok(options) => Ok(Place::Postgres(Box::new(options))),
        Err(error) => Err(format!(
            "the store's URL is invalid: {error}; use one such as \
             `postgres://USER@HOST/DATABASE`, and percent-encode special characters in a password"
        )),
    }
}

#[cfg(not(feature = "sqlite"))]
fn sqlite_at(_: &str) -> Result<Place, String> {
    Err(rebuilt("that store", "sqlite"))
}

#[cfg(not(feature = "redis"))]
fn redis_at(_: &str) -> Result<Place, String> {
    Err(rebuilt("that store", "redis"))
}

#[cfg(not(feature = "postgres"))]
fn postgres_at(_: &str) -> Result<Place, String> {
    Err(rebuilt("that store", "postgres"))
}

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
pub(crate) async fn postgres(options: Box<PgConnectOptions>) -> anyhow::Result<PostgresStore> {
    open_postgres(options, PostgresStore::open).await
}

#[cfg(feature = "postgres")]
pub(crate) async fn postgres_queue(
    options: Box<PgConnectOptions>,
) -> anyhow::Result<PostgresQueue> {
    open_postgres(options, PostgresQueue::open).await
}

/// The queue, even if its server is away: then its tables are looked at as soon as it is back.
#[cfg(all(feature = "postgres", feature = "sqlite"))]
pub(crate) async fn postgres_queue_or_later(
    options: Box<PgConnectOptions>,
) -> anyhow::Result<PostgresQueue> {
    const TRY_AGAIN: Duration = Duration::from_secs(1);
    /// A receiver that waited for its database would not accept events meanwhile.
    const PATIENCE: Duration = Duration::from_secs(2);

    let opened = timeout(PATIENCE, postgres_queue(options.clone())).await;
    let away = match opened.unwrap_or_else(|elapsed| Err(elapsed.into())) {
        Err(error) if is_away(&error) => error,
        opened => return opened,
    };
    tracing::warn!(
        reason = format!("{away:#}"),
        "the receiver starts without its database, and accepts events into the spool"
    );
    let queue = PostgresQueue::new(pool(*options));
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
#[cfg(all(feature = "postgres", feature = "sqlite"))]
fn is_away(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.is::<Elapsed>()
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
fn pool(options: PgConnectOptions) -> PgPool {
    // The server ends queries whose client has disconnected.
    let options = options.options([("client_connection_check_interval", "1s")]);
    PgPoolOptions::new()
        .max_connections(16)
        .acquire_timeout(Duration::from_secs(5))
        .connect_lazy_with(options)
}

#[cfg(feature = "postgres")]
async fn open_postgres<T>(
    options: Box<PgConnectOptions>,
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

    let address = format!("{}:{}", options.get_host(), options.get_port());
    let opened = async {
        // Without the pool first: it retries, and then does not report the reason.
        let connect = async { Ok(PgConnection::connect_with(&options).await?.close().await?) };
        within(CONNECTING, connect).await?;
        within(MIGRATING, async { Ok(open(pool(*options)).await?) }).await
    };
    opened.await.map_err(|error| {
        // The crate has no kind for this error, only its text.
        let advice = if error.to_string().contains("without TLS") {
            rebuilt(
                "TLS to a store",
                "postgres,sqlx/tls-rustls-ring-native-roots",
            )
        } else {
            format!(
                "the store at {address} cannot be used: check that the server is running, that the \
                 user, password and database exist, and that the user may create tables"
            )
        };
        error.context(advice)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For any set of features.
    #[test]
    fn store_that_is_not_built_in_is_explained() {
        let stores = [
            ("sqlite", cfg!(feature = "sqlite"), "sqlite:webhooks.db"),
            ("redis", cfg!(feature = "redis"), "redis://:hush@localhost"),
            (
                "postgres",
                cfg!(feature = "postgres"),
                "postgres://user:hush@localhost/database",
            ),
        ];
        for (feature, is_built_in, text) in stores {
            let error = Place::parse(text).err();
            assert_eq!(error.is_none(), is_built_in, "{text}: {error:?}");
            if let Some(error) = error {
                let command =
                    format!("`cargo run -p tower-webhook-receiver --features {feature} -- …`");
                assert!(error.contains(&command), "{error}");
                assert!(!error.contains("hush"), "{error}");
            }
        }
    }
}
