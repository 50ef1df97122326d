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
use crate::error::Chain;

/// After how many pages of 4 KiB the log is moved.
pub(super) const EVERY: i32 = 16384;

/// The log grows while it is moved. Once it has grown by so few pages only, they are moved while
/// nothing can be written, so that the log can begin anew.
const REST: i32 = 512;
const PASSES: usize = 4;

/// A thread with a connection of its own, which ends with this.
pub(super) struct Checkpoints {
    due: Arc<AtomicI32>,
    told: Arc<AtomicI32>,
    wake: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpoints {
    pub(super) fn start(path: &Arc<Path>, db: Connection, every: i32) -> io::Result<Self> {
        let path = Arc::clone(path);
        let due = Arc::new(AtomicI32::new(every));
        let (wake, woken) = mpsc::sync_channel(1);
        let told = Arc::new(AtomicI32::new(0));
        let (next, last_told) = (Arc::clone(&due), Arc::clone(&told));
        let thread = thread::Builder::new()
            .name("webhook-sqlite-c".to_owned())
            .spawn(move || {
                let mut failed = false;
                while woken.recv().is_ok() {
                    let result = checkpoint(&db);
                    // A log that somebody still reads is left alone until it has grown again, and so
                    // is one that cannot be moved.
                    let left = match &result {
                        Ok(left) => *left,
                        Err(_) => last_told.load(Ordering::Relaxed),
                    };
                    next.store(left.saturating_add(every), Ordering::Relaxed);
                    // Another process moves it.
                    if result.as_ref().is_err_and(file::is_busy) {
                        continue;
                    }
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
            told,
            wake: Some(wake),
            thread: Some(thread),
        })
    }

    /// Tells how many pages the log has.
    pub(super) fn log_has(&self, pages: i32) {
        self.told.store(pages, Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_log_that_another_process_moves_is_left_to_it() {
        let directory = tempfile::tempdir().unwrap();
        let path: Arc<Path> = directory.path().join("webhooks.db").into();
        let writer = file::open(&path).unwrap();
        writer.execute_batch("BEGIN IMMEDIATE").unwrap();

        // It waits for the writer, and nobody else can move the log meanwhile.
        let mut other = file::connect_aside(&path).unwrap();
        let (waits, is_waiting) = mpsc::channel();
        let (go_on, gate) = mpsc::channel::<()>();
        other
            .busy_handler(Some(move |_| {
                let _ = waits.send(());
                gate.recv().is_ok()
            }))
            .unwrap();
        let other = thread::spawn(move || {
            let _ = other.wal_checkpoint_v2(None::<&str>, CheckpointMode::FULL);
        });
        is_waiting.recv().unwrap();

        let db = file::connect_aside(&path).unwrap();
        assert!(file::is_busy(&checkpoint(&db).unwrap_err()));
        let checkpoints = Checkpoints::start(&path, db, 64).unwrap();
        checkpoints.log_has(100);
        let give_up = Instant::now() + Duration::from_secs(10);
        while checkpoints.due.load(Ordering::Relaxed) != 164 {
            assert!(Instant::now() < give_up, "it would be tried at each commit");
            thread::sleep(Duration::from_millis(1));
        }
        drop(go_on);
        other.join().unwrap();
    }
}
