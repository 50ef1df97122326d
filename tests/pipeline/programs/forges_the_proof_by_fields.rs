use tower_webhook::{EventKind, RawDelivery, Verified};

fn main() {
    let raw = RawDelivery::new(EventKind::CHAT_RATED, "{}");
    let _ = Verified {
        raw,
        read: false,
        claimed: false,
        may_have_items: false,
    };
}
