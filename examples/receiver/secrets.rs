//! Where the secrets come from.

use std::env::{self, VarError};
use std::io;
use std::path::PathBuf;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tower_webhook::{ConfigError, Secret, Secrets};

use crate::args::Options;
use crate::cli::misused;
use crate::credentials;
use crate::demo;
use crate::text::chain;

/// Returns the configured secrets, or a random one together with its text. There is none if deliveries are
/// not to be verified.
pub(crate) fn secrets(args: &Options) -> anyhow::Result<(Option<Secrets>, Option<String>)> {
    if args.secrets.dangerously_unsigned {
        if env::var_os("WEBHOOK_SECRET").is_some() || credentials::secret().is_some() {
            misused(
                "`--dangerously-unsigned` cannot be used with the environment variable WEBHOOK_SECRET",
            );
        }
        return Ok((None, None));
    }
    let mut random = None;
    let secrets = match &args.secrets.secret_file {
        Some(file) => Secrets::from_file(file),
        None if args.secrets.demo => Secret::new(demo::SECRET).map(Secrets::from),
        None if !args.secrets.secret.is_empty() => {
            Secrets::new(args.secrets.secret.iter().cloned())
        }
        None => match credentials::secret()
            .map_or_else(|| Secret::from_env("WEBHOOK_SECRET"), Secret::new)
        {
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

pub(crate) fn reread_on_hangup(secrets: Option<Secrets>, file: Option<PathBuf>) -> io::Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            let (Some(secrets), Some(file)) = (&secrets, &file) else {
                tracing::warn!("there is no `--secret-file` to reload");
                continue;
            };
            match secrets.replace_from_file(file) {
                Ok(()) => tracing::info!(
                    file = %file.display(),
                    secrets = secrets.labels().len(),
                    labels = secrets.labels().join(","),
                    "the secrets were reloaded"
                ),
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

/// How many there are, and how the log names them.
pub(crate) fn labels(secrets: &Secrets) -> String {
    let labels = secrets.labels();
    format!("{}, in the log as {}", labels.len(), labels.join(", "))
}
