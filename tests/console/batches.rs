//! The events of a batch link each other.

use serde_json::json;
use tower_webhook::{EventKind, Item, RawDelivery, Sender, Webhooks};
use tower_webhook_console::Console;

use http::Request;
use http_body_util::Full;
use support::delivery::{secret, send};
use support::inbox::{accepting, inbox};

use super::get;

/// A delivery of LINE with so many events.
fn delivery(line: &Sender, from: usize, count: usize) -> Request<Full<bytes::Bytes>> {
    let event = |n| json!({ "type": "message", "webhookEventId": format!("event-{n}") });
    let events: Vec<_> = (from..from + count).map(event).collect();
    let body = json!({ "destination": "U-1", "events": events }).to_string();
    let delivery = RawDelivery::new(EventKind::from_static("line"), body);
    let mut request = Request::post("/")
        .body(Full::new(delivery.body().clone()))
        .unwrap();
    *request.headers_mut() = line.sign(&secret(), &delivery).unwrap();
    request
}

#[tokio::test(start_paused = true)]
async fn the_page_of_an_item_links_those_around_it() {
    let inbox = inbox();
    let line = Sender::named("line", None).unwrap();
    let webhooks = accepting(&inbox, Webhooks::new(secret()).sender(line.clone()));
    for (from, count) in [(1, 17), (18, 1_000)] {
        let sent = send(&webhooks, delivery(&line, from, count)).await;
        sent.assert_ok();
    }
    let app = Console::new().inbox(inbox.clone()).router();
    let link = |event: u32, item: u32| format!(r#" <a href="/events/{event}">{item}</a>"#);
    let page = get(&app, "/events/3").await;
    page.is(200).shows("item 3 of 17; the others:");
    for item in (1..=17).filter(|item| *item != 3) {
        page.shows(&link(item, item));
    }
    page.shows("U-1");

    let page = get(&app, "/events/317").await;
    page.shows("item 300 of 1000; others near it:");
    for item in (290..=310).filter(|item| *item != 300) {
        page.shows(&link(item + 17, item));
    }
    for item in [289, 311] {
        page.hides(&link(item + 17, item));
    }
    let record = inbox.get(tower_webhook::inbox::EventId(317)).await;
    let item = record.unwrap().unwrap().item;
    assert_eq!(item.as_ref().map(Item::number), Some(300));
}
