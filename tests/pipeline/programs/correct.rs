//! The order in which it compiles: without this, the others could fail for any reason.

use tower::ServiceBuilder;
use tower_webhook::event::ChatRated;
use tower_webhook::memory::MokaStore;
use tower_webhook::{Delivery, EventRouter, Handler, HandlerResult};
use tower_webhook::{IdempotencyLayer, Secret, SignatureLayer, Webhooks};

struct Crm;

impl Handler<ChatRated> for Crm {
    async fn handle(&self, _: Delivery<ChatRated>) -> HandlerResult {
        Ok(())
    }
}

fn main() {
    let secret = Secret::new("secret").unwrap();
    let events = EventRouter::new().on::<ChatRated>(Crm);
    let paved = Webhooks::new(secret.clone()).start(events.clone());
    let (paved, _) = paved.unwrap();
    let by_hand = ServiceBuilder::new()
        .layer(SignatureLayer::new(secret))
        .layer(IdempotencyLayer::new(MokaStore::new()))
        .service(events);
    let _: axum::Router = axum::Router::new()
        .route_service("/paved", paved)
        .route_service("/by-hand", by_hand);
}
