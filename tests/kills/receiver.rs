//! The receiver is killed under load, again and again, while a sender retries until it gets its 200:
//! every event is handled, none is handled again after its 200 was received, and no key is taken for
//! longer than a lease after its receiver died.
//!
//! The stage that a kill hit is seen from outside: by the handler's marks and the receiver's output
//! until then, by the state in the store afterwards, and by the sender's response or lack of one.
//!
//! `KILLS=50` sets the number of kills, which defaults to 10.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sqlx::postgres::PgPoolOptions;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tower_webhook::Secret;
use tower_webhook::postgres::PostgresStore;
use tower_webhook::redis::RedisStore;
use tower_webhook::sqlite::SqliteStore;
use tower_webhook::store::{EventKey, KeyState, Store, StoreErrorKind};

use support::delivery::SECRET;
use support::postgres::PostgresServer;
use support::program::{PATIENCE, example, until_every};
use support::redis::RedisServer;

const LEASE: Duration = Duration::from_secs(2);
/// How late a store on a busy machine may be found to have let a key go.
const SLACK: Duration = Duration::from_secs(1);
const CONNECTIONS: usize = 32;
/// How long before a delivery that was not answered with 200 is sent again.
const PAUSE: Duration = Duration::from_millis(50);

#[tokio::test(flavor = "multi_thread")]
async fn killed_receivers_lose_nothing_with_sqlite() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("webhooks.db");
    let url = format!("sqlite:{}", path.display());
    survives("SQLite", &url, async || SqliteStore::open(&path).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_receivers_lose_nothing_with_redis() {
    let server = RedisServer::start_with(&["--appendonly", "yes"]);
    let open = async || RedisStore::open(&server.url()).await.unwrap();
    survives("Redis", &server.url(), open).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_receivers_lose_nothing_with_postgres() {
    let server = PostgresServer::start();
    let pool = PgPoolOptions::new().connect_lazy(&server.url()).unwrap();
    let open = async || PostgresStore::new(pool.clone());
    survives("Postgres", &server.url(), open).await;
}

/// Sends, kills, restarts and looks, until enough was seen; then judges.
async fn survives<S: Store>(name: &str, url: &str, open: impl AsyncFn() -> S) {
    let minimum = kills();
    let dir = TempDir::new().unwrap();
    let sender = Arc::new(Sender::new());
    let mut connections = JoinSet::new();
    for _ in 0..CONNECTIONS {
        connections.spawn(Arc::clone(&sender).work());
    }

    let mut report = Report::new(name);
    let mut lives = Vec::new();
    while lives.len() < minimum || (!report.hit_all() && lives.len() < 5 * minimum) {
        let number = lives.len();
        let life = Life::start(url, dir.path().join(number.to_string()), number);
        sender.reach(&life);
        life.wait_for_load();
        let aim = Aim::ALL[number % Aim::ALL.len()];
        let death = life.kill(aim, &sender);
        sender.settle().await;

        let store = open().await;
        let (unanswered, acknowledged) = sender.outcomes(number);
        for &event in &acknowledged {
            let state = peek(&store, event).await.state;
            if state != KeyState::Done {
                report.violation(format!("{} was acknowledged, and is {state:?}", key(event)));
            }
        }
        let mut seen = Vec::new();
        for event in unanswered {
            seen.push((event, peek(&store, event).await));
        }
        // Handlers outlive their receiver by a moment.
        sleep(Duration::from_millis(200)).await;
        let marks = life.marks();
        for (event, peeked) in &seen {
            report.count(number, place(*event, peeked, &life, &death, &marks));
        }

        // After every second death no delivery arrives, so that leases are seen to expire.
        if number % 2 == 0 {
            for (event, mut peeked) in seen {
                while peeked.is_taken() {
                    let taken_for = peeked.asked - death.at;
                    report.longest = report.longest.max(taken_for);
                    if taken_for > LEASE + SLACK {
                        let key = key(event);
                        report.violation(format!("{key} was still taken after {taken_for:.1?}"));
                        break;
                    }
                    sleep(Duration::from_millis(5)).await;
                    peeked = peek(&store, event).await;
                }
            }
        }
        lives.push(life);
    }

    let last = Life::start(url, dir.path().join("last"), lives.len());
    sender.reach(&last);
    sender.stop();
    let finished = timeout(PATIENCE, connections.join_all()).await;
    assert!(
        finished.is_ok(),
        "{report}\nsome events never got their 200\n{}",
        last.log()
    );
    repeat_everything(&sender, &last, &mut report).await;
    last.end();
    lives.push(last);

    judge(&sender, &lives, &mut report);
    println!("{report}");
    assert!(report.violations.is_empty(), "{report}");
    assert!(report.hit_all(), "some place was never hit\n{report}");
}

fn kills() -> usize {
    match std::env::var("KILLS") {
        Ok(text) => text.parse().expect("KILLS is no number"),
        Err(_) => 10,
    }
}

fn key(event: usize) -> String {
    format!("event-{event}")
}

/// What the store said of a key, and when it was asked.
struct Peeked {
    state: KeyState,
    asked: Instant,
}

impl Peeked {
    fn is_taken(&self) -> bool {
        matches!(self.state, KeyState::InFlight { .. })
    }
}

/// Asks again while the database is unavailable, as it may be on a busy machine.
async fn peek(store: &impl Store, event: usize) -> Peeked {
    let id = EventKey::new("", key(event).as_bytes(), b"");
    let give_up = Instant::now() + PATIENCE;
    loop {
        let asked = Instant::now();
        match store.peek(&id).await {
            Ok(state) => return Peeked { state, asked },
            Err(error) if error.kind() == StoreErrorKind::Corrupt => panic!("{error}"),
            Err(error) => assert!(asked < give_up, "{error}"),
        }
        sleep(PAUSE).await;
    }
}

/// Where a kill can meet a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    BeforeClaim,
    BeforeHandler,
    InHandler,
    BeforeRecord,
    BeforeAnswer,
    /// Before the response to an event that an earlier life had handled.
    BeforeReplay,
    /// It had been given back after its handler had started.
    Released,
}

impl Place {
    const TO_HIT: [Self; 5] = [
        Self::BeforeClaim,
        Self::BeforeHandler,
        Self::InHandler,
        Self::BeforeRecord,
        Self::BeforeAnswer,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::BeforeClaim => "before the claim",
            Self::BeforeHandler => "between claim and handler",
            Self::InHandler => "in the handler",
            Self::BeforeRecord => "between handler and record",
            Self::BeforeAnswer => "between record and answer",
            Self::BeforeReplay => "before a replay's answer",
            Self::Released => "after a release",
        }
    }
}

/// Where a delivery was that got no answer.
fn place(event: usize, peeked: &Peeked, life: &Life, death: &Death, marks: &[Mark]) -> Place {
    let key = key(event);
    let has = |marks: &[Mark], step| {
        marks
            .iter()
            .any(|mark| mark.step == step && mark.key == key)
    };
    let started = has(marks, Step::Start);
    match peeked.state {
        KeyState::Done if has(marks, Step::End) => Place::BeforeAnswer,
        KeyState::Done => Place::BeforeReplay,
        // A claim of the life before ends sooner than any of this one.
        KeyState::InFlight { remaining }
            if !started && peeked.asked + remaining <= life.began + LEASE =>
        {
            Place::BeforeClaim
        }
        KeyState::InFlight { .. }
            if has(&death.marks, Step::End) || death.printed.contains(&key) =>
        {
            Place::BeforeRecord
        }
        KeyState::InFlight { .. } if started => Place::InHandler,
        KeyState::InFlight { .. } => Place::BeforeHandler,
        KeyState::Free if started => Place::Released,
        KeyState::Free => Place::BeforeClaim,
    }
}

/// What was promised, compared with what the handler and the sender saw.
fn judge(sender: &Sender, lives: &[Life], report: &mut Report) {
    let mut marks: HashMap<String, Vec<(usize, Mark)>> = HashMap::new();
    for life in lives {
        for mark in life.marks() {
            let of_key = marks.entry(mark.key.clone()).or_default();
            of_key.push((life.number, mark));
        }
    }
    let state = sender.state();
    report.events = state.acknowledged.len();
    report.statuses = state.statuses.clone();
    for (event, acknowledged) in state.acknowledged.iter().enumerate() {
        let key = key(event);
        let marks = marks.remove(&key).unwrap_or_default();
        let Some(acknowledged) = acknowledged else {
            report.violation(format!("{key} never got its 200"));
            continue;
        };
        let is_before = |(life, mark): &&(usize, Mark)| {
            (*life, mark.offset) < (acknowledged.life, acknowledged.marks)
        };
        if !marks
            .iter()
            .filter(is_before)
            .any(|(_, mark)| mark.step == Step::End)
        {
            report.violation(format!("{key} was acknowledged before it was handled"));
        }
        if marks
            .iter()
            .any(|mark| !is_before(&mark) && mark.1.step == Step::Start)
        {
            report.violation(format!("{key} was handled again after its 200"));
        }
        for (at, (life, mark)) in marks.iter().enumerate() {
            let is_outlived = |(of, earlier): &(usize, Mark)| {
                of == life && earlier.step == Step::Start && earlier.attempt > mark.attempt
            };
            if mark.step == Step::End && marks[..at].iter().any(is_outlived) {
                report.violation(format!("{key} was handled by two runs at once"));
            }
        }
        report.runs += marks
            .iter()
            .filter(|(_, mark)| mark.step == Step::Start)
            .count();
    }
    for key in marks.keys() {
        report.violation(format!("{key} was handled, and never sent"));
    }
}

/// Everything once more: nothing may be handled, which `judge` sees.
async fn repeat_everything(sender: &Arc<Sender>, life: &Life, report: &mut Report) {
    let events = sender.state().acknowledged.len();
    let mut connections = JoinSet::new();
    for first in 0..CONNECTIONS {
        let sender = Arc::clone(sender);
        connections.spawn(async move {
            let mut connection = None;
            let mut unknown = Vec::new();
            for event in (first..events).step_by(CONNECTIONS) {
                let answer = loop {
                    match sender.deliver(&mut connection, event).await {
                        Some(Answer::Refused) => sleep(PAUSE).await,
                        answer => break answer,
                    }
                };
                if answer != Some(Answer::Replayed) {
                    unknown.push(event);
                }
            }
            unknown
        });
    }
    let Ok(unknown) = timeout(PATIENCE, connections.join_all()).await else {
        panic!("{report}\nthe duplicates were not answered\n{}", life.log());
    };
    for event in unknown.into_iter().flatten() {
        report.violation(format!("{} was not known any more", key(event)));
    }
}

/// One process, from its start to its death.
struct Life {
    number: usize,
    child: Mutex<Child>,
    began: Instant,
    address: SocketAddr,
    dir: PathBuf,
}

/// What was there when a receiver died.
struct Death {
    at: Instant,
    marks: Vec<Mark>,
    printed: HashSet<String>,
}

/// When to kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aim {
    Anytime,
    /// As soon as a handler has ended.
    HandlerEnded,
    /// As soon as an event was printed, which is just before its record.
    Printed,
    /// As soon as the sender has a 200.
    Answered,
    /// While it is stopped: a server finishes its requests, and no one reads the responses.
    Stopped,
}

impl Aim {
    const ALL: [Self; 5] = [
        Self::Anytime,
        Self::HandlerEnded,
        Self::Printed,
        Self::Answered,
        Self::Stopped,
    ];
}

impl Life {
    fn start(url: &str, dir: PathBuf, number: usize) -> Self {
        fs::create_dir(&dir).unwrap();
        let append = |name| {
            File::options()
                .create(true)
                .append(true)
                .open(dir.join(name))
                .unwrap()
        };
        append("marks");
        // Each mark is one write to the end of the file. A handler whose receiver died before it said
        // what the event is did not start.
        let handler = format!(
            r#"IFS= read -r line || exit 1
            printf 'start %s\n' "$line" >> '{marks}'; sleep 0.02; printf 'end %s\n' "$line" >> '{marks}'"#,
            marks = dir.join("marks").display()
        );
        let began = Instant::now();
        let child = example("receiver")
            .args([
                "--listen",
                "127.0.0.1:0",
                "--store",
                url,
                "--exec",
                &handler,
            ])
            .args(["--lease", &LEASE.as_secs().to_string()])
            .env("WEBHOOK_SECRET", SECRET)
            .env("RUST_LOG", "warn")
            .stdout(append("out"))
            .stderr(append("log"))
            .spawn()
            .unwrap();
        let mut life = Self {
            number,
            child: Mutex::new(child),
            began,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            dir,
        };
        life.address = promptly("the receiver's address", || {
            let log = life.log();
            let (_, address) = log.split_once("listening on http://")?;
            address.split_once('/')?.0.parse().ok()
        });
        life
    }

    fn wait_for_load(&self) {
        promptly("the first events", || {
            (self.printed().len() > CONNECTIONS).then_some(())
        });
        std::thread::sleep(Duration::from_millis(u64::from(
            getrandom::u32().unwrap() % 400,
        )));
    }

    fn kill(&self, aim: Aim, sender: &Sender) -> Death {
        match aim {
            Aim::Anytime => {}
            Aim::HandlerEnded => {
                let ended = || {
                    let marks = self.marks();
                    marks.iter().filter(|mark| mark.step == Step::End).count()
                };
                let before = ended();
                promptly("the end of a handler", || (ended() > before).then_some(()));
            }
            Aim::Printed => {
                let length = || fs::metadata(self.dir.join("out")).unwrap().len();
                let before = length();
                promptly("an event", || (length() > before).then_some(()));
            }
            Aim::Answered => {
                let marks = self.marks();
                sender.kill_at_next_answer(self.pid());
                let at = Instant::now();
                return self.buried(at, marks);
            }
            Aim::Stopped => {
                self.signal(Signal::SIGSTOP);
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        sender.reach_nobody();
        let marks = self.marks();
        self.signal(Signal::SIGKILL);
        self.buried(Instant::now(), marks)
    }

    /// What is left after a death at `at`, before which there were these marks.
    fn buried(&self, at: Instant, marks: Vec<Mark>) -> Death {
        self.child.lock().unwrap().wait().unwrap();
        Death {
            at,
            marks,
            printed: self.printed(),
        }
    }

    /// Ends it as an operator does.
    fn end(&self) {
        self.signal(Signal::SIGTERM);
        promptly("the end of the receiver", || {
            self.child.lock().unwrap().try_wait().unwrap()
        });
    }

    fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    fn pid(&self) -> Pid {
        let pid = self.child.lock().unwrap().id();
        Pid::from_raw(pid.cast_signed())
    }

    fn marks(&self) -> Vec<Mark> {
        let text = self.read("marks");
        let mut offset = 0;
        let marks = finished_lines(&text).map(|line| {
            let mark = Mark::parse(line, offset);
            offset += line.len() as u64;
            mark
        });
        marks.collect()
    }

    /// The keys that were printed.
    fn printed(&self) -> HashSet<String> {
        let out = self.read("out");
        finished_lines(&out)
            .map(|line| Printed::parse(line).key)
            .collect()
    }

    fn log(&self) -> String {
        self.read("log")
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.dir.join(name)).unwrap()
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        let child = self.child.get_mut().unwrap();
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// All but the last one while that is being written.
fn finished_lines(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
}

/// What a handler left behind.
#[derive(Clone, Debug)]
struct Mark {
    step: Step,
    key: String,
    attempt: u32,
    /// Where it is in its file.
    offset: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Start,
    End,
}

impl Mark {
    fn parse(line: &str, offset: u64) -> Self {
        let (step, event) = line.split_once(' ').unwrap();
        let step = match step {
            "start" => Step::Start,
            "end" => Step::End,
            _ => panic!("this is no mark: {line}"),
        };
        let Printed { key, attempt } = Printed::parse(event);
        Self {
            step,
            key,
            attempt,
            offset,
        }
    }
}

/// An event as the receiver prints it.
#[derive(serde::Deserialize)]
struct Printed {
    key: String,
    attempt: u32,
}

impl Printed {
    fn parse(line: &str) -> Self {
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}"))
    }
}

/// Plays the platform, which sends an event until it is answered with 200, and at times more often.
struct Sender {
    secret: Secret,
    receiver: watch::Sender<Option<Receiver>>,
    /// How many deliveries wait for their answer.
    under_way: watch::Sender<usize>,
    /// Who is to be killed at the next 200.
    victim: Mutex<Option<Pid>>,
    state: Mutex<State>,
}

#[derive(Clone)]
struct Receiver {
    life: usize,
    address: SocketAddr,
    marks: PathBuf,
}

#[derive(Default)]
struct State {
    jobs: usize,
    stopped: bool,
    /// For each event, when its first 200 was received.
    acknowledged: Vec<Option<Received>>,
    /// Events whose answer never came, and in which life.
    unanswered: Vec<(usize, usize)>,
    statuses: BTreeMap<u16, usize>,
}

/// A moment in the life of a receiver, measured by the length of its handlers' marks.
#[derive(Clone, Copy)]
struct Received {
    life: usize,
    marks: u64,
}

struct Job {
    event: usize,
    until_acknowledged: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Handled,
    Replayed,
    Refused,
}

struct Connection {
    requests: SendRequest<Full<Bytes>>,
    receiver: Receiver,
}

impl Sender {
    fn new() -> Self {
        Self {
            secret: Secret::new(SECRET).unwrap(),
            receiver: watch::Sender::new(None),
            under_way: watch::Sender::new(0),
            victim: Mutex::default(),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn reach(&self, life: &Life) {
        self.receiver.send_replace(Some(Receiver {
            life: life.number,
            address: life.address,
            marks: life.dir.join("marks"),
        }));
    }

    fn reach_nobody(&self) {
        self.receiver.send_replace(None);
    }

    /// Lets whoever gets the next 200 kill the receiver at once.
    fn kill_at_next_answer(&self, receiver: Pid) {
        *self.victim.lock().unwrap() = Some(receiver);
        promptly("a 200", || {
            self.victim.lock().unwrap().is_none().then_some(())
        });
    }

    fn answered(&self) {
        let mut victim = self.victim.lock().unwrap();
        if let Some(pid) = *victim {
            self.reach_nobody();
            kill(pid, Signal::SIGKILL).unwrap();
            *victim = None;
        }
    }

    /// Begins no other event.
    fn stop(&self) {
        self.state().stopped = true;
    }

    /// Waits until every delivery in progress has failed.
    async fn settle(&self) {
        let mut under_way = self.under_way.subscribe();
        let settled = timeout(PATIENCE, under_way.wait_for(|&count| count == 0)).await;
        assert!(settled.is_ok(), "a connection outlived its receiver");
    }

    /// Events of one life that got no answer in it, nor one before; and those that got one in it.
    fn outcomes(&self, life: usize) -> (HashSet<usize>, HashSet<usize>) {
        let state = self.state();
        let is_open = |event: &usize| state.acknowledged[*event].is_none();
        let of_life = state.unanswered.iter().filter(|(of, _)| *of == life);
        let acknowledged = state.acknowledged.iter().enumerate();
        let acknowledged = acknowledged
            .filter(|(_, received)| received.is_some_and(|received| received.life == life))
            .map(|(event, _)| event);
        (
            of_life.map(|(_, event)| *event).filter(is_open).collect(),
            acknowledged.collect(),
        )
    }

    async fn work(self: Arc<Self>) {
        let mut connection = None;
        while let Some(job) = self.next() {
            loop {
                let answer = self.deliver(&mut connection, job.event).await;
                let acknowledged = matches!(answer, Some(Answer::Handled | Answer::Replayed));
                if acknowledged || !job.until_acknowledged {
                    break;
                }
                sleep(PAUSE).await;
            }
        }
    }

    /// Of eight jobs, one is to repeat what is being sent, and one what was acknowledged.
    fn next(&self) -> Option<Job> {
        let mut state = self.state();
        if state.stopped {
            return None;
        }
        state.jobs += 1;
        let mut latest = state.acknowledged.iter().rev();
        let repeated = match state.jobs % 8 {
            3 => latest.position(Option::is_none),
            7 => latest.position(Option::is_some),
            _ => None,
        };
        let events = state.acknowledged.len();
        Some(match repeated {
            Some(back) => Job {
                event: events - 1 - back,
                until_acknowledged: false,
            },
            None => {
                state.acknowledged.push(None);
                Job {
                    event: events,
                    until_acknowledged: true,
                }
            }
        })
    }

    /// Sends an event once. `None` when the answer does not come.
    async fn deliver(&self, connection: &mut Option<Connection>, event: usize) -> Option<Answer> {
        let mut open = match connection.take() {
            Some(open) => open,
            None => self.connect().await,
        };
        if open.requests.ready().await.is_err() {
            open = self.connect().await;
        }
        let request = self.request(event);
        let under_way = UnderWay::begin(self, &open.receiver)?;
        let exchange = async {
            let response = open.requests.send_request(request).await?;
            if response.status() == StatusCode::OK {
                self.answered();
            }
            let (head, body) = response.into_parts();
            body.collect().await?;
            Ok::<_, hyper::Error>(head)
        };
        let head = exchange.await;
        let mut state = self.state();
        let Ok(head) = head else {
            state.unanswered.push((open.receiver.life, event));
            return None;
        };
        *state.statuses.entry(head.status.as_u16()).or_default() += 1;
        let answer = match head.status {
            StatusCode::OK if head.headers.contains_key("idempotent-replayed") => Answer::Replayed,
            StatusCode::OK => Answer::Handled,
            _ => Answer::Refused,
        };
        if answer != Answer::Refused {
            state.acknowledged[event].get_or_insert_with(|| Received {
                life: open.receiver.life,
                marks: fs::metadata(&open.receiver.marks).unwrap().len(),
            });
        }
        drop(state);
        drop(under_way);
        *connection = Some(open);
        Some(answer)
    }

    async fn connect(&self) -> Connection {
        let mut receivers = self.receiver.subscribe();
        loop {
            let receiver = receivers
                .wait_for(Option::is_some)
                .await
                .unwrap()
                .clone()
                .unwrap();
            if let Ok(stream) = TcpStream::connect(receiver.address).await
                && let Ok((requests, connection)) = handshake(TokioIo::new(stream)).await
            {
                tokio::spawn(connection);
                return Connection { requests, receiver };
            }
            sleep(PAUSE).await;
        }
    }

    fn request(&self, event: usize) -> Request<Full<Bytes>> {
        let body = format!(r#"{{"id":"chat-{event}"}}"#);
        Request::post("/webhooks")
            .header(HOST, "localhost")
            .header(CONTENT_TYPE, "application/json")
            .header("x-service-event", "chat-closed")
            .header("x-service-hmac-sha256", self.secret.sign(body.as_bytes()))
            .header("idempotency-key", key(event))
            .body(Full::from(body))
            .unwrap()
    }
}

/// Counts as a delivery that waits for its answer while it lives.
struct UnderWay<'a>(&'a Sender);

impl<'a> UnderWay<'a> {
    /// `None` when the receiver is about to be killed, or dead.
    fn begin(sender: &'a Sender, to: &Receiver) -> Option<Self> {
        // Locked, so that it is not killed in between.
        let now = sender.receiver.borrow();
        let is_reached = now.as_ref().is_some_and(|now| now.life == to.life);
        is_reached.then(|| {
            sender.under_way.send_modify(|count| *count += 1);
            Self(sender)
        })
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.send_modify(|count| *count -= 1);
    }
}

/// What was seen.
struct Report {
    store: String,
    kills: usize,
    events: usize,
    runs: usize,
    /// Where deliveries were, and by which kills.
    places: BTreeMap<Place, (usize, HashSet<usize>)>,
    statuses: BTreeMap<u16, usize>,
    /// For how long after a death a key was still taken.
    longest: Duration,
    violations: Vec<String>,
}

impl Report {
    fn new(store: &str) -> Self {
        Self {
            store: store.to_owned(),
            kills: 0,
            events: 0,
            runs: 0,
            places: BTreeMap::new(),
            statuses: BTreeMap::new(),
            longest: Duration::ZERO,
            violations: Vec::new(),
        }
    }

    fn count(&mut self, kill: usize, place: Place) {
        self.kills = self.kills.max(kill + 1);
        let (deliveries, kills) = self.places.entry(place).or_default();
        *deliveries += 1;
        kills.insert(kill);
    }

    fn hit_all(&self) -> bool {
        Place::TO_HIT
            .iter()
            .all(|place| self.places.contains_key(place))
    }

    fn violation(&mut self, text: String) {
        self.violations.push(text);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {} kills, {} events, {} runs, answers {:?}, keys taken for up to {:.2?} after a death",
            self.store, self.kills, self.events, self.runs, self.statuses, self.longest
        )?;
        let others = self
            .places
            .keys()
            .filter(|place| !Place::TO_HIT.contains(place));
        for place in Place::TO_HIT.iter().chain(others) {
            let (deliveries, kills) = match self.places.get(place) {
                Some((deliveries, kills)) => (*deliveries, kills.len()),
                None => (0, 0),
            };
            writeln!(
                f,
                "{:>30}: {deliveries:>5} deliveries, {kills:>3} kills",
                place.name()
            )?;
        }
        for violation in self.violations.iter().take(20) {
            writeln!(f, "violated: {violation}")?;
        }
        match self.violations.len().checked_sub(20) {
            Some(more @ 1..) => writeln!(f, "… and {more} more"),
            _ => Ok(()),
        }
    }
}

/// As soon as possible, so that a kill hits what it is aimed at.
fn promptly<T>(what: &str, ask: impl FnMut() -> Option<T>) -> T {
    until_every(Duration::from_micros(200), what, ask)
}
