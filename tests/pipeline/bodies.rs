//! What a body costs grows with its bytes, whatever they are: each reader between the signature and the log.

use allocation_counter::measure;
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tower_webhook::event::ChatRated;
use tower_webhook::inbox::Inbox;
use tower_webhook::memory::MemoryQueue;
use tower_webhook::{
    Delivery, EventKind, EventRouter, HandlerError, RawDelivery, Receiver, Secret, Sender, Webhooks,
};
use tracing::Level;

use support::bodies;
use support::delivery::send;
use support::log::Log;

/// The platform, and a sender with its key, type and order behind all of the body.
fn senders() -> [(Sender, &'static str); 2] {
    let described = json!({
        "name": "acme",
        "key": { "join": ["/id", "/none/0/id"] },
        "kind": ["/none/type", "/a/1000000/type", "/id"],
        "order": ["/none/customer", "/a/-", "/id"],
        "signature": { "headers": ["x-tag"], "algorithm": "hmac-sha256", "coding": "hex" },
        "challenge": [{ "when": { "/a": "ping" }, "answer": { "raw": "/a" } }],
    });
    let described = serde_json::from_value(described).unwrap();
    [(Sender::default(), "chat-rated"), (described, "acme")]
}

/// The bodies, and those whose long text is what is read.
fn all() -> Vec<(&'static str, String)> {
    let long = "x".repeat((1 << 20) - 100);
    let mut all = Vec::from(bodies::odd("chat-1"));
    all.push(("an id", format!(r#"{{"id":"{long}","a":{{}}}}"#)));
    all.push(("an answer", format!(r#"{{"id":"chat-1","a":"{long}"}}"#)));
    let fields = r#""id":7,"rating":"x","#;
    let repeated = fields.repeat((1 << 20) / fields.len() - 10);
    all.push(("fields", format!(r#"{{{repeated}"type":"chat-1"}}"#)));
    all
}

fn request(sender: &Sender, kind: &'static str, body: &str) -> Request<Full<Bytes>> {
    let delivery = RawDelivery::new(EventKind::from_static(kind), body.to_owned());
    let mut request = Request::post("/").body(Full::new(delivery.body().clone()));
    let headers = request.as_mut().unwrap().headers_mut();
    *headers = sender.sign(&secret(), &delivery).unwrap();
    request.unwrap()
}

fn secret() -> Secret {
    Secret::new("secret").unwrap()
}

/// Delivers a body to a receiver that handles it inline, and to one with an inbox. `around` calls what does it.
fn deliver(
    sender: &Sender,
    kind: &'static str,
    body: &str,
    around: impl Fn(&str, &mut dyn FnMut()),
) {
    let router = EventRouter::new()
        .on::<ChatRated>(async |_: Delivery<ChatRated>| Ok(()))
        .fallback(async |raw: RawDelivery| match raw.decode::<Value>() {
            Ok(_) => Err(HandlerError::retry("no")),
            Err(error) => Err(HandlerError::retry(error)),
        });
    let webhooks = || Webhooks::new(secret()).sender(sender.clone());
    let inbox = Inbox::new(MemoryQueue::new());
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let _entered = runtime.enter();
    let (inline, _running) = webhooks().start(router).unwrap();
    let accepting: Receiver = inbox.routes().accept(webhooks()).unwrap();
    let mut request = Some(request(sender, kind, body));
    around("inline", &mut || {
        drop(runtime.block_on(send(&inline, request.take().unwrap())));
    });
    request = Some(self::request(sender, kind, body));
    around("inbox", &mut || {
        drop(runtime.block_on(send(&accepting, request.take().unwrap())));
    });
}

#[test]
fn a_delivery_allocates_in_proportion_to_its_body() {
    for (sender, kind) in senders() {
        for (name, body) in all() {
            deliver(&sender, kind, &body, |way, deliver| {
                let info = measure(deliver);
                let [times, at_once] = [info.bytes_total, info.bytes_max];
                let [times, at_once] = [times, at_once].map(|it| it / body.len() as u64);
                println!(
                    "{} {way}, {name}: {times} times its bytes, {at_once} at once",
                    sender.name()
                );
                // A parsed value takes 32 bytes for a comma and a digit, in a vector that has grown by doubling.
                assert!(times <= 40 && at_once <= 30, "{name}: {info:?}");
            });
        }
    }
}

/// In the log of all levels.
#[test]
fn a_delivery_logs_little_of_its_body() {
    for (sender, kind) in senders() {
        for (name, body) in all() {
            deliver(&sender, kind, &body, |way, deliver| {
                let log = Log::capture(Level::TRACE);
                deliver();
                let events = log.events();
                let bytes: usize = events.iter().flatten().map(|(_, text)| text.len()).sum();
                let lines = events.len();
                assert!(
                    bytes <= 20_000,
                    "{way}, {name}: {lines} lines, {bytes} bytes"
                );
            });
        }
    }
}
