//! The partner portal: webhooks, API keys and the availability.
//!
//! It has no clock; times are passed in.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tower_webhook::Secret;
use tower_webhook::event::SenderPolicy;
use tower_webhook::event::{EventKind, Timestamp};

use super::clock::Clock;
use super::report::AttemptResult;

const HOUR: Duration = Duration::from_secs(60 * 60);

/// The configuration of a webhook, which receives the events of one kind
/// ([Spec 4.2](tower_webhook::docs::platform#spec-4-2)). See [`Sandbox::configure`](super::Sandbox::configure).
///
/// ```
/// use tower_webhook::Secret;
/// use tower_webhook_sandbox::Webhook;
///
/// let webhook = Webhook::new("http://127.0.0.1:3000/webhooks").signed(Secret::new("my-secret")?);
/// assert!(webhook.active);
/// # Ok::<(), tower_webhook::ConfigError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Webhook {
    /// The receiver's URL. Nothing is delivered while it is empty.
    pub url: String,
    /// The secret that deliveries are signed with; `None` for deliveries without a signature
    /// ([Spec 5.2](tower_webhook::docs::platform#spec-5-2)).
    pub secret: Option<Secret>,
    /// Whether the webhook is set active in the portal.
    pub active: bool,
}

impl Webhook {
    /// Creates an active webhook to `url`, without a secret.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            secret: None,
            active: true,
        }
    }

    /// Signs the deliveries with `secret`.
    #[must_use]
    pub fn signed(mut self, secret: Secret) -> Self {
        self.secret = Some(secret);
        self
    }
}

/// A configured [`Webhook`] and its state. See [`Sandbox::webhooks`](super::Sandbox::webhooks).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WebhookStatus {
    /// The kind of its events.
    pub kind: EventKind,
    /// Its configuration.
    pub webhook: Webhook,
    /// Whether the platform disabled it because too many attempts failed
    /// ([Spec 6, rule 4](tower_webhook::docs::platform#spec-6-rule-4)).
    /// [`Sandbox::enable`](super::Sandbox::enable) enables it again.
    pub disabled: bool,
    /// When the platform disabled it, by the platform's clock.
    pub disabled_at: Option<Timestamp>,
    /// The number of attempts that failed within the last hour.
    pub recent_failures: usize,
    /// How the last attempt failed that counts against the webhook, since it was enabled.
    pub last_failure: Option<AttemptResult>,
}

/// An API key of the portal, without the key itself, which is shown only once
/// ([Spec 5.1](tower_webhook::docs::platform#spec-5-1)). See
/// [`Sandbox::create_api_key`](super::Sandbox::create_api_key).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ApiKey {
    /// The description that was entered when it was created.
    pub description: String,
    /// When it was created, by the platform's clock.
    pub created_at: Timestamp,
    digest: [u8; 32],
}

pub(super) struct Portal {
    policy: SenderPolicy,
    webhooks: BTreeMap<EventKind, Hook>,
    pub(super) api_keys: Vec<ApiKey>,
    pub(super) available: bool,
}

#[derive(Default)]
struct Hook {
    webhook: Webhook,
    /// Since when the webhook is disabled.
    disabled: Option<Duration>,
    /// The times of the failed attempts of the last hour, oldest first.
    failures: VecDeque<Duration>,
    last_failure: Option<AttemptResult>,
}

impl Hook {
    fn forget_old_failures(&mut self, now: Duration) {
        while let Some(&at) = self.failures.front()
            && now.saturating_sub(at) >= HOUR
        {
            self.failures.pop_front();
        }
    }
}

impl Portal {
    pub(super) fn new(policy: SenderPolicy) -> Self {
        Self {
            policy,
            webhooks: BTreeMap::new(),
            api_keys: Vec::new(),
            available: true,
        }
    }

    /// Configures a webhook. One that the platform disabled stays disabled: the spec has it enabled
    /// manually.
    pub(super) fn configure(&mut self, kind: EventKind, webhook: Webhook) {
        self.webhooks.entry(kind).or_default().webhook = webhook;
    }

    /// Returns the webhook for events of `kind`, if they are delivered now.
    pub(super) fn delivers(&self, kind: &EventKind) -> Option<&Webhook> {
        let hook = self.webhooks.get(kind)?;
        let delivers =
            hook.webhook.active && hook.disabled.is_none() && !hook.webhook.url.is_empty();
        delivers.then_some(&hook.webhook)
    }

    /// Returns the webhook for events of `kind`, if it has a URL.
    pub(super) fn reachable(&self, kind: &EventKind) -> Option<&Webhook> {
        let hook = self.webhooks.get(kind)?;
        (!hook.webhook.url.is_empty()).then_some(&hook.webhook)
    }

    /// Counts a failed attempt (Spec 6, rule 4), and returns whether it disables the webhook.
    pub(super) fn failed(
        &mut self,
        kind: &EventKind,
        result: &AttemptResult,
        now: Duration,
    ) -> bool {
        let Some(hook) = self.webhooks.get_mut(kind) else {
            return false;
        };
        hook.failures.push_back(now);
        hook.forget_old_failures(now);
        hook.last_failure = Some(result.clone());
        let most = self.policy.disable_after;
        let exceeds = most.is_some_and(|most| hook.failures.len() > most as usize);
        let disables = exceeds && hook.disabled.is_none();
        if disables {
            hook.disabled = Some(now);
            tracing::warn!(%kind, "the sandbox disabled the webhook: too many attempts failed");
        }
        disables
    }

    /// Whether the platform disabled the webhook for events of `kind`.
    pub(super) fn is_disabled(&self, kind: &EventKind) -> bool {
        let hook = self.webhooks.get(kind);
        hook.is_some_and(|hook| hook.disabled.is_some())
    }

    /// Enables a webhook. The count of failed attempts starts at zero: otherwise the next failure would
    /// disable it again.
    pub(super) fn enable(&mut self, kind: &EventKind) {
        if let Some(hook) = self.webhooks.get_mut(kind) {
            hook.disabled = None;
            hook.failures.clear();
            hook.last_failure = None;
        }
    }

    pub(super) fn status(&mut self, clock: &Clock) -> Vec<WebhookStatus> {
        let now = clock.now();
        let status = |(kind, hook): (&EventKind, &mut Hook)| {
            hook.forget_old_failures(now);
            WebhookStatus {
                kind: kind.clone(),
                webhook: hook.webhook.clone(),
                disabled: hook.disabled.is_some(),
                disabled_at: hook.disabled.map(|at| clock.timestamp(at)),
                recent_failures: hook.failures.len(),
                last_failure: hook.last_failure.clone(),
            }
        };
        self.webhooks.iter_mut().map(status).collect()
    }

    pub(super) fn add_api_key(&mut self, key: &str, description: String, created_at: Timestamp) {
        self.api_keys.push(ApiKey {
            description,
            created_at,
            digest: digest(key),
        });
    }

    pub(super) fn knows_api_key(&self, key: &str) -> bool {
        // Digests, in constant time, so that the time of an answer says nothing about the keys.
        let digest = digest(key);
        self.api_keys
            .iter()
            .any(|known| known.digest.ct_eq(&digest).into())
    }
}

fn digest(key: &str) -> [u8; 32] {
    Sha256::digest(key).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: EventKind = EventKind::CHAT_RATED;

    fn portal() -> Portal {
        let mut portal = Portal::new(SenderPolicy::default());
        portal.configure(KIND, Webhook::new("http://localhost/"));
        portal.configure(EventKind::CHAT_OPENED, Webhook::new("http://localhost/"));
        portal
    }

    #[test]
    fn more_than_500_failures_within_an_hour_disable_one_webhook() {
        let mut portal = portal();
        (0..500).for_each(|_| _ = portal.failed(&KIND, &AttemptResult::TimedOut, Duration::ZERO));
        assert!(portal.delivers(&KIND).is_some());

        portal.failed(
            &KIND,
            &AttemptResult::TimedOut,
            HOUR - Duration::from_millis(1),
        );
        assert!(portal.delivers(&KIND).is_none());
        assert!(portal.delivers(&EventKind::CHAT_OPENED).is_some());

        portal.configure(KIND, Webhook::new("http://localhost/other"));
        assert!(
            portal.delivers(&KIND).is_none(),
            "it must be enabled manually"
        );
        portal.enable(&KIND);
        assert!(portal.delivers(&KIND).is_some());
    }

    #[test]
    fn failures_are_counted_in_a_sliding_hour() {
        let mut portal = portal();
        (0..500).for_each(|_| _ = portal.failed(&KIND, &AttemptResult::TimedOut, Duration::ZERO));
        portal.failed(&KIND, &AttemptResult::TimedOut, HOUR);
        assert!(portal.delivers(&KIND).is_some());

        (0..499).for_each(|_| _ = portal.failed(&KIND, &AttemptResult::TimedOut, HOUR + HOUR / 2));
        assert!(portal.delivers(&KIND).is_some());
        portal.failed(
            &KIND,
            &AttemptResult::TimedOut,
            2 * HOUR - Duration::from_millis(1),
        );
        assert!(portal.delivers(&KIND).is_none());
    }

    #[test]
    fn api_keys_are_stored_as_digests() {
        let mut portal = portal();
        portal.add_api_key("key-1", "CRM".into(), Timestamp::from_millis(0));

        assert!(portal.knows_api_key("key-1"));
        assert!(!portal.knows_api_key("key-2"));
        assert!(!portal.knows_api_key(""));
        assert!(!format!("{:?}", portal.api_keys).contains("key-1"));
    }
}
