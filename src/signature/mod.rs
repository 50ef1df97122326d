//! Verifies signatures: [`SignatureLayer`], and the secrets that it accepts.
//!
//! The body is hashed while it arrives and kept in memory; then its tag under every current
//! [`Secret`] is compared with the signature header in constant time
//! ([Spec 5.2](crate::docs::platform#spec-5-2)). An authentic delivery is passed on as a
//! `Request<`[`Verified`](crate::Verified)`>`, with the kind and the key already read from the headers.
//! Every other request is answered with its [`Refusal`].
//!
//! # Example
//!
//! The layer alone, without deduplication:
//!
//! ```
//! use std::time::Duration;
//!
//! use tower::ServiceBuilder;
//! use tower_webhook::event::ChatRated;
//! use tower_webhook::{Delivery, EventRouter, Secret, SignatureLayer};
//!
//! # fn main() -> Result<(), tower_webhook::ConfigError> {
//! let service = ServiceBuilder::new()
//!     .layer(SignatureLayer::new(Secret::new("8c1f…")?).body_timeout(Duration::from_secs(5)))
//!     .service(EventRouter::new().on::<ChatRated>(async |_: Delivery<ChatRated>| Ok(())));
//! # Ok(())
//! # }
//! ```

mod buffer;
mod config;
mod future;
mod headers;
mod layer;
mod refusal;
mod secret;
mod service;
mod verify;

pub use self::future::ResponseFuture;
pub use self::headers::HeaderNames;
pub use self::layer::SignatureLayer;
pub use self::refusal::Refusal;
pub use self::secret::{Secret, Secrets};
pub use self::service::Signature;
pub use self::verify::SignatureError;
