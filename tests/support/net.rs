//! Real sockets: two servers, and a client that controls every byte of its requests.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::time::sleep;
use tower::Service;
use tower_webhook::Secret;

use super::delivery::{Answered, secret};

/// A listener on a free port, with room for all connections of a test: one too many would not be
/// refused, but tried again by the system after seconds that double.
fn listen() -> TcpListener {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    socket.listen(4096).unwrap()
}

/// Serves on a port of its own, until the runtime ends.
pub async fn serve(app: axum::Router) -> SocketAddr {
    let listener = listen();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, app).await });
    address
}

/// What the receiver is mounted on.
#[derive(Clone, Copy, Debug)]
pub enum Server {
    Axum,
    Hyper,
}

pub const SERVERS: [Server; 2] = [Server::Axum, Server::Hyper];

impl Server {
    /// Serves on a port of its own, until the runtime ends.
    pub async fn serve<S, B>(self, service: S) -> SocketAddr
    where
        S: Service<
                Request<axum::body::Body>,
                Response = Response<B>,
                Error = Infallible,
                Future: Send,
            > + Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send>
            + Clone
            + Send
            + Sync
            + 'static,
        B: http_body::Body<Data = Bytes, Error: Error + Send + Sync> + Send + 'static,
    {
        match self {
            Self::Axum => serve(axum::Router::new().route_service("/webhooks", service)).await,
            Self::Hyper => {
                let listener = listen();
                let address = listener.local_addr().unwrap();
                tokio::spawn(async move {
                    while let Ok((stream, _)) = listener.accept().await {
                        let service = TowerToHyperService::new(service.clone());
                        tokio::spawn(
                            http1::Builder::new().serve_connection(TokioIo::new(stream), service),
                        );
                    }
                });
                address
            }
        }
    }
}

/// Lets so many files be open, of which each connection takes two.
pub fn allow_files(count: u64) {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    if soft < count {
        assert!(
            hard >= count,
            "allow {count} open files: `ulimit -n {count}`"
        );
        setrlimit(Resource::RLIMIT_NOFILE, count, hard).unwrap();
    }
}

/// Counts the requests that a service is at work on.
#[derive(Clone)]
pub struct Watched<S> {
    inner: S,
    live: Arc<AtomicUsize>,
}

impl<S> Watched<S> {
    pub fn new(inner: S) -> Self {
        let live = Arc::default();
        Self { inner, live }
    }

    /// The number, whenever it is asked for.
    pub fn live(&self) -> impl Fn() -> usize + Clone + use<S> {
        let live = Arc::clone(&self.live);
        move || live.load(Ordering::SeqCst)
    }
}

impl<S, R> Service<R> for Watched<S>
where
    S: Service<R, Future: Send + 'static>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let response = self.inner.call(request);
        let counted = Counted::new(&self.live);
        Box::pin(async move {
            let response = response.await;
            drop(counted);
            response
        })
    }
}

/// Counts as one while it lives.
pub struct Counted(Arc<AtomicUsize>);

impl Counted {
    pub fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The head of a delivery, signed for `body`. `length` is the header that frames it.
pub fn head(key: &str, body: &[u8], length: &str) -> String {
    head_with(&secret(), key, body, length)
}

fn head_with(secret: &Secret, key: &str, body: &[u8], length: &str) -> String {
    format!(
        "POST /webhooks HTTP/1.1\r\n\
         Host: localhost\r\n\
         Content-Type: application/json\r\n\
         X-Service-Event: chat-rated\r\n\
         X-Service-Hmac-Sha256: {}\r\n\
         Idempotency-Key: {key}\r\n\
         {length}\r\n\r\n",
        secret.sign(body)
    )
}

pub const CHUNKED: &str = "Transfer-Encoding: chunked";

pub fn content_length(length: impl std::fmt::Display) -> String {
    format!("Content-Length: {length}")
}

/// A whole delivery.
pub fn whole(key: &str, body: &str) -> Vec<u8> {
    whole_with(&secret(), key, body)
}

/// A whole delivery, signed with another secret.
pub fn whole_with(secret: &Secret, key: &str, body: &str) -> Vec<u8> {
    let head = head_with(secret, key, body.as_bytes(), &content_length(body.len()));
    (head + body).into_bytes()
}

/// A connection on which a test decides about every byte.
pub struct Client {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let read = Vec::new();
        Self { stream, read }
    }

    /// Sends bytes, in a packet of their own so far as that can be arranged.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref()).await
    }

    /// Says that nothing more will be sent.
    pub async fn finish(&mut self) {
        self.stream.shutdown().await.unwrap();
    }

    /// The next answer, without the headers that the server adds. An error when the connection ends
    /// before.
    pub async fn answer(&mut self) -> io::Result<Answered> {
        let (mut answered, end) = loop {
            if let Some(end) = self.read.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break (parse(&self.read[..end]), end + 4);
            }
            self.more().await?;
        };
        let length = answered.headers.remove("content-length");
        let length: usize = length.map_or(0, |value| value.to_str().unwrap().parse().unwrap());
        while self.read.len() < end + length {
            self.more().await?;
        }
        for added in ["connection", "date"] {
            answered.headers.remove(added);
        }
        answered.body = self.read[end..end + length].to_vec().into();
        self.read.drain(..end + length);
        Ok(answered)
    }

    async fn more(&mut self) -> io::Result<()> {
        match self.stream.read_buf(&mut self.read).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

fn parse(head: &[u8]) -> Answered {
    let mut lines = str::from_utf8(head).unwrap().split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap();
    let headers: HeaderMap = lines
        .map(|line| line.split_once(": ").unwrap())
        .map(|(name, value)| {
            let name: HeaderName = name.parse().unwrap();
            (name, HeaderValue::try_from(value).unwrap())
        })
        .collect();
    let status = StatusCode::from_bytes(status.as_bytes()).unwrap();
    let body = Bytes::new();
    Answered {
        status,
        headers,
        body,
    }
}

/// Delivers on a connection of its own.
pub async fn post(address: SocketAddr, request: impl AsRef<[u8]>) -> io::Result<Answered> {
    let mut client = Client::connect(address).await;
    client.send(request).await?;
    client.answer().await
}

/// Delivers on a connection of its own, and returns the status of the answer, if there is one.
pub async fn status(address: SocketAddr, request: impl AsRef<[u8]>) -> io::Result<u16> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request.as_ref()).await?;
    let mut status = [0; "HTTP/1.1 200".len()];
    stream.read_exact(&mut status).await?;
    Ok(str::from_utf8(&status[9..]).unwrap().parse().unwrap())
}

/// A way to a port of this machine that a test cuts, delays, and leads elsewhere, as a network, a virtual address and
/// DNS do.
pub struct Line {
    port: u16,
    state: watch::Sender<State>,
}

#[derive(Clone, Copy)]
struct State {
    to: u16,
    way: Way,
    delay: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Open,
    /// Nothing passes, the end of a connection neither.
    Silent,
    /// Connections are closed.
    Closed,
}

impl Line {
    pub async fn to(port: u16) -> Self {
        let listener = listen();
        let (state, seen) = watch::channel(State {
            to: port,
            way: Way::Open,
            delay: Duration::ZERO,
        });
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, seen.clone()));
            }
        });
        Self { port, state }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn set(&self, way: Way) {
        self.state.send_modify(|state| state.way = way);
    }

    /// Delays each answer.
    pub fn delay(&self, delay: Duration) {
        self.state.send_modify(|state| state.delay = delay);
    }

    /// Leads new connections to another port. The others stay.
    pub fn lead_to(&self, port: u16) {
        self.state.send_modify(|state| state.to = port);
    }
}

/// Carries what is sent on a connection, until an end closes it or the line is gone.
async fn carry(client: TcpStream, mut state: watch::Receiver<State>) -> Option<()> {
    let is_heard = |state: &State| state.way != Way::Silent;
    let now = *state.wait_for(is_heard).await.ok()?;
    if now.way == Way::Closed {
        return None;
    }
    let server = TcpStream::connect(("127.0.0.1", now.to)).await.ok()?;
    client.set_nodelay(true).ok()?;
    server.set_nodelay(true).ok()?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let requests = pump(from_client, to_server, state.clone(), false);
    let answers = pump(from_server, to_client, state.clone(), true);
    tokio::select! {
        _ = requests => {}
        _ = answers => {}
        _ = state.wait_for(|state| state.way == Way::Closed) => {}
    }
    None
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut state: watch::Receiver<State>,
    has_delay: bool,
) -> Option<()> {
    let mut bytes = [0; 8192];
    loop {
        let length = from.read(&mut bytes).await.ok()?;
        let delay = state.borrow().delay;
        if has_delay && !delay.is_zero() {
            sleep(delay).await;
        }
        state.wait_for(|state| state.way == Way::Open).await.ok()?;
        if length == 0 {
            return None;
        }
        to.write_all(&bytes[..length]).await.ok()?;
    }
}

/// Forwards to a port of this machine until the client sends something that contains `word`: then it
/// closes the connection, before or after that is forwarded.
pub async fn cutting_proxy(to: u16, word: &'static [u8], forward: bool) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut server = TcpStream::connect(("127.0.0.1", to)).await.unwrap();
            tokio::spawn(async move {
                let (mut from_client, mut from_server) = ([0; 8192], [0; 8192]);
                loop {
                    tokio::select! {
                        read = client.read(&mut from_client) => {
                            let sent = &from_client[..read.unwrap_or(0)];
                            let cut = sent.windows(word.len()).any(|part| part == word);
                            if sent.is_empty() || cut && !forward {
                                return;
                            }
                            server.write_all(sent).await.unwrap();
                            if cut {
                                // The server answers when it has committed.
                                let _ = server.read(&mut from_server).await;
                                return;
                            }
                        }
                        read = server.read(&mut from_server) => {
                            let sent = &from_server[..read.unwrap_or(0)];
                            if sent.is_empty() || client.write_all(sent).await.is_err() {
                                return;
                            }
                        }
                    }
                }
            });
        }
    });
    port
}
