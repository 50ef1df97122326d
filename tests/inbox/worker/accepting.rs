//! What is accepted, how it is found, and what is kept of it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tokio::time::{sleep, timeout};
use tower_webhook::event::EventKind;
use tower_webhook::inbox::internal;
use tower_webhook::inbox::{EventId, EventState, Filter, Inbox, Page};
use tower_webhook::{EventRouter, IdempotencyKey, RawDelivery, Webhooks};
use tracing::Level;

use super::listed;
use support::delivery::{RequestExt, delivery, secret, send};
use support::inbox::{NotingCrm, Works, accepting, event, inbox, states, webhooks, within_a_month};
use support::log::Log;
use support::{DAY, MINUTE, SECOND, lock};

#[tokio::test(start_paused = true)]
async fn deliveries_without_a_key_are_refused_if_one_is_required() {
    let inbox = inbox();
    let webhooks = accepting(&inbox, Webhooks::new(secret()).require_key());
    let refused = send(&webhooks, delivery(r#"{"id":"a"}"#)).await;
    refused.assert_problem(400, "missing-key");
    assert!(states(&inbox).await.is_empty());
    send(&webhooks, event("a", 1)).await.assert_ok();
    assert_eq!(states(&inbox).await, [EventState::Waiting]);
}

#[tokio::test(start_paused = true)]
async fn events_are_found_by_their_keys() {
    let of_crm = inbox();
    let of_others = Inbox::new(internal::queue(&of_crm).clone());
    let crm = Webhooks::new(secret()).name("crm".parse().unwrap());
    let webhooks = accepting(&of_crm, crm);
    let accept = async || send(&webhooks, event("chat", 1)).await.assert_ok();
    accept().await;
    send(&webhooks, event("chat", 2)).await.assert_ok();
    let key =
        Filter::default().key(IdempotencyKey::new(HeaderValue::from_static("chat-1")).unwrap());
    // Another route has other keys, and this handle knows only that of the chat platform.
    let unknown = listed(&of_others, &key, Page::newest(10)).await;
    assert!(unknown.is_empty(), "{unknown:?}");
    for page in [Page::oldest(10), Page::newest(10)] {
        assert_eq!(listed(&of_crm, &key, page).await, [1]);
        assert!(
            listed(&of_crm, &key, page.after(EventId(1)))
                .await
                .is_empty()
        );
    }
    assert_eq!(
        listed(&of_crm, &key, Page::newest(1).after(EventId(2))).await,
        [1]
    );
    assert!(listed(&of_crm, &key, Page::oldest(0)).await.is_empty());
    let others = [
        key.clone().states([EventState::Dead]),
        key.clone().kinds([EventKind::CHAT_OPENED]),
        key.clone().chat("chat-1"),
        key.clone().error("the CRM"),
        key.clone().accepted(None, Some(SystemTime::UNIX_EPOCH)),
    ];
    for other in others {
        assert!(
            listed(&of_crm, &other, Page::oldest(10)).await.is_empty(),
            "{other:?}"
        );
    }

    of_crm.discard(EventId(1), None).await.unwrap();
    sleep(30 * DAY).await;
    accept().await;
    // Event 1 is not deleted yet, and the index has the newest one.
    assert_eq!(listed(&of_crm, &key, Page::oldest(10)).await, [3]);
    let discarded = key.clone().states([EventState::Discarded]);
    assert!(
        listed(&of_crm, &discarded, Page::oldest(10))
            .await
            .is_empty()
    );
}

/// The headers that a handler sees, and those of the record.
async fn headers_of(inbox: Inbox) -> [HeaderMap; 2] {
    let seen = Arc::new(Mutex::new(HeaderMap::new()));
    let handler = {
        let seen = Arc::clone(&seen);
        EventRouter::new().fallback(move |delivery: RawDelivery| {
            *lock(&seen) = delivery.headers().clone();
            async { Ok(()) }
        })
    };
    let _worker = inbox.work(handler).spawn();
    let mut request = event("a", 1);
    for (name, value) in [
        (
            "traceparent",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ),
        ("tracestate", "a=1"),
        ("tracestate", "b=2"),
        ("x-request-id", "17"),
        ("cookie", "secret"),
    ] {
        request
            .headers_mut()
            .append(name, HeaderValue::from_static(value));
    }
    let answer = send(&webhooks(&inbox), request).await;
    assert_eq!(answer.status, StatusCode::OK);
    inbox.finish().await.unwrap();
    let record = inbox.get(EventId(1)).await.unwrap().unwrap();
    [lock(&seen).clone(), record.headers]
}

#[tokio::test(start_paused = true)]
async fn headers_of_the_request_reach_the_handler() {
    for headers in headers_of(inbox()).await {
        let names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["traceparent", "tracestate"]);
        let states: Vec<_> = headers.get_all("tracestate").iter().collect();
        assert_eq!(states, ["a=1", "b=2"]);
    }
    let own = inbox().keep_headers([HeaderName::from_static("x-request-id")]);
    for headers in headers_of(own).await {
        assert_eq!(headers.len(), 1);
        assert_eq!(headers["x-request-id"], "17");
    }
    for headers in headers_of(inbox().keep_headers([])).await {
        assert!(headers.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_is_acknowledged_when_stored_and_handled_then() {
    let (inbox, crm) = (inbox(), NotingCrm::default());
    let webhooks = webhooks(&inbox);
    send(&webhooks, event("a", 1)).await.assert_ok();
    assert_eq!(states(&inbox).await, [EventState::Waiting]);

    let worker = inbox.work(crm.router()).spawn();
    within_a_month(|| crm.handled() == 1).await;
    // Handed over in this process, without asking the queue.
    send(&webhooks, event("a", 2)).await.assert_ok();
    within_a_month(|| crm.handled() == 2).await;
    send(&webhooks, event("a", 1)).await.assert_replayed();
    worker.drain(SECOND).await.unwrap();
    assert_eq!(states(&inbox).await, [EventState::Handled; 2]);
    assert_eq!(crm.attempts(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_full_inbox_warns_answers_503_and_recovers() {
    let log = Log::capture(Level::WARN);
    let inbox = inbox().backlog_limit(2000).keep_bodies(Duration::ZERO);
    let crm = NotingCrm::default();
    let webhooks = webhooks(&inbox);
    let mut accepted = 0;
    let refused = loop {
        sleep(2 * SECOND).await;
        let answer = send(&webhooks, event("a", accepted)).await;
        match answer.status {
            StatusCode::OK => accepted += 1,
            _ => break answer,
        }
    };
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.retry_after(), Some(600));
    assert!((4..=5).contains(&accepted), "{accepted}");
    send(&webhooks, event("a", 0)).await.assert_replayed();
    assert_eq!(log.count(Level::WARN, "the inbox is nearly full"), 1);

    let worker = inbox.work(crm.router()).spawn();
    within_a_month(|| crm.handled() == accepted).await;
    // The worker deletes the bodies, and what is left of the events when their retention ends.
    sleep(9 * DAY).await;
    send(&webhooks, event("b", 1)).await;
    sleep(2 * SECOND).await;
    send(&webhooks, event("b", 2)).await.assert_ok();
    within_a_month(|| crm.handled() > accepted).await;
    assert!(inbox.get(EventId(1)).await.unwrap().is_none());
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn workers_delete_the_bodies_of_handled_events() {
    let (inbox, crm) = (inbox().keep_bodies(MINUTE), NotingCrm::default());
    let worker = inbox.work(crm.router()).spawn();
    send(&webhooks(&inbox), event("a", 1)).await.assert_ok();
    within_a_month(|| crm.handled() == 1).await;
    let body = async || inbox.get(EventId(1)).await.unwrap().unwrap().body;
    assert!(body().await.is_some());
    sleep(3 * MINUTE).await;
    assert!(body().await.is_none());
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn keyless_events_are_accepted_each_time() {
    let (inbox, crm) = (inbox(), NotingCrm::default());
    let worker = inbox.work(crm.router()).spawn();
    let webhooks = webhooks(&inbox);
    for _ in 0..3 {
        send(&webhooks, delivery(r#"{"id":"a"}"#)).await.assert_ok();
    }
    within_a_month(|| crm.handled() == 3).await;
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn changed_bodies_and_replayed_bodies_are_refused_on_request() {
    let plain = inbox();
    send(&webhooks(&plain), event("a", 1)).await.assert_ok();
    send(&webhooks(&plain), event("b", 2).key("a-1"))
        .await
        .assert_replayed();

    let strict = Webhooks::new(secret()).reject_changed_bodies();
    let webhooks = accepting(&inbox(), strict.replay_guard());
    send(&webhooks, event("a", 1)).await.assert_ok();
    send(&webhooks, event("a", 1)).await.assert_replayed();
    for other in [event("b", 2).key("a-1"), event("a", 1).key("other")] {
        let answer = send(&webhooks, other).await;
        assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_disconnects_costs_no_event() {
    let (inbox, crm) = (inbox(), NotingCrm::default());
    let worker = inbox.work(crm.router()).spawn();
    let webhooks = webhooks(&inbox);
    for n in 0..10 {
        let cut = timeout(Duration::ZERO, send(&webhooks, event("a", n))).await;
        drop(cut);
    }
    sleep(MINUTE).await;
    // What was stored was handled, once.
    let stored = states(&inbox).await.len();
    assert_eq!(crm.handled(), stored);
    assert_eq!(crm.attempts(), stored);
    worker.drain(SECOND).await.unwrap();
}
