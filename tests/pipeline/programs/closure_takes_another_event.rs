use tower_webhook::event::{ChatClosed, ChatRated};
use tower_webhook::{Delivery, EventRouter};

fn main() {
    let _ = EventRouter::new().on::<ChatRated>(async |_: Delivery<ChatClosed>| Ok(()));
}
