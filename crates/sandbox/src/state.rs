//! The platform's state: what is due, what waits for a retry, and what follows from an attempt.
//!
//! Nothing here waits or sends: [`sender`](super::sender) does, and reports back. So every decision is
//! made under one lock, at one time of the platform's clock.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use tokio::sync::Notify;
use tokio::time::Instant;
use tower_webhook::Secret;
use tower_webhook::event::{EventKind, SenderPolicy};

use super::api_fault::ApiFault;
use super::clock::Clock;
use super::fault::{Fault, Injected, chance};
use super::payload::{ChatData, Rating, Step};
use super::portal::{Portal, Webhook};
use super::report::{Attempt, AttemptId, EventId, EventReport, EventState};
use super::settings::Settings;
use super::strict;

/// How many of the latest attempts are listed, and keep their responses.
const MAX_RECENT: usize = 1_000;

/// The platform at one moment. All times are counted from the start of its clock.
pub(super) struct State {
    pub(super) clock: Clock,
    pub(super) portal: Portal,
    pub(super) chats: Vec<ChatState>,
    pub(super) injected: VecDeque<Fault>,
    pub(super) rng: Rng,
    pub(super) rate_after: Duration,
    pub(super) strict: bool,
    pub(super) api_faults: VecDeque<ApiFault>,
    /// How many queries the Admin API received.
    pub(super) queries: u64,
    /// Indexed by [`EventId`]; nothing is ever removed.
    pub(super) events: Vec<EventRecord>,
    /// The latest attempts, whose responses are kept, oldest first: event and index.
    pub(super) recent: VecDeque<(usize, usize)>,
    policy: SenderPolicy,
    /// Sorted by time, and at the same time by [`Timer`]: a run with the same seed repeats exactly.
    timers: BTreeSet<(Duration, Timer)>,
    pub(super) due: VecDeque<Due>,
    in_flight: usize,
    next_attempt: u64,
}

/// A chat, and what is still to happen in it.
pub(super) struct ChatState {
    pub(super) data: ChatData,
    /// When the customer rates the chat without a script.
    pub(super) rate_at: Option<Duration>,
    /// The events that are retried, by index.
    undelivered: BTreeSet<usize>,
    /// When all undelivered events are retried. One time for the whole chat: retries are "per chat
    /// that could not be sent" (Spec 6, rule 3).
    retry_at: Option<Duration>,
    /// Notifies the attempts that [`Fault::Reorder`] holds back when a later event has overtaken them.
    overtaken: Arc<Notify>,
}

pub(super) struct EventRecord {
    pub(super) report: EventReport,
    /// `None` for a test event.
    chat: Option<usize>,
    /// The secret of a test event, if it is not the webhook's.
    test_secret: Option<Secret>,
    /// When the first attempt began; before that, when the event was created.
    first: Duration,
    /// How often it was sent, without the duplicates within one send.
    sends: u64,
    pub(super) in_flight: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// Retries the undelivered events of a chat.
    Retry(usize),
    /// Rates a chat.
    Rate(usize),
    /// Sends a delivered event once more, because of a [`Fault::Duplicate`] with this parameter.
    Duplicate(usize, u64),
}

/// An event to send now, and why.
pub(super) struct Due(pub(super) usize, pub(super) Why);

/// Why an event is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// It is not delivered yet.
    Undelivered,
    /// It is delivered, and this fault duplicates it.
    Duplicate(Injected),
    /// It is delivered, and a person asked for it.
    Resend,
}

impl State {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            clock: Clock::new(settings.start, settings.speed),
            portal: Portal::new(settings.sender.policy()),
            chats: Vec::new(),
            events: Vec::new(),
            recent: VecDeque::new(),
            injected: VecDeque::new(),
            rng: Rng::with_seed(settings.seed),
            rate_after: settings.rate_after,
            strict: false,
            api_faults: VecDeque::new(),
            queries: 0,
            policy: settings.sender.policy(),
            timers: BTreeSet::new(),
            due: VecDeque::new(),
            in_flight: 0,
            next_attempt: 0,
        }
    }

    pub(super) fn add_chat(&mut self, data: ChatData) -> usize {
        self.chats.push(ChatState {
            data,
            rate_at: None,
            undelivered: BTreeSet::new(),
            retry_at: None,
            overtaken: Arc::default(),
        });
        self.chats.len() - 1
    }

    pub(super) fn emit(&mut self, kind: EventKind, chat: usize, body: Bytes) -> EventId {
        self.plan_rating(chat, &kind);
        // Drawn even if the event is never sent: the keys of later events do not depend on webhooks.
        let key = format!("{:032x}", self.rng.u128(..));
        let delivers = self.portal.delivers(&kind).is_some();
        let id = self.add_event(kind, Some(chat), Some(key), body, delivers);
        if delivers {
            self.chats[chat].undelivered.insert(id.0);
        }
        id
    }

    /// Emits a test event (Spec 6, rule 5): sent once, even if the webhook is inactive, without a key, and
    /// signed with `secret`, else with the webhook's.
    pub(super) fn emit_test(
        &mut self,
        kind: EventKind,
        body: Bytes,
        secret: Option<Secret>,
    ) -> EventId {
        let reachable = self.portal.reachable(&kind).is_some();
        let id = self.add_event(kind, None, None, body, reachable);
        self.events[id.0].test_secret = secret;
        id
    }

    fn add_event(
        &mut self,
        kind: EventKind,
        chat: Option<usize>,
        key: Option<String>,
        body: Bytes,
        sent: bool,
    ) -> EventId {
        let now = self.clock.now();
        let id = EventId(self.events.len());
        if sent {
            self.due.push_back(Due(id.0, Why::Undelivered));
        }
        self.events.push(EventRecord {
            report: EventReport {
                id,
                kind,
                chat: chat.map(|chat| self.chats[chat].data.id()),
                key,
                arose_at: self.clock.timestamp(now),
                body,
                state: match sent {
                    true => EventState::Waiting,
                    false => EventState::NeverSent,
                },
                next_retry: None,
                attempts: Vec::new(),
            },
            chat,
            test_secret: None,
            first: now,
            sends: 0,
            in_flight: false,
        });
        id
    }

    pub(super) fn step(&mut self, index: usize, mut step: Step) -> EventId {
        let now = self.clock.now();
        let timestamp = self.clock.timestamp(now);
        if let (true, Step::Message(message)) = (self.strict, &mut step) {
            let word = strict::unknown_word(&mut self.rng);
            message.kind.get_or_insert(word);
        }
        let (kind, mut body) = self.chats[index].data.apply(step, timestamp);
        if self.strict {
            body = strict::harden(&mut self.rng, &kind, body);
        }
        self.emit(kind, index, body)
    }

    /// Schedules or cancels the rating that follows from an event of `kind` (Spec 3, rule 1): one for each
    /// resolution that is neither reopened nor rated by a script.
    fn plan_rating(&mut self, index: usize, kind: &EventKind) {
        let is = |other: EventKind| *kind == other;
        let is_pending = self.chats[index].rate_at.is_some();
        let resolves = is(EventKind::CHAT_CLOSED) || is(EventKind::CHAT_TRANSFERRED);
        let ends = is(EventKind::CHAT_RATED) || is(EventKind::CHAT_REOPENED);
        // Anything else that happens in a chat that waits for its rating puts the rating off.
        let at = (resolves || (is_pending && !ends))
            .then(|| self.clock.now().saturating_add(self.rate_after));
        self.schedule_rating(index, at);
    }

    /// Rates a chat that no script rates (Spec 3, rule 1).
    fn rate_automatically(&mut self, index: usize) {
        let rating = self.rng.choice([Rating::Bad, Rating::Fair, Rating::Good]);
        self.step(index, Step::Rate(rating.unwrap_or(Rating::Good)));
    }

    fn schedule_rating(&mut self, chat: usize, at: Option<Duration>) {
        let old = std::mem::replace(&mut self.chats[chat].rate_at, at);
        self.reschedule(Timer::Rate(chat), old, at);
    }

    fn schedule_retry(&mut self, chat: usize, at: Option<Duration>) {
        let old = std::mem::replace(&mut self.chats[chat].retry_at, at);
        self.reschedule(Timer::Retry(chat), old, at);
    }

    fn reschedule(&mut self, timer: Timer, old: Option<Duration>, new: Option<Duration>) {
        if let Some(at) = old {
            self.timers.remove(&(at, timer));
        }
        self.timers.extend(new.map(|at| (at, timer)));
    }

    /// Retries an event now, and returns whether it is waiting and can be sent.
    pub(super) fn retry_now(&mut self, EventId(id): EventId) -> bool {
        let is_waiting = self.events.get(id).is_some_and(|event| {
            let is_waiting = event.report.state == EventState::Waiting && !event.in_flight;
            is_waiting && self.portal.delivers(&event.report.kind).is_some()
        });
        if is_waiting && !self.due.iter().any(|due| due.0 == id) {
            self.due.push_back(Due(id, Why::Undelivered));
        }
        is_waiting
    }

    /// When the next timer fires, in `tokio::time`.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        let (at, _) = self.timers.first()?;
        Some(self.clock.instant(*at))
    }

    /// Whether no attempt is in progress or due now.
    pub(super) fn is_idle(&self) -> bool {
        let due = self.timers.first().map(|(at, _)| *at);
        let is_later = due.is_none_or(|at| at > self.clock.now());
        is_later && self.due.is_empty() && self.in_flight == 0
    }

    /// Whether nothing happens any more without another call.
    pub(super) fn is_finished(&self) -> bool {
        self.timers.is_empty() && self.due.is_empty() && self.in_flight == 0
    }

    pub(super) fn report(&self, event: &EventRecord) -> EventReport {
        let mut report = event.report.clone();
        let retry_at = event.chat.and_then(|chat| self.chats[chat].retry_at);
        report.next_retry = retry_at
            .filter(|_| report.state == EventState::Waiting)
            .map(|at| self.clock.timestamp(at));
        report
    }

    /// Fires the timers that are due, and plans what is to be sent now.
    pub(super) fn take_due(&mut self, settings: &Settings) -> Vec<Plan> {
        let now = self.clock.now();
        while let Some(&(at, timer)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            match timer {
                Timer::Retry(chat) => self.retry(chat, at, now),
                Timer::Rate(chat) => {
                    self.chats[chat].rate_at = None;
                    self.rate_automatically(chat);
                }
                Timer::Duplicate(event, parameter) => {
                    let fault = Injected {
                        fault: Fault::Duplicate,
                        parameter,
                    };
                    self.due.push_back(Due(event, Why::Duplicate(fault)));
                }
            }
        }
        let due = std::mem::take(&mut self.due);
        due.into_iter()
            .filter_map(|due| self.plan(due, settings))
            .collect()
    }

    /// Retries all undelivered events of a chat (Spec 6, rule 3).
    fn retry(&mut self, chat: usize, at: Duration, now: Duration) {
        // Rounds that the clock was advanced past become one: a week of retries at the same moment is not
        // what the platform sends.
        let (round, next) = rounds(at, now, self.policy.retry_every);
        self.chats[chat].retry_at = None;
        for id in self.chats[chat].undelivered.clone() {
            let event = &self.events[id];
            let last = event.first.saturating_add(self.policy.retry_for);
            if event.in_flight {
                // Its result is still open, and `end_send` decides about its next round.
                continue;
            } else if round <= last && self.portal.delivers(&event.report.kind).is_some() {
                self.due.push_back(Due(id, Why::Undelivered));
            } else if next > last {
                self.lose(id);
            }
        }
        if !self.chats[chat].undelivered.is_empty() {
            self.schedule_retry(chat, Some(next));
        }
    }

    fn lose(&mut self, id: usize) {
        let event = &mut self.events[id];
        event.report.state = EventState::Lost;
        if let Some(chat) = event.chat {
            self.leave_queue(chat, id);
        }
    }

    /// Loses the events that wait for a webhook, which has just been disabled in strict mode.
    fn lose_waiting(&mut self, kind: &EventKind) {
        for id in 0..self.events.len() {
            let EventRecord {
                report,
                chat,
                in_flight,
                ..
            } = &self.events[id];
            // The result of an event in flight is still open: `wait_for_retry` loses it.
            let waits = report.state == EventState::Waiting && !in_flight && chat.is_some();
            if waits && report.kind == *kind {
                self.lose(id);
            }
        }
    }

    fn leave_queue(&mut self, chat: usize, id: usize) {
        self.chats[chat].undelivered.remove(&id);
        if self.chats[chat].undelivered.is_empty() {
            self.schedule_retry(chat, None);
        }
    }

    /// Schedules the next retry of an event, or gives it up after 7 days.
    fn wait_for_retry(&mut self, id: usize, began: Duration) {
        let event = &self.events[id];
        let Some(chat) = event.chat else {
            return self.lose(id);
        };
        if self.strict && self.portal.is_disabled(&event.report.kind) {
            return self.lose(id);
        }
        let last = event.first.saturating_add(self.policy.retry_for);
        let next = match self.chats[chat].retry_at {
            // The event joins the round of its chat, and so its first retry can come early.
            Some(next) => next,
            None => {
                let (_, next) = rounds(began, self.clock.now(), self.policy.retry_every);
                self.schedule_retry(chat, Some(next));
                next
            }
        };
        if next > last {
            self.lose(id);
        }
    }

    /// The webhook of an event, if it can be sent now.
    pub(super) fn webhook_of(&self, event: &EventRecord) -> Option<&Webhook> {
        match event.chat {
            Some(_) => self.portal.delivers(&event.report.kind),
            None => self.portal.reachable(&event.report.kind),
        }
    }

    /// Decides how an event is sent, unless it was settled or disabled since it became due.
    fn plan(&mut self, Due(id, why): Due, settings: &Settings) -> Option<Plan> {
        let event = &self.events[id];
        let is_due = match why {
            Why::Undelivered => event.report.state == EventState::Waiting && !event.in_flight,
            Why::Duplicate(_) | Why::Resend => event.report.state == EventState::Delivered,
        };
        if !is_due {
            return None;
        }
        let Some(webhook) = self.webhook_of(event).cloned() else {
            // Disabled since the event was created. It waits until the webhook delivers again.
            if why == Why::Undelivered {
                let now = self.clock.now();
                self.wait_for_retry(id, now);
            }
            return None;
        };
        let event = &mut self.events[id];
        // Not `self.rng`: its next number depends on the order in which attempts end, which differs
        // between two runs over HTTP.
        let mut rng = chance(settings.seed, id as u64, event.sends);
        let secret = event.test_secret.clone().or(webhook.secret);
        let signed = secret.is_some();
        let fault = match why {
            // A fault of a duplicate could cause duplicates without end.
            Why::Duplicate(_) | Why::Resend => None,
            Why::Undelivered if event.chat.is_none() => None,
            Why::Undelivered => match self.injected.pop_front() {
                Some(fault) => Some(fault),
                None => settings.faults.draw(&mut rng, signed),
            },
        };
        let body = event.report.body.clone();
        let fault = fault
            .map(|fault| fault.with_parameter(&mut rng, body.len(), &settings.sender.policy()));
        event.sends += 1;
        event.in_flight = true;
        self.in_flight += 1;
        Some(Plan {
            event: id,
            kind: event.report.kind.clone(),
            key: event.report.key.clone(),
            body,
            url: webhook.url,
            secret,
            fault: match why {
                Why::Duplicate(fault) => Some(fault),
                _ => fault,
            },
            is_duplicate: why != Why::Undelivered,
            overtaken: event
                .chat
                .map(|chat| Arc::clone(&self.chats[chat].overtaken)),
        })
    }

    pub(super) fn begin_attempt(&mut self, event: usize) -> (AttemptId, Duration) {
        let id = AttemptId(self.next_attempt);
        self.next_attempt += 1;
        let now = self.clock.now();
        let event = &mut self.events[event];
        if event.report.attempts.is_empty() {
            event.first = event.first.max(now);
        }
        (id, now)
    }

    pub(super) fn end_attempt(&mut self, attempt: &Attempt) {
        let EventId(id) = attempt.event;
        let now = self.clock.now();
        self.events[id].report.attempts.push(attempt.clone());
        self.list_attempt(id);
        let event = &mut self.events[id];
        if attempt.result.is_delivered() {
            if event.report.state == EventState::Waiting {
                event.report.state = EventState::Delivered;
            }
            if let Some(chat) = event.chat {
                self.leave_queue(chat, id);
            }
        } else if event.chat.is_some() || self.strict {
            // Duplicates count too: the receiver must not be better off here than on the platform.
            let kind = event.report.kind.clone();
            let disables = self.portal.failed(&kind, &attempt.result, now);
            if disables && self.strict {
                self.lose_waiting(&kind);
            }
        }
    }

    /// Lists the attempt that an event has last as the latest one, and forgets the response of the oldest one in
    /// the list.
    fn list_attempt(&mut self, event: usize) {
        let attempts = &self.events[event].report.attempts;
        self.recent.push_back((event, attempts.len() - 1));
        if self.recent.len() > MAX_RECENT
            && let Some((event, at)) = self.recent.pop_front()
            && let Some(old) = self.events[event].report.attempts.get_mut(at)
        {
            old.response = None;
        }
    }

    pub(super) fn end_send(&mut self, id: usize, began: Duration, fault: Option<(Fault, u64)>) {
        self.in_flight -= 1;
        let event = &mut self.events[id];
        event.in_flight = false;
        let first = event.first;
        match (event.report.state, fault) {
            (EventState::Waiting, _) => self.wait_for_retry(id, began),
            (EventState::Delivered, Some((Fault::Duplicate, parameter))) if parameter > 0 => {
                let at = first.saturating_add(Duration::from_millis(parameter));
                self.timers.insert((at, Timer::Duplicate(id, parameter)));
            }
            _ => {}
        }
    }
}

/// Of the rounds that follow `at`, returns the last one until `now` and the first one after it.
fn rounds(at: Duration, now: Duration, every: Duration) -> (Duration, Duration) {
    // A policy may say zero, which would be a round without end.
    let every = every.max(Duration::from_millis(1));
    let missed = now.saturating_sub(at).as_nanos() / every.as_nanos();
    let missed = u32::try_from(missed).unwrap_or(u32::MAX);
    let round = at.saturating_add(every.saturating_mul(missed));
    (round, round.saturating_add(every))
}

/// How to send one event, including its fault.
pub(super) struct Plan {
    pub(super) event: usize,
    pub(super) kind: EventKind,
    pub(super) key: Option<String>,
    pub(super) body: Bytes,
    pub(super) url: String,
    pub(super) secret: Option<Secret>,
    pub(super) fault: Option<Injected>,
    pub(super) is_duplicate: bool,
    pub(super) overtaken: Option<Arc<Notify>>,
}
