//! Tripped event types, whose events all fail: one event at a time is tried, until one succeeds.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

use super::event::EventId;
use crate::outcome::Outcome;
use crate::route::{EventType, RouteName};

/// The delay before the first probe, and the longest one.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// The failures of each kind since its last success.
#[derive(Debug)]
pub(super) struct Trips {
    /// The number of lanes in which events have to fail.
    limit: usize,
    kinds: BTreeMap<EventType, Trip>,
    /// The number of probes so far.
    probes: u64,
}

#[derive(Debug, Default)]
struct Trip {
    /// The lanes with a failure since the last success.
    lanes: HashSet<i64>,
    tripped: Option<Tripped>,
}

#[derive(Debug)]
struct Tripped {
    next: Instant,
    delay: Duration,
    /// The number of the probe in progress.
    probe: Option<u64>,
    /// The event that a person wants to be tried now.
    wanted: Option<EventId>,
    /// The earliest time for that: of thousands that are redriven, one a second is a probe.
    earliest: Instant,
}

/// An attempt of an event of a kind that is tripped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Probe {
    pub(super) of: EventType,
    /// The event that a person wants to be tried.
    pub(super) event: Option<EventId>,
    number: u64,
}

/// Whether an outcome shows that the handler of the event's kind works. `None` if it shows nothing.
pub(super) fn handler_works(outcome: &Outcome) -> Option<bool> {
    match outcome {
        Outcome::Handled
        | Outcome::Replayed
        | Outcome::Accepted
        | Outcome::Ignored
        | Outcome::Filtered
        | Outcome::Unhandled
        | Outcome::Discarded(_)
        | Outcome::DeadLetter(_)
        | Outcome::Undecodable(_)
        | Outcome::Snoozed { .. } => Some(true),
        Outcome::Failed { .. }
        | Outcome::Panicked(_)
        | Outcome::TimedOut { .. }
        | Outcome::InFlight { .. }
        | Outcome::Incomplete { .. }
        | Outcome::Unavailable { .. }
        | Outcome::NotRecorded(_)
        | Outcome::NotCommitted { .. } => Some(false),
        Outcome::LeaseLost | Outcome::Crashed { .. } | Outcome::Interrupted => None,
    }
}

impl Trips {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            kinds: BTreeMap::new(),
            probes: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// The kinds that are tripped, and when the next probe of each is due: in the past if one is in progress.
    pub(super) fn tripped(&self) -> impl Iterator<Item = (&EventType, Instant)> {
        self.kinds
            .iter()
            .filter_map(|(kind, trip)| Some((kind, trip.tripped.as_ref()?.next)))
    }

    /// Makes an event the next probe, if its kind is tripped, and returns whether it is.
    pub(super) fn want(&mut self, kind: &EventType, event: EventId) -> bool {
        let trip = self.kinds.get_mut(kind);
        let Some(tripped) = trip.and_then(|trip| trip.tripped.as_mut()) else {
            return false;
        };
        tripped.wanted = Some(event);
        if tripped.probe.is_none() {
            tripped.next = tripped.earliest.max(Instant::now());
        }
        true
    }

    /// Notes a success, and returns whether that ends a trip of the kind.
    pub(super) fn succeeded(&mut self, kind: &EventType) -> bool {
        let trip = self.kinds.remove(kind);
        trip.is_some_and(|trip| trip.tripped.is_some())
    }

    /// Forgets the failures of kinds that another worker handles, and returns those that were tripped.
    pub(super) fn leave(&mut self, is_left: impl Fn(&EventType) -> bool) -> Vec<EventType> {
        let left: Vec<_> = self
            .kinds
            .keys()
            .filter(|it| is_left(it))
            .cloned()
            .collect();
        left.into_iter().filter(|it| self.succeeded(it)).collect()
    }

    /// Notes a failure, and returns whether it trips the kind. `lane` is the event's lane, or the event itself.
    pub(super) fn failed(&mut self, kind: &EventType, lane: i64) -> bool {
        let trip = self.kinds.entry(kind.clone()).or_default();
        if trip.tripped.is_some() {
            return false;
        }
        trip.lanes.insert(lane);
        if trip.lanes.len() < self.limit {
            return false;
        }
        trip.lanes = HashSet::new();
        let next = Instant::now() + SHORTEST;
        trip.tripped = Some(Tripped {
            next,
            delay: SHORTEST,
            probe: None,
            wanted: None,
            earliest: next,
        });
        true
    }

    /// Plans the next probe, unless this one succeeded.
    pub(super) fn probe_ended(&mut self, ended: &Probe) {
        if let Some(trip) = self.kinds.get_mut(&ended.of)
            && let Some(tripped) = &mut trip.tripped
            && tripped.probe == Some(ended.number)
        {
            tripped.again(ended.event.is_some());
        }
    }

    /// Begins a probe that is due, at a route that has room for it.
    pub(super) fn begin_probe(&mut self, has_room: impl Fn(&RouteName) -> bool) -> Option<Probe> {
        let now = Instant::now();
        let number = self.probes + 1;
        let (kind, tripped) = self
            .waiting()
            .find(|(of, tripped)| tripped.next <= now && has_room(&of.route))?;
        tripped.probe = Some(number);
        let (kind, event) = (kind.clone(), tripped.wanted.take());
        self.probes = number;
        Some(Probe {
            of: kind,
            event,
            number,
        })
    }

    /// Returns when the next probe is due, of those at routes that have room for it.
    pub(super) fn next_probe(&mut self, has_room: impl Fn(&RouteName) -> bool) -> Option<Instant> {
        let waiting = self.waiting().filter(|(of, _)| has_room(&of.route));
        waiting.map(|(_, tripped)| tripped.next).min()
    }

    /// The tripped kinds of which no probe is in progress.
    fn waiting(&mut self) -> impl Iterator<Item = (&EventType, &mut Tripped)> {
        self.kinds
            .iter_mut()
            .filter_map(|(kind, trip)| Some((kind, trip.tripped.as_mut()?)))
            .filter(|(_, tripped)| tripped.probe.is_none())
    }
}

impl Tripped {
    fn again(&mut self, was_wanted: bool) {
        let now = Instant::now();
        self.probe = None;
        self.earliest = now + SHORTEST;
        // Whoever looks for the cause tries an event often.
        if !was_wanted {
            self.delay = (2 * self.delay).min(LONGEST);
        }
        self.next = match self.wanted {
            Some(_) => self.earliest,
            None => now + self.delay.mul_f64(1.0 - fastrand::f64() / 4.0),
        };
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::event::EventKind;

    fn rated() -> EventType {
        EventKind::CHAT_RATED.into()
    }

    #[tokio::test(start_paused = true)]
    async fn failures_in_different_lanes_trip_a_kind() {
        let mut trips = Trips::new(3);
        for lane in [1, 1, 1, 2, 2] {
            assert!(!trips.failed(&rated(), lane));
        }
        let other = trips.failed(&EventKind::CHAT_CLOSED.into(), 3);
        assert!(!other);
        assert!(trips.failed(&rated(), 3));
        let tripped: Vec<_> = trips.tripped().map(|(kind, _)| kind.clone()).collect();
        assert_eq!(tripped, [rated()]);
        assert!(!trips.failed(&rated(), 4));
    }

    #[test]
    fn an_outcome_shows_whether_the_handler_works_or_nothing() {
        assert_eq!(handler_works(&Outcome::Ignored), Some(true));
        let failed = Outcome::failed("it is down");
        assert_eq!(handler_works(&failed), Some(false));
        assert_eq!(handler_works(&Outcome::LeaseLost), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_success_ends_the_count() {
        let mut trips = Trips::new(2);
        for lane in 0..10 {
            assert!(!trips.failed(&rated(), lane));
            assert!(!trips.is_empty());
            assert!(!trips.succeeded(&rated()));
        }
        assert!(trips.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_waits_for_room_at_its_route() {
        let mut trips = Trips::new(1);
        trips.failed(&rated(), 1);
        advance(SHORTEST).await;
        assert_eq!(trips.next_probe(|_| false), None);
        assert_eq!(trips.begin_probe(|_| false), None);
        assert_eq!(trips.next_probe(|_| true), Some(Instant::now()));
        let probe = trips.begin_probe(|route| *route == rated().route);
        assert_eq!(probe.unwrap().of, rated());
    }

    #[tokio::test(start_paused = true)]
    async fn a_tripped_kind_is_probed_ever_less_often() {
        let mut trips = Trips::new(1);
        trips.failed(&rated(), 1);
        let mut last = Duration::ZERO;
        let mut numbers = HashSet::new();
        for _ in 0..20 {
            assert_eq!(trips.begin_probe(|_| true), None);
            let delay = trips.next_probe(|_| true).unwrap() - Instant::now();
            assert!(
                delay <= LONGEST && delay >= last.min(LONGEST / 2),
                "{delay:?}"
            );
            last = delay;
            advance(delay).await;
            let probe = trips.begin_probe(|_| true).unwrap();
            assert_eq!(probe.of, rated());
            assert!(numbers.insert(probe.number));
            assert_eq!(trips.begin_probe(|_| true), None, "one probe at a time");
            assert_eq!(trips.next_probe(|_| true), None);
            assert!(!trips.failed(&rated(), 2));
            assert_eq!(trips.next_probe(|_| true), None, "the probe has not ended");
            trips.probe_ended(&probe);
            let next = trips.next_probe(|_| true);
            trips.probe_ended(&probe);
            assert_eq!(trips.next_probe(|_| true), next, "it ended twice");
        }
        assert!(trips.succeeded(&rated()));
        assert_eq!(trips.next_probe(|_| true), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_event_that_a_person_wants_is_the_next_probe() {
        let mut trips = Trips::new(1);
        assert!(!trips.want(&rated(), EventId(7)), "the kind is not tripped");
        trips.failed(&rated(), 1);
        for _ in 0..10 {
            advance(trips.next_probe(|_| true).unwrap() - Instant::now()).await;
            let probe = trips.begin_probe(|_| true).unwrap();
            assert_eq!(probe.event, None);
            trips.probe_ended(&probe);
        }
        let before = trips.next_probe(|_| true).unwrap() - Instant::now();
        assert!(before > LONGEST / 2, "{before:?}");
        advance(SHORTEST).await;
        // The second one is wanted while the first one is tried.
        let wanted = [EventId(7), EventId(8)];
        assert!(trips.want(&rated(), wanted[0]));
        let probe = trips.begin_probe(|_| true).unwrap();
        assert_eq!(probe.event, Some(wanted[0]));
        assert!(trips.want(&rated(), wanted[1]));
        assert_eq!(trips.begin_probe(|_| true), None, "one probe at a time");
        trips.probe_ended(&probe);
        assert_eq!(trips.begin_probe(|_| true), None, "one a second");
        advance(SHORTEST).await;
        let probe = trips.begin_probe(|_| true).unwrap();
        assert_eq!(probe.event, Some(wanted[1]));
        trips.probe_ended(&probe);
        let after = trips.next_probe(|_| true).unwrap() - Instant::now();
        assert!(after > LONGEST / 2 && after <= LONGEST, "{after:?}");
    }
}
