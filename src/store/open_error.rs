//! The error of opening, connecting or migrating any store.

use std::error::Error;
use std::fmt;

#[cfg(any(feature = "postgres", feature = "sqlite"))]
use super::engine_error;
use crate::error::BoxError;

/// The error of opening, connecting or migrating a store.
///
/// It displays as one sentence that says what to do, and its source is the cause. Neither contains a
/// password.
#[derive(Debug)]
pub struct OpenError {
    kind: OpenErrorKind,
    error: BoxError,
}

/// The category of an [`OpenError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenErrorKind {
    /// The URL is not valid for this kind of server.
    InvalidUrl,
    /// The URL asks for TLS, which was not compiled in.
    TlsMissing,
    /// The server cannot be reached, the file cannot be used, or either cannot work for now.
    Unavailable,
    /// The user lacks a permission, or the password is wrong.
    Denied,
    /// The server or the file system works, but cannot keep what a store promises: it is too old, a
    /// replica or part of a cluster, evicts keys, or has no locks.
    Unsuitable,
    /// The file or schema belongs to another program, or to an unreleased draft of this one.
    Foreign,
    /// A later release has changed the schema, and this one cannot use it.
    NewerSchema,
    /// The content is damaged, or is not a database.
    Corrupt,
}

impl OpenError {
    #[cfg(feature = "redis")]
    pub(crate) fn new(kind: OpenErrorKind, error: impl Into<BoxError>) -> Self {
        Self {
            kind,
            error: error.into(),
        }
    }

    /// The category of this error.
    #[must_use]
    pub fn kind(&self) -> OpenErrorKind {
        self.kind
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl Error for OpenError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()
    }
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl From<engine_error::Error> for OpenError {
    fn from(error: engine_error::Error) -> Self {
        use engine_error::ErrorKind;

        let kind = match error.kind() {
            ErrorKind::Unavailable => OpenErrorKind::Unavailable,
            #[cfg(feature = "postgres")]
            ErrorKind::TimedOut => OpenErrorKind::Unavailable,
            ErrorKind::Corrupt => OpenErrorKind::Corrupt,
            ErrorKind::Denied => OpenErrorKind::Denied,
            ErrorKind::Unsuitable => OpenErrorKind::Unsuitable,
            ErrorKind::Foreign => OpenErrorKind::Foreign,
            ErrorKind::NewerSchema => OpenErrorKind::NewerSchema,
        };
        Self {
            kind,
            error: error.into(),
        }
    }
}
