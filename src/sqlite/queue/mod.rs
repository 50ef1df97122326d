//! The queue in a SQLite file.

mod accept;
mod actions;
mod chats;
mod claim;
mod counts;
mod kinds;
mod lanes;
mod list;
mod person;
mod purge;
mod row;
mod search;
mod settle;
pub(crate) mod spool;
mod stats;
#[cfg(test)]
mod tests;

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use self::person::ToForget;
use self::stats::Counts;
use crate::event::EventKind;
use crate::inbox::actions::{
    Action, ActionKind, BulkStep, By, NewBulk, Which, chat_digest, paused,
};
use crate::inbox::event::{
    EventId, EventLease, EventState, Lane, NewEvent, Settlement, Take, TakenEvent,
};
use crate::inbox::queue::{Accepted, Claims, Settled, Work};
use crate::inbox::records::{
    BlockedLane, Change, EventRecord, Filter, Forgotten, Listed, Page, Pause, Records, Stats,
};
use crate::sqlite::engine::{CHECKPOINT_EVERY, Engine, Machine, Need, Tx, clock};
use crate::sqlite::keys::{self, SqliteStore};
use crate::store::{OpenError, StoreError};
use crate::telemetry::{Count, CountsOf, Sums};

/// Keeps events in a SQLite file: the durable choice for one machine.
///
/// An accepted event survives a crash of the process and of the machine, and is claimed by one process at a time,
/// among all processes of one machine that open the file. A [`SqliteStore`] may use the same file, in this process
/// ([`with_store`](Self::with_store)) or in another one, and both know each other's keys. Threads do the work of all
/// callers, and reads do not delay those that accept and handle events. Lists and counts work in steps of some
/// milliseconds, so their result is not a snapshot. Leases last 11 milliseconds longer than requested, because the
/// clocks of two processes may differ. The page on stores has [durability, files, failures and
/// lists](crate::docs::stores#sqlite) and [size](crate::docs::stores#size).
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
        Self::open_by(path.as_ref(), clock::machine())
    }

    fn open_by(path: &Path, machine: Machine) -> Result<Self, OpenError> {
        let store = SqliteStore::open_by(path, machine, CHECKPOINT_EVERY)?;
        Ok(Self::with_store(&store))
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

    /// Runs work that may take an event for the caller. The work is told whether the caller still waits: an event that is
    /// taken for nobody waits for the end of its lease, and counts as crashed.
    async fn run_for<T: Send + 'static>(
        &self,
        need: Need,
        mut work: impl FnMut(&mut Tx<'_>, bool) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let caller = Arc::new(());
        let awaited = Arc::downgrade(&caller);
        let result = self.run(need, move |tx| work(tx, awaited.strong_count() > 0));
        let result = result.await;
        drop(caller);
        result
    }
}

partial_debug!(SqliteQueue, |it| path = it.engine.path());

impl Work for SqliteQueue {
    const SHARED: bool = true;

    async fn accept(&self, event: NewEvent, take: Option<&Take>) -> Result<Accepted, StoreError> {
        let take = take.cloned();
        self.run_for(Need::Durable, move |tx, is_awaited| {
            let take = take.as_ref().filter(|_| is_awaited);
            accept::accept(tx, &event, &[], take)
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

    async fn take(&self, id: EventId, take: &Take) -> Result<Option<TakenEvent>, StoreError> {
        let take = take.clone();
        self.run(Need::Write, move |tx| claim::take(tx, id, &take))
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
        self.run_for(Need::Durable, move |tx, is_awaited| {
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

    async fn begin_bulk(&self, bulk: &NewBulk, by: &By) -> Result<i64, StoreError> {
        let (bulk, by) = (bulk.clone(), by.clone());
        self.run(Need::Durable, move |tx| actions::begin(tx, &bulk, &by))
            .await
    }

    async fn step_bulk(&self, number: i64, step: &BulkStep) -> Result<bool, StoreError> {
        let step = step.clone();
        self.run(Need::Durable, move |tx| actions::step(tx, number, &step))
            .await
    }

    async fn cancel_bulk(&self, number: i64, by: &By) -> Result<bool, StoreError> {
        let by = by.clone();
        self.run(Need::Durable, move |tx| actions::cancel(tx, number, &by))
            .await
    }

    async fn note_counts(&self, counts: &[Count]) -> Result<SystemTime, StoreError> {
        let counts = counts.to_vec();
        self.run(Need::Write, move |tx| {
            counts::note(tx, &counts)?;
            Ok(row::time(tx.now))
        })
        .await
    }

    async fn counts(&self, of: &CountsOf) -> Result<Vec<Count>, StoreError> {
        let mut sums = Sums::new(of.clone());
        for list in counts::lists(of) {
            let mut next = Some(list);
            while let Some(from) = next.take_if(|next| !counts::is_enough(&sums, of, next)) {
                let of = of.clone();
                let step = self.read(move |tx| counts::list(tx, &of, &from));
                let (counts, rest) = step.await?;
                counts.into_iter().for_each(|count| sums.add(count));
                next = rest;
            }
        }
        Ok(sums.end())
    }

    async fn size(&self) -> Result<u64, StoreError> {
        let used = self.read(|tx| stats::size(tx)).await?;
        Ok(used.saturating_add(self.engine.log_excess()))
    }

    async fn identity(&self) -> Result<i64, StoreError> {
        self.read(|tx| spool::identity(tx)).await
    }
}

impl Records for SqliteQueue {
    async fn list(&self, filter: &Filter, page: Page) -> Result<Listed, StoreError> {
        let began = Instant::now();
        let mut listed = Listed::default();
        let mut page = page;
        if filter.chat.is_some() && filter.body.is_none() {
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
        let lane = chat.map(Lane::of_chat);
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

    async fn redrive(
        &self,
        id: EventId,
        from: Option<EventState>,
        by: &By,
    ) -> Result<Change, StoreError> {
        let (kind, by) = (ActionKind::Redrive, by.clone());
        self.run(Need::Durable, move |tx| {
            actions::change(tx, kind, id, from, &by)
        })
        .await
    }

    async fn discard(
        &self,
        id: EventId,
        from: Option<EventState>,
        by: &By,
    ) -> Result<Change, StoreError> {
        let (kind, by) = (ActionKind::Discard, by.clone());
        self.run(Need::Durable, move |tx| {
            actions::change(tx, kind, id, from, &by)
        })
        .await
    }

    async fn forget(
        &self,
        chat: &str,
        events: Option<RangeInclusive<EventId>>,
        by: &By,
    ) -> Result<Forgotten, StoreError> {
        let (digest, chat, by) = (chat_digest(chat), chat.to_owned(), by.clone());
        let name = chat.clone();
        let found = self.read(move |tx| person::to_forget(tx, &chat, events.as_ref()));
        let ToForget { events, rest } = found.await?;
        let step = self.run(Need::Durable, move |tx| {
            actions::forget_bulks(tx, &name)?;
            let bodies = person::forget(tx, &events)?;
            actions::note(tx, &by, ActionKind::Forget, None, Some(&digest), bodies)?;
            Ok(bodies)
        });
        let bodies = step.await?;
        Ok(Forgotten { bodies, rest })
    }

    async fn pause(
        &self,
        kind: Option<&EventKind>,
        note: Option<&str>,
        by: &By,
    ) -> Result<(), StoreError> {
        let (kind, note, by) = (kind.cloned(), note.map(str::to_owned), by.clone());
        self.run(Need::Durable, move |tx| {
            kinds::pause(tx, kind.as_ref(), note.as_deref())?;
            let (name, done) = paused(kind.as_ref(), note.as_deref());
            actions::note(tx, &by, done, None, Some(&name), 0)
        })
        .await
    }

    async fn pauses(&self) -> Result<Vec<Pause>, StoreError> {
        self.read(|tx| kinds::pauses(tx)).await
    }

    async fn actions(
        &self,
        which: Which,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<Action>, StoreError> {
        self.read(move |tx| actions::list(tx, which, before, limit))
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
