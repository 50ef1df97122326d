//! The tags of a body under every secret of a set, compared with the tags that a request claims.

use std::slice;
use std::sync::Arc;

use hmac::digest::CtOutput;
use hmac::digest::array::Array;
use hmac::{Hmac, Mac};
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha512};

use super::compare::any;
use super::keys::Verification;
use super::secret::{Secret, Secrets};
use super::verify::Matched;
use crate::sender::{Algorithm, Claim, Scheme, SecretCoding, Sender, SignatureError, TOKEN, Tags};

/// A hash under one secret, before it is complete.
pub(super) enum Keyed {
    Sha256(Hmac<Sha256>),
    Sha1(Hmac<Sha1>),
    /// Boxed, because it is larger than that of nearly all senders.
    Sha512(Box<Hmac<Sha512>>),
}

impl Keyed {
    /// The state before the first byte. `None` if the secret is not written as the sender writes its secrets, or is none.
    #[inline(always)]
    pub(super) fn new(secret: &Secret, algorithm: Algorithm, coding: SecretCoding) -> Option<Self> {
        match algorithm {
            // First: whoever knows a public key could make this tag, too.
            _ if secret.is_public() => None,
            Algorithm::HmacSha256 | Algorithm::Token => {
                Some(Self::Sha256(secret.decoded(coding)?.clone()))
            }
            Algorithm::HmacSha1 => Some(Self::Sha1(secret.keyed_sha1())),
            Algorithm::HmacSha512 => Some(Self::Sha512(Box::new(secret.keyed_sha512()))),
            // It has a private key.
            _ => None,
        }
    }

    #[inline]
    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::Sha1(hash) => hash.update(bytes),
            Self::Sha512(hash) => hash.update(bytes),
        }
    }

    pub(super) fn tag(mut self, pieces: [&[u8]; 3]) -> Vec<u8> {
        pieces.iter().for_each(|piece| self.update(piece));
        match self {
            Self::Sha256(hash) => hash.finalize().into_bytes().to_vec(),
            Self::Sha1(hash) => hash.finalize().into_bytes().to_vec(),
            Self::Sha512(hash) => hash.finalize().into_bytes().to_vec(),
        }
    }

    /// Compares the complete hash with every candidate, in constant time. Returns whether one is equal.
    #[inline]
    fn matches_one(self, candidates: &Tags) -> bool {
        match self {
            Self::Sha256(hash) => {
                let own = hash.finalize();
                any(candidates.iter(), |tag| {
                    // `CtOutput` compares in constant time. The length is not secret, and `Scheme` has checked it.
                    Array::try_from(tag).is_ok_and(|it| own == CtOutput::new(it))
                })
            }
            Self::Sha1(hash) => {
                let own = hash.finalize();
                any(candidates.iter(), |tag| {
                    Array::try_from(tag).is_ok_and(|it| own == CtOutput::new(it))
                })
            }
            Self::Sha512(hash) => {
                let own = hash.finalize();
                any(candidates.iter(), |tag| {
                    Array::try_from(tag).is_ok_and(|it| own == CtOutput::new(it))
                })
            }
        }
    }
}

/// What one secret or public key says of the candidates, before the body is complete.
enum Check {
    Hash(Keyed),
    /// Boxed, because it is large, and so slow that the box does not matter.
    Key(Box<Verification>),
    /// Under a secret that may be read in two ways.
    Either(Box<[Keyed; 2]>),
}

impl Check {
    /// The state before the first byte. `None` if the secret is not in the sender's form.
    #[inline(always)] // Otherwise the state of 144 bytes is copied twice more for each delivery.
    fn new(secret: &Secret, how: How, tags: &Tags) -> Option<Self> {
        if how.algorithm.is_asymmetric() {
            let verification = secret.public()?.begin(how.algorithm, tags)?;
            return Some(Self::Key(Box::new(verification)));
        }
        let keyed = Keyed::new(secret, how.algorithm, how.coding)?;
        if how.coding == SecretCoding::TextOrBase64
            && let Some(decoded) = Keyed::new(secret, how.algorithm, SecretCoding::Base64)
        {
            return Some(Self::Either(Box::new([keyed, decoded])));
        }
        Some(Self::Hash(keyed))
    }

    #[inline]
    fn update(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        match self {
            Self::Hash(hash) => hash.update(bytes),
            Self::Key(verification) => verification.update(bytes),
            Self::Either(hashes) => hashes.iter_mut().for_each(|it| it.update(bytes)),
        }
    }

    /// Compares what was hashed with every candidate, in constant time. Returns whether one is right. `body` is for what
    /// could not be hashed as it arrived.
    #[inline]
    fn matches_one(mut self, how: How, claim: &Claim, body: &[u8]) -> bool {
        if how.signs_digest {
            self.update(digest(body).as_bytes());
        }
        self.update(how.after(claim));
        match self {
            Self::Hash(hash) => hash.matches_one(&claim.tags),
            Self::Key(verification) => {
                let signed = |body| [claim.before(), body, claim.after()];
                match how.signs_digest {
                    true => verification.matches_one(&claim.tags, signed(digest(body).as_bytes())),
                    false => verification.matches_one(&claim.tags, signed(body)),
                }
            }
            Self::Either(hashes) => any(*hashes, |it| it.matches_one(&claim.tags)),
        }
    }
}

/// The SHA-256 of a body in hex.
fn digest(body: &[u8]) -> String {
    base16ct::lower::encode_string(&Sha256::digest(body))
}

/// What of a scheme is needed for the body.
#[derive(Clone, Copy)]
pub(super) struct How {
    algorithm: Algorithm,
    coding: SecretCoding,
    signs_digest: bool,
}

impl How {
    /// As the chat platform signs.
    pub(super) const PLAIN: Self = Self {
        algorithm: Algorithm::HmacSha256,
        coding: SecretCoding::Text,
        signs_digest: false,
    };

    /// Under the secret's text.
    pub(super) fn by(algorithm: Algorithm) -> Self {
        Self {
            algorithm,
            ..Self::PLAIN
        }
    }

    /// With each form of the secret, in words: first as the sender writes it.
    pub(super) fn others(scheme: &Scheme) -> impl Iterator<Item = (&'static str, Self)> {
        let algorithm = scheme.algorithm;
        let all = [
            ("", scheme.secret),
            (", with the secret's text as it is", SecretCoding::Text),
            (", with the secret as base64", SecretCoding::Base64),
            (", with the secret as hex digits", SecretCoding::Hex),
        ];
        // Its own form stands twice, and that of SHA-1 is always the text.
        let own = scheme.secret;
        let is_other = move |index: usize, coding| {
            index == 0 || coding != own && algorithm == Algorithm::HmacSha256
        };
        let numbered = all.into_iter().enumerate();
        let others = numbered.filter(move |(index, (_, coding))| is_other(*index, *coding));
        let own = Self::of(scheme);
        others.map(move |(_, (what, coding))| (what, Self { coding, ..own }))
    }

    pub(super) fn of(scheme: &Scheme) -> Self {
        Self {
            algorithm: scheme.algorithm,
            coding: scheme.secret,
            signs_digest: scheme.signs_digest(),
        }
    }

    /// What is hashed of the body.
    fn part<'a>(&self, body: &'a [u8]) -> &'a [u8] {
        match self.algorithm {
            // A token proves who sent the body, and not what is in it.
            Algorithm::Token => b"",
            // Its digest is hashed when it is complete.
            _ if self.signs_digest => b"",
            _ => body,
        }
    }

    fn after<'a>(&self, claim: &'a Claim) -> &'a [u8] {
        match self.algorithm {
            Algorithm::Token => TOKEN,
            _ => claim.after(),
        }
    }
}

/// Verifies a body that is there. Returns the index of the first secret that signed it, after all were compared.
#[inline]
pub(super) fn signer(set: &[Secret], how: How, claim: &Claim, body: &[u8]) -> Option<usize> {
    let matches = |secret| {
        Check::new(secret, how, &claim.tags).is_some_and(|mut check| {
            check.update(claim.before());
            check.update(how.part(body));
            check.matches_one(how, claim, body)
        })
    };
    first(set.iter().map(matches))
}

/// The decision, with the secret that [`signer`] found: of further lists of elements, one is enough, and of further
/// elements of an array, each must be right.
#[inline]
pub(super) fn decided(
    index: Option<usize>,
    (set, how): (&[Secret], How),
    claim: &Claim,
    body: &[u8],
) -> Option<usize> {
    let index = index.or_else(|| signer_of_others(set, how, claim, body))?;
    let mut every = claim.every().iter();
    let are_right = every.all(|claim| signer(set, how, claim, body).is_some());
    are_right.then_some(index)
}

/// The same for the further lists of elements, of which one is enough.
#[cold]
fn signer_of_others(set: &[Secret], how: How, claim: &Claim, body: &[u8]) -> Option<usize> {
    let mut others = claim.others().iter();
    others.find_map(|claim| signer(set, how, claim, body))
}

/// The index of the first that is true. All are computed.
fn first(matches: impl Iterator<Item = bool>) -> Option<usize> {
    matches.enumerate().fold(None, |first, (index, is_match)| {
        first.or(is_match.then_some(index))
    })
}

/// The computation while a body arrives.
pub(super) struct Checked {
    secrets: Secrets,
    set: Arc<Vec<Secret>>,
    checks: Checks,
    claim: Claim,
    how: How,
    /// The scheme of this number reads the body once it is complete. The sender has the clock.
    late: Option<Box<(usize, Sender)>>,
}

/// One for each secret: `None` if it is not in the sender's form. One alone, as usual, takes no allocation.
enum Checks {
    One(Option<Check>),
    Several(Vec<Option<Check>>),
}

impl Checks {
    #[inline]
    fn update(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let checks = match self {
            Self::One(check) => slice::from_mut(check),
            Self::Several(checks) => checks,
        };
        let checks = checks.iter_mut().flatten();
        checks.for_each(|check| check.update(bytes));
    }
}

impl Checked {
    #[inline]
    pub(super) fn new(
        secrets: &Secrets,
        sender: &Sender,
        (scheme, claim): (&Scheme, Claim),
    ) -> Self {
        let how = How::of(scheme);
        let set = secrets.current();
        let check = |secret| Check::new(secret, how, &claim.tags);
        let mut checks = match &set[..] {
            [only] => Checks::One(check(only)),
            several => Checks::Several(several.iter().map(check).collect()),
        };
        checks.update(claim.before());
        Self {
            secrets: secrets.clone(),
            set,
            checks,
            claim,
            how,
            late: scheme.reads_body().then(|| {
                let mut schemes = sender.described().schemes().iter();
                let number = schemes.position(|it| std::ptr::eq(it, scheme));
                Box::new((number.unwrap_or_default(), sender.clone()))
            }),
        }
    }

    #[inline]
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.checks.update(self.how.part(bytes));
    }

    /// Compares the tags with the claimed ones. `body` is all that was hashed. If the set has been replaced since, it
    /// is hashed again, because a removed secret proves nothing.
    pub(super) fn verify(mut self, body: &[u8]) -> Result<Matched, SignatureError> {
        let late = self.late.as_deref();
        let late = late.map(|(number, sender)| (&sender.described().schemes()[*number], sender));
        if let Some((scheme, sender)) = late {
            add_token(&mut self.claim, scheme, sender, body)?;
        }
        let (how, claim) = (self.how, &self.claim);
        let matches = |it: Option<Check>| it.is_some_and(|it| it.matches_one(how, claim, body));
        let index = match self.checks {
            _ if !self.secrets.is_current(&self.set) => {
                self.set = self.secrets.current();
                signer(&self.set, how, claim, body)
            }
            Checks::One(check) => matches(check).then_some(0),
            Checks::Several(checks) => first(checks.into_iter().map(matches)),
        };
        let index = decided(index, (&self.set, how), claim, body);
        let index = index.ok_or(SignatureError::Wrong)?;
        if let Some((scheme, sender)) = late {
            check_body(scheme, sender, body)?;
        }
        Ok(Matched::new(&self.set[index], index))
    }
}

/// Checks what stands in a verified body.
pub(super) fn check_body(
    scheme: &Scheme,
    sender: &Sender,
    body: &[u8],
) -> Result<(), SignatureError> {
    let body = sender.described().readable(body);
    scheme.check_body(&body.map_err(|_| SignatureError::Timestamp)?, sender.now())
}

/// Adds the token that stands in the body, if it is there that it stands.
#[cold]
pub(super) fn add_token(
    claim: &mut Claim,
    scheme: &Scheme,
    sender: &Sender,
    body: &[u8],
) -> Result<(), SignatureError> {
    if !scheme.has_token_in_body() {
        return Ok(());
    }
    let body = sender.described().readable(body);
    let tokens = scheme.tokens_in(&body.map_err(|_| SignatureError::Malformed)?)?;
    match (tokens.is_empty(), &claim.tags) {
        (false, Tags::One(_) | Tags::Several(_)) => Err(SignatureError::Doubled),
        (false, Tags::None) => {
            claim.add(tokens);
            Ok(())
        }
        (true, Tags::None) => Err(SignatureError::Missing),
        (true, _) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use http::HeaderMap;

    use super::super::compare::COMPARISONS;
    use super::*;
    use crate::sender::Head;

    /// Verifies `{}` with these tags. Returns which secret made one of them, and the number of comparisons.
    fn verify(sender: &Sender, set: &Secrets, tags: &[String]) -> (Option<usize>, usize) {
        let tags: Vec<_> = tags.iter().map(|tag| format!("v1={tag}")).collect();
        let headers = HeaderMap::from_iter([(
            http::HeaderName::from_static("x-tags"),
            tags.join(",").parse().unwrap(),
        )]);
        let claim = sender
            .described()
            .claim(Head::of_post(None, &headers), SystemTime::now);
        let mut checked = Checked::new(set, sender, claim.unwrap());
        checked.update(b"{}");
        COMPARISONS.set(0);
        let verified = checked.verify(b"{}").ok().map(|it| it.index);
        let count = COMPARISONS.replace(0);
        // At once, as while it arrives.
        assert_eq!(sender.verify(set, &headers, b"{}").ok(), verified);
        assert_eq!(COMPARISONS.get(), count);
        (verified, count)
    }

    fn sender(algorithm: &str) -> Sender {
        let signature = serde_json::json!({
            "headers": ["x-tags"], "split": ",", "prefix": "v1=", "algorithm": algorithm, "coding": "hex",
        });
        let sender = serde_json::json!({"name": "acme", "signature": signature});
        serde_json::from_value(sender).unwrap()
    }

    #[test]
    fn every_candidate_is_compared_with_every_secret() {
        let sender = sender("hmac-sha256");
        let secret = |text: &&'static str| Secret::new(*text).unwrap();
        let set = Secrets::new(["a", "b", "c"].iter().map(secret)).unwrap();
        for (signers, found) in [
            (&["a"][..], Some(0)),
            (&["c"], Some(2)),
            (&["x", "b", "a", "y"], Some(0)),
            (&["x", "b", "y", "z"], Some(1)),
            (&["x", "y", "z", "x", "y", "z", "x", "y"], None),
        ] {
            let tags = signers.iter().map(|signer| {
                let keyed = Keyed::Sha256(secret(signer).keyed());
                base16ct::lower::encode_string(keyed.tag([b"", b"{}", b""]).as_ref())
            });
            assert_eq!(
                verify(&sender, &set, &tags.collect::<Vec<_>>()),
                (found, 3 * signers.len()),
                "{signers:?}"
            );
        }
    }

    #[cfg(feature = "public-keys")]
    #[test]
    fn every_candidate_is_compared_with_every_public_key() {
        let [private, public] = [
            "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==",
            "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=",
        ];
        let other = "d3ee6bf0d1b8966e44d188bc9fcb079e93ffe2a4ae2112b7214262c59ac49b4b";
        let keys = [other, public, public].map(|key| Secret::new(key).unwrap());
        let set = Secrets::new(keys).unwrap();
        let private = Secret::new(private).unwrap();
        let sign = private.private().unwrap();
        let right = sign.sign(Algorithm::Ed25519, [b"{}", b"", b""]).unwrap();
        let (right, wrong) = (
            base16ct::lower::encode_string(right.as_ref()),
            "0".repeat(128),
        );
        for (tags, found) in [
            (&[&right][..], Some(1)),
            (&[&wrong, &right, &wrong], Some(1)),
            (&[&wrong; 8], None),
        ] {
            let tags: Vec<_> = tags.iter().map(|tag| (*tag).clone()).collect();
            let counted = verify(&sender("ed25519"), &set, &tags);
            assert_eq!(counted, (found, 3 * tags.len()));
        }
    }
}
