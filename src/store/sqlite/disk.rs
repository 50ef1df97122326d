//! Waits until what was committed is on the disk, beside the thread that writes.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::{self, JoinHandle};

use rusqlite::Connection;
use rusqlite::wal::CheckpointMode;

use super::error::{Reason, Refused};
use super::file;
use super::writer::Job;

/// How many commits wait for the disk before the thread that writes waits, too.
const QUEUE: usize = 64;

/// A thread that ends with this, and has answered everybody by then.
pub(super) struct Disk {
    jobs: Option<SyncSender<Vec<Box<dyn Job>>>>,
    thread: Option<JoinHandle<()>>,
}

impl Disk {
    pub(super) fn start(path: &Arc<Path>, log: Log) -> io::Result<Self> {
        let (jobs, committed) = mpsc::sync_channel(QUEUE);
        let path = Arc::clone(path);
        let thread = thread::Builder::new()
            .name("webhook-sqlite-d".to_owned())
            .spawn(move || serve(&path, log, &committed))?;
        Ok(Self {
            jobs: Some(jobs),
            thread: Some(thread),
        })
    }

    /// Answers jobs, which were committed, once that is on the disk.
    pub(super) fn answer(&self, committed: Vec<Box<dyn Job>>) {
        if let Some(jobs) = &self.jobs {
            // A thread that has ended drops them, which tells those who wait.
            let _ = jobs.send(committed);
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(path: &Arc<Path>, mut log: Log, committed: &Receiver<Vec<Box<dyn Job>>>) {
    while let Ok(mut jobs) = committed.recv() {
        jobs.extend(committed.try_iter().flatten());
        let refused = log.sync().err().map(|reason| Refused::new(path, reason));
        for job in jobs {
            job.answer(refused.as_ref());
        }
    }
}

/// The write-ahead log, which every commit is in.
pub(super) struct Log {
    file: File,
    sync: SyncData,
    db: Connection,
    /// Whether a sync failed, and nothing is known of what it was to bring to the disk.
    in_doubt: bool,
}

/// Returns when what is in a file is on the disk.
pub(super) type SyncData = Box<dyn FnMut(&File) -> io::Result<()> + Send>;

impl Log {
    /// Of a file that is open.
    pub(super) fn open(path: &Path, sync: SyncData) -> Result<Self, Reason> {
        let db = file::connect_aside(path)?;
        let mut log = path.as_os_str().to_owned();
        log.push("-wal");
        let file = File::options()
            .read(true)
            .write(true)
            .open(PathBuf::from(log));
        Ok(Self {
            file: file.map_err(Reason::Log)?,
            sync,
            db,
            in_doubt: false,
        })
    }

    /// Returns when all that was committed before is on the disk.
    fn sync(&mut self) -> Result<(), Reason> {
        if self.in_doubt {
            // Another sync would succeed: the system forgets what it could not write. So all of it is
            // written once more, into the file, and the log is emptied.
            self.db
                .wal_checkpoint_v2(None::<&str>, CheckpointMode::TRUNCATE)?;
            self.in_doubt = false;
        } else if let Err(error) = (self.sync)(&self.file) {
            self.in_doubt = true;
            return Err(Reason::Log(error));
        }
        Ok(())
    }
}
