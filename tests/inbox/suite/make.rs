//! Names that were never used before, and ends of attempts.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use http::HeaderValue;

use tower_webhook::IdempotencyKey;
use tower_webhook::event::EventKind;
use tower_webhook::inbox::internal::Settlement;
use tower_webhook::inbox::{Failure, Lane};
use tower_webhook::store::conformance::steps::unique;

/// A kind that was never used before.
pub(super) fn kind() -> EventKind {
    let kind = format!("conformance-{}", unique().replace(' ', "-"));
    kind.parse()
        .unwrap_or_else(|_| unreachable!("{kind} is a token"))
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

pub(super) fn failure(reason: impl Into<String>) -> Failure {
    Failure {
        outcome: "conformance".to_owned(),
        reason: reason.into(),
        took: Some(Duration::from_millis(1500)),
    }
}

/// A failure that counts, and that the lane waits for.
pub(super) fn retry(after: Duration) -> Settlement {
    Settlement::Retry {
        after,
        failure: Some(failure("retry")),
        counts: true,
        is_probe: false,
        blocks_lane: true,
    }
}

/// A failure that counts, and that the lane does not wait for.
pub(super) fn skip(after: Duration) -> Settlement {
    Settlement::Retry {
        after,
        failure: Some(failure("skip")),
        counts: true,
        is_probe: false,
        blocks_lane: false,
    }
}

/// A failure that does not count.
pub(super) fn outage(after: Duration) -> Settlement {
    Settlement::Retry {
        after,
        failure: Some(failure("outage")),
        counts: false,
        is_probe: false,
        blocks_lane: true,
    }
}

/// The failure of a probe, whose whole kind fails.
pub(super) fn probe(after: Duration) -> Settlement {
    Settlement::Retry {
        after,
        failure: Some(failure("probe")),
        counts: false,
        is_probe: true,
        blocks_lane: true,
    }
}

pub(super) fn snooze(after: Duration) -> Settlement {
    Settlement::Retry {
        after,
        failure: None,
        counts: false,
        is_probe: false,
        blocks_lane: true,
    }
}

pub(super) fn dead(hold_lane: bool) -> Settlement {
    Settlement::Dead {
        failure: failure("dead"),
        hold_lane,
    }
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
