//! Run with: WEBHOOK_SECRET=SECRET QUEUE_URL=https://sqs…/webhooks.fifo cargo run --bin sqs
//!
//! Hands events on to an SQS FIFO queue. The key is the deduplication id, which SQS knows for 5 minutes, and the chat is
//! the message group, whose messages stay in their order. SQS takes letters, digits and punctuation in both, up to 128.

use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::MessageAttributeValue;
use tower_webhook_brokers::{Message, serve, setting};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let queue = setting("QUEUE_URL", None)?;
    let broker = Client::new(&aws_config::load_from_env().await);
    serve(move |message: Message| {
        let (broker, queue) = (broker.clone(), queue.clone());
        async move {
            let kind = MessageAttributeValue::builder()
                .data_type("String")
                .string_value(message.kind)
                .build()?;
            broker
                .send_message()
                .queue_url(queue)
                .message_group_id(message.chat)
                .message_deduplication_id(message.unique_id)
                .message_attributes("kind", kind)
                .message_body(String::from_utf8(message.body)?)
                .send()
                .await?;
            Ok(())
        }
    })
    .await
}
