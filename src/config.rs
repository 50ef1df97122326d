//! What can be wrong with a configuration.

use std::env::VarError;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use http::HeaderName;

/// A configuration that was refused when it was made, because it would break a promise of the
/// [guarantees](crate::docs::guarantees).
#[derive(Debug)]
#[non_exhaustive]
pub enum ConfigError {
    /// A secret has no bytes. Anybody can sign with it.
    EmptySecret,
    /// A set of secrets has no member. No delivery could be authentic.
    NoSecrets,
    /// The environment variable that should hold a secret is not set, or is not Unicode.
    Environment {
        /// The variable's name.
        name: String,
        /// Why it cannot be read.
        source: VarError,
    },
    /// The file that should hold secrets cannot be read.
    SecretFile {
        /// Where the file was looked for.
        path: PathBuf,
        /// Why it cannot be read.
        source: io::Error,
    },
    /// The prefix does not make names of headers.
    HeaderPrefix(String),
    /// The prefix does not make names of keys in Redis.
    #[cfg(feature = "redis")]
    RedisPrefix(String),
    /// Two of the names of headers are the same.
    SameHeader(HeaderName),
    /// A completed key would be forgotten while the sender still retries its event.
    RetentionTooShort {
        /// What was asked for.
        retention: Duration,
        /// How long the sender retries; retention must be longer.
        retry_for: Duration,
    },
    /// The lease would end before it could be renewed.
    LeaseTooShort {
        /// What was asked for.
        lease: Duration,
    },
    /// The retry after a crash would meet the claim of the crashed run.
    LeaseTooLong {
        /// What was asked for.
        lease: Duration,
        /// The time between two attempts of the sender; the lease must be shorter.
        retry_every: Duration,
    },
    /// Duplicates would wait for a run that has lost its lease.
    WaitTooLong {
        /// What was asked for.
        wait: Duration,
        /// The lease; the wait must be shorter.
        lease: Duration,
    },
    /// The name is none that PostgreSQL takes for a schema.
    SchemaName(String),
    /// A limit is zero, and nothing could pass it.
    Zero(
        /// The limit's name.
        &'static str,
    ),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptySecret => f.write_str(
                "the secret is empty: set the secret that is configured in the partner portal",
            ),
            Self::NoSecrets => f.write_str(
                "there is no secret: give at least one, as it is configured in the partner portal",
            ),
            Self::Environment { name, .. } => write!(
                f,
                "the environment variable `{name}` holds no secret: set it to the secret that is \
                 configured in the partner portal"
            ),
            Self::SecretFile { path, .. } => {
                write!(f, "the secrets in `{}` cannot be read", path.display())
            }
            Self::HeaderPrefix(prefix) => write!(
                f,
                "`{prefix}` cannot be the prefix of a header: use letters, digits and hyphens"
            ),
            #[cfg(feature = "redis")]
            Self::RedisPrefix(prefix) => write!(
                f,
                "{prefix:?} cannot be the prefix of keys in Redis: use 1 to 64 printable ASCII \
                 characters, without spaces and braces"
            ),
            Self::SameHeader(name) => write!(
                f,
                "the header `{name}` cannot carry two things: give each of the headers its own name"
            ),
            Self::RetentionTooShort {
                retention,
                retry_for,
            } => write!(
                f,
                "a retention of {retention:?} is too short: the sender retries for {retry_for:?}, \
                 and a forgotten key would be handled again; choose a longer one"
            ),
            Self::LeaseTooShort { lease } => write!(
                f,
                "a lease of {lease:?} is too short to be renewed in time: choose at least 100 ms"
            ),
            Self::LeaseTooLong { lease, retry_every } => write!(
                f,
                "a lease of {lease:?} is too long: the sender retries every {retry_every:?}, and \
                 the first retry after a crash would find the key taken; choose a shorter one"
            ),
            Self::WaitTooLong { wait, lease } => write!(
                f,
                "duplicates cannot wait {wait:?} for a run whose lease is {lease:?}: choose a \
                 shorter wait, or a longer lease before it"
            ),
            Self::SchemaName(name) => write!(
                f,
                "`{}` cannot be the name of a schema: use 1 to 63 bytes without a NUL, and none that \
                 begin with `pg_`",
                name.escape_debug()
            ),
            Self::Zero(limit) => write!(f, "`{limit}` must be more than zero"),
        }
    }
}

impl std::error::Error for ConfigError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Environment { source, .. } => Some(source),
            Self::SecretFile { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Reads an environment variable whose value must not be shown, not even by an error.
pub(crate) fn secret_variable(name: &str) -> Result<String, VarError> {
    std::env::var(name).map_err(without_value)
}

/// An error that calls a value no Unicode holds and shows that value.
fn without_value(error: VarError) -> VarError {
    match error {
        VarError::NotPresent => VarError::NotPresent,
        VarError::NotUnicode(_) => VarError::NotUnicode(OsString::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_is_not_unicode_is_not_shown() {
        let error = without_value(VarError::NotUnicode(OsString::from("hunter2")));

        assert!(matches!(error, VarError::NotUnicode(_)));
        assert!(!format!("{error:?} {error}").contains("hunter2"));
    }
}
