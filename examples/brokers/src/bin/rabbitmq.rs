//! Run with: WEBHOOK_SECRET=SECRET cargo run --bin rabbitmq
//!
//! Hands events on to the quorum queue `webhooks` of RabbitMQ, and waits until it confirms them. RabbitMQ drops no
//! duplicates: if the program dies after an event is confirmed and before it is settled, the queue has the event twice.
//! The key is the `message_id`, by which consumers drop what they have handled. The queue has one active consumer, so that
//! a chat's events are consumed in their order. For a cluster, RABBITMQ_URL has the URLs of its nodes, with commas between
//! them.

use std::sync::Arc;

use anyhow::{Context, ensure};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tower_webhook_brokers::{LIMIT, Message, serve, setting};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let urls = setting("RABBITMQ_URL", Some("amqp://127.0.0.1:5672"))?;
    let broker = Arc::new(Broker {
        urls: urls.split(',').map(str::to_owned).collect(),
        link: Mutex::default(),
    });
    serve(move |message| {
        let broker = Arc::clone(&broker);
        async move {
            let link = timeout(LIMIT, broker.link()).await??;
            let published = timeout(LIMIT, publish(&link.1, message)).await;
            let published = published.map_err(anyhow::Error::from).flatten();
            if published.is_err() {
                broker.give_up(&link).await;
            }
            published
        }
    })
    .await
}

/// A connection ends when it is dropped.
type Link = Arc<(Connection, Channel)>;

struct Broker {
    urls: Vec<String>,
    link: Mutex<Option<Link>>,
}

impl Broker {
    /// The connection, or a new one to the first node that answers.
    async fn link(&self) -> anyhow::Result<Link> {
        let mut link = self.link.lock().await;
        if let Some(link) = link.as_ref().filter(|it| it.1.status().connected()) {
            return Ok(Arc::clone(link));
        }
        let mut last = None;
        for url in &self.urls {
            match open(url).await {
                Ok(opened) => return Ok(Arc::clone(link.insert(Arc::new(opened)))),
                Err(error) => last = Some(error),
            }
        }
        Err(last.context("no URL")?.into())
    }

    /// Leaves a connection on which no confirmation came, although it may be open.
    async fn give_up(&self, given_up: &Link) {
        let mut link = self.link.lock().await;
        if link.as_ref().is_some_and(|it| Arc::ptr_eq(it, given_up)) {
            *link = None;
        }
    }
}

async fn publish(channel: &Channel, message: Message) -> anyhow::Result<()> {
    let mut properties = BasicProperties::default()
        .with_delivery_mode(2)
        .with_type(message.kind.into())
        .with_headers(table([("chat", message.chat)]));
    if let Some(id) = message.id {
        properties = properties.with_message_id(id.into());
    }
    // A message without a queue would be confirmed, too.
    let options = BasicPublishOptions {
        mandatory: true,
        ..BasicPublishOptions::default()
    };
    let (exchange, queue) = ("".into(), "webhooks".into());
    let publish = channel.basic_publish(exchange, queue, options, &message.body, properties);
    let confirmed = publish.await?.await?;
    ensure!(
        matches!(confirmed, Confirmation::Ack(None)),
        "{confirmed:?}"
    );
    Ok(())
}

async fn open(url: &str) -> lapin::Result<(Connection, Channel)> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await?;
    let mut arguments = table([("x-queue-type", "quorum".to_owned())]);
    arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
    channel
        .queue_declare("webhooks".into(), QueueDeclareOptions::durable(), arguments)
        .await?;
    Ok((connection, channel))
}

fn table<const N: usize>(entries: [(&str, String); N]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in entries {
        table.insert(name.into(), AMQPValue::LongString(value.into()));
    }
    table
}
