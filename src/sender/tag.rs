//! The tags of a request, and how they are written.

use std::{mem, slice};

use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use serde::Deserialize;
use sha2::Sha256;

use super::error::SignatureError;

/// The most tags in a request, each of which is compared with each secret. Those of a sender with more headers than this
/// have one tag each.
pub(super) const MOST_TAGS: usize = 8;

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Algorithm {
    HmacSha256,
    HmacSha1,
    HmacSha512,
    Token,
    Ed25519,
    /// With SHA-256. The tag is in DER.
    EcdsaP256,
    /// PKCS#1 v1.5, as the next one.
    RsaSha256,
    RsaSha512,
    /// With a salt as long as the hash.
    RsaPssSha512,
}

impl Algorithm {
    /// Whether it signs with a private key, and verifies with a public one.
    pub(crate) fn is_asymmetric(self) -> bool {
        matches!(self, Self::Ed25519 | Self::EcdsaP256) || self.is_rsa()
    }

    pub(crate) fn is_rsa(self) -> bool {
        matches!(self, Self::RsaSha256 | Self::RsaSha512 | Self::RsaPssSha512)
    }
}

/// How a tag is written.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Coding {
    Hex,
    HexAnyCase,
    Base64,
    /// With the alphabet of URLs. It may lack its `=`.
    Base64url,
}

const BASE64_URL: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

impl Coding {
    /// Returns the number of bytes. `None` if they do not fit.
    #[inline]
    fn decode(self, text: &[u8], to: &mut [u8]) -> Option<usize> {
        Some(match self {
            Self::Hex => base16ct::lower::decode(text, to).ok()?.len(),
            Self::HexAnyCase => base16ct::mixed::decode(text, to).ok()?.len(),
            Self::Base64 => BASE64_STANDARD.decode_slice(text, to).ok()?,
            Self::Base64url => BASE64_URL.decode_slice(text, to).ok()?,
        })
    }

    /// `None` if there are not `N` bytes.
    #[inline]
    fn decode_all<const N: usize>(self, text: &[u8]) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        (self.decode(text, &mut bytes)? == N).then_some(bytes)
    }

    /// At most `N` bytes.
    fn decode_long<const N: usize>(self, text: &[u8]) -> Option<Box<[u8]>> {
        let mut bytes = [0; N];
        let length = self.decode(text, &mut bytes)?;
        Some(bytes[..length].into())
    }

    pub(super) fn encode(self, bytes: &[u8]) -> String {
        match self {
            Self::Base64 => BASE64_STANDARD.encode(bytes),
            Self::Base64url => BASE64_URL.encode(bytes),
            Self::Hex | Self::HexAnyCase => base16ct::lower::encode_string(bytes),
        }
    }
}

/// The candidates of a request. Nearly always, there is one, which takes no allocation.
#[derive(Clone, Debug, Default)]
pub(crate) enum Tags {
    #[default]
    None,
    One(Tag),
    Several(Vec<Tag>),
}

impl Tags {
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let tags = match self {
            Self::None => &[],
            Self::One(tag) => slice::from_ref(tag),
            Self::Several(tags) => &tags[..],
        };
        tags.iter().map(Tag::bytes)
    }

    /// Refuses a tag that is one too many.
    #[inline]
    pub(super) fn push(&mut self, tag: Tag, most: usize) -> Result<(), SignatureError> {
        *self = match mem::take(self) {
            Self::None => Self::One(tag),
            Self::One(first) => Self::Several(vec![first, tag]),
            Self::Several(mut tags) if tags.len() < most => {
                tags.push(tag);
                Self::Several(tags)
            }
            Self::Several(_) => return Err(SignatureError::Malformed),
        };
        Ok(())
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Tag {
    Sha256([u8; 32]),
    Sha1([u8; 20]),
    /// A signature made with a private key, or one of SHA-512. The allocation does not matter beside its verification.
    Long(Box<[u8]>),
}

impl Tag {
    #[inline]
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Sha256(bytes) => bytes,
            Self::Sha1(bytes) => bytes,
            Self::Long(bytes) => bytes,
        }
    }

    /// `coding` is `None` for a token that is the secret itself.
    pub(super) fn decode(
        text: &[u8],
        algorithm: Algorithm,
        coding: Option<Coding>,
    ) -> Option<Self> {
        let long = |bytes: Box<[u8]>, lengths: &[usize]| {
            let is_it = lengths.contains(&bytes.len());
            is_it.then_some(Self::Long(bytes))
        };
        match algorithm {
            Algorithm::Token if text.is_empty() => None,
            Algorithm::Token => match coding {
                None => Self::of_token(text),
                Some(coding) => Self::of_token(&coding.decode_long::<LONGEST_TOKEN>(text)?),
            },
            Algorithm::HmacSha256 => coding?.decode_all(text).map(Self::Sha256),
            Algorithm::HmacSha1 => coding?.decode_all(text).map(Self::Sha1),
            Algorithm::HmacSha512 | Algorithm::Ed25519 => {
                long(coding?.decode_long::<64>(text)?, &[64])
            }
            Algorithm::EcdsaP256 => {
                // DER of two integers: at least 2 + 2 * 3 bytes, and at most 2 + 2 * 35.
                let bytes = coding?.decode_long::<72>(text)?;
                (bytes.len() >= 8).then_some(Self::Long(bytes))
            }
            Algorithm::RsaSha256 | Algorithm::RsaSha512 | Algorithm::RsaPssSha512 => {
                // As long as the key: 2,048 to 8,192 bits.
                let bytes = coding?.decode_long::<1024>(text)?;
                (bytes.len() >= 256).then_some(Self::Long(bytes))
            }
        }
    }

    fn of_token(token: &[u8]) -> Option<Self> {
        // HMAC fills a short key with zeros, so that this one would be equal to one without.
        if token.last() == Some(&0) {
            return None;
        }
        // A secret is kept only as a keyed state, so the token becomes a key, too: hashes are compared.
        let hash = Hmac::<Sha256>::new_from_slice(token).ok()?;
        let hash = hash.chain_update(TOKEN).finalize().into_bytes();
        Some(Self::Sha256(hash.into()))
    }
}

/// What is hashed in place of the body to compare a token, under the token as the secret.
pub(crate) const TOKEN: &[u8] = b"tower-webhook: a token";

/// The longest token in bytes that is written in a coding.
const LONGEST_TOKEN: usize = 1024;
