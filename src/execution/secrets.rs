//! Which secrets verify the deliveries of a namespace, as far as the store knows.
//!
//! Receivers with different secrets on one store and namespace would take each other's keys for their own. A store
//! knows no secrets, so each process notes in it, about once a day, a short digest of each that verified a delivery.

use std::num::NonZeroU16;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::lease::Leases;
use crate::error::Chain;
use crate::store::{
    BodyDigest, Claim, EventKey, KeySpace, KeyState, SettleError, Store, StoreError,
};

/// The digests that this process noted lately. Clones share them.
///
/// Two are enough: with two in the store, every receiver finds another one than its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct NotedSecrets(Arc<Mutex<Noted>>);

#[derive(Debug, Default)]
struct Noted {
    secrets: [Option<NonZeroU16>; 2],
    /// When they are noted again, because the store forgets them.
    again_at: Option<Instant>,
}

impl NotedSecrets {
    /// Returns whether the caller must note `secret` now. For `every`, it does not return so again.
    fn is_due(&self, secret: NonZeroU16, every: Duration) -> bool {
        // Rather than wait for another delivery, leave it to the next one.
        let Ok(mut noted) = self.0.try_lock() else {
            return false;
        };
        let now = Instant::now();
        if noted.again_at.is_none_or(|at| at <= now) {
            *noted = Noted {
                secrets: [None; 2],
                again_at: Some(now + every),
            };
        }
        if noted.secrets.contains(&Some(secret)) {
            return false;
        }
        let free = noted.secrets.iter_mut().find(|place| place.is_none());
        free.map(|place| *place = Some(secret)).is_some()
    }

    fn forget(&self) {
        if let Ok(mut noted) = self.0.try_lock() {
            noted.again_at = None;
        }
    }
}

impl<St: Store> Leases<St> {
    /// Notes in the store that `secret` verifies deliveries, unless that was done lately.
    pub(crate) async fn note_secret(&self, secret: Option<NonZeroU16>) {
        let Some(secret) = secret else { return };
        if !self.secrets.is_due(secret, self.limits.retention / 8) {
            return;
        }
        // Boxed, since it would make every run larger.
        let noted = Box::pin(self.call("secrets", self.others_than(secret)));
        if let Err(error) = noted.await {
            self.secrets.forget();
            tracing::debug!(
                reason = Chain(&error).to_string(),
                "the secret could not be noted"
            );
        }
    }

    /// Whether other secrets than `secret` verified deliveries of the namespace lately. `false` when that is unknown.
    pub(crate) async fn has_other_secrets(&self, secret: Option<NonZeroU16>) -> bool {
        let Some(secret) = secret else { return false };
        let others = self.call("secrets", self.others_than(secret)).await;
        others.unwrap_or_else(|error: StoreError| {
            tracing::debug!(
                reason = Chain(&error).to_string(),
                "the secrets of the namespace are unknown"
            );
            false
        })
    }

    /// Notes `secret` at one of two places, and returns whether another one is noted.
    async fn others_than(&self, secret: NonZeroU16) -> Result<bool, StoreError> {
        let place = |number: u8| {
            let secret = BodyDigest::of(&secret.get().to_be_bytes());
            EventKey::in_space(KeySpace::Secrets, &self.limits.namespace, &[number], secret)
        };
        if self.take_place(place(0)).await? {
            return Ok(self.store.peek(&place(1)).await? != KeyState::Free);
        }
        self.take_place(place(1)).await?;
        Ok(true)
    }

    /// Returns whether the place has, from now on, the secret that `id` was made of.
    async fn take_place(&self, id: EventKey) -> Result<bool, StoreError> {
        let retention = self.limits.retention;
        match self.store.claim(&id, self.claimed(), retention).await? {
            Claim::InFlight { same_body, .. } | Claim::Done { same_body } => Ok(same_body),
            Claim::Acquired(lease) => match self.store.complete(&lease, retention).await {
                Ok(()) | Err(SettleError::LeaseExpired) => Ok(true),
                Err(SettleError::Store(error)) => Err(error),
            },
        }
    }
}
