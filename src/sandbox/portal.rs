//! What a partner sets up in the portal. It has no clock of its own: times are passed in.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::event::SenderPolicy;
use crate::event::{EventKind, Timestamp};
use crate::signature::Secret;

const HOUR: Duration = Duration::from_secs(60 * 60);

/// The configuration of a webhook: where the events of one kind are sent (Spec 4.2).
#[derive(Clone, Debug, Default)]
pub struct Webhook {
    /// Where to. Nothing is delivered while it is empty.
    pub url: String,
    /// What deliveries are signed with. Without one they carry no signature.
    pub secret: Option<Secret>,
    /// Whether the partner switched it on.
    pub active: bool,
}

impl Webhook {
    /// An active webhook to `url`, without a secret.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            secret: None,
            active: true,
        }
    }

    /// The same, signed with `secret`.
    #[must_use]
    pub fn signed(mut self, secret: Secret) -> Self {
        self.secret = Some(secret);
        self
    }
}

/// A webhook and what became of it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WebhookStatus {
    /// Which events it is for.
    pub kind: EventKind,
    /// How it is configured.
    pub webhook: Webhook,
    /// Whether the platform disabled it, because too many attempts failed.
    pub disabled: bool,
    /// How many attempts failed within the last hour.
    pub recent_failures: usize,
}

/// What is left of an API key once it was shown.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ApiKey {
    /// What the partner wrote when it was created.
    pub description: String,
    /// When it was created.
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
    disabled: bool,
    /// The failed attempts of the last hour.
    failures: VecDeque<Duration>,
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

    /// Saving a webhook does not enable one that the platform disabled.
    pub(super) fn configure(&mut self, kind: EventKind, webhook: Webhook) {
        self.webhooks.entry(kind).or_default().webhook = webhook;
    }

    /// The webhook for events of `kind`, if they are delivered now.
    pub(super) fn delivers(&self, kind: &EventKind) -> Option<&Webhook> {
        let hook = self.webhooks.get(kind)?;
        let delivers = hook.webhook.active && !hook.disabled && !hook.webhook.url.is_empty();
        delivers.then_some(&hook.webhook)
    }

    /// The webhook for events of `kind`, if it has a URL.
    pub(super) fn reachable(&self, kind: &EventKind) -> Option<&Webhook> {
        let hook = self.webhooks.get(kind)?;
        (!hook.webhook.url.is_empty()).then_some(&hook.webhook)
    }

    /// Counts a failed attempt (Spec 6, rule 4).
    pub(super) fn failed(&mut self, kind: &EventKind, now: Duration) {
        let Some(hook) = self.webhooks.get_mut(kind) else {
            return;
        };
        hook.failures.push_back(now);
        hook.forget_old_failures(now);
        if hook.failures.len() > self.policy.disable_after as usize && !hook.disabled {
            hook.disabled = true;
            tracing::warn!(%kind, "the sandbox disabled the webhook: too many attempts failed");
        }
    }

    /// The count begins anew.
    pub(super) fn enable(&mut self, kind: &EventKind) {
        if let Some(hook) = self.webhooks.get_mut(kind) {
            hook.disabled = false;
            hook.failures.clear();
        }
    }

    pub(super) fn status(&mut self, now: Duration) -> Vec<WebhookStatus> {
        let status = |(kind, hook): (&EventKind, &mut Hook)| {
            hook.forget_old_failures(now);
            WebhookStatus {
                kind: kind.clone(),
                webhook: hook.webhook.clone(),
                disabled: hook.disabled,
                recent_failures: hook.failures.len(),
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
        let digest = digest(key);
        self.api_keys
            .iter()
            .any(|known| known.digest.ct_eq(&digest).into())
    }
}

fn digest(key: &str) -> [u8; 32] {
    Sha256::digest(key).into()
}

impl fmt::Debug for Portal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Portal").finish_non_exhaustive()
    }
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
        (0..500).for_each(|_| portal.failed(&KIND, Duration::ZERO));
        assert!(portal.delivers(&KIND).is_some());

        portal.failed(&KIND, HOUR - Duration::from_millis(1));
        assert!(portal.delivers(&KIND).is_none());
        assert!(portal.delivers(&EventKind::CHAT_OPENED).is_some());

        portal.configure(KIND, Webhook::new("http://localhost/other"));
        assert!(portal.delivers(&KIND).is_none(), "only a hand enables it");
        portal.enable(&KIND);
        assert!(portal.delivers(&KIND).is_some());
    }

    #[test]
    fn the_hour_slides() {
        let mut portal = portal();
        (0..500).for_each(|_| portal.failed(&KIND, Duration::ZERO));
        portal.failed(&KIND, HOUR);
        assert!(portal.delivers(&KIND).is_some());

        (0..499).for_each(|_| portal.failed(&KIND, HOUR + HOUR / 2));
        assert!(portal.delivers(&KIND).is_some());
        portal.failed(&KIND, 2 * HOUR - Duration::from_millis(1));
        assert!(portal.delivers(&KIND).is_none());
    }

    #[test]
    fn of_an_api_key_only_a_digest_is_kept() {
        let mut portal = portal();
        portal.add_api_key("key-1", "CRM".into(), Timestamp::from_millis(0));

        assert!(portal.knows_api_key("key-1"));
        assert!(!portal.knows_api_key("key-2"));
        assert!(!portal.knows_api_key(""));
        assert!(!format!("{:?}", portal.api_keys).contains("key-1"));
    }
}
