//! What the outputs have in common: an inbox in a file, whose events are handed on.
//!
//! The inbox stays in front of the output, because it answers within milliseconds, knows keys for longer than the 7 days
//! for which the platform retries, and lists what the output has refused.

use std::env;
use std::future::Future;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use reqwest::Url;
use tokio::net::TcpListener;
use tokio::time::sleep;
use tower_webhook::sqlite::SqliteQueue;
use tower_webhook::{EventRouter, HandlerError, RawDelivery, Secret, Webhooks, shutdown};

/// How long an output may take to confirm an event.
pub const LIMIT: Duration = Duration::from_secs(5);
/// How long an attempt goes on trying. A cluster elects a leader in that time, and an inbox that counts a failure for each
/// chat slows the type down. A handler has 30 seconds.
const ELECTION: Duration = Duration::from_secs(20);
const AGAIN: Duration = Duration::from_millis(200);

/// A verified event.
#[derive(Clone, Debug)]
pub struct Message {
    /// The idempotency key, by which an output recognises what it was given before.
    pub id: Option<String>,
    /// The same, for an output that needs one. Without a key, nothing is known of duplicates, and the id is that of the
    /// attempt, which may hand the event on several times.
    pub unique_id: String,
    /// The chat, whose events stay in their order.
    pub chat: String,
    pub kind: String,
    pub body: Vec<u8>,
}

impl Message {
    fn of(delivery: &RawDelivery) -> Result<Self, HandlerError> {
        let body: serde_json::Value = delivery.decode()?;
        let chat = body.pointer("/chat/id").or(body.get("id"));
        let chat = chat.and_then(serde_json::Value::as_str);
        let id = delivery.key().map(ToString::to_string);
        Ok(Self {
            unique_id: id.clone().unwrap_or_else(now),
            id,
            chat: chat.unwrap_or("none").to_owned(),
            kind: delivery.kind().to_string(),
            body: delivery.body().to_vec(),
        })
    }

    /// The body, for an output that takes JSON.
    pub fn json(&self) -> anyhow::Result<serde_json::Value> {
        Ok(serde_json::from_slice(&self.body)?)
    }
}

/// Receives webhooks at LISTEN with WEBHOOK_SECRET, and hands each event on. If that fails, the event is tried again, and
/// the later ones of its chat wait.
pub async fn serve<F>(
    publish: impl Fn(Message) -> F + Clone + Send + Sync + 'static,
) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();
    let secret = Secret::new(setting("WEBHOOK_SECRET", None)?)?;
    let queue = SqliteQueue::open(setting("WEBHOOK_INBOX", Some("webhooks.db"))?)?;
    let events = EventRouter::new().fallback(move |delivery: RawDelivery| {
        let publish = publish.clone();
        async move {
            let message = Message::of(&delivery)?;
            hand_on(&message, publish).await
        }
    });
    let (webhooks, running) = Webhooks::new(secret).inbox(queue).start(events)?;

    let listener = TcpListener::bind(setting("LISTEN", Some("127.0.0.1:3000"))?).await?;
    eprintln!("listening on http://{}/webhooks", listener.local_addr()?);
    let app = axum::Router::new().route_service("/webhooks", webhooks);
    let server = |stop| axum::serve(listener, app).with_graceful_shutdown(stop);
    let limit = Duration::from_secs(20);
    running.serve(shutdown(), limit, server).await?;
    Ok(())
}

/// Tries again with the same message, because a call that failed may have handed it on.
async fn hand_on<F>(message: &Message, publish: impl Fn(Message) -> F) -> Result<(), HandlerError>
where
    F: Future<Output = anyhow::Result<()>>,
{
    let began = Instant::now();
    while let Err(error) = publish(message.clone()).await {
        if began.elapsed() > ELECTION {
            return Err(HandlerError::retry(format!("{error:#}")));
        }
        sleep(AGAIN).await;
    }
    Ok(())
}

fn now() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_nanos().to_string()
}

/// Reads an environment variable.
pub fn setting(name: &str, default: Option<&str>) -> anyhow::Result<String> {
    let set = env::var(name).ok().or(default.map(str::to_owned));
    set.with_context(|| format!("set the environment variable {name}"))
}

/// A URL with more segments, each of which is escaped.
pub fn under(url: &Url, segments: &[&str]) -> anyhow::Result<Url> {
    let mut url = url.clone();
    let path = url.path_segments_mut().ok();
    path.context("a URL with a path is needed")?
        .pop_if_empty()
        .extend(segments);
    Ok(url)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tower_webhook::EventKind;

    use super::*;

    #[tokio::test]
    async fn an_event_without_a_key_has_one_id_for_all_tries_of_an_attempt() {
        let delivery = RawDelivery::new(EventKind::CHAT_RATED, r#"{"id":"chat-1"}"#);
        let tried = Mutex::new(Vec::new());
        let publish = async |message: Message| {
            let mut tried = tried.lock().unwrap();
            tried.push(message.unique_id);
            anyhow::ensure!(tried.len() > 2, "the answer was lost");
            Ok(())
        };
        for _ in 0..2 {
            let message = Message::of(&delivery).unwrap();
            hand_on(&message, publish).await.unwrap();
        }
        let tried = tried.into_inner().unwrap();
        let [first, second, third, next] = &tried[..] else {
            panic!("{tried:?}");
        };
        assert!(
            first == second && second == third && third != next,
            "{tried:?}"
        );
    }
}
