//! The memory store: the conformance suite, a reference model, and what happens when it is full.

#![cfg(all(feature = "moka", feature = "conformance"))]

use tower_webhook::store::MokaStore;
use tower_webhook::store::conformance::{self, Harness};

struct Memory(MokaStore);

impl Harness for Memory {
    type Store = MokaStore;

    async fn open(&self) -> MokaStore {
        self.0.clone()
    }
}

#[tokio::test(start_paused = true)]
async fn conforms_in_paused_time() {
    conformance::run(&Memory(MokaStore::new())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn conforms_in_real_time_on_several_threads() {
    conformance::run(&Memory(MokaStore::new())).await;
}
