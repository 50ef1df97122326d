//! The thread that owns the connection.
//!
//! Calls that come while one transaction is committed go into the next one, or the next two: those that
//! wait for the disk are committed after the rest.

use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::checkpoint::{self, Checkpoints};
use super::clock::{AGREEMENT, Clock};
use super::error::{FileError, Reason, is_damage};
use super::file::FileId;
use super::transaction::Tx;
use super::{Format, Upkeep};
use crate::error::Chain;
use crate::storage::Error;

/// How many calls wait for the thread before callers wait for room.
const QUEUE: usize = 1024;

/// How many calls go into one transaction at most.
const BATCH: u16 = 256;

/// After how many calls the size of the write-ahead log is looked at. A call adds a few pages at most.
const CALLS_PER_MEASUREMENT: usize = 64;

/// After this long without a rest, the file is left alone for long enough that another process that waits
/// for it notices.
const STRETCH: Duration = Duration::from_millis(50);
const REST: Duration = Duration::from_millis(1);

/// What a piece of work needs of its transaction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Need {
    /// It changes nothing.
    Read,
    /// Its changes survive this process.
    Write,
    /// Its changes survive the machine, and it is done even when its caller has given up.
    Durable,
}

/// A handle on the thread. Dropped, it waits until the thread has closed the file.
pub(super) struct Writer {
    path: Arc<Path>,
    jobs: Option<mpsc::Sender<Box<dyn Job>>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(super) fn start(
        path: &Arc<Path>,
        batches: Batches,
        checkpoints: Checkpoints,
    ) -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel(QUEUE);
        let of = Arc::clone(path);
        let file = FileId::of(path)?;
        let thread = thread::Builder::new()
            .name("webhook-sqlite".to_owned())
            .spawn(move || serve(&of, &file, queue, batches, checkpoints))?;
        Ok(Self {
            path: Arc::clone(path),
            jobs: Some(jobs),
            thread: Some(thread),
        })
    }

    /// See [`Engine::run`](super::Engine::run).
    pub(super) async fn run<T: Send + 'static>(
        &self,
        need: Need,
        work: impl FnMut(&mut Tx<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let ended = || FileError::new(&self.path, Reason::Ended).into();
        let (answer, answered) = oneshot::channel();
        let job = Box::new(Call {
            need,
            work,
            result: None,
            answer,
            runtime: Handle::try_current().ok(),
        });
        let jobs = self.jobs.as_ref().ok_or_else(ended)?;
        jobs.send(job).await.map_err(|_| ended())?;
        answered.await.unwrap_or_else(|_| Err(ended()))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

trait Job: Send {
    fn need(&self) -> Need;
    fn execute(&mut self, tx: &mut Tx<'_>) -> rusqlite::Result<()>;
    /// Ends it alone, while the others are committed.
    fn fail(&mut self, error: FileError);
    /// Where the answer is waited for.
    fn runtime(&self) -> Option<&Handle>;
    fn answer(self: Box<Self>, error: Option<&FileError>);
}

struct Call<W, T> {
    need: Need,
    work: W,
    result: Option<Result<T, FileError>>,
    answer: oneshot::Sender<Result<T, Error>>,
    runtime: Option<Handle>,
}

impl<W, T> Job for Call<W, T>
where
    W: FnMut(&mut Tx<'_>) -> rusqlite::Result<T> + Send,
    T: Send,
{
    fn need(&self) -> Need {
        self.need
    }

    fn execute(&mut self, tx: &mut Tx<'_>) -> rusqlite::Result<()> {
        let given_up = self.answer.is_closed() && self.need != Need::Durable;
        self.result = None;
        if !given_up {
            self.result = Some(Ok((self.work)(tx)?));
        }
        Ok(())
    }

    fn fail(&mut self, error: FileError) {
        self.result = Some(Err(error));
    }

    fn runtime(&self) -> Option<&Handle> {
        self.runtime.as_ref()
    }

    fn answer(self: Box<Self>, error: Option<&FileError>) {
        let result = match (error, self.result) {
            (Some(error), _) => Err(error.clone().into()),
            (None, Some(result)) => result.map_err(Error::from),
            (None, None) => return,
        };
        let _ = self.answer.send(result);
    }
}

fn serve(
    path: &Arc<Path>,
    file: &FileId,
    mut queue: mpsc::Receiver<Box<dyn Job>>,
    mut batches: Batches,
    checkpoints: Checkpoints,
) {
    let mut commit = |jobs: &mut Vec<Box<dyn Job>>| {
        if jobs.is_empty() {
            return;
        }
        let committed = jobs.len();
        let result = match file.was_replaced(path) {
            true => Err(Reason::Replaced),
            false => batches.commit(path, jobs).map_err(Reason::Sqlite),
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

/// Answers all callers, with the error if the transaction failed.
///
/// To wake a task from outside its runtime takes a system call, so a single task wakes the others there.
fn answer(jobs: &mut Vec<Box<dyn Job>>, error: Option<&FileError>) {
    while let Some(job) = jobs.pop() {
        let Some(runtime) = job.runtime().cloned() else {
            job.answer(error);
            continue;
        };
        let is_of_it = |job: &mut Box<dyn Job>| {
            job.runtime()
                .is_some_and(|other| other.id() == runtime.id())
        };
        let mut answers = Answers {
            jobs: jobs.extract_if(.., is_of_it).collect(),
            error: error.cloned(),
        };
        answers.jobs.push(job);
        match answers.jobs.len() {
            1 => drop(answers),
            _ => drop(runtime.spawn(async move { drop(answers) })),
        }
    }
}

/// Jobs that are answered when this is dropped, also by a runtime that has ended.
struct Answers {
    jobs: Vec<Box<dyn Job>>,
    error: Option<FileError>,
}

impl Drop for Answers {
    fn drop(&mut self) {
        for job in self.jobs.drain(..) {
            job.answer(self.error.as_ref());
        }
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

/// Whether a job that meets damage fails without those that share its transaction. That takes time, and
/// there is no upkeep meanwhile, so it is the second try.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Apart {
    No,
    Yes,
}

fn execute_apart(job: &mut dyn Job, tx: &mut Tx<'_>, path: &Arc<Path>) -> rusqlite::Result<()> {
    // A statement that meets damage may have changed some rows already.
    tx.db.execute_batch("SAVEPOINT job")?;
    match job.execute(tx) {
        Ok(()) => {}
        Err(error) if is_damage(&error) && !tx.db.is_autocommit() => {
            tx.db.execute_batch("ROLLBACK TO job")?;
            tx.memo = None;
            job.fail(FileError::new(path, error));
        }
        Err(error) => return Err(error),
    }
    tx.db.execute_batch("RELEASE job")
}

/// The connection, and the state that outlives a transaction.
pub(super) struct Batches {
    db: Connection,
    format: &'static Format,
    upkeep: Vec<Box<dyn Upkeep>>,
    clock: Clock,
    tokens: u128,
    /// Whether it was logged that damage keeps some rows from being dropped.
    warned: bool,
    synchronous: Option<Need>,
    /// How many calls were committed since the size of the log was looked at.
    since_measured: usize,
}

impl Batches {
    pub(super) fn new(
        db: Connection,
        format: &'static Format,
        upkeep: Vec<Box<dyn Upkeep>>,
        clock: Clock,
    ) -> rusqlite::Result<Self> {
        // Another connection does the checkpoints. A commit walks through all that is cached whenever a
        // page was split, so the cache is small.
        db.execute_batch(
            "PRAGMA wal_autocheckpoint = 0;
             PRAGMA cache_size = -4096; -- KiB
             PRAGMA journal_size_limit = 134217728;",
        )?;
        db.set_prepared_statement_cache_capacity(128);
        let tokens = db.query_row("SELECT randomblob(16)", [], |row| row.get(0))?;
        Ok(Self {
            db,
            format,
            upkeep,
            clock,
            tokens: u128::from_be_bytes(tokens),
            warned: false,
            synchronous: None,
            // At the first commit, for those that make few calls.
            since_measured: CALLS_PER_MEASUREMENT,
        })
    }

    fn commit(&mut self, path: &Arc<Path>, jobs: &mut [Box<dyn Job>]) -> rusqlite::Result<()> {
        match self.commit_all(path, jobs, Apart::No) {
            Err(error) if is_damage(&error) => self.commit_all(path, jobs, Apart::Yes),
            result => result,
        }
    }

    fn commit_all(
        &mut self,
        path: &Arc<Path>,
        jobs: &mut [Box<dyn Job>],
        apart: Apart,
    ) -> rusqlite::Result<()> {
        let need = jobs.iter().map(|job| job.need()).max();
        let need = need.unwrap_or(Need::Read);
        self.synchronize(need)?;
        let transaction = Transaction::begin(&self.db, need)?;
        let unchanged = self.db.total_changes();
        let highest = self
            .db
            .prepare_cached(self.format.highest_time)?
            .query_row([], |row| row.get(0))?;
        let mut tx = Tx {
            db: &self.db,
            now: self.clock.now(highest),
            tokens: &mut self.tokens,
            statements: Rc::default(),
            memo: None,
        };
        for job in &mut *jobs {
            match apart {
                Apart::No => job.execute(&mut tx)?,
                Apart::Yes => execute_apart(job.as_mut(), &mut tx, path)?,
            }
        }
        if need > Need::Read {
            let calls = u16::try_from(jobs.len()).unwrap_or(BATCH);
            if apart == Apart::No
                && let Err(error) = self
                    .upkeep
                    .iter_mut()
                    .try_for_each(|of| of.step(&tx, calls))
            {
                if is_damage(&error) && !self.warned {
                    self.warned = true;
                    tracing::warn!(
                        reason = %Chain(&error),
                        file = %path.display(),
                        "some expired rows are kept, because the SQLite file is damaged"
                    );
                }
                return Err(error);
            }
            let advanced = tx.now.saturating_sub(highest) >= AGREEMENT;
            if advanced && self.db.total_changes() > unchanged {
                self.db
                    .prepare_cached(self.format.set_highest_time)?
                    .execute([tx.now])?;
            }
        }
        transaction.commit()
    }

    /// How many pages the write-ahead log has, if enough was committed since it was looked at.
    ///
    /// By a pragma, because rusqlite's hook for this changed its type in 0.41. It takes no lock.
    fn log_size(&mut self, committed: usize) -> Option<i32> {
        self.since_measured += committed;
        if self.since_measured < CALLS_PER_MEASUREMENT {
            return None;
        }
        self.since_measured = 0;
        let mut measure = self.db.prepare_cached(checkpoint::MEASURE).ok()?;
        measure.query_row([], |row| row.get(1)).ok()
    }

    /// Sets whether commits wait for the disk, which SQLite takes between transactions only.
    ///
    /// One that does not wait is on the disk with the next one that does: both are in the same log.
    fn synchronize(&mut self, need: Need) -> rusqlite::Result<()> {
        let synchronous = match need {
            Need::Read => return Ok(()),
            _ if self.synchronous == Some(need) => return Ok(()),
            Need::Write => "PRAGMA synchronous = NORMAL",
            Need::Durable => "PRAGMA synchronous = FULL",
        };
        self.db.execute_batch(synchronous)?;
        self.synchronous = Some(need);
        Ok(())
    }
}

/// A transaction by statements that are compiled once. Dropped, it is rolled back.
struct Transaction<'a>(&'a Connection);

impl<'a> Transaction<'a> {
    fn begin(db: &'a Connection, need: Need) -> rusqlite::Result<Self> {
        let begin = match need {
            Need::Read => "BEGIN DEFERRED",
            Need::Write | Need::Durable => "BEGIN IMMEDIATE",
        };
        db.prepare_cached(begin)?.execute([])?;
        Ok(Self(db))
    }

    fn commit(self) -> rusqlite::Result<()> {
        self.0.prepare_cached("COMMIT")?.execute([]).map(drop)
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if !self.0.is_autocommit() {
            let _ = self.0.execute_batch("ROLLBACK");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
