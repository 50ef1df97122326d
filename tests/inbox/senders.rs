//! Two senders in one application and one database.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde::Deserialize;
use support::SECOND;
use support::database::Database;
use support::delivery::send;
use support::lock;
use tempfile::TempDir;
use tokio::time::{sleep, timeout};
use tower::Layer;
use tower_webhook::inbox::internal;
use tower_webhook::inbox::{EventId, EventState, Filter, Inbox, Page, Queue, Retry};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::sqlite::SqliteQueue;
use tower_webhook::{
    EventKind, EventRouter, HandlerError, IdempotencyKey, RawDelivery, Receiver, Running, Secret,
    Sender, SignatureLayer, Webhooks,
};

#[tokio::test]
async fn two_senders_are_apart_with_sqlite() {
    let dir = TempDir::new().unwrap();
    two_senders_are_apart(SqliteQueue::open(dir.path().join("webhooks.db")).unwrap()).await;
}

#[tokio::test]
async fn two_senders_are_apart_with_postgres() {
    let database = Database::create().await;
    two_senders_are_apart(database.queue().await).await;
}

#[derive(Deserialize)]
struct Body {
    of: String,
    chat: String,
    fails: bool,
}

/// What a handler has seen: whose event it was, and its key.
type Seen = Arc<Mutex<Vec<(String, String)>>>;

fn noting(seen: &Seen) -> EventRouter {
    let seen = Arc::clone(seen);
    EventRouter::new().fallback(move |delivery: RawDelivery| {
        let seen = Arc::clone(&seen);
        async move {
            let body: Body = delivery.decode()?;
            if body.fails {
                return Err(HandlerError::retry("it fails"));
            }
            let key = delivery.key().map(ToString::to_string);
            lock(&seen).push((body.of, key.unwrap_or_default()));
            Ok(())
        }
    })
}

fn secret(sender: &Sender) -> Secret {
    Secret::new(format!("that of {}", sender.name())).unwrap()
}

fn event(sender: &Sender, key: &str, chat: &str, fails: bool) -> Request<Full<Bytes>> {
    signed(sender, &secret(sender), key, chat, fails)
}

fn signed(
    sender: &Sender,
    by: &Secret,
    key: &str,
    chat: &str,
    fails: bool,
) -> Request<Full<Bytes>> {
    let of = sender.name();
    let body =
        format!(r#"{{"id":"{key}","type":"made","of":"{of}","chat":"{chat}","fails":{fails}}}"#);
    let delivery = RawDelivery::new(EventKind::from_static("made"), body)
        .with_key(IdempotencyKey::new(key.parse().unwrap()));
    let mut request = Request::post("/")
        .body(Full::new(delivery.body().clone()))
        .unwrap();
    *request.headers_mut() = sender.sign(by, &delivery).unwrap();
    request
}

/// Two senders, and what the handlers of each have seen.
struct Senders {
    inbox: Inbox,
    github: Sender,
    stripe: Sender,
    by_github: Seen,
    by_stripe: Seen,
}

async fn two_senders_are_apart(queue: impl Into<Queue>) {
    let senders = Senders {
        inbox: Inbox::new(queue).chat_by(|delivery| {
            let body: Body = delivery.decode().ok()?;
            Some(body.chat)
        }),
        github: Sender::github(),
        stripe: Sender::stripe(),
        by_github: Seen::default(),
        by_stripe: Seen::default(),
    };
    let (to_github, _running) = senders.start(&senders.github, &senders.by_github);
    senders.equal_keys_are_two_events(&to_github).await;
    let (to_stripe, _other) = senders.start(&senders.stripe, &senders.by_stripe);
    // It was not lost.
    senders.stripe_has_handled(&["same"]).await;
    senders.lanes_are_apart(&to_github, &to_stripe).await;
    senders.keys_of_both_are_found().await;
    senders.pause_and_forget_are_for_both(&to_stripe).await;
    assert_eq!(*lock(&senders.by_github), [pair(&senders.github, "same")]);
}

fn pair(of: &Sender, key: &str) -> (String, String) {
    (of.name().to_owned(), key.to_owned())
}

impl Senders {
    fn start(&self, sender: &Sender, seen: &Seen) -> (Receiver, Running) {
        Webhooks::new(secret(sender))
            .sender(sender.clone())
            .inbox(self.inbox.clone())
            .worker(|worker| worker.retry(Retry::default().delays(60 * SECOND, 60 * SECOND)))
            .start(noting(seen))
            .unwrap()
    }

    async fn stripe_has_handled(&self, keys: &[&str]) {
        let expected = keys.iter().map(|key| pair(&self.stripe, key));
        let expected: Vec<_> = expected.collect();
        let waits = async {
            while lock(&self.by_stripe).len() < expected.len() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(60 * SECOND, waits).await.expect("Stripe's events");
        assert_eq!(*lock(&self.by_stripe), expected);
    }

    /// No worker takes those of Stripe, since that of GitHub leaves them where they are.
    async fn equal_keys_are_two_events(&self, to_github: &Receiver) {
        let (github, stripe) = (&self.github, &self.stripe);
        let to_stripe = SignatureLayer::new(secret(stripe))
            .sender(stripe.clone())
            .unwrap()
            .layer(self.inbox.clone().namespace("stripe").accept());
        let forged = signed(github, &secret(stripe), "forged", "a", false);
        let forged = send(to_github, forged).await;
        forged.assert_problem(401, "invalid-signature");

        let of_github = || event(github, "same", "a", false);
        let of_stripe = || event(stripe, "same", "a", false);
        send(to_github, of_github()).await.assert_ok();
        send(&to_stripe, of_stripe()).await.assert_ok();
        send(to_github, of_github()).await.assert_replayed();
        send(&to_stripe, of_stripe()).await.assert_replayed();
        // Longer than a worker needs to look for events of other processes.
        sleep(Duration::from_millis(700)).await;
        assert_eq!(*lock(&self.by_github), [pair(github, "same")]);
        let waiting = Filter::default().states([EventState::Waiting]);
        assert_eq!(self.ids(&waiting, Page::oldest(9)).await.len(), 1);
    }

    /// A failure holds up the events of its own sender alone.
    async fn lanes_are_apart(&self, to_github: &Receiver, to_stripe: &Receiver) {
        let fails = event(&self.github, "fails", "b", true);
        send(to_github, fails).await.assert_ok();
        let waits = event(&self.github, "waits", "b", false);
        send(to_github, waits).await.assert_ok();
        let passes = event(&self.stripe, "passes", "b", false);
        send(to_stripe, passes).await.assert_ok();
        self.stripe_has_handled(&["same", "passes"]).await;
        assert_eq!(*lock(&self.by_github), [pair(&self.github, "same")]);
    }

    /// By an inbox that no namespace was set on.
    async fn keys_of_both_are_found(&self) {
        let key = Filter::default().key(IdempotencyKey::new("same".parse().unwrap()).unwrap());
        let oldest = self.ids(&key, Page::oldest(9)).await;
        let mut newest = self.ids(&key, Page::newest(9)).await;
        newest.reverse();
        assert_eq!(oldest.len(), 2);
        assert_eq!(oldest, newest);
        assert_eq!(self.ids(&key, Page::oldest(1)).await, oldest[..1]);
        // One that made no receiver knows of none.
        let alone = Inbox::new(internal::queue(&self.inbox).clone()).namespace("stripe");
        let listed = alone.list(&key, Page::oldest(9)).await.unwrap();
        assert_eq!(listed.events.len(), 1);
    }

    async fn pause_and_forget_are_for_both(&self, to_stripe: &Receiver) {
        let made = EventKind::from_static("made");
        self.inbox.pause(Some(&made), "").await.unwrap();
        let paused = event(&self.stripe, "paused", "c", false);
        send(to_stripe, paused).await.assert_ok();
        sleep(Duration::from_millis(300)).await;
        self.stripe_has_handled(&["same", "passes"]).await;
        self.inbox.resume(Some(&made)).await.unwrap();
        self.stripe_has_handled(&["same", "passes", "paused"]).await;
        assert_eq!(self.inbox.forget("b").await.unwrap(), 3);
    }

    async fn ids(&self, filter: &Filter, page: Page) -> Vec<EventId> {
        let listed = self.inbox.list(filter, page).await.unwrap();
        listed.events.iter().map(|event| event.id).collect()
    }
}

/// A description says which events are handled in order, and a function on the inbox counts more.
#[tokio::test]
async fn a_description_says_what_is_in_order() {
    let sender = serde_json::json!({
        "name": "acme",
        "kind": "/type",
        "order": ["/data/customer", "/data/id"],
        "signature": {"headers": ["x-tag"], "algorithm": "hmac-sha256", "coding": "hex"},
    });
    let sender: Sender = serde_json::from_value(sender).unwrap();
    let secret = Secret::new("secret").unwrap();
    let bodies = [
        (
            r#"{"type":"chat-rated","id":"a","data":{"customer":"cus_1"}}"#,
            Some("cus_1"),
        ),
        (
            r#"{"type":"made","data":{"customer":7,"id":"x"}}"#,
            Some("7"),
        ),
        (r#"{"type":"made","data":{"id":"x"}}"#, Some("x")),
        (r#"{"type":"made","data":{}}"#, None),
        // Two, or of another type.
        (
            r#"{"type":"made","data":{"customer":"a","customer":"b"}}"#,
            None,
        ),
        (
            r#"{"type":"made","data":{"customer":["a"],"id":"x"}}"#,
            None,
        ),
    ];
    for has_function in [false, true] {
        let mut inbox = Inbox::new(MemoryQueue::new());
        if has_function {
            inbox = inbox.chat_by(|_| Some("by a function".to_owned()));
        }
        let (service, _running) = Webhooks::new(secret.clone())
            .sender(sender.clone())
            .inbox(inbox.clone())
            .start(EventRouter::new())
            .unwrap();
        for (body, _) in bodies {
            let delivery = RawDelivery::new(EventKind::from_static("made"), body);
            let mut request = Request::post("/")
                .body(Full::new(Bytes::from(body)))
                .unwrap();
            *request.headers_mut() = sender.sign(&secret, &delivery).unwrap();
            send(&service, request).await.assert_ok();
        }
        let listed = inbox
            .list(&Filter::default(), Page::oldest(9))
            .await
            .unwrap();
        let chats: Vec<_> = listed.events.iter().map(|it| it.chat.as_deref()).collect();
        match has_function {
            false => assert_eq!(chats, bodies.map(|(_, chat)| chat)),
            true => assert_eq!(chats[1..], [Some("by a function"); 5]),
        }
    }
}
