//! What was handled inline, before there was an inbox.

use std::time::Duration;

use http::StatusCode;
use tower::Layer;
use tower_webhook::event::EventKind;
use tower_webhook::inbox::internal::{Accepted, NewEvent};
use tower_webhook::inbox::{Filter, Inbox, Page, Queue};
use tower_webhook::store::{Claim, EventKey, Store};
use tower_webhook::{IdempotencyLayer, Item, SignatureLayer};

use support::delivery::{secret, send};
use support::inbox::{NotingCrm, event, webhooks};
use support::queue::new_event;

/// If one item of a batch is in progress inline, in the same file or schema, nothing of the batch is stored.
pub(crate) async fn batches_wait_for_what_is_handled_inline(
    store: impl Store + Clone,
    queue: impl Into<Queue>,
) {
    let queue = queue.into();
    let event = |number: u32| {
        let key = EventKey::new("", format!("in flight {number}").as_bytes(), b"{}");
        let event = new_event(EventKind::CHAT_RATED, "{}");
        NewEvent {
            key: Some(key),
            delivery: event.delivery.with_item(Item::new(number, 3)),
            ..event
        }
    };
    let events = || (1..4).map(event).collect();
    let lease = Duration::from_secs(60);
    let second = event(2).key.unwrap();
    let claim = store.claim(&second, lease, lease).await.unwrap();
    let Claim::Acquired(claimed) = claim else {
        panic!("{claim:?}")
    };
    let accepted = queue.accept.accept(events(), None).await.unwrap();
    let is_refused = matches!(accepted[..], [Accepted::InFlight { .. }]);
    assert!(is_refused, "{accepted:?}");
    let all = Filter::default();
    let listed = queue.list.list(&all, Page::oldest(9));
    assert!(listed.await.unwrap().events.is_empty());
    store.complete(&claimed, lease).await.unwrap();
    let accepted = queue.accept.accept(events(), None).await.unwrap();
    assert!(matches!(
        accepted[..],
        [
            Accepted::New { .. },
            Accepted::Duplicate { same_body: true },
            Accepted::New { .. }
        ]
    ));
}

/// A full inbox answers 200 to a delivery of an event that was handled inline, in the same file or schema.
pub(crate) async fn full_inboxes_know_what_was_handled_inline(
    store: impl Store + Clone,
    queue: impl Into<Queue>,
) {
    let (inbox, crm) = (Inbox::new(queue).backlog_limit(0), NotingCrm::default());
    let inline = IdempotencyLayer::new(store).layer(crm.router());
    let inline = SignatureLayer::new(secret()).layer(inline);
    send(&inline, event("a", 1)).await.assert_ok();
    let webhooks = webhooks(&inbox);
    let refused = send(&webhooks, event("a", 2)).await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
    send(&webhooks, event("a", 1)).await.assert_replayed();
    assert_eq!(crm.attempts(), 1);
}
