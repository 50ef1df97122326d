//! Run with: ADMIN_TOKEN=KEY cargo run -p tower-webhook-admin --example availability -- --base-url URL
//!
//! Asks the platform's Admin API whether chat is available.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use tower_webhook_admin::{AccessToken, AdminClient, AdminConfigError, BaseUrl};

/// Ask the chat platform whether chat is available, and print `available` or `unavailable`.
///
/// The exit code is 0 if the Admin API responded, whatever the availability; 1 if it did not; and 2 if
/// the arguments are invalid.
///
/// The access token is the API key from the partner portal: pass it in the environment variable
/// ADMIN_TOKEN, or use --token-file. There is no flag for it, because every user of this machine can
/// read the arguments of a process.
#[derive(Parser)]
#[command(name = "availability")]
struct Args {
    /// The base URL of the Admin API, without `/graphql`
    #[arg(
        long,
        value_name = "URL",
        env = "ADMIN_BASE_URL",
        hide_env_values = true
    )]
    base_url: String,

    /// The file with the access token
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Allow plain http, which exposes the access token to the network
    #[arg(long)]
    dangerously_allow_http: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match print(&Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn print(args: &Args) -> anyhow::Result<()> {
    let admin = match client(args) {
        Err(error) if !matches!(error, AdminConfigError::Tls(_)) => {
            let message = format!("{:#}", anyhow::Error::new(error));
            Args::command()
                .error(ErrorKind::ValueValidation, message)
                .exit()
        }
        admin => admin?,
    };
    let is_available = admin
        .chat_is_available()
        .await
        .with_context(|| format!("asking {}", admin.endpoint()))?;
    let word = if is_available {
        "available"
    } else {
        "unavailable"
    };
    writeln!(io::stdout(), "{word}")?;
    Ok(())
}

fn client(args: &Args) -> Result<AdminClient, AdminConfigError> {
    let base_url: BaseUrl = match args.dangerously_allow_http {
        true => BaseUrl::dangerously_allow_http(&args.base_url)?,
        false => args.base_url.parse()?,
    };
    let token = match &args.token_file {
        Some(file) => AccessToken::from_file(file)?,
        None => AccessToken::from_env("ADMIN_TOKEN")?,
    };
    AdminClient::new(base_url, token)
}
