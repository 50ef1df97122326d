//! Signs deliveries as a sender does: for tests, and for the sandbox. Whether secrets suit a sender.

use http::{HeaderMap, HeaderValue};

use super::described::Keyed;
use super::secret::{Secret, Secrets};
use crate::config::ConfigError;
use crate::delivery::RawDelivery;
use crate::sender::{Algorithm, Form, SecretCoding, Sender};

impl Sender {
    /// Returns the headers of a delivery as this sender sends it: those of `delivery`, key and event type where they
    /// stand in a header, the present time, and the signature. For a token, that is the secret's own text, which only
    /// you have: add the header yourself.
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
    /// [`ConfigError::Sender`] when a header is missing that this sender signs, such as that of the key, or the secret
    /// is not written as this sender writes its secrets.
    pub fn sign(&self, secret: &Secret, delivery: &RawDelivery) -> Result<HeaderMap, ConfigError> {
        let mut headers = self.head(delivery);
        match self.form() {
            Form::Chat(names) => {
                if let Ok(tag) = HeaderValue::from_str(&secret.sign(delivery.body())) {
                    headers.insert(&names.signature, tag);
                }
            }
            Form::Described(it) => {
                let (scheme, now) = (&it.schemes()[0], self.now());
                let keyed = Keyed::new(secret, scheme.algorithm, scheme.secret)
                    .ok_or_else(|| undecodable(self, scheme.secret))?;
                scheme.prepare(&mut headers, now);
                if scheme.algorithm != Algorithm::Token {
                    let signed = scheme.signed(&headers, now).and_then(|[before, after]| {
                        let tag = keyed.tag([&before, delivery.body(), &after]);
                        scheme.header(&tag, now)
                    });
                    let (name, value) = signed.ok_or_else(|| ConfigError::Sender {
                        name: self.name().to_owned(),
                        reason: "a header that it signs is missing: set the key, or add it to the delivery"
                            .to_owned(),
                    })?;
                    headers.insert(name, value);
                }
            }
        }
        Ok(headers)
    }
}

/// Whether each secret is written as the sender writes its secrets.
pub(super) fn check(sender: &Sender, secrets: &Secrets) -> Result<(), ConfigError> {
    let Form::Described(it) = sender.form() else {
        return Ok(());
    };
    let scheme = &it.schemes()[0];
    let current = secrets.current();
    let suits = |secret| Keyed::new(secret, scheme.algorithm, scheme.secret).is_some();
    match current.iter().all(suits) {
        true => Ok(()),
        false => Err(undecodable(sender, scheme.secret)),
    }
}

fn undecodable(sender: &Sender, coding: SecretCoding) -> ConfigError {
    let form = match coding {
        SecretCoding::Text => "text",
        SecretCoding::Base64 => "base64, after `whsec_` if it has that",
        SecretCoding::Hex => "hex digits",
    };
    ConfigError::Sender {
        name: sender.name().to_owned(),
        reason: format!("a secret is not written in its form: {form}"),
    }
}
