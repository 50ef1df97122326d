//! What happened lately: the last problems, the events of each minute, and the durations of attempts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::error::Error;
use std::num::NonZeroU32;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use super::Short;
use super::labels::Types;
use super::observer::{AttemptEnded, DeliveryEnded, Observation, Observer};
use super::tally::{Count, CountsOf, Kept, Series, Sums, Tally, millis, minute_of};
use crate::error::Chain;
use crate::event::EventKind;
use crate::lock::lock;
use crate::outcome::{Outcome, Settlement, name};
use crate::route::{EventType, RouteName};

/// Keeps the last problems, counts the events of each minute and the answers of the last hour, and knows how long the
/// last events of an inbox took, in memory.
///
/// It is an [`Observer`]. Clones share what they have seen.
///
/// ```
/// use tower_webhook::telemetry::Recent;
/// use tower_webhook::{Secret, Webhooks};
///
/// # fn main() -> Result<(), tower_webhook::ConfigError> {
/// let recent = Recent::new();
/// let webhooks = Webhooks::new(Secret::new("8c1f…")?).observer(recent.clone());
///
/// for problem in recent.problems() {
///     println!("{} times {}: {}", problem.count, problem.outcome, problem.reason);
/// }
/// # Ok(())
/// # }
/// ```
///
/// Memory is bounded, whatever senders write: 100 different problems of verified deliveries and attempts, and 20 of
/// requests that were not verified, with at most 256 characters of the reason. A new problem replaces the least recent.
/// The durations are those of the last 10,000 events that this process has settled.
#[derive(Clone, Debug, Default)]
pub struct Recent {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    types: Types,
    tally: Tally,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    verified: Problems,
    unverified: Problems,
    /// The routes, outcomes and addresses of requests that were not verified in the present minute.
    origins: (i64, BTreeSet<(RouteName, String)>),
    /// The events of an inbox that were settled, the latest one last.
    durations: VecDeque<Settled>,
}

/// An event that was settled.
#[derive(Debug)]
struct Settled {
    event: i64,
    at: SystemTime,
    took: Duration,
}

/// A problem of deliveries or attempts.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Problem {
    /// When it was seen last.
    pub at: SystemTime,
    /// How often it was seen.
    pub count: u64,
    /// The name of the outcome, as in the [table of responses](crate::docs::responses).
    pub outcome: &'static str,
    /// The route at which it was seen.
    pub route: RouteName,
    /// The kind of the event. `None` for requests that were not verified.
    pub kind: Option<EventKind>,
    /// The error with its causes, in one line of at most 256 characters.
    pub reason: String,
    /// The key of the last event, escaped and with at most 256 characters.
    pub key: Option<String>,
    /// Whether the attempt of a worker had the problem, and not a delivery.
    pub is_from_inbox: bool,
    /// In an inbox, the number of the last event.
    pub event: Option<i64>,
}

/// The events of one minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Minute {
    /// Events that were handled.
    pub handled: u32,
    /// Deliveries that the platform counts as failed.
    pub failed_deliveries: u32,
    /// Attempts of workers that failed.
    pub failed_attempts: u32,
}

impl Recent {
    /// Creates an observer that has seen nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the last problems, the latest one first.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        let state = lock(&self.shared.state);
        let all = state.verified.0.iter().chain(&state.unverified.0);
        let mut problems: Vec<_> = all.cloned().collect();
        // Deliveries wait for the lock, so sorting comes after it.
        drop(state);
        problems.sort_by_key(|problem| std::cmp::Reverse(problem.at));
        problems
    }

    /// Returns the last 60 minutes of each event type that was seen, the present one last.
    #[must_use]
    pub fn minutes(&self) -> BTreeMap<EventType, [Minute; 60]> {
        let (now, counts) = self.shared.tally.last_hour();
        let types = self.shared.tally.kinds().into_iter();
        let mut minutes: BTreeMap<_, _> = types.map(|of| (of, [Minute::default(); 60])).collect();
        for count in counts {
            let place = usize::try_from(59 - (now - count.minute));
            let Some((kind, place)) = count.kind.zip(place.ok()) else {
                continue;
            };
            let of = EventType::new(count.route, kind);
            let minutes = minutes.entry(of).or_insert([Minute::default(); 60]);
            // A minute after the present one has no place. It exists when the queue's clock was set back.
            let Some(minute) = minutes.get_mut(place) else {
                continue;
            };
            let number = match count.series {
                Series::Handled => &mut minute.handled,
                Series::Refused => &mut minute.failed_deliveries,
                Series::Failed => &mut minute.failed_attempts,
                _ => continue,
            };
            *number = number.saturating_add(u32::try_from(count.number).unwrap_or(u32::MAX));
        }
        minutes
    }

    /// Returns how many deliveries and refused requests of the last hour had each outcome, named as in the [table of
    /// responses](crate::docs::responses), or `disconnected`.
    #[must_use]
    pub fn answers(&self) -> BTreeMap<&'static str, u64> {
        let mut answers = BTreeMap::new();
        for (outcome, number) in self.shared.tally.answers() {
            *answers.entry(outcome).or_default() += number;
        }
        answers
    }

    /// Returns how long the attempt took that settled an event at this time, give or take some seconds, if the event is
    /// one of the last 10,000 that this process has settled.
    #[must_use]
    pub fn duration_of(&self, event: i64, settled_at: SystemTime) -> Option<Duration> {
        let state = lock(&self.shared.state);
        // An event that was redriven has two durations. The newest one is found first.
        let mut latest = state.durations.iter().rev();
        let settled = latest.find(|settled| settled.event == event)?;
        let apart = settled.at.duration_since(settled_at);
        let apart = apart.unwrap_or_else(|before| before.duration());
        (apart <= SAME_TIME).then_some(settled.took)
    }

    /// Returns what this process has counted in the last hour. [`Inbox::counts`](crate::inbox::Inbox::counts) returns
    /// the counts of all processes that share an inbox, for 30 days.
    #[must_use]
    pub fn counts(&self, of: &CountsOf) -> Vec<Count> {
        let mut sums = Sums::new(of.clone());
        for count in self.shared.tally.last_hour().1 {
            if of.series.contains(&count.series) && (of.from..of.until).contains(&count.minute) {
                sums.add(count);
            }
        }
        sums.end()
    }

    /// Returns the time of day by the clock that counts: the queue's, as soon as an inbox keeps the counts.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        self.shared.tally.now()
    }

    pub(crate) fn tally(&self) -> &Tally {
        &self.shared.tally
    }

    fn delivery(&self, ended: &DeliveryEnded<'_>) {
        let is_failure = ended.is_failure();
        let is_handled = ended.outcome == name::HANDLED;
        let is_problem = is_failure || GIVEN_UP.contains(&ended.outcome);
        let kind = self.shared.types.verified(ended);
        let (tally, route) = (&self.shared.tally, ended.route);
        let add = |series, outcome| {
            let sample = || is_failure.then(|| ended.sample());
            tally.add(series, route, kind.clone(), outcome, 1, sample);
        };
        if is_failure && !ended.is_verified {
            self.origin(ended);
        }
        if let Some(secret) = ended.would_match() {
            tally.add(Series::Swapped, route, None, secret.to_owned(), 1, || None);
        }
        match is_failure {
            true => add(Series::Refused, ended.outcome),
            false => add(Series::Acknowledged, ended.outcome),
        }
        if is_handled && !is_failure {
            add(Series::Handled, "");
        }
        if !is_problem {
            return;
        }
        let problem = Problem {
            at: SystemTime::now(),
            count: 1,
            outcome: ended.outcome,
            route: route.clone(),
            kind,
            reason: describe(ended.reason),
            key: ended.delivery.and_then(|delivery| {
                let key = delivery.key()?.as_bytes().escape_ascii();
                Some(Short(key).to_string())
            }),
            is_from_inbox: false,
            event: None,
        };
        let mut state = lock(&self.shared.state);
        // Two lists, so that a flood of forged requests does not displace the problems of verified deliveries.
        match ended.is_verified {
            true => state.verified.add(problem, MOST),
            false => state.unverified.add(problem, MOST_UNVERIFIED),
        }
    }

    /// Counts a request that was not verified by its address.
    fn origin(&self, ended: &DeliveryEnded<'_>) {
        let tally = &self.shared.tally;
        let minute = minute_of(tally.now());
        let mut origin = format!("{}\n{}", ended.outcome, ended.address());
        {
            let (of, known) = &mut lock(&self.shared.state).origins;
            if *of != minute {
                (*of, *known) = (minute, BTreeSet::new());
            }
            let route = ended.route.clone();
            if known.len() < MOST_ORIGINS {
                known.insert((route, origin.clone()));
            } else if !known.contains(&(route, origin.clone())) {
                origin = format!("{}\nother addresses", ended.outcome);
            }
        }
        tally.add(Series::Origin, ended.route, None, origin, 1, || None);
    }

    fn attempt(&self, ended: &AttemptEnded<'_>) {
        // An inline attempt is answered, and its delivery is counted.
        if !ended.is_from_inbox() {
            return;
        }
        let EventType { route, kind } = self.shared.types.bounded(ended.route, ended.kind);
        let outcome = ended.outcome;
        let is_handled = matches!(outcome, Outcome::Handled) && ended.settlement.is_some();
        let is_problem = match ended.settlement {
            Some(Settlement::Dead { .. }) | None => true,
            // A shutdown interrupts attempts. They do not count, and the next worker tries the event.
            Some(Settlement::Released) => false,
            Some(_) => outcome.reason().is_some() || FAILURES.contains(&outcome.name()),
        };
        let add = |series, outcome, number| {
            let kind = Some(kind.clone());
            self.shared
                .tally
                .add(series, &route, kind, outcome, number, || None);
        };
        if is_handled {
            add(Series::Handled, "", 1);
        }
        if is_problem {
            add(Series::Failed, outcome.name(), 1);
        }
        if matches!(ended.settlement, Some(Settlement::Dead { .. })) {
            add(Series::Dead, "", 1);
        }
        // A person decides when a dead letter is redriven, and its attempts are counted from 1 again.
        if let (Some(NonZeroU32::MIN), Some(lag), false) =
            (ended.number, ended.since_accepted, ended.is_redriven)
        {
            add(Series::Lag, "", millis(lag));
        }
        // The error's `Display` is the application's code, so it runs before the lock is taken.
        let problem = is_problem.then(|| Problem {
            at: SystemTime::now(),
            count: 1,
            outcome: outcome.name(),
            route: ended.route.clone(),
            kind: Some(kind),
            reason: describe(outcome.reason()),
            key: None,
            is_from_inbox: true,
            event: ended.event,
        });
        let mut state = lock(&self.shared.state);
        if matches!(
            ended.settlement,
            // Retries and dead letters have the duration in their failures.
            Some(Settlement::Handled | Settlement::Ignored | Settlement::Discarded(_))
        ) && let Some(event) = ended.event
        {
            if state.durations.len() == MOST_DURATIONS {
                state.durations.pop_front();
            }
            state.durations.push_back(Settled {
                event,
                at: SystemTime::now(),
                took: ended.duration,
            });
        }
        if let Some(problem) = problem {
            state.verified.add(problem, MOST);
        }
    }
}

impl Observer for Recent {
    fn observe(&self, observation: &Observation<'_>) {
        match observation {
            Observation::Delivery(ended) => self.delivery(ended),
            Observation::Attempt(ended) => self.attempt(ended),
            Observation::AcceptedDead {
                route,
                kind,
                event,
                reason,
            } => {
                let EventType { route, kind } = self.shared.types.bounded(route, kind);
                let tally = &self.shared.tally;
                tally.add(Series::Dead, &route, Some(kind.clone()), "", 1, || None);
                let problem = Problem {
                    at: SystemTime::now(),
                    count: 1,
                    outcome: name::UNDECODABLE,
                    route,
                    kind: Some(kind),
                    reason: Short(reason).to_string(),
                    key: None,
                    is_from_inbox: true,
                    event: Some(*event),
                };
                lock(&self.shared.state).verified.add(problem, MOST);
            }
            Observation::Call(_) | Observation::Detached | Observation::Slowed { .. } => {}
        }
    }

    fn kept(&self, keep: &mut dyn FnMut(Kept)) {
        keep(Kept::Recent(self.clone()));
    }
}

/// Outcomes of deliveries that were acknowledged although their events were not handled.
const GIVEN_UP: [&str; 2] = [name::DISCARDED, name::DEAD_LETTER];

/// Outcomes of attempts that failed without an error.
const FAILURES: [&str; 3] = ["panicked", "handler-timeout", "crashed"];

const MOST: usize = 100;
const MOST_UNVERIFIED: usize = 20;
/// Anybody can send such requests, so that their addresses are told apart up to this number in a minute.
const MOST_ORIGINS: usize = 20;
const MOST_DURATIONS: usize = 10_000;

/// How far the clocks of this process and of its queue may be apart. An event that was redriven may have been settled by
/// another process since.
const SAME_TIME: Duration = Duration::from_secs(10);

fn describe(reason: Option<&(dyn Error + 'static)>) -> String {
    let Some(reason) = reason else {
        return String::new();
    };
    // The error is one of the application's, and may panic when it is displayed.
    let text = catch_unwind(AssertUnwindSafe(|| Short(Chain(reason)).to_string()));
    text.unwrap_or_else(|_| "the error panicked when it was displayed".to_owned())
}

/// The latest one last.
#[derive(Debug, Default)]
struct Problems(VecDeque<Problem>);

impl Problems {
    fn add(&mut self, mut problem: Problem, most: usize) {
        let same = |known: &Problem| {
            (
                known.outcome,
                &known.route,
                &known.kind,
                &known.reason,
                known.is_from_inbox,
            ) == (
                problem.outcome,
                &problem.route,
                &problem.kind,
                &problem.reason,
                problem.is_from_inbox,
            )
        };
        // A repeated problem moves to the end, so that the front is the one not seen for longest.
        if let Some(place) = self.0.iter().position(same)
            && let Some(known) = self.0.remove(place)
        {
            problem.count += known.count;
        } else if self.0.len() >= most {
            self.0.pop_front();
        }
        self.0.push_back(problem);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever redrives an event decides when it is tried, so that its days as a dead letter are no delay.
    #[test]
    fn first_attempt_of_a_redriven_event_adds_no_waiting_time() {
        let recent = Recent::new();
        let route = RouteName::default();
        let mut attempt = AttemptEnded {
            route: &route,
            kind: &EventKind::CHAT_RATED,
            event: Some(1),
            outcome: &Outcome::Handled,
            settlement: Some(&Settlement::Handled),
            duration: Duration::ZERO,
            number: Some(NonZeroU32::MIN),
            since_accepted: Some(Duration::from_secs(3 * 24 * 60 * 60)),
            is_redriven: true,
        };
        let lags = || recent.counts(&CountsOf::new([Series::Lag], 0..i64::MAX));
        recent.attempt(&attempt);
        assert_eq!(lags(), []);
        attempt.is_redriven = false;
        recent.attempt(&attempt);
        assert_eq!(lags()[0].number, 3 * 24 * 60 * 60 * 1000);
    }
}
