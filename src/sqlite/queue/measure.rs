//! The size of the file, and the number of its tables.

use async_trait::async_trait;
use rusqlite::Result;

use super::SqliteQueue;
use crate::inbox::queue::{MeasureTables, Tables};
use crate::sqlite::engine::Tx;
use crate::store::StoreError;

const IDENTITY: &str = "SELECT identity FROM file";
const PAGES: &str = "PRAGMA page_count";
const FREE_PAGES: &str = "PRAGMA freelist_count";
const PAGE_SIZE: &str = "PRAGMA page_size";

#[async_trait]
impl MeasureTables for SqliteQueue {
    async fn measure(&self) -> Result<Tables, StoreError> {
        let mut tables = self.read(|tx| measure(tx)).await?;
        tables.bytes = tables.bytes.saturating_add(self.engine.log_excess());
        Ok(tables)
    }
}

/// The bytes of the file that are in use, without its log.
fn measure(tx: &Tx<'_>) -> Result<Tables> {
    let number = |sql| -> Result<u64> {
        let mut pragma = tx.prepare(sql)?;
        pragma.query_row([], |row| Ok(row.get::<_, u32>(0)?.into()))
    };
    let used = number(PAGES)?.saturating_sub(number(FREE_PAGES)?);
    Ok(Tables {
        bytes: used.saturating_mul(number(PAGE_SIZE)?),
        identity: tx.prepare(IDENTITY)?.query_row([], |row| row.get(0))?,
        // A file that cannot be written to is not opened.
        is_writable: true,
    })
}
