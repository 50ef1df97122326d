//! Events outlive receivers and servers that are killed.

#[cfg(feature = "sqlite")]
mod backlog;
#[cfg(all(feature = "postgres", feature = "sqlite"))]
mod batches;
#[cfg(all(feature = "postgres", feature = "sqlite"))]
mod bulk;
#[cfg(feature = "sqlite")]
mod counts;
#[cfg(feature = "redis")]
mod failovers;
#[cfg(feature = "sqlite")]
mod inbox;
#[cfg(all(feature = "sqlite", target_os = "linux"))]
mod power;
#[cfg(all(feature = "redis", feature = "sqlite"))]
mod receiver;
#[cfg(feature = "sqlite")]
mod senders;
#[cfg(all(feature = "postgres", feature = "sqlite"))]
mod spool;
mod transactional;
