//! Three receivers, and three PostgreSQL servers under Patroni, with three servers of etcd. Under load, the leader is killed
//! again and again: its PostgreSQL alone, or Patroni with it, as if the machine were gone. The receivers have no proxy, but
//! the addresses of all three.
//!
//! They need root, and Debian's `patroni` and `etcd-server`. `tests/slow` runs them, with `PATRONI_KILLS=20`, which defaults
//! to 2.

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::routing::post;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sqlx::postgres::{PgPool, PgPoolOptions};
use support::delivery::SECRET;
use support::net::{serve, status};
use support::postgres::{free_port, programs};
use support::program::{PATIENCE, Server, example, installed};
use support::{eventually_every, lock};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};
use tower_webhook::inbox::{EventState, EventSummary, Filter, Inbox, Page};
use tower_webhook::postgres::PostgresQueue;

use support::world::{CHATS, Found, PAUSE, RECEIVERS, Sent, World, handle};

const NODES: usize = 3;
/// PostgreSQL does not run as root.
const NOBODY: u32 = 65534;
const POLL: Duration = Duration::from_millis(100);

/// What is killed of the leader.
#[derive(Clone, Copy, Debug)]
enum Killed {
    Postgres,
    /// Patroni too, so that the others learn of it when its lease of 20 s has expired.
    Machine,
}

struct Cluster {
    dir: TempDir,
    etcd: Vec<Child>,
    nodes: Vec<Node>,
}

struct Node {
    name: String,
    port: u16,
    rest: u16,
    patroni: Child,
}

impl Cluster {
    async fn start(is_synchronous: bool) -> Self {
        let dir = TempDir::new().unwrap();
        chown(dir.path(), Some(NOBODY), Some(NOBODY)).expect("Patroni's tests need root");
        let names: Vec<_> = (0..NODES).map(|n| format!("node-{n}")).collect();
        let peers: Vec<_> = names.iter().map(|_| free_port()).collect();
        let clients: Vec<_> = names.iter().map(|_| free_port()).collect();
        let at = |port: &u16| format!("http://127.0.0.1:{port}");
        let members: Vec<_> = names
            .iter()
            .zip(&peers)
            .map(|(name, peer)| format!("{name}={}", at(peer)))
            .collect();
        let mut cluster = Self {
            dir,
            etcd: Vec::new(),
            nodes: Vec::new(),
        };
        for ((name, peer), client) in names.iter().zip(&peers).zip(&clients) {
            let data = cluster.dir.path().join(format!("etcd-{name}"));
            let mut etcd = cluster.command("etcd");
            etcd.args(["--name", name, "--data-dir"]).arg(data);
            etcd.args(["--listen-client-urls", &at(client)]);
            etcd.args(["--advertise-client-urls", &at(client)]);
            etcd.args(["--listen-peer-urls", &at(peer)]);
            etcd.args(["--initial-advertise-peer-urls", &at(peer)]);
            etcd.args(["--initial-cluster", &members.join(",")]);
            let etcd = installed(etcd.spawn(), "etcd", "etcd-server");
            cluster.etcd.push(etcd);
        }
        for name in names {
            let (port, rest) = (free_port(), free_port());
            cluster.write(&name, port, rest, &clients, is_synchronous);
            let patroni = cluster.patroni(&name);
            cluster.nodes.push(Node {
                name,
                port,
                rest,
                patroni,
            });
        }
        let whole = cluster.is_whole(is_synchronous);
        if timeout(PATIENCE / 2, whole).await.is_err() {
            let log = fs::read_to_string(cluster.dir.path().join("log")).unwrap();
            panic!("the cluster does not start: {log}");
        }
        cluster
    }

    /// As a user that PostgreSQL accepts, and ended with this process.
    fn command(&self, program: &str) -> Command {
        let log = self.dir.path().join("log");
        let log = fs::OpenOptions::new().create(true).append(true).open(log);
        let log = log.unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.args(["--pdeathsig=KILL", program]);
        command.process_group(0).current_dir(self.dir.path());
        command.stdin(Stdio::null());
        command.stdout(log.try_clone().unwrap()).stderr(log);
        command
    }

    fn data(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("data-{name}"))
    }

    fn write(&self, name: &str, port: u16, rest: u16, etcd: &[u16], is_synchronous: bool) {
        let etcd: Vec<_> = etcd.iter().map(|it| format!("127.0.0.1:{it}")).collect();
        let text = format!(
            "scope: webhooks
name: {name}
restapi: {{listen: '127.0.0.1:{rest}', connect_address: '127.0.0.1:{rest}'}}
etcd3: {{hosts: '{etcd}'}}
bootstrap:
  dcs:
    ttl: 20
    loop_wait: 2
    retry_timeout: 5
    primary_start_timeout: 0
    synchronous_mode: {is_synchronous}
    postgresql: {{use_pg_rewind: true}}
  initdb: [{{encoding: UTF8}}, {{locale: C}}]
postgresql:
  listen: '127.0.0.1:{port}'
  connect_address: '127.0.0.1:{port}'
  data_dir: {data}
  bin_dir: {programs}
  pgpass: {data}.pass
  remove_data_directory_on_diverged_timelines: true
  authentication:
    superuser: {{username: postgres, password: secret}}
    replication: {{username: replicator, password: secret}}
  parameters: {{unix_socket_directories: {dir}, max_connections: 300, wal_keep_size: 1GB}}
  pg_hba: ['local all all trust', 'host all all 127.0.0.1/32 trust', 'host replication all 127.0.0.1/32 trust']
",
            etcd = etcd.join(","),
            data = self.data(name).display(),
            programs = programs().display(),
            dir = self.dir.path().display(),
        );
        fs::write(self.dir.path().join(format!("{name}.yml")), text).unwrap();
    }

    fn patroni(&self, name: &str) -> Child {
        let file = format!("{name}.yml");
        installed(
            self.command("patroni").arg(file).spawn(),
            "patroni",
            "patroni",
        )
    }

    /// The number of nodes of which Patroni says so.
    async fn number(&self, role: &str) -> usize {
        let mut number = 0;
        for node in &self.nodes {
            number += usize::from(node.is(role).await);
        }
        number
    }

    async fn is_whole(&self, is_synchronous: bool) {
        eventually_every(POLL, "the cluster is whole", async || {
            self.number("leader").await == 1
                && self.number("replica").await == NODES - 1
                && (!is_synchronous || self.number("sync").await == 1)
        })
        .await;
    }

    async fn leader(&self) -> usize {
        eventually_every(POLL, "there is a leader", async || {
            for (at, node) in self.nodes.iter().enumerate() {
                if node.is("leader").await {
                    return Some(at);
                }
            }
            None
        })
        .await
    }

    /// Ends what runs of a node, at once.
    fn kill(&mut self, at: usize, killed: Killed) {
        let data = self.data(&self.nodes[at].name);
        if let Killed::Machine = killed {
            let patroni = &mut self.nodes[at].patroni;
            patroni.kill().unwrap();
            patroni.wait().unwrap();
        }
        let told = fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
        if let Some(pid) = told.lines().next().and_then(|pid| pid.trim().parse().ok()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }

    /// Starts Patroni again where it was killed.
    fn mend(&mut self, at: usize) {
        if self.nodes[at].patroni.try_wait().unwrap().is_some() {
            self.nodes[at].patroni = self.patroni(&self.nodes[at].name);
        }
    }

    /// Of all nodes, in one URL.
    fn url(&self) -> String {
        let hosts = self.nodes.iter().map(|it| format!("127.0.0.1:{}", it.port));
        let hosts: Vec<_> = hosts.collect();
        format!("postgres://postgres:secret@{}/postgres", hosts.join(","))
    }

    async fn inbox(&self) -> Inbox {
        let port = self.nodes[self.leader().await].port;
        let url = format!("postgres://postgres:secret@127.0.0.1:{port}/postgres");
        let pool: PgPool = PgPoolOptions::new().connect_lazy(&url).unwrap();
        Inbox::new(PostgresQueue::new(pool))
    }
}

impl Node {
    async fn is(&self, role: &str) -> bool {
        let rest = SocketAddr::from(([127, 0, 0, 1], self.rest));
        let request = format!("GET /{role} HTTP/1.0\r\n\r\n");
        status(rest, request)
            .await
            .is_ok_and(|status| status == 200)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for at in 0..self.nodes.len() {
            self.kill(at, Killed::Machine);
        }
        for etcd in &mut self.etcd {
            let _ = etcd.kill();
            let _ = etcd.wait();
        }
    }
}

struct Place {
    cluster: Cluster,
    world: Arc<World>,
    receivers: Vec<Server>,
    rounds: usize,
}

impl Place {
    async fn new(has_spools: bool, is_synchronous: bool) -> Self {
        let cluster = Cluster::start(is_synchronous).await;
        let world = Arc::new(World::default());
        let handler = axum::Router::new().route("/", post(handle));
        let handler = serve(handler.with_state(Arc::clone(&world))).await;
        let (handler, url) = (format!("http://{handler}/"), cluster.url());
        let start = |at: usize| {
            let mut command = example("receiver");
            command.env("RUST_LOG", "warn");
            command.args(["--secret", SECRET, "--inbox", &url, "--forward", &handler]);
            if has_spools {
                let file = cluster.dir.path().join(format!("spool-{at}.db"));
                command.arg("--spool").arg(file);
                command.args(["--spool-on-any-disk", "--spool-limit", "16777216"]);
            }
            let server = Server::start_by(&mut command);
            lock(&world.receivers[at]).0 = Some(server.address().parse().unwrap());
            server
        };
        let receivers = (0..RECEIVERS).map(start).collect();
        Self {
            cluster,
            world,
            receivers,
            rounds: 0,
        }
    }

    async fn events(&self) -> Vec<EventSummary> {
        eventually_every(POLL, "the events are listed", async || {
            let inbox = self.cluster.inbox().await;
            let page = Page::oldest(1_000_000);
            let listed = inbox.list(&Filter::default(), page).await;
            Some(listed.ok()?.events)
        })
        .await
    }

    async fn round(&mut self, killed: Killed, is_synchronous: bool) -> Round {
        self.rounds += 1;
        self.world.has_ended.store(false, Ordering::SeqCst);
        lock(&self.world.marks).clear();
        *lock(&self.world.seen) = Default::default();
        let chat = |chat| {
            let world = Arc::clone(&self.world);
            tokio::spawn(world.chat(self.rounds, chat, PAUSE))
        };
        let chats: Vec<_> = (0..CHATS).map(chat).collect();
        sleep(Duration::from_secs(2)).await;

        let is_handled = |it: &EventSummary| it.state == EventState::Handled;
        let events = self.events().await.into_iter().filter(is_handled);
        let known = lock(&self.world.marks).len();
        let settled: HashMap<_, _> = events
            .map(|it| (it.key.unwrap().to_string(), known))
            .collect();
        let leader = self.cluster.leader().await;
        let began = Instant::now();
        self.cluster.kill(leader, killed);
        eventually_every(POLL, "another node leads", async || {
            self.cluster.leader().await != leader
        })
        .await;
        let led = began.elapsed();
        sleep(Duration::from_secs(7)).await;
        self.world.has_ended.store(true, Ordering::SeqCst);
        let mut sent: Vec<Vec<Sent>> = Vec::new();
        for chat in chats {
            sent.push(chat.await.unwrap());
        }
        self.cluster.mend(leader);
        eventually_every(POLL, "all are settled", async || {
            let stats = self.cluster.inbox().await.stats().await;
            stats.is_ok_and(|stats| stats.unsettled() == 0)
        })
        .await;
        self.cluster.is_whole(is_synchronous).await;
        let found = self.world.judge(&settled, &sent);
        let mut seen = std::mem::take(&mut *lock(&self.world.seen));
        seen.answers.sort_unstable();
        let refused = |it: &&String| !it.starts_with("503");
        Round {
            killed,
            led,
            refused_for: seen
                .last_unexpected
                .map_or(Duration::ZERO, |last| last.saturating_duration_since(began)),
            sent: sent.iter().map(Vec::len).sum(),
            refused: seen.unexpected.len(),
            usual: seen.answers[seen.answers.len() / 2],
            slowest: seen.slowest,
            odd: seen.unexpected.iter().filter(refused).cloned().collect(),
            found,
        }
    }
}

/// What was seen of a kill.
#[derive(Debug)]
struct Round {
    killed: Killed,
    /// Until another node led.
    led: Duration,
    /// From the kill to the last 503.
    refused_for: Duration,
    sent: usize,
    refused: usize,
    /// Half of the answers took less.
    usual: Duration,
    slowest: Duration,
    /// Other answers, and requests without one.
    odd: Vec<String>,
    found: Found,
}

async fn survive(has_spools: bool, is_synchronous: bool) {
    let kills = std::env::var("PATRONI_KILLS").map_or(2, |kills| kills.parse().unwrap());
    let mut place = Place::new(has_spools, is_synchronous).await;
    let mut total = [0; 6];
    for number in 0..kills {
        let killed = [Killed::Postgres, Killed::Machine][number % 2];
        let round = place.round(killed, is_synchronous).await;
        let Found {
            lost,
            doubled,
            disordered,
            again,
        } = &round.found;
        println!(
            "{:?}: another leader after {:.1?}; {} events, {} refused for {:.1?}, p50 {:.1?}, slowest {:.1?}; {} lost, {} doubled, {} out \
             of order, {again} attempts again",
            round.killed,
            round.led,
            round.sent,
            round.refused,
            round.refused_for,
            round.usual,
            round.slowest,
            lost.len(),
            doubled.len(),
            disordered.len(),
        );
        assert!(round.odd.is_empty(), "{round:?}");
        if is_synchronous {
            let is_sound = lost.is_empty() && doubled.is_empty() && disordered.is_empty();
            assert!(is_sound, "{lost:?} {doubled:?} {disordered:?}");
        }
        assert!(!has_spools || round.refused == 0, "{round:?}");
        let numbers = [
            round.sent,
            round.refused,
            lost.len(),
            doubled.len(),
            disordered.len(),
            *again,
        ];
        for (total, number) in total.iter_mut().zip(numbers) {
            *total += number;
        }
    }
    let [sent, refused, lost, doubled, disordered, again] = total;
    println!(
        "{kills} kills: {sent} events, {refused} refused, {lost} lost, {doubled} doubled, {disordered} out of order, {again} \
         attempts again"
    );
    for receiver in place.receivers {
        assert_eq!(receiver.stop(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_synchronous_leader_is_killed() {
    survive(false, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_synchronous_leader_is_killed_behind_spools() {
    survive(true, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_asynchronous_leader_is_killed() {
    survive(false, false).await;
}
