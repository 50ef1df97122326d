//! The SQLite store: the conformance suite, and what only a file can go through.

use std::path::PathBuf;

use tempfile::TempDir;
use tower_webhook::store::SqliteStore;
use tower_webhook::store::conformance::{self, Harness};

/// A file in a directory of its own.
struct Scratch {
    directory: TempDir,
}

impl Scratch {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("webhooks.db")
    }
}

impl Harness for Scratch {
    type Store = SqliteStore;

    async fn open(&self) -> SqliteStore {
        SqliteStore::open(self.path()).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn conforms() {
    conformance::run(&Scratch::new()).await;
}
