//! The log, on standard error.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, IsTerminal};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::{FmtSpan, FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Format {
    /// A line of text for each event
    Text,
    /// A line of JSON for each event
    Json,
}

pub(crate) fn init(format: Format) {
    let log = tracing_subscriber::fmt()
        .with_env_filter(
            EnvFilter::builder()
                .with_default_directive(LevelFilter::INFO.into())
                .from_env_lossy(),
        )
        // Each delivery is a span, and the line at its end has all its fields.
        .with_span_events(FmtSpan::CLOSE)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        // These would be written to standard error, with a panic if it is closed.
        .log_internal_errors(false);
    match format {
        Format::Text => log.map_event_format(Throttled::new).init(),
        Format::Json => {
            let log = log.json().with_span_list(false);
            log.map_event_format(Throttled::new).init();
        }
    }
}

/// For a command that a person waits for.
pub(crate) fn init_warnings() {
    tracing_subscriber::fmt()
        .with_max_level(LevelFilter::WARN)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        .log_internal_errors(false)
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
    fn new(format: F) -> Self {
        Self {
            format,
            ends: Mutex::default(),
        }
    }

    /// `fields` are those of a span, as text or JSON.
    fn admits(&self, fields: &str) -> bool {
        let value = |name: &str| {
            let at = fields.find(&format!("{name}=\"")).map(|at| at + 2);
            let at = at.or_else(|| fields.find(&format!("\"{name}\":\"")).map(|at| at + 4))?;
            fields[at + name.len()..].split('"').next()
        };
        let outcome = match value("outcome") {
            None if !fields.contains("kind") => Some("disconnected"), // before it was verified
            outcome => outcome,
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

impl<S, N, F> FormatEvent<S, N> for Throttled<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        ctx: &FmtContext<'_, S, N>,
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
                let fields = extensions.get::<FormattedFields<N>>();
                fields.is_none_or(|fields| self.admits(fields))
            });
        match is_admitted {
            true => self.format.format_event(ctx, writer, event),
            false => Ok(()),
        }
    }
}
