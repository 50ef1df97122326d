//! What the pages say is so, when it is so.

use tokio::time::sleep;
use tower_webhook::{EventKind, EventRouter, HandlerError, RawDelivery, Webhooks};
use tower_webhook_console::Console;

use support::delivery::{RequestExt, delivery, secret, send};
use support::inbox::{Works, accepting, inbox};
use support::{MINUTE, SECOND};

use super::get;

/// Nothing keeps a worker from the events of a type, but others of their chats come first.
#[tokio::test(start_paused = true)]
async fn a_type_that_waits_behind_blocked_chats_has_its_worker() {
    let inbox = inbox();
    let router = EventRouter::new().fallback(async |delivery: RawDelivery| {
        match *delivery.kind() == EventKind::MESSAGE_CREATED {
            true => Err(HandlerError::retry("the CRM is down")),
            false => Ok(()),
        }
    });
    let worker = inbox.work(router).spawn();
    let webhooks = accepting(&inbox, Webhooks::new(secret()));
    for chat in 0..3 {
        for kind in ["message-created", "chat-closed"] {
            let body = format!(r#"{{"id":"m","chat":{{"id":"{chat}"}}}}"#);
            let body = if kind == "chat-closed" {
                format!(r#"{{"id":"{chat}"}}"#)
            } else {
                body
            };
            let event = delivery(body).kind(kind).key(&format!("{kind}-{chat}"));
            send(&webhooks, event).await.assert_ok();
        }
    }
    sleep(13 * MINUTE).await;
    let stats = inbox.stats().await.unwrap();
    let closed = stats
        .kinds
        .iter()
        .find(|it| it.kind == EventKind::CHAT_CLOSED);
    assert_eq!(closed.map(|it| (it.waiting, it.ready)), Some((3, 0)));
    get(&Console::new().inbox(inbox).router(), "/")
        .await
        .shows("3 chats are blocked by events that have failed")
        .hides("Nobody handles")
        .hides("No attempt is made");
    worker.drain(SECOND).await.unwrap();
}
