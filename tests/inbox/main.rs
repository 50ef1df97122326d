//! The inbox: accepting, handling, and every queue.

#[path = "../support/mod.rs"]
mod support;

#[cfg(feature = "conformance")]
mod memory;
mod worker;
