//! The inbox: accepting, handling, and every queue.

/// Calls a function with each of the three queues.
#[cfg(all(feature = "conformance", feature = "postgres", feature = "sqlite"))]
macro_rules! on_every_queue {
    ($rule:ident) => {
        $rule(&tower_webhook::memory::MemoryQueue::new()).await;
        $rule(&support::scratch::Scratch::new()).await;
        $rule(&support::database::Database::create().await).await;
    };
}

mod batches;
#[cfg(feature = "conformance")]
mod bulk;
#[cfg(all(feature = "conformance", feature = "sqlite"))]
mod counting;
mod drain;
#[cfg(all(feature = "conformance", feature = "postgres"))]
mod exactly_once;
mod faults;
#[cfg(feature = "sqlite")]
mod gaps;
#[cfg(feature = "conformance")]
mod handlers;
mod history;
#[cfg(all(feature = "conformance", feature = "postgres", feature = "sqlite"))]
mod kinds;
#[cfg(feature = "conformance")]
mod memory;
#[cfg(all(feature = "metrics", feature = "moka", feature = "sqlite"))]
mod metrics;
#[cfg(all(feature = "conformance", feature = "postgres"))]
mod postgres;
#[cfg(all(feature = "conformance", feature = "postgres", feature = "sqlite"))]
mod published;
#[cfg(all(feature = "conformance", feature = "postgres", feature = "sqlite"))]
mod rolling;
#[cfg(all(feature = "conformance", feature = "postgres", feature = "sqlite"))]
mod routes;
#[cfg(all(feature = "moka", feature = "sqlite"))]
mod silence;
mod small_scope;
#[cfg(all(feature = "conformance", feature = "sqlite"))]
mod spool;
#[cfg(all(feature = "conformance", feature = "sqlite"))]
mod sqlite;
#[cfg(feature = "conformance")]
mod suite;
mod suspects;
mod telemetry;
mod worker;
