//! The side that sends deliveries, as a value: [`Sender`].

use std::fmt;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::config::ConfigError;
use crate::delivery::RawDelivery;
use crate::event::SenderPolicy;

/// The side that sends deliveries: how it signs them, where key and event type stand, and when it retries.
///
/// The default is the chat platform. Its brand may stand in the names of its headers:
///
/// ```
/// use tower_webhook::{Secret, Sender, Webhooks};
///
/// # fn main() -> Result<(), tower_webhook::ConfigError> {
/// let sender = Sender::chat_platform().branded("acme")?; // X-Acme-Hmac-Sha256 and X-Acme-Event
/// let webhooks = Webhooks::new(Secret::new("8c1f…")?).sender(sender);
/// # Ok(())
/// # }
/// ```
///
/// Clones are cheap.
#[derive(Clone)]
pub struct Sender {
    form: Arc<Form>,
    policy: SenderPolicy,
}

/// What the deliveries of a sender look like.
enum Form {
    /// Apart from the others, since it needs none of their steps.
    Chat(Names),
}

/// The names of the chat platform's headers.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    /// `X-Service-Hmac-Sha256` (Spec 5.2, rule 2).
    pub(crate) signature: HeaderName,
    /// `X-Service-Event` (Spec 6).
    pub(crate) event: HeaderName,
    /// `Idempotency-Key` (Spec 6, rule 2).
    pub(crate) key: HeaderName,
}

impl Sender {
    /// The chat platform, which [`event`](crate::event) has the types of.
    #[must_use]
    pub fn chat_platform() -> Self {
        let names = Names {
            signature: HeaderName::from_static("x-service-hmac-sha256"),
            event: HeaderName::from_static("x-service-event"),
            key: HeaderName::from_static("idempotency-key"),
        };
        Self::with_form(Form::Chat(names))
    }

    fn with_form(form: Form) -> Self {
        Self {
            form: Arc::new(form),
            policy: SenderPolicy::default(),
        }
    }

    /// Puts a brand in place of `Service` in the names of the chat platform's headers: `X-Acme-Hmac-Sha256` and
    /// `X-Acme-Event`.
    ///
    /// # Errors
    ///
    /// [`ConfigError::HeaderPrefix`] when the brand is empty or cannot be part of a header's name.
    pub fn branded(mut self, brand: &str) -> Result<Self, ConfigError> {
        let name = |rest| {
            HeaderName::try_from(format!("x-{brand}-{rest}"))
                .ok()
                .filter(|_| !brand.is_empty())
                .ok_or_else(|| ConfigError::HeaderPrefix(brand.to_owned()))
        };
        let Form::Chat(names) = &*self.form;
        self.form = Arc::new(Form::Chat(Names {
            signature: name("hmac-sha256")?,
            event: name("event")?,
            key: names.key.clone(),
        }));
        Ok(self)
    }

    /// Sets when it retries and disables a webhook, from which all defaults are derived.
    #[must_use]
    pub fn with_policy(mut self, policy: SenderPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Returns when it retries and disables a webhook.
    #[must_use]
    pub fn policy(&self) -> SenderPolicy {
        self.policy
    }

    /// The names of the headers, if it is the chat platform.
    pub(crate) fn chat(&self) -> &Names {
        let Form::Chat(names) = &*self.form;
        names
    }

    /// The headers of a delivery that is not signed: its own, content type, event type and key.
    pub(crate) fn head(&self, delivery: &RawDelivery) -> HeaderMap {
        let mut headers = delivery.headers().clone();
        let json = HeaderValue::from_static("application/json");
        headers.insert(http::header::CONTENT_TYPE, json);
        let names = self.chat();
        if let Ok(kind) = HeaderValue::from_str(delivery.kind().as_str()) {
            headers.insert(&names.event, kind);
        }
        if let Some(key) = delivery.key() {
            headers.insert(&names.key, key.value().clone());
        }
        headers
    }
}

/// The chat platform.
impl Default for Sender {
    fn default() -> Self {
        Self::chat_platform()
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Form::Chat(names) = &*self.form;
        f.debug_struct("Sender")
            .field("headers", names)
            .field("policy", &self.policy)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_brand_stands_in_the_names() {
        let branded = |brand| Sender::chat_platform().branded(brand);
        let sender = branded("Acme-Chat").unwrap();
        assert_eq!(sender.chat().signature, "x-acme-chat-hmac-sha256");
        assert_eq!(sender.chat().event, "x-acme-chat-event");
        assert_eq!(sender.chat().key, "idempotency-key");
        for wrong in ["", "a b", "a:b", "ä", "a\n", &"x".repeat(70_000)] {
            let error = branded(wrong).unwrap_err();
            assert!(matches!(error, ConfigError::HeaderPrefix(brand) if brand == wrong));
        }
    }
}
