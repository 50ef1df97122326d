//! How large the tables are, and which ones they are.

use async_trait::async_trait;

use super::batches::Result;
use super::database::Database;
use crate::inbox::queue::{MeasureTables, Tables};
use crate::postgres::engine::{Value, column};

const SIZE: &str = "SELECT {schema}.size($1)";
/// When the tables were made, which two databases do not share, and whether they can be written to.
const TABLES: &str = "
    SELECT (
        SELECT (extract(epoch FROM applied_at) * 1000000)::bigint FROM {schema}.schema_versions ORDER BY version LIMIT 1
    ), NOT (pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean)";

#[cfg(test)]
pub(super) const STATEMENTS: &[&str] = &[SIZE, TABLES];

#[async_trait]
impl MeasureTables for Database {
    /// With a cold cache, a sample takes seconds: it leaves connections to others.
    async fn size(&self) -> Result<u64> {
        let values = [Value::Text(self.tables.schema.table("events"))];
        let row = self.read_one(SIZE, &values).await?;
        Ok(column::<i64>(&row, 0)?.unsigned_abs())
    }

    async fn tables(&self) -> Result<Tables> {
        let row = self.call_one(TABLES, []).await?;
        Ok(Tables {
            identity: column(&row, 0)?,
            is_writable: column(&row, 1)?,
        })
    }
}
