//! The decision whether a body is authentic: a function of its bytes, the header and the secrets.

use std::num::NonZeroU16;
use std::sync::Arc;

use http::{HeaderMap, Uri};

use super::buffer::Share;
use super::checked::{Checked, How, add_token, check_body, decided, signer};
use super::secret::{Secret, Secrets};
use super::verifier::Shared;
use crate::sender::{Claim, Head, Sender, SignatureError};

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
        let claim = Claim::of_body(signature)?;
        let index = signer(&self.current(), How::PLAIN, &claim, body);
        index.ok_or(SignatureError::Wrong)
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
        self.verified(secrets, Head::of_post(None, headers), body)
    }

    /// The same where the target of the request is known, for a sender whose signature is a query parameter of it.
    ///
    /// # Errors
    ///
    /// As [`verify`](Self::verify).
    pub fn verify_at(
        &self,
        target: &Uri,
        secrets: &Secrets,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<usize, SignatureError> {
        self.verified(secrets, Head::of_post(Some(target), headers), body)
    }

    #[inline]
    pub(super) fn verified(
        &self,
        secrets: &Secrets,
        head: Head<'_>,
        body: &[u8],
    ) -> Result<usize, SignatureError> {
        let (scheme, mut claim) = self.described().claim(head, || self.now())?;
        let reads_body = scheme.reads_body();
        if reads_body {
            add_token(&mut claim, scheme, self, body)?;
        }
        // The body is there, so one secret after another is compared, and no state per secret is kept.
        let (set, how) = (secrets.current(), How::of(scheme));
        let index = signer(&set, how, &claim, body);
        let index = decided(index, (&set, how), &claim, body);
        let index = index.ok_or(SignatureError::Wrong)?;
        if reads_body {
            // Only now: nothing but a token is read of a body before it is verified.
            check_body(scheme, self, body)?;
        }
        Ok(index)
    }
}

/// How bodies are authenticated.
#[derive(Clone, Debug)]
pub(super) enum Authentication {
    Signed(Secrets),
    /// Nothing is verified, because the user asked for that.
    Unsigned,
    /// By code of the application, when the body is complete.
    By(Shared),
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

    /// The first secret, which makes the tag that an unsigned challenge asks for.
    pub(super) fn first(&self) -> Option<Secret> {
        match self {
            Self::Signed(secrets) => secrets.current().first().cloned(),
            Self::Unsigned | Self::By(_) => None,
        }
    }

    pub(super) fn is_unsigned(&self) -> bool {
        matches!(self, Self::Unsigned)
    }

    pub(super) fn verifier(&self) -> Option<&Shared> {
        match self {
            Self::By(verifier) => Some(verifier),
            _ => None,
        }
    }
}

/// What proved a body that is complete.
pub(super) enum Found {
    /// Nothing, because the user asked for that.
    Unsigned,
    Secret(Matched),
    /// Nothing yet: a verifier has to decide. Until then, the body's memory counts.
    Later(Box<Share>),
    /// Nothing: it may bring a secret.
    Handshake,
    /// Nothing, and it is refused for this.
    Wrong(SignatureError),
}

/// The computation while a body arrives. Without secrets, there is none.
#[allow(
    clippy::large_enum_variant,
    reason = "nearly every delivery is signed, and takes no allocation"
)]
pub(super) enum Hashing {
    Unsigned,
    Signed(Checked),
    Later,
    Handshake,
}

impl Hashing {
    /// Refuses a request whose signature header cannot prove anything, before its body is read.
    #[inline]
    pub(super) fn new(
        authentication: &Authentication,
        sender: &Sender,
        head: Head<'_>,
    ) -> Result<Self, SignatureError> {
        let secrets = match authentication {
            Authentication::Signed(secrets) => secrets,
            Authentication::Unsigned => return Ok(Self::Unsigned),
            Authentication::By(_) => return Ok(Self::Later),
        };
        // The head is read first, so that a stale or malformed one begins no hash per secret.
        let claim = sender.described().claim(head, || sender.now())?;
        Ok(Self::Signed(Checked::new(secrets, sender, claim)))
    }

    #[inline]
    pub(super) fn update(&mut self, bytes: &[u8]) {
        if let Self::Signed(checked) = self {
            checked.update(bytes);
        }
    }

    /// Decides on a body that was hashed completely, and takes `share` of the memory.
    #[inline]
    pub(super) fn verify(self, body: &[u8], share: Share) -> Found {
        match self {
            Self::Unsigned => Found::Unsigned,
            Self::Signed(checked) => match checked.verify(body) {
                Ok(matched) => Found::Secret(matched),
                Err(error) => Found::Wrong(error),
            },
            Self::Later => Found::Later(Box::new(share)),
            Self::Handshake => Found::Handshake,
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

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
        let sender = Sender::default();
        let claim = |headers: &HeaderMap| {
            let claim = sender
                .described()
                .claim(Head::of_post(None, headers), || sender.now());
            claim.map(|(_, claim)| claim)
        };
        let zeros = "0".repeat(64);
        for (values, error) in [
            (&[][..], SignatureError::Missing),
            (&[zeros.as_str(), &zeros], SignatureError::Doubled),
            (&["", ""], SignatureError::Doubled),
            (&[""], SignatureError::Malformed),
            (&[&zeros[1..]], SignatureError::Malformed),
            (&[&zeros.repeat(3)], SignatureError::Malformed),
            (&[&zeros.replace('0', "A")], SignatureError::Malformed),
            (&[&zeros.replace('0', "g")], SignatureError::Malformed),
            (&[&zeros.replace('0', "/")], SignatureError::Malformed),
            (&[&zeros.replace('0', ":")], SignatureError::Malformed),
            (&[&zeros.replace('0', "`")], SignatureError::Malformed),
        ] {
            assert_eq!(claim(&headers(values)).unwrap_err(), error);
        }
        let claim = claim(&headers(&[&zeros])).unwrap();
        assert_eq!(claim.tags.iter().collect::<Vec<_>>(), [[0; 32]]);
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
            let tag = Secret::new(signer).unwrap().sign(b"body");
            let sender = Sender::default();
            let signed = Authentication::Signed(set.clone());
            let headers = headers(&[&tag]);
            let hashing = Hashing::new(&signed, &sender, Head::of_post(None, &headers));
            let mut hashing = hashing.unwrap();
            hashing.update(b"bo");
            set.replace(secrets(&["both", "new"]).current().to_vec())
                .unwrap();
            hashing.update(b"dy");
            let Hashing::Signed(checked) = hashing else {
                panic!("it is signed")
            };
            let verified = checked.verify(b"body");
            set.replace(secrets(&["old", "both"]).current().to_vec())
                .unwrap();
            verified.map(|matched| matched.index)
        };
        assert_eq!(verify("old"), Err(SignatureError::Wrong));
        assert_eq!(verify("both"), Ok(0));
        assert_eq!(verify("new"), Ok(1));
    }
}
