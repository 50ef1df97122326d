//! Keys and events in a file of SQLite: the engine that all work on the file goes through, the schema, and the store
//! and the queue on it.
//!
//! # Beside other crates
//!
//! A program can link only one SQLite, and Cargo enforces it: dependencies that need different versions do not
//! resolve, with an error about ``links to the native library `sqlite3` ``. The feature `sqlite` uses rusqlite 0.39
//! to 0.41, in the version that suits your other dependencies:
//!
//! | beside | the feature `sqlite` resolves |
//! |---|---|
//! | sqlx 0.9 | yes, with all its features (with rusqlite 0.39) |
//! | sqlx 0.8 | only with `default-features = false`, and without `sqlite`, `any`, `migrate`, `json`, `uuid`, `chrono` and `time`; `macros` works |
//! | diesel 2.3 with `sqlite` | yes (with rusqlite 0.40; beside sqlx 0.9 too, with 0.39) |
//! | rusqlite 0.39, 0.40 or 0.41 | yes; both use the same version |
//! | rusqlite 0.38 and earlier | no: their SQLite, before 3.51.3, can [lose commits] where one connection writes while another one does checkpoints, as this crate does |
//! | rusqlite 0.40 or 0.41, and sqlx 0.9 with its default features | no; use rusqlite 0.39 |
//!
//! Where they do not resolve, upgrade the other crate, or use another store: the others resolve beside all of these.
//!
//! [lose commits]: https://www.sqlite.org/wal.html#walresetbug

mod engine;
mod keys;
pub(crate) mod queue;
mod schema;

pub use self::keys::SqliteStore;
pub use self::queue::SqliteQueue;
