//! Mailgun: signs a time and a token in the body, and nothing else of it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderValue, Request};
use serde::Deserialize;

use super::super::secret::Secrets;
use super::{Proof, Verdict, Verifier, VerifierError};
use crate::delivery::IdempotencyKey;
use crate::event::{EventKind, SenderPolicy};
use crate::sender::SignatureError;

/// How long a token must be remembered, and what of it a timestamp may be ahead of this machine's clock.
const RETRY_FOR: Duration = Duration::from_secs(24 * 60 * 60);
const AHEAD: Duration = Duration::from_secs(5 * 60);

/// Verifies webhooks of Mailgun in JSON: those whose body has `signature` and `event-data`.
///
/// **The body is not signed**: Mailgun signs a time and a token alone. So the token is the key, and is accepted once: a captured
/// delivery cannot be handled again, but whoever reads one before it arrives can change its event. The time may be up to 24 hours
/// old, less 5 minutes, and 5 minutes ahead, so a token is remembered for longer than it is valid.
///
/// The event type is `/event-data/event`, such as `delivered`. The secret is the *HTTP webhook signing key*, and that of the parent
/// account in a subaccount. Webhooks in other forms, such as those of routes, are refused.
///
/// ```
/// # fn main() -> Result<(), tower_webhook::ConfigError> {
/// use tower_webhook::signature::Mailgun;
/// use tower_webhook::{Secret, Webhooks};
///
/// let webhooks = Webhooks::verified_by(Mailgun::new(Secret::new("the signing key")?))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct Mailgun {
    secrets: Secrets,
    now: Arc<dyn Fn() -> SystemTime + Send + Sync>,
}

/// What is read of a body, before it is known from whom that is.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sent<'a> {
    #[serde(borrow)]
    signature: Signed<'a>,
    event_data: Event,
}

#[derive(Deserialize)]
struct Signed<'a> {
    timestamp: &'a str,
    token: &'a str,
    signature: &'a str,
}

#[derive(Deserialize)]
struct Event {
    event: String,
}

impl Mailgun {
    /// Verifies with `secrets`: a [`Secret`](crate::Secret), or [`Secrets`], a handle to a set of them.
    pub fn new(secrets: impl Into<Secrets>) -> Self {
        Self {
            secrets: secrets.into(),
            now: Arc::new(SystemTime::now),
        }
    }

    /// Sets the clock that timestamps are compared with, for tests. By default, it is the system's.
    pub fn with_clock(mut self, clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        self.now = Arc::new(clock);
        self
    }

    /// Whether the sender may still send an event of this time.
    fn check(&self, timestamp: &str) -> Result<(), SignatureError> {
        // Plain digits: a moved boundary to the token makes another time.
        let is_number = timestamp.len() <= 15 && timestamp.bytes().all(|it| it.is_ascii_digit());
        let time: i64 = match timestamp.parse() {
            Ok(time) if is_number && !timestamp.starts_with('0') => time,
            _ => return Err(SignatureError::Timestamp),
        };
        let now = (self.now)().duration_since(SystemTime::UNIX_EPOCH);
        let age = now
            .map_or(0, |it| it.as_secs().cast_signed())
            .saturating_sub(time);
        let most = if age < 0 {
            AHEAD
        } else {
            RETRY_FOR.saturating_sub(AHEAD)
        };
        let most = most.as_secs().cast_signed();
        match age.saturating_abs() <= most {
            true => Ok(()),
            false => Err(SignatureError::Stale { age, most }),
        }
    }
}

#[async_trait]
impl Verifier for Mailgun {
    fn name(&self) -> &'static str {
        "mailgun"
    }

    /// Mailgun retries for 8 hours, and a retention that is not longer than this is refused.
    fn policy(&self) -> SenderPolicy {
        SenderPolicy::new(Duration::from_secs(5 * 60), RETRY_FOR)
    }

    fn needs_replay_guard(&self) -> bool {
        false
    }

    async fn verify(&self, request: &Request<Bytes>) -> Result<Verdict, VerifierError> {
        let sent = serde_json::from_slice::<Sent<'_>>(request.body());
        let Ok(Sent {
            signature,
            event_data,
        }) = sent
        else {
            return Err(SignatureError::Other(
                "the body is no JSON with `signature` and `event-data`, each once",
            )
            .into());
        };
        let Signed {
            timestamp,
            token,
            signature,
        } = signature;
        self.check(timestamp)?;
        let signed = format!("{timestamp}{token}");
        let index = self
            .secrets
            .verify(signed.as_bytes(), signature.as_bytes())?;
        let kind = EventKind::from_bytes(event_data.event.as_bytes());
        let kind = kind.map_err(VerifierError::unreadable)?;
        let key = HeaderValue::from_bytes(token.as_bytes()).map_err(VerifierError::unreadable)?;
        let Some(key) = IdempotencyKey::new(key) else {
            return Err(VerifierError::unreadable("its token is empty"));
        };
        Ok(Proof::new(kind)
            .key(key)
            .signed_by(&self.secrets, index)
            .into())
    }
}

impl fmt::Debug for Mailgun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailgun")
            .field("secrets", &self.secrets)
            .finish_non_exhaustive()
    }
}
