//! The queue in a SQLite file.

mod accept;
mod actions;
mod blocked;
mod change;
mod chats;
mod claim;
mod count;
mod forget;
mod handlers;
mod kinds;
mod lanes;
mod list;
mod measure;
mod purge;
mod row;
mod search;
mod settle;
pub(crate) mod spool;
mod stats;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use crate::inbox::Queue;
use crate::sqlite::engine::{CHECKPOINT_EVERY, Engine, Machine, Need, Tx, clock};
use crate::sqlite::keys::SqliteStore;
use crate::store::{OpenError, StoreError};

/// Keeps events in a SQLite file: the durable choice for one machine.
///
/// An accepted event survives a crash of the process and of the machine, and is claimed by one process at a time,
/// among all processes of one machine that open the file. A [`SqliteStore`] may use the same file, in this process
/// ([`with_store`](Self::with_store)) or in another one, and both know each other's keys. Threads do the work of all
/// callers, and reads do not delay the accepting and handling of events. Lists and counts work in steps of some
/// milliseconds, so their result is not a snapshot. Leases last 11 milliseconds longer than requested, because the
/// clocks of two processes may differ. The page on stores has
/// [durability, files, failures and lists](crate::docs::stores#sqlite) and [size](crate::docs::stores#size).
///
/// Clones share their threads. Dropping the last one waits until the file is closed.
///
/// ```no_run
/// use tower_webhook::sqlite::SqliteQueue;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let queue = SqliteQueue::open("webhooks.db")?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SqliteQueue {
    engine: Engine,
}

impl SqliteQueue {
    /// Opens the file. Creates it if it does not exist, and upgrades a file of an earlier release. Blocks the calling
    /// thread.
    ///
    /// # Errors
    ///
    /// As for [`SqliteStore::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::open_by(path.as_ref(), clock::machine())
    }

    fn open_by(path: &Path, machine: Machine) -> Result<Self, OpenError> {
        let store = SqliteStore::open_by(path, machine, CHECKPOINT_EVERY)?;
        Ok(Self::with_store(&store))
    }

    /// Uses the file of a store, and its threads.
    ///
    /// ```no_run
    /// use tower_webhook::sqlite::SqliteQueue;
    /// use tower_webhook::sqlite::SqliteStore;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = SqliteStore::open("webhooks.db")?;
    /// let queue = SqliteQueue::with_store(&store);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_store(store: &SqliteStore) -> Self {
        Self {
            engine: store.engine(),
        }
    }

    async fn run<T: Send + 'static>(
        &self,
        need: Need,
        work: impl FnMut(&mut Tx<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        Ok(self.engine.run(need, work).await?)
    }

    async fn read<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Tx<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        Ok(self.engine.read(work).await?)
    }

    /// Runs work that may take an event for the caller. The work is told whether the caller still waits: an event that is
    /// taken for nobody waits for the end of its lease, and counts as crashed.
    async fn run_for<T: Send + 'static>(
        &self,
        need: Need,
        mut work: impl FnMut(&mut Tx<'_>, bool) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let caller = Arc::new(());
        let awaited = Arc::downgrade(&caller);
        let result = self.run(need, move |tx| work(tx, awaited.strong_count() > 0));
        let result = result.await;
        drop(caller);
        result
    }
}

impl From<SqliteQueue> for Queue {
    fn from(queue: SqliteQueue) -> Self {
        Self::of(queue, true)
    }
}

partial_debug!(SqliteQueue, |it| path = it.engine.path());
