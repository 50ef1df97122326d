//! Where a request stands that brings the secret.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::challenge::{Reply, echoed};
use super::places::{header, pointers};
use super::pointer::Pointers;
use super::scheme::{Algorithm, only};

/// A POST without a signature, by which a sender says the secret that it will sign with.
#[derive(Clone)]
pub(crate) enum Handshake {
    /// In this header, which the answer has, too.
    Header(HeaderName),
    /// Here in the body.
    Body(Pointers),
}

impl Handshake {
    pub(super) fn read(text: &str, algorithm: Algorithm) -> Result<Self, String> {
        let field = "handshake";
        let is_hmac = matches!(
            algorithm,
            Algorithm::HmacSha256 | Algorithm::HmacSha1 | Algorithm::HmacSha512
        );
        match text.starts_with('/') {
            _ if !is_hmac => Err(format!(
                "{field}: it brings a secret that signs, so the algorithm is one of `hmac-…`"
            )),
            true => Ok(Self::Body(pointers(field, &[text])?)),
            false => Ok(Self::Header(header(field, text, "")?)),
        }
    }

    /// The secret in a head. `None` if it is none of a handshake, and `Some(None)` if there is no clear secret.
    pub(crate) fn in_head(&self, headers: &HeaderMap) -> Option<Option<String>> {
        let Self::Header(name) = self else {
            return None;
        };
        let secret = || echoed(only(headers, name).ok()?.to_vec());
        headers.contains_key(name).then(secret)
    }

    /// The same in a body, where it is a text.
    pub(crate) fn in_body(&self, body: &[u8]) -> Option<Option<String>> {
        let Self::Body(pointers) = self else {
            return None;
        };
        match pointers.find(body) {
            Ok(found) => found.map(|it| echoed(it.into_owned().into_bytes())),
            // Another value, or twice: it is there, and unclear. A body that is no JSON is no handshake.
            Err(unclear) => unclear.is_of_value().then_some(None),
        }
    }

    pub(crate) fn is_in_body(&self) -> bool {
        matches!(self, Self::Body(_))
    }

    /// The answer to an accepted handshake.
    pub(crate) fn reply(&self, secret: &str) -> Reply {
        let mut reply = Reply::new(200, None, "");
        if let (Self::Header(name), Ok(mut value)) = (self, HeaderValue::from_str(secret)) {
            value.set_sensitive(true);
            reply.header = Some(Box::new((name.clone(), value)));
        }
        reply
    }
}
