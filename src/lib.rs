//! Receive a customer chat platform's webhooks inside your own axum or hyper application: proven
//! authentic, handled once, and typed.
//!
//! - **Authentic.** Nothing reaches a handler whose signature was not verified over the raw bytes.
//! - **Once.** Deliveries of one event are recognised by their key, in a store of your choice. An
//!   event is handled by one run at a time, and not again after its success was recorded.
//! - **Nothing is lost.** 2xx is answered only after a handler succeeded or gave the event up, or
//!   when none wants its kind. A run that failed, panicked, took too long or died with its process
//!   is repeated when the sender retries.
//! - **Typed.** A handler is a struct or a closure that gets its event decoded, and no event is
//!   refused for a detail of its payload.
//! - **Bounded.** Bodies, time, memory and runs have limits, and settings that would break a promise
//!   are refused when they are made.
//!
//! The [`guarantees`] say this exactly, and what it does not cover.
//!
//! "Spec" in this documentation is the platform's own description of its webhooks and Admin API, by
//! section and rule.
//!
//! # A receiver
//!
//! ```no_run
//! use axum::Router;
//! use tokio::net::TcpListener;
//! use tower::Layer;
//! use tower_webhook::event::{ChatRated, MessageCreated};
//! use tower_webhook::{Delivery, EventRouter, Handler, HandlerResult};
//! use tower_webhook::{Secret, WebhookLayer};
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
//! #[tokio::main]
//! async fn main() -> anyhow::Result<()> {
//!     tracing_subscriber::fmt::init(); // says why an event failed
//!     let events = EventRouter::new()
//!         .on::<ChatRated>(Crm)
//!         .on::<MessageCreated>(async |message: Delivery<MessageCreated>| {
//!             println!("{:?}", message.payload.text);
//!             Ok(()) // 200, and never again; any error means "try again"
//!         });
//!     let secret = Secret::from_env("WEBHOOK_SECRET")?;
//!     let webhooks = WebhookLayer::new(secret).layer(events);
//!
//!     let app = Router::new().route_service("/webhooks", webhooks);
//!     axum::serve(TcpListener::bind("127.0.0.1:3000").await?, app).await?;
//!     Ok(())
//! }
//! ```
//!
//! It needs the crates `axum`, `tower`, `anyhow`, `tracing-subscriber` and `tokio` with its feature
//! `full`. Start it with the secret that is set in the partner portal:
//!
//! ```sh
//! WEBHOOK_SECRET=my-secret cargo run
//! ```
//!
//! Then send it an event by hand from a second terminal (Spec 6, rule 5); send it twice, and the second
//! is answered with `Idempotent-Replayed: true`:
//!
//! ```sh
//! BODY='{"id":"chat-1","rating":1}'
//! SIGNATURE=$(printf %s "$BODY" |
//!   openssl dgst -sha256 -hmac my-secret | sed 's/^.* //')
//! curl -i http://127.0.0.1:3000/webhooks -d "$BODY" \
//!   -H 'Content-Type: application/json' -H 'X-Service-Event: chat-rated' \
//!   -H 'Idempotency-Key: event-1' -H "X-Service-Hmac-Sha256: $SIGNATURE"
//! ```
//!
//! In the repository, `cargo run --example receiver` is a receiver that needs no code of yours, and
//! `cargo run --example send` sends it signed events of every kind.
//!
//! # The way of a delivery
//!
//! ```text
//! Request<B>
//!    │  SignatureLayer     method, size, body, signature; kind and key
//!    ▼
//! Request<Verified>        the proof is the body's type
//!    │  IdempotencyLayer   claim the key: fresh, in flight or done
//!    ▼
//! Request<Verified>        with the number of the attempt
//!    │  EventRouter        kind -> decode -> Handler<E>
//!    ▼
//! Response                 2xx completes the claim, others release it
//! ```
//!
//! [`WebhookLayer`] is the first two layers behind one builder. Each piece also works alone, with
//! `tower::ServiceBuilder`; a wrong order does not compile ("expected `Verified`"). Any service of
//! `Request<Verified>` can take the router's place, such as an axum `Router`: [`Verified`] is an
//! [HTTP body][body], and with the feature `axum`, [`Delivery`] is an extractor.
//!
//! [body]: https://docs.rs/http-body/1/http_body/trait.Body.html
//!
//! What is answered in which situation is one table: [`answers`].
//!
//! Handlers that write to PostgreSQL can have their effects exactly once: see `transactional` (feature
//! `postgres`).
//!
//! # Rotating the secret
//!
//! [`Secrets`] is a handle to the set of secrets that are accepted now. Accept the new one beside the
//! old, change the partner portal, and drop the old one: see [`Secrets::replace`].
//!
//! # Settings
//!
//! Everything has a default that suits the platform (see [`SenderPolicy`]), and a setter on
//! [`WebhookLayer`]:
//!
//! ```
//! # fn main() -> Result<(), tower_webhook::ConfigError> {
//! use std::time::Duration;
//! use tower_webhook::{HeaderNames, Secret, WebhookLayer};
//!
//! let layer = WebhookLayer::new(Secret::new("8c1f…")?)
//!     .header_names(HeaderNames::branded("acme")?)?
//!     .max_body(256 * 1024)
//!     .handler_timeout(Duration::from_secs(10))?;
//! # Ok(())
//! # }
//! ```
//!
//! # Shutdown
//!
//! A client that leaves does not cancel the handler that works on its delivery, unless that is a
//! `transactional` one without an [`IdempotencyLayer`] around it. Servers do not know of such runs:
//! after a graceful shutdown, which the program above leaves out, wait for them with
//! [`WebhookLayer::runs`] and [`Runs::drain`].
//!
//! # Logs
//!
//! Through [tracing](https://docs.rs/tracing): one span `delivery` for each delivery with its kind,
//! key, attempt, secret (by label or place), outcome and duration, and one event for each refusal or
//! failure with its reason, at `WARN` or `ERROR`.
//!
//! The span is at `INFO`, and it is what tells which delivery an event is about: a filter should let
//! it pass, as `RUST_LOG=warn,tower_webhook=info` does. Successes are told by the span alone, and by
//! events at `DEBUG`; to see its end, let the subscriber write it:
//!
//! ```
//! use tracing_subscriber::fmt::format::FmtSpan;
//!
//! tracing_subscriber::fmt().with_span_events(FmtSpan::CLOSE).init();
//! ```
//!
//! No secret and no payload is logged.
//!
//! # Features
//!
//! | feature | adds | default |
//! |---|---|---|
//! | `moka` | [`MokaStore`](store::MokaStore), the memory store | yes |
//! | `sqlite` | `store::SqliteStore`, in a file of SQLite | no |
//! | `redis` | `store::RedisStore`, on Redis 7 or later, or Valkey | no |
//! | `postgres` | `store::PostgresStore`, on PostgreSQL 14 or later, and `transactional` handlers (needs Rust 1.94) | no |
//! | `axum` | the extractors [`Delivery<E>`](Delivery) and [`RawDelivery`] | no |
//! | `admin` | `admin`, a client for the platform's GraphQL Admin API | no |
//! | `conformance` | `store::conformance`, the tests that every [`Store`](store::Store) must pass | no |
//! | `sandbox` | `sandbox`, the platform, simulated: for your own tests, and on your desk | no |
//!
//! Features only add API. None changes how anything behaves.

//!
//! [`guarantees`]: docs::guarantees
//! [`answers`]: docs::answers

#![cfg_attr(docsrs, feature(doc_cfg))]

// Core types.
mod config;
mod error;
pub mod event;

// What travels, and what is answered.
mod answer;
mod delivery;
mod limit;
mod trace;

// The pipeline, from the outside in.
pub mod signature;

pub mod idempotency;
pub mod store;

#[cfg(feature = "axum")]
mod extract;
mod handler;
mod router;
#[cfg(feature = "postgres")]
pub mod transactional;

// Convenience layer.
mod webhook;

// The client of the platform.
#[cfg(feature = "admin")]
pub mod admin;

// The simulated platform.
#[cfg(feature = "sandbox")]
pub mod sandbox;

pub mod docs;

pub use self::answer::{ResponseBody, Settle};
pub use self::config::ConfigError;
pub use self::delivery::{DecodeError, Delivery, IdempotencyKey, RawDelivery, Verified};
pub use self::event::{Event, EventKind, SenderPolicy};
#[cfg(feature = "axum")]
pub use self::extract::DeliveryRejection;
pub use self::handler::{Handler, HandlerError, HandlerResult};
pub use self::idempotency::{IdempotencyLayer, Runs};
pub use self::router::{Dispatch, EventRouter, RouterFuture};
pub use self::signature::{HeaderNames, Secret, Secrets, SignatureLayer};
pub use self::webhook::WebhookLayer;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
