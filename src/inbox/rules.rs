//! The settings of a worker, beside the limits that it shares with its inbox: retries, and whether a chat waits for an event that
//! failed (`OnFailure`).

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use super::event::Kinds;
use super::retry::Retry;
use crate::event::EventKind;

/// Whether the later events of a chat wait when an attempt fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// The later events wait for the event that failed, so their order is kept.
    #[default]
    Block,
    /// The later events are handled meanwhile, and the event that failed is tried again out of order.
    Skip,
}

#[derive(Clone, Debug)]
pub(super) struct Rules {
    pub(super) concurrency: usize,
    pub(super) kinds: Kinds,
    pub(super) retry: Retry,
    pub(super) on_failure: OnFailure,
    pub(super) on_failure_of: BTreeMap<EventKind, OnFailure>,
    pub(super) hold_lane_on_dead: bool,
    pub(super) max_crashes: u32,
    pub(super) trip_after: usize,
    pub(super) poll_every: Duration,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            concurrency: 32,
            kinds: Kinds::all(),
            retry: Retry::default(),
            on_failure: OnFailure::default(),
            on_failure_of: BTreeMap::new(),
            hold_lane_on_dead: false,
            max_crashes: 3,
            trip_after: 10,
            poll_every: Duration::from_millis(500),
        }
    }
}

impl Rules {
    /// How many events that have crashed before run side by side, if one of them has crashed so often.
    pub(super) fn suspects_beside(&self, crashes: u32) -> usize {
        let quarter = self.concurrency / 4;
        let most = match crashes.saturating_add(1).cmp(&self.max_crashes) {
            Ordering::Less => quarter.checked_shr(crashes.saturating_sub(1)).unwrap_or(0),
            // Another crash makes it a dead letter, so it must be its own.
            Ordering::Equal => 1,
            // It is not tried again.
            Ordering::Greater => quarter,
        };
        most.max(1)
    }

    /// Whether the lane of an event of this kind waits for its next attempt.
    pub(super) fn blocks_lane(&self, kind: &EventKind) -> bool {
        let on_failure = self.on_failure_of.get(kind).unwrap_or(&self.on_failure);
        *on_failure == OnFailure::Block
    }
}
