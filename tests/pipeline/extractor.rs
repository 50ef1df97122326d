//! Plain axum handlers behind the layers.

#![cfg(all(feature = "axum", feature = "moka"))]

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use http::Request;
use http_body_util::Full;
use tower::Layer;
use tower_webhook::event::{ChatClosed, ChatRated};
use tower_webhook::memory::MokaStore;
use tower_webhook::store::KeyState;
use tower_webhook::{Delivery, RawDelivery, SignatureLayer, Webhooks};
use tracing::Level;

use support::Ready;
use support::delivery::{Answered, BODY, HANDLER_ERROR, RequestExt, delivery, secret, send};
use support::log::Log;
use support::store::StoreExt;

type Seen = Arc<Mutex<Vec<String>>>;

async fn rated(State(seen): State<Seen>, delivery: Delivery<ChatRated>) -> StatusCode {
    let attempt = delivery.attempt().map_or(0, Into::into);
    let key = delivery.key().map(ToString::to_string);
    let id = delivery.payload.id.as_deref();
    seen.lock()
        .unwrap()
        .push(format!("{id:?} {key:?} {attempt}"));
    match id {
        Some("fails") => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::NO_CONTENT,
    }
}

async fn any(State(seen): State<Seen>, raw: RawDelivery) {
    seen.lock()
        .unwrap()
        .push(format!("{} {:?}", raw.kind(), raw.body()));
}

async fn both(raw: RawDelivery, delivery: Delivery<ChatRated>) {
    assert_eq!(raw.body(), delivery.raw().body());
}

fn app() -> (Router, Seen) {
    let seen = Seen::default();
    let app = Router::new()
        .route("/webhooks", post(rated))
        .route("/any", post(any))
        .route("/both", post(both))
        .with_state(seen.clone());
    (app, seen)
}

#[tokio::test]
async fn delivery_is_extracted_with_its_attempt() {
    let store = MokaStore::new();
    let (app, seen) = app();
    let service = Webhooks::new(secret()).store(store.clone()).layer(app);
    let fails = || delivery(r#"{"id":"fails"}"#).key("f");

    assert_eq!(send(&service, delivery(BODY)).await.status, 204);
    assert_eq!(send(&service, fails()).await.status, 500);
    assert_eq!(send(&service, fails()).await.status, 500);
    assert_eq!(store.state("f").await, KeyState::Free);
    assert_eq!(send(&service, delivery(BODY).key("a")).await.status, 204);
    send(&service, delivery(BODY).key("a"))
        .await
        .assert_replayed();
    assert_eq!(
        *seen.lock().unwrap(),
        [
            r#"Some("chat-1") None 0"#,
            r#"Some("fails") Some("f") 1"#,
            r#"Some("fails") Some("f") 2"#,
            r#"Some("chat-1") Some("a") 1"#,
        ]
    );
}

#[tokio::test]
async fn layers_wrap_an_axum_route() {
    async fn closed(delivery: Delivery<ChatClosed>) -> StatusCode {
        match delivery.payload.id {
            Some(_) => StatusCode::OK,
            None => StatusCode::BAD_GATEWAY,
        }
    }
    let inner = Router::new().fallback(closed);
    let app = Router::new().route_service("/closed", Webhooks::new(secret()).layer(inner));
    let request = |body: &'static str| {
        let mut request = delivery(body).kind("chat-closed").map(Body::new);
        *request.uri_mut() = "/closed".parse().unwrap();
        request
    };
    assert_eq!(send(&app, request(BODY)).await.status, 200);
    assert_eq!(send(&app, request("{}")).await.status, 502);
}

#[tokio::test]
async fn event_of_another_kind_is_not_lost() {
    let log = Log::capture(Level::WARN);
    let store = MokaStore::new();
    let (app, seen) = app();
    let service = Webhooks::new(secret()).store(store.clone()).layer(app);
    for _ in 0..2 {
        let answered = send(&service, delivery(BODY).key("a").kind("chat-opened")).await;
        assert_problem(answered, 404, "unhandled");
        assert_eq!(store.state("a").await, KeyState::Free);
    }
    assert!(seen.lock().unwrap().is_empty());
    assert_eq!(log.count(Level::WARN, "`chat-opened`"), 2);
    assert_eq!(log.count(Level::WARN, "`chat-rated`"), 2);
    assert_eq!(log.events().len(), 2);
    assert_eq!(send(&service, delivery(BODY).key("a")).await.status, 204);
}

#[tokio::test]
async fn undecodable_body_is_refused_and_its_key_released() {
    let store = MokaStore::new();
    let (app, _) = app();
    let service = Webhooks::new(secret()).store(store.clone()).layer(app);
    for body in [&b"[]"[..], b"{", b"\xff", b""] {
        let answered = send(&service, delivery(body).key("a")).await;
        assert_problem(answered, 422, "undecodable");
        assert_eq!(store.state("a").await, KeyState::Free);
    }
}

/// As a server sends it: axum adds the length.
fn assert_problem(mut answered: Answered, status: u16, name: &str) {
    answered.headers.remove("content-length");
    answered.assert_problem(status, name);
}

fn to(path: &'static str, mut request: Request<Full<bytes::Bytes>>) -> Request<Full<bytes::Bytes>> {
    *request.uri_mut() = path.parse().unwrap();
    request
}

#[tokio::test]
async fn any_delivery_is_extracted_as_a_raw_delivery() {
    let (app, seen) = app();
    let service = Webhooks::new(secret()).layer(app);
    for (kind, body) in [("chat-archived", &b"\xff\0"[..]), ("chat-rated", b" {} ")] {
        let request = to("/any", delivery(body).kind(kind));
        assert_eq!(send(&service, request).await.status, 200);
    }
    assert_eq!(
        *seen.lock().unwrap(),
        [r#"chat-archived b"\xff\0""#, r#"chat-rated b" {} ""#]
    );
    assert_eq!(
        send(&service, to("/both", delivery(BODY))).await.status,
        200
    );
}

#[tokio::test]
async fn delivery_without_a_claim_has_no_attempt() {
    let (app, seen) = app();
    let service = SignatureLayer::new(secret()).layer(app);
    assert_eq!(send(&service, delivery(BODY).key("a")).await.status, 204);
    assert_eq!(*seen.lock().unwrap(), [r#"Some("chat-1") Some("a") 0"#]);
}

#[tokio::test]
async fn extraction_without_the_layers_fails_and_is_logged() {
    let log = Log::capture(Level::INFO);
    let (app, seen) = app();
    for path in ["/webhooks", "/any", "/both"] {
        log.clear();
        let request = to(path, delivery(BODY)).map(Body::new);
        assert_problem(send(&app, request).await, 500, "failed");
        let events = log.events();
        assert_eq!(events.len(), 1, "{events:?}");
        assert_eq!(events[0]["level"], "ERROR");
        assert!(events[0]["reason"].contains("behind `WebhookLayer` or `SignatureLayer`"));
    }
    assert!(seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn panic_of_an_axum_handler_is_a_failed_run() {
    let store = MokaStore::new();
    let panics = async |_: Delivery<ChatRated>| -> StatusCode { panic!("{HANDLER_ERROR}") };
    let app: Router = Router::new().fallback(panics);
    let service = Webhooks::new(secret()).store(store.clone()).layer(app);
    send(&service, delivery(BODY).key("a"))
        .await
        .assert_problem(500, "panicked");
    assert_eq!(store.state("a").await, KeyState::Free);
}
