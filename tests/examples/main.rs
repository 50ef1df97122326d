//! The examples as processes, and other tests that need programs besides Rust.
//!
//! `bash tests/run` builds the examples.

#[cfg(all(
    feature = "axum",
    feature = "moka",
    feature = "postgres",
    feature = "redis",
    feature = "sandbox",
    feature = "sqlite"
))]
#[path = "../../benches/attack/attackers.rs"]
mod attackers;
#[cfg(all(feature = "admin", feature = "moka"))]
mod availability;
mod built_without;
mod closing;
#[cfg(all(
    feature = "axum",
    feature = "moka",
    feature = "postgres",
    feature = "redis",
    feature = "sandbox",
    feature = "sqlite"
))]
mod commands;
#[cfg(all(
    feature = "axum",
    feature = "moka",
    feature = "postgres",
    feature = "redis",
    feature = "sandbox",
    feature = "sqlite"
))]
mod connections;
#[cfg(all(
    feature = "axum",
    feature = "console",
    feature = "metrics",
    feature = "moka",
    feature = "postgres",
    feature = "redis",
    feature = "sandbox",
    feature = "sqlite"
))]
mod console;
#[cfg(all(
    feature = "axum",
    feature = "moka",
    feature = "postgres",
    feature = "redis",
    feature = "sandbox",
    feature = "sqlite"
))]
mod forwards;
#[cfg(all(
    feature = "axum",
    feature = "moka",
    feature = "postgres",
    feature = "redis",
    feature = "sandbox",
    feature = "sqlite"
))]
mod inbox;
#[cfg(all(
    feature = "axum",
    feature = "metrics",
    feature = "moka",
    feature = "postgres",
    feature = "redis",
    feature = "sandbox",
    feature = "sqlite"
))]
mod metrics;
#[cfg(all(
    feature = "axum",
    feature = "moka",
    feature = "postgres",
    feature = "redis",
    feature = "sandbox",
    feature = "sqlite"
))]
mod openssl;
#[cfg(all(
    feature = "axum",
    feature = "metrics",
    feature = "moka",
    feature = "postgres",
    feature = "redis",
    feature = "sandbox",
    feature = "sqlite"
))]
mod operations;
#[cfg(feature = "sqlite")]
mod otlp;
#[cfg(all(
    feature = "axum",
    feature = "metrics",
    feature = "moka",
    feature = "postgres",
    feature = "redis",
    feature = "sandbox",
    feature = "sqlite"
))]
mod outages;
#[cfg(all(
    feature = "axum",
    feature = "console",
    feature = "metrics",
    feature = "moka",
    feature = "postgres",
    feature = "redis",
    feature = "sandbox",
    feature = "sqlite"
))]
mod pages;
#[cfg(all(
    feature = "axum",
    feature = "console",
    feature = "metrics",
    feature = "moka",
    feature = "postgres",
    feature = "redis",
    feature = "sandbox",
    feature = "sqlite"
))]
mod program;
#[cfg(all(
    feature = "axum",
    feature = "metrics",
    feature = "moka",
    feature = "postgres",
    feature = "redis",
    feature = "sandbox",
    feature = "sqlite"
))]
mod prometheus;
#[cfg(all(
    feature = "axum",
    feature = "moka",
    feature = "postgres",
    feature = "redis",
    feature = "sandbox",
    feature = "sqlite"
))]
mod receivers;
#[cfg(all(
    feature = "axum",
    feature = "console",
    feature = "metrics",
    feature = "moka",
    feature = "postgres",
    feature = "redis",
    feature = "sandbox",
    feature = "sqlite"
))]
mod routes;
#[cfg(all(feature = "axum", feature = "moka", feature = "sandbox"))]
mod sandbox_page;
#[cfg(all(
    feature = "axum",
    feature = "console",
    feature = "metrics",
    feature = "moka",
    feature = "postgres",
    feature = "redis",
    feature = "sandbox",
    feature = "sqlite"
))]
mod senders;
