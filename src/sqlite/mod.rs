//! Keys and events in a file of SQLite: the engine that all work on the file goes through, the schema, and the store
//! and the queue on it.

mod engine;
mod keys;
mod queue;
mod schema;

pub use self::keys::SqliteStore;
pub use self::queue::SqliteQueue;
