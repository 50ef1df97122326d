//! Every store: the conformance suite, and the behaviour of its own.

#[cfg(all(feature = "moka", feature = "conformance"))]
mod moka;
#[cfg(all(feature = "conformance", feature = "postgres"))]
mod postgres;
#[cfg(all(feature = "moka", feature = "postgres"))]
mod postgres_load;
#[cfg(all(feature = "conformance", feature = "moka", feature = "redis"))]
mod redis;
#[cfg(all(feature = "moka", feature = "redis"))]
mod redis_receivers;
#[cfg(all(feature = "conformance", feature = "moka", feature = "redis"))]
mod redis_sets;
#[cfg(all(feature = "conformance", feature = "moka", feature = "redis"))]
mod rights;
#[cfg(all(feature = "conformance", feature = "sqlite"))]
mod sqlite;
