//! Run with: WEBHOOK_SECRET=SECRET KAFKA=127.0.0.1:9092 cargo run --bin kafka
//!
//! Hands events on to the topic `webhooks` of Kafka, or of what speaks its protocol. The chat is the message's key, and
//! chooses the partition, in which its messages stay in their order. Kafka does not compare the header `id`: whoever reads
//! the topic does.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use anyhow::Context;
use chrono::Utc;
use rskafka::client::ClientBuilder;
use rskafka::client::partition::{Compression, UnknownTopicHandling};
use rskafka::record::Record;
use tower_webhook_brokers::{Message, serve, setting};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let broker = setting("KAFKA", Some("127.0.0.1:9092"))?;
    let client = ClientBuilder::new(vec![broker]).build().await?;
    let topics = client.list_topics().await?;
    let topic = topics.into_iter().find(|topic| topic.name == "webhooks");
    let topic =
        topic.context("create the topic `webhooks`, with as many partitions as you need")?;
    let mut partitions = HashMap::new();
    for (at, number) in topic.partitions.into_iter().enumerate() {
        let partition = client.partition_client("webhooks", number, UnknownTopicHandling::Error);
        partitions.insert(at as u64, partition.await?);
    }
    let partitions = Arc::new(partitions);
    serve(move |message: Message| {
        let partitions = Arc::clone(&partitions);
        async move {
            // Without a seed: the same after a restart.
            let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(&message.chat);
            let partition = &partitions[&(hash % partitions.len() as u64)];
            let id = message.id.map(|id| ("id".to_owned(), id.into_bytes()));
            let kind = ("kind".to_owned(), message.kind.into_bytes());
            let record = Record {
                key: Some(message.chat.into_bytes()),
                value: Some(message.body),
                headers: BTreeMap::from_iter(id.into_iter().chain([kind])),
                timestamp: Utc::now(),
            };
            partition
                .produce(vec![record], Compression::NoCompression)
                .await?;
            Ok(())
        }
    })
    .await
}
