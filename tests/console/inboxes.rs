//! Several inboxes in one console.

use std::sync::atomic::Ordering;

use axum::Router;
use axum::body::Body;
use http::Request;
use http::header::HOST;
use tower_webhook::inbox::{EventState, Inbox};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::telemetry::FailureBudget;
use tower_webhook_console::Console;

use support::delivery::RequestExt;
use support::inbox::{inbox, states};
use support::queue::FaultyQueue;

use super::{fields, form, four_events, get, post, request};

#[tokio::test(start_paused = true)]
async fn several_inboxes_have_one_overview_and_pages_of_their_own() {
    let (chats, orders) = (four_events().await, inbox());
    let console = Console::new()
        .budget(FailureBudget::default())
        .console("orders", Console::new().inbox(orders.clone()))
        .console("chats", Console::new().inbox(chats.clone()));
    let app = Router::new().nest("/ops", console.router());

    // What is wrong with one of them is said first, with a link to it.
    let overview = get(&app, "/ops").await;
    overview
        .is(200)
        .hides("All is well")
        .shows(r#"<b>Warning: </b><b>chats</b>: <b>1 dead letter</b>"#)
        .shows(r#"<a href="/ops/inboxes/chats">Its overview</a>"#)
        .shows(r#"<th scope="row"><a href="/ops/inboxes/orders">orders</a></th>"#)
        .shows(r#"<span class="badge good">Well</span>"#)
        .shows(r#"href="/ops/inboxes/chats/events?state=dead">1</a>"#)
        .hides("<h2>Kinds</h2>")
        .hides(">Events</a>");
    get(&app, "/ops/events").await.is(404);

    get(&app, "/ops/inboxes/orders")
        .await
        .is(200)
        .shows("All is well");
    let page = get(&app, "/ops/inboxes/chats/events/2").await;
    page.is(200)
        .shows(r#"<a class="brand" href="/ops">All inboxes</a><b>chats</b>"#)
        .shows("<title>Event 2 · chats · Webhooks</title>")
        .shows(r#"action="/ops/inboxes/chats/events/2/redrive""#);
    get(&app, "/ops/inboxes/orders/events/2").await.is(404);
    let redriven = post(&app, "/ops/inboxes/chats/events/2/redrive", &fields(&page)).await;
    redriven.is(303);
    let location = redriven.location.unwrap();
    assert!(
        location.starts_with("/ops/inboxes/chats/events/2?"),
        "{location}"
    );
    assert_ne!(states(&chats).await[1], EventState::Dead);
    get(&app, "/ops/inboxes/chats/style.css").await.is(200);
}

#[tokio::test(start_paused = true)]
async fn what_holds_for_the_console_holds_for_those_in_it() {
    let inbox = four_events().await;
    let app = Console::new()
        .console("chats", Console::new().inbox(inbox.clone()))
        .hosts(["localhost"])
        .read_only()
        .hide_payloads()
        .router();
    let page = get(&app, "/inboxes/chats/events/2").await;
    page.is(200)
        .hides("<form method=\"post\"")
        .hides("customer");
    post(&app, "/inboxes/chats/events/2/discard", "")
        .await
        .is(404);
    for path in ["/", "/inboxes/chats", "/inboxes/chats/events/2"] {
        let get = Request::get(path).header(HOST, "evil.example");
        let page = request(&app, get.body(Body::empty()).unwrap()).await;
        page.is(421).hides("dead letter").hides("customer");
    }
    let discard = form("/inboxes/chats/events/2/discard", "").with("host", "evil.example");
    request(&app, discard).await.is(421);
    assert_eq!(states(&inbox).await[1], EventState::Dead);
}

#[tokio::test(start_paused = true)]
async fn every_name_has_pages() {
    let names = [
        "", "", ".", "..", "a/b", "*", "{a}", "{*a}", "ü & <b>", "a?b#c", "twice", "twice", "%2e",
    ];
    let console = names.into_iter().fold(Console::new(), |console, name| {
        console.console(name, Console::new().inbox(inbox()))
    });
    let app = console.router();
    let overview = get(&app, "/").await;
    overview
        .hides("& <b>")
        .hides("\"></a>")
        .shows("ü &amp; &lt;b&gt;");
    let links = overview.text.split("<th scope=\"row\"><a href=\"").skip(1);
    let links: Vec<_> = links.map(|it| it.split('"').next().unwrap()).collect();
    assert_eq!(links.len(), names.len());
    for (at, link) in links.iter().enumerate() {
        assert!(!links[..at].contains(link), "{links:?}");
        assert!(!link.ends_with(['.', '/']), "a browser would change {link}");
        get(&app, link).await.is(200).shows("All inboxes");
    }
}

#[tokio::test(start_paused = true)]
async fn an_inbox_that_cannot_be_read_is_critical_and_hides_no_other() {
    let queue = FaultyQueue::new(MemoryQueue::new());
    queue.faults.is_down.store(true, Ordering::SeqCst);
    let app = Console::new()
        .console("chats", Console::new().inbox(four_events().await))
        .console("orders", Console::new().inbox(Inbox::new(queue)))
        .router();
    let overview = get(&app, "/").await;
    overview
        .is(200)
        .shows("<b>Critical: </b><b>orders</b>: The queue cannot be read")
        .shows("<b>chats</b>: <b>1 dead letter</b>");
}
