//! The size of a queue, as it was known last.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::lock::lock;

/// The last known size of the queue.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    bytes: u64,
    /// When it was asked for last.
    at: Option<Instant>,
    is_asking: bool,
    has_warned: bool,
}

/// How long a size counts as current.
const FRESH: Duration = Duration::from_secs(1);

/// The percentages of the limit from which a warning is logged (`WARN`), and below which another one may follow
/// (`CALM`).
const CALM: u64 = 70;
const WARN: u64 = 80;

/// Whether the caller has to ask for the size of the queue.
pub(super) enum Due {
    No,
    First,
    Again,
}

impl Backlog {
    pub(super) fn bytes(&self) -> u64 {
        lock(&self.seen).bytes
    }

    /// Lets the next caller ask.
    pub(super) fn asked(&self) {
        lock(&self.seen).is_asking = false;
    }

    pub(super) fn is_due(&self) -> Due {
        let now = Instant::now();
        let mut seen = lock(&self.seen);
        let is_fresh = |at| now.saturating_duration_since(at) < FRESH;
        if seen.is_asking || seen.at.is_some_and(is_fresh) {
            return Due::No;
        }
        seen.is_asking = true;
        match seen.at.replace(now) {
            None => Due::First,
            Some(_) => Due::Again,
        }
    }

    pub(super) fn see(&self, bytes: u64, limit: u64) {
        let percent = bytes.saturating_mul(100) / limit.max(1);
        let mut seen = lock(&self.seen);
        seen.bytes = bytes;
        let warns = percent >= WARN && !seen.has_warned;
        seen.has_warned = percent >= CALM && (warns || seen.has_warned);
        drop(seen);
        if warns {
            tracing::warn!(
                bytes,
                limit,
                "the inbox is nearly full: above its limit, deliveries are answered with 503; find out why its events \
                 are not handled, or raise `backlog_limit`"
            );
        }
    }
}
