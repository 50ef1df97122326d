//! Asks a receiver how it is, for images that have no shell.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use axum::body::Bytes;
use clap::{Args, ValueEnum, value_parser};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::Uri;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::time::timeout;

use crate::args::address;

#[derive(Args)]
pub(crate) struct Options {
    /// What to ask for
    #[arg(value_enum, value_name = "WHAT", default_value_t = What::Readyz)]
    what: What,

    /// The address of the receiver, on this machine or in this container
    #[arg(long, value_name = "ADDRESS", env = "WEBHOOK_LISTEN", default_value = "127.0.0.1:3000", value_parser = address)]
    listen: SocketAddr,

    /// The time limit of the answer
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = value_parser!(u64).range(1..))]
    timeout: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum What {
    /// Whether a delivery would be stored now
    Readyz,
    /// Whether the receiver runs
    Healthz,
}

/// Succeeds if the receiver answers 200.
pub(crate) async fn probe(options: Options) -> anyhow::Result<ExitCode> {
    let path = match options.what {
        What::Readyz => "readyz",
        What::Healthz => "healthz",
    };
    let mut address = options.listen;
    // Where a receiver listens on all addresses, it does so on that of this machine.
    match address.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    let limit = Duration::from_secs(options.timeout);
    let asked = timeout(limit, ask(format!("http://{address}/{path}").parse()?)).await;
    let asked = asked.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer within {limit:?}")));
    let (is_well, said) =
        asked.with_context(|| format!("the receiver at {address} cannot be asked for /{path}"))?;
    writeln!(io::stdout(), "{said}")?;
    Ok(match is_well {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

async fn ask(url: Uri) -> anyhow::Result<(bool, String)> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let response = client.get(url).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), 4096).collect().await;
    let body = body.map_err(|error| anyhow::anyhow!(error))?.to_bytes();
    let text = String::from_utf8_lossy(&body);
    let text = crate::text::printable(text.trim());
    let said = match text.is_empty() {
        true => status.to_string(),
        false => format!("{status}: {text}"),
    };
    Ok((status.is_success(), said))
}
