//! Bodies and events are deleted after their times, and the size of what is left.

use std::sync::Arc;
use std::time::Duration;

use super::database::Database;
use crate::postgres::engine::{Value, column, micros};
use crate::store::StoreError;

const PURGE: &str = "SELECT {schema}.purge($1, $2)";

const SIZE: &str = "SELECT {schema}.size($1)";

/// How many events a step of purging deletes, or deletes the bodies of.
const EVENTS_PER_STEP: i64 = 1000;

pub(super) struct Purge {
    database: Arc<Database>,
    purge: Arc<str>,
    size: Arc<str>,
}

impl Purge {
    pub(super) fn new(database: &Arc<Database>) -> Self {
        Self {
            database: Arc::clone(database),
            purge: database.sql(PURGE),
            size: database.sql(SIZE),
        }
    }

    pub(super) async fn purge(&self, keep_bodies: Duration) -> Result<bool, StoreError> {
        let values = [
            Value::Number(micros(keep_bodies)),
            Value::Number(EVENTS_PER_STEP),
        ];
        let row = self.database.call_one(&self.purge, values);
        Ok(column(&row.await?, 0)?)
    }

    pub(super) async fn size(&self) -> Result<u64, StoreError> {
        let values = [Value::Text(Some(
            self.database.tables.schema.table("events"),
        ))];
        let row = self.database.call_one(&self.size, values).await?;
        Ok(column::<i64>(&row, 0)?.unsigned_abs())
    }
}
