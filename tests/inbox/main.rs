//! The inbox: accepting, handling, and every queue.

#[cfg(all(feature = "console", feature = "moka"))]
mod console;
#[cfg(all(
    feature = "conformance",
    feature = "console",
    feature = "moka",
    feature = "postgres",
    feature = "sqlite"
))]
mod console_queues;
mod drain;
#[cfg(all(feature = "conformance", feature = "postgres"))]
mod exactly_once;
mod faults;
mod history;
#[cfg(feature = "conformance")]
mod memory;
#[cfg(all(feature = "metrics", feature = "moka"))]
mod metrics;
#[cfg(all(feature = "conformance", feature = "postgres"))]
mod postgres;
#[cfg(all(feature = "conformance", feature = "postgres"))]
mod postgres_clock;
#[cfg(all(feature = "conformance", feature = "postgres"))]
mod postgres_model;
#[cfg(all(feature = "conformance", feature = "postgres"))]
mod postgres_pinned;
#[cfg(all(feature = "conformance", feature = "postgres"))]
mod postgres_records;
#[cfg(all(feature = "conformance", feature = "postgres", feature = "sqlite"))]
mod published;
#[cfg(all(feature = "conformance", feature = "postgres", feature = "sqlite"))]
mod rolling;
#[cfg(all(feature = "conformance", feature = "sqlite"))]
mod sqlite;
#[cfg(feature = "conformance")]
mod suite;
mod suspects;
mod telemetry;
mod worker;
