use tower_webhook::inbox::Inbox;

fn main() {
    let _ = Inbox::new(());
}
