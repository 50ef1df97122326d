//! The task that extends the leases of the attempts in progress.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::super::queue::Queue;
use super::pool::Pool;
use crate::error::Chain;
use crate::outcome::Outcome;

/// The task that extends the leases of a worker whenever a third of them has passed.
pub(super) async fn extend<Q: Queue>(pool: Arc<Pool<Q>>) {
    let lease = pool.settings.limits.lease();
    let mut has_failed = false;
    loop {
        pool.leases.any().await;
        let pause = if has_failed { lease / 10 } else { lease / 3 };
        let next = Instant::now() + pause;
        let next = pool.leases.first_expiry().map_or(next, |at| at.min(next));
        let is_check = tokio::select! {
            () = sleep_until(next) => false,
            () = pool.leases.checked() => true,
        };
        has_failed = extend_all(&pool, lease, is_check, has_failed).await;
    }
}

/// Extends the leases that have no more than two thirds of their time left, or all of them, and ends the attempts whose
/// leases are lost. Returns whether that failed.
async fn extend_all<Q: Queue>(
    pool: &Pool<Q>,
    lease: Duration,
    is_check: bool,
    had_failed: bool,
) -> bool {
    let asked = Instant::now();
    pool.leases.expire(asked);
    let due = pool
        .leases
        .due((!is_check).then_some(asked + lease * 2 / 3));
    if due.is_empty() {
        return false;
    }
    let leases: Vec<_> = due.iter().map(|held| held.lease).collect();
    let mut limit = asked + pool.settings.limits.store_timeout;
    if let Some(expiry) = pool.leases.first_expiry() {
        limit = limit.min(expiry);
    }
    let limit = limit.saturating_duration_since(Instant::now());
    let extend = pool.shared.queue.extend(&leases, lease);
    match pool.settings.call_within(limit, "extend", extend).await {
        Ok(extended) => {
            let mut is_any_unknown = false;
            for (held, is_held) in due.iter().zip(extended) {
                match is_held {
                    Some(true) => held.extended(asked + lease),
                    Some(false) => held.end(Outcome::LeaseLost),
                    // The attempt goes on until its lease expires, and is asked for again before.
                    None => is_any_unknown = true,
                }
            }
            is_any_unknown
        }
        Err(error) => {
            if !had_failed {
                tracing::warn!(
                    reason = Chain(&error).to_string(),
                    attempts = due.len(),
                    "the leases of attempts in progress could not be renewed; renewal is retried until they expire"
                );
            }
            pool.leases.expire(Instant::now());
            true
        }
    }
}
