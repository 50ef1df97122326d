//! Run with: WEBHOOK_SECRET=SECRET KAFKA=127.0.0.1:9092 cargo run --bin kafka
//!
//! Hands events on to the topic `webhooks` of Kafka, or of what speaks its protocol. The chat is the message's key, and
//! chooses the partition, in which its messages stay in their order. What the producer repeats, brokers write once. If the
//! program dies after an event is written and before it is settled, the topic has the event twice: whoever reads the topic
//! compares the header `id`.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use tower_webhook_brokers::{Message, serve, setting};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let producer: FutureProducer = ClientConfig::new()
        .set(
            "bootstrap.servers",
            setting("KAFKA", Some("127.0.0.1:9092"))?,
        )
        .set("enable.idempotence", "true")
        // Within the 30 seconds of a handler, because a message that is produced again is a new one for brokers.
        .set("message.timeout.ms", "25000")
        .create()?;
    serve(move |message: Message| {
        let producer = producer.clone();
        async move {
            let headers = OwnedHeaders::new().insert(Header {
                key: "kind",
                value: Some(&message.kind),
            });
            let headers = headers.insert(Header {
                key: "id",
                value: message.id.as_ref(),
            });
            let record = FutureRecord::to("webhooks")
                .key(&message.chat)
                .payload(&message.body)
                .headers(headers);
            let sent = producer.send(record, Duration::ZERO).await;
            sent.map_err(|(error, _)| error)?;
            Ok(())
        }
    })
    .await
}
