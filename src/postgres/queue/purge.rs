//! Bodies and events are deleted after their times, and the size of what is left.

use std::time::Duration;

use super::actions;
use super::batches::Result;
use super::database::Database;
use crate::postgres::engine::{Value, column, micros};

const PURGE: &str = "SELECT {schema}.purge($1, $2, $3, $4)";

const SIZE: &str = "SELECT {schema}.size($1)";

/// When the tables were made, which two databases do not share.
const IDENTITY: &str = "
    SELECT (extract(epoch FROM applied_at) * 1000000)::bigint FROM {schema}.schema_versions ORDER BY version LIMIT 1";

/// How many events a step of purging deletes, or deletes the bodies of.
const EVENTS_PER_STEP: i64 = 1000;

impl Database {
    pub(super) async fn purge(&self, keep_bodies: Duration) -> Result<bool> {
        let [keep_actions, most_actions] = actions::limits();
        let values = [
            Value::Number(micros(keep_bodies)),
            Value::Number(EVENTS_PER_STEP),
            keep_actions,
            most_actions,
        ];
        let row = self.call_one(PURGE, values);
        Ok(column(&row.await?, 0)?)
    }

    pub(super) async fn size(&self) -> Result<u64> {
        let values = [Value::Text(self.tables.schema.table("events"))];
        let row = self.call_one(SIZE, values).await?;
        Ok(column::<i64>(&row, 0)?.unsigned_abs())
    }

    pub(super) async fn identity(&self) -> Result<i64> {
        Ok(column(&self.read_one(IDENTITY, &[]).await?, 0)?)
    }
}
