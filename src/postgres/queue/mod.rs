//! The queue in PostgreSQL, on sqlx.

mod accept;
mod actions;
mod batches;
mod claim;
mod counts;
mod database;
mod floors;
mod list;
mod parameters;
mod person;
mod places;
mod purge;
mod rows;
mod settle;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sqlx::postgres::PgPool;

use self::accept::Accept;
use self::claim::Claim;
use self::database::Database;
use self::person::Person;
use self::settle::Ends;
use crate::config::ConfigError;
use crate::event::EventKind;
use crate::inbox::actions::{Action, BulkStep, By, NewBulk, Which};
use crate::inbox::event::{
    EventId, EventLease, EventState, NewEvent, Settlement, Take, TakenEvent,
};
use crate::inbox::queue::{Accepted, Claims, Settled, Work};
use crate::inbox::records::{
    BlockedLane, Change, EventRecord, Filter, Forgotten, Listed, Page, Pause, Records, Stats,
};
use crate::postgres::engine::Tables;
use crate::postgres::schema::MIGRATIONS;
use crate::store::{OpenError, StoreError};
use crate::telemetry::{Count, CountsOf};

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
/// let queue = PostgresQueue::new(pool);
/// queue.migrate().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PostgresQueue {
    shared: Arc<Shared>,
}

struct Shared {
    database: Arc<Database>,
    accept: Accept,
    claim: Claim,
    ends: Ends,
    person: Person,
}

impl PostgresQueue {
    /// Keeps the events in the schema `tower_webhook` of the pool's database.
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
        Ok(Self::on(
            self.shared.database.tables.with_schema(name.into())?,
        ))
    }

    fn on(tables: Tables) -> Self {
        let database = Arc::new(Database::new(tables));
        let shared = Shared {
            accept: Accept::new(&database),
            claim: Claim::new(&database),
            ends: database.ends(),
            person: Person::new(&database),
            database,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Creates the schema and its tables, or upgrades those of an earlier release.
    ///
    /// Does nothing when they are up to date: call it whenever a process starts. It is the same as
    /// [`PostgresStore::migrate`](crate::postgres::PostgresStore::migrate), and needs the same rights.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached, the right is missing, or the schema was made by a later
    /// release that does not let this one use it, or by another program. [`OpenError::kind`]
    /// distinguishes these, and the error says what to do.
    ///
    /// A `synchronous_commit` of `off` is only a warning in the log.
    pub async fn migrate(&self) -> Result<(), OpenError> {
        self.shared.database.tables.migrate(MIGRATIONS).await
    }
}

partial_debug!(PostgresQueue, |it| schema =
    it.shared.database.tables.schema.name());

impl Work for PostgresQueue {
    const SHARED: bool = true;

    async fn accept(&self, event: NewEvent, take: Option<&Take>) -> Result<Accepted, StoreError> {
        self.shared.accept.accept(event, take).await
    }

    async fn claim(
        &self,
        take: &Take,
        limit: usize,
        suspects: usize,
    ) -> Result<Claims, StoreError> {
        self.shared.claim.claim(take, limit, suspects).await
    }

    async fn take(&self, id: EventId, take: &Take) -> Result<Option<TakenEvent>, StoreError> {
        self.shared.claim.take(id, take).await
    }

    async fn extend(
        &self,
        leases: &[EventLease],
        lease: Duration,
    ) -> Result<Vec<Option<bool>>, StoreError> {
        self.shared.database.extend(leases, lease).await
    }

    async fn settle(
        &self,
        lease: &EventLease,
        settlement: &Settlement,
        next: Option<&Take>,
    ) -> Result<Settled, StoreError> {
        let Shared { database, ends, .. } = &*self.shared;
        database.settle(ends, lease, settlement, next).await
    }

    async fn find(&self, key: u128) -> Result<Option<EventId>, StoreError> {
        self.shared.accept.find(key).await
    }

    async fn purge(&self, keep_bodies: Duration) -> Result<bool, StoreError> {
        let database = &self.shared.database;
        Ok(database.purge(keep_bodies).await? || database.purge_counts().await?)
    }

    async fn begin_bulk(&self, bulk: &NewBulk, by: &By) -> Result<i64, StoreError> {
        self.shared.database.begin_bulk(bulk, by).await
    }

    async fn step_bulk(&self, number: i64, step: &BulkStep) -> Result<bool, StoreError> {
        self.shared.database.step_bulk(number, step).await
    }

    async fn cancel_bulk(&self, number: i64, by: &By) -> Result<bool, StoreError> {
        self.shared.database.cancel_bulk(number, by).await
    }

    async fn note_counts(&self, counts: &[Count]) -> Result<SystemTime, StoreError> {
        self.shared.database.note_counts(counts).await
    }

    async fn counts(&self, of: &CountsOf) -> Result<Vec<Count>, StoreError> {
        self.shared.database.counts(of).await
    }

    async fn size(&self) -> Result<u64, StoreError> {
        self.shared.database.size().await
    }

    async fn identity(&self) -> Result<i64, StoreError> {
        self.shared.database.identity().await
    }
}

impl Records for PostgresQueue {
    async fn list(&self, filter: &Filter, page: Page) -> Result<Listed, StoreError> {
        self.shared.database.list(filter, page).await
    }

    async fn blocked_lanes(
        &self,
        chat: Option<&str>,
        after: Option<EventId>,
        limit: usize,
    ) -> Result<Vec<BlockedLane>, StoreError> {
        self.shared.person.blocked_lanes(chat, after, limit).await
    }

    async fn get(&self, id: EventId) -> Result<Option<EventRecord>, StoreError> {
        self.shared.person.get(id).await
    }

    async fn redrive(
        &self,
        id: EventId,
        from: Option<EventState>,
        by: &By,
    ) -> Result<Change, StoreError> {
        self.shared.person.change(id, from, true, by).await
    }

    async fn discard(
        &self,
        id: EventId,
        from: Option<EventState>,
        by: &By,
    ) -> Result<Change, StoreError> {
        self.shared.person.change(id, from, false, by).await
    }

    async fn forget(
        &self,
        chat: &str,
        events: Option<RangeInclusive<EventId>>,
        by: &By,
    ) -> Result<Forgotten, StoreError> {
        self.shared.person.forget(chat, events, by).await
    }

    async fn pause(
        &self,
        kind: Option<&EventKind>,
        note: Option<&str>,
        by: &By,
    ) -> Result<(), StoreError> {
        self.shared.person.pause(kind, note, by).await
    }

    async fn pauses(&self) -> Result<Vec<Pause>, StoreError> {
        self.shared.person.pauses().await
    }

    async fn actions(
        &self,
        which: Which,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<Action>, StoreError> {
        self.shared.database.actions(which, before, limit).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        self.shared.person.stats().await
    }
}
