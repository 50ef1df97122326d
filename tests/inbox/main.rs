//! Every queue: the conformance suite, and the behaviour of its own.

#[cfg(feature = "sqlite")]
#[path = "../support/mod.rs"]
mod support;

mod memory;
#[cfg(feature = "sqlite")]
mod sqlite;
