use tower_webhook::event::{ChatClosed, ChatRated};
use tower_webhook::{Delivery, EventRouter, Handler, HandlerResult};

struct Crm;

impl Handler<ChatClosed> for Crm {
    async fn handle(&self, _: Delivery<ChatClosed>) -> HandlerResult {
        Ok(())
    }
}

fn main() {
    let _ = EventRouter::new().on::<ChatRated>(Crm);
}
