//! The table of responses: each row, their order, and how the claim is settled.

#![cfg(feature = "moka")]

mod claims;
mod outcomes;
mod requests;
mod services;

use tower_webhook::event::ChatRated;
use tower_webhook::store::Store;
use tower_webhook::{EventRouter, IdempotencyLayer, Webhooks};

use support::SECOND;
use support::delivery::{Crm, secret};

fn layer<St: Store + Clone>(store: &St) -> Webhooks<IdempotencyLayer<St>> {
    Webhooks::new(secret()).store(store.clone())
}

fn router(crm: &Crm) -> EventRouter {
    EventRouter::new().on::<ChatRated>(crm.clone())
}
