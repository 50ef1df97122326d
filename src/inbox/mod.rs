//! Accepts events on disk, and handles them later (feature `inbox`).

#[cfg(feature = "conformance")]
pub mod conformance;
mod event;
mod memory;
#[cfg(feature = "postgres")]
mod postgres;
mod queue;

pub use self::event::{
    EventId, EventLease, EventRecord, EventState, EventSummary, Failure, Filter, Kinds, Lane,
    NewEvent, Page, PastFailure, Settlement, Take, TakenEvent, UnknownState,
};
pub use self::memory::MemoryQueue;
#[cfg(feature = "postgres")]
pub use self::postgres::PostgresQueue;
pub use self::queue::{Accepted, Change, Claims, KindStats, Queue, Settled, Stats};
