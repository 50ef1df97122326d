//! Proves that a delivery is authentic: [`SignatureLayer`], and the secrets it goes by.
//!
//! The body is hashed while it arrives and kept in memory; then its tag under every current
//! [`Secret`] is compared with the signature header in constant time (Spec 5.2). What passes is a
//! `Request<`[`Verified`](crate::Verified)`>`, with the kind and the key already read from the
//! headers; everything else is answered here, as the first part of the [table](crate::docs::answers) says.
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
mod future;
mod headers;
mod layer;
mod secret;
mod service;
mod verify;

pub use self::future::ResponseFuture;
pub use self::headers::HeaderNames;
pub use self::layer::SignatureLayer;
pub use self::secret::{Secret, Secrets};
pub use self::service::Signature;
pub use self::verify::SignatureError;
