//! Deliveries of several events that are handled before the response.

#![cfg(feature = "moka")]

use std::convert::Infallible;
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};
use tower::service_fn;
use tower_webhook::idempotency::Idempotency;
use tower_webhook::memory::MokaStore;
use tower_webhook::signature::Signature;
use tower_webhook::telemetry::FailureBudget;
use tower_webhook::{
    Decision, EventKind, EventRouter, HandlerError, HandlerResult, IdempotencyKey,
    IdempotencyLayer, RawDelivery, Sender, Verified, Webhooks,
};

use support::Ready;
use support::delivery::{Answered, HANDLER_ERROR, RequestExt, secret, send};
use support::log::Log;
use support::observer::Notes;
use support::store::{Operation, TestStore};

/// A sender with an unsigned key in a header, whose items have ids, types and chats.
fn acme() -> Sender {
    described(json!({
        "path": "/events/*", "key": "/id", "kind": "/type", "order": "/chat", "keep": ["^/account"],
    }))
}

fn described(batch: Value) -> Sender {
    let sender = json!({
        "name": "acme",
        "key": "x-id",
        "batch": batch,
        "signature": { "headers": ["x-tag"], "algorithm": "hmac-sha256", "coding": "hex" },
    });
    serde_json::from_value(sender).unwrap()
}

fn request(sender: &Sender, key: &str, body: &str) -> Request<Full<Bytes>> {
    let delivery = RawDelivery::new(EventKind::from_static("acme"), body.to_owned());
    let delivery = delivery.with_key(IdempotencyKey::new(key.parse().unwrap()));
    let mut request = Request::post("/")
        .body(Full::from(body.to_owned()))
        .unwrap();
    *request.headers_mut() = sender.sign(&secret(), &delivery).unwrap();
    request
}

/// What an item asks its handler for.
#[derive(Default, Deserialize)]
struct Order {
    #[serde(default)]
    fails: bool,
    #[serde(default)]
    panics: bool,
    #[serde(default)]
    hangs: bool,
    #[serde(default)]
    millis: u64,
}

/// A handler that does what items ask for, in their first attempt or while it is told to, and notes their ids.
#[derive(Clone, Default)]
struct Work {
    seen: Arc<Mutex<Vec<String>>>,
    is_healthy: Arc<std::sync::atomic::AtomicBool>,
}

impl Work {
    /// The items since the last call, by their ids, or else their keys.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }

    fn heal(&self) {
        let order = std::sync::atomic::Ordering::SeqCst;
        self.is_healthy.store(true, order);
    }

    async fn handle(&self, delivery: RawDelivery) -> HandlerResult {
        self.note(&delivery);
        let Order {
            fails,
            panics,
            hangs,
            millis,
        } = delivery.decode()?;
        if millis > 0 {
            sleep(Duration::from_millis(millis)).await;
        }
        if self.is_healthy.load(std::sync::atomic::Ordering::SeqCst) {
            return Ok(());
        }
        assert!(!panics, "{HANDLER_ERROR}");
        if hangs {
            pending::<()>().await;
        }
        match fails {
            true => Err(HandlerError::retry(HANDLER_ERROR)),
            false => Ok(()),
        }
    }

    fn note(&self, delivery: &RawDelivery) {
        self.seen
            .lock()
            .unwrap()
            .push(delivery.key().unwrap().to_string());
    }

    fn router(&self) -> EventRouter {
        let work = self.clone();
        EventRouter::new().fallback(move |delivery: RawDelivery| {
            let work = work.clone();
            async move { work.handle(delivery).await }
        })
    }
}

type Service<St> = Signature<Idempotency<EventRouter, St>>;

/// A receiver, its sender, and what its handler has seen.
struct Place<St> {
    sender: Sender,
    work: Work,
    service: Service<St>,
}

impl Place<MokaStore> {
    fn new(sender: Sender) -> Self {
        Self::with(sender, |webhooks| webhooks.store(MokaStore::new()))
    }
}

impl<St: tower_webhook::store::Store + Clone> Place<St> {
    fn with(sender: Sender, set: impl FnOnce(Webhooks) -> Webhooks<IdempotencyLayer<St>>) -> Self {
        let work = Work::default();
        let webhooks = set(Webhooks::new(secret()).sender(sender.clone()));
        let service = webhooks.layer(work.router());
        Self {
            sender,
            work,
            service,
        }
    }

    async fn send_as(&self, key: &str, body: &str) -> Answered {
        send(&self.service, request(&self.sender, key, body)).await
    }

    /// Sends items under a key of its own.
    async fn send(&self, items: &[Value]) -> Answered {
        let key = fastrand::u128(..).to_string();
        self.send_as(&key, &batch(items)).await
    }
}

fn batch(items: &[Value]) -> String {
    json!({ "account": "a-1", "events": items }).to_string()
}

/// An item, with these fields beside its id and type.
fn item(id: impl Into<Value>, beside: &Value) -> Value {
    let mut item = json!({ "id": id.into(), "type": "opened" });
    let fields = beside.as_object().cloned().unwrap_or_default();
    item.as_object_mut().unwrap().extend(fields);
    item
}

fn plain(id: impl Into<Value>) -> Value {
    item(id, &Value::Null)
}

#[tokio::test]
async fn each_item_is_handled_once_with_the_bytes_that_were_signed() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = Notes::default();
    let inner = {
        let seen = Arc::clone(&seen);
        service_fn(move |request: Request<Verified>| {
            let delivery = request.body().delivery();
            let item = delivery.item().unwrap();
            // The request is that of the item, whatever the delivery's was.
            assert!(!request.headers().contains_key("content-length"));
            assert_eq!(request.headers()["x-id"], "d-1");
            let kept = item.kept().unwrap().to_owned();
            let row = (
                delivery.json().unwrap().to_owned(),
                delivery.kind().to_string(),
                item.to_string(),
                kept,
            );
            assert_eq!(delivery.attempt().map(u32::from), Some(1));
            assert_eq!(delivery.route().as_str(), "acme");
            seen.lock().unwrap().push(row);
            std::future::ready(Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())))
        })
    };
    let webhooks = Webhooks::new(secret())
        .sender(acme())
        .observer(notes.clone());
    let service = webhooks.layer(inner);
    let items = [
        r#"{"id":"1", "type":"opened", "n": 1.0}"#,
        r#"{ "id":2,"type":"closed"}"#,
        r#"{"id":"ü","type":"opened"}"#,
    ];
    let body = format!(
        r#" {{"events" : [ {} ] , "account":"a-1"}}"#,
        items.join(" , ")
    );
    let delivered =
        || request(&acme(), "d-1", &body).with("content-length", body.len().to_string());
    send(&service, delivered()).await.assert_ok();
    let expected: Vec<_> = [("opened", 1), ("closed", 2), ("opened", 3)]
        .iter()
        .zip(items)
        .map(|((kind, number), item)| {
            let place = format!("item {number} of 3");
            (
                item.to_owned(),
                (*kind).to_owned(),
                place,
                r#"{"account":"a-1"}"#.to_owned(),
            )
        })
        .collect();
    assert_eq!(std::mem::take(&mut *seen.lock().unwrap()), expected);
    let ends = notes.take_ends();
    assert_eq!(
        ends.iter()
            .filter(|line| line.starts_with("attempt 1 handled inline"))
            .count(),
        3,
        "{ends:?}"
    );
    assert!(
        ends[3].starts_with("delivery handled 200 acme d-1 verified"),
        "{ends:?}"
    );
    send(&service, delivered()).await.assert_replayed();
    assert!(seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_failing_item_does_not_end_the_rest_and_a_redelivery_runs_only_it() {
    for bad in ["fails", "panics"] {
        let place = Place::new(acme());
        let items = [plain(1), item(2, &json!({ bad: true })), plain(3)];
        place.send(&items).await.assert_problem(503, "incomplete");
        assert_eq!(place.work.take(), ["1", "2", "3"]);
        place.send(&items).await.assert_problem(503, "incomplete");
        assert_eq!(place.work.take(), ["2"]);
        place.work.heal();
        place.send(&items).await.assert_ok();
        assert_eq!(place.work.take(), ["2"]);
        place.send(&items).await.assert_replayed();
        assert!(place.work.take().is_empty());
    }
}

#[tokio::test]
async fn what_follows_a_failing_item_in_its_lane_waits() {
    let place = Place::new(acme());
    let of = |chat: &str, bad: bool| json!({ "chat": chat, "fails": bad });
    let items = [
        item(1, &of("a", true)),
        item(2, &of("b", false)),
        item(3, &of("a", false)),
        plain(4),
        item(5, &of("a", false)),
        item(6, &of("b", false)),
    ];
    let log = Log::capture(tracing::Level::INFO);
    place.send(&items).await.assert_problem(503, "incomplete");
    assert_eq!(place.work.take(), ["1", "2", "4", "6"]);
    let events = log.events();
    let [failed, incomplete] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(
        (failed["span"].as_str(), failed["outcome"].as_str()),
        ("item", "failed")
    );
    assert_eq!(
        (incomplete["left"].as_str(), incomplete["count"].as_str()),
        ("3", "6")
    );
    log.clear();
    place.work.heal();
    place.send(&items).await.assert_ok();
    assert_eq!(place.work.take(), ["1", "3", "5"]);
    let spans = log.spans();
    let of_items: Vec<_> = spans.iter().filter(|span| span["name"] == "item").collect();
    assert_eq!(of_items.len(), 6);
    assert_eq!(of_items[2]["item"], "item 3 of 6");
    assert_eq!(
        (of_items[2]["key"].as_str(), of_items[2]["parent"].as_str()),
        ("3", "delivery")
    );
}

#[tokio::test(start_paused = true)]
async fn the_time_limit_is_that_of_the_delivery_and_what_it_cuts_is_not_claimed() {
    let store = TestStore::<true>::default();
    let place = Place::with(acme(), |it| {
        it.store(store.clone())
            .handler_timeout(Duration::from_secs(10))
    });
    let takes = |id: u8| item(id, &json!({ "millis": 4_000 }));
    let items = [takes(1), takes(2), takes(3), takes(4)];
    let began = Instant::now();
    place.send(&items).await.assert_problem(503, "incomplete");
    assert_eq!(began.elapsed(), Duration::from_secs(10));
    // The third one was cut, the fourth one not begun.
    assert_eq!(place.work.take(), ["1", "2", "3"]);
    assert_eq!(store.calls(Operation::Claim).len(), 3);
    assert_eq!(store.calls(Operation::Complete).len(), 2);
    assert_eq!(store.calls(Operation::Release).len(), 1);
    place.send(&items).await.assert_ok();
    assert_eq!(place.work.take(), ["3", "4"]);

    let hangs = item(5, &json!({ "hangs": true }));
    place
        .send(&[hangs, plain(6)])
        .await
        .assert_problem(503, "incomplete");
    assert_eq!(place.work.take(), ["5"]);
}

#[tokio::test]
async fn an_item_that_cannot_be_read_counts_as_handled() {
    let place = Place::new(acme());
    let items = [
        plain(1),
        json!(7),
        json!({ "id": "no type" }),
        json!({ "id": 3, "type": "a\u{7f}" }),
        json!({ "id": {}, "type": "opened" }),
        json!(null),
        json!([{ "id": 4, "type": "opened" }]),
        plain(5),
    ];
    let log = Log::capture(tracing::Level::ERROR);
    place.send_as("d-1", &batch(&items)).await.assert_ok();
    assert_eq!(place.work.take(), ["1", "5"]);
    assert_eq!(
        log.count(tracing::Level::ERROR, "cannot be read"),
        6,
        "{}",
        log.text()
    );
    assert!(
        log.events()
            .iter()
            .all(|event| !format!("{event:?}").contains("no type"))
    );
    log.clear();
    place.send_as("d-1", &batch(&items)).await.assert_replayed();
    assert!(log.events().is_empty());

    // One that its handler cannot decode fails, as a single event does.
    let wrong = [item(6, &json!({ "millis": "many" })), plain(7)];
    place.send(&wrong).await.assert_problem(503, "incomplete");
    assert_eq!(place.work.take(), ["6", "7"]);
    let forgiving = place.work.router().on_undecodable(async |_, _| Ok(()));
    let typed = forgiving.on_named("typed", async |(): (), _| Ok(()));
    let service = Webhooks::new(secret()).sender(acme()).layer(typed);
    let wrong = batch(&[json!({ "id": 8, "type": "typed" })]);
    send(&service, request(&acme(), "d", &wrong))
        .await
        .assert_ok();
}

#[tokio::test]
async fn of_equal_keys_in_a_delivery_the_first_counts() {
    let place = Place::new(acme());
    let twice = [
        item(1, &json!({ "n": 1 })),
        plain(2),
        item(1, &json!({ "n": 2 })),
        plain(2),
    ];
    place.send(&twice).await.assert_ok();
    assert_eq!(place.work.take(), ["1", "2"]);
    place.send(&twice).await.assert_replayed();
    // The second is not tried in place of the first.
    let fails = [item(3, &json!({ "fails": true })), plain(3)];
    place.send(&fails).await.assert_problem(503, "incomplete");
    assert_eq!(place.work.take(), ["3"]);
    // Without keys, equal items are as many events.
    let events = json!({ "type": "tick" });
    place
        .send_as("d-1", &batch(&[events.clone(), events.clone()]))
        .await
        .assert_ok();
    assert_eq!(place.work.take().len(), 2);
    place
        .send_as("d-1", &batch(&[events.clone(), events.clone()]))
        .await
        .assert_replayed();
    place
        .send_as("d-1", &batch(&[events.clone(), events.clone(), events]))
        .await
        .assert_ok();
    assert_eq!(place.work.take().len(), 1);
}

/// A redelivery may cut the same items into other batches.
#[tokio::test]
async fn each_item_is_handled_once_however_redeliveries_are_cut() {
    let place = Place::new(acme());
    let all: Vec<_> = (0..40).map(plain).collect();
    let mut handled = Vec::new();
    for round in 0..30 {
        let from = fastrand::usize(..all.len());
        let to = fastrand::usize(from..=all.len());
        let (from, to) = if round == 29 {
            (0, all.len())
        } else {
            (from, to)
        };
        let answered = place.send(&all[from..to]).await;
        assert_eq!(answered.status, StatusCode::OK);
        let seen = place.work.take();
        assert_eq!(answered.is_replay(), seen.is_empty() && from < to);
        handled.extend(seen);
    }
    handled.sort_by_key(|id| id.parse::<u32>().unwrap());
    assert_eq!(
        handled,
        (0..40).map(|id| id.to_string()).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn a_known_key_with_another_body_is_a_duplicate() {
    let place = Place::with(acme(), |it| {
        it.reject_changed_bodies().store(MokaStore::new())
    });
    place.send(&[plain(1)]).await.assert_ok();
    let log = Log::capture(tracing::Level::WARN);
    let changed = item(1, &json!({ "redelivered": true }));
    place
        .send(std::slice::from_ref(&changed))
        .await
        .assert_replayed();
    place.send(&[changed, plain(2)]).await.assert_ok();
    assert_eq!(place.work.take(), ["1", "2"]);
    assert_eq!(log.count(tracing::Level::WARN, "with another body"), 2);
}

/// The key of a delivery is not signed, and those of items are.
#[tokio::test]
async fn the_replay_guard_looks_at_the_body_of_the_delivery() {
    let place = Place::new(acme());
    let own = batch(&[plain(1)]);
    place.send_as("a", &own).await.assert_ok();
    place.send_as("b", &own).await.assert_replayed();
    let made = batch(&[
        json!({ "type": "t" }),
        json!({ "type": "t", "fails": true }),
    ]);
    for key in ["c", "d"] {
        // It failed, so its body is free again, under any key.
        place
            .send_as(key, &made)
            .await
            .assert_problem(503, "incomplete");
    }
    place.work.heal();
    place.send_as("c", &made).await.assert_ok();
    place.work.take();
    place
        .send_as("e", &made)
        .await
        .assert_problem(422, "body-replayed");
    place.send_as("c", &made).await.assert_replayed();
    assert!(place.work.take().is_empty());
    // An item of it may come again in another body.
    place
        .send_as("f", &batch(&[json!({ "type": "t" })]))
        .await
        .assert_ok();
    assert_eq!(place.work.take().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_item_in_flight_elsewhere_is_waited_for_and_the_rest_handled() {
    let place = Place::new(acme());
    let slow = |millis: u64, chat: &str| item(1, &json!({ "millis": millis, "chat": chat }));
    let first = [slow(3_000, "a"), item(2, &json!({ "chat": "a" }))];
    let (one, other) = tokio::join!(place.send(&first), async {
        sleep(Duration::from_secs(1)).await;
        place.send(&first).await
    });
    one.assert_ok();
    // Whichever of the two came to the second item.
    assert_eq!(other.status, StatusCode::OK);
    assert_eq!(place.work.take(), ["1", "2"]);

    let place = Place::new(acme());
    let first = [slow(20_000, "a")];
    let second = [
        plain(7),
        slow(20_000, "a"),
        item(8, &json!({ "chat": "a" })),
        plain(9),
    ];
    let (one, other) = tokio::join!(place.send(&first), async {
        sleep(Duration::from_secs(1)).await;
        place.send(&second).await
    });
    one.assert_ok();
    other.assert_problem(409, "in-flight");
    assert!(other.retry_after().is_some());
    assert_eq!(place.work.take(), ["1", "7", "9"]);
    place.send(&second).await.assert_ok();
    assert_eq!(place.work.take(), ["8"]);

    // Of many in flight, one is waited for.
    let place = Place::new(acme());
    let hang = |id: u32| item(id, &json!({ "millis": 29_000 }));
    let many = (0..20).map(|id| {
        let place = &place;
        async move { place.send(&[hang(id)]).await }
    });
    let all: Vec<_> = (0..20).map(hang).collect();
    let (_, waited) = tokio::join!(futures_util::future::join_all(many), async {
        sleep(Duration::from_secs(1)).await;
        let began = Instant::now();
        place.send(&all).await.assert_problem(409, "in-flight");
        began.elapsed()
    });
    assert_eq!(waited, Duration::from_secs(5));
}

#[tokio::test]
async fn a_body_without_items_is_one_event_or_none() {
    let place = Place::new(acme());
    for empty in [r#"{"events":[]}"#, r#"{"events":[],"other":[{"id":1}]}"#] {
        place.send_as("d", empty).await.assert_ok();
    }
    assert!(place.work.take().is_empty());
    for (key, whole) in [
        ("w-1", "{}"),
        ("w-2", r#"{"events":{"id":1}}"#),
        ("w-3", r#"{"events":null}"#),
    ] {
        place.send_as(key, whole).await.assert_ok();
        place.send_as(key, whole).await.assert_replayed();
    }
    assert_eq!(place.work.take(), ["w-1", "w-2", "w-3"]);
    // What is no JSON reaches the router, as of a single event.
    place
        .send_as("w-4", "[")
        .await
        .assert_problem(422, "undecodable");
    let doubled = r#"{"events":[{"id":1,"type":"t"}],"events":[]}"#;
    place.send_as("w-5", doubled).await.assert_ok();
    assert_eq!(place.work.take(), ["w-5"]);
}

#[tokio::test]
async fn more_than_ten_thousand_items_are_one_event_that_is_not_read() {
    let place = Place::new(acme());
    let items: Vec<_> = (0..10_001).map(plain).collect();
    let log = Log::capture(tracing::Level::ERROR);
    place.send(&items).await.assert_ok();
    assert!(place.work.take().is_empty());
    assert_eq!(log.events().len(), 1, "{}", log.text());
    place.send(&items[1..]).await.assert_ok();
    assert_eq!(place.work.take().len(), 10_000);
    assert_eq!(log.events().len(), 1);
}

#[tokio::test]
async fn a_store_that_fails_ends_the_delivery() {
    let store = TestStore::<true>::new(|call| match call {
        call if call.op == Operation::Claim && call.nth == 2 => support::store::Fault::Error,
        _ => support::store::Fault::None,
    });
    let place = Place::with(acme(), |it| it.store(store.clone()));
    let items = [plain(1), plain(2), plain(3)];
    place
        .send(&items)
        .await
        .assert_problem(503, "database-unavailable");
    assert_eq!(place.work.take(), ["1"]);
    place.send(&items).await.assert_ok();
    assert_eq!(place.work.take(), ["2", "3"]);
    // A success that is not recorded is repeated.
    store.fail([Operation::Complete]);
    tokio::time::pause();
    place
        .send(&[plain(4)])
        .await
        .assert_problem(503, "incomplete");
    store.fail([]);
    assert_eq!(place.work.take(), ["4"]);

    let failing = TestStore::<true>::default();
    failing.fail([Operation::Claim]);
    let place = Place::with(acme(), |it| {
        it.store(failing.clone()).dangerously_handle_without_store()
    });
    for _ in 0..2 {
        place.send(&items).await.assert_ok();
        assert_eq!(place.work.take(), ["1", "2", "3"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_disconnects_does_not_end_the_items() {
    let place = Place::new(acme());
    let slow = |id: u8| item(id, &json!({ "millis": 2_000 }));
    let items = [slow(1), slow(2), slow(3)];
    let left = timeout(Duration::from_secs(1), place.send(&items)).await;
    assert!(left.is_err());
    sleep(Duration::from_secs(10)).await;
    assert_eq!(place.work.take(), ["1", "2", "3"]);
    place.send(&items).await.assert_replayed();
}

#[tokio::test]
async fn items_are_filtered_by_their_types() {
    let kinds = ["opened", "acme"].map(|kind| kind.parse().unwrap());
    let place = Place::with(acme(), |it| it.keep_only(kinds).store(MokaStore::new()));
    let other = json!({ "id": 1, "type": "closed" });
    place.send(&[other.clone(), plain(2)]).await.assert_ok();
    assert_eq!(place.work.take(), ["2"]);
    place.send(&[other]).await.assert_ok();
    place.send_as("whole", "{}").await.assert_ok();
    assert_eq!(place.work.take(), ["whole"]);
    // One that is left out is not the first of equal keys, and its body is not guarded.
    let equal = [json!({ "id": 3, "type": "closed" }), plain(3)];
    place.send(&equal).await.assert_ok();
    assert_eq!(place.work.take(), ["3"]);
    let without = batch(&[json!({ "type": "closed" }), plain(4)]);
    for key in ["a", "b"] {
        place.send_as(key, &without).await.assert_ok();
    }
    assert_eq!(place.work.take(), ["4"]);
    let none = Place::with(acme(), |it| {
        it.keep_only(["opened".parse().unwrap()])
            .store(MokaStore::new())
    });
    none.send_as("whole", "{}").await.assert_ok();
    assert!(none.work.take().is_empty());
}

/// What all items have in common is the outcome of their delivery.
#[tokio::test]
async fn the_outcome_of_a_delivery_is_that_of_its_items() {
    let kept = ["a", "b"].map(|kind| kind.parse().unwrap());
    let router = EventRouter::new().on_named("a", async |_: Value, _| Ok(()));
    let service = Webhooks::new(secret())
        .sender(acme())
        .keep_only(kept)
        .layer(router);
    let of = |kinds: &[&str]| {
        let items = kinds
            .iter()
            .map(|kind| json!({ "id": format!("{kind}{}", fastrand::u64(..)), "type": kind }));
        request(
            &acme(),
            &fastrand::u64(..).to_string(),
            &batch(&items.collect::<Vec<_>>()),
        )
    };
    for (kinds, outcome) in [
        (&["a", "a"][..], "handled"),
        (&["b", "b"], "ignored"),
        (&["c"], "filtered"),
        (&["b", "c"], "handled"),
        (&[], "handled"),
    ] {
        let response = tower::ServiceExt::oneshot(service.clone(), of(kinds))
            .await
            .unwrap();
        let decision = Decision::of(&response).unwrap();
        assert_eq!(
            (response.status().as_u16(), decision.name()),
            (200, outcome),
            "{kinds:?}"
        );
        assert_eq!(decision.kind().unwrap().as_str(), "acme");
    }
}

#[tokio::test]
async fn behind_the_signature_alone_a_delivery_is_whole() {
    let work = Work::default();
    let webhooks = Webhooks::new(secret()).sender(acme());
    let layer = webhooks.into_signature_layer().unwrap();
    let service = tower::Layer::layer(&layer, work.router());
    send(&service, request(&acme(), "d-1", &batch(&[plain(1)])))
        .await
        .assert_ok();
    assert_eq!(work.take(), ["d-1"]);
    // A layer that deduplicates needs no other setting to split it.
    let both = tower::ServiceBuilder::new()
        .layer(layer)
        .layer(IdempotencyLayer::new(MokaStore::new()))
        .service(work.router());
    send(
        &both,
        request(&acme(), "d-1", &batch(&[plain(1), plain(2)])),
    )
    .await
    .assert_ok();
    assert_eq!(work.take(), ["1", "2"]);
}

#[tokio::test]
async fn the_failure_budget_counts_a_delivery_once_however_many_items_it_has() {
    let (budget, sender) = (FailureBudget::new(), acme());
    let fails = |_: RawDelivery| async { HandlerResult::Err(HANDLER_ERROR.into()) };
    let (service, _running) = Webhooks::new(secret())
        .sender(sender.clone())
        .observer(budget.clone())
        .start(EventRouter::new().fallback(fails))
        .unwrap();
    let items: Vec<_> = (0..17)
        .map(|n| json!({"id": n, "type": "t", "chat": n}))
        .collect();
    let body = json!({ "events": items }).to_string();
    for failures in 1..=2 {
        let answered = send(&service, request(&sender, "key", &body)).await;
        assert_eq!(answered.status, StatusCode::SERVICE_UNAVAILABLE);
        let spent = budget.spent();
        let spent: Vec<_> = spent
            .iter()
            .map(|it| (it.failures, it.kind.clone()))
            .collect();
        assert_eq!(spent, [(failures, Some(EventKind::from_static("acme")))]);
    }
}
