//! The log, on standard error.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, IsTerminal};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::field::{Field, Visit};
use tracing::span::Record;
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::{RecordFields, VisitOutput};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::{DefaultVisitor, FmtSpan, FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

pub(crate) fn init() {
    tracing_subscriber::fmt()
        .with_env_filter(
            EnvFilter::builder()
                .with_default_directive(LevelFilter::INFO.into())
                .from_env_lossy(),
        )
        .fmt_fields(ForPeople)
        // Each delivery is a span, and the line at its end has all its fields.
        .with_span_events(FmtSpan::CLOSE)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        // These would be written to standard error, with a panic if it is closed.
        .log_internal_errors(false)
        .map_event_format(|format| Throttled {
            format,
            ends: Mutex::default(),
        })
        .init();
}

/// The outcomes of requests that were not verified, which anybody can cause.
const UNVERIFIED: [&str; 7] = [
    "body-timeout",
    "body-too-large",
    "disconnected",
    "invalid-signature",
    "malformed-body",
    "method-not-allowed",
    "overloaded",
];

/// Leaves out the ends of spans beyond one in a second for each outcome of [`UNVERIFIED`]. The warnings say how many
/// there were.
struct Throttled<F> {
    format: F,
    ends: Mutex<HashMap<&'static str, Instant>>,
}

impl<F> Throttled<F> {
    fn admits(&self, fields: &str) -> bool {
        let outcome = match fields.split_once(" outcome=\"") {
            Some((_, rest)) => rest.split('"').next(),
            None if fields.contains(" kind=") => None,
            None => Some("disconnected"), // before it was verified
        };
        let Some(outcome) = UNVERIFIED.into_iter().find(|name| Some(*name) == outcome) else {
            return true;
        };
        let now = Instant::now();
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        let last = ends.get(outcome);
        let is_due = last.is_none_or(|last| now.duration_since(*last) >= Duration::from_secs(1));
        if is_due {
            ends.insert(outcome, now);
        }
        is_due
    }
}

impl<S, F> FormatEvent<S, ForPeople> for Throttled<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    F: FormatEvent<S, ForPeople>,
{
    fn format_event(
        &self,
        ctx: &FmtContext<'_, S, ForPeople>,
        writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        // The end of a span is the only event with the span's own metadata.
        let is_admitted = ctx
            .parent_span()
            .filter(|span| span.name() == "delivery")
            .filter(|span| span.metadata().callsite() == event.metadata().callsite())
            .is_none_or(|span| {
                let extensions = span.extensions();
                let fields = extensions.get::<FormattedFields<ForPeople>>();
                fields.is_none_or(|fields| self.admits(&format!(" {fields}")))
            });
        match is_admitted {
            true => self.format.format_event(ctx, writer, event),
            false => Ok(()),
        }
    }
}

/// Leaves out the attributes for OpenTelemetry, which repeat other fields of a delivery's span.
struct ForPeople;

fn is_repeated(field: &Field) -> bool {
    let name = field.name();
    name.starts_with("messaging.") || name.starts_with("otel.") || name == "error.type"
}

impl<'writer> FormatFields<'writer> for ForPeople {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut visitor = Without(DefaultVisitor::new(writer, true));
        fields.record(&mut visitor);
        visitor.0.finish()
    }

    fn add_fields(
        &self,
        current: &'writer mut FormattedFields<Self>,
        fields: &Record<'_>,
    ) -> fmt::Result {
        let mut any = Any(false);
        fields.record(&mut any);
        if !any.0 {
            return Ok(());
        }
        if !current.fields.is_empty() {
            current.fields.push(' ');
        }
        self.format_fields(current.as_writer(), fields)
    }
}

/// Formats all fields but the repeated ones.
struct Without<'a>(DefaultVisitor<'a>);

impl Visit for Without<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        if !is_repeated(field) {
            self.0.record_str(field, value);
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        if !is_repeated(field) {
            self.0.record_error(field, value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if !is_repeated(field) {
            self.0.record_debug(field, value);
        }
    }
}

/// Whether there is a field that is shown.
struct Any(bool);

impl Visit for Any {
    fn record_debug(&mut self, field: &Field, _: &dyn fmt::Debug) {
        self.0 |= !is_repeated(field);
    }
}
