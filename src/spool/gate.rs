//! The way that an event goes: to the queue, or to the file in front of it. An event goes to the file while the breaker is
//! open, and behind those of its lane that are there.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::inbox::event::{Lane, NewEvent};
use crate::lock::lock;

/// How long an event waits for the last ones of its lane in the file to be forwarded, instead of going behind them.
/// Otherwise, a steady flow of events would never leave the file.
const HANDOVER: Duration = Duration::from_millis(200);

/// How few they are.
const FEW: u32 = 64;

/// How many lanes fail without a success between them when the breaker opens. One or two may be locked by somebody else,
/// while the database works.
const LANES: usize = 3;

/// The breaker, and the lanes that have events in the file.
#[derive(Default)]
pub(super) struct Gate {
    state: Mutex<State>,
    /// Whenever the way of an event that waits may have changed.
    changed: Notify,
    /// Whenever an event was stored in the file, or the queue did not accept one.
    pub(super) stored: Notify,
}

#[derive(Default)]
struct State {
    is_open: bool,
    /// What the queue did not accept since it last accepted an event, by lanes: up to as many as open the breaker.
    failed: Vec<u128>,
    /// Whether a call that no lane delays had no answer in time, and nobody has asked the queue since.
    is_in_doubt: bool,
    /// The lanes of events that are in the file or on a way.
    lanes: HashMap<Lane, InLane>,
    /// Whether events may be in the file.
    has_events: bool,
    /// At most how many they are.
    events: u64,
    /// How many are being stored there.
    storing: usize,
    /// How often one was stored there.
    stored: u64,
}

/// The events of a lane.
#[derive(Clone, Copy, Default)]
struct InLane {
    /// How many are on their way to the queue. One that goes to the file waits for them, because they may follow it there.
    direct: u32,
    /// How many are being stored in the file.
    storing: u32,
    /// At most how many are in the file.
    events: u32,
    /// Whether the queue did not accept the last one, which may not be in the file: without a key, it is refused.
    fails: bool,
    /// Whether the queue refuses an event that is in the file, which does not leave the file soon.
    is_refused: bool,
}

impl InLane {
    fn is_in_file(self) -> bool {
        self.storing > 0 || self.events > 0 || self.fails
    }
}

impl State {
    /// Changes what is known of a lane, and forgets a lane without events.
    fn change(&mut self, lane: Option<Lane>, change: impl FnOnce(&mut InLane)) {
        let Some(lane) = lane else { return };
        let of = self.lanes.entry(lane).or_default();
        change(of);
        if of.direct == 0 && !of.is_in_file() {
            self.lanes.remove(&lane);
        }
    }

    fn of(&self, lane: Option<Lane>) -> InLane {
        let of = lane.and_then(|lane| self.lanes.get(&lane));
        of.copied().unwrap_or_default()
    }
}

/// The lanes of the events of a delivery.
#[derive(Clone, Default)]
pub(super) struct Lanes {
    /// How many events there are, also without a lane.
    events: u32,
    /// Each lane once, with the number of its events. Most deliveries have one event.
    first: Option<(Lane, u32)>,
    others: Vec<(Lane, u32)>,
}

impl Lanes {
    pub(super) fn of(events: &[NewEvent]) -> Self {
        if let [event] = events {
            return event.lane.into();
        }
        let mut lanes = BTreeMap::<_, u32>::new();
        for lane in events.iter().filter_map(|event| event.lane) {
            *lanes.entry(lane).or_default() += 1;
        }
        let mut lanes = lanes.into_iter();
        Self {
            events: u32::try_from(events.len()).unwrap_or(u32::MAX),
            first: lanes.next(),
            others: lanes.collect(),
        }
    }

    /// Of several, the smallest one.
    pub(super) fn first(&self) -> Option<Lane> {
        self.first.map(|(lane, _)| lane)
    }

    fn each(&self) -> impl Iterator<Item = (Lane, u32)> {
        self.first.into_iter().chain(self.others.iter().copied())
    }

    fn any(&self, state: &State, of: impl Fn(InLane) -> bool) -> bool {
        self.each().any(|(lane, _)| of(state.of(Some(lane))))
    }

    fn change(&self, state: &mut State, change: impl Fn(&mut InLane, u32)) {
        for (lane, events) in self.each() {
            state.change(Some(lane), |of| change(of, events));
        }
    }
}

/// Of a single event.
impl From<Option<Lane>> for Lanes {
    fn from(lane: Option<Lane>) -> Self {
        Self {
            events: 1,
            first: lane.map(|lane| (lane, 1)),
            others: Vec::new(),
        }
    }
}

pub(super) enum Way<'a> {
    Queue(Direct<'a>),
    File(Storing<'a>),
}

impl Gate {
    /// Returns the way that the next delivery goes, whose events have these lanes.
    pub(super) async fn way(&self, lanes: Lanes) -> Way<'_> {
        let mut give_up = None;
        let storing = loop {
            let changed = self.changed.notified();
            {
                let mut state = lock(&self.state);
                if !state.is_open && !lanes.any(&state, InLane::is_in_file) {
                    lanes.change(&mut state, |of, _| of.direct += 1);
                    return Way::Queue(Direct { gate: self, lanes });
                }
                let stays = |of: InLane| of.fails || of.is_refused || of.events > FEW;
                let may_wait = !state.is_open && !lanes.any(&state, stays);
                if !may_wait || give_up.is_some_and(|give_up| give_up <= Instant::now()) {
                    break self.storing(&mut state, lanes);
                }
            }
            let give_up = *give_up.get_or_insert_with(|| Instant::now() + HANDOVER);
            let _ = timeout_at(give_up, changed).await;
        };
        loop {
            let changed = self.changed.notified();
            let is_direct = |of: InLane| of.direct > 0;
            if !storing.lanes.any(&lock(&self.state), is_direct) {
                return Way::File(storing);
            }
            changed.await;
        }
    }

    /// The way to the file of a delivery that was on its way to the queue.
    pub(super) fn turn(&self, lanes: Lanes) -> Storing<'_> {
        self.storing(&mut lock(&self.state), lanes)
    }

    fn storing(&self, state: &mut State, lanes: Lanes) -> Storing<'_> {
        state.storing += 1;
        lanes.change(state, |of, _| of.storing += 1);
        Storing {
            gate: self,
            lanes,
            may_be_stored: true,
            has_failed: false,
        }
    }

    /// Opens or closes the breaker, and returns whether that is new.
    pub(super) fn set_open(&self, is_open: bool) -> bool {
        let mut state = lock(&self.state);
        let was_open = std::mem::replace(&mut state.is_open, is_open);
        drop(state);
        self.changed.notify_waiters();
        was_open != is_open
    }

    pub(super) fn is_open(&self) -> bool {
        lock(&self.state).is_open
    }

    /// Notes that the queue did not accept a delivery, with the number of its first lane or, without one, of the event.
    /// Returns whether one of its lanes did not fail before, and whether the breaker has to open.
    pub(super) fn failed(&self, lanes: &Lanes, number: u128) -> (bool, bool) {
        let mut state = lock(&self.state);
        let is_new = lanes.first.is_none() || lanes.any(&state, |of| !of.fails);
        lanes.change(&mut state, |of, _| of.fails = true);
        if state.failed.len() < LANES && !state.failed.contains(&number) {
            state.failed.push(number);
        }
        self.stored.notify_one();
        (is_new, state.failed.len() == LANES)
    }

    /// Notes that the queue has accepted a delivery.
    pub(super) fn accepted(&self, lanes: &Lanes) {
        let mut state = lock(&self.state);
        state.failed.clear();
        lanes.change(&mut state, |of, _| of.fails = false);
    }

    /// Has the queue asked whether it works.
    pub(super) fn doubt(&self) {
        lock(&self.state).is_in_doubt = true;
        self.stored.notify_one();
    }

    /// Whether the database did not accept an event, and none after it, or is in doubt. The caller asks it.
    pub(super) fn is_to_be_asked(&self) -> bool {
        let mut state = lock(&self.state);
        std::mem::take(&mut state.is_in_doubt) || !state.failed.is_empty()
    }

    /// Notes the lanes of events in the file that the queue refuses.
    pub(super) fn set_refused(&self, lanes: &HashSet<Lane>) {
        let mut state = lock(&self.state);
        for (lane, of) in &mut state.lanes {
            of.is_refused = lanes.contains(lane);
        }
    }

    /// Whether events may be in the file, or on their way to it.
    pub(super) fn is_busy(&self) -> bool {
        let state = lock(&self.state);
        state.has_events || state.storing > 0
    }

    /// At most how many events are in the file.
    pub(super) fn events(&self) -> u64 {
        lock(&self.state).events
    }

    /// Notes how many events of each lane are in the file.
    pub(super) fn set_events(&self, events: Vec<(Option<Lane>, u32)>) {
        let mut state = lock(&self.state);
        for (lane, events) in events {
            state.has_events = true;
            state.events += u64::from(events);
            state.change(lane, |of| of.events = events);
        }
    }

    /// How many events of a lane are in the file, unless one is being stored there now.
    pub(super) fn quiet_lane(&self, lane: Option<Lane>) -> Option<u32> {
        let of = lock(&self.state).of(lane);
        (of.storing == 0).then_some(of.events)
    }

    /// Notes that an event has left the file, and with the number of events in its lane [before](Self::quiet_lane),
    /// that it was the last one there, unless another one was stored since.
    pub(super) fn forwarded(&self, lane: Option<Lane>, last_of: Option<u32>) {
        let mut state = lock(&self.state);
        state.events = state.events.saturating_sub(1);
        state.change(lane, |of| {
            let is_last = of.storing == 0 && last_of == Some(of.events);
            of.events = if is_last {
                0
            } else {
                of.events.saturating_sub(1).max(1)
            };
        });
        if !state.of(lane).is_in_file() {
            self.changed.notify_waiters();
        }
    }

    /// How often an event was stored in the file, if none is being stored now.
    pub(super) fn quiet(&self) -> Option<u64> {
        let state = lock(&self.state);
        (state.storing == 0).then_some(state.stored)
    }

    /// Notes that the file is empty, unless an event was stored since it was [quiet](Self::quiet).
    pub(super) fn empty(&self, since: u64) {
        let mut state = lock(&self.state);
        if state.storing == 0 && state.stored == since {
            (state.has_events, state.events) = (false, 0);
            state.lanes.retain(|_, of| {
                (of.events, of.fails, of.is_refused) = (0, false, false);
                of.direct > 0
            });
            self.changed.notify_waiters();
        }
    }
}

/// A delivery that is on its way to the queue.
pub(super) struct Direct<'a> {
    gate: &'a Gate,
    lanes: Lanes,
}

impl Drop for Direct<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.gate.state);
        self.lanes.change(&mut state, |of, _| of.direct -= 1);
        if self.lanes.any(&state, |of| of.storing > 0) {
            self.gate.changed.notify_waiters();
        }
    }
}

/// A delivery that is being stored in the file. If this is dropped, it may have been.
pub(super) struct Storing<'a> {
    gate: &'a Gate,
    lanes: Lanes,
    may_be_stored: bool,
    has_failed: bool,
}

impl Storing<'_> {
    /// Notes that the file cannot store the delivery, which is refused. If none of a lane is there, the next one of that goes
    /// to the queue.
    pub(super) fn failed(mut self, may_be_stored: bool) {
        (self.may_be_stored, self.has_failed) = (may_be_stored, true);
    }

    /// Notes that the delivery is not in the file.
    pub(super) fn cancel(mut self) {
        self.may_be_stored = false;
    }
}

impl Drop for Storing<'_> {
    fn drop(&mut self) {
        let may_be_stored = self.may_be_stored;
        let mut state = lock(&self.gate.state);
        state.storing -= 1;
        state.stored += 1;
        if may_be_stored {
            state.events += u64::from(self.lanes.events);
            state.has_events = true;
        }
        self.lanes.change(&mut state, |of, events| {
            of.storing -= 1;
            if self.has_failed {
                of.fails &= of.storing > 0 || of.events > 0;
            } else if may_be_stored {
                of.events += events;
            }
        });
        self.gate.stored.notify_one();
        if !self.may_be_stored || self.has_failed {
            self.gate.changed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const LANE: Option<Lane> = Some(Lane(1));

    fn is_direct(gate: &Gate, lane: Option<Lane>) -> bool {
        match gate.way(lane.into()).now_or_never() {
            Some(Way::Queue(_)) => true,
            Some(Way::File(storing)) => {
                storing.cancel();
                false
            }
            None => false,
        }
    }

    #[test]
    fn a_file_with_an_event_that_was_just_stored_is_not_empty() {
        let gate = Gate::default();
        for stored in 1..=3 {
            let quiet = gate.quiet().unwrap();
            let storing = gate.turn(LANE.into());
            assert!(gate.is_busy());
            gate.empty(quiet);
            assert_eq!(gate.quiet(), None);
            drop(storing);
            assert_eq!(gate.events(), stored);
            gate.empty(quiet);
            assert!(gate.is_busy());
        }
        gate.empty(gate.quiet().unwrap());
        assert!(!gate.is_busy());
        assert!(lock(&gate.state).lanes.is_empty());
    }

    #[tokio::test]
    async fn a_lane_with_an_event_that_was_just_stored_stays_in_the_file() {
        let gate = Gate::default();
        let is_direct = |lane| is_direct(&gate, lane);
        drop(gate.turn(LANE.into()));
        assert!(!is_direct(LANE) && is_direct(Some(Lane(2))) && is_direct(None));
        let before = gate.quiet_lane(LANE);
        let storing = gate.turn(LANE.into());
        assert_eq!(gate.quiet_lane(LANE), None);
        gate.forwarded(LANE, before);
        drop(storing);
        gate.forwarded(LANE, before);
        assert!(!is_direct(LANE));
        gate.forwarded(LANE, gate.quiet_lane(LANE));
        assert!(is_direct(LANE));
        // What was not stored leaves nothing behind.
        gate.turn(LANE.into()).cancel();
        assert!(is_direct(LANE));
        // The lane of an event that was refused without a key goes there, too.
        gate.failed(&LANE.into(), 1);
        assert!(!is_direct(LANE));
        gate.accepted(&LANE.into());
        assert!(is_direct(LANE) && lock(&gate.state).lanes.is_empty());
    }

    #[tokio::test]
    async fn a_lane_goes_to_the_queue_again_if_the_file_cannot_store() {
        let gate = Gate::default();
        for may_be_stored in [false, true] {
            gate.failed(&LANE.into(), 1);
            gate.turn(LANE.into()).failed(may_be_stored);
            assert!(is_direct(&gate, LANE));
            // But not before what is there.
            gate.failed(&LANE.into(), 1);
            drop(gate.turn(LANE.into()));
            gate.turn(LANE.into()).failed(may_be_stored);
            assert!(!is_direct(&gate, LANE));
            gate.accepted(&LANE.into());
            gate.forwarded(LANE, gate.quiet_lane(LANE));
            assert!(lock(&gate.state).lanes.is_empty());
        }
    }

    #[tokio::test]
    async fn a_refused_event_is_not_waited_for() {
        let gate = Gate::default();
        drop(gate.turn(LANE.into()));
        let waits = || gate.way(LANE.into()).now_or_never().is_none();
        assert!(waits());
        gate.set_refused(&HashSet::from([Lane(1)]));
        assert!(!waits());
        gate.set_refused(&HashSet::new());
        assert!(waits());
    }

    #[test]
    fn an_event_goes_to_the_file_behind_those_of_its_lane_that_may_follow_it_there() {
        let gate = Gate::default();
        let Some(Way::Queue(direct)) = gate.way(LANE.into()).now_or_never() else {
            panic!("it goes to the file")
        };
        gate.set_open(true);
        let mut way = Box::pin(gate.way(LANE.into()));
        assert!(way.as_mut().now_or_never().is_none());
        assert!(gate.way(Some(Lane(2)).into()).now_or_never().is_some());
        drop(gate.turn(LANE.into()));
        drop(direct);
        assert!(matches!(way.now_or_never(), Some(Way::File(_))));
    }

    #[test]
    fn failures_of_three_lanes_without_a_success_between_them_open_the_breaker() {
        let gate = Gate::default();
        let failed = |lane: i64| {
            gate.failed(&Some(Lane(lane)).into(), lane.unsigned_abs().into())
                .1
        };
        assert!(![1, 2, 1, 2].into_iter().any(failed));
        gate.accepted(&Some(Lane(3)).into());
        assert!(![1, 4].into_iter().any(failed));
        assert!(failed(5));
    }
}
