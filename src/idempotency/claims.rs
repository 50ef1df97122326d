//! The claims of one run: on the event's key and, with `replay_guard`, on its body.

use std::future::{Future, poll_fn};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::task::Poll;

use super::duplicate::{NotClaimed, OtherRun, Refusal};
use super::rules::Rules;
use crate::delivery::RawDelivery;
use crate::error::Chain;
use crate::execution::{Claimed, HeldLease, Leases};
use crate::outcome::Outcome;
use crate::store::{EventKey, Identity, Store};
use crate::verified::Verified;

pub(super) struct Claims<St: Store> {
    key: Option<HeldLease<St>>,
    // Boxed, since most layers have no replay guard, and the future of a run is better small.
    body: Option<Box<HeldLease<St>>>,
}

impl<St: Store> Claims<St> {
    pub(super) fn none() -> Self {
        Self {
            key: None,
            body: None,
        }
    }

    /// Claims the body of a delivery alone.
    pub(super) async fn of_body(
        leases: &Arc<Leases<St>>,
        rules: Rules,
        delivery: &RawDelivery,
    ) -> Result<Self, NotClaimed> {
        let mut claims = Self::none();
        if let Some(id) = Identity::of(delivery, true).guard {
            let held = claim(leases, rules, id, Claimant::Body).await?;
            claims.body = held.map(Box::new);
        }
        Ok(claims)
    }

    pub(super) async fn take(
        leases: &Arc<Leases<St>>,
        rules: Rules,
        verified: &Verified,
    ) -> Result<Self, NotClaimed> {
        let mut claims = Self::none();
        let Identity { key, guard } = Identity::of(verified.delivery(), rules.replay_guard);
        if let Some(id) = key {
            // The key first: a retry has the same one, and then costs no claim on the body.
            claims.key = claim(leases, rules, id, Claimant::Key).await?;
        }
        if let Some(id) = guard {
            match claim(leases, rules, id, Claimant::Body).await {
                Ok(held) => claims.body = held.map(Box::new),
                Err(not_claimed) => {
                    // Released before the answer, so that a retry finds the key free.
                    claims.release().await;
                    return Err(not_claimed);
                }
            }
        }
        Ok(claims)
    }

    /// Whether there is any: not without a key, nor when the store failed and that is allowed.
    pub(super) fn are_held(&self) -> bool {
        self.key.is_some() || self.body.is_some()
    }

    /// Which attempt this is, for a delivery with a key.
    pub(super) fn attempt(&self) -> Option<NonZeroU32> {
        self.key.as_ref().map(HeldLease::attempt)
    }

    /// Is ready when a lease is lost.
    pub(super) fn lost(&mut self) -> impl Future<Output = Outcome> {
        poll_fn(
            // Each that is not lost registers its waker.
            |cx| match self.held().any(|held| held.poll_lost(cx).is_ready()) {
                true => Poll::Ready(Outcome::LeaseLost),
                false => Poll::Pending,
            },
        )
    }

    pub(super) async fn complete(&mut self) -> Result<(), Outcome> {
        let mut result = Ok(());
        for held in self.held() {
            // Both are completed, even if the first fails: each alone stops a second run.
            result = result.and(held.complete().await);
        }
        result
    }

    pub(super) async fn release(&mut self) {
        for held in self.held() {
            held.release().await;
        }
    }

    /// The body comes first: a crash between the two leaves an event that was handled and whose key is
    /// free. Its next delivery then meets its own body.
    fn held(&mut self) -> impl Iterator<Item = &mut HeldLease<St>> {
        self.body.as_deref_mut().into_iter().chain(&mut self.key)
    }
}

/// What is claimed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Claimant {
    Key,
    Body,
}

/// Claims `id`. Returns `None` when the store fails and the delivery is to be handled without it.
async fn claim<St: Store>(
    leases: &Arc<Leases<St>>,
    rules: Rules,
    id: EventKey,
    of: Claimant,
) -> Result<Option<HeldLease<St>>, NotClaimed> {
    match leases.claim(id).await {
        Ok(Claimed::Held(held)) => Ok(Some(held)),
        Ok(Claimed::InFlight {
            remaining,
            same_body,
        }) => match conflict(rules, of, same_body) {
            // The key's own conflict is known at once. The body's depends on whether the other run succeeds.
            Some(refusal) if of == Claimant::Key => Err(NotClaimed::Refused(refusal)),
            conflict => {
                log_changed_body(of, same_body);
                Err(NotClaimed::InFlight(OtherRun::new(id, remaining, conflict)))
            }
        },
        Ok(Claimed::Done { same_body }) => match conflict(rules, of, same_body) {
            Some(refusal) => Err(NotClaimed::Refused(refusal)),
            None => {
                log_changed_body(of, same_body);
                Err(NotClaimed::Ended(Outcome::Replayed))
            }
        },
        // A warning for each: the event may be handled twice.
        Err(error) if rules.handle_without_store => {
            tracing::warn!(
                reason = Chain(&error).to_string(),
                "the event is handled without deduplication, because the store failed"
            );
            Ok(None)
        }
        Err(error) => {
            let retry_after = leases.limits.policy.retry_every;
            Err(NotClaimed::Ended(Outcome::unavailable(error, retry_after)))
        }
    }
}

/// The refusal of a key that was used with another body, or of a body that was used with another key.
fn conflict(rules: Rules, of: Claimant, same: bool) -> Option<Refusal> {
    match of {
        // The same key and body are a retry, whatever the rules are.
        _ if same => None,
        Claimant::Body => Some(Refusal::BodyReplayed),
        Claimant::Key => rules.reject_changed_bodies.then_some(Refusal::BodyChanged),
    }
}

/// Logs a key that was used with another body: the second event is lost if it is that of another receiver.
fn log_changed_body(of: Claimant, same: bool) {
    if of == Claimant::Key && !same {
        tracing::warn!(
            "the key was used before, with another body: the delivery counts as the same event; check whether another \
             receiver uses this store, and give each a name with `Webhooks::name`"
        );
    }
}
