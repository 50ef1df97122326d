//! The server's errors, and why a server is refused.

use std::error::Error;

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::error::Chain;
use crate::store::{OpenError, OpenErrorKind, StoreError, StoreErrorKind};

/// Whether the error comes from a server that can still answer.
pub(super) fn is_answer(error: &RedisError) -> bool {
    match error.kind() {
        // It was the primary; where it is now, a new connection may find out.
        ErrorKind::Server(ServerErrorKind::ReadOnly) => false,
        ErrorKind::Server(_) => true,
        // A new connection logs in again, so a connection without a login is replaced.
        ErrorKind::Extension => !is_unauthenticated(error),
        _ => false,
    }
}

/// Whether the error comes from a server that may not be the primary any more.
pub(super) fn is_cut_off(error: &RedisError) -> bool {
    matches!(error.code(), Some("NOREPLICAS" | "MASTERDOWN"))
}

pub(super) fn is_unauthenticated(error: &RedisError) -> bool {
    error.kind() == ErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("NOAUTH" | "WRONGPASS"))
}

pub(super) fn is_forbidden(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm)
        // A command that an administrator has renamed is unknown under its own name.
        || error
            .detail()
            .is_some_and(|detail| detail.starts_with("unknown command"))
}

pub(super) fn store_error(error: RedisError) -> StoreError {
    // The scripts answer `CORRUPT`. Redis answers `WRONGTYPE` for a key that holds a list or a hash.
    let corrupt = matches!(
        error.kind(),
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType
    ) || matches!(error.code(), Some("CORRUPT" | "WRONGTYPE"));
    let kind = if corrupt {
        StoreErrorKind::Corrupt
    } else if error.is_timeout() {
        StoreErrorKind::TimedOut
    } else {
        StoreErrorKind::Unavailable
    };
    StoreError::new(kind, error)
}

/// Why a server or its URL is refused. No message contains the password.
#[derive(Debug)]
pub(super) enum ServerError {
    InvalidUrl(RedisError),
    NoTls(RedisError),
    /// The server cannot be reached at the address.
    Unreachable(String, RedisError),
    /// The server at the address does not accept the user or password.
    Unauthenticated(String, RedisError),
    /// The server at the address answers with an error.
    Failed(String, RedisError),
    /// The server is older than the scripts need.
    TooOld {
        version: String,
    },
    Replica,
    Evicts {
        policy: String,
    },
    /// The server at the address is a sentinel, and knows a primary by this name.
    Sentinel {
        at: String,
        name: String,
    },
    /// None of the servers that the URL names leads to a cluster, each for its own reason.
    NoneOf(Vec<ServerError>),
    /// The servers at the addresses are no sentinels.
    NoSentinel(String, RedisError),
    /// The URL names several servers, of which the one at the address is not part of a cluster.
    NoCluster(String),
    /// The cluster of the server at the address has servers for this many slots only.
    Uncovered {
        at: String,
        slots: u16,
    },
}

impl ServerError {
    pub(super) fn from_url(source: RedisError) -> Self {
        // The crate reports this only in its text.
        match source.to_string().contains("TLS") {
            true => Self::NoTls(source),
            false => Self::InvalidUrl(source),
        }
    }

    pub(super) fn from_redis(address: String, source: RedisError) -> Self {
        if is_unauthenticated(&source) {
            Self::Unauthenticated(address, source)
        } else if source.is_io_error() {
            Self::Unreachable(address, source)
        } else {
            Self::Failed(address, source)
        }
    }

    /// The same, of what the sentinels of the URL led to.
    pub(super) fn behind_sentinels(self) -> Self {
        match self {
            Self::Failed(at, source)
                if is_forbidden(&source)
                    && source.detail().is_some_and(|it| it.contains("SENTINEL")) =>
            {
                Self::NoSentinel(at, source)
            }
            other => other,
        }
    }

    /// Why the only server, or each of several, was refused.
    pub(super) fn of_all(mut refused: Vec<Self>) -> Self {
        match refused.len() {
            1 => refused.remove(0),
            _ => Self::NoneOf(refused),
        }
    }

    fn kind(&self) -> OpenErrorKind {
        match self {
            Self::InvalidUrl(_) => OpenErrorKind::InvalidUrl,
            Self::NoTls(_) => OpenErrorKind::TlsMissing,
            Self::Unauthenticated(..) => OpenErrorKind::Denied,
            Self::Failed(_, error) if is_forbidden(error) => OpenErrorKind::Denied,
            Self::Unreachable(..) | Self::Failed(..) => OpenErrorKind::Unavailable,
            // What waiting does not mend comes first.
            Self::NoneOf(each) => {
                let mut kinds = each.iter().map(Self::kind);
                let lasting = kinds.find(|kind| *kind != OpenErrorKind::Unavailable);
                lasting.unwrap_or(OpenErrorKind::Unavailable)
            }
            Self::TooOld { .. }
            | Self::Replica
            | Self::Evicts { .. }
            | Self::Sentinel { .. }
            | Self::NoSentinel(..)
            | Self::NoCluster(_)
            | Self::Uncovered { .. } => OpenErrorKind::Unsuitable,
        }
    }
}

impl From<ServerError> for OpenError {
    fn from(refusal: ServerError) -> Self {
        Self::new(refusal.kind(), refusal)
    }
}

errors! {
    ServerError {
        Self::InvalidUrl(source) => "the URL is not the URL of a Redis server: write it as \
            `redis://USER:PASSWORD@HOST:PORT/DATABASE`, or `redis+sentinel://HOST:PORT,HOST:PORT/NAME`" => cause(source);
        Self::NoTls(source) => "the URL asks for TLS, which is not compiled in: add the `redis` crate with its feature \
            `tokio-rustls-comp` or `tokio-native-tls-comp` to your dependencies, as the documentation of `RedisStore` \
            shows" => cause(source);
        Self::Unreachable(address, source) => "the Redis server at {address} cannot be reached: it must be running, and the \
            network must let this machine connect" => cause(source);
        Self::Unauthenticated(address, source) => "the Redis server at {address} does not accept the user or password of \
            the URL: correct them" => cause(source);
        Self::Failed(address, source) => "the Redis server at {address} cannot do what the store needs: resolve the error \
            that it reports" => cause(source);
        Self::TooOld { version } => "the server is Redis {version}: use Redis 7.0 or later, or Valkey";
        Self::Replica => "the Redis server is a replica, which cannot record anything: use the URL of its primary";
        Self::Evicts { policy } => "the Redis server's `maxmemory-policy` is `{policy}`, so it may forget an event \
            before its time, which is then handled again: set it to `noeviction`, or use a server of its own";
        Self::Sentinel { at, name } => "the server at {at} is a sentinel, which only knows where the primary is: write \
            `redis+sentinel://{at}/{name}`, with the addresses of all sentinels";
        Self::NoneOf(each) => "none of the Redis servers that the URL names leads to a cluster: {}", reasons(each);
        Self::NoSentinel(at, source) => "the URL names {at}, and no sentinel is there: give the addresses of sentinels, whose \
            port is 26379 unless it was changed" => cause(source);
        Self::NoCluster(at) => "the URL names several servers, and the one at {at} is not part of a cluster: name the \
            primary only, or its sentinels as `redis+sentinel://HOST:26379,HOST:26379/NAME`";
        Self::Uncovered { at, slots: 0 } => "the Redis server at {at} belongs to a cluster whose slots it does not know: \
            let it join the cluster, or give it slots";
        Self::Uncovered { at, slots } => "the Redis server at {at} knows who has {slots} of the 16384 slots of its cluster: \
            give the others to a server, because events whose keys are there cannot be recorded";
    }
}

/// Each with its cause, which the list has no source for.
fn reasons(each: &[ServerError]) -> String {
    let each: Vec<_> = each.iter().map(|it| Chain(it).to_string()).collect();
    each.join("; ")
}

/// The error, or its cause where its text is the same and would be shown twice.
fn cause(error: &RedisError) -> &(dyn Error + 'static) {
    match error.source() {
        Some(cause) if cause.to_string() == error.to_string() => cause,
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_cause_is_shown_once() {
        let refused = RedisError::from(io::Error::other("Connection refused"));
        let error = OpenError::from(ServerError::from_redis(
            "localhost:6379".to_owned(),
            refused,
        ));
        let mut texts = Vec::new();
        let mut next: Option<&dyn Error> = Some(&error);
        while let Some(error) = next {
            texts.push(error.to_string());
            next = error.source();
        }
        assert_eq!(texts.len(), 2, "{texts:?}");
        assert_eq!(texts[1], "Connection refused");

        let refused = RedisError::from(io::Error::other("Connection refused"));
        let text = Chain(&store_error(refused)).to_string();
        assert_eq!(text.matches("Connection refused").count(), 1, "{text}");
    }
}
