//! Two receivers on one store: a key of one counts as a replay for the other.

#![cfg(feature = "moka")]

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tower::Layer;
use tower_webhook::event::ChatRated;
use tower_webhook::idempotency::Idempotency;
use tower_webhook::memory::MokaStore;
use tower_webhook::signature::Signature;
use tower_webhook::store::Store;
use tower_webhook::{EventRouter, IdempotencyLayer, Secret, Secrets, SignatureLayer, WebhookLayer};
use tracing::Level;

use support::DAY;
use support::delivery::{Crm, RequestExt, SIGNATURE, delivery, send};
use support::log::Log;
use support::store::TestStore;

const CHANGED: &str = "the key was used before, with another body";
const ANOTHER_SECRET: &str = "another secret verifies deliveries in this namespace";

type Receiver<St> = Signature<Idempotency<EventRouter, St>>;

fn secret(name: &str) -> Secret {
    Secret::new(name).unwrap()
}

fn receiver<St: Store + Clone>(store: &St, secrets: impl Into<Secrets>) -> Receiver<St> {
    in_namespace(store, secrets, "")
}

fn in_namespace<St: Store + Clone>(
    store: &St,
    secrets: impl Into<Secrets>,
    namespace: &str,
) -> Receiver<St> {
    let idempotency = IdempotencyLayer::new(store.clone()).namespace(namespace);
    WebhookLayer::from_layers(SignatureLayer::new(secrets), idempotency)
        .layer(EventRouter::new().on::<ChatRated>(Crm::default()))
}

fn signed(by: &str, key: &str, body: &'static str) -> Request<Full<Bytes>> {
    let tag = secret(by).sign(body.as_bytes());
    delivery(body).with(SIGNATURE, tag).key(key)
}

const ONE: &str = r#"{"id":"one"}"#;
const OTHER: &str = r#"{"id":"other"}"#;

/// Sends a key of `first` to `second`, with another body.
async fn collide<St: Store + Clone>(store: &St, first: &str, second: &str) {
    let (one, two) = (
        receiver(store, secret(first)),
        receiver(store, secret(second)),
    );
    send(&one, signed(first, "a", ONE)).await.assert_ok();
    send(&two, signed(second, "b", OTHER)).await.assert_ok();
    send(&two, signed(second, "a", OTHER))
        .await
        .assert_replayed();
}

#[tokio::test(start_paused = true)]
async fn a_key_of_a_receiver_with_another_secret_is_an_error() {
    let log = Log::capture(Level::INFO);
    collide(&MokaStore::with_capacity(1000), "one", "two").await;
    assert_eq!(log.count(Level::ERROR, ANOTHER_SECRET), 1, "{}", log.text());
    log.clear();
    collide(&TestStore::<true>::default(), "one", "two").await;
    assert_eq!(log.count(Level::ERROR, ANOTHER_SECRET), 1, "{}", log.text());
}

#[tokio::test(start_paused = true)]
async fn either_receiver_finds_the_other_secret() {
    let log = Log::capture(Level::INFO);
    let store = MokaStore::with_capacity(1000);
    collide(&store, "one", "two").await;
    let one = receiver(&store, secret("one"));
    send(&one, signed("one", "b", ONE)).await.assert_replayed();
    assert_eq!(log.count(Level::ERROR, ANOTHER_SECRET), 2, "{}", log.text());
    assert_eq!(log.count(Level::WARN, CHANGED), 0);
}

#[tokio::test(start_paused = true)]
async fn a_changed_body_under_the_same_secret_is_a_warning() {
    let log = Log::capture(Level::INFO);
    collide(&MokaStore::with_capacity(1000), "one", "one").await;
    assert_eq!(log.count(Level::WARN, CHANGED), 1, "{}", log.text());
    assert_eq!(log.count(Level::ERROR, CHANGED), 0);
}

#[tokio::test(start_paused = true)]
async fn namespaces_and_receivers_without_a_secret_are_not_confused() {
    let log = Log::capture(Level::INFO);
    let store = MokaStore::with_capacity(1000);
    let elsewhere = in_namespace(&store, secret("two"), "elsewhere");
    send(&elsewhere, signed("two", "a", OTHER))
        .await
        .assert_ok();
    collide(&store, "one", "one").await;

    let layer = WebhookLayer::from_layers(
        SignatureLayer::dangerously_unsigned(),
        IdempotencyLayer::new(store.clone()),
    );
    let unsigned = layer.layer(EventRouter::new().on::<ChatRated>(Crm::default()));
    send(&unsigned, signed("one", "a", OTHER))
        .await
        .assert_replayed();
    assert_eq!(log.count(Level::WARN, CHANGED), 2, "{}", log.text());
    assert_eq!(log.count(Level::ERROR, CHANGED), 0);
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_a_rotation_logs_nothing_and_a_changed_body_an_error() {
    let log = Log::capture(Level::INFO);
    let secrets = Secrets::from(secret("old"));
    let receiver = receiver(&MokaStore::with_capacity(1000), secrets.clone());
    send(&receiver, signed("old", "a", ONE)).await.assert_ok();
    secrets.replace([secret("new")]).unwrap();
    send(&receiver, signed("new", "a", ONE))
        .await
        .assert_replayed();
    assert_eq!(log.events().len(), 0, "{}", log.text());

    send(&receiver, signed("new", "a", OTHER))
        .await
        .assert_replayed();
    assert_eq!(log.count(Level::ERROR, "if the secret was rotated"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_secret_is_noted_again_before_the_store_forgets_it() {
    let log = Log::capture(Level::INFO);
    let store = MokaStore::with_capacity(1000);
    let one = receiver(&store, secret("one"));
    for day in 0..=10 {
        let key = format!("day {day}");
        send(&one, signed("one", &key, ONE)).await.assert_ok();
        tokio::time::advance(DAY).await;
    }
    let two = receiver(&store, secret("two"));
    send(&two, signed("two", "day 10", OTHER))
        .await
        .assert_replayed();
    assert_eq!(log.count(Level::ERROR, ANOTHER_SECRET), 1, "{}", log.text());
}

#[tokio::test(start_paused = true)]
async fn a_secret_costs_the_store_nothing_after_its_first_delivery() {
    let store = TestStore::<true>::default();
    let secrets = Secrets::new([secret("one"), secret("two"), secret("three")]).unwrap();
    let receiver = receiver(&store, secrets);
    for key in 0..20 {
        for name in ["one", "two", "three"] {
            let key = format!("{key} {name}");
            send(&receiver, signed(name, &key, ONE)).await.assert_ok();
        }
    }
    assert_eq!(store.marker_calls(), 6);
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn receivers_that_share_a_file_find_each_other() {
    use tower_webhook::sqlite::SqliteStore;

    let log = Log::capture(Level::INFO);
    let directory = tempfile::tempdir().unwrap();
    let open = || SqliteStore::open(directory.path().join("webhooks.db")).unwrap();
    let (one, two) = (
        receiver(&open(), secret("one")),
        receiver(&open(), secret("two")),
    );
    send(&one, signed("one", "a", ONE)).await.assert_ok();
    let replayed = send(&two, signed("two", "a", OTHER)).await;
    replayed.assert_replayed();
    assert_eq!(log.count(Level::ERROR, ANOTHER_SECRET), 1, "{}", log.text());
}
