//! The thread that writes.
//!
//! Calls that come while one transaction is committed go into the next one, or the next two: those that
//! wait for the disk are committed after the rest.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::batches::{BATCH, Batches};
use super::checkpoint::Checkpoints;
use super::error::{FileError, Reason};
use super::file::FileId;
use super::pause::Pause;
use super::thread::{Job, Need, Thread, answer};

/// After this long without a rest, the file is left alone for long enough that another process that waits
/// for it notices.
const STRETCH: Duration = Duration::from_millis(50);
const REST: Duration = Duration::from_millis(1);

pub(super) fn start(
    path: &Arc<Path>,
    file: FileId,
    batches: Batches,
    checkpoints: Checkpoints,
    pause: Pause,
) -> io::Result<Thread> {
    let of = Arc::clone(path);
    Thread::start(path, "webhook-sqlite", move |queue| {
        serve(&of, &file, queue, batches, checkpoints, &pause);
    })
}

fn serve(
    path: &Arc<Path>,
    file: &FileId,
    mut queue: mpsc::Receiver<Box<dyn Job>>,
    mut batches: Batches,
    checkpoints: Checkpoints,
    pause: &Pause,
) {
    let mut commit = |jobs: &mut Vec<Box<dyn Job>>| {
        if jobs.is_empty() {
            return;
        }
        let committed = jobs.len();
        let result = match file.was_replaced(path) {
            true => Err(Reason::Replaced),
            false => {
                let _writing = pause.write();
                batches.commit(path, jobs).map_err(Reason::Sqlite)
            }
        };
        let error = result.err().map(|reason| FileError::new(path, reason));
        answer(jobs, error.as_ref());
        match error {
            None => {
                if let Some(pages) = batches.log_size(committed) {
                    checkpoints.log_has(pages);
                }
            }
            // On a full disk that makes room in the log.
            Some(_) => checkpoints.wake(),
        }
    };
    let mut jobs = Vec::with_capacity(BATCH.into());
    let mut durable = Vec::with_capacity(BATCH.into());
    let mut stretch = Stretch {
        began: Instant::now(),
    };
    loop {
        let since = Instant::now();
        if queue.blocking_recv_many(&mut jobs, BATCH.into()) == 0 {
            break;
        }
        if stretch.is_over(since, Instant::now()) {
            thread::sleep(REST);
            stretch.began = Instant::now();
        }

        // Callers that do not need the disk are answered before the others wait for it.
        durable.extend(jobs.extract_if(.., |job| job.need() == Need::Durable));
        commit(&mut jobs);
        commit(&mut durable);
        // Callers that were answered may call again at once: the more come together, the fewer waits.
        thread::yield_now();
    }
    // Its connection is closed first, so that the last one leaves no log behind.
    drop(checkpoints);
    drop(batches);
}

/// Work without a rest that another process could notice.
struct Stretch {
    began: Instant,
}

impl Stretch {
    /// Whether a rest is due now that there is work, for which the thread waited since then.
    fn is_over(&mut self, since: Instant, now: Instant) -> bool {
        if now - since >= REST {
            self.began = now;
        }
        now - self.began >= STRETCH
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Mutex;

    use tokio::time::timeout;

    use super::super::checkpoint::EVERY;
    use super::super::clock::{self, Clock};
    use super::super::file;
    use super::super::testing::FORMAT;
    use super::*;

    #[tokio::test]
    async fn nothing_is_committed_during_a_pause() {
        let directory = tempfile::tempdir().unwrap();
        let path: Arc<Path> = directory.path().join("webhooks.db").into();
        let db = file::open(&path, &FORMAT).unwrap();
        let aside = file::connect_aside(&path, &FORMAT).unwrap();
        let clock = Arc::new(Mutex::new(Clock::start(clock::machine())));
        let batches = Batches::new(db, &FORMAT, Vec::new(), clock).unwrap();
        let pause = Pause::default();
        let checkpoints = Checkpoints::start(&path, aside, EVERY, pause.clone()).unwrap();
        let id = FileId::of(&path).unwrap();
        let writer = start(&path, id, batches, checkpoints, pause.clone()).unwrap();

        let paused = pause.begin(Duration::from_secs(60)).unwrap();
        let mut write = pin!(writer.run(Need::Durable, |tx| {
            tx.prepare("UPDATE file SET highest = highest")?.execute([])
        }));
        let waits = timeout(Duration::from_millis(20), &mut write).await;
        assert!(waits.is_err());
        drop(paused);
        assert_eq!(write.await.unwrap(), 1);
    }

    #[test]
    fn a_rest_is_due_when_there_was_none_for_a_while() {
        let began = Instant::now();
        let mut stretch = Stretch { began };
        let at = |millis| began + Duration::from_millis(millis);

        // Always at work, but for moments.
        assert!((1..50).all(|now| !stretch.is_over(at(now), at(now))));
        assert!(stretch.is_over(at(50), at(50)));
        // Waiting for work was a rest.
        assert!(!stretch.is_over(at(60), at(61)));
        assert!((62..111).all(|now| !stretch.is_over(at(now), at(now))));
        assert!(stretch.is_over(at(111), at(111)));
    }
}
