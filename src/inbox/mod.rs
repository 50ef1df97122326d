//! Acknowledges events when they are stored, and handles them later, in order.
//!
//! Without an inbox, a delivery is answered after its handler has run. Every failure of your own systems is then a
//! failed attempt of the platform, and more than 500 of them in an hour
//! [disable the webhook](crate::docs::platform#spec-6-rule-4). An [`Inbox`] answers 200 when the event is stored in a
//! [`Queue`], and a [`Worker`] handles it from there:
//!
//! ```
//! # use tower_webhook::event::ChatRated;
//! # use tower_webhook::{Delivery, EventRouter, Secret};
//! # use std::time::Duration;
//! use tower_webhook::Webhooks;
//! use tower_webhook::inbox::Inbox;
//! use tower_webhook::memory::MemoryQueue;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let secret = Secret::new("secret")?;
//! # let events = EventRouter::new().on::<ChatRated>(async |_: Delivery<ChatRated>| Ok(()));
//! let inbox = Inbox::new(MemoryQueue::new()).worker(|worker| worker.concurrency(8));
//! let (webhooks, running) = Webhooks::new(secret).inbox(inbox).start(events)?; // stored, then 200
//!
//! # let _ = webhooks;
//! // … serve `webhooks`, and after that:
//! running.drain(Duration::from_secs(30)).await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`Inbox::routes`] starts several senders, or one half alone: the part that accepts, or the worker.
//!
//! The page on the [inbox](crate::docs::inbox) explains when to choose it, its promises and their costs, and how to
//! operate it.
//!
//! # The life of an event
//!
//! ```text
//!               accept              take                 handled, ignored or discarded
//!   delivery ───────────▶ waiting ───────▶ in progress ───────────────────────────────▶ settled
//!                            ▲               │      │                                      │
//!                            └───────────────┘      ▼                                      │
//!                             retry, release      dead letter ◀─ redrive ─▶ waiting ◀──────┘
//! ```
//!
//! The events of one chat are a *lane*: they are handled one after another, in the order in which they were accepted.
//! An event that fails is tried again with a growing delay ([`Retry`]). Its lane waits for it, unless the worker
//! [skips](OnFailure::Skip) events of its kind. After 7 days of failures, it is a *dead letter*, which is not tried any
//! more until a person redrives or discards it.

mod accept;
pub(crate) mod actions;
mod backlog;
mod bulk;
mod causes;
pub(crate) mod counts;
mod credit;
mod decide;
pub(crate) mod event;
mod gaps;
mod handle;
pub(crate) mod handlers;
pub(crate) mod headers;
pub(crate) mod lane;
#[cfg(feature = "metrics")]
mod metrics;
mod place;
pub(crate) mod queue;
pub(crate) mod records;
mod retry;
pub(crate) mod route;
mod rules;
pub(crate) mod text;
pub(crate) mod worker;
mod workers;

/// What queues and workers say to each other, and settings that only tests change. No version promise covers it: the
/// tests of this crate wrap queues.
#[doc(hidden)]
pub mod internal {
    pub use super::actions::{BulkStep, NewBulk};
    pub use super::event::{
        EventLease, KindShare, Kinds, Lane, MOST_WAITING_KINDS, NewEvent, Share, Take, TakenEvent,
    };
    pub use super::handlers::NewNote;
    pub use super::queue::{
        AcceptEvents, Accepted, BYTES_OF_CLAIM, ChangeEvents, ClaimEvents, Claims, CountEvents,
        ForgetChats, ListEvents, MeasureTables, PurgeEvents, SettleEvents, Settled, Tables,
    };
    pub use super::records::{AcceptOne, FORGET_STEP, Forgotten, forget_all};
    pub use super::worker::Tuning;
    pub use crate::outcome::Settlement;

    /// Returns the queue of an inbox.
    #[must_use]
    pub fn queue(inbox: &super::Inbox) -> &super::Queue {
        &inbox.shared.queue
    }

    /// Sets the number of the delivery of an item.
    #[must_use]
    pub fn in_delivery(item: crate::Item, delivery: i64) -> crate::Item {
        item.in_delivery(delivery)
    }

    /// Has everything of an inbox observed.
    pub fn observe(inbox: &super::Inbox, observer: impl crate::telemetry::Observer) {
        inbox.observe(crate::telemetry::Observers::new(observer));
    }

    /// Sets how many runs may continue after their client disconnected.
    pub fn max_detached(runs: &crate::execution::Runs, limit: usize) {
        runs.set_limit(limit);
    }
}

pub use self::accept::{Accept, AcceptFuture, Refusal};
pub use self::actions::{Action, ActionKind, Bulk, BulkState, By, Which};
pub use self::bulk::{Seen, Selection};
pub use self::causes::{Cause, Causes};
pub use self::event::{EventId, EventState, UnknownState};
pub use self::gaps::expected;
pub use self::handle::Inbox;
pub use self::handlers::{HandlerNote, Retired};
pub use self::place::Place;
pub use self::queue::Queue;
pub use self::records::{
    BlockedLane, Change, EventRecord, EventSummary, Filter, KindStats, Listed, Page, PastFailure,
    Pause, Stats,
};
pub use self::retry::Retry;
pub use self::rules::OnFailure;
pub use self::text::{escaped, in_words, unescaped};
pub use self::worker::Worker;
pub use crate::outcome::{Failure, Shape, UnknownShape};
pub use crate::route::Scope;
