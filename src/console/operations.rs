//! An inbox, for every type of queue.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::time::timeout;

use crate::event::EventKind;
use crate::inbox::{Change, EventId, EventRecord, EventSummary, Filter, Inbox, Page, Queue, Stats};
use crate::store::StoreError;

pub(super) type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// The time limit of what a page reads.
const LIMIT: Duration = Duration::from_secs(5);

fn read<'a, T>(reading: impl Future<Output = Result<T, StoreError>> + Send + 'a) -> Answer<'a, T> {
    Box::pin(async {
        let read = timeout(LIMIT, reading).await;
        read.unwrap_or_else(|_| Err(StoreError::timed_out()))
    })
}

/// The operations of an [`Inbox`].
pub(super) trait Operations: Send + Sync {
    fn list<'a>(&'a self, filter: &'a Filter, page: Page) -> Answer<'a, Vec<EventSummary>>;
    fn get(&self, id: EventId) -> Answer<'_, Option<EventRecord>>;
    fn redrive(&self, id: EventId) -> Answer<'_, Change>;
    fn discard(&self, id: EventId) -> Answer<'_, Change>;
    fn pause<'a>(&'a self, kind: Option<&'a EventKind>) -> Answer<'a, ()>;
    fn resume<'a>(&'a self, kind: Option<&'a EventKind>) -> Answer<'a, ()>;
    fn stats(&self) -> Answer<'_, Stats>;
}

impl<Q: Queue> Operations for Inbox<Q> {
    fn list<'a>(&'a self, filter: &'a Filter, page: Page) -> Answer<'a, Vec<EventSummary>> {
        read(self.list(filter, page))
    }

    fn get(&self, id: EventId) -> Answer<'_, Option<EventRecord>> {
        read(self.get(id))
    }

    fn redrive(&self, id: EventId) -> Answer<'_, Change> {
        Box::pin(self.redrive(id))
    }

    fn discard(&self, id: EventId) -> Answer<'_, Change> {
        Box::pin(self.discard(id))
    }

    fn pause<'a>(&'a self, kind: Option<&'a EventKind>) -> Answer<'a, ()> {
        Box::pin(self.pause(kind))
    }

    fn resume<'a>(&'a self, kind: Option<&'a EventKind>) -> Answer<'a, ()> {
        Box::pin(self.resume(kind))
    }

    fn stats(&self) -> Answer<'_, Stats> {
        read(self.stats())
    }
}
