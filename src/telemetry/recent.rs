//! What happened lately: the last problems, and the events of each minute.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::Short;
use super::labels::Kinds;
use super::observer::{AttemptEnd, AttemptEnded, DeliveryEnded, Observation, Observer};
use crate::error::Chain;
use crate::event::EventKind;

/// Keeps the last problems, and counts the events of each minute of the last hour, in memory.
///
/// It is an [`Observer`]. Clones share what they have seen.
///
/// ```
/// use tower_webhook::telemetry::Recent;
/// use tower_webhook::{Secret, WebhookLayer};
///
/// # fn main() -> Result<(), tower_webhook::ConfigError> {
/// let recent = Recent::new();
/// let layer = WebhookLayer::new(Secret::new("8c1f…")?).observer(recent.clone());
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
/// seen for longest.
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
    minutes: BTreeMap<EventKind, Minutes>,
    tripped: BTreeSet<EventKind>,
}

/// A problem of deliveries or attempts.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Problem {
    /// When it was seen last.
    pub at: SystemTime,
    /// How often it was seen.
    pub count: u64,
    /// The name of the outcome, as in the [table of answers](crate::docs::answers).
    pub outcome: &'static str,
    /// The kind of the event. `None` for requests that were not verified.
    pub kind: Option<EventKind>,
    /// The error with its causes, in one line of at most 256 characters.
    pub reason: String,
    /// The key of the last event, escaped and with at most 256 characters.
    pub key: Option<String>,
    /// Whether the attempt of a worker had the problem, and not a delivery.
    pub is_from_inbox: bool,
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
        let state = self.state();
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
        let state = self.state();
        let minutes = state.minutes.iter();
        minutes
            .map(|(kind, minutes)| (kind.clone(), minutes.until(now)))
            .collect()
    }

    /// Returns the kinds that are [tripped](crate::docs::inbox#tripped-kinds) in this process.
    #[must_use]
    pub fn tripped(&self) -> BTreeSet<EventKind> {
        self.state().tripped.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let state = self.shared.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }

    fn delivery(&self, ended: &DeliveryEnded<'_>) {
        let is_failure = ended.is_failure();
        let is_problem = is_failure || GIVEN_UP.contains(&ended.outcome);
        if !is_problem && ended.outcome != "handled" {
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
        });
        let mut state = self.state();
        if let Some(kind) = kind {
            let minute = state.minutes.entry(kind).or_default().now();
            match is_failure {
                true => minute.failed_deliveries += 1,
                false => minute.handled += u32::from(ended.outcome == "handled"),
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
        let is_handled = ended.end == AttemptEnd::Settled && ended.outcome == "handled";
        let is_problem = match ended.end {
            AttemptEnd::Settled | AttemptEnd::Retry { .. } => ended.reason.is_some(),
            AttemptEnd::Dead | AttemptEnd::Lost => true,
            AttemptEnd::Released => false,
        } || FAILURES.contains(&ended.outcome);
        let problem = is_problem.then(|| Problem {
            at: SystemTime::now(),
            count: 1,
            outcome: ended.outcome,
            kind: Some(kind.clone()),
            reason: describe(ended.reason),
            key: None,
            is_from_inbox: true,
        });
        let mut state = self.state();
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
            Observation::Tripped { kind, is_tripped } => {
                let kind = self.shared.kinds.bounded(kind);
                let mut state = self.state();
                match is_tripped {
                    true => state.tripped.insert(kind),
                    false => state.tripped.remove(&kind),
                };
            }
            Observation::Call(_) | Observation::Detached => {}
        }
    }
}

/// Outcomes of deliveries that were acknowledged although their events were not handled.
const GIVEN_UP: [&str; 2] = ["discarded", "dead-letter"];

/// Outcomes of attempts that failed without an error.
const FAILURES: [&str; 3] = ["panicked", "handler-timeout", "crashed"];

const MOST: usize = 100;
const MOST_UNVERIFIED: usize = 20;

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

/// The events of each minute, with the time at which it began.
#[derive(Debug, Default)]
struct Minutes(VecDeque<(Instant, Minute)>);

const MINUTE: Duration = Duration::from_secs(60);

impl Minutes {
    fn now(&mut self) -> &mut Minute {
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
            self.0.push_back((began, Minute::default()));
        }
        while self.0.len() > 60 {
            self.0.pop_front();
        }
        let last = self.0.len() - 1;
        &mut self.0[last].1
    }

    fn until(&self, now: Instant) -> [Minute; 60] {
        let mut minutes = [Minute::default(); 60];
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
