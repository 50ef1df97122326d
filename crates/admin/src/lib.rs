//! A client for the platform's GraphQL Admin API ([Spec 4.1](https://docs.rs/tower-webhook/latest/tower_webhook/docs/platform/index.html#spec-4-1)).
//!
//! [`AdminClient`] sends queries to a [`BaseUrl`] with an [`AccessToken`], the API key that the partner
//! portal shows once under Settings, Developer, Create API Key
//! ([Spec 5.1](https://docs.rs/tower-webhook/latest/tower_webhook/docs/platform/index.html#spec-5-1)).
//!
//! # Example
//!
//! ```no_run
//! use tower_webhook_admin::{AccessToken, AdminClient};
//!
//! # async fn example() -> anyhow::Result<()> {
//! let admin = AdminClient::new("https://api.example.com", AccessToken::from_env("ADMIN_TOKEN")?)?;
//!
//! if admin.chat_is_available().await? {
//!     println!("chat is available");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # In a handler
//!
//! An [`AdminClient`] is cheap to clone, so each [`Handler`](https://docs.rs/tower-webhook/latest/tower_webhook/trait.Handler.html) can hold one:
//!
//! ```
//! use tower_webhook_admin::AdminClient;
//! use tower_webhook::event::ChatAssigned;
//! use tower_webhook::{Delivery, Handler, HandlerResult};
//!
//! struct Desk {
//!     admin: AdminClient,
//! }
//!
//! impl Handler<ChatAssigned> for Desk {
//!     async fn handle(&self, delivery: Delivery<ChatAssigned>) -> HandlerResult {
//!         if !self.admin.chat_is_available().await? {
//!             println!("{:?} arrived while chat is unavailable", delivery.payload.id);
//!         }
//!         Ok(())
//!     }
//! }
//! ```
//!
//! With `?`, a delivery fails if the query fails, and the platform retries it. If the handler can do
//! without the response, handle the [`AdminError`] instead: failed deliveries count towards disabling
//! the webhook ([Spec 6, rule 4](https://docs.rs/tower-webhook/latest/tower_webhook/docs/platform/index.html#spec-6-rule-4)). The
//! [timeout](AdminClient::timeout) of a call defaults to 10 seconds, and a handler's to 30. If the API
//! limits the rate of queries, [`AdminError::retry_after`] returns the delay that it asks for.
//!
//! # Any query
//!
//! The platform does not publish its schema, so [`query`](AdminClient::query) takes any text and
//! decodes `data` into your type. [`execute`](AdminClient::execute) returns a [`GraphQlResponse`] with
//! `data` and `errors`, for partial data.
//!
//! A request consists of the text alone, without variables
//! ([Spec 4.1](https://docs.rs/tower-webhook/latest/tower_webhook/docs/platform/index.html#spec-4-1)). Encode a value as JSON before you insert it into the
//! text; a JSON string is a GraphQL string too:
//!
//! ```
//! let name = serde_json::to_string("said \"hello\"")?;
//! let text = format!("{{ expert(name: {name}) {{ id }} }}");
//! assert_eq!(text, r#"{ expert(name: "said \"hello\"") { id } }"#);
//! # Ok::<_, serde_json::Error>(())
//! ```
//!
//! # Layers
//!
//! [`AdminClient::with_service`] sends through any [`Service`](tower_service::Service) of HTTP
//! requests: [`Transport`], which [`new`](AdminClient::new) uses, inside layers of your own; another
//! HTTP client; or a stub in a test:
//!
//! ```
//! use std::convert::Infallible;
//!
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use tower::service_fn;
//! use tower_webhook_admin::{AccessToken, AdminClient};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
//! let stub = service_fn(async |_: Request<Full<Bytes>>| {
//!     let answer = r#"{"data":{"partner":{"state":{"chat":{"isAvailable":true}}}}}"#;
//!     Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(answer)))
//! });
//! let admin = AdminClient::with_service("https://api.example.com", AccessToken::new("key")?, stub)?;
//! assert!(admin.chat_is_available().await?);
//! # anyhow::Ok(())
//! # })?;
//! # Ok::<_, anyhow::Error>(())
//! ```
//!
//! # How the token is protected
//!
//! - It is sent only to [`BaseUrl::endpoint`]. Redirects are not followed, and plain `http` is refused
//!   unless it stays on this machine or is [allowed explicitly](BaseUrl::dangerously_allow_http).
//! - No `Debug` output, [`AdminError`] or log shows it: if a response repeats it, errors show
//!   `[redacted]`.
//! - It is wiped from memory when its last clone is dropped. Copies in the buffers of the HTTP client
//!   and in the environment are not wiped.
//!
//! `HTTPS_PROXY` and `NO_PROXY` are respected, except for hosts on this machine, which a proxy cannot
//! reach. On Linux, `SSL_CERT_FILE` replaces the system's certificates.

#![cfg_attr(
    not(test),
    warn(
        clippy::expect_used,
        clippy::unwrap_used,
        clippy::print_stderr,
        clippy::print_stdout
    )
)]

mod base_url;
mod client;
mod config;
mod error;
mod response;
mod tls;
mod token;
mod transport;

pub use self::base_url::BaseUrl;
pub use self::client::AdminClient;
pub use self::config::AdminConfigError;
pub use self::error::{AdminError, AdminErrorKind};
pub use self::response::{GraphQlError, GraphQlResponse, Location, PathSegment};
pub use self::token::AccessToken;
pub use self::transport::Transport;

/// An error of any crate.
type BoxError = Box<dyn std::error::Error + Send + Sync>;
