//! A file of SQLite, and the threads that do all work on it.

mod batches;
mod checkpoint;
pub(crate) mod clock;
mod error;
mod file;
mod format;
mod migrate;
mod pause;
mod reader;
mod thread;
mod transaction;
mod watch;
mod writer;

use std::path::{self, Path};
use std::sync::{Arc, Mutex};

use self::batches::Batches;
use self::checkpoint::{Checkpoints, LogSize};
use self::clock::Clock;
use self::error::{FileError, Reason};
use self::pause::Pause;
use self::thread::Thread;
use self::watch::Watch;
use crate::store::OpenError as Error;

pub(crate) use self::checkpoint::{EVERY as CHECKPOINT_EVERY, PAGE};
pub(crate) use self::clock::Machine;
pub(crate) use self::error::is_damage;
pub(crate) use self::format::{Format, Purpose, Upkeep};
pub(crate) use self::thread::Need;
pub(crate) use self::transaction::Tx;

/// A handle on an open file. Clones share its threads; dropping the last one waits until the file is
/// closed.
#[derive(Clone)]
pub(crate) struct Engine {
    path: Arc<Path>,
    log: LogSize,
    /// Before the writer, whose connection is closed last: it leaves no log behind.
    reader: Arc<Thread>,
    writer: Arc<Thread>,
}

impl Engine {
    /// Opens the file, creates it when there is none, and upgrades its schema, in the calling thread.
    pub(crate) fn open(
        path: &Path,
        format: &'static Format,
        upkeep: Vec<Box<dyn Upkeep>>,
        machine: Machine,
        checkpoint_every: i32,
    ) -> Result<Self, Error> {
        // SQLite would give other meanings to some relative paths, such as `:memory:`.
        let path: Arc<Path> = match path::absolute(path) {
            Ok(path) => path.into(),
            Err(error) => return Err(FileError::new(&path.into(), Reason::Create(error)).into()),
        };
        let open = || {
            let db = file::open(&path, format)?;
            let watch = Watch::start(&path, &db)?;
            let id = watch.file();
            let clock = Arc::new(Mutex::new(Clock::start(machine)));
            let batches = Batches::new(db, format, upkeep, Arc::clone(&clock))?;
            let aside = file::connect_aside(&path, format)?;
            let pause = Pause::default();
            let checkpoints = Checkpoints::start(&path, aside, checkpoint_every, pause.clone())
                .map_err(Reason::Thread)?;
            let log = checkpoints.size();
            let reader = reader::start(&path, id, format, clock).map_err(Reason::Thread)?;
            let writer =
                writer::start(&path, watch, batches, checkpoints, pause).map_err(Reason::Thread)?;
            Ok(Self {
                path: Arc::clone(&path),
                log,
                reader: Arc::new(reader),
                writer: Arc::new(writer),
            })
        };
        open().map_err(|reason: Reason| FileError::new(&path, reason).into())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The bytes of the log beyond its usual size, because it cannot be moved into the file.
    pub(crate) fn log_excess(&self) -> u64 {
        self.log.excess()
    }

    /// Does the work in a transaction, and returns its result when that is committed.
    ///
    /// The work is done once more if that transaction met damage.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        need: Need,
        work: impl FnMut(&mut Tx<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        self.writer.run(need, work).await
    }

    /// Does work that changes nothing and may take long. Writes do not wait for it. It sees what was committed before.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Tx<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        self.reader.run(Need::Read, work).await
    }
}

#[cfg(test)]
mod testing {
    use super::format::{Format, Purpose};

    /// A file that holds nothing but the time and the release.
    pub(super) const FORMAT: Format = Format {
        migrations: &[
            "CREATE TABLE file (highest INTEGER NOT NULL, lowest_release TEXT NOT NULL) STRICT;
             INSERT INTO file VALUES (0, '0.1.0');",
        ],
        lowest_release: "SELECT lowest_release FROM file",
        highest_time: "SELECT highest FROM file",
        set_highest_time: "UPDATE file SET highest = ?1",
        purpose: Purpose {
            begin: "",
            is_met: "SELECT true",
            refusal: "",
        },
    };
}
