//! The errors of settings.

use std::env::VarError;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::route::{EventType, InvalidRouteName, RouteName};

/// The error of a setter or constructor whose value would break one of the
/// [guarantees](crate::docs::guarantees).
///
/// ```
/// use tower_webhook::{ConfigError, Secret};
///
/// assert!(matches!(Secret::new(""), Err(ConfigError::EmptySecret)));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum ConfigError {
    /// A [`Secret`](crate::Secret) is empty, so anyone could sign with it.
    EmptySecret,
    /// A set of [`Secrets`](crate::Secrets) is empty, so no delivery could be verified.
    NoSecrets,
    /// The environment variable with the secret is not set, empty, or not Unicode.
    Environment {
        /// The variable's name.
        name: String,
        /// Why it cannot be read. `None` if it is empty.
        source: Option<VarError>,
    },
    /// The file with the secrets cannot be read.
    SecretFile {
        /// The file's path.
        path: PathBuf,
        /// Why it cannot be read.
        source: io::Error,
    },
    /// The prefix of [`Sender::branded`](crate::Sender::branded) does not form header names.
    HeaderPrefix(String),
    /// A [`Sender`](crate::Sender) cannot be used like this.
    Sender {
        /// The sender's name.
        name: String,
        /// What is wrong, and what is allowed.
        reason: String,
    },
    /// The text of [`Sender::from_json`](crate::Sender::from_json) describes no sender.
    Description(serde_json::Error),
    /// The text is no public key that is safe to use.
    #[cfg(feature = "public-keys")]
    PublicKey {
        /// What is wrong, and what is allowed.
        reason: &'static str,
    },
    /// The prefix cannot begin the names of keys in Redis.
    #[cfg(feature = "redis")]
    RedisPrefix(String),
    /// A completed key would be forgotten while the sender still retries its event
    /// ([`SenderPolicy::retry_for`](crate::SenderPolicy::retry_for)).
    RetentionTooShort {
        /// The configured retention.
        retention: Duration,
        /// How long the sender retries; the retention must be longer.
        retry_for: Duration,
    },
    /// The lease would expire before it could be renewed.
    LeaseTooShort {
        /// The configured lease.
        lease: Duration,
    },
    /// The lease of a crashed run would not have expired at the sender's next retry
    /// ([`SenderPolicy::retry_every`](crate::SenderPolicy::retry_every)).
    LeaseTooLong {
        /// The configured lease.
        lease: Duration,
        /// The time between two attempts of the sender; the lease must be shorter.
        retry_every: Duration,
    },
    /// Duplicates would wait for a run whose lease has expired.
    WaitTooLong {
        /// The configured wait.
        wait: Duration,
        /// The lease; the wait must be shorter.
        lease: Duration,
    },
    /// The text cannot be the name of a route.
    RouteName(InvalidRouteName),
    /// The name cannot be the name of a schema in PostgreSQL.
    SchemaName(String),
    /// A setting that concerns all routes of an [`Inbox`](crate::inbox::Inbox) was not set with the first one, or was set
    /// again.
    NotFirst {
        /// The name of the setter.
        setting: &'static str,
        /// The route with which it was set.
        route: RouteName,
    },
    /// Two routes of one inbox have one name, so that nobody could tell their events apart.
    RouteTwice {
        /// The name.
        name: RouteName,
        /// Their senders.
        senders: [String; 2],
    },
    /// A setting of keys was set for the verification alone, which knows none.
    NeedsKeys(&'static str),
    /// There is no route to start.
    NoRoutes,
    /// A setting of a worker names an event type of a route that it does not handle.
    NotHandled {
        /// The name of the setter.
        setting: &'static str,
        /// The event type.
        of: EventType,
        /// The routes that the worker handles.
        routes: Vec<RouteName>,
    },
    /// The names of two routes of one inbox have the same digest, so that chats of one could have lanes of the other.
    SharedLanes {
        /// The names.
        routes: [RouteName; 2],
    },
    /// A limit is zero, so nothing could pass it.
    Zero(
        /// The limit's name.
        &'static str,
    ),
}

errors! {
    ConfigError {
        Self::EmptySecret => "the secret is empty: set the secret that is configured at the sender";
        Self::NoSecrets => "there is no secret: pass a secret that is configured at the sender";
        Self::Environment { name, source: None } => "the environment variable `{name}` is empty: set it to the secret \
            that is configured at the sender";
        Self::Environment { name, source: Some(source) } => "the environment variable `{name}` holds no secret: set it \
            to the secret that is configured at the sender" => source;
        Self::SecretFile { path, source } => "a file of secrets must be readable UTF-8 with one secret per line: `{}` \
            cannot be read", path.display() => source;
        Self::HeaderPrefix(prefix) => "`{prefix}` cannot be the prefix of a header: use letters, digits and hyphens";
        Self::Description(source) => "the text describes no sender" => source;
        Self::Sender { name, reason } => "the sender `{name}`: {reason}";
        #[cfg(feature = "public-keys")]
        Self::PublicKey { reason } => "a public key cannot be used: {reason}";
        #[cfg(feature = "redis")]
        Self::RedisPrefix(prefix) => "{prefix:?} cannot be the prefix of keys in Redis: use 1 to 64 printable ASCII \
            characters, without spaces and braces";
        Self::RetentionTooShort { retention, retry_for } => "a retention of {retention:?} is too short: the sender \
            retries for {retry_for:?}, and an event whose key is forgotten is handled again; choose a longer retention";
        Self::LeaseTooShort { lease } => "a lease of {lease:?} is too short to be renewed in time: choose at least \
            100 ms";
        Self::LeaseTooLong { lease, retry_every } => "a lease of {lease:?} is too long: the sender retries every \
            {retry_every:?}, and the first retry after a crash would find the key claimed; choose a shorter lease";
        Self::WaitTooLong { wait, lease } => "duplicates cannot wait {wait:?} for a run whose lease is {lease:?}: \
            choose a shorter wait, or a longer lease";
        Self::RouteName(error) => "{error}";
        Self::SchemaName(name) => "`{}` cannot be the name of a schema: use 1 to 63 bytes without NUL that do not \
            begin with `pg_`", name.escape_debug();
        Self::NotFirst { setting, route } => "`{setting}` concerns all routes of an inbox, and was set with the route \
            `{route}`, after another route was added or the inbox had one: set it once, with the first route";
        Self::RouteTwice { name, senders: [one, other] } => "two routes of this inbox are named `{name}`, of the senders \
            `{one}` and `{other}`: give one of them another name with `Webhooks::name`";
        Self::NeedsKeys(setting) => "`{setting}` needs a store or an inbox: a verification alone remembers no keys";
        Self::NoRoutes => "there is no route: add one before `start`";
        Self::NotHandled { setting, of, routes } => "`{setting}` names the event type `{of}` of the route `{}`, and the \
            worker handles {routes:?}: write the type as `route/type`, such as `github/push`", of.route;
        Self::SharedLanes { routes: [one, other] } => "the names of the routes `{one}` and `{other}` have the same digest, so \
            that their chats could block each other: give one of them another name with `Webhooks::name`";
        Self::Zero(limit) => "`{limit}` must be more than zero";
    }
}

impl From<InvalidRouteName> for ConfigError {
    fn from(error: InvalidRouteName) -> Self {
        Self::RouteName(error)
    }
}

/// Reads an environment variable whose value must not be shown, not even in an error.
pub(crate) fn secret_variable(name: &str) -> Result<String, VarError> {
    std::env::var(name).map_err(without_value)
}

/// Removes the value from the error: [`VarError::NotUnicode`] holds it, and its `Display` prints it.
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
    fn variable_that_is_not_unicode_is_not_shown() {
        let error = without_value(VarError::NotUnicode(OsString::from("hunter2")));

        assert!(matches!(error, VarError::NotUnicode(_)));
        assert!(!format!("{error:?} {error}").contains("hunter2"));
    }
}
