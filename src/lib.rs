//! Work in progress.
pub mod event;
