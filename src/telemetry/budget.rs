//! The failure budget: failed deliveries of the last hour, against the platform's limit.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::labels::Kinds;
use super::observer::{DeliveryEnded, Observation, Observer};
use crate::event::{EventKind, SenderPolicy};
use crate::lock::lock;

/// Counts the failed deliveries of each kind in the last hour, against the limit above which the platform disables the
/// webhook ([Spec 6, rule 4](crate::docs::platform#spec-6-rule-4)).
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
/// When a kind has spent 20 % of its limit, a line at `WARN` names the kind, the reasons, and the time at which the
/// webhook is disabled if deliveries continue to fail at the rate of the last five minutes. At 50 %, at 80 %, and above
/// the limit, the line is at `ERROR`. A line is repeated only after the count has fallen below three quarters of its
/// threshold.
///
/// # Requests without verification
///
/// Requests that ended before their body was verified are counted apart, for all kinds together, since anybody may have
/// sent them. They are logged in the same way, because a wrong secret has this effect: then, all webhooks fail.
///
/// # Several receivers
///
/// Each process counts its own failures since it started, and the platform counts all of them. Sum the counts of the processes, as in
/// `sum by (kind) (webhook_failure_budget_spent)`.
#[derive(Clone, Debug)]
pub struct FailureBudget {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    limit: Option<u32>,
    kinds: Kinds,
    /// By kind. `None` for requests that ended before their body was verified.
    hours: Mutex<BTreeMap<Option<EventKind>, Hour>>,
    #[cfg(feature = "metrics")]
    gauges: super::gauges::Gauges,
}

impl FailureBudget {
    /// Counts against [`disable_after`](SenderPolicy::disable_after) of a policy. The default is that of
    /// [`SenderPolicy::default`], 500 failures in an hour. Pass [`Sender::policy`](crate::Sender::policy) for another
    /// sender; without a rule, failures are only counted.
    #[must_use]
    pub fn new(policy: SenderPolicy) -> Self {
        Self {
            shared: Arc::new(Shared {
                limit: policy.disable_after,
                kinds: Kinds::default(),
                hours: Mutex::default(),
                #[cfg(feature = "metrics")]
                gauges: super::gauges::Gauges::default(),
            }),
        }
    }

    /// Returns the number of failures above which the platform disables a webhook, if it has such a rule.
    #[must_use]
    pub fn limit(&self) -> Option<u32> {
        self.shared.limit
    }

    /// Returns what each kind has spent in the last hour, sorted by kind. Kinds without a failure are left out. Beyond 32
    /// kinds that the platform does not document, all others are counted together as `other`, and verified deliveries
    /// without a valid event header as `unknown`.
    #[must_use]
    pub fn spent(&self) -> Vec<Spent> {
        let now = Instant::now();
        let mut hours = lock(&self.shared.hours);
        hours.retain(|_, hour| hour.prune(now));
        let spent = hours
            .iter()
            .map(|(kind, hour)| hour.spent(kind.clone(), self.shared.limit, now));
        spent.collect()
    }

    /// Returns what one kind has spent in the last hour.
    #[must_use]
    pub fn spent_by(&self, kind: &EventKind) -> Spent {
        self.spent_of(Some(kind.clone()))
    }

    /// Returns the requests in the last hour that ended before their body was verified.
    #[must_use]
    pub fn unverified(&self) -> Spent {
        self.spent_of(None)
    }

    #[cfg(feature = "metrics")]
    pub(super) fn gauges(&self) -> &super::gauges::Gauges {
        &self.shared.gauges
    }

    fn spent_of(&self, kind: Option<EventKind>) -> Spent {
        let now = Instant::now();
        let mut hours = lock(&self.shared.hours);
        let mut none = Hour::default();
        let hour = hours.get_mut(&kind).unwrap_or(&mut none);
        hour.prune(now);
        hour.spent(kind, self.shared.limit, now)
    }

    fn failed(&self, delivery: &DeliveryEnded<'_>) {
        let kind = self.shared.kinds.verified(delivery);
        let limit = self.shared.limit;
        let now = Instant::now();
        let mut hours = lock(&self.shared.hours);
        let hour = hours.entry(kind.clone()).or_default();
        hour.prune(now);
        hour.add(now, delivery.outcome);
        let Some(crossed) = limit.and_then(|limit| hour.cross(limit)) else {
            return;
        };
        let spent = hour.spent(kind, limit, now);
        drop(hours);
        spent.log(crossed);
    }
}

impl Default for FailureBudget {
    fn default() -> Self {
        Self::new(SenderPolicy::default())
    }
}

impl Observer for FailureBudget {
    fn observe(&self, observation: &Observation<'_>) {
        if let Observation::Delivery(delivery) = observation
            && delivery.is_failure()
        {
            self.failed(delivery);
        }
    }
}

/// The failures of one kind in the last hour.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Spent {
    /// The kind. `None` for requests that ended before their body was verified.
    pub kind: Option<EventKind>,
    /// The number of failed deliveries.
    pub failures: u32,
    /// The number above which the platform disables the webhook, if it has such a rule.
    pub limit: Option<u32>,
    /// The number of failures by their outcome, the most frequent one first.
    pub reasons: Vec<(&'static str, u32)>,
    /// The time until the limit is exceeded, if deliveries continue to fail at the rate of the last five minutes. Zero
    /// when it is exceeded already, and `None` when it is not reached at this rate.
    pub disabled_in: Option<Duration>,
}

impl Spent {
    /// Returns the share of the limit that is spent: 1.0 at the limit, and always 0.0 without one.
    #[must_use]
    pub fn share(&self) -> f64 {
        let share = |limit: u32| f64::from(self.failures) / f64::from(limit.max(1));
        self.limit.map_or(0.0, share)
    }

    /// Whether there were more failures than the limit, so that the platform has disabled the webhook.
    #[must_use]
    pub fn is_exceeded(&self) -> bool {
        self.limit.is_some_and(|limit| self.failures > limit)
    }

    fn log(&self, crossed: Threshold) {
        let kind = self.kind.as_ref().map(tracing::field::display);
        let reasons = self.reasons_in_words();
        let (failures, limit) = (self.failures, self.limit);
        let disabled_at = self
            .disabled_in
            .and_then(|left| SystemTime::now().checked_add(left))
            .map(httpdate::fmt_http_date);
        let text = self.describe(crossed);
        if crossed == Threshold::Warn {
            tracing::warn!(kind, failures, limit, reasons, disabled_at, "{text}");
        } else {
            tracing::error!(kind, failures, limit, reasons, disabled_at, "{text}");
        }
    }

    fn describe(&self, crossed: Threshold) -> String {
        let share = crossed.name();
        match (&self.kind, crossed) {
            (Some(_), Threshold::All) => {
                "the failure budget is exceeded, so the platform disables the webhook: fix the cause, and then enable the \
                 webhook in the partner portal"
                    .to_owned()
            }
            (Some(_), _) => format!(
                "{share} of the failure budget is spent; the platform disables the webhook when it is exceeded"
            ),
            (None, _) => format!(
                "{share} of the failure budget is reached by requests that ended before verification; if the platform \
                 sent them, it disables their webhooks"
            ),
        }
    }

    fn reasons_in_words(&self) -> String {
        let reasons = self
            .reasons
            .iter()
            .map(|(outcome, count)| format!("{count} {outcome}"));
        reasons.collect::<Vec<_>>().join(", ")
    }
}

/// One line: the kind, the count, and the limit.
impl fmt::Display for Spent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Some(kind) => write!(f, "{kind}")?,
            None => f.write_str("unverified")?,
        }
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
            Self::All => limit.saturating_add(1),
        }
    }
}

/// The failures of an hour, in steps.
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
    failures: u32,
    reasons: BTreeMap<&'static str, u32>,
}

const HOUR: Duration = Duration::from_secs(60 * 60);
const STEP: Duration = Duration::from_secs(10);

/// The time over which the current rate is measured.
const RECENT: Duration = Duration::from_secs(5 * 60);

impl Hour {
    /// Forgets failures that are older than an hour. Returns whether others are left.
    fn prune(&mut self, now: Instant) -> bool {
        while let Some(first) = self.steps.front()
            && now.saturating_duration_since(first.began) >= HOUR + STEP
        {
            self.failures -= first.failures;
            self.steps.pop_front();
        }
        !self.steps.is_empty()
    }

    fn add(&mut self, now: Instant, outcome: &'static str) {
        let is_new = self
            .steps
            .back()
            .is_none_or(|last| now.saturating_duration_since(last.began) >= STEP);
        if is_new {
            self.steps.push_back(Step {
                began: now,
                failures: 0,
                reasons: BTreeMap::new(),
            });
        }
        if let Some(step) = self.steps.back_mut() {
            step.failures = step.failures.saturating_add(1);
            *step.reasons.entry(outcome).or_default() += 1;
            self.failures = self.failures.saturating_add(1);
        }
    }

    /// Returns the threshold that the last failure has reached, if it was not reached before.
    fn cross(&mut self, limit: u32) -> Option<Threshold> {
        let reached = |failures: u32| {
            let thresholds = Threshold::ALL.into_iter().rev();
            let mut reached = thresholds.filter(|it| failures >= it.failures(limit));
            reached.next()
        };
        let now = reached(self.failures);
        let before = self.reached;
        let kept = Threshold::ALL
            .into_iter()
            .rev()
            .find(|it| Some(*it) <= before && self.failures >= it.failures(limit) / 4 * 3);
        self.reached = now.max(kept);
        now.filter(|_| self.reached > kept)
    }

    fn spent(&self, kind: Option<EventKind>, limit: Option<u32>, now: Instant) -> Spent {
        let mut reasons = BTreeMap::<_, u32>::new();
        for (reason, count) in self.steps.iter().flat_map(|step| &step.reasons) {
            *reasons.entry(*reason).or_default() += count;
        }
        let mut reasons: Vec<_> = reasons.into_iter().collect();
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        Spent {
            kind,
            failures: self.failures,
            limit,
            reasons,
            disabled_in: limit.and_then(|limit| self.disabled_in(limit, now)),
        }
    }

    fn disabled_in(&self, limit: u32, now: Instant) -> Option<Duration> {
        if self.failures > limit {
            return Some(Duration::ZERO);
        }
        let age = |step: &Step| now.saturating_duration_since(step.began);
        let recent = self.steps.iter().filter(|step| age(step) < RECENT);
        let (count, longest) = recent.fold((0, STEP), |(count, longest), step| {
            (count + step.failures, longest.max(age(step)))
        });
        let per_second = f64::from(count) / longest.as_secs_f64();
        if per_second <= 0.0 {
            return None;
        }
        // The count at a later time is what is left of the present failures by then, and what comes.
        let mut left = self.failures;
        let mut steps = self.steps.iter().peekable();
        let mut ahead = Duration::ZERO;
        while ahead <= HOUR {
            ahead += STEP;
            while let Some(step) = steps.next_if(|step| age(step) + ahead >= HOUR + STEP) {
                left -= step.failures;
            }
            if f64::from(left) + per_second * ahead.as_secs_f64() > f64::from(limit) {
                let missing = f64::from(limit) + 1.0 - f64::from(left);
                return Some(Duration::from_secs_f64(missing / per_second).min(ahead));
            }
        }
        None
    }
}
