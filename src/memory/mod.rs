//! Keys and events in the memory of one process.

#[cfg(feature = "moka")]
mod keys;
mod queue;

#[cfg(feature = "moka")]
pub use self::keys::MokaStore;
pub use self::queue::MemoryQueue;
