//! The queue in memory: the conformance suite.

use crate::suite;
use tower_webhook::memory::MemoryQueue;

#[tokio::test(start_paused = true)]
async fn conforms_in_paused_time() {
    suite::run(&MemoryQueue::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn conforms_in_real_time_on_several_threads() {
    suite::run(&MemoryQueue::new()).await;
}
