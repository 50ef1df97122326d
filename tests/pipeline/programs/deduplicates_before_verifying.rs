use tower::Layer;
use tower_webhook::memory::MokaStore;
use tower_webhook::{EventRouter, IdempotencyLayer, Secret, SignatureLayer};

fn main() {
    let secret = Secret::new("secret").unwrap();
    let verified = SignatureLayer::new(secret).layer(EventRouter::new());
    let service = IdempotencyLayer::new(MokaStore::new()).layer(verified);
    let _: axum::Router = axum::Router::new().route_service("/webhooks", service);
}
