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
//! use tower::ServiceBuilder;
//! use tower_webhook::event::ChatRated;
//! use tower_webhook::{Delivery, EventRouter, Secret, SignatureLayer};
//!
//! # fn main() -> Result<(), tower_webhook::ConfigError> {
//! let service = ServiceBuilder::new()
//!     .layer(SignatureLayer::new(Secret::new("8c1f…")?))
//!     .service(EventRouter::new().on::<ChatRated>(async |_: Delivery<ChatRated>| Ok(())));
//! # Ok(())
//! # }
//! ```

mod buffer;
mod checked;
mod compare;
mod config;
mod explain;
mod future;
mod handshake;
mod headers;
#[cfg_attr(not(feature = "public-keys"), path = "no_keys.rs")]
mod keys;
mod layer;
mod neighbours;
#[cfg(feature = "public-keys")]
mod public_key;
mod read;
mod refusal;
#[cfg(feature = "public-keys")]
mod rsa;
mod secret;
mod service;
mod sign;
mod verifier;
mod verify;

pub(crate) use self::buffer::MAX_BUFFERED;
pub use self::explain::Explanation;
pub use self::future::ResponseFuture;
pub(crate) use self::handshake::OnSecret;
pub use self::layer::SignatureLayer;
pub use self::neighbours::Neighbours;
#[cfg(feature = "public-keys")]
pub use self::public_key::PublicKey;
pub use self::refusal::Refusal;
pub use self::secret::{Secret, Secrets};
pub use self::service::Signature;
pub use self::verifier::{Mailgun, Proof, Twilio, Verdict, Verifier, VerifierError};
pub use crate::sender::{Finding, Reply, SignatureError, Step};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigError;
    use crate::sender::Sender;

    #[test]
    fn what_is_wrong_with_secrets_and_names_is_said() {
        use std::error::Error as _;

        let text = |error: ConfigError| error.to_string();
        assert_eq!(
            text(Secret::new("").unwrap_err()),
            "the secret is empty: set the secret that is configured at the sender"
        );
        assert_eq!(
            text(Secrets::new([]).unwrap_err()),
            "there is no secret: pass a secret that is configured at the sender"
        );
        let missing = Secret::from_env("NO_SUCH_VARIABLE").unwrap_err();
        assert!(missing.source().is_some());
        assert_eq!(
            text(missing),
            "the environment variable `NO_SUCH_VARIABLE` holds no secret: set it to the secret \
             that is configured at the sender"
        );
        let unreadable = Secrets::from_file("/nonexistent/secrets").unwrap_err();
        assert!(unreadable.source().is_some());
        assert_eq!(
            text(unreadable),
            "a file of secrets must be readable UTF-8 with one secret per line: `/nonexistent/secrets` cannot be read"
        );
        assert_eq!(
            text(Sender::chat_platform().branded("a b").unwrap_err()),
            "`a b` cannot be the prefix of a header: use letters, digits and hyphens"
        );
    }
}
