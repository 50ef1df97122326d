//! The credit of each event type: how many calls of its handler may fail, and how many run side by side.
//!
//! A call costs 1, a success returns it and adds 16, and each second adds 1, up to 64. So a type makes at most
//! 64 + t + 16 × successes failing calls in t seconds, plus the calls that begin at the same moment. A type that fails for some
//! chats only is not slowed down.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::mem;
use std::time::Duration;

use tokio::time::Instant;

use super::event::{EventId, KindShare};
use crate::outcome::Outcome;
use crate::route::{EventType, RouteName};

/// The calls that a type may make before the first success.
pub(super) const CALLS: usize = 64;

/// What a success adds.
const GAIN: f64 = 16.0;

/// Without a success for so long, a type of which several chats fail makes a call in [`SLOWEST`] at most. The time that its
/// failed calls took is added: calls that hang are soon too many for a system that answers few at a time.
const LONG: Duration = Duration::from_secs(10 * 60);
const SLOWEST: Duration = Duration::from_secs(10);

/// Without a success for so long, such a type counts as slowed down, also if its credit lasts.
const QUIET: Duration = Duration::from_secs(2 * 60);

/// So many chats are several.
const CHATS: usize = 10;

/// For how long a type or a route counts as busy after an event: so long, no other one takes all places.
pub(super) const ACTIVE: Duration = Duration::from_secs(60);

/// All places but the last quarter, and one at least is left.
pub(super) fn three_quarters(places: usize) -> usize {
    places - (places / 4).max(1).min(places.saturating_sub(1))
}

/// The types of a worker.
#[derive(Debug)]
pub(super) struct Credits {
    /// The number of attempts that may run side by side.
    places: usize,
    /// The calls of a full credit.
    most: f64,
    types: BTreeMap<EventType, Credit>,
    /// Those that may be without credit now.
    low: BTreeSet<EventType>,
    /// The type that had an event last, and when; and when one of another type came last.
    latest: Option<(EventType, Instant)>,
    other: Option<Instant>,
    /// What nobody was told of yet, in its order.
    changes: VecDeque<(EventType, Change)>,
    /// The number of claims, and of the last one before which something may have become due.
    claims: u64,
    due_since: u64,
}

#[derive(Debug)]
struct Credit {
    /// The calls in progress.
    busy: usize,
    /// The calls that it may begin, and when that was so. Less than 0 if several began at once.
    left: f64,
    at: Instant,
    /// When it had an event last.
    seen: Instant,
    /// Since its last success.
    failing: Option<Failing>,
    /// Whether the last claim may have left events of it.
    is_waiting: bool,
    /// When it has credit for them, if they wait for that.
    credit_at: Option<Instant>,
    /// The event that a person wants to be tried next.
    wanted: Option<EventId>,
    /// The number of the last claim that could take events of it while it failed, and whether that may have left some.
    offered: u64,
    has_rest: bool,
}

/// Why a type is slowed down, or is not any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// It has used its credit up, or has failed for long.
    Slowed,
    /// An event of it succeeded.
    Succeeded,
    /// Another worker handles it.
    Left,
}

#[derive(Debug)]
struct Failing {
    since: Instant,
    last_call: Instant,
    /// The time that its failed calls took together.
    took: Duration,
    /// The lanes of which an event failed.
    lanes: HashSet<i64>,
    is_slowed: bool,
}

/// Whether an outcome shows that the handler of the event's type works. `None` if it shows nothing.
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

impl Failing {
    /// Whether the whole type fails, and not a few chats.
    fn is_whole(&self) -> bool {
        self.lanes.len() >= CHATS
    }

    fn is_quiet(&self) -> bool {
        self.is_whole() && self.since.elapsed() >= QUIET
    }

    fn is_long(&self) -> bool {
        self.is_whole() && self.since.elapsed().saturating_add(self.took) >= LONG
    }
}

impl Credit {
    fn new(most: f64) -> Self {
        let now = Instant::now();
        Self {
            busy: 0,
            left: most,
            at: now,
            seen: now,
            failing: None,
            is_waiting: false,
            credit_at: None,
            wanted: None,
            offered: 0,
            has_rest: false,
        }
    }

    fn refill(&mut self, most: f64) {
        let now = Instant::now();
        let more = now.duration_since(self.at).as_secs_f64();
        (self.left, self.at) = ((self.left + more).min(most), now);
    }

    fn is_slowed(&self) -> bool {
        self.failing.as_ref().is_some_and(|it| it.is_slowed)
    }

    /// Whether it makes a call in [`SLOWEST`].
    fn is_slowest(&self) -> bool {
        let mut failing = self.failing.iter();
        failing.any(|it| it.is_slowed && it.is_long())
    }

    /// When the next call may begin, at the earliest.
    fn next_call(&self) -> Instant {
        let paid = self.next_wanted();
        let pause = self.failing.as_ref().filter(|_| self.is_slowest());
        let after = pause.map(|it| it.last_call + SLOWEST);
        after.map_or(paid, |after| after.max(paid))
    }

    /// The same for a call that a person wants.
    fn next_wanted(&self) -> Instant {
        // Rounded up, so that there is a whole one then.
        let missing = (1.0 - self.left).max(0.0) * 1e6;
        self.at + Duration::from_micros(missing.ceil() as u64)
    }

    /// The number of calls that may begin now.
    fn calls(&mut self, most: f64) -> usize {
        self.refill(most);
        if self.next_call() > self.at {
            return 0;
        }
        match self.is_slowest() {
            true => 1,
            false => self.left as usize,
        }
    }

    /// Whether a claim has left none of its events that are due, and nothing has become due since that claim.
    fn was_asked(&self, due_since: u64) -> bool {
        self.offered >= due_since && !self.has_rest
    }

    fn is_active(&self) -> bool {
        self.seen.elapsed() < ACTIVE
    }
}

impl Credits {
    pub(super) fn new(places: usize, calls: usize) -> Self {
        Self {
            places,
            most: calls as f64,
            types: BTreeMap::new(),
            low: BTreeSet::new(),
            latest: None,
            other: None,
            changes: VecDeque::new(),
            claims: 0,
            due_since: 0,
        }
    }

    fn of(&mut self, of: &EventType) -> &mut Credit {
        let most = self.most;
        self.types
            .entry(of.clone())
            .or_insert_with(|| Credit::new(most))
    }

    /// Notes that a type has an event.
    pub(super) fn see(&mut self, of: &EventType) {
        let now = Instant::now();
        match &mut self.latest {
            Some((latest, at)) if latest == of => *at = now,
            latest => {
                let before = latest.replace((of.clone(), now));
                self.other = before.map(|(_, at)| at);
            }
        }
        self.of(of).seen = now;
    }

    /// Whether another type had an event within the last minute.
    fn has_others(&self, than: Option<&EventType>) -> bool {
        let last = match &self.latest {
            Some((latest, _)) if Some(latest) == than => self.other,
            latest => latest.as_ref().map(|(_, at)| *at),
        };
        last.is_some_and(|at| at.elapsed() < ACTIVE)
    }

    /// The most calls of a type side by side: not in the last quarter of the places while others have events.
    fn most_of(&self, of: Option<&EventType>) -> usize {
        match self.has_others(of) {
            true => three_quarters(self.places),
            false => self.places,
        }
    }

    /// How many more calls all types may begin together whose last call failed, while others have events.
    fn failing_room(&self) -> usize {
        let is_failing = |it: &&Credit| it.failing.is_some();
        let mut others = self.types.values().filter(|it| it.failing.is_none());
        if !others.any(Credit::is_active) {
            return usize::MAX;
        }
        let busy: usize = self
            .types
            .values()
            .filter(is_failing)
            .map(|it| it.busy)
            .sum();
        three_quarters(self.places).saturating_sub(busy)
    }

    /// Begins a call of an event that may be taken, if it has room.
    pub(super) fn reserve(&mut self, of: &EventType) -> bool {
        self.see(of);
        let side_by_side = self.most_of(Some(of));
        let most = self.most;
        let it = self.of(of);
        let has_room = it.busy < side_by_side && it.calls(most) > 0;
        let is_failing = it.failing.is_some();
        if !has_room || is_failing && self.failing_room() == 0 {
            return false;
        }
        self.begin(of);
        true
    }

    /// Begins a call.
    pub(super) fn begin(&mut self, of: &EventType) {
        self.see(of);
        let most = self.most;
        let it = self.of(of);
        it.refill(most);
        it.busy += 1;
        it.left -= 1.0;
        let now = it.at;
        if let Some(failing) = &mut it.failing {
            failing.last_call = now;
        }
        if it.left < 1.0 || it.failing.is_some() {
            self.low.insert(of.clone());
        }
    }

    /// Ends a call that took so long, and showed whether the handler works, or nothing. `lane` is the event's lane, or the event
    /// itself. Returns whether an event may wait for the room that there is now.
    pub(super) fn end(
        &mut self,
        of: &EventType,
        took: Duration,
        works: Option<bool>,
        lane: i64,
    ) -> bool {
        let most = self.most;
        let Some(it) = self.types.get_mut(of) else {
            return false;
        };
        it.refill(most);
        it.busy = it.busy.saturating_sub(1);
        let (was_failing, was_slowed) = (it.failing.is_some(), it.is_slowed());
        match works {
            Some(true) => {
                it.left = (it.left + 1.0 + GAIN).min(most);
                it.failing = None;
                it.wanted = None;
            }
            None => it.left = (it.left + 1.0).min(most),
            Some(false) => {
                let now = it.at;
                let failing = it.failing.get_or_insert_with(|| Failing {
                    since: now,
                    last_call: now,
                    took: Duration::ZERO,
                    lanes: HashSet::new(),
                    is_slowed: false,
                });
                failing.took = failing.took.saturating_add(took);
                if failing.lanes.len() < CHATS {
                    failing.lanes.insert(lane);
                }
                // What calls in progress have spent may come back.
                let spent = it.left + it.busy as f64;
                failing.is_slowed |= spent < 1.0 || failing.is_quiet() || failing.is_long();
                self.low.insert(of.clone());
            }
        }
        let is_slowed = it.is_slowed();
        let mut has_room = mem::take(&mut it.is_waiting);
        if was_failing {
            // Types that fail share their places.
            for other in self.types.values_mut().filter(|it| it.failing.is_some()) {
                has_room |= mem::take(&mut other.is_waiting);
            }
        }
        if is_slowed != was_slowed {
            let change = if is_slowed {
                Change::Slowed
            } else {
                Change::Succeeded
            };
            self.changes.push_back((of.clone(), change));
        }
        has_room
    }

    /// Whether failures of the type do not count, as it has had no success since its credit was used up.
    pub(super) fn is_slowed(&self, of: &EventType) -> bool {
        self.types.get(of).is_some_and(Credit::is_slowed)
    }

    /// Whether a type has used a quarter of its credit.
    pub(super) fn is_short(&mut self, of: &EventType) -> bool {
        let most = self.most;
        self.types.get_mut(of).is_some_and(|it| {
            it.refill(most);
            it.left < most * 0.75
        })
    }

    /// The types of a route that may begin no call now: they have no credit, or as many calls in progress as they may have.
    pub(super) fn without(&mut self, route: &RouteName) -> Vec<EventType> {
        let mut without = Vec::new();
        let few = three_quarters(self.places);
        for (of, it) in &self.types {
            if it.busy >= few && of.route == *route && it.busy >= self.most_of(Some(of)) {
                without.push(of.clone());
            }
        }
        let is_held = !self.low.is_empty() && self.failing_room() == 0;
        let (most, types) = (self.most, &mut self.types);
        self.low.retain(|of| {
            let Some(it) = types.get_mut(of) else {
                return false;
            };
            let is_without = it.calls(most) == 0;
            let waits = is_without || is_held && it.failing.is_some();
            if waits && of.route == *route {
                without.push(of.clone());
            }
            is_without || it.failing.is_some() || it.wanted.is_some()
        });
        without
    }

    /// What a claim may take of each type: those of one route after another, in their order. `may_be_due` says whether
    /// something may have become due since the last claim.
    pub(super) fn shares(&mut self, may_be_due: bool) -> Vec<(RouteName, KindShare)> {
        let most = self.most;
        self.claims += 1;
        if may_be_due {
            self.due_since = self.claims;
        }
        self.types.retain(|_, it| {
            it.refill(most);
            let is_new = it.busy == 0 && it.left >= most && it.failing.is_none();
            !is_new || it.is_active() || it.wanted.is_some()
        });
        let room = self.failing_room();
        let [few, many] = [three_quarters(self.places), self.places];
        let others = |of: &EventType, credits: &Self| match credits.has_others(Some(of)) {
            true => few,
            false => many,
        };
        let each = self.each();
        let side_by_side: Vec<_> = self.types.keys().map(|of| others(of, self)).collect();
        let calls = self.types.values_mut().zip(side_by_side);
        let calls = calls.map(|(it, most_of)| {
            (it.is_waiting, it.credit_at) = (false, None);
            it.calls(most).min(most_of.saturating_sub(it.busy))
        });
        let mut calls: Vec<_> = calls.collect();
        self.split(room, &mut calls);
        let mut shares = Vec::new();
        for ((of, it), more) in self.types.iter().zip(calls) {
            // As all others: a claim costs by what is listed, and forged types are many.
            if it.busy == 0 && more == each {
                continue;
            }
            let share = KindShare {
                kind: of.kind.clone(),
                busy: it.busy,
                most: it.busy.saturating_add(more),
            };
            shares.push((of.route.clone(), share));
        }
        shares
    }

    /// Splits the room for failing types that may begin calls. If there are more types than room, the types with the fewest
    /// calls get it; between equals, it goes to the types that were offered it longest ago. If these have no events, the
    /// next claim offers it to others.
    fn split(&mut self, room: usize, calls: &mut [usize]) {
        let (claims, due_since) = (self.claims, self.due_since);
        let types = self.types.values_mut().zip(calls);
        let may_begin =
            |(it, calls): &(&mut Credit, &mut usize)| it.failing.is_some() && **calls > 0;
        let mut failing: Vec<_> = types.filter(may_begin).collect();
        failing.sort_by_key(|(it, _)| (it.was_asked(due_since), it.busy, it.offered));
        let count = failing.len().max(1);
        let (each, more) = (room / count, room % count);
        for (at, (it, calls)) in failing.into_iter().enumerate() {
            *calls = (*calls).min(each + usize::from(at < more));
            if *calls > 0 {
                (it.offered, it.has_rest) = (claims, false);
            }
        }
    }

    /// The most calls of a type that has none yet.
    pub(super) fn each(&self) -> usize {
        self.most_of(None).min(self.most as usize).max(1)
    }

    /// Notes that a claim may have left events of a type. Returns whether it has room by now.
    pub(super) fn wait(&mut self, of: &EventType) -> bool {
        let side_by_side = self.most_of(Some(of));
        let (most, room) = (self.most, self.failing_room());
        let (claims, due_since) = (self.claims, self.due_since);
        let Some(it) = self.types.get_mut(of) else {
            return true;
        };
        it.is_waiting = true;
        if it.calls(most) == 0 {
            it.credit_at = Some(it.next_call());
            return false;
        }
        let is_failing = it.failing.is_some();
        let has_room = it.busy < side_by_side && !(is_failing && room == 0);
        if !is_failing || it.offered == claims {
            it.has_rest = is_failing;
            return has_room;
        }
        // Others had the room that there is: the next claim offers it to this type.
        if has_room && !it.was_asked(due_since) {
            it.credit_at = Some(it.at);
        }
        false
    }

    /// When the next waiting type gets credit. An event that a person wants counts if its route has room.
    pub(super) fn next(&self, has_room: impl Fn(&RouteName) -> bool) -> Option<Instant> {
        let waiting = self.low.iter().filter_map(|of| {
            let it = self.types.get(of)?;
            let wanted = it.wanted.filter(|_| has_room(&of.route));
            let wanted = wanted.map(|_| it.next_wanted());
            wanted.into_iter().chain(it.credit_at).min()
        });
        waiting.min()
    }

    /// The types that are slowed down, and when the next call of each may begin.
    pub(super) fn slowed(&self) -> impl Iterator<Item = (&EventType, Instant)> {
        let slowed = self.types.iter().filter(|(_, it)| it.is_slowed());
        slowed.map(|(of, it)| (of, it.next_call()))
    }

    /// Makes an event the next one of its type, if that has to wait for credit. Returns whether it has.
    pub(super) fn want(&mut self, of: &EventType, event: EventId) -> bool {
        let most = self.most;
        let Some(it) = self.types.get_mut(of) else {
            return false;
        };
        let waits = it.is_slowed() || it.calls(most) == 0;
        if waits {
            it.wanted = Some(event);
            self.low.insert(of.clone());
        }
        waits
    }

    /// The event that a person wants to be tried now, at a route that has room for it.
    pub(super) fn wanted(
        &mut self,
        has_room: impl Fn(&RouteName) -> bool,
    ) -> Option<(EventType, EventId)> {
        let (most, types) = (self.most, &mut self.types);
        self.low.iter().find_map(|of| {
            let it = types.get_mut(of)?;
            it.refill(most);
            let may_begin = it.left >= 1.0 && has_room(&of.route);
            let event = may_begin.then(|| it.wanted.take()).flatten()?;
            Some((of.clone(), event))
        })
    }

    /// Forgets the failures of types that another worker handles.
    pub(super) fn leave(&mut self, is_left: impl Fn(&EventType) -> bool) {
        for (of, it) in &mut self.types {
            if it.failing.is_some() && is_left(of) {
                if it.is_slowed() {
                    self.changes.push_back((of.clone(), Change::Left));
                }
                it.failing = None;
            }
        }
    }

    pub(super) fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// The next change that nobody was told of.
    pub(super) fn next_change(&mut self) -> Option<(EventType, Change)> {
        self.changes.pop_front()
    }

    pub(super) fn has_failing(&self) -> bool {
        !self.low.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::event::EventKind;

    const SECOND: Duration = Duration::from_secs(1);

    fn rated() -> EventType {
        EventKind::CHAT_RATED.into()
    }

    fn closed() -> EventType {
        EventKind::CHAT_CLOSED.into()
    }

    /// Makes calls that fail, for as long as there is credit, and returns their number.
    fn fail(credits: &mut Credits, of: &EventType) -> usize {
        let mut calls = 0;
        while credits.reserve(of) {
            credits.end(of, Duration::ZERO, Some(false), calls as i64);
            calls += 1;
        }
        calls
    }

    fn most(credits: &mut Credits, of: &EventType) -> usize {
        let shares = credits.shares(true);
        let share = shares.iter().find(|(_, it)| it.kind == of.kind);
        share.map_or(credits.each(), |(_, it)| it.most)
    }

    #[test]
    fn an_outcome_shows_whether_the_handler_works_or_nothing() {
        assert_eq!(handler_works(&Outcome::Ignored), Some(true));
        let failed = Outcome::failed("it is down");
        assert_eq!(handler_works(&failed), Some(false));
        assert_eq!(handler_works(&Outcome::LeaseLost), None);
    }

    #[tokio::test(start_paused = true)]
    async fn failing_calls_are_bounded() {
        let mut credits = Credits::new(32, CALLS);
        assert_eq!(fail(&mut credits, &rated()), 64);
        assert!(credits.is_slowed(&rated()));
        let mut calls = 0;
        for _ in 0..(600 - 1) {
            advance(SECOND).await;
            calls += fail(&mut credits, &rated());
        }
        assert_eq!(calls, 599, "one a second");
        let mut calls = 0;
        for _ in 0..600 {
            advance(SECOND).await;
            calls += fail(&mut credits, &rated());
        }
        assert!((60..=61).contains(&calls), "one in ten seconds: {calls}");
        assert!(!credits.is_slowed(&closed()));
        assert_eq!(fail(&mut credits, &closed()), 64);
    }

    #[tokio::test(start_paused = true)]
    async fn a_success_pays_for_others() {
        let mut credits = Credits::new(32, CALLS);
        assert_eq!(fail(&mut credits, &rated()), 64);
        advance(SECOND).await;
        assert!(credits.reserve(&rated()));
        credits.end(&rated(), Duration::ZERO, Some(true), 1);
        assert!(!credits.is_slowed(&rated()));
        let changes = [(rated(), Change::Slowed), (rated(), Change::Succeeded)];
        assert_eq!(mem::take(&mut credits.changes), changes);
        assert_eq!(fail(&mut credits, &rated()), 17);
        // What was interrupted costs nothing, and shows nothing.
        advance(SECOND).await;
        for _ in 0..3 {
            assert!(credits.reserve(&rated()));
            credits.end(&rated(), Duration::ZERO, None, 1);
        }
        assert!(credits.is_slowed(&rated()));
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_quarter_of_the_places_is_for_others() {
        let mut credits = Credits::new(8, CALLS);
        credits.see(&closed());
        for calls in 0..6 {
            assert_eq!(most(&mut credits, &rated()), 6, "{calls}");
            assert!(credits.reserve(&rated()));
        }
        assert!(!credits.reserve(&rated()));
        assert!(credits.reserve(&closed()));
        advance(ACTIVE + SECOND).await;
        assert!(credits.reserve(&rated()), "nothing came for a minute");
    }

    #[tokio::test(start_paused = true)]
    async fn failing_types_leave_a_quarter_together() {
        let mut credits = Credits::new(8, CALLS);
        let failing = [rated(), EventKind::CHAT_OPENED.into()];
        for of in &failing {
            assert!(credits.reserve(of));
            credits.end(of, Duration::ZERO, Some(false), 1);
        }
        credits.see(&closed());
        for n in 0..6 {
            assert!(credits.reserve(&failing[n % 2]), "{n}");
        }
        assert!(failing.iter().all(|of| !credits.reserve(of)));
        let shares = credits.shares(true);
        let more: usize = shares
            .iter()
            .filter(|(_, it)| it.kind != closed().kind)
            .map(|(_, it)| it.most - it.busy)
            .sum();
        assert_eq!(more, 0);
        assert!(credits.reserve(&closed()));
        assert!(!credits.wait(&failing[1]));
        let has_room = credits.end(&failing[0], Duration::ZERO, None, 1);
        assert!(has_room, "another one waits for it");
        let shares = credits.shares(true);
        let of = |kind: &EventKind| {
            shares
                .iter()
                .find(|(_, it)| it.kind == *kind)
                .unwrap()
                .1
                .clone()
        };
        let first = of(&failing[0].kind);
        assert_eq!((first.busy, first.most), (2, 3), "the one with fewer calls");
    }

    /// 20 types that fail, and one with events that does not, at 8 places.
    fn twenty_that_fail() -> (Credits, Vec<EventType>) {
        let mut credits = Credits::new(8, CALLS);
        let failing = (0..20).map(|n| format!("failing-{n:02}").parse::<EventKind>().unwrap());
        let failing: Vec<EventType> = failing.map(EventType::from).collect();
        for of in &failing {
            credits.begin(of);
            credits.end(of, Duration::ZERO, Some(false), 1);
        }
        credits.see(&closed());
        (credits, failing)
    }

    /// How many calls of each of these types a claim may begin.
    fn offered(credits: &mut Credits, of: &[EventType], may_be_due: bool) -> Vec<usize> {
        let shares = credits.shares(may_be_due);
        let each = credits.each();
        let more = |of: &EventType| {
            let mut shares = shares.iter();
            let share = shares.find(|(_, it)| it.kind == of.kind);
            share.map_or(each, |(_, it)| it.most - it.busy)
        };
        of.iter().map(more).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn one_claim_leaves_a_quarter_however_many_types_fail() {
        let (mut credits, failing) = twenty_that_fail();
        let mut tried = BTreeSet::new();
        for _ in 0..4 {
            let offered = offered(&mut credits, &failing, true);
            assert_eq!(offered.iter().sum::<usize>(), 6, "{offered:?}");
            for (of, calls) in failing.iter().zip(offered) {
                for _ in 0..calls {
                    tried.insert(of.clone());
                    credits.begin(of);
                    credits.end(of, Duration::ZERO, Some(false), 1);
                }
            }
        }
        assert_eq!(tried.len(), 20, "each had its turn");
    }

    /// The types that fail are asked for their events once, in as many claims as that takes.
    #[tokio::test(start_paused = true)]
    async fn types_without_room_are_asked_next() {
        let (mut credits, failing) = twenty_that_fail();
        let mut asked = BTreeSet::new();
        for claim in 1..=4 {
            let offered = offered(&mut credits, &failing, claim == 1);
            for (of, calls) in failing.iter().zip(offered) {
                match calls {
                    0 => assert!(!credits.wait(of)),
                    _ => drop(asked.insert(of.clone())),
                }
            }
            let is_next = credits.next(|_| true).is_some();
            assert_eq!(is_next, claim < 4, "{claim}: {}", asked.len());
        }
        assert_eq!(asked.len(), 20);
    }

    #[tokio::test(start_paused = true)]
    async fn a_type_counts_as_slowed_once_it_makes_one_call_in_ten_seconds() {
        let mut credits = Credits::new(32, CALLS);
        let hangs = Duration::from_secs(30);
        for _ in 0..24 {
            assert!(credits.reserve(&rated()));
        }
        advance(hangs).await;
        for chat in 0..24 {
            credits.end(&rated(), hangs, Some(false), chat);
        }
        assert!(credits.is_slowed(&rated()));
        assert_eq!(fail(&mut credits, &rated()), 0);
        advance(SLOWEST).await;
        assert_eq!(fail(&mut credits, &rated()), 1);
        // Time alone slows nothing down that is not known to be slowed.
        for chat in 0..10 {
            credits.begin(&closed());
            credits.end(&closed(), Duration::ZERO, Some(false), chat);
        }
        advance(LONG).await;
        assert!(!credits.is_slowed(&closed()));
        assert!(most(&mut credits, &closed()) > 1);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_is_told_of_room() {
        let mut credits = Credits::new(8, 2);
        assert_eq!(fail(&mut credits, &rated()), 2);
        assert_eq!(credits.next(|_| true), None, "nothing waits");
        assert!(!credits.wait(&rated()));
        assert_eq!(credits.next(|_| false), Some(Instant::now() + SECOND));
        advance(SECOND / 2).await;
        assert_eq!(credits.next(|_| false), Some(Instant::now() + SECOND / 2));
        credits.shares(true);
        assert_eq!(credits.next(|_| true), None, "it was asked");
        assert!(!credits.wait(&rated()));
        let route = rated().route;
        assert_eq!(credits.without(&route), [rated()]);
        advance(SECOND / 2).await;
        assert!(credits.without(&route).is_empty());
        assert!(credits.reserve(&rated()));
        assert!(!credits.wait(&rated()));
        assert!(credits.end(&rated(), Duration::ZERO, Some(true), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn the_event_that_a_person_wants_is_next() {
        let mut credits = Credits::new(8, 2);
        assert!(!credits.want(&rated(), EventId(7)), "nothing has failed");
        for chat in 0..CHATS {
            assert!(credits.reserve(&rated()));
            credits.end(&rated(), Duration::ZERO, Some(false), chat as i64);
            advance(SECOND).await;
        }
        advance(LONG).await;
        assert_eq!(fail(&mut credits, &rated()), 1, "one in ten seconds");
        advance(SECOND).await;
        assert!(!credits.reserve(&rated()));
        assert!(credits.want(&rated(), EventId(7)));
        assert_eq!(credits.wanted(|_| false), None);
        assert_eq!(credits.wanted(|_| true), Some((rated(), EventId(7))));
        assert_eq!(credits.wanted(|_| true), None, "once");
    }

    #[tokio::test(start_paused = true)]
    async fn a_quiet_type_is_slowed_down_after_two_minutes() {
        let mut credits = Credits::new(8, CALLS);
        for chat in 0..10 {
            assert!(credits.reserve(&rated()));
            credits.end(&rated(), Duration::ZERO, Some(false), chat);
            assert!(!credits.is_slowed(&rated()));
        }
        advance(QUIET).await;
        assert!(credits.reserve(&rated()));
        credits.end(&rated(), Duration::ZERO, Some(false), 1);
        assert!(credits.is_slowed(&rated()));
        // One sick chat is not the whole type.
        for _ in 0..10 {
            advance(LONG).await;
            assert!(credits.reserve(&closed()));
            credits.end(&closed(), Duration::ZERO, Some(false), 1);
            assert!(!credits.is_slowed(&closed()));
        }
        credits.leave(|_| true);
        let changes = [(rated(), Change::Slowed), (rated(), Change::Left)];
        assert_eq!(credits.changes, changes);
        assert!(!credits.is_slowed(&rated()));
    }
}
