//! The servers of a PostgreSQL URL, of which one takes writes: a standby does once it is promoted.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::stream::{FuturesUnordered, StreamExt};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions, Connection};
use tokio::time::{Duration, Instant, sleep, timeout};

use crate::store::is_away;

/// At least one, in the order of the URL. They differ in their addresses only.
#[derive(Clone)]
pub(crate) struct Hosts(pub(crate) Vec<PgConnectOptions>);

/// For how long a server is asked whether it takes writes.
const ASKING: Duration = Duration::from_secs(2);

/// The pause between two questions.
const PAUSE: Duration = Duration::from_secs(1);

/// No server can be reached that takes writes.
#[derive(Debug)]
pub(crate) struct NoPrimary(String);

impl std::error::Error for NoPrimary {}

impl fmt::Display for NoPrimary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no server takes writes: {}", self.0)
    }
}

impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<_> = self.0.iter().map(address).collect();
        f.write_str(&addresses.join(","))
    }
}

impl Hosts {
    /// What all of them have, such as the database.
    pub(crate) fn common(&self) -> &PgConnectOptions {
        &self.0[0]
    }

    /// The server that takes writes. A single one is not asked: the store does that.
    pub(crate) async fn primary(&self) -> anyhow::Result<usize> {
        if self.0.len() == 1 {
            PgConnection::connect_with(self.common())
                .await?
                .close()
                .await?;
            return Ok(0);
        }
        let asked = self.0.iter().map(|host| {
            let writes = async { takes_writes(&mut host.connect().await?).await };
            timeout(ASKING, writes)
        });
        let asked = asked.enumerate();
        let mut answers: FuturesUnordered<_> =
            asked.map(async |(at, answer)| (at, answer.await)).collect();
        let mut reasons = Vec::new();
        // The first that takes writes: another one may not answer at all.
        while let Some((at, answer)) = answers.next().await {
            let host = address(&self.0[at]);
            let error = match answer {
                Ok(Ok(true)) => return Ok(at),
                Ok(Ok(false)) => {
                    reasons.push((format!("{host} is a standby, or read-only"), None));
                    continue;
                }
                Ok(Err(error)) => anyhow::Error::new(error),
                Err(elapsed) => anyhow::Error::new(elapsed),
            };
            let text = format!("{host}: {error}");
            reasons.push((text, Some(error)));
        }
        // What waiting does not mend comes first.
        let wrong = reasons
            .iter_mut()
            .find_map(|(_, error)| error.take_if(|error| !is_away(error)));
        let reasons: Vec<_> = reasons.into_iter().map(|(text, _)| text).collect();
        Err(match wrong {
            Some(error) => error.context(reasons.join("; ")),
            None => NoPrimary(reasons.join("; ")).into(),
        })
    }

    /// A pool that begins with one of the servers. If there are several, it is led to the server that takes writes.
    pub(crate) fn pool(self, begin: usize) -> PgPool {
        let hosts: Vec<_> = self
            .0
            .into_iter()
            // The server ends queries whose client has disconnected.
            .map(|host| host.options([("client_connection_check_interval", "1s")]))
            .collect();
        let options = PgPoolOptions::new()
            .max_connections(16)
            .acquire_timeout(Duration::from_secs(5));
        let first = hosts[begin].clone();
        if hosts.len() == 1 {
            return options.connect_lazy_with(first);
        }
        let chosen = Arc::new(Mutex::new(Instant::now()));
        let chosen_at = Arc::clone(&chosen);
        let pool = options
            .before_acquire(move |_, connection| {
                let chosen = *chosen_at.lock().unwrap_or_else(PoisonError::into_inner);
                // An older one leads to the server before.
                let is_new = connection.age <= chosen.elapsed();
                Box::pin(async move { Ok(is_new) })
            })
            .connect_lazy_with(first);
        tokio::spawn(follow(pool.clone(), hosts, begin, chosen));
        pool
    }
}

/// Leads a pool to the server that takes writes, until it is closed.
async fn follow(
    pool: PgPool,
    hosts: Vec<PgConnectOptions>,
    begin: usize,
    chosen: Arc<Mutex<Instant>>,
) {
    let hosts = Hosts(hosts);
    let (mut at, mut asked) = (begin, None);
    while !pool.is_closed() {
        let works = timeout(ASKING, still_takes_writes(&mut asked, &hosts.0[at])).await;
        if !matches!(works, Ok(Ok(true))) {
            asked = None;
            match hosts.primary().await {
                Ok(found) if found != at => {
                    at = found;
                    pool.set_connect_options(hosts.0[at].clone());
                    *chosen.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
                    tracing::warn!(host = address(&hosts.0[at]), "another server takes writes");
                }
                Ok(_) => {}
                Err(error) => tracing::debug!(reason = format!("{error:#}"), "no primary"),
            }
        }
        sleep(PAUSE).await;
    }
}

/// Asks the server again, by the connection of the last time if there is one.
async fn still_takes_writes(
    asked: &mut Option<PgConnection>,
    host: &PgConnectOptions,
) -> sqlx::Result<bool> {
    let mut connection = match asked.take() {
        Some(connection) => connection,
        None => host.connect().await?,
    };
    let writes = takes_writes(&mut connection).await?;
    *asked = Some(connection);
    Ok(writes)
}

/// Also a primary can be read-only, as before a planned failover.
async fn takes_writes(connection: &mut PgConnection) -> sqlx::Result<bool> {
    sqlx::query_scalar(
        "SELECT NOT pg_is_in_recovery() AND NOT current_setting('transaction_read_only')::boolean",
    )
    .fetch_one(connection)
    .await
}

fn address(host: &PgConnectOptions) -> String {
    match host.get_socket() {
        Some(socket) => format!("{}:{}", socket.display(), host.get_port()),
        None => format!("{}:{}", host.get_host(), host.get_port()),
    }
}
