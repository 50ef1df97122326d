//! The builder of a route, and what it starts.
//!
//! - [`Webhooks`] takes every setting of a route once, and a store or an inbox. It checks them together when it is started.
//! - [`Routes`] starts several routes on one inbox, or one half alone.
//! - [`WebhookLayer`] is both layers in one, for a service that axum wraps (`Router::route_layer`).
//! - [`Receiver`] is the service that receives webhooks for an inbox.
//! - [`Running`] is what still runs when the server has stopped: detached runs, or the worker of an inbox. It stops both.
//! - [`shutdown`] waits for SIGTERM or Ctrl-C.

mod builder;
mod layer;
mod receiver;
mod routes;
mod running;
#[cfg(feature = "signal")]
mod signal;
#[cfg(all(test, feature = "moka"))]
mod tests;

pub use self::builder::Webhooks;
pub use self::layer::WebhookLayer;
pub use self::receiver::{Receiver, ReceiverFuture};
pub use self::routes::Routes;
pub use self::running::{Running, ServeError, Stop};
#[cfg(feature = "signal")]
pub use self::signal::shutdown;
