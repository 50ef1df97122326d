//! One attempt to handle an event, and how it is settled.

use std::error::Error;
use std::future::{pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};
use tower_service::Service;
use tracing::Instrument;

use super::super::event::{Failure, Settlement, Take, TakenEvent};
use super::super::queue::{Queue, Settled};
use super::super::trip::{Changed, Probe};
use super::leases::{End, HeldLease};
use super::{OnFailure, Pool, lock};
use crate::delivery::RawDelivery;
use crate::error::{BoxError, Chain};
use crate::event::EventKind;
use crate::execution::attempt;
use crate::outcome::Outcome;
use crate::telemetry::{AttemptEnd, AttemptWatch, DeliverySpan, Observation};

/// An event to be handled.
pub(super) struct Attempt {
    pub(super) event: TakenEvent,
    /// When its lease was requested.
    pub(super) asked: Instant,
    /// The probe of a tripped kind that it is.
    pub(super) probe: Option<Probe>,
}

/// The number of events of one lane in a row after which another lane has its turn.
const LANE_TURN: u32 = 32;

/// The pause after a settlement that failed, and the longest one.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Handles an event, and those of its lane that follow.
pub(super) async fn run<Q, S>(
    pool: Arc<Pool<Q>>,
    service: S,
    first: Attempt,
    permit: OwnedSemaphorePermit,
) where
    Q: Queue,
    S: Service<RawDelivery, Response = Outcome, Error: Into<BoxError>, Future: Send>
        + Clone
        + Send
        + 'static,
{
    let mut turns = 1;
    let mut next = Some(first);
    while let Some(this) = next {
        let span = DeliverySpan::attempt(&this.event.delivery, this.event.lease.id.0);
        let takes_next = turns < LANE_TURN && !pool.stops();
        turns += 1;
        let ends = Ends {
            pool: &pool,
            is_suspect: this.event.crashes > 0,
            probe: this.probe,
        };
        let event = this.event;
        next = pool
            .attempt(
                service.clone(),
                event,
                this.asked,
                ends.probe.is_some(),
                takes_next,
                &span,
            )
            .instrument(span.span())
            .await;
        drop(ends);
        if next.as_ref().is_some_and(|next| next.event.crashes > 0) {
            *lock(&pool.suspects) += 1;
        }
    }
    drop(permit);
    if turns > LANE_TURN {
        pool.ask_now();
    }
}

/// Lets another suspect and another probe begin when an attempt has ended, however it did.
struct Ends<'a, Q> {
    pool: &'a Pool<Q>,
    is_suspect: bool,
    probe: Option<Probe>,
}

impl<Q> Drop for Ends<'_, Q> {
    fn drop(&mut self) {
        if self.is_suspect {
            *lock(&self.pool.suspects) -= 1;
        }
        if let Some(probe) = &self.probe {
            lock(&self.pool.trips).probe_ended(probe);
        }
        if self.is_suspect || self.probe.is_some() {
            self.pool.ask_now();
        }
    }
}

impl<Q: Queue> Pool<Q> {
    /// Makes one attempt, and returns the next event of the lane if it was taken.
    async fn attempt<S>(
        &self,
        service: S,
        event: TakenEvent,
        asked: Instant,
        is_probe: bool,
        takes_next: bool,
        span: &DeliverySpan,
    ) -> Option<Attempt>
    where
        S: Service<RawDelivery, Response = Outcome, Error: Into<BoxError>, Future: Send> + Send,
    {
        let limits = &self.settings.limits;
        let held = self.leases.hold(event.lease, asked + limits.lease());
        if held.is_first() {
            // The task that extends leases was woken on this thread. Behind a handler that blocks, it would be late.
            yield_now().await;
        }
        let lease = event.delivery.lease();
        let delivery = &event.delivery;
        let began = Instant::now();
        let watch = AttemptWatch::new(&self.settings.observers, delivery, delivery.attempt())
            .of_event(held.lease().id.0);
        let outcome = match event.crashes >= self.rules.max_crashes {
            true => Err(Cut::Crashed),
            false => {
                let mut delivery = event.delivery.clone();
                if watch.is_observed() {
                    delivery.set_observed();
                }
                let work = call(service, delivery);
                let ended = async {
                    held.ended().await;
                    // Its handler is ending the attempt, and learns itself whether the lease was lost.
                    if lease.as_ref().is_some_and(|lease| lease.is_settling()) {
                        pending::<()>().await;
                    }
                };
                let attempted = attempt(work, limits.handler_timeout, ended).await;
                match (attempted, held.end()) {
                    (Ok(outcome), _) => Ok(outcome),
                    (Err(Outcome::LeaseLost), Some(End::Interrupted)) => Err(Cut::Interrupted),
                    (Err(outcome), _) => Ok(outcome),
                }
            }
        };
        let is_settled = lease.as_ref().is_some_and(|lease| lease.is_settled());
        let outcome = match outcome {
            Ok(Outcome::Handled) => outcome,
            _ if is_settled => Ok(self.settled_by_handler(&outcome)),
            _ => outcome,
        };
        let settlement = self.settlement(&event, &outcome, began, is_probe);
        let name = match &outcome {
            Ok(outcome) => outcome.name(),
            Err(Cut::Crashed) => CRASHED,
            Err(Cut::Interrupted) => "interrupted",
        };
        span.finish(name);
        let watch = watch.stop();
        let end = settlement.as_ref().map_or(AttemptEnd::Lost, end);
        match settlement {
            Some(settlement) if !is_settled => {
                let take = takes_next.then(|| self.take());
                let may_be_settled = lease.is_some_and(|lease| lease.is_settling());
                let settled = self
                    .settle(&held, &settlement, take.as_deref(), may_be_settled)
                    .await;
                let end = if settled.is_ok() {
                    end
                } else {
                    AttemptEnd::Lost
                };
                watch.ended(name, end, reason_of(&outcome));
                settled.unwrap_or_default()
            }
            _ => {
                watch.ended(name, end, reason_of(&outcome));
                // The event, or the next one of its lane, waits for a claim.
                self.shared.workers.wake();
                None
            }
        }
    }

    /// The outcome of an attempt whose handler has settled the event in its transaction.
    fn settled_by_handler(&self, outcome: &Result<Outcome, Cut>) -> Outcome {
        if let Ok(outcome) = outcome {
            tracing::error!(
                %outcome,
                "the event is settled as handled, as the transaction of a handler was committed: the outcome of the \
                 service around it has no effect"
            );
        }
        Outcome::Handled
    }

    /// Decides how an attempt is settled. `None` if its lease was lost.
    fn settlement(
        &self,
        event: &TakenEvent,
        outcome: &Result<Outcome, Cut>,
        began: Instant,
        is_probe: bool,
    ) -> Option<Settlement> {
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(Cut::Crashed) => {
                tracing::error!(
                    crashes = event.crashes,
                    "the event is now a dead letter: in each of its last attempts, the process died or the lease expired"
                );
                let reason = format!(
                    "the process died or the lease expired in {} attempts in a row",
                    event.crashes
                );
                return Some(self.dead(CRASHED, reason, None));
            }
            Err(Cut::Interrupted) => {
                tracing::info!(
                    "the attempt was interrupted because the worker stops; it does not count"
                );
                return Some(Settlement::Released);
            }
        };
        let reason = describe(outcome);
        let took = Some(began.elapsed());
        let failure = || Failure {
            outcome: outcome.name().to_owned(),
            reason: reason.clone(),
            took,
        };
        let kind = event.delivery.kind();
        let (counts, asked) = match outcome {
            Outcome::Handled | Outcome::Replayed | Outcome::Accepted => {
                self.succeeded(event);
                tracing::debug!("the event was handled");
                return Some(Settlement::Handled);
            }
            Outcome::Ignored => {
                self.succeeded(event);
                tracing::debug!("this kind of event has no handler");
                return Some(Settlement::Ignored);
            }
            Outcome::Discarded(_) => {
                self.succeeded(event);
                tracing::warn!(
                    reason,
                    "the handler gave the event up; it is not handled again"
                );
                return Some(Settlement::Discarded(failure()));
            }
            Outcome::DeadLetter(_) | Outcome::Undecodable(_) | Outcome::Unhandled => {
                self.succeeded(event);
                tracing::warn!(
                    reason,
                    "the event is now a dead letter, which waits for a person"
                );
                return Some(self.dead(outcome.name(), reason, took));
            }
            Outcome::LeaseLost => {
                tracing::error!(
                    "the lease on the event was lost, and the handler was dropped or its transaction rolled back: the \
                     queue was unavailable for longer than the lease, or the event was discarded"
                );
                return None;
            }
            Outcome::Snoozed { delay } => {
                self.succeeded(event);
                tracing::debug!(?delay, "the handler snoozed the event");
                return Some(Settlement::Retry {
                    after: *delay,
                    failure: None,
                    counts: false,
                    blocks_lane: self.blocks_lane(event),
                });
            }
            Outcome::Failed { retry_after, .. } => (true, *retry_after),
            Outcome::Panicked | Outcome::TimedOut { .. } => (true, None),
            // Not the event's fault.
            Outcome::InFlight { remaining } => (false, Some(*remaining)),
            Outcome::Unavailable { .. }
            | Outcome::NotRecorded(_)
            | Outcome::NotCommitted { .. } => (false, None),
        };
        let lane = event.lane.map_or(event.lease.id.0, |lane| lane.0);
        let mut trips = lock(&self.trips);
        let (changed, before) = trips.failed(kind, lane);
        self.has_trips.store(true, Ordering::Relaxed);
        if changed == Changed::Tripped {
            // Under the lock, so that an observer sees trips and their ends in their order.
            self.tripped(kind, true);
        }
        drop(trips);
        if changed == Changed::Tripped {
            tracing::error!(
                %kind,
                "events of this kind fail in many chats: until one succeeds, one is tried at a time, and its failures do \
                 not count"
            );
            self.apply_trips();
        }
        let counts = counts && !is_probe;
        let retry = &self.rules.retry;
        let after = match counts {
            true => retry.after_failure(event.failures, event.tried_for, asked),
            // Its own count stays as it is, so that the delay grows by those that the kind had here.
            false => {
                let failures = event.failures.max(before);
                Some(retry.delay(failures).max(asked.unwrap_or_default()))
            }
        };
        let Some(after) = after else {
            tracing::error!(
                reason,
                failures = event.failures + 1,
                "the event failed for the last time: it is now a dead letter, which waits for a person"
            );
            return Some(self.dead(outcome.name(), reason, took));
        };
        tracing::error!(reason, retry_after = ?after, "the attempt failed; the event is tried again");
        Some(Settlement::Retry {
            after,
            failure: Some(failure()),
            counts,
            blocks_lane: self.blocks_lane(event),
        })
    }

    fn dead(&self, outcome: &str, reason: String, took: Option<Duration>) -> Settlement {
        Settlement::Dead {
            failure: Failure {
                outcome: outcome.to_owned(),
                reason,
                took,
            },
            hold_lane: self.rules.hold_lane_on_dead,
        }
    }

    fn blocks_lane(&self, event: &TakenEvent) -> bool {
        let rules = &self.rules;
        let on_failure = rules.on_failure_of.get(event.delivery.kind());
        *on_failure.unwrap_or(&rules.on_failure) == OnFailure::Block
    }

    /// Notes that the handler of the event's kind works.
    fn succeeded(&self, event: &TakenEvent) {
        if !self.has_trips.load(Ordering::Relaxed) {
            return;
        }
        let kind = event.delivery.kind();
        let mut trips = lock(&self.trips);
        let changed = trips.succeeded(kind);
        self.has_trips.store(!trips.is_empty(), Ordering::Relaxed);
        if changed == Changed::Resumed {
            self.tripped(kind, false);
        }
        drop(trips);
        if changed == Changed::Resumed {
            tracing::info!(%kind, "an event of this kind succeeded: all of them are tried again");
            self.apply_trips();
        }
    }

    fn tripped(&self, kind: &EventKind, is_tripped: bool) {
        let observers = &self.settings.observers;
        observers.observe(&Observation::Tripped { kind, is_tripped });
    }

    /// Settles an attempt, and tries again for as long as its lease lasts. Returns the next event of the lane, if it
    /// was taken, or an error if the attempt could not be settled.
    async fn settle(
        &self,
        held: &HeldLease<'_>,
        settlement: &Settlement,
        next: Option<&Take>,
        may_be_settled: bool,
    ) -> Result<Option<Attempt>, NotSettled> {
        let limits = &self.settings.limits;
        // Longer than that of a delivery, which has a sender who waits.
        let limit = limits.store_timeout.max(limits.lease() / 3);
        let mut pause = PAUSE;
        let mut next = next;
        let mut is_first = true;
        loop {
            let asked = Instant::now();
            let settling = self.shared.queue.settle(held.lease(), settlement, next);
            let settled = self.settings.call_within(limit, "settle", settling);
            let error = match settled.await {
                Ok(Settled::Ended(next)) => {
                    if let Settlement::Retry { after, .. } = settlement
                        && let Some(at) = Instant::now().checked_add(*after)
                    {
                        self.ask_at(at);
                    }
                    if next.is_none() && !Q::SHARED {
                        // The lane's next event may be one for another worker, which nothing else would wake.
                        self.shared.workers.wake();
                    }
                    return Ok(next.map(|event| Attempt {
                        event: *event,
                        asked,
                        probe: None,
                    }));
                }
                Ok(Settled::Lost) if may_be_settled => {
                    tracing::info!(
                        "the transaction of the attempt was committed after all, or its lease had been lost: the event is \
                         tried again only if it is not settled"
                    );
                    self.ask_now();
                    return Ok(None);
                }
                Ok(Settled::Lost) => {
                    // The first try may have ended the attempt, without an answer.
                    if is_first {
                        tracing::warn!(
                            "the attempt ended after its lease had been lost: the event is tried again, unless it was \
                             discarded"
                        );
                        return Err(NotSettled);
                    }
                    return Ok(None);
                }
                Err(error) => error,
            };
            if Instant::now() + pause >= held.valid_until() {
                tracing::error!(
                    reason = %Chain(&error),
                    "the attempt ended, but that could not be recorded: the event is tried again when its lease has \
                     expired"
                );
                return Err(NotSettled);
            }
            if is_first {
                tracing::warn!(
                    reason = %Chain(&error),
                    "the attempt ended, but that could not be recorded; recording is retried while the lease lasts"
                );
            }
            is_first = false;
            // One that was taken by a try without an answer waits for the end of its lease.
            next = None;
            sleep(pause).await;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }
}

/// The attempt ended, and its event is tried again, as that could not be recorded.
struct NotSettled;

/// The error of an outcome, for an observer.
fn reason_of(outcome: &Result<Outcome, Cut>) -> Option<&(dyn Error + 'static)> {
    outcome.as_ref().ok().and_then(Outcome::reason)
}

/// What becomes of an event, for an observer.
fn end(settlement: &Settlement) -> AttemptEnd {
    match settlement {
        Settlement::Handled | Settlement::Ignored | Settlement::Discarded(_) => AttemptEnd::Settled,
        Settlement::Dead { .. } => AttemptEnd::Dead,
        Settlement::Retry { after, .. } => AttemptEnd::Retry {
            after: Some(*after),
        },
        Settlement::Released => AttemptEnd::Released,
    }
}

/// Why an attempt has no outcome.
enum Cut {
    /// The event crashed too often to be tried again.
    Crashed,
    /// The worker stops.
    Interrupted,
}

const CRASHED: &str = "crashed";

/// How much of an error is stored and logged, in bytes.
const LONGEST_REASON: usize = 1024;

/// Describes an outcome by its error, if it has one.
fn describe(outcome: &Outcome) -> String {
    let Some(error) = outcome.reason() else {
        return describe_without_error(outcome);
    };
    // The error is the handler's, whose text may be long, and whose `Display` may panic.
    let text = catch_unwind(AssertUnwindSafe(|| Chain(error).to_string()));
    let mut text = text.unwrap_or_else(|_| "the error panicked when it was displayed".to_owned());
    let end = (0..=LONGEST_REASON.min(text.len())).rfind(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or_default());
    text
}

fn describe_without_error(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Panicked => "the handler panicked".to_owned(),
        Outcome::TimedOut { limit } => format!("the handler exceeded its time limit of {limit:?}"),
        Outcome::InFlight { .. } => "another attempt is in progress".to_owned(),
        Outcome::Unhandled => "this kind of event has no handler".to_owned(),
        other => other.name().to_owned(),
    }
}

async fn call<S>(mut service: S, delivery: RawDelivery) -> Outcome
where
    S: Service<RawDelivery, Response = Outcome, Error: Into<BoxError>>,
{
    if let Err(error) = poll_fn(|cx| service.poll_ready(cx)).await {
        return Outcome::failed(error);
    }
    match service.call(delivery).await {
        Ok(outcome) => outcome,
        Err(error) => Outcome::failed(error),
    }
}
