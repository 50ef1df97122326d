//! The task that extends the leases of the attempts in progress.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::leases::SharedLease;
use super::pool::Pool;
use crate::error::Chain;
use crate::outcome::Outcome;

/// The task that extends the leases of a worker, all together, after each third of their time.
pub(super) async fn extend(pool: Arc<Pool>) {
    let lease = pool.shortest_lease();
    let mut has_failed = false;
    loop {
        pool.leases.any().await;
        let pause = if has_failed { lease / 10 } else { lease / 3 };
        let next = Instant::now() + pause;
        let next = pool.leases.first_expiry().map_or(next, |at| at.min(next));
        tokio::select! {
            biased;
            () = sleep_until(next) => {}
            () = pool.leases.checked() => {}
        }
        has_failed = extend_all(&pool, has_failed).await;
    }
}

/// Extends the leases, and ends the attempts whose leases are lost. Returns whether that failed.
async fn extend_all(pool: &Pool, had_failed: bool) -> bool {
    pool.leases.expire(Instant::now());
    let mut by_duration = BTreeMap::<Duration, Vec<_>>::new();
    for held in pool.leases.held() {
        by_duration.entry(held.duration).or_default().push(held);
    }
    let mut has_failed = false;
    // Nearly always one: that of all routes.
    for (duration, held) in by_duration {
        has_failed |= extend_some(pool, duration, &held, had_failed).await;
    }
    has_failed
}

/// Extends leases of one duration.
async fn extend_some(
    pool: &Pool,
    lease: Duration,
    going: &[Arc<SharedLease>],
    had_failed: bool,
) -> bool {
    let asked = Instant::now();
    let leases: Vec<_> = going.iter().map(|held| held.lease).collect();
    let mut limit = asked + pool.store_timeout();
    if let Some(expiry) = pool.leases.first_expiry() {
        limit = limit.min(expiry);
    }
    let limit = limit.saturating_duration_since(Instant::now());
    let extend = pool.shared.queue.settle.extend(&leases, lease);
    match pool.shared.call_within(limit, "extend", extend).await {
        Ok(extended) => {
            let mut is_any_unknown = false;
            for (held, is_held) in going.iter().zip(extended) {
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
                    attempts = going.len(),
                    "the leases of attempts in progress could not be renewed; renewal is retried until they expire"
                );
            }
            pool.leases.expire(Instant::now());
            true
        }
    }
}
