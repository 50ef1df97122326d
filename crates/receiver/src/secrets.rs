//! Where the secrets come from.

use std::env::{self, VarError};

use anyhow::Context;
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
        None => match passed() {
            Err(ConfigError::Environment {
                source: Some(VarError::NotPresent),
                ..
            }) => {
                let mut bytes = [0; 20];
                getrandom::fill(&mut bytes).context("the system returned no random bytes")?;
                Secret::new(
                    random
                        .insert(base16ct::lower::encode_string(&bytes))
                        .as_str(),
                )
            }
            secret => secret,
        }
        .map(Secrets::from),
    };
    let secrets = secrets.unwrap_or_else(|error| misused(chain(&error)));
    Ok((Some(secrets), random))
}

/// The secret of the environment, which may have been passed on.
fn passed() -> Result<Secret, ConfigError> {
    let name = "WEBHOOK_SECRET";
    match credentials::secret() {
        None => Secret::from_env(name),
        Some("") => Err(ConfigError::Environment {
            name: name.to_owned(),
            source: None,
        }),
        Some(secret) => Secret::new(secret),
    }
}

/// How many there are, and how the log names them.
pub(crate) fn labels(secrets: &Secrets) -> String {
    let labels = secrets.labels();
    format!("{}, in the log as {}", labels.len(), labels.join(", "))
}
