//! What becomes of a secret that a sender brings.

use std::fmt;
use std::sync::Arc;

use http::Method;
use http::request::Parts;

use super::config::Config;
use super::headers::declared_length;
use super::refusal::Refusal;
use crate::error::Panic;
use crate::sender::{Handshake, Reply, SignatureError};

/// Keeps a secret, and returns whether it did.
#[derive(Clone)]
pub(crate) struct OnSecret(Arc<dyn Fn(&str) -> bool + Send + Sync>);

impl OnSecret {
    pub(crate) fn new(keep: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(keep))
    }
}

impl fmt::Debug for OnSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnSecret")
    }
}

/// The longest body that is read for a secret, before anything is proved.
const LONGEST: u64 = 4096;

/// Whether a request without a signature may have a secret in its body.
#[cold]
pub(super) fn may_be_in_body(parts: &Parts, config: &Config) -> bool {
    let handshake = config.sender.described().handshake();
    let length = || declared_length(&parts.headers).ok().flatten();
    handshake.is_some_and(Handshake::is_in_body)
        && length().is_some_and(|it| (1..=LONGEST).contains(&it))
}

/// The answer to a head that was refused without a signature, if it brings a secret.
#[cold]
pub(super) fn in_head(parts: &Parts, config: &Config) -> Option<Result<Reply, Refusal>> {
    if parts.method != Method::POST {
        return None;
    }
    let handshake = config.sender.described().handshake()?;
    let secret = handshake.in_head(&parts.headers)?;
    Some(decide(secret, config).map(|secret| handshake.reply(&secret)))
}

/// The same for a body that is complete.
#[cold]
pub(super) fn in_body(body: &[u8], config: &Config) -> Result<Reply, Refusal> {
    let handshake = config.sender.described().handshake();
    let found = handshake.and_then(|it| Some((it, it.in_body(body)?)));
    let (handshake, secret) = found.ok_or(Refusal::InvalidSignature(SignatureError::Missing))?;
    decide(secret, config).map(|secret| handshake.reply(&secret))
}

/// Returns the secret if it was kept.
fn decide(secret: Option<String>, config: &Config) -> Result<String, Refusal> {
    let refused = |reason| Err(Refusal::InvalidChallenge(reason));
    // Before anything else, so that a stranger learns nothing of what would be accepted.
    let Some(on_secret) = &config.on_secret else {
        return refused(
            "a handshake brings a secret, and nobody asks for one: see `Webhooks::on_secret`, or --learn-secret",
        );
    };
    let Some(secret) = secret else {
        return refused(
            "a handshake brings no secret of 1 to 512 visible ASCII characters, or more than one",
        );
    };
    match Panic::catch(|| (on_secret.0)(&secret)) {
        Ok(true) => Ok(secret),
        Ok(false) => refused("a handshake brought a secret that was not kept"),
        Err(_) => refused("keeping the secret of a handshake panicked"),
    }
}
