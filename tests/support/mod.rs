//! What all tests share: deliveries and their answers, a handler and a store with faults, the log,
//! sockets, processes and servers.

#![allow(missing_docs, missing_debug_implementations)] // Only the tests of this package use it.
#![allow(
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    clippy::new_without_default
)]
#![allow(clippy::return_self_not_must_use)]

pub mod delivery;
pub mod log;
pub mod net;
pub mod observer;
pub mod postgres;
pub mod program;
pub mod queue;
pub mod redis;
#[cfg(feature = "moka")]
pub mod store;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower::Layer;
use tower_webhook::idempotency::{Idempotency, Runs};
use tower_webhook::signature::Signature;
use tower_webhook::store::Store;
use tower_webhook::{IdempotencyLayer, WebhookLayer, Webhooks};

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until a condition holds, and fails after 20 seconds.
#[track_caller]
pub fn eventually(what: &str, holds: impl Fn() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let give_up = Instant::now() + Duration::from_secs(20);
        while !holds() {
            assert!(Instant::now() < give_up, "never: {what} ({caller})");
            sleep(Duration::from_millis(5)).await;
        }
    }
}

/// A builder with valid settings is used like the layer that it builds.
pub trait Ready {
    type Store: Store + Clone;

    fn ready(&self) -> WebhookLayer<Self::Store>;

    fn layer<S>(&self, inner: S) -> Signature<Idempotency<S, Self::Store>> {
        self.ready().layer(inner)
    }

    fn runs(&self) -> Runs {
        self.ready().runs()
    }
}

impl<St: Store + Clone> Ready for Webhooks<IdempotencyLayer<St>> {
    type Store = St;

    fn ready(&self) -> WebhookLayer<St> {
        self.clone().into_layer().unwrap().0
    }
}

/// Each layer has a store of its own.
#[cfg(feature = "moka")]
impl Ready for Webhooks {
    type Store = tower_webhook::memory::MokaStore;

    fn ready(&self) -> WebhookLayer<Self::Store> {
        self.clone().into_layer().unwrap().0
    }
}
