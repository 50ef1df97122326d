//! Three receivers, each with a spool, and a PostgreSQL server that is stopped, frozen, cut off, slow, read-only and replaced
//! by its standby under load, while receivers are killed in each phase of their spools. Chats send their events one after
//! another, and a request without an answer again to another receiver, as a balancer would. Every answer is 200, every event
//! is handled, not again after its settlement was committed, and those of a chat that one receiver accepted in their order.
//!
//! `SPOOL_SECONDS=600` sets for how long faults are repeated; by default, each happens once. `SPOOL_AWAY=15` sets for how
//! many seconds the server is away.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::routing::post;
use nix::sys::signal::Signal;
use rusqlite::{Connection, OpenFlags};
use sqlx::postgres::{PgPool, PgPoolOptions};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::{sleep, sleep_until, timeout};
use tower_webhook::inbox::{EventId, EventState, EventSummary, Filter, Inbox, Page};
use tower_webhook::postgres::PostgresQueue;

use support::database::{count, execute};
use support::delivery::SECRET;
use support::net::{Line, Way, serve};
use support::postgres::{Pooler, PostgresServer, Stop};
use support::program::{Server, example};
use support::scratch::memory;
use support::world::{CHATS, LIMIT, LOST, PAUSE, RECEIVERS, SOME, Seen, Sent, World, handle};
use support::{eventually, eventually_every, lock};

/// What happens to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// It crashes, and starts again.
    Stopped,
    /// All its processes stand still.
    Frozen,
    /// Nothing passes on the network.
    CutOff,
    /// Its address refuses connections, and has closed those that there were.
    Closed,
    /// Each answer takes longer than the server is away.
    Slow,
    /// Its transactions cannot write; its connections stay.
    ReadOnly,
    /// It crashes, and its standby is promoted.
    Promoted(Mode),
    /// The same, after the standby has been cut off from it for a while, in which events are accepted, and none is handled.
    PromotedLate(Mode),
    /// It crashes, while the disks of the spools are full.
    StoppedAndFull,
    /// It becomes read-only, its standby is promoted, and connections to it stay.
    SwitchedOver(Mode),
}

impl Fault {
    /// That of a standby that takes over.
    fn mode(self) -> Option<Mode> {
        match self {
            Self::Promoted(mode) | Self::PromotedLate(mode) | Self::SwitchedOver(mode) => {
                Some(mode)
            }
            _ => None,
        }
    }
}

/// What a commit waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Async,
    On,
    RemoteApply,
}

/// The phase of its spool in which a receiver is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Events go to the server.
    Closed,
    /// The server has just failed.
    Opening,
    /// Events go to the file.
    Spooling,
    /// The server is back, and has some of the events in the file.
    Forwarding,
    /// The same, while the receiver was asked to stop.
    Draining,
}

const PHASES: [Phase; 5] = [
    Phase::Closed,
    Phase::Spooling,
    Phase::Forwarding,
    Phase::Opening,
    Phase::Draining,
];

#[tokio::test(flavor = "multi_thread")]
async fn receivers_with_spools_answer_200_while_their_server_is_away() {
    use Fault::*;
    let faults = [Stopped, Frozen, CutOff, Closed, Slow, ReadOnly];
    survive(&faults).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn receivers_with_spools_answer_200_while_a_standby_is_promoted() {
    use Fault::*;
    let faults = [
        Promoted(Mode::RemoteApply),
        PromotedLate(Mode::On),
        SwitchedOver(Mode::Async),
    ];
    survive(&faults).await;
}

/// The control: these checks find events that are lost.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_asynchronous_standby_lacks_is_lost() {
    let mut place = Place::new(true).await;
    let round = place.round(Fault::PromotedLate(Mode::Async), &[]).await;
    println!("{round}");
    assert!(!round.lost.is_empty(), "{round}");
    assert!(round.seen.unexpected.is_empty(), "{round}");
    for receiver in &place.receivers {
        let log = receiver.err();
        assert_eq!(log.matches(LOST).count(), 1, "{log}");
    }
}

/// Connections that stay on a server that cannot write are given up.
#[tokio::test(flavor = "multi_thread")]
async fn without_spools_the_answer_is_503_until_a_server_can_write() {
    use Fault::*;
    let faults = [ReadOnly, SwitchedOver(Mode::Async), Promoted(Mode::On)];
    refuse(Place::new(false).await, &faults).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn full_disks_of_spools_are_answered_with_503_and_lose_nothing() {
    refuse(Place::new(true).await, &[Fault::StoppedAndFull]).await;
}

async fn refuse(mut place: Place, faults: &[Fault]) {
    for fault in faults {
        let mut round = place.round(*fault, &[]).await;
        println!("{round}");
        let refused = std::mem::take(&mut round.seen.unexpected);
        assert!(
            refused.iter().all(|it| it.starts_with("503")),
            "{refused:?}"
        );
        assert!(!refused.is_empty() && round.is_sound(), "{round}");
    }
}

fn seconds(variable: &str) -> Option<Duration> {
    let seconds = std::env::var(variable).ok()?;
    Some(Duration::from_secs(seconds.parse().unwrap()))
}

fn away() -> Duration {
    seconds("SPOOL_AWAY").unwrap_or(Duration::from_secs(2))
}

/// Has each fault happen, with two receivers killed in each, or all of them again and again.
async fn survive(faults: &[Fault]) {
    let (began, lasts) = (Instant::now(), seconds("SPOOL_SECONDS"));
    let mut place = Place::new(true).await;
    let mut hit = HashSet::new();
    let mut number = 0;
    while number < faults.len() || lasts.is_some_and(|lasts| began.elapsed() < lasts) {
        let fault = faults[number % faults.len()];
        // Shifted, so that each phase meets each fault.
        let at = 2 * number + number / faults.len();
        let phases = [PHASES[at % 5], PHASES[(at + 1) % 5]];
        let round = place.round(fault, &phases).await;
        println!("{round}");
        let logs = place.logs();
        assert!(round.is_sound() && !logs.contains(LOST), "{round}\n{logs}");
        hit.extend(round.kills.iter().map(|phase| format!("{phase:?}")));
        number += 1;
    }
    println!("{number} faults, receivers were killed while {hit:?}");
}

struct Place {
    has_spools: bool,
    /// Of the spools.
    dir: TempDir,
    server: PostgresServer,
    /// From the receivers to the server, with PgBouncer before it if there is one.
    line: Line,
    pooler: Option<Pooler>,
    handler: SocketAddr,
    world: Arc<World>,
    receivers: Vec<Server>,
    inbox: Inbox,
    pool: PgPool,
    /// The one before a switch-over, to which connections may stay.
    former: Option<PostgresServer>,
    rounds: usize,
    /// The last event of the rounds before.
    last: Option<EventId>,
}

const SETTINGS: [&str; 1] = ["fsync=off"];

impl Place {
    async fn new(has_spools: bool) -> Self {
        let world = Arc::new(World::default());
        let handler = axum::Router::new().route("/", post(handle));
        let handler = serve(handler.with_state(Arc::clone(&world))).await;
        let server = PostgresServer::start_with(&SETTINGS);
        let (inbox, pool) = inbox(&server);
        let line = Line::to(server.port()).await;
        let mut place = Self {
            has_spools,
            // On a disk that others use, a commit may take seconds, and the answer is 503 then. Nothing is lost, as only
            // processes end.
            dir: memory(),
            pooler: Pooler::to(line.port()),
            line,
            server,
            handler,
            world,
            receivers: Vec::new(),
            inbox,
            pool,
            former: None,
            rounds: 0,
            last: None,
        };
        for at in 0..RECEIVERS {
            let receiver = place.start(at);
            place.receivers.push(receiver);
        }
        place
    }

    fn file(&self, at: usize) -> PathBuf {
        self.dir.path().join(format!("spool-{at}.db"))
    }

    fn start(&self, at: usize) -> Server {
        let port = self.pooler.as_ref().map_or(self.line.port(), Pooler::port);
        let url = format!("postgres://postgres@127.0.0.1:{port}/postgres");
        let handler = format!("http://{}/", self.handler);
        let spool = self.file(at).display().to_string();
        let mut command = example("receiver");
        command.env("RUST_LOG", "warn,tower_webhook::spool=info");
        command.args(["--secret", SECRET, "--inbox", &url, "--forward", &handler]);
        command.args(["--lease", "2"]);
        if self.has_spools {
            command.args(["--spool", &spool, "--spool-limit", "16777216"]);
            command.arg("--spool-on-any-disk");
        }
        let server = Server::start_by(&mut command);
        lock(&self.world.receivers[at]).0 = Some(server.address().parse().unwrap());
        server
    }

    /// From now on, a request to this receiver may have no answer.
    fn ends(&self, at: usize) {
        let mut receiver = lock(&self.world.receivers[at]);
        *receiver = (None, receiver.1 + 1);
    }

    /// Kills a receiver, and starts it again on its file.
    fn kill(&mut self, at: usize) {
        self.ends(at);
        self.receivers[at].signal(Signal::SIGKILL);
        self.receivers[at].program.child.wait().unwrap();
        self.receivers[at] = self.start(at);
    }

    /// The number of events in the file of a receiver.
    fn left(&self, at: usize) -> i64 {
        if !self.has_spools {
            return 0;
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
        let file = Connection::open_with_flags(self.file(at), flags).unwrap();
        file.busy_timeout(LIMIT).unwrap();
        file.query_row("SELECT count(*) FROM work", [], |row| row.get(0))
            .unwrap()
    }

    /// Whether new events of a receiver go to the server.
    fn is_direct(&self, at: usize) -> bool {
        let log = self.receivers[at].err();
        let count = |line| log.matches(line).count();
        self.left(at) == 0
            && count("accepted into the spool, and it is asked")
                == count("the database accepts events again")
    }

    async fn begin(&mut self, fault: Fault, away: Duration, standby: Option<&Standby>) {
        match fault {
            Fault::Stopped => self.server.stop(Stop::Immediate),
            Fault::StoppedAndFull => {
                for (at, receiver) in self.receivers.iter().enumerate() {
                    let log = self.file(at).with_extension("db-wal");
                    let size = fs::metadata(log).unwrap().len();
                    receiver.limit_files(&format!("{size}:unlimited"));
                }
                self.server.stop(Stop::Immediate);
            }
            Fault::Frozen => self.server.signal(Signal::SIGSTOP),
            Fault::CutOff => self.line.set(Way::Silent),
            Fault::Closed => self.line.set(Way::Closed),
            Fault::Slow => self.line.delay(away * 3 / 2),
            Fault::ReadOnly | Fault::SwitchedOver(_) => {
                self.set("default_transaction_read_only", "on").await;
            }
            Fault::Promoted(_) | Fault::PromotedLate(_) => {
                if let Fault::PromotedLate(_) = fault {
                    standby.unwrap().line.set(Way::Silent);
                    self.world.is_held.store(true, Ordering::SeqCst);
                    sleep(away / 2).await;
                }
                self.server.stop(Stop::Immediate);
                self.line.set(Way::Closed);
            }
        }
    }

    async fn end(&mut self, fault: Fault, standby: Option<Standby>) {
        match fault {
            Fault::Stopped => self.server.restart(),
            Fault::StoppedAndFull => {
                for receiver in &self.receivers {
                    receiver.limit_files("unlimited:unlimited");
                }
                self.server.restart();
            }
            Fault::Frozen => self.server.signal(Signal::SIGCONT),
            Fault::CutOff | Fault::Closed => self.line.set(Way::Open),
            Fault::Slow => self.line.delay(Duration::ZERO),
            Fault::ReadOnly => self.set("default_transaction_read_only", "off").await,
            Fault::Promoted(_) | Fault::PromotedLate(_) | Fault::SwitchedOver(_) => {
                let standby = standby.unwrap();
                self.world.is_held.store(false, Ordering::SeqCst);
                if let Fault::SwitchedOver(_) = fault {
                    standby.has_all_of(&self.pool).await;
                }
                standby.server.promote();
                self.line.lead_to(standby.server.port());
                self.line.set(Way::Open);
                if let Some(pooler) = &self.pooler {
                    pooler.reconnect();
                }
                self.former = Some(std::mem::replace(&mut self.server, standby.server));
                (self.inbox, self.pool) = inbox(&self.server);
                self.last = None;
            }
        }
    }

    async fn round(&mut self, fault: Fault, phases: &[Phase]) -> Round {
        let away = away();
        let standby = match fault.mode() {
            Some(mode) => Some(self.standby(mode).await),
            None => None,
        };
        self.rounds += 1;
        let first = self.rounds;
        let victim = |phase| {
            let place = phases.iter().position(|it| *it == phase)?;
            Some((first + place) % RECEIVERS)
        };
        let mut round = Round::new(fault);
        let mut settled = HashMap::new();
        let chats = self.send();
        sleep(SOME).await;
        self.look(&mut settled).await;
        if let Some(at) = victim(Phase::Closed) {
            self.kill(at);
            round.kills.push(Phase::Closed);
            sleep(SOME).await;
        }

        self.look(&mut settled).await;
        let began = tokio::time::Instant::now();
        self.begin(fault, away, standby.as_ref()).await;
        if let Some(at) = victim(Phase::Opening) {
            sleep(Duration::from_millis(fastrand::u64(..1200))).await;
            self.kill(at);
            round.kills.push(Phase::Opening);
        }
        sleep_until(began + away / 2).await;
        if let Some(at) = victim(Phase::Spooling) {
            eventually("events are spooled", async || self.left(at) > 0).await;
            self.kill(at);
            round.kills.push(Phase::Spooling);
        }
        sleep_until(began + away).await;
        round.away = began.elapsed();
        let back = Instant::now();
        self.end(fault, standby).await;
        for phase in [Phase::Forwarding, Phase::Draining] {
            if let Some(at) = victim(phase)
                && self.forwards(at, phase).await
            {
                round.kills.push(phase);
            }
        }
        let are_direct = async || (0..RECEIVERS).all(|at| self.is_direct(at));
        // A machine that is too busy forwards no faster than events arrive.
        let direct = eventually("all go to the server again", are_direct);
        let _ = timeout(Duration::from_secs(30), direct).await;
        round.back = back.elapsed();
        self.look(&mut settled).await;
        sleep(SOME).await;
        self.world.has_ended.store(true, Ordering::SeqCst);
        for chat in chats {
            round.sent.push(chat.await.unwrap());
        }
        eventually_every(SOME / 10, "all are settled", async || {
            let stats = self.inbox.stats().await;
            let is_settled = stats.is_ok_and(|stats| stats.unsettled() == 0);
            is_settled && (0..RECEIVERS).all(|at| self.is_direct(at))
        })
        .await;
        self.former = None;
        self.judge(&settled, back, &mut round).await;
        round
    }

    fn send(&self) -> Vec<JoinHandle<Vec<Sent>>> {
        self.world.has_ended.store(false, Ordering::SeqCst);
        lock(&self.world.marks).clear();
        *lock(&self.world.seen) = Seen::default();
        let chat = |chat| {
            // With 600 s, ten events a second.
            let pause = PAUSE.max(away() / 500);
            tokio::spawn(Arc::clone(&self.world).chat(self.rounds, chat, pause))
        };
        (0..CHATS).map(chat).collect()
    }

    /// Kills a receiver when the server has some of the events in its file, but not all. Returns whether there was such a
    /// moment.
    async fn forwards(&mut self, at: usize, phase: Phase) -> bool {
        self.line.delay(Duration::from_millis(30));
        let (mut most, mut left) = (0, self.left(at));
        while left > 0 && left >= most {
            most = left;
            sleep(Duration::from_millis(2)).await;
            left = self.left(at);
        }
        if phase == Phase::Draining {
            self.ends(at);
            self.receivers[at].signal(Signal::SIGTERM);
            sleep(Duration::from_millis(20)).await;
            left = self.left(at);
        }
        self.kill(at);
        self.line.delay(Duration::ZERO);
        left > 0
    }

    async fn events(&self) -> Vec<EventSummary> {
        let mut page = Page::oldest(1_000_000);
        page.after = self.last;
        let list = async || self.inbox.list(&Filter::default(), page).await.ok();
        eventually("the events are listed", list).await.events
    }

    /// Notes which events are settled, and how many attempts there were when that was known.
    async fn look(&self, settled: &mut HashMap<String, usize>) {
        let events = self.events().await;
        let known = lock(&self.world.marks).len();
        for event in events {
            if event.state == EventState::Handled {
                settled
                    .entry(event.key.unwrap().to_string())
                    .or_insert(known);
            }
        }
    }

    async fn judge(&mut self, settled: &HashMap<String, usize>, back: Instant, round: &mut Round) {
        round.seen = std::mem::take(&mut *lock(&self.world.seen));
        if let Some(last) = round.seen.last_unexpected {
            round.back = round.back.max(last.saturating_duration_since(back));
        }
        let events = self.events().await;
        self.last = events.last().map(|event| event.id);
        let mut stored = HashSet::new();
        for event in events {
            let key = event.key.unwrap().to_string();
            if event.state != EventState::Handled {
                round
                    .seen
                    .unexpected
                    .push(format!("{key} is {}", event.state));
            }
            if !stored.insert(key.clone()) {
                round.doubled.push(format!("{key} was stored twice"));
            }
        }
        let found = self.world.judge(settled, &round.sent);
        round.again = found.again;
        round.lost.extend(found.lost);
        round.doubled.extend(found.doubled);
        round.disordered.extend(found.disordered);
    }

    async fn standby(&self, mode: Mode) -> Standby {
        let line = Line::to(self.server.port()).await;
        let server = PostgresServer::follow(line.port(), &SETTINGS);
        let (names, commit) = match mode {
            Mode::Async => ("", "on"),
            Mode::On => ("*", "on"),
            Mode::RemoteApply => ("*", "remote_apply"),
        };
        let follows = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
        eventually("the standby follows", async || {
            count(&self.pool, follows).await == 1
        })
        .await;
        self.set("synchronous_commit", commit).await;
        self.set("synchronous_standby_names", names).await;
        Standby { server, line }
    }

    async fn set(&self, name: &str, value: &str) {
        execute(&self.pool, &format!("ALTER SYSTEM SET {name} = '{value}'")).await;
        execute(&self.pool, "SELECT pg_reload_conf()").await;
    }

    fn logs(&self) -> String {
        let logs = self.receivers.iter().map(Server::err);
        logs.collect::<Vec<_>>().join("\n")
    }
}

fn inbox(server: &PostgresServer) -> (Inbox, PgPool) {
    let pool = PgPoolOptions::new().max_connections(2);
    let pool = pool.connect_lazy(&server.url()).unwrap();
    (Inbox::new(PostgresQueue::new(pool.clone())), pool)
}

/// Follows the server.
struct Standby {
    server: PostgresServer,
    /// From it to the server.
    line: Line,
}

impl Standby {
    /// Waits until it has all that the server has.
    async fn has_all_of(&self, server: &PgPool) {
        let end = sqlx::query_scalar("SELECT pg_current_wal_flush_lsn()::text");
        let end: String = end.fetch_one(server).await.unwrap();
        let (_, pool) = inbox(&self.server);
        let has_all = format!("SELECT (pg_last_wal_replay_lsn() >= '{end}')::int::bigint");
        eventually("the standby has all", async || {
            count(&pool, &has_all).await == 1
        })
        .await;
    }
}

/// What was seen of a fault.
struct Round {
    fault: Fault,
    kills: Vec<Phase>,
    away: Duration,
    back: Duration,
    sent: Vec<Vec<Sent>>,
    seen: Seen,
    /// Attempts that were made again.
    again: usize,
    lost: Vec<String>,
    doubled: Vec<String>,
    disordered: Vec<String>,
}

impl Round {
    fn new(fault: Fault) -> Self {
        Self {
            fault,
            kills: Vec::new(),
            away: Duration::ZERO,
            back: Duration::ZERO,
            sent: Vec::new(),
            seen: Seen::default(),
            again: 0,
            lost: Vec::new(),
            doubled: Vec::new(),
            disordered: Vec::new(),
        }
    }

    fn is_sound(&self) -> bool {
        let found = [
            &self.seen.unexpected,
            &self.lost,
            &self.doubled,
            &self.disordered,
        ];
        found.iter().all(|found| found.is_empty())
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen = &self.seen;
        write!(
            f,
            "{:?} for {:.1?}, killed {:?}: {} answers, {} unexpected, {} requests broken, slowest {:.1?}; {} lost, {} \
             doubled, {} out of order, {} attempts again; all direct after {:.1?}",
            self.fault,
            self.away,
            self.kills,
            seen.answers.len(),
            seen.unexpected.len(),
            seen.broken,
            seen.slowest,
            self.lost.len(),
            self.doubled.len(),
            self.disordered.len(),
            self.again,
            self.back,
        )?;
        let found = [
            &seen.unexpected,
            &self.lost,
            &self.doubled,
            &self.disordered,
        ];
        for found in found.into_iter().filter(|found| !found.is_empty()) {
            write!(f, "\n    {:?}", &found[..found.len().min(10)])?;
        }
        Ok(())
    }
}
