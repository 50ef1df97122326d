//! An inbox, for every type of queue.

use std::future::Future;
use std::pin::Pin;

use crate::event::EventKind;
use crate::inbox::{Change, EventId, EventRecord, EventSummary, Filter, Inbox, Page, Queue, Stats};
use crate::store::StoreError;

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

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
        Box::pin(self.list(filter, page))
    }

    fn get(&self, id: EventId) -> Answer<'_, Option<EventRecord>> {
        Box::pin(self.get(id))
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
        Box::pin(self.stats())
    }
}
