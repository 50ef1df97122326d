//! Run with: WEBHOOK_SECRET=SECRET cargo run --bin nats
//!
//! Hands events on to NATS JetStream, as `webhooks.KIND`. The key is the message id: the stream drops what it was given
//! within its window of two hours before. A chat's events are published one after another, so that the stream has them in
//! their order; the header `Chat` says of which chat they are. For a cluster, NATS_URL has the URLs of its servers, with
//! commas between them, and NATS_REPLICAS is 3.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::{self, stream};
use async_nats::{ConnectOptions, HeaderMap};
use tokio::sync::OnceCell;
use tower_webhook_brokers::{Message, serve, setting};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let urls = setting("NATS_URL", Some("nats://127.0.0.1:4222"))?;
    let urls: Vec<_> = urls.split(',').collect();
    // Events are accepted while the broker is away.
    let client = ConnectOptions::new().retry_on_initial_connect();
    let broker = jetstream::new(client.connect(urls).await?);
    let config = stream::Config {
        name: "webhooks".to_owned(),
        subjects: vec!["webhooks.>".to_owned()],
        duplicate_window: Duration::from_secs(2 * 60 * 60),
        num_replicas: setting("NATS_REPLICAS", Some("1"))?.parse()?,
        ..stream::Config::default()
    };
    let stream = Arc::new(OnceCell::new());
    serve(move |message: Message| {
        let (broker, config, stream) = (broker.clone(), config.clone(), Arc::clone(&stream));
        async move {
            stream
                .get_or_try_init(|| broker.get_or_create_stream(config))
                .await?;
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
