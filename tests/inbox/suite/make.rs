//! Names that were never used before, and all ends of attempts.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use http::HeaderValue;

use tower_webhook::event::EventKind;
use tower_webhook::inbox::internal::{Lane, Settlement};
use tower_webhook::store::conformance::steps::unique;
use tower_webhook::{IdempotencyKey, RouteName};

use support::queue::{dead, failure, outage, retry, skip, snooze};

/// A kind that was never used before.
pub(super) fn kind() -> EventKind {
    let kind = format!("conformance-{}", unique().replace(' ', "-"));
    kind.parse()
        .unwrap_or_else(|_| unreachable!("{kind} is a token"))
}

/// A route that was never used before.
pub(super) fn route() -> RouteName {
    let name = format!("route-{}", unique().replace(' ', "-"));
    name.parse()
        .unwrap_or_else(|_| unreachable!("{name} is a name"))
}

/// The id of a chat that was never used before.
pub(super) fn chat() -> String {
    format!("chat {}", unique())
}

/// A lane that was never used before.
pub(super) fn lane() -> Lane {
    Lane(RandomState::new().hash_one(unique()).cast_signed())
}

/// A key that was never used before.
pub(super) fn key() -> IdempotencyKey {
    key_of(unique().as_bytes())
}

pub(super) fn key_of(bytes: &[u8]) -> IdempotencyKey {
    HeaderValue::from_bytes(bytes)
        .ok()
        .and_then(IdempotencyKey::new)
        .unwrap_or_else(|| unreachable!("{} is a header's value", bytes.escape_ascii()))
}

/// Every way to end an attempt. What is retried can be taken again at once.
pub(super) fn endings() -> Vec<Settlement> {
    vec![
        Settlement::Handled,
        Settlement::Ignored,
        Settlement::Discarded(failure("discarded")),
        dead(false),
        dead(true),
        retry(Duration::ZERO),
        skip(Duration::ZERO),
        outage(Duration::ZERO),
        snooze(Duration::ZERO),
        Settlement::Released,
    ]
}
