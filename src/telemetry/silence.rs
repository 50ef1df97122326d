//! The silence watch: webhooks that deliver nothing, because they may have been disabled.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use twox_hash::XxHash3_64;

use super::labels::Kinds;
use super::observer::{Observation, Observer};
use crate::delivery::RawDelivery;
use crate::event::{EventKind, chat_id};
use crate::lock::lock;

/// Notices that a webhook has become silent: a webhook that the platform has disabled
/// ([Spec 6, rule 4](crate::docs::platform#spec-6-rule-4)) looks like one without events.
///
/// It is an [`Observer`]. [`watch`](Self::watch) logs an error when a kind becomes silent, and [`silent`](Self::silent)
/// returns the kinds that are. Clones share what they have seen, which does not outlast the process. The
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
///     .learn()
///     .rated_within(72 * hour);
/// let webhooks = Webhooks::new(Secret::new("8c1f…")?).observer(silence.clone());
/// tokio::spawn(silence.watch());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Silence {
    rules: Rules,
    seen: Arc<Seen>,
}

#[derive(Clone, Debug, Default)]
struct Rules {
    expected: BTreeMap<EventKind, Duration>,
    learns: bool,
    rated_within: Option<Duration>,
}

#[derive(Debug)]
struct Seen {
    since: Instant,
    kinds: Kinds,
    state: Mutex<State>,
    #[cfg(feature = "metrics")]
    gauges: super::gauges::Gauges,
}

#[derive(Debug, Default)]
struct State {
    rhythms: BTreeMap<EventKind, Rhythm>,
    closed: ClosedChats,
    /// Whether chats were ever closed and not rated in time.
    #[cfg(feature = "metrics")]
    was_unrated: bool,
}

impl Silence {
    /// Creates a watch that expects nothing yet.
    pub fn new() -> Self {
        Self {
            rules: Rules::default(),
            seen: Arc::new(Seen {
                since: Instant::now(),
                kinds: Kinds::default(),
                state: Mutex::default(),
                #[cfg(feature = "metrics")]
                gauges: super::gauges::Gauges::default(),
            }),
        }
    }

    /// Expects at least one delivery of a kind within this time. Choose a time longer than a night or a weekend without
    /// events. A restart of the process starts the time again.
    pub fn expect(mut self, kind: EventKind, within: Duration) -> Self {
        self.rules.expected.insert(kind, within);
        self
    }

    /// Learns how often deliveries of the other kinds arrive. When they have arrived for a week, a kind is silent when twice
    /// the longest time between two of its deliveries in the last seven days has passed, and at least an hour.
    pub fn learn(mut self) -> Self {
        self.rules.learns = true;
        self
    }

    /// Expects that chats are rated within this time after they were closed or transferred, as
    /// [Spec 3, rule 1](crate::docs::platform#spec-3-rule-1) says. `chat-rated` is silent when 10 chats or more were not,
    /// and no chat was rated in that time. The last 100,000 chats are remembered, by digests of their ids.
    pub fn rated_within(mut self, within: Duration) -> Self {
        self.rules.rated_within = Some(within);
        self
    }

    /// Returns the kinds that are silent now, sorted by kind.
    #[must_use]
    pub fn silent(&self) -> Vec<Silent> {
        let now = Instant::now();
        let state = lock(&self.seen.state);
        let unrated = self.unrated(&state, now);
        let mut silent = Vec::new();
        for (kind, within) in self.expected(&state, unrated) {
            let last = state.rhythms.get(&kind).map(|rhythm| rhythm.last);
            let quiet_for = now.saturating_duration_since(last.unwrap_or(self.seen.since));
            let Some(expected_within) = within.filter(|within| quiet_for > *within) else {
                continue;
            };
            let is_unrated = kind == EventKind::CHAT_RATED
                && self.rules.rated_within.is_some_and(|it| quiet_for > it);
            silent.push(Silent {
                kind,
                quiet_for,
                expected_within,
                unrated: if is_unrated { unrated } else { 0 },
            });
        }
        silent
    }

    /// The number of chats that should have been rated by now, or 0 if they are too few.
    fn unrated(&self, state: &State, now: Instant) -> usize {
        let within = self.rules.rated_within;
        let unrated = within.map_or(0, |within| state.closed.older_than(within, now));
        if unrated >= UNRATED { unrated } else { 0 }
    }

    /// The time within which each kind is expected, or `None` if a rule expects it at other times only.
    fn expected(&self, state: &State, unrated: usize) -> BTreeMap<EventKind, Option<Duration>> {
        let mut expected = BTreeMap::new();
        for (kind, rhythm) in state.rhythms.iter().filter(|_| self.rules.learns) {
            if let Some(within) = rhythm.learned() {
                expected.insert(kind.clone(), Some(within));
            }
        }
        for (kind, within) in &self.rules.expected {
            expected.insert(kind.clone(), Some(*within));
        }
        if let Some(rated_within) = self.rules.rated_within {
            let within = expected.entry(EventKind::CHAT_RATED).or_default();
            if unrated > 0 {
                *within = Some(within.map_or(rated_within, |within| within.min(rated_within)));
            }
        }
        expected
    }

    /// Logs at `ERROR` when a kind becomes silent, and at `INFO` when it is not silent any more. It looks once a minute,
    /// and never ends: spawn it as a task.
    pub async fn watch(self) {
        let mut before: Vec<Silent> = Vec::new();
        loop {
            sleep(LOOK_EVERY).await;
            let silent = self.silent();
            let has = |all: &[Silent], kind: &EventKind| all.iter().any(|it| it.kind == *kind);
            for new in silent.iter().filter(|it| !has(&before, &it.kind)) {
                let Silent {
                    kind,
                    quiet_for,
                    expected_within,
                    unrated,
                } = new;
                tracing::error!(
                    %kind, ?quiet_for, ?expected_within,
                    unrated = (*unrated > 0).then_some(unrated),
                    "no event of this kind was delivered for longer than expected: check in the partner portal that its \
                     webhook is active"
                );
            }
            for ended in before.iter().filter(|it| !has(&silent, &it.kind)) {
                tracing::info!(kind = %ended.kind, "events of this kind are delivered again");
            }
            before = silent;
        }
    }

    /// The time of the last delivery of each kind that was seen.
    #[cfg(feature = "metrics")]
    pub(super) fn last_deliveries(&self) -> Vec<(EventKind, Instant)> {
        let state = lock(&self.seen.state);
        let rhythms = state.rhythms.iter();
        rhythms
            .map(|(kind, rhythm)| (kind.clone(), rhythm.last))
            .collect()
    }

    /// The time within which each kind is expected, or `None` if it is not expected any more. A kind that was never
    /// expected is left out: an earlier process may have learned a time that the alert still uses.
    #[cfg(feature = "metrics")]
    pub(super) fn expected_now(&self) -> BTreeMap<EventKind, Option<Duration>> {
        let mut state = lock(&self.seen.state);
        let unrated = self.unrated(&state, Instant::now());
        state.was_unrated |= unrated > 0;
        let mut expected = self.expected(&state, unrated);
        if !state.was_unrated {
            expected.retain(|_, within| within.is_some());
        }
        expected
    }

    #[cfg(feature = "metrics")]
    pub(super) fn gauges(&self) -> &super::gauges::Gauges {
        &self.seen.gauges
    }

    fn delivered(&self, delivery: &RawDelivery) {
        let kind = match self.rules.expected.get_key_value(delivery.kind()) {
            Some((kind, _)) => kind.clone(),
            None => self.seen.kinds.bounded(delivery.kind()),
        };
        let chat = match self.rules.rated_within {
            Some(_) => chat_of(delivery),
            None => None,
        };
        let now = Instant::now();
        let mut state = lock(&self.seen.state);
        if let Some(chat) = chat {
            match *delivery.kind() == EventKind::CHAT_RATED || *delivery.kind() == REOPENED {
                true => state.closed.remove(chat),
                false => state.closed.insert(chat, now),
            }
        }
        match state.rhythms.get_mut(&kind) {
            Some(rhythm) => rhythm.delivered(now),
            None => drop(state.rhythms.insert(kind, Rhythm::new(now))),
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
            && let Some(delivery) = ended.delivery
        {
            self.delivered(delivery);
        }
    }
}

/// A kind of which nothing was delivered for longer than expected.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Silent {
    /// The kind.
    pub kind: EventKind,
    /// The time since its last delivery, or since the watch was created.
    pub quiet_for: Duration,
    /// The time within which a delivery was expected.
    pub expected_within: Duration,
    /// The number of chats that were closed and should have been rated by now, if the kind is silent for this reason.
    pub unrated: usize,
}

const REOPENED: EventKind = EventKind::CHAT_REOPENED;

/// The number of chats that have to be unrated.
const UNRATED: usize = 10;

const LOOK_EVERY: Duration = Duration::from_secs(60);

/// A digest of the id of the chat that was closed, rated or reopened.
fn chat_of(delivery: &RawDelivery) -> Option<u64> {
    const ENDS: [EventKind; 4] = [
        EventKind::CHAT_CLOSED,
        EventKind::CHAT_TRANSFERRED,
        EventKind::CHAT_RATED,
        REOPENED,
    ];
    if !ENDS.contains(delivery.kind()) {
        return None;
    }
    let chat = chat_id(delivery.kind(), delivery.body())?;
    Some(XxHash3_64::oneshot(chat.as_bytes()))
}

/// How often deliveries of one kind arrive.
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
            && now.saturating_duration_since(*day) > WEEK + DAY
        {
            self.longest.pop_front();
        }
    }

    /// The time after which the kind is silent, once it has been seen for long enough.
    fn learned(&self) -> Option<Duration> {
        if self.last.saturating_duration_since(self.first) < WEEK {
            return None;
        }
        let longest = self.longest.iter().map(|(_, longest)| *longest).max()?;
        Some((2 * longest).max(HOUR))
    }
}

/// Chats that were closed and not rated since.
#[derive(Debug, Default)]
struct ClosedChats {
    /// When each was closed last.
    at: HashMap<u64, Instant>,
    /// In the order in which they were closed. Those that were closed again or rated since are skipped.
    order: VecDeque<(u64, Instant)>,
}

const MOST_CHATS: usize = 100_000;

impl ClosedChats {
    fn insert(&mut self, chat: u64, now: Instant) {
        self.at.insert(chat, now);
        self.order.push_back((chat, now));
        while self.order.len() > MOST_CHATS {
            self.forget_first();
        }
    }

    fn remove(&mut self, chat: u64) {
        self.at.remove(&chat);
    }

    fn forget_first(&mut self) {
        if let Some((chat, at)) = self.order.pop_front()
            && self.at.get(&chat) == Some(&at)
        {
            self.at.remove(&chat);
        }
    }

    /// Counts the chats that were closed longer ago than this.
    fn older_than(&self, age: Duration, now: Instant) -> usize {
        let at = &self.at;
        self.order
            .iter()
            .take_while(|(_, closed)| now.saturating_duration_since(*closed) > age)
            .filter(|(chat, closed)| at.get(chat) == Some(closed))
            .count()
    }
}
