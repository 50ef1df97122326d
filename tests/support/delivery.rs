//! Deliveries as the platform sends them, the answers to them, and a handler that can fail.

use std::collections::{HashMap, VecDeque};
use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use serde_json::Value;
use tower::{Service, ServiceExt};
use tower_webhook::event::ChatRated;
use tower_webhook::{Delivery, Handler, HandlerError, HandlerResult, Secret};

use super::lock;

pub const SECRET: &str = "correct horse battery staple";
pub const BODY: &str = r#"{"id":"chat-1"}"#;
/// The error of failing handlers, which the sender must never read.
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

/// The same, under a key.
pub fn delivery_of(key: &str) -> Request<Full<Bytes>> {
    delivery(BODY).key(key)
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
#[derive(Clone, Debug)]
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

/// Sends [`BODY`] under a key.
pub async fn deliver<S, R>(service: &S, key: &str) -> Answered
where
    S: Service<Request<Full<Bytes>>, Response = Response<R>, Error: Debug> + Clone,
    R: Body<Data: Buf, Error: Debug>,
{
    send(service, delivery_of(key)).await
}

impl Answered {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub fn is_replay(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }

    pub fn retry_after(&self) -> Option<u64> {
        let value = self.headers.get(RETRY_AFTER)?;
        Some(value.to_str().unwrap().parse().unwrap())
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

    /// A problem document (RFC 9457) of this name, without any secret.
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
