//! The data of a person, the names of operators, and addresses.

use std::net::SocketAddr;

use async_trait::async_trait;
use axum::body::Body;
use http::Request;
use http::header::{CONTENT_TYPE, COOKIE, HOST, HeaderName, SET_COOKIE};
use tokio::time::sleep;
use tower::ServiceExt;
use tower_webhook::inbox::{Action, By, EventId, EventState, Inbox, Queue, Scope, Which};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::store::StoreError;
use tower_webhook::telemetry::Recent;
use tower_webhook::{EventRouter, Webhooks};
use tower_webhook_console::Console;

use support::delivery::{RequestExt, SIGNATURE, delivery, secret, send};
use support::inbox::{event, inbox, states, webhooks};
use support::queue::Calls;
use support::{MINUTE, SECOND};

use super::{four_events, get, post, request};

/// The chat by its id, and each chat with the text in a payload.
#[tokio::test(start_paused = true)]
async fn a_person_is_forgotten_in_all_chats() {
    let inbox = inbox();
    let webhooks = webhooks(&inbox);
    for (chat, mail) in [("a", "ada"), ("b", "ada"), ("c", "grace"), ("b", "grace")] {
        let body = format!(r#"{{"id":"{chat}","user":{{"email":"{mail}@example.com"}}}}"#);
        let event = delivery(body).key(&format!("{chat}-{mail}"));
        send(&webhooks, event).await.assert_ok();
    }
    let app = Console::new().inbox(inbox.clone()).router();
    get(&app, "/")
        .await
        .shows(r#"<a href="/forget">Forget</a>"#);
    get(&app, "/forget").await.is(200).hides("<table>");
    let found = get(&app, "/forget?id=ada%40example.com").await;
    let row = |chat: &str| format!(r#"name="chat" checked value="{chat}""#);
    found
        .is(200)
        .shows("2 events have the text.")
        .shows(&row("a"))
        .shows(&row("b"))
        .hides(&row("c"));
    get(&app, "/forget?id=c").await.shows(&row("c"));
    get(&app, "/forget?id=nobody")
        .await
        .shows("0 events have the text.")
        .shows("No chat was found.");
    post(&app, "/forget", "reason=x")
        .await
        .is(400)
        .shows("No chat was selected.");
    let forgotten = post(&app, "/forget", "chat=a&chat=b&reason=her+wish").await;
    let location = forgotten.is(303).location.clone().unwrap();
    get(&app, &location)
        .await
        .shows("The payloads of 2 chats were deleted: 3.");
    let expected = [
        EventState::Discarded,
        EventState::Discarded,
        EventState::Waiting,
        EventState::Discarded,
    ];
    assert_eq!(states(&inbox).await, expected);
    for (id, has_body) in [(1, false), (3, true), (4, false)] {
        let record = inbox.get(EventId(id)).await.unwrap().unwrap();
        assert_eq!(record.body.is_some(), has_body, "{id}");
    }
    let actions = inbox.actions(Which::All, None, 10).await.unwrap();
    let by: Vec<_> = actions
        .iter()
        .map(|it| (it.kind.name(), it.by.who(), it.by.reason()))
        .collect();
    assert_eq!(by, [("forget", "ada", "her wish"); 2]);

    // Payloads that are hidden are not searched.
    let hidden = Console::new().inbox(inbox.clone()).hide_payloads().router();
    get(&hidden, "/forget?id=grace")
        .await
        .hides("have the text")
        .hides("<table>");
    let read_only = Console::new().inbox(inbox).read_only().router();
    get(&read_only, "/forget?id=c").await.is(404);
}

/// The name is asked for, and remembered in the browser.
#[tokio::test(start_paused = true)]
async fn every_change_has_a_name() {
    let inbox = four_events().await;
    let app = Console::new().inbox(inbox.clone()).router();
    let redrive = |who: &'static str| {
        Request::post("/events/2/redrive")
            .header(HOST, "localhost")
            .header("sec-fetch-site", "same-origin")
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Body::from(who))
            .unwrap()
    };
    request(&app, redrive(""))
        .await
        .is(400)
        .shows("Say who you are");
    assert_eq!(states(&inbox).await[1], EventState::Dead);
    let redriven = app
        .clone()
        .oneshot(redrive("who=Ada+%C3%8B%3B"))
        .await
        .unwrap();
    let cookie = redriven.headers()[SET_COOKIE].to_str().unwrap();
    let (cookie, rest) = cookie.split_once(';').unwrap();
    assert_eq!(cookie, "webhook-console-who=Ada+%C3%8B%3B");
    assert_eq!(rest, " Path=/; Max-Age=31536000; SameSite=Strict; HttpOnly");
    let by = async || {
        inbox.actions(Which::All, None, 1).await.unwrap()[0]
            .by
            .who()
            .to_owned()
    };
    assert_eq!(by().await, "Ada Ë;");
    let again = redrive("").with("cookie", format!("a=b; {cookie}"));
    request(&app, again).await.is(303);
    assert_eq!(by().await, "Ada Ë;");
    let page = Request::get("/events/2")
        .header(HOST, "localhost")
        .header(COOKIE, cookie)
        .body(Body::empty())
        .unwrap();
    request(&app, page)
        .await
        .shows(r#"required value="Ada Ë;""#);

    // With a proxy, nobody types a name, nor can one be chosen.
    let app = Console::new()
        .inbox(inbox.clone())
        .actor_header(HeaderName::from_static("x-user"))
        .router();
    let typed = redrive("who=mallory").with("cookie", cookie);
    request(&app, typed).await.is(400).shows(
        "The header `x-user`, in which the proxy passes on the name of the operator, is missing.",
    );
    request(&app, redrive("who=mallory").with("x-user", "bob"))
        .await
        .is(303);
    assert_eq!(by().await, "bob");
    get(&app, "/events/2").await.hides("name=\"who\"");
}

#[tokio::test(start_paused = true)]
async fn actions_are_found_by_who_what_and_when() {
    let inbox = inbox();
    let webhooks = webhooks(&inbox);
    for n in 1..=3 {
        send(&webhooks, event(&format!("chat-{n}"), 1))
            .await
            .assert_ok();
    }
    let app = Console::new()
        .inbox(inbox.clone())
        .actor_header(HeaderName::from_static("x-user"))
        .router();
    for (id, who, action) in [
        (1, "ada", "redrive"),
        (2, "Grace", "discard"),
        (3, "ada", "discard"),
    ] {
        let change = super::form(&format!("/events/{id}/{action}"), "").with("x-user", who);
        request(&app, change).await.is(303);
    }
    let found = async |query: &str| {
        let page = get(&app, &format!("/actions?{query}")).await;
        page.is(200);
        let (_, rows) = page.text.split_once("id=\"rows\"").unwrap();
        let links = rows.split(">event ").skip(1);
        let ids = links.map(|link| link.split('<').next().unwrap().parse().unwrap());
        ids.collect::<Vec<i64>>()
    };
    assert_eq!(found("").await, [3, 2, 1]);
    assert_eq!(found("who=ada").await, [3, 1]);
    assert_eq!(found("who=GRACE").await, [2]);
    assert_eq!(found("what=discard").await, [3, 2]);
    assert_eq!(found("who=ada&what=redrive").await, [1]);
    assert_eq!(found("from=2020-01-01T00:00").await, [3, 2, 1]);
    assert_eq!(found("until=2020-01-01T00:00").await, [0; 0]);
    assert_eq!(found("from=2999-01-01T00:00").await, [0; 0]);
    assert_eq!(found("before=3").await, [2, 1]);
    get(&app, "/actions").await.shows(">Yesterday</a>");
    get(&app, "/actions?from=soon").await.is(400);
}

/// A queue that takes a second to list actions.
struct Slow(Queue);

#[async_trait]
impl Calls for Slow {
    fn inner(&self) -> Result<Queue, StoreError> {
        Ok(self.0.clone())
    }

    async fn actions(
        &self,
        which: Which,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<Action>, StoreError> {
        sleep(SECOND).await;
        self.0.list.actions(which, before, limit).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_search_of_actions_says_how_far_it_has_come() {
    let inbox = Inbox::new(Slow(MemoryQueue::new().into()).shared());
    for n in 0..600 {
        let who = if n == 0 { "ada" } else { "grace" };
        let inbox = inbox.clone().by(By::new(who));
        inbox.pause(Scope::Everything, "maintenance").await.unwrap();
    }
    let app = Console::new().inbox(inbox).router();
    let first = get(&app, "/actions?who=ada").await;
    first
        .shows("The search has reached <time")
        .shows("Search older actions")
        .hides("None.");
    let (_, next) = first
        .text
        .split_once(r#"<div class="pages"><a href=""#)
        .unwrap();
    let next = next.split('"').next().unwrap().replace("&amp;", "&");
    get(&app, &next)
        .await
        .shows(r#"<td class="wide">ada</td>"#)
        .hides("The search has reached")
        .hides("older actions");
}

/// Each address with its reason, how often, and since when.
#[tokio::test(start_paused = true)]
async fn requests_that_are_not_verified_are_counted_by_address() {
    let (inbox, recent) = (inbox(), Recent::new());
    let webhooks = Webhooks::new(secret()).observer(recent.clone());
    let events = EventRouter::new();
    let (webhooks, running) = webhooks.inbox(inbox.clone()).start(events).unwrap();
    let forged = async |address: [u8; 4]| {
        let mut forged = event("forged", 1).with(SIGNATURE, "0".repeat(64));
        forged
            .extensions_mut()
            .insert(SocketAddr::from((address, 50_000)));
        send(&webhooks, forged).await;
    };
    forged([203, 0, 113, 9]).await;
    sleep(10 * MINUTE).await;
    for _ in 0..4 {
        forged([203, 0, 113, 9]).await;
    }
    // More than are told apart.
    for n in 0..30 {
        forged([192, 0, 2, n]).await;
    }
    sleep(2 * SECOND).await;
    let app = Console::new().inbox(inbox).recent(recent).router();
    let page = get(&app, "/refusals").await;
    let (_, origins) = page.text.split_once(r#"id="origins""#).unwrap();
    let (origins, _) = origins.split_once(r#"id="rows""#).unwrap();
    let row = |address: &str| {
        let (_, row) = origins.split_once(&format!(">{address}<")).unwrap();
        let row = row.split_once("</tr>").unwrap().0.to_owned();
        let times: Vec<_> = row
            .split("datetime=\"")
            .skip(1)
            .map(|it| it[..16].to_owned())
            .collect();
        assert!(row.contains("invalid-signature"), "{row}");
        (row, times)
    };
    let (of_one, times) = row("203.0.113.9");
    assert!(of_one.contains(">5</td>"), "{of_one}");
    assert_ne!(times[0], times[1]);
    let (others, times) = row("other addresses");
    assert!(others.contains(">11</td>"), "{others}");
    assert_eq!(times[0], times[1]);
    running.drain(SECOND).await.unwrap();
}
