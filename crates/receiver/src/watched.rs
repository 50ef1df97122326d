//! A connection's stream, service and bodies, which note what it is doing.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::header::{CONNECTION, TRANSFER_ENCODING};
use axum::http::{HeaderValue, Request, Response};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;
use tower_webhook::Decision;

use crate::activity::{Activity, Exchange, Phase};
use crate::connections::Stage;

/// The application, as one connection uses it.
pub(crate) struct Watched {
    pub(crate) app: TowerToHyperService<Router>,
    pub(crate) activity: Arc<Activity>,
    pub(crate) stage: watch::Receiver<Stage>,
}

impl Service<Request<Incoming>> for Watched {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Answer>, Infallible>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        // For the sample of a refusal.
        request.extensions_mut().insert(self.activity.peer);
        let exchange = self.activity.begin(request.body().is_end_stream());
        // hyper hides a `Content-Length` behind it, with which a proxy may have ended the body elsewhere: what follows on the
        // connection may be somebody else's request (RFC 9112, section 6.1).
        let is_last = request.headers().contains_key(TRANSFER_ENCODING);
        let response = self.app.call(request.map(|body| Received {
            body,
            length: 0,
            activity: Arc::clone(&self.activity),
        }));
        let stage = self.stage.clone();
        Box::pin(async move {
            let mut response = response.await?;
            if is_last || *stage.borrow() != Stage::Serving {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(CONNECTION, close);
            }
            let is_verified = Decision::of(&response).is_some_and(Decision::is_verified);
            exchange.0.answered(is_verified);
            Ok(response.map(|body| Answer { body, exchange }))
        })
    }
}

/// The bytes of a body after which it has made progress.
const PART: usize = 64 * 1024;

/// The body of a request.
struct Received {
    body: Incoming,
    length: usize,
    activity: Arc<Activity>,
}

impl HttpBody for Received {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &frame {
            let parts = self.length / PART;
            self.length += frame.data_ref().map_or(0, Bytes::len);
            if self.length / PART > parts {
                self.activity.progress();
            }
        }
        if frame.is_ready() && self.body.is_end_stream() {
            self.activity.received();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of a response.
pub(crate) struct Answer {
    body: Body,
    exchange: Exchange,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        // As long as there is nothing to send, the client is not to blame.
        self.exchange.0.enter(match frame.is_ready() {
            true => Phase::Answered(Instant::now()),
            false => Phase::Busy,
        });
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream that notices when bytes arrive or are sent.
pub(crate) struct Stream {
    pub(crate) tcp: TcpStream,
    pub(crate) activity: Arc<Activity>,
    /// Whether its peer leaves a response unread.
    pub(crate) is_blocked: bool,
}

impl Stream {
    fn wrote(&mut self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.is_blocked = result.is_pending();
        if let Poll::Ready(Ok(1..)) = result {
            self.activity.wrote();
        }
        result
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.tcp).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.activity.read(&buffer.filled()[before..]);
        }
        result
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.tcp).poll_write(cx, buffer);
        self.wrote(result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.tcp).poll_write_vectored(cx, buffers);
        self.wrote(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }
}
