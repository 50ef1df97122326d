//! The inbox: accepting, handling, and every queue.

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
mod history;
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
mod senders;
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
