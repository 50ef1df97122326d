//! The first layer: every fault of a request by itself, and every pair of them.

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use http_body::{Body, Frame};
use tokio::time::Instant;
use tower::{Layer, Service};
use tower_webhook::memory::MokaStore;
use tower_webhook::store::KeyState;
use tower_webhook::{Sender, SenderPolicy, SignatureLayer, Webhooks};

use support::Ready;
use support::delivery::{
    Answered, BODY, CONTENT_TYPE, Crm, EVENT, KEY, RequestExt, SIGNATURE, Step, delivery, secret,
    send,
};
use support::store::{Operation, TestStore};

use super::{SECOND, layer, router};

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
    Fault { status: 503, name: "database-unavailable", part: "store", apply: |case| case.store.fail([Operation::Claim]) },
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
async fn memory_of_bodies_that_are_being_received_is_counted() {
    let layer = SignatureLayer::new(secret());
    let mut service = layer.layer(router(&Crm::default()));
    let slow = TestBody {
        frames: vec![large_body().into()],
        end: End::Slow,
    };
    let mut answer = Box::pin(service.call(delivery(BODY).map(|_| slow)));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(answer.as_mut().poll(&mut cx).is_pending());
    assert!(layer.buffered() >= BODY.len());
    drop(answer);
    assert_eq!(layer.buffered(), 0);
}

#[tokio::test]
async fn overloaded_response_has_retry_after() {
    let mut policy = SenderPolicy::default();
    policy.retry_every = Duration::from_millis(120_500);
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
