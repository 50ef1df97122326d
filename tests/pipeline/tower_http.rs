//! The layers of tower-http around and inside those of this crate: which order is right, and what a wrong one
//! costs. The page `docs::recipes` says the same.

#![cfg(all(feature = "axum", feature = "moka"))]

use std::convert::Infallible;
use std::fmt::Debug;
use std::future::pending;

use axum::Router;
use axum::body::Body;
use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post};
use bytes::{Buf, Bytes};
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::{CompressionLayer, predicate::SizeAbove};
use tower_http::decompression::{DecompressionLayer, RequestDecompressionLayer};
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer};
use tower_http::sensitive_headers::SetSensitiveRequestHeadersLayer;
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::{DefaultMakeSpan, TraceLayer};
use tower_webhook::event::ChatRated;
use tower_webhook::memory::MokaStore;
use tower_webhook::signature::{Refusal, SignatureError};
use tower_webhook::store::KeyState;
use tower_webhook::{Decision, Delivery, EventRouter, IdempotencyLayer, SignatureLayer, Webhooks};
use tracing::Level;

use support::Ready;
use support::SECOND;
use support::delivery::{
    Answered, BODY, Crm, HANDLER_ERROR, RequestExt, SIGNATURE, Step, delivery, delivery_of, read,
    secret, send,
};
use support::log::{Fields, Log};
use support::store::StoreExt;

const REQUEST_ID: &str = "x-request-id";

fn events(crm: &Crm) -> EventRouter {
    EventRouter::new().on::<ChatRated>(crm.clone())
}

/// Sends a request, and returns the answer with its decision, as a layer outside of all others sees it.
async fn decided<S, B, R>(service: &S, request: Request<B>) -> (Answered, Option<Decision>)
where
    S: Service<Request<B>, Response = Response<R>, Error: Debug> + Clone,
    R: http_body::Body<Data: Buf, Error: Debug>,
{
    let response = service.clone().oneshot(request).await.unwrap();
    let decision = Decision::of(&response).cloned();
    (read(response).await, decision)
}

fn name(decision: &Option<Decision>) -> Option<&'static str> {
    decision.as_ref().map(Decision::name)
}

/// The events of the log that a delivery ended with.
fn outcomes(log: &Log) -> Vec<Fields> {
    let events = log.events().into_iter();
    events.filter(|it| it.contains_key("outcome")).collect()
}

fn span(log: &Log, name: &str) -> Fields {
    let spans = log.spans();
    let mut spans = spans.into_iter().filter(|span| span["name"] == name);
    let span = spans.next().unwrap();
    assert!(spans.next().is_none(), "there are several spans `{name}`");
    span
}

#[tokio::test]
async fn request_id_is_a_field_of_the_span() {
    let log = Log::capture(Level::INFO);
    let service = Webhooks::new(secret()).layer(events(&Crm::default()));
    let recorded = async |request: Request<Full<Bytes>>| {
        log.clear();
        send(&service, request).await;
        span(&log, "delivery").remove("request_id")
    };

    let with = |value: &[u8]| delivery(BODY).with(REQUEST_ID, value);
    assert_eq!(recorded(with(b"r-1")).await.as_deref(), Some("r-1"));
    // Also of a refused request.
    let forged = with(b"r-2").with(SIGNATURE, "x");
    assert_eq!(recorded(forged).await.as_deref(), Some("r-2"));
    let get = with(b"r-3");
    let (mut parts, body) = get.into_parts();
    parts.method = http::Method::GET;
    let get = Request::from_parts(parts, body);
    assert_eq!(recorded(get).await.as_deref(), Some("r-3"));

    // It is escaped, and at most 64 characters long after that.
    let escaped = recorded(with(b"a \"\xe9\"")).await;
    assert_eq!(escaped.as_deref(), Some(r#"a \"\xe9\""#));
    let longest = "x".repeat(64);
    assert_eq!(recorded(with(longest.as_bytes())).await, Some(longest));
    assert_eq!(recorded(with(&[b'x'; 65])).await, None);
    assert_eq!(recorded(with(&[0xe9; 17])).await, None);

    assert_eq!(recorded(delivery(BODY)).await, None);
    assert_eq!(recorded(with(b"")).await, None);
    let doubled = with(b"r-1").and(REQUEST_ID, "r-1");
    assert_eq!(recorded(doubled).await, None);
}

#[tokio::test]
async fn request_id_is_set_outside() {
    let log = Log::capture(Level::INFO);
    let service = ServiceBuilder::new()
        .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
        .layer(PropagateRequestIdLayer::x_request_id())
        .layer(Webhooks::new(secret()).ready())
        .service(events(&Crm::default()));
    for request in [delivery(BODY), delivery(BODY).with(SIGNATURE, "x")] {
        log.clear();
        let answered = send(&service, request).await;
        let id = answered.header(REQUEST_ID).unwrap();
        assert_eq!(span(&log, "delivery")["request_id"], id);
    }

    // Inside, it comes too late: the span has none, and a refusal neither.
    let service = ServiceBuilder::new()
        .layer(Webhooks::new(secret()).ready())
        .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
        .layer(PropagateRequestIdLayer::x_request_id())
        .service(events(&Crm::default()));
    log.clear();
    let answered = send(&service, delivery(BODY)).await;
    assert!(answered.header(REQUEST_ID).is_some());
    assert_eq!(span(&log, "delivery").get("request_id"), None);
    let refused = send(&service, delivery(BODY).with(SIGNATURE, "x")).await;
    assert_eq!(refused.header(REQUEST_ID), None);
}

#[tokio::test(start_paused = true)]
async fn trace_outside_surrounds_the_delivery() {
    let log = Log::capture(Level::INFO);
    let layer = Webhooks::new(secret()).ready();
    let runs = layer.runs();
    let trace =
        TraceLayer::new_for_http().make_span_with(DefaultMakeSpan::new().level(Level::INFO));
    let crm = Crm::new([Step::SucceedAfter(20 * SECOND)]);
    let mut service = ServiceBuilder::new()
        .layer(trace)
        .layer(layer)
        .service(events(&crm));

    // The client disconnects, and the run ends later.
    let call = service.call(delivery_of("a"));
    assert!(tokio::time::timeout(SECOND, call).await.is_err());
    runs.drain(30 * SECOND).await.unwrap();

    assert_eq!(span(&log, "request")["uri"], "/webhooks");
    let delivery = span(&log, "delivery");
    assert_eq!(delivery["parent"], "request");
    assert_eq!(
        (&*delivery["attempt"], &*delivery["outcome"]),
        ("1", "handled")
    );
}

#[tokio::test]
async fn span_between_the_two_layers_hides_the_attempt() {
    let log = Log::capture(Level::INFO);
    let trace =
        || TraceLayer::new_for_http().make_span_with(DefaultMakeSpan::new().level(Level::INFO));
    let between = ServiceBuilder::new()
        .layer(SignatureLayer::new(secret()))
        .layer(trace())
        .layer(IdempotencyLayer::new(MokaStore::new()))
        .service(events(&Crm::default()));
    let inside = ServiceBuilder::new()
        .layer(SignatureLayer::new(secret()))
        .layer(IdempotencyLayer::new(MokaStore::new()))
        .layer(trace())
        .service(events(&Crm::default()));

    send(&between, delivery_of("a")).await.assert_ok();
    assert_eq!(span(&log, "delivery").get("attempt"), None);
    log.clear();
    send(&inside, delivery_of("a")).await.assert_ok();
    assert_eq!(span(&log, "delivery")["attempt"], "1");
}

#[tokio::test]
async fn trace_with_headers_logs_the_signature_unless_it_is_sensitive() {
    let log = Log::capture(Level::INFO);
    let trace = || {
        let span = DefaultMakeSpan::new()
            .level(Level::INFO)
            .include_headers(true);
        TraceLayer::new_for_http().make_span_with(span)
    };
    let signature = secret().sign(BODY.as_bytes());
    let webhooks = || Webhooks::new(secret()).layer(events(&Crm::default()));

    let shown = ServiceBuilder::new().layer(trace()).service(webhooks());
    send(&shown, delivery(BODY)).await.assert_ok();
    assert!(log.text().contains(&signature));

    log.clear();
    let sensitive = SetSensitiveRequestHeadersLayer::new([SIGNATURE.parse().unwrap()]);
    let hidden = ServiceBuilder::new()
        .layer(sensitive)
        .layer(trace())
        .service(webhooks());
    send(&hidden, delivery(BODY)).await.assert_ok();
    assert!(!log.text().contains(&signature), "{}", log.text());
}

#[tokio::test(start_paused = true)]
async fn timeout_outside_counts_as_a_failure_and_does_not_stop_the_handler() {
    let log = Log::capture(Level::INFO);
    let layer = Webhooks::new(secret()).ready();
    let runs = layer.runs();
    let crm = Crm::new([Step::SucceedAfter(20 * SECOND)]);
    let service = ServiceBuilder::new()
        .layer(TimeoutLayer::with_status_code(
            StatusCode::GATEWAY_TIMEOUT,
            5 * SECOND,
        ))
        .layer(layer)
        .service(events(&crm));

    let (answered, decision) = decided(&service, delivery_of("a")).await;
    assert_eq!(answered.status, 504);
    assert!(answered.body.is_empty() && decision.is_none());
    assert_eq!(outcomes(&log), []);

    // The run goes on, and the next attempt is a replay.
    runs.drain(30 * SECOND).await.unwrap();
    assert_eq!(crm.successes(), 1);
    assert_eq!(span(&log, "delivery")["outcome"], "handled");
    send(&service, delivery_of("a")).await.assert_replayed();
    assert_eq!(crm.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn timeout_inside_drops_the_handler_and_has_no_outcome() {
    let log = Log::capture(Level::INFO);
    let store = MokaStore::new();
    let crm = Crm::new([Step::Hang]);
    let service = ServiceBuilder::new()
        .layer(Webhooks::new(secret()).store(store.clone()).ready())
        .layer(TimeoutLayer::with_status_code(
            StatusCode::SERVICE_UNAVAILABLE,
            5 * SECOND,
        ))
        .service(events(&crm));

    let (answered, decision) = decided(&service, delivery_of("a")).await;
    assert_eq!(answered.status, 503);
    assert_eq!(name(&decision), Some("failed"), "not `handler-timeout`");
    assert_eq!(store.state("a").await, KeyState::Free);
    assert_eq!(outcomes(&log), []);
    assert_eq!(log.count(Level::WARN, "answered without 2xx"), 1);
    send(&service, delivery_of("a")).await.assert_ok();
    assert_eq!(crm.runs(), 2);

    // The setter answers by its row of the table, and logs an error.
    log.clear();
    let layer = Webhooks::new(secret()).handler_timeout(5 * SECOND);
    let service = layer.layer(events(&Crm::new([Step::Hang])));
    let (answered, decision) = decided(&service, delivery_of("a")).await;
    answered.assert_problem(503, "handler-timeout");
    assert_eq!(name(&decision), Some("handler-timeout"));
    assert_eq!(outcomes(&log)[0]["level"], "ERROR");
}

#[tokio::test]
async fn body_limit_outside_refuses_without_a_decision() {
    let log = Log::capture(Level::INFO);
    let service = ServiceBuilder::new()
        .layer(RequestBodyLimitLayer::new(9))
        .layer(Webhooks::new(secret()).ready())
        .service(events(&Crm::default()));

    let declared = delivery(BODY).with("content-length", BODY.len().to_string());
    let (answered, decision) = decided(&service, declared).await;
    assert_eq!(answered.status, 413);
    assert_eq!(
        answered.header("content-type"),
        Some("text/plain; charset=utf-8")
    );
    assert!(decision.is_none());
    assert!(log.spans().is_empty() && log.events().is_empty());

    // Without a declared length, it breaks the body off.
    let (answered, decision) = decided(&service, delivery(BODY)).await;
    answered.assert_problem(400, "malformed-body");
    assert_eq!(name(&decision), Some("malformed-body"));
    assert_eq!(outcomes(&log)[0]["reason"], "length limit exceeded");

    let service = Webhooks::new(secret()).max_body(9);
    let service = service.layer(events(&Crm::default()));
    let declared = delivery(BODY).with("content-length", BODY.len().to_string());
    for request in [declared, delivery(BODY)] {
        send(&service, request)
            .await
            .assert_problem(413, "body-too-large");
    }
}

#[tokio::test]
async fn body_limit_inside_fails_a_run() {
    let store = MokaStore::new();
    let log = Log::capture(Level::INFO);
    let routes = Router::new()
        .route("/webhooks", post(async |_: Delivery<ChatRated>| ()))
        .layer(
            ServiceBuilder::new()
                .layer(RequestDecompressionLayer::new())
                .layer(RequestBodyLimitLayer::new(BODY.len())),
        );
    let service = Webhooks::new(secret()).store(store.clone()).layer(routes);
    let with_length = |body: &'static str| {
        let length = body.len().to_string();
        delivery(body).key("a").with("content-length", length)
    };

    let large = with_length(r#"{"id":"chat-100"}"#);
    let (answered, decision) = decided(&service, large).await;
    assert_eq!(answered.status, 413);
    assert_eq!(name(&decision), Some("failed"), "not `body-too-large`");
    assert_eq!(log.count(Level::WARN, "answered without 2xx"), 1);
    assert_eq!(store.state("a").await, KeyState::Free);
    send(&service, with_length(BODY)).await.assert_ok_status();
}

#[tokio::test]
async fn default_body_limit_of_axum_does_not_bind_a_delivery() {
    let body = format!(r#"{{"id":"{}"}}"#, "x".repeat(3 * 1024 * 1024));
    let request = |path: &str| {
        let mut request = delivery(body.clone()).map(Body::new);
        *request.uri_mut() = path.parse().unwrap();
        request
    };
    let app = Router::new()
        .route("/delivery", post(async |_: Delivery<ChatRated>| ()))
        .route("/bytes", post(async |_: Bytes| ()))
        .route_layer(Webhooks::new(secret()).max_body(4 * 1024 * 1024).ready());

    send(&app, request("/delivery")).await.assert_ok_status();
    assert_eq!(send(&app, request("/bytes")).await.status, 413);
    let app = app.layer(DefaultBodyLimit::disable());
    send(&app, request("/bytes")).await.assert_ok_status();
}

#[tokio::test]
async fn catch_panic_outside_finds_nothing_to_catch() {
    let log = Log::capture(Level::INFO);
    let service = ServiceBuilder::new()
        .layer(CatchPanicLayer::new())
        .layer(Webhooks::new(secret()).ready())
        .service(events(&Crm::new([Step::Panic, Step::PanicAfterAwait])));
    for _ in 0..2 {
        log.clear();
        let (answered, decision) = decided(&service, delivery_of("a")).await;
        answered.assert_problem(500, "panicked");
        assert_eq!(name(&decision), Some("panicked"));
        assert_eq!(log.count(Level::ERROR, "Service panicked"), 0);
    }
    send(&service, delivery_of("a")).await.assert_ok();
}

/// An `EventRouter` catches the panics of its handlers itself.
#[tokio::test]
async fn catch_panic_inside_hides_the_outcome_of_an_axum_handler() {
    let log = Log::capture(Level::INFO);
    let store = MokaStore::new();
    let panics = async |_: Delivery<ChatRated>| -> StatusCode { panic!("{HANDLER_ERROR}") };
    let routes: Router = Router::new().route("/webhooks", post(panics));

    let layer = Webhooks::new(secret()).store(store.clone()).ready();
    let plain = layer.clone().layer(routes.clone());
    let (answered, decision) = decided(&plain, delivery_of("a")).await;
    answered.assert_problem(500, "panicked");
    assert_eq!(name(&decision), Some("panicked"));
    assert_eq!(outcomes(&log)[0]["level"], "ERROR");

    log.clear();
    let caught = layer.layer(routes.layer(CatchPanicLayer::new()));
    let (answered, decision) = decided(&caught, delivery_of("a")).await;
    assert_eq!(answered.status, 500);
    assert_eq!(answered.body, "Service panicked");
    assert_eq!(name(&decision), Some("failed"), "not `panicked`");
    assert_eq!(outcomes(&log), []);
    // Its own line has the panic's message, whatever that contains.
    assert_eq!(log.count(Level::ERROR, HANDLER_ERROR), 1);
    assert_eq!(store.state("a").await, KeyState::Free);
}

/// [`BODY`] as gzip.
async fn compressed_body() -> Bytes {
    let service = service_fn(|_: Request<()>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(BODY)))
    });
    let layer = CompressionLayer::new().compress_when(SizeAbove::new(0));
    let request = Request::builder().header(ACCEPT_ENCODING, "gzip").body(());
    let response = layer
        .layer(service)
        .oneshot(request.unwrap())
        .await
        .unwrap();
    assert_eq!(response.headers()[CONTENT_ENCODING], "gzip");
    response.into_body().collect().await.unwrap().to_bytes()
}

#[tokio::test]
async fn decompression_outside_breaks_the_signature() {
    let log = Log::capture(Level::INFO);
    let webhooks = || Webhooks::new(secret()).layer(events(&Crm::default()));
    let decompressing = ServiceBuilder::new()
        .layer(RequestDecompressionLayer::new())
        .service(webhooks());
    let gzip = compressed_body().await;
    let signed = || delivery(gzip.clone()).with("content-encoding", "gzip");

    // The signature covers the bytes on the wire, and the layer behind gets others.
    let (answered, decision) = decided(&decompressing, signed()).await;
    answered.assert_problem(401, "invalid-signature");
    let decision = decision.unwrap();
    assert_eq!(decision.name(), "invalid-signature");
    let refusal = decision.refusal().unwrap().downcast_ref();
    let Some(Refusal::InvalidSignature(SignatureError::Wrong)) = refusal else {
        panic!("{refusal:?}");
    };
    assert_eq!(
        outcomes(&log)[0]["reason"],
        "the signature is wrong for every secret"
    );

    // Without it, the log names the cause.
    log.clear();
    let (answered, decision) = decided(&webhooks(), signed()).await;
    answered.assert_problem(415, "unsupported-media-type");
    assert!(decision.unwrap().is_verified());
    let reason = &outcomes(&log)[0]["reason"];
    assert!(reason.contains("without a content encoding"), "{reason}");

    // An encoding that it does not know is refused without a decision.
    let unknown = delivery(BODY).with("content-encoding", "br");
    let (answered, decision) = decided(&decompressing, unknown).await;
    assert_eq!(answered.status, 415);
    assert!(decision.is_none());

    // Deliveries of the platform are not compressed, and pass.
    send(&decompressing, delivery(BODY)).await.assert_ok();
}

#[tokio::test]
async fn compression_outside_changes_bodies_only() {
    let webhooks = || Webhooks::new(secret()).layer(events(&Crm::default()));
    let compressing = ServiceBuilder::new()
        .layer(CompressionLayer::new())
        .service(webhooks());
    let accepting = |request: Request<_>| request.with("accept-encoding", "gzip");
    let refused = || delivery(BODY).with(SIGNATURE, "x");

    let (answered, decision) = decided(&compressing, accepting(refused())).await;
    assert_eq!(answered.header("content-encoding"), Some("gzip"));
    assert_eq!(answered.status, 401);
    assert_eq!(name(&decision), Some("invalid-signature"));

    let client = DecompressionLayer::new().layer(compressing.clone());
    let plain = send(&webhooks(), refused()).await;
    assert_eq!(send(&client, refused()).await.body, plain.body);

    // Not for a client that does not ask for it, and not for a success, which has no body.
    let (answered, _) = decided(&compressing, refused()).await;
    assert_eq!(
        (answered.header("content-encoding"), &answered.body),
        (None, &plain.body)
    );
    let (answered, decision) = decided(&compressing, accepting(delivery_of("a"))).await;
    assert_eq!(answered.status, 200);
    assert_eq!(answered.header("content-encoding"), None);
    assert_eq!(name(&decision), Some("handled"));
    let replayed = send(&compressing, accepting(delivery_of("a"))).await;
    assert!(replayed.is_replay());
}

fn to(path: &str, mut request: Request<Full<Bytes>>) -> Request<Body> {
    *request.uri_mut() = path.parse().unwrap();
    request.map(Body::new)
}

fn get_of(path: &str) -> Request<Body> {
    Request::get(path).body(Body::empty()).unwrap()
}

/// The stack of the page: some layers around everything, the others around the other routes only.
#[tokio::test(start_paused = true)]
async fn usual_stack_leaves_deliveries_alone() {
    let log = Log::capture(Level::INFO);
    let crm = Crm::new([Step::SucceedAfter(20 * SECOND), Step::Panic]);
    let pages = Router::new()
        .route(
            "/",
            get(async || "a page that is long enough to be compressed"),
        )
        .route("/slow", get(async || pending::<()>().await))
        .route("/echo", post(async |body: String| body))
        .layer(
            ServiceBuilder::new()
                .layer(TimeoutLayer::with_status_code(
                    StatusCode::SERVICE_UNAVAILABLE,
                    5 * SECOND,
                ))
                .layer(RequestBodyLimitLayer::new(9))
                .layer(CompressionLayer::new())
                .layer(RequestDecompressionLayer::new()),
        );
    let app = Router::new()
        .route_service("/webhooks", Webhooks::new(secret()).layer(events(&crm)))
        .merge(pages)
        .layer(
            ServiceBuilder::new()
                .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
                .layer(TraceLayer::new_for_http())
                .layer(PropagateRequestIdLayer::x_request_id())
                .layer(CatchPanicLayer::new()),
        );

    // Slower than the time limit of the other routes, and larger than their limit.
    let (answered, decision) = decided(&app, to("/webhooks", delivery_of("a"))).await;
    assert_eq!(answered.status, 200);
    assert_eq!(name(&decision), Some("handled"));
    assert_eq!(
        answered.header(REQUEST_ID),
        Some(&*span(&log, "delivery")["request_id"])
    );
    let (answered, decision) = decided(&app, to("/webhooks", delivery_of("b"))).await;
    assert_eq!(answered.status, 500);
    assert!(answered.header(REQUEST_ID).is_some());
    assert_eq!(name(&decision), Some("panicked"));

    let page = send(&app, get_of("/").with("accept-encoding", "gzip")).await;
    assert_eq!(page.header("content-encoding"), Some("gzip"));
    assert_eq!(send(&app, get_of("/slow")).await.status, 503);
    assert_eq!(send(&app, to("/echo", delivery(BODY))).await.status, 413);
    assert_eq!(send(&app, get_of("/nowhere")).await.status, 404);
}

#[tokio::test]
async fn router_layer_takes_over_the_404_of_the_application() {
    let routes = || Router::new().route("/webhooks", post(async |_: Delivery<ChatRated>| ()));
    let fallback = async || (StatusCode::NOT_FOUND, "the application's own page");

    let layer = routes()
        .fallback(fallback)
        .layer(Webhooks::new(secret()).ready());
    send(&layer, get_of("/nowhere"))
        .await
        .assert_problem_of_axum(405, "method-not-allowed");

    let route_layer = routes()
        .route_layer(Webhooks::new(secret()).ready())
        .fallback(fallback);
    let route_service = Router::new()
        .route_service("/webhooks", Webhooks::new(secret()).layer(routes()))
        .fallback(fallback);
    for app in [route_layer, route_service] {
        let answered = send(&app, get_of("/nowhere")).await;
        assert_eq!(answered.status, 404);
        assert_eq!(&answered.body[..], b"the application's own page");
        send(&app, to("/webhooks", delivery(BODY)))
            .await
            .assert_ok_status();
        let forged = delivery(BODY).with(SIGNATURE, "x");
        assert_eq!(send(&app, to("/webhooks", forged)).await.status, 401);
    }
}

trait AnsweredByAxum {
    fn assert_ok_status(&self);
    fn assert_problem_of_axum(self, status: u16, name: &str);
}

impl AnsweredByAxum for Answered {
    #[track_caller]
    fn assert_ok_status(&self) {
        assert_eq!(self.status, 200, "{self:?}");
    }

    /// As a server sends it: axum adds the length.
    #[track_caller]
    fn assert_problem_of_axum(mut self, status: u16, name: &str) {
        self.headers.remove("content-length");
        self.assert_problem(status, name);
    }
}
