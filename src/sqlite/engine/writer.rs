//! The thread that writes.
//!
//! Calls that come while one transaction is committed go into the next one, or the next two: calls that wait for the
//! disk are committed after the rest.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::batches::{BATCH, Batches};
use super::checkpoint::Checkpoints;
use super::error::{FileError, Reason};
use super::pause::Pause;
use super::thread::{Job, Need, Thread, answer};
use super::watch::Watch;

/// After this long without a rest, the file is left alone for long enough that another process that waits
/// for it notices.
const STRETCH: Duration = Duration::from_millis(50);
const REST: Duration = Duration::from_millis(1);

pub(super) fn start(
    path: &Arc<Path>,
    watch: Watch,
    batches: Batches,
    checkpoints: Checkpoints,
    pause: Pause,
) -> io::Result<Thread> {
    let writer = Writer {
        path: Arc::clone(path),
        watch,
        was_changed: false,
        is_checked: false,
        checkpoints,
        batches,
        pause,
    };
    Thread::start(path, "webhook-sqlite", |queue| writer.serve(queue))
}

struct Writer {
    path: Arc<Path>,
    watch: Watch,
    /// Whether the files were changed by other means.
    was_changed: bool,
    /// Whether the files were looked at since the current calls were made.
    is_checked: bool,
    // Its connection is closed first, so that the last one leaves no log behind.
    checkpoints: Checkpoints,
    batches: Batches,
    pause: Pause,
}

impl Writer {
    fn serve(mut self, mut queue: mpsc::Receiver<Box<dyn Job>>) {
        let mut jobs = Vec::with_capacity(BATCH.into());
        let mut durable = Vec::with_capacity(BATCH.into());
        let mut alone = VecDeque::new();
        let mut stretch = Stretch {
            began: Instant::now(),
        };
        loop {
            let since = Instant::now();
            if alone.is_empty() && queue.blocking_recv_many(&mut jobs, BATCH.into()) == 0 {
                break;
            }
            while jobs.len() < BATCH.into()
                && alone.len() < BATCH.into()
                && let Ok(job) = queue.try_recv()
            {
                jobs.push(job);
            }
            if stretch.is_over(since, Instant::now()) {
                thread::sleep(REST);
                stretch.began = Instant::now();
            }

            // Callers that do not need the disk are answered before the others wait for it.
            alone.extend(jobs.extract_if(.., |job| job.need() == Need::Alone));
            durable.extend(jobs.extract_if(.., |job| job.need() == Need::Durable));
            self.is_checked = false;
            for jobs in [&mut jobs, &mut durable] {
                if !jobs.is_empty() {
                    self.commit(jobs);
                }
            }
            // One job at a time, so that calls that have come since do not wait for all.
            if let Some(job) = alone.pop_front() {
                jobs.push(job);
                self.commit(&mut jobs);
            }
            // Callers that were answered may call again at once: the more come together, the fewer waits.
            thread::yield_now();
        }
    }

    fn commit(&mut self, jobs: &mut Vec<Box<dyn Job>>) {
        let committed = jobs.len();
        let result = self.commit_watched(jobs);
        let error = result
            .err()
            .map(|reason| FileError::new(&self.path, reason));
        let is_changed = error.as_ref().is_some_and(FileError::is_change);
        if let Some(error) = &error
            && is_changed
            && !self.was_changed
        {
            tracing::error!(reason = error.to_string(), "nothing is stored any more");
        }
        self.was_changed = is_changed;
        answer(jobs, error.as_ref());
        match error {
            None => {
                if let Some(pages) = self.batches.log_size(committed) {
                    self.checkpoints.log_has(pages);
                }
            }
            Some(_) if is_changed => {}
            // On a full disk that makes room in the log.
            Some(_) => self.checkpoints.wake(),
        }
    }

    fn commit_watched(&mut self, jobs: &mut [Box<dyn Job>]) -> Result<(), Reason> {
        if !self.is_checked {
            self.watch.check(self.batches.connection())?;
        }
        let writing = self.pause.write();
        let result = self.batches.commit(&self.path, jobs);
        drop(writing);
        // What went into a file that is gone is not acknowledged.
        self.is_checked = false;
        self.watch.check(self.batches.connection())?;
        self.is_checked = true;
        Ok(result?)
    }
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
        let watch = Watch::start(&path, &db).unwrap();
        let clock = Arc::new(Mutex::new(Clock::start(clock::machine())));
        let batches = Batches::new(db, &FORMAT, Vec::new(), clock).unwrap();
        let pause = Pause::default();
        let checkpoints = Checkpoints::start(&path, aside, EVERY, pause.clone()).unwrap();
        let writer = start(&path, watch, batches, checkpoints, pause.clone()).unwrap();

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
