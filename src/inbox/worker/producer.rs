//! Takes events from the queue when there is room, and starts their attempts.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep, sleep_until};
use tower_service::Service;

use super::super::event::{Kinds, Take};
use super::super::queue::{Claims, Queue};
use super::attempt::{Attempt, run};
use super::pool::{Pool, Stop};
use crate::delivery::RawDelivery;
use crate::error::{BoxError, Chain};
use crate::event::EventKind;
use crate::execution::lock;
use crate::outcome::Outcome;
use crate::store::StoreError;

/// The maximum number of events that are taken at once.
const BATCH: usize = 64;

/// The longest pause after a failure of the queue.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The task that takes events.
pub(super) async fn produce<Q, S>(pool: Arc<Pool<Q>>, service: S)
where
    Q: Queue,
    S: Service<RawDelivery, Response = Outcome, Error: Into<BoxError>, Future: Send>
        + Clone
        + Send
        + 'static,
{
    let mut pause = Duration::ZERO;
    pool.ask_now();
    while !pool.stops() {
        let at = pool.next_ask();
        if at.is_none_or(|at| at > Instant::now()) {
            match at {
                Some(at) => tokio::select! {
                    () = pool.wake.notified() => {}
                    () = sleep_until(at) => {}
                },
                None => pool.wake.notified().await,
            }
            continue;
        }
        let permits = tokio::select! {
            biased;
            () = stopped(&pool) => return,
            permits = permits(&pool) => permits,
        };
        match ask(&pool, service.clone(), permits).await {
            Ok(()) => pause = Duration::ZERO,
            Err(error) => {
                if pause.is_zero() {
                    tracing::error!(
                        reason = %Chain(&error),
                        "the worker cannot take events from the queue; this is retried until it succeeds"
                    );
                }
                pause = (2 * pause).clamp(Duration::from_millis(100), LONGEST_PAUSE);
                sleep(pause).await;
                pool.ask_now();
            }
        }
    }
}

async fn stopped<Q>(pool: &Pool<Q>) {
    let mut stop = pool.stop.subscribe();
    let _ = stop.wait_for(|stop| *stop != Stop::No).await;
}

/// Waits for room for one event, and takes room for more of them if there is. If this process accepts events, they need
/// half of it: those that find no room wait for the next claim, which would again take the room of others.
async fn permits<Q>(pool: &Pool<Q>) -> Vec<OwnedSemaphorePermit> {
    let mut permits = Vec::new();
    if let Ok(first) = Arc::clone(&pool.permits).acquire_owned().await {
        permits.push(first);
    }
    let most = match pool.accepts.swap(false, Ordering::Relaxed) {
        true => BATCH.min(1 + pool.permits.available_permits() / 2),
        false => BATCH,
    };
    while permits.len() < most
        && let Ok(permit) = Arc::clone(&pool.permits).try_acquire_owned()
    {
        permits.push(permit);
    }
    permits
}

/// Takes events, and starts their attempts.
async fn ask<Q, S>(
    pool: &Arc<Pool<Q>>,
    service: S,
    mut permits: Vec<OwnedSemaphorePermit>,
) -> Result<(), StoreError>
where
    Q: Queue,
    S: Service<RawDelivery, Response = Outcome, Error: Into<BoxError>, Future: Send>
        + Clone
        + Send
        + 'static,
{
    let probed = match pool.has_trips.load(Ordering::Relaxed) {
        true => lock(&pool.trips).begin_probe(),
        false => None,
    };
    let of = Arc::clone(pool);
    let start = move |event, asked, probe, permit| {
        let attempt = Attempt {
            event,
            asked,
            probe,
        };
        tokio::spawn(run(Arc::clone(&of), service.clone(), attempt, permit));
    };
    if let Some(probe) = probed {
        let asked = Instant::now();
        let mut claimed = claim_one(pool, &probe.kind).await;
        if let Ok(claims) = &mut claimed
            && let Some(event) = claims.events.pop()
            && let Some(permit) = permits.pop()
        {
            start(event, asked, Some(probe), permit);
            return Ok(());
        }
        lock(&pool.trips).probe_ended(&probe);
        claimed?;
    }

    // Before the claim, so that no plan is lost that others make meanwhile.
    pool.forget_plan();
    let asked = Instant::now();
    let claims = pool.claim(&pool.take(), permits.len()).await?;
    for (event, permit) in claims.events.into_iter().zip(permits) {
        start(event, asked, None, permit);
    }
    if let Some(next_due) = claims.next_due {
        pool.ask_at(asked + next_due);
    }
    if Q::SHARED {
        let jitter = 0.75 + fastrand::f64() / 2.0;
        pool.ask_at(asked + pool.rules.poll_every.mul_f64(jitter));
    }
    Ok(())
}

/// Takes one event of a kind that is tripped.
async fn claim_one<Q: Queue>(pool: &Pool<Q>, kind: &EventKind) -> Result<Claims, StoreError> {
    let take = Take {
        lease: pool.settings.limits.lease(),
        kinds: Kinds::only([kind.clone()]),
    };
    pool.claim(&take, 1).await
}

impl<Q: Queue> Pool<Q> {
    async fn claim(&self, take: &Take, limit: usize) -> Result<Claims, StoreError> {
        // One suspect at a time. The count is read before the claim, since the next event of a lane may be one, too.
        let suspects = usize::from(*lock(&self.suspects) == 0);
        let claim = self.shared.queue.claim(take, limit, suspects);
        let claims = self.settings.call_within(take.lease, "claim", claim);
        let claims = claims.await?;
        let suspects = claims.events.iter().filter(|event| event.crashes > 0);
        *lock(&self.suspects) += suspects.count();
        Ok(claims)
    }
}

/// The interval between purges.
const PURGE_EVERY: Duration = Duration::from_secs(60);

/// The time limit of a step of a purge. It holds a connection, if the queue has any.
const PURGE_LIMIT: Duration = Duration::from_secs(30);

/// The task that deletes bodies and events that have expired.
pub(super) async fn purge<Q: Queue>(pool: Arc<Pool<Q>>) {
    let keep_bodies = pool.settings.keep_bodies;
    let mut has_failed = false;
    loop {
        sleep(PURGE_EVERY.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
        loop {
            let purge = pool.shared.queue.purge(keep_bodies);
            let purged = pool.settings.call_within(PURGE_LIMIT, "purge", purge);
            match purged.await {
                Ok(has_more) => {
                    has_failed = false;
                    if !has_more {
                        break;
                    }
                    // Between two steps, other operations have their turn.
                    sleep(Duration::from_millis(10)).await;
                }
                Err(error) => {
                    if !has_failed {
                        tracing::warn!(
                            reason = %Chain(&error),
                            "bodies and events that have expired cannot be deleted; deletion is retried every minute"
                        );
                    }
                    has_failed = true;
                    break;
                }
            }
        }
    }
}
