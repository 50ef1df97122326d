//! Moves what was committed from the write-ahead log into the file, beside the thread that writes.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::thread::{self, JoinHandle};

use rusqlite::Connection;
use rusqlite::wal::CheckpointMode;

use super::error::Refused;
use super::file;
use crate::answer::Chain;

/// After how many pages of 4 KiB the log is moved.
const EVERY: i32 = 8192;

/// The log grows while it is moved. Once it has grown by so few pages only, they are moved while
/// nothing can be written, so that the log can begin anew.
const REST: i32 = 512;
const PASSES: usize = 4;

/// A thread with a connection of its own, which ends with this.
pub(super) struct Checkpoints {
    due: Arc<AtomicI32>,
    wake: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpoints {
    pub(super) fn start(path: &Arc<Path>, db: Connection) -> io::Result<Self> {
        let path = Arc::clone(path);
        let due = Arc::new(AtomicI32::new(EVERY));
        let (wake, woken) = mpsc::sync_channel(1);
        let next = Arc::clone(&due);
        let thread = thread::Builder::new()
            .name("webhook-sqlite-c".to_owned())
            .spawn(move || {
                let mut failed = false;
                while woken.recv().is_ok() {
                    let result = checkpoint(&db);
                    // A log that somebody still reads is left alone until it has grown again.
                    let left = result.as_ref().map_or(0, |left| *left);
                    next.store(left.saturating_add(EVERY), Ordering::Relaxed);
                    let fails = result.is_err();
                    if let Err(error) = result
                        && !failed
                    {
                        tracing::warn!(
                            reason = %Chain(&Refused::new(&path, error)),
                            "the write-ahead log grows, because it cannot be moved into the file"
                        );
                    }
                    failed = fails;
                }
            })?;
        Ok(Self {
            due,
            wake: Some(wake),
            thread: Some(thread),
        })
    }

    /// Tells how many pages the log has.
    pub(super) fn log_has(&self, pages: i32) {
        if pages >= self.due.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    pub(super) fn wake(&self) {
        if let Some(wake) = &self.wake {
            // When it is full, the thread is about to look.
            let _ = wake.try_send(());
        }
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Moves all of the log, and returns how many pages it has if it cannot begin anew.
fn checkpoint(db: &Connection) -> rusqlite::Result<i32> {
    let mut before = 0;
    for _ in 0..PASSES {
        let (pages, _) = db.wal_checkpoint_v2(None::<&str>, CheckpointMode::PASSIVE)?;
        if pages - before < REST {
            break;
        }
        before = pages;
    }
    match db.wal_checkpoint_v2(None::<&str>, CheckpointMode::FULL) {
        Ok(_) => Ok(0),
        Err(error) if file::is_busy(&error) => Ok(before),
        Err(error) => Err(error),
    }
}
