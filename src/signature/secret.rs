//! Secrets, and the set of accepted secrets.

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::num::NonZeroU16;
use std::path::Path;
use std::sync::Arc;
use std::vec;

use arc_swap::ArcSwap;
use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;
use sha2::{Sha256, Sha512};
use zeroize::Zeroizing;

use super::keys::{Signing, Verifying};
use crate::config::{ConfigError, secret_variable};
use crate::private::is_open_to_others;
use crate::sender::SecretCoding;

/// A secret that is set both at the sender, such as in the partner portal, and here
/// ([Spec 5.2, rule 1](crate::docs::platform#spec-5-2-rule-1)). Use it for nothing else.
///
/// Any non-empty sequence of characters is a secret, and the chat platform's bytes are used as they are: a secret that
/// looks like hex is not decoded. Give a secret as the sender shows it, such as `whsec_…`: a [`Sender`](crate::Sender)
/// knows whether to decode it. If you choose it, take 20 random bytes in hex (`openssl rand -hex 20`): who guesses it
/// can send any event. See [secrets](crate::docs::production#secrets).
///
/// Only keyed states of hashes are kept. They, and the bytes given to [`new`](Self::new), are
/// zeroed on drop, and `Debug` shows none of them. With the feature `public-keys`, a text that
/// can be a public key, as one of two of 64 hex digits can, is kept as that, too.
#[derive(Clone)]
pub struct Secret {
    // Apart from the others, since the chat platform's path needs no more, and copies it for each delivery.
    keyed: Hmac<Sha256>,
    others: Arc<Others>,
    digest: NonZeroU16,
    label: Option<Arc<str>>,
}

/// The keyed states for senders other than the chat platform. Those that decode their secrets have one if it is
/// written like that.
struct Others {
    sha1: Hmac<Sha1>,
    sha512: Hmac<Sha512>,
    base64: Option<Hmac<Sha256>>,
    hex: Option<Hmac<Sha256>>,
    public: Option<Verifying>,
    private: Option<Signing>,
    /// It is a public key for certain, so that no tag may be made with it.
    is_public: bool,
    /// What it has that was most likely copied by mistake.
    mistake: Option<&'static str>,
}

impl Others {
    fn new(secret: &[u8]) -> Option<Self> {
        let keyed = |bytes: Vec<u8>| {
            let bytes = Zeroizing::new(bytes);
            // HMAC accepts an empty key, such as that of `whsec_` alone, and anybody could sign with it.
            (!bytes.is_empty()).then(|| Hmac::new_from_slice(&bytes).ok())?
        };
        let base64 = secret.strip_prefix(b"whsec_").unwrap_or(secret);
        // A secret may lack its `=`; a tag must have them (senders.md, "Stricter").
        let padding =
            GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
        let engine = GeneralPurpose::new(&STANDARD, padding);
        Some(Self {
            sha1: Hmac::new_from_slice(secret).ok()?,
            sha512: Hmac::new_from_slice(secret).ok()?,
            base64: engine.decode(base64).ok().and_then(keyed),
            hex: base16ct::mixed::decode_vec(secret).ok().and_then(keyed),
            public: Verifying::parse(secret).ok(),
            private: Signing::parse(secret),
            // 64 hex digits and base64 can also be a secret, so only the prefix tells.
            is_public: secret.starts_with(b"whpk_"),
            mistake: mistake(secret),
        })
    }
}

/// What of a secret no sender shows.
fn mistake(secret: &[u8]) -> Option<&'static str> {
    let (first, last) = (secret.first()?, secret.last()?);
    if secret.contains(&b'\n') || secret.contains(&b'\r') {
        return Some("a line end");
    }
    if first.is_ascii_whitespace() || last.is_ascii_whitespace() {
        return Some("a blank at its beginning or end");
    }
    let is_quoted = secret.len() > 1 && first == last && b"\"'`".contains(first);
    is_quoted.then_some("quotes around it")
}

impl Secret {
    /// Creates a secret from its bytes.
    ///
    /// ```
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// use tower_webhook::Secret;
    ///
    /// let secret = Secret::new("8c1f5a0e")?;
    /// assert!(Secret::new("").is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConfigError::EmptySecret`] when there are none.
    pub fn new(secret: impl Into<Vec<u8>>) -> Result<Self, ConfigError> {
        let bytes = Zeroizing::new(secret.into());
        if bytes.is_empty() {
            return Err(ConfigError::EmptySecret);
        }
        let keyed = Hmac::new_from_slice(&bytes).map_err(|_| ConfigError::EmptySecret)?;
        let digest = digest(keyed.clone());
        let others = Others::new(&bytes).ok_or(ConfigError::EmptySecret)?;
        Ok(Self {
            keyed,
            others: Arc::new(others),
            digest,
            label: None,
        })
    }

    /// Reads a secret from an environment variable, without changing it.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// let secret = tower_webhook::Secret::from_env("WEBHOOK_SECRET")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConfigError::Environment`] when the variable is not set, empty, or not Unicode.
    pub fn from_env(name: &str) -> Result<Self, ConfigError> {
        let wrong = |source| ConfigError::Environment {
            name: name.to_owned(),
            source,
        };
        match secret_variable(name) {
            // Of several variables, the error says which one is empty.
            Ok(secret) if secret.is_empty() => Err(wrong(None)),
            Ok(secret) => Self::new(secret),
            Err(source) => Err(wrong(Some(source))),
        }
    }

    /// Sets the name of the secret in the log, which otherwise shows its index in the set.
    ///
    /// ```
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// let secret = tower_webhook::Secret::new("8c1f5a0e")?.with_label("since May");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Returns the value of the signature header for a body: 64 lowercase hex digits
    /// ([Spec 5.2, rule 2](crate::docs::platform#spec-5-2-rule-2)).
    ///
    /// Use it in tests, to sign deliveries as the platform does.
    ///
    /// ```
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// let secret = tower_webhook::Secret::new("Jefe")?;
    /// assert_eq!(
    ///     secret.sign(b"what do ya want for nothing?"), // RFC 4231, test case 2
    ///     "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
    /// );
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn sign(&self, body: &[u8]) -> String {
        tag(self.keyed(), body)
    }

    /// The tag under the decoded secret. `None` if it is not written like that.
    pub(super) fn sign_as(&self, coding: SecretCoding, body: &[u8]) -> Option<Vec<u8>> {
        let keyed = self.decoded(coding)?.clone();
        Some(keyed.chain_update(body).finalize().into_bytes().to_vec())
    }

    pub(super) fn label(&self) -> Option<&Arc<str>> {
        self.label.as_ref()
    }

    /// Distinguishes the few secrets of a set, independently of their order.
    ///
    /// Its 16 bits reveal nothing useful of 20 random bytes; of a guessable secret they exclude all but every 65,536th
    /// guess.
    pub(super) fn digest(&self) -> NonZeroU16 {
        self.digest
    }

    /// The state of the hash before the first byte of a body.
    pub(super) fn keyed(&self) -> Hmac<Sha256> {
        self.keyed.clone()
    }

    pub(super) fn keyed_sha1(&self) -> Hmac<Sha1> {
        self.others.sha1.clone()
    }

    pub(super) fn keyed_sha512(&self) -> Hmac<Sha512> {
        self.others.sha512.clone()
    }

    /// What it has that was most likely copied by mistake, such as a line end.
    pub(super) fn mistake(&self) -> Option<&'static str> {
        self.others.mistake
    }

    /// This secret as a public key, which stands in its place and is logged by this digest.
    #[cfg(feature = "public-keys")]
    pub(super) fn with_public(self, key: Verifying, digest: NonZeroU16) -> Self {
        let others = Others {
            sha1: self.keyed_sha1(),
            sha512: self.keyed_sha512(),
            // Nothing is left that could make a tag under the key's text: `self` is an unguessable secret.
            base64: None,
            hex: None,
            public: Some(key),
            private: None,
            is_public: true,
            mistake: None,
        };
        Self {
            others: Arc::new(others),
            digest,
            ..self
        }
    }

    pub(super) fn is_public(&self) -> bool {
        self.others.is_public
    }

    /// The public key, if it is one or is written like one.
    pub(super) fn public(&self) -> Option<&Verifying> {
        self.others.public.as_ref()
    }

    /// The private key, if it is written like one.
    pub(super) fn private(&self) -> Option<&Signing> {
        self.others.private.as_ref()
    }

    /// The state of the hash under the decoded secret. `None` if it is not written like that.
    #[inline]
    pub(super) fn decoded(&self, coding: SecretCoding) -> Option<&Hmac<Sha256>> {
        match coding {
            SecretCoding::Text | SecretCoding::TextOrBase64 => Some(&self.keyed),
            SecretCoding::Base64 => self.others.base64.as_ref(),
            SecretCoding::Hex => self.others.hex.as_ref(),
        }
    }
}

fn tag(keyed: Hmac<Sha256>, body: &[u8]) -> String {
    base16ct::lower::encode_string(&keyed.chain_update(body).finalize().into_bytes())
}

fn digest(keyed: Hmac<Sha256>) -> NonZeroU16 {
    let tag = keyed.chain_update(b"tower-webhook: the label of a secret");
    let tag = tag.finalize().into_bytes();
    // 0 becomes 1, which costs nothing: the digest only has to distinguish a few secrets.
    NonZeroU16::new(u16::from_be_bytes([tag[0], tag[1]])).unwrap_or(NonZeroU16::MIN)
}

partial_debug!(Secret, |it| label = it.label);

/// A handle to the set of accepted secrets. Clones are cheap, and share the set.
///
/// To rotate a secret, accept the new one beside the old, change it at the sender, and drop the old
/// one. [`replace`](Self::replace) changes the set while deliveries are in flight:
///
/// ```
/// use tower_webhook::{Secret, Secrets, Webhooks};
///
/// # fn main() -> Result<(), tower_webhook::ConfigError> {
/// let secrets = Secrets::from(Secret::new("old")?);
/// let webhooks = Webhooks::new(secrets.clone());
///
/// secrets.replace([Secret::new("old")?, Secret::new("new")?])?; // then change the portal,
/// secrets.replace([Secret::new("new")?])?; // and then drop the old one
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
// Each delivery reads the set, and hardly anything replaces it: readers take no lock.
pub struct Secrets(Arc<ArcSwap<Vec<Secret>>>);

impl Secrets {
    /// Creates a set of secrets.
    ///
    /// # Errors
    ///
    /// [`ConfigError::NoSecrets`] when the set is empty.
    pub fn new(secrets: impl IntoIterator<Item = Secret>) -> Result<Self, ConfigError> {
        Ok(Self(Arc::new(ArcSwap::from(Self::set(secrets)?))))
    }

    /// Reads a set from a file with one secret per line.
    ///
    /// Each line is used exactly as it is, spaces included. Empty lines are skipped, and there are no
    /// comments. A line of only white space is refused, since it is most likely a mistake.
    ///
    /// Each secret has a [label](Secret::with_label) for the log: four hex digits, derived from the secret, which
    /// stay the same when lines are added or removed. If other users may read or write the file, the log has a warning,
    /// unless Kubernetes has written it for a container.
    ///
    /// # Errors
    ///
    /// [`ConfigError::SecretFile`] when the file cannot be read, is not UTF-8, or contains no secret.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        Self::new(Self::read(path.as_ref())?)
    }

    /// Replaces the set, such as with that of a file that was [read](Self::from_file) again. A body that is being received is
    /// verified with the new set.
    ///
    /// # Errors
    ///
    /// [`ConfigError::NoSecrets`] when the new set is empty. The old one stays.
    pub fn replace(&self, secrets: impl IntoIterator<Item = Secret>) -> Result<(), ConfigError> {
        self.0.store(Self::set(secrets)?);
        Ok(())
    }

    /// Returns how the log names each secret: by its [label](Secret::with_label), or else by its index.
    #[must_use]
    pub fn labels(&self) -> Vec<String> {
        let secrets = self.current();
        let names = secrets.iter().enumerate();
        names
            .map(|(index, secret)| {
                secret
                    .label()
                    .map_or(index.to_string(), ToString::to_string)
            })
            .collect()
    }

    fn read(path: &Path) -> Result<Vec<Secret>, ConfigError> {
        let failed = |source| ConfigError::SecretFile {
            path: path.to_owned(),
            source,
        };
        let text = fs::read_to_string(path)
            .map(Zeroizing::new)
            .map_err(failed)?;
        let invalid = |what: &str| failed(io::Error::new(ErrorKind::InvalidData, what));
        let mut secrets = Vec::new();
        // Editors on Windows write a byte order mark, which would be a part of the first secret.
        for line in text.trim_start_matches('\u{feff}').lines() {
            if !line.is_empty() && line.trim().is_empty() {
                return Err(invalid("a line of it is only white space"));
            }
            if !line.is_empty() {
                let secret = Secret::new(line)?;
                let label = format!("{:04x}", secret.digest());
                secrets.push(secret.with_label(label));
            }
        }
        if secrets.is_empty() {
            return Err(invalid("there is no secret in it"));
        }
        if is_open_to_others(path) {
            tracing::warn!(
                file = %path.display(),
                "other users may read or write the file of secrets: `chmod 600` it"
            );
        }
        Ok(secrets)
    }

    fn set(secrets: impl IntoIterator<Item = Secret>) -> Result<Arc<Vec<Secret>>, ConfigError> {
        let secrets: Vec<_> = secrets.into_iter().collect();
        if secrets.is_empty() {
            return Err(ConfigError::NoSecrets);
        }
        Ok(Arc::new(secrets))
    }

    pub(super) fn current(&self) -> Arc<Vec<Secret>> {
        self.0.load_full()
    }

    /// Whether a set is still the current one.
    pub(super) fn is_current(&self, set: &Arc<Vec<Secret>>) -> bool {
        // The caller's `set` keeps its address in use, so an equal address is the same set. `load` counts no reference.
        Arc::ptr_eq(set, &self.0.load())
    }
}

impl From<Secret> for Secrets {
    fn from(secret: Secret) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(vec![secret])))
    }
}

/// The secrets of the set, for [`Secrets::replace`].
impl IntoIterator for Secrets {
    type Item = Secret;
    type IntoIter = vec::IntoIter<Secret>;

    fn into_iter(self) -> Self::IntoIter {
        self.current().to_vec().into_iter()
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.current().iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn label_of_a_secret_from_a_file_does_not_depend_on_its_line() {
        let labels = |content: &[u8]| Secrets::from_file(file(content).path()).unwrap().labels();

        let before = labels(b"old\nnew\n");
        assert_eq!(labels(b"new\n"), before[1..]);
        assert_ne!(before[0], before[1]);
        assert!(before.iter().all(|label| label.len() == 4), "{before:?}");
        assert_eq!(Secret::new("old").unwrap().label(), None);
        assert_eq!(Secrets::from(Secret::new("old").unwrap()).labels(), ["0"]);
    }

    fn accepts(secrets: &Secrets, secret: &str) -> bool {
        let tag = Secret::new(secret).unwrap().sign(b"body");
        secrets.verify(b"body", tag.as_bytes()).is_ok()
    }

    fn file(content: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(content).unwrap();
        file
    }

    #[test]
    fn any_bytes_but_none_are_a_secret() {
        for secret in [&b" "[..], b"\0", b"\xff", &[7; 1000], "🔑".as_bytes()] {
            assert!(Secret::new(secret).is_ok());
        }
        assert!(matches!(Secret::new(""), Err(ConfigError::EmptySecret)));
        // It is not decoded.
        let (digits, decoded) = (Secret::new("6b6579").unwrap(), Secret::new("key").unwrap());
        assert_ne!(digits.sign(b"body"), decoded.sign(b"body"));
        let shown = format!("{:?}", Secrets::from(decoded));
        assert_eq!(shown, "[Secret { label: None, .. }]");
    }

    #[test]
    fn a_secret_comes_from_the_environment() {
        // A variable that Cargo sets for tests.
        let name = "CARGO_MANIFEST_DIR";
        let expected = Secret::new(std::env::var(name).unwrap()).unwrap();
        assert_eq!(
            Secret::from_env(name).unwrap().sign(b"body"),
            expected.sign(b"body")
        );
        assert!(matches!(
            Secret::from_env("NO_SUCH_VARIABLE"),
            Err(ConfigError::Environment { name, source: Some(_) }) if name == "NO_SUCH_VARIABLE"
        ));
    }

    #[test]
    fn a_file_holds_a_secret_a_line() {
        let file = file(b"\none\r\n two \n\n\nthree");
        let secrets = Secrets::from_file(file.path()).unwrap();
        assert_eq!(secrets.current().len(), 3);
        for (secret, accepted) in [
            ("one", true),
            (" two ", true),
            ("three", true),
            ("two", false),
        ] {
            assert_eq!(accepts(&secrets, secret), accepted, "{secret:?}");
        }
    }

    #[test]
    fn a_set_stays_when_it_cannot_be_replaced() {
        let secrets = Secrets::from(Secret::new("old").unwrap());
        assert!(matches!(secrets.replace([]), Err(ConfigError::NoSecrets)));

        let replace = |path: &Path| secrets.replace(Secrets::from_file(path)?);
        let nowhere = Path::new("/nonexistent/secrets");
        assert!(matches!(
            replace(nowhere),
            Err(ConfigError::SecretFile { path, .. }) if path == nowhere
        ));
        let replaced = replace(file(b"\n\r\n\n").path());
        assert!(matches!(replaced, Err(ConfigError::SecretFile { .. })));
        let replaced = replace(file(b"one\n   \n").path());
        assert!(matches!(replaced, Err(ConfigError::SecretFile { .. })));
        let replaced = replace(file(b"one\n\xff\n").path());
        assert!(matches!(replaced, Err(ConfigError::SecretFile { .. })));
        assert!(accepts(&secrets, "old"));

        replace(file(b"new\n").path()).unwrap();
        assert_eq!(
            (accepts(&secrets, "old"), accepts(&secrets, "new")),
            (false, true)
        );
    }

    #[test]
    fn clones_share_one_set() {
        let secrets = Secrets::from(Secret::new("old").unwrap());
        let clone = secrets.clone();
        secrets.replace([Secret::new("new").unwrap()]).unwrap();
        assert!(accepts(&clone, "new"));
    }
}
