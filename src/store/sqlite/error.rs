use std::error::Error;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rusqlite::ErrorCode;

use crate::store::{StoreError, StoreErrorKind};

/// What was refused, with which file. Clones are for the callers whose work was done together.
#[derive(Clone, Debug)]
pub(super) struct Refused {
    path: Arc<Path>,
    reason: Arc<Reason>,
}

#[derive(Debug)]
pub(super) enum Reason {
    /// SQLite says no.
    Sqlite(rusqlite::Error),
    /// The file cannot be created.
    Create(io::Error),
    /// This user may only read it.
    ReadOnly,
    /// It is another program's database.
    Foreign,
    /// A later release has changed the schema.
    Newer { version: i64 },
    /// There can be no write-ahead log here.
    NoWal { journal: String },
    /// A thread cannot be started.
    Thread(io::Error),
    /// The thread that writes is no more.
    Ended,
}

impl Refused {
    pub(super) fn new(path: &Arc<Path>, reason: impl Into<Reason>) -> Self {
        Self {
            path: Arc::clone(path),
            reason: Arc::new(reason.into()),
        }
    }

    fn kind(&self) -> StoreErrorKind {
        match &*self.reason {
            Reason::Sqlite(error) if is_damage(error) => StoreErrorKind::Corrupt,
            _ => StoreErrorKind::Unavailable,
        }
    }
}

/// Whether it is about what the file holds, of which other parts may be sound.
pub(super) fn is_damage(error: &rusqlite::Error) -> bool {
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

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the SQLite file `{}` ", self.path.display())?;
        match &*self.reason {
            Reason::Sqlite(error) => f.write_str(explain(error)),
            Reason::Create(_) => f.write_str(
                "cannot be created: its directory must exist, and this user must be allowed to write \
                 there",
            ),
            Reason::ReadOnly => f.write_str(READ_ONLY),
            Reason::Foreign => f.write_str(
                "is the database of another program, and was left as it is: choose another path",
            ),
            Reason::Newer { version } => write!(
                f,
                "has version {version} of the schema, which a later release of this program made: \
                 use that release, or another path"
            ),
            Reason::NoWal { journal } => write!(
                f,
                "can have no write-ahead log, only the journal `{journal}`: it must be on a disk of \
                 this machine, not on a network's"
            ),
            Reason::Thread(_) => f.write_str("cannot be used without a thread of its own"),
            Reason::Ended => f.write_str("is no longer written, because its thread has ended"),
        }
    }
}

const READ_ONLY: &str =
    "may not be written: this user must be allowed to write it and its directory";

fn explain(error: &rusqlite::Error) -> &'static str {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => {
            "has no room on its disk: work goes on by itself as soon as there is"
        }
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => READ_ONLY,
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            "is locked by another process, and was not let go in time"
        }
        Some(ErrorCode::CannotOpen) => {
            "cannot be opened: it must be a file that this user may read and write, in a directory \
             where this user may create files"
        }
        Some(ErrorCode::SystemIoFailure) => "cannot be read or written",
        Some(ErrorCode::NotADatabase) => "is not a SQLite database: choose another path",
        Some(ErrorCode::DatabaseCorrupt) => "is damaged",
        _ => "does not do what it was asked to",
    }
}

impl Error for Refused {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
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

impl From<Refused> for StoreError {
    fn from(refused: Refused) -> Self {
        Self::new(refused.kind(), refused)
    }
}
