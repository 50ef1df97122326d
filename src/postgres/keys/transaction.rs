//! Keys inserted by the transaction of their event's handler. They need no lease.

use std::sync::Arc;
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection, PgTransaction, query, query_as, query_scalar};

use super::PostgresStore;
use crate::error::BoxError;
pub(crate) use crate::postgres::engine::Busy;
use crate::postgres::engine::{Uuid, code, column, is_without_answer, micros};
use crate::postgres::lease::TransactionalLease;
use crate::store::{EventKey, StoreError};

/// A key in a transaction.
#[derive(Debug)]
pub(crate) enum Inserted {
    /// It was inserted, by the transaction of this number. Another transaction that inserts it waits until
    /// this one has ended.
    Fresh(TxId),
    /// It already existed: its event was handled.
    Done { same_body: bool },
    /// Another transaction has inserted it, and did not end within the wait.
    InFlight,
}

impl PostgresStore {
    /// A connection of the pool's.
    pub(crate) async fn acquire(&self) -> Result<Busy, StoreError> {
        let connection = self.tables.pool.acquire().await;
        connection.map_err(|error| self.error(error))
    }

    pub(crate) async fn begin<'c>(
        &self,
        connection: &'c mut PgConnection,
    ) -> Result<PgTransaction<'c>, StoreError> {
        let transaction = connection.begin().await;
        transaction.map_err(|error| self.error(error))
    }

    pub(crate) async fn roll_back(&self, transaction: PgTransaction<'_>) -> Result<(), StoreError> {
        let rolled_back = transaction.rollback().await;
        rolled_back.map_err(|error| self.error(error))
    }

    /// Returns the transaction's number, and limits the statements that follow in it. The server ends a
    /// statement that takes longer than `limit`, and a transaction that is idle for longer: its client may
    /// have disconnected unnoticed. Shorter limits of the connection's own stay.
    pub(crate) async fn number(
        &self,
        transaction: &mut PgConnection,
        limit: Duration,
    ) -> Result<TxId, StoreError> {
        let row = query(AssertSqlSafe(Arc::clone(&self.shared.statements.number)))
            .bind(millis(limit).to_string())
            .fetch_one(transaction);
        let row = row.await.map_err(|error| self.error(error))?;
        Ok(TxId(column(&row, 0)?))
    }

    /// Inserts a key as done, or waits for a transaction that has inserted it. Then limits what follows, as
    /// [`number`](Self::number) does.
    pub(crate) async fn insert(
        &self,
        connection: &mut PgConnection,
        id: &EventKey,
        retain: Duration,
        wait: Duration,
        limit: Duration,
    ) -> Result<Inserted, StoreError> {
        let statements = &self.shared.statements;
        let inserted = query(AssertSqlSafe(Arc::clone(&statements.insert)))
            .bind(Uuid(id.key()))
            .bind(Uuid(id.body()))
            .bind(micros(retain))
            .bind(millis(wait).to_string())
            .bind(millis(limit).to_string())
            .fetch_optional(&mut *connection)
            .await;
        match inserted {
            Ok(Some(row)) => {
                self.claimed();
                return Ok(Inserted::Fresh(TxId(column(&row, 0)?)));
            }
            Ok(None) => {}
            Err(error) if is_wait_over(&error) => return Ok(Inserted::InFlight),
            Err(error) => return Err(self.error(error)),
        }
        let same_body = query_scalar(AssertSqlSafe(Arc::clone(&statements.same_body)))
            .bind(Uuid(id.key()))
            .bind(Uuid(id.body()))
            .fetch_optional(connection);
        let same_body: Option<bool> = same_body.await.map_err(|error| self.error(error))?;
        Ok(Inserted::Done {
            same_body: same_body.unwrap_or(true),
        })
    }

    /// Prepares the commit of a transaction, and refuses it if the transaction was ended and another one begun, or if a
    /// statement failed: the server would then roll back and still report a success. With a lease on an event of a
    /// queue in the same tables, the transaction ends the attempt, unless the lease was lost.
    pub(crate) async fn prepare_commit(
        &self,
        transaction: &mut PgConnection,
        begun: &TxId,
        lease: Option<&TransactionalLease>,
    ) -> Result<(), CommitError> {
        if !transaction.is_in_transaction() {
            return Err(CommitError::EndedBefore);
        }
        if let Some(lease) = lease {
            return self.end_attempt(transaction, begun, lease).await;
        }
        match number(transaction).await {
            Ok(number) if number == *begun => Ok(()),
            Ok(_) => Err(CommitError::EndedBefore),
            Err(error) => Err(CommitError::of_check(error)),
        }
    }

    /// Commits a transaction. Where a savepoint was left open, sqlx ends that instead, and the connection is still in a
    /// transaction.
    pub(crate) async fn commit(
        &self,
        transaction: PgTransaction<'_>,
        lease: Option<&TransactionalLease>,
    ) -> Result<(), CommitError> {
        let committed = transaction.commit().await;
        let committed = committed.map_err(CommitError::of_commit);
        if let (Some(lease), Err(CommitError::Refused(_))) = (lease, &committed) {
            lease.rolled_back();
        }
        committed
    }

    /// Whether a transaction of this store can end the attempt: the event is in the same tables.
    pub(crate) async fn can_end(&self, lease: &TransactionalLease) -> Result<bool, StoreError> {
        Ok(self.identity.is_that_of(&lease.queue).await?)
    }

    /// Ends the attempt as handled, in the transaction that was begun as `begun`, just before its commit. Nobody else
    /// can accept an event of the same lane until then, so the server ends a transaction that does not follow.
    ///
    /// It does nothing under an isolation level that the queue cannot use.
    async fn end_attempt(
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
        lease.settling();
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

/// The time within which the commit has to follow the end of an attempt, in milliseconds.
const LONGEST_PAUSE: &str = "2000";

/// The reason why a transaction was not committed, or may not have been.
#[derive(Debug)]
pub(crate) enum CommitError {
    /// One of its statements had failed.
    Aborted,
    /// It had been committed or rolled back by another statement, or a savepoint was left open in it.
    EndedBefore,
    /// The lease on the event that it handles was lost.
    LeaseLost,
    /// It failed before its commit, or the server answered the commit with an error. It is rolled back.
    Refused(BoxError),
    /// The server did not answer.
    Unknown(sqlx::Error),
}

impl CommitError {
    /// The failure of the statement before the commit.
    fn of_check(error: sqlx::Error) -> Self {
        match code(&error).as_deref() {
            Some("25P02") => Self::Aborted,
            _ => Self::of_commit(error),
        }
    }

    /// The failure of the commit itself.
    fn of_commit(error: sqlx::Error) -> Self {
        match code(&error).is_some_and(|code| !is_without_answer(&code)) {
            true => Self::Refused(error.into()),
            false => Self::Unknown(error),
        }
    }
}

errors! {
    CommitError {
        Self::Aborted => "the handler returned `Ok` although one of its statements had failed, and with it its \
            transaction: return the error, or put the statement into a savepoint";
        Self::EndedBefore => "the handler ended the transaction that it was given, or dropped a `begin` midway, or \
            left a savepoint open: the transaction is its caller's to end";
        Self::LeaseLost => "the lease on the event was lost";
        Self::Refused(error) => "the transaction was rolled back" => &**error;
        Self::Unknown(error) => "the server did not confirm the commit" => error;
    }
}

/// The number that the server gave to a transaction.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TxId(String);

/// The number of the current transaction. Fails when one of its statements has failed.
async fn number(connection: &mut PgConnection) -> sqlx::Result<TxId> {
    let number = query_scalar("SELECT pg_current_xact_id()::text");
    number.fetch_one(connection).await.map(TxId)
}

/// Whether an insertion failed because it waited for another one.
fn is_wait_over(error: &sqlx::Error) -> bool {
    match code(error).as_deref() {
        // The limit of locks, or one of statements that is shorter.
        Some("55P03" | "57014") => true,
        // A row that was inserted since the transaction began, where transactions are repeatable reads by default.
        Some("40001") => true,
        _ => false,
    }
}

/// A time limit as the server takes it, which zero would lift.
fn millis(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX).max(1)
}
