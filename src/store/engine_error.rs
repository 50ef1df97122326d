//! The error that all engines share.

use std::error::Error as StdError;
use std::fmt;

use crate::error::BoxError;

/// An engine's failure. It displays as the error that it was made of, which says what to do.
#[derive(Debug)]
pub(crate) struct Error {
    kind: ErrorKind,
    error: BoxError,
}

/// The category of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    /// It cannot be reached, or does not work for now.
    Unavailable,
    /// It did not answer in time.
    #[cfg(feature = "postgres")]
    TimedOut,
    /// It holds or returned something invalid.
    Corrupt,
    /// This user lacks a right.
    Denied,
    /// It works, but cannot keep what a store needs.
    Unsuitable,
    /// It belongs to another program, or to a draft of this one.
    Foreign,
    /// A later release changed its schema.
    NewerSchema,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, error: impl Into<BoxError>) -> Self {
        Self {
            kind,
            error: error.into(),
        }
    }

    pub(crate) fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.error.source()
    }
}
