//! Counts by minute, in memory. An inbox writes them into its database: see `inbox/counts.rs`.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::budget::FailureBudget;
use super::recent::Recent;
use crate::event::EventKind;
use crate::lock::lock;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use crate::route::Scope;
use crate::route::{EventType, RouteName};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Series {
    /// Deliveries that were answered with 2xx, by event type and outcome.
    Acknowledged,
    /// Other deliveries, and requests that were refused. Those that were not verified have no kind.
    Refused,
    /// Those of them that count against a failure budget.
    Budget,
    /// Events that were handled, by event type.
    Handled,
    /// Attempts of workers that failed, by event type and outcome.
    Failed,
    /// Events that became dead letters, by event type.
    Dead,
    /// Requests that were refused before they were verified, by the outcome and the address, in a line each. A process tells
    /// 20 addresses apart in each minute.
    Origin,
    /// Requests with a wrong signature that a secret of another route would have matched, by that secret: see
    /// [`Neighbours`](crate::signature::Neighbours).
    Swapped,
    /// The longest time in milliseconds from an acceptance to the first attempt, by event type: a maximum, and no
    /// sum.
    Lag,
}

impl Series {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Acknowledged,
        Self::Refused,
        Self::Budget,
        Self::Handled,
        Self::Failed,
        Self::Dead,
        Self::Origin,
        Self::Swapped,
        Self::Lag,
    ];

    /// Returns its name, such as `handled`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Acknowledged => "acknowledged",
            Self::Refused => "refused",
            Self::Budget => "budget",
            Self::Handled => "handled",
            Self::Failed => "failed",
            Self::Dead => "dead",
            Self::Origin => "origin",
            Self::Swapped => "swapped",
            Self::Lag => "lag",
        }
    }

    /// Puts two numbers of this series together: their sum, or of [`Lag`](Self::Lag) the larger.
    #[must_use]
    pub fn join(self, one: u64, other: u64) -> u64 {
        match self {
            Self::Lag => one.max(other),
            _ => one.saturating_add(other),
        }
    }
}

/// A number of what happened in one minute, or in several that were put together.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Count {
    /// The first minute, since 1970.
    pub minute: i64,
    /// The process that has counted, or 0 for all of them.
    pub process: i64,
    /// What was counted.
    pub series: Series,
    /// The route.
    pub route: RouteName,
    /// The kind of the events, if it is known.
    pub kind: Option<EventKind>,
    /// The outcome, or an empty text.
    pub outcome: Cow<'static, str>,
    /// The number.
    pub number: u64,
    /// One of the requests that were counted.
    pub sample: Option<Sample>,
}

impl Count {
    /// Creates a count of the chat platform's route, without a kind and an outcome, of all processes.
    #[must_use]
    pub fn new(series: Series, minute: i64, number: u64) -> Self {
        Self {
            minute,
            process: 0,
            series,
            route: RouteName::default(),
            kind: None,
            outcome: Cow::Borrowed(""),
            number,
            sample: None,
        }
    }

    /// What is counted, as a queue keeps it in the column of the kind: the route, or the event type.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn of(&self) -> Scope {
        let route = self.route.clone();
        match self.kind.clone() {
            Some(kind) => Scope::Type(EventType::new(route, kind)),
            None => Scope::Route(route),
        }
    }

    /// Sets what is counted.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn set_of(&mut self, of: Scope) {
        (self.route, self.kind) = match of {
            Scope::Everything => (RouteName::default(), None),
            Scope::Route(route) => (route, None),
            Scope::Type(EventType { route, kind }) => (route, Some(kind)),
        };
    }
}

/// What is known of a request that was refused: no part of its body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sample {
    /// The address, the size of the body, the request id and the key, in a line each.
    pub lines: String,
    /// The key, by which a sample is found when a chat is forgotten.
    pub key: Option<Bytes>,
}

/// Selects counts, for [`Inbox::counts`](crate::inbox::Inbox::counts) and [`Recent::counts`].
///
/// ```
/// use std::time::SystemTime;
/// use tower_webhook::telemetry::{CountsOf, Series, minute_of};
///
/// let now = minute_of(SystemTime::now());
/// let last_day = CountsOf::new([Series::Dead], now - 24 * 60..now + 1).bucket(30);
/// assert_eq!(last_day.limit, 10_000);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CountsOf {
    /// What was counted.
    pub series: Vec<Series>,
    /// The first minute, since 1970.
    pub from: i64,
    /// The minute after the last.
    pub until: i64,
    /// How many minutes are put together.
    pub bucket: i64,
    /// Whether each process is counted apart.
    pub by_process: bool,
    /// The maximum number of counts. They are sorted from the newest minute to the oldest.
    pub limit: usize,
}

impl CountsOf {
    /// Selects up to 10,000 counts of these minutes, each minute apart, and all processes together.
    #[must_use]
    pub fn new(series: impl IntoIterator<Item = Series>, minutes: Range<i64>) -> Self {
        Self {
            series: series.into_iter().collect(),
            from: minutes.start,
            until: minutes.end,
            bucket: 1,
            by_process: false,
            limit: 10_000,
        }
    }

    /// Puts so many minutes together, at least 1. A bucket begins at a multiple of its length since 1970.
    #[must_use]
    pub fn bucket(mut self, minutes: i64) -> Self {
        self.bucket = minutes.max(1);
        self
    }

    /// Counts each process apart.
    #[must_use]
    pub fn by_process(mut self) -> Self {
        self.by_process = true;
        self
    }

    /// Selects at most so many counts, the newest ones.
    #[must_use]
    pub fn limit(mut self, counts: usize) -> Self {
        self.limit = counts;
        self
    }
}

/// Returns the number of the minute since 1970.
#[must_use]
pub fn minute_of(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    i64::try_from(since.unwrap_or_default().as_secs() / 60).unwrap_or(i64::MAX)
}

/// What an observer counts for an inbox to keep.
#[derive(Clone, Debug)]
pub enum Kept {
    Budget(FailureBudget),
    Recent(Recent),
}

impl Kept {
    pub(crate) fn tally(&self) -> &Tally {
        match self {
            Self::Budget(budget) => budget.tally(),
            Self::Recent(recent) => recent.tally(),
        }
    }
}

/// Counts of this process. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    process: i64,
    shared: Arc<Mutex<State>>,
    changed: Arc<Notify>,
}

#[derive(Debug)]
struct State {
    /// The time of day at some moment. That of the queue as soon as it is known, so that all processes agree on minutes.
    anchor: (Instant, SystemTime),
    rows: BTreeMap<RowKey, Row>,
    /// All event types that were seen.
    kinds: BTreeSet<EventType>,
    /// The number of changes.
    changes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RowKey {
    // First in the order of keys, so that the oldest rows are at the front.
    minute: i64,
    series: Series,
    route: RouteName,
    kind: Option<EventKind>,
    outcome: Cow<'static, str>,
}

#[derive(Debug)]
struct Row {
    number: u64,
    sample: Option<Sample>,
    /// The number of its last change.
    changed: u64,
}

/// How many minutes are kept in memory.
const MINUTES: i64 = 60;

/// How many rows are kept in memory: kinds and outcomes are few, but not few enough for 60 minutes of all of them.
const MOST: usize = 20_000;

impl Default for Tally {
    fn default() -> Self {
        let state = State {
            anchor: (Instant::now(), SystemTime::now()),
            rows: BTreeMap::new(),
            kinds: BTreeSet::new(),
            changes: 0,
        };
        Self {
            // 0 is the number of all processes together.
            process: fastrand::i64(1..),
            shared: Arc::new(Mutex::new(state)),
            changed: Arc::default(),
        }
    }
}

impl State {
    fn now(&self) -> SystemTime {
        let (at, time) = self.anchor;
        // A jump of this machine's clock moves no count, since `Instant` does not jump.
        time + at.elapsed()
    }

    fn add(
        &mut self,
        series: Series,
        route: &RouteName,
        kind: Option<EventKind>,
        outcome: Cow<'static, str>,
        number: u64,
        sample: impl FnOnce() -> Option<Sample>,
    ) {
        let key = RowKey {
            minute: minute_of(self.now()),
            series,
            route: route.clone(),
            kind,
            outcome,
        };
        self.changes += 1;
        let changed = self.changes;
        if let Some(row) = self.rows.get_mut(&key) {
            row.number = series.join(row.number, number);
            row.changed = changed;
            return;
        }
        // Only a new row can make others too old or too many.
        let oldest = key.minute - MINUTES;
        while let Some(first) = self.rows.first_entry()
            && first.key().minute <= oldest
        {
            first.remove();
        }
        if self.rows.len() >= MOST {
            self.rows.pop_first();
        }
        // A type stays when its rows have gone, so that a quiet type keeps its row on the console.
        let kind = key.kind.clone();
        let of = kind.map(|kind| EventType::new(route.clone(), kind));
        self.kinds.extend(of);
        let row = Row {
            number,
            // A row samples its first request. The others are only counted, so a flood formats nothing.
            sample: sample(),
            changed,
        };
        self.rows.insert(key, row);
    }
}

impl Tally {
    /// The number of this process.
    pub(crate) fn process(&self) -> i64 {
        self.process
    }

    /// The time of day.
    pub(crate) fn now(&self) -> SystemTime {
        lock(&self.shared).now()
    }

    /// Takes the time of day from a queue.
    pub(crate) fn set_time(&self, now: SystemTime) {
        lock(&self.shared).anchor = (Instant::now(), now);
    }

    pub(crate) fn add(
        &self,
        series: Series,
        route: &RouteName,
        kind: Option<EventKind>,
        outcome: impl Into<Cow<'static, str>>,
        number: u64,
        sample: impl FnOnce() -> Option<Sample>,
    ) {
        let outcome = outcome.into();
        lock(&self.shared).add(series, route, kind, outcome, number, sample);
        // After the change: whoever is woken before it finds nothing, and waits for the next one.
        self.changed.notify_one();
    }

    /// Waits until something was counted since the last call.
    pub(crate) async fn until_changed(&self) {
        self.changed.notified().await;
    }

    /// Returns up to `limit` counts that have changed after a number of changes, in the order of their changes, and the
    /// number that the next call begins with.
    pub(crate) fn changed(&self, after: u64, limit: usize) -> (Vec<Count>, u64) {
        let state = lock(&self.shared);
        let rows = state.rows.iter().filter(|(_, row)| row.changed > after);
        let mut rows: Vec<_> = rows.collect();
        rows.sort_by_key(|(_, row)| row.changed);
        rows.truncate(limit);
        let last = rows.last().map_or(after, |(_, row)| row.changed);
        let counts = rows.into_iter().map(|(key, row)| self.count(key, row));
        (counts.collect(), last)
    }

    /// Returns the counts of the last hour, from the oldest minute to the present one.
    pub(crate) fn last_hour(&self) -> (i64, Vec<Count>) {
        let state = lock(&self.shared);
        let now = minute_of(state.now());
        let recent = state
            .rows
            .iter()
            .filter(|(key, _)| key.minute > now - MINUTES);
        (now, recent.map(|(key, row)| self.count(key, row)).collect())
    }

    /// Returns the event types that were ever seen.
    pub(super) fn kinds(&self) -> BTreeSet<EventType> {
        lock(&self.shared).kinds.clone()
    }

    /// Returns the outcomes of the deliveries of the last hour, each as often as there are rows, with their numbers.
    pub(super) fn answers(&self) -> Vec<(&'static str, u64)> {
        let state = lock(&self.shared);
        let oldest = minute_of(state.now()) - MINUTES;
        let rows = state.rows.iter().filter(|(key, _)| {
            key.minute > oldest && matches!(key.series, Series::Acknowledged | Series::Refused)
        });
        let answers = rows.filter_map(|(key, row)| match key.outcome {
            Cow::Borrowed(outcome) => Some((outcome, row.number)),
            // Only origins have texts of requests.
            Cow::Owned(_) => None,
        });
        answers.collect()
    }

    fn count(&self, key: &RowKey, row: &Row) -> Count {
        Count {
            minute: key.minute,
            process: self.process,
            series: key.series,
            route: key.route.clone(),
            kind: key.kind.clone(),
            outcome: key.outcome.clone(),
            number: row.number,
            sample: row.sample.clone(),
        }
    }
}

/// Puts counts together that arrive from the newest minute to the oldest.
pub(crate) struct Sums {
    of: CountsOf,
    counts: BTreeMap<Summed, (u64, Option<Sample>)>,
}

/// The minute is negative, so that the newest is first.
type Summed = (i64, Series, i64, Of, Cow<'static, str>);

/// A route, and a kind if it is known.
pub(super) type Of = (RouteName, Option<EventKind>);

impl Sums {
    pub(crate) fn new(of: CountsOf) -> Self {
        Self {
            of,
            counts: BTreeMap::new(),
        }
    }

    pub(crate) fn add(&mut self, count: Count) {
        // The field `bucket` is public, so it can be 0.
        let minute = count.minute - count.minute.rem_euclid(self.of.bucket.max(1));
        let process = if self.of.by_process { count.process } else { 0 };
        let of = (count.route, count.kind);
        let key = (-minute, count.series, process, of, count.outcome);
        let (number, sample) = self.counts.entry(key).or_default();
        *number = count.series.join(*number, count.number);
        if sample.is_none() {
            *sample = count.sample;
        }
    }

    /// Whether there are as many counts as wanted of minutes after this one.
    #[cfg(feature = "sqlite")]
    pub(crate) fn are_complete(&self, minute: i64) -> bool {
        // Later counts may still belong to the bucket of this minute, so it does not count as complete.
        let newer = |(first, ..): &&Summed| -first > minute;
        self.counts.keys().take_while(newer).count() >= self.of.limit
    }

    pub(crate) fn end(self) -> Vec<Count> {
        let counts = self.counts.into_iter().take(self.of.limit);
        counts
            .map(
                |((minute, series, process, (route, kind), outcome), (number, sample))| Count {
                    minute: -minute,
                    process,
                    series,
                    route,
                    kind,
                    outcome,
                    number,
                    sample,
                },
            )
            .collect()
    }
}

/// How long `Duration`s are in whole milliseconds.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
