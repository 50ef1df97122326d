//! The size of a queue, as it was known last, and the deliveries that are refused because of it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::accept::Refusal;
use super::handle::Shared;
use crate::execution::Limits;
use crate::lock::lock;

/// The last known size of the queue.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    seen: Mutex<Size>,
}

#[derive(Debug, Default)]
struct Size {
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
enum Due {
    No,
    First,
    Again,
}

impl Backlog {
    pub(super) fn bytes(&self) -> u64 {
        lock(&self.seen).bytes
    }

    /// Lets the next caller ask.
    fn asked(&self) {
        lock(&self.seen).is_asking = false;
    }

    fn is_due(&self) -> Due {
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

    fn see(&self, bytes: u64, limit: u64) {
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

impl Shared {
    /// Refuses a delivery if the queue has reached its limit.
    pub(super) async fn check_backlog(
        self: &Arc<Self>,
        limit: u64,
        of_route: &Limits,
    ) -> Result<(), Refusal> {
        let time = of_route.store_timeout;
        match self.backlog.is_due() {
            Due::No => {}
            // The next steps of this delivery need most of its time.
            Due::First => {
                let asked = tokio::spawn(Asking(Arc::clone(self)).ask(limit, time));
                drop(timeout(time / 4, asked).await);
            }
            // No delivery waits for it.
            Due::Again => drop(tokio::spawn(Asking(Arc::clone(self)).ask(limit, time))),
        }
        if self.backlog.bytes() < limit {
            return Ok(());
        }
        Err(Refusal::BacklogFull {
            limit,
            retry_after: of_route.policy.retry_every,
        })
    }
}

/// The only call that asks for the queue's size. Dropping it lets the next call ask, even after a runtime has ended or a
/// queue has panicked.
struct Asking(Arc<Shared>);

impl Asking {
    async fn ask(self, limit: u64, time: Duration) {
        // An error is reported by other calls.
        if let Ok(Ok(bytes)) = timeout(time, self.0.queue.measure.size()).await {
            self.0.backlog.see(bytes, limit);
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.backlog.asked();
    }
}
