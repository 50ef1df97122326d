//! Moves what was committed from the write-ahead log into the file, beside the thread that writes.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::error::FileError;
use super::pause::Pause;
use crate::error::Chain;

/// Bytes.
pub(crate) const PAGE: u64 = 4096;

/// After how many pages of 4 KiB the log is moved.
pub(crate) const EVERY: i32 = 16384;

/// Finds how many pages the log has, and moves none of them.
pub(super) const MEASURE: &str = "PRAGMA wal_checkpoint(NOOP)";

/// Moves what no reader holds back, and keeps nobody waiting.
pub(super) const PASSIVE: &str = "PRAGMA wal_checkpoint(PASSIVE)";

/// The log grows while it is moved. Once it has grown by fewer pages than this, they are moved while
/// nothing can be written, so that the log can start over.
const REST: i32 = 512;
const PASSES: usize = 4;

/// SQLite synchronizes the file only if nothing was committed until a pass had moved its last page. Under load that is
/// rare, and the synchronization is then left to the pass that keeps writers waiting, where it takes most of the time. So
/// the writer pauses while a small pass synchronizes the log and moves its pages. It writes again while the file is
/// synchronized. Other processes do not pause.
const PAUSE: Duration = Duration::from_millis(3);
/// A reader holds back the pages that were committed after it began. Most end within milliseconds.
const TRIES: usize = 4;
const TRY_AGAIN: Duration = Duration::from_millis(5);

/// How often a log that a reader holds back is tried again.
const TRY_HELD_BACK: Duration = Duration::from_secs(1);

/// The log takes up to this many times the pages after which it is moved, under full load. One that takes more is warned
/// of, and limits the backlog.
const USUAL: i32 = 2;

/// A thread with a connection of its own, which ends with this.
pub(super) struct Checkpoints {
    every: i32,
    due: Arc<AtomicI32>,
    size: LogSize,
    wake: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// How many pages the log has, as far as this process knows.
#[derive(Clone)]
pub(super) struct LogSize {
    pages: Arc<AtomicI32>,
    usual: i32,
}

impl LogSize {
    /// The bytes beyond the usual size of the log.
    pub(super) fn excess(&self) -> u64 {
        let excess = self.pages.load(Ordering::Relaxed) - self.usual;
        u64::try_from(excess).unwrap_or(0) * PAGE
    }
}

impl Checkpoints {
    pub(super) fn start(
        path: &Arc<Path>,
        db: Connection,
        every: i32,
        pause: Pause,
    ) -> io::Result<Self> {
        let due = Arc::new(AtomicI32::new(every));
        let size = LogSize {
            pages: Arc::default(),
            usual: every.saturating_mul(USUAL),
        };
        let mover = Mover {
            path: Arc::clone(path),
            db,
            pause,
            every,
            due: Arc::clone(&due),
            size: size.clone(),
            is_held_back: false,
            has_failed: false,
            warns_at: size.usual,
        };
        let (wake, woken) = mpsc::sync_channel(1);
        let thread = thread::Builder::new()
            .name("webhook-sqlite-c".to_owned())
            .spawn(move || mover.run(&woken))?;
        Ok(Self {
            every,
            due,
            size,
            wake: Some(wake),
            thread: Some(thread),
        })
    }

    pub(super) fn size(&self) -> LogSize {
        self.size.clone()
    }

    /// Notes how many pages the log has, and starts moving it when that is enough.
    pub(super) fn log_has(&self, pages: i32) {
        let before = self.size.pages.swap(pages, Ordering::Relaxed);
        if pages < before {
            // It has started over, perhaps without this thread.
            self.due.store(self.every, Ordering::Relaxed);
        }
        if pages >= self.due.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    pub(super) fn wake(&self) {
        if let Some(wake) = &self.wake {
            // If the channel is full, the thread is about to wake up anyway.
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

/// What the thread knows.
struct Mover {
    path: Arc<Path>,
    db: Connection,
    pause: Pause,
    every: i32,
    due: Arc<AtomicI32>,
    size: LogSize,
    /// Whether the log was not moved whole the last time.
    is_held_back: bool,
    has_failed: bool,
    /// From how many pages on that are held back a warning is logged.
    warns_at: i32,
}

impl Mover {
    fn run(mut self, woken: &Receiver<()>) {
        loop {
            let woke = match self.is_held_back {
                true => woken.recv_timeout(TRY_HELD_BACK),
                false => woken.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match woke {
                Ok(()) => {}
                // Its reader has ended, or this is tried again. It keeps nobody waiting.
                Err(RecvTimeoutError::Timeout) => match pass(&self.db, PASSIVE) {
                    Ok(Some(log)) if log.is_moved() => {}
                    _ => continue,
                },
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let result = checkpoint(&self.db, &self.pause);
            // The writer may have asked again during the checkpoint.
            let _ = woken.try_recv();
            self.note(result);
        }
    }

    fn note(&mut self, result: rusqlite::Result<Moved>) {
        // A log that is still read, or cannot be moved, is left alone until it has grown again.
        let left = match &result {
            Ok(Moved::Done { left }) => *left,
            Ok(Moved::ByAnother) | Err(_) => self.size.pages.load(Ordering::Relaxed),
        };
        self.due
            .store(left.saturating_add(self.every), Ordering::Relaxed);
        match result {
            Ok(Moved::ByAnother) => {}
            Ok(Moved::Done { .. }) => {
                self.has_failed = false;
                self.is_held_back = left > 0;
                self.warn_of_reader(left);
            }
            Err(error) => {
                if !self.has_failed {
                    tracing::warn!(
                        reason = Chain(&FileError::new(&self.path, error)).to_string(),
                        "the write-ahead log grows, because it cannot be moved into the file"
                    );
                }
                self.has_failed = true;
            }
        }
    }

    /// Whenever the log has doubled.
    fn warn_of_reader(&mut self, left: i32) {
        if left == 0 {
            self.size.pages.store(0, Ordering::Relaxed);
            self.warns_at = self.size.usual;
        } else if left >= self.warns_at {
            self.warns_at = left.saturating_mul(2);
            tracing::warn!(
                file = %self.path.display(),
                bytes = i64::from(left) * 4096,
                "the write-ahead log grows, because a program reads the file in one transaction for long: end it"
            );
        }
    }
}

/// The result of moving the log.
enum Moved {
    /// As much as possible was moved into the file. At least this many pages are left; with none, the log starts over.
    Done { left: i32 },
    /// Another process is moving it.
    ByAnother,
}

fn checkpoint(db: &Connection, pause: &Pause) -> rusqlite::Result<Moved> {
    let mut pages = 0;
    for _ in 0..PASSES {
        let Some(log) = pass(db, PASSIVE)? else {
            return Ok(Moved::ByAnother);
        };
        let grown = log.pages - pages;
        pages = log.pages;
        if grown < REST {
            break;
        }
    }
    for tries in 1..=TRIES {
        let paused = pause.begin(PAUSE);
        let Some(log) = pass(db, PASSIVE)? else {
            return Ok(Moved::ByAnother);
        };
        drop(paused);
        pages = log.pages;
        if log.is_moved() || tries == TRIES {
            break;
        }
        thread::sleep(TRY_AGAIN);
    }
    // Not complete while a process reads from the log, or writes to it for a long time.
    let began = Instant::now();
    let complete = pass(db, "PRAGMA wal_checkpoint(FULL)")?;
    let is_complete = complete.is_some();
    tracing::debug!(
        pages,
        is_complete,
        writers_waited = ?began.elapsed(),
        "the write-ahead log was moved into the file"
    );
    Ok(Moved::Done {
        left: if is_complete { 0 } else { pages },
    })
}

/// The log after a pass.
pub(super) struct Log {
    pages: i32,
    /// How many of them are in the file now.
    moved: i32,
}

impl Log {
    pub(super) fn is_moved(&self) -> bool {
        self.moved == self.pages
    }
}

/// Moves pages, or returns `None` if another connection held a lock.
pub(super) fn pass(db: &Connection, sql: &str) -> rusqlite::Result<Option<Log>> {
    db.query_row(sql, [], |row| {
        let is_busy: bool = row.get(0)?;
        let (pages, moved) = (row.get(1)?, row.get(2)?);
        Ok((!is_busy).then_some(Log { pages, moved }))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::super::file;
    use super::super::pause::PATIENCE;
    use super::super::testing::FORMAT;
    use super::*;

    #[test]
    fn measuring_moves_no_page() {
        let directory = tempfile::tempdir().unwrap();
        let db = file::open(&directory.path().join("webhooks.db"), &FORMAT).unwrap();
        let sizes = |sql| {
            db.query_row(sql, [], |row| Ok((row.get(1)?, row.get(2)?)))
                .unwrap()
        };
        db.execute_batch("UPDATE file SET highest = 1").unwrap();
        let (pages, moved): (i32, i32) = sizes(MEASURE);
        assert!(pages > 0);
        assert_eq!(moved, 0);
        assert_eq!(sizes("PRAGMA wal_checkpoint(PASSIVE)"), (pages, pages));
    }

    #[test]
    fn the_last_pass_beside_the_writer_begins_after_its_commit() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("webhooks.db");
        let db = file::open(&path, &FORMAT).unwrap();
        let pause = Pause::default();
        let began = Instant::now();
        let writing = pause.write();
        let (moved, heard) = mpsc::channel();
        let of = pause.clone();
        thread::spawn(move || moved.send(checkpoint(&db, &of).is_ok()).unwrap());
        let waits = heard.recv_timeout(Duration::from_millis(20)).is_err();
        assert!(waits || began.elapsed() >= PATIENCE);
        drop(writing);
        assert!(!waits || heard.recv().unwrap());
    }

    #[test]
    fn a_log_that_another_process_moves_is_left_to_it() {
        static WAITS: AtomicBool = AtomicBool::new(false);
        static GIVES_UP: AtomicBool = AtomicBool::new(false);
        fn wait(_: i32) -> bool {
            WAITS.store(true, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(1));
            !GIVES_UP.load(Ordering::SeqCst)
        }

        let directory = tempfile::tempdir().unwrap();
        let path: Arc<Path> = directory.path().join("webhooks.db").into();
        let writer = file::open(&path, &FORMAT).unwrap();
        writer.execute_batch("BEGIN IMMEDIATE").unwrap();

        // It waits for the writer, and no other process can move the log until it has ended.
        #[allow(unused_mut, reason = "rusqlite before 0.41 sets handlers through `&`")]
        let mut other = file::connect_aside(&path, &FORMAT).unwrap();
        other.busy_handler(Some(wait)).unwrap();
        let other = thread::spawn(move || {
            let complete = pass(&other, "PRAGMA wal_checkpoint(FULL)").unwrap();
            assert!(complete.is_none());
        });
        while !WAITS.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }

        let db = file::connect_aside(&path, &FORMAT).unwrap();
        assert!(matches!(
            checkpoint(&db, &Pause::default()).unwrap(),
            Moved::ByAnother
        ));
        let checkpoints = Checkpoints::start(&path, db, 64, Pause::default()).unwrap();
        checkpoints.log_has(100);
        let give_up = Instant::now() + Duration::from_secs(10);
        while checkpoints.due.load(Ordering::Relaxed) != 164 {
            assert!(Instant::now() < give_up, "it would be tried at each commit");
            thread::sleep(Duration::from_millis(1));
        }
        GIVES_UP.store(true, Ordering::SeqCst);
        other.join().unwrap();
    }
}
