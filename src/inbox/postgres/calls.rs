//! The calls that share statements.

use super::batches::Call;
use crate::inbox::event::{EventLease, Kinds, NewEvent, Settlement, Take};
use crate::inbox::queue::{Accepted, Settled};

/// An event to be accepted, and the time of its lease if it may be taken.
#[derive(Clone)]
pub(super) struct Acceptance {
    pub(super) event: NewEvent,
    pub(super) lease: Option<i64>,
}

impl Call for Acceptance {
    type Return = Accepted;

    fn kinds(&self) -> Option<&Kinds> {
        None
    }
}

/// An attempt to be ended.
#[derive(Clone)]
pub(super) struct End {
    pub(super) lease: EventLease,
    pub(super) settlement: Settlement,
    pub(super) next: Option<Take>,
}

impl Call for End {
    type Return = Settled;

    fn kinds(&self) -> Option<&Kinds> {
        self.next.as_ref().map(|next| &next.kinds)
    }
}

/// Sorts calls by their lanes, so that no two statements wait for each other, and returns where each one was.
pub(super) fn sort<C, K: Ord>(calls: &mut [C], lane: impl Fn(&C) -> K) -> Vec<usize> {
    let mut order: Vec<_> = (0..calls.len()).collect();
    order.sort_by_key(|at| lane(&calls[*at]));
    calls.sort_by_key(lane);
    order
}

/// Returns results to the places of their calls.
pub(super) fn unsort<R>(results: Vec<R>, order: &[usize]) -> Vec<R> {
    let mut results: Vec<_> = order.iter().zip(results).collect();
    results.sort_by_key(|(at, _)| **at);
    results.into_iter().map(|(_, result)| result).collect()
}
