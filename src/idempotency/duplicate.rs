//! Deliveries that are not handled: duplicates, and those whose key cannot be claimed. `answer/statuses.rs` has the responses to
//! the outcomes that are found here, such as the 409 of one in flight.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::answer::{Answer, Row, row};
use crate::error::Chain;
use crate::execution::Leases;
use crate::outcome::Outcome;
use crate::store::{EventKey, KeyState, Store};

/// The refusal of a delivery that contradicts an earlier one.
///
/// It is the error of [`Decision::refusal`](crate::Decision::refusal).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The key was used with another body, and
    /// [`reject_changed_bodies`](crate::Webhooks::reject_changed_bodies) was called.
    BodyChanged,
    /// The body was used with another key, and
    /// [`replay_guard`](crate::Webhooks::replay_guard) was called.
    BodyReplayed,
}

impl Answer for Refusal {
    #[rustfmt::skip]
    fn row(&self) -> Row {
        match self {
            Self::BodyChanged  => row!("body-changed", UNPROCESSABLE_ENTITY 422 "Unprocessable Entity", "The idempotency key was used with another body."),
            Self::BodyReplayed => row!("body-replayed", UNPROCESSABLE_ENTITY 422 "Unprocessable Entity", "The body was used with another idempotency key."),
        }
    }
}

display!(Refusal, |it| it.row().detail);

impl std::error::Error for Refusal {}

/// Why a delivery is not handled.
pub(super) enum NotClaimed {
    InFlight(OtherRun),
    Ended(Outcome),
    Refused(Refusal),
}

/// The run that holds the key of another delivery.
pub(super) struct OtherRun {
    id: EventKey,
    remaining: Duration,
    /// The answer if the other run succeeds; a replay if there is none.
    conflict: Option<Refusal>,
    /// Whether a layer outside holds a claim for the same delivery, which may be this one.
    is_inside_another: bool,
}

impl OtherRun {
    pub(super) fn new(id: EventKey, remaining: Duration, conflict: Option<Refusal>) -> Self {
        Self {
            id,
            remaining,
            conflict,
            is_inside_another: false,
        }
    }

    pub(super) fn inside_another(self, is_inside_another: bool) -> Self {
        Self {
            is_inside_another,
            ..self
        }
    }

    /// What is known of the other run without waiting for it.
    pub(super) fn outcome_now<St: Store>(self, leases: &Leases<St>) -> Result<Outcome, Refusal> {
        // A store whose leases end with the process claims for much longer than a run takes.
        Ok(Outcome::InFlight {
            remaining: self.remaining.min(leases.limits.lease()),
        })
    }

    /// Waits for the other run's outcome, up to the limit.
    pub(super) async fn outcome<St: Store>(
        self,
        leases: Arc<Leases<St>>,
    ) -> Result<Outcome, Refusal> {
        let give_up = Instant::now() + leases.limits.in_flight_wait;
        let mut remaining = self.remaining;
        // A short run is noticed soon, and a long one costs the store four calls a second.
        let mut pause = Duration::from_millis(5);
        while Instant::now() < give_up {
            // The last look is exactly at the limit.
            sleep_until(give_up.min(Instant::now() + pause)).await;
            pause = (2 * pause).min(Duration::from_millis(250));
            match leases.peek(&self.id).await {
                Ok(KeyState::Done) => return self.conflict.map_or(Ok(Outcome::Replayed), Err),
                Ok(KeyState::Free) => {
                    // The other run failed. This delivery does not take over: a retry is asked for after a second.
                    remaining = Duration::ZERO;
                    break;
                }
                Ok(KeyState::InFlight { remaining: left }) => remaining = left,
                // The next look may succeed, so the wait goes on.
                Err(error) => {
                    tracing::debug!(
                        reason = Chain(&error).to_string(),
                        "the key's state is unknown"
                    );
                }
            }
        }
        // A key that became free was not this delivery's own claim.
        if self.is_inside_another && !remaining.is_zero() {
            return Ok(Outcome::failed(
                "an `IdempotencyLayer` around this one claimed the same delivery: if both use one \
                 store, this one waits for itself, so remove one of the two",
            ));
        }
        Self { remaining, ..self }.outcome_now(&leases)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::tests::assert_refused;

    #[tokio::test]
    async fn every_refusal_is_answered_as_documented() {
        assert_refused(Refusal::BodyChanged, (422, "body-changed", None)).await;
        assert_refused(Refusal::BodyReplayed, (422, "body-replayed", None)).await;
    }
}
