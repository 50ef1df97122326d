//! What tests share: deliveries as the platform sends them, answers to look at, a handler and a
//! store that do what they are told, and a log to read.

#![allow(dead_code, unreachable_pub)] // Each test uses a part of it.

#[path = "../support/second_subscriber.rs"]
mod second_subscriber;

use std::collections::{HashMap, VecDeque};
use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use serde_json::Value;
use tower::{Service, ServiceExt};
use tower_webhook::event::ChatRated;
use tower_webhook::store::{
    Claim, EventKey, KeyState, Lease, MokaStore, SettleError, Store, StoreError, StoreErrorKind,
};
use tower_webhook::{Delivery, Handler, HandlerError, HandlerResult, Secret};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

pub const SECRET: &str = "correct horse battery staple";
pub const BODY: &str = r#"{"id":"chat-1"}"#;
/// What failing handlers say, which the sender must never read.
pub const HANDLER_ERROR: &str = "the CRM at crm.internal is down";

pub const CONTENT_TYPE: &str = "content-type";
pub const EVENT: &str = "x-service-event";
pub const KEY: &str = "idempotency-key";
pub const SIGNATURE: &str = "x-service-hmac-sha256";

pub fn secret() -> Secret {
    Secret::new(SECRET).unwrap()
}

/// The test request of Spec 6, rule 5: a signed `chat-rated` without a key.
pub fn delivery(body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    let body = body.into();
    Request::post("/webhooks")
        .header(CONTENT_TYPE, "application/json")
        .header(EVENT, "chat-rated")
        .header(SIGNATURE, secret().sign(&body))
        .body(Full::new(body))
        .unwrap()
}

pub trait RequestExt: Sized {
    /// Sets a header.
    fn with(self, name: &str, value: impl AsRef<[u8]>) -> Self;
    /// Adds a header to those of the same name.
    fn and(self, name: &str, value: impl AsRef<[u8]>) -> Self;
    fn without(self, name: &str) -> Self;

    fn key(self, key: &str) -> Self {
        self.with(KEY, key)
    }
    fn kind(self, kind: &str) -> Self {
        self.with(EVENT, kind)
    }
}

impl<B> RequestExt for Request<B> {
    fn with(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.headers_mut()
            .insert(HeaderName::try_from(name).unwrap(), header_value(value));
        self
    }

    fn and(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.headers_mut()
            .append(HeaderName::try_from(name).unwrap(), header_value(value));
        self
    }

    fn without(mut self, name: &str) -> Self {
        self.headers_mut().remove(name);
        self
    }
}

fn header_value(value: impl AsRef<[u8]>) -> HeaderValue {
    HeaderValue::from_bytes(value.as_ref()).unwrap()
}

/// A response with its whole body.
#[derive(Debug)]
pub struct Answered {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

pub async fn send<S, B, R>(service: &S, request: Request<B>) -> Answered
where
    S: Service<Request<B>, Response = Response<R>, Error: Debug> + Clone,
    R: Body<Data: Buf, Error: Debug>,
{
    let response = service.clone().oneshot(request).await.unwrap();
    read(response).await
}

pub async fn read<R: Body<Data: Buf, Error: Debug>>(response: Response<R>) -> Answered {
    let (parts, body) = response.into_parts();
    Answered {
        status: parts.status,
        headers: parts.headers,
        body: body.collect().await.unwrap().to_bytes(),
    }
}

impl Answered {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// 200 without a body, by a run of the handler or another decision, but not as a replay.
    #[track_caller]
    pub fn assert_ok(&self) {
        assert_eq!(self.status, StatusCode::OK, "{self:?}");
        assert!(self.body.is_empty() && self.headers.is_empty(), "{self:?}");
    }

    #[track_caller]
    pub fn assert_replayed(&self) {
        assert_eq!(self.status, StatusCode::OK, "{self:?}");
        assert_eq!(self.header("idempotent-replayed"), Some("true"), "{self:?}");
        assert!(self.body.is_empty() && self.headers.len() == 1, "{self:?}");
    }

    /// A problem document (RFC 9457) of this name, which tells no more than it should.
    #[track_caller]
    pub fn assert_problem(&self, status: u16, name: &str) {
        assert_eq!(self.status.as_u16(), status, "{self:?}");
        assert_eq!(self.header(CONTENT_TYPE), Some("application/problem+json"));
        assert_eq!(self.header("idempotent-replayed"), None, "{self:?}");

        let problem: HashMap<String, Value> = serde_json::from_slice(&self.body).unwrap();
        let mut members: Vec<_> = problem.keys().map(String::as_str).collect();
        members.sort_unstable();
        assert_eq!(members, ["detail", "status", "title", "type"]);
        assert_eq!(problem["status"], status);
        assert_eq!(problem["title"], self.status.canonical_reason().unwrap());
        assert!(!problem["detail"].as_str().unwrap().is_empty());
        let kind = problem["type"].as_str().unwrap();
        assert!(kind.ends_with(&format!("#{name}")), "{kind} is not {name}");

        assert_tells_no_secret(&format!("{self:?}"));
    }
}

/// Neither the secret nor a digest, nor what a handler said.
#[track_caller]
pub fn assert_tells_no_secret(text: &str) {
    assert!(!text.contains(SECRET), "{text}");
    assert!(!text.contains(&hex::encode(SECRET)), "{text}");
    assert!(!text.contains(HANDLER_ERROR), "{text}");
    let digest = text
        .as_bytes()
        .split(|byte| !byte.is_ascii_hexdigit())
        .find(|digits| digits.len() >= 32);
    assert_eq!(digest, None, "{text}");
}

/// What a run of [`Crm`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Succeed,
    SucceedAfter(Duration),
    Fail,
    FailAfter(Duration),
    Discard,
    Panic,
    PanicAfterAwait,
    Hang,
}

/// A handler whose runs do one step after the other, and then succeed.
#[derive(Clone, Default)]
pub struct Crm {
    steps: Arc<Mutex<VecDeque<Step>>>,
    attempts: Arc<Mutex<Vec<Option<u32>>>>,
    successes: Arc<AtomicUsize>,
    yields: usize,
}

impl Crm {
    pub fn new(steps: impl IntoIterator<Item = Step>) -> Self {
        Self {
            steps: Arc::new(Mutex::new(steps.into_iter().collect())),
            ..Self::default()
        }
    }

    /// Yields so often before the end of a step.
    pub fn yielding(self, yields: usize) -> Self {
        Self { yields, ..self }
    }

    pub fn runs(&self) -> usize {
        lock(&self.attempts).len()
    }

    /// The number of the attempt of each run.
    pub fn attempts(&self) -> Vec<Option<u32>> {
        lock(&self.attempts).clone()
    }

    pub fn successes(&self) -> usize {
        self.successes.load(Ordering::SeqCst)
    }
}

impl Handler<ChatRated> for Crm {
    // Not an `async fn`, so that a step can panic before there is a future.
    #[allow(clippy::manual_async_fn)]
    fn handle(&self, delivery: Delivery<ChatRated>) -> impl Future<Output = HandlerResult> + Send {
        lock(&self.attempts).push(delivery.attempt().map(Into::into));
        let step = lock(&self.steps).pop_front().unwrap_or(Step::Succeed);
        assert_ne!(step, Step::Panic, "{HANDLER_ERROR}");
        async move {
            for _ in 0..self.yields {
                tokio::task::yield_now().await;
            }
            match step {
                Step::SucceedAfter(time) | Step::FailAfter(time) => tokio::time::sleep(time).await,
                Step::Hang => std::future::pending().await,
                Step::PanicAfterAwait => {
                    tokio::task::yield_now().await;
                    panic!("{HANDLER_ERROR}");
                }
                _ => {}
            }
            match step {
                Step::Fail | Step::FailAfter(_) => Err(HandlerError::retry(HANDLER_ERROR)),
                Step::Discard => Err(HandlerError::discard(HANDLER_ERROR)),
                _ => {
                    self.successes.fetch_add(1, Ordering::SeqCst);
                    Ok(())
                }
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Claim,
    Renew,
    Complete,
    Release,
}

/// A memory store with faults, which may claim to outlive its process.
#[derive(Clone, Default)]
pub struct TestStore<const OUTLIVES: bool = false> {
    pub moka: MokaStore,
    down: Arc<Mutex<Vec<Operation>>>,
    operations: Arc<Mutex<Vec<(Operation, u128)>>>,
    yields_before: usize,
    yields_after: usize,
}

impl<const OUTLIVES: bool> TestStore<OUTLIVES> {
    /// Yields so often before each operation takes effect, and after it did.
    pub fn yielding(before: usize, after: usize) -> Self {
        Self {
            yields_before: before,
            yields_after: after,
            ..Self::default()
        }
    }

    /// Lets these operations fail, and no others.
    pub fn fail(&self, operations: impl Into<Vec<Operation>>) {
        *lock(&self.down) = operations.into();
    }

    /// What the store was asked to do, and on which key's digest.
    pub fn operations(&self) -> Vec<(Operation, u128)> {
        lock(&self.operations).clone()
    }

    pub async fn state(&self, key: &str) -> KeyState {
        self.moka.state(key).await
    }

    async fn during<T, E: From<StoreError>>(
        &self,
        operation: Operation,
        id: &EventKey,
        effect: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        lock(&self.operations).push((operation, id.key()));
        for _ in 0..self.yields_before {
            tokio::task::yield_now().await;
        }
        if lock(&self.down).contains(&operation) {
            return Err(StoreError::new(StoreErrorKind::Unavailable, "disk full").into());
        }
        let done = effect.await;
        for _ in 0..self.yields_after {
            tokio::task::yield_now().await;
        }
        done
    }
}

impl<const OUTLIVES: bool> Store for TestStore<OUTLIVES> {
    const DURABLE_LEASES: bool = OUTLIVES;

    async fn claim(
        &self,
        id: &EventKey,
        lease: Duration,
        retain: Duration,
    ) -> Result<Claim, StoreError> {
        self.during(Operation::Claim, id, self.moka.claim(id, lease, retain))
            .await
    }

    async fn peek(&self, id: &EventKey) -> Result<KeyState, StoreError> {
        self.moka.peek(id).await
    }

    async fn renew(&self, lease: &Lease, extend: Duration) -> Result<(), SettleError> {
        self.during(Operation::Renew, lease.id(), self.moka.renew(lease, extend))
            .await
    }

    async fn complete(&self, lease: &Lease, retain: Duration) -> Result<(), SettleError> {
        self.during(
            Operation::Complete,
            lease.id(),
            self.moka.complete(lease, retain),
        )
        .await
    }

    async fn release(&self, lease: &Lease) -> Result<(), SettleError> {
        self.during(Operation::Release, lease.id(), self.moka.release(lease))
            .await
    }
}

pub trait StoreExt {
    /// What is known of a key in the empty namespace.
    fn state(&self, key: &str) -> impl Future<Output = KeyState>;
}

impl StoreExt for MokaStore {
    async fn state(&self, key: &str) -> KeyState {
        self.peek(&EventKey::new("", key.as_bytes(), b""))
            .await
            .unwrap()
    }
}

/// What the current thread logs while it has one of these.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Records>>);

#[derive(Default)]
struct Records {
    spans: Vec<(Id, Fields)>,
    events: Vec<Fields>,
}

/// The fields of a span or an event, and its `level`, `name` and `target`; for an event also its `span`.
pub type Fields = HashMap<&'static str, String>;

impl Log {
    /// Captures everything at this level and above.
    pub fn capture(level: tracing::Level) -> (Self, tracing::subscriber::DefaultGuard) {
        second_subscriber::keep();
        let log = Self::default();
        let filter = tracing_subscriber::filter::LevelFilter::from_level(level);
        let subscriber = tracing_subscriber::registry().with(log.clone().with_filter(filter));
        (log, tracing::subscriber::set_default(subscriber))
    }

    pub fn spans(&self) -> Vec<Fields> {
        let records = lock(&self.0);
        records.spans.iter().map(|(_, span)| span.clone()).collect()
    }

    pub fn events(&self) -> Vec<Fields> {
        lock(&self.0).events.clone()
    }

    pub fn clear(&self) {
        *lock(&self.0) = Records::default();
    }

    /// All that was logged, as text to search.
    pub fn text(&self) -> String {
        format!("{:?}\n{:?}", self.spans(), self.events())
    }
}

struct Visitor<'a>(&'a mut Fields);

impl Visit for Visitor<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

fn fields(
    metadata: &'static tracing::Metadata<'static>,
    record: impl FnOnce(&mut Visitor<'_>),
) -> Fields {
    let mut fields = Fields::new();
    fields.insert("level", metadata.level().to_string());
    fields.insert("name", metadata.name().to_owned());
    fields.insert("target", metadata.target().to_owned());
    record(&mut Visitor(&mut fields));
    fields
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Log {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, _: Context<'_, S>) {
        let span = fields(attributes.metadata(), |visitor| attributes.record(visitor));
        lock(&self.0).spans.push((id.clone(), span));
    }

    fn on_record(&self, id: &Id, record: &Record<'_>, _: Context<'_, S>) {
        let mut records = lock(&self.0);
        // The registry uses the ids of closed spans again.
        let span = records
            .spans
            .iter_mut()
            .rev()
            .find(|(known, _)| known == id);
        if let Some((_, fields)) = span {
            record.record(&mut Visitor(fields));
        }
    }

    fn on_event(&self, event: &tracing::Event<'_>, context: Context<'_, S>) {
        let mut fields = fields(event.metadata(), |visitor| event.record(visitor));
        if let Some(span) = context.event_span(event) {
            fields.insert("span", span.name().to_owned());
        }
        lock(&self.0).events.push(fields);
    }
}
