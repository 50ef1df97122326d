//! The target of deliveries: a service in this process, or a URL.

use std::error::Error as StdError;
use std::fmt;
use std::future::{Future, poll_fn, ready};
use std::io;
use std::pin::Pin;
use std::sync::Mutex;
#[cfg(feature = "https")]
use std::sync::OnceLock;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::uri::Scheme;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
#[cfg(feature = "https")]
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
#[cfg(feature = "https")]
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::time::timeout;
use tower_service::Service;
use tower_webhook::telemetry::Chain;
use tower_webhook::{Decision, Outcome};

use super::BoxError;
use super::lock;
use super::report::AttemptResponse;

pub(super) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Sends one request, and returns what the platform and its report see of the response.
pub(super) type Target =
    Box<dyn Fn(Request<Body>) -> BoxFuture<Result<Answer, BoxError>> + Send + Sync>;

/// A response.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    /// Why the delivery was not handled, if the response says so.
    pub(super) reason: Option<String>,
    /// Reads the rest of the response, if it came over HTTP.
    pub(super) response: Option<BoxFuture<AttemptResponse>>,
}

/// How much of a response's body is kept.
const MAX_BODY: usize = 4 * 1024;
/// The largest headers that are kept.
const MAX_HEADERS: usize = 8 * 1024;
/// How long the rest of a body is waited for: the status has decided about the event already.
const BODY_TIMEOUT: Duration = Duration::from_secs(1);

/// Delivers into a service in this process.
pub(super) fn service<S, B>(service: S) -> Target
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
{
    // Each request gets a clone, so that requests run at the same time. The mutex is there because the
    // service need not be `Sync`.
    let service = Mutex::new(service);
    Box::new(move |request| {
        let mut service = lock(&service).clone();
        Box::pin(async move {
            poll_fn(|cx| service.poll_ready(cx))
                .await
                .map_err(Into::into)?;
            let response = service.call(request).await.map_err(Into::into)?;
            Ok(Answer {
                status: response.status(),
                reason: Decision::of(&response).and_then(reason),
                response: None,
            })
        })
    })
}

/// Delivers over HTTP, with TLS or without, to the URL of each request.
pub(super) fn http() -> Target {
    let plain = Client::builder(TokioExecutor::new()).build_http();
    // Made when it is needed first: a system may have no certificates.
    #[cfg(feature = "https")]
    let secure = OnceLock::new();
    Box::new(move |request| {
        let response = if request.uri().scheme() == Some(&Scheme::HTTPS) {
            #[cfg(feature = "https")]
            match secure.get_or_init(secure_client) {
                Ok(client) => client.request(request),
                Err(error) => return Box::pin(ready(Err(error.clone().into()))),
            }
            #[cfg(not(feature = "https"))]
            return Box::pin(ready(Err(
                "an https URL needs the feature `https` of tower-webhook-sandbox".into(),
            )));
        } else {
            plain.request(request)
        };
        Box::pin(async move {
            let response = response.await.map_err(|error| in_words(&error))?;
            Ok(Answer {
                status: response.status(),
                reason: None,
                response: Some(Box::pin(read(response))),
            })
        })
    })
}

async fn read<B>(response: Response<B>) -> AttemptResponse
where
    B: http_body::Body<Data = Bytes> + Unpin,
{
    let (parts, mut body) = response.into_parts();
    let mut bytes = BytesMut::new();
    let rest = async {
        while bytes.len() <= MAX_BODY {
            match body.frame().await {
                Some(Ok(frame)) => bytes.extend(frame.into_data().ok()),
                Some(Err(_)) => return false,
                None => return true,
            }
        }
        false
    };
    let has_ended = timeout(BODY_TIMEOUT, rest).await.unwrap_or(false);
    let is_whole = has_ended && bytes.len() <= MAX_BODY;
    bytes.truncate(MAX_BODY);
    let size = |headers: &HeaderMap| {
        let of = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
            name.as_str().len() + value.len()
        };
        headers.iter().map(of).sum::<usize>()
    };
    let headers = Some(parts.headers).filter(|headers| size(headers) <= MAX_HEADERS);
    AttemptResponse {
        status: parts.status,
        headers: headers.unwrap_or_default(),
        body: bytes.freeze(),
        is_whole,
    }
}

/// Returns why a request failed in a few words, such as `connection refused`, or all that is known.
fn in_words(error: &(dyn StdError + 'static)) -> String {
    let causes = || std::iter::successors(Some(error), |error| (*error).source());
    // The first error says no more than that there is another one: `client error (Connect)`.
    let all = || Chain(error.source().unwrap_or(error)).to_string();
    if causes().any(|cause| cause.to_string() == "dns error") {
        return "host not found".to_owned();
    }
    let Some(io) = causes().find_map(|cause| cause.downcast_ref::<io::Error>()) else {
        return match all().as_str() {
            "connection closed before message completed" => {
                "connection closed before the response".to_owned()
            }
            other => other.to_owned(),
        };
    };
    #[cfg(feature = "https")]
    if let Some(tls) = io
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>())
    {
        return tls.to_string();
    }
    match io.kind() {
        io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::UnexpectedEof => "connection closed".to_owned(),
        io::ErrorKind::TimedOut => "connection timed out".to_owned(),
        kind @ (io::ErrorKind::ConnectionRefused
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable) => kind.to_string(),
        _ => all(),
    }
}

#[cfg(feature = "https")]
fn secure_client() -> Result<Client<HttpsConnector<HttpConnector>, Body>, String> {
    // Passed explicitly: a program may depend on several providers and have installed none.
    let provider = rustls::crypto::ring::default_provider();
    let connector = HttpsConnectorBuilder::new()
        .with_provider_and_platform_verifier(provider)
        .map_err(|error| error.to_string())?
        .https_only()
        .enable_http1()
        .build();
    Ok(Client::builder(TokioExecutor::new()).build(connector))
}

/// Returns the name of a decision and its error with all causes, unless the event was handled or ignored.
/// The sender is never told this; the report of a test is.
fn reason(decision: &Decision) -> Option<String> {
    let name = decision.name();
    let outcome = decision.outcome();
    // A refusal's own text is a sentence for the sender, and its cause says more.
    let refusal = decision.refusal().map(|refusal| match refusal.source() {
        Some(cause) => Chain(cause).to_string(),
        None => refusal.to_string().trim_end_matches('.').to_owned(),
    });
    let error = outcome
        .and_then(Outcome::reason)
        .map(|error| Chain(error).to_string());
    match (refusal.or(error), outcome) {
        (Some(error), _) => Some(format!("{name}: {error}")),
        (
            None,
            Some(Outcome::Handled | Outcome::Replayed | Outcome::Ignored | Outcome::Filtered),
        ) => None,
        (None, _) => Some(name.to_owned()),
    }
}

/// The request body of a delivery in process, which [`Fault::TruncateBody`](super::Fault::TruncateBody)
/// ends with an error.
pub struct Body {
    bytes: Bytes,
    /// How many bytes arrive before the error.
    cut: Option<usize>,
    read: bool,
}

impl Body {
    pub(super) fn new(bytes: Bytes, cut: Option<usize>) -> Self {
        Self {
            bytes,
            cut,
            read: false,
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyTruncated;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyTruncated>>> {
        let end = self.cut.unwrap_or(self.bytes.len()).min(self.bytes.len());
        Poll::Ready(if !self.read && end > 0 {
            self.read = true;
            Some(Ok(Frame::data(self.bytes.slice(..end))))
        } else if self.cut.is_some() {
            Some(Err(BodyTruncated(())))
        } else {
            None
        })
    }

    fn is_end_stream(&self) -> bool {
        self.cut.is_none() && (self.read || self.bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        // Of the whole body, even if it is truncated: `Content-Length` was sent before the connection
        // broke.
        let left = if self.read { 0 } else { self.bytes.len() };
        SizeHint::with_exact(left as u64)
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body")
            .field("bytes", &self.bytes.len())
            .field("cut", &self.cut)
            .finish_non_exhaustive()
    }
}

/// The error of a request's [`Body`] that a [`Fault::TruncateBody`](super::Fault::TruncateBody) truncated.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("the sandbox truncated the body")]
pub struct BodyTruncated(());
