//! Proves that a delivery is authentic.
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
