//! What the tests of runs and of sockets share.

#![allow(dead_code)] // Every test crate uses a part of it.

pub(crate) mod net;
pub(crate) mod process;
mod second_subscriber;

use std::fmt;
use std::future::pending;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::Full;
use tokio::time::{Instant, sleep};
use tower::{Service, ServiceExt};
use tower_webhook::store::{
    Claim, EventKey, KeyState, Lease, MokaStore, SettleError, Store, StoreError, StoreErrorKind,
};
use tower_webhook::{ResponseBody, Secret};
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::util::SubscriberInitExt;

pub(crate) const BODY: &str = r#"{"id":"c-1","rating":1}"#;

pub(crate) fn secret() -> Secret {
    Secret::new("the tests' secret").unwrap()
}

/// A signed `chat-rated`.
pub(crate) fn delivery(key: &str) -> Request<Full<Bytes>> {
    Request::post("/")
        .header(CONTENT_TYPE, "application/json")
        .header("x-service-event", "chat-rated")
        .header("x-service-hmac-sha256", secret().sign(BODY.as_bytes()))
        .header("idempotency-key", key)
        .body(Full::from(BODY))
        .unwrap()
}

/// Delivers one event and tells the answer.
pub(crate) async fn deliver<S, B, E: fmt::Debug>(service: &S, key: &str) -> Answered
where
    S: Service<Request<Full<Bytes>>, Response = Response<ResponseBody<B>>, Error = E> + Clone,
{
    let response = service.clone().oneshot(delivery(key)).await.unwrap();
    Answered {
        status: response.status(),
        headers: response.headers().clone(),
    }
}

/// The head of an answer.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
}

impl Answered {
    pub(crate) fn is_replay(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }

    pub(crate) fn retry_after(&self) -> Option<u64> {
        let value = self.headers.get(RETRY_AFTER)?;
        Some(value.to_str().unwrap().parse().unwrap())
    }
}

/// Asserts that the answer is a 200 that was handled now.
#[track_caller]
pub(crate) fn assert_handled(answered: &Answered) {
    assert_eq!(answered.status, StatusCode::OK);
    assert!(!answered.is_replay(), "it was handled before");
}

/// Asserts that the answer is the 200 of a key that is done.
#[track_caller]
pub(crate) fn assert_replayed(answered: &Answered) {
    assert_eq!(answered.status, StatusCode::OK);
    assert!(answered.is_replay(), "it was not handled before");
}

/// Waits until something is so, which it must be before long.
#[track_caller]
pub(crate) fn eventually(what: &str, holds: impl Fn() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let give_up = Instant::now() + Duration::from_secs(20);
        while !holds() {
            assert!(Instant::now() < give_up, "never: {what} ({caller})");
            sleep(Duration::from_millis(5)).await;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Claim,
    Peek,
    Renew,
    Complete,
    Release,
}

/// An operation that a [`Scripted`] store was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) op: Op,
    /// Counted from 1, among those of the same kind.
    pub(crate) nth: usize,
    pub(crate) at: Instant,
}

/// What happens instead of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    Error,
    Hang,
    /// It is done after so long.
    Late(Duration),
    /// It takes effect, and fails all the same. For completions only.
    LostAnswer,
}

/// A store that works as a script says, over a [`MokaStore`] that knows the truth. Its leases are
/// such as outlive the process, unless `OUTLIVE` is false.
pub(crate) struct Scripted<const OUTLIVE: bool = true> {
    truth: MokaStore,
    shared: Arc<Shared>,
}

struct Shared {
    script: Box<dyn Fn(Call) -> Fault + Send + Sync>,
    calls: Mutex<Vec<Call>>,
    /// What every lease really lasts, as on a server whose clock runs fast.
    real_lease: Option<Duration>,
    /// In the order of their claims.
    leases: Mutex<Vec<Lease>>,
}

impl Scripted<true> {
    pub(crate) fn new(script: impl Fn(Call) -> Fault + Send + Sync + 'static) -> Self {
        Self::with(script, None)
    }

    pub(crate) fn with_real_lease(lease: Duration) -> Self {
        Self::with(|_| Fault::None, Some(lease))
    }
}

impl<const OUTLIVE: bool> Scripted<OUTLIVE> {
    pub(crate) fn with(
        script: impl Fn(Call) -> Fault + Send + Sync + 'static,
        real_lease: Option<Duration>,
    ) -> Self {
        Self {
            truth: MokaStore::new(),
            shared: Arc::new(Shared {
                script: Box::new(script),
                calls: Mutex::default(),
                real_lease,
                leases: Mutex::default(),
            }),
        }
    }

    /// The calls of one kind so far.
    pub(crate) fn calls(&self, op: Op) -> Vec<Call> {
        let calls = self.shared.calls.lock().unwrap();
        calls.iter().filter(|call| call.op == op).copied().collect()
    }

    /// Ends a lease, counted from 0, behind its run's back.
    pub(crate) async fn end_lease(&self, nth: usize) {
        let lease = self.shared.leases.lock().unwrap()[nth].clone();
        self.truth.release(&lease).await.unwrap();
    }

    /// What is true of a key, whatever the script says.
    pub(crate) async fn state(&self, key: &str) -> KeyState {
        let id = EventKey::new("", key.as_bytes(), b"");
        self.truth.peek(&id).await.unwrap()
    }

    /// Whether the answer is to be lost.
    async fn call(&self, op: Op) -> Result<bool, StoreError> {
        let call = {
            let mut calls = self.shared.calls.lock().unwrap();
            let nth = 1 + calls.iter().filter(|call| call.op == op).count();
            let at = Instant::now();
            calls.push(Call { op, nth, at });
            Call { op, nth, at }
        };
        match (self.shared.script)(call) {
            Fault::None => Ok(false),
            Fault::Late(by) => {
                sleep(by).await;
                Ok(false)
            }
            Fault::LostAnswer => Ok(true),
            Fault::Error => Err(unavailable()),
            Fault::Hang => pending().await,
        }
    }

    fn lease(&self, asked: Duration) -> Duration {
        self.shared.real_lease.unwrap_or(asked)
    }
}

impl<const OUTLIVE: bool> Clone for Scripted<OUTLIVE> {
    fn clone(&self) -> Self {
        Self {
            truth: self.truth.clone(),
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<const OUTLIVE: bool> Store for Scripted<OUTLIVE> {
    const DURABLE_LEASES: bool = OUTLIVE;

    async fn claim(
        &self,
        id: &EventKey,
        lease: Duration,
        retain: Duration,
    ) -> Result<Claim, StoreError> {
        self.call(Op::Claim).await?;
        let claim = self.truth.claim(id, self.lease(lease), retain).await?;
        if let Claim::Acquired(lease) = &claim {
            self.shared.leases.lock().unwrap().push(lease.clone());
        }
        Ok(claim)
    }

    async fn peek(&self, id: &EventKey) -> Result<KeyState, StoreError> {
        self.call(Op::Peek).await?;
        self.truth.peek(id).await
    }

    async fn renew(&self, lease: &Lease, extend: Duration) -> Result<(), SettleError> {
        self.call(Op::Renew).await?;
        self.truth.renew(lease, self.lease(extend)).await
    }

    async fn complete(&self, lease: &Lease, retain: Duration) -> Result<(), SettleError> {
        let lost = self.call(Op::Complete).await?;
        self.truth.complete(lease, retain).await?;
        if lost {
            Err(unavailable().into())
        } else {
            Ok(())
        }
    }

    async fn release(&self, lease: &Lease) -> Result<(), SettleError> {
        self.call(Op::Release).await?;
        self.truth.release(lease).await
    }
}

fn unavailable() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "scripted")
}

/// What was logged on this thread while it lives.
pub(crate) struct Logs {
    text: Arc<Mutex<Vec<u8>>>,
    _guard: DefaultGuard,
}

impl Logs {
    pub(crate) fn capture() -> Self {
        second_subscriber::keep();
        let text = Arc::new(Mutex::new(Vec::new()));
        let writer = Writer(Arc::clone(&text));
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(tracing::Level::DEBUG)
            .with_writer(move || writer.clone())
            .finish();
        Self {
            text,
            _guard: subscriber.set_default(),
        }
    }

    /// The lines of one level that contain a text.
    pub(crate) fn count(&self, level: &str, containing: &str) -> usize {
        let text = String::from_utf8(self.text.lock().unwrap().clone()).unwrap();
        text.lines()
            .filter(|line| line.contains(level) && line.contains(containing))
            .count()
    }
}

#[derive(Clone)]
struct Writer(Arc<Mutex<Vec<u8>>>);

impl io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
