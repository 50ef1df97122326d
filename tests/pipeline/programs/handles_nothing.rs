use tower_webhook::EventRouter;
use tower_webhook::event::ChatRated;

struct Crm;

fn main() {
    let _ = EventRouter::new().on::<ChatRated>(Crm);
}
