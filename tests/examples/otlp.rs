//! The traces that the example `otlp` exports, and those and the metrics of the receiver, as an OpenTelemetry collector
//! reads them.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};
use tempfile::TempDir;
use tower_webhook::Secret;

use support::lock;
use support::program::{Server, curl, example, until};

/// Keeps the spans and metrics that it receives by OTLP over HTTP, in JSON.
struct Collector {
    address: SocketAddr,
    spans: Arc<Mutex<Vec<Value>>>,
    metrics: Arc<Mutex<Vec<Value>>>,
}

fn all<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    value[name].as_array().into_iter().flatten()
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let spans = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&spans);
        let metrics = Arc::new(Mutex::new(Vec::new()));
        let measured = Arc::clone(&metrics);
        let measure = move |Json(export): Json<Value>| {
            for resource in all(&export, "resourceMetrics") {
                let service = attribute(&resource["resource"], "service.name");
                assert_eq!(service, Some(&json!("webhook-receiver")));
                for scope in all(resource, "scopeMetrics") {
                    lock(&measured).extend(all(scope, "metrics").cloned());
                }
            }
            std::future::ready(Json(json!({})))
        };
        let collect = move |Json(export): Json<Value>| {
            for resource in all(&export, "resourceSpans") {
                let service = attribute(&resource["resource"], "service.name");
                assert_eq!(service, Some(&json!("webhook-receiver")));
                for scope in all(resource, "scopeSpans") {
                    lock(&kept).extend(all(scope, "spans").cloned());
                }
            }
            std::future::ready(Json(json!({})))
        };
        let app = Router::new()
            .route("/v1/traces", post(collect))
            .route("/v1/metrics", post(measure));
        thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                axum::serve(listener, app).await
            })
        });
        Self {
            address,
            spans,
            metrics,
        }
    }

    /// Waits for a span with this name and identity.
    #[cfg(feature = "receiver")]
    fn span_of(&self, name: &str, id: &Value) -> Value {
        until(name, || {
            let spans = lock(&self.spans);
            let found = spans
                .iter()
                .find(|it| it["name"] == name && it["spanId"] == *id);
            found.cloned()
        })
    }

    /// Waits for a value of a metric.
    #[cfg(feature = "receiver")]
    fn metric(&self, name: &str, kind: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        until(name, || {
            let metrics = lock(&self.metrics);
            let points = metrics.iter().filter(|it| it["name"] == name);
            let mut points = points.flat_map(|it| all(&it[kind], "dataPoints"));
            points.find(|point| is_it(point)).cloned()
        })
    }

    /// Waits for a span with this name and this value of `messaging.message.conversation_id`, and removes it.
    fn span(&self, name: &str, chat: &str) -> Value {
        until(name, || {
            let mut spans = lock(&self.spans);
            let index = spans.iter().position(|span| {
                let of = attribute(span, "messaging.message.conversation_id");
                span["name"] == name && of == Some(&json!(chat))
            })?;
            Some(spans.remove(index))
        })
    }
}

/// A text among the attributes.
fn attribute<'a>(span: &'a Value, key: &str) -> Option<&'a Value> {
    let found = all(span, "attributes").find(|attribute| attribute["key"] == key);
    found.map(|attribute| &attribute["value"]["stringValue"])
}

#[track_caller]
fn assert_attributes(span: &Value, expected: &[(&str, Option<&str>)]) {
    for (key, value) in expected {
        let value = value.map(|value| json!(value));
        assert_eq!(attribute(span, key), value.as_ref(), "{key}: {span:#}");
    }
    assert_eq!(span["kind"], 5, "a consumer");
}

fn receiver(collector: &Collector, dir: &Path) -> Server {
    let mut command = example("otlp");
    command
        .env(
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            format!("http://{}", collector.address),
        )
        .env("OTEL_BSP_SCHEDULE_DELAY", "50")
        .args(["--secret", "s", "--inbox"])
        .arg(dir.join("webhooks.db"));
    Server::start_by(&mut command)
}

fn send(receiver: &Server, body: &str, key: &str, traceparent: &str) {
    let signature = Secret::new("s").unwrap().sign(body.as_bytes());
    let status = curl(&[
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}",
        "-H",
        "content-type: application/json",
        "-H",
        "x-service-event: chat-rated",
        "-H",
        &format!("idempotency-key: {key}"),
        "-H",
        &format!("x-service-hmac-sha256: {signature}"),
        "-H",
        &format!("traceparent: {traceparent}"),
        "--data",
        body,
        &receiver.url,
    ]);
    assert_eq!(status, "200");
}

#[test]
fn attempts_are_linked_to_their_delivery_also_after_a_restart() {
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SENDER: &str = "00f067aa0ba902b7";
    let collector = Collector::start();
    let dir = TempDir::new().unwrap();
    let first = receiver(&collector, dir.path());
    // Without a rating, the handler fails.
    let parent = format!("00-{TRACE}-{SENDER}-01");
    send(&first, r#"{"id":"chat-1"}"#, "key-1", &parent);

    let delivery = collector.span("delivery", "chat-1");
    assert_eq!(delivery["traceId"], TRACE);
    assert_eq!(delivery["parentSpanId"], SENDER);
    assert_attributes(
        &delivery,
        &[
            ("messaging.system", Some("webhook")),
            ("messaging.operation.name", Some("receive")),
            ("messaging.message.id", Some("key-1")),
            ("outcome", Some("accepted")),
            ("error.type", None),
        ],
    );

    let assert_linked = |attempt: &Value, delivery: &Value| {
        assert_ne!(
            attempt["traceId"], delivery["traceId"],
            "a trace of its own"
        );
        let links: Vec<_> = all(attempt, "links").collect();
        assert_eq!(links.len(), 1, "{attempt:#}");
        assert_eq!(links[0]["traceId"], delivery["traceId"]);
        assert_eq!(links[0]["spanId"], delivery["spanId"]);
    };
    let failed = [
        ("messaging.system", Some("webhook")),
        ("messaging.operation.name", Some("process")),
        ("messaging.message.id", Some("key-1")),
        ("error.type", Some("failed")),
    ];
    let attempt = collector.span("attempt", "chat-1");
    assert_attributes(&attempt, &failed);
    assert_linked(&attempt, &delivery);

    assert_eq!(first.stop(), 0);
    lock(&collector.spans).clear();
    let second = receiver(&collector, dir.path());
    let attempt = collector.span("attempt", "chat-1");
    assert_attributes(&attempt, &failed);
    assert_linked(&attempt, &delivery);

    // A header that is invalid is ignored.
    send(
        &second,
        r#"{"id":"chat-2","rating":1}"#,
        "key-2",
        "00-x-y-01",
    );
    let delivery = collector.span("delivery", "chat-2");
    assert!(
        delivery["parentSpanId"].as_str().is_none_or(str::is_empty),
        "{delivery:#}"
    );
    let attempt = collector.span("attempt", "chat-2");
    assert_attributes(
        &attempt,
        &[("outcome", Some("handled")), ("error.type", None)],
    );
    assert_linked(&attempt, &delivery);
    // The last spans are exported when the receiver stops.
    assert_eq!(second.stop(), 0);
}

#[cfg(feature = "receiver")]
#[test]
fn the_receiver_exports_traces_and_metrics() {
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SENDER: &str = "00f067aa0ba902b7";
    let collector = Collector::start();
    let dir = TempDir::new().unwrap();
    let inbox = format!("sqlite:{}", dir.path().join("webhooks.db").display());
    let url = format!("http://{}", collector.address);
    let start = |exec: &str, more: &[&str]| {
        let mut command = example("receiver");
        command
            .env("OTEL_BSP_SCHEDULE_DELAY", "50")
            .env("OTEL_METRIC_EXPORT_INTERVAL", "200")
            .args(["--secret", "s", "--inbox", &inbox, "--otlp", &url])
            .args(["--exec", exec])
            .args(more);
        Server::start_by(&mut command)
    };
    // As for a person, the log goes on beside the export.
    let first = start(
        "exit 1",
        &["--metrics", "127.0.0.1:0", "--log-format", "json"],
    );
    let parent = format!("00-{TRACE}-{SENDER}-01");
    send(&first, r#"{"id":"chat-1"}"#, "key-1", &parent);

    let delivery = collector.span("delivery", "chat-1");
    assert_eq!(delivery["traceId"], TRACE);
    let request = collector.span_of("POST /webhooks", &delivery["parentSpanId"]);
    assert_eq!(request["parentSpanId"], SENDER);
    assert_eq!(request["kind"], 2, "a server");
    let assert_linked = |attempt: &Value| {
        assert_ne!(attempt["traceId"], TRACE, "a trace of its own");
        let links: Vec<_> = all(attempt, "links").collect();
        assert_eq!(links.len(), 1, "{attempt:#}");
        assert_eq!(links[0]["traceId"], TRACE);
        assert_eq!(links[0]["spanId"], request["spanId"]);
    };
    let attempt = collector.span("attempt", "chat-1");
    assert_attributes(&attempt, &[("error.type", Some("failed"))]);
    assert_linked(&attempt);
    let is_of = |point: &Value, outcome: &str| attribute(point, "outcome") == Some(&json!(outcome));
    collector.metric("webhook_deliveries_total", "sum", |point| {
        is_of(point, "accepted") && (point["asInt"] == "1" || point["asInt"] == 1)
    });
    collector.metric("webhook_attempts_total", "sum", |point| {
        is_of(point, "failed")
    });
    let took = collector.metric("webhook_delivery_duration_seconds", "histogram", |_| true);
    assert_eq!(took["explicitBounds"][0], 0.0005, "seconds: {took:#}");
    // What is recorded from time to time.
    collector.metric("process_start_time_seconds", "gauge", |_| true);
    // The same values are Prometheus's.
    let scraped = {
        let log = first.err();
        let (_, at) = log.split_once("metrics on ").unwrap();
        curl(&[at.split('"').next().unwrap()])
    };
    assert!(scraped.contains("webhook_deliveries_total{"), "{scraped}");
    for line in first.err().lines() {
        serde_json::from_str::<Value>(line).expect(line);
    }
    assert!(
        first.err().contains(r#""outcome":"accepted""#),
        "{}",
        first.err()
    );
    assert_eq!(first.stop(), 0);

    lock(&collector.spans).clear();
    let second = start("exit 0", &[]);
    let attempt = collector.span("attempt", "chat-1");
    assert_attributes(
        &attempt,
        &[("outcome", Some("handled")), ("error.type", None)],
    );
    assert_linked(&attempt);
    // A header that is invalid is ignored, and other paths are no business of the traces.
    send(&second, r#"{"id":"chat-2"}"#, "key-2", "00-x-y-01");
    curl(&[
        "-o",
        "/dev/null",
        &format!("http://{}/healthz", second.address()),
    ]);
    assert_eq!(second.stop(), 0);
    let spans = lock(&collector.spans);
    let requests: Vec<_> = spans.iter().filter(|it| it["kind"] == 2).collect();
    assert_eq!(requests.len(), 1, "{requests:#?}");
    assert!(
        requests[0]["parentSpanId"]
            .as_str()
            .is_none_or(str::is_empty)
    );
}

#[cfg(feature = "receiver")]
#[test]
fn a_collector_that_is_away_is_said_in_the_log_and_stops_nothing() {
    let mut command = example("receiver");
    command.env("OTEL_BSP_SCHEDULE_DELAY", "50").args([
        "--secret",
        "s",
        "--otlp",
        "http://127.0.0.1:1",
    ]);
    let receiver = Server::start_by(&mut command);
    assert_eq!(receiver.send("s", &[]).code, 0);
    until("the failure", || {
        let log = receiver.err();
        log.lines()
            .any(|line| line.contains("opentelemetry") && line.contains("Export"))
            .then_some(())
    });
    assert_eq!(receiver.send("s", &[]).code, 0);
    assert_eq!(receiver.stop(), 0);
}
