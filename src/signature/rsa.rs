//! Keys of RSA, of 2,048 to 8,192 bits.

use std::sync::Arc;

use ring::rand::SystemRandom;
use ring::rsa::KeyPair;
use ring::signature::{
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA512, RSA_PKCS1_SHA256, RSA_PKCS1_SHA512,
    RSA_PSS_2048_8192_SHA512, RSA_PSS_SHA512, RsaEncoding, RsaParameters, UnparsedPublicKey,
};

use crate::sender::Algorithm;

/// The algorithm of `SubjectPublicKeyInfo` and of PKCS#8: rsaEncryption without parameters (RFC 8017, appendix A.1).
const ALGORITHM: &[u8] = b"\x30\x0d\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01\x05\x00";

/// `RSAPublicKey` in DER.
#[derive(Clone)]
pub(super) struct Public(Arc<[u8]>);

impl Public {
    /// `None` if it is no `SubjectPublicKeyInfo` of RSA.
    pub(super) fn parse(der: &[u8]) -> Option<Result<Self, &'static str>> {
        let (0x30, info, []) = element(der)? else {
            return None;
        };
        let (0x03, bits, []) = element(info.strip_prefix(ALGORITHM)?)? else {
            return None;
        };
        // No bit of the last byte is unused.
        let key = bits.strip_prefix(&[0])?;
        let (0x30, numbers, []) = element(key)? else {
            return None;
        };
        let (0x02, modulus, rest) = element(numbers)? else {
            return None;
        };
        let (0x02, exponent, []) = element(rest)? else {
            return None;
        };
        // A zero in front of a high bit is the sign.
        let [modulus, exponent] = [modulus, exponent].map(|it| it.strip_prefix(&[0]).unwrap_or(it));
        let zeros = modulus.first()?.leading_zeros() as usize;
        if !(2048..=8192).contains(&(8 * modulus.len() - zeros)) {
            return Some(Err("a key of RSA has 2,048 to 8,192 bits"));
        }
        let is_odd = |number: &[u8]| number.last().is_some_and(|it| it % 2 == 1);
        let is_short = |number: &[u8]| number.first().is_some_and(|it| *it > 0);
        if !is_short(modulus) || !is_short(exponent) {
            return Some(Err("it is not an RSA key: a number has a zero too many"));
        }
        if !is_odd(modulus) || !is_odd(exponent) || exponent.len() > 4 || *exponent == [1] {
            return Some(Err(
                "it is not an RSA key: its numbers are not odd, or its exponent is 1 or has more than 32 bits",
            ));
        }
        Some(Ok(Self(key.into())))
    }

    pub(super) fn verifies(&self, algorithm: Algorithm, message: &[u8], tag: &[u8]) -> bool {
        let parameters: &'static RsaParameters = match algorithm {
            Algorithm::RsaSha256 => &RSA_PKCS1_2048_8192_SHA256,
            Algorithm::RsaSha512 => &RSA_PKCS1_2048_8192_SHA512,
            Algorithm::RsaPssSha512 => &RSA_PSS_2048_8192_SHA512,
            _ => return false,
        };
        UnparsedPublicKey::new(parameters, &*self.0)
            .verify(message, tag)
            .is_ok()
    }
}

/// Signs a message with a private key in PKCS#8. `None` if it is none of RSA, or of more than 4,096 bits.
pub(super) fn sign(pkcs8: &[u8], algorithm: Algorithm, message: &[u8]) -> Option<Vec<u8>> {
    let encoding: &'static dyn RsaEncoding = match algorithm {
        Algorithm::RsaSha256 => &RSA_PKCS1_SHA256,
        Algorithm::RsaSha512 => &RSA_PKCS1_SHA512,
        Algorithm::RsaPssSha512 => &RSA_PSS_SHA512,
        _ => return None,
    };
    let key = KeyPair::from_pkcs8(pkcs8).ok()?;
    let mut tag = vec![0; key.public().modulus_len()];
    key.sign(encoding, &SystemRandom::new(), message, &mut tag)
        .ok()?;
    Some(tag)
}

/// Whether it begins as PKCS#8 with a key of RSA.
pub(super) fn is_private(der: &[u8]) -> bool {
    let is_it = |der| {
        let (0x30, info, []) = element(der)? else {
            return None;
        };
        info.strip_prefix(b"\x02\x01\x00")?.strip_prefix(ALGORITHM)
    };
    is_it(der).is_some()
}

/// An element of DER: its tag, its content, and what follows.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81 => (usize::from(*rest.first()?), &rest[1..]),
        0x82 => {
            let (length, rest) = rest.split_first_chunk()?;
            (usize::from(u16::from_be_bytes(*length)), rest)
        }
        // A key has less than 64 KiB.
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}
