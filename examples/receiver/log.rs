//! The log, on standard error.

use std::fmt;
use std::io::{self, IsTerminal};

use tracing::field::{Field, Visit};
use tracing::span::Record;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::{RecordFields, VisitOutput};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::FormattedFields;
use tracing_subscriber::fmt::format::{DefaultVisitor, FmtSpan, FormatFields, Writer};

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
        .init();
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
