//! The inbox: accepting, handling, and the conformance suite on every queue.

#[path = "../support/mod.rs"]
mod support;

mod worker;
