//! A file as a spool: its events go on to another database, whose number the file has.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use rusqlite::ErrorCode;
use rusqlite::ffi::SQLITE_IOERR_SHMSIZE;

use super::{SqliteQueue, accept, lanes, settle};
use crate::inbox::event::{EventLease, Lane, NewEvent, Settlement, Take};
use crate::inbox::queue::{Accepted, Settled};
use crate::sqlite::engine::{Need, PAGE, clock};
use crate::sqlite::keys;
use crate::sqlite::keys::rows::{self, Purge};
use crate::sqlite::schema::{SPOOL, sql};
use crate::store::{OpenError, StoreError};

const SPOOL_OF: &str = "SELECT ifnull(spool_of, 0) FROM file";
const SET_SPOOL_OF: &str = "UPDATE file SET spool_of = ?1";
const LANES: &str = "SELECT lane, count(*) FROM work GROUP BY lane";
const MAKE_DUE: &str = sql!("UPDATE work SET due = 0 WHERE place <> $Behind");

impl SqliteQueue {
    /// Opens a spool, and creates it if there is no file. Its log is moved when it has a quarter of the room for it.
    pub(crate) fn open_spool(path: &Path, log_room: u64) -> Result<Self, OpenError> {
        let every = pages(log_room / 4);
        // Most keys are dropped with their events, and others rarely.
        let engine = keys::open_as(&SPOOL, Purge::each(16), path, clock::machine(), every)?;
        Ok(Self { engine })
    }

    /// Has the writer move the log when it takes half of its room, because it was not moved in time beside it. Nobody reads
    /// the file for long.
    pub(crate) async fn bound_log(&self, room: u64) -> Result<(), StoreError> {
        let bound = format!("PRAGMA wal_autocheckpoint = {}", pages(room / 2));
        let bound = self.run(Need::Write, move |tx| {
            tx.db.query_row(&bound, [], |_| Ok(()))
        });
        bound.await
    }

    /// The number of the database that the spool is in front of, or 0 if that is unknown.
    pub(crate) async fn spool_of(&self) -> Result<i64, StoreError> {
        self.read(|tx| tx.prepare(SPOOL_OF)?.query_row([], |row| row.get(0)))
            .await
    }

    pub(crate) async fn set_spool_of(&self, identity: i64) -> Result<(), StoreError> {
        let set = self.run(Need::Durable, move |tx| {
            tx.prepare(SET_SPOOL_OF)?.execute([identity])?;
            Ok(())
        });
        set.await
    }

    /// Accepts the events of a delivery, which nobody takes yet, each with a line that is added to its headers.
    pub(crate) async fn store(
        &self,
        packed: &Arc<[(NewEvent, Vec<u8>)]>,
    ) -> Result<Vec<Accepted>, StoreError> {
        let packed = Arc::clone(packed);
        let need = accept::need(packed.iter().map(|(event, _)| event));
        let store = self.run(need, move |tx| {
            if let Some(refused) = accept::refused(tx, packed.iter().map(|(event, _)| event))? {
                return Ok(vec![refused]);
            }
            let accept =
                |(event, line): &(NewEvent, Vec<u8>)| accept::accept(tx, event, line, None);
            packed.iter().map(accept).collect()
        });
        store.await
    }

    /// How many events of each lane are there.
    pub(crate) async fn lanes(&self) -> Result<Vec<(Option<Lane>, u32)>, StoreError> {
        self.read(|tx| {
            let mut lanes = tx.prepare(LANES)?;
            let lanes = lanes.query_map([], |row| {
                Ok((row.get::<_, Option<i64>>(0)?.map(Lane), row.get(1)?))
            })?;
            lanes.collect()
        })
        .await
    }

    /// Settles an event of a lane, and drops its keys if it is handled. Returns also whether the lane has no other event. It
    /// does not wait for the disk: an event that comes back after a
    /// loss of power is a duplicate for the queue, for as long as that keeps its key.
    pub(crate) async fn forwarded(
        &self,
        lease: &EventLease,
        lane: Option<Lane>,
        settlement: &Settlement,
        keys: &[u128],
        next: Option<&Take>,
    ) -> Result<(Settled, bool), StoreError> {
        let (lease, settlement, next) = (*lease, settlement.clone(), next.cloned());
        let keys = keys.to_vec();
        self.run_for(Need::Write, move |tx, is_awaited| {
            let next = next.as_ref().filter(|_| is_awaited);
            let settled = settle::settle(tx, &lease, &settlement, next)?;
            if let (Settlement::Handled, Settled::Ended(_)) = (&settlement, &settled) {
                for key in &keys {
                    rows::drop_of_event(tx, *key, lease.id.0)?;
                }
            }
            let is_last = match lane {
                Some(Lane(lane)) => lanes::first(tx, lane)?.is_none(),
                None => true,
            };
            Ok((settled, is_last))
        })
        .await
    }

    /// Ends all leases and pauses: for the one process that has the file, while it holds no lease.
    pub(crate) async fn make_due(&self) -> Result<(), StoreError> {
        let make_due = self.run(Need::Write, |tx| {
            tx.prepare(MAKE_DUE)?.execute([])?;
            Ok(())
        });
        make_due.await
    }
}

fn pages(bytes: u64) -> i32 {
    i32::try_from(bytes / PAGE).unwrap_or(i32::MAX)
}

/// Whether a call failed because the disk is full.
pub(crate) fn is_full(error: &StoreError) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<rusqlite::Error>() {
            let code = error.sqlite_error().map(|error| error.extended_code);
            return error.sqlite_error_code() == Some(ErrorCode::DiskFull)
                || code == Some(SQLITE_IOERR_SHMSIZE);
        }
        cause = error.source();
    }
    false
}
