//! The error of opening, connecting or migrating any store.

use std::error::Error;
use std::fmt;

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
    /// The server did not answer within its time limit.
    TimedOut,
    /// The user lacks a permission, or the password is wrong.
    Denied,
    /// The server or the file system works, but cannot keep what a store promises: it is too old, a
    /// replica or a sentinel, evicts keys, or has no locks.
    Unsuitable,
    /// The file or schema belongs to another program.
    Foreign,
    /// A later release has changed the schema, and this one cannot use it.
    NewerSchema,
    /// The content is damaged, or is not a database.
    Corrupt,
}

impl OpenError {
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
        // The error itself is already shown.
        self.error.source()
    }
}
