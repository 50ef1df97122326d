//! What happened lately: the last problems, the events of each minute, and the durations of attempts.

use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::Short;
use super::labels::Kinds;
use super::observer::{AttemptEnded, DeliveryEnded, Observation, Observer};
use crate::error::Chain;
use crate::event::EventKind;
use crate::lock::lock;
use crate::outcome::{Outcome, Settlement, name};

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
/// requests that were not verified, with at most 256 characters of the reason. A new one replaces the one that was not
/// seen for longest. The durations are those of the last 10,000 events that this process has settled.
#[derive(Clone, Debug, Default)]
pub struct Recent {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    kinds: Kinds,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    verified: Problems,
    unverified: Problems,
    minutes: BTreeMap<EventKind, Minutes<Minute>>,
    answers: BTreeMap<&'static str, Minutes<u64>>,
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
        drop(state);
        problems.sort_by_key(|problem| std::cmp::Reverse(problem.at));
        problems
    }

    /// Returns the last 60 minutes of each kind that was seen, the present one last.
    #[must_use]
    pub fn minutes(&self) -> BTreeMap<EventKind, [Minute; 60]> {
        let now = Instant::now();
        let state = lock(&self.shared.state);
        let minutes = state.minutes.iter();
        minutes
            .map(|(kind, minutes)| (kind.clone(), minutes.until(now)))
            .collect()
    }

    /// Returns how many deliveries and refused requests of the last hour had each outcome, named as in the [table of
    /// responses](crate::docs::responses), or `disconnected`.
    #[must_use]
    pub fn answers(&self) -> BTreeMap<&'static str, u64> {
        let now = Instant::now();
        let state = lock(&self.shared.state);
        let answers = state.answers.iter();
        answers
            .map(|(outcome, minutes)| (*outcome, minutes.until(now).iter().sum::<u64>()))
            .filter(|(_, count)| *count > 0)
            .collect()
    }

    /// Returns how long the attempt took that settled an event at this time, give or take some seconds, if the event is
    /// one of the last 10,000 that this process has settled.
    #[must_use]
    pub fn duration_of(&self, event: i64, settled_at: SystemTime) -> Option<Duration> {
        let state = lock(&self.shared.state);
        let mut latest = state.durations.iter().rev();
        let settled = latest.find(|settled| settled.event == event)?;
        let apart = settled.at.duration_since(settled_at);
        let apart = apart.unwrap_or_else(|before| before.duration());
        (apart <= SAME_TIME).then_some(settled.took)
    }

    fn delivery(&self, ended: &DeliveryEnded<'_>) {
        let is_failure = ended.is_failure();
        let is_handled = ended.outcome == name::HANDLED;
        let is_problem = is_failure || GIVEN_UP.contains(&ended.outcome);
        if !is_problem && !is_handled {
            lock(&self.shared.state).answered(ended.outcome);
            return;
        }
        let kind = self.shared.kinds.verified(ended);
        let problem = is_problem.then(|| Problem {
            at: SystemTime::now(),
            count: 1,
            outcome: ended.outcome,
            kind: kind.clone(),
            reason: describe(ended.reason),
            key: ended.delivery.and_then(|delivery| {
                let key = delivery.key()?.as_bytes().escape_ascii();
                Some(Short(key).to_string())
            }),
            is_from_inbox: false,
            event: None,
        });
        let mut state = lock(&self.shared.state);
        state.answered(ended.outcome);
        if let Some(kind) = kind {
            let minute = state.minutes.entry(kind).or_default().now();
            match is_failure {
                true => minute.failed_deliveries += 1,
                false => minute.handled += u32::from(is_handled),
            }
        }
        match problem {
            Some(problem) if ended.is_verified => state.verified.add(problem, MOST),
            Some(problem) => state.unverified.add(problem, MOST_UNVERIFIED),
            None => {}
        }
    }

    fn attempt(&self, ended: &AttemptEnded<'_>) {
        // An inline attempt is answered, and its delivery is counted.
        if !ended.is_from_inbox() {
            return;
        }
        let kind = self.shared.kinds.bounded(ended.kind);
        let outcome = ended.outcome;
        let is_handled = matches!(outcome, Outcome::Handled) && ended.settlement.is_some();
        let is_problem = match ended.settlement {
            Some(Settlement::Dead { .. }) | None => true,
            Some(Settlement::Released) => false,
            Some(_) => outcome.reason().is_some() || FAILURES.contains(&outcome.name()),
        };
        let problem = is_problem.then(|| Problem {
            at: SystemTime::now(),
            count: 1,
            outcome: outcome.name(),
            kind: Some(kind.clone()),
            reason: describe(outcome.reason()),
            key: None,
            is_from_inbox: true,
            event: ended.event,
        });
        let mut state = lock(&self.shared.state);
        if matches!(
            ended.settlement,
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
        let minute = state.minutes.entry(kind).or_default().now();
        minute.handled += u32::from(is_handled);
        minute.failed_attempts += u32::from(is_problem);
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
                kind,
                event,
                reason,
            } => {
                let problem = Problem {
                    at: SystemTime::now(),
                    count: 1,
                    outcome: name::UNDECODABLE,
                    kind: Some(self.shared.kinds.bounded(kind)),
                    reason: Short(reason).to_string(),
                    key: None,
                    is_from_inbox: true,
                    event: Some(*event),
                };
                lock(&self.shared.state).verified.add(problem, MOST);
            }
            Observation::Call(_)
            | Observation::Detached
            | Observation::Collapsed { .. }
            | Observation::Tripped { .. } => {}
        }
    }
}

/// Outcomes of deliveries that were acknowledged although their events were not handled.
const GIVEN_UP: [&str; 2] = [name::DISCARDED, name::DEAD_LETTER];

/// Outcomes of attempts that failed without an error.
const FAILURES: [&str; 3] = ["panicked", "handler-timeout", "crashed"];

const MOST: usize = 100;
const MOST_UNVERIFIED: usize = 20;
const MOST_DURATIONS: usize = 10_000;

/// How far the clocks of this process and of its queue may be apart. An event that was redriven may have been settled by
/// another process since.
const SAME_TIME: Duration = Duration::from_secs(10);

impl State {
    fn answered(&mut self, outcome: &'static str) {
        *self.answers.entry(outcome).or_default().now() += 1;
    }
}

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
                &known.kind,
                &known.reason,
                known.is_from_inbox,
            ) == (
                problem.outcome,
                &problem.kind,
                &problem.reason,
                problem.is_from_inbox,
            )
        };
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

/// What was counted in each minute, with the time at which it began.
#[derive(Debug, Default)]
struct Minutes<T>(VecDeque<(Instant, T)>);

const MINUTE: Duration = Duration::from_secs(60);

impl<T: Copy + Default> Minutes<T> {
    fn now(&mut self) -> &mut T {
        let now = Instant::now();
        let began = match self.0.back() {
            Some((began, _)) => {
                let minutes = now.saturating_duration_since(*began).as_secs() / 60;
                let minutes = u32::try_from(minutes).unwrap_or(u32::MAX);
                *began + MINUTE.saturating_mul(minutes)
            }
            None => now,
        };
        if self.0.back().is_none_or(|(last, _)| *last != began) {
            self.0.push_back((began, T::default()));
        }
        while self.0.len() > 60 {
            self.0.pop_front();
        }
        let last = self.0.len() - 1;
        &mut self.0[last].1
    }

    fn until(&self, now: Instant) -> [T; 60] {
        let mut minutes = [T::default(); 60];
        for (began, minute) in &self.0 {
            let ago = now.saturating_duration_since(*began).as_secs() / 60;
            if let Some(place) = usize::try_from(ago)
                .ok()
                .and_then(|ago| 59_usize.checked_sub(ago))
            {
                minutes[place] = *minute;
            }
        }
        minutes
    }
}
