//! The queue in a SQLite file.

mod accept;
mod chats;
mod claim;
mod kinds;
mod lanes;
mod list;
mod person;
mod purge;
mod row;
mod search;
mod settle;
mod stats;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::person::ToForget;
use self::stats::Counts;
use crate::event::EventKind;
use crate::inbox::event::{EventId, EventLease, EventState, Lane, NewEvent, Settlement, Take};
use crate::inbox::queue::{Accepted, Claims, Settled, Work};
use crate::inbox::records::{
    BlockedLane, Change, EventRecord, Filter, Forgotten, Listed, Page, Records, Stats,
};
use crate::sqlite::engine::{CHECKPOINT_EVERY, Engine, Machine, Need, Tx, clock};
use crate::sqlite::keys::{self, SqliteStore};
use crate::store::engine::Error;
use crate::store::{OpenError, StoreError};

/// Keeps events in a SQLite file: the durable choice for one machine.
///
/// **What it guarantees.** An accepted event survives a crash of the process and of the machine, and is taken by one
/// process at a time, among all processes of one machine that open the file. Choose it when one machine receives the
/// webhooks, and the queue in PostgreSQL when several do.
///
/// **How it works.** As in [`SqliteStore`], one thread does the work of all callers, and calls that arrive while one
/// transaction is committed go into the next one. Another thread reads lists, counts and single events beside it, from what
/// was committed. Acceptances, settlements and changes by a person wait for the disk
/// (`synchronous = FULL`). A claim does not: it reaches the disk together with the next operation that waits.
///
/// **What a crash costs.** A crash of a process costs its attempts: their events are taken again when their leases
/// expire. A crash of the machine may also forget claims and extensions since the last acceptance or settlement, so
/// that their events are taken again at once. The file never needs a repair.
///
/// **Beside a store.** A [`SqliteStore`] may use the same file, in this process ([`with_store`](Self::with_store)) or
/// in another one, and both know each other's keys: an event that the store completed is a duplicate for the queue, and
/// an event that the queue accepted is done for the store. A key is kept for the retention, and while its event is
/// unsettled or dead.
///
/// **Several processes** of one machine may work on the same events, as two do during a deploy. They take turns. The
/// file must be on a local disk.
///
/// **Time** is as for [`SqliteStore`], in whole milliseconds. Leases last 11 milliseconds longer than requested,
/// because the clocks of two processes may differ by 10. If the clock jumps forward between two starts, leases and
/// delays end early, and each event in progress may be tried once more. If it jumps back, events are later by the time
/// during which no process had the file open, at most.
///
/// **Sizing.** With a body of 600 bytes, a key of 36 and a chat's id of 29, an event takes 950 bytes on the disk while
/// it waits, 910 when it was handled, and 200 when its body was deleted. That is 2 GB for 10 events per second, if
/// bodies are kept for a day and keys for 8 days. The write-ahead log beside the file takes 64 MiB, and about twice
/// that under full load. Memory: some 10 MB, whatever the number of events. Accepting and claiming take the same time
/// with a million waiting events as without, whatever their kinds and lanes. [`stats`](Records::stats) reads all
/// unsettled events and dead letters, which takes half a second for a million. [`list`](Records::list) finds the events
/// of a chat by an index, however many there are, and [`forget`](Records::forget) does so, too. Other lists read the
/// events that the filter does not exclude by time, by state if it asks only for unsettled or dead events, or by an
/// error. Lists and counts work in steps of some milliseconds, with other calls in between, so their result is not a
/// snapshot. They do not delay those that accept and handle events. One acceptance in 16,384 also writes the index of
/// chats for as many events.
///
/// **Failures.** The last 100 failures of each event are kept, with 1 KiB of each reason and the duration of the attempt.
///
/// **Purge.** A step deletes at most 256 bodies and 256 events, and reads nothing else. Keys are deleted by later
/// calls, as those of the store are. The file reuses the room, and does not shrink: after a backlog, it stays as large
/// as it was. `VACUUM` shrinks it while no process has it open. The bytes of a deleted body remain in the file, and in
/// its log, until that room is used again.
///
/// **When it fails.** An event that cannot be read, because the file is damaged, is logged and passed over by
/// `claim`; other calls that meet damage are [`Corrupt`](crate::store::StoreErrorKind::Corrupt). A
/// full disk is [`Unavailable`](crate::store::StoreErrorKind::Unavailable) until there is room; then work resumes
/// without a restart.
///
/// **The file** is created for its owner alone (mode 600), and **holds bodies, keys and ids of chats**. While it is
/// open, the files `-wal` and `-shm` are beside it: the three belong together. Copy it with `VACUUM INTO`. Never delete
/// or replace the file while a process has it open.
///
/// **Upgrades** are those of [`SqliteStore`].
///
/// Clones share their threads. Dropping the last one waits until the file is closed.
///
/// ```no_run
/// use tower_webhook::sqlite::SqliteQueue;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let queue = SqliteQueue::open("webhooks.db")?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SqliteQueue {
    engine: Engine,
}

impl SqliteQueue {
    /// Opens the file. Creates it if it does not exist, and upgrades a file of an earlier release. Blocks the calling
    /// thread meanwhile.
    ///
    /// # Errors
    ///
    /// As for [`SqliteStore::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Ok(Self::open_by(path.as_ref(), clock::machine())?)
    }

    fn open_by(path: &Path, machine: Machine) -> Result<Self, Error> {
        let engine = keys::open(path, machine, CHECKPOINT_EVERY)?;
        Ok(Self { engine })
    }

    /// Uses the file of a store, and its threads.
    ///
    /// ```no_run
    /// use tower_webhook::sqlite::SqliteQueue;
    /// use tower_webhook::sqlite::SqliteStore;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = SqliteStore::open("webhooks.db")?;
    /// let queue = SqliteQueue::with_store(&store);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_store(store: &SqliteStore) -> Self {
        Self {
            engine: store.engine(),
        }
    }

    async fn run<T: Send + 'static>(
        &self,
        need: Need,
        work: impl FnMut(&mut Tx<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        Ok(self.engine.run(need, work).await?)
    }

    async fn read<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Tx<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        Ok(self.engine.read(work).await?)
    }

    /// Runs durable work that may take an event for the caller. The work is told whether the caller still waits: an event
    /// that is taken for nobody waits for the end of its lease, and counts as crashed.
    async fn run_for<T: Send + 'static>(
        &self,
        mut work: impl FnMut(&mut Tx<'_>, bool) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let caller = Arc::new(());
        let awaited = Arc::downgrade(&caller);
        let result = self.run(Need::Durable, move |tx| {
            work(tx, awaited.strong_count() > 0)
        });
        let result = result.await;
        drop(caller);
        result
    }
}

impl fmt::Debug for SqliteQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteQueue")
            .field("path", &self.engine.path())
            .finish_non_exhaustive()
    }
}

impl Work for SqliteQueue {
    const SHARED: bool = true;

    async fn accept(&self, event: NewEvent, take: Option<&Take>) -> Result<Accepted, StoreError> {
        let take = take.cloned();
        self.run_for(move |tx, is_awaited| {
            let take = take.as_ref().filter(|_| is_awaited);
            accept::accept(tx, &event, take)
        })
        .await
    }

    async fn claim(
        &self,
        take: &Take,
        limit: usize,
        suspects: usize,
    ) -> Result<Claims, StoreError> {
        let take = take.clone();
        self.run(Need::Write, move |tx| {
            claim::claim(tx, &take, limit, suspects)
        })
        .await
    }

    async fn extend(
        &self,
        leases: &[EventLease],
        lease: Duration,
    ) -> Result<Vec<Option<bool>>, StoreError> {
        let leases = leases.to_vec();
        self.run(Need::Write, move |tx| claim::extend(tx, &leases, lease))
            .await
    }

    async fn settle(
        &self,
        lease: &EventLease,
        settlement: &Settlement,
        next: Option<&Take>,
    ) -> Result<Settled, StoreError> {
        let (lease, settlement, next) = (*lease, settlement.clone(), next.cloned());
        self.run_for(move |tx, is_awaited| {
            let next = next.as_ref().filter(|_| is_awaited);
            settle::settle(tx, &lease, &settlement, next)
        })
        .await
    }

    async fn find(&self, key: u128) -> Result<Option<EventId>, StoreError> {
        let event = self.read(move |tx| keys::rows::event(tx, key)).await?;
        Ok(event.map(EventId))
    }

    async fn purge(&self, keep_bodies: Duration) -> Result<bool, StoreError> {
        self.run(Need::Write, move |tx| purge::purge(tx, keep_bodies))
            .await
    }

    async fn size(&self) -> Result<u64, StoreError> {
        self.read(|tx| stats::size(tx)).await
    }
}

impl Records for SqliteQueue {
    async fn list(&self, filter: &Filter, page: Page) -> Result<Listed, StoreError> {
        let began = Instant::now();
        let mut listed = Listed::default();
        let mut page = page;
        if filter.chat.is_some() {
            // These are found by an index.
            page.within = None;
        }
        let limit = page.limit;
        while listed.events.len() < limit {
            page.limit = limit - listed.events.len();
            let filter = filter.clone();
            let step = self.read(move |tx| list::list(tx, &filter, page));
            let found = step.await?;
            listed.events.extend(found.events);
            if found.seen.is_none() {
                break;
            }
            page.after = found.seen;
            if page.within.is_some_and(|time| began.elapsed() >= time) {
                listed.searched = found.seen;
                break;
            }
        }
        Ok(listed)
    }

    async fn blocked_lanes(
        &self,
        chat: Option<&str>,
        after: Option<EventId>,
        limit: usize,
    ) -> Result<Vec<BlockedLane>, StoreError> {
        let lane = chat.map(|chat| Lane::of_chat(chat).0);
        let (mut lanes, mut after) = (Vec::new(), after);
        while lanes.len() < limit {
            let most = (limit - lanes.len()).min(LANES_AT_ONCE);
            let step = self.read(move |tx| list::blocked_lanes(tx, lane, after, most));
            let found = step.await?;
            let is_last = found.len() < most;
            lanes.extend(found);
            after = lanes.last().map(|lane: &BlockedLane| lane.event.id);
            if is_last {
                break;
            }
        }
        Ok(lanes)
    }

    async fn get(&self, id: EventId) -> Result<Option<EventRecord>, StoreError> {
        self.read(move |tx| list::get(tx, id)).await
    }

    async fn redrive(&self, id: EventId, from: Option<EventState>) -> Result<Change, StoreError> {
        self.run(Need::Durable, move |tx| person::redrive(tx, id, from))
            .await
    }

    async fn discard(&self, id: EventId, from: Option<EventState>) -> Result<Change, StoreError> {
        self.run(Need::Durable, move |tx| person::discard(tx, id, from))
            .await
    }

    async fn forget(
        &self,
        chat: &str,
        events: Option<RangeInclusive<EventId>>,
    ) -> Result<Forgotten, StoreError> {
        let chat = chat.to_owned();
        let found = self.read(move |tx| person::to_forget(tx, &chat, events.as_ref()));
        let ToForget { events, rest } = found.await?;
        let mut bodies = 0;
        if !events.is_empty() {
            let step = self.run(Need::Durable, move |tx| person::forget(tx, &events));
            bodies = step.await?;
        }
        Ok(Forgotten { bodies, rest })
    }

    async fn pause(&self, kind: Option<&EventKind>, paused: bool) -> Result<(), StoreError> {
        let kind = kind.cloned();
        self.run(Need::Durable, move |tx| {
            kinds::pause(tx, kind.as_ref(), paused)
        })
        .await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        let mut counts = Counts::default();
        while !counts.is_complete() {
            let before = counts;
            let step = self.read(move |tx| {
                let mut counts = before.clone();
                counts.step(tx)?;
                Ok(counts)
            });
            counts = step.await?;
        }
        self.read(move |tx| counts.stats(tx)).await
    }
}

/// How many blocked lanes a step returns.
const LANES_AT_ONCE: usize = 50;
