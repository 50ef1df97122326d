//! Signs deliveries as a sender does: for tests, and for the sandbox.

use http::{HeaderMap, HeaderValue};

use super::secret::Secret;
use crate::config::ConfigError;
use crate::delivery::RawDelivery;
use crate::sender::Sender;

impl Sender {
    /// Returns the headers of a delivery as this sender sends it: those of `delivery`, key and event type where they
    /// stand in a header, and the signature.
    ///
    /// ```
    /// use tower_webhook::{EventKind, RawDelivery, Secret, Sender};
    ///
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// let delivery = RawDelivery::new(EventKind::CHAT_RATED, r#"{"id":"chat-1"}"#);
    /// let headers = Sender::chat_platform().sign(&Secret::new("8c1f…")?, &delivery)?;
    /// assert_eq!(headers["x-service-event"], "chat-rated");
    /// assert!(headers.contains_key("x-service-hmac-sha256"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When a header is missing that this sender signs.
    pub fn sign(&self, secret: &Secret, delivery: &RawDelivery) -> Result<HeaderMap, ConfigError> {
        let mut headers = self.head(delivery);
        if let Ok(tag) = HeaderValue::from_str(&secret.sign(delivery.body())) {
            headers.insert(&self.chat().signature, tag);
        }
        Ok(headers)
    }
}
