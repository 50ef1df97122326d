//! The engine: what is due, the attempts under way, and what follows from their answers.

use std::collections::{BTreeSet, VecDeque};
use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use futures_util::FutureExt;
use http::Request;
use http::header::CONTENT_TYPE;
use tokio::sync::{Notify, broadcast, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::Settings;
use super::chat::Facts;
use super::clock::Clock;
use super::fault::{Fault, Injected, chance};
use super::portal::Portal;
use super::report::{Attempt, AttemptId, EventId, EventReport, EventState, Outcome};
use super::target::{Body, Target};
use crate::error::Chain;
use crate::event::EventKind;
use crate::event::SenderPolicy;
use crate::signature::Secret;

/// What the handles of a sandbox share with its engine.
pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) attempts: broadcast::Sender<Attempt>,
    target: Target,
    state: Mutex<State>,
    /// Wakes the engine.
    changed: Notify,
    /// Wakes those who wait for the engine.
    progress: watch::Sender<()>,
}

impl Shared {
    pub(super) fn new(target: Target, settings: Settings) -> Self {
        let state = State {
            clock: Clock::new(settings.start, settings.speed),
            portal: Portal::new(settings.policy),
            chats: Vec::new(),
            events: Vec::new(),
            injected: VecDeque::new(),
            rng: Rng::with_seed(settings.seed),
            rate_after: settings.rate_after,
            policy: settings.policy,
            timers: BTreeSet::new(),
            due: VecDeque::new(),
            in_flight: 0,
            next_attempt: 0,
        };
        Self {
            settings,
            attempts: broadcast::Sender::new(1024),
            target,
            state: Mutex::new(state),
            changed: Notify::new(),
            progress: watch::Sender::new(()),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.lock());
        self.changed.notify_one();
        self.progress.send_replace(());
        result
    }

    pub(super) async fn until(&self, reached: impl Fn(&State) -> bool) {
        let mut progress = self.progress.subscribe();
        while !reached(&self.lock()) {
            // The sender lives in `self`.
            let _ = progress.changed().await;
        }
    }

    /// Sends what is due, for as long as it is polled.
    pub(super) async fn run(self: Arc<Self>) {
        let mut sends = JoinSet::new();
        loop {
            let next = {
                let mut state = self.lock();
                for send in state.take_due(&self.settings) {
                    sends.spawn(deliver(Arc::clone(&self), send));
                }
                let next = state.timers.first();
                next.map(|(at, _)| state.clock.instant(*at))
            };
            self.progress.send_replace(());
            let timer = async {
                match next {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.changed.notified() => {}
                Some(_) = sends.join_next() => {}
                () = timer => {}
            }
        }
    }
}

/// The platform at one moment. All times are counted from the start of its clock.
pub(super) struct State {
    pub(super) clock: Clock,
    pub(super) portal: Portal,
    pub(super) chats: Vec<ChatState>,
    pub(super) injected: VecDeque<Fault>,
    pub(super) rng: Rng,
    pub(super) rate_after: Duration,
    events: Vec<EventRecord>,
    policy: SenderPolicy,
    timers: BTreeSet<(Duration, Timer)>,
    due: VecDeque<Due>,
    in_flight: usize,
    next_attempt: u64,
}

pub(super) struct ChatState {
    pub(super) facts: Facts,
    pub(super) rate_at: Option<Duration>,
    undelivered: BTreeSet<usize>,
    /// When all that is undelivered is tried again.
    retry_at: Option<Duration>,
    /// Tells that an attempt has ended to those that are held back.
    overtaken: Arc<Notify>,
}

impl ChatState {
    pub(super) fn id(&self) -> String {
        self.facts.id()
    }
}

struct EventRecord {
    report: EventReport,
    /// `None` for a test event.
    chat: Option<usize>,
    /// When the first attempt began; before that, when the event arose.
    first: Duration,
    sends: u64,
    in_flight: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// Of a chat.
    Retry(usize),
    /// Of a chat.
    Rate(usize),
    /// Of an event, which goes back to this fault.
    Duplicate(usize, u64),
}

/// An event that is to be sent, and the fault that it is a duplicate by.
struct Due(usize, Option<Injected>);

impl State {
    pub(super) fn add_chat(&mut self, facts: Facts) -> usize {
        self.chats.push(ChatState {
            facts,
            rate_at: None,
            undelivered: BTreeSet::new(),
            retry_at: None,
            overtaken: Arc::default(),
        });
        self.chats.len() - 1
    }

    pub(super) fn emit(&mut self, kind: EventKind, chat: usize, body: Bytes) -> EventId {
        let key = format!("{:032x}", self.rng.u128(..));
        let delivers = self.portal.delivers(&kind).is_some();
        let id = self.add_event(kind, Some(chat), Some(key), body, delivers);
        if delivers {
            self.chats[chat].undelivered.insert(id.0);
        }
        id
    }

    /// Spec 6, rule 5: sent once, whether or not the webhook is active, and without a key.
    pub(super) fn emit_test(&mut self, kind: EventKind, body: Bytes) -> EventId {
        let reachable = self.portal.reachable(&kind).is_some();
        self.add_event(kind, None, None, body, reachable)
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
            self.due.push_back(Due(id.0, None));
        }
        self.events.push(EventRecord {
            report: EventReport {
                id,
                kind,
                chat: chat.map(|chat| self.chats[chat].id()),
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
            first: now,
            sends: 0,
            in_flight: false,
        });
        id
    }

    pub(super) fn schedule_rating(&mut self, chat: usize, at: Option<Duration>) {
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

    /// Tries an event now instead of at its next retry. Tells whether there is something to try.
    pub(super) fn retry_now(&mut self, EventId(id): EventId) -> bool {
        let waits = self.events.get(id).is_some_and(|event| {
            let waits = event.report.state == EventState::Waiting && !event.in_flight;
            waits && self.portal.delivers(&event.report.kind).is_some()
        });
        if waits && !self.due.iter().any(|due| due.0 == id) {
            self.due.push_back(Due(id, None));
        }
        waits
    }

    /// Whether nothing is under way or due now.
    pub(super) fn is_idle(&self) -> bool {
        let due = self.timers.first().map(|(at, _)| *at);
        let later = due.is_none_or(|at| at > self.clock.now());
        later && self.due.is_empty() && self.in_flight == 0
    }

    /// Whether nothing will happen by itself any more.
    pub(super) fn is_finished(&self) -> bool {
        self.timers.is_empty() && self.due.is_empty() && self.in_flight == 0
    }

    pub(super) fn reports(&self) -> impl DoubleEndedIterator<Item = EventReport> {
        self.events.iter().map(|event| self.report(event))
    }

    pub(super) fn report_of(&self, EventId(id): EventId) -> Option<EventReport> {
        self.events.get(id).map(|event| self.report(event))
    }

    fn report(&self, event: &EventRecord) -> EventReport {
        let mut report = event.report.clone();
        let retry_at = event.chat.and_then(|chat| self.chats[chat].retry_at);
        report.next_retry = retry_at
            .filter(|_| report.state == EventState::Waiting)
            .map(|at| self.clock.timestamp(at));
        report
    }

    fn take_due(&mut self, settings: &Settings) -> Vec<Plan> {
        let now = self.clock.now();
        while let Some(&(at, timer)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            match timer {
                Timer::Retry(chat) => self.retry(chat, at, now),
                Timer::Rate(chat) => {
                    self.chats[chat].rate_at = None;
                    self.rate_by_itself(chat);
                }
                Timer::Duplicate(event, parameter) => {
                    let fault = Injected {
                        fault: Fault::Duplicate,
                        parameter,
                    };
                    self.due.push_back(Due(event, Some(fault)));
                }
            }
        }
        let due = std::mem::take(&mut self.due);
        due.into_iter()
            .filter_map(|due| self.plan(due, settings))
            .collect()
    }

    /// Tries all that is undelivered in a chat again (Spec 6, rule 3).
    fn retry(&mut self, chat: usize, at: Duration, now: Duration) {
        // Should the clock have jumped, one round stands for those that it jumped over.
        let (round, next) = rounds(at, now, self.policy.retry_every);
        self.chats[chat].retry_at = None;
        for id in self.chats[chat].undelivered.clone() {
            let event = &self.events[id];
            let last = event.first.saturating_add(self.policy.retry_for);
            if event.in_flight {
                continue;
            } else if round <= last && self.portal.delivers(&event.report.kind).is_some() {
                self.due.push_back(Due(id, None));
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

    fn leave_queue(&mut self, chat: usize, id: usize) {
        self.chats[chat].undelivered.remove(&id);
        if self.chats[chat].undelivered.is_empty() {
            self.schedule_retry(chat, None);
        }
    }

    /// Makes sure that what waits is tried again, or is lost.
    fn wait_for_retry(&mut self, id: usize, began: Duration) {
        let event = &self.events[id];
        let Some(chat) = event.chat else {
            return self.lose(id);
        };
        let last = event.first.saturating_add(self.policy.retry_for);
        let next = match self.chats[chat].retry_at {
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

    fn plan(&mut self, Due(id, duplicate): Due, settings: &Settings) -> Option<Plan> {
        let event = &mut self.events[id];
        let is_due = match duplicate {
            None => event.report.state == EventState::Waiting && !event.in_flight,
            Some(_) => event.report.state == EventState::Delivered,
        };
        if !is_due {
            return None;
        }
        let webhook = match event.chat {
            Some(_) => self.portal.delivers(&event.report.kind),
            None => self.portal.reachable(&event.report.kind),
        };
        let Some(webhook) = webhook.cloned() else {
            // Disabled since it arose: it waits.
            if duplicate.is_none() {
                let now = self.clock.now();
                self.wait_for_retry(id, now);
            }
            return None;
        };
        let mut rng = chance(settings.seed, id as u64, event.sends);
        let signed = webhook.secret.is_some();
        let fault = match duplicate {
            Some(_) => None,
            None if event.chat.is_none() => None,
            None => match self.injected.pop_front() {
                Some(fault) => Some(fault),
                None => settings.faults.draw(&mut rng, signed),
            },
        };
        let body = event.report.body.clone();
        let fault = fault.map(|fault| fault.with_parameter(&mut rng, body.len(), &settings.policy));
        event.sends += 1;
        event.in_flight = true;
        self.in_flight += 1;
        Some(Plan {
            event: id,
            kind: event.report.kind.clone(),
            key: event.report.key.clone(),
            body,
            url: webhook.url,
            secret: webhook.secret,
            fault: fault.or(duplicate),
            is_duplicate: duplicate.is_some(),
            overtaken: event
                .chat
                .map(|chat| Arc::clone(&self.chats[chat].overtaken)),
        })
    }

    fn begin_attempt(&mut self, event: usize) -> (AttemptId, Duration) {
        let id = AttemptId(self.next_attempt);
        self.next_attempt += 1;
        let now = self.clock.now();
        let event = &mut self.events[event];
        if event.report.attempts.is_empty() {
            event.first = event.first.max(now);
        }
        (id, now)
    }

    fn end_attempt(&mut self, attempt: &Attempt) {
        let EventId(id) = attempt.event;
        let now = self.clock.now();
        let event = &mut self.events[id];
        event.report.attempts.push(attempt.clone());
        if attempt.outcome.is_delivered() {
            if event.report.state == EventState::Waiting {
                event.report.state = EventState::Delivered;
            }
            if let Some(chat) = event.chat {
                self.leave_queue(chat, id);
            }
        } else if event.chat.is_some() {
            let kind = event.report.kind.clone();
            self.portal.failed(&kind, now);
        }
    }

    fn end_send(&mut self, id: usize, began: Duration, fault: Option<Injected>) {
        self.in_flight -= 1;
        let event = &mut self.events[id];
        event.in_flight = false;
        let first = event.first;
        match (event.report.state, fault) {
            (EventState::Waiting, _) => self.wait_for_retry(id, began),
            (
                EventState::Delivered,
                Some(Injected {
                    fault: Fault::Duplicate,
                    parameter,
                }),
            ) if parameter > 0 => {
                let at = first.saturating_add(Duration::from_millis(parameter));
                self.timers.insert((at, Timer::Duplicate(id, parameter)));
            }
            _ => {}
        }
    }
}

/// Of the rounds that follow `at`: the last one until `now`, and the first one after it.
fn rounds(at: Duration, now: Duration, every: Duration) -> (Duration, Duration) {
    let every = every.max(Duration::from_millis(1));
    let missed = now.saturating_sub(at).as_nanos() / every.as_nanos();
    let missed = u32::try_from(missed).unwrap_or(u32::MAX);
    let round = at.saturating_add(every.saturating_mul(missed));
    (round, round.saturating_add(every))
}

/// One attempt at an event, with whatever goes wrong around it.
struct Plan {
    event: usize,
    kind: EventKind,
    key: Option<String>,
    body: Bytes,
    url: String,
    secret: Option<Secret>,
    fault: Option<Injected>,
    is_duplicate: bool,
    overtaken: Option<Arc<Notify>>,
}

/// How long an attempt is held back at most.
const HOLD: Duration = Duration::from_secs(60);

async fn deliver(shared: Arc<Shared>, send: Plan) {
    let fault = send.fault.filter(|_| !send.is_duplicate);
    match (fault, &send.overtaken) {
        (
            Some(Injected {
                fault: Fault::Delay,
                parameter,
            }),
            _,
        ) => {
            sleep(Duration::from_millis(parameter)).await;
        }
        (
            Some(Injected {
                fault: Fault::Reorder,
                ..
            }),
            Some(overtaken),
        ) => {
            let _ = timeout(HOLD, overtaken.notified()).await;
        }
        _ => {}
    }

    let began = shared.lock().clock.now();
    let genuine = attempt(&shared, &send, send.body.clone());
    match fault.map(|injected| (injected.fault, injected.parameter)) {
        Some((Fault::ConcurrentDuplicate, _)) => {
            let duplicate = attempt(&shared, &send, send.body.clone());
            tokio::join!(genuine, duplicate);
        }
        Some((Fault::Duplicate, 0)) => {
            genuine.await;
            attempt(&shared, &send, send.body.clone()).await;
        }
        Some((Fault::OtherBody, _)) => {
            if genuine.await {
                attempt(&shared, &send, other_body(&send.body)).await;
            }
        }
        _ => {
            genuine.await;
        }
    }
    shared.change(|state| state.end_send(send.event, began, fault));
    if let Some(overtaken) = &send.overtaken {
        overtaken.notify_waiters();
    }
}

/// Still an object, and longer.
fn other_body(body: &Bytes) -> Bytes {
    match body.strip_suffix(b"}") {
        Some(start) => [start, br#","other":true}"#].concat().into(),
        None => [body, &b" "[..]].concat().into(),
    }
}

/// Sends one request, and tells whether the platform takes the event for delivered.
async fn attempt(shared: &Shared, send: &Plan, body: Bytes) -> bool {
    let (id, at) = shared.lock().begin_attempt(send.event);
    let began = Instant::now();
    let outcome = match request(shared, send, body, id) {
        Ok(request) => exchange(shared, request, send.fault).await,
        Err(error) => Outcome::Failed(Chain(&error).to_string()),
    };
    let mut state = shared.lock();
    let attempt = Attempt {
        id,
        event: EventId(send.event),
        at: state.clock.timestamp(at),
        took: began.elapsed(),
        fault: send.fault,
        outcome,
    };
    state.end_attempt(&attempt);
    drop(state);
    let delivered = attempt.outcome.is_delivered();
    // Nobody has to listen.
    let _ = shared.attempts.send(attempt);
    delivered
}

fn request(
    shared: &Shared,
    send: &Plan,
    body: Bytes,
    id: AttemptId,
) -> Result<Request<Body>, http::Error> {
    let names = &shared.settings.header_names;
    let fault = send
        .fault
        .map(|injected| (injected.fault, injected.parameter));
    let mut request = Request::post(&send.url)
        .header(CONTENT_TYPE, "application/json")
        .header(&names.event, send.kind.as_str())
        .extension(id);
    if let Some(key) = &send.key {
        request = request.header(&names.key, key);
    }
    if let Some(secret) = &send.secret {
        let mut signature = secret.sign(&body);
        if let Some((Fault::WrongSecret, _)) = fault {
            // It has the form of a signature, and is none of this body.
            signature = secret.sign(signature.as_bytes());
        }
        request = request.header(&names.signature, signature);
    }
    let place = fault.map(|(_, parameter)| usize::try_from(parameter).unwrap_or(usize::MAX));
    let body = match (fault, place) {
        (Some((Fault::Tamper, _)), Some(place)) => {
            let mut bytes = Vec::from(body);
            if let Some(byte) = bytes.get_mut(place) {
                *byte ^= 1;
            }
            Body::new(bytes.into(), None)
        }
        (Some((Fault::TruncateBody, _)), place) => Body::new(body, place),
        _ => Body::new(body, None),
    };
    request.body(body)
}

async fn exchange(shared: &Shared, request: Request<Body>, fault: Option<Injected>) -> Outcome {
    let fault = fault.map(|injected| (injected.fault, injected.parameter));
    let polls = match fault {
        Some((Fault::Disconnect, polls)) => polls,
        _ => u64::MAX,
    };
    let response = AssertUnwindSafe((shared.target)(request)).catch_unwind();
    match timeout(shared.settings.attempt_timeout, at_most(polls, response)).await {
        Err(_) => Outcome::TimedOut,
        Ok(None) => Outcome::Withheld(None),
        Ok(Some(Ok(Ok(status)))) => match fault {
            Some((Fault::DropResponse | Fault::TruncateBody | Fault::Disconnect, _)) => {
                Outcome::Withheld(Some(status))
            }
            _ => Outcome::Answered(status),
        },
        Ok(Some(Ok(Err(_)))) if matches!(fault, Some((Fault::TruncateBody, _))) => {
            Outcome::Withheld(None)
        }
        Ok(Some(Ok(Err(error)))) => Outcome::Failed(Chain(error.as_ref()).to_string()),
        Ok(Some(Err(_))) => Outcome::Failed("the service panicked".to_owned()),
    }
}

/// Polls a future this often, and drops it then.
async fn at_most<F: Future>(mut polls: u64, future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => {
            polls -= 1;
            match polls {
                0 => Poll::Ready(None),
                _ => Poll::Pending,
            }
        }
    })
    .await
}
