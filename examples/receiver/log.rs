//! The log, on standard error.

use std::io::{self, IsTerminal};

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::FmtSpan;

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
        Format::Text => log.init(),
        Format::Json => log.json().with_span_list(false).init(),
    }
}
