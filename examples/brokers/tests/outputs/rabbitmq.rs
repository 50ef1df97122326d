//! A cluster of three nodes of RabbitMQ, with a quorum queue.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use futures_util::StreamExt;
use lapin::options::{BasicConsumeOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};
use tempfile::TempDir;

use crate::load::{Event, Output, survive};
use crate::process::{Process, eventually, free_ports, installed};

const NODES: usize = 3;
/// Debian's programs in the path change the user and the home.
const PROGRAMS: &str = "/usr/lib/rabbitmq/bin";
const INSTALL: &str = "apt-get install rabbitmq-server";
/// Erlang's nodes, too, are reached through this machine alone.
const LOOPBACK: &str = "-kernel inet_dist_use_interface {127,0,0,1} -start_epmd false";

struct RabbitMq {
    dir: TempDir,
    /// Finds the nodes.
    _epmd: Process,
    epmd_port: u16,
    ports: [u16; NODES],
    between: [u16; NODES],
    nodes: [Option<Process>; NODES],
}

impl RabbitMq {
    async fn start() -> Self {
        let dir = TempDir::new().unwrap();
        let cookie = dir.path().join(".erlang.cookie");
        fs::write(&cookie, "secret").unwrap();
        fs::set_permissions(&cookie, Permissions::from_mode(0o400)).unwrap();
        let mut config = "cluster_formation.peer_discovery_backend = classic_config\n".to_owned();
        for at in 0..NODES {
            let name = name(at);
            config += &format!(
                "cluster_formation.classic_config.nodes.{} = {name}\n",
                at + 1
            );
        }
        fs::write(dir.path().join("rabbitmq.conf"), config).unwrap();

        let ports = free_ports::<{ 2 * NODES + 1 }>();
        let (epmd_port, (ports, between)) = (ports[0], ports[1..].split_at(NODES));
        let mut epmd = Command::new("epmd");
        epmd.args(["-address", "127.0.0.1", "-port", &epmd_port.to_string()]);
        let mut epmd = Process::start(&mut epmd, "epmd", dir.path(), INSTALL);
        epmd.listens(epmd_port).await;
        let mut cluster = Self {
            dir,
            _epmd: epmd,
            epmd_port,
            ports: ports.try_into().unwrap(),
            between: between.try_into().unwrap(),
            nodes: Default::default(),
        };
        for at in 0..NODES {
            cluster.start_node(at);
        }
        cluster.all_listen().await;
        cluster
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(format!("{PROGRAMS}/{program}"));
        command.env("HOME", self.dir.path());
        command.env("ERL_EPMD_PORT", self.epmd_port.to_string());
        command.env("RABBITMQ_CONF_ENV_FILE", "/dev/null");
        command
    }

    fn start_node(&mut self, at: usize) {
        let dir = self.dir.path().join(name(at));
        fs::create_dir_all(&dir).unwrap();
        let mut command = self.command("rabbitmq-server");
        // The program becomes the node instead of waiting for it.
        command.env("RABBITMQ_ALLOW_INPUT", "1");
        command.env("RABBITMQ_NODENAME", name(at));
        command.env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1");
        command.env("RABBITMQ_NODE_PORT", self.ports[at].to_string());
        command.env("RABBITMQ_DIST_PORT", self.between[at].to_string());
        command.env(
            "RABBITMQ_CONFIG_FILE",
            self.dir.path().join("rabbitmq.conf"),
        );
        command.env(
            "RABBITMQ_ENABLED_PLUGINS_FILE",
            self.dir.path().join("plugins"),
        );
        command.env("RABBITMQ_MNESIA_BASE", &dir);
        command.env("RABBITMQ_LOG_BASE", &dir);
        command.env(
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
            format!("-noinput {LOOPBACK}"),
        );
        let node = Process::start(&mut command, &name(at), self.dir.path(), INSTALL);
        self.nodes[at] = Some(node);
    }

    async fn all_listen(&mut self) {
        for (node, port) in self.nodes.iter_mut().zip(self.ports) {
            node.as_mut().unwrap().listens(port).await;
        }
    }

    /// What a node that runs says of the queue.
    fn tell(&self, what: &str) -> Option<String> {
        let node = self.nodes.iter().position(Option::is_some)?;
        let mut command = self.command("rabbitmqctl");
        command.env("RABBITMQ_CTL_ERL_ARGS", LOOPBACK);
        command.args(["--node", &name(node), "--quiet", "list_queues"]);
        command.args(["--no-table-headers", what]);
        let output = installed(command.output(), &command, INSTALL);
        let text = String::from_utf8(output.stdout).unwrap();
        output.status.success().then(|| text.trim().to_owned())
    }
}

fn name(at: usize) -> String {
    format!("node-{at}@localhost")
}

fn url(port: u16) -> String {
    format!("amqp://127.0.0.1:{port}")
}

impl Output for RabbitMq {
    const PROGRAM: &'static str = env!("CARGO_BIN_EXE_rabbitmq");

    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![("RABBITMQ_URL", self.ports.map(url).join(","))]
    }

    async fn kill(&mut self) {
        let leader = eventually("a leader", async || {
            let leader = self.tell("leader")?;
            (0..NODES).find(|at| name(*at) == leader)
        });
        let leader = leader.await;
        self.nodes[leader] = None;
    }

    async fn mend(&mut self) {
        for at in 0..NODES {
            if self.nodes[at].is_none() {
                self.start_node(at);
            }
        }
        self.all_listen().await;
        eventually("all replicas", async || {
            let online = self.tell("online")?;
            (0..NODES)
                .all(|at| online.contains(&name(at)))
                .then_some(())
        })
        .await;
    }

    async fn read(&mut self, _sent: usize) -> Vec<Event> {
        let properties = ConnectionProperties::default();
        let broker = Connection::connect(&url(self.ports[0]), properties).await;
        let channel = broker.unwrap().create_channel().await.unwrap();
        let passive = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::durable()
        };
        let queue = channel.queue_declare("webhooks".into(), passive, FieldTable::default());
        let count = queue.await.unwrap().message_count();
        let options = BasicConsumeOptions {
            no_ack: true,
            ..BasicConsumeOptions::default()
        };
        let (queue, tag) = ("webhooks".into(), "".into());
        let messages = channel.basic_consume(queue, tag, options, FieldTable::default());
        let events = messages.await.unwrap().take(count as usize);
        let events = events.map(|it| Event::of_body(&it.unwrap().data));
        events.collect().await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rabbitmq_has_each_event_at_least_once_in_the_order_of_its_chat() {
    survive(RabbitMq::start().await)
        .await
        .assert_at_least_once();
}
