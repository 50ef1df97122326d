//! Events that are given to a queue without HTTP.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::HeaderValue;
use tower_webhook::event::{EventKind, sample};
use tower_webhook::inbox::internal::{Kinds, Lane, NewEvent, Take};
use tower_webhook::store::EventKey;
use tower_webhook::{IdempotencyKey, RawDelivery, Secret};

use crate::SECRET;

pub(crate) fn secret() -> Secret {
    Secret::new(SECRET).expect("it is not empty")
}

/// Events with new keys of 36 bytes and a body of 607, of a number of chats in turn.
pub(crate) struct Events {
    chats: u64,
    count: AtomicU64,
    space: u64,
}

impl Events {
    pub(crate) fn of_chats(chats: u64) -> Self {
        static SPACES: AtomicU64 = AtomicU64::new(1);
        Self {
            chats,
            count: AtomicU64::new(0),
            space: SPACES.fetch_add(1, Ordering::Relaxed),
        }
    }

    pub(crate) fn next(&self) -> NewEvent {
        self.event(self.count.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the next event, unless there were that many.
    pub(crate) fn next_of(&self, count: u64) -> Option<NewEvent> {
        let next = |number| (number < count).then_some(number + 1);
        let number = self
            .count
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        Some(self.event(number.ok()?))
    }

    fn event(&self, number: u64) -> NewEvent {
        let body = sample(&EventKind::CHAT_CLOSED).expect("a kind of the platform");
        let key = format!("evt-{:016x}{number:016x}", self.space);
        let chat = format!("c-{:027}", number % self.chats);
        let value = HeaderValue::from_str(&key).ok();
        NewEvent {
            key: Some(EventKey::new("webhook", key.as_bytes(), body.as_bytes())),
            guard: None,
            rejects_changed_body: false,
            lane: Some(Lane::of_chat(&chat)),
            chat: Some(chat),
            retain: 8 * 24 * Duration::from_secs(3600),
            dead: None,
            delivery: RawDelivery::new(EventKind::CHAT_CLOSED, body)
                .with_key(value.and_then(IdempotencyKey::new)),
        }
    }
}

/// Takes all kinds.
pub(crate) fn take() -> Take {
    Take {
        lease: Duration::from_secs(30),
        kinds: Kinds::all(),
    }
}

/// Returns the value below which that share of the values is.
pub(crate) fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len() as f64 * share) as usize;
    let value = values.get(at).or(values.last());
    value.copied().unwrap_or(f64::NAN)
}
