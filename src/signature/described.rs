//! The tags of a body under every secret, for a sender that is described as data.

use std::sync::Arc;

use hmac::digest::CtOutput;
use hmac::digest::array::Array;
use hmac::{Hmac, Mac};
use sha1::Sha1;
use sha2::Sha256;

use super::secret::{Secret, Secrets};
use super::verify::{Matched, SignatureError};
use crate::sender::{Algorithm, Claim, Scheme, SecretCoding, Sender, Timestamps, Unproven};

/// What is hashed in place of the body to compare a token, under the token as the secret.
const TOKEN: &[u8] = b"tower-webhook: a token";

/// A hash under one secret, before it is complete.
pub(super) enum Keyed {
    Sha256(Hmac<Sha256>),
    Sha1(Hmac<Sha1>),
}

impl Keyed {
    /// The state before the first byte. `None` if the secret is not written as the sender writes its secrets.
    pub(super) fn new(secret: &Secret, algorithm: Algorithm, coding: SecretCoding) -> Option<Self> {
        match algorithm {
            Algorithm::HmacSha1 => Some(Self::Sha1(secret.keyed_sha1())),
            Algorithm::HmacSha256 | Algorithm::Token => secret.decoded(coding).map(Self::Sha256),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::Sha1(hash) => hash.update(bytes),
        }
    }

    pub(super) fn tag(mut self, pieces: [&[u8]; 3]) -> Vec<u8> {
        pieces.iter().for_each(|piece| self.update(piece));
        match self {
            Self::Sha256(hash) => hash.finalize().into_bytes().to_vec(),
            Self::Sha1(hash) => hash.finalize().into_bytes().to_vec(),
        }
    }

    /// Compares the complete hash with every candidate, in constant time. Returns whether one is equal.
    fn matches_one(self, candidates: &[Vec<u8>]) -> bool {
        match self {
            Self::Sha256(hash) => {
                let own = hash.finalize();
                any(candidates, |tag| {
                    Array::try_from(tag).is_ok_and(|it| own == CtOutput::new(it))
                })
            }
            Self::Sha1(hash) => {
                let own = hash.finalize();
                any(candidates, |tag| {
                    Array::try_from(tag).is_ok_and(|it| own == CtOutput::new(it))
                })
            }
        }
    }
}

/// Whether `is_equal` is true for one. It is called for each.
fn any(candidates: &[Vec<u8>], is_equal: impl Fn(&[u8]) -> bool) -> bool {
    candidates.iter().fold(false, |found, candidate| {
        #[cfg(test)]
        tests::COMPARISONS.set(tests::COMPARISONS.get() + 1);
        is_equal(candidate) | found
    })
}

/// The computation while a body arrives.
pub(super) struct Checked {
    sender: Sender,
    secrets: Secrets,
    set: Arc<Vec<Secret>>,
    hashes: Vec<Option<Keyed>>,
    claim: Claim,
    /// If it stands in the body.
    body_time: Option<Timestamps>,
    algorithm: Algorithm,
    coding: SecretCoding,
}

impl Checked {
    pub(super) fn new(
        secrets: &Secrets,
        sender: &Sender,
        scheme: &Scheme,
        mut claim: Claim,
    ) -> Self {
        if scheme.algorithm == Algorithm::Token {
            for tag in &mut claim.tags {
                // A header's value is not empty, so it is a secret.
                *tag = Secret::new(std::mem::take(tag))
                    .map_or_else(|_| Vec::new(), |token| token_tag(&token));
            }
        }
        let (algorithm, coding) = (scheme.algorithm, scheme.secret);
        let set = secrets.current();
        let hashes = set.iter().map(|secret| {
            let mut hash = Keyed::new(secret, algorithm, coding)?;
            hash.update(&claim.before);
            Some(hash)
        });
        Self {
            hashes: hashes.collect(),
            sender: sender.clone(),
            body_time: scheme.body_time().cloned(),
            secrets: secrets.clone(),
            set,
            claim,
            algorithm,
            coding,
        }
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        if self.algorithm != Algorithm::Token {
            self.hashes
                .iter_mut()
                .flatten()
                .for_each(|hash| hash.update(bytes));
        }
    }

    /// As that of `Tags`.
    pub(super) fn verify(mut self, body: &[u8]) -> Result<Matched, SignatureError> {
        let current = self.secrets.current();
        if !Arc::ptr_eq(&self.set, &current) {
            self.hashes = current
                .iter()
                .map(|secret| {
                    let mut hash = Keyed::new(secret, self.algorithm, self.coding)?;
                    hash.update(&self.claim.before);
                    Some(hash)
                })
                .collect();
            self.set = current;
            self.update(body);
        }
        let after = match self.algorithm {
            Algorithm::Token => TOKEN,
            _ => &self.claim.after,
        };
        let mut matched = None;
        for (index, hash) in self.hashes.into_iter().enumerate() {
            let Some(mut hash) = hash else { continue };
            hash.update(after);
            let this = hash.matches_one(&self.claim.tags).then_some(index);
            matched = matched.or(this);
        }
        let index = matched.ok_or(SignatureError::Wrong)?;
        if let Some(time) = self.body_time {
            time.check_body(body, self.sender.now())?;
        }
        Ok(Matched::new(&self.set[index], index))
    }
}

fn token_tag(token: &Secret) -> Vec<u8> {
    Keyed::Sha256(token.keyed()).tag([b"", b"", TOKEN])
}

impl From<Unproven> for SignatureError {
    fn from(reason: Unproven) -> Self {
        match reason {
            Unproven::Missing => Self::Missing,
            Unproven::Doubled => Self::Doubled,
            Unproven::Malformed => Self::Malformed,
            Unproven::Incomplete => Self::Incomplete,
            Unproven::Timestamp => Self::Timestamp,
            Unproven::Stale => Self::Stale,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::SystemTime;

    use http::{HeaderMap, Method};

    use super::*;
    use crate::sender::Form;

    thread_local! {
        pub(super) static COMPARISONS: Cell<usize> = const { Cell::new(0) };
    }

    /// Verifies `{}` with three secrets, of which the signature has the tags of these.
    fn verify(sender: &Sender, signers: &[&'static str]) -> (Option<usize>, usize) {
        let secret = |text: &&'static str| Secret::new(*text).unwrap();
        let set = Secrets::new(["a", "b", "c"].iter().map(secret)).unwrap();
        let tags = signers.iter().map(|signer| {
            let keyed = Keyed::Sha256(secret(signer).keyed());
            hex::encode(keyed.tag([b"", b"{}", b""]))
        });
        let tags: Vec<_> = tags.map(|tag| format!("v1={tag}")).collect();
        let headers = HeaderMap::from_iter([(
            http::HeaderName::from_static("x-tags"),
            tags.join(",").parse().unwrap(),
        )]);
        let Form::Described(it) = sender.form() else {
            panic!("{sender:?}")
        };
        let scheme = it.scheme(&headers);
        let claim = scheme
            .claim(&Method::POST, &headers, SystemTime::now())
            .unwrap();
        let mut checked = Checked::new(&set, sender, scheme, claim);
        checked.update(b"{}");
        COMPARISONS.set(0);
        let verified = checked.verify(b"{}").ok();
        (verified.map(|it| it.index), COMPARISONS.get())
    }

    #[test]
    fn every_candidate_is_compared_with_every_secret() {
        let sender: Sender = serde_json::from_str(
            r#"{"name":"acme","signature":{"headers":["x-tags"],"split":",","prefix":"v1=",
            "algorithm":"hmac-sha256","coding":"hex"}}"#,
        )
        .unwrap();
        for (signers, found) in [
            (&["a"][..], Some(0)),
            (&["c"], Some(2)),
            (&["x", "b", "a", "y"], Some(0)),
            (&["x", "b", "y", "z"], Some(1)),
            (&["x", "y", "z", "x", "y", "z", "x", "y"], None),
        ] {
            assert_eq!(
                verify(&sender, signers),
                (found, 3 * signers.len()),
                "{signers:?}"
            );
        }
    }
}
