//! Run with: cargo run -p tower-webhook-receiver
//!
//! A complete receiver that needs no Rust code: it verifies and deduplicates deliveries, prints one line of JSON for
//! each event, and can run a command for it, or post it to a server. Logs go to standard error; `RUST_LOG=debug` logs
//! more. Its other commands send events, check a configuration, and show and change an inbox.
//!
//! It speaks HTTP/1.1; put a proxy in front of it for TLS. It uses hyper to bound connections and their
//! headers, because `axum::serve` does not. It runs only on Unix, because it uses signals and process
//! groups.

mod activity;
mod app;
mod args;
mod captured;
mod check;
mod cli;
mod config;
mod connections;
#[cfg(feature = "console")]
mod console;
mod credentials;
mod demo;
mod doors;
mod event;
mod exec;
mod forward;
mod handling;
#[cfg(any(feature = "console", feature = "metrics"))]
mod host;
#[cfg(feature = "postgres")]
mod hosts;
// Without a queue, it can only say that there is none.
#[cfg_attr(not(any(feature = "postgres", feature = "sqlite")), allow(dead_code))]
mod inbox;
mod init;
mod json;
mod kinds;
mod learn;
mod listen;
mod log;
mod notices;
#[cfg(feature = "otlp")]
mod otlp;
#[cfg(not(feature = "otlp"))]
#[path = "no_otlp.rs"]
mod otlp;
mod output;
mod place;
mod probe;
#[cfg(feature = "metrics")]
mod process;
mod ready;
#[cfg(feature = "otlp")]
mod recorder;
mod refusals;
mod reload;
mod route;
mod run;
mod secrets;
mod send;
mod senders;
mod store;
mod telemetry;
mod text;
mod url;
mod verify;
mod watched;

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use tokio::runtime::Runtime;
use tracing::Level;

use self::cli::Command;

fn main() -> ExitCode {
    let command = credentials::receive().map(|()| cli::parse());
    match command.and_then(execute) {
        Ok(code) => code,
        // The reader of standard output has what it wanted, as in `receiver inbox list | head`.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let chain = text::chain(error.as_ref());
            log::say_at(Level::ERROR, format_args!("error: {chain}"));
            ExitCode::FAILURE
        }
    }
}

fn execute(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run(options) => {
            if options.may_run_commands() {
                credentials::hide()?;
            }
            if init::is_needed(&options) {
                return init::run();
            }
            let otlp = otlp::start(&options)?;
            log::init(options.monitoring.log_format, otlp::spans(otlp.as_ref()));
            cli::warn_of_variables();
            // Before other threads could read the variables, which are removed.
            let lent = listen::lent()?;
            let ended = block_on(run::run(&options, lent, otlp.as_ref()));
            if let Some(otlp) = otlp {
                otlp.shutdown();
            }
            ended
        }
        Command::Check(options) => {
            log::init(options.monitoring.log_format, None);
            cli::warn_of_variables();
            block_on(check::check(&options))
        }
        Command::Send(options) => block_on(send::send(options)),
        Command::Probe(options) => block_on(probe::probe(options)),
        Command::Senders(options) => senders::run(options),
        Command::Inbox(options) => {
            log::init_warnings();
            block_on(inbox::run(options))
        }
    }
}

fn block_on<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = Runtime::new().context("the runtime cannot be started")?;
    let result = runtime.block_on(command);
    // Events that are still running are dropped here, which kills their commands.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
