//! The queue in PostgreSQL, on sqlx.

mod accept;
mod actions;
mod batches;
mod blocked;
mod change;
mod claim;
mod count;
mod database;
mod floors;
mod forget;
mod list;
mod measure;
mod parameters;
mod places;
#[cfg(test)]
mod plans;
mod purge;
mod rows;
mod search;
mod settle;
mod stats;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use sqlx::postgres::PgPool;

use self::accept::Accept;
use self::change::Changes;
use self::claim::Claim;
use self::database::Database;
use self::list::List;
use self::settle::Settle;
use crate::config::ConfigError;
use crate::inbox::queue::{Observed, Queue};
use crate::postgres::engine::Tables;
use crate::postgres::schema::{MIGRATIONS, TABLES};
use crate::store::OpenError;

/// Keeps events in PostgreSQL, on your application's own pool of connections: for several machines that accept and
/// handle events together, or where you already run PostgreSQL.
///
/// All [promises of an inbox](crate::docs::guarantees#with-an-inbox) hold over all processes that use the same schema of
/// one database. Keys are those of a [`PostgresStore`](crate::postgres::PostgresStore) in the same schema, and a
/// [transactional handler](crate::docs::inbox#transactional-handlers) there settles its event in its own commit. Each
/// operation is one statement on one connection, so it works behind PgBouncer. The page on stores has the
/// [requirements, durability, connections](crate::docs::stores#postgresql) and [size](crate::docs::stores#size).
///
/// Clones share their pool.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use sqlx::PgPool;
/// use tower_webhook::postgres::PostgresQueue;
///
/// let pool = PgPool::connect("postgres://app@db.internal/app").await?;
/// let queue = PostgresQueue::open(pool).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PostgresQueue {
    tables: Arc<Tables>,
    parts: Queue,
}

impl PostgresQueue {
    /// Keeps the events in the schema `tower_webhook` of the pool's database, which is created or upgraded:
    /// [`new`](Self::new) and [`migrate`](Self::migrate) in one.
    ///
    /// # Errors
    ///
    /// As those of [`migrate`](Self::migrate).
    pub async fn open(pool: PgPool) -> Result<Self, OpenError> {
        let queue = Self::new(pool);
        queue.migrate().await?;
        Ok(queue)
    }

    /// As [`open`](Self::open), without a call to the server: for those who choose [another schema](Self::with_schema),
    /// migrate elsewhere, or start while the server is away.
    ///
    /// Call [`migrate`](Self::migrate) before the first delivery.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        Self::on(Tables::new(pool))
    }

    /// Keeps the events in another schema, of any name that PostgreSQL allows: the name is quoted, so upper and lower
    /// case differ. Keys are shared with a [`PostgresStore`](crate::postgres::PostgresStore) in the same schema.
    ///
    /// ```no_run
    /// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// use tower_webhook::postgres::PostgresQueue;
    ///
    /// let queue = PostgresQueue::new(pool).with_schema("crm_webhooks")?;
    /// queue.migrate().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConfigError::SchemaName`] when the name is empty, longer than 63 bytes, contains a NUL, or
    /// begins with `pg_`, which PostgreSQL reserves.
    pub fn with_schema(self, name: impl Into<String>) -> Result<Self, ConfigError> {
        Ok(Self::on(self.tables.with_schema(name.into())?))
    }

    fn on(tables: Tables) -> Self {
        let database = Arc::new(Database::new(tables));
        Self {
            tables: Arc::clone(&database.tables),
            parts: Queue {
                is_shared: true,
                is_held_by_steps: false,
                accept: Arc::new(Accept::new(&database)),
                claim: Arc::new(Claim::new(&database)),
                settle: Arc::new(Settle::new(&database)),
                change: Arc::new(Changes::new(&database)),
                forget: database.clone(),
                list: Arc::new(List::new(&database)),
                count: database.clone(),
                purge: database.clone(),
                measure: database,
                observed: Observed::default(),
            },
        }
    }

    /// Creates the schema and its tables, or upgrades those of an earlier release.
    ///
    /// Does nothing when they are up to date: call it whenever a process starts. It is the same as
    /// [`PostgresStore::migrate`](crate::postgres::PostgresStore::migrate), and needs the same rights. If they are up to date,
    /// a user who may only read them can list events.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached, the right is missing, or the schema was made by a later
    /// release that does not let this one use it, or by another program. [`OpenError::kind`]
    /// distinguishes these, and the error says what to do.
    ///
    /// A `synchronous_commit` of `off` is only a warning in the log.
    pub async fn migrate(&self) -> Result<(), OpenError> {
        self.tables.migrate(MIGRATIONS, TABLES).await
    }
}

partial_debug!(PostgresQueue, |it| schema = it.tables.schema.name());

impl From<PostgresQueue> for Queue {
    fn from(queue: PostgresQueue) -> Self {
        queue.parts
    }
}
