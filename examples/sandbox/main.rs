//! Run with: cargo run --features sandbox --example sandbox -- --demo
//!
//! The platform on your desk: a sandbox that delivers to your receiver, with a page that plays the
//! partner portal's Developer settings. The Admin API is at `/graphql`, for the keys made there.
//!
//! Unix only, because of its signals.

#[path = "../shared/demo.rs"]
mod demo;
mod desk;
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
use tower_webhook::sandbox::{Faults, Sandbox, Settings, Webhook};
use tower_webhook::{ConfigError, Secret};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use self::desk::Desk;

/// Play the chat platform: deliver generated chats to a receiver, with a page to watch and steer it.
///
/// All that it does is in memory and gone when it stops. SIGTERM and Ctrl-C stop it.
#[derive(Parser)]
#[command(name = "sandbox")]
struct Args {
    /// Where the page and the Admin API are; port 0 is any free port
    ///
    /// Whoever reaches the page can use it, so keep it on this machine.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:4000", value_parser = address)]
    listen: SocketAddr,

    /// Where all webhooks are sent at first
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:3000/webhooks", value_parser = url)]
    target: Uri,

    /// The secret of all webhooks at first
    ///
    /// Everybody on this machine can read it in the list of processes: rather set the environment
    /// variable WEBHOOK_SECRET. Without either a random secret is made and printed.
    #[arg(long, value_name = "SECRET", value_parser = |text: &str| Secret::new(text))]
    secret: Option<Secret>,

    /// Use the secret that `receiver --demo` uses, which is public: for demonstrations only
    #[arg(long, conflicts_with = "secret")]
    demo: bool,

    /// How many events of generated chats arise per minute of this machine's time; 0 is none
    #[arg(long, value_name = "EVENTS", default_value_t = 20, value_parser = value_parser!(u32).range(..=i64::from(desk::MAX_RATE)))]
    rate: u32,

    /// Where all chance comes from: chats, keys, faults; without it, from the system
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,

    /// What goes wrong on purpose: `none`, `all`, `all=0.05`, or a list such as `truncate-body=0.1,tamper=0.01`
    #[arg(long, value_name = "FAULTS", default_value = "none")]
    faults: Faults,

    /// How much faster the platform's clock runs
    #[arg(long, value_name = "FACTOR", default_value_t = 1, value_parser = value_parser!(u32).range(1..=100_000))]
    speed: u32,
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
        None => getrandom::u64().context("the system gives no random bytes")?,
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
    sandbox.configure_all(&Webhook::new(args.target.to_string()).signed(secret));
    let app = routes::app(Desk::new(sandbox, args.rate));

    eprintln!("listening on http://{}/", listener.local_addr()?);
    eprintln!("open it in a browser, and start a receiver in a second terminal with\n");
    eprintln!("  {receiver}{}\n", placed(&args.target));
    eprintln!("the seed is {seed}");
    tokio::select! {
        served = axum::serve(listener, app) => served.context("the page is not served any more"),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}

/// The secret, and the command of a receiver that has it too.
fn secret(args: &Args) -> anyhow::Result<(Secret, String)> {
    let run = "cargo run --example receiver --";
    let (secret, receiver) = match &args.secret {
        None if args.demo => (Secret::new(demo::SECRET), format!("{run} --demo")),
        Some(secret) => (Ok(secret.clone()), format!("WEBHOOK_SECRET=… {run}")),
        None => match Secret::from_env("WEBHOOK_SECRET") {
            Err(ConfigError::Environment {
                source: VarError::NotPresent,
                ..
            }) => {
                let mut bytes = [0; 20];
                getrandom::fill(&mut bytes).context("the system gives no random bytes")?;
                let random = hex::encode(bytes);
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

/// The flags of a receiver that is not where it is by itself.
fn placed(target: &Uri) -> String {
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
            io::ErrorKind::AddrInUse => "; is another sandbox running? Choose another port",
            _ => "",
        };
        anyhow::anyhow!("cannot listen on {address}: {error}{hint}")
    })
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.to_socket_addrs()
        .ok()
        .and_then(|mut addresses| addresses.next())
        .ok_or_else(|| "give an address and a port, such as 127.0.0.1:4000".to_owned())
}

/// Where the sandbox can deliver to.
fn url(text: &str) -> Result<Uri, &'static str> {
    let url: Uri = text.parse().map_err(|_| "this is not a URL")?;
    match (url.scheme_str(), url.host()) {
        (Some("http"), Some(_)) => Ok(url),
        (Some("https"), _) => Err("TLS is not supported: use http"),
        _ => Err("give a URL such as http://127.0.0.1:3000/webhooks"),
    }
}
