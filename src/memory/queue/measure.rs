//! How much memory the events take.

use async_trait::async_trait;

use super::MemoryQueue;
use crate::inbox::queue::{MeasureTables, Tables};
use crate::store::StoreError;

#[async_trait]
impl MeasureTables for MemoryQueue {
    async fn size(&self) -> Result<u64, StoreError> {
        Ok(self.lock().bytes)
    }

    async fn tables(&self) -> Result<Tables, StoreError> {
        Ok(Tables {
            identity: self.lock().identity,
            is_writable: true,
        })
    }
}
