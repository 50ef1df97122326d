//! Where the secrets come from.

use std::env::{self, VarError};

use tower_webhook::{ConfigError, Secret, Secrets};

use crate::args::Options;
use crate::cli::misused;
use crate::credentials;
use crate::demo;
use crate::learn;
use crate::text::chain;

/// Returns the configured secrets, or none if deliveries are not to be verified. Exits without any: a receiver that
/// made one up would refuse every delivery.
pub(crate) fn secrets(args: &Options) -> Option<Secrets> {
    if args.secrets.dangerously_unsigned {
        if env::var_os("WEBHOOK_SECRET").is_some() || credentials::secret().is_some() {
            misused(
                "`--dangerously-unsigned` cannot be used with the environment variable WEBHOOK_SECRET",
            );
        }
        return None;
    }
    let secrets = match &args.secrets.secret_file {
        Some(file) if args.secrets.learn_secret => learn::secrets(file),
        Some(file) => Secrets::from_file(file),
        None if args.secrets.demo => Secret::new(demo::SECRET).map(Secrets::from),
        None if !args.secrets.secret.is_empty() => {
            Secrets::new(args.secrets.secret.iter().cloned())
        }
        None => match passed() {
            Err(ConfigError::Environment {
                source: Some(VarError::NotPresent),
                ..
            }) => misused(
                "no secret is configured, so that every delivery would be refused: set the environment variable \
                 WEBHOOK_SECRET, or pass `--secret-file FILE`; to try the receiver, `--demo` takes a public secret",
            ),
            secret => secret.map(Secrets::from),
        },
    };
    Some(secrets.unwrap_or_else(|error| misused(chain(&error))))
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
