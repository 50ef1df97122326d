//! Each queue under the console, and operators who act at the same time.
//!
//! `REDRIVES=100000` redrives that many events in a file and in PostgreSQL; the default is 11,000, as the console counts
//! up to 10,000.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::body::Body;
use futures_util::StreamExt;
use futures_util::stream;
use http::header::HOST;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::task::yield_now;
use tokio::time::sleep;
use tower::ServiceExt;
use tower_webhook::inbox::internal::{self, Accepted, Lane, NewEvent};
use tower_webhook::inbox::{EventId, EventState, Filter, Inbox, Page, Scope};
use tower_webhook::{EventKind, EventRouter, HandlerError, RawDelivery};
use tower_webhook_console::Console;

use support::SECOND;
use support::delivery::{RequestExt, delivery, send};
use support::inbox::{NotingCrm, Works, inbox, states, webhooks};
use support::queue::{Calls, failure, new_event};

use super::{Seen, all, four_events_of, get, post, request};

#[tokio::test(start_paused = true)]
async fn wrong_requests_get_a_page_that_says_what_is_wrong() {
    explains_wrong_requests(inbox()).await;
}

async fn explains_wrong_requests(inbox: Inbox) {
    let inbox = four_events_of(inbox).await;
    let app = Console::new().inbox(inbox.clone()).router();
    for (path, status, reason) in [
        ("/events/999", 404, "There is no event 999."),
        ("/events/x", 400, "`x` is not the number of an event."),
        ("/events/-1", 404, "There is no event -1."),
        ("/events/99999999999999999999999", 400, "is not the number"),
        (
            "/events?state=lost",
            400,
            "there is no such state: choose one of waiting,",
        ),
        ("/events?kind=caf%C3%A9", 400, "is not an event type"),
        (
            "/events?route=github+a/b",
            400,
            "`a/b` is not the name of a route",
        ),
        ("/events?hours=soon", 400, "is not a number of hours"),
        ("/events?from=soon", 400, "`soon` is not a time such as"),
        ("/events?until=2026-02-30T10:00", 400, "is not a time"),
        ("/events?until=9999-99", 400, "is not a time"),
        ("/events?after=x", 400, "is not the number of an event"),
        (
            "/events?after=9223372036854775808",
            400,
            "is not the number",
        ),
        ("/lanes?after=1.5", 400, "is not the number of an event"),
        ("/events?key=%00", 400, "has no control characters but tabs"),
        ("/chat?id=%00", 404, "There is no event of the chat"),
        ("/chat?id=%FF%FE", 404, "There is no event of the chat"),
        ("/events?state=dead&state=dead", 400, "duplicate field"),
        ("/chat?id=none", 404, "There is no event of the chat"),
        ("/nowhere", 404, "There is no such page."),
        ("/all?action=delete", 400, "is not an action"),
        (
            "/actions/7",
            404,
            "There is no such change of all that match",
        ),
        ("/actions/x", 400, ""),
        ("/selected", 405, "cannot be requested with this method"),
    ] {
        get(&app, path)
            .await
            .is(status)
            .shows(reason)
            .shows("Back to the overview");
    }
    for (path, fields, status) in [
        ("/events/999/redrive", "", 404),
        ("/events/1/explode", "", 400),
        ("/events/1/discard", "", 409),
        ("/selected", "action=redrive", 400),
        ("/selected", "id=1", 400),
        ("/selected", "id=x&action=redrive", 400),
        ("/pause", "of=no+kind", 400),
        ("/all", "action=redrive&state=lost", 400),
        ("/events", "", 405),
        ("/all", "action=redrive&action=discard", 422),
    ] {
        post(&app, path, fields)
            .await
            .is(status)
            .shows("Back to the overview");
    }
    // Cursors that no page has.
    for after in [i64::MIN, -1, 0, i64::MAX] {
        for order in ["newest", "oldest"] {
            for page in ["events?", "lanes?", "chat?id=stuck&"] {
                let path = format!("/{page}after={after}&order={order}");
                get(&app, &path).await.is(200);
            }
        }
    }
    let long = "%F0%9F%92%A5".repeat(1_000);
    for path in [
        "/events?error=%00",
        "/events?chat=%00&state=unsettled",
        "/events?kind=x&error=%25_%5C%27%22",
        "/events?from=9999-12-31T23:59",
        "/events?until=0001-01-01T00:00",
        "/events?from=1970-01-01T00:00&until=9999-12-31T23:59",
        "/events?hours=18446744073709551615",
        &format!("/events?error={long}"),
        &format!("/events?chat={long}"),
        &format!("/chat?id={long}&after=3"),
    ] {
        let status = get(&app, path).await.status;
        assert!(
            matches!(status, StatusCode::OK | StatusCode::BAD_REQUEST),
            "{path}: {status}"
        );
    }
    let large = format!("action=redrive&{}", "id=1&".repeat(500_000));
    for path in ["/selected", "/all", "/pause", "/events/1/redrive"] {
        let refused = post(&app, path, &large).await;
        refused.is(413).shows("Back to the overview");
    }
    let put = Request::builder()
        .method(Method::PUT)
        .uri("/")
        .header("sec-fetch-site", "same-origin");
    request(&app, put.body(Body::empty()).unwrap())
        .await
        .is(405);
    let unchanged = [
        EventState::Handled,
        EventState::Dead,
        EventState::Retrying,
        EventState::Waiting,
    ];
    assert_eq!(states(&inbox).await, unchanged);
}

#[tokio::test(start_paused = true)]
async fn overview_says_in_a_sentence_what_is_wrong() {
    says_what_is_wrong(inbox()).await;
}

async fn says_what_is_wrong(inbox: Inbox) {
    // A console of its own for each page: one that has counted slowly would show these counts again.
    let overview = async |console: Console| get(&console.inbox(inbox.clone()).router(), "/").await;
    let well = overview(Console::new()).await;
    well.is(200)
        .shows(r#"<div class="alert good"><p><b>All is well: </b>nothing is wrong."#)
        .hides("Chats that wait most");

    drop(four_events_of(inbox.clone()).await);
    let dead = "<b>1 dead letter</b> of <b>chat-rated</b> waits for a person.";
    let lane = "1 chat is blocked by an event that has failed: later ones wait for it.";
    let warned = overview(Console::new()).await;
    warned
        .shows(&format!(
            r#"<div class="alert warn"><p><b>Warning: </b>{dead}"#
        ))
        .shows("And 1 more:")
        .shows(&format!(
            r#"<li><span class="badge warn">Warning</span> {lane}"#
        ));
    // The chat and the reason, without a click.
    let (_, blocked) = warned.text.split_once("Chats that wait most").unwrap();
    for shown in [
        r#"<a href="/chat?id=stuck">stuck</a>"#,
        ">1 event</td>",
        r#"<a href="/events/3">event 3</a>, chat-rated"#,
        r#"<b class="bad">failed</b>: the CRM is down"#,
    ] {
        assert!(blocked.contains(shown), "{shown}: {blocked}");
    }
    overview(Console::new().hide_payloads())
        .await
        .shows("(reason hidden)")
        .hides("the CRM is down");

    let dead = stream::iter(0..1_000).map(|n| {
        let kind = if n < 600 {
            "chat-opened"
        } else {
            "chat-closed"
        };
        accept_dead(&inbox, kind.parse().unwrap(), n)
    });
    dead.buffer_unordered(64).collect::<Vec<_>>().await;
    inbox.pause(Scope::Everything, "").await.unwrap();
    overview(Console::new())
        .await
        .shows(r#"<div class="alert bad"><p><b>Critical: </b><b>1,001 dead letters</b> of <b>chat-opened</b>, <b>chat-closed</b> and 1 more wait for a person. <a href="/events?state=dead">"#)
        .shows("And 2 more:")
        .shows("Everything is paused.")
        // The total.
        .shows(r#"<a class="bad" href="/events?state=dead">1,001</a>"#)
        .shows(r#"<a class="bad" href="/events?state=dead&amp;route=chat-platform&amp;kind=chat-opened">600</a>"#);
}

#[tokio::test(start_paused = true)]
async fn failed_events_are_found_by_their_last_failure_and_redriven() {
    finds_what_failed(inbox()).await;
}

async fn finds_what_failed(inbox: Inbox) {
    let inbox = four_events_of(inbox).await;
    let app = Console::new().inbox(inbox.clone()).router();
    let listed = async |query: &str| {
        let list = get(&app, &format!("/events?{query}")).await;
        let has = |id: &i64| {
            list.is(200)
                .text
                .contains(&format!(r#"href="/events/{id}""#))
        };
        [1, 2, 3, 4].into_iter().filter(has).collect::<Vec<i64>>()
    };
    assert_eq!(listed("state=failed").await, [2, 3]);
    assert_eq!(listed("state=failed&error=CRM").await, [3]);

    // The event that is retried fails again, and the dead letter does not.
    let fails = EventRouter::new()
        .fallback(async |_: RawDelivery| Err(HandlerError::retry("timeout of the CRM")));
    let last = async || {
        let failures = inbox.get(EventId(3)).await.unwrap().unwrap().failures;
        failures.last().unwrap().at
    };
    let before = last().await;
    sleep(2 * SECOND).await;
    inbox.redrive(EventId(3), None).await.unwrap();
    let worker = inbox.work(fails).only([EventKind::CHAT_RATED]).spawn();
    sleep(SECOND).await;
    worker.drain(SECOND).await.unwrap();
    assert!(last().await >= before + 2 * SECOND);
    let between = field(before + 2 * SECOND);
    assert_eq!(listed(&format!("state=failed&from={between}")).await, [3]);
    assert_eq!(listed(&format!("state=failed&until={between}")).await, [2]);
    let all = format!("state=failed&error=timeout&from={between}");
    assert_eq!(listed(&all).await, [3]);

    let asked = get(&app, &format!("/all?action=redrive&{all}")).await;
    asked
        .is(200)
        .shows("redrive 1 event?")
        .shows("<dt>State</dt><dd>failed</dd>")
        .shows("<dt>Error contains</dt><dd>timeout</dd>")
        .shows(r#"<a href="/events/3">3</a>"#)
        .shows("timeout of the CRM");
    let worker = inbox.work(NotingCrm::default().router()).spawn();
    super::all(&app, &format!("action=redrive&{all}"))
        .await
        .is(303);
    inbox.finish().await.unwrap();
    // Handled events no longer match.
    assert_eq!(listed("state=failed").await, [2]);
    assert!(listed(&all).await.is_empty());
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn one_box_finds_events_by_chat_key_and_number() {
    finds_in_one_box(inbox()).await;
}

async fn finds_in_one_box(inbox: Inbox) {
    let webhooks = webhooks(&inbox);
    for (chat, key) in [("3", "x"), ("b", "3"), ("c", "y"), ("3", "z")] {
        let body = format!(r#"{{"id":"{chat}","rating":1}}"#);
        send(&webhooks, delivery(body).key(key)).await.assert_ok();
    }
    let app = Console::new().inbox(inbox).router();
    let found = async |wanted: &str| {
        let page = get(&app, &format!("/find?id={wanted}")).await;
        let links = page.is(200).text.split(r#"<td><a href="/events/"#).skip(1);
        let ids = links.map(|link| link.split('"').next().unwrap().parse().unwrap());
        (ids.collect::<Vec<i64>>(), page)
    };
    let (ids, page) = found("3").await;
    assert_eq!(ids, [3, 2, 4, 1]);
    for title in ["event with this number", "with this key", "of this chat"] {
        page.shows(title);
    }
    page.shows(r#"<a href="/chat?id=3">All events of the chat"#);
    assert_eq!(found("+y+").await.0, [3]);
    assert_eq!(found("b").await.0, [2]);
    // All of them have the text, too. None is shown twice.
    assert_eq!(found("1").await.0, [1, 4, 3, 2]);
    let (ids, page) = found("rating").await;
    assert_eq!(ids, [4, 3, 2, 1]);
    page.shows(r#"<a id="text" href="/events?payload=rating">Search all payloads"#);
    for unknown in ["5", "-1", "%00", "%C3%A9", "99999999999999999999999"] {
        let (ids, page) = found(unknown).await;
        assert!(ids.is_empty(), "{ids:?}");
        page.shows("No event has this number or key");
    }
    get(&app, "/find?id=+")
        .await
        .is(400)
        .shows("Which chat, key");
    get(&app, "/find").await.is(400).shows("Which chat, key");
    let without = Console::new().router();
    get(&without, "/find?id=3").await.is(404);
    get(&without, "/").await.hides("search");
}

#[tokio::test(start_paused = true)]
async fn pauses_have_a_reason_and_are_on_every_page() {
    shows_pauses(inbox()).await;
}

async fn shows_pauses(inbox: Inbox) {
    let inbox = four_events_of(inbox).await;
    let app = Console::new().inbox(inbox.clone()).router();
    get(&app, "/pause?of=chat-rated")
        .await
        .is(200)
        .shows("Pause chat-rated?")
        .shows(r#"<input type="hidden" name="of" value="chat-rated">"#);
    get(&app, "/pause").await.is(200).shows("Pause everything?");
    get(&app, "/pause?of=no+kind").await.is(400);
    for silent in ["of=chat-rated", "of=chat-rated&reason=+"] {
        post(&app, "/pause", silent).await.is(400).shows("Say why");
    }
    assert!(inbox.stats().await.unwrap().pauses.is_empty());

    let reason = "the CRM&apos;s <b>down</b>";
    let reason: String = form_urlencoded::byte_serialize(reason.as_bytes()).collect();
    let paused = post(&app, "/pause", &format!("of=chat-rated&reason={reason}")).await;
    let location = paused.is(303).location.clone().unwrap();
    get(&app, &location).await.shows("chat-rated was paused.");
    let read_only = Console::new().inbox(inbox.clone()).read_only().router();
    for path in [
        "/",
        "/events",
        "/events/1",
        "/lanes",
        "/chat?id=stuck",
        "/nowhere",
    ] {
        for (app, can_resume) in [(&app, true), (&read_only, false)] {
            let page = get(app, path).await;
            page.shows("<b>chat-rated is paused</b> since ")
                .shows("the CRM&amp;apos;s &lt;b&gt;down&lt;/b&gt;");
            assert_eq!(page.text.contains("Resume"), can_resume, "{path}");
        }
    }
    let waits = "not tried before somebody resumes chat-rated";
    get(&app, "/events/4").await.shows(waits);
    get(&app, "/events/2").await.hides(waits);
    inbox.pause(Scope::Everything, "ada").await.unwrap();
    get(&app, "/events")
        .await
        .shows("<b>everything is paused</b>");
    post(&app, "/resume", "").await.is(303);
    let resumed = post(&app, "/resume", "of=chat-rated").await;
    let location = resumed.is(303).location.clone().unwrap();
    get(&app, &location)
        .await
        .shows("chat-rated was resumed.")
        .hides("is paused");
    assert!(inbox.stats().await.unwrap().pauses.is_empty());
}

#[tokio::test(start_paused = true)]
async fn exports_have_what_the_filter_shows() {
    exports(inbox()).await;
}

/// The parts of a file, as they arrive.
async fn download(app: &Router, path: &str) -> (HeaderMap, Vec<String>) {
    let request = Request::get(path).header(HOST, "localhost:3001");
    let request = request.body(Body::empty()).unwrap();
    let answer = app.clone().oneshot(request).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let (head, mut body) = answer.into_parts();
    let mut parts = Vec::new();
    while let Some(frame) = body.frame().await {
        let data = frame.unwrap().into_data().unwrap();
        parts.push(String::from_utf8(data.to_vec()).unwrap());
    }
    (head.headers, parts)
}

async fn exports(inbox: Inbox) {
    const COUNT: usize = 700;
    const FORMULA: &str = "=HYPERLINK(\"http://evil\")";
    let dead = stream::iter(0..COUNT).map(|n| accept_dead(&inbox, EventKind::CHAT_RATED, n));
    dead.buffer_unordered(64).collect::<Vec<_>>().await;
    let texts = [
        FORMULA,
        "+1",
        "-1",
        "@SUM(A1)",
        "\t1",
        "\r1",
        "a\nb,\"c\"",
        "1=1",
    ];
    for text in texts {
        let event = NewEvent {
            chat: Some(text.to_owned()),
            ..dead_letter(EventKind::CHAT_CLOSED, 0, text)
        };
        internal::queue(&inbox)
            .accept_one(event, None)
            .await
            .unwrap();
    }
    let console = || Console::new().inbox(inbox.clone()).read_only();
    let app = console().router();
    let (headers, parts) = download(&app, "/export?state=dead&kind=chat-rated&format=jsonl").await;
    assert_eq!(headers["content-type"], "application/x-ndjson");
    assert_eq!(
        headers["content-disposition"],
        "attachment; filename=\"events.jsonl\""
    );
    // A part is in memory at a time: more events after one whose payloads are small.
    let mut sizes = parts.iter().map(|part| part.lines().count());
    assert_eq!(sizes.next(), Some(8));
    assert!(sizes.all(|events| events <= 64));
    let lines: Vec<Value> = parts
        .iter()
        .flat_map(|part| part.lines())
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let ids: Vec<_> = lines
        .iter()
        .map(|line| line["id"].as_u64().unwrap())
        .collect();
    let newest_first: Vec<_> = (1..=COUNT as u64).rev().collect();
    assert_eq!(ids, newest_first);
    let payloads: HashSet<_> = lines
        .iter()
        .map(|line| line["payload"].as_str().unwrap())
        .collect();
    assert!(payloads.len() == COUNT && payloads.contains(r#"{"n":7}"#));
    assert_eq!(lines[0]["failures"][0]["reason"], "the CRM is down");
    let (_, oldest) = download(&app, "/export?order=oldest&format=jsonl").await;
    let oldest = oldest.concat();
    assert!(oldest.starts_with("{") && oldest.lines().count() == COUNT + texts.len());

    let csv = async |app: &Router| {
        download(app, "/export?kind=chat-closed&order=oldest&format=csv").await
    };
    let (headers, parts) = csv(&app).await;
    assert_eq!(headers["content-type"], "text/csv; charset=utf-8");
    let text = parts.concat();
    assert!(
        text.starts_with("\"id\",\"route\",\"kind\",\"chat\",\"key\","),
        "{text}"
    );
    for cell in [
        "\"'=HYPERLINK(\"\"http://evil\"\")\"",
        "\"'+1\"",
        "\"'-1\"",
        "\"'@SUM(A1)\"",
        "\"'\t1\"",
        "\"'\r1\"",
        "\"a\nb,\"\"c\"\"\"",
        "\"1=1\"",
    ] {
        // As the chat, and as the reason.
        assert_eq!(
            text.matches(&format!(",{cell},")).count(),
            2,
            "{cell}: {text}"
        );
    }
    assert_eq!(text.matches(r#","{""n"":0}""#).count(), texts.len());

    let hidden = console().hide_payloads().router();
    let (_, parts) = csv(&hidden).await;
    let text = parts.concat();
    assert!(
        !text.contains("payload") && !text.contains("\"n\""),
        "{text}"
    );
    assert_eq!(text.matches("1=1").count(), 1, "{text}");
    let (_, parts) = download(&hidden, "/export?kind=chat-rated&format=jsonl").await;
    let text = parts.concat();
    assert_eq!(text.lines().count(), COUNT);
    assert!(!text.contains("payload") && !text.contains("CRM"), "{text}");

    for (query, status) in [
        ("format=xml", 400),
        ("", 400),
        ("format=csv&state=lost", 400),
        ("format=csv&from=soon", 400),
    ] {
        get(&app, &format!("/export?{query}")).await.is(status);
    }
    let (_, none) = download(&app, "/export?chat=none&format=jsonl").await;
    assert_eq!(none.concat(), "");

    for n in 0..24 {
        let body = format!(r#"{{"n":"{}"}}"#, "x".repeat(64 << 10));
        let event = NewEvent {
            delivery: RawDelivery::new(EventKind::CHAT_ASSIGNED, body),
            ..dead_letter(EventKind::CHAT_ASSIGNED, n, "large")
        };
        internal::queue(&inbox)
            .accept_one(event, None)
            .await
            .unwrap();
    }
    let (_, parts) = download(&app, "/export?kind=chat-assigned&format=jsonl").await;
    let sizes: Vec<_> = parts.iter().map(|part| part.lines().count()).collect();
    assert_eq!(sizes, [8, 8, 8]);
}

/// Writes a time as the field of a form.
fn field(at: SystemTime) -> String {
    let date = httpdate::fmt_http_date(at);
    let parts: Vec<_> = date.split(' ').collect();
    let months = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let month = months.find(parts[2]).unwrap() / 3 + 1;
    format!("{}-{month:02}-{}T{}", parts[3], parts[1], parts[4])
}

/// Adds a dead letter.
async fn accept_dead(inbox: &Inbox, kind: EventKind, n: usize) -> EventId {
    let event = dead_letter(kind, n, "the CRM is down");
    match internal::queue(inbox)
        .accept_one(event, None)
        .await
        .unwrap()
    {
        Accepted::New { id, .. } => id,
        other => panic!("{other:?}"),
    }
}

fn dead_letter(kind: EventKind, n: usize, reason: &str) -> NewEvent {
    NewEvent {
        lane: Some(Lane((n % 1_000) as i64)),
        dead: Some(failure(reason)),
        ..new_event(kind, format!(r#"{{"n":{n}}}"#))
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_redrive_of_100_000_events_loses_and_duplicates_nothing() {
    cancelled_redrive(inbox(), 100_000).await;
}

/// Redrives so many dead letters, more than the console counts, and cancels half-way. A worker handles them meanwhile.
async fn cancelled_redrive(inbox: Inbox, count: usize) {
    let accept = async |kind, n| (accept_dead(&inbox, kind, n).await, n);
    let accepted = stream::iter(0..count).map(|n| accept(EventKind::CHAT_RATED, n));
    let mut numbers: HashMap<_, _> = accepted.buffer_unordered(256).collect().await;
    numbers.extend([accept(EventKind::CHAT_CLOSED, count).await]);

    let runs: Arc<Vec<_>> = Arc::new((0..=count).map(|_| AtomicU32::new(0)).collect());
    let counted = Arc::clone(&runs);
    let events = EventRouter::new().fallback(move |delivery: RawDelivery| {
        let body = std::str::from_utf8(delivery.body()).unwrap();
        let n = body.trim_start_matches(r#"{"n":"#).trim_end_matches('}');
        let n: usize = n.parse().unwrap();
        counted[n].fetch_add(1, Ordering::SeqCst);
        async { Ok(()) }
    });
    let worker = inbox.work(events).spawn();

    let app = Console::new().inbox(inbox.clone()).router();
    // With a time, the queue's own counts do not have the number.
    let redrive = "action=redrive&state=dead&kind=chat-rated&hours=24";
    let redriven = |page: &Seen| -> usize {
        let (before, _) = page.text.split_once(" redriven<").unwrap();
        let number = before.rsplit('>').next().unwrap().replace(',', "");
        number.parse().unwrap()
    };
    let begun = all(&app, redrive).await.is(303).location.clone().unwrap();
    // Paused time stands still until the change has ended.
    while redriven(&get(&app, &begun).await) < count / 2 {
        for _ in 0..50 {
            yield_now().await;
        }
    }
    get(&app, &begun)
        .await
        .shows("at least ")
        .shows("up to event ");
    post(&app, &format!("{begun}/cancel"), "").await.is(303);
    let page = get(&app, &begun).await;
    page.shows("Cancelled.").hides("Done.");
    inbox.finish().await.unwrap();
    page.hides("at least ");
    let (percent, _) = page.text.split_once(r#"" max="100""#).unwrap();
    let percent: usize = percent.rsplit('"').next().unwrap().parse().unwrap();
    assert!((40..100).contains(&percent), "{percent} %");
    let redriven = redriven(&page);
    assert!((count / 2..count).contains(&redriven), "{redriven}");
    let handled: u32 = runs.iter().map(|runs| runs.load(Ordering::SeqCst)).sum();
    assert_eq!(handled as usize, redriven);
    let stats = inbox.stats().await.unwrap();
    assert_eq!(stats.dead() as usize, count - redriven + 1);
    // Those that are left were not handled, and all others once.
    let mut page = Page::oldest(1_000);
    let dead = Filter::default().states([EventState::Dead]);
    loop {
        let left = inbox.list(&dead, page).await.unwrap().events;
        for event in &left {
            assert_eq!(runs[numbers[&event.id]].load(Ordering::SeqCst), 0);
        }
        page.after = left.last().map(|event| event.id);
        if left.len() < page.limit {
            break;
        }
    }
    assert!(runs.iter().all(|runs| runs.load(Ordering::SeqCst) <= 1));

    // The rest, by a second change.
    let rest = all(&app, redrive).await.is(303).location.clone().unwrap();
    while !get(&app, &rest).await.text.contains("Done.") {
        sleep(Duration::from_millis(1)).await;
    }
    inbox.finish().await.unwrap();
    let (other, all) = runs.split_last().unwrap();
    assert!(all.iter().all(|runs| runs.load(Ordering::SeqCst) == 1));
    assert_eq!(other.load(Ordering::SeqCst), 0);
    assert_eq!(inbox.stats().await.unwrap().dead(), 1);
    drop(worker);
}

#[cfg(all(feature = "postgres", feature = "sqlite"))]
mod durable {
    use axum::Router;
    use futures_util::future::join;
    use http::StatusCode;
    use tower_webhook::inbox::{EventState, Filter, Inbox, Page, Queue};
    use tower_webhook::memory::MemoryQueue;
    use tower_webhook_console::Console;

    use super::{
        cancelled_redrive, explains_wrong_requests, exports, finds_in_one_box, finds_what_failed,
        get, post, says_what_is_wrong, shows_pauses,
    };
    use support::database::Database;
    use support::delivery::{RequestExt, delivery, send};
    use support::inbox::webhooks;
    use support::scratch::Scratch;

    fn console(inbox: &Inbox) -> Router {
        Console::new().inbox(inbox.clone()).router()
    }

    /// Two processes have a console each. Two operators see the same dead letters, and decide at the same moment.
    async fn decided_once(queue: impl Into<Queue>, of_other: impl Into<Queue>) {
        let inbox = Inbox::new(queue);
        let other = Inbox::new(of_other);
        let (one, two) = (console(&inbox), console(&other));
        for n in 0..40 {
            let dead = delivery(format!("[{n}]")).key(&n.to_string());
            send(&webhooks(&inbox), dead).await.assert_ok();
        }
        let listed = inbox.list(&Filter::default(), Page::oldest(100)).await;
        let listed = listed.unwrap().events;
        assert_eq!(listed.len(), 40);
        for (n, event) in listed.iter().enumerate() {
            let path = |action| format!("/events/{}/{action}", event.id);
            let second = if n % 2 == 0 { "redrive" } else { "discard" };
            let (redrive, second_path) = (path("redrive"), path(second));
            let (first, second) = join(
                post(&one, &redrive, "state=dead"),
                post(&two, &second_path, "state=dead"),
            )
            .await;
            let expected = match (first.status, second.status) {
                (StatusCode::SEE_OTHER, StatusCode::CONFLICT) => EventState::Retrying,
                (StatusCode::CONFLICT, StatusCode::SEE_OTHER) if n % 2 == 0 => EventState::Retrying,
                (StatusCode::CONFLICT, StatusCode::SEE_OTHER) => EventState::Discarded,
                other => panic!("{other:?}"),
            };
            let state = inbox.get(event.id).await.unwrap().unwrap().summary.state;
            assert_eq!(state, expected);
            get(&two, &format!("/events/{}", event.id))
                .await
                .is(200)
                .shows(expected.name());
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn one_of_two_operators_decides() {
        let memory = MemoryQueue::new();
        decided_once(memory.clone(), memory).await;
        let file = Scratch::new();
        decided_once(file.queue(), file.queue()).await;
        let database = Database::create().await;
        decided_once(database.queue().await, database.queue().await).await;
    }

    #[tokio::test]
    async fn wrong_requests_are_explained_by_a_console_of_a_file_or_a_database() {
        let file = Scratch::new();
        explains_wrong_requests(Inbox::new(file.queue())).await;
        let database = Database::create().await;
        explains_wrong_requests(Inbox::new(database.queue().await)).await;
    }

    #[tokio::test]
    async fn overview_of_a_file_or_a_database_says_in_a_sentence_what_is_wrong() {
        let file = Scratch::new();
        says_what_is_wrong(Inbox::new(file.queue())).await;
        let database = Database::create().await;
        says_what_is_wrong(Inbox::new(database.queue().await)).await;
    }

    #[tokio::test]
    async fn failed_events_of_a_file_or_a_database_are_found_and_redriven() {
        let file = Scratch::new();
        finds_what_failed(Inbox::new(file.queue())).await;
        let database = Database::create().await;
        finds_what_failed(Inbox::new(database.queue().await)).await;
    }

    #[tokio::test]
    async fn one_box_finds_events_of_a_file_or_a_database() {
        let file = Scratch::new();
        finds_in_one_box(Inbox::new(file.queue())).await;
        let database = Database::create().await;
        finds_in_one_box(Inbox::new(database.queue().await)).await;
    }

    #[tokio::test]
    async fn pauses_of_a_file_or_a_database_are_on_every_page() {
        let file = Scratch::new();
        shows_pauses(Inbox::new(file.queue())).await;
        let database = Database::create().await;
        shows_pauses(Inbox::new(database.queue().await)).await;
    }

    #[tokio::test]
    async fn exports_of_a_file_or_a_database_have_what_the_filter_shows() {
        let file = Scratch::new();
        exports(Inbox::new(file.queue())).await;
        let database = Database::create().await;
        exports(Inbox::new(database.queue().await)).await;
    }

    fn redrives() -> usize {
        std::env::var("REDRIVES").map_or(11_000, |count| count.parse().unwrap())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn cancelled_redrive_in_a_file_loses_and_duplicates_nothing() {
        let file = Scratch::new();
        cancelled_redrive(Inbox::new(file.queue()), redrives()).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn cancelled_redrive_in_postgres_loses_and_duplicates_nothing() {
        let database = Database::create().await;
        cancelled_redrive(Inbox::new(database.queue().await), redrives()).await;
    }
}
