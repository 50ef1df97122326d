//! The references that the fuzz targets compare the crate with. Nothing here calls the crate.

pub mod json;

use sha2::{Digest, Sha256};

/// HMAC-SHA-256 according to RFC 2104.
pub fn hmac(secret: &[u8], message: &[u8]) -> [u8; 32] {
    let mut key = [0; 64];
    if secret.len() > key.len() {
        key[..32].copy_from_slice(&Sha256::digest(secret));
    } else {
        key[..secret.len()].copy_from_slice(secret);
    }
    let keyed = |pad: u8| Sha256::new().chain_update(key.map(|byte| byte ^ pad));
    let inner = keyed(0x36).chain_update(message).finalize();
    keyed(0x5c).chain_update(inner).finalize().into()
}

/// Parses 64 lowercase hex digits.
pub fn parse_signature(value: &[u8]) -> Option<[u8; 32]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut tag = [0; 32];
    if value.len() != 64 {
        return None;
    }
    for (at, pair) in value.chunks(2).enumerate() {
        tag[at] = 16 * digit(pair[0])? + digit(pair[1])?;
    }
    Some(tag)
}

pub fn to_hex(tag: &[u8]) -> String {
    tag.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn base64(bytes: &[u8]) -> String {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |group: &[u8]| {
        let byte = |at| u32::from(*group.get(at).unwrap_or(&0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        let digit = move |at: usize| match at <= group.len() {
            true => char::from(alphabet[(bits >> (18 - 6 * at)) as usize % 64]),
            false => '=',
        };
        (0..4).map(digit).collect::<String>()
    };
    bytes.chunks(3).map(group).collect()
}
