//! Run with: cargo run --package tower-webhook-tests --features signal,sqlite --example otlp
//!
//! Exports the spans of deliveries and attempts to an OpenTelemetry collector: by default to `http://localhost:4318`, or to
//! the URL in `OTEL_EXPORTER_OTLP_ENDPOINT`.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::Response;
use clap::Parser;
use opentelemetry::Context;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{FutureExt, TraceContextExt, TracerProvider};
use opentelemetry_http::{HeaderExtractor, HeaderInjector};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::net::TcpListener;
use tower::{Layer, ServiceExt};
use tower_webhook::event::ChatRated;
use tower_webhook::inbox::Inbox;
use tower_webhook::sqlite::SqliteQueue;
use tower_webhook::{
    Delivery, EventRouter, HandlerResult, RawDelivery, Secret, Verified, Webhooks,
};
use tracing::Span;
use tracing::level_filters::LevelFilter;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

/// Receive the chat platform's webhooks into an inbox, and export traces over OTLP.
///
/// The variables OTEL_* of the OpenTelemetry specification configure the export, such as OTEL_EXPORTER_OTLP_ENDPOINT.
#[derive(Parser)]
#[command(name = "otlp")]
struct Args {
    /// The address to listen on; port 0 picks a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:3000")]
    listen: SocketAddr,

    /// The secret that is set in the partner portal
    #[arg(long, value_name = "SECRET", env = "WEBHOOK_SECRET", hide_env_values = true, value_parser = |text: &str| Secret::new(text))]
    secret: Secret,

    /// The file of the inbox
    #[arg(long, value_name = "FILE", default_value = "webhooks.db")]
    inbox: String,
}

async fn rated(chat: Delivery<ChatRated>) -> HandlerResult {
    let rating = chat.payload.rating.ok_or("the rating has no value")?;
    println!("{:?} was rated {rating}", chat.payload.id);
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let traces = export_traces()?;

    let queue = SqliteQueue::open(&args.inbox).context("the inbox cannot be opened")?;
    let inbox = Inbox::new(queue);
    let events = EventRouter::new().on::<ChatRated>(rated);
    let mut worker = inbox.routes();
    let events = events.map_request(link_to_delivery);
    worker.handle(Webhooks::without_secrets(), events)?;
    let running = worker.start()?;

    let mut routes = inbox.routes();
    let (signature, accept) = routes.accept_in_halves(Webhooks::new(args.secret))?;
    let webhooks = signature.layer(accept.map_request(keep_span::<Verified>));
    let app = Router::new()
        .route_service("/webhooks", webhooks)
        .layer(middleware::from_fn(continue_trace));

    let listener = TcpListener::bind(args.listen).await;
    let listener = listener.context("the receiver cannot listen on this address")?;
    eprintln!("listening on http://{}/webhooks", listener.local_addr()?);
    let server = |stop| axum::serve(listener, app).with_graceful_shutdown(stop);
    let limit = Duration::from_secs(10);
    running
        .serve(tower_webhook::shutdown(), limit, server)
        .await?;
    // Exports the last spans.
    traces.shutdown()?;
    Ok(())
}

/// Exports the spans of this crate, and logs to standard error.
fn export_traces() -> anyhow::Result<SdkTracerProvider> {
    // The exporter's HTTP client needs it if TLS is enabled in this build, as a client of the Admin API does.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let exporter = SpanExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpJson)
        .build()?;
    let service = Resource::builder().with_service_name("webhook-receiver");
    let traces = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(service.build())
        .build();
    let spans = tracing_opentelemetry::layer()
        .with_tracer(traces.tracer("tower-webhook"))
        // A span's parent is its parent in `tracing`, not the active OpenTelemetry context.
        .with_context_activation(false)
        // The exporter's own requests must not be traced.
        .with_filter(
            Targets::new()
                .with_target("tower_webhook", LevelFilter::INFO)
                // OpenTelemetry's attributes, which a log does not need.
                .with_target("tower_webhook::opentelemetry", LevelFilter::TRACE),
        );
    let log = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_filter(LevelFilter::WARN);
    tracing_subscriber::registry().with(spans).with(log).init();
    Ok(traces)
}

/// Makes the sender's span, from the header `traceparent`, the parent of the span `delivery`.
async fn continue_trace(request: Request, next: Next) -> Response {
    let sender = TraceContextPropagator::new().extract(&HeaderExtractor(request.headers()));
    next.run(request).with_context(sender).await
}

/// Writes the context of the span `delivery` to the header `traceparent`, which the inbox keeps with the event.
fn keep_span<B>(mut request: http::Request<B>) -> http::Request<B> {
    let delivery = Span::current().context();
    let mut headers = HeaderInjector(request.headers_mut());
    TraceContextPropagator::new().inject_context(&delivery, &mut headers);
    request
}

/// Links the span `attempt` to the span `delivery`, which may have ended days ago.
fn link_to_delivery(delivery: RawDelivery) -> RawDelivery {
    let headers = HeaderExtractor(delivery.headers());
    let received = TraceContextPropagator::new().extract_with_context(&Context::new(), &headers);
    let received = received.span().span_context().clone();
    if received.is_valid() {
        Span::current().add_link(received);
    }
    delivery
}
