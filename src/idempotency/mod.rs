//! Lets each event be handled once.
mod future;
mod layer;
mod run;
mod service;

pub use self::future::ResponseFuture;
pub use self::layer::IdempotencyLayer;
pub use self::run::{Runs, StillRunning};
pub use self::service::Idempotency;
