//! Three receivers, and three PostgreSQL servers under Patroni, with three servers of etcd. Under load, the leader is killed
//! again and again: its PostgreSQL alone, or Patroni with it, as if the machine were gone. The receivers have no proxy, but
//! the addresses of all three.
//!
//! They need root, and Debian's `patroni`, `etcd-server` and `haproxy`. `tests/slow` runs them, with `PATRONI_KILLS=20`, which defaults
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
use support::net::{serve, status, whole};
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

const PATRONI: &str = include_str!("../crates/receiver/operations/patroni.yml");
const HAPROXY: &str = include_str!("../crates/receiver/operations/haproxy.cfg");

/// A file for operators, with what this machine has instead.
fn replaced(file: &str, here: &[(&str, String)]) -> String {
    here.iter().fold(file.to_owned(), |text, (there, here)| {
        assert!(text.contains(there), "{there}");
        text.replace(there, here)
    })
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
        let at = |port: u16| format!("127.0.0.1:{port}");
        let etcd: Vec<_> = etcd.iter().copied().map(at).collect();
        let text = replaced(
            PATRONI,
            &[
                ("10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379", etcd.join(",")),
                ("10.0.0.1:8008", at(rest)),
                ("10.0.0.1:5432", at(port)),
                ("10.0.0.0/24", "127.0.0.1/32".to_owned()),
                ("node-0", name.to_owned()),
                (
                    "/var/lib/postgresql/webhooks",
                    self.data(name).display().to_string(),
                ),
                (
                    "/usr/lib/postgresql/15/bin",
                    programs().display().to_string(),
                ),
                ("/var/run/postgresql", self.dir.path().display().to_string()),
                ("SECRET", "secret".to_owned()),
                (
                    "synchronous_mode: true",
                    format!("synchronous_mode: {is_synchronous}"),
                ),
            ],
        );
        self.file(&format!("{name}.yml"), &text);
    }

    fn file(&self, name: &str, text: &str) {
        fs::write(self.dir.path().join(name), text).unwrap();
    }

    /// On a port of its own, which it returns.
    fn haproxy(&self) -> (Child, u16) {
        let port = free_port();
        let mut here = vec![("127.0.0.1:5000".to_owned(), format!("127.0.0.1:{port}"))];
        here.extend(self.nodes.iter().zip(1..).map(|(node, nth)| {
            let Node { port, rest, .. } = node;
            (
                format!("10.0.0.{nth}:5432 check port 8008"),
                format!("127.0.0.1:{port} check port {rest}"),
            )
        }));
        let here: Vec<_> = here.iter().map(|(a, b)| (&a[..], b.clone())).collect();
        self.file("haproxy.cfg", &replaced(HAPROXY, &here));
        let mut haproxy = self.command("haproxy");
        let haproxy = haproxy.args(["-db", "-f", "haproxy.cfg"]).spawn();
        (installed(haproxy, "haproxy", "haproxy"), port)
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

/// As the pool of an application, which has one host.
#[tokio::test(flavor = "multi_thread")]
async fn a_pool_behind_haproxy_is_led_to_the_next_leader() {
    let mut cluster = Cluster::start(true).await;
    let (mut haproxy, port) = cluster.haproxy();
    let url = format!("postgres://postgres:secret@127.0.0.1:{port}/postgres");
    let port_of_server = async || {
        let pool = PgPoolOptions::new().connect(&url).await.ok()?;
        let port = sqlx::query_scalar("SELECT inet_server_port()");
        let port: i32 = port.fetch_one(&pool).await.ok()?;
        Some(port)
    };
    let leader = cluster.leader().await;
    let port = Some(i32::from(cluster.nodes[leader].port));
    eventually_every(POLL, "it leads to the leader alone", async || {
        let mut led = true;
        for _ in 0..NODES {
            led &= port_of_server().await == port;
        }
        led
    })
    .await;

    let mut command = example("receiver");
    command.args(["--secret", SECRET, "--inbox", &url]);
    let receiver = Server::start_by(&mut command);
    let address = receiver.address().parse().unwrap();
    let deliver = async |key: &str| status(address, whole(key, "{}")).await.unwrap();
    assert_eq!(deliver("before").await, 200);
    cluster.kill(leader, Killed::Machine);
    let mut key = 0;
    let mut answers = Vec::new();
    eventually_every(POLL, "events are stored again", async || {
        key += 1;
        answers.push(deliver(&format!("after-{key}")).await);
        let leads = cluster.leader().await != leader;
        leads && answers.last() == Some(&200)
    })
    .await;
    assert!(
        answers.iter().all(|status| [200, 503].contains(status)),
        "{answers:?}"
    );
    assert_eq!(receiver.stop(), 0);
    haproxy.kill().unwrap();
    haproxy.wait().unwrap();
}
