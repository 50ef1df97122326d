//! Connections of the user's pool. A caller may give up before it has one, or in the middle of a statement.

use std::future::{Future, pending};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use sqlx::AssertSqlSafe;
use sqlx::Connection;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgArguments, PgConnection, PgPool, PgRow, Postgres};
use sqlx::query::Query;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio::time::{sleep, timeout};

use super::error::{is_locked, lost_a_race};
use super::value::Value;

/// How long a connection may take to open after its caller has given up. As long is waited for the answer of
/// a dead connection, if the server does not close it.
const OPENING: Duration = Duration::from_secs(1);

/// How long a person waits for a connection of the pool before the server is asked why there is none.
const ASKS_AFTER: Duration = Duration::from_secs(1);

/// Whether the server takes no connections now: it starts, stops or recovers, or knows neither the role nor the database.
fn refuses(code: Option<&str>) -> bool {
    code.is_some_and(|code| {
        ["28", "3D", "57P"]
            .iter()
            .any(|class| code.starts_with(class))
    })
}

#[derive(Clone)]
pub(crate) struct Pool {
    connections: PgPool,
    /// How many callers that gave up may leave a connection opening, at the same time.
    places: Arc<Semaphore>,
}

impl Pool {
    pub(crate) fn new(connections: PgPool) -> Self {
        let most = connections.options().get_max_connections();
        Self {
            connections,
            places: Arc::new(Semaphore::new(most as usize)),
        }
    }

    pub(crate) fn connections(&self) -> &PgPool {
        &self.connections
    }

    /// A connection that is idle, or a new one.
    ///
    /// sqlx opens it in the future of the caller who waited longest, and so has the least time left. Under
    /// load after an outage, none would ever be opened if it were given up with its caller.
    pub(crate) async fn acquire(&self) -> sqlx::Result<Busy> {
        let mut acquiring = Acquiring {
            connection: Box::pin(self.connections.acquire()),
            places: &self.places,
            has_ended: false,
        };
        let connection = acquiring.connection.as_mut().await;
        acquiring.has_ended = true;
        Ok(Busy {
            connection: connection?,
            is_sound: false,
        })
    }

    /// Why the server refuses a connection, once it does: the pool asks again until the time of its caller is up, and then
    /// knows no reason. The question needs a connection beside those of the pool, and comes late.
    pub(crate) async fn refusal(&self) -> sqlx::Error {
        let options = self.connections.connect_options();
        loop {
            sleep(ASKS_AFTER).await;
            match PgConnection::connect_with(&options).await {
                Err(error @ sqlx::Error::Io(_)) => return error,
                Err(sqlx::Error::Database(error)) if refuses(error.code().as_deref()) => {
                    return sqlx::Error::Database(error);
                }
                Ok(connection) => drop(connection.close().await),
                Err(_) => {}
            }
        }
    }

    /// Warns of a setting with which a crash of the server loses what was committed.
    pub(crate) async fn warn_if_commits_can_be_lost(&self) {
        let setting = sqlx::query_scalar::<_, String>("SHOW synchronous_commit");
        // Nothing depends on the answer, and a server that fails reports that elsewhere.
        if let Ok(setting) = setting.fetch_one(&self.connections).await
            && setting == "off"
        {
            tracing::warn!(
                "`synchronous_commit` is `off`: a crash of the PostgreSQL server forgets the events that were recorded \
                 just before, and each is handled again when it is delivered again; use a role that has it `on`"
            );
        }
    }

    /// Executes a statement, and returns its row if it has one.
    pub(crate) async fn fetch(
        &self,
        sql: &Arc<str>,
        values: &[Value],
    ) -> sqlx::Result<Option<PgRow>> {
        let mut rows = self.acquire().await?.fetch_all(sql, values).await?;
        Ok(rows.pop())
    }
}

fn query<'q>(sql: &Arc<str>, values: &[Value]) -> Query<'q, Postgres, PgArguments> {
    let query = sqlx::query(AssertSqlSafe(Arc::clone(sql)));
    values.iter().fold(query, |query, value| value.bind(query))
}

/// A connection with a statement in progress. When it is dropped, the connection is closed unless the statement
/// succeeded: after a time limit it may hang, and would take a place in the pool; after a failure it may lead to a
/// server that was the primary before a failover.
pub(crate) struct Busy {
    pub(crate) connection: PoolConnection<Postgres>,
    is_sound: bool,
}

impl Busy {
    /// Executes a statement, again when it lost a race against another one, and returns its rows.
    pub(crate) async fn fetch_all(
        mut self,
        sql: &Arc<str>,
        values: &[Value],
    ) -> sqlx::Result<Vec<PgRow>> {
        loop {
            match query(sql, values).fetch_all(&mut *self.connection).await {
                // Only where transactions are repeatable reads or serializable by default.
                Err(error) if lost_a_race(&error) => {}
                result => {
                    // A lock that was not free in time says nothing against the connection.
                    self.is_sound = result.as_ref().err().is_none_or(is_locked);
                    return result;
                }
            }
        }
    }

    /// As [`fetch_all`](Self::fetch_all), in a transaction that reads what is committed, whatever is the default.
    pub(crate) async fn fetch_committed(
        self,
        sql: &Arc<str>,
        values: &[Value],
    ) -> sqlx::Result<Vec<PgRow>> {
        let begin = "BEGIN ISOLATION LEVEL READ COMMITTED; \
                     SET LOCAL idle_in_transaction_session_timeout = '2s'";
        let (rows, _) = self.fetch_in_transaction(begin, sql, values).await?;
        Ok(rows)
    }

    /// As [`fetch_all`](Self::fetch_all), for a statement that only reads, with the time that it took. It is planned for its
    /// values: how many rows a range of time has depends on it. It is not compiled: the planner overestimates such
    /// statements, and to compile them takes longer than to execute them.
    pub(crate) async fn fetch_planned(
        self,
        sql: &Arc<str>,
        values: &[Value],
    ) -> sqlx::Result<(Vec<PgRow>, Duration)> {
        let begin = "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY; SET LOCAL jit = off; \
                     SET LOCAL plan_cache_mode = force_custom_plan; SET LOCAL lock_timeout = '400ms'; \
                     SET LOCAL idle_in_transaction_session_timeout = '2s'";
        self.fetch_in_transaction(begin, sql, values).await
    }

    /// `begin` limits how long the transaction may be idle, in the same message: a process that stands still before it
    /// commits would keep its locks, and what others delete could not be vacuumed.
    async fn fetch_in_transaction(
        mut self,
        begin: &'static str,
        sql: &Arc<str>,
        values: &[Value],
    ) -> sqlx::Result<(Vec<PgRow>, Duration)> {
        loop {
            let mut transaction = self.connection.begin_with(begin).await?;
            let asked = Instant::now();
            match query(sql, values).fetch_all(&mut *transaction).await {
                // Another transaction waits for one of our locks, too.
                Err(error) if lost_a_race(&error) => transaction.rollback().await?,
                Ok(rows) => {
                    let took = asked.elapsed();
                    transaction.commit().await?;
                    self.is_sound = true;
                    return Ok((rows, took));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the connection to its pool, unless it is in a transaction: no other caller meets a statement that is still
    /// executed, or a `BEGIN` that was being sent when its future was dropped.
    pub(crate) fn give_back(mut self) {
        self.is_sound = !self.connection.is_in_transaction();
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        if !self.is_sound {
            self.connection.close_on_drop();
        }
    }
}

/// Continues for a while when it is dropped, and leaves the connection to the pool.
struct Acquiring<'a> {
    connection: Pin<Box<dyn Future<Output = sqlx::Result<PoolConnection<Postgres>>> + Send>>,
    places: &'a Arc<Semaphore>,
    has_ended: bool,
}

impl Drop for Acquiring<'_> {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        // Those who waited longest give up first, and if any caller has a connection to open, they do: the
        // others find no place.
        if let Ok(runtime) = Handle::try_current()
            && let Ok(place) = Arc::clone(self.places).try_acquire_owned()
        {
            let connection = mem::replace(&mut self.connection, Box::pin(pending()));
            runtime.spawn(async move {
                let _ = timeout(OPENING, connection).await;
                drop(place);
            });
        }
    }
}
