//! Run with: WEBHOOK_SECRET=SECRET cargo run --bin temporal
//!
//! Starts a workflow of Temporal for each event, through its HTTP API: of the type KIND, in the task queue `webhooks`, with
//! the body as its argument. The key is the workflow's id, under which Temporal starts nothing more while it keeps the
//! workflow: the retention of the namespace after its end. A chat's workflows are started in the order of its events, and
//! then run beside each other. The memo `chat` says of which chat they are.

use anyhow::ensure;
use reqwest::{Client, Url};
use serde_json::{Value, json};
use tower_webhook_brokers::{LIMIT, Message, serve, setting, under};

/// The number of gRPC for what exists. Status 409 has other meanings, too.
const ALREADY_EXISTS: u64 = 6;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let server = Url::parse(&setting("TEMPORAL_URL", Some("http://127.0.0.1:7243"))?)?;
    let namespace = setting("TEMPORAL_NAMESPACE", Some("default"))?;
    let workflows = under(
        &server,
        &["api", "v1", "namespaces", &namespace, "workflows"],
    )?;
    let client = Client::builder().timeout(LIMIT).build()?;
    serve(move |message: Message| {
        let (client, workflows) = (client.clone(), workflows.clone());
        async move {
            // In the path, Temporal takes `%2F` for a `/`, and finds nothing there.
            let id = message.unique_id.replace('%', "%25").replace('/', "%2F");
            let workflow = json!({
                "workflowType": {"name": message.kind},
                "taskQueue": {"name": "webhooks"},
                "workflowIdReusePolicy": "WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE",
                "input": [message.json()?],
                "memo": {"fields": {"chat": message.chat}},
            });
            let request = client.post(under(&workflows, &[&id])?).json(&workflow);
            let response = request.send().await?;
            if !response.status().is_success() {
                let refused: Value = response.json().await?;
                ensure!(refused["code"] == ALREADY_EXISTS, "{refused}");
            }
            Ok(())
        }
    })
    .await
}
