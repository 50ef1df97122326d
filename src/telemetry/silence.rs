//! The silence watch: webhooks that deliver nothing, because they may have been disabled.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::labels::{Senders, Types};
use super::observer::{Observation, Observer};
use crate::event::EventKind;
use crate::lock::lock;
use crate::route::{EventType, RouteName};
use crate::sender::Sender;

/// Notices that a webhook has become silent: a webhook that the platform has disabled
/// ([Spec 6, rule 4](crate::docs::platform#spec-6-rule-4)) looks like one without events.
///
/// It is an [`Observer`]. [`watch`](Self::watch) logs an error when an event type becomes silent, and [`silent`](Self::silent)
/// returns all silent types. Clones share what they have seen until the process ends. The
/// [alert `WebhookSilent`](crate::docs::troubleshooting#webhooksilent) outlasts restarts, and combines several receivers.
///
/// ```
/// use std::time::Duration;
/// use tower_webhook::event::EventKind;
/// use tower_webhook::telemetry::Silence;
/// use tower_webhook::{Secret, Webhooks};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_webhook::ConfigError> {
/// let hour = Duration::from_secs(60 * 60);
/// let silence = Silence::new()
///     .expect(EventKind::MESSAGE_CREATED, 4 * hour)
///     .learn();
/// let webhooks = Webhooks::new(Secret::new("8c1f…")?).observer(silence.clone());
/// tokio::spawn(silence.watch());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Silence {
    rules: Rules,
    seen: Arc<Deliveries>,
}

#[derive(Clone, Debug, Default)]
struct Rules {
    expected: BTreeMap<EventType, Duration>,
    learns: bool,
}

#[derive(Debug)]
struct Deliveries {
    since: Instant,
    types: Types,
    senders: Senders,
    rhythms: Mutex<BTreeMap<EventType, Rhythm>>,
    #[cfg(feature = "metrics")]
    gauges: super::gauges::Gauges,
}

impl Silence {
    /// Creates a watch that expects nothing yet.
    pub fn new() -> Self {
        Self {
            rules: Rules::default(),
            seen: Arc::new(Deliveries {
                since: Instant::now(),
                types: Types::default(),
                senders: Senders::default(),
                rhythms: Mutex::default(),
                #[cfg(feature = "metrics")]
                gauges: super::gauges::Gauges::default(),
            }),
        }
    }

    /// Expects at least one delivery of an event type within this time. Choose a time longer than a night or a weekend
    /// without events. A restart of the process starts the time again.
    ///
    /// A [batch](crate::docs::senders#batches) is a delivery of each type of its items. An empty one has the type that the
    /// sender's description gives to the delivery.
    pub fn expect(mut self, of: impl Into<EventType>, within: Duration) -> Self {
        self.rules.expected.insert(of.into(), within);
        self
    }

    /// Learns how often deliveries of the other event types arrive. When they have arrived for a week, a type is silent when
    /// twice the longest time between two of its deliveries in the last seven days has passed, and at least an hour.
    pub fn learn(mut self) -> Self {
        self.rules.learns = true;
        self
    }

    /// Returns the event types that are silent now, sorted by route and kind.
    #[must_use]
    pub fn silent(&self) -> Vec<Silent> {
        let now = Instant::now();
        let rhythms = lock(&self.seen.rhythms);
        let mut silent = Vec::new();
        for (of, expected_within) in self.expected(&rhythms) {
            // A type that was never delivered is silent since the start of the watch: its webhook may be disabled.
            let last = rhythms.get(&of).map(|rhythm| rhythm.last);
            let quiet_for = now.saturating_duration_since(last.unwrap_or(self.seen.since));
            if quiet_for > expected_within {
                silent.push(Silent {
                    route: of.route,
                    kind: of.kind,
                    quiet_for,
                    expected_within,
                });
            }
        }
        silent
    }

    /// The time within which each type is expected. A type that was not seen for long enough to learn a time is left out:
    /// an earlier process may have learned a time that the alert still uses.
    fn expected(&self, rhythms: &BTreeMap<EventType, Rhythm>) -> BTreeMap<EventType, Duration> {
        let learning = rhythms.iter().filter(|_| self.rules.learns);
        let mut expected: BTreeMap<_, _> = learning
            .filter_map(|(of, rhythm)| Some((of.clone(), rhythm.learned()?)))
            .collect();
        // Last, so that a time from the application replaces a learned one.
        expected.extend(self.rules.expected.clone());
        expected
    }

    /// Logs at `ERROR` when an event type becomes silent, and at `INFO` when it is not silent any more. It looks once a
    /// minute, and never ends: spawn it as a task.
    pub async fn watch(self) {
        let mut before: Vec<Silent> = Vec::new();
        loop {
            sleep(LOOK_EVERY).await;
            let silent = self.silent();
            let has = |all: &[Silent], it: &Silent| {
                let mut all = all.iter();
                all.any(|other| (&other.route, &other.kind) == (&it.route, &it.kind))
            };
            for new in silent.iter().filter(|it| !has(&before, it)) {
                self.log(new, true);
            }
            for ended in before.iter().filter(|it| !has(&silent, it)) {
                self.log(ended, false);
            }
            before = silent;
        }
    }

    fn log(&self, of: &Silent, is_silent: bool) {
        let Silent {
            route,
            kind,
            quiet_for,
            expected_within,
        } = of;
        let sender = self.seen.senders.of(route);
        let sender = sender.as_ref().map(Sender::name);
        let of = EventType::new(route.clone(), kind.clone());
        if is_silent {
            tracing::error!(
                %route, sender, %kind, ?quiet_for, ?expected_within,
                "no event of {of} was delivered for longer than expected: check at the sender that its \
                 webhook is active"
            );
        } else {
            tracing::info!(%route, sender, %kind, "events of {of} are delivered again");
        }
    }

    /// The time of the last delivery of each type that was seen.
    #[cfg(feature = "metrics")]
    pub(super) fn last_deliveries(&self) -> Vec<(EventType, Instant)> {
        let rhythms = lock(&self.seen.rhythms);
        let rhythms = rhythms.iter();
        rhythms
            .map(|(of, rhythm)| (of.clone(), rhythm.last))
            .collect()
    }

    /// The time within which each type is expected.
    #[cfg(feature = "metrics")]
    pub(super) fn expected_now(&self) -> BTreeMap<EventType, Duration> {
        self.expected(&lock(&self.seen.rhythms))
    }

    #[cfg(feature = "metrics")]
    pub(super) fn gauges(&self) -> &super::gauges::Gauges {
        &self.seen.gauges
    }

    fn delivered(&self, route: &RouteName, kind: &EventKind) {
        let mut of = EventType::new(route.clone(), kind.clone());
        // An expected type keeps its name even if forged kinds have used up the bound of `types`.
        if !self.rules.expected.contains_key(&of) {
            of = self.seen.types.bounded(&of.route, &of.kind);
        }
        let now = Instant::now();
        let mut rhythms = lock(&self.seen.rhythms);
        match rhythms.get_mut(&of) {
            Some(rhythm) => rhythm.delivered(now),
            None => drop(rhythms.insert(of, Rhythm::new(now))),
        }
    }
}

impl Default for Silence {
    fn default() -> Self {
        Self::new()
    }
}

impl Observer for Silence {
    fn observe(&self, observation: &Observation<'_>) {
        if let Observation::Delivery(ended) = observation
            // Only a verified delivery proves that the webhook is active, even if it is answered with 503.
            && let Some(delivery) = ended.delivery
        {
            self.seen.senders.note(ended);
            match ended.items {
                Some(kinds) => (kinds.iter()).for_each(|kind| self.delivered(ended.route, kind)),
                None => self.delivered(ended.route, delivery.kind()),
            }
        }
    }
}

/// An event type of which nothing was delivered for longer than expected.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Silent {
    /// The route.
    pub route: RouteName,
    /// The kind.
    pub kind: EventKind,
    /// The time since its last delivery, or since the watch was created.
    pub quiet_for: Duration,
    /// The time within which a delivery was expected.
    pub expected_within: Duration,
}

const LOOK_EVERY: Duration = Duration::from_secs(60);

/// How often deliveries of one type arrive.
#[derive(Debug)]
struct Rhythm {
    first: Instant,
    last: Instant,
    /// The longest time between two deliveries, for each of the last days.
    longest: VecDeque<(Instant, Duration)>,
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const WEEK: Duration = Duration::from_secs(7 * 24 * 60 * 60);
const HOUR: Duration = Duration::from_secs(60 * 60);

impl Rhythm {
    fn new(now: Instant) -> Self {
        Self {
            first: now,
            last: now,
            longest: VecDeque::new(),
        }
    }

    fn delivered(&mut self, now: Instant) {
        let gap = now.saturating_duration_since(self.last);
        self.last = now;
        match self.longest.back_mut() {
            Some((day, longest)) if now.saturating_duration_since(*day) < DAY => {
                *longest = gap.max(*longest);
            }
            _ => self.longest.push_back((now, gap)),
        }
        while let Some((day, _)) = self.longest.front()
            // An entry covers a day from its beginning, so a gap at its end is a day younger.
            && now.saturating_duration_since(*day) > WEEK + DAY
        {
            self.longest.pop_front();
        }
    }

    /// The time after which the type is silent, once it has been seen for long enough.
    fn learned(&self) -> Option<Duration> {
        // A week has all nights and a weekend. After two deliveries in a row, each pause would look like silence.
        if self.last.saturating_duration_since(self.first) < WEEK {
            return None;
        }
        let longest = self.longest.iter().map(|(_, longest)| *longest).max()?;
        Some((2 * longest).max(HOUR))
    }
}
