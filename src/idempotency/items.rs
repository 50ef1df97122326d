//! A run of a delivery of several events: of each item, from the claim on its key to its settlement.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts as Head;
use http::{Request, Response, header};
use tokio::task::coop::consume_budget;
use tokio::time::Instant;
use tower_service::Service;
use tracing::Instrument;

use super::claims::Claims;
use super::duplicate::NotClaimed;
use super::rules::Rules;
use super::run::{Ended, call, refuse, run};
use crate::answer::{Answer, Decision, ResponseBody};
use crate::delivery::{Item, RawDelivery};
use crate::execution::Leases;
use crate::outcome::Outcome;
use crate::sender::{Batches, Part, Parts};
use crate::store::Store;
use crate::telemetry::item_span;
use crate::verified::Verified;

/// Handles the items of a delivery in their order, within the time limit of one.
pub(super) async fn run_items<St, S, B>(
    leases: Arc<Leases<St>>,
    rules: Rules,
    inner: S,
    request: Box<Request<Verified>>,
    batches: Batches,
) -> Ended<B, S::Error>
where
    St: Store,
    S: Service<Request<Verified>, Response = Response<B>> + Clone,
{
    let answer = |outcome| Ended::Answered(Ok(ResponseBody::answer(outcome)));
    let delivery = request.body().delivery();
    let parts = match batches.parts(delivery) {
        Parts::Items(parts) => parts,
        // It is logged. No retry could change it.
        Parts::TooMany => return answer(Outcome::Handled),
        Parts::Whole if !batches.keeps(delivery.kind()) => return answer(Outcome::Filtered),
        // Boxed, since it would make this future larger.
        Parts::Whole => return Box::pin(run(leases, rules, inner, request)).await,
    };
    // The keys of items are signed, if they are their own. One that is made has that of the delivery in it, or its body.
    let needs_guard = |part: &Part| !part.has_own_key && batches.keeps_part(part);
    let is_guarded = rules.replay_guard && parts.iter().any(needs_guard);
    let guard = match is_guarded {
        true => Claims::of_body(&leases, rules, delivery).await,
        false => Ok(Claims::none()),
    };
    let mut guard = match guard {
        Ok(guard) => guard,
        Err(NotClaimed::InFlight(other)) => {
            return Ended::InFlight(other.inside_another(request.body().is_claimed()));
        }
        Err(NotClaimed::Ended(outcome)) => return answer(outcome),
        Err(NotClaimed::Refused(refusal)) => return Ended::Answered(Ok(refuse(refusal))),
    };
    let (mut head, body) = request.into_parts();
    // That of the delivery.
    head.headers.remove(header::CONTENT_LENGTH);
    let mut items = Items {
        leases,
        // An item is compared with others by its key alone.
        rules: Rules {
            reject_changed_bodies: false,
            replay_guard: false,
            ..rules
        },
        inner,
        head,
        delivery: body.into_delivery(),
        batches,
        began: Instant::now(),
        has_waited: false,
    };
    let outcome = items.run(parts).await;
    let completed = match outcome.row().status.is_success() {
        true => guard.complete().await,
        false => {
            guard.release().await;
            Ok(())
        }
    };
    answer(completed.err().unwrap_or(outcome))
}

struct Items<St, S> {
    leases: Arc<Leases<St>>,
    rules: Rules,
    inner: S,
    head: Head,
    delivery: RawDelivery,
    batches: Batches,
    began: Instant,
    /// Whether the end of another run was waited for in vain.
    has_waited: bool,
}

/// How an item ended.
enum End {
    /// The sender need not repeat it.
    Well(Outcome),
    Left,
    /// Another run has its key.
    InFlight(Outcome),
    /// The store fails.
    Unavailable(Outcome),
}

impl<St, S, B> Items<St, S>
where
    St: Store,
    S: Service<Request<Verified>, Response = Response<B>> + Clone,
{
    /// Handles all items, and returns the outcome of the delivery.
    async fn run(&mut self, parts: Vec<Part>) -> Outcome {
        let count = u32::try_from(parts.len()).unwrap_or(u32::MAX);
        let mut keys = HashSet::new();
        let mut held_up = HashSet::new();
        let (mut all, mut left, mut in_flight) = (None, 0, None);
        let mut well = |outcome: Outcome| {
            all = match all.take() {
                None => Some(outcome),
                Some(other) if other.name() == outcome.name() => Some(other),
                Some(_) => Some(Outcome::Handled),
            };
        };
        for (number, part) in (1..).zip(parts) {
            if !self.batches.keeps_part(&part) {
                well(Outcome::Filtered);
                continue;
            }
            // Of equal keys, the first counts.
            if !keys.insert(part.key.clone()) {
                continue;
            }
            // Handlers that never wait would keep the thread for 10,000 items.
            consume_budget().await;
            let order = part.order.clone();
            let is_held_up = order.as_ref().is_some_and(|order| held_up.contains(order));
            let end = match self.time_left() {
                Some(time) if !is_held_up => {
                    let item = part.delivery(&self.delivery, Item::new(number, count));
                    let span = item_span(&item);
                    self.item(part, item, time).instrument(span).await
                }
                _ => End::Left,
            };
            match end {
                End::Well(outcome) => {
                    well(outcome);
                    continue;
                }
                // The rest would fail like this, too.
                End::Unavailable(outcome) => return outcome,
                End::Left => {}
                End::InFlight(outcome) => in_flight = in_flight.or(Some(outcome)),
            }
            left += 1;
            held_up.extend(order);
        }
        match in_flight {
            Some(outcome) => outcome,
            None if left > 0 => Outcome::Incomplete { left, count },
            None => all.unwrap_or(Outcome::Handled),
        }
    }

    /// The rest of the delivery's time limit, if there is one.
    fn time_left(&self) -> Option<Duration> {
        let limit = self.leases.limits.handler_timeout;
        let left = limit.checked_sub(self.began.elapsed())?;
        (!left.is_zero()).then_some(left)
    }

    async fn item(&mut self, part: Part, item: RawDelivery, time: Duration) -> End {
        let verified = Verified::new(item);
        let mut claims = match Claims::take(&self.leases, self.rules, &verified).await {
            Ok(claims) => claims,
            Err(NotClaimed::InFlight(other)) => {
                // Only until one was waited for in vain: there may be thousands of them.
                let outcome = match self.has_waited {
                    true => other.outcome_now(&self.leases),
                    false => other.outcome(Arc::clone(&self.leases)).await,
                };
                return self.not_claimed(outcome);
            }
            Err(NotClaimed::Ended(outcome)) => return self.not_claimed(Ok(outcome)),
            Err(NotClaimed::Refused(refusal)) => return self.not_claimed(Err(refusal)),
        };
        if let Err(reason) = part.kind {
            tracing::error!(
                reason,
                "an item of the delivery cannot be read: it counts as handled, since no retry could change it"
            );
            return match claims.complete().await {
                Ok(()) => End::Well(Outcome::Handled),
                Err(outcome) => {
                    outcome.log(&outcome.row());
                    End::Left
                }
            };
        }
        let request = Box::new(verified.into_request(self.head.clone()));
        let called = call(claims, self.inner.clone(), request, &self.leases, time).await;
        match called {
            Ok(response) if response.status().is_success() => {
                End::Well(Decision::outcome_of(&response))
            }
            Ok(_) => End::Left,
            Err(_) => {
                tracing::error!("the service returned an error for an item of the delivery");
                End::Left
            }
        }
    }

    fn not_claimed(&mut self, outcome: Result<Outcome, super::Refusal>) -> End {
        match outcome {
            Ok(outcome @ Outcome::Replayed) => {
                outcome.log(&outcome.row());
                End::Well(outcome)
            }
            Ok(outcome @ Outcome::InFlight { .. }) => {
                self.has_waited = true;
                End::InFlight(outcome)
            }
            Ok(outcome) => End::Unavailable(outcome),
            // With the rules of items, none is refused.
            Err(_) => End::Left,
        }
    }
}
