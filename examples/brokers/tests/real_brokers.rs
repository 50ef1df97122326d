//! NATS and SQS have each event once, in the order of its chat, although the program is killed meanwhile. NATS is a real
//! server (Debian's `nats-server`), SQS the one of `moto` (`pip install 'moto[server,sqs]'`). Kafka is only compiled.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use async_nats::jetstream;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::QueueAttributeName;
use futures_util::StreamExt;
use tempfile::TempDir;
use tokio::time::{sleep, timeout};
use tower_webhook::Secret;

const EVENTS: usize = 200;
const CHATS: usize = 10;

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(command: &mut Command) -> Process {
    let name = command.get_program().to_owned();
    let started = command.spawn();
    Process(
        started.unwrap_or_else(|error| {
            panic!("{name:?} cannot be started: {error}. Is it installed?")
        }),
    )
}

fn free_port() -> u16 {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    free.local_addr().unwrap().port()
}

async fn until_open(port: u16) {
    let began = Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "port {port} stays closed"
        );
        sleep(Duration::from_millis(50)).await;
    }
}

/// Starts one of the programs, and returns its URL.
fn program(path: &str, dir: &TempDir, settings: &[(&str, String)]) -> (Process, String) {
    let mut command = Command::new(path);
    command
        .envs(settings.iter().map(|(name, value)| (name, value)))
        .env("WEBHOOK_SECRET", "s")
        .env("WEBHOOK_INBOX", dir.path().join("webhooks.db"))
        .env("LISTEN", "127.0.0.1:0")
        .stderr(Stdio::piped());
    let mut process = start(&mut command);
    let mut lines = BufReader::new(process.0.stderr.take().unwrap()).lines();
    let listening = lines.find_map(|line| {
        line.unwrap()
            .strip_prefix("listening on ")
            .map(str::to_owned)
    });
    std::thread::spawn(move || lines.for_each(drop));
    (process, listening.expect("it listens"))
}

/// Sends events, in the middle of which the program is killed. All are sent twice.
async fn send_all(path: &str, settings: &[(&str, String)], dir: &TempDir) -> Process {
    let secret = Secret::new("s").unwrap();
    let client = reqwest::Client::new();
    let (mut running, mut url) = program(path, dir, settings);
    for n in (0..EVENTS).flat_map(|n| [n, n]) {
        let body = format!(r#"{{"id":"chat-{}","n":{n}}}"#, n % CHATS);
        let sent = client
            .post(&url)
            .header("content-type", "application/json")
            .header("x-service-event", "chat-rated")
            .header("idempotency-key", format!("key-{n}"))
            .header("x-service-hmac-sha256", secret.sign(body.as_bytes()))
            .body(body)
            .send();
        assert_eq!(sent.await.unwrap().status(), 200, "event {n}");
        if n == EVENTS / 2 {
            drop(running);
            (running, url) = program(path, dir, settings);
        }
    }
    running
}

/// How long the next event may take: until a lease has expired of those that were in progress when the program was killed,
/// and if none is missing, until one has come twice.
fn patience(bodies: &[String]) -> Duration {
    match bodies.len() < EVENTS {
        true => Duration::from_secs(120),
        false => Duration::from_secs(5),
    }
}

/// Each event once, and those of each chat in their order.
fn assert_in_order(bodies: &[String]) {
    let mut chats: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for body in bodies {
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        let chat = body["id"].as_str().unwrap().to_owned();
        chats
            .entry(chat)
            .or_default()
            .push(body["n"].as_u64().unwrap());
    }
    assert_eq!(bodies.len(), EVENTS);
    assert_eq!(chats.len(), CHATS);
    for (chat, numbers) in chats {
        assert!(numbers.is_sorted_by(|a, b| a < b), "{chat}: {numbers:?}");
    }
}

#[tokio::test]
async fn nats_has_each_event_once_in_the_order_of_its_chat() {
    let dir = TempDir::new().unwrap();
    let port = free_port();
    let _server = start(
        Command::new("nats-server")
            .args([
                "--addr",
                "127.0.0.1",
                "--port",
                &port.to_string(),
                "--jetstream",
                "--store_dir",
            ])
            .arg(dir.path().join("nats"))
            .stderr(Stdio::null()),
    );
    until_open(port).await;
    let url = format!("nats://127.0.0.1:{port}");
    let settings = [("NATS_URL", url.clone())];
    let _program = send_all(env!("CARGO_BIN_EXE_nats"), &settings, &dir).await;

    let broker = jetstream::new(async_nats::connect(url).await.unwrap());
    let stream = broker.get_stream("webhooks").await.unwrap();
    let ordered = jetstream::consumer::pull::OrderedConfig::default();
    let consumer = stream.create_consumer(ordered).await.unwrap();
    let mut messages = consumer.messages().await.unwrap();
    let mut bodies = Vec::new();
    while let Ok(Some(message)) = timeout(patience(&bodies), messages.next()).await {
        bodies.push(String::from_utf8(message.unwrap().payload.to_vec()).unwrap());
    }
    assert_in_order(&bodies);
}

#[tokio::test]
async fn sqs_has_each_event_once_in_the_order_of_its_chat() {
    let dir = TempDir::new().unwrap();
    let port = free_port();
    let _server = start(
        Command::new("moto_server")
            .args(["--host", "127.0.0.1", "--port", &port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null()),
    );
    until_open(port).await;
    let mut settings = vec![
        ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{port}")),
        ("AWS_REGION", "us-east-1".to_owned()),
        ("AWS_ACCESS_KEY_ID", "test".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "test".to_owned()),
    ];
    let credentials = aws_sdk_sqs::config::Credentials::new("test", "test", None, None, "test");
    let config = aws_config::from_env()
        .endpoint_url(&settings[0].1)
        .region("us-east-1")
        .credentials_provider(credentials);
    let broker = Client::new(&config.load().await);
    let queue = broker.create_queue().queue_name("webhooks.fifo");
    let queue = queue.attributes(QueueAttributeName::FifoQueue, "true");
    let queue = queue.send().await.unwrap().queue_url.unwrap();
    settings.push(("QUEUE_URL", queue.clone()));
    let _program = send_all(env!("CARGO_BIN_EXE_sqs"), &settings, &dir).await;

    // What is deleted is sent again here, other than by SQS: nothing is received before all is there.
    let began = Instant::now();
    while messages_in(&broker, &queue).await < EVENTS {
        assert!(began.elapsed() < patience(&[]), "events are missing");
        sleep(Duration::from_millis(200)).await;
    }
    let mut bodies = Vec::new();
    loop {
        let received = broker
            .receive_message()
            .queue_url(&queue)
            .max_number_of_messages(10);
        let messages = received.send().await.unwrap().messages.unwrap_or_default();
        if messages.is_empty() {
            break;
        }
        for message in messages {
            let delete = broker.delete_message().queue_url(&queue);
            let delete = delete.receipt_handle(message.receipt_handle.unwrap());
            delete.send().await.unwrap();
            bodies.push(message.body.unwrap());
        }
    }
    assert_in_order(&bodies);
}

async fn messages_in(broker: &Client, queue: &str) -> usize {
    let name = QueueAttributeName::ApproximateNumberOfMessages;
    let asked = broker.get_queue_attributes().queue_url(queue);
    let asked = asked.attribute_names(name.clone()).send().await.unwrap();
    asked.attributes.unwrap()[&name].parse().unwrap()
}
