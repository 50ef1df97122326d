//! The table of responses: each row, their order, and how the claim is settled.

#![cfg(feature = "moka")]

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body::{Body, Frame};
use http_body_util::Full;
use tokio::time::Instant;
use tower::{Layer, Service};
use tower_webhook::event::ChatRated;
use tower_webhook::memory::MokaStore;
use tower_webhook::store::{EventKey, KeyState, Store};
use tower_webhook::{
    Delivery, EventRouter, HandlerResult, IdempotencyLayer, Outcome, RawDelivery, Sender,
    SenderPolicy, WebhookLayer, Webhooks,
};

use support::Ready;
use support::delivery::{
    Answered, BODY, CONTENT_TYPE, Crm, EVENT, HANDLER_ERROR, KEY, RequestExt, SIGNATURE, Step,
    delivery, secret, send,
};
use support::store::{Operation, StoreExt, TestStore};

const SECOND: Duration = Duration::from_secs(1);

fn layer<St: Store + Clone>(store: &St) -> Webhooks<IdempotencyLayer<St>> {
    Webhooks::new(secret()).store(store.clone())
}

fn router(crm: &Crm) -> EventRouter {
    EventRouter::new().on::<ChatRated>(crm.clone())
}

// -------------------------------------------------------------------------------------------------
// The first layer: every fault by itself, and every pair of them.

/// A body that goes wrong on purpose.
#[derive(Default)]
struct TestBody {
    frames: Vec<Bytes>,
    end: End,
}

#[derive(Default)]
enum End {
    #[default]
    Complete,
    Slow,
    Broken,
}

impl Body for TestBody {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match (self.frames.pop(), &self.end) {
            (Some(frame), _) => Poll::Ready(Some(Ok(Frame::data(frame)))),
            (None, End::Complete) => Poll::Ready(None),
            (None, End::Slow) => Poll::Pending,
            (None, End::Broken) => Poll::Ready(Some(Err("connection reset".into()))),
        }
    }
}

/// Of every body, this much does not count against `max_buffered`.
const UNCOUNTED: usize = 64 * 1024;
const MAX_BODY: usize = UNCOUNTED + 1024;

/// A body that counts.
fn large_body() -> String {
    format!("{BODY}{}", " ".repeat(UNCOUNTED))
}

/// A delivery and the receiver that it meets; all in order at first.
struct Case {
    request: Request<TestBody>,
    max_buffered: usize,
    require_key: bool,
    store: TestStore<false>,
    crm: Crm,
}

impl Case {
    fn new() -> Self {
        let body = TestBody {
            frames: vec![large_body().into()],
            end: End::Complete,
        };
        Self {
            request: delivery(large_body()).key("key-1").map(|_| body),
            max_buffered: MAX_BODY,
            require_key: false,
            store: TestStore::default(),
            crm: Crm::default(),
        }
    }

    async fn answer(self) -> Answered {
        let mut layer = layer(&self.store)
            .max_body(MAX_BODY)
            .max_buffered(self.max_buffered);
        if self.require_key {
            layer = layer.require_key();
        }
        send(&layer.layer(router(&self.crm)), self.request).await
    }

    fn header(&mut self, name: &'static str, value: &'static str) {
        let value = http::HeaderValue::from_static(value);
        self.request.headers_mut().insert(name, value);
    }
}

struct Fault {
    status: u16,
    name: &'static str,
    /// Faults of one part of a request exclude each other.
    part: &'static str,
    apply: fn(&mut Case),
}

/// In the order of the table.
#[rustfmt::skip]
const FAULTS: &[Fault] = &[
    Fault { status: 405, name: "method-not-allowed", part: "method", apply: |case| *case.request.method_mut() = Method::GET },
    Fault { status: 401, name: "invalid-signature", part: "signature", apply: |case| { case.request.headers_mut().remove(SIGNATURE); } },
    Fault { status: 401, name: "invalid-signature", part: "signature", apply: |case| case.header(SIGNATURE, "0") },
    Fault { status: 401, name: "invalid-signature", part: "signature", apply: |case| {
        let signature = case.request.headers()[SIGNATURE].clone();
        case.request.headers_mut().append(SIGNATURE, signature);
    } },
    Fault { status: 413, name: "body-too-large", part: "size", apply: |case| case.header("content-length", "66561") },
    Fault { status: 413, name: "body-too-large", part: "size", apply: |case| {
        case.request.body_mut().frames = vec![Bytes::from_static(&[b' '; MAX_BODY + 1])];
    } },
    Fault { status: 503, name: "overloaded", part: "buffers", apply: |case| case.max_buffered = BODY.len() - 1 },
    Fault { status: 408, name: "body-timeout", part: "end", apply: |case| case.request.body_mut().end = End::Slow },
    Fault { status: 400, name: "malformed-body", part: "end", apply: |case| case.request.body_mut().end = End::Broken },
    Fault { status: 400, name: "malformed-body", part: "end", apply: |case| {
        // Unless it is declared to be too large.
        let headers = case.request.headers_mut();
        headers.entry("content-length").or_insert(http::HeaderValue::from_static("66000"));
    } },
    Fault { status: 401, name: "invalid-signature", part: "signature", apply: |case| {
        case.header(SIGNATURE, "00000000000000000000000000000000000000000000000000000000000000ff");
    } },
    Fault { status: 415, name: "unsupported-media-type", part: "type", apply: |case| case.header(CONTENT_TYPE, "text/plain") },
    Fault { status: 415, name: "unsupported-media-type", part: "encoding", apply: |case| case.header("content-encoding", "gzip") },
    Fault { status: 400, name: "invalid-event-header", part: "kind", apply: |case| { case.request.headers_mut().remove(EVENT); } },
    Fault { status: 400, name: "invalid-event-header", part: "kind", apply: |case| case.header(EVENT, "chat rated") },
    Fault { status: 400, name: "conflicting-keys", part: "key", apply: |case| {
        case.request.headers_mut().append(KEY, "key-2".try_into().unwrap());
    } },
    Fault { status: 400, name: "missing-key", part: "key", apply: |case| {
        case.request.headers_mut().remove(KEY);
        case.require_key = true;
    } },
    // The first of each following stage, to see that it comes after all of these.
    Fault { status: 503, name: "store-unavailable", part: "store", apply: |case| case.store.fail([Operation::Claim]) },
    Fault { status: 500, name: "failed", part: "handler", apply: |case| case.crm = Crm::new([Step::Fail]) },
];

#[tokio::test(start_paused = true)]
async fn every_fault_has_its_response_and_claims_nothing() {
    for fault in FAULTS {
        let mut case = Case::new();
        (fault.apply)(&mut case);
        let (store, crm) = (case.store.clone(), case.crm.clone());

        case.answer().await.assert_problem(fault.status, fault.name);

        assert_eq!(crm.runs(), usize::from(fault.part == "handler"));
        assert_eq!(store.state("key-1").await, KeyState::Free, "{}", fault.name);
    }
    Case::new().answer().await.assert_ok();
}

#[tokio::test(start_paused = true)]
async fn first_of_two_faults_determines_the_response() {
    let mut pairs = 0;
    for (at, first) in FAULTS.iter().enumerate() {
        for second in FAULTS[at + 1..].iter().filter(|it| it.part != first.part) {
            let mut case = Case::new();
            (first.apply)(&mut case);
            (second.apply)(&mut case);
            // A length that was declared is known before the body's end.
            let crm = case.crm.clone();

            let answered = case.answer().await;

            let pair = format!("{} before {}", first.name, second.name);
            assert_eq!(answered.status, first.status, "{pair}");
            answered.assert_problem(first.status, first.name);
            assert_eq!(crm.runs(), 0);
            pairs += 1;
        }
    }
    assert!(pairs > 120, "{pairs}");
}

#[tokio::test]
async fn other_methods_get_an_allow_header() {
    let service = layer(&MokaStore::new()).layer(router(&Crm::default()));
    for method in [
        "GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "QUERY", "post",
    ] {
        let mut request = delivery(BODY);
        *request.method_mut() = method.parse().unwrap();
        let answered = send(&service, request).await;
        answered.assert_problem(405, "method-not-allowed");
        assert_eq!(answered.header("allow"), Some("POST"));
    }
}

#[tokio::test]
async fn body_of_exactly_the_limit_is_accepted() {
    let service = layer(&MokaStore::new())
        .max_body(BODY.len())
        .max_buffered(BODY.len())
        .layer(router(&Crm::default()));
    let longer = format!("{BODY} ");

    let length = BODY.len().to_string();
    send(&service, delivery(BODY).with("content-length", length))
        .await
        .assert_ok();
    send(&service, delivery(BODY)).await.assert_ok();
    send(&service, delivery(longer))
        .await
        .assert_problem(413, "body-too-large");
}

#[tokio::test]
async fn body_limit_defaults_to_one_mebibyte() {
    let service = layer(&MokaStore::new()).layer(router(&Crm::default()));
    let padded = |length: usize| format!("{BODY}{}", " ".repeat(length - BODY.len()));

    send(&service, delivery(padded(1024 * 1024)))
        .await
        .assert_ok();
    send(&service, delivery(padded(1024 * 1024 + 1)))
        .await
        .assert_problem(413, "body-too-large");
}

#[tokio::test]
async fn overloaded_response_has_retry_after() {
    let policy = SenderPolicy {
        retry_every: Duration::from_millis(120_500),
        ..SenderPolicy::default()
    };
    let store = MokaStore::new();
    for (layer, retry_after) in [
        (layer(&store), "600"),
        (
            layer(&store).sender(Sender::default().with_policy(policy)),
            "121",
        ),
    ] {
        let service = layer.max_buffered(1).layer(router(&Crm::default()));
        let answered = send(&service, delivery(large_body())).await;
        answered.assert_problem(503, "overloaded");
        assert_eq!(answered.header("retry-after"), Some(retry_after));
    }
}

#[tokio::test(start_paused = true)]
async fn slow_body_is_read_until_its_timeout() {
    for (layer, limit) in [
        (layer(&MokaStore::new()), 10 * SECOND),
        (layer(&MokaStore::new()).body_timeout(SECOND), SECOND),
    ] {
        let service = layer.layer(router(&Crm::default()));
        let request = delivery(BODY).map(|_| TestBody {
            frames: Vec::new(),
            end: End::Slow,
        });
        let start = Instant::now();
        send(&service, request)
            .await
            .assert_problem(408, "body-timeout");
        assert!((limit..limit + SECOND / 10).contains(&start.elapsed()));
    }
}

#[tokio::test]
async fn content_type_must_be_json() {
    let service = layer(&MokaStore::new()).layer(router(&Crm::default()));
    for accepted in [
        "application/json",
        "application/json; charset=utf-8",
        "application/json;charset=utf-8",
        "Application/JSON ; x=y",
    ] {
        send(&service, delivery(BODY).with(CONTENT_TYPE, accepted))
            .await
            .assert_ok();
    }
    for refused in [
        "",
        "json",
        "text/json",
        "application/json5",
        "application/jsonx; application/json",
        "application/problem+json",
        "application/x-www-form-urlencoded",
        "application/json, text/plain",
    ] {
        let answered = send(&service, delivery(BODY).with(CONTENT_TYPE, refused)).await;
        answered.assert_problem(415, "unsupported-media-type");
    }
    for request in [
        delivery(BODY).without(CONTENT_TYPE),
        delivery(BODY).and(CONTENT_TYPE, "application/json"),
        delivery(BODY).with("content-encoding", "identity"),
        delivery(BODY).with("content-encoding", "br"),
    ] {
        send(&service, request)
            .await
            .assert_problem(415, "unsupported-media-type");
    }
}

#[tokio::test]
async fn event_header_must_be_a_token() {
    let service = layer(&MokaStore::new()).layer(router(&Crm::default()));
    for kind in [
        "chat-rated",
        "chat-opened",
        "Chat-Rated",
        "chat.archived",
        "x",
        &"x".repeat(128),
    ] {
        send(&service, delivery(BODY).kind(kind)).await.assert_ok();
    }
    for kind in [
        &b""[..],
        b"chat rated",
        b"chat/rated",
        b"chat-rated,chat-rated",
        b"\xff",
        "å".as_bytes(),
        &[b'x'; 129],
    ] {
        let answered = send(&service, delivery(BODY).with(EVENT, kind)).await;
        answered.assert_problem(400, "invalid-event-header");
    }
    let doubled = delivery(BODY).and(EVENT, "chat-rated");
    send(&service, doubled)
        .await
        .assert_problem(400, "invalid-event-header");
}

#[tokio::test]
async fn idempotency_keys_are_opaque() {
    let crm = Crm::default();
    let service = layer(&MokaStore::new()).layer(router(&crm));
    let long = "k".repeat(60_000);
    let keys: [&[u8]; 7] = [
        b"k",
        b" ",
        b"\xff\xfe",
        b"a,b",
        b"K",
        "schlüssel".as_bytes(),
        long.as_bytes(),
    ];
    for (before, key) in keys.into_iter().enumerate() {
        send(&service, delivery(BODY).with(KEY, key))
            .await
            .assert_ok();
        assert_eq!(crm.runs(), before + 1);
        send(&service, delivery(BODY).with(KEY, key))
            .await
            .assert_replayed();
        assert_eq!(crm.runs(), before + 1);
    }
}

#[tokio::test]
async fn repeated_keys_must_be_equal() {
    let crm = Crm::default();
    let service = layer(&MokaStore::new()).layer(router(&crm));
    send(&service, delivery(BODY).key("a").and(KEY, "a"))
        .await
        .assert_ok();
    send(&service, delivery(BODY).key("a"))
        .await
        .assert_replayed();
    for other in ["b", "", "A"] {
        let differ = delivery(BODY).key("a").and(KEY, "a").and(KEY, other);
        send(&service, differ)
            .await
            .assert_problem(400, "conflicting-keys");
    }
}

#[tokio::test]
async fn delivery_without_a_key_is_not_deduplicated_by_default() {
    let crm = Crm::default();
    let service = layer(&MokaStore::new()).layer(router(&crm));
    let strict = layer(&MokaStore::new()).require_key().layer(router(&crm));
    for _ in 0..2 {
        send(&service, delivery(BODY)).await.assert_ok();
        send(&service, delivery(BODY).key("")).await.assert_ok();
    }
    assert_eq!(crm.attempts(), [None; 4]);

    send(&strict, delivery(BODY))
        .await
        .assert_problem(400, "missing-key");
    send(&strict, delivery(BODY).key(""))
        .await
        .assert_problem(400, "missing-key");
    send(&strict, delivery(BODY).key("a")).await.assert_ok();
    assert_eq!(crm.runs(), 5);
}

#[tokio::test]
async fn header_prefix_can_be_changed() {
    let crm = Crm::default();
    let sender = Sender::chat_platform().branded("acme").unwrap();
    let service = layer(&MokaStore::new()).sender(sender).layer(router(&crm));
    let branded = || {
        delivery(BODY)
            .without(SIGNATURE)
            .without(EVENT)
            .with("X-Acme-Hmac-Sha256", secret().sign(BODY.as_bytes()))
            .with("X-Acme-Event", "chat-rated")
    };
    send(&service, branded()).await.assert_ok();
    assert_eq!(crm.runs(), 1);
    send(&service, delivery(BODY))
        .await
        .assert_problem(401, "invalid-signature");
    let half = branded().without("x-acme-event").kind("chat-rated");
    send(&service, half)
        .await
        .assert_problem(400, "invalid-event-header");
}

#[tokio::test]
async fn unsigned_deliveries_are_accepted_only_when_allowed() {
    let crm = Crm::default();
    let service = Webhooks::dangerously_unsigned().layer(router(&crm));
    for request in [
        delivery(BODY).key("a").without(SIGNATURE),
        delivery(BODY).key("b").with(SIGNATURE, "nonsense"),
    ] {
        send(&service, request).await.assert_ok();
    }
    send(&service, delivery(BODY).key("a").without(SIGNATURE))
        .await
        .assert_replayed();
    assert_eq!(crm.runs(), 2);
    // All other rows stay.
    let typed = delivery(BODY).with(CONTENT_TYPE, "text/plain");
    send(&service, typed)
        .await
        .assert_problem(415, "unsupported-media-type");
}

// -------------------------------------------------------------------------------------------------
// The second layer: the claim.

#[tokio::test(start_paused = true)]
async fn unavailable_store_returns_503_and_nothing_runs() {
    let (store, crm) = (TestStore::<false>::default(), Crm::default());
    let service = layer(&store).layer(router(&crm));

    store.fail([Operation::Claim]);
    let answered = send(&service, delivery(BODY).key("a")).await;
    answered.assert_problem(503, "store-unavailable");
    assert_eq!(answered.header("retry-after"), Some("600"));
    assert_eq!(crm.runs(), 0);
    // It is not asked where there is no key.
    send(&service, delivery(BODY)).await.assert_ok();

    store.fail([]);
    send(&service, delivery(BODY).key("a")).await.assert_ok();
    assert_eq!(crm.attempts(), [None, Some(1)]);
}

#[tokio::test]
async fn events_can_be_handled_without_an_unavailable_store() {
    let (store, crm) = (TestStore::<false>::default(), Crm::default());
    let service = layer(&store)
        .dangerously_handle_without_store()
        .layer(router(&crm));

    store.fail([Operation::Claim]);
    for _ in 0..2 {
        send(&service, delivery(BODY).key("a")).await.assert_ok();
    }
    store.fail([]);
    send(&service, delivery(BODY).key("a")).await.assert_ok();
    send(&service, delivery(BODY).key("a"))
        .await
        .assert_replayed();
    assert_eq!(crm.attempts(), [None, None, Some(1)]);
}

#[tokio::test(start_paused = true)]
async fn duplicate_waits_for_the_run_in_flight() {
    let crm = Crm::new([Step::SucceedAfter(3 * SECOND)]);
    let service = layer(&MokaStore::new()).layer(router(&crm));

    let start = Instant::now();
    let first = send(&service, delivery(BODY).key("a"));
    let second = async {
        let answered = send(&service, delivery(BODY).key("a")).await;
        (answered, start.elapsed())
    };
    let (first, (second, elapsed)) = tokio::join!(first, second);

    first.assert_ok();
    second.assert_replayed();
    assert!(elapsed >= 3 * SECOND && elapsed < 5 * SECOND, "{elapsed:?}");
    assert_eq!(crm.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn duplicate_conflicts_when_the_run_takes_too_long() {
    async fn check<const OUTLIVES: bool>(wait: Option<Duration>, retry_after: &str) {
        let crm = Crm::new([Step::SucceedAfter(20 * SECOND)]);
        let mut layer = layer(&TestStore::<OUTLIVES>::default());
        if let Some(wait) = wait {
            layer = layer.in_flight_wait(wait);
        }
        let service = layer.layer(router(&crm));

        let start = Instant::now();
        let first = send(&service, delivery(BODY).key("a"));
        let second = async {
            let answered = send(&service, delivery(BODY).key("a")).await;
            (answered, start.elapsed())
        };
        let (first, (second, elapsed)) = tokio::join!(first, second);

        first.assert_ok();
        second.assert_problem(409, "in-flight");
        assert_eq!(second.header("retry-after"), Some(retry_after));
        let wait = wait.unwrap_or(5 * SECOND);
        assert!((wait..wait + SECOND / 10).contains(&elapsed), "{elapsed:?}");
        assert_eq!(crm.runs(), 1);
    }
    // A lease of 60 seconds, less the time that was waited.
    check::<true>(None, "55").await;
    check::<true>(Some(Duration::ZERO), "60").await;
    check::<true>(Some(12 * SECOND), "48").await;
    // A volatile claim is not that long, whatever the store was asked for.
    check::<false>(None, "60").await;
}

#[tokio::test(start_paused = true)]
async fn waiting_duplicate_conflicts_when_the_run_fails() {
    let crm = Crm::new([Step::FailAfter(SECOND)]);
    let service = layer(&MokaStore::new()).layer(router(&crm));

    let start = Instant::now();
    let (first, second) = tokio::join!(
        send(&service, delivery(BODY).key("a")),
        send(&service, delivery(BODY).key("a"))
    );
    first.assert_problem(500, "failed");
    second.assert_problem(409, "in-flight");
    assert_eq!(second.header("retry-after"), Some("1"));
    assert!(start.elapsed() < 2 * SECOND);

    send(&service, delivery(BODY).key("a")).await.assert_ok();
    assert_eq!(crm.attempts(), [Some(1), Some(2)]);
}

#[tokio::test(start_paused = true)]
async fn changed_body_is_replayed_by_default() {
    const CHANGED: &str = r#"{"id":"chat-2"}"#;
    let crm = Crm::new([Step::SucceedAfter(SECOND)]);
    let store = MokaStore::new();
    let lenient = layer(&store).layer(router(&crm));
    let strict = layer(&store).reject_changed_bodies().layer(router(&crm));

    let (first, in_flight, rejected) = tokio::join!(
        send(&lenient, delivery(BODY).key("a")),
        send(&lenient, delivery(CHANGED).key("a")),
        send(&strict, delivery(CHANGED).key("a")),
    );
    first.assert_ok();
    in_flight.assert_replayed();
    rejected.assert_problem(422, "body-changed");

    send(&lenient, delivery(CHANGED).key("a"))
        .await
        .assert_replayed();
    send(&strict, delivery(CHANGED).key("a"))
        .await
        .assert_problem(422, "body-changed");
    send(&strict, delivery(BODY).key("a"))
        .await
        .assert_replayed();
    assert_eq!(crm.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn replay_guard_refuses_a_body_under_another_key() {
    let crm = Crm::new([Step::SucceedAfter(SECOND)]);
    let store = MokaStore::new();
    let service = layer(&store).replay_guard().layer(router(&crm));

    let (first, other, same) = tokio::join!(
        send(&service, delivery(BODY).key("a")),
        send(&service, delivery(BODY).key("b")),
        send(&service, delivery(BODY).key("a")),
    );
    first.assert_ok();
    other.assert_problem(422, "body-replayed");
    same.assert_replayed();

    for replay in [
        delivery(BODY).key("b"),
        delivery(BODY),
        delivery(BODY).key("b").kind("chat-closed"),
    ] {
        send(&service, replay)
            .await
            .assert_problem(422, "body-replayed");
    }
    assert_eq!(store.state("b").await, KeyState::Free);
    send(&service, delivery(BODY).key("a"))
        .await
        .assert_replayed();
    assert_eq!(crm.runs(), 1);

    // Another body is another event; without a key, the body is what counts.
    send(&service, delivery("{}")).await.assert_ok();
    send(&service, delivery("{}")).await.assert_replayed();
    send(&service, delivery("{}").key("c"))
        .await
        .assert_problem(422, "body-replayed");
    assert_eq!(crm.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn replay_guard_waits_no_longer_than_a_duplicate() {
    let crm = Crm::new([Step::SucceedAfter(20 * SECOND)]);
    let store = MokaStore::new();
    let service = layer(&store).replay_guard().layer(router(&crm));
    let (first, other) = tokio::join!(
        send(&service, delivery(BODY).key("a")),
        send(&service, delivery(BODY).key("b")),
    );
    first.assert_ok();
    other.assert_problem(409, "in-flight");
    assert_eq!(store.state("b").await, KeyState::Free);
}

#[tokio::test(start_paused = true)]
async fn failed_run_releases_the_body_of_the_replay_guard() {
    for step in [Step::Fail, Step::Panic, Step::PanicAfterAwait, Step::Hang] {
        let crm = Crm::new([step]);
        let store = MokaStore::new();
        let service = layer(&store).replay_guard().layer(router(&crm));
        assert!(
            !send(&service, delivery(BODY).key("a"))
                .await
                .status
                .is_success()
        );
        assert_eq!(store.state("a").await, KeyState::Free);
        send(&service, delivery(BODY).key("b")).await.assert_ok();
        assert_eq!(crm.runs(), 2, "{step:?}");
    }
}

#[tokio::test]
async fn namespaces_separate_keys_and_bodies() {
    let (store, crm) = (MokaStore::new(), Crm::default());
    let service = |namespace: &str| {
        layer(&store)
            .namespace(namespace)
            .replay_guard()
            .layer(router(&crm))
    };
    let (none, one, two) = (service(""), service("one"), service("two"));
    for service in [&none, &one, &two] {
        send(service, delivery(BODY).key("a")).await.assert_ok();
    }
    for service in [&none, &one, &two] {
        send(service, delivery(BODY).key("a"))
            .await
            .assert_replayed();
    }
    assert_eq!(crm.runs(), 3);
}

#[tokio::test]
async fn several_layers_share_one_store() {
    let (store, crm) = (MokaStore::new(), Crm::default());
    let other_secret = tower_webhook::Secret::new("another").unwrap();
    let one = layer(&store).layer(router(&crm));
    let two = WebhookLayer::with_store(other_secret.clone(), store).layer(router(&crm));
    let for_two = || {
        delivery(BODY)
            .key("a")
            .with(SIGNATURE, other_secret.sign(BODY.as_bytes()))
    };

    send(&one, delivery(BODY).key("a")).await.assert_ok();
    send(&two, for_two()).await.assert_replayed();
    send(&two, delivery(BODY).key("a"))
        .await
        .assert_problem(401, "invalid-signature");
    send(&one, for_two())
        .await
        .assert_problem(401, "invalid-signature");
    assert_eq!(crm.runs(), 1);
}

// -------------------------------------------------------------------------------------------------
// The router and what became of the run.

#[tokio::test]
async fn unhandled_event_is_ignored_by_default() {
    let (store, crm) = (MokaStore::new(), Crm::default());
    let lenient = layer(&store).layer(router(&crm));
    let strict = layer(&store).layer(router(&crm).reject_unhandled());
    for kind in ["chat-opened", "chat-archived"] {
        for _ in 0..2 {
            send(&lenient, delivery(BODY).key(kind).kind(kind))
                .await
                .assert_ok();
            assert_eq!(store.state(kind).await, KeyState::Free);
            let answered = send(&strict, delivery(BODY).key(kind).kind(kind)).await;
            answered.assert_problem(404, "unhandled");
            assert_eq!(store.state(kind).await, KeyState::Free);
        }
    }
    // It does not matter whether the body could be decoded, nor whether a handler comes later.
    send(&lenient, delivery("\u{feff}").kind("chat-opened"))
        .await
        .assert_ok();
    send(&strict, delivery(BODY).key("chat-opened"))
        .await
        .assert_ok();
    assert_eq!(crm.runs(), 1);
}

#[tokio::test]
async fn fallback_receives_events_without_a_handler() {
    let crm = Crm::default();
    let kinds = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = kinds.clone();
    let fallback = move |raw: RawDelivery| {
        seen.lock()
            .unwrap()
            .push((raw.kind().to_string(), raw.body().clone()));
        async { Ok(()) }
    };
    let router = router(&crm).fallback(fallback).reject_unhandled();
    let service = layer(&MokaStore::new()).layer(router);

    send(&service, delivery(BODY).key("a").kind("chat-archived"))
        .await
        .assert_ok();
    send(&service, delivery(BODY).key("a").kind("chat-archived"))
        .await
        .assert_replayed();
    send(&service, delivery(BODY).key("b")).await.assert_ok();
    send(&service, delivery("[]").kind("chat-archived"))
        .await
        .assert_problem(422, "undecodable");
    assert_eq!(crm.runs(), 1);
    assert_eq!(
        *kinds.lock().unwrap(),
        [("chat-archived".to_owned(), BODY.into())]
    );
}

const UNDECODABLE: [&[u8]; 10] = [
    b"",
    b"null",
    b"[]",
    b"\"text\"",
    b"7",
    b"{",
    br#"{"id":"a"} x"#,
    b"\xef\xbb\xbf{}", // a byte order mark
    b"{\"id\":\"\xff\"}",
    b"{\"id\":\"\xed\xa0\xbd\"}", // half a surrogate pair
];

#[tokio::test]
async fn undecodable_body_is_refused_and_its_key_released() {
    let (store, crm) = (MokaStore::new(), Crm::default());
    let service = layer(&store).layer(router(&crm));
    for body in UNDECODABLE {
        send(&service, delivery(body).key("a"))
            .await
            .assert_problem(422, "undecodable");
        assert_eq!(store.state("a").await, KeyState::Free);
    }
    send(&service, delivery(BODY).key("a")).await.assert_ok();
    assert_eq!(crm.runs(), 1);
}

#[tokio::test]
async fn undecodable_bodies_can_be_handled() {
    let (store, crm) = (MokaStore::new(), Crm::default());
    let take = |raw: RawDelivery, error: tower_webhook::DecodeError| async move {
        assert!(!error.to_string().is_empty());
        match raw.body().first() {
            Some(b'[') => Ok(()),
            Some(b'{') => panic!("{HANDLER_ERROR}"),
            _ => Err(HANDLER_ERROR.into()),
        }
    };
    let service = layer(&store).layer(router(&crm).on_undecodable(take));

    send(&service, delivery("[1]").key("a")).await.assert_ok();
    send(&service, delivery("[1]").key("a"))
        .await
        .assert_replayed();
    send(&service, delivery("").key("b"))
        .await
        .assert_problem(500, "failed");
    assert_eq!(store.state("b").await, KeyState::Free);
    send(&service, delivery("{").key("c"))
        .await
        .assert_problem(500, "panicked");
    assert_eq!(store.state("c").await, KeyState::Free);
    assert_eq!(crm.runs(), 0);
}

#[tokio::test]
async fn handled_event_is_completed_before_the_response() {
    let (store, crm) = (MokaStore::new(), Crm::default());
    let service = layer(&store).layer(router(&crm));
    send(&service, delivery(BODY).key("a")).await.assert_ok();
    assert_eq!(store.state("a").await, KeyState::Done);
    send(&service, delivery(BODY).key("a"))
        .await
        .assert_replayed();
    assert_eq!(crm.attempts(), [Some(1)]);
}

#[tokio::test(start_paused = true)]
async fn completed_key_is_retained_longer_than_the_sender_retries() {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    let crm = Crm::default();
    let service = layer(&MokaStore::new()).layer(router(&crm));
    send(&service, delivery(BODY).key("a")).await.assert_ok();
    tokio::time::advance(7 * DAY + DAY / 2).await;
    send(&service, delivery(BODY).key("a"))
        .await
        .assert_replayed();
    tokio::time::advance(DAY).await;
    send(&service, delivery(BODY).key("a")).await.assert_ok();
    assert_eq!(crm.attempts(), [Some(1), Some(1)]);
}

#[tokio::test(start_paused = true)]
async fn success_that_cannot_be_recorded_is_not_acknowledged() {
    async fn check<const OUTLIVES: bool>() {
        let (store, crm) = (TestStore::<OUTLIVES>::default(), Crm::default());
        let service = layer(&store).layer(router(&crm));

        store.fail([Operation::Complete]);
        let start = Instant::now();
        let answered = send(&service, delivery(BODY).key("a")).await;
        answered.assert_problem(503, "not-recorded");
        assert!(
            start.elapsed() > 45 * SECOND,
            "it is retried while the lease lasts"
        );

        // The key stays taken until the lease ends, and is then handled again.
        store.fail([]);
        tokio::time::sleep(60 * SECOND).await;
        send(&service, delivery(BODY).key("a")).await.assert_ok();
        assert_eq!(crm.attempts(), [Some(1), Some(2)]);
    }
    check::<false>().await;
    check::<true>().await;
}

#[tokio::test(start_paused = true)]
async fn success_that_is_recorded_late_is_acknowledged() {
    let (store, crm) = (TestStore::<false>::default(), Crm::default());
    let service = layer(&store).layer(router(&crm));
    store.fail([Operation::Complete]);
    let (answered, ()) = tokio::join!(send(&service, delivery(BODY).key("a")), async {
        tokio::time::sleep(20 * SECOND).await;
        assert!(matches!(store.state("a").await, KeyState::InFlight { .. }));
        store.fail([]);
    });
    answered.assert_ok();
    send(&service, delivery(BODY).key("a"))
        .await
        .assert_replayed();
    assert_eq!(crm.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn handler_determines_the_response_and_the_claim() {
    for (step, expected, done) in [
        (Step::Succeed, None, true),
        (Step::Discard, None, true),
        (Step::Fail, Some((500, "failed")), false),
        (Step::Panic, Some((500, "panicked")), false),
        (Step::PanicAfterAwait, Some((500, "panicked")), false),
        (Step::Hang, Some((503, "handler-timeout")), false),
    ] {
        let (store, crm) = (MokaStore::new(), Crm::new([step]));
        let service = layer(&store).layer(router(&crm));

        let answered = send(&service, delivery(BODY).key("a")).await;
        match expected {
            Some((status, name)) => answered.assert_problem(status, name),
            None => answered.assert_ok(),
        }
        assert_eq!(store.state("a").await == KeyState::Done, done, "{step:?}");

        let again = send(&service, delivery(BODY).key("a")).await;
        if done {
            again.assert_replayed();
        } else {
            again.assert_ok();
        }
        assert_eq!(crm.runs(), if done { 1 } else { 2 }, "{step:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn handler_timeout_defaults_to_30_seconds_with_or_without_a_key() {
    let store = MokaStore::new();
    for (layer, limit) in [
        (layer(&store), 30 * SECOND),
        (layer(&store).handler_timeout(SECOND), SECOND),
    ] {
        for request in [delivery(BODY), delivery(BODY).key("a")] {
            let crm = Crm::new([Step::Hang]);
            let service = layer.clone().layer(router(&crm));
            let start = Instant::now();
            send(&service, request)
                .await
                .assert_problem(503, "handler-timeout");
            assert!((limit..limit + SECOND / 10).contains(&start.elapsed()));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn run_that_loses_its_lease_is_cancelled() {
    let (store, crm) = (
        TestStore::<true>::default(),
        Crm::new([Step::SucceedAfter(90 * SECOND)]),
    );
    let service = layer(&store)
        .handler_timeout(120 * SECOND)
        .layer(router(&crm));

    store.fail([Operation::Renew]);
    let start = Instant::now();
    send(&service, delivery(BODY).key("a"))
        .await
        .assert_problem(503, "lease-lost");
    assert!((60 * SECOND..61 * SECOND).contains(&start.elapsed()));

    send(&service, delivery(BODY).key("a")).await.assert_ok();
    send(&service, delivery(BODY).key("a"))
        .await
        .assert_replayed();
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!((crm.runs(), crm.successes()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn every_claim_is_settled_once_and_the_key_after_the_body() {
    use Operation::{Claim, Complete, Release};
    for (step, settled) in [
        (Step::Succeed, Complete),
        (Step::Discard, Complete),
        (Step::Fail, Release),
        (Step::Panic, Release),
        (Step::Hang, Release),
    ] {
        let store = TestStore::<false>::default();
        let service = layer(&store)
            .replay_guard()
            .layer(router(&Crm::new([step])));
        send(&service, delivery(BODY).key("a")).await;
        tokio::time::sleep(SECOND).await;

        let operations = store.changes();
        let key = EventKey::new("", b"a", b"").key();
        let [(Claim, first), (Claim, body), one, other] = operations[..] else {
            panic!("{step:?}: {operations:?}");
        };
        assert!(first == key && body != key);
        // A crash between the two leaves an event that was handled and whose body is known.
        assert_eq!([one, other], [(settled, body), (settled, key)]);
    }

    // Another run may have claimed the key since.
    let store = TestStore::<true>::default();
    store.fail([Operation::Renew]);
    let service = layer(&store)
        .handler_timeout(120 * SECOND)
        .layer(router(&Crm::new([Step::Hang])));
    let answered = send(&service, delivery(BODY).key("a")).await;
    answered.assert_problem(503, "lease-lost");
    tokio::time::sleep(SECOND).await;
    let settles = store.changes();
    assert!(
        !settles
            .iter()
            .any(|(operation, _)| [Complete, Release].contains(operation))
    );
}

// -------------------------------------------------------------------------------------------------
// Attempts.

#[tokio::test(start_paused = true)]
async fn attempts_are_counted_until_one_succeeds() {
    for step in [Step::Fail, Step::Panic, Step::PanicAfterAwait, Step::Hang] {
        let crm = Crm::new([step; 2]);
        let service = layer(&MokaStore::new()).layer(router(&crm));
        for _ in 0..2 {
            let status = send(&service, delivery(BODY).key("a")).await.status;
            assert!(status.is_server_error());
            tokio::time::advance(600 * SECOND).await;
        }
        send(&service, delivery(BODY).key("a")).await.assert_ok();
        for _ in 0..3 {
            send(&service, delivery(BODY).key("a"))
                .await
                .assert_replayed();
        }
        assert_eq!(crm.attempts(), [Some(1), Some(2), Some(3)], "{step:?}");
    }
}

// -------------------------------------------------------------------------------------------------
// Bodies of any type, and inner services of any kind.

#[tokio::test]
async fn any_body_type_is_accepted() {
    let service = layer(&MokaStore::new()).layer(router(&Crm::default()));

    send(&service, delivery(BODY)).await.assert_ok();
    send(&service, delivery(BODY).map(axum::body::Body::new))
        .await
        .assert_ok();
    send(&service, delivery(BODY).map(|_| BODY.to_owned()))
        .await
        .assert_ok();

    let (mut sender, channel) = http_body_util::channel::Channel::<Bytes>::new(1);
    let (answered, ()) = tokio::join!(
        send(&service, delivery(BODY).map(|_| channel)),
        async move {
            for part in BODY.as_bytes().chunks(4) {
                sender.send_data(Bytes::from_static(part)).await.unwrap();
            }
        }
    );
    answered.assert_ok();

    let parts = BODY.as_bytes().chunks(3);
    let frames = parts.map(|part| Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(part))));
    let stream = http_body_util::StreamBody::new(futures_util::stream::iter(frames));
    send(&service, delivery(BODY).map(|_| stream))
        .await
        .assert_ok();

    fn accepts<B>(_: &impl Service<Request<B>>) {}
    accepts::<hyper::body::Incoming>(&service);
}

/// An inner service that answers with a status given in a header, an `Outcome`, or an error.
fn inner(status: StatusCode, outcome: Option<Outcome>) -> axum::Router {
    axum::Router::new().fallback(async move |body: Bytes| {
        assert_eq!(body, BODY);
        let mut response = http::Response::new(axum::body::Body::from("from the inner service"));
        *response.status_mut() = status;
        if let Some(outcome) = outcome.clone() {
            response.extensions_mut().insert(outcome);
        }
        response
    })
}

#[tokio::test]
async fn custom_inner_service_is_settled_by_its_response() {
    for (status, outcome, done) in [
        (200, None, true),
        (202, None, true),
        (204, None, true),
        (302, None, false),
        (404, None, false),
        (409, None, false),
        (500, None, false),
        (200, Some(Outcome::Ignored), false),
        (500, Some(Outcome::Handled), true),
        (200, Some(Outcome::Handled), true),
        (500, Some(Outcome::Ignored), false),
    ] {
        let store = MokaStore::new();
        let status = StatusCode::from_u16(status).unwrap();
        let service = layer(&store).layer(inner(status, outcome.clone()));

        let answered = send(&service, delivery(BODY).key("a")).await;
        assert_eq!(answered.status, status);
        assert_eq!(answered.body, "from the inner service");
        assert_eq!(
            store.state("a").await == KeyState::Done,
            done,
            "{status} {outcome:?}"
        );
    }
}

#[tokio::test]
async fn failing_or_panicking_inner_service_releases_the_key() {
    let store = MokaStore::new();
    let failing = tower::service_fn(|_: Request<tower_webhook::Verified>| async {
        Err::<http::Response<Full<Bytes>>, _>(HANDLER_ERROR)
    });
    let service = layer(&store).layer(failing);
    let result = tower::ServiceExt::oneshot(service, delivery(BODY).key("a")).await;
    assert_eq!(result.unwrap_err(), HANDLER_ERROR);
    assert_eq!(store.state("a").await, KeyState::Free);

    let panicking =
        tower::service_fn(
            |_: Request<tower_webhook::Verified>| -> std::future::Ready<
                Result<http::Response<Full<Bytes>>, std::convert::Infallible>,
            > { panic!("{HANDLER_ERROR}") },
        );
    let service = layer(&store).layer(panicking);
    send(&service, delivery(BODY).key("a"))
        .await
        .assert_problem(500, "panicked");
    assert_eq!(store.state("a").await, KeyState::Free);
}

#[tokio::test]
async fn layers_work_with_another_one_between_them() {
    let (store, crm) = (MokaStore::new(), Crm::default());
    let service = tower::ServiceBuilder::new()
        .layer(tower_webhook::SignatureLayer::new(secret()))
        .map_response(|mut response: http::Response<_>| {
            response
                .headers_mut()
                .insert("x-between", "1".try_into().unwrap());
            response
        })
        .layer(IdempotencyLayer::new(store))
        .service(router(&crm));

    let refused = send(&service, delivery(BODY).without(SIGNATURE)).await;
    refused.assert_problem(401, "invalid-signature");
    assert_eq!(refused.header("x-between"), None);
    for replayed in [None, Some("true")] {
        let answered = send(&service, delivery(BODY).key("a")).await;
        assert_eq!(answered.status, StatusCode::OK);
        assert_eq!(answered.header("x-between"), Some("1"));
        assert_eq!(answered.header("idempotent-replayed"), replayed);
    }
    assert_eq!(crm.runs(), 1);

    // Without the second layer nothing is remembered.
    let service = tower_webhook::SignatureLayer::new(secret()).layer(router(&crm));
    for _ in 0..2 {
        send(&service, delivery(BODY).key("a")).await.assert_ok();
    }
    assert_eq!(crm.attempts(), [Some(1), None, None]);
}

#[tokio::test]
async fn layers_can_be_mounted_in_axum() {
    let crm = Crm::default();
    let service = layer(&MokaStore::new()).layer(router(&crm));
    let app = axum::Router::new().route_service("/webhooks", service);
    let request = || delivery(BODY).key("a").map(axum::body::Body::new);
    send(&app, request()).await.assert_ok();
    send(&app, request()).await.assert_replayed();
    assert_eq!(crm.runs(), 1);
}

#[tokio::test]
async fn closures_are_handlers() {
    let closure = async |delivery: Delivery<ChatRated>| -> HandlerResult {
        assert_eq!(delivery.payload.id.as_deref(), Some("chat-1"));
        Ok(())
    };
    let service = layer(&MokaStore::new()).layer(EventRouter::new().on::<ChatRated>(closure));
    send(&service, delivery(BODY)).await.assert_ok();
}
