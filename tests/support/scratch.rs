//! SQLite files, and processes that share them.

use std::fs;
use std::path::PathBuf;

use rusqlite::Connection;
use tempfile::TempDir;
use tower_webhook::sqlite::{SqliteQueue, SqliteStore};
use tower_webhook::store::OpenErrorKind;
#[cfg(feature = "conformance")]
use tower_webhook::store::conformance::Harness;

use super::chain;
use super::program::Peer;

/// A file in a directory of its own.
pub struct Scratch {
    pub directory: TempDir,
}

impl Scratch {
    pub fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    /// In memory, where the system can: a busy disk keeps the lock of a writer for longer than others wait for it.
    pub fn in_memory() -> Self {
        Self {
            directory: memory(),
        }
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("webhooks.db")
    }

    /// The file, or one beside it.
    pub fn beside(&self, end: &str) -> PathBuf {
        self.directory.path().join(format!("webhooks.db{end}"))
    }

    pub fn truncate(&self, end: &str, size: u64) {
        let file = fs::File::options().write(true).open(self.beside(end));
        file.unwrap().set_len(size).unwrap();
    }

    pub fn store(&self) -> SqliteStore {
        SqliteStore::open(self.path()).unwrap()
    }

    pub fn queue(&self) -> SqliteQueue {
        SqliteQueue::open(self.path()).unwrap()
    }

    /// Looks at the file, or changes it, without the store.
    pub fn sql(&self) -> Connection {
        Connection::open(self.path()).unwrap()
    }

    /// Why opening is refused, which must be of this kind.
    pub fn refusal(&self, kind: OpenErrorKind) -> String {
        let error = SqliteStore::open(self.path()).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        chain(&error)
    }
}

#[cfg(feature = "conformance")]
impl Harness for Scratch {
    type Store = SqliteStore;

    async fn open(&self) -> SqliteStore {
        self.store()
    }
}

/// A directory in memory, if there is such a place.
pub fn memory() -> TempDir {
    TempDir::new_in("/dev/shm").unwrap_or_else(|_| TempDir::new().unwrap())
}

/// Where the files are, if this process is the peer of a test.
pub fn directory() -> Option<PathBuf> {
    Peer::argument().map(PathBuf::from)
}

/// Logs to the file `log` of a directory, in a peer.
pub fn log_to(directory: &std::path::Path) {
    let log = fs::File::create(directory.join("log")).unwrap();
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(std::sync::Mutex::new(log))
        .init();
}
