//! What the pages show, and how large they are.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tower_webhook::inbox::internal;

use axum::Router;
use axum::body::Body;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderName};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::time::sleep;
use tower::ServiceExt;
use tower_webhook::inbox::{EventId, Filter, Inbox, Page, Retry};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::telemetry::{FailureBudget, Recent, Silence};
use tower_webhook::{
    EventKind, EventRouter, HandlerError, RawDelivery, Receiver, Sender, Webhooks,
};
use tower_webhook_console::Console;

use support::Ready;
use support::delivery::{RequestExt, SIGNATURE, delivery, secret, send};
use support::inbox::{NotingCrm, Works, event, inbox, webhooks};
use support::lock;
use support::queue::{Calls, FaultyQueue, take};
use support::{DAY, SECOND};

use super::{four_events, get, post};

#[tokio::test(start_paused = true)]
async fn route_from_which_a_worker_has_got_nothing_is_a_warning() {
    let inbox = inbox();
    let mut routes = inbox.routes();
    for sender in [Sender::github(), Sender::slack()] {
        let route = Webhooks::without_secrets().sender(sender);
        routes.handle(route, EventRouter::new()).unwrap();
    }
    let _running = routes.start().unwrap();
    let app = Console::new().inbox(inbox).router();
    get(&app, "/").await.shows("All is well");
    sleep(601 * SECOND).await;
    get(&app, "/")
        .await
        .shows(r#"<b>Warning: </b>The worker of this process has had no event of <b>github</b> and <b>slack</b> since"#);
}

#[tokio::test(start_paused = true)]
async fn chats_that_lack_an_event_are_shown() {
    let app = Console::new().inbox(four_events().await).router();
    get(&app, "/gaps")
        .await
        .is(200)
        .shows(r#"<a href="/events/1">1</a>"#)
        .shows("<b>chat-closed</b> or <b>chat-transferred</b>");
    get(&app, "/gaps?until=2020-01-01T00:00")
        .await
        .is(200)
        .shows("No chat is incomplete.");
    let wrong = get(&app, "/gaps?from=yesterday").await;
    wrong.is(400).shows("yesterday");
}

#[tokio::test(start_paused = true)]
async fn pages_show_what_happened() {
    let app = Console::new().inbox(four_events().await).router();
    let overview = get(&app, "/").await;
    overview
        .is(200)
        .shows("chat-rated")
        .shows(r#"href="/events?state=dead&amp;route=chat-platform&amp;kind=chat-rated">1</a>"#);

    let list = get(&app, "/events").await;
    list.is(200)
        .shows(r#"href="/events/1""#)
        .shows(r#"href="/events/4""#);
    let dead = get(&app, "/events?state=dead").await;
    dead.shows(r#"href="/events/2""#)
        .hides(r#"href="/events/1""#);
    let by_chat = get(&app, "/events?chat=stuck&order=oldest").await;
    by_chat
        .shows(r#"href="/events/3""#)
        .hides(r#"href="/events/2""#);
    get(
        &app,
        "/events?key=dead-1&route=chat-platform&kind=chat-rated&hours=24",
    )
    .await
    .shows(r#"href="/events/2""#);
    get(&app, "/events?error=NO+SUCH+customer")
        .await
        .shows(r#"href="/events/2""#)
        .hides(r#"href="/events/3""#);
    for (time, found) in [
        ("from=2020-01-01T00:00", true),
        ("until=2020-01-01T00:00", false),
        ("from=2100-01-01T00:00:00", false),
        ("from=&until=2100-01-01T00:00&hours=1", true),
    ] {
        let list = get(&app, &format!("/events?state=dead&{time}")).await;
        list.is(200);
        assert_eq!(list.text.contains(r#"href="/events/2""#), found, "{time}");
    }
    get(&app, "/events?state=unsettled&kind=chat-closed")
        .await
        .is(200)
        .shows("No event matches.");

    let event = get(&app, "/events/2").await;
    event
        .is(200)
        .shows("dead-letter")
        .shows("no such customer")
        .shows("&quot;rating&quot;: 1");
    let waiting = get(&app, "/events/4").await;
    waiting
        .is(200)
        .shows("Waits behind")
        .shows(r#"href="/events/3">event 3</a>"#);
    let head = get(&app, "/events/3").await;
    head.shows("the CRM is down")
        .shows("Its lane has waited for it for")
        .shows("with 1 event behind it.")
        .shows(r#"<p>Behind it:</p><ol><li><a href="/events/4">event 4</a>, chat-rated"#);
    get(&app, "/events?state=failed")
        .await
        .shows(r#"<b class="bad">failed</b>: the CRM is down"#)
        .shows(": no such customer")
        .shows("<time datetime=\"20");
    get(&app, "/lanes")
        .await
        .is(200)
        .shows("stuck")
        .shows("event 3")
        .shows("1 event</td>");
    get(&app, "/chat?id=stuck")
        .await
        .is(200)
        .shows("/events/3")
        .shows("/events/4")
        .hides("/events/2");
    for (path, kind) in [("/style.css", "--accent"), ("/live.js", "refresh")] {
        get(&app, path).await.is(200).shows(kind);
    }
}

/// A queue that is locked, or whose server is gone.
#[tokio::test]
async fn refused_deliveries_are_critical() {
    let queue = FaultyQueue::new(MemoryQueue::new());
    let faults = queue.faults.clone();
    let recent = Recent::new();
    let inbox = Inbox::new(queue);
    let webhooks = Webhooks::new(secret()).observer(recent.clone());
    let webhooks = inbox.routes().accept(webhooks).unwrap();
    let app = Console::new().inbox(inbox).recent(recent).router();
    send(&webhooks, event("a", 1)).await.assert_ok();
    get(&app, "/")
        .await
        .hides("Deliveries to this process are refused");
    faults.is_down.store(true, Ordering::SeqCst);
    send(&webhooks, event("a", 2)).await;
    faults.is_down.store(false, Ordering::SeqCst);
    get(&app, "/")
        .await
        .shows("<b>Critical: </b>Deliveries to this process are refused, as the database does not work; the last one 0 s ago.");
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_cannot_be_read_is_critical() {
    let queue = FaultyQueue::new(MemoryQueue::new());
    queue.faults.is_down.store(true, Ordering::SeqCst);
    let inbox = Inbox::new(queue);
    let overview = async |console: Console| get(&console.inbox(inbox.clone()).router(), "/").await;
    overview(Console::new())
        .await
        .is(200)
        .shows("<b>Critical: </b>The database cannot be read: ")
        .shows("the connection was lost");
    overview(Console::new().hide_payloads())
        .await
        .shows("The database cannot be read: the log has the reason.");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_can_claim_nothing_is_critical() {
    let queue = FaultyQueue::new(MemoryQueue::new());
    let faults = Arc::clone(&queue.faults);
    let inbox = Inbox::new(queue.shared());
    let worker = inbox.work(NotingCrm::default().router()).spawn();
    let app = Console::new().inbox(inbox.clone()).router();
    faults.claims_nothing.store(true, Ordering::SeqCst);
    sleep(60 * SECOND).await;
    get(&app, "/")
        .await
        .shows("<b>Critical: </b>The worker of this process cannot take events from the inbox");
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_payload_has_its_order_and_readable_times() {
    let inbox = inbox();
    let body = r#"{"id":"chat","at":1732567890123,"name":"Zo\u00eb","about":[]}"#;
    send(&webhooks(&inbox), delivery(body.to_owned()))
        .await
        .assert_ok();
    let app = Console::new().inbox(inbox).router();
    let page = get(&app, "/events/1").await;
    let time = r#"<time datetime="2024-11-25T20:51:30Z" data-label="25 Nov 2024 20:51:30">"#;
    let shown = [
        "{\n  \"id\": \"chat\",\n  \"at\": ",
        "1732567890123</time>,\n  \"name\": \"Zo\u{eb}\",\n  \"about\": []\n}</pre>",
    ];
    let shown = shown.map(|text| text.replace('"', "&quot;"));
    page.shows(&format!("{}{time}{}", shown[0], shown[1]));
}

/// A page that was opened during an attempt gets its buttons when that ends, and loses a lane that is not blocked any more.
#[tokio::test(start_paused = true)]
async fn buttons_and_lane_are_updated_with_the_state() {
    let inbox = four_events().await;
    let app = Console::new().inbox(inbox.clone()).router();
    let take = [take(SECOND).into()];
    inbox.redrive(EventId(3), None).await.unwrap();
    let claimed = internal::queue(&inbox).claim(&take, 1, 0).await.unwrap();
    assert_eq!(claimed.events[0].lease.id, EventId(3));

    let [buttons, lane] = ["actions", "lane"].map(|part| format!(r#"<div id="{part}" data-live>"#));
    for (id, state, has_button, has_lane) in [
        (1, "handled", true, false),
        (3, "in-progress", false, true),
        (4, "waiting", false, true),
    ] {
        let page = get(&app, &format!("/events/{id}")).await;
        page.is(200).shows(state).shows(&buttons).shows(&lane);
        let has = |part: &str| page.text.contains(part);
        assert_eq!(has(&format!("redrive-{id}")), has_button, "{id}");
        assert_eq!(has("<h2>Lane</h2>"), has_lane, "{id}");
    }
}

#[tokio::test(start_paused = true)]
async fn links_lead_to_where_the_console_is_mounted() {
    let console = Console::new().inbox(four_events().await).router();
    let app = Router::new().nest_service("/ops/webhooks", console);
    for path in [
        "/ops/webhooks",
        "/ops/webhooks/",
        "/ops/webhooks/events",
        "/ops/webhooks/events/3",
        "/ops/webhooks/lanes",
    ] {
        let page = get(&app, path).await;
        page.is(200);
        let links = page.text.split(['"']).filter(|text| text.starts_with('/'));
        let mut count = 0;
        for link in links {
            // Forms lead to changes, and that of the box needs what is looked for.
            let link = link.replace("/find", "/find?id=1");
            let link = link
                .replace("/webhooks/all", "/webhooks/all?action=redrive")
                .replace("/export", "/export?format=csv")
                .replace("&amp;", "&");
            let status = get(&app, &link).await.status;
            assert!(
                matches!(status, StatusCode::OK | StatusCode::METHOD_NOT_ALLOWED),
                "{path}: {link}: {status}"
            );
            count += 1;
        }
        assert!(count > 5);
    }
    let paused = post(&app, "/ops/webhooks/pause", "reason=test").await;
    assert_eq!(
        paused.location.as_deref(),
        Some("/ops/webhooks?did=pause%3A")
    );
    // Whoever writes such a URL has done nothing.
    for path in [
        "?did=resume%3A",
        "?did=pause%3Achat-rated",
        "/events/1?did=redrive%3A1",
    ] {
        let page = get(&app, &format!("/ops/webhooks{path}")).await;
        page.is(200)
            .hides(" was resumed")
            .hides(" was paused")
            .hides(" was redriven");
    }
    get(&app, "/ops/webhooks?did=pause%3A")
        .await
        .is(200)
        .shows("Everything was paused.");
    let redriven = post(&app, "/ops/webhooks/events/2/redrive", "").await;
    assert_eq!(
        redriven.location.as_deref(),
        Some("/ops/webhooks/events/2?did=redrive%3A2")
    );
}

#[tokio::test(start_paused = true)]
async fn scripts_in_payloads_keys_and_errors_are_shown_as_text() {
    const SCRIPT: &str = "<script>alert(1)</script>";
    let recent = Recent::new();
    let inbox = inbox();
    let webhooks = Webhooks::new(secret()).observer(recent.clone());
    let webhooks = inbox.routes().accept(webhooks).unwrap();
    let body = format!(r#"{{"id":"{SCRIPT}","x":"</pre>{SCRIPT}"}}"#);
    send(&webhooks, delivery(body).key(SCRIPT))
        .await
        .assert_ok();
    let events =
        EventRouter::new().fallback(async |_: RawDelivery| Err(HandlerError::retry(SCRIPT)));
    let worker = inbox.work(events).spawn();
    sleep(SECOND).await;
    let app = Console::new().inbox(inbox).recent(recent).router();
    let chat = "/chat?id=%3Cscript%3Ealert%281%29%3C%2Fscript%3E";
    for path in [
        "/",
        "/events",
        "/events/1",
        "/lanes",
        chat,
        "/events?chat=<script>alert(1)</script>",
        "/events/<script>alert(1)<script>",
    ] {
        let page = get(&app, &path.replace('<', "%3C").replace('>', "%3E")).await;
        page.hides("<script>alert");
    }
    get(&app, "/events/1")
        .await
        .is(200)
        .shows("&lt;script&gt;alert(1)")
        .shows(&format!("href=\"{chat}\""));
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn without_an_inbox_budget_silence_and_problems_are_shown() {
    let (budget, recent) = (FailureBudget::default(), Recent::new());
    let silence = Silence::new().expect(EventKind::CHAT_CLOSED, SECOND);
    let observer = (budget.clone(), recent.clone(), silence.clone());
    let fails = EventRouter::new()
        .fallback(async |_: RawDelivery| Err(HandlerError::retry("the CRM is down")));
    let service = Webhooks::new(secret()).observer(observer).layer(fails);
    for n in 0..120 {
        send(&service, event("a", n)).await;
        sleep(SECOND).await;
    }
    for _ in 0..100 {
        send(&service, event("a", 0).with(SIGNATURE, "0".repeat(64))).await;
    }
    let app = Console::new()
        .budget(budget)
        .recent(recent)
        .silence(silence)
        .router();
    get(&app, "/")
        .await
        .is(200)
        .shows("120 of 500 failures in an hour")
        .shows("the sender disables the webhook in")
        .shows(r#", at <time datetime="20"#)
        .shows("100 requests were not verified")
        .shows(r#"<li><b class="bad">120</b> failed</li><li><b class="bad">100</b> invalid-signature</li>"#)
        .shows("the CRM is down")
        .shows("chat-closed")
        .hides("href=\"/events\"")
        .hides("Waiting");
    for path in [
        "/events",
        "/events/1",
        "/lanes",
        "/chat?id=a",
        "/all?action=redrive",
    ] {
        get(&app, path).await.is(404).shows("There is no inbox");
    }
}

#[tokio::test(start_paused = true)]
async fn lists_are_paged_by_a_cursor() {
    let inbox = inbox();
    let webhooks = webhooks(&inbox);
    for n in 0..120 {
        send(&webhooks, event("a", n)).await.assert_ok();
    }
    let app = Console::new().inbox(inbox.clone()).router();
    let mut seen = Vec::new();
    let mut path = "/events?chat=a".to_owned();
    loop {
        let page = get(&app, &path).await;
        let ids = page.text.split("href=\"/events/").skip(1);
        seen.extend(ids.map(|rest| rest.split('"').next().unwrap().parse::<i64>().unwrap()));
        let Some((before, _)) = page.text.split_once("\" rel=\"next\"") else {
            break;
        };
        path = before
            .rsplit("href=\"")
            .next()
            .unwrap()
            .replace("&amp;", "&");
    }
    let all: Vec<_> = (1..=120).rev().collect();
    assert_eq!(seen, all);

    let page = Page::oldest(10).after(EventId(119));
    let listed = inbox.list(&Filter::default(), page).await.unwrap();
    assert_eq!(listed.events.len(), 1);
}

/// The longest id that is a link: each quote takes six bytes of HTML, and three of a URL.
const LONG_CHAT: &str = r#"""""""""""""""""""""""""""""""""""#;

/// The longest kind that has a row on the overview.
fn long_kind(n: usize) -> String {
    format!("{}{n:02}", "&".repeat(20))
}

/// Kinds that are handled in each minute of an hour.
async fn busy_hour(webhooks: &Receiver, inbox: &Inbox, kinds: usize) {
    let handles = EventRouter::new().fallback(async |_: RawDelivery| Ok(()));
    let worker = inbox.work(handles).spawn();
    for minute in 0..60 {
        for kind in 0..kinds {
            for n in 0..=minute % 2 {
                let key = format!("{minute}-{kind}-{n}");
                let delivery = delivery(format!(r#"{{"id":"{key}"}}"#)).key(&key);
                send(webhooks, delivery.kind(&long_kind(kind)))
                    .await
                    .assert_ok();
            }
        }
        sleep(60 * SECOND).await;
    }
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn pages_are_small_whatever_failed_and_however_often() {
    const KINDS: usize = 20;
    let (budget, recent) = (FailureBudget::default(), Recent::new());
    let silence = (0..KINDS).fold(Silence::new(), |silence, kind| {
        silence.expect(long_kind(kind).parse::<EventKind>().unwrap(), SECOND)
    });
    let observer = (budget.clone(), recent.clone(), silence.clone());
    let header = |n| HeaderName::try_from(format!("x-{n}-{}", "h".repeat(70))).unwrap();
    let inbox = inbox().keep_headers((0..30).map(header));
    let webhooks = Webhooks::new(secret())
        .observer(observer.clone())
        .lane_by(|delivery| Some(delivery.decode::<Value>().ok()?["id"].as_str()?.to_owned()));
    let webhooks = inbox.routes().accept(webhooks).unwrap();
    busy_hour(&webhooks, &inbox, KINDS).await;

    let chat = LONG_CHAT.replace('"', r#"\""#);
    let fill = r#"\""#.repeat(10_000);
    for n in 0..60 {
        // Many lanes, and one of many events.
        for chat in [format!("{}{n:02}", &chat[..60]), chat.clone()] {
            let delivery = delivery(format!(r#"{{"id":"{chat}","x":"{fill}"}}"#));
            let delivery = delivery
                .kind(&long_kind(n % KINDS))
                .key(&format!("{n}-{chat}"));
            let with_headers =
                |delivery: Request<_>, n| delivery.with(header(n).as_str(), "\"".repeat(400));
            let delivery = (0..30).fold(delivery, with_headers);
            send(&webhooks, delivery).await.assert_ok();
        }
    }
    let text = "<&>\"".repeat(300);
    let fails = EventRouter::new().fallback(move |delivery: RawDelivery| {
        let reason = text.clone();
        let kind = delivery.kind().as_str().to_owned();
        async move {
            match kind.ends_with('7') {
                true => Err(HandlerError::dead_letter(reason)),
                false => Err(HandlerError::retry_after(SECOND, reason)),
            }
        }
    });
    let retry = |delay| Retry::default().delays(delay, delay);
    let worker = inbox.work(fails.clone()).retry(retry(SECOND));
    let worker = worker.credit(1_000).spawn();
    sleep(30 * SECOND).await;
    worker.drain(SECOND).await.unwrap();

    let worker = inbox.work(fails.clone()).credit(2).spawn();
    let refuses = EventRouter::new().fallback(async |delivery: RawDelivery| {
        Err(HandlerError::retry(delivery.kind().as_str().repeat(20)))
    });
    let inline = Webhooks::new(secret()).observer(observer).layer(refuses);
    for n in 0..120 {
        for kind in 0..KINDS {
            send(&inline, event("a", n).kind(&long_kind(kind))).await;
        }
        sleep(SECOND).await;
    }
    worker.drain(SECOND).await.unwrap();

    // A failure after a redrive, with the next attempt in a day.
    let first = i64::try_from(KINDS).unwrap() * 90 + 1;
    for n in first..first + 120 {
        inbox.redrive(EventId(n), None).await.unwrap();
    }
    let worker = inbox.work(fails.clone()).retry(retry(DAY));
    let worker = worker.credit(1_000).spawn();
    sleep(SECOND).await;
    worker.drain(SECOND).await.unwrap();

    // Kinds are slowed while their worker runs.
    for n in 20..40 {
        inbox.redrive(EventId(first + 2 * n), None).await.unwrap();
    }
    let worker = inbox.work(fails).retry(retry(DAY)).credit(1);
    let _worker = worker.spawn();
    sleep(SECOND).await;
    let oldest = inbox.get(EventId(first)).await.unwrap().unwrap();
    assert!(oldest.failures.len() > 20, "{oldest:?}");

    let app = Console::new()
        .inbox(inbox)
        .budget(budget)
        .recent(recent)
        .silence(silence)
        .router();
    let app = Router::new().nest("/operations/webhooks/console", app);
    let get = async |path: &str| {
        let path = format!("/operations/webhooks/console{path}");
        get(&app, path.trim_end_matches('/')).await
    };
    let mut others = 0;
    for path in ["/style.css", "/live.js", "/icon.svg"] {
        others += get(path).await.is(200).text.len();
    }
    // Each with a text that is there only if the page is as large as it is meant to be.
    let chat = format!("/chat?id={}", "%22".repeat(LONG_CHAT.len()));
    for (path, shows) in [
        ("/", ">10 other types</a>"),
        ("/kinds", "20 types, worst first"),
        ("/", "none succeeds"),
        ("/", "the sender disables the webhook in"),
        ("/", "at most 2 in a minute"),
        ("/", "one was expected within"),
        ("/history?range=7d", "As a table"),
        ("/history?range=1h", "As a table"),
        ("/events", "/chat?id=%22"),
        ("/events?state=retrying", "next attempt"),
        (&format!("/events/{first}"), "earlier failures"),
        (&format!("/events/{}", first + 1), "x-19-h"),
        (&chat, "Next page"),
        ("/lanes", "Next page"),
    ] {
        let page = get(path).await;
        let size = page.is(200).shows(shows).text.len() + others;
        assert!(size <= 51_000, "{path} and what it loads: {size} bytes");
    }
}

#[tokio::test(start_paused = true)]
async fn what_workers_did_lately_is_shown() {
    let recent = Recent::new();
    let inbox = inbox();
    let webhooks = Webhooks::new(secret()).observer(recent.clone());
    let webhooks = inbox.routes().accept(webhooks).unwrap();
    let crm = NotingCrm::default();
    crm.down.store(true, Ordering::SeqCst);
    send(&webhooks, event("a", 1)).await.assert_ok();
    let worker = inbox.work(crm.router()).spawn();
    sleep(Duration::from_millis(100)).await;
    crm.down.store(false, Ordering::SeqCst);
    *lock(&crm.takes) = Duration::from_millis(1_200);
    inbox.finish().await.unwrap();
    let app = Console::new().inbox(inbox).recent(recent).router();
    get(&app, "/")
        .await
        .is(200)
        .shows("<li><b>1</b> accepted</li>")
        .shows(r#"<small class="bad">1 attempt failed</small>"#);
    get(&app, "/events/1")
        .await
        .is(200)
        .shows("<b>handled</b> after 1.2 s");
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn pages_are_compressed_for_browsers_that_ask() {
    let app = Console::new().inbox(four_events().await).router();
    let length = async |encoding: &str| {
        let page = Request::get("/").header(ACCEPT_ENCODING, encoding);
        let page = page.body(Body::empty()).unwrap();
        let page = app.clone().oneshot(page).await.unwrap();
        let encoding = page.headers().get(CONTENT_ENCODING).cloned();
        let body = page.into_body().collect().await.unwrap().to_bytes();
        (encoding, body.len())
    };
    let (none, whole) = length("identity").await;
    assert_eq!(none, None);
    let (gzip, compressed) = length("gzip, br").await;
    assert_eq!(gzip.unwrap(), "gzip");
    assert!(2 * compressed < whole, "{compressed} of {whole} bytes");
}
