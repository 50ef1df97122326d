//! Keys and events in PostgreSQL: the user's pool of connections, the schema, and the store and the queue on it.

mod engine;
pub(crate) mod keys;
pub(crate) mod lease;
mod queue;
mod schema;

pub use self::keys::PostgresStore;
pub use self::queue::PostgresQueue;

#[cfg(test)]
mod tests;
