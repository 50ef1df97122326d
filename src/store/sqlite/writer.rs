//! The thread that owns the connection. What is asked while one transaction is committed goes into
//! the next one, or the next two: completions, which wait for the disk, are committed after the rest.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::checkpoint::Checkpoints;
use super::clock::{AGREEMENT, Clock};
use super::error::{Reason, Refused, is_damage};
use super::keys::{self, Purge};
use crate::error::Chain;
use crate::store::{Fence, StoreError};

/// How many calls wait for the thread before callers wait for room.
const QUEUE: usize = 1024;

/// How many calls go into one transaction at most.
const BATCH: u16 = 256;

/// After so long without a rest, the file is left alone for as long as another process that waits
/// for it needs to notice.
const STRETCH: Duration = Duration::from_millis(50);
const REST: Duration = Duration::from_millis(1);

/// How many rows are looked at, for each call, whether they are out of date. A key takes two calls.
const PURGE: u16 = 2;

/// What a piece of work needs of the transaction that it becomes a part of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Need {
    /// It changes nothing.
    Read,
    /// Its changes survive this process.
    Write,
    /// Its changes survive the machine, and it is done even when nobody waits for it any more.
    Durable,
}

/// The transaction, as a piece of work sees it.
pub(super) struct Tx<'a> {
    pub(super) db: &'a Connection,
    pub(super) now: i64,
    fences: &'a mut u128,
}

impl Tx<'_> {
    /// A fence that was never used before.
    pub(super) fn fence(&mut self) -> Fence {
        *self.fences = self.fences.wrapping_add(1);
        Fence(*self.fences)
    }
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
        let thread = thread::Builder::new()
            .name("webhook-sqlite".to_owned())
            .spawn(move || serve(&of, queue, batches, checkpoints))?;
        Ok(Self {
            path: Arc::clone(path),
            jobs: Some(jobs),
            thread: Some(thread),
        })
    }

    /// Does the work in a transaction, and returns what it made when that is committed.
    ///
    /// It is done once more if that transaction met damage.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        need: Need,
        work: impl FnMut(&mut Tx<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let ended = || Refused::new(&self.path, Reason::Ended).into();
        let (answer, answered) = oneshot::channel();
        let job = Box::new(Asked {
            need,
            work,
            made: None,
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
    fn fail(&mut self, refused: Refused);
    /// Where the answer is waited for.
    fn runtime(&self) -> Option<&Handle>;
    fn answer(self: Box<Self>, refused: Option<&Refused>);
}

struct Asked<W, T> {
    need: Need,
    work: W,
    made: Option<Result<T, Refused>>,
    answer: oneshot::Sender<Result<T, StoreError>>,
    runtime: Option<Handle>,
}

impl<W, T> Job for Asked<W, T>
where
    W: FnMut(&mut Tx<'_>) -> rusqlite::Result<T> + Send,
    T: Send,
{
    fn need(&self) -> Need {
        self.need
    }

    fn execute(&mut self, tx: &mut Tx<'_>) -> rusqlite::Result<()> {
        let given_up = self.answer.is_closed() && self.need != Need::Durable;
        self.made = None;
        if !given_up {
            self.made = Some(Ok((self.work)(tx)?));
        }
        Ok(())
    }

    fn fail(&mut self, refused: Refused) {
        self.made = Some(Err(refused));
    }

    fn runtime(&self) -> Option<&Handle> {
        self.runtime.as_ref()
    }

    fn answer(self: Box<Self>, refused: Option<&Refused>) {
        let result = match (refused, self.made) {
            (Some(refused), _) => Err(refused.clone().into()),
            (None, Some(made)) => made.map_err(StoreError::from),
            (None, None) => return,
        };
        let _ = self.answer.send(result);
    }
}

fn serve(
    path: &Arc<Path>,
    mut queue: mpsc::Receiver<Box<dyn Job>>,
    mut batches: Batches,
    checkpoints: Checkpoints,
) {
    let mut commit = |jobs: &mut Vec<Box<dyn Job>>| {
        if jobs.is_empty() {
            return;
        }
        let result = batches.commit(path, jobs);
        let refused = result.err().map(|error| Refused::new(path, error));
        answer(jobs, refused.as_ref());
        match refused {
            None => checkpoints.log_has(batches.log.load(Ordering::Relaxed)),
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
        let asked = Instant::now();
        if queue.blocking_recv_many(&mut jobs, BATCH.into()) == 0 {
            break;
        }
        if stretch.is_over(asked, Instant::now()) {
            thread::sleep(REST);
            stretch.began = Instant::now();
        }

        // Who does not need the disk goes on while the others wait for it.
        durable.extend(jobs.extract_if(.., |job| job.need() == Need::Durable));
        commit(&mut jobs);
        commit(&mut durable);
        // Those who were answered may ask for more at once: the more there are, the fewer waits.
        thread::yield_now();
    }
    // Its connection is closed first, so that the last one leaves no log behind.
    drop(checkpoints);
    drop(batches);
}

/// Tells all callers what became of their jobs.
///
/// To wake a task from outside its runtime takes a system call, so a single task wakes the others there.
fn answer(jobs: &mut Vec<Box<dyn Job>>, refused: Option<&Refused>) {
    while let Some(job) = jobs.pop() {
        let Some(runtime) = job.runtime().cloned() else {
            job.answer(refused);
            continue;
        };
        let is_there = |job: &mut Box<dyn Job>| {
            job.runtime()
                .is_some_and(|other| other.id() == runtime.id())
        };
        let mut answers = Answers {
            jobs: jobs.extract_if(.., is_there).collect(),
            refused: refused.cloned(),
        };
        answers.jobs.push(job);
        match answers.jobs.len() {
            1 => drop(answers),
            _ => drop(runtime.spawn(async move { drop(answers) })),
        }
    }
}

/// Jobs that are answered when this is dropped, be it by a runtime that has ended.
struct Answers {
    jobs: Vec<Box<dyn Job>>,
    refused: Option<Refused>,
}

impl Drop for Answers {
    fn drop(&mut self) {
        for job in self.jobs.drain(..) {
            job.answer(self.refused.as_ref());
        }
    }
}

/// Work without a rest that another process could notice.
struct Stretch {
    began: Instant,
}

impl Stretch {
    /// Whether a rest is due now that there is work, which was waited for since `asked`.
    fn is_over(&mut self, asked: Instant, now: Instant) -> bool {
        if now - asked >= REST {
            self.began = now;
        }
        now - self.began >= STRETCH
    }
}

/// Whether a job that meets damage fails without those that share its transaction. That takes time, and
/// nothing is purged meanwhile, so it is the second try.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Apart {
    No,
    Yes,
}

fn execute_apart(job: &mut dyn Job, tx: &mut Tx<'_>, path: &Arc<Path>) -> rusqlite::Result<()> {
    // A statement that meets damage may have been half done.
    tx.db.execute_batch("SAVEPOINT job")?;
    match job.execute(tx) {
        Ok(()) => {}
        Err(error) if is_damage(&error) && !tx.db.is_autocommit() => {
            tx.db.execute_batch("ROLLBACK TO job")?;
            job.fail(Refused::new(path, error));
        }
        Err(error) => return Err(error),
    }
    tx.db.execute_batch("RELEASE job")
}

/// The connection, and what is carried from one transaction to the next.
pub(super) struct Batches {
    db: Connection,
    clock: Clock,
    fences: u128,
    purge: Purge,
    /// Whether it was told that not everything can be purged.
    told: bool,
    synchronous: Option<Need>,
    /// How many pages the write-ahead log has.
    log: Arc<AtomicI32>,
}

impl Batches {
    pub(super) fn new(mut db: Connection, clock: Clock) -> rusqlite::Result<Self> {
        let log = Arc::new(AtomicI32::new(0));
        let seen = Arc::clone(&log);
        // Takes the place of the automatic checkpoints, which would be done by this connection.
        db.wal_hook(Some(move |_: &mut _, pages| {
            seen.store(pages, Ordering::Relaxed);
            Ok(())
        }))?;
        // Whenever a page was split, a commit walks through all that is cached.
        db.execute_batch(
            "PRAGMA cache_size = -4096; -- KiB
             PRAGMA journal_size_limit = 134217728;",
        )?;
        db.set_prepared_statement_cache_capacity(32);
        let fences = db.query_row("SELECT randomblob(16)", [], |row| row.get(0))?;
        Ok(Self {
            db,
            clock,
            fences: u128::from_be_bytes(fences),
            purge: Purge::default(),
            told: false,
            synchronous: None,
            log,
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
        let highest = keys::highest_time(&self.db)?;
        let mut tx = Tx {
            db: &self.db,
            now: self.clock.now(highest),
            fences: &mut self.fences,
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
                && let Err(error) = self.purge.step(&tx, PURGE * calls)
            {
                if is_damage(&error) && !self.told {
                    self.told = true;
                    tracing::warn!(
                        reason = %Chain(&error),
                        file = %path.display(),
                        "some rows that are out of date are kept, because the SQLite file is damaged"
                    );
                }
                return Err(error);
            }
            let news = tx.now.saturating_sub(highest) >= AGREEMENT;
            if news && self.db.total_changes() > unchanged {
                keys::set_highest_time(&tx)?;
            }
        }
        transaction.commit()
    }

    /// Says whether commits wait for the disk, which can only be said between transactions.
    ///
    /// One that does not is on the disk with the next one that does: both are in the same log.
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
