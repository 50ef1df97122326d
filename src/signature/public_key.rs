//! Public keys in place of secrets.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use super::keys::Verifying;
use super::secret::{Secret, Secrets};
use crate::config::ConfigError;

/// The public key of a sender that signs with a private one, such as Discord.
///
/// It is accepted where secrets are, and is none: whoever knows it can verify deliveries, and not sign them. A sender
/// that signs with a secret refuses it.
///
/// ```
/// # fn main() -> Result<(), tower_webhook::ConfigError> {
/// use tower_webhook::{PublicKey, Secrets, Sender, Webhooks};
///
/// let old = PublicKey::new("d3ee6bf0d1b8966e44d188bc9fcb079e93ffe2a4ae2112b7214262c59ac49b4b")?;
/// let webhooks = Webhooks::new(old.clone()).sender(Sender::discord());
///
/// // Several, while the sender replaces its key:
/// let new = PublicKey::new("whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=")?.with_label("new");
/// let keys = Secrets::new([old.into(), new.into()])?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PublicKey(Secret);

impl PublicKey {
    /// Reads a public key as the sender shows it: 64 hex digits, or 32 bytes in base64, perhaps after `whpk_`, which are
    /// Ed25519; or `SubjectPublicKeyInfo` (RFC 5280) in base64 without armour, with a key of Ed25519, an uncompressed one of
    /// P-256, or one of RSA of 2,048 to 8,192 bits.
    ///
    /// # Errors
    ///
    /// [`ConfigError::PublicKey`] when it is written in no such form, is no point of its curve, or is weak: for a key of
    /// small order, anybody can sign.
    pub fn new(text: impl AsRef<str>) -> Result<Self, ConfigError> {
        let text = text.as_ref().as_bytes();
        let key = Verifying::parse(text).map_err(|reason| ConfigError::PublicKey { reason })?;
        // The digest is that of the text: equal keys have one name in the log, and the secret below differs each time.
        let digest = Secret::new(text)?.digest();
        let unguessable = Secret::new(unguessable())?;
        Ok(Self(unguessable.with_public(key, digest)))
    }

    /// Sets the name of the key in the log, as [`Secret::with_label`] does.
    #[must_use]
    pub fn with_label(self, label: impl Into<Arc<str>>) -> Self {
        Self(self.0.with_label(label))
    }
}

/// For sets of several.
impl From<PublicKey> for Secret {
    fn from(key: PublicKey) -> Self {
        key.0
    }
}

impl From<PublicKey> for Secrets {
    fn from(key: PublicKey) -> Self {
        key.0.into()
    }
}

partial_debug!(PublicKey, |it| label = it.0.label());

/// What stands in a [`Secret`] for the secret that a public key is not: should it ever be asked for a tag, nobody can
/// have made an equal one.
fn unguessable() -> Vec<u8> {
    // std has no other source of random bits.
    let word = |_| RandomState::new().build_hasher().finish().to_be_bytes();
    (0..4).flat_map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_keys_are_told_apart_from_others_in_the_log() {
        let digest = |text| Secret::from(PublicKey::new(text).unwrap()).digest();
        let one = "d3ee6bf0d1b8966e44d188bc9fcb079e93ffe2a4ae2112b7214262c59ac49b4b";
        assert_eq!(digest(one), digest(one));
        let other = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=";
        assert_ne!(digest(one), digest(other));
    }
}
