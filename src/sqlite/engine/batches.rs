//! The connection, and the transactions on it.

use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use rusqlite::{Connection, Result};

use super::checkpoint;
use super::clock::{AGREEMENT, Clock};
use super::error::{FileError, is_damage};
use super::format::{Format, Upkeep};
use super::thread::{Job, Need};
use super::transaction::Tx;
use crate::error::Chain;
use crate::lock::lock;

/// How many calls go into one transaction at most.
pub(super) const BATCH: u16 = 256;

/// After how many calls the size of the write-ahead log is looked at. A call adds a few pages at most.
const CALLS_PER_MEASUREMENT: usize = 64;

/// Whether a job that meets damage fails without the jobs that share its transaction. That takes time, and is without
/// upkeep, so only the second try does it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Apart {
    No,
    Yes,
}

fn execute_apart(job: &mut dyn Job, tx: &mut Tx<'_>, path: &Arc<Path>) -> Result<()> {
    // A statement that meets damage may have changed some rows already.
    tx.db.execute_batch("SAVEPOINT job")?;
    match job.execute(tx) {
        Ok(()) => {}
        Err(error) if is_damage(&error) && !tx.db.is_autocommit() => {
            tx.db.execute_batch("ROLLBACK TO job")?;
            tx.memos.clear();
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
    clock: Arc<Mutex<Clock>>,
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
        clock: Arc<Mutex<Clock>>,
    ) -> Result<Self> {
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
            // It is looked at after the first commit, for programs that make few calls.
            since_measured: CALLS_PER_MEASUREMENT,
        })
    }

    /// Not in a transaction.
    pub(super) fn connection(&self) -> &Connection {
        &self.db
    }

    pub(super) fn commit(&mut self, path: &Arc<Path>, jobs: &mut [Box<dyn Job>]) -> Result<()> {
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
    ) -> Result<()> {
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
            now: lock(&self.clock).now(highest),
            tokens: &mut self.tokens,
            statements: Rc::default(),
            memos: Vec::new(),
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
                        reason = Chain(&error).to_string(),
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
    pub(super) fn log_size(&mut self, committed: usize) -> Option<i32> {
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
    /// A commit that does not wait reaches the disk with the next commit that does, because both are in the same log.
    fn synchronize(&mut self, need: Need) -> Result<()> {
        let need = need.min(Need::Durable);
        let synchronous = match need {
            Need::Read => return Ok(()),
            _ if self.synchronous == Some(need) => return Ok(()),
            Need::Write => "PRAGMA synchronous = NORMAL",
            Need::Durable | Need::Alone => "PRAGMA synchronous = FULL",
        };
        self.db.execute_batch(synchronous)?;
        self.synchronous = Some(need);
        Ok(())
    }
}

/// A transaction by statements that are compiled once. Dropped, it is rolled back.
struct Transaction<'a>(&'a Connection);

impl<'a> Transaction<'a> {
    fn begin(db: &'a Connection, need: Need) -> Result<Self> {
        let begin = match need {
            Need::Read => "BEGIN DEFERRED",
            Need::Write | Need::Durable | Need::Alone => "BEGIN IMMEDIATE",
        };
        db.prepare_cached(begin)?.execute([])?;
        Ok(Self(db))
    }

    fn commit(self) -> Result<()> {
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
