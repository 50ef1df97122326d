//! The size of the file, and the number of its tables.

use super::{Need, SqliteQueue};
use crate::inbox::queue::{MeasureTables, Tables};
use crate::store::StoreError;
use async_trait::async_trait;

const IDENTITY: &str = "SELECT identity FROM file";
const WRITE: &str = "UPDATE file SET highest_time = max(highest_time, ?1)";
const PAGES: &str = "PRAGMA page_count";
const FREE_PAGES: &str = "PRAGMA freelist_count";
const PAGE_SIZE: &str = "PRAGMA page_size";

#[async_trait]
impl MeasureTables for SqliteQueue {
    /// The bytes of the file that are in use, and of its log, if that is large.
    async fn size(&self) -> Result<u64, StoreError> {
        let used = self.read(|tx| {
            let number = |sql| -> rusqlite::Result<u64> {
                let mut pragma = tx.prepare(sql)?;
                pragma.query_row([], |row| Ok(row.get::<_, u32>(0)?.into()))
            };
            let pages = number(PAGES)?.saturating_sub(number(FREE_PAGES)?);
            Ok(pages.saturating_mul(number(PAGE_SIZE)?))
        });
        Ok(used.await?.saturating_add(self.engine.log_excess()))
    }

    async fn tables(&self) -> Result<Tables, StoreError> {
        // A file that can be read may have no room on its disk.
        let identity = self.run(Need::Write, |tx| {
            tx.prepare(WRITE)?.execute([tx.now])?;
            tx.prepare(IDENTITY)?.query_row([], |row| row.get(0))
        });
        Ok(Tables {
            identity: identity.await?,
            is_writable: true,
        })
    }
}
