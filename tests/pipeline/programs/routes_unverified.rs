use tower_webhook::EventRouter;

fn main() {
    let _: axum::Router = axum::Router::new().route_service("/webhooks", EventRouter::new());
}
