//! The load generator: sends prepared requests over keep-alive connections, with one thread per core.
//! Every response is checked.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::time::ClockId;
use tower_webhook::Secret;
use tower_webhook::event::{EventKind, sample};

use crate::SECRET;
use crate::machine::{Cores, cpu_time};

/// Prepared requests and the expected response.
///
/// Requests differ only in their key, so the signature of their common body stays valid.
pub(crate) struct Deliveries {
    request: Vec<u8>,
    keys: Keys,
    chats: Option<Arc<Chats>>,
    expected: Verdict,
}

/// Chats by their numbers, which stand at the end of their ids, and the signatures of their bodies.
struct Chats {
    digits_at: usize,
    signature_at: usize,
    signatures: Vec<String>,
}

struct Keys {
    first: u64,
    count: u64,
    taken: AtomicU64,
}

/// The relevant parts of a response.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Verdict {
    status: [u8; 3],
    replayed: bool,
}

const KEY_DIGITS: usize = 32;

impl Deliveries {
    /// Returns `chat-closed` deliveries with new keys.
    pub(crate) fn unique() -> Self {
        Self::new(chat_closed(), Keys::new(Keys::SPACE))
    }

    /// Returns `chat-closed` deliveries with new keys, of `count` chats in turn.
    #[allow(dead_code)] // The benchmark `inbox` uses it.
    pub(crate) fn of_chats(count: usize) -> Self {
        let mut deliveries = Self::unique();
        let request = String::from_utf8_lossy(&deliveries.request);
        let signature = "x-service-hmac-sha256: ";
        let at = |text: &str| request.find(text).map(|at| at + text.len());
        let (Some(signature_at), Some(start), Some(id)) =
            (at(signature), at("\r\n\r\n"), at("\"id\":\""))
        else {
            unreachable!("a request has a signature, and its body a chat");
        };
        let length = request[id..].find('"').unwrap_or_default();
        let digits_at = id + length - CHAT_DIGITS;
        let secret = Secret::new(SECRET).expect("it is not empty");
        let signatures = (0..count)
            .map(|chat| {
                let mut body = deliveries.request[start..].to_vec();
                let digits = digits_at - start;
                write_hex(&mut body[digits..digits + CHAT_DIGITS], chat as u64);
                secret.sign(&body)
            })
            .collect();
        deliveries.chats = Some(Arc::new(Chats {
            digits_at,
            signature_at,
            signatures,
        }));
        deliveries
    }

    /// Returns the next request.
    #[allow(dead_code)] // The benchmark `inbox` uses it.
    pub(crate) fn request(&self) -> Vec<u8> {
        let mut request = self.request.clone();
        self.address(&mut request);
        request
    }

    /// Returns `chat-closed` deliveries with `count` new keys in turn.
    pub(crate) fn cycling(count: u64) -> Self {
        Self::new(chat_closed(), Keys::new(count))
    }

    /// Returns the same deliveries from the first key on, for a receiver that knows all keys.
    pub(crate) fn replays(&self) -> Self {
        Self {
            request: self.request.clone(),
            keys: Keys {
                first: self.keys.first,
                count: self.keys.count.min(self.sent()),
                taken: AtomicU64::new(0),
            },
            chats: self.chats.clone(),
            expected: Verdict {
                replayed: true,
                ..self.expected
            },
        }
    }

    /// Returns the last `count` deliveries that were sent, for a receiver that knows their keys.
    pub(crate) fn last_replayed(&self, count: u64) -> Self {
        let mut replays = self.replays();
        replays.keys.first += self.sent() - count;
        replays.keys.count = count;
        replays
    }

    /// Returns the first `count` deliveries that were sent, for a receiver that forgot their keys.
    pub(crate) fn first_again(&self, count: u64) -> Self {
        let mut again = self.replays();
        again.expected = self.expected;
        again.keys.count = count;
        again
    }

    /// Returns deliveries with the signature of another body.
    pub(crate) fn forged() -> Self {
        let mut forged = Self::unique();
        let body = forged.request.len() - 2;
        forged.request[body] = b' ';
        forged.expected.status = *b"401";
        forged
    }

    /// Returns how many deliveries were sent.
    pub(crate) fn sent(&self) -> u64 {
        self.keys.taken.load(Ordering::Relaxed)
    }

    fn new(body: &str, keys: Keys) -> Self {
        let signature = Secret::new(SECRET)
            .expect("it is not empty")
            .sign(body.as_bytes());
        let length = body.len();
        let request = format!(
            "POST /webhooks HTTP/1.1\r\n\
             idempotency-key: evt-{:032x}\r\n\
             host: 127.0.0.1\r\n\
             content-type: application/json\r\n\
             content-length: {length}\r\n\
             x-service-event: chat-closed\r\n\
             x-service-hmac-sha256: {signature}\r\n\r\n{body}",
            0
        );
        Self {
            request: request.into_bytes(),
            keys,
            chats: None,
            expected: Verdict {
                status: *b"200",
                replayed: false,
            },
        }
    }

    /// Writes the next key into a request, and its chat.
    fn address(&self, request: &mut [u8]) {
        let end = KEY_AT + KEY_DIGITS;
        let key = self.keys.next();
        write_hex(&mut request[end - 16..end], key);
        if let Some(chats) = &self.chats {
            let chat = (key % chats.signatures.len() as u64) as usize;
            let signature = chats.signatures[chat].as_bytes();
            request[chats.signature_at..][..signature.len()].copy_from_slice(signature);
            write_hex(&mut request[chats.digits_at..][..CHAT_DIGITS], chat as u64);
        }
    }
}

fn write_hex(digits: &mut [u8], mut number: u64) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for digit in digits.iter_mut().rev() {
        *digit = DIGITS[(number % 16) as usize];
        number /= 16;
    }
}

/// How many digits of a chat's id are its number.
const CHAT_DIGITS: usize = 8;

/// The offset of the key's digits: after the request line, the header's name and `evt-`.
const KEY_AT: usize = "POST /webhooks HTTP/1.1\r\nidempotency-key: evt-".len();

impl Keys {
    const SPACE: u64 = 1 << 40;

    fn new(count: u64) -> Self {
        static SPACES: AtomicU64 = AtomicU64::new(1);
        Self {
            first: SPACES.fetch_add(1, Ordering::Relaxed) * Self::SPACE,
            count,
            taken: AtomicU64::new(0),
        }
    }

    fn next(&self) -> u64 {
        self.first + self.taken.fetch_add(1, Ordering::Relaxed) % self.count
    }
}

fn chat_closed() -> &'static str {
    sample(&EventKind::CHAT_CLOSED).expect("a kind of the platform")
}

/// How many requests are sent, and how fast.
#[derive(Clone, Copy)]
pub(crate) enum Pace {
    /// Each connection sends its next request after the response to the last one, for a time.
    ClosedFor(Duration),
    /// Each connection sends its next request after the response to the last one, for a number of
    /// requests.
    Closed(u64),
    /// A fixed number of requests per second, even if the receiver does not keep up. Latency is counted
    /// from the time at which a request should have been sent.
    Open { rate: f64, time: Duration },
}

/// The measurements of a run.
#[derive(Default)]
pub(crate) struct Sample {
    pub(crate) answers: u64,
    pub(crate) time: Duration,
    /// Processor time of the load generator's threads.
    pub(crate) cpu: Duration,
    /// In nanoseconds, sorted.
    pub(crate) latencies: Vec<u64>,
    /// The delays of the generator itself at an open pace, in nanoseconds, sorted.
    pub(crate) delays: Vec<u64>,
}

impl Sample {
    /// Returns the responses per second.
    pub(crate) fn rate(&self) -> f64 {
        self.answers as f64 / self.time.as_secs_f64()
    }

    fn absorb(&mut self, other: Self) {
        self.answers += other.answers;
        self.time = self.time.max(other.time);
        self.cpu += other.cpu;
        self.latencies.extend(other.latencies);
        self.delays.extend(other.delays);
    }
}

/// Open connections to a receiver, spread over threads.
pub(crate) struct Load {
    threads: Vec<Thread>,
    cores: Cores,
}

struct Thread {
    epoll: Epoll,
    connections: Vec<Connection>,
}

impl Load {
    pub(crate) fn connect(to: SocketAddr, connections: usize, cores: &Cores) -> Result<Self> {
        let at_once = cores.len().min(connections);
        let share = |at| (connections + at) / at_once;
        let threads = (0..at_once).map(|at| Thread::connect(to, share(at)));
        Ok(Self {
            threads: threads.collect::<Result<_>>()?,
            cores: cores.clone(),
        })
    }

    /// Sends requests, and returns after the last response.
    ///
    /// # Errors
    ///
    /// Returns an error if a response is missing or not the expected one.
    pub(crate) fn run(&mut self, deliveries: &Deliveries, pace: Pace) -> Result<Sample> {
        let threads = self.threads.len();
        let share = |at: usize| match pace {
            Pace::ClosedFor(time) => Pace::ClosedFor(time),
            Pace::Closed(count) => Pace::Closed((count + at as u64) / threads as u64),
            Pace::Open { rate, time } => Pace::Open {
                rate: rate / threads as f64,
                time,
            },
        };
        let began = Instant::now();
        let mut total = Sample::default();
        thread::scope(|scope| {
            let running: Vec<_> = self
                .threads
                .iter_mut()
                .enumerate()
                .map(|(at, thread)| {
                    let (core, pace) = (self.cores.only(at), share(at));
                    scope.spawn(move || {
                        core.pin()?;
                        let mut sample = thread.run(deliveries, pace)?;
                        sample.cpu = cpu_time(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
                        anyhow::Ok(sample)
                    })
                })
                .collect();
            for thread in running {
                total.absorb(thread.join().expect("the load generator panicked")?);
            }
            anyhow::Ok(())
        })?;
        total.time = began.elapsed();
        total.latencies.sort_unstable();
        total.delays.sort_unstable();
        Ok(total)
    }
}

impl Thread {
    fn connect(to: SocketAddr, connections: usize) -> Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let connections = (0..connections)
            .map(|at| {
                let connection = Connection::open(to)?;
                let event = EpollEvent::new(EpollFlags::EPOLLIN, at as u64);
                epoll.add(&connection.stream, event)?;
                anyhow::Ok(connection)
            })
            .collect::<Result<_>>()
            .context("cannot connect to the receiver")?;
        Ok(Self { epoll, connections })
    }

    fn run(&mut self, deliveries: &Deliveries, pace: Pace) -> Result<Sample> {
        for connection in &mut self.connections {
            connection.request.clone_from(&deliveries.request);
        }
        match pace {
            Pace::ClosedFor(time) => {
                let end = Instant::now() + time;
                self.closed(deliveries, |now, _| now < end)
            }
            Pace::Closed(count) => self.closed(deliveries, |_, sent| sent < count),
            Pace::Open { rate, time } => self.open(deliveries, rate, time),
        }
    }

    fn closed(
        &mut self,
        deliveries: &Deliveries,
        more: impl Fn(Instant, u64) -> bool,
    ) -> Result<Sample> {
        let mut sample = Sample::default();
        let mut sent = 0;
        for connection in &mut self.connections {
            let now = Instant::now();
            if more(now, sent) {
                connection.send(deliveries, now)?;
                sent += 1;
            }
        }
        let mut events = vec![EpollEvent::empty(); self.connections.len()];
        while sample.answers < sent {
            let ready = self.epoll.wait(&mut events, PATIENCE)?;
            ensure!(ready > 0, "no response within {PATIENCE} ms");
            for event in &events[..ready] {
                let connection = &mut self.connections[event.data() as usize];
                if !connection.receive(deliveries.expected)? {
                    continue;
                }
                let now = Instant::now();
                sample.answers += 1;
                sample.latencies.push(nanos(now - connection.since));
                if more(now, sent) {
                    connection.send(deliveries, now)?;
                    sent += 1;
                }
            }
        }
        Ok(sample)
    }

    /// Polls without sleeping, because waking up would take longer than a response.
    fn open(&mut self, deliveries: &Deliveries, rate: f64, time: Duration) -> Result<Sample> {
        let mut sample = Sample::default();
        let total = (rate * time.as_secs_f64()) as u64;
        let mut sent = 0;
        let mut idle: VecDeque<usize> = (0..self.connections.len()).collect();
        let mut events = vec![EpollEvent::empty(); self.connections.len()];
        let mut receiver_keeps_up = true;
        let began = Instant::now();
        let mut heard = began;

        while sent < total || idle.len() < self.connections.len() {
            let now = Instant::now();
            while sent < total {
                let due = began + Duration::from_secs_f64(sent as f64 / rate);
                if due > now {
                    break;
                }
                let Some(at) = idle.pop_front() else {
                    receiver_keeps_up = false;
                    break;
                };
                if receiver_keeps_up {
                    sample.delays.push(nanos(now - due));
                }
                self.connections[at].send(deliveries, due)?;
                sent += 1;
            }

            let ready = self.epoll.wait(&mut events, EpollTimeout::ZERO)?;
            let now = Instant::now();
            for event in &events[..ready] {
                let at = event.data() as usize;
                if self.connections[at].receive(deliveries.expected)? {
                    sample.answers += 1;
                    sample
                        .latencies
                        .push(nanos(now - self.connections[at].since));
                    idle.push_back(at);
                    heard = now;
                }
            }
            // While requests are queued, the generator waits for the receiver.
            receiver_keeps_up |= began + Duration::from_secs_f64(sent as f64 / rate) > now;
            let waited = now - heard;
            ensure!(
                waited.as_millis() < PATIENCE.into() || idle.len() == self.connections.len(),
                "no response within {PATIENCE} ms"
            );
        }
        Ok(sample)
    }
}

/// In milliseconds.
const PATIENCE: u16 = 20_000;

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

struct Connection {
    stream: TcpStream,
    request: Vec<u8>,
    answer: [u8; 4096],
    received: usize,
    /// When the request was sent, or should have been sent.
    since: Instant,
}

impl Connection {
    fn open(to: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(to)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            request: Vec::new(),
            answer: [0; 4096],
            received: 0,
            since: Instant::now(),
        })
    }

    fn send(&mut self, deliveries: &Deliveries, since: Instant) -> Result<()> {
        deliveries.address(&mut self.request);
        // One request at a time always fits into the buffer of the socket.
        let written = self.stream.write(&self.request).context("cannot send")?;
        ensure!(
            written == self.request.len(),
            "a request did not fit into the socket"
        );
        self.since = since;
        Ok(())
    }

    /// Returns whether the complete response has arrived, and checks that it is `expected`.
    fn receive(&mut self, expected: Verdict) -> Result<bool> {
        match self.stream.read(&mut self.answer[self.received..]) {
            Ok(0) => bail!("the receiver closed the connection, or its response is too long"),
            Ok(read) => self.received += read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error).context("cannot receive"),
        }
        let answer = &self.answer[..self.received];
        let Some(head) = answer.windows(4).position(|four| four == b"\r\n\r\n") else {
            return Ok(false);
        };
        let (verdict, body) = parse(&answer[..head])
            .with_context(|| format!("not a response: {}", String::from_utf8_lossy(answer)))?;
        if self.received < head + 4 + body {
            return Ok(false);
        }
        ensure!(
            verdict == expected && self.received == head + 4 + body,
            "wrong response: expected {expected}, got\n{}",
            String::from_utf8_lossy(answer)
        );
        self.received = 0;
        Ok(true)
    }
}

/// Parses the head of a response: its relevant parts and the length of its body.
fn parse(head: &[u8]) -> Option<(Verdict, usize)> {
    let mut lines = head.split(|byte| *byte == b'\n');
    let status = lines.next()?.strip_prefix(b"HTTP/1.1 ")?.first_chunk()?;
    let mut verdict = Verdict {
        status: *status,
        replayed: false,
    };
    let mut body = None;
    for line in lines {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            body = Some(std::str::from_utf8(value).ok()?.parse().ok()?);
        } else if name.eq_ignore_ascii_case(b"idempotent-replayed") {
            verdict.replayed = value == b"true";
        }
    }
    Some((verdict, body?))
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let status = String::from_utf8_lossy(&self.status);
        match self.replayed {
            true => write!(f, "{status} as a replay"),
            false => write!(f, "{status}"),
        }
    }
}
