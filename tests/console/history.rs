//! What was counted, and what was refused.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use axum::Router;
use axum::extract::ConnectInfo;
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::time::sleep;
use tower_webhook::inbox::Inbox;
use tower_webhook::telemetry::Recent;
use tower_webhook::{EventRouter, HandlerError, RawDelivery, Receiver, Running, Webhooks};
use tower_webhook_console::Console;

use support::Ready;
use support::delivery::{RequestExt, SIGNATURE, delivery, secret, send};
use support::inbox::{NotingCrm, event, inbox};
use support::{DAY, HOUR, MINUTE, SECOND};

use super::get;

struct Desk {
    inbox: Inbox,
    webhooks: Receiver,
    recent: Recent,
    crm: NotingCrm,
    _running: Running,
}

impl Desk {
    fn new() -> Self {
        let (recent, crm) = (Recent::new(), NotingCrm::default());
        let inbox = inbox();
        let webhooks = Webhooks::new(secret()).observer(recent.clone());
        let (webhooks, running) = webhooks.inbox(inbox.clone()).start(crm.router()).unwrap();
        Self {
            webhooks,
            _running: running,
            inbox,
            recent,
            crm,
        }
    }

    fn console(&self) -> Router {
        let console = Console::new().inbox(self.inbox.clone());
        console.recent(self.recent.clone()).router()
    }

    async fn refuse(&self, request: Request<Full<Bytes>>, times: usize) {
        for _ in 0..times {
            let answered = send(&self.webhooks, request.clone()).await;
            assert!(!answered.status.is_success(), "{answered:?}");
        }
    }
}

/// The minute of the last row with a reason, as a page is asked for it.
fn minute(page: &str, reason: &str) -> String {
    let (before, _) = page.rsplit_once(reason).unwrap();
    let (_, time) = before.rsplit_once("datetime=\"").unwrap();
    time[..16].to_owned()
}

/// As axum's server does with `into_make_service_with_connect_info`.
#[tokio::test(start_paused = true)]
async fn the_address_of_axums_server_is_that_of_a_refusal() {
    let desk = Desk::new();
    let mut forged = event("a", 1).with(SIGNATURE, "0".repeat(64));
    let peer: SocketAddr = "192.0.2.7:4711".parse().unwrap();
    forged.extensions_mut().insert(ConnectInfo(peer));
    desk.refuse(forged, 1).await;
    sleep(2 * SECOND).await;
    let page = get(&desk.console(), "/refusals").await;
    page.is(200).shows(">192.0.2.7</td>");
}

#[tokio::test(start_paused = true)]
async fn refusals_are_shown_by_minute_with_a_sample() {
    let desk = Desk::new();
    let mut forged = event("a", 1)
        .with(SIGNATURE, "0".repeat(64))
        .with("x-request-id", "<script>")
        .with("x-forwarded-for", "203.0.113.9")
        .with("content-length", "21");
    let peer: SocketAddr = "192.0.2.7:4711".parse().unwrap();
    forged.extensions_mut().insert(peer);
    desk.refuse(forged, 3).await;
    sleep(2 * MINUTE).await;
    desk.refuse(
        delivery("{}").with("content-type", "text/plain").key("k-2"),
        1,
    )
    .await;
    sleep(2 * SECOND).await;

    let app = desk.console();
    let page = get(&app, "/refusals").await;
    page.is(200)
        .shows("invalid-signature")
        .shows("not verified")
        .shows("192.0.2.7 for 203.0.113.9")
        .shows(">21</td>")
        .shows("&lt;script&gt;")
        .shows(">a-1</td>")
        .shows("unsupported-media-type")
        .shows("a kill loses those of its last second")
        .hides("<script>");
    let rows = page.text.split_once("id=\"rows\"").unwrap().1;
    let [newest, oldest] =
        ["unsupported-media-type", "invalid-signature"].map(|reason| rows.find(reason).unwrap());
    assert!(newest < oldest);
    get(
        &app,
        &format!("/refusals?until={}", minute(rows, "invalid-signature")),
    )
    .await
    .shows("invalid-signature")
    .shows(">3</td>")
    .hides("unsupported-media-type");
    get(&app, "/refusals?until=2020-01-01T03:12")
        .await
        .is(200)
        .shows("None.");
    get(&app, "/refusals?until=9999-12-31T23:59&unknown=1")
        .await
        .is(200)
        .shows("invalid-signature");
    get(&app, "/refusals?until=yesterday")
        .await
        .is(400)
        .shows("is not a time");

    // What is known of a chat is forgotten.
    send(&desk.webhooks, event("a", 1)).await.assert_ok();
    sleep(2 * SECOND).await;
    desk.inbox.forget("a").await.unwrap();
    let page = get(&app, "/refusals").await;
    page.shows("invalid-signature")
        .hides(">a-1</td>")
        .shows(">k-2</td>");
    // Addresses of others are kept, as no chat has them.
    let rows = page.text.split_once("id=\"rows\"").unwrap().1;
    assert!(!rows.contains("192.0.2.7"), "{rows}");
    sleep(8 * DAY).await;
    get(&app, "/refusals")
        .await
        .is(200)
        .shows("None.")
        .hides("192.0.2.7");
}

#[tokio::test(start_paused = true)]
async fn refusals_are_paged_by_whole_minutes() {
    let desk = Desk::new();
    for _ in 0..100 {
        desk.refuse(event("a", 1).with(SIGNATURE, "0"), 1).await;
        sleep(MINUTE).await;
    }
    sleep(2 * SECOND).await;
    let app = desk.console();
    let (mut path, mut rows) = ("/refusals".to_owned(), Vec::new());
    loop {
        let page = get(&app, &path).await;
        rows.push(
            page.is(200)
                .text
                .split_once("id=\"rows\"")
                .unwrap()
                .1
                .matches("invalid-signature")
                .count(),
        );
        assert!(page.text.len() < 40_000, "{}", page.text.len());
        let Some((_, rest)) = page.text.split_once("href=\"/refusals?until=") else {
            break;
        };
        path = format!("/refusals?until={}", rest.split_once('"').unwrap().0);
    }
    assert_eq!(rows, [40, 40, 20]);
}

#[tokio::test(start_paused = true)]
async fn history_compares_a_day_with_the_day_before() {
    let desk = Desk::new();
    for n in 0..5 {
        send(&desk.webhooks, event("a", n)).await.assert_ok();
    }
    desk.refuse(event("a", 1).with(SIGNATURE, "0"), 4).await;
    sleep(25 * HOUR).await;
    for n in 5..12 {
        send(&desk.webhooks, event("a", n)).await.assert_ok();
    }
    sleep(SECOND).await;
    desk.crm.down.store(true, Ordering::SeqCst);
    send(&desk.webhooks, event("b", 1)).await.assert_ok();
    sleep(2 * SECOND).await;

    let app = desk.console();
    let numbers = |text: &str, name: &str| {
        let row = text.split(&format!("<th scope=\"row\">{name}</th>")).nth(1);
        let cells = row.unwrap_or_else(|| panic!("no {name}: {text}"));
        let cell = |label: &str| {
            let cell = cells
                .split_once(&format!("data-label=\"{label}\">"))
                .unwrap()
                .1;
            let cell = cell.split_once("</td>").unwrap().0;
            cell.replace("<b>", "").replace("</b>", "")
        };
        (cell("Number"), cell("Before"))
    };
    let day = get(&app, "/history").await;
    day.is(200).shows("The last 24 hours").shows("<svg");
    for (name, now, before) in [
        ("Accepted", "8", "5"),
        ("Handled", "7", "5"),
        ("Dead letters", "0", "0"),
        ("Refused", "0", "4"),
        ("invalid-signature", "0", "4"),
    ] {
        let expected = (now.to_owned(), before.to_owned());
        assert_eq!(numbers(&day.text, name), expected, "{name}");
    }
    assert_ne!(numbers(&day.text, "Failed attempts").0, "0");
    for (range, accepted) in [("1h", "8"), ("7d", "13")] {
        let page = get(&app, &format!("/history?range={range}")).await;
        assert_eq!(numbers(&page.is(200).text, "Accepted").0, accepted);
    }
    let month = get(&app, "/history?range=30d").await;
    month
        .is(200)
        .shows(r#"<td class="number" data-label="Number"><b>13</b></td>"#)
        .hides("Before");
    for range in ["1h", "24h", "7d", "30d"] {
        let page = get(&app, &format!("/history?range={range}")).await;
        assert!(page.text.len() < 40_000, "{range}: {}", page.text.len());
    }
    // One kind alone, and a refused request that has none.
    day.shows(r#"<a href="/history?range=24h&amp;route=chat-platform&amp;kind=chat-rated">chat-rated</a>"#);
    for (kind, accepted) in [
        ("chat-rated", "8"),
        ("chat-closed", "0"),
        ("%3Cscript%3E", "0"),
    ] {
        let page = get(&app, &format!("/history?kind={kind}")).await;
        page.is(200).hides("<script>").hides("invalid-signature");
        assert_eq!(numbers(&page.text, "Accepted").0, accepted, "{kind}");
    }
    get(&app, "/history?range=forever&x=1")
        .await
        .is(400)
        .shows("The ranges are 1h, 24h, 7d and 30d.");
    // The whole is there for whoever does not see the charts.
    day.shows("As a table")
        .shows(r#"role="img" aria-label="Accepted: at most"#);
}

#[tokio::test(start_paused = true)]
async fn the_history_of_each_of_many_types_is_found() {
    let desk = Desk::new();
    for n in 10..40 {
        let event = event("a", n).kind(&format!("type-{n}"));
        send(&desk.webhooks, event).await.assert_ok();
    }
    sleep(2 * SECOND).await;
    let app = desk.console();
    let page = get(&app, "/history?range=1h").await;
    page.shows(r#"<option value="type-30">"#)
        .hides(r#"kind=type-30""#);
    for path in [
        "/history?range=1h&type=type-30",
        "/history?range=1h&type=chat-platform%2Ftype-30",
    ] {
        get(&app, path)
            .await
            .is(200)
            .shows("The last hour, type-30")
            .shows(r#"<b>1</b></td>"#)
            .hides(r#"<b>30</b></td>"#);
    }
    get(&app, "/history?type=%2F")
        .await
        .is(400)
        .shows("is not an event type");
    get(&app, "/kinds")
        .await
        .shows(r#"<a href="/history?route=chat-platform&amp;kind=type-30""#);
}

#[tokio::test(start_paused = true)]
async fn a_day_is_compared_with_the_same_weekday_a_week_before() {
    let desk = Desk::new();
    let app = desk.console();
    let now = async || {
        let page = get(&app, "/history?range=1h").await.text;
        // The newest row.
        let (_, table) = page.split_once("As a table").unwrap();
        let (_, now) = table.split_once("datetime=\"").unwrap();
        now[..16].to_owned()
    };
    // The day does not end before the test does.
    if now().await.contains("T23:") {
        sleep(2 * HOUR).await;
    }
    let send_all = async |keys: std::ops::Range<usize>| {
        for n in keys {
            send(&desk.webhooks, event("a", n)).await.assert_ok();
        }
        sleep(2 * SECOND).await;
    };
    send_all(0..5).await;
    sleep(7 * DAY).await;
    send_all(5..12).await;
    let day = now().await[..10].to_owned();
    let page = get(&app, &format!("/history?day={day}&kind=chat-rated")).await;
    page.is(200)
        .shows("Before: on the same weekday a week before, up to the same time.")
        .shows(&format!(
            r#"name="day" required aria-label="Day (UTC)" value="{day}""#
        ))
        .shows(r#"<input type="hidden" name="kind" value="chat-rated">"#)
        .shows(r#"data-label="Number"><b>7</b></td><td class="number" data-label="Before">5</td>"#)
        // The chart says when most was, and how much.
        .shows("<span>at most <b>7</b> in 30 minutes, <time")
        // Its axes have an even maximum, half of it and 0, and the beginning, the middle and the end of the day.
        .shows(r#"<div class="plot"><small><span>8</span><span>4</span><span>0</span></small><svg"#)
        .shows(r#"<small class="axis"><time>00:00</time>"#)
        .shows(&format!(r#"href="/history?day={day}">"#));
    let week_ago = get(&app, "/history?range=7d").await;
    week_ago.is(200).shows(r#"data-label="Number"><b>"#);
    for wrong in ["yesterday", "2026-02-30", "2026-11-20T00:00"] {
        get(&app, &format!("/history?day={wrong}"))
            .await
            .is(400)
            .shows("is not a day such as");
    }
}

#[tokio::test(start_paused = true)]
async fn without_an_inbox_they_are_those_of_this_process() {
    let recent = Recent::new();
    let fails = EventRouter::new()
        .fallback(async |_: RawDelivery| Err(HandlerError::retry("the CRM is down")));
    let service = Webhooks::new(secret())
        .observer(recent.clone())
        .layer(fails);
    send(&service, event("a", 1)).await;
    let app = Console::new().recent(recent).router();
    get(&app, "/")
        .await
        .shows(r#"href="/history""#)
        .shows(r#"href="/refusals""#);
    get(&app, "/refusals")
        .await
        .is(200)
        .shows("<b class=\"bad\">failed</b>")
        .shows("chat-rated")
        .shows("Counts of this process in the last hour.");
    get(&app, "/history")
        .await
        .is(200)
        .shows("The last hour")
        .shows("<th scope=\"row\">failed</th>")
        .hides("Before");
    let nothing = Console::new().router();
    get(&nothing, "/").await.hides("/history");
    get(&nothing, "/history").await.is(200);
}
