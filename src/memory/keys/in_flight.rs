//! Keys whose events are in progress, which no cache may evict.

use std::collections::HashMap;
use std::num::NonZeroU32;

use foldhash::quality::RandomState;
use tokio::time::Instant;

use super::settled::{Settlement, short};
use crate::store::{Fence, Lease, SettleError};

#[derive(Default)]
pub(super) struct InFlight {
    pub(super) runs: HashMap<u128, Run, RandomState>,
    /// Leases that expired are swept when there are this many runs.
    sweep_at: usize,
}

#[derive(Clone, Copy)]
pub(super) struct Run {
    pub(super) fence: Fence,
    pub(super) body: u128,
    pub(super) attempt: NonZeroU32,
    pub(super) until: Instant,
    pub(super) forget: Instant,
}

impl Run {
    #[inline]
    pub(super) fn done(&self) -> Settlement {
        Settlement::Done {
            body: short(self.body),
        }
    }

    #[inline]
    pub(super) fn failed(&self) -> Settlement {
        Settlement::Failed {
            attempts: self.attempt,
        }
    }
}

impl InFlight {
    /// The run that has the lease, if it still has the key.
    #[inline]
    pub(super) fn current(&mut self, lease: &Lease, now: Instant) -> Result<&mut Run, SettleError> {
        self.runs
            .get_mut(&lease.id().key())
            // An expired lease is lost even if nobody has claimed the key: `peek` says that the key is free.
            .filter(|run| run.fence == lease.fence() && run.until > now)
            .ok_or(SettleError::LeaseExpired)
    }

    /// Adds a run, and returns those whose leases expired, whenever there are enough of them for a sweep.
    #[inline]
    pub(super) fn insert(&mut self, key: u128, run: Run, now: Instant) -> Vec<(u128, Run)> {
        let mut dead = Vec::new();
        if self.runs.len() >= self.sweep_at {
            dead.extend(self.runs.extract_if(|_, run| run.until <= now));
            // Twice the runs that are left: at least as many claims come between two sweeps, so a claim costs little.
            self.sweep_at = (2 * self.runs.len()).max(64);
        }
        self.runs.insert(key, run);
        dead
    }
}
