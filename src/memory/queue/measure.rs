//! How much memory the events take.

use async_trait::async_trait;

use super::MemoryQueue;
use crate::inbox::queue::{MeasureTables, Tables};
use crate::store::StoreError;

#[async_trait]
impl MeasureTables for MemoryQueue {
    async fn measure(&self) -> Result<Tables, StoreError> {
        let state = self.lock();
        Ok(Tables {
            bytes: state.bytes,
            identity: state.identity,
            is_writable: true,
        })
    }
}
