//! The Postgres store, against real servers.

mod connections;
mod contract;
mod errors;
mod purge;
mod schema;

use std::collections::HashSet;
use std::time::Duration;

use tower_webhook::postgres::PostgresStore;
use tower_webhook::store::{
    Claim, EventKey, KeyState, Lease, SettleError, Store, StoreError, StoreErrorKind,
};

use support::{MINUTE, chain};

const RETENTION: Duration = Duration::from_secs(8 * 24 * 60 * 60);

fn id(key: &str) -> EventKey {
    EventKey::new("", key.as_bytes(), b"{}")
}

async fn acquire(store: &PostgresStore, key: &str, lease: Duration) -> Lease {
    match store.claim(&id(key), lease, RETENTION).await.unwrap() {
        Claim::Acquired(lease) => lease,
        claim => panic!("{key} cannot be claimed: {claim:?}"),
    }
}

async fn complete(store: &PostgresStore, key: &str, retain: Duration) {
    let lease = acquire(store, key, MINUTE).await;
    store.complete(&lease, retain).await.unwrap();
}

async fn is_done(store: &PostgresStore, key: &str) -> bool {
    store.peek(&id(key)).await.unwrap() == KeyState::Done
}

/// Asserts that a store fails in a certain way, whatever it is asked to do, and returns what it says.
async fn fails_as(store: &PostgresStore, kind: StoreErrorKind) -> HashSet<String> {
    let lease = Lease::new(
        id("any"),
        tower_webhook::store::Fence(1),
        1.try_into().unwrap(),
    );
    let settled = |result: Result<(), SettleError>| match result {
        Err(SettleError::Store(error)) => error,
        other => panic!("a store that does not work said {other:?}"),
    };
    let errors: [StoreError; 5] = [
        store
            .claim(&id("any"), MINUTE, RETENTION)
            .await
            .unwrap_err(),
        store.peek(&id("any")).await.unwrap_err(),
        settled(store.renew(&lease, MINUTE).await),
        settled(store.complete(&lease, RETENTION).await),
        settled(store.release(&lease).await),
    ];
    errors
        .into_iter()
        .map(|error| {
            assert_eq!(error.kind(), kind, "{}", chain(&error));
            chain(&error)
        })
        .collect()
}
