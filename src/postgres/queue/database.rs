//! How the statements of the queue are executed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::postgres::PgRow;

use super::batches::{Call, share};
use crate::inbox::event::{EventLease, TakenEvent};
use crate::postgres::lease::{Identity, TransactionalLease};
use crate::postgres::pool::{Tables, Value, code, corrupt};
use crate::store::StoreError;
use crate::store::engine::Error;

/// The tables of the queue.
pub(super) struct Database {
    pub(super) tables: Arc<Tables>,
    identity: Arc<Identity>,
    /// Whether transactions have another isolation level by default than the one that the functions need.
    begins: AtomicBool,
}

impl Database {
    pub(super) fn new(tables: Tables) -> Self {
        let tables = Arc::new(tables);
        Self {
            identity: Arc::new(Identity::new(&tables)),
            tables,
            begins: AtomicBool::new(false),
        }
    }

    /// A statement, with the schema's name in it.
    pub(super) fn sql(&self, sql: &str) -> Arc<str> {
        self.tables.schema.sql(sql).into()
    }

    /// Executes a statement that calls a function of the schema, and returns its rows.
    pub(super) async fn call(
        &self,
        sql: &Arc<str>,
        values: &[Value],
    ) -> Result<Vec<PgRow>, StoreError> {
        let rows = self.try_call(sql, values).await;
        rows.map_err(|error| self.error(error))
    }

    pub(super) async fn call_one(
        &self,
        sql: &Arc<str>,
        values: &[Value],
    ) -> Result<PgRow, StoreError> {
        one(self.call(sql, values).await?)
    }

    async fn try_call(&self, sql: &Arc<str>, values: &[Value]) -> sqlx::Result<Vec<PgRow>> {
        if !self.begins.load(Ordering::Relaxed) {
            match self.tables.pool.fetch_all(sql, values).await {
                Err(error) if code(&error).as_deref() == Some(NOT_READ_COMMITTED) => {
                    self.begins.store(true, Ordering::Relaxed);
                }
                result => return result,
            }
        }
        self.tables.pool.fetch_committed(sql, values).await
    }

    /// Executes one statement for several calls, with a row for each.
    pub(super) async fn execute<C: Call>(
        &self,
        sql: &Arc<str>,
        calls: &[C],
        values: fn(&[C]) -> Vec<Value>,
        returned: fn(&C, &PgRow) -> Result<C::Return, Error>,
    ) -> Vec<Result<C::Return, StoreError>> {
        let rows = match self.try_call(sql, &values(calls)).await {
            // What the server cannot store is not the fault of the others.
            Err(error) if calls.len() > 1 && is_of_a_value(&error) => {
                let mut results = Vec::new();
                for call in calls {
                    let values = values(std::slice::from_ref(call));
                    let row = self.call_one(sql, &values).await;
                    results.push(row.and_then(|row| Ok(returned(call, &row)?)));
                }
                return results;
            }
            Err(error) => return share(self.error(error), calls.len()),
            Ok(rows) => rows,
        };
        if rows.len() != calls.len() {
            let error = corrupt("a statement that did not return a row for each call");
            return share(error.into(), calls.len());
        }
        let results = calls.iter().zip(&rows);
        results
            .map(|(call, row)| Ok(returned(call, row)?))
            .collect()
    }

    /// Executes a statement that only reads.
    pub(super) async fn read(
        &self,
        sql: &Arc<str>,
        values: &[Value],
    ) -> Result<Vec<PgRow>, StoreError> {
        let rows = self.tables.pool.fetch_all(sql, values).await;
        rows.map_err(|error| self.error(error))
    }

    pub(super) async fn read_one(
        &self,
        sql: &Arc<str>,
        values: &[Value],
    ) -> Result<PgRow, StoreError> {
        one(self.read(sql, values).await?)
    }

    /// Executes a statement that reads many rows, and returns the time that it took, too.
    pub(super) async fn search(
        &self,
        sql: &Arc<str>,
        values: &[Value],
    ) -> Result<(Vec<PgRow>, Duration), StoreError> {
        let found = self.tables.pool.fetch_without_jit(sql, values).await;
        found.map_err(|error| self.error(error))
    }

    /// Lets a transactional handler end the attempt itself.
    pub(super) fn lend(&self, taken: &mut TakenEvent) {
        let EventLease { id, fence, place } = taken.lease;
        let lease = TransactionalLease::new(&self.identity, id.0, fence, place);
        taken.delivery.lend(Arc::new(lease));
    }

    fn error(&self, error: sqlx::Error) -> StoreError {
        self.tables.error(error).into()
    }
}

/// What the functions fail with where transactions are repeatable reads or serializable by default.
const NOT_READ_COMMITTED: &str = "TW001";

fn one(mut rows: Vec<PgRow>) -> Result<PgRow, StoreError> {
    let row = rows.pop();
    row.ok_or_else(|| corrupt("an answer without a row").into())
}

/// Whether the server refused a value, and would take the others.
fn is_of_a_value(error: &sqlx::Error) -> bool {
    let code = code(error).unwrap_or_default();
    ["22", "23", "54"]
        .iter()
        .any(|class| code.starts_with(class))
}
