//! The emulator of SQS in `moto`, which keeps queues in memory, so that only the program is killed.

use std::process::Command;

use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::Credentials;
use aws_sdk_sqs::types::QueueAttributeName::FifoQueue;
use tempfile::TempDir;

use crate::load::{Event, Killed, Output, survive};
use crate::process::{Process, free_ports};

struct Sqs {
    _dir: TempDir,
    _server: Process,
    url: String,
    client: Client,
    queue: String,
}

impl Sqs {
    async fn start() -> Self {
        let (dir, [port]) = (TempDir::new().unwrap(), free_ports());
        let mut command = Command::new("moto_server");
        command.args(["--host", "127.0.0.1", "--port", &port.to_string()]);
        let install = "pip install 'moto[server,sqs]'";
        let mut server = Process::start(&mut command, "moto", dir.path(), install);
        server.listens(port).await;
        let url = format!("http://127.0.0.1:{port}");
        let config = aws_config::from_env()
            .endpoint_url(&url)
            .region("us-east-1")
            .credentials_provider(Credentials::new("test", "test", None, None, "test"));
        let client = Client::new(&config.load().await);
        let queue = client.create_queue().queue_name("webhooks.fifo");
        let queue = queue.attributes(FifoQueue, "true").send().await;
        let queue = queue.unwrap().queue_url.unwrap();
        Self {
            _dir: dir,
            _server: server,
            url,
            client,
            queue,
        }
    }
}

impl Output for Sqs {
    const PROGRAM: &'static str = env!("CARGO_BIN_EXE_sqs");
    const KILLS: &'static [Killed] = &[Killed::Program];

    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT_URL", self.url.clone()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", "test".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "test".to_owned()),
            ("QUEUE_URL", self.queue.clone()),
        ]
    }

    async fn read(&mut self, _sent: usize) -> Vec<Event> {
        let mut events = Vec::new();
        loop {
            let received = self.client.receive_message().queue_url(&self.queue);
            let received = received.max_number_of_messages(10).send().await.unwrap();
            let messages = received.messages.unwrap_or_default();
            if messages.is_empty() {
                return events;
            }
            for message in messages {
                let delete = self.client.delete_message().queue_url(&self.queue);
                let delete = delete.receipt_handle(message.receipt_handle.unwrap());
                delete.send().await.unwrap();
                events.push(Event::of_body(message.body.unwrap().as_bytes()));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sqs_has_each_event_once_in_the_order_of_its_chat() {
    survive(Sqs::start().await).await.assert_once();
}
