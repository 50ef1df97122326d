//! A client for the platform's GraphQL Admin API: [`AdminClient`].
//!
//! ```no_run
//! use tower_webhook::admin::{AccessToken, AdminClient};
//!
//! # async fn example() -> anyhow::Result<()> {
//! let admin = AdminClient::new("https://api.example.com", AccessToken::from_env("ADMIN_TOKEN")?)?;
//!
//! if admin.chat_is_available().await? {
//!     println!("somebody is there to chat");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The token is the API key that the partner portal shows once, under Settings, Developer, Create
//! API Key (Spec 5.1).
//!
//! # In a handler
//!
//! A client is cheap to clone, so each handler may hold one:
//!
//! ```
//! use tower_webhook::admin::AdminClient;
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
//!             println!("{:?} waits, and nobody is there", delivery.payload.id);
//!         }
//!         Ok(())
//!     }
//! }
//! ```
//!
//! With `?`, a delivery fails when the question does, and the platform sends it again. Where the
//! answer only helps, handle the error instead: failed deliveries count towards disabling the
//! webhook (Spec 6, rule 4). A call's time limit is 10 seconds, well within a handler's 30.
//!
//! # Any query
//!
//! The platform does not publish its schema, so [`query`](AdminClient::query) takes any text and
//! decodes `data` into your type. [`execute`](AdminClient::execute) gives `data` and `errors` as
//! they came, which is the way to partial data.
//!
//! A request holds the text alone, without variables (Spec 4.1). Write a value into it as JSON,
//! whose strings are strings of GraphQL too, and never as it is:
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
//! [`AdminClient::with_service`] sends through any [`tower_service::Service`](https://docs.rs/tower-service/0.3/tower_service/trait.Service.html)
//! of HTTP requests: [`Transport`], which [`new`](AdminClient::new) uses, inside layers of your own;
//! another HTTP client; or a stub in a test:
//!
//! ```
//! use std::convert::Infallible;
//!
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use tower::service_fn;
//! use tower_webhook::admin::{AccessToken, AdminClient};
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
//! # What keeps the token safe
//!
//! - It goes to `{base_url}/graphql` and nowhere else: no redirect is followed, and plain `http` is
//!   refused unless it stays on this machine or [is asked for](BaseUrl::dangerously_allow_http).
//! - No `Debug`, error or log shows it: where an answer repeats it, errors show `[redacted]`.
//! - It is wiped from memory with its last clone. Copies in the buffers of the HTTP client, and in
//!   the environment, are out of reach.
//!
//! `HTTPS_PROXY` and `NO_PROXY` are respected, except for hosts on this machine, which no proxy
//! could reach. `SSL_CERT_FILE` replaces the system's certificates on Linux.

mod base_url;
mod client;
mod config;
mod error;
mod response;
mod token;
mod transport;

pub use self::base_url::BaseUrl;
pub use self::client::AdminClient;
pub use self::config::AdminConfigError;
pub use self::error::{AdminError, AdminErrorKind};
pub use self::response::{GraphQlError, GraphQlResponse, Location, PathSegment};
pub use self::token::AccessToken;
pub use self::transport::{Transport, TransportFuture};
