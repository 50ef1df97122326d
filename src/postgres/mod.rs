//! Keys and events in PostgreSQL: the user's pool of connections, the schema, and the store and the queue on it.

pub(crate) mod keys;
pub(crate) mod lease;
mod pool;
mod queue;
mod schema;

pub use self::keys::PostgresStore;
pub use self::queue::PostgresQueue;

#[cfg(test)]
mod tests;
