//! The log of each delivery, and what it must not contain.

#![cfg(feature = "moka")]

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use http::{Method, Request};
use tower::{Layer, Service};
use tower_webhook::event::ChatRated;
use tower_webhook::{Delivery, EventKind, EventRouter, IdempotencyLayer, RawDelivery, Webhooks};
use tracing::Level;
use tracing_subscriber::fmt::format::FmtSpan;

use support::Ready;
use support::SECOND;
use support::delivery::{
    BODY, CONTENT_TYPE, Crm, EVENT, HANDLER_ERROR, KEY, RequestExt, SECRET, SIGNATURE, Step,
    delivery, secret, send,
};
use support::log::{Fields, Log};
use support::store::{Operation, TestStore};

/// Stands in payloads and headers, and must not be logged.
const MARKER: &str = "marker-of-the-payload";
// Not the chat's id, which the span has.
const MARKED: &str = r#"{"to":"marker-of-the-payload"}"#;

/// A receiver, and the delivery that it is about to get.
struct Setup {
    layer: Webhooks<IdempotencyLayer<TestStore>>,
    router: EventRouter,
    store: TestStore,
    crm: Crm,
    before: Before,
    request: Request<Body>,
}

enum Before {
    Nothing,
    Delivered(Request<Body>),
    Running(Request<Body>),
}

fn boxed(request: Request<http_body_util::Full<bytes::Bytes>>) -> Request<Body> {
    request.map(Body::new)
}

fn setup(steps: &[Step]) -> Setup {
    let store = TestStore::default();
    let crm = Crm::new(steps.iter().copied());
    Setup {
        layer: Webhooks::new(secret()).store(store.clone()),
        router: EventRouter::new().on::<ChatRated>(crm.clone()),
        store,
        crm,
        before: Before::Nothing,
        request: boxed(delivery(MARKED).key("a")),
    }
}

impl Setup {
    fn request(mut self, change: impl FnOnce(Request<Body>) -> Request<Body>) -> Self {
        self.request = change(self.request);
        self
    }

    fn layer(
        mut self,
        change: impl FnOnce(
            Webhooks<IdempotencyLayer<TestStore>>,
        ) -> Webhooks<IdempotencyLayer<TestStore>>,
    ) -> Self {
        self.layer = change(self.layer);
        self
    }

    fn router(mut self, change: impl FnOnce(EventRouter) -> EventRouter) -> Self {
        self.router = change(self.router);
        self
    }

    fn before(mut self, before: Before) -> Self {
        self.before = before;
        self
    }

    fn body(self, body: &'static [u8]) -> Self {
        self.request(|_| boxed(delivery(body).key("a")))
    }

    fn fails(self, operation: Operation) -> Self {
        self.store.fail([operation]);
        self
    }

    async fn run(self, log: &Log) {
        let service = self.layer.layer(self.router);
        let mut running = None;
        match self.before {
            Before::Nothing => {}
            Before::Delivered(request) => send(&service, request).await.assert_ok(),
            Before::Running(request) => {
                let service = service.clone();
                running = Some(tokio::spawn(async move { send(&service, request).await }));
                while self.crm.runs() == 0 {
                    tokio::task::yield_now().await;
                }
            }
        }
        log.clear();
        send(&service, self.request).await;
        if let Some(running) = running {
            running.await.unwrap().assert_ok();
        }
    }
}

/// Every row of the table: its name, the level of its event if that is above debug, and a way to
/// get there.
#[rustfmt::skip]
fn rows() -> Vec<(&'static str, Option<Level>, Setup)> {
    const WARN: Option<Level> = Some(Level::WARN);
    const ERROR: Option<Level> = Some(Level::ERROR);
    let broken = || {
        let parts: [Result<&str, &str>; 2] = [Ok(MARKED), Err("connection reset")];
        Body::from_stream(futures_util::stream::iter(parts))
    };
    let endless = || Body::from_stream(futures_util::stream::pending::<Result<&str, &str>>());
    let other_tag = secret().sign(b"other");
    let other_body = || boxed(delivery(BODY).key("a"));
    let undecodable = |body| ("undecodable", WARN, setup(&[]).body(body));
    let odd = |body| ("handled", None, setup(&[]).body(body));
    vec![
        ("method-not-allowed", WARN, setup(&[]).request(|mut it| { *it.method_mut() = Method::PUT; it })),
        ("body-too-large", WARN, setup(&[]).layer(|it| it.max_body(9))),
        ("overloaded", WARN, setup(&[]).layer(|it| it.max_buffered(9)).body(&[b' '; 100_000])),
        ("body-timeout", WARN, setup(&[]).request(|it| it.map(|_| endless()))),
        ("malformed-body", WARN, setup(&[]).request(|it| it.map(|_| broken()))),
        ("malformed-body", WARN, setup(&[]).request(|it| it.with("content-length", "9999"))),
        ("malformed-body", WARN, setup(&[]).request(|it| it.with("content-length", MARKER))),
        ("invalid-signature", WARN, setup(&[]).request(|it| it.without(SIGNATURE))),
        ("invalid-signature", WARN, setup(&[]).request(|it| it.with(SIGNATURE, MARKER))),
        ("invalid-signature", WARN, setup(&[]).request(|it| it.with(SIGNATURE, SECRET))),
        ("invalid-signature", WARN, setup(&[]).request(|it| it.with(SIGNATURE, &other_tag))),
        ("invalid-signature", WARN, setup(&[]).request(|it| it.and(SIGNATURE, &other_tag))),
        ("unsupported-media-type", WARN, setup(&[]).request(|it| it.with(CONTENT_TYPE, MARKER))),
        ("invalid-event-header", WARN, setup(&[]).request(|it| it.with(EVENT, format!("{MARKER} {MARKER}")))),
        ("conflicting-keys", WARN, setup(&[]).request(|it| it.and(KEY, MARKER))),
        ("missing-key", WARN, setup(&[]).layer(Webhooks::require_key).request(|it| it.without(KEY))),
        ("database-unavailable", WARN, setup(&[]).fails(Operation::Claim)),
        ("replayed", None, setup(&[]).before(Before::Delivered(boxed(delivery(MARKED).key("a"))))),
        ("replayed", None, setup(&[]).before(Before::Delivered(other_body()))),
        ("in-flight", WARN, setup(&[Step::SucceedAfter(9 * SECOND)]).before(Before::Running(other_body()))),
        ("body-changed", WARN, setup(&[]).layer(Webhooks::reject_changed_bodies).before(Before::Delivered(other_body()))),
        ("body-replayed", WARN, setup(&[]).layer(Webhooks::replay_guard).before(Before::Delivered(boxed(delivery(MARKED).key("b"))))),
        ("ignored", None, setup(&[]).request(|it| it.kind("chat-archived"))),
        ("filtered", None, setup(&[]).layer(|it| it.keep_only([EventKind::CHAT_CLOSED]))),
        ("unhandled", WARN, setup(&[]).router(EventRouter::reject_unhandled).request(|it| it.kind("chat-archived"))),
        undecodable(br#"{"id":"marker-of-the-payload"#),
        undecodable(br#"{"id":"marker-of-the-payload"} marker-of-the-payload"#),
        undecodable(br#"{"id":marker-of-the-payload}"#),
        undecodable(br#"["marker-of-the-payload"]"#),
        undecodable(b"\xff marker-of-the-payload"),
        ("handled", None, setup(&[])),
        odd(br#"{"id":["marker-of-the-payload"],"rating":"marker-of-the-payload"}"#),
        odd(br#"{"user":"marker-of-the-payload","category":{"id":{"marker-of-the-payload":1}}}"#),
        odd(br#"{"customMeta":{"marker-of-the-payload":1,"x":["marker-of-the-payload"]}}"#),
        odd(br#"{"marker-of-the-payload":1,"createdAt":"marker-of-the-payload"}"#),
        odd(br#"{"question":"marker-of-the-payload \ud83d","rating":1e999}"#),
        ("not-recorded", ERROR, setup(&[]).fails(Operation::Complete)),
        ("discarded", WARN, setup(&[Step::Discard])),
        ("failed", ERROR, setup(&[Step::Fail])),
        ("panicked", ERROR, setup(&[Step::Panic])),
        ("panicked", ERROR, setup(&[Step::PanicAfterAwait])),
        ("handler-timeout", ERROR, setup(&[Step::Hang])),
        ("lease-lost", ERROR, setup(&[Step::Hang]).fails(Operation::Renew)
            .layer(|it| it.handler_timeout(90 * SECOND))),
    ]
}

#[tokio::test(start_paused = true)]
async fn every_delivery_has_one_span_and_every_refusal_one_event() {
    let log = Log::capture(Level::INFO);
    for (outcome, level, setup) in rows() {
        setup.run(&log).await;

        let spans = log.spans();
        assert_eq!(spans.len(), 1, "{outcome}: {spans:?}");
        let span = &spans[0];
        assert_eq!((&*span["name"], &*span["outcome"]), ("delivery", outcome));
        assert!(span["duration_ms"].parse::<f64>().unwrap() >= 0.0);

        let events = log.events();
        let refusals: Vec<&Fields> = events
            .iter()
            .filter(|it| it.contains_key("outcome"))
            .collect();
        match level {
            None => assert!(refusals.is_empty(), "{outcome}: {refusals:?}"),
            Some(level) => {
                let [event] = refusals[..] else {
                    panic!("{outcome}: {refusals:?}");
                };
                assert_eq!(
                    (&*event["outcome"], &*event["level"]),
                    (outcome, level.as_str())
                );
                assert_eq!(event["span"], "delivery");
                let reason = ["handler-timeout", "lease-lost"];
                assert_ne!(
                    reason.contains(&outcome),
                    event.contains_key("reason"),
                    "{event:?}"
                );
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn log_contains_no_secret_signature_or_payload() {
    let log = Log::capture(Level::INFO);
    for (outcome, _, setup) in rows() {
        setup.run(&log).await;
        let text = log.text();
        assert!(text.contains(outcome));
        for hidden in [SECRET, &hex::encode(SECRET), MARKER] {
            assert!(!text.contains(hidden), "{outcome}: {text}");
        }
        let digest = text
            .split(|character: char| !character.is_ascii_hexdigit())
            .find(|digits| digits.len() >= 32);
        assert_eq!(digest, None, "{outcome}: {text}");
    }
}

/// What a subscriber writes by default.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(text)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_line_is_quoted_and_says_everything_once() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_span_events(FmtSpan::CLOSE)
        .with_writer(move || writer.clone());
    let _log = tracing::subscriber::set_default(subscriber.finish());
    let router = EventRouter::new().on::<ChatRated>(async |rated: Delivery<ChatRated>| match rated
        .attempt()
        .map(NonZeroU32::get)
    {
        Some(1) => Err("the CRM \u{202e}says\n no=\"1\"".into()),
        _ => panic!("a bug"),
    });
    let service = Webhooks::new(secret()).layer(router);
    for _ in 0..2 {
        send(&service, delivery(BODY).key("key-7")).await;
    }
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let reason = r#" reason="the CRM \\u{202e}says\\n no=\"1\"""#;
    assert!(text.contains(reason), "{text}");
    // The message and the place.
    assert!(
        text.contains(" reason=\"the handler panicked: a bug ("),
        "{text}"
    );
    assert!(text.contains("tracing.rs:"), "{text}");
    assert!(!text.contains("messaging."), "{text}");
    for line in text.lines() {
        assert_eq!(line.matches("key-7").count(), 1, "{line}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_kind_without_a_handler_is_a_line_in_a_minute() {
    let log = Log::capture(Level::INFO);
    let service = Webhooks::new(secret()).layer(EventRouter::new());
    let ignored = async |kind: &str| {
        send(&service, delivery(BODY).kind(kind)).await.assert_ok();
        log.count(Level::INFO, "has no handler")
    };
    for _ in 0..3 {
        assert_eq!(ignored("chat-archived").await, 1);
    }
    assert_eq!(ignored("chat-tagged").await, 2);
    assert_eq!(log.events()[0]["kind"], "chat-archived");
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(ignored("chat-archived").await, 3);
    assert_eq!(log.events()[2]["left_out"], "2");
}

#[tokio::test]
async fn decode_error_of_a_handler_does_not_log_the_payload() {
    #[derive(Debug, serde::Deserialize)]
    struct Mine {
        #[serde(rename = "to")]
        _to: u64,
    }

    let log = Log::capture(Level::INFO);
    let router = EventRouter::new().fallback(async |raw: RawDelivery| {
        let _: Mine = raw.decode()?;
        Ok(())
    });
    let service = Webhooks::new(secret()).layer(router);
    send(&service, delivery(MARKED).key("a")).await;

    let text = log.text();
    let reason = "the payload's type does not accept what stands at `/to`: line 1, column 29";
    assert_eq!(log.events()[0]["reason"], reason);
    assert!(!text.contains(MARKER), "{text}");

    // It is available on request.
    let raw = RawDelivery::new(EventKind::CHAT_RATED, MARKED);
    let error = raw.decode::<Mine>().unwrap_err();
    assert!(error.json_error().unwrap().to_string().contains(MARKER));
}

#[test]
fn a_field_that_does_not_decode_or_is_missing_is_named() {
    #[derive(Debug, serde::Deserialize)]
    #[allow(dead_code, reason = "only decoded")]
    struct Paid {
        data: Invoice,
    }
    #[derive(Debug, serde::Deserialize)]
    #[allow(dead_code, reason = "only decoded")]
    struct Invoice {
        amount: u64,
        customer: String,
    }
    for (body, reason) in [
        (
            r#"{"data":{"amount":"12 EUR"}}"#,
            "the payload's type does not accept what stands at `/data/amount`: line 1, column 26",
        ),
        (
            r#"{"data":{"amount":12}}"#,
            "the payload's type does not accept a body without `/data/customer`: line 1, column 21",
        ),
        (
            r#"{"date":{"amount":12}}"#,
            "the payload's type does not accept a body without `/data`: line 1, column 22",
        ),
        // Before it is decoded, it is repaired.
        (
            r#"{"note":"\ud83d","data":{"amount":"12 EUR"}}"#,
            "the payload's type does not accept what stands at `/data/amount`: line 1, column 42",
        ),
        (r#"{"data":}"#, "the body is not JSON: line 1, column 9"),
    ] {
        let raw = RawDelivery::new(EventKind::CHAT_RATED, body);
        let error = raw.decode::<Paid>().unwrap_err();
        assert_eq!(error.to_string(), reason, "{:?}", error.json_error());
    }
}

#[tokio::test]
async fn a_handler_that_blocks_its_thread_beyond_its_limit_is_a_line_in_the_log() {
    let log = Log::capture(Level::WARN);
    let blocks = |time| {
        let router = EventRouter::new().fallback(move |_: RawDelivery| async move {
            std::thread::sleep(time);
            Ok(())
        });
        let webhooks = Webhooks::new(secret()).handler_timeout(SECOND / 5);
        webhooks.layer(router)
    };
    send(&blocks(SECOND / 100), delivery(MARKED))
        .await
        .assert_ok();
    assert_eq!(log.events().len(), 0);
    send(&blocks(SECOND / 2), delivery(MARKED))
        .await
        .assert_ok();
    assert_eq!(log.count(Level::WARN, "has blocked its thread"), 1);
    assert_eq!(log.events()[0]["limit"], "200ms");
}

#[tokio::test(start_paused = true)]
async fn span_records_the_delivery_and_its_outcome() {
    // Opentelemetry's attributes are on request.
    let log = Log::capture(Level::TRACE);
    let crm = Crm::new([Step::FailAfter(2 * SECOND), Step::SucceedAfter(SECOND)]);
    let service =
        Webhooks::new(secret().with_label("2026")).layer(EventRouter::new().on::<ChatRated>(crm));
    let span = async |request: Request<_>| {
        log.clear();
        send(&service, request).await;
        log.spans().remove(0)
    };
    let field = |span: &Fields, name| span.get(name).cloned().unwrap_or_default();
    for (attempt, outcome, milliseconds) in [
        ("1", "failed", 2000.0),
        ("2", "handled", 1000.0),
        ("", "replayed", 0.0),
    ] {
        let span = span(delivery(BODY).key("key \u{e9}\"")).await;
        assert_eq!(span["kind"], "chat-rated");
        assert_eq!(span["key"], r#"key \xc3\xa9\""#);
        assert_eq!(span["secret"], "2026");
        assert_eq!(field(&span, "attempt"), attempt);
        assert_eq!(span["messaging.system"], "webhook");
        assert_eq!(span["messaging.operation.name"], "receive");
        assert_eq!(span["messaging.message.id"], span["key"]);
        assert_eq!(span["messaging.message.conversation_id"], "chat-1");
        assert_eq!(span["otel.kind"], "consumer");
        let error = (outcome == "failed").then_some("failed");
        assert_eq!(span.get("error.type").map(String::as_str), error);
        assert_eq!(span["outcome"], outcome);
        let duration: f64 = span["duration_ms"].parse().unwrap();
        assert!(
            (milliseconds..milliseconds + 100.0).contains(&duration),
            "{duration}"
        );
    }
    let without_key = span(delivery(BODY)).await;
    assert_eq!(
        (field(&without_key, "key"), field(&without_key, "attempt")),
        Default::default()
    );
    // Of a request that was not verified, only the kind that it claims is recorded, for a count by kind.
    let forged = span(delivery(BODY).key("a").with(SIGNATURE, "x")).await;
    assert_eq!(forged["kind"], "chat-rated");
    for name in ["key", "attempt", "secret"] {
        assert_eq!(forged.get(name), None);
    }
}

#[tokio::test(start_paused = true)]
async fn reason_of_a_failure_is_logged() {
    let log = Log::capture(Level::INFO);
    setup(&[Step::Fail]).run(&log).await;
    assert_eq!(log.events()[0]["reason"], HANDLER_ERROR);
    setup(&[Step::Discard]).run(&log).await;
    assert_eq!(log.events()[0]["reason"], HANDLER_ERROR);
    setup(&[]).fails(Operation::Claim).run(&log).await;
    assert_eq!(
        log.events()[0]["reason"],
        "the database is unavailable: disk full"
    );
    setup(&[])
        .request(|it| it.without(SIGNATURE))
        .run(&log)
        .await;
    assert_eq!(
        log.events()[0]["reason"],
        "the signature header is missing: expected `x-service-hmac-sha256`"
    );
    setup(&[]).layer(|it| it.max_body(9)).run(&log).await;
    assert_eq!(log.events()[0]["reason"], "more than 9 bytes");
    setup(&[]).body(br#"{"id":7}"#).run(&log).await;
    assert!(
        log.events()[0].values().any(|value| value == "id"),
        "{:?}",
        log.events()
    );
}

#[tokio::test(start_paused = true)]
async fn span_of_a_detached_run_ends_with_the_run() {
    let log = Log::capture(Level::INFO);
    let crm = Crm::new([Step::SucceedAfter(20 * SECOND)]);
    let layer = Webhooks::new(secret()).ready();
    let runs = layer.runs();
    let mut service = layer.layer(EventRouter::new().on::<ChatRated>(crm));

    let response = service.call(delivery(BODY).key("a"));
    assert!(tokio::time::timeout(SECOND, response).await.is_err());
    runs.drain(30 * SECOND).await.unwrap();

    let spans = log.spans();
    assert_eq!(spans.len(), 1);
    assert_eq!(spans[0]["outcome"], "handled");
    assert_eq!(spans[0]["attempt"], "1");
    let duration: f64 = spans[0]["duration_ms"].parse().unwrap();
    assert!((20_000.0..20_100.0).contains(&duration), "{duration}");
}

#[tokio::test]
async fn error_of_the_inner_service_is_recorded_as_an_outcome() {
    let log = Log::capture(Level::INFO);
    let failing = tower::service_fn(|_: Request<tower_webhook::Verified>| async {
        Err::<http::Response<Body>, _>(HANDLER_ERROR)
    });
    let service = Webhooks::new(secret()).layer(failing);
    let result = tower::ServiceExt::oneshot(service, delivery(BODY).key("a")).await;
    assert!(result.is_err());
    assert_eq!(log.spans()[0]["outcome"], "failed");
    assert!(log.spans()[0].contains_key("duration_ms"));
}

#[tokio::test(start_paused = true)]
async fn refusals_that_anybody_can_cause_are_one_line_per_second_and_reason() {
    let log = Log::capture(Level::INFO);
    let service = Webhooks::new(secret())
        .store(TestStore::<true>::default())
        .layer(EventRouter::new().on::<ChatRated>(Crm::default()));
    for _ in 0..100 {
        send(&service, delivery(BODY).without(SIGNATURE)).await;
        send(&service, delivery(BODY).with(SIGNATURE, "0".repeat(64))).await;
    }
    assert_eq!(log.count(Level::WARN, "header is missing"), 1);
    assert_eq!(log.count(Level::WARN, "wrong for every secret"), 1);
    assert_eq!(log.events().len(), 2);

    tokio::time::advance(SECOND).await;
    send(&service, delivery(BODY).without(SIGNATURE)).await;
    let events = log.events();
    assert_eq!(events.len(), 3);
    assert_eq!(events[2].get("left_out").map(String::as_str), Some("99"));
    assert_eq!(log.spans().len(), 201);

    // A genuine sender's mistakes are all logged.
    for _ in 0..3 {
        send(&service, delivery(BODY).with(CONTENT_TYPE, "text/plain")).await;
    }
    assert_eq!(log.events().len(), 6);
    // Without secrets, they are anybody's.
    let unsigned =
        Webhooks::dangerously_unsigned().layer(EventRouter::new().on::<ChatRated>(Crm::default()));
    for _ in 0..3 {
        send(&unsigned, delivery(BODY).with(CONTENT_TYPE, "text/plain")).await;
    }
    assert_eq!(log.events().len(), 7);
}

#[tokio::test]
async fn text_of_the_sender_is_shortened_in_the_log() {
    let log = Log::capture(Level::DEBUG);
    let service = Webhooks::new(secret())
        .store(TestStore::<true>::default())
        .layer(EventRouter::new());
    let long = "x".repeat(100_000);
    let body = format!(r#"{{"id":"{long}"}}"#);
    send(&service, delivery(body).key(&long)).await;
    send(&service, delivery(BODY).key(&long).kind(&long)).await;
    for span in log.spans() {
        for (field, value) in span {
            assert!(value.chars().count() <= 257, "{field}: {}", value.len());
        }
    }
    assert!(log.text().len() < 4_000, "{}", log.text().len());
}

#[tokio::test]
async fn the_span_names_the_chat_of_a_verified_delivery() {
    let log = Log::capture(Level::INFO);
    let service = Webhooks::new(secret())
        .store(TestStore::<true>::default())
        .layer(EventRouter::new());
    let message = r#"{"id":"m-1","chat":{"id":"c-2"}}"#;
    send(&service, delivery(r#"{"id":"c-1"}"#)).await;
    send(&service, delivery(message).kind("message-created")).await;
    send(&service, delivery(r#"{"id":"c-3"}"#).kind("chat-archived")).await;
    send(
        &service,
        delivery(r#"{"id":"c-4"}"#).with(SIGNATURE, "0".repeat(64)),
    )
    .await;
    let chats: Vec<_> = log
        .spans()
        .into_iter()
        .map(|span| span.get("chat").cloned())
        .collect();
    assert_eq!(chats, [Some("c-1".into()), Some("c-2".into()), None, None]);
}
