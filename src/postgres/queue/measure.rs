//! How large the tables are, and which ones.

use async_trait::async_trait;

use super::batches::Result;
use super::database::Database;
use crate::inbox::queue::{MeasureTables, Tables};
use crate::postgres::engine::{Value, column};

/// The size, when the tables were made, which two databases do not share, and whether they can be written to.
const MEASURE: &str = "
    SELECT {schema}.size($1), (
        SELECT (extract(epoch FROM applied_at) * 1000000)::bigint FROM {schema}.schema_versions ORDER BY version LIMIT 1
    ), NOT (pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean)";

#[cfg(test)]
pub(super) const STATEMENTS: &[&str] = &[MEASURE];

#[async_trait]
impl MeasureTables for Database {
    async fn measure(&self) -> Result<Tables> {
        let values = [Value::Text(self.tables.schema.table("events"))];
        let row = self.call_one(MEASURE, values).await?;
        Ok(Tables {
            bytes: column::<i64>(&row, 0)?.unsigned_abs(),
            identity: column(&row, 1)?,
            is_writable: column(&row, 2)?,
        })
    }
}
