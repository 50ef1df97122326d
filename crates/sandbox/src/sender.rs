//! The engine: sends what is due, with the faults of each attempt, and reports how it ended.

use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderValue, Request, StatusCode};
use tokio::sync::{Notify, broadcast, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tower_webhook::telemetry::Chain;
use tower_webhook::{IdempotencyKey, RawDelivery};

use super::fault::{Fault, Injected};
use super::lock;
use super::report::{Attempt, AttemptId, AttemptResponse, AttemptResult, EventId};
use super::settings::Settings;
use super::state::{Plan, State};
use super::target::{Answer, Body, BoxFuture, Target};

/// The state that the handles of a sandbox share with its engine.
pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) attempts: broadcast::Sender<Attempt>,
    target: Target,
    state: Mutex<State>,
    /// Wakes the engine.
    changed: Notify,
    /// Wakes the tasks that wait for the engine.
    progress: watch::Sender<()>,
}

impl Shared {
    pub(super) fn new(target: Target, settings: Settings) -> Self {
        Self {
            state: Mutex::new(State::new(&settings)),
            settings,
            attempts: broadcast::Sender::new(1024),
            target,
            changed: Notify::new(),
            progress: watch::Sender::new(()),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
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
            // It cannot fail: the other end is in `self`.
            let _ = progress.changed().await;
        }
    }

    /// Runs until it is dropped, which cancels the attempts in progress.
    pub(super) async fn run(self: Arc<Self>) {
        let mut sends = JoinSet::new();
        loop {
            let next = {
                let mut state = self.lock();
                for plan in state.take_due(&self.settings) {
                    sends.spawn(deliver(Arc::clone(&self), plan));
                }
                state.next_timer()
            };
            // An event that was due may have been lost or rescheduled without an attempt.
            self.progress.send_replace(());
            let timer = async {
                match next {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // In this order on every run, so that a run with the same seed repeats exactly.
                biased;
                () = self.changed.notified() => {}
                Some(_) = sends.join_next() => {}
                () = timer => {}
            }
        }
    }
}

/// How long [`Fault::Reorder`] holds an attempt back at most: there may be no later event to wait for.
const HOLD: Duration = Duration::from_secs(60);

/// Sends an event as planned, and once more if its fault says so.
async fn deliver(shared: Arc<Shared>, plan: Plan) {
    // A duplicate only reports the fault that caused it.
    let fault = plan.fault.filter(|_| !plan.is_duplicate);
    let fault = fault.map(Injected::parts);
    match (fault, &plan.overtaken) {
        (Some((Fault::Delay, millis)), _) => sleep(Duration::from_millis(millis)).await,
        (Some((Fault::Reorder, _)), Some(overtaken)) => {
            let _ = timeout(HOLD, overtaken.notified()).await;
        }
        _ => {}
    }

    // After the delay: retries are counted from the time at which the request is sent.
    let began = shared.lock().clock.now();
    let genuine = attempt(&shared, &plan, plan.body.clone());
    match fault {
        Some((Fault::ConcurrentDuplicate, _)) => {
            let duplicate = attempt(&shared, &plan, plan.body.clone());
            tokio::join!(genuine, duplicate);
        }
        Some((Fault::Duplicate, 0)) => {
            genuine.await;
            attempt(&shared, &plan, plan.body.clone()).await;
        }
        Some((Fault::OtherBody, _)) => {
            if genuine.await {
                attempt(&shared, &plan, other_body(&plan.body)).await;
            }
        }
        _ => {
            genuine.await;
        }
    }
    shared.change(|state| state.end_send(plan.event, began, fault));
    if let Some(overtaken) = &plan.overtaken {
        overtaken.notify_waiters();
    }
}

/// Returns another body that is a JSON object too, so that only its bytes differ.
fn other_body(body: &Bytes) -> Bytes {
    match body.strip_suffix(b"}") {
        Some(start) => [start, br#","other":true}"#].concat().into(),
        None => [body, &b" "[..]].concat().into(),
    }
}

/// Sends one request, and returns whether the platform considers the event delivered.
async fn attempt(shared: &Shared, plan: &Plan, body: Bytes) -> bool {
    let (id, at) = shared.lock().begin_attempt(plan.event);
    let began = Instant::now();
    let ((result, reason), response) = match request(shared, plan, body, id) {
        Ok(request) => exchange(shared, request, plan.fault).await,
        Err(error) => {
            let failed = AttemptResult::Failed(Chain(&error).to_string());
            ((failed, None), None)
        }
    };
    let took = began.elapsed();
    let response = match response {
        Some(response) => Some(Arc::new(response.await)),
        None => None,
    };
    let mut state = shared.lock();
    let attempt = Attempt {
        id,
        event: EventId(plan.event),
        at: state.clock.timestamp(at),
        took,
        fault: plan.fault,
        result,
        reason,
        response,
    };
    state.end_attempt(&attempt);
    // Not held while subscribers are woken: they may ask for the event at once.
    drop(state);
    let delivered = attempt.result.is_delivered();
    // It fails if there is no subscriber.
    let _ = shared.attempts.send(attempt);
    delivered
}

/// Builds the request of Spec 4.2, with the faults that change its bytes.
fn request(
    shared: &Shared,
    plan: &Plan,
    body: Bytes,
    id: AttemptId,
) -> Result<Request<Body>, http::Error> {
    let fault = plan.fault.map(Injected::parts);
    let key = plan.key.as_deref().map(HeaderValue::from_str).transpose()?;
    let signed = match fault {
        // A well-formed signature of something else: it must fail in the comparison, not in a check of its form.
        Some((Fault::WrongSecret, _)) => [&body[..], b" of another body"].concat().into(),
        _ => body.clone(),
    };
    let delivery =
        RawDelivery::new(plan.kind.clone(), signed).with_key(key.and_then(IdempotencyKey::new));
    let sender = &shared.settings.sender;
    let mut request = Request::post(&plan.url).extension(id);
    if let Some(headers) = request.headers_mut() {
        *headers = match &plan.secret {
            Some(secret) => sender.sign(secret, &delivery).unwrap_or_default(),
            None => sender.unsigned(&delivery),
        };
    }
    let place = fault.map(|(_, parameter)| usize::try_from(parameter).unwrap_or(usize::MAX));
    let body = match (fault, place) {
        (Some((Fault::Tamper, _)), Some(place)) => {
            let mut bytes = Vec::from(body);
            if let Some(byte) = bytes.get_mut(place) {
                // After signing, so that the signature no longer matches.
                *byte ^= 1;
            }
            Body::new(bytes.into(), None)
        }
        (Some((Fault::TruncateBody, _)), place) => Body::new(body, place),
        _ => Body::new(body, None),
    };
    request.body(body)
}

/// Sends the request, and returns how the attempt ended for the platform, with the reason that the receiver
/// gave, and the rest of the response.
async fn exchange(
    shared: &Shared,
    request: Request<Body>,
    fault: Option<Injected>,
) -> (
    (AttemptResult, Option<String>),
    Option<BoxFuture<AttemptResponse>>,
) {
    let fault = fault.map(Injected::parts);
    let polls = match fault {
        Some((Fault::Disconnect, polls)) => polls,
        _ => u64::MAX,
    };
    // A receiver in process may panic. Its service is a clone that is dropped with the future, so no
    // broken state is used again.
    let response = AssertUnwindSafe((shared.target)(request)).catch_unwind();
    let timeout = timeout(shared.settings.attempt_timeout, at_most(polls, response));
    let result = match timeout.await {
        Err(_) => AttemptResult::TimedOut,
        Ok(None) => AttemptResult::Withheld(None),
        Ok(Some(Ok(Ok(Answer {
            status,
            reason,
            response,
        })))) => {
            let result = match fault {
                Some((Fault::DropResponse | Fault::TruncateBody | Fault::Disconnect, _)) => {
                    AttemptResult::Withheld(Some(status))
                }
                _ if status.is_success() && status != StatusCode::OK && shared.lock().strict => {
                    AttemptResult::NotAccepted(status)
                }
                _ => AttemptResult::Answered(status),
            };
            return ((result, reason), response);
        }
        Ok(Some(Ok(Err(_)))) if matches!(fault, Some((Fault::TruncateBody, _))) => {
            AttemptResult::Withheld(None)
        }
        Ok(Some(Ok(Err(error)))) => AttemptResult::Failed(Chain(error.as_ref()).to_string()),
        Ok(Some(Err(_))) => AttemptResult::Failed("the service panicked".to_owned()),
    };
    ((result, None), None)
}

/// Polls a future at most `polls` times, and then drops it: the client has disconnected.
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
