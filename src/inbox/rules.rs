//! The settings of a worker, beside the limits of its routes: retries, and whether a chat waits for an event that
//! failed (`OnFailure`).

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::credit::CALLS;
use super::event::Kinds;
use super::retry::Retry;
use crate::delivery::RawDelivery;
use crate::route::{EventType, RouteName};

/// Whether the later events of a chat wait when an attempt fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// The later events wait for the event that failed, so their order is kept.
    #[default]
    Block,
    /// The later events do not wait, and the event that failed is tried again out of order.
    Skip,
}

#[derive(Clone, Debug)]
pub(super) struct Rules {
    pub(super) concurrency: usize,
    /// The event types that are taken. `None` for all.
    pub(super) only: Option<BTreeSet<EventType>>,
    pub(super) retry: Retry,
    pub(super) on_failure: OnFailure,
    pub(super) on_failure_of: BTreeMap<EventType, OnFailure>,
    pub(super) hold_lane_on_dead: bool,
    pub(super) max_crashes: u32,
    /// The calls of each type's full credit.
    pub(super) credit: usize,
    pub(super) poll_every: Duration,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            concurrency: 32,
            only: None,
            retry: Retry::default(),
            on_failure: OnFailure::default(),
            on_failure_of: BTreeMap::new(),
            hold_lane_on_dead: false,
            max_crashes: 3,
            credit: CALLS,
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

    /// Whether the lane of an event waits for its next attempt.
    pub(super) fn blocks_lane(&self, event: &RawDelivery) -> bool {
        // A search, since a look-up would need an `EventType` of its own. There are few.
        let mut of_types = self.on_failure_of.iter();
        let is_it = |of: &EventType| of.route == *event.route() && of.kind == *event.kind();
        let of_type = of_types.find(|(of, _)| is_it(of));
        *of_type.map_or(&self.on_failure, |(_, rule)| rule) == OnFailure::Block
    }

    /// The kinds that are taken of a route.
    pub(super) fn kinds(&self, route: &RouteName) -> Kinds {
        let kinds = match &self.only {
            None => Kinds::all(),
            Some(only) => {
                let at_route = only.iter().filter(|of| of.route == *route);
                Kinds::only(at_route.map(|of| of.kind.clone()))
            }
        };
        kinds.at(route.clone())
    }
}
