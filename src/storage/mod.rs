//! Engines that know no table: SQLite's thread and file, and Postgres' pool and migrations.
//!
//! Whoever owns tables hands in the statements that create them, and the work that each commit takes along.

mod error;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;

pub(crate) use self::error::{Error, ErrorKind};
