//! The log, on standard error.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::panic;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::span::{Id, Record};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FmtSpan, FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry};

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Format {
    /// A line of text for each event
    Text,
    /// A line of JSON for each event
    Json,
}

/// Exports spans, beside the log.
pub(crate) type Spans = Box<dyn Layer<Registry> + Send + Sync>;

/// Has everything that is written to standard error a line of JSON from now on.
pub(crate) fn use_json() {
    let _ = FORMAT.set(Format::Json);
    panic::set_hook(Box::new(|info| say_at(Level::ERROR, info)));
}

pub(crate) fn init(format: Format, spans: Option<Spans>) {
    let _ = FORMAT.set(format);
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::INFO.into())
        .from_env_lossy();
    let Some(spans) = spans else {
        return init_alone(format, filter);
    };
    let log = tracing_subscriber::fmt::layer()
        .with_span_events(FmtSpan::CLOSE)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        .log_internal_errors(false);
    let log = match format {
        Format::Text => log
            .map_event_format(Throttled::new)
            .with_filter(filter)
            .boxed(),
        Format::Json => log
            .json()
            .with_span_list(false)
            .map_event_format(Throttled::new)
            .with_filter(filter)
            .boxed(),
    };
    let ends = Ends.with_filter(Targets::new().with_target("tower_webhook", LevelFilter::INFO));
    tracing_subscriber::registry()
        .with(spans)
        .with(log)
        .with(ends)
        .init();
}

/// Without other layers, what the log leaves out costs nothing.
fn init_alone(format: Format, filter: EnvFilter) {
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // Each delivery is a span, and the line at its end has all its fields.
        .with_span_events(FmtSpan::CLOSE)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        // These would be written to standard error, with a panic if it is closed.
        .log_internal_errors(false);
    match format {
        Format::Text => {
            let log = log.map_event_format(Throttled::new);
            log.finish().with(Ends).init();
        }
        Format::Json => {
            let log = log.json().with_span_list(false);
            log.map_event_format(Throttled::new)
                .finish()
                .with(Ends)
                .init();
        }
    }
}

static FORMAT: OnceLock<Format> = OnceLock::new();

pub(crate) fn is_json() -> bool {
    matches!(FORMAT.get(), Some(Format::Json))
}

/// Says something to whoever has started the program, whatever `RUST_LOG` is.
pub(crate) fn say(text: impl fmt::Display) {
    say_at(Level::INFO, text);
}

/// Says something as a line of JSON if the log has those, as a program that reads them takes no other line.
pub(crate) fn say_at(level: Level, text: impl fmt::Display) {
    match is_json() {
        true => {
            let mut now = String::new();
            // A clock that cannot be written leaves it empty.
            let _ = SystemTime.format_time(&mut Writer::new(&mut now));
            let fields = json!({"message": text.to_string()});
            let said = json!({"timestamp": now, "level": level.as_str(), "fields": fields, "target": "receiver"});
            // A closed standard error is nothing to panic about.
            let _ = writeln!(io::stderr(), "{said}");
        }
        false => drop(writeln!(io::stderr(), "{text}")),
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
const UNVERIFIED: [&str; 10] = [
    "body-timeout",
    "body-too-large",
    "disconnected",
    CHALLENGE,
    "invalid-challenge",
    "invalid-signature",
    "malformed-body",
    "method-not-allowed",
    "overloaded",
    "verifier-failed",
];

/// A challenge that proves nothing, if its span has no kind.
const CHALLENGE: &str = "handled";

/// Notes of each delivery how it has ended.
struct Ends;

#[derive(Default)]
struct End {
    outcome: Option<String>,
    /// Of a verified delivery, or of a refused one, which has an outcome.
    has_kind: bool,
}

impl Visit for End {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "outcome" => self.outcome = Some(value.to_owned()),
            "kind" => self.has_kind = true,
            _ => {}
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Ends {
    fn on_record(&self, span: &Id, values: &Record<'_>, ctx: Context<'_, S>) {
        if let Some(span) = ctx.span(span)
            && span.name() == DELIVERY
        {
            let mut extensions = span.extensions_mut();
            let mut end = extensions.remove::<End>().unwrap_or_default();
            values.record(&mut end);
            extensions.insert(end);
        }
    }
}

/// The name of the span of a delivery.
const DELIVERY: &str = "delivery";

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

    /// `end` is none if nothing of the delivery is known.
    fn admits(&self, end: Option<&End>) -> bool {
        let outcome = match end {
            Some(End {
                outcome: Some(outcome),
                has_kind,
            }) if !has_kind || outcome != CHALLENGE => outcome.as_str(),
            Some(End { has_kind: true, .. }) => return true,
            _ => "disconnected", // before it was verified
        };
        let Some(outcome) = UNVERIFIED.into_iter().find(|name| *name == outcome) else {
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
            .filter(|span| span.name() == DELIVERY)
            .filter(|span| span.metadata().callsite() == event.metadata().callsite())
            .is_none_or(|span| self.admits(span.extensions().get::<End>()));
        match is_admitted {
            true => self.format.format_event(ctx, writer, event),
            false => Ok(()),
        }
    }
}
