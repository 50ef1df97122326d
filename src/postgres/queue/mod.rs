//! The queue in PostgreSQL, on sqlx.

mod accept;
mod batches;
mod claim;
mod database;
mod floors;
mod list;
mod parameters;
mod person;
mod places;
mod purge;
mod rows;
mod settle;

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgPool;

use self::accept::Accept;
use self::claim::Claim;
use self::database::Database;
use self::list::List;
use self::person::Person;
use self::purge::Purge;
use self::settle::{Ends, Settle};
use crate::config::ConfigError;
use crate::event::EventKind;
use crate::inbox::event::{EventId, EventLease, EventState, NewEvent, Settlement, Take};
use crate::inbox::queue::{Accepted, Claims, Settled, Work};
use crate::inbox::records::{
    BlockedLane, Change, EventRecord, Filter, Forgotten, Listed, Page, Records, Stats,
};
use crate::postgres::pool::Tables;
use crate::postgres::schema::FORMAT;
use crate::store::{OpenError, StoreError};

/// Keeps events in PostgreSQL, on your application's own pool of connections: for several machines that accept and
/// handle events together, or where you already run PostgreSQL.
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
///
/// **What it guarantees.** All promises of an inbox, over all processes that use the same schema of one database: an
/// event that was accepted is in the database, each event and each lane has one attempt at a time, and an attempt that
/// ends too late changes nothing. Workers and server may restart, and crash.
///
/// **How it works.** Each operation is one statement, and so one round trip and one commit. It calls a function of the
/// schema. The statements of that function see everything that others committed while it waited for a lock. An event is
/// written when it is accepted, and taken in the same transaction if a worker has room; when it is settled, the next
/// event of its lane is taken. Concurrent calls share a statement, up to 128: while one is executed, the calls that
/// arrive are collected for the next one. After a statement for eight or more, the next one waits for 1 ms, as a larger
/// statement costs the server less for each event. [`get`](Records::get), [`redrive`](Records::redrive) and
/// [`discard`](Records::discard) share statements, too: to change many events, change 64 of them at a time. The row with the body is inserted once. Only narrow rows change: one
/// for the first event of each lane (table `head`), and one for each event that waits behind it (`wait`). They are
/// deleted when the event is handled. The row of a lane's head is also the lock of the lane: operations in different
/// lanes do not wait for each other. A statement waits 400 ms for a lock at most. Then the calls that need a locked row
/// wait without a connection, until a look at these rows, every 100 ms, finds them free; the others are executed. So an
/// operator's transaction that locks a chat delays that chat only. Leases in locked lanes are not extended meanwhile.
///
/// **Keys** are those of a [`PostgresStore`](crate::postgres::PostgresStore) in the same schema. An event that the store
/// recorded as done is a duplicate for the queue, and an event that the queue accepted is done for the store. The key
/// of an event stays until `purge` deletes the event: after its retention, and not while the event is
/// unsettled or dead.
///
/// **Time** is the server's, as in the store. If its clock jumps forward, leases expire early, and each event in
/// progress may be tried once more; if it jumps back, they expire later by as much.
///
/// **What a crash costs.** Events that a worker had taken are taken again when their leases have expired. If the answer
/// of the server is lost and the process lives on, what it has taken is given up within a second after the server is back,
/// and does not count as crashed. After a crash
/// of the server, deliveries are answered with 503 until it is back. [`PostgresStore`](crate::postgres::PostgresStore)
/// describes the costs of `synchronous_commit = off`, failovers and standbys. With `off`, an event that was answered
/// with 200 can be lost, so leave it `on` for the user of this queue.
///
/// **Connections.** Each operation needs a connection while it runs, and none is held between operations: a process
/// uses at most five to accept, claim, settle, extend, purge and change events, and three are enough. It uses no more while
/// the server hangs: a statement whose caller has given up keeps its place among the five until the server has ended it,
/// or for 5 s. Lists and counts need others. Beside statements that hang, as on a dead connection, it executes others.
/// An event whose acceptance took more than 1 s in the database is not taken by it, but by a later claim. Handlers that
/// hold connections of the same pool for long delay deliveries: add one connection for each of them, up to the
/// worker's `concurrency`, or use separate pools; see
/// [the page on the inbox](crate::docs::inbox#transactional-handlers). The notes of
/// [`PostgresStore`](crate::postgres::PostgresStore) on time limits, `client_connection_check_interval`, TLS and
/// **PgBouncer** apply here, too: the mode `transaction` works (tried with 1.23), because there is no state in a
/// session, no `LISTEN`, and no advisory lock except in the migration's transaction. So a worker polls for events that
/// other processes accepted.
///
/// **Transactional handlers.** The transaction of a
/// [`TransactionalHandler`](crate::transactional::TransactionalHandler) whose
/// [`PostgresStore`](crate::postgres::PostgresStore) is in the same schema of the same database settles its event: both
/// are one commit. Between the settlement and the commit, other deliveries of the same lane wait; the server ends the
/// transaction if the commit does not follow within 2 s.
///
/// **Isolation.** The functions need `read committed`. If transactions have another level by default, each operation
/// begins a transaction of its own, which takes two more round trips. The server ends such a transaction when it is idle
/// for 2 s: a process that stands still before it commits would keep lanes locked.
///
/// **Size.** With bodies of 600 bytes, keys of 36 and chat ids of 29, a waiting event takes 1.2 KB on disk, and a
/// handled event whose body was deleted takes 430 bytes, key and all indexes included. The headers that are
/// [kept](crate::inbox::Inbox::keep_headers) are in the row of the event, 90 bytes for a `traceparent`, and are deleted with
/// its body. They add nothing to the row of an event without headers.
///
/// **Purge and autovacuum.** `purge` deletes up to 1,000 events, or the bodies of as many, at a time,
/// and skips rows that others have locked. autovacuum, which must be on, makes the room free for the next events.
/// `head` and `wait` are vacuumed after every 5,000 changes, which takes milliseconds while they are small. After a
/// backlog of millions, their files and that of `events` do not shrink, but `size` does not count free
/// room; `VACUUM FULL` shrinks the files, and blocks the queue while it runs. A transaction of another application that
/// stays open for an hour keeps vacuum from removing rows, and makes operations in busy lanes slower by some
/// milliseconds: set `idle_in_transaction_session_timeout`. After a claim that took more than 20 ms, the next ones
/// start reading where it found the first entry, and every 30 s a statement on another connection looks for earlier ones,
/// for as long as a claim would take to read all of them. So two kinds of events can wait that long: one made ready by a
/// transaction that took more than 3 s, and one that was put aside and returned while a later event of its lane was
/// tried, if that attempt fails. No query plan of what accepts, claims and settles depends on statistics, but for events
/// that are tried again out of order, which are few at a time.
///
/// **Lists** of events in some states, of a chat, and of events that failed with an error read no other events; a page
/// of unsettled ones also reads the first event of each lane. The events of a chat are found by an index, in their order,
/// however many events there are; a page of those that also meet other conditions reads the chat's events until it is full.
/// [Blocked lanes](Records::blocked_lanes) are found by an index of the first events that have failed. Lists that
/// select by key or kind, of a time or not, read all events in turn until the page is full. With [`Page::within`], they
/// search in steps of about an eighth of that time, and end after it. The statement that reads the events is a
/// transaction of its own, with `jit = off`. [`Inbox::list`](crate::inbox::Inbox::list) finds the event of a key by an index.
///
/// **Upgrades.** [`migrate`](Self::migrate) creates the tables, or upgrades those of an earlier release. It is the same
/// migration as that of the store. A later release that changes what a function takes or returns adds another one, so
/// workers of both releases can run at the same time.
///
/// **Requirements.** PostgreSQL 14 or later (the tests were run with 15), with `plpgsql`, which every database has
/// unless it was dropped. Once the schema exists, the pool's user needs `USAGE` on it, `SELECT, INSERT, UPDATE,
/// DELETE` on all of its tables, and `EXECUTE` on its functions, which everybody has by default.
///
/// Clones share their pool.
#[derive(Clone)]
pub struct PostgresQueue {
    shared: Arc<Shared>,
}

struct Shared {
    database: Arc<Database>,
    accept: Accept,
    claim: Claim,
    settle: Arc<Settle>,
    ends: Ends,
    person: Person,
    list: List,
    purge: Purge,
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
        let settle = Settle::new(&database);
        let shared = Shared {
            accept: Accept::new(&database, &settle),
            claim: Claim::new(&database, &settle),
            ends: settle.ends(),
            person: Person::new(&database, &settle),
            list: List::new(&database),
            purge: Purge::new(&database),
            settle,
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
    /// release that does not let this one use it, by an unreleased draft, or by another program. [`OpenError::kind`]
    /// distinguishes these, and the error says what to do.
    ///
    /// A `synchronous_commit` of `off` is only a warning in the log.
    pub async fn migrate(&self) -> Result<(), OpenError> {
        Ok(self.shared.database.tables.migrate(&FORMAT).await?)
    }
}

impl fmt::Debug for PostgresQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresQueue")
            .field("schema", &self.shared.database.tables.schema.name())
            .finish_non_exhaustive()
    }
}

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

    async fn extend(
        &self,
        leases: &[EventLease],
        lease: Duration,
    ) -> Result<Vec<Option<bool>>, StoreError> {
        self.shared.settle.extend(leases, lease).await
    }

    async fn settle(
        &self,
        lease: &EventLease,
        settlement: &Settlement,
        next: Option<&Take>,
    ) -> Result<Settled, StoreError> {
        let Shared { settle, ends, .. } = &*self.shared;
        settle.settle(ends, lease, settlement, next).await
    }

    async fn find(&self, key: u128) -> Result<Option<EventId>, StoreError> {
        self.shared.accept.find(key).await
    }

    async fn purge(&self, keep_bodies: Duration) -> Result<bool, StoreError> {
        self.shared.purge.purge(keep_bodies).await
    }

    async fn size(&self) -> Result<u64, StoreError> {
        self.shared.purge.size().await
    }
}

impl Records for PostgresQueue {
    async fn list(&self, filter: &Filter, page: Page) -> Result<Listed, StoreError> {
        self.shared.list.list(filter, page).await
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

    async fn redrive(&self, id: EventId, from: Option<EventState>) -> Result<Change, StoreError> {
        self.shared.person.change(id, from, true).await
    }

    async fn discard(&self, id: EventId, from: Option<EventState>) -> Result<Change, StoreError> {
        self.shared.person.change(id, from, false).await
    }

    async fn forget(
        &self,
        chat: &str,
        events: Option<RangeInclusive<EventId>>,
    ) -> Result<Forgotten, StoreError> {
        self.shared.person.forget(chat, events).await
    }

    async fn pause(&self, kind: Option<&EventKind>, paused: bool) -> Result<(), StoreError> {
        self.shared.person.pause(kind, paused).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        self.shared.person.stats().await
    }
}
