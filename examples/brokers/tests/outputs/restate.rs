//! One server of Restate, and a virtual object that notes what it handles.

use std::net::SocketAddr;
use std::process::Command;

use reqwest::{Client, Url};
use restate_sdk::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tower_webhook_brokers::under;

use crate::load::{CHATS, Event, Output, survive};
use crate::process::{Process, eventually, free_ports};

/// Notes in Restate's state, which changes once for each run of a handler that ends.
struct Chat;

#[object]
impl Chat {
    #[handler]
    async fn handle(&self, ctx: ObjectContext<'_>, event: Json<Value>) -> HandlerResult<()> {
        let Json(mut log) = ctx
            .get::<Json<Vec<Value>>>("log")
            .await?
            .unwrap_or_default();
        log.push(event.into_inner()["body"]["text"].clone());
        ctx.set("log", Json(log));
        Ok(())
    }

    #[handler]
    async fn log(&self, ctx: SharedObjectContext<'_>) -> HandlerResult<Json<Vec<Value>>> {
        Ok(ctx.get("log").await?.unwrap_or_default())
    }
}

struct Restate {
    dir: TempDir,
    /// Between servers, of the ingress, and of the administration.
    ports: [u16; 3],
    server: Option<Process>,
    client: Client,
}

impl Restate {
    async fn start() -> Self {
        let mut restate = Self {
            dir: TempDir::new().unwrap(),
            ports: free_ports(),
            server: None,
            client: Client::new(),
        };
        restate.start_server();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        let endpoint = Endpoint::builder().bind(Chat).build();
        tokio::spawn(HttpServer::new(endpoint).serve(listener));
        let deployment = json!({"uri": format!("http://{address}")});
        eventually("the administration", async || {
            restate.ask("deployments", &deployment).await
        })
        .await;
        restate
    }

    fn start_server(&mut self) {
        let [between, ingress, admin] = self.ports.map(|port| port.to_string());
        let mut command = Command::new("restate-server");
        command.args([
            "--no-logo",
            "--listen-mode",
            "tcp",
            "--bind-ip",
            "127.0.0.1",
        ]);
        command.args(["--bind-port", &between]);
        command.env("RESTATE_INGRESS__BIND_PORT", ingress);
        command.env("RESTATE_ADMIN__BIND_PORT", admin);
        command.env("RESTATE_BASE_DIR", self.dir.path().join("data"));
        command.env("RESTATE_ROCKSDB_TOTAL_MEMORY_SIZE", "256MB");
        command.env("RESTATE_DISABLE_TELEMETRY", "true");
        let install = "npm install @restatedev/restate-server";
        let server = Process::start(&mut command, "restate", self.dir.path(), install);
        self.server = Some(server);
    }

    fn url(port: u16) -> String {
        format!("http://127.0.0.1:{port}")
    }

    /// The administration's answer.
    async fn ask(&self, path: &str, body: &Value) -> Option<Value> {
        let url = format!("{}/{path}", Self::url(self.ports[2]));
        let request = self.client.post(url).header("accept", "application/json");
        let answer = request.json(body).send().await.ok()?;
        answer.error_for_status().ok()?.json().await.ok()
    }
}

impl Output for Restate {
    const PROGRAM: &'static str = env!("CARGO_BIN_EXE_restate");

    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![("RESTATE_URL", Self::url(self.ports[1]))]
    }

    async fn kill(&mut self) {
        self.server = None;
        self.start_server();
    }

    async fn read(&mut self, _sent: usize) -> Vec<Event> {
        let unfinished = "SELECT COUNT(*) AS n FROM sys_invocation WHERE status <> 'completed'";
        eventually("the last run", async || {
            let answer = self.ask("query", &json!({"query": unfinished})).await?;
            (answer["rows"][0]["n"] == 0).then_some(())
        })
        .await;
        let ingress = Url::parse(&Self::url(self.ports[1])).unwrap();
        let mut events = Vec::new();
        for chat in 0..CHATS {
            let log = under(&ingress, &["Chat", &Event::chat(chat), "log"]).unwrap();
            let answer = self.client.post(log).send().await.unwrap();
            let log: Vec<String> = answer.error_for_status().unwrap().json().await.unwrap();
            events.extend(log.iter().map(|key| Event::of_key(key)));
        }
        events
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn restate_runs_each_event_once_in_the_order_of_its_chat() {
    survive(Restate::start().await).await.assert_once();
}
