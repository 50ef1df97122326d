//! The decision whether a body is authentic: a function of its bytes, the header and the secrets.

use std::num::NonZeroU16;
use std::sync::Arc;

use hmac::{Hmac, Mac};
use http::{HeaderMap, HeaderName, Method};
use sha2::Sha256;

use super::described::{self, Checked};
use super::secret::{Secret, Secrets};
use crate::sender::{Form, Sender, SignatureError};

/// The tag that the signature header claims for the body.
pub(super) fn claimed_tag(
    headers: &HeaderMap,
    name: &HeaderName,
) -> Result<[u8; 32], SignatureError> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().ok_or(SignatureError::Missing)?;
    match values.next() {
        // A proxy and this crate could each look at another one.
        Some(_) => Err(SignatureError::Doubled),
        None => parse_tag(value.as_bytes()),
    }
}

pub(super) fn parse_tag(value: &[u8]) -> Result<[u8; 32], SignatureError> {
    // Spec 5.2, rule 2 mandates lowercase; refusing the rest is intentional.
    let digits = <&[u8; 64]>::try_from(value).map_err(|_| SignatureError::Malformed)?;
    let mut tag = [0; 32];
    base16ct::lower::decode(digits, &mut tag).map_err(|_| SignatureError::Malformed)?;
    Ok(tag)
}

/// The tags of a body under every secret of a set, computed while the body arrives.
pub(super) struct Tags {
    secrets: Secrets,
    set: Arc<Vec<Secret>>,
    first: Hmac<Sha256>,
    rest: Vec<Hmac<Sha256>>,
}

/// The secret that proved a body to be authentic.
pub(super) struct Matched {
    pub(super) index: usize,
    pub(super) label: Option<Arc<str>>,
    pub(super) digest: NonZeroU16,
}

impl Matched {
    pub(super) fn new(secret: &Secret, index: usize) -> Self {
        Self {
            index,
            label: secret.label().cloned(),
            digest: secret.digest(),
        }
    }
}

impl Tags {
    pub(super) fn new(secrets: &Secrets) -> Self {
        // The first secret is apart from the rest, so that a set of one, the usual one, allocates nothing.
        let set = secrets.current();
        let first = set[0].keyed(); // A set is never empty.
        let rest = set[1..].iter().map(Secret::keyed).collect();
        Self {
            secrets: secrets.clone(),
            set,
            first,
            rest,
        }
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.first.update(bytes);
        self.rest.iter_mut().for_each(|tag| tag.update(bytes));
    }

    /// Compares the tags with the claimed one. `body` is all that was hashed: should the set have
    /// been replaced meanwhile, it is hashed again, since a removed secret proves nothing.
    pub(super) fn verify(
        mut self,
        body: &[u8],
        claimed: &[u8; 32],
    ) -> Result<Matched, SignatureError> {
        if !self.secrets.is_current(&self.set) {
            self = Self::new(&self.secrets);
            self.update(body);
        }
        // In constant time, and with every secret.
        let mut matched = self.first.verify_slice(claimed).ok().map(|()| 0);
        for (index, tag) in (1..).zip(self.rest) {
            let this = tag.verify_slice(claimed).ok().map(|()| index);
            // `this` is computed in any case. The first match has the name in the log.
            matched = matched.or(this);
        }
        let index = matched.ok_or(SignatureError::Wrong)?;
        Ok(Matched::new(&self.set[index], index))
    }
}

impl Secrets {
    /// Verifies `signature`, the value of the signature header, for `body`, and returns the index of the
    /// secret that made it. Every secret is compared, in constant time.
    ///
    /// [`SignatureLayer`](crate::SignatureLayer) does this while the body arrives.
    ///
    /// ```
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// use tower_webhook::{Secret, Secrets};
    ///
    /// let (old, new) = (Secret::new("old")?, Secret::new("new")?);
    /// let signature = new.sign(b"{}");
    /// let secrets = Secrets::new([old, new])?;
    /// assert_eq!(secrets.verify(b"{}", signature.as_bytes()), Ok(1));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`SignatureError::Malformed`] and [`SignatureError::Wrong`].
    pub fn verify(&self, body: &[u8], signature: &[u8]) -> Result<usize, SignatureError> {
        let claimed = parse_tag(signature)?;
        let mut tags = Tags::new(self);
        tags.update(body);
        tags.verify(body, &claimed).map(|matched| matched.index)
    }
}

impl Sender {
    /// Verifies a POST of which you have headers and body, as where no layer receives it, and returns the index of the
    /// secret that signed it. Every secret is compared, in constant time.
    ///
    /// [`SignatureLayer`](crate::SignatureLayer) does this while the body arrives.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tower_webhook::{EventKind, RawDelivery, Secret, Secrets, Sender};
    ///
    /// let (sender, secret) = (Sender::github(), Secret::new("8c1f…")?);
    /// let delivery = RawDelivery::new(EventKind::from_static("push"), "{}");
    /// let headers = sender.sign(&secret, &delivery)?;
    /// let secrets = Secrets::from(secret);
    /// assert_eq!(sender.verify(&secrets, &headers, b"{}"), Ok(0));
    /// assert!(sender.verify(&secrets, &headers, b"[]").is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Why it is refused. A secret that is not written as this sender writes its secrets verifies nothing.
    pub fn verify(
        &self,
        secrets: &Secrets,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<usize, SignatureError> {
        match self.form() {
            Form::Chat(names) => {
                let claimed = claimed_tag(headers, &names.signature)?;
                let mut tags = Tags::new(secrets);
                tags.update(body);
                tags.verify(body, &claimed).map(|matched| matched.index)
            }
            Form::Described(it) => {
                let claim = it.claim(&Method::POST, headers, || self.now())?;
                described::verify(secrets, self, claim, body)
            }
        }
    }
}

/// How bodies are authenticated.
#[derive(Clone, Debug)]
pub(super) enum Authentication {
    Signed(Secrets),
    /// Nothing is verified, because the user asked for that.
    Unsigned,
}

impl Authentication {
    /// The secret that proved a body, if it is still accepted.
    pub(super) fn secret(&self, matched: &Matched) -> Option<Secret> {
        let Self::Signed(secrets) = self else {
            return None;
        };
        let current = secrets.current();
        let secret = current
            .iter()
            // By its digest: the set may have been replaced after the verification, and another index be its own.
            .find(|secret| secret.digest() == matched.digest);
        secret.cloned()
    }

    pub(super) fn is_unsigned(&self) -> bool {
        matches!(self, Self::Unsigned)
    }
}

/// The computation while a body arrives. Without secrets, there is none.
#[allow(
    clippy::large_enum_variant,
    reason = "the path of the chat platform takes no allocation"
)]
pub(super) enum Hashing {
    Unsigned,
    Chat(Tags, [u8; 32]),
    Described(Box<Checked>),
}

impl Hashing {
    /// Refuses a request whose signature header cannot prove anything, before its body is read.
    #[inline]
    pub(super) fn new(
        authentication: &Authentication,
        sender: &Sender,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<Self, SignatureError> {
        let Authentication::Signed(secrets) = authentication else {
            return Ok(Self::Unsigned);
        };
        match sender.form() {
            Form::Chat(names) => {
                let claimed = claimed_tag(headers, &names.signature)?;
                Ok(Self::Chat(Tags::new(secrets), claimed))
            }
            Form::Described(it) => {
                // The head is read first, so that a stale or malformed one begins no hash per secret.
                let claim = it.claim(method, headers, || sender.now())?;
                Ok(Self::Described(Box::new(Checked::new(
                    secrets, sender, claim,
                ))))
            }
        }
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Unsigned => {}
            Self::Chat(tags, _) => tags.update(bytes),
            Self::Described(checked) => checked.update(bytes),
        }
    }

    /// Decides on a body that was hashed completely. Returns the secret that proved it, if it is signed.
    pub(super) fn verify(self, body: &[u8]) -> Result<Option<Matched>, SignatureError> {
        match self {
            Self::Unsigned => Ok(None),
            Self::Chat(tags, claimed) => tags.verify(body, &claimed).map(Some),
            Self::Described(checked) => checked.verify(body).map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: HeaderName = HeaderName::from_static("x-service-hmac-sha256");

    fn headers(values: &[&str]) -> HeaderMap {
        let values = values.iter().map(|value| (NAME, value.parse().unwrap()));
        HeaderMap::from_iter(values)
    }

    fn secrets(secrets: &[&'static str]) -> Secrets {
        Secrets::new(secrets.iter().map(|&secret| Secret::new(secret).unwrap())).unwrap()
    }

    #[test]
    fn the_log_tells_what_is_wrong_with_a_signature() {
        let zeros = "0".repeat(64);
        for (values, error) in [
            (&[][..], SignatureError::Missing),
            (&[zeros.as_str(), &zeros], SignatureError::Doubled),
            (&["", ""], SignatureError::Doubled),
            (&[""], SignatureError::Malformed),
            (&[&zeros[1..]], SignatureError::Malformed),
            (&[&zeros.replace('0', "A")], SignatureError::Malformed),
            (&[&zeros.replace('0', "g")], SignatureError::Malformed),
            (&[&zeros.replace('0', "/")], SignatureError::Malformed),
            (&[&zeros.replace('0', ":")], SignatureError::Malformed),
            (&[&zeros.replace('0', "`")], SignatureError::Malformed),
        ] {
            assert_eq!(claimed_tag(&headers(values), &NAME), Err(error));
        }
        assert_eq!(claimed_tag(&headers(&[&zeros]), &NAME), Ok([0; 32]));
    }

    #[test]
    fn every_secret_of_a_set_is_tried_and_the_first_match_named() {
        let set = secrets(&["a", "b", "c", "b"]);
        for (secret, expected) in [
            ("a", Ok(0)),
            ("b", Ok(1)),
            ("c", Ok(2)),
            ("d", Err(SignatureError::Wrong)),
        ] {
            let tag = Secret::new(secret).unwrap().sign(b"body");
            assert_eq!(set.verify(b"body", tag.as_bytes()), expected);
        }
    }

    #[test]
    fn a_set_that_is_replaced_while_a_body_arrives_decides() {
        let set = secrets(&["old", "both"]);
        let verify = |signer: &'static str| {
            let mut tags = Tags::new(&set);
            tags.update(b"bo");
            set.replace(secrets(&["both", "new"]).current().to_vec())
                .unwrap();
            tags.update(b"dy");
            let tag = Secret::new(signer).unwrap().sign(b"body");
            let verified = tags.verify(b"body", &parse_tag(tag.as_bytes()).unwrap());
            set.replace(secrets(&["old", "both"]).current().to_vec())
                .unwrap();
            verified.map(|matched| matched.index)
        };
        assert_eq!(verify("old"), Err(SignatureError::Wrong));
        assert_eq!(verify("both"), Ok(0));
        assert_eq!(verify("new"), Ok(1));
    }
}
