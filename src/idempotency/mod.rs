//! Deduplicates deliveries: [`IdempotencyLayer`], on a [`Store`](crate::store::Store).
//!
//! The platform delivers at least once, and all deliveries of an event carry the same key (Spec 6,
//! rules 1 and 2). The layer claims the key before the inner service is called:
//!
//! ```text
//!              ┌─ acquired ─▶ run the inner service ─┬─ 2xx ──▶ complete, then answer
//!   claim key ─┤                                     └─ else ─▶ release, then answer
//!              ├─ in flight ─▶ wait for its outcome ─┬─ done ─▶ 200, replayed
//!              │                                     └─ else ─▶ 409
//!              └─ done ──────▶ 200, replayed
//! ```
//!
//! The run is polled by the response future. When the client disconnects, that future is dropped, and
//! the run continues in a task: see [`Runs`].
//!
//! A delivery without a key is not deduplicated. Time limits and detached runs apply to it as well.
//!
//! # Example
//!
//! ```
//! use tower::ServiceBuilder;
//! use tower_webhook::event::ChatRated;
//! use tower_webhook::memory::MokaStore;
//! use tower_webhook::{Delivery, EventRouter, IdempotencyLayer, Secret, SignatureLayer};
//!
//! # fn main() -> Result<(), tower_webhook::ConfigError> {
//! let service = ServiceBuilder::new()
//!     .layer(SignatureLayer::new(Secret::new("8c1f…")?))
//!     .layer(IdempotencyLayer::new(MokaStore::new()))
//!     .service(EventRouter::new().on::<ChatRated>(async |_: Delivery<ChatRated>| Ok(())));
//! # Ok(())
//! # }
//! ```

mod claims;
mod duplicate;
mod future;
mod items;
mod layer;
mod rules;
mod run;
mod service;

pub use self::duplicate::Refusal;
pub use self::future::ResponseFuture;
pub use self::layer::IdempotencyLayer;
pub(crate) use self::rules::Rules;
pub use self::service::Idempotency;
pub use crate::execution::{DrainTimeout, Runs};
