//! The lease of an event in a queue, whose attempt the transaction of its handler ends.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use sqlx::{AssertSqlSafe, PgConnection, query_as};

use super::keys::PostgresStore;
use super::keys::transaction::{CommitError, TxId};
use crate::delivery::{AttemptLease, RawDelivery};
use crate::postgres::pool::{Tables, Uuid};
use crate::store::Fence;
use crate::store::StoreError;

/// The lease of an attempt, and the tables of its queue.
pub(crate) struct TransactionalLease {
    tables: Arc<Tables>,
    event: i64,
    fence: Fence,
    place: i64,
    progress: AtomicU8,
}

/// No transaction has ended the attempt.
const HELD: u8 = 0;
/// A transaction that ends it is about to be committed, or may have been.
const SETTLING: u8 = 1;
/// A transaction that ended it was committed.
const SETTLED: u8 = 2;

impl TransactionalLease {
    pub(crate) fn new(tables: &Arc<Tables>, event: i64, fence: Fence, place: i64) -> Self {
        Self {
            tables: Arc::clone(tables),
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

impl PostgresStore {
    /// Whether a transaction of this store can end the attempt: the event is in the same tables.
    pub(crate) async fn can_end(&self, lease: &TransactionalLease) -> Result<bool, StoreError> {
        Ok(self.tables.are_those_of(&lease.tables).await?)
    }

    /// Ends the attempt as handled, in the transaction that was begun as `begun`, just before its commit. Nobody else
    /// can accept an event of the same lane until then, so the server ends a transaction that does not follow.
    ///
    /// Where the isolation level is not the one that the queue needs, it does nothing.
    pub(super) async fn end_attempt(
        &self,
        transaction: &mut PgConnection,
        begun: &TxId,
        lease: &TransactionalLease,
    ) -> Result<(), CommitError> {
        let sql = Arc::clone(&self.shared.statements.end_attempt);
        let end = query_as::<_, (bool, Option<bool>, String)>(AssertSqlSafe(sql))
            .bind(&begun.0)
            .bind(lease.event)
            .bind(Uuid(lease.fence.0))
            .bind(lease.place)
            .bind(LONGEST_PAUSE);
        // Before the statement: whoever drops this future does not know what becomes of the transaction.
        lease.progress.store(SETTLING, Ordering::SeqCst);
        let ended = match end.fetch_one(transaction).await {
            Ok((true, Some(true), _)) => return Ok(()),
            Ok((true, Some(false), _)) => Err(CommitError::LeaseLost),
            Ok((true, None, _)) => Ok(()),
            Ok((false, _, _)) => Err(CommitError::EndedBefore),
            Err(error) => Err(CommitError::of_check(error)),
        };
        lease.rolled_back();
        ended
    }
}

/// The time within which the commit has to follow, in milliseconds.
const LONGEST_PAUSE: &str = "2000";
