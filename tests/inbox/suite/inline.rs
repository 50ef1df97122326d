//! What was handled inline, before there was an inbox.

use http::StatusCode;
use tower::Layer;
use tower_webhook::inbox::{Inbox, Queue};
use tower_webhook::store::Store;
use tower_webhook::{IdempotencyLayer, SignatureLayer};

use support::delivery::{secret, send};
use support::inbox::{NotingCrm, event, webhooks};

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
