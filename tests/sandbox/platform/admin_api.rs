//! The endpoint of the Admin API.

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tower::ServiceExt;
use tower_webhook_sandbox::Sandbox;

use super::Recorder;

const QUERY: &str = r#"{"query":"{ partner { state { chat { isAvailable } } } }"}"#;

fn request(token: &str) -> http::request::Builder {
    Request::post("/api/graphql")
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {token}"))
}

async fn answer(
    sandbox: &Sandbox,
    request: http::request::Builder,
    body: &str,
) -> (StatusCode, Value) {
    let request = request
        .body(Full::new(Bytes::from(body.to_owned())))
        .unwrap();
    let response = sandbox.graphql().oneshot(request).await.unwrap();
    assert_eq!(response.headers()["content-type"], "application/json");
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap())
}

fn idle_sandbox() -> Sandbox {
    Sandbox::in_process(Recorder::answering(StatusCode::OK).service())
}

#[tokio::test]
async fn returns_the_availability() {
    let sandbox = idle_sandbox();
    let key = sandbox.create_api_key("CRM");
    for available in [true, false] {
        sandbox.set_available(available);
        let expected =
            json!({"data": {"partner": {"state": {"chat": {"isAvailable": available}}}}});
        assert_eq!(
            answer(&sandbox, request(&key), QUERY).await,
            (StatusCode::OK, expected)
        );
    }
    let keys = sandbox.api_keys();
    assert_eq!(keys[0].description, "CRM");
    assert!(!format!("{keys:?}{sandbox:?}").contains(&key));
}

#[tokio::test]
async fn can_be_mounted_in_an_axum_router() {
    let sandbox = idle_sandbox();
    let key = sandbox.create_api_key("CRM");
    let app = axum::Router::new().route_service("/api/graphql", sandbox.graphql());
    let request = request(&key).body(axum::body::Body::from(QUERY)).unwrap();
    assert_eq!(app.oneshot(request).await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn requires_an_api_key() {
    let sandbox = idle_sandbox();
    let key = sandbox.create_api_key("CRM");
    assert_ne!(key, sandbox.create_api_key("CRM"));
    let bare = || Request::post("/graphql").header("content-type", "application/json");
    for refused in [
        bare(),
        request(""),
        request("wrong"),
        bare().header("authorization", &key),
        bare().header("authorization", format!("Basic {key}")),
    ] {
        let (status, body) = answer(&sandbox, refused, QUERY).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED);
        assert!(body["errors"][0]["message"].is_string());
    }
}

#[tokio::test]
async fn refuses_requests_that_differ_from_the_spec() {
    let sandbox = idle_sandbox();
    let key = sandbox.create_api_key("CRM");
    let status = async |request, body: &str| answer(&sandbox, request, body).await.0;

    for body in [
        "",
        "[]",
        "{}",
        r#"{"query":1}"#,
        r#"{"query":"{a}","variables":{}}"#,
    ] {
        assert_eq!(
            status(request(&key), body).await,
            StatusCode::BAD_REQUEST,
            "{body}"
        );
    }
    let other = || request(&key);
    assert_eq!(
        status(other().method("GET"), "").await,
        StatusCode::METHOD_NOT_ALLOWED
    );
    assert_eq!(
        status(other().uri("/graph"), QUERY).await,
        StatusCode::NOT_FOUND
    );
    let text = Request::post("/graphql").header("authorization", format!("Bearer {key}"));
    assert_eq!(
        status(text, QUERY).await,
        StatusCode::UNSUPPORTED_MEDIA_TYPE
    );
    let large = format!(r#"{{"query":"{}"}}"#, " ".repeat(1 << 20));
    assert_eq!(status(other(), &large).await, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn variables_may_be_null() {
    let sandbox = idle_sandbox();
    let key = sandbox.create_api_key("CRM");
    let query = QUERY.strip_suffix('}').unwrap();
    let body = format!(r#"{query},"variables":null}}"#);
    let (status, body) = answer(&sandbox, request(&key), &body).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    assert_eq!(
        body["data"]["partner"]["state"]["chat"]["isAvailable"],
        true
    );
}

#[tokio::test]
async fn returns_errors_in_the_graphql_envelope() {
    let sandbox = idle_sandbox();
    let key = sandbox.create_api_key("CRM");
    let body = r#"{"query":"{ partner { name } }"}"#;
    let (status, body) = answer(&sandbox, request(&key), body).await;
    assert_eq!(status, StatusCode::OK);
    assert!(
        body["errors"][0]["message"]
            .as_str()
            .unwrap()
            .contains("name")
    );
    assert_eq!(body["data"], Value::Null);
}
