//! The Admin API client.

mod client;
mod log;
