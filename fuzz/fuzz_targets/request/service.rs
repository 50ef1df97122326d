//! The receiver under test, and what its handlers saw.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use tokio::time::{Instant, sleep};
use tower::Service;
use tower_webhook::event::{ChatClosed, ChatRated, MessageCreated};
use tower_webhook::memory::MokaStore;
use tower_webhook::store::{Claim, EventKey, KeyState, Lease, SettleError, Store, StoreError};
use tower_webhook::{
    Delivery, Event, EventRouter, HandlerError, HandlerResult, RawDelivery, Secret, Secrets,
    Verified, WebhookLayer, Webhooks,
};

use crate::input::{Config, SECRETS};
use crate::model::Run;

pub(crate) fn webhooks(config: &Config, store_yields: bool) -> WebhookLayer<Stepwise> {
    let webhooks = match config.secrets {
        0 => Webhooks::dangerously_unsigned(),
        count => {
            let secrets = SECRETS[..count].iter().map(|secret| Secret::new(*secret));
            let secrets = secrets
                .collect::<Result<Vec<_>, _>>()
                .expect("none is empty");
            Webhooks::new(Secrets::new(secrets).expect("there is one at least"))
        }
    };
    let mut webhooks = webhooks.max_body(config.max_body).store(Stepwise {
        store: MokaStore::with_capacity(1000),
        yields: store_yields,
    });
    if config.require_key {
        webhooks = webhooks.require_key();
    }
    if config.reject_changed_bodies {
        webhooks = webhooks.reject_changed_bodies();
    }
    if config.replay_guard {
        webhooks = webhooks.replay_guard();
    }
    if config.is_full {
        webhooks = webhooks.max_buffered(0);
    }
    let (layer, _) = webhooks.into_layer().expect("the defaults are valid");
    layer
}

/// A memory store that can let other deliveries go on before and after each of its steps.
#[derive(Clone)]
pub(crate) struct Stepwise {
    store: MokaStore,
    yields: bool,
}

impl Stepwise {
    async fn pause(&self) {
        let mut paused = !self.yields;
        poll_fn(|cx| {
            if paused {
                return Poll::Ready(());
            }
            paused = true;
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}

impl Store for Stepwise {
    const DURABLE_LEASES: bool = MokaStore::DURABLE_LEASES;

    /// No pause afterwards: a claim that is dropped then would be nobody's, which the contract forbids.
    async fn claim(
        &self,
        id: &EventKey,
        lease: Duration,
        retain: Duration,
    ) -> Result<Claim, StoreError> {
        self.pause().await;
        self.store.claim(id, lease, retain).await
    }

    async fn peek(&self, id: &EventKey) -> Result<KeyState, StoreError> {
        self.pause().await;
        let state = self.store.peek(id).await;
        self.pause().await;
        state
    }

    async fn renew(&self, lease: &Lease, extend: Duration) -> Result<(), SettleError> {
        self.store.renew(lease, extend).await
    }

    async fn complete(&self, lease: &Lease, retain: Duration) -> Result<(), SettleError> {
        self.pause().await;
        let completed = self.store.complete(lease, retain).await;
        self.pause().await;
        completed
    }

    async fn release(&self, lease: &Lease) -> Result<(), SettleError> {
        self.pause().await;
        let released = self.store.release(lease).await;
        self.pause().await;
        released
    }
}

/// Of the platform's seven kinds three have a handler: one may fail at first, and one discards.
pub(crate) fn events(config: &Config, calls: &Calls) -> Observed {
    let mut events = EventRouter::new()
        .on::<ChatRated>(calls.handler(fails_at_first(config.failures)))
        .on::<MessageCreated>(calls.handler(|| Ok(())))
        .on::<ChatClosed>(calls.handler(|| Err(HandlerError::discard("not wanted"))));
    if config.fallback {
        let calls = calls.clone();
        events = events.fallback(move |raw| calls.run(&raw, Ok(())));
    }
    if config.reject_unhandled {
        events = events.reject_unhandled();
    }
    Observed {
        events,
        calls: calls.clone(),
    }
}

fn fails_at_first(failures: usize) -> impl Fn() -> HandlerResult + Send + Sync + 'static {
    let left = AtomicUsize::new(failures);
    move || {
        let fails = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            left.checked_sub(1)
        });
        match fails {
            Ok(_) => Err("not yet".into()),
            Err(_) => Ok(()),
        }
    }
}

/// The number of a delivery, in the extensions of its request.
#[derive(Clone, Copy)]
pub(crate) struct Number(pub(crate) usize);

/// A call of the service behind the layers: one that holds the claims of a delivery.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) delivery: usize,
    pub(crate) began: Moment,
    /// The handler's run, if there is a handler.
    pub(crate) run: Option<Run>,
    pub(crate) end: Option<(Moment, End)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum End {
    Answered(u16),
    /// Dropped before it had an answer.
    Dropped,
}

/// When something happened: the time, and a number by which all that happened is in order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Moment {
    pub(crate) at: Instant,
    pub(crate) order: usize,
}

#[derive(Clone, Default)]
pub(crate) struct Calls(Arc<Mutex<Log>>);

#[derive(Default)]
struct Log {
    calls: Vec<Call>,
    /// The call that is being polled.
    current: usize,
    /// How long the runs to come take.
    durations: Vec<Duration>,
    moments: usize,
}

impl Log {
    fn now(&mut self) -> Moment {
        self.moments += 1;
        Moment {
            at: Instant::now(),
            order: self.moments,
        }
    }
}

impl Calls {
    /// The first run takes the last of `durations`; those beyond take no time.
    pub(crate) fn lasting(durations: &[Duration]) -> Self {
        let calls = Self::default();
        calls.log().durations = durations.to_vec();
        calls
    }

    pub(crate) fn now(&self) -> Moment {
        self.log().now()
    }

    pub(crate) fn take(&self) -> Vec<Call> {
        std::mem::take(&mut self.log().calls)
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.0.lock().expect("one thread")
    }

    fn handler<E: Event, F>(&self, result: F) -> impl tower_webhook::Handler<E> + use<E, F>
    where
        F: Fn() -> HandlerResult + Send + Sync + 'static,
    {
        let calls = self.clone();
        move |delivery: Delivery<E>| calls.run(delivery.raw(), result())
    }

    fn run(
        &self,
        raw: &RawDelivery,
        result: HandlerResult,
    ) -> impl Future<Output = HandlerResult> + Send + use<> {
        let mut log = self.log();
        let current = log.current;
        let duration = log.durations.pop().unwrap_or_default();
        let run = log.calls[current].run.replace(Run {
            kind: raw.kind().as_str().to_owned(),
            key: raw.key().map(|key| key.as_bytes().to_owned()),
            attempt: raw.attempt().map(u32::from),
            body: raw.body().to_vec(),
        });
        assert_eq!(run, None, "one handler runs for an event");
        async move {
            if !duration.is_zero() {
                sleep(duration).await;
            }
            result
        }
    }
}

/// The router, with a record of its calls.
#[derive(Clone)]
pub(crate) struct Observed {
    events: EventRouter,
    calls: Calls,
}

impl Service<Request<Verified>> for Observed {
    type Response = <EventRouter as Service<Request<Verified>>>::Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<Request<Verified>>::poll_ready(&mut self.events, cx)
    }

    fn call(&mut self, request: Request<Verified>) -> Self::Future {
        let number = request.extensions().get::<Number>();
        let delivery = number.expect("each request has a number").0;
        let index = {
            let mut log = self.calls.log();
            let call = Call {
                delivery,
                began: log.now(),
                run: None,
                end: None,
            };
            log.calls.push(call);
            log.current = log.calls.len() - 1;
            log.current
        };
        let open = Open {
            calls: self.calls.clone(),
            index,
        };
        let mut response = Box::pin(self.events.call(request));
        Box::pin(async move {
            let Ok(response) = poll_fn(|cx| {
                open.calls.log().current = index;
                response.as_mut().poll(cx)
            })
            .await;
            open.end(End::Answered(Response::status(&response).as_u16()));
            Ok(response)
        })
    }
}

/// A call that goes on until this is dropped.
struct Open {
    calls: Calls,
    index: usize,
}

impl Open {
    fn end(&self, end: End) {
        let mut log = self.calls.log();
        let now = log.now();
        if let Some(call) = log.calls.get_mut(self.index) {
            call.end.get_or_insert((now, end));
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.end(End::Dropped);
    }
}
