//! The servers of the shared stores, as the tests start them.

#[cfg(feature = "postgres")]
#[path = "../../tests/servers/postgres.rs"]
pub(crate) mod postgres;
#[cfg(feature = "redis")]
#[path = "../../tests/servers/redis.rs"]
pub(crate) mod redis;
