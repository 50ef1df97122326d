use tower::Layer;
use tower_webhook::memory::MokaStore;
use tower_webhook::{EventRouter, IdempotencyLayer};

fn main() {
    let service = IdempotencyLayer::new(MokaStore::new()).layer(EventRouter::new());
    let _: axum::Router = axum::Router::new().route_service("/webhooks", service);
}
