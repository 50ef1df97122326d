//! Events outlive receivers and servers that are killed.

#[path = "../support/mod.rs"]
mod support;

#[cfg(all(feature = "inbox", feature = "sqlite"))]
mod backlog;
#[cfg(all(feature = "inbox", feature = "sqlite"))]
mod inbox;
#[cfg(all(feature = "redis", feature = "sqlite"))]
mod receiver;
mod transactional;
