//! Redis servers that replace each other.

use std::time::Duration;

use super::RedisServer;
use crate::program::until_every;

/// What a process that is killed loses is what its replica had not got: its file has everything.
const SERVER: [&str; 4] = ["--appendonly", "yes", "--repl-diskless-sync-delay", "0"];

/// Servers of which a primary can fail.
pub trait Failing: Send {
    fn servers(&mut self) -> &mut Vec<RedisServer>;
    fn url(&self) -> String;
    /// Waits until every primary can be replaced.
    fn settle(&self);

    /// Which servers are primaries just now.
    fn primaries(&mut self) -> Vec<usize> {
        let servers = self.servers();
        let is_primary = |at: &usize| {
            let server = &servers[*at];
            server.is_running() && replication(server).contains("role:master")
        };
        (0..servers.len()).filter(is_primary).collect()
    }

    /// Kills one of the primaries, and returns which server it was.
    fn kill_primary(&mut self, nth: usize) -> usize {
        let primaries = self.primaries();
        let killed = primaries[nth % primaries.len()];
        self.servers()[killed].kill();
        killed
    }

    fn restart(&mut self, killed: usize) {
        self.servers()[killed].restart();
    }
}

fn replication(server: &RedisServer) -> String {
    server.try_command(&["INFO", "replication"])
}

/// How many replicas have all that the server has written.
fn replicas(server: &RedisServer) -> usize {
    replication(server).matches("state=online").count()
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let pause = Duration::from_millis(50);
    until_every(pause, what, || is_so().then_some(()));
}

/// Three primaries with a replica each.
pub struct RedisCluster {
    pub servers: Vec<RedisServer>,
}

impl RedisCluster {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    pub fn start_with(args: &[&str]) -> Self {
        // A replica replaces its primary however long a busy machine had kept it from hearing of it.
        let cluster = [
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            "2000",
            "--cluster-replica-validity-factor",
            "0",
        ];
        let args = [&SERVER[..], &cluster, args].concat();
        let servers: Vec<_> = (0..6).map(|_| RedisServer::start_with(&args)).collect();
        for (at, server) in servers.iter().enumerate() {
            server.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]);
            let port = server.port().to_string();
            servers[0].command(&["CLUSTER", "MEET", "127.0.0.1", &port]);
        }
        let slots = [["0", "5460"], ["5461", "10922"], ["10923", "16383"]];
        for (server, [first, last]) in servers.iter().zip(slots) {
            server.command(&["CLUSTER", "ADDSLOTSRANGE", first, last]);
        }
        let knows =
            |server: &RedisServer, text: &str| server.command(&["CLUSTER", "INFO"]).contains(text);
        wait_for("the servers know each other", || {
            servers.iter().all(|it| knows(it, "cluster_known_nodes:6"))
        });
        for (primary, replica) in servers.iter().zip(&servers[3..]) {
            let id = primary.command(&["CLUSTER", "MYID"]);
            let id = id.lines().nth(1).unwrap().to_owned();
            wait_for("a replica follows its primary", || {
                replica
                    .command(&["CLUSTER", "REPLICATE", &id])
                    .starts_with("+OK")
            });
        }
        let cluster = Self { servers };
        cluster.settle();
        cluster
    }
}

impl Failing for RedisCluster {
    fn servers(&mut self) -> &mut Vec<RedisServer> {
        &mut self.servers
    }

    fn url(&self) -> String {
        let addresses: Vec<_> = self.servers.iter().map(RedisServer::address).collect();
        format!("redis://{}/", addresses.join(","))
    }

    fn settle(&self) {
        wait_for("three primaries have a replica each", || {
            let primaries = self.servers.iter().map(replicas);
            primaries.filter(|&replicas| replicas == 1).count() == 3
                && self.servers.iter().all(|server| {
                    let info = server.try_command(&["CLUSTER", "INFO"]);
                    let nodes = server.try_command(&["CLUSTER", "NODES"]);
                    info.contains("cluster_state:ok") && !nodes.contains("fail")
                })
        });
    }
}

/// One primary with two replicas, and three sentinels that call it `webhooks`.
pub struct SentinelSet {
    pub servers: Vec<RedisServer>,
    pub sentinels: Vec<RedisServer>,
}

impl SentinelSet {
    pub fn start() -> Self {
        // A primary that is back accepts nothing while others do not follow it.
        let args = [&SERVER[..], &["--min-replicas-to-write", "1"]].concat();
        let servers: Vec<_> = (0..3).map(|_| RedisServer::start_with(&args)).collect();
        let port = servers[0].port().to_string();
        for replica in &servers[1..] {
            // Not in its settings: a server that comes back calls itself a primary until a sentinel has noticed.
            replica.command(&["REPLICAOF", "127.0.0.1", &port]);
        }
        wait_for("the replicas follow", || replicas(&servers[0]) == 2);
        let config = format!(
            "sentinel monitor webhooks 127.0.0.1 {port} 2\n\
             sentinel down-after-milliseconds webhooks 2000\n\
             sentinel failover-timeout webhooks 10000\n"
        );
        let sentinels = (0..3).map(|_| RedisServer::sentinel(&config)).collect();
        let set = Self { servers, sentinels };
        set.settle();
        set
    }

    /// The addresses of the sentinels, and the name of the primary.
    pub fn at(&self) -> String {
        let addresses: Vec<_> = self.sentinels.iter().map(RedisServer::address).collect();
        format!("{}/webhooks", addresses.join(","))
    }
}

impl Failing for SentinelSet {
    fn servers(&mut self) -> &mut Vec<RedisServer> {
        &mut self.servers
    }

    fn url(&self) -> String {
        format!("redis+sentinel://{}", self.at())
    }

    fn settle(&self) {
        wait_for(
            "the sentinels know the primary, its replicas, and each other",
            || {
                let primaries = self.servers.iter().map(replicas);
                primaries.filter(|&replicas| replicas == 2).count() == 1
                    && self.sentinels.iter().all(|sentinel| {
                        let info = sentinel.try_command(&["INFO", "sentinel"]);
                        let down = sentinel.try_command(&["SENTINEL", "REPLICAS", "webhooks"]);
                        info.contains("status=ok")
                            && info.contains("slaves=2,sentinels=3")
                            && !down.contains("s_down")
                    })
            },
        );
    }
}
