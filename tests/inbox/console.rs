//! The operator's console, over a memory queue.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tower_webhook::inbox::internal::Work;

use axum::Router;
use axum::body::Body;
use futures_util::StreamExt;
use futures_util::stream;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, HOST, HeaderName, LOCATION};
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::task::yield_now;
use tokio::time::sleep;
use tower::{Layer, ServiceExt};
use tower_webhook::console::Console;
use tower_webhook::inbox::internal::{Accepted, Namespace, NewEvent, Take};
use tower_webhook::inbox::{
    Accept, EventId, EventState, Failure, Filter, Inbox, Kinds, Lane, Page, Queue, Retry,
};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::signature::Signature;
use tower_webhook::telemetry::{FailureBudget, Recent, Silence};
use tower_webhook::{EventKind, EventRouter, HandlerError, RawDelivery, SignatureLayer, Webhooks};
use tracing::Level;

use super::worker::{Crm, DAY, SECOND, event, inbox, states, webhooks};
use support::Ready;
use support::delivery::{RequestExt, SIGNATURE, delivery, secret, send};
use support::lock;
use support::log::Log;

/// What a page is.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) status: StatusCode,
    location: Option<String>,
    text: String,
}

impl Seen {
    #[track_caller]
    pub(crate) fn shows(&self, text: &str) -> &Self {
        assert!(
            self.text.contains(text),
            "{text} is not in {:?}\n{}",
            self.status,
            self.text
        );
        self
    }

    #[track_caller]
    pub(crate) fn hides(&self, text: &str) -> &Self {
        assert!(
            !self.text.contains(text),
            "{text} is in {:?}\n{}",
            self.status,
            self.text
        );
        self
    }

    #[track_caller]
    pub(crate) fn is(&self, status: u16) -> &Self {
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        self
    }
}

async fn request(app: &Router, request: Request<Body>) -> Seen {
    let answer = app.clone().oneshot(request).await.unwrap();
    let (head, body) = answer.into_parts();
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "same-origin"),
        ("cache-control", "no-store"),
    ] {
        assert_eq!(head.headers[name], value);
    }
    let policy = head.headers["content-security-policy"].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'; "), "{policy}");
    let text = body.collect().await.unwrap().to_bytes();
    let text = String::from_utf8(text.to_vec()).unwrap();
    assert!(text.len() <= 50_000, "{} bytes", text.len());
    Seen {
        status: head.status,
        location: head
            .headers
            .get(LOCATION)
            .map(|it| it.to_str().unwrap().to_owned()),
        text,
    }
}

pub(crate) async fn get(app: &Router, path: &str) -> Seen {
    let get = Request::get(path).header(HOST, "localhost:3001");
    request(app, get.body(Body::empty()).unwrap()).await
}

fn form(path: &str, fields: &str) -> Request<Body> {
    Request::post(path)
        .header(HOST, "localhost:3001")
        .header("sec-fetch-site", "same-origin")
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(Body::from(fields.to_owned()))
        .unwrap()
}

pub(crate) async fn post(app: &Router, path: &str, fields: &str) -> Seen {
    request(app, form(path, fields)).await
}

/// Opens the page that asks whether all that match are to be changed.
async fn asked(app: &Router, query: &str) -> Seen {
    let page = get(app, &format!("/all?{query}")).await;
    page.is(200);
    page
}

/// The fields of a form that the browser would send.
fn fields(page: &Seen) -> String {
    let inputs = page.text.split("<input type=\"hidden\" name=\"").skip(1);
    let pairs = inputs.map(|input| {
        let (name, rest) = input.split_once("\" value=\"").unwrap();
        (name, rest.split('"').next().unwrap())
    });
    form_urlencoded::Serializer::new(String::new())
        .extend_pairs(pairs)
        .finish()
}

/// Asks, and confirms.
async fn all(app: &Router, query: &str) -> Seen {
    let confirmed = fields(&asked(app, query).await);
    post(app, "/all", &confirmed).await
}

async fn four_events() -> Inbox<MemoryQueue> {
    four_events_of(inbox()).await
}

/// Adds the events 1 (handled), 2 (a dead letter), and 3 (retried), 4 (waiting behind it).
async fn four_events_of<Q: Queue>(inbox: Inbox<Q>) -> Inbox<Q> {
    let webhooks = webhooks(&inbox);
    let events =
        EventRouter::new().fallback(
            async |delivery: RawDelivery| match delivery.body().as_ref() {
                body if body.starts_with(br#"{"id":"dead""#) => {
                    Err(HandlerError::dead_letter("no such customer"))
                }
                body if body.starts_with(br#"{"id":"stuck""#) => {
                    Err(HandlerError::retry("the CRM is down"))
                }
                _ => Ok(()),
            },
        );
    for request in [
        event("fine", 1),
        event("dead", 1),
        event("stuck", 1),
        event("stuck", 2),
    ] {
        send(&webhooks, request).await.assert_ok();
    }
    let worker = inbox.worker(events).spawn();
    sleep(SECOND).await;
    worker.drain(SECOND).await.unwrap();
    assert_eq!(
        states(&inbox).await,
        [
            EventState::Handled,
            EventState::Dead,
            EventState::Retrying,
            EventState::Waiting
        ]
    );
    inbox
}

#[tokio::test(start_paused = true)]
async fn pages_show_what_happened() {
    let app = Console::new().inbox(four_events().await).router();
    let overview = get(&app, "/").await;
    overview
        .is(200)
        .shows("chat-rated")
        .shows(r#"href="/events?state=dead&amp;kind=chat-rated">1</a>"#);

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
    get(&app, "/events?key=dead-1&kind=chat-rated&hours=24")
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

/// A page that was opened during an attempt gets its buttons when that ends, and loses a lane that is not blocked any more.
#[tokio::test(start_paused = true)]
async fn buttons_and_lane_are_updated_with_the_state() {
    let inbox = four_events().await;
    let app = Console::new().inbox(inbox.clone()).router();
    let take = Take {
        lease: SECOND,
        kinds: Kinds::all(),
    };
    inbox.redrive(EventId(3), None).await.unwrap();
    let claimed = inbox.queue().claim(&take, 1, 0).await.unwrap();
    assert_eq!(claimed.events[0].lease.id, EventId(3));

    let [buttons, lane] = ["actions", "lane"].map(|part| format!(r#"<div id="{part}" data-live>"#));
    for (id, state, has_button, has_lane) in [
        (1, "handled", true, false),
        (3, "in-progress", false, true),
        (4, "waiting", true, true),
    ] {
        let page = get(&app, &format!("/events/{id}")).await;
        page.is(200).shows(state).shows(&buttons).shows(&lane);
        let has = |part: &str| page.text.contains(part);
        assert_eq!(has(&format!("redrive-{id}")), has_button, "{id}");
        assert_eq!(has("<h2>Lane</h2>"), has_lane, "{id}");
    }
}

#[tokio::test(start_paused = true)]
async fn wrong_requests_get_a_page_that_says_what_is_wrong() {
    explains_wrong_requests(inbox()).await;
}

pub(crate) async fn explains_wrong_requests<Q: Queue>(inbox: Inbox<Q>) {
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
        ("/events?kind=no+kind", 400, "is not a kind of event"),
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
        ("/events?key=%00", 400, "characters that no header can have"),
        ("/chat?id=%00", 404, "There is no event of the chat"),
        ("/chat?id=%FF%FE", 404, "There is no event of the chat"),
        ("/events?state=dead&state=dead", 400, "duplicate field"),
        ("/chat?id=none", 404, "There is no event of the chat"),
        ("/nowhere", 404, "There is no such page."),
        ("/all?action=delete", 400, "is not an action"),
        ("/jobs/7", 404, "There is no such job"),
        ("/jobs/x", 400, ""),
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
        ("/pause", "kind=no+kind", 400),
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
async fn changes_are_made_and_logged_with_the_operator() {
    let inbox = four_events().await;
    let app = Console::new()
        .inbox(inbox.clone())
        .actor_header(HeaderName::from_static("x-user"))
        .router();
    let log = Log::capture(Level::INFO);
    let redrive = form("/events/2/redrive", "").with("x-user", "ada");
    let redriven = request(&app, redrive).await;
    assert_eq!((redriven.is(303).location.as_deref()), Some("/events/2"));
    let line = log.events().pop().unwrap();
    assert_eq!(
        (&*line["actor"], &*line["action"], &*line["event"]),
        ("ada", "redrive", "2")
    );
    get(&app, "/events/2").await.shows("redriven");

    // The last line of the log has these fields.
    let logged = |fields: &[(&str, &str)]| {
        let line = log.events().pop().unwrap();
        for (field, value) in fields {
            assert_eq!(
                line.get(field).map(String::as_str),
                Some(*value),
                "{line:?}"
            );
        }
    };
    let by_grace = |path: &str, fields: &str| form(path, fields).with("x-user", "grace");
    let forged = by_grace("/events/3/discard", "").and("x-user", "ada");
    request(&app, forged).await.is(400).shows("occurs twice");
    let discard = by_grace("/events/3/discard", "");
    request(&app, discard).await.is(303);
    logged(&[
        ("actor", "grace"),
        ("action", "discard"),
        ("event", "3"),
        ("change", "Made"),
    ]);
    let again = post(&app, "/events/3/discard", "").await;
    again.is(409).shows("another operator may have changed it");
    logged(&[
        ("action", "discard"),
        ("event", "3"),
        ("change", "WrongState"),
    ]);
    let selected = post(
        &app,
        "/selected",
        "id=1&id=4&action=redrive&query=state%3Dunsettled",
    )
    .await;
    assert_eq!(
        selected.is(303).location.as_deref(),
        Some("/events?state=unsettled")
    );
    logged(&[("action", "redrive"), ("event", "4"), ("change", "Made")]);
    let stale = post(&app, "/selected", "id=4:dead&action=discard").await;
    stale.is(409).shows("0 events were discarded").shows("4.");
    post(&app, "/selected", "id=4:no&action=discard")
        .await
        .is(400);
    let partly = post(&app, "/selected", "id=4&id=3&action=discard").await;
    partly.is(409).shows("1 events were discarded").shows("3.");

    post(&app, "/pause", "kind=chat-rated").await.is(303);
    assert!(inbox.stats().await.unwrap().kinds[0].is_paused);
    get(&app, "/").await.shows("paused").shows("Resume");
    post(&app, "/resume", "kind=chat-rated").await.is(303);
    post(&app, "/pause", "").await.is(303);
    assert!(inbox.stats().await.unwrap().is_paused);
    post(&app, "/resume", "").await.is(303);
    assert!(!inbox.stats().await.unwrap().is_paused);
    assert_eq!(log.count(Level::INFO, "the console pauses or resumes"), 4);
    logged(&[("is_paused", "false")]);

    let confirmed = fields(&asked(&app, "action=discard&state=dead").await);
    let all = by_grace("/all", &confirmed);
    request(&app, all).await.is(303);
    let started = log.events().into_iter().rev();
    let mut started = started.filter(|line| line.contains_key("filter"));
    let started = started.next().unwrap();
    assert_eq!(
        (
            &*started["actor"],
            &*started["action"],
            &*started["filter"],
            &*started["job"]
        ),
        ("grace", "discard", "state=dead", "1")
    );
    sleep(SECOND).await;
    logged(&[
        ("actor", "grace"),
        ("job", "1"),
        ("changed", "0"),
        ("ended", "Done"),
    ]);
    request(&app, by_grace("/jobs/1/cancel", "")).await.is(303);
    logged(&[("actor", "grace"), ("job", "1")]);
    assert_eq!(log.count(Level::INFO, "the console cancels a job"), 1);
}

#[tokio::test(start_paused = true)]
async fn all_that_match_are_changed_after_a_preview() {
    let (inbox, crm) = (inbox(), Crm::default());
    let webhooks = webhooks(&inbox);
    for n in 0..1_200 {
        let dead = delivery(format!("[{n}]")).key(&n.to_string());
        send(&webhooks, dead).await.assert_ok();
    }
    send(&webhooks, event("fine", 1)).await.assert_ok();
    let app = Console::new().inbox(inbox.clone()).router();
    let preview = get(&app, "/all?action=discard&state=dead").await;
    preview
        .is(200)
        .shows("Are you sure that you want to discard 1200 events?");
    let none = get(&app, "/all?action=discard&state=handled").await;
    none.shows("0 events").shows("disabled");

    let confirmed = fields(&asked(&app, "action=discard&state=dead").await);
    // What dies after the preview was not shown in it: neither a new event is touched, nor one that waited.
    sleep(SECOND).await;
    send(&webhooks, delivery("[]")).await.assert_ok();
    let dies = async |_: RawDelivery| Err(HandlerError::dead_letter("late"));
    let worker = inbox.worker(EventRouter::new().fallback(dies)).spawn();
    inbox.finish().await.unwrap();
    worker.drain(SECOND).await.unwrap();
    let started = post(&app, "/all", &confirmed).await;
    assert_eq!(started.is(303).location.as_deref(), Some("/jobs/1"));
    let mut job = get(&app, "/jobs/1").await;
    for _ in 0..1_000 {
        if job.text.contains("Done.") {
            break;
        }
        sleep(Duration::from_millis(1)).await;
        job = get(&app, "/jobs/1").await;
    }
    job.shows("Done.").shows("1200 discarded").hides("Cancel");
    let stats = inbox.stats().await.unwrap();
    assert_eq!((stats.dead(), stats.unsettled()), (2, 0));
    let unseen = post(&app, "/all", "action=discard&state=dead").await;
    unseen.is(400).shows("the page that asks");
    drop(crm);
}

/// Otherwise one click handled again all that was handled.
#[tokio::test(start_paused = true)]
async fn all_events_of_no_state_are_not_changed() {
    let inbox = four_events().await;
    let before = states(&inbox).await;
    let app = Console::new().inbox(inbox.clone()).router();
    let links = ["Redrive all…", "Discard all…"];
    for (query, has_links) in [
        ("", false),
        ("?kind=chat-rated", false),
        ("?state=dead", true),
        ("?state=unsettled", true),
    ] {
        let list = get(&app, &format!("/events{query}")).await;
        for link in links {
            assert_eq!(
                list.text.contains(link),
                has_links,
                "{query}: {}",
                list.text
            );
        }
    }
    get(&app, "/events").await.shows("choose a state");
    for action in ["redrive", "discard"] {
        let asked = get(&app, &format!("/all?action={action}")).await;
        asked.is(400).shows("choose a state");
        let fields = format!("action={action}&newest=9&at=0&state=");
        let confirmed = post(&app, "/all", &fields).await;
        confirmed.is(400).shows("choose a state");
    }
    sleep(SECOND).await;
    assert_eq!(states(&inbox).await, before);
}

#[tokio::test(start_paused = true)]
async fn cancelled_redrive_of_100_000_events_loses_and_duplicates_nothing() {
    cancelled_redrive(inbox(), 100_000).await;
}

/// Redrives so many dead letters, more than the console counts, and cancels half-way. A worker handles them meanwhile.
pub(crate) async fn cancelled_redrive<Q: Queue>(inbox: Inbox<Q>, count: usize) {
    let accept = async |kind: EventKind, n: usize| {
        let event = NewEvent {
            namespace: Namespace::default(),
            delivery: RawDelivery::new(kind, format!(r#"{{"n":{n}}}"#)),
            key: None,
            guard: None,
            chat: None,
            lane: Some(Lane((n % 1_000) as i64)),
            retain: DAY,
            dead: Some(Failure {
                outcome: "dead-letter".to_owned(),
                reason: "the CRM is down".to_owned(),
                took: None,
            }),
        };
        match inbox.queue().accept(event, None).await.unwrap() {
            Accepted::New { id, .. } => (id, n),
            other => panic!("{other:?}"),
        }
    };
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
    let worker = inbox.worker(events).spawn();

    let app = Console::new().inbox(inbox.clone()).router();
    let redrive = "action=redrive&state=dead&kind=chat-rated";
    let redriven = |job: &Seen| -> usize {
        let (before, _) = job.text.split_once(" redriven<").unwrap();
        before.rsplit('>').next().unwrap().parse().unwrap()
    };
    all(&app, redrive).await.is(303);
    // Paused time stands still until the job has ended.
    while redriven(&get(&app, "/jobs/1").await) < count / 2 {
        for _ in 0..50 {
            yield_now().await;
        }
    }
    post(&app, "/jobs/1/cancel", "").await.is(303);
    let mut job = get(&app, "/jobs/1").await;
    while !job.text.contains("Cancelled.") {
        job.hides("Done.").hides("Stopped");
        sleep(Duration::from_millis(1)).await;
        job = get(&app, "/jobs/1").await;
    }
    inbox.finish().await.unwrap();
    job.shows("at least ").shows("up to event ");
    let (percent, _) = job.text.split_once(r#"" max="100""#).unwrap();
    let percent: usize = percent.rsplit('"').next().unwrap().parse().unwrap();
    assert!((40..100).contains(&percent), "{percent} %");
    let redriven = redriven(&job);
    assert!((count / 2..count).contains(&redriven), "{redriven}");
    let handled: u32 = runs.iter().map(|runs| runs.load(Ordering::SeqCst)).sum();
    assert_eq!(handled as usize, redriven);
    let stats = inbox.stats().await.unwrap();
    assert_eq!(stats.dead() as usize, count - redriven + 1);
    // Those that are left were not handled, and all others once.
    let mut page = Page::oldest(1_000);
    let dead = Filter {
        states: vec![EventState::Dead],
        ..Filter::default()
    };
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

    // The rest, by a second job.
    all(&app, redrive).await.is(303);
    while !get(&app, "/jobs/2").await.text.contains("Done.") {
        sleep(Duration::from_millis(1)).await;
    }
    inbox.finish().await.unwrap();
    let (other, all) = runs.split_last().unwrap();
    assert!(all.iter().all(|runs| runs.load(Ordering::SeqCst) == 1));
    assert_eq!(other.load(Ordering::SeqCst), 0);
    assert_eq!(inbox.stats().await.unwrap().dead(), 1);
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn other_sites_are_refused() {
    let inbox = four_events().await;
    let app = Console::new()
        .inbox(inbox.clone())
        .hosts(["localhost"])
        .router();
    let cross_site = |name: &'static str, value: &'static str| {
        let request = form("/events/2/discard", "").without("sec-fetch-site");
        request.with(name, value)
    };
    for request_of_another in [
        cross_site("sec-fetch-site", "cross-site"),
        cross_site("sec-fetch-site", "same-site"),
        cross_site("origin", "http://evil.example"),
        cross_site("origin", "http://localhost:9999"),
        cross_site("origin", "null"),
    ] {
        request(&app, request_of_another)
            .await
            .is(403)
            .shows("A page of another site has sent this request.");
    }
    for (dest, status) in [
        ("document", 200),
        ("iframe", 403),
        ("script", 403),
        ("empty", 403),
    ] {
        let embedded = Request::get("/events/2")
            .header(HOST, "localhost")
            .header("sec-fetch-site", "cross-site")
            .header("sec-fetch-dest", dest);
        let page = request(&app, embedded.body(Body::empty()).unwrap()).await;
        page.is(status);
    }
    for host in [
        "evil.example",
        "evil.example:3001",
        "localhost.evil.example",
        "",
        "127.0.0.1.evil",
    ] {
        let get = Request::get("/events/2").header(HOST, host);
        request(&app, get.body(Body::empty()).unwrap())
            .await
            .is(421)
            .shows("not reachable under this host name")
            .hides("customer");
        let discard = form("/events/2/discard", "").with("host", host);
        request(&app, discard).await.is(421);
    }
    assert_eq!(states(&inbox).await[1], EventState::Dead);
    for host in ["localhost:3001", "127.0.0.1", "[::1]:3001", "LOCALHOST"] {
        let get = Request::get("/").header(HOST, host);
        request(&app, get.body(Body::empty()).unwrap())
            .await
            .is(200);
    }
    let own = form("/events/2/redrive", "")
        .without("sec-fetch-site")
        .with("origin", "http://localhost:3001");
    request(&app, own).await.is(303);
}

#[tokio::test(start_paused = true)]
async fn read_only_and_hidden_payloads_leave_nothing_to_press_or_read() {
    let inbox = four_events().await;
    let app = Console::new()
        .inbox(inbox.clone())
        .read_only()
        .hide_payloads()
        .router();
    for path in ["/", "/events", "/events/2", "/lanes", "/chat?id=dead"] {
        let page = get(&app, path).await;
        page.is(200)
            .hides("method=\"post\"")
            .hides("no such customer")
            .hides("rating&quot;")
            .shows("read-only");
    }
    for (path, fields) in [
        ("/events/2/redrive", ""),
        ("/selected", "id=2&action=discard"),
        ("/all", "action=discard"),
        ("/pause", ""),
    ] {
        post(&app, path, fields).await.is(404);
    }
    assert_eq!(states(&inbox).await[1], EventState::Dead);
}

#[tokio::test(start_paused = true)]
async fn links_lead_to_where_the_console_is_mounted() {
    let console = Console::new().inbox(four_events().await).router();
    let app = Router::new().nest("/ops/webhooks", console);
    for path in [
        "/ops/webhooks",
        "/ops/webhooks/events",
        "/ops/webhooks/events/3",
        "/ops/webhooks/lanes",
    ] {
        let page = get(&app, path).await;
        page.is(200);
        let links = page.text.split(['"']).filter(|text| text.starts_with('/'));
        let mut count = 0;
        for link in links {
            // Forms lead to changes.
            let status = get(&app, &link.replace("&amp;", "&")).await.status;
            assert!(
                matches!(status, StatusCode::OK | StatusCode::METHOD_NOT_ALLOWED),
                "{path}: {link}: {status}"
            );
            count += 1;
        }
        assert!(count > 5);
    }
    let paused = post(&app, "/ops/webhooks/pause", "").await;
    assert_eq!(paused.location.as_deref(), Some("/ops/webhooks"));
    let redriven = post(&app, "/ops/webhooks/events/2/redrive", "").await;
    assert_eq!(redriven.location.as_deref(), Some("/ops/webhooks/events/2"));
}

#[tokio::test(start_paused = true)]
async fn scripts_in_payloads_keys_and_errors_are_shown_as_text() {
    const SCRIPT: &str = "<script>alert(1)</script>";
    let recent = Recent::new();
    let inbox = inbox().observer(recent.clone());
    let webhooks = SignatureLayer::new(secret()).layer(inbox.accept());
    let body = format!(r#"{{"id":"{SCRIPT}","x":"</pre>{SCRIPT}"}}"#);
    send(&webhooks, delivery(body).key(SCRIPT))
        .await
        .assert_ok();
    let events =
        EventRouter::new().fallback(async |_: RawDelivery| Err(HandlerError::retry(SCRIPT)));
    let worker = inbox.worker(events).spawn();
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
        .shows("the platform disables the webhook in")
        .shows("100 requests ended before verification")
        .shows("<li><b>120</b> failed</li><li><b>100</b> invalid-signature</li>")
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

    let page = Page {
        after: Some(EventId(119)),
        limit: 10,
        newest_first: false,
        within: None,
    };
    let listed = inbox.list(&Filter::default(), page).await.unwrap();
    assert_eq!(listed.events.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_stale_page_changes_no_event() {
    let inbox = four_events().await;
    let app = Console::new().inbox(inbox.clone()).router();
    get(&app, "/events/2")
        .await
        .shows(r#"<input type="hidden" name="state" value="dead">"#);
    post(&app, "/events/2/redrive", "state=dead").await.is(303);
    // Another operator, who still sees the dead letter.
    post(&app, "/events/2/redrive", "state=dead").await.is(409);
    let worker = inbox.worker(Crm::default().router()).spawn();
    inbox.finish().await.unwrap();
    post(&app, "/events/2/redrive", "state=dead").await.is(409);
    assert_eq!(states(&inbox).await[1], EventState::Handled);
    drop(worker);
}

/// The longest id that is a link: each quote takes six bytes of HTML, and three of a URL.
const LONG_CHAT: &str = r#"""""""""""""""""""""""""""""""""""#;

/// The longest kind that has a row on the overview.
fn long_kind(n: usize) -> String {
    format!("{}{n:02}", "&".repeat(20))
}

/// Kinds that are handled in each minute of an hour.
async fn busy_hour(
    webhooks: &Signature<Accept<MemoryQueue>>,
    inbox: &Inbox<MemoryQueue>,
    kinds: usize,
) {
    let handles = EventRouter::new().fallback(async |_: RawDelivery| Ok(()));
    let worker = inbox.worker(handles).spawn();
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
        silence.expect(long_kind(kind).parse().unwrap(), SECOND)
    });
    let observer = (budget.clone(), recent.clone(), silence.clone());
    let header = |n| HeaderName::try_from(format!("x-{n}-{}", "h".repeat(70))).unwrap();
    let inbox = inbox()
        .chat_by(|delivery| Some(delivery.decode::<Value>().ok()?["id"].as_str()?.to_owned()))
        .keep_headers((0..30).map(header))
        .observer(recent.clone());
    let webhooks = SignatureLayer::new(secret())
        .observer(observer.clone())
        .layer(inbox.accept());
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
    let worker = inbox.worker(fails.clone()).retry(retry(SECOND));
    let worker = worker.trip_after(1_000).spawn();
    sleep(30 * SECOND).await;
    worker.drain(SECOND).await.unwrap();

    let worker = inbox.worker(fails.clone()).trip_after(2).spawn();
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
    let worker = inbox.worker(fails).retry(retry(DAY)).trip_after(1_000);
    let worker = worker.spawn();
    sleep(SECOND).await;
    worker.drain(SECOND).await.unwrap();
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
        ("/", "10 other kinds are not shown"),
        ("/", "fail in many chats"),
        ("/", "the platform disables the webhook in"),
        ("/", "at most 2 in a minute"),
        ("/", "one was expected within"),
        ("/events", "/chat?id=%22"),
        ("/events?state=retrying", "next attempt"),
        (&format!("/events/{first}"), "earlier failures"),
        (&format!("/events/{}", first + 1), "x-19-h"),
        (&chat, "Next page"),
        ("/lanes", "Next page"),
    ] {
        let page = get(path).await;
        let size = page.is(200).shows(shows).text.len() + others;
        assert!(size <= 50_000, "{path} and what it loads: {size} bytes");
    }
}

#[tokio::test(start_paused = true)]
async fn what_workers_did_lately_is_shown() {
    let recent = Recent::new();
    let inbox = inbox().observer(recent.clone());
    let webhooks = SignatureLayer::new(secret())
        .observer(recent.clone())
        .layer(inbox.accept());
    let crm = Crm::default();
    crm.down.store(true, Ordering::SeqCst);
    send(&webhooks, event("a", 1)).await.assert_ok();
    let worker = inbox.worker(crm.router()).spawn();
    sleep(Duration::from_millis(100)).await;
    crm.down.store(false, Ordering::SeqCst);
    *lock(&crm.takes) = Duration::from_millis(1_200);
    inbox.finish().await.unwrap();
    let app = Console::new().inbox(inbox).recent(recent).router();
    get(&app, "/")
        .await
        .is(200)
        .shows("<li><b>1</b> accepted</li>")
        .shows(r#"<small class="bad">1 attempt failed</small>"#)
        .shows(r#"<td><a href="/events/1"><time"#);
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
