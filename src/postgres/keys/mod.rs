//! The Postgres store, on sqlx.

mod statements;
pub(crate) mod transaction;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sqlx::postgres::{PgPool, PgRow};
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::time::timeout;

use self::statements::Statements;
use crate::config::ConfigError;
use crate::error::Chain;
use crate::postgres::engine::{Tables, Uuid, Value, column, corrupt, micros};
use crate::postgres::lease::Identity;
use crate::postgres::schema::{MIGRATIONS, TABLES_OF_KEYS};
use crate::store::{
    Claim, EventKey, Fence, KeyState, Lease, OpenError, SettleError, Store, StoreError,
};

/// Remembers keys in PostgreSQL, on your application's own pool of connections: for several machines
/// that share their keys, or where you already run PostgreSQL.
///
/// One run at a time has a key, and none after a success, over all processes that use the same schema of one
/// database. A claim is one statement, which is correct at any isolation level, and the server's clock decides.
/// Every 128th claim deletes expired keys in the background. The page on stores has the
/// [requirements, durability, connections](crate::docs::stores#postgresql) and [size](crate::docs::stores#size). An event
/// that an inbox accepted in the same schema is done for this store, until the inbox deletes it.
///
/// Clones share their pool.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use sqlx::PgPool;
/// use tower_webhook::postgres::PostgresStore;
/// use tower_webhook::{Secret, Webhooks};
///
/// let pool = PgPool::connect("postgres://app@db.internal/app").await?;
/// let store = PostgresStore::open(pool).await?;
/// let webhooks = Webhooks::new(Secret::from_env("WEBHOOK_SECRET")?).store(store);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PostgresStore {
    tables: Arc<Tables>,
    identity: Arc<Identity>,
    shared: Arc<Shared>,
}

struct Shared {
    statements: Statements,
    /// How many keys were claimed here.
    claims: AtomicU64,
    /// Where in the table the next step of purging begins: `None` is anywhere. Locked by the one under way.
    page: Mutex<Option<i64>>,
}

impl PostgresStore {
    /// Keeps the keys in the schema `tower_webhook` of the pool's database, which is created or upgraded:
    /// [`new`](Self::new) and [`migrate`](Self::migrate) in one.
    ///
    /// # Errors
    ///
    /// As those of [`migrate`](Self::migrate).
    pub async fn open(pool: PgPool) -> Result<Self, OpenError> {
        let store = Self::new(pool);
        store.migrate().await?;
        Ok(store)
    }

    /// As [`open`](Self::open), without a call to the server: for those who choose [another schema](Self::with_schema),
    /// migrate elsewhere, or start while the server is away.
    ///
    /// Call [`migrate`](Self::migrate) before the first delivery.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        Self::on(Tables::new(pool))
    }

    /// Keeps the keys in another schema, of any name that PostgreSQL allows: it is quoted, so upper
    /// and lower case differ.
    ///
    /// ```no_run
    /// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// use tower_webhook::postgres::PostgresStore;
    ///
    /// let store = PostgresStore::new(pool).with_schema("crm_webhooks")?;
    /// store.migrate().await?;
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
        let tables = Arc::new(tables);
        Self {
            identity: Arc::new(Identity::new(&tables)),
            shared: Arc::new(Shared {
                statements: Statements::new(&tables.schema),
                claims: AtomicU64::new(0),
                page: Mutex::new(None),
            }),
            tables,
        }
    }

    /// Creates the schema and its tables, or upgrades those of an earlier release.
    ///
    /// Does nothing when they are up to date: call it whenever a process starts. Processes that start at once wait for
    /// each other, but only two seconds for a process that stands still. An upgrade waits up to 90 seconds for
    /// transactions that use the tables, and delays others by at most half a second at a time.
    ///
    /// Its first call in a database needs the right to create a schema there, or a schema of that
    /// name in which the user may create tables.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached, the right is missing, or the schema was made by a later
    /// release that does not let this one use it, or by another program.
    /// [`OpenError::kind`] distinguishes these, and the error says what to do.
    ///
    /// A `synchronous_commit` of `off` is only a warning in the log.
    pub async fn migrate(&self) -> Result<(), OpenError> {
        self.tables.migrate(MIGRATIONS, TABLES_OF_KEYS).await
    }

    /// Deletes all expired rows, in small steps, and returns their number.
    ///
    /// Claims do the same little by little. Call this where no more claims are made. While the server's clock is ahead, keys
    /// expire as early, and are lost when they are purged: unlike a queue, a store does not see that it jumped.
    ///
    /// ```no_run
    /// # async fn example(store: tower_webhook::postgres::PostgresStore)
    /// # -> Result<(), tower_webhook::store::StoreError> {
    /// println!("{} keys had expired", store.purge().await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When the server cannot be reached, or reports an error. Rows that were deleted by then stay deleted.
    pub async fn purge(&self) -> Result<u64, StoreError> {
        let mut purged = 0;
        let mut page = 0;
        loop {
            let step = self.purge_step(Some(page)).await?;
            purged += step.purged;
            if step.is_last {
                return Ok(purged);
            }
            page = step.next;
        }
    }

    /// Deletes the expired rows of a few pages from `page` on, where the step before ended. Without one, it begins
    /// anywhere: several instances begin with different pages.
    async fn purge_step(&self, page: Option<i64>) -> Result<Purged, StoreError> {
        let values = [
            Value::Text(self.tables.schema.table("keys")),
            Value::Optional(page),
            Value::Number(PAGES_PER_STEP),
        ];
        let row = self.fetch(&self.shared.statements.purge, &values).await?;
        let row = row.ok_or_else(|| corrupt("a step of purging without a row"))?;
        Ok(Purged {
            purged: column::<i64>(&row, 0)?.unsigned_abs(),
            next: column(&row, 1)?,
            is_last: column(&row, 2)?,
        })
    }

    #[cfg(test)]
    pub(crate) async fn purge_some(&self) -> Result<u64, StoreError> {
        Ok(self.purge_step(None).await?.purged)
    }

    /// Counts a key that was claimed, and purges a little now and then.
    fn claimed(&self) {
        let claims = self.shared.claims.fetch_add(1, Ordering::Relaxed) + 1;
        if !claims.is_multiple_of(CLAIMS_PER_STEP) {
            return;
        }
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let store = self.clone();
        let purge = async move {
            // A step that is still in progress replaces this one.
            let Ok(mut page) = store.shared.page.try_lock() else {
                return;
            };
            let step = timeout(PURGE_TIMEOUT, store.purge_step(*page)).await;
            match step.unwrap_or_else(|_| Err(StoreError::timed_out())) {
                Ok(step) => *page = Some(step.next),
                Err(error) => {
                    tracing::warn!(
                        reason = Chain(&error).to_string(),
                        "expired keys could not be purged"
                    );
                }
            }
        };
        // Not in the delivery's span, which would last until this ends.
        runtime.spawn(purge);
    }

    async fn fetch(&self, sql: &Arc<str>, values: &[Value]) -> Result<Option<PgRow>, StoreError> {
        let row = self.tables.pool.fetch(sql, values).await;
        row.map_err(|error| self.error(error))
    }

    /// Executes a statement that changes the row of a lease, if the lease has not ended.
    async fn settle(
        &self,
        sql: &Arc<str>,
        lease: &Lease,
        time: Option<Duration>,
    ) -> Result<(), SettleError> {
        let Fence(fence) = lease.fence();
        let mut values = vec![Value::Id(lease.id().key()), Value::Id(fence)];
        values.extend(time.map(|time| Value::Number(micros(time))));
        match self.fetch(sql, &values).await? {
            Some(_) => Ok(()),
            None => Err(SettleError::LeaseExpired),
        }
    }

    fn error(&self, error: sqlx::Error) -> StoreError {
        self.tables.error(error).into()
    }
}

partial_debug!(PostgresStore, |it| schema = it.tables.schema.name());

impl Store for PostgresStore {
    const DURABLE_LEASES: bool = true;

    async fn claim(
        &self,
        id: &EventKey,
        lease: Duration,
        retain: Duration,
    ) -> Result<Claim, StoreError> {
        let values = [
            Value::Id(id.key()),
            Value::Id(id.body()),
            Value::Number(micros(lease)),
            Value::Number(micros(retain)),
        ];
        for _ in 0..MOST_LOSSES {
            let row = self.fetch(&self.shared.statements.claim, &values).await?;
            // Another claim took the key after the statement began: the next statement sees it.
            let Some(row) = row else { continue };

            if let Some(Uuid(fence)) = column(&row, 0)? {
                let attempt = u32::try_from(column::<i32>(&row, 1)?).ok();
                let attempt = attempt.and_then(NonZeroU32::new);
                let attempt =
                    attempt.ok_or_else(|| corrupt("an attempt that is not above zero"))?;
                self.claimed();
                return Ok(Claim::Acquired(Lease::new(*id, Fence(fence), attempt)));
            }
            let same_body = column(&row, 2)?;
            return Ok(match remaining(&row, 3)? {
                Some(remaining) => Claim::InFlight {
                    remaining,
                    same_body,
                },
                None => Claim::Done { same_body },
            });
        }
        let free = "a key could not be claimed although it is neither in flight nor done";
        Err(corrupt(free).into())
    }

    async fn peek(&self, id: &EventKey) -> Result<KeyState, StoreError> {
        let values = [Value::Id(id.key())];
        let row = self.fetch(&self.shared.statements.peek, &values).await?;
        let Some(row) = row else {
            return Ok(KeyState::Free);
        };
        Ok(match remaining(&row, 0)? {
            Some(remaining) => KeyState::InFlight { remaining },
            None => KeyState::Done,
        })
    }

    async fn renew(&self, lease: &Lease, extend: Duration) -> Result<(), SettleError> {
        let sql = &self.shared.statements.renew;
        self.settle(sql, lease, Some(extend)).await
    }

    async fn complete(&self, lease: &Lease, retain: Duration) -> Result<(), SettleError> {
        let sql = &self.shared.statements.complete;
        self.settle(sql, lease, Some(retain)).await
    }

    async fn release(&self, lease: &Lease) -> Result<(), SettleError> {
        let sql = &self.shared.statements.release;
        self.settle(sql, lease, None).await
    }
}

/// How many pages a step of purging checks, which have room for some 100 rows each.
const PAGES_PER_STEP: i64 = 32;

/// A step of purging is done after this many claims. A page is then checked four times as often as one is
/// filled: a table of n rows is walked through within n / 20 claims.
const CLAIMS_PER_STEP: u64 = 128;

/// How long such a step may take, which holds a connection that others may wait for.
const PURGE_TIMEOUT: Duration = Duration::from_secs(10);

/// How often in a row a claim may lose against another one whose run then ends before it is seen. When it
/// loses more often, something else suppresses the row, such as a trigger.
const MOST_LOSSES: u32 = 100;

/// What a step of purging did.
struct Purged {
    purged: u64,
    /// Where the next one begins.
    next: i64,
    is_last: bool,
}

/// What remains of a lease, in a column of microseconds. `None` where there is none.
fn remaining(row: &PgRow, at: usize) -> Result<Option<Duration>, OpenError> {
    let micros: Option<i64> = column(row, at)?;
    // It may have ended while the statement was executed.
    Ok(micros.map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0).max(1))))
}
