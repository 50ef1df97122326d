//! Every queue: the conformance suite, and the behaviour of its own.

#[path = "../support/mod.rs"]
mod support;

mod memory;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "postgres")]
mod postgres_model;
