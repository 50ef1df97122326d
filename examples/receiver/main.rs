//! Run with: cargo run --example receiver
//!
//! A complete receiver that needs no Rust code: it verifies and deduplicates deliveries, prints one line
//! of JSON for each event, and can run a command for it. Logs go to standard error; `RUST_LOG=debug`
//! logs more.
//!
//! It speaks HTTP/1.1; put a proxy in front of it for TLS. It uses hyper for a time limit of 30 seconds
//! on a request's headers, because `axum::serve` sets none. It runs only on Unix, because it uses signals
//! and process groups.

#[path = "../shared/demo.rs"]
mod demo;
mod forward;
mod store;

use std::env::VarError;
use std::error::Error;
use std::fmt;
use std::io::{self, IsTerminal};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::routing::get;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, value_parser};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;
use tower::Layer;
use tower_webhook::store::{MokaStore, Store};
use tower_webhook::{ConfigError, EventRouter, HeaderNames, Runs, Secret, Secrets, WebhookLayer};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::FmtSpan;

use self::forward::Forward;
use self::store::Place;

/// Receive the chat platform's webhooks, and print one line of JSON for each event.
///
/// The line is {"event":…,"key":…,"attempt":…,"payload":…}, without key and attempt if there are none.
/// An event that could not be handled is answered with an error, so that the platform retries it.
/// GET /healthz is answered with 200.
///
/// SIGTERM and Ctrl-C stop the receiver after the running events have finished, and a second signal stops
/// it at once. SIGHUP reloads the file of secrets. The exit code is 0 after a signal, even if events were
/// still running; 1 if the receiver could not start; and 2 if the arguments are invalid.
#[derive(Parser)]
#[command(name = "receiver")]
struct Args {
    /// The address to listen on; port 0 picks a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:3000", value_parser = address)]
    listen: SocketAddr,

    /// The path that webhooks are sent to
    #[arg(long, value_name = "PATH", default_value = "/webhooks", value_parser = path)]
    path: String,

    /// The secret that is set in the partner portal; repeat it to accept several
    ///
    /// Every user of this machine can read it in the list of processes. Prefer the environment variable
    /// WEBHOOK_SECRET or --secret-file. Without any of the three, the receiver creates a random secret
    /// and prints the command that sends a first event.
    #[arg(long, value_name = "SECRET", value_parser = |text: &str| Secret::new(text))]
    secret: Vec<Secret>,

    /// A file with one secret per line, used without trimming; reloaded on SIGHUP
    #[arg(long, value_name = "FILE", conflicts_with = "secret")]
    secret_file: Option<PathBuf>,

    /// Use the public secret of `sandbox --demo`; for demonstrations only
    #[arg(long, conflicts_with_all = ["secret", "secret_file"])]
    demo: bool,

    /// The store that remembers keys, so that an event is handled once: `memory`, `sqlite:PATH`,
    /// `redis://HOST` or `postgres://HOST/DATABASE`
    ///
    /// `memory` is lost when the receiver stops, so events that the platform then retries are handled
    /// again. `sqlite:webhooks.db` is a file that survives a crash, for one machine. Redis and Postgres
    /// are for several receivers that share their work. Every user of this machine can read a password
    /// in the list of processes: pass the URL in the environment variable WEBHOOK_STORE instead. Each
    /// store but `memory` needs the feature of its name, as in
    /// `cargo run --features sqlite --example receiver`.
    #[arg(
        long,
        value_name = "STORE",
        env = "WEBHOOK_STORE",
        hide_env_values = true,
        default_value = "memory"
    )]
    store: String,

    /// How long a key stays claimed after its receiver has crashed; at most 599
    ///
    /// The lease of a running event is renewed until the event is finished. It has no effect with
    /// `memory`.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = value_parser!(u64).range(1..600))]
    lease: u64,

    /// A command that is run for each event, by `sh -c`
    ///
    /// It receives the line of JSON on standard input. If it fails, the event fails too: the line is not
    /// printed, and the platform retries the event. Its output goes to standard error.
    #[arg(long, value_name = "COMMAND")]
    exec: Option<String>,

    /// The time limit of an event, after which a command is killed with all processes that it started
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = value_parser!(u64).range(1..))]
    handler_timeout: u64,

    /// The largest body to accept, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20, value_parser = value_parser!(u32).range(1..))]
    max_body: u32,

    /// The brand in the header names: `acme` reads X-Acme-Event instead of X-Service-Event
    #[arg(long, value_name = "BRAND")]
    header_prefix: Option<String>,

    /// How long the receiver waits for running events when it is stopped
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    grace: u64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    tracing_subscriber::fmt()
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
        .log_internal_errors(false)
        .init();

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
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> anyhow::Result<()> {
    let (secrets, random) = secrets(&args)?;
    let (app, runs) = match Place::parse(&args.store).unwrap_or_else(|error| misused(error)) {
        Place::Memory => app(&args, &secrets, MokaStore::new())?,
        #[cfg(feature = "sqlite")]
        Place::Sqlite(path) => app(&args, &secrets, store::sqlite(path)?)?,
        #[cfg(feature = "redis")]
        Place::Redis(server) => app(&args, &secrets, store::redis(server).await?)?,
        #[cfg(feature = "postgres")]
        Place::Postgres(server) => app(&args, &secrets, store::postgres(server).await?)?,
    };

    let stop = Stop::new()?;
    reread_on_hangup(secrets, args.secret_file)?;
    let listener = bind(args.listen).await?;
    let url = format!("http://{}{}", listener.local_addr()?, args.path);
    eprintln!("listening on {url}");
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
    serve(listener, app, runs, stop, Duration::from_secs(args.grace)).await;
    Ok(())
}

/// Returns the application, and the runs to wait for at shutdown.
fn app<St>(args: &Args, secrets: &Secrets, store: St) -> anyhow::Result<(Router, Runs)>
where
    St: Store + Clone,
{
    let names = match &args.header_prefix {
        Some(brand) => HeaderNames::branded(brand).unwrap_or_else(|error| misused(chain(&error))),
        None => HeaderNames::default(),
    };
    let lease = Duration::from_secs(args.lease);

    let forward = Arc::new(Forward::new(args.exec.clone()));
    let events = EventRouter::new().fallback(move |delivery| {
        let forward = Arc::clone(&forward);
        async move { forward.event(delivery).await }
    });
    let layer = WebhookLayer::with_store(secrets.clone(), store)
        .header_names(names)?
        .max_body(args.max_body as usize)
        .max_buffered((64 << 20).max(args.max_body as usize))
        .handler_timeout(Duration::from_secs(args.handler_timeout))?
        .in_flight_wait(Duration::from_secs(5).min(lease / 2))?
        .lease(lease)?;
    let runs = layer.runs();
    let app = Router::new()
        .route("/healthz", get(async || {}))
        .route_service(&args.path, layer.layer(events));
    Ok((app, runs))
}

/// Returns the configured secrets, or a random one together with its text.
fn secrets(args: &Args) -> anyhow::Result<(Secrets, Option<String>)> {
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
    Ok((
        secrets.unwrap_or_else(|error| misused(chain(&error))),
        random,
    ))
}

/// Exits like clap does for an invalid argument.
fn misused(error: impl fmt::Display) -> ! {
    Args::command()
        .error(ErrorKind::ValueValidation, error)
        .exit()
}

fn reread_on_hangup(secrets: Secrets, file: Option<PathBuf>) -> io::Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            let Some(file) = &file else {
                tracing::warn!("there is no `--secret-file` to reload");
                continue;
            };
            match secrets.replace_from_file(file) {
                Ok(()) => tracing::info!("the secrets were reloaded"),
                Err(error) => {
                    tracing::error!(reason = %chain(&error), "the secrets could not be reloaded and are unchanged");
                }
            }
        }
    });
    Ok(())
}

async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::AddrInUse => "; if another receiver is running, choose another port, such as --listen 127.0.0.1:3001",
            _ => "",
        };
        anyhow::anyhow!("cannot listen on {address}: {error}{hint}")
    })
}

/// Serves until a signal arrives, then waits for the running events.
async fn serve(listener: TcpListener, app: Router, runs: Runs, mut stop: Stop, grace: Duration) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()); // Without a timer, headers have no time limit.
    let connections = GracefulShutdown::new();
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    sleep(Duration::from_millis(100)).await; // Open files may be closed until then.
                    continue;
                }
            },
            () = stop.requested() => break,
        };
        let service = TowerToHyperService::new(app.clone());
        let connection = http.serve_connection(TokioIo::new(stream), service);
        tokio::spawn(connections.watch(connection));
    }
    drop(listener);

    tracing::info!("stopping after the running events have finished");
    let finished = async {
        connections.shutdown().await;
        runs.drain(grace).await
    };
    tokio::select! {
        Ok(()) = finished => tracing::info!("stopped"),
        () = sleep(grace) => tracing::warn!("stopped at the deadline: the platform retries the events that were running"),
        () = stop.requested() => tracing::warn!("stopped at once: the platform retries the events that were running"),
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

fn address(text: &str) -> Result<SocketAddr, String> {
    text.to_socket_addrs()
        .ok()
        .and_then(|mut addresses| addresses.next())
        .ok_or_else(|| "use an address and a port, such as 127.0.0.1:3000".to_owned())
}

fn path(text: &str) -> Result<String, &'static str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte);
    match text {
        "/healthz" => Err("this path is used by the health check"),
        _ if !text.starts_with('/') => Err("a path starts with `/`"),
        _ if !text.bytes().all(is_plain) => Err("use letters, digits and `/-._~`"),
        _ => Ok(text.to_owned()),
    }
}

/// Formats an error with its cause on one line.
fn chain(error: &ConfigError) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
