//! Run with: WEBHOOK_SECRET=SECRET cargo run --bin nats
//!
//! Hands events on to NATS JetStream, as `webhooks.KIND`. The key is the message id: the stream drops what it was given
//! within its window of two hours before. A chat's events are published one after another, so that the stream has them in
//! their order; the header `Chat` says of which chat they are.

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::{self, stream};
use tower_webhook_brokers::{Message, serve, setting};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = setting("NATS_URL", Some("nats://127.0.0.1:4222"))?;
    let broker = jetstream::new(async_nats::connect(url).await?);
    broker
        .get_or_create_stream(stream::Config {
            name: "webhooks".to_owned(),
            subjects: vec!["webhooks.>".to_owned()],
            duplicate_window: Duration::from_secs(2 * 60 * 60),
            ..stream::Config::default()
        })
        .await?;
    serve(move |message: Message| {
        let broker = broker.clone();
        async move {
            let mut headers = HeaderMap::new();
            if let Some(id) = message.id {
                headers.insert("Nats-Msg-Id", id);
            }
            headers.insert("Chat", message.chat);
            let subject = format!("webhooks.{}", message.kind);
            // The second wait is for the stream, which has stored it then.
            broker
                .publish_with_headers(subject, headers, message.body.into())
                .await?
                .await?;
            Ok(())
        }
    })
    .await
}
