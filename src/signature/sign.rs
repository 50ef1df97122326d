//! Signs deliveries as a sender does: for tests, and for the sandbox. Whether secrets suit a sender.

use http::HeaderMap;

use super::checked::Keyed;
use super::secret::{Secret, Secrets};
use crate::config::ConfigError;
use crate::delivery::RawDelivery;
use crate::sender::{Algorithm, Scheme, SecretCoding, Sender};

impl Sender {
    /// Returns the headers of a delivery as this sender sends it: those of `delivery`, key and event type where they
    /// stand in a header, the present time, and the signature. For a token, that is the secret's own text, which only
    /// you have: add the header yourself.
    ///
    /// If this sender has event type or key in the body, those of `delivery` are not used: the body must have them, where the
    /// [table of senders](crate::docs::senders) says. Without its type, a delivery is answered with 400.
    ///
    /// A sender with a public key signs with its private key, which is the secret here: base64 after `whsk_`, or PKCS#8 in
    /// base64 without armour.
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
        let mut headers = self.unsigned(delivery);
        let (scheme, now) = (&self.described().schemes()[0], self.now());
        if !can_sign(secret, scheme) {
            return Err(unsuited(self, scheme, true));
        }
        scheme.prepare(&mut headers, now);
        if scheme.algorithm != Algorithm::Token {
            let signed = scheme.signed(&headers, now).and_then(|[before, after]| {
                let tag = tag(secret, scheme, [&before, delivery.body(), &after])?;
                scheme.header(&tag, now)
            });
            let (name, value) = signed.ok_or_else(|| {
                self.is_wrong(
                    "a header that it signs is missing: set the key, or add it to the delivery",
                )
            })?;
            headers.insert(name, value);
        }
        Ok(headers)
    }
}

/// Whether each secret is written as the sender writes its secrets.
pub(super) fn check(sender: &Sender, secrets: &Secrets) -> Result<(), ConfigError> {
    let current = secrets.current();
    // Families differ only in the names of their headers.
    let scheme = &sender.described().schemes()[0];
    let suits = |secret: &Secret| match scheme.algorithm.is_asymmetric() {
        true => secret
            .public()
            .is_some_and(|key| key.is_for(scheme.algorithm)),
        false => can_sign(secret, scheme),
    };
    match current.iter().all(suits) {
        true => Ok(()),
        false => Err(unsuited(sender, scheme, false)),
    }
}

fn can_sign(secret: &Secret, scheme: &Scheme) -> bool {
    tag(secret, scheme, [b""; 3]).is_some()
}

/// `None` if the secret is not in the form of those that sign.
fn tag(secret: &Secret, scheme: &Scheme, pieces: [&[u8]; 3]) -> Option<Vec<u8>> {
    match scheme.algorithm.is_asymmetric() {
        true => secret.private()?.sign(scheme.algorithm, pieces),
        false => Some(Keyed::new(secret, scheme.algorithm, scheme.secret)?.tag(pieces)),
    }
}

fn unsuited(sender: &Sender, scheme: &Scheme, signs: bool) -> ConfigError {
    let reason = match (scheme.algorithm, scheme.secret) {
        (Algorithm::Ed25519, _) if !signs => {
            "its public key of Ed25519 is needed: 64 hex digits, base64 after `whpk_`, or SubjectPublicKeyInfo in base64"
        }
        (Algorithm::EcdsaP256, _) if !signs => {
            "its public key of P-256 is needed: SubjectPublicKeyInfo in base64"
        }
        (Algorithm::Ed25519, _) => {
            "a private key of Ed25519 signs: base64 after `whsk_`, or PKCS#8 in base64"
        }
        (Algorithm::EcdsaP256, _) => "a private key of P-256 signs: PKCS#8 in base64",
        (_, SecretCoding::Text) => "it signs with a secret, not with a public key",
        (_, SecretCoding::Base64) => {
            "a secret is not written in its form: base64, after `whsec_` if it has that"
        }
        (_, SecretCoding::Hex) => "a secret is not written in its form: hex digits",
    };
    sender.is_wrong(reason)
}
