//! The lease of an event in a queue, whose attempt the transaction of its handler may end.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use sqlx::postgres::PgRow;
use tokio::sync::OnceCell;

use super::engine::{Tables, Value, column};
use crate::delivery::{AttemptLease, RawDelivery};
use crate::store::Fence;
use crate::store::OpenError as Error;

/// Distinguishes the tables of a store or a queue from all others.
pub(super) struct Identity {
    tables: Arc<Tables>,
    known: OnceCell<Option<String>>,
}

impl Identity {
    pub(super) fn new(tables: &Arc<Tables>) -> Self {
        Self {
            tables: Arc::clone(tables),
            known: OnceCell::new(),
        }
    }

    /// Whether these are the same tables of the same database, and a transaction of either pool may call the functions
    /// of the inbox. It is looked up once, with a connection for the moment.
    pub(super) async fn is_that_of(&self, other: &Self) -> Result<bool, Error> {
        let (one, other) = (self.get().await?, other.get().await?);
        Ok(one.is_some() && one == other)
    }

    /// What no other tables have, of another server either. `None` where the user lacks
    /// rights on those of the inbox, or transactions have an isolation level that its functions refuse.
    async fn get(&self) -> Result<Option<&str>, Error> {
        let look = || async {
            let tables = &self.tables;
            let values = [Value::Text(tables.schema.name().to_owned())];
            let sql = tables.schema.sql(IDENTITY).into();
            let row = tables.pool.fetch(&sql, &values).await;
            let row: Option<PgRow> = row.map_err(|cause| tables.error(cause))?;
            row.map(|row| column(&row, 0)).transpose()
        };
        let identity = self.known.get_or_try_init(look).await?;
        Ok(identity.as_deref())
    }
}

/// The numbers of the database, the schema and a table are those of one server, and its clock's microsecond at which
/// the schema was made tells it from others. Only a copy of all of the server's files has the same. The tables are those
/// that the end of an attempt as handled changes.
const IDENTITY: &str = "
    SELECT concat_ws(
        ' ',
        (SELECT oid FROM pg_database WHERE datname = current_database()),
        n.oid,
        t.oid,
        (SELECT extract(epoch FROM min(applied_at)) FROM {schema}.schema_versions)
    )
    FROM pg_namespace AS n JOIN pg_class AS t ON t.relnamespace = n.oid AND t.relname = 'head'
    WHERE n.nspname = $1
        AND current_setting('transaction_isolation') = 'read committed'
        AND 20 = (
            SELECT count(*)
            FROM pg_class AS c
            CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS r (action)
            WHERE c.relnamespace = n.oid
                AND c.relname = ANY (ARRAY['head', 'wait', 'aside', 'ended', 'events'])
                AND has_table_privilege(c.oid, r.action)
        )";

/// The lease of an attempt, and the tables of its queue.
pub(crate) struct TransactionalLease {
    pub(super) queue: Arc<Identity>,
    pub(super) event: i64,
    pub(super) fence: Fence,
    pub(super) place: i64,
    progress: AtomicU8,
}

/// No transaction has ended the attempt.
const HELD: u8 = 0;
/// A transaction that ends it is about to be committed, or may have been.
const SETTLING: u8 = 1;
/// A transaction that ended it was committed.
const SETTLED: u8 = 2;

impl TransactionalLease {
    pub(super) fn new(queue: &Arc<Identity>, event: i64, fence: Fence, place: i64) -> Self {
        Self {
            queue: Arc::clone(queue),
            event,
            fence,
            place,
            progress: AtomicU8::new(HELD),
        }
    }

    /// That of the attempt which got the delivery, unless it has ended.
    pub(crate) fn of(delivery: &RawDelivery) -> Option<Arc<Self>> {
        let lease: Arc<dyn Any + Send + Sync> = delivery.lease()?;
        let lease = lease.downcast::<Self>().ok()?;
        (!lease.is_settled()).then_some(lease)
    }

    /// Notes that a transaction which ends the attempt is about to be committed.
    pub(super) fn settling(&self) {
        self.progress.store(SETTLING, Ordering::SeqCst);
    }

    /// Notes that the transaction was committed, if it ended the attempt.
    pub(crate) fn committed(&self) {
        let _ =
            self.progress
                .compare_exchange(SETTLING, SETTLED, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Notes that the transaction was rolled back.
    pub(crate) fn rolled_back(&self) {
        self.progress.store(HELD, Ordering::SeqCst);
    }
}

impl AttemptLease for TransactionalLease {
    fn is_settling(&self) -> bool {
        self.progress.load(Ordering::SeqCst) == SETTLING
    }

    fn is_settled(&self) -> bool {
        self.progress.load(Ordering::SeqCst) == SETTLED
    }
}
