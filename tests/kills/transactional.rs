//! The example `postgres` as processes that are killed, on a server whose backends are killed.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sha2::{Digest, Sha256};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, Executor, PgConnection};
use tokio::time::{Instant, sleep, timeout};
use tower_webhook::Secret;

use support::postgres::{PostgresServer, Stop};
use support::program::{PATIENCE, Program, Server, example};

const SECRET: &str = "s";

/// What finds the receivers' backends.
const NAME: &str = "tower-webhook receiver";

/// How many events are under way at once.
const WORKERS: usize = 12;

/// Two receivers on one database get each event, many of them at the same time and again and again,
/// while they and the server's backends are killed: 100 times, or as `TRANSACTIONAL_KILLS` says. In the
/// end each event has one effect and one key.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_effect_is_applied_once_despite_kills() {
    let kills = std::env::var("TRANSACTIONAL_KILLS").map_or(100, |kills| {
        kills.parse().expect("TRANSACTIONAL_KILLS is a number")
    });
    let server = PostgresServer::start();
    let mut receivers = [Receiver::start(&server), Receiver::start(&server)];
    slow_down(&server).await;

    let platform = Arc::new(Platform::new(
        receivers.each_ref().map(|one| one.server.url.clone()),
    ));
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| tokio::spawn(Arc::clone(&platform).deliver_events()))
        .collect();

    let mut report = Report::default();
    for number in 0..kills {
        sleep(Duration::from_millis(random(100))).await;
        match number % 4 {
            0 | 2 => {
                let receiver = &mut receivers[number / 2 % 2];
                // At any moment, and in the middle of a transaction.
                let phases = receiver.kill(&server, number % 4 == 0).await;
                report.add("receiver", phases);
            }
            1 => report.add("backend", kill_backend(&server).await),
            _ => report.add("backend's session", terminate_backend(&server).await),
        }
    }
    platform.stop.store(true, Ordering::Relaxed);
    for delivered in join_all(workers).await {
        delivered.unwrap();
    }
    println!(
        "{report}after {} events in {:?}",
        platform.events(),
        platform.started.elapsed()
    );

    let mut admin = connect(&server).await;
    let effects: Vec<String> = sqlx::query_scalar("SELECT chat FROM ratings")
        .fetch_all(&mut admin)
        .await
        .unwrap();
    let keys: Vec<String> = sqlx::query_scalar("SELECT key::text FROM tower_webhook.keys")
        .fetch_all(&mut admin)
        .await
        .unwrap();
    let events = platform.events();
    let expected: HashSet<_> = (0..events).map(chat).collect();
    assert_eq!(
        effects.len(),
        events,
        "effects, of which each event has one"
    );
    assert_eq!(effects.into_iter().collect::<HashSet<_>>(), expected);
    let expected: HashSet<_> = (0..events).map(stored_key).collect();
    assert_eq!(keys.len(), events, "keys, of which each event has one");
    assert_eq!(keys.into_iter().collect::<HashSet<_>>(), expected);

    report.assert_that_each_kind_hit();
}

/// The example says what is wrong when it cannot start, and nothing that is secret.
#[tokio::test]
async fn failed_start_is_explained() {
    let mut server = PostgresServer::start();
    let url = server.url();
    server.stop(Stop::Fast);
    let unreachable = url.replace("postgres@", "postgres:hunter2@");
    #[rustfmt::skip]
    let cases: [(&[&str], i32, &str); 6] = [
        (&[], 2, "use --database URL, or set DATABASE_URL"),
        (&["--database", "mysql://user:hunter2@localhost/crm"], 2, "does not begin with `postgres://`"),
        (&["--database", "postgres://user:hunter2@localhost:port/crm"], 2, "is invalid (invalid port number)"),
        (&["--database", &unreachable], 1, "cannot connect to the database at 127.0.0.1:"),
        (&["--database", &url, "--secret", ""], 2, "the secret is empty"),
        (&["--database", &url, "--connections", "0"], 2, "'--connections <N>'"),
    ];
    for (args, code, reason) in cases {
        let output = example("postgres").args(args).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
        assert!(error.contains(reason), "{args:?}: {error}");
        assert!(!error.contains("hunter2"), "{args:?}: {error}");
    }
}

#[test]
fn help_lists_every_flag_and_no_secret() {
    let mut help = example("postgres");
    let secrets = [("WEBHOOK_SECRET", "hunter2"), ("DATABASE_URL", "hunter2")];
    let help = help.arg("--help").envs(secrets).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    for part in [
        "--listen",
        "--secret",
        "--database",
        "DATABASE_URL",
        "--connections",
    ] {
        assert!(help.contains(part), "{part}: {help}");
    }
    assert!(!help.contains("hunter2"), "{help}");
}

/// Driven by hand: `send`, twice, and the table.
#[tokio::test]
async fn send_inserts_a_row() {
    let server = PostgresServer::start();
    let receiver = Receiver::start(&server);
    let send = |secret| receiver.server.send(secret, &["--key", "event-1"]).out;
    let first = send(SECRET);
    assert!(first.starts_with("#1 200 OK in "), "{first}");
    let second = send(SECRET);
    assert!(
        second.contains("it had been accepted or handled before"),
        "{second}"
    );
    let forged = send("another");
    assert!(forged.contains("401 Unauthorized"), "{forged}");

    let rows: Vec<(String, f64)> = sqlx::query_as("SELECT chat, rating FROM ratings")
        .fetch_all(&mut connect(&server).await)
        .await
        .unwrap();
    assert_eq!(rows.len(), 1, "{rows:?}");
}

/// Sends each event until it was handled, several times over.
struct Platform {
    client: Client<HttpConnector, Full<Bytes>>,
    urls: [String; 2],
    next: AtomicUsize,
    stop: AtomicBool,
    started: Instant,
}

impl Platform {
    fn new(urls: [String; 2]) -> Self {
        Self {
            client: Client::builder(TokioExecutor::new()).build_http(),
            urls,
            next: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            started: Instant::now(),
        }
    }

    fn events(&self) -> usize {
        self.next.load(Ordering::SeqCst)
    }

    async fn deliver_events(self: Arc<Self>) {
        while !self.stop.load(Ordering::Relaxed) {
            let event = self.next.fetch_add(1, Ordering::SeqCst);
            timeout(PATIENCE, self.deliver(event))
                .await
                .unwrap_or_else(|_| panic!("event {event} was never handled"));
        }
    }

    async fn deliver(&self, event: usize) {
        // How many responses said that it was handled just now; none, if that response was lost.
        let mut handled = 0;
        let mut is_done = false;
        while !is_done {
            let duplicates = 1 + event % 3;
            let answers = (0..duplicates).map(|n| self.attempt(event, event + n));
            for answer in join_all(answers).await {
                match answer {
                    Some(Told::Handled) => handled += 1,
                    Some(Told::Replayed) => {}
                    None => continue,
                }
                is_done = true;
            }
            if !is_done {
                sleep(Duration::from_millis(10 + random(40))).await;
            }
        }
        // The sender may not have heard of it.
        for n in 0..event % 2 {
            let told = self.attempt(event, event + n).await;
            assert_ne!(told, Some(Told::Handled), "event {event}");
        }
        assert!(handled <= 1, "event {event} was handled {handled} times");
    }

    /// One delivery to one of the receivers.
    async fn attempt(&self, event: usize, receiver: usize) -> Option<Told> {
        let body = body(event);
        let secret = Secret::new(SECRET).unwrap();
        let request = Request::post(&self.urls[receiver % self.urls.len()])
            .header("content-type", "application/json")
            .header("x-service-event", "chat-rated")
            .header("idempotency-key", key(event))
            .header("x-service-hmac-sha256", secret.sign(body.as_bytes()))
            .body(Full::from(body))
            .unwrap();
        let exchange = async {
            let response = self.client.request(request).await.ok()?;
            let is_replay = response.headers().contains_key("idempotent-replayed");
            let status = response.status().as_u16();
            let body = response.into_body().collect().await.ok()?.to_bytes();
            match (status, is_replay) {
                (200, false) => Some(Told::Handled),
                (200, true) => Some(Told::Replayed),
                (409 | 500 | 503, false) => None,
                _ => panic!("{status}: {body:?}"),
            }
        };
        timeout(Duration::from_secs(30), exchange).await.ok()?
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Handled,
    Replayed,
}

fn key(event: usize) -> String {
    format!("event-{event}")
}

fn chat(event: usize) -> String {
    format!("chat-{event}")
}

fn body(event: usize) -> String {
    format!(r#"{{"id":"{}","rating":1}}"#, chat(event))
}

/// The key as it is stored.
fn stored_key(event: usize) -> String {
    // Of the key space of transactions, without a namespace of a layer, which has no bytes, or of its own.
    let namespace = "0:";
    let digest = Sha256::new()
        .chain_update((2_u64 << 56 | namespace.len() as u64).to_be_bytes())
        .chain_update(namespace)
        .chain_update(key(event))
        .finalize();
    let hex = hex::encode(&digest[..16]);
    let parts = [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ];
    parts.join("-")
}

/// Lets each rating take some milliseconds, so that transactions are there to be hit.
async fn slow_down(server: &PostgresServer) {
    let slow = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS \
                $$ BEGIN PERFORM pg_sleep(random() * 0.02); RETURN NEW; END $$; \
                CREATE TRIGGER slow BEFORE INSERT ON ratings \
                FOR EACH ROW EXECUTE FUNCTION slow()";
    connect(server)
        .await
        .execute(sqlx::raw_sql(slow))
        .await
        .unwrap();
}

/// What the transactions of a victim were doing when it was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// There was none that had written anything.
    None,
    Handler,
    Check,
    Commit,
}

impl Phase {
    /// By the statement of a transaction that has written: its last one, or the one at work.
    fn of(statement: &str) -> Self {
        match statement {
            _ if statement.contains("COMMIT") => Self::Commit,
            _ if statement.contains("SELECT pg_current_xact_id") => Self::Check,
            _ => Self::Handler,
        }
    }

    fn is_open(self) -> bool {
        matches!(self, Self::Handler | Self::Check)
    }
}

#[derive(Default)]
struct Report(BTreeMap<(&'static str, Phase), usize>);

impl Report {
    /// Adds a kill with what it hit, which may be several transactions.
    fn add(&mut self, victim: &'static str, mut phases: Vec<Phase>) {
        phases.sort();
        phases.dedup();
        let hit = phases.iter().find(|phase| phase.is_open());
        let hit = hit.or(phases.last()).copied().unwrap_or(Phase::None);
        *self.0.entry((victim, hit)).or_default() += 1;
    }

    fn assert_that_each_kind_hit(&self) {
        for victim in ["receiver", "backend", "backend's session"] {
            let open = |(&(of, phase), count): (&(&str, Phase), &usize)| {
                if of == victim && phase.is_open() {
                    *count
                } else {
                    0
                }
            };
            let hit: usize = self.0.iter().map(open).sum();
            assert!(
                hit > 0,
                "no kill of a {victim} hit an open transaction:\n{self}"
            );
        }
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for ((victim, phase), count) in &self.0 {
            writeln!(
                f,
                "{count:>4} times a {victim} was killed, transaction: {phase:?}"
            )?;
        }
        Ok(())
    }
}

/// The backends whose transactions have written, of the receivers whose names begin so.
async fn writing(admin: &mut PgConnection, name: &str) -> Vec<(i32, Phase)> {
    let writing: Vec<(i32, String)> = sqlx::query_as(
        "SELECT pid, query FROM pg_stat_activity \
         WHERE starts_with(application_name, $1) AND backend_xid IS NOT NULL ORDER BY random()",
    )
    .bind(name)
    .fetch_all(admin)
    .await
    .unwrap();
    let phases = writing.into_iter();
    phases
        .map(|(pid, statement)| (pid, Phase::of(&statement)))
        .collect()
}

/// Kills a backend in the middle of a transaction with SIGKILL. The server then ends all others, and
/// recovers.
async fn kill_backend(server: &PostgresServer) -> Vec<Phase> {
    let mut admin = connect(server).await;
    for _ in 0..1000 {
        let Some((pid, _)) = writing(&mut admin, NAME).await.pop() else {
            sleep(Duration::from_millis(2)).await;
            continue;
        };
        // Stopped, it does not end its transaction while that is looked at.
        signal(pid, Signal::SIGSTOP);
        // Unless it holds a lock that is needed for looking.
        let looked = timeout(Duration::from_secs(5), writing(&mut admin, NAME)).await;
        let mut phases = looked.unwrap_or_default();
        phases.retain(|(of, _)| *of == pid);
        signal(pid, Signal::SIGKILL);
        // The server ends every session, and is back when it answers a new one.
        while admin.ping().await.is_ok() {
            sleep(Duration::from_millis(1)).await;
        }
        connect(server).await;
        return phases.into_iter().map(|(_, phase)| phase).collect();
    }
    Vec::new()
}

/// Ends the session of a backend in the middle of a transaction, as an administrator does.
async fn terminate_backend(server: &PostgresServer) -> Vec<Phase> {
    let mut admin = connect(server).await;
    for _ in 0..1000 {
        let ended: Option<(String, bool)> = sqlx::query_as(
            "SELECT query, pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE starts_with(application_name, $1) AND backend_xid IS NOT NULL LIMIT 1",
        )
        .bind(NAME)
        .fetch_optional(&mut admin)
        .await
        .unwrap();
        if let Some((statement, true)) = ended {
            return vec![Phase::of(&statement)];
        }
        sleep(Duration::from_millis(2)).await;
    }
    Vec::new()
}

fn signal(pid: i32, signal: Signal) {
    // It may have ended.
    let _ = kill(Pid::from_raw(pid), signal);
}

/// A connection to a server that may be recovering.
async fn connect(server: &PostgresServer) -> PgConnection {
    let options: PgConnectOptions = server.url().parse().unwrap();
    let give_up = Instant::now() + PATIENCE;
    loop {
        if let Ok(mut connection) = options.connect().await
            && connection.ping().await.is_ok()
        {
            return connection;
        }
        assert!(Instant::now() < give_up, "the server does not come back");
        sleep(Duration::from_millis(10)).await;
    }
}

/// The example, which is started again at the same address after it was killed.
struct Receiver {
    server: Server,
    database: String,
    name: String,
}

impl Receiver {
    fn start(server: &PostgresServer) -> Self {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let name = format!("{NAME} {}", STARTED.fetch_add(1, Ordering::Relaxed));
        let database = format!(
            "{}?application_name={}",
            server.url(),
            name.replace(' ', "%20")
        );
        Self {
            server: launch(&database, "127.0.0.1:0"),
            database,
            name,
        }
    }

    /// Kills it, at once or when it has a transaction open, and starts it again.
    async fn kill(&mut self, server: &PostgresServer, aim: bool) -> Vec<Phase> {
        let child = &mut self.server.program.child;
        let pid = child.id().cast_signed();
        let mut admin = connect(server).await;
        let mut phases = Vec::new();
        for _ in 0..if aim { 200 } else { 1 } {
            // Stopped, it does not end its transactions while they are looked at.
            signal(pid, Signal::SIGSTOP);
            let writing = writing(&mut admin, &self.name).await;
            phases = writing.iter().map(|(_, phase)| *phase).collect();
            if phases.iter().any(|phase| phase.is_open()) {
                break;
            }
            if aim {
                signal(pid, Signal::SIGCONT);
                sleep(Duration::from_millis(2)).await;
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        self.server = launch(&self.database, self.server.address());
        phases
    }
}

fn launch(database: &str, listen: &str) -> Server {
    let mut command = example("postgres");
    command
        .args(["--listen", listen, "--secret", SECRET, "--connections", "6"])
        .env("DATABASE_URL", database);
    Server::listening(Program::start(&mut command))
}

/// A number below `end`.
fn random(end: u64) -> u64 {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).unwrap();
    u64::from_le_bytes(bytes) % end
}
