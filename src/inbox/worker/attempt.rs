//! One attempt to handle an event, and how it is settled.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::Instant;
use tracing::Instrument;

use super::super::credit::handler_works;
use super::super::decide::{self, Ended, decide};
use super::super::event::{EventLease, EventState, Failure, Settlement, Take, TakenEvent};
use super::super::handlers::{Duty, Own, PUT_OFF};
use super::super::queue::Settled;
use super::super::records::PastFailure;
use super::leases::HeldLease;
use super::pool::{Call, Place, Pool, Slot};
use crate::error::Chain;
use crate::execution::{Tries, attempt};
use crate::lock::lock;
use crate::outcome::Outcome;
use crate::telemetry::{AttemptWatch, DeliverySpan};

/// An event to be handled.
pub(super) struct Attempt {
    pub(super) event: TakenEvent,
    /// When its lease was requested.
    pub(super) asked: Instant,
    /// Whether it has crashed before.
    pub(super) suspect: Option<Box<Suspect>>,
    /// What it costs of its type's credit.
    pub(super) call: Call,
}

/// The number of events of one lane in a row after which another lane has its turn.
const LANE_TURN: u32 = 32;

/// The same for a worker of several routes without a free slot: another process may have accepted events of a route that
/// none of its attempts is at.
const LANE_TURN_OF_ROUTES: u32 = 4;

/// The time after a settlement in which a worker asks a queue that is not shared for what becomes due.
const CLAIM_AFTER: Duration = Duration::from_millis(1);

/// Handles an event, and those of its lane that follow. One that began at acceptance leaves these to the next claim in a
/// backlog.
// Not an `async fn`, which would make room for its arguments twice.
pub(super) fn run(slot: Slot, first: Attempt, is_early: bool) -> impl Future<Output = ()> + Send {
    let mut next = Some(first);
    async move {
        let pool = slot.pool();
        let mut turns = 0;
        while let Some(this) = &next {
            let span = DeliverySpan::attempt(&this.event.delivery, this.event.lease.id.0);
            turns += 1;
            // In a backlog, a chat whose event was early does not keep its slot.
            let is_last = is_early && pool.is_behind();
            let turns = if is_last { LANE_TURN } else { turns };
            let attempt = pool.attempt(&mut next, turns, &span);
            attempt.instrument(span.span()).await;
        }
    }
}

/// An event in progress that has crashed before. However its attempt ends, another one may begin then.
pub(super) struct Suspect {
    pool: Arc<Pool>,
    crashes: u32,
}

impl Drop for Suspect {
    fn drop(&mut self) {
        lock(&self.pool.suspects).ended(self.crashes);
        self.pool.ask_now();
    }
}

impl Pool {
    /// Returns an attempt of an event that was taken, or releases it if it has to run beside fewer others.
    pub(super) async fn admit(
        self: &Arc<Self>,
        event: TakenEvent,
        asked: Instant,
    ) -> Option<Attempt> {
        let crashes = event.crashes;
        if crashes > 0 && !lock(&self.suspects).begin(crashes, self.rules()) {
            // Boxed, because few events are released.
            Box::pin(self.release(&event.lease)).await;
            return None;
        }
        let of = event.delivery.event_type();
        Some(Attempt {
            event,
            asked,
            suspect: (crashes > 0).then(|| {
                let pool = Arc::clone(self);
                Box::new(Suspect { pool, crashes })
            }),
            call: self.call(of),
        })
    }

    async fn release(&self, lease: &EventLease) {
        let queue = &self.shared.queue;
        let release = queue.settle.settle(lease, &Settlement::Released, None);
        let limit = self.store_timeout();
        // If that fails, the event is tried again when its lease has expired.
        let _ = self.shared.call_within(limit, "settle", release).await;
    }

    /// Makes one attempt, and replaces it with that of the lane's next event, if it was taken.
    async fn attempt(
        self: &Arc<Self>,
        next: &mut Option<Attempt>,
        turns: u32,
        span: &DeliverySpan,
    ) {
        let Some(Attempt {
            event,
            asked,
            suspect,
            mut call,
        }) = next.take()
        else {
            return;
        };
        // A queue hands out events of these routes alone.
        let Some(place) = self.place(event.delivery.route()) else {
            return;
        };
        place.see();
        let lease = place.route.limits.lease();
        let held = self.leases.hold(event.lease, lease, asked + lease);
        if held.is_first() {
            // The task that extends leases was woken on this thread. Behind a handler that blocks, it would be late.
            yield_now().await;
        }
        let began = Instant::now();
        let observers = self.shared.observers();
        let watch = AttemptWatch::new(observers, &event.delivery, Some(event.lease.id.0));
        let outcome = self.handle(place, &event, &held).await;
        let settlement = match &outcome {
            Ok(outcome) => {
                let lane = event.lane.map_or(event.lease.id.0, |lane| lane.0);
                let [is_slowed, is_short] = call.end(handler_works(outcome), lane);
                let ended = Ended {
                    event: &event,
                    outcome,
                    took: began.elapsed(),
                    is_slowed,
                    is_short,
                    jitter: fastrand::f64(),
                };
                let decide::Decision { settlement, line } = decide(ended, self.rules());
                line.log(outcome);
                span.finish(outcome.name());
                settlement
            }
            Err(left) => Some(left.clone()),
        };
        let watch = watch.stop();
        let lease = event.delivery.lease();
        let is_settled = lease.as_ref().is_some_and(|lease| lease.is_settled());
        let recorded = match settlement.as_ref().filter(|_| !is_settled) {
            Some(settlement) => {
                let gives_way = self.gives_way(place, turns);
                let takes_next = !gives_way && !self.stops();
                let take = takes_next.then(|| self.take_next(place));
                let may_be_settled = lease.is_some_and(|lease| lease.is_settling());
                let settle = self.settle(&held, settlement, take.as_deref(), may_be_settled);
                let settled = settle.await;
                // The claim of whoever is next finds this lane's next event, too.
                if gives_way {
                    self.ask_now();
                }
                settled
            }
            None => {
                // The event, or the next one of its lane, waits for a claim.
                self.shared.workers.wake();
                is_settled.then_some(None)
            }
        };
        // No attempt was made of an event that is left to another worker.
        if let Ok(outcome) = &outcome {
            watch.ended(outcome, settlement.as_ref().filter(|_| recorded.is_some()));
        }
        drop((suspect, call));
        if let Some((event, asked)) = recorded.flatten() {
            *next = self.admit(*event, asked).await;
        }
    }

    /// Whether the slot of a lane that has had this many turns is for another lane now, or for a route with fewer attempts in
    /// progress.
    fn gives_way(&self, place: &Place, turns: u32) -> bool {
        if self.routes.len() == 1 || self.permits.available_permits() > 0 {
            return turns >= LANE_TURN;
        }
        let mut others = self.routes.iter();
        turns >= LANE_TURN_OF_ROUTES
            || others.any(|other| other.busy() < place.busy() && other.is_active())
    }

    /// Runs the handler, and returns the attempt's outcome; or what becomes of an event that is left to another worker.
    async fn handle(
        &self,
        place: &Place,
        event: &TakenEvent,
        held: &HeldLease<'_>,
    ) -> Result<Outcome, Settlement> {
        // It was being taken when the worker was stopped.
        if self.stops() {
            return Ok(Outcome::Interrupted);
        }
        if event.crashes >= self.rules().max_crashes {
            let crashes = event.crashes;
            return Ok(Outcome::Crashed { crashes });
        }
        // Nothing is asked of an event that has a handler here.
        let own = place.handles.own(event.delivery.kind());
        if own != Own::Handler {
            match self.duty(own, &event.delivery).await {
                Ok(Duty::Handle | Duty::Ignore) => {}
                Ok(Duty::Leave) => return Err(Settlement::Released),
                Ok(Duty::PutOff) => {
                    return Err(Settlement::Retry {
                        after: PUT_OFF,
                        failure: None,
                        counts: false,
                        is_slowed: false,
                        blocks_lane: false,
                    });
                }
                Err(error) => return Ok(Outcome::unavailable(error, Duration::ZERO)),
            }
        }
        let mut delivery = event.delivery.clone();
        delivery.begin_attempt(None);
        delivery.lend_settings(&place.lent);
        if place.route.lane_of.sends_forms() {
            delivery.allow_form();
        }
        let lease = delivery.lease();
        let cut = async {
            let outcome = held.ended().await;
            // Its handler is ending the attempt, and learns itself whether the lease was lost.
            if lease.as_ref().is_some_and(|lease| lease.is_settling()) {
                pending::<()>().await;
            }
            outcome
        };
        let limit = place.route.limits.handler_timeout;
        let attempted = attempt(place.handler.handle(delivery), limit, cut).await;
        let outcome = attempted.unwrap_or_else(|outcome| outcome);
        if lease.is_some_and(|lease| lease.is_settled()) && !matches!(outcome, Outcome::Handled) {
            tracing::error!(
                %outcome,
                "the event is settled as handled, as the transaction of a handler was committed: the outcome of the \
                 service around it has no effect"
            );
            return Ok(Outcome::Handled);
        }
        Ok(outcome)
    }

    /// Settles an attempt, and tries again for as long as its lease lasts. Returns the next event of the lane, if it
    /// was taken, or `None` if the attempt could not be settled.
    async fn settle(
        &self,
        held: &HeldLease<'_>,
        settlement: &Settlement,
        next: Option<&Take>,
        may_be_settled: bool,
    ) -> Option<Option<(Box<TakenEvent>, Instant)>> {
        // Longer than that of a delivery, which has a sender who waits.
        let limit = self.store_timeout().max(held.duration() / 3);
        let mut tries = Tries::new();
        loop {
            let asked = Instant::now();
            // One that was taken by a try without an answer waits for the end of its lease.
            let next = next.filter(|_| tries.is_first());
            let settling = self
                .shared
                .queue
                .settle
                .settle(held.lease(), settlement, next);
            let settled = self.shared.call_within(limit, "settle", settling);
            match settled.await {
                Ok(Settled::Ended(taken)) => {
                    self.settled(settlement, next.is_some(), taken.is_some());
                    return Some(taken.map(|event| (event, asked)));
                }
                Ok(Settled::Lost) if may_be_settled => {
                    tracing::info!(
                        "the transaction of the attempt was committed after all, or its lease had been lost: the event \
                         is tried again only if it is not settled"
                    );
                    self.ask_now();
                    return Some(None);
                }
                Ok(Settled::Lost) if tries.is_first() => {
                    tracing::warn!(
                        "the attempt ended after its lease had been lost: the event is tried again, unless it was \
                         discarded"
                    );
                    return None;
                }
                // The first try may have ended the attempt, without an answer.
                Ok(Settled::Lost) => return self.has_ended(held, settlement).await.then_some(None),
                Err(error) => {
                    // Boxed, because few tries fail.
                    let again = Box::pin(tries.again(error, held.valid_until()));
                    if let Err(error) = again.await {
                        tracing::error!(
                            reason = Chain(&error).to_string(),
                            "the attempt ended, but that could not be recorded: the event is tried again when its \
                             lease has expired"
                        );
                        return None;
                    }
                }
            }
        }
    }

    /// Whether an attempt whose lease is gone was ended by its settlement, and not lost to another worker.
    async fn has_ended(&self, held: &HeldLease<'_>, settlement: &Settlement) -> bool {
        let limit = self.store_timeout();
        let get = self.shared.queue.list.get(held.lease().id);
        let event = self.shared.call_within(limit, "get", get).await;
        let has_ended = matches!(
            event,
            Ok(Some(event)) if shows(event.summary.state, &event.failures, settlement)
        );
        if !has_ended {
            tracing::warn!(
                "the attempt ended, but that could not be confirmed, and another one may have begun"
            );
        }
        has_ended
    }

    /// Plans what follows a settlement.
    fn settled(&self, settlement: &Settlement, asked_for_next: bool, took_next: bool) {
        if let Settlement::Retry { after, .. } = settlement
            && let Some(at) = Instant::now().checked_add(*after)
        {
            self.ask_at(at);
        }
        if took_next || self.shared.queue.is_shared {
            return;
        }
        let workers = &self.shared.workers;
        let stays = matches!(settlement, Settlement::Retry { .. });
        if stays || !asked_for_next {
            workers.wake();
            return;
        }
        // The lane's next event may be one for another worker, which nothing else would wake. This one could not take it,
        // so one claim after many settlements is enough to learn what becomes due.
        workers.wake_others(self.number());
        self.ask_at(Instant::now() + CLAIM_AFTER);
    }
}

/// Whether an event shows that this settlement ended its attempt. One that is tried again may be so by another attempt: only
/// the failure is this one's.
fn shows(state: EventState, failures: &[PastFailure], settlement: &Settlement) -> bool {
    // Queues keep microseconds.
    let parts = |failure: &Failure| {
        let Failure {
            outcome,
            reason,
            took,
            ..
        } = failure.clone();
        (outcome, reason, took.map(|took| took.as_micros()))
    };
    match settlement {
        Settlement::Handled => state == EventState::Handled,
        Settlement::Ignored => state == EventState::Ignored,
        Settlement::Discarded(failure)
        | Settlement::Dead { failure, .. }
        | Settlement::Retry {
            failure: Some(failure),
            ..
        } => failures
            .iter()
            .any(|past| parts(&past.failure) == parts(failure)),
        Settlement::Retry { failure: None, .. } | Settlement::Released => false,
    }
}
