//! The servers of the shared stores, started like in the tests.

#[cfg(feature = "postgres")]
#[path = "../../tests/support/postgres.rs"]
pub(crate) mod postgres;
#[cfg(feature = "redis")]
#[path = "../../tests/support/redis.rs"]
pub(crate) mod redis;
