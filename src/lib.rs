//! Work in progress.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod answer;
mod config;
mod delivery;
pub mod event;
#[cfg(feature = "axum")]
mod extract;
mod handler;
pub mod idempotency;
mod router;
mod sender;
pub mod signature;
pub mod store;
mod trace;
mod webhook;

pub use self::answer::{ResponseBody, Settle};
pub use self::config::ConfigError;
pub use self::delivery::{DecodeError, Delivery, IdempotencyKey, RawDelivery, Verified};
pub use self::event::{Event, EventKind};
#[cfg(feature = "axum")]
pub use self::extract::DeliveryRejection;
pub use self::handler::{Handler, HandlerError, HandlerResult};
pub use self::idempotency::{IdempotencyLayer, Runs};
pub use self::router::{Dispatch, EventRouter};
pub use self::sender::SenderPolicy;
pub use self::signature::{HeaderNames, Secret, Secrets, SignatureLayer};
pub use self::webhook::WebhookLayer;
