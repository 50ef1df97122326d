//! The sandbox follows the platform's rules (Spec 2 to 8) and injects faults.

mod admin_api;
mod events;
mod faults;
mod over_http;
mod report;
mod retries;

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use tokio::time::{Instant, sleep};
use tower::Service;
use tower_webhook::event::EventKind;
use tower_webhook::{Secret, Secrets};
use tower_webhook_sandbox::{Body, Sandbox, Settings, Webhook};

use support::{DAY, HOUR, MINUTE, SECOND};

/// A request as it came, and when.
#[derive(Clone, Debug)]
struct Seen {
    at: Instant,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    /// As far as it came.
    body: Result<Bytes, Bytes>,
}

impl Seen {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    fn is_signed_with(&self, secret: &str) -> bool {
        let secrets = Secrets::from(Secret::new(secret).unwrap());
        let signature = self.header("x-service-hmac-sha256").unwrap();
        let body = self.body.as_ref().unwrap();
        secrets.verify(body, signature.as_bytes()).is_ok()
    }
}

/// Records every request, and responds as configured.
#[derive(Clone)]
struct Recorder {
    seen: Arc<Mutex<Vec<Seen>>>,
    status: Arc<Mutex<StatusCode>>,
    /// How long an answer takes.
    pause: Arc<Mutex<Duration>>,
}

impl Recorder {
    fn answering(status: StatusCode) -> Self {
        Self {
            seen: Arc::default(),
            status: Arc::new(Mutex::new(status)),
            pause: Arc::default(),
        }
    }

    fn answer(&self, status: StatusCode) {
        *self.status.lock().unwrap() = status;
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    fn service(
        &self,
    ) -> impl Service<
        Request<Body>,
        Response = Response<Full<Bytes>>,
        Error = Infallible,
        Future: Send,
    > + Clone
    + Send
    + 'static {
        let this = self.clone();
        tower::service_fn(move |request: Request<Body>| {
            let this = this.clone();
            async move { Ok(this.receive(request).await) }
        })
    }

    async fn receive<B>(&self, request: Request<B>) -> Response<Full<Bytes>>
    where
        B: http_body::Body<Data = Bytes> + Unpin,
    {
        let at = Instant::now();
        let (parts, mut body) = request.into_parts();
        let mut bytes = Vec::new();
        let body = loop {
            match body.frame().await {
                None => break Ok(bytes.into()),
                Some(Ok(frame)) => bytes.extend_from_slice(&frame.into_data().unwrap()),
                Some(Err(_)) => break Err(bytes.into()),
            }
        };
        self.seen.lock().unwrap().push(Seen {
            at,
            method: parts.method,
            uri: parts.uri,
            headers: parts.headers,
            body,
        });
        let pause = *self.pause.lock().unwrap();
        if !pause.is_zero() {
            sleep(pause).await;
        }
        let mut response = Response::new(Full::default());
        *response.status_mut() = *self.status.lock().unwrap();
        response
    }
}

fn sandbox(recorder: &Recorder) -> Sandbox {
    sandbox_with(recorder, Settings::default())
}

fn sandbox_with(recorder: &Recorder, settings: Settings) -> Sandbox {
    let sandbox = Sandbox::in_process_with(recorder.service(), settings);
    sandbox.configure_all(&signed());
    sandbox
}

fn signed() -> Webhook {
    Webhook::new("/webhooks").signed(Secret::new("secret").unwrap())
}

fn is_disabled(sandbox: &Sandbox, kind: &EventKind) -> bool {
    let webhooks = sandbox.webhooks();
    webhooks
        .iter()
        .find(|webhook| webhook.kind == *kind)
        .unwrap()
        .disabled
}
