//! Polls the queue for events when there is room, starts their attempts, and purges.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{AcquireError, OwnedSemaphorePermit};
use tokio::time::{Instant, sleep, sleep_until};

use super::super::event::{EventId, Kinds, Share, Take};
use super::attempt::{Attempt, run};
use super::pool::{Busy, Pool, Slot, Stop};
use crate::error::Chain;
use crate::event::EventKind;
use crate::lock::lock;
use crate::route::EventType;
use crate::store::StoreError;

/// The maximum number of events that are taken at once.
const BATCH: usize = 64;

/// The longest pause after a failure of the queue.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The task that takes events.
pub(super) async fn produce(pool: Arc<Pool>) {
    let mut pause = Duration::ZERO;
    pool.ask_now();
    while !pool.stops() {
        let at = pool.next_ask();
        if at.is_none_or(|at| at > Instant::now()) {
            match at {
                Some(at) => tokio::select! {
                    biased;
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
        let Ok(permits) = permits else { return };
        pool.note_claim(false);
        match ask(&pool, permits).await {
            Ok(()) => {
                pause = Duration::ZERO;
                pool.note_claim(true);
            }
            Err(error) => {
                if pause.is_zero() {
                    tracing::error!(
                        reason = Chain(&error).to_string(),
                        "the worker cannot take events from the inbox; this is retried until it succeeds"
                    );
                }
                pause = (2 * pause).clamp(Duration::from_millis(100), LONGEST_PAUSE);
                sleep(pause).await;
                pool.ask_now();
            }
        }
    }
}

async fn stopped(pool: &Pool) {
    let mut stop = pool.stop.subscribe();
    let _ = stop.wait_for(|stop| *stop != Stop::No).await;
}

/// Waits for room for one event, and takes room for more of them if there is. If this process accepts events, half of
/// the room is left to them: an event that finds no room waits for the next claim, which would again take all room.
async fn permits(pool: &Pool) -> Result<OwnedSemaphorePermit, AcquireError> {
    let mut permits = Arc::clone(&pool.permits).acquire_owned().await?;
    let free = pool.permits.available_permits();
    let mut more = match pool.accepts.swap(false, Ordering::Relaxed) {
        true => free / 2,
        false => free,
    };
    more = more.min(BATCH - 1);
    while more > 0 {
        let room = Arc::clone(&pool.permits).try_acquire_many_owned(more as u32);
        match room {
            Ok(room) => {
                permits.merge(room);
                break;
            }
            // Another task has just taken some.
            Err(_) => more /= 2,
        }
    }
    Ok(permits)
}

/// Takes events, and starts their attempts.
async fn ask(pool: &Arc<Pool>, mut permits: OwnedSemaphorePermit) -> Result<(), StoreError> {
    if let Some((attempt, busy)) = wanted(pool).await? {
        pool.begin(attempt, busy, &mut permits);
        return Ok(());
    }

    // Before the claim, so that plans which others make during it are kept.
    let plan = lock(&pool.plan).take();
    let asked = Instant::now();
    let may_be_due = plan.is_some_and(|at| at <= asked);
    let (shares, mut rooms) = pool.shares(permits.num_permits(), may_be_due);
    let (attempts, next_due, full) = pool.claim(&shares, permits.num_permits()).await?;
    pool.is_capped.store(!full.is_empty(), Ordering::SeqCst);
    // A route that is full may have more that is due.
    let is_behind = next_due == Some(Duration::ZERO) || !full.is_empty();
    pool.claimed(attempts.len(), is_behind);
    let begun: Vec<_> = attempts.iter().map(|it| it.call.of().clone()).collect();
    for attempt in attempts {
        let route = attempt.event.delivery.route();
        let at = pool
            .routes
            .iter()
            .position(|place| place.route.name == *route);
        if let Some(busy) = at.and_then(|at| rooms[at].split()) {
            pool.begin(attempt, busy, &mut permits);
        }
    }
    drop(rooms);
    pool.wait_for_room(&shares, &begun);
    if let Some(next_due) = next_due {
        pool.ask_at(asked + next_due);
    }
    // The end of an attempt makes room, also if it came before the cap was noted.
    if full
        .iter()
        .any(|at| pool.routes[*at].busy() < shares[*at].most)
    {
        pool.ask_now();
    }
    // So does a minute in which the other routes have no event.
    let has_waiting = pool.routes.len() > 1 && !full.is_empty();
    if pool.shared.queue.is_shared || has_waiting {
        let jitter = 0.75 + fastrand::f64() / 2.0;
        pool.ask_at(asked + pool.rules().poll_every.mul_f64(jitter));
    }
    Ok(())
}

/// Takes the event of a type short of credit that a person wants to be tried now.
async fn wanted(pool: &Arc<Pool>) -> Result<Option<(Attempt, Busy)>, StoreError> {
    let wanted = lock(&pool.credits).wanted(|route| pool.has_room(route));
    let Some((EventType { route, kind }, event)) = wanted else {
        return Ok(None);
    };
    let Some(place) = pool.place(&route) else {
        return Ok(None);
    };
    let take = Take {
        lease: place.route.limits.lease(),
        kinds: Kinds::only([kind]).at(route),
    };
    // Before the event is taken, because an event that was just accepted may need the room.
    let (_, mut room) = place.enter(1, pool.most(place));
    let Some(busy) = room.split() else {
        return Ok(None);
    };
    let attempt = pool.take_one(event, &take).await?;
    Ok(attempt.map(|attempt| (attempt, busy)))
}

impl Pool {
    /// Starts an attempt in a task of its own.
    fn begin(self: &Arc<Self>, attempt: Attempt, busy: Busy, permits: &mut OwnedSemaphorePermit) {
        let Some(permit) = permits.split(1) else {
            return;
        };
        let slot = Slot::new(Arc::clone(self), busy, permit);
        // Boxed, because a task is copied several times.
        tokio::spawn(Box::pin(run(slot, attempt, false)));
    }

    /// Takes one event, if it can be taken and may begin now.
    async fn take_one(
        self: &Arc<Self>,
        id: EventId,
        take: &Take,
    ) -> Result<Option<Attempt>, StoreError> {
        let asked = Instant::now();
        let taking = self.shared.queue.claim.take(id, take);
        let taken = self.shared.call_within(take.lease, "take", taking);
        Ok(match taken.await? {
            Some(event) => self.admit(event, asked).await,
            None => None,
        })
    }

    /// Takes events that may begin now, and returns the time until another one is due. The queue may have more events of the
    /// last ones, routes that have as many attempts as they may have: it does not count those as due.
    async fn claim(
        self: &Arc<Self>,
        of: &[Share],
        limit: usize,
    ) -> Result<(Vec<Attempt>, Option<Duration>, Vec<usize>), StoreError> {
        let asked = Instant::now();
        // Read before the claim, since the next event of a lane may be a suspect, too.
        let suspects = lock(&self.suspects).room(self.rules());
        let claim = self.shared.queue.claim.claim(of, limit, suspects);
        let longest = of.iter().map(|share| share.take.lease).max();
        let claims = self
            .shared
            .call_within(longest.unwrap_or_default(), "claim", claim);
        let claims = claims.await?;
        let mut busy: Vec<_> = of.iter().map(|share| share.busy).collect();
        let mut attempts = Vec::with_capacity(claims.events.len());
        for event in claims.events {
            let route = event.delivery.route();
            let Some(at) = of.iter().position(|it| it.take.kinds.route == *route) else {
                continue;
            };
            busy[at] += 1;
            // Otherwise, another worker may have taken it by now.
            if asked.elapsed() < of[at].take.lease {
                attempts.extend(self.admit(event, asked).await);
            }
        }
        let full = (0..of.len()).filter(|at| busy[*at] >= of[*at].most);
        let full = full.collect();
        if suspects < lock(&self.suspects).room(self.rules()) {
            self.ask_now();
        }
        Ok((attempts, claims.next_due, full))
    }
}

impl Pool {
    /// Notes the types of which a claim may have left events, since they may have no more attempts: when they may, the queue is
    /// asked again.
    fn wait_for_room(&self, shares: &[Share], begun: &[EventType]) {
        let mut full = Vec::new();
        for share in shares {
            let route = &share.take.kinds.route;
            let of = |kind: &EventKind| EventType::new(route.clone(), kind.clone());
            let begun_of = |it: &EventType| begun.iter().filter(|of| *of == it).count();
            for it in &share.kinds {
                let kind = of(&it.kind);
                if it.busy + begun_of(&kind) >= it.most {
                    full.push(kind);
                }
            }
            let is_other = |it: &&EventType| {
                it.route == *route && !share.kinds.iter().any(|of| of.kind == it.kind)
            };
            let others = begun.iter().filter(is_other);
            full.extend(others.filter(|it| begun_of(it) >= share.each).cloned());
        }
        let mut credits = lock(&self.credits);
        let mut has_room = false;
        for of in &full {
            has_room |= credits.wait(of);
        }
        drop(credits);
        if has_room {
            self.ask_now();
        }
    }
}

/// The interval between purges.
const PURGE_EVERY: Duration = Duration::from_secs(60);

/// The time limit of a step of a purge. It holds a connection, if the queue has any.
const PURGE_LIMIT: Duration = Duration::from_secs(30);

/// The task that deletes bodies and events that have expired.
pub(super) async fn purge(pool: Arc<Pool>) {
    let keep_bodies = pool.settings.keep_bodies;
    let mut has_failed = false;
    loop {
        sleep(PURGE_EVERY.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
        loop {
            let purge = pool.shared.queue.purge.purge(keep_bodies);
            let purged = pool.shared.call_within(PURGE_LIMIT, "purge", purge);
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
                            reason = Chain(&error).to_string(),
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
