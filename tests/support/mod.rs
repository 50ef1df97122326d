//! What all tests share: deliveries and their answers, a handler and a store with faults, the log,
//! sockets, processes and servers.

#![allow(dead_code)] // Each binary uses a part of it.

pub(crate) mod delivery;
pub(crate) mod log;
pub(crate) mod net;
pub(crate) mod observer;
pub(crate) mod postgres;
pub(crate) mod program;
pub(crate) mod queue;
pub(crate) mod redis;
#[cfg(feature = "moka")]
pub(crate) mod store;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until a condition holds, and fails after 20 seconds.
#[track_caller]
pub(crate) fn eventually(what: &str, holds: impl Fn() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let give_up = Instant::now() + Duration::from_secs(20);
        while !holds() {
            assert!(Instant::now() < give_up, "never: {what} ({caller})");
            sleep(Duration::from_millis(5)).await;
        }
    }
}
