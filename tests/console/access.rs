//! Who may read and change something, and where the console is mounted.

use axum::body::Body;
use http::Request;
use http::header::HOST;
use tower_webhook::inbox::EventState;
use tower_webhook_console::Console;

use support::delivery::RequestExt;
use support::inbox::states;

use super::{form, four_events, get, post, request};

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
