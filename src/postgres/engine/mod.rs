//! The user's pool of connections to PostgreSQL, and a schema on it that is versioned.

mod check;
mod connections;
mod error;
mod migrate;
mod name;
mod tables;
mod value;

pub(crate) use self::check::Table;
pub(crate) use self::connections::Busy;
pub(crate) use self::error::{code, corrupt, is_locked, is_without_answer};
pub(crate) use self::migrate::{Migration, Migrations};
pub(crate) use self::name::Schema;
pub(crate) use self::tables::Tables;
pub(crate) use self::value::{Uuid, Value, column, micros};
