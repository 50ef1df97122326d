//! Receive webhooks in your own axum or hyper application: verified, deduplicated and typed. The default sender is a
//! customer chat platform; to receive from [another](docs::senders), such as GitHub, Stripe, Slack or Shopify, add one line.
//!
//! - **Verified.** Only deliveries whose signature was verified over the raw bytes reach a handler.
//! - **Deduplicated.** Deliveries of one event are recognised by their key, in a [store](docs::stores) of
//!   your choice. An event is handled by one run at a time, and not again after its success was recorded.
//! - **Nothing is lost.** A 2xx response means that the event was handled, was given up, has no handler, or is
//!   not kept. A run that failed, panicked, took too long or died with its process is repeated on the platform's next retry. With an
//!   [inbox](docs::inbox), it means that the event is stored. A worker handles it later, in the order of its chat, and
//!   retries it after a failure; the platform does not notice.
//! - **Typed.** A handler is a struct or a closure that receives its event decoded, and no event is
//!   refused for a detail of its payload.
//! - **Bounded.** Bodies, time, memory and runs have limits, and a setting that would break a promise is
//!   refused at the start.
//!
//! The [guarantees](docs::guarantees) state this exactly, with its limits. All [pages](docs):
//!
//! - Tutorial: [getting started](docs::getting_started); common [questions](docs::questions)
//! - Guides: [inbox](docs::inbox), [stores and queues](docs::stores), [other senders](docs::senders),
//!   [recipes](docs::recipes), [testing](docs::testing)
//! - Operations: [running in production](docs::production), [scaling](docs::scaling), [troubleshooting and
//!   alerts](docs::troubleshooting), [console](https://docs.rs/tower-webhook-console)
//! - Reference: [responses](docs::responses), [guarantees and limits](docs::guarantees),
//!   [metrics](docs::metrics), [platform](docs::platform), [threat model](docs::threat_model),
//!   [glossary](docs::glossary)
//!
//! "Spec" in this documentation is the platform's own description of its webhooks and Admin API, by
//! section and rule: see [platform](docs::platform).
//!
//! # Example
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use axum::Router;
//! use tokio::net::TcpListener;
//! use tower_webhook::event::{ChatRated, MessageCreated};
//! use tower_webhook::{Delivery, EventRouter, Handler, HandlerResult, Secret, Webhooks};
//!
//! struct Crm;
//!
//! impl Handler<ChatRated> for Crm {
//!     async fn handle(&self, delivery: Delivery<ChatRated>) -> HandlerResult {
//!         println!("rated: {:?}", delivery.payload.rating);
//!         Ok(())
//!     }
//! }
//!
//! # #[cfg(not(feature = "signal"))]
//! # fn main() {}
//! # #[cfg(feature = "signal")]
//! #[tokio::main]
//! async fn main() -> anyhow::Result<()> {
//!     tracing_subscriber::fmt::init(); // logs why a delivery was refused or a handler failed
//!     let events = EventRouter::new()
//!         .on::<ChatRated>(Crm)
//!         .on::<MessageCreated>(async |message: Delivery<MessageCreated>| {
//!             println!("{:?}", message.payload.text);
//!             Ok(()) // handled; after an error, the platform retries
//!         });
//!     let secret = Secret::from_env("WEBHOOK_SECRET")?;
//!     let (webhooks, running) = Webhooks::new(secret).start(events)?; // keys are kept in memory
//!
//!     let app = Router::new().route_service("/webhooks", webhooks);
//!     let listener = TcpListener::bind("127.0.0.1:3000").await?;
//!     println!("listening on http://{}/webhooks", listener.local_addr()?);
//!     let server = |stop| axum::serve(listener, app).with_graceful_shutdown(stop);
//!     let limit = Duration::from_secs(30); // for what is in progress at SIGTERM or Ctrl-C
//!     running.serve(tower_webhook::shutdown(), limit, server).await?;
//!     Ok(())
//! }
//! ```
//!
//! It needs this crate's feature `signal`, and the crates `axum`, `anyhow`, `tracing-subscriber` and `tokio` with
//! its feature `full`. Start it with the secret that is set in the partner portal. Use that for nothing else, and make
//! it of 20 random bytes in hex, as `openssl rand -hex 20` does:
//!
//! ```sh
//! WEBHOOK_SECRET=my-secret cargo run
//! ```
//!
//! [Secrets](docs::production#secrets) says how to choose one, and [testing](docs::testing#by-hand) how to send an
//! event by hand.
//!
//! In the repository, `cargo run -p tower-webhook-receiver -- --demo` starts a receiver that needs no code, and prints the
//! command that sends it signed events.
//!
//! # How a delivery is processed
//!
//! ```text
//! Request<B>
//!    │  SignatureLayer     method, size, body, signature; kind and key
//!    ▼
//! Request<Verified>        the proof is the body's type
//!    │  IdempotencyLayer   claim the key: fresh, in flight or done
//!    ▼
//! RawDelivery              with the number of the attempt
//!    │  EventRouter        kind -> decode -> Handler<E>
//!    ▼
//! Outcome                  completes the claim, or releases it
//!    │
//!    ▼
//! Response                 status, headers, problem document
//! ```
//!
//! [`Webhooks`] builds it, or the same with an inbox. [`WebhookLayer`] is the first two layers in one. Each piece also
//! works alone, with `tower::ServiceBuilder`; a wrong order does not compile ("expected `Verified`"). Any service of
//! `Request<Verified>` can replace the router, such as an axum `Router`: [`Verified`] is an
//! [HTTP body][body], and with the feature `axum`, [`Delivery`] is an extractor.
//!
//! [body]: https://docs.rs/http-body/1/http_body/trait.Body.html
//!
//! One table lists every [response](docs::responses).
//!
//! Handlers that write to PostgreSQL can have their effects exactly once: see `transactional` (feature
//! `postgres`).
//!
//! # Handling events later
//!
//! More than 500 failed attempts in an hour [disable a webhook](docs::platform#spec-6-rule-4), and a handler that
//! depends on other systems can fail that often. With [`Webhooks::inbox`], an [inbox](docs::inbox) takes the place of
//! [`IdempotencyLayer`] and [`EventRouter`]: it stores the event in SQLite or PostgreSQL and answers 200. A worker runs
//! the same router later, with one attempt at a time for each chat. It retries an event that fails for 7 days, and then
//! keeps it as a dead letter.
//!
//! # Rotating the secret
//!
//! [`Secrets`] is a handle to the set of secrets that are accepted now. Accept the new one beside the
//! old, change it at the sender, and remove the old one: see [`Secrets::replace`].
//!
//! # Settings
//!
//! Everything has a default that suits the platform (see [`SenderPolicy`]), and a setter on
//! [`Webhooks`]; [limits](docs::guarantees#limits) lists them:
//!
//! ```
//! # fn main() -> Result<(), tower_webhook::ConfigError> {
//! use std::time::Duration;
//! use tower_webhook::{Secret, Sender, Webhooks};
//!
//! let webhooks = Webhooks::new(Secret::new("8c1f…")?)
//!     .sender(Sender::chat_platform().branded("acme")?)
//!     .max_body(256 * 1024)
//!     .handler_timeout(Duration::from_secs(10));
//! # Ok(())
//! # }
//! ```
//!
//! # Shutdown
//!
//! A client that disconnects does not cancel the handler of its delivery, except for a `transactional`
//! handler without an [`IdempotencyLayer`] around it. Servers wait neither for such detached runs nor for the worker
//! of an inbox: [`Running::serve`] stops the server and waits for both, in the order that is safe.
//!
//! # Logs
//!
//! Logs are written through [tracing](https://docs.rs/tracing): one span `delivery` for each delivery with its kind,
//! chat, key, attempt, secret (by label or position), outcome and duration, and one line for each refusal or failure
//! with its reason, at `WARN` or `ERROR`. A panic's reason is its message and its place in the code, which a hook notes
//! that calls the hook before it. A kind without a handler is one line in a minute, at `INFO`. With an inbox, each
//! attempt has a separate span `attempt`. Refusals that anybody can cause, before verification, have at most one line
//! per second and reason; the next line's field `left_out` counts those in between. Of text that the sender chose, at
//! most 256 characters are logged.
//!
//! The span is at `INFO`, and shows to which delivery a line belongs: a filter should let it pass, as
//! `RUST_LOG=warn,tower_webhook=info` does. A success is recorded only by the span, and by lines at
//! `DEBUG`; to log the span's end, let the subscriber write it:
//!
//! ```
//! use tracing_subscriber::fmt::format::FmtSpan;
//!
//! tracing_subscriber::fmt().with_span_events(FmtSpan::CLOSE).init();
//! ```
//!
//! If a subscriber enables `TRACE` for the target `tower_webhook::opentelemetry`, the spans also have the attributes
//! that OpenTelemetry defines for messages: `messaging.system` (`webhook`), `messaging.operation.name` (`receive` or
//! `process`), `messaging.message.id` (the key), `messaging.message.conversation_id` (the chat), and `error.type` (the
//! outcome, if it is a failure). The example `otlp` exports them over OTLP, and links each attempt of an inbox to its
//! delivery.
//!
//! No secret and no payload is logged. A layer of your own around these layers can read the outcome, or the
//! refusal, in the response's extensions: see [`Decision`].
//!
//! # Telemetry
//!
//! An observer sees every delivery, attempt and call of the store. This crate has observers that warn before the
//! platform disables a webhook, notice a webhook that delivers nothing any more, and record metrics: see [`telemetry`].
//!
//! # Features
//!
//! | feature | adds | default |
//! |---|---|---|
//! | `moka` | [`MokaStore`](memory::MokaStore), the memory store | yes |
//! | `sqlite` | `sqlite::SqliteStore` and `sqlite::SqliteQueue`, in a file of SQLite (needs a C compiler); `spool` | no |
//! | `redis` | `redis::RedisStore`, on Redis 7 or later, or Valkey | no |
//! | `postgres` | `postgres::PostgresStore` and `postgres::PostgresQueue`, on PostgreSQL 14 or later, and `transactional` handlers (needs Rust 1.94) | no |
//! | `public-keys` | [`Sender`]s that sign with Ed25519 or ECDSA P-256, and `PublicKey` | no |
//! | `signal` | `shutdown`, a future that completes on SIGTERM or Ctrl-C | no |
//! | `metrics` | [`telemetry`]`::Metrics`, which records [metrics](docs::metrics) through the `metrics` facade | no |
//! | `axum` | the extractors [`Delivery<E>`](Delivery) and [`RawDelivery`], and the address of axum's `ConnectInfo` in refusals | no |
//! | `conformance` | `store::conformance`, the tests that every [`Store`](store::Store) must pass | no |
//!
//! Features only add API; none changes behaviour.
//!
//! # Beside the library
//!
//! | crate | what it is |
//! |---|---|
//! | [tower-webhook-receiver](https://docs.rs/crate/tower-webhook-receiver/latest) | a program that receives webhooks, for those who write no Rust |
//! | [tower-webhook-console](https://docs.rs/tower-webhook-console) | pages for operators, as an axum `Router` |
//! | [tower-webhook-sandbox](https://docs.rs/tower-webhook-sandbox) | the chat platform, simulated, for your tests and in your browser |
//! | [tower-webhook-admin](https://docs.rs/tower-webhook-admin) | a client of the platform's GraphQL Admin API |

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(test),
    warn(
        // A panic or a line on the terminal is the application's choice.
        clippy::expect_used,
        clippy::unwrap_used,
        clippy::print_stderr,
        clippy::print_stdout,
        // `Instant - Duration` panics near the start of the clock.
        clippy::unchecked_time_subtraction,
        // Leases are released on drop.
        clippy::mem_forget,
        // A large future is copied whenever it is moved.
        clippy::large_futures,
        clippy::unused_async,
        // Code in documentation is marked as such, and an exception has its reason.
        clippy::doc_markdown,
        clippy::allow_attributes_without_reason,
    )
)]

// Core types.
#[macro_use]
mod macros;

mod config;
mod deadline;
mod delivery;
mod error;
pub mod event;
mod handler;
mod lock;
mod outcome;
mod private;
mod route;
mod router;
mod sender;
mod task;
mod throttle;
mod verified;

// One attempt to handle an event, and the contracts of what it is claimed in.
mod execution;
pub mod store;
pub mod telemetry;

// The layers, and how they answer.
mod answer;
pub mod idempotency;
pub mod inbox;
pub mod signature;
#[cfg(feature = "postgres")]
pub mod transactional;
mod webhook;

// Stores and queues, one module per database.
pub mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sqlite")]
pub mod sqlite;

// A queue in front of a queue.
#[cfg(feature = "sqlite")]
pub mod spool;

pub mod docs;

#[cfg(feature = "axum")]
pub use self::answer::DeliveryRejection;
pub use self::answer::{Decision, ResponseBody, RouterResponseFuture};
pub use self::config::ConfigError;
pub use self::delivery::{DecodeError, Delivery, IdempotencyKey, InvalidKey, Item, RawDelivery};
pub use self::event::{Event, EventKind, SenderPolicy};
pub use self::execution::{DrainTimeout, Runs};
pub use self::handler::{Handler, HandlerError, HandlerResult};
pub use self::idempotency::IdempotencyLayer;
pub use self::outcome::Outcome;
pub use self::route::{EventType, InvalidRouteName, RouteName, UnknownType};
pub use self::router::{EventRouter, RouterFuture};
pub use self::sender::Sender;
#[cfg(feature = "public-keys")]
pub use self::signature::PublicKey;
pub use self::signature::{Secret, Secrets, SignatureLayer};
pub use self::verified::Verified;
#[cfg(feature = "signal")]
pub use self::webhook::shutdown;
pub use self::webhook::{
    Receiver, ReceiverFuture, Routes, Running, ServeError, Stop, WebhookLayer, Webhooks,
};

// The README's program needs these features.
#[cfg(all(doctest, feature = "signal", feature = "sqlite"))]
#[doc = include_str!("../README.md")]
struct Readme;
