//! Deliveries of several events at an inbox, from their request on.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};
use tower_webhook::inbox::{EventRecord, EventState, Filter, Inbox, Page, Queue};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::{EventKind, IdempotencyKey, RawDelivery, Receiver, Secret, Sender, Webhooks};

use support::delivery::{Answered, send};
use support::log::Log;

/// A sender of batches, and what its route sets.
struct Place {
    sender: Sender,
    inbox: Inbox,
    service: Receiver,
}

fn secret() -> Secret {
    Secret::new("secret").unwrap()
}

fn acme(changes: Value) -> Sender {
    let mut sender = json!({
        "name": "acme",
        "key": "x-id",
        "batch": {
            "path": "/events/*",
            "key": "/id",
            "kind": "/type",
            "order": "/chat",
            "keep": ["^/account"]
        },
        "signature": {"headers": ["x-tag"], "algorithm": "hmac-sha256", "coding": "hex"},
    });
    for (name, value) in changes.as_object().unwrap() {
        sender[name] = value.clone();
    }
    serde_json::from_value(sender).unwrap()
}

impl Place {
    fn new(queue: impl Into<Queue>, changes: Value) -> Self {
        Self::with(queue, acme(changes), |webhooks| webhooks)
    }

    fn with(
        queue: impl Into<Queue>,
        sender: Sender,
        set: impl FnOnce(Webhooks) -> Webhooks,
    ) -> Self {
        let inbox = Inbox::new(queue);
        let webhooks = set(Webhooks::new(secret()).sender(sender.clone()));
        let service = inbox.routes().accept(webhooks).unwrap();
        Self {
            sender,
            inbox,
            service,
        }
    }

    fn request(&self, key: &str, body: &str) -> Request<Full<Bytes>> {
        let key = IdempotencyKey::new(key.parse().unwrap());
        let delivery = RawDelivery::new(EventKind::from_static("acme"), body.to_owned());
        let delivery = delivery.with_key(key);
        let body = Full::new(delivery.body().clone());
        let mut request = Request::post("/").body(body).unwrap();
        *request.headers_mut() = self.sender.sign(&secret(), &delivery).unwrap();
        request
    }

    /// Sends a body under a key of its own.
    async fn send(&self, body: &str) -> Answered {
        let key = fastrand::u128(..).to_string();
        send(&self.service, self.request(&key, body)).await
    }

    /// All events, in the order of acceptance.
    async fn records(&self) -> Vec<EventRecord> {
        let page = Page::oldest(100);
        let listed = self.inbox.list(&Filter::default(), page).await.unwrap();
        let mut records = Vec::new();
        for event in listed.events {
            records.push(self.inbox.get(event.id).await.unwrap().unwrap());
        }
        records
    }
}

fn bodies(records: &[EventRecord]) -> Vec<&str> {
    let bodies = records.iter().map(|record| record.body.as_deref().unwrap());
    bodies.map(|body| str::from_utf8(body).unwrap()).collect()
}

fn keys(records: &[EventRecord]) -> Vec<String> {
    let keys = records.iter().map(|it| it.summary.key.as_ref().unwrap());
    keys.map(ToString::to_string).collect()
}

#[tokio::test]
async fn each_item_is_an_event_with_the_bytes_that_were_signed() {
    let place = Place::new(MemoryQueue::new(), json!({}));
    let items = [
        r#"{"id":"1","type":"opened","chat":"c-1", "n":1.0}"#,
        r#"{ "id":"2","type":"closed","chat":"c-1"}"#,
        r#"{"id":"3","type":"opened","chat":"c-2"}"#,
    ];
    let body = format!(r#"{{"account":"a-1","events":[{}]}}"#, items.join(" , "));
    let request = place.request("delivery-1", &body);
    send(&place.service, request).await.assert_ok();
    let records = place.records().await;
    assert_eq!(bodies(&records), items);
    assert_eq!(keys(&records), ["1", "2", "3"]);
    let of = |it: &EventRecord| {
        (
            it.summary.kind.to_string(),
            it.summary.chat.clone().unwrap(),
        )
    };
    let kinds: Vec<_> = records.iter().map(of).collect();
    let expected = [("opened", "c-1"), ("closed", "c-1"), ("opened", "c-2")];
    assert_eq!(
        kinds,
        expected.map(|(kind, chat)| (kind.into(), chat.into()))
    );
    for (number, record) in (1..).zip(&records) {
        let item = record.item.as_ref().unwrap();
        assert_eq!((item.number(), item.count()), (number, 3));
        assert_eq!(item.kept(), Some(r#"{"account":"a-1"}"#));
        assert_eq!(record.others.len(), 2);
    }
}

/// An item with a key of its own is stored once, whatever came around it. Without one, equal items of one delivery are as
/// many events, and the same delivery brings none again.
#[tokio::test]
async fn a_delivery_that_comes_again_stores_what_is_missing() {
    let place = Place::new(MemoryQueue::new(), json!({}));
    let item = |id: u8| format!(r#"{{"id":{id},"type":"opened"}}"#);
    let some = |ids: &[u8]| {
        let items: Vec<_> = ids.iter().map(|id| item(*id)).collect();
        format!(r#"{{"events":[{}]}}"#, items.join(","))
    };
    place.send(&some(&[1, 2])).await.assert_ok();
    place.send(&some(&[2, 1])).await.assert_replayed();
    place.send(&some(&[2, 3, 3, 1])).await.assert_ok();
    assert_eq!(keys(&place.records().await), ["1", "2", "3"]);

    let place = Place::new(MemoryQueue::new(), json!({}));
    let equal = r#"{"events":[{"type":"tick"},{"type":"tick"},{"type":"tock"}]}"#;
    let more = format!("{equal} ");
    for (key, body, replays) in [("a", equal, false), ("a", equal, true), ("b", &more, false)] {
        let response = send(&place.service, place.request(key, body)).await;
        match replays {
            true => response.assert_replayed(),
            false => response.assert_ok(),
        }
    }
    let records = place.records().await;
    assert_eq!(records.len(), 6);
    let mut keys = keys(&records);
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 6, "each has a key of its own");

    // By its digest, an item is the same in every delivery.
    let digest = json!({"path": "/events/*", "key": "digest", "kind": "/type"});
    let place = Place::new(MemoryQueue::new(), json!({"batch": digest}));
    place.send(equal).await.assert_ok();
    place.send(equal).await.assert_replayed();
    assert_eq!(place.records().await.len(), 2);
}

#[tokio::test]
async fn an_item_that_cannot_be_read_is_a_dead_letter_of_its_own() {
    let log = Log::capture(tracing::Level::ERROR);
    let place = Place::new(MemoryQueue::new(), json!({}));
    let items = [
        r#"{"id":1,"type":"opened"}"#,
        "17",
        r#"{"id":2}"#,
        r#"{"id":"","type":"opened","n":1}"#,
        r#"{"id":{},"type":"opened"}"#,
        "[]",
        "null",
        r#"{"id":4,"type":"opened"}"#,
    ];
    let body = format!(r#"{{"events":[{}]}}"#, items.join(","));
    place.send(&body).await.assert_ok();
    let records = place.records().await;
    assert_eq!(bodies(&records), items);
    let dead: Vec<_> = records
        .iter()
        .map(|record| record.summary.state == EventState::Dead)
        .collect();
    let expected = [false, true, true, false, true, true, true, false];
    assert_eq!(dead, expected);
    for record in records.iter().filter(|it| !it.failures.is_empty()) {
        let failure = &record.failures[0].failure;
        assert_eq!(failure.outcome, "undecodable");
        assert!(failure.reason.starts_with("it"), "{}", failure.reason);
    }
    assert_eq!(log.events().len(), 5);
}

#[tokio::test]
async fn a_body_without_items_is_one_event_or_none() {
    let place = Place::new(MemoryQueue::new(), json!({"kind": "/type"}));
    for empty in [r#"{"type":"t","events":[]}"#, r#"{"events":[],"type":"t"}"#] {
        place.send(empty).await.assert_ok();
    }
    assert_eq!(place.records().await.len(), 0);
    let whole = [
        r#"{"type":"t","id":1}"#,
        r#"{"type":"t","events":{"id":1}}"#,
        r#"{"type":"t","events":null}"#,
    ];
    for body in whole {
        place.send(body).await.assert_ok();
    }
    let records = place.records().await;
    assert_eq!(bodies(&records), whole);
    assert!(records.iter().all(|record| record.item.is_none()));
}

#[tokio::test]
async fn more_items_than_are_taken_apart_are_one_dead_letter() {
    let place = Place::new(MemoryQueue::new(), json!({}));
    for (items, events) in [(10_000, 10_000), (10_001, 1)] {
        let log = Log::capture(tracing::Level::ERROR);
        let ids = (0..items).map(|id| format!(r#"{{"id":"{items}-{id}","type":"t"}}"#));
        let ids: Vec<_> = ids.collect();
        let body = format!(r#"{{"events":[{}]}}"#, ids.join(","));
        place.send(&body).await.assert_ok();
        let stats = place.inbox.stats().await.unwrap();
        let is_dead = events == 1;
        assert_eq!(stats.dead(), u64::from(is_dead));
        assert_eq!(stats.unsettled(), 10_000);
        assert_eq!(log.events().is_empty(), !is_dead);
    }
}

/// The key of a delivery is not signed, so that its body is guarded. The keys of items are.
#[tokio::test]
async fn the_body_of_a_delivery_is_guarded_and_no_item() {
    let place = Place::new(MemoryQueue::new(), json!({}));
    let own = r#"{"events":[{"id":1,"type":"t"},{"id":2,"type":"t"}]}"#;
    place.send(own).await.assert_ok();
    place.send(own).await.assert_replayed();
    let made = r#"{"events":[{"type":"t"},{"type":"t"}]}"#;
    send(&place.service, place.request("a", made))
        .await
        .assert_ok();
    send(&place.service, place.request("a", made))
        .await
        .assert_replayed();
    let copied = send(&place.service, place.request("b", made)).await;
    copied.assert_problem(422, "body-replayed");
    // An item may come again in another delivery.
    place.send(r#"{"events":[{"type":"t"}]}"#).await.assert_ok();
    assert_eq!(place.records().await.len(), 5);
}

/// A known key with another body is a duplicate, whatever the route says of single events.
#[tokio::test]
async fn an_item_with_a_known_key_and_another_body_is_a_duplicate() {
    let log = Log::capture(tracing::Level::WARN);
    let strict = |webhooks: Webhooks| webhooks.reject_changed_bodies();
    let place = Place::with(MemoryQueue::new(), acme(json!({})), strict);
    place
        .send(r#"{"events":[{"id":1,"type":"t"}]}"#)
        .await
        .assert_ok();
    let other = r#"{"events":[{"id":1,"type":"t","n":2},{"id":2,"type":"t"}]}"#;
    place.send(other).await.assert_ok();
    assert_eq!(keys(&place.records().await), ["1", "2"]);
    assert_eq!(log.events().len(), 1);
}

/// The backlog accepts a delivery whole, or refuses it whole; one that it has is a duplicate.
#[tokio::test]
async fn a_full_backlog_refuses_a_batch_whole() {
    let queue = MemoryQueue::new();
    let filling = Place::new(queue.clone(), json!({}));
    let first = r#"{"events":[{"id":1,"type":"t"},{"id":2,"type":"t"}]}"#;
    filling.send(first).await.assert_ok();
    let inbox = Inbox::new(queue).backlog_limit(1);
    let webhooks = Webhooks::new(secret()).sender(acme(json!({})));
    let service = inbox.routes().accept(webhooks).unwrap();
    let full = Place {
        sender: acme(json!({})),
        inbox,
        service,
    };
    let more = r#"{"events":[{"id":1,"type":"t"},{"id":3,"type":"t"}]}"#;
    full.send(more).await.assert_problem(503, "backlog-full");
    full.send(first).await.assert_replayed();
    assert_eq!(full.records().await.len(), 2);
}

#[tokio::test]
async fn event_types_are_kept_by_item() {
    let only = |webhooks: Webhooks| webhooks.keep_only([EventKind::from_static("opened")]);
    let place = Place::with(MemoryQueue::new(), acme(json!({"kind": "/type"})), only);
    let item = |id: u8, kind| format!(r#"{{"id":{id},"type":"{kind}"}}"#);
    let of = |items: &[String]| format!(r#"{{"type":"t","events":[{}]}}"#, items.join(","));
    let both = of(&[item(1, "closed"), item(2, "opened"), "17".to_owned()]);
    place.send(&both).await.assert_ok();
    place.send(&of(&[item(3, "closed")])).await.assert_ok();
    place.send(&item(4, "closed")).await.assert_ok();
    let records = place.records().await;
    assert_eq!(bodies(&records), [&*item(2, "opened"), "17"]);
    let numbers: Vec<_> = records
        .iter()
        .map(|record| record.item.as_ref().unwrap().to_string())
        .collect();
    assert_eq!(numbers, ["item 2 of 3", "item 3 of 3"]);
}

/// The bytes that were signed are no JSON, and a handler gets them all the same.
#[tokio::test]
async fn a_form_is_an_event_that_waits_for_its_handler() {
    let sender = Sender::named("slack-commands", None).unwrap();
    let place = Place::with(MemoryQueue::new(), sender, |webhooks| webhooks);
    let form = "command=%2Fweather&text=94070&team_id=T-1";
    let mut request = place.request("ignored", form);
    let kind = "application/x-www-form-urlencoded".parse().unwrap();
    request.headers_mut().insert("content-type", kind);
    send(&place.service, request).await.assert_ok();
    let records = place.records().await;
    assert_eq!(bodies(&records), [form]);
    assert_eq!(records[0].summary.state, EventState::Waiting);
}

#[tokio::test]
async fn a_path_that_finds_no_array_in_100_deliveries_is_warned_of_once() {
    let both = json!([{"path": "/evnts/*", "key": "/id"}, {"path": "/data/*/events/*"}]);
    for (found_at, body) in [
        (None, r#""events":[{"id":"1"}]}"#),
        // The items of a mistyped inner name have the type of the delivery.
        (Some(150), r#""data":[{"evnts":[{"id":"1"}]}]}"#),
        (Some(50), "no JSON"),
        (Some(50), r#""events":7}"#),
    ] {
        let log = Log::capture(tracing::Level::WARN);
        let place = Place::new(MemoryQueue::new(), json!({ "batch": both }));
        for n in 0..250 {
            let found = r#""data":[{"events":[]}]}"#;
            let body = if found_at == Some(n) { found } else { body };
            // No body comes twice.
            place
                .send(&format!(r#"{{"n":{n},{body}"#))
                .await
                .assert_ok();
        }
        let events = log.events();
        let told: Vec<_> = events
            .iter()
            .filter(|line| line["message"].contains("none of the first 100 deliveries"))
            .map(|line| (&*line["field"], &*line["pointers"], &*line["last"]))
            .collect();
        let paths = "/evnts/*, /data/*/events/*";
        match found_at {
            Some(50) => assert!(told.is_empty(), "{told:?}"),
            _ => assert_eq!(told, [("batch", paths, "no array stands there")]),
        }
    }
}
