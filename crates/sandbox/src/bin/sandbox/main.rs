//! Run with: cargo run -p tower-webhook-sandbox -- --demo
//!
//! A simulated platform that delivers to your receiver, with a page for the partner portal's Developer
//! settings. The Admin API is at `/graphql` and accepts the API keys that are created on the page.
//!
//! It runs only on Unix, because it uses signals.

mod actions;
mod demo;
mod desk;
mod host;
mod page;
mod routes;

use std::env::VarError;
use std::io::{self, IsTerminal};
use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;

use anyhow::Context;
use axum::http::Uri;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, value_parser};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tower_webhook::{ConfigError, Secret};
use tower_webhook_sandbox::{Faults, Sandbox, Settings, Webhook};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use self::desk::Desk;

/// Simulate the chat platform: deliver generated chats to a receiver, and serve a page that shows and
/// controls it.
///
/// All data is in memory and lost when it stops. SIGTERM and Ctrl-C stop it.
#[derive(Parser)]
#[command(name = "sandbox")]
struct Args {
    /// The address of the page and the Admin API; port 0 picks a free port
    ///
    /// The page has no access control, so keep it on this machine.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:4000", value_parser = address)]
    listen: SocketAddr,

    /// The initial URL of all webhooks
    ///
    /// For an https URL, the system's certificates count; on Linux, SSL_CERT_FILE replaces them.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:3000/webhooks", value_parser = url)]
    target: Uri,

    /// The initial secret of all webhooks
    ///
    /// Every user of this machine can read it in the list of processes: pass it in the environment
    /// variable WEBHOOK_SECRET instead. Without either, a random secret is created and printed.
    #[arg(long, value_name = "SECRET", value_parser = |text: &str| Secret::new(text))]
    secret: Option<Secret>,

    /// Use the public secret of `receiver --demo`; for demonstrations only
    #[arg(long, conflicts_with = "secret")]
    demo: bool,

    /// The number of generated events per minute of this machine's time; 0 disables them
    #[arg(long, value_name = "EVENTS", default_value_t = 20, value_parser = value_parser!(u32).range(..=i64::from(desk::MAX_RATE)))]
    rate: u32,

    /// The seed of random chats, keys and faults; random by default
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,

    /// The injected faults: `none`, `all`, `all=0.05`, or a list such as `truncate-body=0.1,tamper=0.01`
    #[arg(long, value_name = "FAULTS", default_value = "none")]
    faults: Faults,

    /// How much faster than real time the platform's clock runs
    #[arg(long, value_name = "FACTOR", default_value_t = 1, value_parser = value_parser!(u32).range(1..=100_000))]
    speed: u32,

    /// Assume the worst that the platform's interface allows
    ///
    /// Only the status 200 counts as delivered, events that wait when a webhook is disabled are lost,
    /// failures of test events count, payloads have unknown words and nulls, and the Admin API answers
    /// about half of the queries with errors, with nulls or slowly.
    #[arg(long)]
    strict: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    tracing_subscriber::fmt()
        .with_env_filter(
            EnvFilter::builder()
                .with_default_directive(LevelFilter::INFO.into())
                .from_env_lossy(),
        )
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        .log_internal_errors(false)
        .init();

    match run(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> anyhow::Result<()> {
    let (secret, receiver) = secret(&args)?;
    let seed = match args.seed {
        Some(seed) => seed,
        None => getrandom::u64().context("the system returned no random bytes")?,
    };
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let listener = bind(args.listen).await?;

    let sandbox = Sandbox::over_http(Settings {
        seed,
        faults: args.faults,
        speed: args.speed,
        ..Settings::default()
    });
    let sandbox = match args.strict {
        true => sandbox.strict(),
        false => sandbox,
    };
    sandbox.configure_all(&Webhook::new(args.target.to_string()).signed(secret));
    let app = routes::app(Desk::new(sandbox, args.rate, args.strict));

    eprintln!("listening on http://{}/", listener.local_addr()?);
    eprintln!("open it in a browser, and start a receiver in a second terminal with\n");
    eprintln!("  {receiver}{}\n", flags(&args.target));
    eprintln!("the seed is {seed}");
    tokio::select! {
        served = axum::serve(listener, app) => served.context("the server failed"),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}

/// Returns the secret, and the command that starts a receiver with the same secret.
fn secret(args: &Args) -> anyhow::Result<(Secret, String)> {
    let run = "cargo run -p tower-webhook-receiver --";
    let (secret, receiver) = match &args.secret {
        None if args.demo => (Secret::new(demo::SECRET), format!("{run} --demo")),
        Some(secret) => (Ok(secret.clone()), format!("WEBHOOK_SECRET=… {run}")),
        None => match Secret::from_env("WEBHOOK_SECRET") {
            Err(ConfigError::Environment {
                source: Some(VarError::NotPresent),
                ..
            }) => {
                let mut bytes = [0; 20];
                getrandom::fill(&mut bytes).context("the system returned no random bytes")?;
                let random = base16ct::lower::encode_string(&bytes);
                let receiver = format!("{run} --secret {random}");
                (Secret::new(random), receiver)
            }
            secret => (secret, format!("WEBHOOK_SECRET=… {run}")),
        },
    };
    let secret = secret.unwrap_or_else(|error| {
        let message = format!("{:#}", anyhow::Error::new(error));
        Args::command()
            .error(ErrorKind::ValueValidation, message)
            .exit()
    });
    Ok((secret, receiver))
}

/// Returns the flags of a receiver at `target`, if it is not the default URL.
fn flags(target: &Uri) -> String {
    let mut flags = String::new();
    if let Some(authority) = target.authority().filter(|at| *at != "127.0.0.1:3000") {
        flags += &format!(" --listen {authority}");
    }
    if target.path() != "/webhooks" {
        flags += &format!(" --path {}", target.path());
    }
    flags
}

async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::AddrInUse => "; if another sandbox is running, choose another port",
            _ => "",
        };
        anyhow::anyhow!("cannot listen on {address}: {error}{hint}")
    })
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.to_socket_addrs()
        .ok()
        .and_then(|mut addresses| addresses.next())
        .ok_or_else(|| "use an address and a port, such as 127.0.0.1:4000".to_owned())
}

/// Parses a URL that the sandbox can deliver to.
fn url(text: &str) -> Result<Uri, &'static str> {
    let url: Uri = text.parse().map_err(|_| "this is not a URL")?;
    match (url.scheme_str(), url.host()) {
        (Some("http" | "https"), Some(_)) => Ok(url),
        _ => Err("use a URL such as http://127.0.0.1:3000/webhooks"),
    }
}
