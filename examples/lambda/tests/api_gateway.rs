//! The function as AWS runs it: the test is the interface that Lambda's runtime asks for invocations, whose events are
//! those of API Gateway, and the worker on the same database.

use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{AppendHeaders, IntoResponse};
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use support::postgres::PostgresServer;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, mpsc};
use tokio::time::timeout;
use tower_webhook::inbox::Inbox;
use tower_webhook::postgres::PostgresQueue;
use tower_webhook::{EventRouter, RawDelivery, Secret, Webhooks};

const PATIENCE: Duration = Duration::from_secs(60);

/// The interface of Lambda for its runtime (2018-06-01).
struct Lambda {
    next: Mutex<mpsc::Receiver<Value>>,
    answers: mpsc::Sender<Value>,
}

async fn next(State(lambda): State<Arc<Lambda>>) -> impl IntoResponse {
    let event = lambda.next.lock().await.recv().await;
    let headers = [
        (
            "lambda-runtime-aws-request-id",
            "8476a536-e9f4-11e8-9739-2dfe598c3fcd",
        ),
        ("lambda-runtime-deadline-ms", "4102444800000"),
        (
            "lambda-runtime-invoked-function-arn",
            "arn:aws:lambda:eu-west-1:1:function:f",
        ),
    ];
    (AppendHeaders(headers), Json(event))
}

async fn answer(
    State(lambda): State<Arc<Lambda>>,
    Path((_, what)): Path<(String, String)>,
    // The runtime does not say that it is JSON.
    body: String,
) -> StatusCode {
    assert_eq!(what, "response", "{body}");
    let body = serde_json::from_str(&body).unwrap();
    lambda.answers.send(body).await.unwrap();
    StatusCode::ACCEPTED
}

/// The function, which is killed when this is dropped.
struct Function {
    child: Child,
    events: mpsc::Sender<Value>,
    answers: mpsc::Receiver<Value>,
}

impl Function {
    async fn start(database: &str) -> Self {
        let (events, next_events) = mpsc::channel(1);
        let (answered, answers) = mpsc::channel(1);
        let lambda = Arc::new(Lambda {
            next: Mutex::new(next_events),
            answers: answered,
        });
        let app = Router::new()
            .route("/2018-06-01/runtime/invocation/next", get(next))
            .route("/2018-06-01/runtime/invocation/{id}/{what}", post(answer))
            .with_state(lambda);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        let child = Command::new(env!("CARGO_BIN_EXE_tower-webhook-lambda"))
            .env("AWS_LAMBDA_RUNTIME_API", address.to_string())
            .env("AWS_LAMBDA_FUNCTION_NAME", "f")
            .env("AWS_LAMBDA_FUNCTION_VERSION", "1")
            .env("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "128")
            .env("AWS_LAMBDA_LOG_GROUP_NAME", "g")
            .env("AWS_LAMBDA_LOG_STREAM_NAME", "s")
            .env("DATABASE_URL", database)
            .env("WEBHOOK_SECRET", "s")
            .spawn()
            .unwrap();
        Self {
            child,
            events,
            answers,
        }
    }

    /// Returns the status and the headers of the response.
    async fn invoke(&mut self, event: Value) -> (u64, Value) {
        self.events.send(event).await.unwrap();
        let answer = timeout(PATIENCE, self.answers.recv())
            .await
            .unwrap()
            .unwrap();
        let status = answer["statusCode"].as_u64().unwrap();
        let mut headers = answer["headers"].clone();
        if headers.as_object().is_none_or(serde_json::Map::is_empty) {
            headers = answer["multiValueHeaders"].clone();
        }
        (status, headers)
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The body of an event, and whether it is in base64.
fn encoded(body: &[u8]) -> (String, bool) {
    match std::str::from_utf8(body) {
        Ok(text) if !text.contains('ü') => (text.to_owned(), false),
        _ => (STANDARD.encode(body), true),
    }
}

fn signed(body: &[u8], key: &str, secret: &str) -> Value {
    json!({
        "content-type": "application/json",
        "idempotency-key": key,
        "x-service-event": "chat-rated",
        "x-service-hmac-sha256": Secret::new(secret).unwrap().sign(body),
        "host": "abc.execute-api.eu-west-1.amazonaws.com",
    })
}

/// As an HTTP API or a function URL sends it (version 2.0).
fn of_http_api(body: &[u8], headers: Value) -> Value {
    let (text, is_base64) = encoded(body);
    json!({
        "version": "2.0",
        "routeKey": "POST /webhooks",
        "rawPath": "/webhooks",
        "rawQueryString": "",
        "headers": headers,
        "requestContext": {
            "accountId": "1", "apiId": "abc", "domainName": "abc.execute-api.eu-west-1.amazonaws.com", "domainPrefix": "abc",
            "http": {
                "method": "POST", "path": "/webhooks", "protocol": "HTTP/1.1", "sourceIp": "192.0.2.1", "userAgent": "x"
            },
            "requestId": "r", "routeKey": "POST /webhooks", "stage": "$default",
            "time": "28/Nov/2026:22:00:00 +0000", "timeEpoch": 1_796_000_000_000_u64
        },
        "body": text,
        "isBase64Encoded": is_base64
    })
}

/// As a REST API sends it (version 1.0).
fn of_rest_api(body: &[u8], headers: &Value) -> Value {
    let (text, is_base64) = encoded(body);
    let several = headers.as_object().unwrap().iter();
    let several: serde_json::Map<_, _> = several
        .map(|(name, value)| (name.clone(), json!([value])))
        .collect();
    json!({
        "resource": "/webhooks",
        "path": "/webhooks",
        "httpMethod": "POST",
        "headers": headers,
        "multiValueHeaders": several,
        "queryStringParameters": null,
        "multiValueQueryStringParameters": null,
        "pathParameters": null,
        "stageVariables": null,
        "requestContext": {
            "accountId": "1", "apiId": "abc", "domainName": "abc.execute-api.eu-west-1.amazonaws.com", "httpMethod": "POST",
            "path": "/prod/webhooks", "protocol": "HTTP/1.1", "requestId": "r", "resourceId": "x",
            "resourcePath": "/webhooks", "stage": "prod", "identity": {"sourceIp": "192.0.2.1"},
            "requestTimeEpoch": 1_796_000_000_000_u64
        },
        "body": text,
        "isBase64Encoded": is_base64
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_api_gateway_are_accepted_and_handled_elsewhere() {
    let postgres = PostgresServer::start();
    let pool = sqlx::PgPool::connect(&postgres.url()).await.unwrap();
    let inbox = Inbox::new(PostgresQueue::open(pool).await.unwrap());
    let (heard, mut handled) = mpsc::unbounded_channel();
    let events = EventRouter::new().fallback(move |delivery: RawDelivery| {
        let heard = heard.clone();
        async move {
            let _ = heard.send(delivery.body().to_vec());
            Ok(())
        }
    });
    let mut routes = inbox.routes();
    routes.handle(Webhooks::without_secrets(), events).unwrap();
    let _worker = routes.start().unwrap();

    let mut function = Function::start(&postgres.url()).await;
    let plain = br#"{"id":"1", "rating": 5}"#;
    let other = "{\"id\":\"2\",\"text\":\"für\"}".as_bytes();
    assert!(!encoded(plain).1 && encoded(other).1);
    for (body, key) in [(&plain[..], "a"), (other, "b")] {
        let event = of_http_api(body, signed(body, key, "s"));
        let (status, headers) = function.invoke(event.clone()).await;
        assert_eq!(status, 200, "{headers}");
        assert!(headers.get("idempotent-replayed").is_none(), "{headers}");
        let got = timeout(PATIENCE, handled.recv()).await.unwrap();
        assert_eq!(got.as_deref(), Some(body), "byte by byte");
        // The platform delivers it again, by another way.
        let again = of_rest_api(body, &signed(body, key, "s"));
        let (status, headers) = function.invoke(again).await;
        assert_eq!(status, 200, "{headers}");
        assert!(headers.get("idempotent-replayed").is_some(), "{headers}");
        // Another body than the one that was signed.
        let forged = of_http_api(body, signed(b"{}", "c", "s"));
        assert_eq!(function.invoke(forged).await.0, 401);
    }
    assert!(handled.try_recv().is_err(), "each was handled once");

    // Without the database, the platform tries again.
    let mut away = Function::start("postgres://127.0.0.1:1/none").await;
    let (status, _) = away
        .invoke(of_http_api(plain, signed(plain, "d", "s")))
        .await;
    assert_eq!(status, 503);
}
