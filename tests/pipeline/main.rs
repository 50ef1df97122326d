//! The layers and the router. These tests need Rust alone.

mod answers;
mod batches;
#[cfg(feature = "moka")]
mod bodies;
#[cfg(feature = "moka")]
mod builder;
mod cancellation;
mod compile_errors;
mod decision;
mod explained;
mod extractor;
#[cfg(feature = "moka")]
mod kept;
mod names;
mod payloads;
mod router;
mod runs;
mod senders;
mod serving;
mod signatures;
mod sockets;
mod telemetry;
mod tower_http;
mod tracing;
mod verifiers;
