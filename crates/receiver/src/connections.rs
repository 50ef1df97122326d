//! The connections: how many there are, how long each may take, and how each ends.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::activity::{Activity, LEAST_AGE, Limits, Open, Phase};
use crate::doors;
use crate::listen::BACKLOG;
use crate::refusals::Refusals;
use crate::text::chain;
use crate::watched::{Stream, Watched};

/// The largest size of a request's head, in bytes, and of the buffer that a connection reads into.
const MAX_HEAD: usize = 32 * 1024;

/// What is read and dropped of a request that was answered early, so that its client sees the answer: a
/// connection that is closed with unread data is reset.
const MAX_REST: usize = 16 * 1024 * 1024;
const REST_TIMEOUT: Duration = Duration::from_secs(5);

/// The part of the connections that is kept free: one in so many.
const SPARE: usize = 8;

/// How long a connection that has sent no whole request has for it when the receiver stops. It may have been opened just
/// before, or its next request may be on its way.
const LAST_CALL: Duration = Duration::from_secs(2);

/// How far the receiver is with stopping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Serving,
    /// Requests are served, and each response is the last one of its connection.
    Leaving,
    /// No connection is accepted, and those without a request are closed soon.
    Closing,
}

/// The connections of one listener.
pub(crate) struct Connections {
    http: http1::Builder,
    app: Router,
    limits: Limits,
    permits: Arc<Semaphore>,
    open: Arc<Open>,
    stage: watch::Sender<Stage>,
    refusals: Arc<Refusals>,
}

impl Connections {
    pub(crate) fn new(refusals: Arc<Refusals>, app: Router, limits: Limits) -> Self {
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
            stage: watch::Sender::new(Stage::Serving),
            refusals,
        }
    }

    /// Accepts connections until the receiver closes. Those that wait in the queue of the system then are accepted, too,
    /// since they would be reset, unless the listener `is_lent`: then they wait for its next user.
    pub(crate) async fn accept(&self, listener: TcpListener, is_lent: bool) {
        let mut stage = self.stage.subscribe();
        loop {
            let accepted = tokio::select! {
                biased;
                _ = stage.wait_for(|stage| *stage == Stage::Closing) => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let permit = self.permit(peer).await;
                    self.start(stream, peer, permit);
                }
                Err(error) => {
                    self.refusals.log("not-accepted", None, &error);
                    let _ = self.open.close_one(Duration::ZERO); // Frees an open file.
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
        if is_lent {
            return;
        }
        let Ok(listener) = listener.into_std() else {
            return;
        };
        for _ in 0..BACKLOG {
            let Ok((stream, peer)) = listener.accept() else {
                return;
            };
            let stream = stream
                .set_nonblocking(true)
                .and_then(|()| TcpStream::from_std(stream));
            if let Ok(stream) = stream {
                let permit = Arc::clone(&self.permits).try_acquire_owned().ok();
                self.start(stream, peer, permit);
            }
        }
    }

    /// Closes another connection for each new one when there are too many. Otherwise clients that prove nothing could
    /// shut out all others. While none may be closed, new ones wait in the system's queue.
    async fn permit(&self, peer: SocketAddr) -> Option<OwnedSemaphorePermit> {
        // Ahead of time, because a connection that is closed ends only when its task runs.
        if self.permits.available_permits() > self.limits.max_connections / SPARE {
            return Arc::clone(&self.permits).acquire_owned().await.ok();
        }
        let reason = "most connections are in use, so that another one is closed";
        self.refusals.log("connection-limit", peer, &reason);
        while *self.stage.borrow() != Stage::Closing {
            // Again after a moment, in case that all had a request and one has finished it.
            let mut wait = Duration::from_millis(100);
            match self.open.close_one(LEAST_AGE) {
                Ok(closed) => {
                    let reason = "it was closed for another one";
                    self.refusals.log("connection-closed", closed, &reason);
                }
                Err(Some(at)) => wait = wait.min(at.saturating_duration_since(Instant::now())),
                Err(None) => {}
            }
            let permit = Arc::clone(&self.permits).acquire_owned();
            if let Ok(permit) = timeout(wait, permit).await {
                return permit.ok();
            }
        }
        None
    }

    fn start(&self, stream: TcpStream, peer: SocketAddr, permit: Option<OwnedSemaphorePermit>) {
        let activity = Arc::new(Activity::new(peer));
        let entry = self.open.enter(&activity);
        let service = Watched {
            app: TowerToHyperService::new(self.app.clone()),
            activity: Arc::clone(&activity),
            stage: self.stage.subscribe(),
        };
        let stream = Stream {
            tcp: stream,
            activity: Arc::clone(&activity),
            is_blocked: false,
        };
        let served = Served {
            connection: self.http.serve_connection(TokioIo::new(stream), service),
            http: self.http.clone(),
            activity: Arc::clone(&activity),
            limits: self.limits,
            peer,
            refusals: Arc::clone(&self.refusals),
        };
        let served = served.run(self.stage.subscribe());
        tokio::spawn(async move {
            let _entered = (entry, permit);
            tokio::select! {
                biased;
                () = activity.closed.notified() => {}
                () = served => {}
            }
        });
    }

    /// Ends each connection with its next response.
    pub(crate) fn leave(&self) {
        self.stage.send_replace(Stage::Leaving);
    }

    /// Accepts no more connections.
    pub(crate) fn close(&self) {
        self.stage.send_replace(Stage::Closing);
    }

    /// Lets the requests finish, and then closes the connections.
    pub(crate) async fn shutdown(&self) {
        self.close();
        let all = u32::try_from(self.limits.max_connections).unwrap_or(u32::MAX);
        let _ = self.permits.acquire_many(all).await;
    }
}

type Connection = http1::Connection<TokioIo<Stream>, Watched>;

/// A connection, while it is served.
struct Served {
    connection: Connection,
    http: http1::Builder,
    activity: Arc<Activity>,
    limits: Limits,
    peer: SocketAddr,
    refusals: Arc<Refusals>,
}

impl Served {
    async fn run(mut self, mut stage: watch::Receiver<Stage>) {
        let is_closing = |stage: &Stage| *stage == Stage::Closing;
        let mut closing = None;
        loop {
            tokio::select! {
                result = self.next(closing) => match result {
                    Some(Ok(())) => break,
                    Some(Err(error)) if self.refused(&error) => break,
                    Some(Err(_)) => return,
                    None if closing.is_some_and(|it| it.elapsed() >= LAST_CALL) => return,
                    None => match self.quiet() {
                        Some(quiet) => self = quiet,
                        None => return,
                    }
                },
                Ok(_) = stage.wait_for(is_closing), if closing.is_none() => {
                    closing = Some(Instant::now());
                    // hyper would close a connection of which it has read nothing.
                    if self.activity.phase().has_request() {
                        Pin::new(&mut self.connection).graceful_shutdown();
                    }
                }
            }
        }
        self.activity.enter(Phase::Idle(Instant::now()));
        let stream = self.connection.into_parts().io.into_inner().tcp;
        let briefly = async {
            let _ = stage.wait_for(is_closing).await;
            sleep(LEAST_AGE).await;
        };
        tokio::select! {
            () = drop_rest(stream) => {}
            () = briefly => {}
        }
    }

    /// Returns how the connection ends, or `None` at a time limit. When the receiver closes, a connection that waits for a
    /// request ends soon.
    async fn next(&mut self, closing: Option<Instant>) -> Option<hyper::Result<()>> {
        let mut timer = pin!(sleep_until(Instant::now()));
        poll_fn(|cx| {
            if let Poll::Ready(result) = Pin::new(&mut self.connection).poll(cx) {
                return Poll::Ready(Some(result));
            }
            let last_call = match (closing, self.activity.phase()) {
                (Some(_), Phase::Closing) => return Poll::Ready(None),
                (Some(_), phase) if phase.has_request() => None,
                (Some(since), _) => Some(since + LAST_CALL),
                (None, _) => None,
            };
            let deadline = self.activity.deadline(&self.limits);
            let Some(deadline) = deadline.into_iter().chain(last_call).min() else {
                return Poll::Pending;
            };
            if timer.deadline() != deadline {
                timer.as_mut().reset(deadline);
            }
            ready!(timer.as_mut().poll(cx));
            Poll::Ready(None)
        })
        .await
    }

    /// Goes on at the time limit of a head if it has not begun. What came together with the request before is in hyper's
    /// buffer, where only the end of its connection shows it.
    fn quiet(mut self) -> Option<Self> {
        let phase = self.activity.phase();
        let has_begun = match phase {
            Phase::Idle(since) if self.limits.head < self.limits.idle => {
                let parts = self.connection.into_parts();
                if parts.read_buf.is_empty() && !parts.io.inner().is_blocked {
                    self.activity.enter(Phase::Quiet(since));
                    self.connection = self.http.serve_connection(parts.io, parts.service);
                    return Some(self);
                }
                !parts.read_buf.is_empty()
            }
            phase => matches!(phase, Phase::Head(_)),
        };
        if has_begun {
            let reason = "the head of the request did not arrive in time";
            self.refusals.log("header-timeout", self.peer, &reason);
        }
        None
    }

    /// Whether the connection ends because of a request that is no HTTP.
    fn refused(&self, error: &hyper::Error) -> bool {
        let outcome = match () {
            () if error.is_parse_too_large() => "headers-too-large",
            () if error.is_parse() => {
                if let Some((outcome, reason)) = doors::protocol(&self.activity.first()) {
                    self.refusals.log(outcome, self.peer, &reason);
                    return true;
                }
                "malformed-request"
            }
            () => {
                tracing::debug!(peer = %self.peer, reason = chain(error), "a connection broke off");
                return false;
            }
        };
        self.refusals.log(outcome, self.peer, &chain(error));
        true
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::body::{Body, Bytes};
    use axum::routing::get;
    use futures_util::{StreamExt, stream};
    use tokio::io::AsyncWriteExt;

    use super::*;

    const IDLE: Duration = Duration::from_millis(500);

    /// Asks for a response of so many parts, each after a while.
    async fn ask(parts: usize, part: Bytes, every: Duration) -> TcpStream {
        let body = move || {
            let part = part.clone();
            let parts = stream::repeat(part).take(parts);
            Body::from_stream(parts.then(move |part| async move {
                sleep(every).await;
                Ok::<_, Infallible>(part)
            }))
        };
        let app = Router::new().route("/", get(async move || body()));
        let limits = Limits {
            idle: IDLE,
            ..Limits::FEW
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Connections::new(Refusals::new("test"), app, limits);
        tokio::spawn(async move { connections.accept(listener, false).await });
        let mut client = TcpStream::connect(address).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        client.write_all(request).await.unwrap();
        client
    }

    async fn rest(mut client: TcpStream) -> usize {
        let mut read = Vec::new();
        // One that is cut may be reset.
        let _ = client.read_to_end(&mut read).await;
        read.len()
    }

    #[tokio::test]
    async fn a_long_response_is_not_cut_while_its_parts_come() {
        let part = Bytes::from_static(&[b'x'; 1000]);
        // Each part comes within the limit; or later, when there was nothing to send before.
        for (parts, every) in [(12, IDLE / 6), (1, 2 * IDLE)] {
            let client = ask(parts, part.clone(), every).await;
            assert!(rest(client).await > 1000 * parts, "{parts}");
        }
    }

    #[tokio::test]
    async fn a_response_that_nobody_reads_is_cut() {
        let part = Bytes::from(vec![b'x'; 1 << 20]);
        let client = ask(64, part, Duration::ZERO).await;
        sleep(3 * IDLE).await;
        assert!(rest(client).await < 64 << 20);
    }
}
