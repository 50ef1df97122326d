//! Errors of the file, each with its path and what to do.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rusqlite::ErrorCode;

use crate::store::{OpenError as Error, OpenErrorKind as ErrorKind};

/// A failure, with the file that it is about. Clones are for callers that share a transaction.
#[derive(Clone, Debug)]
pub(super) struct FileError {
    path: Arc<Path>,
    reason: Arc<Reason>,
}

#[derive(Debug)]
pub(super) enum Reason {
    /// SQLite refuses or fails.
    Sqlite(rusqlite::Error),
    /// The file cannot be created.
    Create(io::Error),
    /// This user may only read it.
    ReadOnly,
    /// It is another program's database.
    Foreign,
    /// It is used for something else. The text says for what.
    Purpose(&'static str),
    /// A later release has changed the schema, and this one is lower than the lowest that may use it, if that is known.
    NewerSchema {
        version: usize,
        lowest: Option<String>,
    },
    /// There can be no write-ahead log here.
    NoWal { journal: String },
    /// A thread cannot be started.
    Thread(io::Error),
    /// The path leads to another file by now, or to none.
    Replaced,
    /// So it is with the log beside it, or the log's index.
    LogReplaced {
        /// Whether a restart finds everything that was acknowledged.
        saved: bool,
    },
    /// It is smaller than SQLite has made it, or its log is.
    Truncated,
    /// The thread that writes has ended.
    Ended,
}

impl FileError {
    pub(super) fn new(path: &Arc<Path>, reason: impl Into<Reason>) -> Self {
        Self {
            path: Arc::clone(path),
            reason: Arc::new(reason.into()),
        }
    }

    /// Whether somebody has deleted, replaced or truncated a file that is open.
    pub(super) fn is_change(&self) -> bool {
        matches!(
            *self.reason,
            Reason::Replaced | Reason::LogReplaced { .. } | Reason::Truncated
        )
    }

    fn kind(&self) -> ErrorKind {
        match &*self.reason {
            Reason::Sqlite(error) if is_damage(error) => ErrorKind::Corrupt,
            Reason::Sqlite(error) => match error.sqlite_error_code() {
                Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => ErrorKind::Denied,
                _ => ErrorKind::Unavailable,
            },
            Reason::ReadOnly => ErrorKind::Denied,
            Reason::Create(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                ErrorKind::Denied
            }
            Reason::Foreign | Reason::Purpose(_) => ErrorKind::Foreign,
            Reason::NewerSchema { .. } => ErrorKind::NewerSchema,
            Reason::NoWal { .. } => ErrorKind::Unsuitable,
            Reason::Truncated => ErrorKind::Corrupt,
            Reason::Create(_)
            | Reason::Thread(_)
            | Reason::Replaced
            | Reason::LogReplaced { .. }
            | Reason::Ended => ErrorKind::Unavailable,
        }
    }
}

/// Whether the error is about the content of the file, of which other parts may be sound.
pub(crate) fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::Error;

    match error {
        Error::FromSqlConversionFailure(..)
        | Error::IntegralValueOutOfRange(..)
        | Error::InvalidColumnType(..)
        | Error::QueryReturnedNoRows => true,
        error => matches!(
            error.sqlite_error_code(),
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
        ),
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the SQLite file `{}` {}",
            self.path.display(),
            self.reason
        )
    }
}

messages! {
    Reason {
        Self::Sqlite(error) => "{}", explain(error);
        Self::Create(_) => "cannot be created: its directory must exist, and this user must be allowed to write there";
        Self::ReadOnly => "{READ_ONLY}";
        Self::Foreign => "is the database of another program, and was left as it is: choose another path";
        Self::Purpose(refusal) => "{refusal}";
        Self::NewerSchema { version, lowest } => "has version {version} of the schema, which only release {} of this \
            library or a later one may use, and this is release {}: use a later release, or another path",
            lowest.as_deref().unwrap_or("(unknown)"), env!("CARGO_PKG_VERSION");
        Self::NoWal { journal } => "can have no write-ahead log, only the journal `{journal}`: put it on a disk of \
            this machine, not on a network's";
        Self::Thread(_) => "needs a thread of its own, which cannot be started: raise the limit of threads";
        Self::Replaced => "was deleted or replaced while this process had it open, and nothing is written any more: \
            put it back, or restart this process to use the file that is there now";
        Self::LogReplaced { saved: true } => "has lost its `-wal` or `-shm`, which was deleted or replaced while this \
            process had it open, and nothing is written any more: nothing is lost; stop all processes that use the \
            file, and start them again";
        Self::LogReplaced { saved: false } => "has lost its `-wal` or `-shm`, which was deleted or replaced while this \
            process had it open, and nothing is written any more: what only that log holds is lost when this process \
            ends; put it back if it was moved, or stop all processes that use the file, and start them again";
        Self::Truncated => "was truncated while this process had it open, or its `-wal` was, and nothing is written \
            any more: stop all processes that use it, move the three files away, and restore a copy or start with an \
            empty file";
        Self::Ended => "is no longer written, because its thread has ended: restart this process";
    }
}

const READ_ONLY: &str =
    "may not be written: this user must be allowed to write it and its directory";

fn explain(error: &rusqlite::Error) -> &'static str {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => {
            "has no room on its disk: make room there, and work resumes without a restart"
        }
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => READ_ONLY,
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            "is locked by another process, which did not release it in time"
        }
        Some(ErrorCode::CannotOpen) => {
            "cannot be opened: it must be a file that this user may read and write, in a directory \
             where this user may create files"
        }
        Some(ErrorCode::SystemIoFailure) => {
            "cannot be read or written: check its disk, and whether the size of files is limited"
        }
        Some(ErrorCode::NotADatabase) => "is not a SQLite database: choose another path",
        Some(ErrorCode::DatabaseCorrupt) => {
            "is damaged: stop this process, move the file and its log away, and restore a copy or start with an empty \
             file"
        }
        _ => "cannot be used as intended",
    }
}

impl StdError for FileError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &*self.reason {
            Reason::Sqlite(error) => Some(error),
            Reason::Create(error) | Reason::Thread(error) => Some(error),
            _ => None,
        }
    }
}

impl From<rusqlite::Error> for Reason {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<FileError> for Error {
    fn from(error: FileError) -> Self {
        Self::new(error.kind(), error)
    }
}
