//! The connections: how many there are, how long each may take, and how each ends.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::refusals::Refusals;
use crate::text::chain;

/// The largest size of a request's head, in bytes, and of the buffer that a connection reads into.
const MAX_HEAD: usize = 32 * 1024;

/// What is read and dropped of a request that was answered early, so that its client sees the answer: a
/// connection that is closed with unread data is reset.
const MAX_REST: usize = 16 * 1024 * 1024;
const REST_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) max_connections: usize,
    /// How long the head of a request may take, from its first byte.
    pub(crate) head: Duration,
    /// How long a connection may wait for its next request.
    pub(crate) idle: Duration,
}

/// The connections of one listener.
pub(crate) struct Connections {
    http: http1::Builder,
    app: Router,
    limits: Limits,
    permits: Arc<Semaphore>,
    open: Arc<Open>,
    stopping: watch::Sender<bool>,
    refusals: Arc<Refusals>,
}

impl Connections {
    pub(crate) fn new(app: Router, limits: Limits) -> Self {
        let mut http = http1::Builder::new();
        // The time limits are kept here, because hyper has one for both. It allows 100 headers.
        http.header_read_timeout(None)
            .max_header_size(MAX_HEAD)
            .max_buf_size(MAX_HEAD)
            // A client that closes its side after its request is answered.
            .half_close(true);
        Self {
            http,
            app,
            limits,
            permits: Arc::new(Semaphore::new(limits.max_connections)),
            open: Arc::default(),
            stopping: watch::Sender::new(false),
            refusals: Arc::default(),
        }
    }

    /// Accepts connections until the future is dropped.
    pub(crate) async fn accept(&self, listener: &TcpListener) -> Infallible {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    let permit = self.permit().await;
                    self.start(stream, peer, permit);
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    self.open.close_longest_waiting(); // Frees an open file.
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Closes the connection that has waited longest for a request, if there are too many. Otherwise silent
    /// ones could shut out all others.
    async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        loop {
            if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
                return Some(permit);
            }
            self.open.close_longest_waiting();
            // Again after a moment, in case that all had a request and one has finished it.
            let permit = Arc::clone(&self.permits).acquire_owned();
            if let Ok(permit) = timeout(Duration::from_millis(100), permit).await {
                return permit.ok();
            }
        }
    }

    fn start(&self, stream: TcpStream, peer: SocketAddr, permit: Option<OwnedSemaphorePermit>) {
        let activity = Arc::new(Activity::new());
        let entry = self.open.enter(&activity);
        let service = Tracked {
            app: TowerToHyperService::new(self.app.clone()),
            activity: Arc::clone(&activity),
        };
        let watched = Watched {
            stream,
            activity: Arc::clone(&activity),
        };
        let connection = self.http.serve_connection(TokioIo::new(watched), service);
        let served = serve(
            connection,
            Arc::clone(&activity),
            self.limits,
            self.stopping.subscribe(),
            peer,
            Arc::clone(&self.refusals),
        );
        tokio::spawn(async move {
            let _entered = (entry, permit);
            tokio::select! {
                biased;
                () = activity.closed.notified() => {}
                () = served => {}
            }
        });
    }

    /// Lets the requests finish, and then closes the connections.
    pub(crate) async fn shutdown(&self) {
        self.stopping.send_replace(true);
        let all = u32::try_from(self.limits.max_connections).unwrap_or(u32::MAX);
        let _ = self.permits.acquire_many(all).await;
    }
}

type Connection = http1::Connection<TokioIo<Watched>, Tracked>;

async fn serve(
    mut connection: Connection,
    activity: Arc<Activity>,
    limits: Limits,
    mut stopping: watch::Receiver<bool>,
    peer: SocketAddr,
    refusals: Arc<Refusals>,
) {
    let mut timer = pin!(sleep_until(Instant::now()));
    let mut is_stopping = false;
    let result = loop {
        // `None` at the time limit.
        let ended = poll_fn(|cx| {
            if let Poll::Ready(result) = Pin::new(&mut connection).poll(cx) {
                return Poll::Ready(Some(result));
            }
            // Of what had arrived, no request is complete.
            if is_stopping && activity.phase().since().is_some() {
                return Poll::Ready(None);
            }
            let Some(deadline) = activity.deadline(&limits) else {
                return Poll::Pending;
            };
            if timer.deadline() != deadline {
                timer.as_mut().reset(deadline);
            }
            ready!(timer.as_mut().poll(cx));
            Poll::Ready(None)
        });
        tokio::select! {
            result = ended => break result,
            Ok(_) = stopping.wait_for(|stopping| *stopping), if !is_stopping => {
                is_stopping = true;
                Pin::new(&mut connection).graceful_shutdown();
            }
        }
    };
    match result {
        None => {
            if let Phase::Head(_) = activity.phase()
                && !is_stopping
            {
                let reason = "the head of the request did not arrive in time";
                refusals.log("header-timeout", peer, &reason);
            }
            return;
        }
        Some(Err(error)) if error.is_parse_too_large() => {
            refusals.log("headers-too-large", peer, &chain(&error));
        }
        Some(Err(error)) if error.is_parse() => {
            refusals.log("malformed-request", peer, &chain(&error));
        }
        Some(Err(error)) => {
            tracing::debug!(%peer, reason = chain(&error), "a connection broke off");
            return;
        }
        Some(Ok(())) => {}
    }
    activity.wait(Phase::Idle);
    let stream = connection.into_parts().io.into_inner().stream;
    tokio::select! {
        () = drop_rest(stream) => {}
        _ = stopping.wait_for(|stopping| *stopping) => {}
    }
}

/// Reads what a client still sends, within bounds.
async fn drop_rest(mut stream: TcpStream) {
    let rest = async {
        let mut buffer = vec![0; 16 * 1024];
        let mut left = MAX_REST;
        while left > 0 {
            match stream.read(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(length) => left = left.saturating_sub(length),
            }
        }
    };
    let _ = timeout(REST_TIMEOUT, rest).await;
}

/// The open connections, by numbers.
#[derive(Default)]
struct Open {
    connections: Mutex<HashMap<u64, Arc<Activity>>>,
    next: AtomicU64,
}

impl Open {
    fn enter(self: &Arc<Self>, activity: &Arc<Activity>) -> Entry {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.connections).insert(number, Arc::clone(activity));
        Entry {
            open: Arc::clone(self),
            number,
        }
    }

    fn close_longest_waiting(&self) {
        let connections = lock(&self.connections);
        let waiting = connections.values().filter_map(|activity| {
            let since = activity.phase().since()?;
            Some((since, activity))
        });
        if let Some((_, activity)) = waiting.min_by_key(|(since, _)| *since) {
            activity.close();
        }
    }
}

/// Removes its connection when it is dropped.
struct Entry {
    open: Arc<Open>,
    number: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        lock(&self.open.connections).remove(&self.number);
    }
}

/// What a connection is doing.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// It is new, and has sent nothing.
    Silent(Instant),
    /// It sends the head of a request.
    Head(Instant),
    /// It waits for a response.
    Busy,
    /// It may send another request.
    Idle(Instant),
    Closing,
}

impl Phase {
    /// Since when it waits for a request.
    fn since(self) -> Option<Instant> {
        match self {
            Self::Silent(since) | Self::Head(since) | Self::Idle(since) => Some(since),
            Self::Busy | Self::Closing => None,
        }
    }
}

struct Activity {
    phase: Mutex<Phase>,
    closed: Notify,
}

impl Activity {
    fn new() -> Self {
        Self {
            phase: Mutex::new(Phase::Silent(Instant::now())),
            closed: Notify::new(),
        }
    }

    fn phase(&self) -> Phase {
        *lock(&self.phase)
    }

    fn deadline(&self, limits: &Limits) -> Option<Instant> {
        match self.phase() {
            Phase::Silent(since) | Phase::Head(since) => Some(since + limits.head),
            Phase::Idle(since) => Some(since + limits.idle),
            Phase::Busy | Phase::Closing => None,
        }
    }

    /// Bytes have arrived.
    fn read(&self) {
        let mut phase = lock(&self.phase);
        if let Phase::Silent(_) | Phase::Idle(_) = *phase {
            *phase = Phase::Head(Instant::now());
        }
    }

    fn begin(self: &Arc<Self>) -> Busy {
        let mut phase = lock(&self.phase);
        if !matches!(*phase, Phase::Closing) {
            *phase = Phase::Busy;
        }
        Busy(Arc::clone(self))
    }

    /// Enters a phase that begins now.
    fn wait(&self, enter: fn(Instant) -> Phase) {
        let mut phase = lock(&self.phase);
        if !matches!(*phase, Phase::Closing) {
            *phase = enter(Instant::now());
        }
    }

    /// Closes the connection, unless a request has arrived meanwhile.
    fn close(&self) {
        let mut phase = lock(&self.phase);
        if phase.since().is_some() {
            *phase = Phase::Closing;
            self.closed.notify_one();
        }
    }
}

/// A request that is being handled, until its response is written.
struct Busy(Arc<Activity>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.wait(Phase::Idle);
    }
}

/// The application, as one connection uses it.
struct Tracked {
    app: TowerToHyperService<Router>,
    activity: Arc<Activity>,
}

impl Service<Request<Incoming>> for Tracked {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let busy = self.activity.begin();
        let response = self.app.call(request);
        Box::pin(async move {
            let response = response.await?;
            Ok(response.map(|body| {
                Body::new(body.map_frame(move |frame| {
                    let _ = &busy; // Is dropped with the body.
                    frame
                }))
            }))
        })
    }
}

/// A stream that notices when bytes arrive.
struct Watched {
    stream: TcpStream,
    activity: Arc<Activity>,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.activity.read();
        }
        result
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// No lock is held across code that could panic and leave something half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
