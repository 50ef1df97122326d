//! Every queue: the conformance suite, and the behaviour of its own.

#[path = "../support/mod.rs"]
mod support;

#[cfg(all(feature = "inbox", feature = "postgres"))]
mod postgres;
#[cfg(all(feature = "inbox", feature = "postgres"))]
mod postgres_model;
