//! Two receivers on one store: under one name, a key of one counts as a replay for the other.

#![cfg(feature = "moka")]

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tower_webhook::event::ChatRated;
use tower_webhook::idempotency::Idempotency;
use tower_webhook::memory::MokaStore;
use tower_webhook::signature::Signature;
use tower_webhook::{EventRouter, Secret, Secrets, Webhooks};
use tracing::Level;

use support::Ready;
use support::delivery::{Crm, RequestExt, SIGNATURE, delivery, send};
use support::log::Log;

/// The name of the chat platform's route.
const OWN: &str = "chat-platform";
const CHANGED: &str = "check whether another receiver uses this store";

type Receiver = Signature<Idempotency<EventRouter, MokaStore>>;

fn secret(name: &str) -> Secret {
    Secret::new(name).unwrap()
}

fn receiver(store: &MokaStore, secrets: impl Into<Secrets>, name: &str) -> Receiver {
    Webhooks::new(secrets)
        .store(store.clone())
        .name(name.parse().unwrap())
        .layer(EventRouter::new().on::<ChatRated>(Crm::default()))
}

fn signed(by: &str, body: &'static str) -> Request<Full<Bytes>> {
    let tag = secret(by).sign(body.as_bytes());
    delivery(body).with(SIGNATURE, tag).key("a")
}

const ONE: &str = r#"{"id":"one"}"#;
const OTHER: &str = r#"{"id":"other"}"#;

#[tokio::test(start_paused = true)]
async fn a_changed_body_is_a_warning_unless_receivers_have_names_of_their_own() {
    let log = Log::capture(Level::INFO);
    let store = MokaStore::with_capacity(1000);
    let [one, two, elsewhere] = [("one", OWN), ("two", OWN), ("two", "elsewhere")]
        .map(|(by, name)| receiver(&store, secret(by), name));
    send(&one, signed("one", ONE)).await.assert_ok();
    send(&elsewhere, signed("two", OTHER)).await.assert_ok();
    assert_eq!(log.events().len(), 0, "{}", log.text());
    send(&two, signed("two", OTHER)).await.assert_replayed();
    assert_eq!(log.count(Level::WARN, CHANGED), 1, "{}", log.text());
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_a_rotation_logs_nothing() {
    let log = Log::capture(Level::INFO);
    let secrets = Secrets::from(secret("old"));
    let receiver = receiver(&MokaStore::with_capacity(1000), secrets.clone(), OWN);
    send(&receiver, signed("old", ONE)).await.assert_ok();
    secrets.replace([secret("new")]).unwrap();
    send(&receiver, signed("new", ONE)).await.assert_replayed();
    assert_eq!(log.events().len(), 0, "{}", log.text());
}
