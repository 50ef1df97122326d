//! The Admin API client.

#[path = "../support/mod.rs"]
mod support;

mod client;
mod log;
