//! Traces and metrics for a collector of OpenTelemetry.

use std::env;
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use opentelemetry::metrics::{Meter, MeterProvider};
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{FutureExt, SpanKind, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{HeaderExtractor, HeaderInjector};
use opentelemetry_otlp::{MetricExporter, Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tower_webhook::RawDelivery;
use tracing::Span;
use tracing::level_filters::LevelFilter;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;

use crate::args::Options;
use crate::log::Spans;
use crate::text::chain;

/// The exports of a receiver.
pub(crate) struct Otlp {
    traces: SdkTracerProvider,
    metrics: SdkMeterProvider,
}

/// Starts the exports if they are asked for. Outside a runtime, because the HTTP client has one of its own.
pub(crate) fn start(args: &Options) -> anyhow::Result<Option<Otlp>> {
    let Some(url) = &args.monitoring.otlp else {
        return Ok(None);
    };
    // The HTTP client needs it if TLS is enabled in this build.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let url = url.to_string();
    let url = url.trim_end_matches('/');
    let spans = SpanExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpJson)
        .with_endpoint(format!("{url}/v1/traces"))
        .build()
        .context("the export of traces cannot start")?;
    let metrics = MetricExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpJson)
        .with_endpoint(format!("{url}/v1/metrics"))
        .build()
        .context("the export of metrics cannot start")?;
    let mut resource = Resource::builder();
    if env::var_os("OTEL_SERVICE_NAME").is_none() {
        resource = resource.with_service_name("webhook-receiver");
    }
    let resource = resource.build();
    Ok(Some(Otlp {
        traces: SdkTracerProvider::builder()
            .with_batch_exporter(spans)
            .with_resource(resource.clone())
            .build(),
        metrics: SdkMeterProvider::builder()
            .with_periodic_exporter(metrics)
            .with_resource(resource)
            .build(),
    }))
}

/// The layer that makes spans of OpenTelemetry of those of deliveries and attempts.
pub(crate) fn spans(otlp: Option<&Otlp>) -> Option<Spans> {
    let tracer = otlp?.traces.tracer("tower-webhook");
    let layer = tracing_opentelemetry::layer()
        .with_tracer(tracer)
        // A span's parent is its parent in `tracing`, not the active context of OpenTelemetry.
        .with_context_activation(false)
        // The exporter's own requests must not be traced.
        .with_filter(
            Targets::new()
                .with_target("tower_webhook", LevelFilter::INFO)
                // OpenTelemetry's attributes, which a log does not need.
                .with_target("tower_webhook::opentelemetry", LevelFilter::TRACE),
        );
    Some(layer.boxed())
}

impl Otlp {
    pub(crate) fn meter(&self) -> Meter {
        self.metrics.meter("tower-webhook")
    }

    /// Has requests to the routes continue the trace of their sender, and their events keep where they were received.
    pub(crate) fn traced(&self, app: Router, paths: Vec<String>) -> Router {
        let tracer = self.traces.tracer("tower-webhook-receiver");
        app.layer(middleware::from_fn_with_state(
            Arc::new((tracer, paths)),
            receive,
        ))
    }

    /// Exports what is left.
    pub(crate) fn shutdown(self) {
        for ended in [self.traces.shutdown(), self.metrics.shutdown()] {
            if let Err(error) = ended {
                tracing::warn!(
                    reason = chain(&error),
                    "the last traces or metrics were not exported"
                );
            }
        }
    }
}

/// Makes a span of a request, whose context the inbox keeps with the event in the header `traceparent`.
async fn receive(
    State(state): State<Arc<(SdkTracer, Vec<String>)>>,
    mut request: Request,
    next: Next,
) -> Response {
    let (tracer, paths) = &*state;
    let path = request.uri().path();
    // Anybody can make other paths up.
    if !paths.iter().any(|route| route == path) {
        return next.run(request).await;
    }
    let sender = TraceContextPropagator::new().extract(&HeaderExtractor(request.headers()));
    let method = request.method().to_string();
    let span = tracer
        .span_builder(format!("{method} {path}"))
        .with_kind(SpanKind::Server)
        .with_attributes([
            KeyValue::new("http.request.method", method),
            KeyValue::new("http.route", path.to_owned()),
        ])
        .start_with_context(tracer, &sender);
    let received = sender.with_span(span);
    let mut headers = HeaderInjector(request.headers_mut());
    TraceContextPropagator::new().inject_context(&received, &mut headers);
    let response = next.run(request).with_context(received.clone()).await;
    let status = i64::from(response.status().as_u16());
    let span = received.span();
    span.set_attribute(KeyValue::new("http.response.status_code", status));
    span.end();
    response
}

/// Links the span of an attempt to that of the request that brought its event, perhaps days ago.
pub(crate) fn link(delivery: &RawDelivery) {
    let headers = HeaderExtractor(delivery.headers());
    let received = TraceContextPropagator::new().extract_with_context(&Context::new(), &headers);
    let received = received.span().span_context().clone();
    let attempt = Span::current();
    // Inline, the attempt is a part of the request's trace.
    let is_within = attempt.context().span().span_context().trace_id() == received.trace_id();
    if received.is_valid() && !is_within {
        attempt.add_link(received);
    }
}
