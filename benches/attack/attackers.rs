//! Clients without the secret that hold what a receiver has, and a genuine sender beside them.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::ValueEnum;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, timeout};
use tower_webhook::Secret;

/// What an attacker does on each of its connections until the receiver closes it. Then it connects again, at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// Sends nothing
    Silent,
    /// Sends a header byte by byte
    DrippingHead,
    /// Sends half a head
    HalfHead,
    /// Sends a body byte by byte
    DrippingBody,
    /// Sends a body without its last byte
    HeldBack,
    /// Sends a whole body of 1 MiB with a wrong signature
    Forged,
}

pub(crate) const SORTS: [Sort; 6] = [
    Sort::Silent,
    Sort::DrippingHead,
    Sort::HalfHead,
    Sort::DrippingBody,
    Sort::HeldBack,
    Sort::Forged,
];

const DRIP: Duration = Duration::from_millis(500);

/// Where requests go, and how large the bodies of attackers are which hold them back.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    pub(crate) path: String,
    pub(crate) held_back: usize,
}

impl Target {
    /// The head of a delivery whose signature looks right.
    fn head(&self, signature: &str, key: &str, length: usize) -> String {
        let path = &self.path;
        format!(
            "POST {path} HTTP/1.1\r\nHost: receiver\r\nContent-Type: application/json\r\nX-Service-Event: chat-rated\r\n\
             X-Service-Hmac-Sha256: {signature}\r\nIdempotency-Key: {key}\r\nContent-Length: {length}\r\n\r\n"
        )
    }

    fn forged(&self, length: usize) -> Vec<u8> {
        let head = self.head(&"0".repeat(64), "forged", length);
        let mut request = head.into_bytes();
        request.resize(request.len() + length, b'x');
        request
    }
}

/// Starts attackers that go on until the set is dropped, and counts their connections.
pub(crate) fn attack(
    target: &Target,
    sort: Sort,
    attackers: usize,
    connections: &Arc<AtomicU64>,
) -> JoinSet<()> {
    let length = match sort {
        Sort::Forged => 1 << 20,
        _ => target.held_back,
    };
    let request: Arc<[u8]> = target.forged(length).into();
    let head = request.len() - length;
    (0..attackers)
        .map(|number| {
            let (request, connections) = (Arc::clone(&request), Arc::clone(connections));
            let address = target.address;
            async move {
                loop {
                    let Ok(stream) = connect(address, number).await else {
                        sleep(Duration::from_millis(10)).await;
                        continue;
                    };
                    connections.fetch_add(1, Ordering::Relaxed);
                    let _ = hold(stream, sort, &request, head).await;
                }
            }
        })
        .collect()
}

/// From an address of its own, because one has too few ports.
async fn connect(to: SocketAddr, number: usize) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    if to.ip().is_loopback() {
        let [.., high, low] = u32::try_from(number / 250).unwrap_or(0).to_be_bytes();
        socket.bind((Ipv4Addr::new(127, 1, high, low), 0).into())?;
    }
    socket.connect(to).await
}

async fn hold(mut stream: TcpStream, sort: Sort, request: &[u8], head: usize) -> io::Result<()> {
    let (mut reader, mut writer) = stream.split();
    let send = async {
        match sort {
            Sort::Silent => Ok(()),
            Sort::HalfHead => writer.write_all(&request[..head / 2]).await,
            Sort::HeldBack => writer.write_all(&request[..request.len() - 1]).await,
            Sort::Forged => writer.write_all(request).await,
            Sort::DrippingHead => {
                writer.write_all(&request[..head - 4]).await?;
                drip(&mut writer).await
            }
            Sort::DrippingBody => {
                writer.write_all(&request[..head]).await?;
                drip(&mut writer).await
            }
        }
    };
    // Whether it is answered or closed, it wants another connection.
    let mut answer = [0; 512];
    let ended = async {
        let _ = reader.read(&mut answer).await?;
        Err::<(), _>(io::Error::from(io::ErrorKind::ConnectionReset))
    };
    tokio::try_join!(send, ended).map(drop)
}

async fn drip(writer: &mut (impl AsyncWriteExt + Unpin)) -> io::Result<()> {
    loop {
        sleep(DRIP).await;
        writer.write_all(b"x").await?;
    }
}

/// What became of genuine deliveries.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    /// The times of those that were answered with 200, from when they were due. Sorted.
    pub(crate) answered: Vec<Duration>,
    pub(crate) refused: Vec<String>,
}

/// Sends ten deliveries a second, each on a connection of its own. One is refused if there is no 200 within 20 seconds.
pub(crate) async fn send(target: &Target, secret: &Secret, body: usize, time: Duration) -> Sent {
    const PATIENCE: Duration = Duration::from_secs(20);
    let body = format!(r#"{{"id":"{}"}}"#, "x".repeat(body.saturating_sub(9)));
    let signature = secret.sign(body.as_bytes());
    let mut deliveries = JoinSet::new();
    let mut due = interval(Duration::from_millis(100));
    for number in 0..time.as_millis() / 100 {
        let due = due.tick().await;
        let key = format!("{}-{number}", std::process::id());
        let head = target.head(&signature, &key, body.len());
        let (address, request) = (target.address, head + &body);
        deliveries.spawn(async move {
            let answer = match timeout(PATIENCE, deliver(address, request.as_bytes())).await {
                Ok(Ok(answer)) if answer.starts_with("HTTP/1.1 200") => return Ok(due.elapsed()),
                Ok(Ok(answer)) => answer.lines().next().unwrap_or("closed").to_owned(),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer".to_owned(),
            };
            Err(answer)
        });
    }
    let mut sent = Sent::default();
    while let Some(delivery) = deliveries.join_next().await {
        match delivery {
            Ok(Ok(time)) => sent.answered.push(time),
            Ok(Err(refused)) => sent.refused.push(refused),
            Err(error) => sent.refused.push(error.to_string()),
        }
    }
    sent.answered.sort_unstable();
    sent
}

async fn deliver(address: SocketAddr, request: &[u8]) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request).await?;
    let mut answer = vec![0; 1024];
    let length = stream.read(&mut answer).await?;
    answer.truncate(length);
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// When the attackers have had time to take all that there is.
pub(crate) async fn settle(connections: &AtomicU64, attackers: usize) {
    let give_up = Instant::now() + Duration::from_secs(3);
    while connections.load(Ordering::Relaxed) < attackers as u64 && Instant::now() < give_up {
        sleep(Duration::from_millis(20)).await;
    }
    sleep(Duration::from_millis(500)).await;
}
