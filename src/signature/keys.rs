//! Keys of Ed25519, of ECDSA P-256 and of RSA: public keys, and private keys for tests.

use std::borrow::Cow;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ed25519_dalek as ed25519;
use ed25519_dalek::Signer as _;
use p256::ecdsa;
use p256::ecdsa::signature::hazmat::{PrehashSigner, PrehashVerifier};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::compare::any;
use super::rsa;
use crate::sender::{Algorithm, Tags};

/// `SubjectPublicKeyInfo` before the key: RFC 8410, section 4, and RFC 5480, section 2.
const ED25519_PUBLIC: &[u8] = b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00";
const P256_PUBLIC: &[u8] = b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00";

/// PKCS#8 before the key, as `openssl genpkey` writes it. That of P-256 has the public key after it.
const ED25519_PRIVATE: &[u8] = b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20";
const P256_PRIVATE: &[u8] = b"\x30\x81\x87\x02\x01\x00\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x04\x6d\x30\x6b\x02\x01\x01\x04\x20";
const P256_PRIVATE_LENGTH: usize = 138;

/// A key that verifies.
#[derive(Clone)]
pub(super) enum Verifying {
    /// Its bytes, which may be a secret: one of two texts of 64 hex digits is also a key.
    Ed25519(Zeroizing<[u8; 32]>),
    EcdsaP256(ecdsa::VerifyingKey),
    Rsa(rsa::Public),
}

impl Verifying {
    pub(super) fn parse(text: &[u8]) -> Result<Self, &'static str> {
        // Before base64, which 64 hex digits are as well: 48 bytes, which are not a key.
        if text.len() == 64
            && let Ok(key) = base16ct::mixed::decode_vec(text).map(Zeroizing::new)
        {
            return Self::ed25519(&key);
        }
        let form = "write it as 64 hex digits, as 32 bytes in base64, or as SubjectPublicKeyInfo in base64 without armour";
        if let Some(base64) = text.strip_prefix(b"whpk_") {
            return Self::ed25519(&BASE64_STANDARD.decode(base64).map_err(|_| form)?);
        }
        let der = BASE64_STANDARD.decode(text).map(Zeroizing::new);
        let der = der.map_err(|_| form)?;
        if let Some(key) = der.strip_prefix(ED25519_PUBLIC) {
            return Self::ed25519(key);
        }
        if der.len() == 32 {
            return Self::ed25519(&der);
        }
        if let Some(key) = rsa::Public::parse(&der) {
            return key.map(Self::Rsa);
        }
        match der.strip_prefix(P256_PUBLIC) {
            // The length is that of an uncompressed point, whose first byte says so.
            Some(point) if point.len() == 65 => ecdsa::VerifyingKey::from_sec1_bytes(point)
                .map(Self::EcdsaP256)
                .map_err(|_| "it is no point of P-256"),
            _ => Err(form),
        }
    }

    fn ed25519(key: &[u8]) -> Result<Self, &'static str> {
        let bytes = <&[u8; 32]>::try_from(key).map_err(|_| "a key of Ed25519 has 32 bytes")?;
        let key = ed25519::VerifyingKey::from_bytes(bytes)
            .map_err(|_| "it is no point of the curve of Ed25519")?;
        match key.is_weak() {
            true => Err("it is weak: of small order, so that anybody can sign"),
            false => Ok(Self::Ed25519(Zeroizing::new(*bytes))),
        }
    }

    pub(super) fn is_for(&self, algorithm: Algorithm) -> bool {
        match self {
            Self::Ed25519(_) => algorithm == Algorithm::Ed25519,
            Self::EcdsaP256(_) => algorithm == Algorithm::EcdsaP256,
            Self::Rsa(_) => algorithm.is_rsa(),
        }
    }

    /// Begins to verify these tags. `None` if the key is for another algorithm.
    pub(super) fn begin(&self, algorithm: Algorithm, tags: &Tags) -> Option<Verification> {
        if !self.is_for(algorithm) {
            return None;
        }
        Some(match self {
            Self::Ed25519(key) => {
                // Decompressed for each delivery, since only the bytes are wiped on drop.
                let key = ed25519::VerifyingKey::from_bytes(key).ok()?;
                // A tag that cannot be right stays as `None`: all candidates count in `matches_one`.
                let tags = tags.iter().map(|tag| stream(&key, tag));
                Verification::Ed25519(tags.collect())
            }
            Self::EcdsaP256(key) => Verification::EcdsaP256(*key, Sha256::new()),
            Self::Rsa(key) => Verification::Rsa(key.clone(), algorithm),
        })
    }
}

/// Strict: refuses a scalar that is not reduced, and a point of small order. A point that is not in its canonical form
/// is never equal.
fn stream(key: &ed25519::VerifyingKey, tag: &[u8]) -> Option<ed25519::StreamVerifier> {
    let tag = ed25519::Signature::from_slice(tag).ok()?;
    let point = ed25519::VerifyingKey::from_bytes(tag.r_bytes()).ok()?;
    (!point.is_weak()).then(|| key.verify_stream(&tag).ok())?
}

/// The verification of all candidates under one key, while a body arrives.
pub(super) enum Verification {
    /// One for each candidate, since it is hashed before the body.
    Ed25519(Vec<Option<ed25519::StreamVerifier>>),
    EcdsaP256(ecdsa::VerifyingKey, Sha256),
    /// It hashes the whole message itself.
    Rsa(rsa::Public, Algorithm),
}

impl Verification {
    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Ed25519(streams) => streams.iter_mut().flatten().for_each(|it| it.update(bytes)),
            Self::EcdsaP256(_, hash) => hash.update(bytes),
            Self::Rsa(..) => {}
        }
    }

    /// Returns whether one of the candidates is right. They must be the same that it began with. `signed` is all that
    /// was hashed.
    pub(super) fn matches_one(self, candidates: &Tags, signed: [&[u8]; 3]) -> bool {
        match self {
            Self::Ed25519(streams) => any(streams, |stream| {
                stream.is_some_and(|it| it.finalize_and_verify().is_ok())
            }),
            Self::EcdsaP256(key, hash) => {
                let hash = hash.finalize();
                // As senders sign, so that s may be in the upper half.
                any(candidates.iter(), |tag| {
                    let tag = ecdsa::Signature::from_der(tag);
                    tag.is_ok_and(|tag| key.verify_prehash(&hash, &tag).is_ok())
                })
            }
            Self::Rsa(key, algorithm) => {
                let message = match signed {
                    [b"", body, b""] => Cow::Borrowed(body),
                    pieces => Cow::Owned(pieces.concat()),
                };
                any(candidates.iter(), |tag| {
                    key.verifies(algorithm, &message, tag)
                })
            }
        }
    }
}

/// A key that signs.
#[derive(Clone)]
pub(super) enum Signing {
    Ed25519(ed25519::SigningKey),
    EcdsaP256(ecdsa::SigningKey),
    /// PKCS#8, which is read for each signature: only tests sign.
    Rsa(Arc<Zeroizing<Vec<u8>>>),
}

impl Signing {
    /// `None` if it is no private key: base64 after `whsk_`, or PKCS#8 in base64 without armour.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let decode = |text| BASE64_STANDARD.decode(text).map(Zeroizing::new).ok();
        if let Some(base64) = text.strip_prefix(b"whsk_") {
            let key = decode(base64)?;
            return match (
                <&[u8; 64]>::try_from(&key[..]),
                <&[u8; 32]>::try_from(&key[..]),
            ) {
                // 64 bytes are the seed and its public key, which must belong together.
                (Ok(pair), _) => ed25519::SigningKey::from_keypair_bytes(pair).ok(),
                (_, Ok(seed)) => Some(ed25519::SigningKey::from_bytes(seed)),
                _ => None,
            }
            .map(Self::Ed25519);
        }
        let der = decode(text)?;
        if let Some(seed) = der.strip_prefix(ED25519_PRIVATE) {
            let seed = seed.try_into().ok()?;
            return Some(Self::Ed25519(ed25519::SigningKey::from_bytes(seed)));
        }
        if rsa::is_private(&der) {
            return Some(Self::Rsa(Arc::new(der)));
        }
        let rest = der.strip_prefix(P256_PRIVATE)?;
        let scalar = rest
            .get(..32)
            // The public key after it is not read: it follows from the scalar.
            .filter(|_| der.len() == P256_PRIVATE_LENGTH)?;
        ecdsa::SigningKey::from_slice(scalar)
            .ok()
            .map(Self::EcdsaP256)
    }

    /// `None` if the key is for another algorithm.
    pub(super) fn sign(&self, algorithm: Algorithm, pieces: [&[u8]; 3]) -> Option<Vec<u8>> {
        match self {
            Self::Ed25519(key) if algorithm == Algorithm::Ed25519 => {
                Some(key.sign(&pieces.concat()).to_bytes().to_vec())
            }
            Self::EcdsaP256(key) if algorithm == Algorithm::EcdsaP256 => {
                let hash = Sha256::digest(pieces.concat());
                let tag: ecdsa::Signature = key.sign_prehash(&hash).ok()?;
                Some(tag.to_der().as_bytes().to_vec())
            }
            Self::Rsa(key) if algorithm.is_rsa() => rsa::sign(key, algorithm, &pieces.concat()),
            _ => None,
        }
    }
}
