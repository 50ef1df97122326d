//! One console for the inboxes of several senders.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::time::sleep;
use tower_webhook::inbox::internal::Tuning;
use tower_webhook::inbox::{Inbox, Scope};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::telemetry::{FailureBudget, Recent, Silence};
use tower_webhook::{
    EventKind, EventRouter, EventType, HandlerError, IdempotencyKey, RawDelivery, Secret, Sender,
    Webhooks,
};
use tower_webhook_console::Console;

use super::{fields, four_events, get, post};
use support::delivery::send;
use support::inbox::inbox;
use support::{MINUTE, SECOND};

/// Stripe's key is the id in the body.
fn delivery(sender: &Sender, kind: &'static str, key: &str) -> Request<Full<Bytes>> {
    signed(sender, kind, key, "secret")
}

fn signed(sender: &Sender, kind: &'static str, key: &str, text: &str) -> Request<Full<Bytes>> {
    let secret = Secret::new(text).unwrap();
    let body = format!(r#"{{"id":"{key}","type":"{kind}"}}"#);
    let key = IdempotencyKey::new(key.parse().unwrap());
    let delivery = RawDelivery::new(EventKind::from_static(kind), body).with_key(key);
    let headers = sender.sign(&secret, &delivery).unwrap();
    let body = Full::new(delivery.body().clone());
    let mut request = Request::post("/").body(body).unwrap();
    *request.headers_mut() = headers;
    request
}

fn secret() -> Secret {
    Secret::new("secret").unwrap()
}

/// An operator has pasted the secret of Stripe's webhook into GitHub's settings. Of all processes, and after a restart.
#[tokio::test(start_paused = true)]
async fn the_secret_that_would_have_matched_is_named() {
    let (inbox, recent) = (inbox(), Recent::new());
    let mut routes = inbox.routes();
    let stripe = Webhooks::new(Secret::new("zebra").unwrap()).sender(Sender::stripe());
    let stripe = routes.add(stripe.observer(recent), EventRouter::new());
    let stripe = stripe.unwrap();
    let github = Webhooks::new(secret()).sender(Sender::github());
    let github = routes.add(github, EventRouter::new()).unwrap();
    let running = routes.start().unwrap();
    let signed = |sender: &Sender, text: &str| signed(sender, "push", "key-1", text);
    let app = Console::new().inbox(inbox.clone()).recent(Recent::new());
    let app = app.router();

    // Nobody has this one: there is nothing to say beyond its number.
    for _ in 0..5 {
        send(&github, signed(&Sender::github(), "other")).await;
    }
    sleep(2 * SECOND).await;
    get(&app, "/")
        .await
        .shows("5 of 5 requests to <b>github</b> in the last hour had no signature that matches a secret")
        .hides("would match");
    get(&app, "/refusals").await.hides("Would match");

    for _ in 0..3 {
        assert_eq!(
            send(&github, signed(&Sender::github(), "zebra"))
                .await
                .status,
            401
        );
        sleep(SECOND).await;
    }
    // The URL of the other route.
    send(&stripe, signed(&Sender::github(), "secret")).await;
    sleep(2 * SECOND).await;
    get(&app, "/")
        .await
        .shows("<b>Critical: </b>Requests to <b>")
        .shows("</b> are refused, and would match <b>the secret of the route ")
        .shows(" Also at <b>")
        .hides("no signature that matches");
    let refusals = get(&app, "/refusals").await;
    refusals
        .shows("<b>the secret of the route stripe</b></td><td data-label=\"Refused at\">github</td><td class=\"number\" data-label=\"Times\">3</td>")
        .shows("<b>the secret of the route github</b></td><td data-label=\"Refused at\">stripe</td><td class=\"number\" data-label=\"Times\">1</td>")
        .hides("zebra");
    running.drain(SECOND).await.unwrap();
}

/// The console has a clone of the inbox from before its routes were made.
#[tokio::test(start_paused = true)]
async fn a_key_is_found_for_each_sender() {
    let inbox = inbox();
    let app = Console::new().inbox(inbox.clone()).router();
    let senders = [
        (Sender::chat_platform(), "chat-rated"),
        (Sender::github(), "push"),
        (Sender::stripe(), "invoice.paid"),
    ];
    let mut running = Vec::new();
    for (sender, kind) in &senders {
        let (webhooks, work) = Webhooks::new(secret())
            .sender(sender.clone())
            .inbox(inbox.clone())
            .start(EventRouter::new())
            .unwrap();
        running.push(work);
        send(&webhooks, delivery(sender, kind, "key-1"))
            .await
            .assert_ok();
    }
    sleep(SECOND).await;
    let found = get(&app, "/events?key=key-1").await;
    let other = get(&app, "/events?key=key-2").await;
    let narrowed = get(&app, "/events?key=key-1&route=github+x&kind=push").await;
    for (at, (_, kind)) in senders.iter().enumerate() {
        let link = format!(r#"href="/events/{}""#, at + 1);
        found.shows(kind).shows(&link);
        other.hides(&link);
        match *kind {
            "push" => narrowed.shows(&link),
            _ => narrowed.hides(&link),
        };
    }
    let overview = get(&app, "/").await;
    overview.is(200).shows("push").shows("invoice.paid");
}

/// Two senders have events of one kind name, and those of GitHub fail.
#[tokio::test(start_paused = true)]
async fn routes_are_told_apart_on_each_page() {
    let (budget, recent) = (FailureBudget::default(), Recent::new());
    let pushed: EventType = "github/push".parse().unwrap();
    let silence = Silence::new().expect("github/pull".parse::<EventType>().unwrap(), SECOND);
    let observer = (budget.clone(), recent.clone(), silence.clone());
    let inbox = inbox();
    let mut routes = inbox.routes();
    let handles = EventRouter::new().fallback(async |_: RawDelivery| Ok(()));
    let fails = EventRouter::new()
        .fallback(async |_: RawDelivery| Err(HandlerError::retry("GitHub is not served")));
    let chats = Webhooks::new(secret()).observer(observer);
    let chats = routes.add(chats, handles).unwrap();
    let github = Webhooks::new(secret()).sender(Sender::github());
    let github = routes.add(github, fails).unwrap();
    let running = routes.start().unwrap();
    let push = |key: &str| delivery(&Sender::github(), "push", key);
    for n in 0..20 {
        let chat = delivery(&Sender::chat_platform(), "push", &n.to_string());
        send(&chats, chat).await.assert_ok();
        send(&github, push(&n.to_string())).await.assert_ok();
    }
    let mut forged = push("forged");
    *forged.body_mut() = Full::from("{}");
    assert_eq!(send(&github, forged).await.status, 401);
    sleep(10 * SECOND).await;
    running.drain(SECOND).await.unwrap();
    let again = inbox.clone().worker(|worker| worker.credit(1));
    let mut again = again.routes();
    let fails = EventRouter::new().fallback(async |_: RawDelivery| Err(HandlerError::retry("x")));
    again
        .handle(
            Webhooks::without_secrets().name(pushed.route.clone()),
            fails,
        )
        .unwrap();
    let running = again.start().unwrap();
    sleep(3 * MINUTE).await;

    let app = Console::new()
        .inbox(inbox.clone())
        .budget(budget)
        .recent(recent)
        .silence(silence)
        .router();
    let overview = get(&app, "/").await;
    overview
        .is(200)
        .shows(
            r#"<th scope="row"><a href="/events?route=chat-platform&amp;kind=push">push</a></th>"#,
        )
        .shows(r#">github/push</a> <span class="badge bad">slowed down here, next "#)
        .shows(r#"<th scope="row">github/pull <span class="badge bad">silent</span>"#)
        .shows("Events of <b>github/push</b> fail, and none succeeds")
        .shows(r#"href="/events?state=retrying&amp;route=github&amp;kind=push""#)
        .shows("No <b>github/pull</b> event was delivered")
        .shows(r#"<span class="quiet">github, not verified</span>"#)
        // The platform's row has no failure, and the other one no event that was handled.
        .shows(r#"aria-label="20 handled in the last hour"#)
        .shows(r#"<small class="bad">"#);
    let list = get(&app, "/events?route=github&kind=push&state=failed").await;
    list.is(200)
        .shows("<td>github/push</td>")
        .hides("<td>push</td>");
    let both = get(&app, "/events?kind=push&order=oldest").await;
    both.shows("<td>github/push</td>").shows("<td>push</td>");
    get(&app, "/events/2")
        .await
        .shows("<dt>Type</dt><dd>github/push</dd>")
        .shows("Attempts of its type are slowed down");
    get(&app, "/events/1")
        .await
        .shows("<dt>Type</dt><dd>push</dd>");
    let asked = get(&app, "/all?action=discard&state=retrying&route=github").await;
    asked
        .shows("<dt>Route</dt><dd>github</dd>")
        .shows("discard 20 events?");
    get(&app, "/refusals")
        .await
        .shows(r#"<span class="quiet">github, not verified</span>"#);
    let history = get(&app, "/history?range=1h&route=github&kind=push").await;
    history
        .shows("<h2>The last hour, github/push</h2>")
        .shows(r#"href="/history?range=1h&amp;route=github&amp;kind=push" aria-current="true"><b>github/push</b>"#)
        .shows(r#"href="/history?range=24h&amp;route=github&amp;kind=push""#)
        .shows(r#"<th scope="row">Handled</th><td class="number" data-label="Number"><b>0</b>"#);
    get(&app, "/history?range=1h&route=github")
        .await
        .shows("<h2>The last hour, github</h2>")
        .shows("<th scope=\"row\">invalid-signature</th>");
    get(&app, "/export?route=github&format=jsonl")
        .await
        .shows(r#""kind":"push""#)
        .shows(r#""route":"github""#)
        .hides("chat-platform");
    running.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_box_finds_a_key_at_each_route_of_another_process() {
    let queue = MemoryQueue::new();
    let app = Console::new().inbox(Inbox::new(queue.clone())).router();
    let inbox = Inbox::new(queue);
    let mut routes = inbox.routes();
    for n in 0..12 {
        let name = format!("shop-{n:02}").parse().unwrap();
        let webhooks = Webhooks::new(secret()).sender(Sender::github()).name(name);
        let webhooks = routes.accept(webhooks).unwrap();
        let key = format!("key-{n:02}");
        send(&webhooks, delivery(&Sender::github(), "push", &key))
            .await
            .assert_ok();
    }
    for n in 0..12 {
        get(&app, &format!("/find?id=key-{n:02}"))
            .await
            .is(200)
            .shows(&format!("<td>shop-{n:02}/push</td>"));
    }
    // The worst route is the first that can be paused, and the others are on the page of all types.
    let overview = get(&app, "/").await;
    overview
        .shows("Pause all of shop-00")
        .hides("Pause all of shop-11");
    get(&app, "/kinds").await.shows("Pause all of shop-11");
}

#[tokio::test(start_paused = true)]
async fn types_and_routes_are_paused_by_themselves() {
    let inbox = inbox();
    let mut routes = inbox.routes();
    for (sender, kind) in [
        (Sender::chat_platform(), "push"),
        (Sender::github(), "push"),
    ] {
        let webhooks = Webhooks::new(secret()).sender(sender.clone());
        let webhooks = routes.accept(webhooks).unwrap();
        send(&webhooks, delivery(&sender, kind, "k"))
            .await
            .assert_ok();
    }
    let app = Console::new().inbox(inbox.clone()).router();
    let paused = async || {
        let stats = inbox.stats().await.unwrap();
        let pauses = stats.pauses.iter().map(|pause| pause.of.to_string());
        pauses.collect::<Vec<_>>()
    };
    get(&app, "/")
        .await
        .shows(r#"<button id="pause-github/push" aria-label="Pause github/push">Pause…</button>"#)
        .shows(r#"<input type="hidden" name="of" value="github/">"#)
        .shows(r#"aria-label="Pause all of github">Pause all of github…</button>"#);
    let asked = get(&app, "/pause?of=github%2F").await;
    asked
        .is(200)
        .shows("Pause all of github?")
        .shows("Yes, pause all of github");
    let fields = format!("{}&reason=maintenance", fields(&asked));
    let location = post(&app, "/pause", &fields).await.is(303).location.clone();
    assert_eq!(location.as_deref(), Some("/?did=pause%3Agithub%2F"));
    assert_eq!(paused().await, ["github/"]);
    let overview = get(&app, location.as_deref().unwrap()).await;
    overview
        .shows("All of github was paused.")
        .shows("<b>all of github is paused</b> since ")
        .shows("Paused: <b>all of github</b>.")
        .shows(r#">github/push</a> <span class="badge warn">paused</span>"#)
        // The type itself is not.
        .shows(r#"aria-label="Pause github/push">Pause…</button>"#)
        .shows(r#"aria-label="Resume all of github">Resume all of github…</button>"#);
    let waits = "not tried before somebody resumes all of github.";
    get(&app, "/events/2").await.shows(waits);
    get(&app, "/events/1").await.hides("It is paused");
    post(&app, "/pause", "of=github/push&reason=maintenance")
        .await
        .is(303);
    post(&app, "/resume", "of=github/").await.is(303);
    assert_eq!(paused().await, ["github/push"]);
    get(&app, "/events/2")
        .await
        .shows("before somebody resumes github/push.");
    get(&app, "/actions")
        .await
        .shows(r#"<td>pause</td><td class="wide">all of github</td>"#)
        .shows(r#"<td class="wide">github/push</td>"#);
    post(&app, "/resume", "of=github/push").await.is(303);
    get(&app, "/pause?of=git+hub/")
        .await
        .is(400)
        .shows("nor a route, such as `github/`.");
    assert!(paused().await.is_empty());
}

/// Without several routes, there is nothing to tell apart.
#[tokio::test(start_paused = true)]
async fn the_only_route_is_not_named() {
    let overview = get(&Console::new().inbox(four_events().await).router(), "/").await;
    overview
        .shows(r#"id="pause-chat-rated""#)
        .hides("all of chat-platform");
}

#[tokio::test(start_paused = true)]
async fn events_of_a_route_that_no_worker_handles_are_critical() {
    let inbox = inbox();
    let mut routes = inbox.routes();
    let github = Webhooks::new(secret()).sender(Sender::github());
    let github = routes.accept(github).unwrap();
    for key in ["a", "b"] {
        send(&github, delivery(&Sender::github(), "push", key))
            .await
            .assert_ok();
    }
    let app = || Console::new().inbox(inbox.clone()).router();
    sleep(5 * MINUTE).await;
    get(&app(), "/")
        .await
        .shows("Nobody handles <b>github/push</b>");
    sleep(5 * MINUTE).await;
    get(&app(), "/")
        .await
        .shows(
            "<b>Critical: </b>2 events of <b>github</b> wait, and no worker seems to handle them",
        )
        .shows(r#"href="/events?state=waiting&amp;route=github""#)
        .hides("Nobody handles");
    inbox.pause(Scope::Everything, "").await.unwrap();
    get(&app(), "/").await.hides("no worker seems to handle");
}
