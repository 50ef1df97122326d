//! The user's pool of connections to PostgreSQL, and a schema on it that is versioned.

mod error;
mod migrate;
mod pool;
mod tables;
mod value;

pub(crate) use self::error::{code, corrupt, error};
pub(crate) use self::migrate::{Schema, migrate};
pub(crate) use self::pool::{Busy, Pool};
pub(crate) use self::tables::Tables;
pub(crate) use self::value::List;
pub(crate) use self::value::{Uuid, Value, column, micros};
