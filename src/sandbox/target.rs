//! Where deliveries go: a service in this process, or a URL.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Frame, SizeHint};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tower_service::Service;

use crate::error::BoxError;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Sends one request, and tells the answer's status.
pub(super) type Target =
    Box<dyn Fn(Request<Body>) -> BoxFuture<Result<StatusCode, BoxError>> + Send + Sync>;

/// Each request gets a clone of the service.
pub(super) fn service<S, B>(service: S) -> Target
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
{
    let service = Mutex::new(service);
    Box::new(move |request| {
        let mut service = service
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        Box::pin(async move {
            poll_fn(|cx| service.poll_ready(cx))
                .await
                .map_err(Into::into)?;
            let response = service.call(request).await.map_err(Into::into)?;
            Ok(response.status())
        })
    })
}

pub(super) fn http() -> Target {
    let client = Client::builder(TokioExecutor::new()).build_http();
    Box::new(move |request| {
        let response = client.request(request);
        Box::pin(async move { Ok(response.await?.status()) })
    })
}

/// The body of a delivery, which may break off.
pub struct Body {
    bytes: Bytes,
    /// How many bytes arrive before the connection breaks.
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
    type Error = CutOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        let end = self.cut.unwrap_or(self.bytes.len()).min(self.bytes.len());
        Poll::Ready(if !self.read && end > 0 {
            self.read = true;
            Some(Ok(Frame::data(self.bytes.slice(..end))))
        } else if self.cut.is_some() {
            Some(Err(CutOff(())))
        } else {
            None
        })
    }

    fn is_end_stream(&self) -> bool {
        self.cut.is_none() && (self.read || self.bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
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

/// The connection broke within a request's body, as a [`Fault`](super::Fault) wanted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutOff(());

impl fmt::Display for CutOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the sandbox cut the connection")
    }
}

impl std::error::Error for CutOff {}
