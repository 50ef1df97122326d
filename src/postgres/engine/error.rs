//! The server's errors, each with what to do about it.

use std::error::Error as StdError;

use super::name::Schema;
use crate::error::BoxError;
use crate::store::{OpenError as Error, OpenErrorKind as ErrorKind};

/// Classifies an error by the server's code, or by sqlx's own kind where there is none:
/// <https://www.postgresql.org/docs/current/errcodes-appendix.html>.
pub(crate) fn error(error: sqlx::Error, schema: &Schema) -> Error {
    let name = schema.name();
    let (kind, advice) = match code(&error).as_deref() {
        Some("42P01" | "3F000" | "42703" | "42883") => (
            ErrorKind::Unavailable,
            format!("the schema `{name}` lacks its tables: call `PostgresStore::migrate` or `PostgresQueue::migrate` at start"),
        ),
        Some("42501") => (
            ErrorKind::Denied,
            format!(
                "the user of the pool lacks rights in the schema `{name}`: grant them, or migrate as \
                 another user"
            ),
        ),
        Some(code) if code.starts_with("28") => (
            ErrorKind::Denied,
            "the PostgreSQL server does not accept the user or password of the pool".to_owned(),
        ),
        Some("25006") => (
            ErrorKind::Unsuitable,
            "the PostgreSQL server takes no writes: connect to the primary, or set the user's \
             `default_transaction_read_only` to `off`"
                .to_owned(),
        ),
        // As where a table is replicated whose rows have no identity, which the server's own message names.
        Some("55000") => (
            ErrorKind::Unsuitable,
            format!("the PostgreSQL server does not let the tables in the schema `{name}` be changed: end what prevents it"),
        ),
        Some("57014" | "55P03" | "25P03") => (
            ErrorKind::TimedOut,
            "a time limit of the PostgreSQL server ended the statement: try again".to_owned(),
        ),
        Some(code) if matches!(code, "XX001" | "XX002") || code.starts_with("23") => (
            ErrorKind::Corrupt,
            format!("the tables in the schema `{name}` are damaged: restore them from a backup"),
        ),
        Some(_) => (
            ErrorKind::Unavailable,
            "the PostgreSQL server cannot do this now: see its log".to_owned(),
        ),
        None if is_invalid(&error) => return corrupt(error),
        None => (
            ErrorKind::Unavailable,
            "the PostgreSQL server cannot be reached: it must be running, and have a connection to \
             spare"
                .to_owned(),
        ),
    };
    Error::new(kind, Advised { advice, error })
}

pub(crate) fn corrupt(cause: impl Into<BoxError>) -> Error {
    Error::new(ErrorKind::Corrupt, cause)
}

/// Whether the answer does not have the columns or rows of the statement.
fn is_invalid(error: &sqlx::Error) -> bool {
    matches!(
        error,
        sqlx::Error::ColumnDecode { .. }
            | sqlx::Error::ColumnIndexOutOfBounds { .. }
            | sqlx::Error::ColumnNotFound(_)
            | sqlx::Error::Decode(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::RowNotFound
            | sqlx::Error::TypeNotFound { .. }
    )
}

pub(crate) fn code(error: &sqlx::Error) -> Option<String> {
    let code = error.as_database_error()?.code()?;
    Some(code.into_owned())
}

/// Whether a schema or table does not exist.
pub(super) fn is_missing(error: &sqlx::Error) -> bool {
    matches!(code(error).as_deref(), Some("42P01" | "3F000"))
}

/// Whether a lock was not free in time.
pub(crate) fn is_locked(error: &sqlx::Error) -> bool {
    code(error).as_deref() == Some("55P03")
}

/// Whether a code says that a commit may have taken effect: that of a lost connection, as a pooler reports it, of an
/// unknown completion, and of a server that crashes.
pub(crate) fn is_without_answer(code: &str) -> bool {
    code.starts_with("08") || code == "40003" || code == "57P02"
}

/// Whether the server ended a transaction whose client did nothing for too long.
pub(super) fn was_idle(error: &sqlx::Error) -> bool {
    code(error).as_deref() == Some("25P03")
}

/// Whether something cannot be created because its name is taken.
pub(super) fn has_another_owner(error: &sqlx::Error) -> bool {
    matches!(code(error).as_deref(), Some("42P07" | "42710" | "42723"))
}

/// Whether a statement had no effect only because another one changed the same row.
pub(super) fn lost_a_race(error: &sqlx::Error) -> bool {
    matches!(code(error).as_deref(), Some("40001" | "40P01"))
}

/// An error of the server's or of sqlx, and what to do about it.
#[derive(Debug)]
struct Advised {
    advice: String,
    error: sqlx::Error,
}

display!(Advised, |it| &it.advice);

impl StdError for Advised {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.error)
    }
}
