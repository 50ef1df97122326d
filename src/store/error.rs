//! The errors of all stores.

use std::error::Error;

#[cfg(any(feature = "postgres", feature = "sqlite"))]
use super::{OpenError, OpenErrorKind};
use crate::error::BoxError;

/// The error of an operation of a store.
#[derive(Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    source: Option<BoxError>,
}

/// The category of a [`StoreError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The store cannot be reached, or cannot work for now: no connection, a full disk.
    Unavailable,
    /// The store did not answer within the time limit.
    TimedOut,
    /// The store returned an invalid record.
    Corrupt,
    /// What was asked for is impossible, so the store was not asked.
    Invalid,
}

impl StoreError {
    /// Creates an error of the given kind with its cause.
    ///
    /// ```
    /// use std::io;
    /// use tower_webhook::store::{StoreError, StoreErrorKind};
    ///
    /// let cause = io::Error::from(io::ErrorKind::ConnectionRefused);
    /// let error = StoreError::new(StoreErrorKind::Unavailable, cause);
    /// assert_eq!(error.to_string(), "the database is unavailable");
    /// ```
    pub fn new(kind: StoreErrorKind, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            kind,
            source: Some(source.into()),
        }
    }

    pub(crate) fn timed_out() -> Self {
        Self {
            kind: StoreErrorKind::TimedOut,
            source: None,
        }
    }

    /// The category of this error.
    #[must_use]
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }
}

display!(StoreError, |it| match it.kind {
    StoreErrorKind::Unavailable => "the database is unavailable",
    StoreErrorKind::TimedOut => "the database did not answer in time",
    StoreErrorKind::Corrupt => "the database returned an invalid record",
    StoreErrorKind::Invalid => "the call is not possible",
});

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl From<OpenError> for StoreError {
    fn from(error: OpenError) -> Self {
        let kind = match error.kind() {
            OpenErrorKind::TimedOut => StoreErrorKind::TimedOut,
            OpenErrorKind::Corrupt => StoreErrorKind::Corrupt,
            _ => StoreErrorKind::Unavailable,
        };
        Self::new(kind, error)
    }
}

/// The error of settling or renewing a lease.
#[derive(Debug)]
#[non_exhaustive]
pub enum SettleError {
    /// The lease expired; another run may have claimed the key. Nothing was changed.
    LeaseExpired,
    /// The store failed; the lease may still be valid.
    Store(StoreError),
}

messages! {
    SettleError {
        Self::LeaseExpired => "the lease expired; another run may have claimed the key";
        Self::Store(error) => "{error}";
    }
}

impl Error for SettleError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::LeaseExpired => None,
            // Its text is already shown, so the chain goes on with its cause.
            Self::Store(error) => error.source(),
        }
    }
}

impl From<StoreError> for SettleError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}
