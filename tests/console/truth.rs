//! What the pages say is so, when it is so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use tokio::time::{Instant, sleep};
use tower_webhook::inbox::{Action, EventId, EventState, Inbox, Queue, Which};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::postgres::PostgresQueue;
use tower_webhook::store::StoreError;
use tower_webhook::{EventKind, EventRouter, HandlerError, RawDelivery, Webhooks};
use tower_webhook_console::Console;

use support::database::connect;
use support::delivery::{RequestExt, delivery, secret, send};
use support::inbox::{Works, accepting, event, inbox, states, webhooks};
use support::postgres::{PostgresServer, Stop};
use support::queue::Calls;
use support::{MINUTE, SECOND};

use super::{asked, fields, four_events, get, post};

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

/// A failure of a minute ago is no warning yet, and not nothing.
#[tokio::test(start_paused = true)]
async fn events_that_are_tried_again_are_told_of_before_they_are_old() {
    let inbox = inbox();
    let router = EventRouter::new()
        .fallback(async |_: RawDelivery| Err(HandlerError::retry("the CRM is down")));
    let worker = inbox.work(router).spawn();
    let app = Console::new().inbox(inbox.clone()).router();
    get(&app, "/").await.shows("All is well: ");
    let webhooks = accepting(&inbox, Webhooks::new(secret()));
    for key in ["a", "b"] {
        // Without a chat, so that no other waits for it.
        let event = delivery("{}").kind("invoice-paid").key(key);
        send(&webhooks, event).await.assert_ok();
        sleep(MINUTE / 2).await;
    }
    get(&app, "/")
        .await
        .shows("2 events have failed, and are tried again.")
        .hides("All is well")
        .hides("Warning");
    worker.drain(SECOND).await.unwrap();
}

/// To redrive it would change nothing, as its lane keeps its order.
#[tokio::test(start_paused = true)]
async fn an_event_behind_another_says_what_it_waits_for_and_offers_it() {
    let inbox = four_events().await;
    let app = Console::new().inbox(inbox.clone()).router();
    let waits = r#"It waits for <a href="/events/3">event 3</a> of the same chat, which has failed, and is tried again "#;
    get(&app, "/events/4")
        .await
        .shows(waits)
        .shows(r#"name="instead" value="3:retrying" formaction="/events/3/redrive">Redrive event 3</button>"#)
        .hides("redrive-4");
    get(&app, "/events/3")
        .await
        .shows("redrive-3")
        .hides("It waits for");
    // An old page.
    let redriven = post(&app, "/events/4/redrive", "state=waiting").await;
    get(&app, redriven.is(303).location.as_deref().unwrap())
        .await
        .shows("was redriven.")
        .shows(waits);
    let fields = "state=waiting&instead=3%3Aretrying";
    let redriven = post(&app, "/events/3/redrive", fields).await;
    let location = redriven.is(303).location.as_deref();
    assert_eq!(location, Some("/events/3?did=redrive%3A3"));
    // The chat's page begins with what blocks it.
    get(&app, "/chat?id=stuck")
        .await
        .shows(r#"Blocked by <a href="/events/3">event 3</a> for "#)
        .shows("1 event waits behind it.")
        .shows("the CRM is down");
    get(&app, "/chat?id=fine").await.hides("Blocked by");
}

#[tokio::test(start_paused = true)]
async fn an_event_that_fails_again_after_a_redrive_says_so() {
    let inbox = four_events().await;
    let app = Console::new().inbox(inbox.clone()).router();
    let redriven = post(&app, "/events/2/redrive", "state=dead").await;
    let location = redriven.location.unwrap();
    get(&app, &location)
        .await
        .shows("It was redriven 0 s ago by ada. ")
        .hides("failed again");
    let again = EventRouter::new()
        .fallback(async |_: RawDelivery| Err(HandlerError::dead_letter("no such customer")));
    let worker = inbox.work(again).spawn();
    sleep(SECOND).await;
    worker.drain(SECOND).await.unwrap();
    get(&app, &location)
        .await
        .shows(r#"by ada, and <b class="bad">has failed again</b>, "#)
        .shows("it is a dead letter");
    post(&app, "/events/2/redrive", "state=dead").await.is(303);
    let handles = EventRouter::new().fallback(async |_: RawDelivery| Ok(()));
    let worker = inbox.work(handles).spawn();
    sleep(SECOND).await;
    worker.drain(SECOND).await.unwrap();
    get(&app, &location)
        .await
        .shows("by ada, and was handled. ");
}

/// A queue that answers nothing, once it hangs.
struct Hanging {
    queue: Queue,
    hangs: Arc<AtomicBool>,
}

#[async_trait]
impl Calls for Hanging {
    fn inner(&self) -> Result<Queue, StoreError> {
        Ok(self.queue.clone())
    }

    async fn actions(
        &self,
        which: Which,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<Action>, StoreError> {
        if self.hangs.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        self.queue.actions(which, before, limit).await
    }
}

/// The counts of before are known, and say nothing of a database that has gone since.
#[tokio::test(start_paused = true)]
async fn pages_say_within_three_seconds_that_the_database_does_not_answer() {
    let hangs = Arc::new(AtomicBool::new(false));
    let queue = Hanging {
        queue: MemoryQueue::new().into(),
        hangs: Arc::clone(&hangs),
    };
    let app = Console::new().inbox(Inbox::new(queue.shared())).router();
    get(&app, "/").await.is(200).shows("All is well");
    hangs.store(true, Ordering::SeqCst);
    for (path, status) in [
        ("/", 200),
        ("/events", 503),
        ("/events/1", 503),
        ("/history", 503),
    ] {
        let began = Instant::now();
        get(&app, path)
            .await
            .is(status)
            .shows("did not answer for 2.5 s")
            .hides("All is well");
        assert!(
            began.elapsed() < 3 * SECOND,
            "{path}: {:?}",
            began.elapsed()
        );
    }
    hangs.store(false, Ordering::SeqCst);
    get(&app, "/").await.is(200).shows("All is well");
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_have_the_error_of_a_database_that_has_stopped() {
    let mut server = tokio::task::spawn_blocking(PostgresServer::start)
        .await
        .unwrap();
    let queue = PostgresQueue::new(connect(&server.url(), 4).await);
    queue.migrate().await.unwrap();
    let app = Console::new().inbox(Inbox::new(queue)).router();
    get(&app, "/").await.is(200).shows("All is well");
    let server = tokio::task::spawn_blocking(move || {
        server.stop(Stop::Immediate);
        server
    });
    let _server = server.await.unwrap();
    let overview = get(&app, "/").await;
    overview
        .is(200)
        .shows("cannot be read: ")
        .hides("All is well");
    for page in [overview, get(&app, "/events").await] {
        page.shows("refused");
    }
}

/// Counts events of a filter that no count of the queue has, beyond the 10,000 that a preview counts.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_many_is_counted_before_it_begins() {
    const EVENTS: u64 = 10_700;
    let inbox = inbox();
    let accepting = webhooks(&inbox);
    for n in 0..EVENTS {
        send(&accepting, event(&format!("chat-{n}"), 1))
            .await
            .assert_ok();
    }
    let app = Console::new().inbox(inbox.clone()).router();
    // With a time, which the counts of the queue do not know.
    let query = "action=discard&state=waiting&from=2020-01-01T00%3A00";
    let question = asked(&app, query).await;
    let seen = fields(&question);
    let counted = async || {
        loop {
            let page = get(&app, &format!("/all?{seen}")).await;
            if !page.text.contains("so far") {
                return page;
            }
            page.shows("% of the inbox was searched")
                .shows("Yes, discard all that match: ");
            sleep(SECOND / 20).await;
        }
    };
    counted()
        .await
        .shows("Are you sure that you want to discard 10,700 events?")
        .shows("Yes, discard 10,700 events");
    // What comes after the question is not meant.
    send(&accepting, event("later", 1)).await.assert_ok();
    let begun = post(&app, "/all", &format!("{seen}&rate=1")).await;
    let action = begun.is(303).location.clone().unwrap();
    get(&app, &action).await.shows(" of 10,700 discarded");
    post(&app, &format!("{action}/cancel"), "").await.is(303);
    let page = get(&app, &action).await;
    page.shows("Cancelled.")
        .shows(" of 10,700 were left as they were.");
}

/// The numbers of a cause are at least those of the newest events, and it began with the oldest of all.
#[tokio::test(start_paused = true)]
async fn a_cause_of_many_events_has_its_first_time() {
    const NEWEST: u64 = 5_000;
    let inbox = inbox();
    let webhooks = webhooks(&inbox);
    let fails = EventRouter::new()
        .fallback(async |_: RawDelivery| Err(HandlerError::dead_letter("no such customer")));
    let worker = inbox.work(fails).spawn();
    let add = async |events: std::ops::Range<u64>| {
        let until = events.end;
        for n in events {
            send(&webhooks, event(&format!("chat-{n}"), 1))
                .await
                .assert_ok();
        }
        while inbox.stats().await.unwrap().dead() < until {
            sleep(SECOND).await;
        }
    };
    let app = Console::new().inbox(inbox.clone()).router();
    add(0..1).await;
    sleep(24 * 60 * MINUTE).await;
    add(1..10).await;
    get(&app, "/").await.shows(">10</a>").hides("at least");
    add(10..NEWEST + 10).await;
    sleep(MINUTE).await;
    get(&app, "/")
        .await
        .shows(">at least 5,000</a>")
        .shows(">at least 5,000</td>");
    let first = inbox.get(EventId(1)).await.unwrap().unwrap();
    let causes = inbox.causes(1).await.unwrap();
    assert_eq!(causes.causes[0].first, first.failures[0].at);
    worker.drain(SECOND).await.unwrap();
}

/// By their states, with a link to each.
#[tokio::test(start_paused = true)]
async fn a_change_says_what_became_of_what_it_redrove() {
    let inbox = inbox();
    let webhooks = webhooks(&inbox);
    for n in 0..10 {
        send(&webhooks, event(&format!("chat-{n}"), 1))
            .await
            .assert_ok();
    }
    let fails = EventRouter::new()
        .fallback(async |_: RawDelivery| Err(HandlerError::dead_letter("no such customer")));
    let worker = inbox.work(fails).spawn();
    sleep(SECOND).await;
    worker.drain(SECOND).await.unwrap();
    let app = Console::new().inbox(inbox.clone()).router();
    let begun = super::all(&app, "action=redrive&state=dead").await;
    let action = begun.is(303).location.clone().unwrap();
    sleep(SECOND).await;
    let number = action.rsplit('/').next().unwrap();
    let became = |events, state| {
        format!(r#"<a href="/events?changed={number}&amp;state={state}">{events} {state}</a>"#)
    };
    get(&app, &action).await.shows(&became(10, "retrying"));
    let some = EventRouter::new().fallback(async |delivery: RawDelivery| {
        match delivery.body().starts_with(br#"{"id":"chat-7""#) {
            true => Err(HandlerError::dead_letter("no such customer")),
            false => Ok(()),
        }
    });
    let worker = inbox.work(some).spawn();
    sleep(10 * SECOND).await;
    worker.drain(SECOND).await.unwrap();
    get(&app, &action)
        .await
        .shows(&became(9, "handled"))
        .shows(&became(1, "dead"));
    get(&app, &format!("/events?changed={number}&state=dead"))
        .await
        .shows(r#"<a href="/events/8">8</a>"#)
        .hides(r#"<a href="/events/7">7</a>"#);
    assert_eq!(states(&inbox).await[7], EventState::Dead);
}
