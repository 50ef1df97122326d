//! The failure budget: failed deliveries of the last hour, against the platform's limit.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::labels::{Senders, Types, UNVERIFIED};
use super::observer::{DeliveryEnded, Observation, Observer};
use super::tally::{Count, Kept, Of, Series, Tally};
use crate::event::{EventKind, SenderPolicy};
use crate::lock::lock;
use crate::route::{EventType, RouteName};
use crate::sender::Sender;

/// Counts the failed deliveries of each event type in the last hour, against the limit above which the sender disables the
/// webhook (the platform: [Spec 6, rule 4](crate::docs::platform#spec-6-rule-4)).
///
/// The limit of a route is [`disable_after`](crate::SenderPolicy::disable_after) of the
/// [policy](crate::Sender::policy) of its sender. It is known as soon as a request has reached the route, and for the chat
/// platform's from the start. Without such a rule, failures are only counted.
///
/// It is an [`Observer`]. Clones share their counts.
///
/// ```
/// use tower_webhook::telemetry::FailureBudget;
/// use tower_webhook::{Secret, Webhooks};
///
/// # fn main() -> Result<(), tower_webhook::ConfigError> {
/// let budget = FailureBudget::default();
/// let webhooks = Webhooks::new(Secret::new("8c1f…")?).observer(budget.clone());
///
/// for spent in budget.spent() {
///     println!("{spent}"); // chat-rated: 120 of 500 failures in the last hour (24 %)
/// }
/// # Ok(())
/// # }
/// ```
///
/// A delivery counts as failed if it was not answered with 2xx. This includes a delivery whose client disconnected
/// before the answer. The hour slides in steps of ten seconds, so a failure counts for up to ten seconds longer.
///
/// # Logs
///
/// When a type has spent 20 % of its limit, a line at `WARN` names the type, the reasons, and the time at which the
/// webhook is disabled if deliveries continue to fail at the rate of the last five minutes. At 50 %, at 80 %, and above
/// the limit, the line is at `ERROR`. A line is repeated only after the count has fallen below three quarters of its
/// threshold.
///
/// # Requests without verification
///
/// Requests that ended before their body was verified are counted apart, for all kinds of a route together, since anybody
/// may have sent them. They are logged in the same way, because a wrong secret has this effect: then, all webhooks fail.
///
/// # Several receivers
///
/// The platform counts the failures of all receivers. With an [inbox](crate::inbox) whose observer this is, all processes of
/// one database count together, and a restart changes nothing: each process writes its counts once a second, and reads
/// those of the others every five seconds. Without an inbox, each process counts its own failures since it started: sum
/// them, as in `sum by (route, kind) (webhook_failure_budget_spent)`.
#[derive(Clone, Debug, Default)]
pub struct FailureBudget {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    types: Types,
    senders: Senders,
    tally: Tally,
    state: Mutex<State>,
    #[cfg(feature = "metrics")]
    gauges: super::gauges::Gauges,
    #[cfg(feature = "metrics")]
    shared_gauges: super::gauges::Gauges,
}

#[derive(Debug, Default)]
struct State {
    /// Requests that ended before their body was verified have no kind.
    hours: BTreeMap<Of, Hour>,
    /// The failures that other processes have counted, and this one before its start, by the database of an inbox.
    others: BTreeMap<Other, u32>,
    /// Their sums, and when they were made: a flood of failures does not add them up each time.
    sums: BTreeMap<Of, u32>,
    summed: Option<Instant>,
    /// Whether there is such a database.
    #[cfg(feature = "metrics")]
    is_shared: bool,
}

/// The process, the minute since 1970, what has failed, and the outcome.
type Other = (i64, i64, Of, &'static str);

impl FailureBudget {
    /// Creates a budget of which nothing is spent yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns what each event type has spent in the last hour, sorted by route and kind. Types without a failure are left
    /// out. Beyond 32 kinds of a route that the platform does not document, all others are counted together as `other`, and
    /// verified deliveries without a valid event header as `unknown`.
    #[must_use]
    pub fn spent(&self) -> Vec<Spent> {
        self.all(true)
    }

    /// Returns what one event type has spent in the last hour.
    #[must_use]
    pub fn spent_by(&self, of: impl Into<EventType>) -> Spent {
        let EventType { route, kind } = of.into();
        self.spent_of((route, Some(kind)))
    }

    /// Returns the requests to a route in the last hour that ended before their body was verified.
    #[must_use]
    pub fn unverified(&self, route: &RouteName) -> Spent {
        self.spent_of((route.clone(), None))
    }

    /// The number of failures above which the sender of a route disables a webhook, if it is known to have such a rule.
    fn limit(&self, route: &RouteName) -> Option<u32> {
        match self.shared.senders.of(route) {
            Some(sender) => sender.policy().disable_after,
            // Another receiver may have got all requests.
            None if *route == RouteName::default() => SenderPolicy::default().disable_after,
            None => None,
        }
    }

    #[cfg(feature = "metrics")]
    pub(super) fn senders(&self) -> BTreeMap<RouteName, Sender> {
        self.shared.senders.all()
    }

    #[cfg(feature = "metrics")]
    pub(super) fn gauges(&self) -> [&super::gauges::Gauges; 2] {
        [&self.shared.gauges, &self.shared.shared_gauges]
    }

    /// Whether an inbox shares the failures of several processes.
    #[cfg(feature = "metrics")]
    pub(super) fn is_shared(&self) -> bool {
        lock(&self.shared.state).is_shared
    }

    pub(crate) fn tally(&self) -> &Tally {
        &self.shared.tally
    }

    /// Takes the failures of the last hour that a queue knows.
    pub(crate) fn take(&self, counts: Vec<Count>) {
        let mut state = lock(&self.shared.state);
        #[cfg(feature = "metrics")]
        {
            state.is_shared = true;
        }
        // The next failure adds the new counts up at once, and not up to 10 s later.
        state.summed = None;
        for count in counts {
            // `hours` has the failures that this process has counted, so they would count twice.
            if count.process == self.shared.tally.process() {
                continue;
            }
            let number = u32::try_from(count.number).unwrap_or(u32::MAX);
            let bounded = |kind| self.shared.types.bounded(&count.route, &kind).kind;
            let kind = count.kind.map(bounded);
            let outcome = known(&count.outcome);
            // Two queues may have the counts of one process.
            let of = (count.route, kind);
            let known = (count.process, count.minute, of, outcome);
            let known = state.others.entry(known).or_default();
            *known = number.max(*known);
        }
    }

    /// Returns what was spent by all processes that share a database, or by this one alone.
    pub(super) fn all(&self, with_others: bool) -> Vec<Spent> {
        let now = Now::of(&self.shared.tally);
        let mut state = lock(&self.shared.state);
        state.prune(&now);
        let mut all: BTreeSet<_> = state.hours.keys().cloned().collect();
        if with_others {
            all.extend(state.others.keys().map(|(.., of, _)| of.clone()));
        }
        let spent = all.into_iter().map(|of| {
            let seen = state.seen(&of, &now, with_others);
            let limit = self.limit(&of.0);
            Spent::of(of, limit, &seen)
        });
        spent.collect()
    }

    fn spent_of(&self, of: Of) -> Spent {
        let now = Now::of(&self.shared.tally);
        let mut state = lock(&self.shared.state);
        state.prune(&now);
        let seen = state.seen(&of, &now, true);
        let limit = self.limit(&of.0);
        Spent::of(of, limit, &seen)
    }

    fn failed(&self, delivery: &DeliveryEnded<'_>) {
        let (route, kind) = (delivery.route, self.shared.types.verified(delivery));
        let tally = &self.shared.tally;
        tally.add(
            Series::Budget,
            route,
            kind.clone(),
            delivery.outcome,
            1,
            || None,
        );
        let of = (route.clone(), kind);
        let now = Now::of(tally);
        let mut state = lock(&self.shared.state);
        let is_new = |at: Instant| now.at.saturating_duration_since(at) < STEP;
        if !state.summed.is_some_and(is_new) {
            state.prune(&now);
        }
        let others = state.sums.get(&of).copied().unwrap_or_default();
        let hour = state.hours.entry(of.clone()).or_default();
        // `State::prune` may have run 10 s ago, and the count below decides about a line in the log.
        hour.prune(now.at);
        hour.add(now.at, delivery.outcome);
        // A sender without a limit is counted, but there is no budget to warn of.
        let Some(limit) = self.limit(route) else {
            return;
        };
        let failures = hour.failures.saturating_add(others);
        let Some(crossed) = hour.cross(failures, limit) else {
            return;
        };
        let seen = state.seen(&of, &now, true);
        // The line is written without the lock: a slow subscriber would hold up all deliveries that fail.
        drop(state);
        Spent::of(of, Some(limit), &seen).log(crossed, delivery.sender);
    }
}

/// The name of an outcome, by that of a row.
fn known(outcome: &str) -> &'static str {
    let known = OUTCOMES.iter().find(|known| **known == outcome);
    // Processes of different releases share a database, and a later one may have new outcomes.
    known.copied().unwrap_or("other")
}

/// The outcomes of deliveries that count as failed, in the table of responses.
const OUTCOMES: &[&str] = &[
    "method-not-allowed",
    "body-too-large",
    "overloaded",
    "body-timeout",
    "malformed-body",
    "invalid-signature",
    "verifier-failed",
    "invalid-challenge",
    "unsupported-media-type",
    "invalid-event-header",
    "unreadable-event",
    "conflicting-keys",
    "missing-key",
    "database-unavailable",
    "in-flight",
    "incomplete",
    "body-changed",
    "body-replayed",
    "unhandled",
    "undecodable",
    "failed",
    "snoozed",
    "panicked",
    "handler-timeout",
    "lease-lost",
    "not-recorded",
    "not-committed",
    "interrupted",
    "crashed",
    "backlog-full",
    "disconnected",
];

impl Observer for FailureBudget {
    fn observe(&self, observation: &Observation<'_>) {
        if let Observation::Delivery(delivery) = observation {
            self.shared.senders.note(delivery);
            if delivery.is_failure() {
                self.failed(delivery);
            }
        }
    }

    fn kept(&self, keep: &mut dyn FnMut(Kept)) {
        keep(Kept::Budget(self.clone()));
    }
}

/// The failures of one event type in the last hour.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Spent {
    /// The route.
    pub route: RouteName,
    /// The kind. `None` for requests that ended before their body was verified.
    pub kind: Option<EventKind>,
    /// The number of failed deliveries.
    pub failures: u32,
    /// The number above which the sender disables the webhook. `None` if it has no such rule, or if only other processes
    /// have seen the route.
    pub limit: Option<u32>,
    /// The number of failures by their outcome, the most frequent one first.
    pub reasons: Vec<(&'static str, u32)>,
    /// The time until the limit is exceeded, if deliveries continue to fail at the rate of the last five minutes. Zero
    /// when it is exceeded already, and `None` when it is not reached at this rate, or when failures have stopped.
    pub disabled_in: Option<Duration>,
}

impl Spent {
    /// Returns the share of the limit that is spent: 1.0 at the limit, and always 0.0 without one.
    #[must_use]
    pub fn share(&self) -> f64 {
        // A limit of 0 would make the share infinite, or not a number.
        let share = |limit: u32| f64::from(self.failures) / f64::from(limit.max(1));
        self.limit.map_or(0.0, share)
    }

    /// Whether there were more failures than the limit, so that the sender has probably disabled the webhook. The
    /// platform does not say so, and may count otherwise.
    #[must_use]
    pub fn is_exceeded(&self) -> bool {
        self.limit.is_some_and(|limit| self.failures > limit)
    }

    fn log(&self, crossed: Threshold, sender: &Sender) {
        let (route, sender) = (&self.route, sender.name());
        let kind = self.kind.as_ref().map(tracing::field::display);
        let reasons = self.reasons_in_words();
        let (failures, limit) = (self.failures, self.limit);
        let disabled_at = self
            .disabled_in
            .and_then(|left| SystemTime::now().checked_add(left))
            .map(httpdate::fmt_http_date);
        let text = self.describe(crossed);
        if crossed == Threshold::Warn {
            tracing::warn!(
                %route, sender, kind, failures, limit, reasons, disabled_at, "{text}"
            );
        } else {
            tracing::error!(
                %route, sender, kind, failures, limit, reasons, disabled_at, "{text}"
            );
        }
    }

    fn describe(&self, crossed: Threshold) -> String {
        let (of, share) = (self.name(), crossed.name());
        match (&self.kind, crossed) {
            (Some(_), Threshold::All) => format!(
                "{of}: the failure budget is exceeded, so the sender has probably disabled the webhook: fix the cause, \
                 and then enable the webhook at the sender"
            ),
            (Some(_), _) => format!(
                "{of}: {share} of the failure budget is spent; the sender disables the webhook when it is exceeded"
            ),
            (None, _) => format!(
                "{of}: {share} of the failure budget is reached by requests that ended before verification; if the \
                 sender sent them, it disables their webhooks"
            ),
        }
    }

    fn name(&self) -> EventType {
        let kind = self.kind.clone().unwrap_or(UNVERIFIED);
        EventType::new(self.route.clone(), kind)
    }

    fn reasons_in_words(&self) -> String {
        let reasons = self
            .reasons
            .iter()
            .map(|(outcome, count)| format!("{count} {outcome}"));
        reasons.collect::<Vec<_>>().join(", ")
    }
}

/// One line: the type, the count, and the limit.
impl fmt::Display for Spent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name().fmt(f)?;
        let (failures, percent) = (self.failures, 100.0 * self.share());
        match self.limit {
            Some(limit) => write!(
                f,
                ": {failures} of {limit} failures in the last hour ({percent:.0} %)"
            ),
            None => write!(f, ": {failures} failures in the last hour"),
        }
    }
}

/// The shares of the limit at which a line is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Threshold {
    Warn,
    Half,
    Most,
    All,
}

impl Threshold {
    const ALL: [Self; 4] = [Self::Warn, Self::Half, Self::Most, Self::All];

    fn name(self) -> &'static str {
        match self {
            Self::Warn => "20 %",
            Self::Half => "50 %",
            Self::Most => "80 %",
            Self::All => "more than 100 %",
        }
    }

    /// The number of failures that reaches the threshold.
    fn failures(self, limit: u32) -> u32 {
        match self {
            Self::Warn => limit.div_ceil(5),
            Self::Half => limit.div_ceil(2),
            Self::Most => limit - limit / 5,
            // Spec 6, rule 4: the webhook is disabled by more than 500 failures, so by the 501st.
            Self::All => limit.saturating_add(1),
        }
    }
}

/// The present moment, by two clocks.
struct Now {
    at: Instant,
    time: SystemTime,
}

impl Now {
    fn of(tally: &Tally) -> Self {
        Self {
            at: Instant::now(),
            time: tally.now(),
        }
    }

    /// The time since the end of a minute.
    fn since(&self, minute: i64) -> Duration {
        let end = u64::try_from(minute + 1).unwrap_or(0).saturating_mul(60);
        let now = self.time.duration_since(SystemTime::UNIX_EPOCH);
        now.unwrap_or_default()
            .saturating_sub(Duration::from_secs(end))
    }
}

/// The failures of this process in an hour, in steps.
#[derive(Debug, Default)]
struct Hour {
    /// The oldest one first.
    steps: VecDeque<Step>,
    failures: u32,
    /// The highest threshold that was reached, and not left again.
    reached: Option<Threshold>,
}

#[derive(Debug)]
struct Step {
    began: Instant,
    reasons: BTreeMap<&'static str, u32>,
}

/// Failures of some age.
struct Aged {
    age: Duration,
    reason: &'static str,
    failures: u32,
}

const HOUR: Duration = Duration::from_secs(60 * 60);
const STEP: Duration = Duration::from_secs(10);

/// The time over which the current rate is measured.
const RECENT: Duration = Duration::from_secs(5 * 60);

/// Failures have stopped when there was none for this time, and for this many times as long as between them before.
const PAUSE: Duration = Duration::from_secs(60);
const PAUSES: u32 = 3;

impl State {
    /// Forgets failures that are older than an hour.
    fn prune(&mut self, now: &Now) {
        self.hours.retain(|_, hour| hour.prune(now.at));
        self.others
            .retain(|(_, minute, ..), _| now.since(*minute) < HOUR + STEP);
        self.sums.clear();
        for ((.., of, _), failures) in &self.others {
            let sum = self.sums.entry(of.clone()).or_default();
            *sum = sum.saturating_add(*failures);
        }
        self.summed = Some(now.at);
    }

    /// Returns the failures of a type, oldest first.
    fn seen(&self, of: &Of, now: &Now, with_others: bool) -> Vec<Aged> {
        let steps = self.hours.get(of).into_iter();
        let steps = steps.flat_map(|hour| &hour.steps);
        let own = steps.flat_map(|step| {
            let age = now.at.saturating_duration_since(step.began);
            let reasons = step.reasons.iter();
            reasons.map(move |(reason, failures)| (age, *reason, *failures))
        });
        let others = self.others.iter().filter(|_| with_others);
        let others = others
            .filter(|((.., other, _), _)| other == of)
            .map(|((_, minute, _, reason), failures)| (now.since(*minute), *reason, *failures));
        let all = own.chain(others).map(|(age, reason, failures)| Aged {
            age,
            reason,
            failures,
        });
        let mut seen: Vec<_> = all.collect();
        seen.sort_by_key(|seen| Reverse(seen.age));
        seen
    }
}

impl Hour {
    /// Forgets failures that are older than an hour. Returns whether others are left.
    fn prune(&mut self, now: Instant) -> bool {
        // The newest failure of a step is up to 10 s younger than its beginning.
        while let Some(first) = self.steps.front()
            && now.saturating_duration_since(first.began) >= HOUR + STEP
        {
            let failures = first.reasons.values().copied().fold(0, u32::saturating_add);
            self.failures = self.failures.saturating_sub(failures);
            self.steps.pop_front();
        }
        !self.steps.is_empty()
    }

    fn add(&mut self, now: Instant, outcome: &'static str) {
        // An hour has about 360 steps, however many deliveries fail in it.
        let is_new = self
            .steps
            .back()
            .is_none_or(|last| now.saturating_duration_since(last.began) >= STEP);
        if is_new {
            self.steps.push_back(Step {
                began: now,
                reasons: BTreeMap::new(),
            });
        }
        if let Some(step) = self.steps.back_mut() {
            let failures = step.reasons.entry(outcome).or_default();
            *failures = failures.saturating_add(1);
            self.failures = self.failures.saturating_add(1);
        }
    }

    /// Returns the threshold that the last failure has reached, if it was not reached before.
    fn cross(&mut self, failures: u32, limit: u32) -> Option<Threshold> {
        let thresholds = || Threshold::ALL.into_iter().rev();
        // The highest one alone: counts of other processes can lift the sum over two thresholds at once.
        let now = thresholds().find(|it| failures >= it.failures(limit));
        let before = self.reached;
        // A count that sways around a threshold crosses it often, and is logged once.
        let kept =
            thresholds().find(|it| Some(*it) <= before && failures >= it.failures(limit) / 4 * 3);
        self.reached = now.max(kept);
        now.filter(|_| self.reached > kept)
    }
}

impl Spent {
    /// `seen` is sorted from the oldest to the newest.
    fn of((route, kind): Of, limit: Option<u32>, seen: &[Aged]) -> Self {
        let mut reasons = BTreeMap::<_, u32>::new();
        for seen in seen {
            let reason = reasons.entry(seen.reason).or_default();
            *reason = reason.saturating_add(seen.failures);
        }
        let mut reasons: Vec<_> = reasons.into_iter().collect();
        reasons.sort_by_key(|(_, count)| Reverse(*count));
        Self {
            route,
            kind,
            failures: sum(seen),
            limit,
            reasons,
            disabled_in: limit.and_then(|limit| disabled_in(seen, limit)),
        }
    }
}

fn sum(seen: &[Aged]) -> u32 {
    seen.iter()
        .fold(0, |sum, seen| sum.saturating_add(seen.failures))
}

fn disabled_in(seen: &[Aged], limit: u32) -> Option<Duration> {
    let failures = sum(seen);
    if failures > limit {
        return Some(Duration::ZERO);
    }
    // `seen` begins with the oldest, so the recent ones are its end.
    let recent = &seen[seen.partition_point(|seen| seen.age >= RECENT)..];
    let (first, last) = (recent.first()?, recent.last()?);
    let span = first.age.saturating_sub(last.age);
    let moments = recent.chunk_by(|a, b| a.age == b.age).count();
    // A single moment has no gap to measure. A step is the shortest time that the ages can tell apart.
    let gap = match u32::try_from(moments - 1) {
        Ok(gaps @ 1..) => span / gaps,
        _ => STEP,
    };
    if last.age > PAUSE.max(PAUSES * gap) {
        return None;
    }
    // N moments have N - 1 gaps between them. One gap more is the share of the last moment in the time. A longer pause since
    // then counts, too: the forecast would otherwise stand still while nothing fails.
    let time = (span + gap).max(first.age).max(STEP);
    let per_second = f64::from(sum(recent)) / time.as_secs_f64();
    // The count at a later time is what is left of the present failures by then, and what comes.
    let mut left = failures;
    let mut seen = seen.iter().peekable();
    let mut ahead = Duration::ZERO;
    while ahead <= HOUR {
        ahead += STEP;
        while let Some(seen) = seen.next_if(|seen| seen.age + ahead >= HOUR + STEP) {
            left -= seen.failures;
        }
        if f64::from(left) + per_second * ahead.as_secs_f64() > f64::from(limit) {
            let missing = f64::from(limit) + 1.0 - f64::from(left);
            return Some(Duration::from_secs_f64(missing / per_second).min(ahead));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_of_the_table_that_counts_is_known() {
        let table = include_str!("../docs/responses.md");
        let mut rows = 0;
        for row in table.lines().filter(|line| line.starts_with("| <a id=")) {
            let cells: Vec<_> = row.split(" | ").collect();
            let (_, name) = cells[0].split_once("</a>`").unwrap();
            let name = name.trim_end_matches('`');
            let is_failure = !cells[2].trim_start().starts_with("200");
            rows += usize::from(is_failure);
            assert!(!is_failure || known(name) == name, "{name}");
        }
        assert!(rows > 20, "{rows}");
        assert_eq!(known("unheard-of"), "other");
    }
}
