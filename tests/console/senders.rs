//! One console for the inboxes of several senders.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::time::sleep;
use tower_webhook::{
    EventKind, EventRouter, IdempotencyKey, RawDelivery, Secret, Sender, Webhooks,
};
use tower_webhook_console::Console;

use super::get;
use support::delivery::send;
use support::inbox::inbox;

fn delivery(sender: &Sender, kind: &'static str, body: &str) -> Request<Full<Bytes>> {
    let key = IdempotencyKey::new("key-1".parse().unwrap());
    let delivery = RawDelivery::new(EventKind::from_static(kind), body.to_owned()).with_key(key);
    let headers = sender.sign(&secret(), &delivery).unwrap();
    let body = Full::new(delivery.body().clone());
    let mut request = Request::post("/").body(body).unwrap();
    *request.headers_mut() = headers;
    request
}

fn secret() -> Secret {
    Secret::new("secret").unwrap()
}

/// The inbox that the console has was given no namespace, as those that the receivers have.
#[tokio::test(start_paused = true)]
async fn a_key_is_found_for_each_sender() {
    let inbox = inbox();
    let app = Console::new().inbox(inbox.clone()).router();
    let senders = [
        (Sender::chat_platform(), "chat-rated"),
        (Sender::github(), "push"),
        (Sender::stripe(), "invoice.paid"),
    ];
    let mut running = Vec::new();
    for (sender, kind) in &senders {
        let (webhooks, work) = Webhooks::new(secret())
            .sender(sender.clone())
            .inbox(inbox.clone())
            .start(EventRouter::new())
            .unwrap();
        running.push(work);
        let body = format!(r#"{{"id":"key-1","type":"{kind}"}}"#);
        send(&webhooks, delivery(sender, kind, &body))
            .await
            .assert_ok();
    }
    sleep(Duration::from_secs(1)).await;
    let found = get(&app, "/events?key=key-1").await;
    let other = get(&app, "/events?key=key-2").await;
    let narrowed = get(&app, "/events?key=key-1&kind=push").await;
    for (at, (_, kind)) in senders.iter().enumerate() {
        let link = format!(r#"href="/events/{}""#, at + 1);
        found.shows(kind).shows(&link);
        other.hides(&link);
        match *kind {
            "push" => narrowed.shows(&link),
            _ => narrowed.hides(&link),
        };
    }
    let overview = get(&app, "/").await;
    overview.is(200).shows("push").shows("invoice.paid");
}
