//! Signs deliveries as a sender does: for tests, and for the sandbox. Whether secrets suit a sender.

use std::time::SystemTime;

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
            if scheme.parameter().is_some() {
                return Ok(headers); // It stands in the query.
            }
            let tag = self.tag_of(secret, delivery, &headers, now)?;
            let header = scheme.header(&tag, now).ok_or_else(|| self.signs_more());
            let (name, value) = header?;
            headers.insert(name, value);
        }
        Ok(headers)
    }

    /// Returns the query parameter of a delivery as this sender sends it, such as `signature=…`, if its signature stands
    /// there. Its headers are returned by [`sign`](Self::sign). A token is returned by [`token_query`](Self::token_query).
    ///
    /// # Errors
    ///
    /// As [`sign`](Self::sign).
    pub fn sign_query(
        &self,
        secret: &Secret,
        delivery: &RawDelivery,
    ) -> Result<Option<String>, ConfigError> {
        let headers = self.sign(secret, delivery)?;
        let scheme = &self.described().schemes()[0];
        if scheme.parameter().is_none() || scheme.is_token() {
            return Ok(None);
        }
        let tag = self.tag_of(secret, delivery, &headers, self.now())?;
        Ok(scheme.in_query(&tag))
    }

    fn tag_of(
        &self,
        secret: &Secret,
        delivery: &RawDelivery,
        headers: &HeaderMap,
        now: SystemTime,
    ) -> Result<Vec<u8>, ConfigError> {
        let scheme = &self.described().schemes()[0];
        let digest = scheme.digest(delivery.body());
        let body = digest
            .as_ref()
            .map_or(&**delivery.body(), |it| it.as_bytes());
        let signed = scheme.signed(headers, now);
        let tag = signed.and_then(|[before, after]| tag(secret, scheme, [&before, body, &after]));
        tag.ok_or_else(|| self.signs_more())
    }

    fn signs_more(&self) -> ConfigError {
        self.is_wrong("a header that it signs is missing: set the key, or add it to the delivery")
    }
}

/// Whether each secret is written as the sender writes its secrets. The log says which was most likely copied with too much.
pub(super) fn check(sender: &Sender, secrets: &Secrets) -> Result<(), ConfigError> {
    let current = secrets.current();
    for (secret, label) in current.iter().zip(secrets.labels()) {
        if let Some(mistake) = secret.mistake() {
            tracing::warn!(
                sender = sender.name(),
                secret = label,
                "the secret has {mistake}, which is used as a part of it: if the sender does not show that, no delivery is \
                 verified"
            );
        }
    }
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

/// `None` if the secret is not in a form that can sign.
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
        (it, _) if it.is_rsa() && !signs => {
            "its public key of RSA is needed, of 2,048 to 8,192 bits: SubjectPublicKeyInfo in base64"
        }
        (it, _) if it.is_rsa() => "a private key of RSA signs: PKCS#8 in base64",
        (_, SecretCoding::Text | SecretCoding::TextOrBase64) => {
            "it signs with a secret, not with a public key"
        }
        (_, SecretCoding::Base64) => {
            "a secret is not written in its form: base64, after `whsec_` if it has that"
        }
        (_, SecretCoding::Hex) => "a secret is not written in its form: hex digits",
    };
    sender.is_wrong(reason)
}
