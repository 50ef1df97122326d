//! Run with: cargo run --example receiver
//!
//! A complete receiver that needs no Rust code: it verifies and deduplicates deliveries, prints one line of JSON for
//! each event, and can run a command for it, or post it to a server. Logs go to standard error; `RUST_LOG=debug` logs
//! more.
//!
//! It speaks HTTP/1.1; put a proxy in front of it for TLS. It uses hyper to bound connections and their
//! headers, because `axum::serve` does not. It runs only on Unix, because it uses signals and process
//! groups.

mod activity;
mod args;
mod connections;
#[cfg(feature = "console")]
mod console;
#[path = "../shared/demo.rs"]
mod demo;
mod event;
mod exec;
mod forward;
mod handling;
#[path = "../shared/json.rs"]
mod json;
#[path = "../shared/kinds.rs"]
mod kinds;
mod log;
mod output;
mod refusals;
#[path = "../shared/store.rs"]
mod store;
mod telemetry;
#[path = "../shared/text.rs"]
mod text;
mod watched;

use std::env::{self, VarError};
use std::future::ready;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use axum::http::HeaderName;
use axum::routing::get;
use clap::Parser;
use futures_util::FutureExt;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::signal::Signal as OsSignal;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;
#[cfg(feature = "console")]
use tower_webhook::console::Console;
#[cfg(feature = "sqlite")]
use tower_webhook::inbox::Records;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use tower_webhook::inbox::{Inbox, OnFailure, Queue, Retry};
use tower_webhook::memory::MokaStore;
#[cfg(feature = "sqlite")]
use tower_webhook::sqlite::SqliteQueue;
use tower_webhook::store::Store;
use tower_webhook::{ConfigError, EventRouter, Running, Secret, Secrets, Sender, Webhooks};

use self::args::{Args, misused};
use self::connections::Connections;
use self::event::{Action, Events};
use self::exec::Exec;
use self::forward::Forward;
use self::handling::Handling;
use self::output::Output;
use self::store::Place;
use self::telemetry::Telemetry;
use self::text::chain;

/// Pipes, and the process itself.
const FILES_OF_A_COMMAND: usize = 8;

/// The connections that wait in the system's queue while all are in use. It may have a lower limit.
const BACKLOG: u32 = 4096;

fn main() -> ExitCode {
    let args = Args::parse();
    log::init(args.log_format);

    let result = Runtime::new()
        .context("the runtime cannot be started")
        .and_then(|runtime| {
            let result = runtime.block_on(run(args));
            // Events that are still running are dropped here, which kills their commands.
            runtime.shutdown_timeout(Duration::from_secs(1));
            result
        });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> anyhow::Result<()> {
    // Beyond a limit on the size of files, SQLite gets an error, as on a full disk. Without a handler, this signal ends
    // the process.
    drop(signal(SignalKind::from_raw(OsSignal::SIGXFSZ as i32))?);
    let (secrets, random) = secrets(&args)?;
    let events = Arc::new(events(&args)?);
    let (place, is_inbox) = place(&args);
    let place_name = place.to_string();
    let is_memory = matches!(place, Place::Memory);
    #[cfg(not(feature = "metrics"))]
    telemetry::refuse_metrics(&args);
    let setup = Setup {
        args: &args,
        secrets: secrets.as_ref(),
        events: &events,
        telemetry: Telemetry::start(&args).await?,
    };
    let Built {
        app,
        handling,
        #[cfg(feature = "console")]
        console,
    } = match is_inbox {
        true => inbox(&setup, place).await?,
        false => inline(&setup, place).await?,
    };
    #[cfg(feature = "console")]
    if let Some(address) = args.console {
        console::serve(setup.telemetry.show_in(console), address, &args).await?;
    }
    #[cfg(not(feature = "console"))]
    if args.console.is_some() {
        misused(
            "this receiver was built without the console: run it with \
             `cargo run --features console,sqlite --example receiver -- …`",
        );
    }

    let stop = Stop::new()?;
    reread_on_hangup(secrets, args.secret_file.clone())?;
    let listener = bind(args.listen, "--listen 127.0.0.1:3001")?;
    let url = format!("http://{}{}", listener.local_addr()?, args.path);
    eprintln!("listening on {url}");
    let limits = connection_limits(&args)?;
    announce(&args, &place_name, limits.max_connections);
    if args.dangerously_unsigned {
        tracing::warn!(
            "deliveries are not verified: anybody who reaches this address can make events up"
        );
    }
    if args.exec.is_some() && std::process::id() == 1 {
        tracing::warn!(
            "this process is the first one of its container, where each `--exec` leaves an ended process behind: start \
             the container with an init process, such as `docker run --init`"
        );
    }
    if is_memory && !args.demo {
        tracing::warn!(
            "keys are kept in memory: after a restart, an event that the platform retries is handled \
             again; `--store` names a store that lasts"
        );
    }
    if let Some(secret) = random {
        let brand = args
            .header_prefix
            .map(|brand| format!(" --header-prefix {brand}"));
        eprintln!(
            "no secret was configured, so a random one was created; send a first event with\n\n  \
             cargo run --example send -- --url {url} --secret {secret}{}\n",
            brand.unwrap_or_default()
        );
    }
    serve(
        listener,
        Connections::new("webhooks", app, limits),
        handling,
        stop,
        &events,
        Duration::from_secs(args.grace),
    )
    .await;
    Ok(())
}

/// What a receiver is made of.
struct Setup<'a> {
    args: &'a Args,
    secrets: Option<&'a Secrets>,
    events: &'a Arc<Events>,
    telemetry: Telemetry,
}

/// A receiver before it is served.
struct Built {
    app: Router,
    handling: Handling,
    #[cfg(feature = "console")]
    console: Console,
}

/// Logs the settings that decide what happens to an event.
fn announce(args: &Args, place: &str, max_connections: usize) {
    let limits = args.limits();
    let action = match (&args.exec, &args.forward) {
        (Some(_), _) => "exec",
        (None, Some(_)) => "forward",
        (None, None) => "print",
    };
    tracing::info!(
        inbox = args.inbox.as_ref().map(|_| display(place)),
        store = args.inbox.is_none().then(|| display(place)),
        namespace = args.namespace.as_deref().unwrap_or_default(),
        action,
        concurrency = limits.concurrency,
        max_attempts = limits.max_attempts,
        handler_timeout = ?limits.time,
        lease = ?Duration::from_secs(args.lease),
        max_connections,
        max_body = args.max_body,
        max_buffered = args.max_buffered.max(args.max_body),
        "the receiver has started"
    );
}

/// Returns the limits of connections, which must leave files for commands and the store.
fn connection_limits(args: &Args) -> anyhow::Result<connections::Limits> {
    let mut limits = args.connection_limits();
    let (files, _) =
        getrlimit(Resource::RLIMIT_NOFILE).context("the limit of open files is unknown")?;
    let files = usize::try_from(files).unwrap_or(usize::MAX);
    let listeners = usize::from(args.console.is_some()) + usize::from(args.metrics.is_some());
    let others = 64
        + listeners * connections::Limits::FEW.max_connections
        + FILES_OF_A_COMMAND.saturating_mul(args.limits().concurrency);
    let most = files.saturating_sub(others).max(files / 2).max(1);
    if limits.max_connections > most {
        tracing::warn!(
            max_connections = most,
            "`--max-connections` was lowered, because only {files} files may be open: see `ulimit -n`"
        );
        limits.max_connections = most;
    }
    Ok(limits)
}

fn events(args: &Args) -> anyhow::Result<Events> {
    let limits = args.limits();
    let action = match (&args.exec, &args.forward) {
        (Some(command), _) => Action::Exec(Exec::new(command.clone())),
        (None, Some(url)) => Action::Forward(Forward::new(url.clone(), limits.concurrency)),
        (None, None) => Action::Print,
    };
    let output = Output::start().context("the thread for standard output cannot be started")?;
    Ok(Events::new(action, limits, output))
}

/// Where keys or events are kept, and whether that is an inbox.
fn place(args: &Args) -> (Place, bool) {
    let (place, is_inbox) = match (&args.inbox, &args.store) {
        (Some(_), Some(_)) => misused(
            "`--inbox` (or WEBHOOK_INBOX) replaces `--store` (or WEBHOOK_STORE): pass or set only one of them",
        ),
        (Some(inbox), None) => (Place::parse_inbox(inbox), true),
        (None, Some(store)) => (Place::parse(store), false),
        (None, None) => (Ok(Place::Memory), false),
    };
    (place.unwrap_or_else(|error| misused(error)), is_inbox)
}

/// Returns the application that answers an event when it is handled.
async fn inline(setup: &Setup<'_>, place: Place) -> anyhow::Result<Built> {
    match place {
        Place::Memory => {
            let store = MokaStore::new();
            #[cfg(feature = "metrics")]
            {
                let store = store.clone();
                setup.telemetry.before_scrapes(move || {
                    store.record_metrics();
                    ready(())
                });
            }
            with_store(setup, store)
        }
        #[cfg(feature = "sqlite")]
        Place::Sqlite(path) => {
            let store = store::sqlite(path)?;
            warn_of_inbox(&SqliteQueue::with_store(&store)).await?;
            with_store(setup, store)
        }
        #[cfg(feature = "redis")]
        Place::Redis(server) => with_store(setup, store::redis(server).await?),
        #[cfg(feature = "postgres")]
        Place::Postgres(server) => with_store(setup, store::postgres(server).await?),
    }
}

/// Nobody else would notice events that an inbox in the same file has accepted.
#[cfg(feature = "sqlite")]
async fn warn_of_inbox(queue: &SqliteQueue) -> anyhow::Result<()> {
    let unsettled = queue.stats().await?.unsettled();
    if unsettled > 0 {
        tracing::warn!(
            unsettled,
            "this file is also an inbox, whose accepted events are not handled by a receiver with `--store`: start one \
             with `--inbox` and this file"
        );
    }
    Ok(())
}

fn with_store<St>(setup: &Setup<'_>, store: St) -> anyhow::Result<Built>
where
    St: Store + Clone,
{
    let (service, running) = webhooks(setup)
        .store(store)
        .observer(setup.telemetry.observer())
        .in_flight_wait(Duration::from_secs(5).min(Duration::from_secs(setup.args.lease) / 2))
        .start(router(setup.events))?;
    Ok(Built {
        app: mount().route_service(&setup.args.path, service),
        handling: Handling {
            running: recorded(setup, running),
            rest: "the platform retries the events that were running",
        },
        #[cfg(feature = "console")]
        console: Console::new(),
    })
}

/// Returns the application that answers an event when it is stored.
#[allow(clippy::unused_async, reason = "only Postgres is connected to")]
async fn inbox(setup: &Setup<'_>, place: Place) -> anyhow::Result<Built> {
    match place {
        #[cfg(feature = "sqlite")]
        Place::Sqlite(path) => with_queue(setup, store::sqlite_queue(path)?),
        #[cfg(feature = "postgres")]
        Place::Postgres(server) => with_queue(setup, store::postgres_queue(server).await?),
        // `Place::parse_inbox` makes no others.
        other => {
            let _ = setup;
            anyhow::bail!("{other} cannot be an inbox")
        }
    }
}

/// Those that link an attempt to its delivery, and those that the operator names.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
fn kept_headers(args: &Args) -> impl Iterator<Item = HeaderName> {
    let trace = ["traceparent", "tracestate"].map(HeaderName::from_static);
    trace.into_iter().chain(args.keep_header.iter().cloned())
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
fn with_queue<Q: Queue>(setup: &Setup<'_>, queue: Q) -> anyhow::Result<Built> {
    let args = setup.args;
    // The namespace and the observer are those of the console's clone, too.
    let inbox = Inbox::new(queue)
        .namespace(args.namespace.clone().unwrap_or_default())
        .keep_headers(kept_headers(args))
        .observer(setup.telemetry.observer());
    #[cfg(feature = "console")]
    let console = Console::new().inbox(inbox.clone());
    let on_failure = match args.on_failure {
        args::OnFailure::Block => OnFailure::Block,
        args::OnFailure::Skip => OnFailure::Skip,
    };
    let (service, running) = webhooks(setup)
        .inbox(inbox)
        .worker(|worker| {
            worker
                .concurrency(args.limits().concurrency)
                .retry(Retry::default().give_up_after(Duration::from_secs(args.retry_for)))
                .on_failure(on_failure)
        })
        .start(router(setup.events))?;
    Ok(Built {
        app: mount().route_service(&args.path, service),
        handling: Handling {
            running: recorded(setup, running),
            rest: "the events that were running stay in the inbox",
        },
        #[cfg(feature = "console")]
        console,
    })
}

/// The settings for a store and for an inbox.
fn webhooks(setup: &Setup<'_>) -> Webhooks {
    let args = setup.args;
    let mut sender = Sender::chat_platform();
    if let Some(brand) = &args.header_prefix {
        sender = sender
            .branded(brand)
            .unwrap_or_else(|error| misused(chain(&error)));
    }
    let webhooks = match setup.secrets {
        Some(secrets) => Webhooks::new(secrets.clone()),
        None => Webhooks::dangerously_unsigned(),
    };
    webhooks
        .sender(sender)
        .max_body(args.max_body as usize)
        .max_buffered(args.max_buffered.max(args.max_body) as usize)
        .namespace(args.namespace.clone().unwrap_or_default())
        .handler_timeout(Duration::from_secs(args.handler_timeout))
        .lease(Duration::from_secs(args.lease))
}

/// Has the metrics of what is running recorded.
fn recorded(setup: &Setup<'_>, running: Running) -> Arc<Running> {
    let running = Arc::new(running);
    #[cfg(feature = "metrics")]
    {
        let running = Arc::clone(&running);
        setup.telemetry.before_scrapes(move || {
            let running = Arc::clone(&running);
            async move {
                if let Err(error) = running.record_metrics().await {
                    tracing::warn!(
                        reason = chain(&error),
                        "the metrics of the inbox could not be recorded"
                    );
                }
            }
        });
    }
    #[cfg(not(feature = "metrics"))]
    let _ = setup;
    running
}

fn router(events: &Arc<Events>) -> EventRouter {
    let events = Arc::clone(events);
    EventRouter::new().fallback(move |delivery| {
        let events = Arc::clone(&events);
        async move { events.handle(delivery).await }
    })
}

fn mount() -> Router {
    Router::new().route("/healthz", get(async || {}))
}

/// Returns the configured secrets, or a random one together with its text. There is none if deliveries are
/// not to be verified.
fn secrets(args: &Args) -> anyhow::Result<(Option<Secrets>, Option<String>)> {
    if args.dangerously_unsigned {
        if env::var_os("WEBHOOK_SECRET").is_some() {
            misused(
                "`--dangerously-unsigned` cannot be used with the environment variable WEBHOOK_SECRET",
            );
        }
        return Ok((None, None));
    }
    let mut random = None;
    let secrets = match &args.secret_file {
        Some(file) => Secrets::from_file(file),
        None if args.demo => Secret::new(demo::SECRET).map(Secrets::from),
        None if !args.secret.is_empty() => Secrets::new(args.secret.iter().cloned()),
        None => match Secret::from_env("WEBHOOK_SECRET") {
            Err(ConfigError::Environment {
                source: VarError::NotPresent,
                ..
            }) => {
                let mut bytes = [0; 20];
                getrandom::fill(&mut bytes).context("the system returned no random bytes")?;
                Secret::new(random.insert(hex::encode(bytes)).as_str())
            }
            secret => secret,
        }
        .map(Secrets::from),
    };
    let secrets = secrets.unwrap_or_else(|error| misused(chain(&error)));
    Ok((Some(secrets), random))
}

fn reread_on_hangup(secrets: Option<Secrets>, file: Option<PathBuf>) -> io::Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            let (Some(secrets), Some(file)) = (&secrets, &file) else {
                tracing::warn!("there is no `--secret-file` to reload");
                continue;
            };
            match secrets.replace_from_file(file) {
                Ok(()) => tracing::info!("the secrets were reloaded"),
                Err(error) => {
                    tracing::error!(
                        reason = chain(&error),
                        "the secrets could not be reloaded and are unchanged"
                    );
                }
            }
        }
    });
    Ok(())
}

/// Listens on an address. `other` is a flag with another one, in case that it is in use.
fn bind(address: SocketAddr, other: &str) -> anyhow::Result<TcpListener> {
    let bound = || {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    bound().map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::AddrInUse => {
                format!("; if another receiver is running, choose another port, such as {other}")
            }
            _ => String::new(),
        };
        anyhow::anyhow!("cannot listen on {address}: {error}{hint}")
    })
}

/// Serves until a signal arrives, then waits for the running events.
async fn serve(
    listener: TcpListener,
    connections: Connections,
    handling: Handling,
    mut stop: Stop,
    events: &Events,
    grace: Duration,
) {
    tokio::select! {
        never = connections.accept(&listener) => match never {},
        () = stop.requested() => {}
    }
    drop(listener);

    tracing::info!("stopping after the running events have finished");
    let rest = handling.rest;
    let cut = async {
        tokio::select! {
            () = sleep(grace) => "stopped at the deadline",
            () = stop.requested() => "stopped at once",
        }
    };
    let cut = cut.shared();
    // A worker begins nothing any more, while connections still store events.
    let (closing, draining) = tokio::join!(
        unless(cut.clone(), connections.shutdown()),
        handling.drain(cut.clone()),
    );
    // Runs may have been detached meanwhile.
    let detached = handling.drain(cut.clone()).await;
    let mut cut_short = closing.or(draining).or(detached);
    if cut_short.is_none() {
        cut_short = unless(cut, events.flush()).await;
    }
    match cut_short {
        None => tracing::info!("stopped"),
        Some(why) => tracing::warn!("{why}: {rest}"),
    }
}

/// Waits until `end` is ready, or `cut`, whose output is returned then.
async fn unless<T>(cut: impl Future<Output = T>, end: impl Future<Output = ()>) -> Option<T> {
    tokio::select! {
        () = end => None,
        why = cut => Some(why),
    }
}

/// The signals that stop the receiver: SIGTERM and Ctrl-C.
struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn requested(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
