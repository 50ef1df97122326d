//! Tripped kinds, whose events all fail: one event at a time is tried, until one succeeds.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::event::EventKind;

/// The delay before the first probe, and the longest one.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// The failures of each kind since its last success, by lane.
#[derive(Debug)]
pub(super) struct Trips {
    /// The number of lanes in which events have to fail.
    limit: usize,
    kinds: BTreeMap<EventKind, Trip>,
}

#[derive(Debug, Default)]
struct Trip {
    /// The lanes of the failures since the last success.
    lanes: HashSet<i64>,
    tripped: Option<Probe>,
}

#[derive(Debug)]
struct Probe {
    next: Instant,
    delay: Duration,
    in_progress: bool,
}

/// The effect of an attempt on its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Changed {
    Nothing,
    /// The kind is tripped from now on.
    Tripped,
    /// The kind is no longer tripped.
    Resumed,
}

impl Trips {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            kinds: BTreeMap::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// The kinds that are tripped.
    pub(super) fn tripped(&self) -> BTreeSet<EventKind> {
        self.kinds
            .iter()
            .filter(|(_, trip)| trip.tripped.is_some())
            .map(|(kind, _)| kind.clone())
            .collect()
    }

    pub(super) fn succeeded(&mut self, kind: &EventKind) -> Changed {
        match self.kinds.remove(kind) {
            Some(Trip {
                tripped: Some(_), ..
            }) => Changed::Resumed,
            _ => Changed::Nothing,
        }
    }

    /// Notes a failure. `lane` is the event's lane, or the event itself.
    pub(super) fn failed(&mut self, kind: &EventKind, lane: i64, is_probe: bool) -> Changed {
        let trip = self.kinds.entry(kind.clone()).or_default();
        if let Some(probe) = &mut trip.tripped {
            if is_probe {
                probe.again();
            }
            return Changed::Nothing;
        }
        trip.lanes.insert(lane);
        if trip.lanes.len() < self.limit {
            return Changed::Nothing;
        }
        trip.lanes = HashSet::new();
        trip.tripped = Some(Probe {
            next: Instant::now() + SHORTEST,
            delay: SHORTEST,
            in_progress: false,
        });
        Changed::Tripped
    }

    /// Notes that a probe ended without a result.
    pub(super) fn probe_ended(&mut self, kind: &EventKind) {
        if let Some(Trip {
            tripped: Some(probe),
            ..
        }) = self.kinds.get_mut(kind)
        {
            probe.again();
        }
    }

    /// Begins a probe that is due, and returns its kind.
    pub(super) fn begin_probe(&mut self) -> Option<EventKind> {
        let now = Instant::now();
        let (kind, probe) = self.probes().find(|(_, probe)| probe.next <= now)?;
        probe.in_progress = true;
        Some(kind.clone())
    }

    /// Returns when the next probe is due.
    pub(super) fn next_probe(&mut self) -> Option<Instant> {
        self.probes().map(|(_, probe)| probe.next).min()
    }

    /// The probes that are not in progress.
    fn probes(&mut self) -> impl Iterator<Item = (&EventKind, &mut Probe)> {
        self.kinds
            .iter_mut()
            .filter_map(|(kind, trip)| Some((kind, trip.tripped.as_mut()?)))
            .filter(|(_, probe)| !probe.in_progress)
    }
}

impl Probe {
    fn again(&mut self) {
        self.in_progress = false;
        self.delay = (2 * self.delay).min(LONGEST);
        self.next = Instant::now() + self.delay.mul_f64(1.0 - fastrand::f64() / 4.0);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const KIND: EventKind = EventKind::CHAT_RATED;

    #[tokio::test(start_paused = true)]
    async fn failures_in_different_lanes_trip_a_kind() {
        let mut trips = Trips::new(3);
        for lane in [1, 1, 1, 2, 2] {
            assert_eq!(trips.failed(&KIND, lane, false), Changed::Nothing);
        }
        assert_eq!(
            trips.failed(&EventKind::CHAT_CLOSED, 3, false),
            Changed::Nothing
        );
        assert_eq!(trips.failed(&KIND, 3, false), Changed::Tripped);
        assert_eq!(trips.tripped(), BTreeSet::from([KIND]));
        assert_eq!(trips.failed(&KIND, 4, false), Changed::Nothing);
    }

    #[tokio::test(start_paused = true)]
    async fn a_success_ends_the_count() {
        let mut trips = Trips::new(2);
        for lane in 0..10 {
            assert_eq!(trips.failed(&KIND, lane, false), Changed::Nothing);
            assert_eq!(trips.succeeded(&KIND), Changed::Nothing);
        }
        assert!(trips.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_tripped_kind_is_probed_ever_less_often() {
        let mut trips = Trips::new(1);
        trips.failed(&KIND, 1, false);
        let mut last = Duration::ZERO;
        for _ in 0..20 {
            assert_eq!(trips.begin_probe(), None);
            let delay = trips.next_probe().unwrap() - Instant::now();
            assert!(
                delay <= LONGEST && delay >= last.min(LONGEST / 2),
                "{delay:?}"
            );
            last = delay;
            advance(delay).await;
            assert_eq!(trips.begin_probe(), Some(KIND));
            assert_eq!(trips.begin_probe(), None, "one probe at a time");
            assert_eq!(trips.next_probe(), None);
            assert_eq!(trips.failed(&KIND, 2, true), Changed::Nothing);
        }
        assert_eq!(trips.succeeded(&KIND), Changed::Resumed);
        assert_eq!(trips.next_probe(), None);
    }
}
