//! The queue in PostgreSQL, on sqlx.

mod batches;
mod calls;
mod claiming;
mod floors;
mod list;
mod parameters;
mod rows;
mod statements;

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::postgres::{PgPool, PgRow};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use self::batches::Batches;
use self::calls::{Acceptance, End};
use self::claiming::Claiming;
use self::floors::{Floor, Floors, LONGEST_LOOK};
use self::statements::Statements;
use crate::config::ConfigError;
use crate::error::Chain;
use crate::event::EventKind;
use crate::inbox::event::{
    EventId, EventLease, EventState, Lane, NewEvent, Settlement, Take, TakenEvent,
};
use crate::inbox::queue::{Accepted, Claims, Settled, Work};
use crate::inbox::records::{
    BlockedLane, Change, EventRecord, Filter, Forgotten, Listed, Page, Records, Stats,
};
use crate::postgres::MIGRATIONS;
use crate::postgres::lease::TransactionalLease;
use crate::postgres::pool::{List, Tables, Value, code, column, corrupt, micros};
use crate::store::engine::Error;
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
/// statement costs the server less for each event. The row with the body is inserted once. Only narrow rows change: one
/// for the first event of each lane (table `head`), and one for each event that waits behind it (`wait`). They are
/// deleted when the event is handled. The row of a lane's head is also the lock of the lane: operations in different
/// lanes do not wait for each other.
///
/// **Keys** are those of a [`PostgresStore`](crate::postgres::PostgresStore) in the same schema. An event that the store
/// recorded as done is a duplicate for the queue, and an event that the queue accepted is done for the store. The key
/// of an event stays until [`purge`](Queue::purge) deletes the event: after its retention, and not while the event is
/// unsettled or dead.
///
/// **Time** is the server's, as in the store. If its clock jumps forward, leases expire early, and each event in
/// progress may be tried once more; if it jumps back, they expire later by as much.
///
/// **What a crash costs.** Events that a worker had taken are taken again when their leases have expired. After a crash
/// of the server, deliveries are answered with 503 until it is back. [`PostgresStore`](crate::postgres::PostgresStore)
/// describes the costs of `synchronous_commit = off`, failovers and standbys. With `off`, an event that was answered
/// with 200 can be lost, so leave it `on` for the user of this queue.
///
/// **Connections.** Each operation needs a connection while it runs, and none is held between operations: a process
/// needs at most five, to accept, claim, settle, extend and purge, and three are enough. Beside statements that hang,
/// as on a dead connection, it executes others, on up to four connections more, for six seconds at most. Handlers that
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
/// begins a transaction of its own, which takes two more round trips.
///
/// **Size.** With bodies of 600 bytes, keys of 36 and chat ids of 29, a waiting event takes 1.2 KB on disk, and a
/// handled event whose body was deleted takes 430 bytes, key and all indexes included. The headers that are
/// [kept](super::Inbox::keep_headers) are in the row of the event, 90 bytes for a `traceparent`, and are deleted with
/// its body. They add nothing to the row of an event without headers.
///
/// **Purge and autovacuum.** [`purge`](Queue::purge) deletes up to 1,000 events, or the bodies of as many, at a time,
/// and skips rows that others have locked. autovacuum, which must be on, makes the room free for the next events.
/// `head` and `wait` are vacuumed after every 5,000 changes, which takes milliseconds while they are small. After a
/// backlog of millions, their files and that of `events` do not shrink, but [`size`](Queue::size) does not count free
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
/// of unsettled ones also reads the first event of each lane, and one of dead letters of a chat the events of that
/// chat. [Blocked lanes](Queue::blocked_lanes) are found by an index of the first events that have failed. Lists that
/// select by key or kind, of a time or not, read all events in turn until the page is full. With [`Page::within`], they
/// search in steps of about an eighth of that time, and end after it. The statement that reads the events is a
/// transaction of its own, with `jit = off`. [`Inbox::list`](super::Inbox::list) finds the event of a key by an index.
///
/// **Upgrades.** [`migrate`](Self::migrate) creates the tables, or upgrades those of an earlier release. It is the same
/// migration as that of the store. A later release that changes what a function takes or returns adds another one, so
/// workers of both releases can run at the same time. Processes of version 4 keep no headers of the events that they
/// accept, and no durations of the attempts that they settle. Those of version 5 read all deleted rows with each claim.
///
/// **Requirements.** PostgreSQL 14 or later (the tests were run with 15), with `plpgsql`, which every database has
/// unless it was dropped. Once the schema exists, the pool's user needs `USAGE` on it, `SELECT, INSERT, UPDATE,
/// DELETE` on all of its tables, and `EXECUTE` on its functions, which everybody has by default.
///
/// Clones share their pool.
#[derive(Clone)]
pub struct PostgresQueue {
    tables: Arc<Tables>,
    shared: Arc<Shared>,
}

struct Shared {
    statements: Statements,
    /// Whether transactions have another isolation level by default than the one that the functions need.
    begins: AtomicBool,
    acceptances: Batches<Acceptance>,
    ends: Batches<End>,
    abandoned_claims: Arc<Semaphore>,
    floors: Floors,
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
        Ok(Self::on(self.tables.with_schema(name.into())?))
    }

    fn on(tables: Tables) -> Self {
        Self {
            shared: Arc::new(Shared {
                statements: Statements::new(&tables.schema),
                begins: AtomicBool::new(false),
                acceptances: Batches::new(),
                ends: Batches::new(),
                abandoned_claims: Arc::new(Semaphore::new(1)),
                floors: Floors::default(),
            }),
            tables: Arc::new(tables),
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
    /// release of this crate. [`OpenError::kind`] distinguishes these, and the error says what to do.
    ///
    /// A `synchronous_commit` of `off` is only a warning in the log.
    pub async fn migrate(&self) -> Result<(), OpenError> {
        Ok(self.tables.migrate(&MIGRATIONS).await?)
    }

    /// Executes a statement that calls a function of the schema, and returns its rows.
    async fn call(&self, sql: &Arc<str>, values: &[Value]) -> Result<Vec<PgRow>, StoreError> {
        let rows = self.try_call(sql, values).await;
        rows.map_err(|error| self.error(error))
    }

    async fn try_call(&self, sql: &Arc<str>, values: &[Value]) -> sqlx::Result<Vec<PgRow>> {
        let begins = &self.shared.begins;
        if !begins.load(Ordering::Relaxed) {
            match self.tables.pool.fetch_all(sql, values).await {
                Err(error) if code(&error).as_deref() == Some(NOT_READ_COMMITTED) => {
                    begins.store(true, Ordering::Relaxed);
                }
                result => return result,
            }
        }
        self.tables.pool.fetch_committed(sql, values).await
    }

    async fn call_one(&self, sql: &Arc<str>, values: &[Value]) -> Result<PgRow, StoreError> {
        one(self.call(sql, values).await?)
    }

    /// Takes at most `limit` events, from a floor on. The last row of a claim has none.
    async fn take(
        &self,
        take: &Take,
        [limit, suspects]: [usize; 2],
        floor: &Floor,
    ) -> Result<Claims, StoreError> {
        let [only, except] = parameters::kinds(Some(&take.kinds));
        let mut values = vec![
            Value::Number(micros(take.lease)),
            only,
            except,
            parameters::number(limit),
            parameters::number(suspects),
        ];
        values.extend(floor.values());
        let mut rows = self.call(&self.shared.statements.claim, &values).await?;
        let last = rows.pop().ok_or_else(|| corrupt("a claim without a row"))?;
        let took = rows::duration(&last, 17)?.unwrap_or_default();
        let found = Floor::read(&last, 13)?;
        self.shared.floors.learn(&take.kinds, floor, found, took);
        let events = rows.iter().map(|row| {
            let taken = rows::taken(row, 0)?;
            let mut taken = taken.ok_or_else(|| corrupt("an event without a number"))?;
            self.lend(&mut taken);
            Ok(taken)
        });
        Ok(Claims {
            events: events.collect::<Result<_, Error>>()?,
            next_due: rows::duration(&last, 11)?,
        })
    }

    /// Looks for events below the floor, and takes none: claims continue meanwhile.
    async fn look(&self, take: &Take) {
        let (nothing, from) = ([0, 0], Floor::default());
        let looking = timeout(LONGEST_LOOK, self.take(take, nothing, &from));
        let looked = looking.await;
        if let Err(error) = looked.unwrap_or_else(|_| Err(StoreError::timed_out())) {
            tracing::warn!(
                reason = %Chain(&error),
                "the queue could not look for events that became due late; it looks again in half a minute"
            );
            self.shared.floors.look_failed(&take.kinds);
        }
    }

    /// Lets a transactional handler end the attempt itself.
    fn lend(&self, taken: &mut TakenEvent) {
        let EventLease { id, fence, place } = taken.lease;
        let lease = TransactionalLease::new(&self.tables, id.0, fence, place);
        taken.delivery.lend(Arc::new(lease));
    }

    /// Executes a statement that only reads.
    async fn read(&self, sql: &Arc<str>, values: &[Value]) -> Result<Vec<PgRow>, StoreError> {
        let rows = self.tables.pool.fetch_all(sql, values).await;
        rows.map_err(|error| self.error(error))
    }

    /// Executes the first of two statements, or the second one for an event in this state.
    async fn change(
        &self,
        [sql, sql_from]: [&Arc<str>; 2],
        id: EventId,
        from: Option<EventState>,
    ) -> Result<Change, StoreError> {
        let mut values = vec![Value::Number(id.0)];
        values.extend(from.map(|state| Value::Number(rows::code(state))));
        let sql = if from.is_some() { sql_from } else { sql };
        let row = self.call_one(sql, &values).await?;
        match column::<i32>(&row, 0)? {
            0 => Ok(Change::Made),
            1 => Ok(Change::NotFound),
            2 => Ok(Change::WrongState),
            3 => Ok(Change::WithoutBody),
            _ => Err(corrupt("an unknown answer to a change").into()),
        }
    }

    fn error(&self, error: sqlx::Error) -> StoreError {
        self.tables.error(error).into()
    }
}

impl fmt::Debug for PostgresQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresQueue")
            .field("schema", &self.tables.schema.name())
            .finish_non_exhaustive()
    }
}

impl Work for PostgresQueue {
    const SHARED: bool = true;

    async fn accept(&self, event: NewEvent, take: Option<&Take>) -> Result<Accepted, StoreError> {
        let lease = take
            .filter(|take| take.kinds.contains(event.delivery.kind()))
            .map(|take| micros(take.lease));
        let batches = &self.shared.acceptances;
        let call = Acceptance { event, lease };
        let run = || {
            self.clone()
                .run(|shared| &shared.acceptances, Self::accept_all)
        };
        let mut accepted = batches.call(call, run).await?;
        if let Accepted::New {
            taken: Some(taken), ..
        } = &mut accepted
        {
            self.lend(taken);
        }
        Ok(accepted)
    }

    async fn claim(
        &self,
        take: &Take,
        limit: usize,
        suspects: usize,
    ) -> Result<Claims, StoreError> {
        let floors = &self.shared.floors;
        if floors.begin_look(&take.kinds) {
            let (queue, take) = (self.clone(), take.clone());
            tokio::spawn(async move { queue.look(&take).await });
        }
        let (queue, take, floor) = (self.clone(), take.clone(), floors.of(&take.kinds));
        let execution = async move { queue.take(&take, [limit, suspects], &floor).await };
        Claiming::new(self, Box::pin(execution)).await
    }

    async fn extend(
        &self,
        leases: &[EventLease],
        lease: Duration,
    ) -> Result<Vec<bool>, StoreError> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        // In the order of lanes, so that two of these do not wait for each other.
        let mut sorted: Vec<_> = (0..leases.len()).collect();
        sorted.sort_by_key(|at| (leases[*at].place, leases[*at].id));
        let leases = sorted.iter().map(|at| &leases[*at]);
        let [ids, fences, places] = parameters::handles(leases);
        let values = [ids, fences, places, Value::Number(micros(lease))];
        let rows = self.call(&self.shared.statements.extend, &values).await?;
        let mut held = vec![false; sorted.len()];
        for (at, row) in sorted.into_iter().zip(&rows) {
            held[at] = column(row, 0)?;
        }
        Ok(held)
    }

    async fn settle(
        &self,
        lease: &EventLease,
        settlement: &Settlement,
        next: Option<&Take>,
    ) -> Result<Settled, StoreError> {
        let call = End {
            lease: *lease,
            settlement: settlement.clone(),
            next: next.cloned(),
        };
        let run = || self.clone().run(|shared| &shared.ends, Self::settle_all);
        let mut settled = self.shared.ends.call(call, run).await?;
        if let Settled::Ended(Some(next)) = &mut settled {
            self.lend(next);
        }
        Ok(settled)
    }

    async fn find(&self, key: u128) -> Result<Option<EventId>, StoreError> {
        let rows = self
            .read(&self.shared.statements.find, &[Value::Id(key)])
            .await?;
        let event = rows.first().map(|row| column(row, 0)).transpose()?;
        Ok(event.map(EventId))
    }

    async fn purge(&self, keep_bodies: Duration) -> Result<bool, StoreError> {
        let values = [
            Value::Number(micros(keep_bodies)),
            Value::Number(EVENTS_PER_STEP),
        ];
        let row = self.call_one(&self.shared.statements.purge, &values);
        Ok(column(&row.await?, 0)?)
    }

    async fn size(&self) -> Result<u64, StoreError> {
        let values = [Value::Text(self.tables.schema.table("events"))];
        let row = one(self.read(&self.shared.statements.size, &values).await?)?;
        Ok(column::<i64>(&row, 0)?.unsigned_abs())
    }
}

impl Records for PostgresQueue {
    async fn list(&self, filter: &Filter, page: Page) -> Result<Listed, StoreError> {
        self.search(filter, page).await
    }

    async fn blocked_lanes(
        &self,
        chat: Option<&str>,
        after: Option<EventId>,
        limit: usize,
    ) -> Result<Vec<BlockedLane>, StoreError> {
        let lane = chat.map(|chat| Lane::of_chat(chat).0);
        let values = [
            Value::List(List::Numbers(vec![lane])),
            Value::Number(after.map_or(i64::MIN, |id| id.0)),
            parameters::number(limit),
        ];
        let rows = self.read(&self.shared.statements.blocked_lanes, &values);
        let lanes = rows.await?;
        Ok(lanes
            .iter()
            .map(rows::blocked_lane)
            .collect::<Result<_, _>>()?)
    }

    async fn get(&self, id: EventId) -> Result<Option<EventRecord>, StoreError> {
        let statements = &self.shared.statements;
        let values = [Value::Number(id.0)];
        let event = self.read(&statements.get, &values).await?;
        let Some(event) = event.first() else {
            return Ok(None);
        };
        let failures = self.read(&statements.failures, &values).await?;
        Ok(Some(EventRecord {
            summary: rows::summary(event)?,
            body: column::<Option<Vec<u8>>>(event, 10)?.map(Into::into),
            headers: rows::headers(event, 11)?,
            failures: failures
                .iter()
                .map(rows::failure)
                .collect::<Result<_, _>>()?,
        }))
    }

    async fn redrive(&self, id: EventId, from: Option<EventState>) -> Result<Change, StoreError> {
        let Statements {
            redrive,
            redrive_from,
            ..
        } = &self.shared.statements;
        self.change([redrive, redrive_from], id, from).await
    }

    async fn discard(&self, id: EventId, from: Option<EventState>) -> Result<Change, StoreError> {
        let Statements {
            discard,
            discard_from,
            ..
        } = &self.shared.statements;
        self.change([discard, discard_from], id, from).await
    }

    async fn forget(
        &self,
        chat: &str,
        _: Option<RangeInclusive<EventId>>,
    ) -> Result<Forgotten, StoreError> {
        let values = [rows::bytes(chat.as_bytes())];
        let row = self.call_one(&self.shared.statements.forget, &values);
        Ok(Forgotten {
            bodies: column::<i64>(&row.await?, 0)?.unsigned_abs(),
            rest: None,
        })
    }

    async fn pause(&self, kind: Option<&EventKind>, paused: bool) -> Result<(), StoreError> {
        let kind = kind.map(ToString::to_string).unwrap_or_default();
        let values = [Value::Text(kind), Value::Number(paused.into())];
        self.call(&self.shared.statements.pause, &values).await?;
        Ok(())
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        let rows = self.read(&self.shared.statements.stats, &[]).await?;
        let first = rows.first();
        let first = first.ok_or_else(|| corrupt("counts without the row of all kinds"))?;
        let mut stats = Stats {
            kinds: Vec::new(),
            at: rows::time(column(first, 8)?),
            is_paused: false,
        };
        for row in &rows {
            match column::<&str>(row, 0)? {
                "" => stats.is_paused = column(row, 6)?,
                _ => stats.kinds.push(rows::kind_stats(row)?),
            }
        }
        stats.kinds.sort_by(|a, b| a.kind.cmp(&b.kind));
        Ok(stats)
    }
}

/// What the functions fail with where transactions are repeatable reads or serializable by default.
const NOT_READ_COMMITTED: &str = "TW001";

/// How many events a step of purging deletes, or deletes the bodies of.
const EVENTS_PER_STEP: i64 = 1000;

fn one(mut rows: Vec<PgRow>) -> Result<PgRow, StoreError> {
    let row = rows.pop();
    row.ok_or_else(|| corrupt("an answer without a row").into())
}
