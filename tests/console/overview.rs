//! The first page, and all event types.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use axum::Router;
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::time::sleep;
use tower_webhook::event::{ChatClosed, ChatRated};
use tower_webhook::inbox::{Inbox, Queue};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::store::StoreError;
use tower_webhook::telemetry::{Count, CountsOf, Recent, Silence};
use tower_webhook::{
    Delivery, EventKind, EventRouter, EventType, HandlerError, RawDelivery, Sender, Webhooks,
};
use tower_webhook_console::Console;

use support::delivery::{RequestExt, SIGNATURE, secret, send};
use support::inbox::{Works, event, inbox, webhooks};
use support::queue::Calls;
use support::{MINUTE, SECOND};

use super::get;

/// Processes on one queue, each with counts and a console of its own.
struct Process {
    inbox: Inbox,
    recent: Recent,
    console: Router,
}

impl Process {
    fn on(queue: &MemoryQueue) -> Self {
        let (inbox, recent) = (Inbox::new(queue.clone()), Recent::new());
        let console = Console::new().inbox(inbox.clone()).recent(recent.clone());
        Self {
            console: console.router(),
            inbox,
            recent,
        }
    }
}

/// Two receivers expect a type every 10 minutes. The first is sent its events for a while, as a balancer may do.
async fn is_silent_once_no_process_gets_it(
    sender: Sender,
    of: EventType,
    event: impl Fn(usize) -> Request<Full<Bytes>>,
) {
    let queue = MemoryQueue::new();
    let [one, other] = [Process::on(&queue), Process::on(&queue)];
    let started = |process: &Process| {
        let silence = Silence::new().expect(of.clone(), 10 * MINUTE);
        let observer = (process.recent.clone(), silence.clone());
        let webhooks = Webhooks::new(secret()).sender(sender.clone());
        let webhooks = webhooks.observer(observer).inbox(process.inbox.clone());
        let started = webhooks.start(EventRouter::new()).unwrap();
        let console = Console::new().inbox(process.inbox.clone());
        let console = console.recent(process.recent.clone());
        (started, console.silence(silence).router())
    };
    let ((webhooks, _running), of_one) = started(&one);
    let ((_webhooks, _other), of_other) = started(&other);
    let silent = "event was delivered for ";
    for n in 0..3 {
        sleep(5 * MINUTE).await;
        send(&webhooks, event(n)).await.assert_ok();
    }
    sleep(MINUTE).await;
    for app in [&of_one, &of_other] {
        get(app, "/").await.hides(silent);
        get(app, "/kinds").await.hides(">silent</span>");
    }
    sleep(14 * MINUTE).await;
    let silent = format!("No <b>{of}</b> {silent}15 min");
    for app in [&of_one, &of_other] {
        get(app, "/").await.shows(&silent);
    }
}

#[tokio::test(start_paused = true)]
async fn a_type_is_silent_if_no_process_gets_its_events() {
    let of = EventKind::CHAT_RATED.into();
    is_silent_once_no_process_gets_it(Sender::default(), of, |n| event("a", n)).await;
}

/// The types of items are known to the process that was sent them, and by their first attempts to all.
#[tokio::test(start_paused = true)]
async fn a_type_of_items_is_silent_if_no_process_gets_them() {
    let line = Sender::named("line", None).unwrap();
    let batch = |n: usize| {
        let body = format!(r#"{{"events":[{{"webhookEventId":"{n}","type":"message"}}]}}"#);
        let delivery = RawDelivery::new(EventKind::from_static("line"), body);
        let mut request = Request::new(Full::new(delivery.body().clone()));
        *request.method_mut() = http::Method::POST;
        *request.headers_mut() = line.sign(&secret(), &delivery).unwrap();
        request
    };
    let of = "line/message".parse().unwrap();
    is_silent_once_no_process_gets_it(line.clone(), of, batch).await;
}

/// A queue whose counts take a while, with the number of times that they were read.
#[derive(Clone)]
struct Counted(Queue, Arc<AtomicUsize>);

#[async_trait]
impl Calls for Counted {
    fn inner(&self) -> Result<Queue, StoreError> {
        Ok(self.0.clone())
    }

    async fn counts(&self, of: &CountsOf) -> Result<Vec<Count>, StoreError> {
        self.1.fetch_add(1, Ordering::SeqCst);
        sleep(SECOND / 5).await;
        self.0.count.counts(of).await
    }
}

#[tokio::test(start_paused = true)]
async fn slow_counts_of_a_silent_type_are_not_read_for_each_page() {
    let reads = Arc::new(AtomicUsize::new(0));
    let queue = Counted(MemoryQueue::new().into(), Arc::clone(&reads));
    let silence = Silence::new().expect(EventKind::CHAT_RATED, SECOND);
    let console = Console::new().inbox(Inbox::new(queue.shared()));
    let app = console.silence(silence).router();
    sleep(MINUTE).await;
    for _ in 0..5 {
        get(&app, "/").await.shows("event was delivered for 1 min");
    }
    // Those of the last hour, and those of the type.
    assert_eq!(reads.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn numbers_of_the_last_hour_are_those_of_all_processes() {
    let queue = MemoryQueue::new();
    let [one, other] = [Process::on(&queue), Process::on(&queue)];
    let webhooks = Webhooks::new(secret()).observer(one.recent.clone());
    let fails = EventRouter::new().fallback(async |delivery: RawDelivery| {
        match delivery.body().starts_with(br#"{"id":"bad""#) {
            true => Err(HandlerError::dead_letter("no such customer")),
            false => Ok(()),
        }
    });
    let (webhooks, _running) = webhooks.inbox(one.inbox.clone()).start(fails).unwrap();
    for n in 0..20 {
        send(&webhooks, event("a", n)).await.assert_ok();
    }
    send(&webhooks, event("bad", 1)).await.assert_ok();
    let forged = event("b", 1).with(SIGNATURE, "0".repeat(64));
    assert_eq!(send(&webhooks, forged).await.status, 401);
    // Counts are written once a second.
    sleep(3 * SECOND).await;
    let shown = async |process: &Process| {
        let page = get(&process.console, "/").await;
        page.is(200)
            .shows(r#"aria-label="20 handled in the last hour"#)
            .shows(r#"<small class="bad">1 attempt failed</small>"#)
            .shows("<li><b>21</b> accepted</li>")
            .shows(r#"<li><b class="bad">1</b> invalid-signature</li>"#);
        page
    };
    shown(&one).await;
    let page = shown(&other).await;
    page.hides("Those of this process");
}

/// An event that becomes a dead letter, of a type that a sender named.
fn of_kind(kind: &str, n: usize) -> Request<Full<Bytes>> {
    event(kind, n).kind(kind)
}

async fn dead_letters(inbox: &Inbox, of: &[(String, usize)]) {
    let webhooks = webhooks(inbox);
    for (kind, number) in of {
        for n in 0..*number {
            send(&webhooks, of_kind(kind, n)).await.assert_ok();
        }
    }
    let fails = EventRouter::new()
        .on(async |_: Delivery<ChatClosed>| Err(HandlerError::dead_letter("x")))
        .on(async |_: Delivery<ChatRated>| Ok(()))
        .fallback(async |_: RawDelivery| Err(HandlerError::dead_letter("no such customer")));
    let worker = inbox.work(fails).spawn();
    sleep(60 * SECOND).await;
    worker.drain(SECOND).await.unwrap();
}

/// The names in the first column.
fn rows(page: &str) -> Vec<&str> {
    let rows = page.split("<th scope=\"row\">").skip(1);
    let names = rows.map(|row| {
        let name = row
            .strip_prefix("<a href=")
            .map_or(row, |link| link.split_once('>').unwrap().1);
        name.split('<').next().unwrap()
    });
    names.filter(|name| *name != "All types").collect()
}

#[tokio::test(start_paused = true)]
async fn worst_of_many_types_comes_first_and_all_can_be_opened_and_paused() {
    let inbox = inbox();
    let mut types: Vec<_> = (0..60).map(|n| (format!("type-{n:02}"), 1)).collect();
    types[41].1 = 30;
    dead_letters(&inbox, &types).await;
    let app = Console::new().inbox(inbox).router();
    let page = get(&app, "/").await;
    page.shows(
        r#"<a href="/kinds">50 other types</a>, with <b class="bad">50 events</b> that failed"#,
    );
    let shown = rows(&page.text);
    assert_eq!((shown.len(), shown[0]), (10, "type-41"), "{shown:?}");

    let mut all = Vec::new();
    let mut path = "/kinds".to_owned();
    loop {
        let page = get(&app, &path).await;
        for name in rows(&page.text) {
            page.shows(&format!(
                r#"<a href="/events?route=chat-platform&amp;kind={name}">"#
            ))
            .shows(&format!(r#"aria-label="Pause {name}""#));
            all.push(name.to_owned());
        }
        let Some((before, _)) = page.text.split_once("\" rel=\"next\"") else {
            break;
        };
        path = before.rsplit("href=\"").next().unwrap().to_owned();
    }
    assert_eq!(all[0], "type-41");
    all.sort();
    let names: Vec<_> = types.into_iter().map(|(name, _)| name).collect();
    assert_eq!(all, names);
    get(&app, "/kinds?page=99999999999").await.is(200);
    get(&app, "/kinds?page=-1").await.is(400);
}

/// The header with a type is often not signed, so that anybody who has seen a delivery can make names up.
#[tokio::test(start_paused = true)]
async fn forged_types_leave_room_for_those_that_workers_name() {
    let inbox = inbox();
    let mut types: Vec<_> = (0..40).map(|n| (format!("forged-{n:02}"), 5)).collect();
    types.push(("chat-closed".to_owned(), 1));
    types.push(("chat-rated".to_owned(), 1));
    dead_letters(&inbox, &types).await;
    let app = Console::new().inbox(inbox).router();
    let page = get(&app, "/").await;
    let shown = rows(&page.text);
    let forged = shown.iter().filter(|name| name.starts_with("forged-"));
    assert!(forged.count() <= 8, "{shown:?}");
    assert!(shown.contains(&"chat-closed"), "{shown:?}");
    assert!(shown.contains(&"chat-rated"), "{shown:?}");
}

/// Each reason has a number of its own, as that of a request.
#[tokio::test(start_paused = true)]
async fn failures_of_one_cause_are_one_row_with_a_link_to_all_of_them() {
    let queue = MemoryQueue::new();
    let [one, other] = [Process::on(&queue), Process::on(&queue)];
    let fails = EventRouter::new().fallback(async |delivery: RawDelivery| {
        let key = delivery.key().unwrap().to_string();
        match delivery.body().starts_with(br#"{"id":"full"#) {
            true => Err(HandlerError::dead_letter("the disk is full")),
            false => Err(HandlerError::retry(format!("request {key} was refused"))),
        }
    });
    let webhooks = webhooks(&one.inbox);
    for n in 0..60 {
        send(&webhooks, event(&format!("chat-{}", n % 50), n))
            .await
            .assert_ok();
    }
    for n in 0..3 {
        send(&webhooks, event(&format!("full-{n}"), n))
            .await
            .assert_ok();
    }
    let worker = one.inbox.work(fails).spawn();
    sleep(10 * SECOND).await;
    worker.drain(SECOND).await.unwrap();

    for process in [&one, &other] {
        let page = get(&process.console, "/").await;
        page.shows("Why events have failed")
            .shows("the disk is full")
            .hides("Of the newest");
        let (_, causes) = page.text.split_once("id=\"causes\"").unwrap();
        let (causes, _) = causes.split_once("</table>").unwrap();
        assert_eq!(causes.matches("was refused").count(), 1, "{causes}");
        let links: Vec<_> = causes.split("href=\"/events?").skip(2).collect();
        let numbers = [50, 3];
        assert_eq!(links.len(), numbers.len(), "{causes}");
        for (link, number) in links.into_iter().zip(numbers) {
            assert!(link.contains(&format!(">{number}</a>")), "{link}");
            let chats = format!(r#"data-label="Chats">{number}</td>"#);
            assert!(link.contains(&chats), "{link}");
            let query = link.split('"').next().unwrap().replace("&amp;", "&");
            let confirm = get(&process.console, &format!("/all?action=redrive&{query}")).await;
            confirm
                .is(200)
                .shows("<dt>Cause</dt>")
                .shows(&format!("redrive {number} events?"));
            let list = get(&process.console, &format!("/events?{query}")).await;
            list.is(200).shows(r#"name="shape""#);
        }
    }
    get(&other.console, "/events?shape=17")
        .await
        .is(400)
        .shows("is no cause");
}

/// A reason is shown as far as there is room, and the state and the number of attempts stand beside it.
#[tokio::test(start_paused = true)]
async fn reasons_in_lists_have_the_room_of_the_row() {
    let inbox = inbox();
    const REASON: &str =
        "the warehouse answered that the address of the order is incomplete: the street is missing";
    let webhooks = webhooks(&inbox);
    send(&webhooks, event("a", 1)).await.assert_ok();
    let fails =
        EventRouter::new().fallback(async |_: RawDelivery| Err(HandlerError::dead_letter(REASON)));
    let worker = inbox.work(fails).spawn();
    sleep(SECOND).await;
    worker.drain(SECOND).await.unwrap();
    let app = Console::new().inbox(inbox).router();
    get(&app, "/events").await.shows(REASON);
}
