//! Events of kinds that an inbox does not keep.

use tower_webhook::inbox::{Filter, Page, Queue};
use tower_webhook::store::conformance::steps::unique;
use tower_webhook::{EventKind, IdempotencyKey, Webhooks};

use super::Harness;
use super::make::route;
use support::delivery::{RequestExt, delivery, secret, send};
use support::inbox::NotingCrm;
use support::queue::Calls;

/// A delivery of a kind that is not kept is acknowledged, and leaves nothing behind: no event, and neither its key nor its
/// body counts as a duplicate when another kind is delivered.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn other_kinds_leave_nothing<H: Harness>(harness: &H) {
    let (queue, key) = (harness.open().await, unique());
    let (service, running) = Webhooks::new(secret())
        .name(route())
        .keep_only([EventKind::CHAT_RATED])
        .replay_guard()
        .inbox(queue)
        .start(NotingCrm::default().router())
        .unwrap_or_else(|error| panic!("{error}"));
    let queue = harness.open().await;
    let body = format!(r#"{{"id":"{key}"}}"#);
    let delivery = |kind| delivery(body.clone()).key(&key).kind(kind);
    for kind in ["chat-closed", "Chat-Rated"] {
        send(&service, delivery(kind)).await.assert_ok();
        assert_eq!(events(&queue, &key).await, [], "of {kind}");
    }
    send(&service, delivery("chat-rated")).await.assert_ok();
    assert_eq!(events(&queue, &key).await, [EventKind::CHAT_RATED]);
    // Known by now, and not even looked up.
    let other = send(&service, delivery("chat-closed")).await;
    other.assert_ok();
    let again = send(&service, delivery("chat-rated")).await;
    again.assert_replayed();
    drop(running);
}

async fn events(queue: &Queue, key: &str) -> Vec<EventKind> {
    let key = IdempotencyKey::new(key.parse().unwrap_or_else(|error| panic!("{error}")));
    let filter = Filter::default().key(key.unwrap());
    let listed = queue.list(&filter, Page::oldest(9)).await;
    let listed = listed.unwrap_or_else(|error| panic!("{error}"));
    listed.events.into_iter().map(|event| event.kind).collect()
}
