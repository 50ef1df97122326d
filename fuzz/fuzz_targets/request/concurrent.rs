//! Deliveries in flight together, polled by hand in the order that the input chooses, and the answers that are
//! possible then.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tower::{Layer, ServiceExt};

use crate::input::{Action, Config, Schedule};
use crate::model::{Authentic, Model, Run, declared};
use crate::service::{Call, Calls, End, Moment, Number, events, webhooks};
use crate::wire::Request;
use crate::{Received, receive};

const IN_FLIGHT_WAIT: Duration = Duration::from_secs(5);
const STORE_TIMEOUT: Duration = Duration::from_secs(2);
const LEASE: Duration = Duration::from_secs(60);
const HANDLER_TIMEOUT: Duration = Duration::from_secs(30);

/// Longer than all limits together.
const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) async fn deliver(config: &Config, requests: &[Request], schedule: &Schedule) {
    let calls = Calls::lasting(&schedule.durations);
    let layer = webhooks(config, schedule.store_yields);
    let runs = layer.runs();
    let service = layer.layer(events(config, &calls));

    let send = |number, request: &Request| {
        let mut request = request.to_http();
        request.extensions_mut().insert(Number(number));
        let response = service.clone().oneshot(request);
        Exchange::new(async { receive(response.await).await }, &calls)
    };
    let numbered = requests.iter().enumerate();
    let mut exchanges: Vec<_> = numbered
        .map(|(number, request)| send(number, request))
        .collect();

    for action in &schedule.actions {
        match *action {
            Action::Poll(number) => {
                let _ = exchanges[number].poll(&mut Context::from_waker(Waker::noop()));
            }
            Action::Disconnect(number) => exchanges[number].disconnect(),
            // Runs whose client has disconnected go on meanwhile.
            Action::Pass(time) => sleep(time).await,
        }
    }

    // The rest by themselves.
    let all = poll_fn(|cx| {
        let all = exchanges.iter_mut().map(|exchange| exchange.poll(cx));
        match all.filter(Poll::is_pending).count() {
            0 => Poll::Ready(()),
            _ => Poll::Pending,
        }
    });
    timeout(PATIENCE, all).await.expect("each is answered");
    runs.drain(PATIENCE).await.expect("each run ends");
    let drained = calls.now();

    // The platform sends all of them again: no key may be stuck.
    for (number, request) in requests.iter().enumerate() {
        let mut retry = send(requests.len() + number, request);
        let retried = timeout(PATIENCE, poll_fn(|cx| retry.poll(cx))).await;
        retried.expect("each retry is answered");
        exchanges.push(retry);
    }

    let model = Model::new(config);
    let traces = exchanges.into_iter().enumerate();
    let traces = traces.map(|(number, exchange)| {
        let request = requests[number % requests.len()].without_pauses();
        Trace {
            body_time: model.body_time(declared(&request).unwrap_or_default()),
            authentic: model.check(&request),
            polls: exchange.polls,
            end: exchange.end.unwrap_or((drained, None)),
            settled: drained,
        }
    });
    let judge = Judge {
        config,
        model: &model,
        store_yields: schedule.store_yields,
        traces: traces.collect(),
        calls: calls.take(),
    };
    judge.calls();
    for number in 0..judge.traces.len() {
        judge.delivery(number);
    }
}

/// A delivery as its client sees it.
struct Exchange<F> {
    response: Option<Pin<Box<F>>>,
    calls: Calls,
    /// When the last two polls began, and the first.
    polls: Polls,
    /// How it ended: with an answer, or because the client disconnected.
    end: Option<(Moment, Option<Received>)>,
}

#[derive(Clone, Copy, Default)]
struct Polls {
    first: Option<Moment>,
    last_but_one: Option<Moment>,
    last: Option<Moment>,
}

impl<F: Future<Output = Received>> Exchange<F> {
    fn new(response: F, calls: &Calls) -> Self {
        Self {
            response: Some(Box::pin(response)),
            calls: calls.clone(),
            polls: Polls::default(),
            end: None,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(response) = &mut self.response else {
            return Poll::Ready(());
        };
        let now = self.calls.now();
        self.polls = Polls {
            first: self.polls.first.or(Some(now)),
            last_but_one: self.polls.last,
            last: Some(now),
        };
        response.as_mut().poll(cx).map(|received| {
            self.response = None;
            self.end = Some((self.calls.now(), Some(received)));
        })
    }

    fn disconnect(&mut self) {
        if self.response.take().is_some() {
            self.end = Some((self.calls.now(), None));
        }
    }
}

/// What became of a delivery.
struct Trace {
    /// The delivery, or the status of its refusal.
    authentic: Result<Authentic, u16>,
    body_time: Duration,
    polls: Polls,
    /// With the answer, unless the client disconnected.
    end: (Moment, Option<Received>),
    /// When all that goes on without a client had ended.
    settled: Moment,
}

impl Trace {
    fn began(&self) -> Option<Moment> {
        self.polls.first
    }

    fn authentic(&self) -> Option<&Authentic> {
        self.authentic.as_ref().ok()
    }

    /// When it held no claim any more.
    fn over(&self) -> Moment {
        match self.end {
            (answered, Some(_)) => answered,
            (_, None) => self.settled,
        }
    }

    fn overlaps(&self, other: &Self) -> bool {
        let (Some(began), Some(other_began)) = (self.began(), other.began()) else {
            return false;
        };
        began.order < other.over().order && other_began.order < self.over().order
    }
}

struct Judge<'a> {
    config: &'a Config,
    model: &'a Model<'a>,
    store_yields: bool,
    traces: Vec<Trace>,
    calls: Vec<Call>,
}

impl Judge<'_> {
    fn of(&self, call: &Call) -> &Authentic {
        let trace = &self.traces[call.delivery];
        trace.authentic().expect("only what is authentic is called")
    }

    /// Whether a claim for the one keeps the other out.
    fn exclude(&self, one: &Authentic, other: &Authentic) -> bool {
        let same_key = one.key.is_some() && one.key == other.key;
        same_key || self.config.replay_guard && one.body == other.body
    }

    /// One run at a time, none after a success, and each with what was delivered.
    fn calls(&self) {
        for (index, call) in self.calls.iter().enumerate() {
            let authentic = self.of(call);
            let (ended, end) = call.end.expect("each call ends");
            let earlier = self.calls[..index].iter();
            let earlier = earlier.filter(|earlier| self.exclude(self.of(earlier), authentic));
            let mut attempts = 1;
            let mut last_attempt = 0;
            for earlier in earlier {
                let (ended, _) = earlier.end.expect("each call ends");
                assert!(ended.order < call.began.order, "two runs at a time");
                assert!(!is_success(earlier), "a run after a success");
                if self.of(earlier).key == authentic.key {
                    attempts += 1;
                    let attempt = earlier.run.as_ref().and_then(|run| run.attempt);
                    last_attempt = attempt.unwrap_or(last_attempt);
                }
            }

            // With the guard, a claim on the key can end before a run.
            let attempt = call.run.as_ref().and_then(|run| run.attempt);
            if let Some(attempt) = attempt {
                assert!(attempt >= attempts && attempt > last_attempt);
                assert!(attempt == attempts || self.config.replay_guard);
                assert!(attempt as usize <= self.traces.len());
            }
            match self.model.unhandled(authentic) {
                Some(status) => {
                    assert_eq!(call.run, None);
                    assert_eq!(end, End::Answered(status));
                }
                None => {
                    let run = Run {
                        kind: authentic.kind.clone(),
                        key: authentic.key.clone(),
                        attempt,
                        body: authentic.body.clone(),
                    };
                    assert_eq!(attempt.is_some(), authentic.key.is_some());
                    assert_eq!(call.run.as_ref(), Some(&run));
                    let can_fail = authentic.kind == "chat-rated" && self.config.failures > 0;
                    match end {
                        End::Answered(200) => {}
                        End::Answered(status) => assert!(can_fail && status == 500),
                        End::Dropped => assert!(ended.at - call.began.at >= HANDLER_TIMEOUT),
                    }
                }
            }
        }
    }

    fn delivery(&self, number: usize) {
        let trace = &self.traces[number];
        let mut calls = self.calls.iter().filter(|call| call.delivery == number);
        let call = calls.next();
        assert!(calls.next().is_none(), "a delivery runs once");
        let (Some(began), (answered, Some(answer))) = (trace.began(), &trace.end) else {
            // Its client disconnected.
            assert!(call.is_none() || trace.began().is_some());
            return;
        };
        let answer = (answer.status.as_u16(), answer.is_replay());

        let authentic = match &trace.authentic {
            Ok(authentic) => authentic,
            Err(status) => {
                assert!(call.is_none());
                assert!(
                    answer == (*status, false) || self.is_late(number, answer, began, *answered)
                );
                return;
            }
        };
        if let Some(call) = call {
            let (ended, end) = call.end.expect("each call ends");
            let expected = match end {
                End::Answered(status) => status,
                End::Dropped => 503,
            };
            // Each confirmation was lost until the lease had expired.
            let is_unconfirmed = is_success(call)
                && self.store_yields
                && answered.at - ended.at >= LEASE
                && answer == (503, false);
            assert!(answer == (expected, false) || is_unconfirmed, "{answer:?}");
            return;
        }
        let is_possible = match answer {
            (200, true) => self.can_replay(authentic, *answered),
            (409, false) => self.can_conflict(number, authentic, *answered),
            (422, false) => self.can_contradict(number, authentic, *answered),
            answer => self.is_late(number, answer, began, *answered),
        };
        assert!(is_possible, "{answer:?} for {number}: {authentic:?}");
    }

    /// The time limit of a body holds while others are polled, too.
    fn is_late(&self, number: usize, answer: (u16, bool), began: Moment, answered: Moment) -> bool {
        answer == (408, false) && answered.at - began.at >= self.traces[number].body_time
    }

    /// The successes that ended before `moment`.
    fn successes(&self, moment: Moment) -> impl Iterator<Item = (&Call, &Authentic)> {
        let calls = self.calls.iter().filter(move |call| {
            let (ended, _) = call.end.expect("each call ends");
            is_success(call) && ended.order < moment.order
        });
        calls.map(|call| (call, self.of(call)))
    }

    fn can_replay(&self, authentic: &Authentic, answered: Moment) -> bool {
        self.successes(answered).any(|(_, done)| {
            let same_key = done.key == authentic.key;
            let same_body = self.config.replay_guard && done.body == authentic.body;
            same_key && (authentic.key.is_some() || same_body)
        })
    }

    /// Another body under the same key, or with the guard the same body under another key.
    fn can_contradict(&self, number: usize, authentic: &Authentic, answered: Moment) -> bool {
        let (reject, guard) = (self.config.reject_changed_bodies, self.config.replay_guard);
        let is_changed = |other: &Authentic| {
            other.key.is_some() && other.key == authentic.key && other.body != authentic.body
        };
        let done = self.successes(answered).any(|(_, done)| {
            let is_replayed = done.body == authentic.body && done.key != authentic.key;
            reject && is_changed(done) || guard && is_replayed
        });
        done || reject && self.others(number).any(is_changed)
    }

    /// The authentic deliveries that overlap with this one.
    fn others(&self, number: usize) -> impl Iterator<Item = &Authentic> {
        let this = &self.traces[number];
        let others = self.traces.iter().enumerate();
        others
            .filter(move |(other, trace)| *other != number && trace.overlaps(this))
            .filter_map(|(_, trace)| trace.authentic())
    }

    /// Another delivery must hold the key, or have held it until it failed.
    fn can_conflict(&self, number: usize, authentic: &Authentic, answered: Moment) -> bool {
        let trace = &self.traces[number];
        let Some(began) = trace.began() else {
            return false;
        };
        let same_key = |other: &Authentic| other.key.is_some() && other.key == authentic.key;

        // The store was asked in this poll, or in the one before.
        let asked = match self.store_yields {
            true => trace.polls.last_but_one,
            false => trace.polls.last,
        };
        // With the guard it is the body that may be waited for, while the key is free.
        let known_by = match self.config.replay_guard {
            true => began,
            false => asked.unwrap_or(began),
        };
        let is_answer_lost = self.store_yields
            && !self.config.replay_guard
            && answered.at - known_by.at >= STORE_TIMEOUT;
        let is_done = self.successes(known_by).any(|(call, done)| {
            let (recorded, answer) = &self.traces[call.delivery].end;
            same_key(done) && answer.is_some() && recorded.order < known_by.order
        });

        // As long as a run has the key, its outcome is waited for.
        let is_held = self.calls.iter().any(|call| {
            let (ended, _) = call.end.expect("each call ends");
            same_key(self.of(call))
                && call.began.order < began.order
                && ended.order > answered.order
        });
        let waited = answered.at - began.at;
        let gave_up_early = is_held && waited < IN_FLIGHT_WAIT;

        (!is_done || is_answer_lost)
            && !gave_up_early
            && self
                .others(number)
                .any(|other| self.exclude(other, authentic))
    }
}

/// Whether a handler succeeded, or discarded the event.
fn is_success(call: &Call) -> bool {
    call.run.is_some() && matches!(call.end, Some((_, End::Answered(200))))
}
