//! The examples as processes, and other tests that need programs besides Rust.
//!
//! `bash tests/run` builds the examples.

#[cfg(feature = "receiver")]
mod alertmanager;
#[cfg(feature = "receiver")]
#[path = "../../benches/attack/attackers.rs"]
mod attackers;
#[cfg(all(feature = "admin", feature = "moka"))]
mod availability;
#[cfg(feature = "receiver")]
mod batches;
mod closing;
#[cfg(feature = "receiver")]
mod commands;
// Nothing calls the programs of `benches/compile/run`: they compile.
#[allow(dead_code)]
#[path = "../../benches/compile/axum.rs"]
mod compile_axum;
#[cfg(all(feature = "postgres", feature = "signal", feature = "sqlite"))]
#[allow(dead_code)]
#[path = "../../benches/compile/senders.rs"]
mod compile_senders;
#[cfg(feature = "receiver")]
mod connections;
#[cfg(feature = "receiver")]
mod console;
#[cfg(feature = "receiver")]
mod databases;
#[cfg(feature = "receiver")]
mod doors;
#[cfg(feature = "receiver")]
mod forwards;
#[cfg(feature = "receiver")]
mod hosts;
#[cfg(feature = "receiver")]
mod image;
#[cfg(feature = "receiver")]
mod inbox;
#[cfg(feature = "receiver")]
mod learned;
#[cfg(feature = "receiver")]
mod metrics;
#[cfg(feature = "receiver")]
mod notices;
#[cfg(feature = "receiver")]
mod openssl;
#[cfg(feature = "receiver")]
mod operations;
#[cfg(feature = "sqlite")]
mod otlp;
#[cfg(feature = "receiver")]
mod outages;
#[cfg(feature = "receiver")]
mod pages;
#[cfg(feature = "receiver")]
mod planted;
#[cfg(all(feature = "metrics", feature = "receiver"))]
mod production;
#[cfg(feature = "receiver")]
mod program;
#[cfg(feature = "receiver")]
mod prometheus;
#[cfg(feature = "receiver")]
mod receivers;
#[cfg(feature = "receiver")]
mod restarts;
#[cfg(feature = "receiver")]
mod routes;
#[cfg(all(feature = "axum", feature = "moka", feature = "sandbox"))]
mod sandbox_page;
#[cfg(feature = "receiver")]
mod senders;
#[cfg(feature = "receiver")]
mod spool;
#[cfg(feature = "receiver")]
mod texts;
#[cfg(feature = "receiver")]
mod tutorial;
#[cfg(feature = "receiver")]
mod verified;
