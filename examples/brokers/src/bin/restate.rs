//! Run with: WEBHOOK_SECRET=SECRET cargo run --bin restate
//!
//! Sends events to the handler `handle` of the virtual object `Chat` of Restate, through its HTTP ingress. The chat is the
//! object's key, so that Restate runs its events one after another, in their order. The key is the idempotency key, under
//! which Restate runs nothing again for a day, by default, after it has succeeded.

use reqwest::{Client, Url};
use serde_json::json;
use tower_webhook_brokers::{LIMIT, Message, serve, setting, under};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let ingress = Url::parse(&setting("RESTATE_URL", Some("http://127.0.0.1:8080"))?)?;
    let client = Client::builder().timeout(LIMIT).build()?;
    serve(move |message: Message| {
        let (client, ingress) = (client.clone(), ingress.clone());
        async move {
            let handler = under(&ingress, &["Chat", &message.chat, "handle", "send"])?;
            let event = json!({"kind": message.kind, "body": message.json()?});
            let mut request = client.post(handler).json(&event);
            if let Some(id) = message.id {
                request = request.header("idempotency-key", id);
            }
            request.send().await?.error_for_status()?;
            Ok(())
        }
    })
    .await
}
