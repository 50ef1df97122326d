//! What all tests share: deliveries and their answers, handlers, stores and queues with faults, the log,
//! sockets, processes, servers and databases.

#![allow(missing_docs, missing_debug_implementations)] // Only the tests of this package use it.
#![allow(
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    clippy::new_without_default
)]
#![allow(clippy::return_self_not_must_use)]

pub mod bodies;
#[cfg(feature = "postgres")]
pub mod database;
pub mod delivery;
pub mod history;
pub mod inbox;
pub mod log;
pub mod net;
pub mod observer;
pub mod operations;
pub mod postgres;
pub mod program;
pub mod queue;
pub mod redis;
#[cfg(feature = "sqlite")]
pub mod scratch;
#[cfg(feature = "moka")]
pub mod store;
pub mod tls;
#[cfg(feature = "postgres")]
pub mod transactional;
pub mod world;

use std::error::Error;
use std::iter::successors;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower::Layer;
use tower_webhook::idempotency::{Idempotency, Runs};
#[cfg(feature = "postgres")]
use tower_webhook::postgres::{PostgresQueue, PostgresStore};
use tower_webhook::signature::Signature;
use tower_webhook::store::Store;
use tower_webhook::{IdempotencyLayer, WebhookLayer, Webhooks};

use self::program::PATIENCE;

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub const SECOND: Duration = Duration::from_secs(1);
pub const MINUTE: Duration = Duration::from_secs(60);
pub const HOUR: Duration = Duration::from_secs(60 * 60);
pub const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Asks until the answer is `true` or `Some`, and fails after [`PATIENCE`].
#[track_caller]
pub fn eventually<A: Answer>(
    what: &str,
    ask: impl AsyncFnMut() -> A,
) -> impl Future<Output = A::Value> {
    eventually_every(Duration::from_millis(5), what, ask)
}

/// The same with another pause between the questions.
#[track_caller]
pub fn eventually_every<A: Answer>(
    pause: Duration,
    what: &str,
    mut ask: impl AsyncFnMut() -> A,
) -> impl Future<Output = A::Value> {
    let caller = std::panic::Location::caller();
    async move {
        let give_up = Instant::now() + PATIENCE;
        loop {
            if let Some(value) = ask().await.value() {
                return value;
            }
            assert!(Instant::now() < give_up, "never: {what} ({caller})");
            sleep(pause).await;
        }
    }
}

/// What [`eventually`] asks for.
pub trait Answer {
    type Value;

    fn value(self) -> Option<Self::Value>;
}

impl Answer for bool {
    type Value = ();

    fn value(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Answer for Option<T> {
    type Value = T;

    fn value(self) -> Self {
        self
    }
}

/// An error and its causes.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let errors = successors(Some(error), |error| (*error).source());
    let errors: Vec<_> = errors.map(ToString::to_string).collect();
    errors.join(": ")
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

#[cfg(feature = "postgres")]
impl database::Database {
    /// A store on a pool of its own.
    pub async fn store(&self) -> PostgresStore {
        let store = PostgresStore::new(self.pool(4).await);
        store.migrate().await.unwrap();
        store
    }

    /// A queue on a pool of its own.
    pub async fn queue(&self) -> PostgresQueue {
        let queue = PostgresQueue::new(self.pool(4).await);
        queue.migrate().await.unwrap();
        queue
    }
}

#[cfg(all(feature = "conformance", feature = "postgres"))]
impl tower_webhook::store::conformance::Harness for database::Database {
    type Store = PostgresStore;

    async fn open(&self) -> Self::Store {
        self.store().await
    }
}
