//! An inbox, for every type of queue.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use tokio::time::timeout;
use tower_webhook::EventKind;
use tower_webhook::inbox::{
    Action, ActionKind, BlockedLane, By, Change, EventId, EventRecord, EventState, Filter, Inbox,
    Listed, Page, Pause, Queue, Seen, Selection, Stats, Which,
};
use tower_webhook::store::{StoreError, StoreErrorKind};
use tower_webhook::telemetry::{Count, CountsOf};

use super::counts::Counts;

pub(super) type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// The time limit of what a page reads.
const LIMIT: Duration = Duration::from_secs(5);

fn read<'a, T>(reading: impl Future<Output = Result<T, StoreError>> + Send + 'a) -> Answer<'a, T> {
    Box::pin(async {
        let read = timeout(LIMIT, reading).await;
        read.unwrap_or_else(|_| {
            Err(StoreError::new(
                StoreErrorKind::TimedOut,
                "the page waited for 5 s",
            ))
        })
    })
}

/// The operations of an [`Inbox`].
pub(super) trait Operations: Send + Sync {
    fn list<'a>(&'a self, filter: &'a Filter, page: Page) -> Answer<'a, Listed>;
    fn gaps<'a>(&'a self, filter: &'a Filter, page: Page) -> Answer<'a, Listed>;
    fn get(&self, id: EventId) -> Answer<'_, Option<EventRecord>>;
    fn blocked_lanes<'a>(
        &'a self,
        chat: Option<&'a str>,
        after: Option<EventId>,
        limit: usize,
    ) -> Answer<'a, Vec<BlockedLane>>;
    fn redrive(&self, id: EventId, from: Option<EventState>, by: By) -> Answer<'_, Change>;
    fn discard(&self, id: EventId, from: Option<EventState>, by: By) -> Answer<'_, Change>;
    /// Resumes without a note.
    fn pause<'a>(
        &'a self,
        kind: Option<&'a EventKind>,
        note: Option<&'a str>,
        by: By,
    ) -> Answer<'a, ()>;
    fn actions(&self, which: Which, before: Option<i64>, limit: usize) -> Answer<'_, Vec<Action>>;
    fn action(&self, number: i64) -> Answer<'_, Option<Action>>;
    fn seen(&self) -> Answer<'_, Option<Seen>>;
    fn select<'a>(&'a self, filter: &'a Filter, seen: Seen) -> Answer<'a, Selection>;
    fn begin_all<'a>(
        &'a self,
        kind: ActionKind,
        selection: &'a Selection,
        rate: u32,
        by: By,
    ) -> Answer<'a, i64>;
    fn continue_all(&self, number: i64) -> Answer<'_, Action>;
    fn cancel(&self, number: i64, by: By) -> Answer<'_, bool>;
    fn pauses(&self) -> Answer<'_, Vec<Pause>>;
    /// The kinds that are tripped in this process, and when the next event of each is tried.
    fn tripped(&self) -> BTreeMap<EventKind, SystemTime>;
    /// What all processes have counted.
    fn counts(&self, of: CountsOf) -> Answer<'_, Vec<Count>>;
    /// The counts, and how long ago they were made.
    fn stats(&self) -> Answer<'_, (Stats, Duration)>;
}

/// An inbox, and its last counts.
pub(super) struct Counted<Q> {
    inbox: Inbox<Q>,
    counts: Counts,
}

impl<Q> Counted<Q> {
    pub(super) fn new(inbox: Inbox<Q>) -> Self {
        Self {
            inbox,
            counts: Counts::default(),
        }
    }
}

impl<Q: Queue> Operations for Counted<Q> {
    fn list<'a>(&'a self, filter: &'a Filter, page: Page) -> Answer<'a, Listed> {
        read(self.inbox.list(filter, page))
    }

    fn gaps<'a>(&'a self, filter: &'a Filter, page: Page) -> Answer<'a, Listed> {
        read(self.inbox.gaps(filter, page))
    }

    fn blocked_lanes<'a>(
        &'a self,
        chat: Option<&'a str>,
        after: Option<EventId>,
        limit: usize,
    ) -> Answer<'a, Vec<BlockedLane>> {
        read(self.inbox.blocked_lanes(chat, after, limit))
    }

    fn get(&self, id: EventId) -> Answer<'_, Option<EventRecord>> {
        read(self.inbox.get(id))
    }

    fn redrive(&self, id: EventId, from: Option<EventState>, by: By) -> Answer<'_, Change> {
        // A change has no time limit: after one, nobody would know whether it has taken effect.
        let inbox = self.inbox.clone().by(by);
        Box::pin(async move { inbox.redrive(id, from).await })
    }

    fn discard(&self, id: EventId, from: Option<EventState>, by: By) -> Answer<'_, Change> {
        let inbox = self.inbox.clone().by(by);
        Box::pin(async move { inbox.discard(id, from).await })
    }

    fn pauses(&self) -> Answer<'_, Vec<Pause>> {
        read(self.inbox.pauses())
    }

    fn actions(&self, which: Which, before: Option<i64>, limit: usize) -> Answer<'_, Vec<Action>> {
        read(self.inbox.actions(which, before, limit))
    }

    fn action(&self, number: i64) -> Answer<'_, Option<Action>> {
        read(self.inbox.action(number))
    }

    fn seen(&self) -> Answer<'_, Option<Seen>> {
        read(self.inbox.seen())
    }

    fn select<'a>(&'a self, filter: &'a Filter, seen: Seen) -> Answer<'a, Selection> {
        read(self.inbox.select(filter, seen))
    }

    fn begin_all<'a>(
        &'a self,
        kind: ActionKind,
        selection: &'a Selection,
        rate: u32,
        by: By,
    ) -> Answer<'a, i64> {
        let inbox = self.inbox.clone().by(by);
        Box::pin(async move { inbox.begin_all(kind, selection, rate).await })
    }

    fn continue_all(&self, number: i64) -> Answer<'_, Action> {
        Box::pin(self.inbox.continue_all(number))
    }

    fn cancel(&self, number: i64, by: By) -> Answer<'_, bool> {
        let inbox = self.inbox.clone().by(by);
        Box::pin(async move { inbox.cancel(number).await })
    }

    fn pause<'a>(
        &'a self,
        kind: Option<&'a EventKind>,
        note: Option<&'a str>,
        by: By,
    ) -> Answer<'a, ()> {
        let inbox = self.inbox.clone().by(by);
        Box::pin(async move {
            let set = match note {
                Some(note) => inbox.pause(kind, note).await,
                None => inbox.resume(kind).await,
            };
            // The counts say what is paused. Also after an error, since the pause may have been stored before it.
            self.counts.forget();
            set
        })
    }

    fn tripped(&self) -> BTreeMap<EventKind, SystemTime> {
        self.inbox.tripped()
    }

    fn counts(&self, of: CountsOf) -> Answer<'_, Vec<Count>> {
        read(async move { self.inbox.counts(&of).await })
    }

    fn stats(&self) -> Answer<'_, (Stats, Duration)> {
        let inbox = self.inbox.clone();
        read(self.counts.get(async move { inbox.stats().await }))
    }
}

/// The time limit of a search. After it, the page shows the events that were found.
pub(super) const SEARCH: Duration = Duration::from_millis(40);

/// How a list continues.
#[derive(Clone, Copy, Debug)]
pub(super) enum More {
    Nothing,
    /// Another page, after this event.
    Page(EventId),
    /// Events that were not searched, after this one, and how many percent were.
    Search(EventId, u8),
}
