//! Bodies and events are deleted after their times, and the size of what is left.

use std::sync::Arc;
use std::time::Duration;

use super::database::Database;
use crate::postgres::pool::{Value, column, micros};
use crate::store::StoreError;

const PURGE: &str = "SELECT {schema}.purge($1, $2)";

/// Of a large table, a sample of some 1,000 pages: within some percent. An event without its body takes about 400
/// bytes, with its key and what the indexes have of it.
const SIZE: &str = "
    WITH pages AS MATERIALIZED (
        SELECT greatest(pg_relation_size($1::text::regclass) / current_setting('block_size')::bigint, 1)::float8
            AS pages
    ), share AS MATERIALIZED (
        SELECT CASE WHEN pages <= 2000 THEN 100 ELSE 100000 / pages END AS share FROM pages
    )
    SELECT (
        (SELECT coalesce(sum(400 + coalesce(pg_column_size(body), 0) + coalesce(pg_column_size(headers), 0)), 0)
            FROM {schema}.events TABLESAMPLE SYSTEM ((SELECT share FROM share)))
        * 100 / (SELECT share FROM share)
    )::bigint";

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
        let row = self.database.call_one(&self.purge, &values);
        Ok(column(&row.await?, 0)?)
    }

    pub(super) async fn size(&self) -> Result<u64, StoreError> {
        let values = [Value::Text(Some(
            self.database.tables.schema.table("events"),
        ))];
        let row = self.database.read_one(&self.size, &values).await?;
        Ok(column::<i64>(&row, 0)?.unsigned_abs())
    }
}
