//! Accepts events on disk, and handles them later (feature `inbox`).

#[cfg(feature = "conformance")]
pub mod conformance;
mod event;
mod memory;
mod queue;
#[cfg(feature = "sqlite")]
mod sqlite;

pub use self::event::{
    EventId, EventLease, EventRecord, EventState, EventSummary, Failure, Filter, Kinds, Lane,
    NewEvent, Page, PastFailure, Settlement, Take, TakenEvent, UnknownState,
};
pub use self::memory::MemoryQueue;
pub use self::queue::{Accepted, Change, Claims, KindStats, Queue, Settled, Stats};
#[cfg(feature = "sqlite")]
pub use self::sqlite::SqliteQueue;
