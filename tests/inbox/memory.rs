//! The queue in memory: the conformance suite.

use crate::suite::{self, Harness};
use tower_webhook::memory::MemoryQueue;

pub(crate) struct Memory(pub(crate) MemoryQueue);

impl Harness for Memory {
    type Queue = MemoryQueue;

    async fn open(&self) -> MemoryQueue {
        self.0.clone()
    }
}

#[tokio::test(start_paused = true)]
async fn conforms_in_paused_time() {
    suite::run(&Memory(MemoryQueue::new())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn conforms_in_real_time_on_several_threads() {
    suite::run(&Memory(MemoryQueue::new())).await;
}
