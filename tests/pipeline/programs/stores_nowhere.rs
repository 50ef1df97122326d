use tower_webhook::IdempotencyLayer;

fn main() {
    let _ = IdempotencyLayer::new(());
}
