//! A lease on a key: claimed, renewed while its run lasts, and settled when the run ends. When it is lost, `attempt` drops
//! the work. Those of events are in `inbox/worker/leases.rs`.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use tracing::Instrument;

use super::detached::{Runs, Slot};
use super::limits::Limits;
use super::renewal::{Renewal, Renewals};
use super::settle::Tries;
use crate::error::Chain;
use crate::outcome::Outcome;
use crate::store::{Claim, EventKey, KeyState, Lease, SettleError, Store, StoreError};
use crate::telemetry::{Call, CallTarget, Observers};

/// A store, and how leases on its keys are held.
#[derive(Clone, Debug)]
pub(crate) struct Leases<St> {
    pub(crate) store: St,
    pub(crate) limits: Limits,
    pub(crate) runs: Runs,
    pub(crate) observers: Observers,
    pub(super) renewals: Renewals<St>,
}

/// The answer to a claim on a key.
pub(crate) enum Claimed<St: Store> {
    Held(HeldLease<St>),
    InFlight {
        remaining: Duration,
        same_body: bool,
    },
    Done {
        same_body: bool,
    },
}

impl<St: Store> Leases<St> {
    pub(crate) fn new(store: St, limits: Limits) -> Self {
        Self {
            store,
            limits,
            runs: Runs::new(1024),
            observers: Observers::default(),
            renewals: Renewals::default(),
        }
    }

    /// Claims the key, and starts to renew the lease where the store needs that.
    pub(crate) async fn claim(self: &Arc<Self>, key: EventKey) -> Result<Claimed<St>, StoreError> {
        let asked = St::DURABLE_LEASES.then(Instant::now);
        let claim = self
            .store
            .claim(&key, self.claimed(), self.limits.retention);
        let lease = match self.call("claim", claim).await? {
            Claim::Acquired(lease) => lease,
            Claim::InFlight {
                remaining,
                same_body,
            } => {
                return Ok(Claimed::InFlight {
                    remaining,
                    same_body,
                });
            }
            Claim::Done { same_body } => return Ok(Claimed::Done { same_body }),
        };
        let mut held = HeldLease {
            lease,
            leases: Arc::clone(self),
            renewal: None,
            settled: false,
        };
        if let Some(asked) = asked {
            if asked.elapsed() >= self.limits.lease() {
                // Another run may have claimed the key by now. If none has, dropping the lease releases it.
                return Err(StoreError::timed_out());
            }
            // Boxed, since it would make every run larger.
            let renewal = Box::pin(Renewals::begin(self, held.lease.clone(), asked));
            held.renewal = Some(renewal.await);
        }
        Ok(Claimed::Held(held))
    }

    /// Returns what the store knows of the key.
    pub(crate) async fn peek(&self, key: &EventKey) -> Result<KeyState, StoreError> {
        self.call("peek", self.store.peek(key)).await
    }

    /// Calls the store, within its time limit.
    pub(super) fn call<C>(&self, operation: &'static str, call: C) -> Call<'_, C> {
        let limit = Some(self.limits.store_timeout);
        self.observers
            .call(CallTarget::Store, operation, limit, call)
    }

    /// How long a key is claimed at a time.
    fn claimed(&self) -> Duration {
        if St::DURABLE_LEASES {
            self.limits.lease()
        } else {
            // Nothing renews it, and the process's end releases it.
            self.limits.retention
        }
    }
}

/// A lease that is renewed as long as this is held. Dropped before it is settled, it is released by a task.
pub(crate) struct HeldLease<St: Store> {
    lease: Lease,
    leases: Arc<Leases<St>>,
    renewal: Option<Renewal<St>>,
    settled: bool,
}

impl<St: Store> HeldLease<St> {
    /// Which claim of the key it is, counted from 1.
    pub(crate) fn attempt(&self) -> NonZeroU32 {
        self.lease.attempt()
    }

    /// Is ready when the lease is lost: there is nothing left to settle then. Never for a store whose leases
    /// end with the process.
    pub(crate) fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let lost = match &self.renewal {
            Some(renewal) => renewal.poll_lost(cx),
            None => Poll::Pending,
        };
        self.settled |= lost.is_ready();
        lost
    }

    /// Records the success, and tries again for as long as the lease lasts.
    pub(crate) async fn complete(&mut self) -> Result<(), Outcome> {
        let completed = self.try_complete().await;
        let is_lease_over = matches!(completed, Ok(()) | Err(SettleError::LeaseExpired));
        // A lease that no crash would end has to be given up.
        self.settled = is_lease_over || St::DURABLE_LEASES;
        completed.map_err(|error| Outcome::NotRecorded(Arc::new(error)))
    }

    async fn try_complete(&mut self) -> Result<(), SettleError> {
        let Self { lease, leases, .. } = self;
        let mut valid_until = self.renewal.take().map(|renewal| renewal.valid_until());
        let mut tries = Tries::new();
        loop {
            let completion = leases.store.complete(lease, leases.limits.retention);
            let error = match leases.call("complete", completion).await {
                Ok(()) => return Ok(()),
                // A completion whose confirmation was lost may have ended the lease itself.
                Err(SettleError::LeaseExpired)
                    if !tries.is_first()
                        && matches!(leases.peek(lease.id()).await, Ok(KeyState::Done)) =>
                {
                    return Ok(());
                }
                Err(SettleError::LeaseExpired) => return Err(SettleError::LeaseExpired),
                Err(error) => error,
            };
            let valid_until =
                *valid_until.get_or_insert_with(|| Instant::now() + leases.limits.lease());
            tries.again(error, valid_until).await?;
        }
    }

    pub(crate) async fn release(&mut self) {
        let released = release(&self.leases, &self.lease).await;
        // Where no crash would end the lease, only another try does.
        self.settled = released || St::DURABLE_LEASES;
    }
}

impl<St: Store> Drop for HeldLease<St> {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        if !St::DURABLE_LEASES {
            // Memory does it at once, even when the runtime is about to end.
            let released = self.leases.store.release(&self.lease).now_or_never();
            if let Some(Ok(()) | Err(SettleError::LeaseExpired)) = released {
                return;
            }
        }
        let (leases, lease) = (Arc::clone(&self.leases), self.lease.clone());
        match Handle::try_current() {
            Ok(runtime) => {
                let place = Slot::to_release(&leases.runs);
                let released = async move {
                    release_later(leases, lease).await;
                    drop(place);
                };
                runtime.spawn(released.in_current_span());
            }
            Err(_) => {
                tracing::error!(
                    "a run was dropped outside a runtime: its key is claimed until the lease expires"
                );
            }
        }
    }
}

/// Releases a lease that nothing waits for. One that no crash would end is tried for a while.
async fn release_later<St: Store>(leases: Arc<Leases<St>>, lease: Lease) {
    let give_up = Instant::now() + leases.limits.lease();
    let mut pause = Duration::from_millis(50);
    while !release(&leases, &lease).await && !St::DURABLE_LEASES && Instant::now() + pause < give_up
    {
        sleep(pause).await;
        pause = (2 * pause).min(Duration::from_secs(5));
    }
}

/// Returns whether the lease has ended.
async fn release<St: Store>(leases: &Leases<St>, lease: &Lease) -> bool {
    match leases.call("release", leases.store.release(lease)).await {
        Ok(()) => true,
        Err(SettleError::LeaseExpired) => {
            tracing::debug!("the lease had expired before its release");
            true
        }
        Err(error) => {
            tracing::warn!(
                reason = Chain(&error).to_string(),
                "the key could not be released: it stays claimed until its lease expires"
            );
            false
        }
    }
}
