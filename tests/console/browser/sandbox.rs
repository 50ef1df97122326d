//! The example `sandbox`, together with the example `receiver`.

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::Html;
use axum::routing::get;
use serde_json::json;

use crate::chromium::{HOSTILE, Page, Window, until};
use support::net::serve;
use support::program::{Server, curl};

/// Nobody listens there.
const NOWHERE: &str = "http://127.0.0.1:1/";
const MAX_PAGE: usize = 50_000;

#[tokio::test]
async fn every_control_works_by_mouse_on_a_desktop() {
    tour(Window::new(1280)).await;
}

#[tokio::test]
async fn every_control_works_by_mouse_on_a_phone() {
    tour(Window::new(390)).await;
}

#[tokio::test]
async fn every_control_works_by_keyboard_on_a_desktop() {
    tour(Window::by_keyboard(1280)).await;
}

#[tokio::test]
async fn every_control_works_by_keyboard_on_a_phone() {
    tour(Window::by_keyboard(390)).await;
}

async fn tour(window: Window) {
    let (receiver, sandbox) = receiver_and_sandbox();
    window
        .open(&sandbox.url, async |page| {
            page.fits().await;
            api_key(&page, &sandbox).await;
            deliveries(&page, &receiver).await;
            chat(&page, &receiver).await;
            retries(&page, &receiver).await;
            settings(&page).await;
            generated_chats(&page, &sandbox).await;
            first_screen(&page, &sandbox).await;
            filter(&page).await;
            page.fits().await;
            page.has_no_errors().await;
        })
        .await;
    assert_eq!(sandbox.stop(), 0);
}

#[tokio::test]
async fn every_control_works_by_mouse_without_scripts_on_a_phone() {
    let (receiver, sandbox) = receiver_and_sandbox();
    let window = Window {
        scripts: false,
        ..Window::new(390)
    };
    let test = async |page: Page| {
        assert_eq!(
            page.script("return pause.parentElement.hidden").await,
            Some(json!(true))
        );
        page.until_contains("noscript", "Refresh").await;
        api_key(&page, &sandbox).await;
        chat(&page, &receiver).await;
        // The page does not change by itself.
        page.goto(&sandbox.url).await;
        page.configure("message-created", NOWHERE).await;
        page.start_chat("once").await;
        page.until_reloaded("#waiting tbody", "connection refused")
            .await;
        page.configure("message-created", &receiver.url).await;
        page.activate("#waiting button").await;
        page.until_reloaded("#waiting", "No event is waiting").await;
        page.activate("#forward-10").await;
        page.until_reloaded("#clock", "UTC").await;
        filter(&page).await;
        page.has_no_errors().await;
    };
    window.open(&sandbox.url, test).await;
}

fn receiver_and_sandbox() -> (Server, Server) {
    let receiver = Server::receiver(&["--demo"]);
    let args = ["--demo", "--rate", "0", "--target", &receiver.url];
    let sandbox = Server::start("sandbox", &args);
    (receiver, sandbox)
}

/// Shown once, and good for the Admin API, which returns what the page says of the availability.
async fn api_key(page: &Page, sandbox: &Server) {
    page.set("#description", HOSTILE).await;
    page.activate("#create-key").await;
    let key = page.until_text("#new-key", |key| key.len() == 32).await;
    page.until_contains("main", HOSTILE).await;
    let available = || {
        let query = r#"{"query":"{ partner { state { chat { isAvailable } } } }"}"#;
        let (bearer, url) = (
            format!("Authorization: Bearer {key}"),
            format!("{}graphql", sandbox.url),
        );
        let json = "Content-Type: application/json";
        curl(&["-H", json, "-H", &bearer, "-d", query, &url])
    };
    assert!(
        available().contains(r#""isAvailable":true"#),
        "{}",
        available()
    );

    page.activate("#switch-availability").await;
    page.until_text("#availability", |text| text == "unavailable")
        .await;
    assert!(available().contains(r#""isAvailable":false"#));
    page.until_text("main", |text| !text.contains(&key)).await;
    page.activate("#switch-availability").await;
    page.until_text("#availability", |text| text == "available")
        .await;
}

async fn deliveries(page: &Page, receiver: &Server) {
    page.unfold("chat-rated").await;
    page.activate("#test-chat-rated").await;
    page.until_text("#attempts tbody", |text| {
        text.contains("chat-rated") && text.contains("none (test event)") && text.contains("200")
    })
    .await;
    assert!(
        receiver
            .out()
            .contains(r#"{"event":"chat-rated","payload""#)
    );

    page.start_chat(HOSTILE).await;
    page.until_contains("#summary", "3 delivered").await;
    assert!(receiver.out().contains("window.hacked"));
    page.activate("#attempts a[href='/events/2']").await;
    page.until_contains("#payload-text", "window.hacked").await;
    page.until_contains("#response-headers", "200 OK").await;
    page.fits().await;

    // The receiver recognises its key.
    page.act("#resend-2", "Event 2 is sent again").await;
    page.until_contains("#attempts caption", "2 of 2").await;
    page.until_contains("#response-headers", "idempotent-replayed: true")
        .await;
    page.activate("#attempts tbody tr:nth-child(2) a").await;
    page.until_text("#response-headers", |text| {
        !text.contains("idempotent-replayed")
    })
    .await;
    page.activate(".site a").await;
    page.until_path("/").await;
}

/// From its start to its rating.
async fn chat(page: &Page, receiver: &Server) {
    page.start_chat("Hello").await;
    page.activate("#notice a").await;
    page.until_contains("#events", "Customer: Hello").await;
    let id = page
        .until_text("h1", |title| title.starts_with("Chat c-"))
        .await;
    let id = id.trim_start_matches("Chat ");

    page.set("#message", "Anybody there?").await;
    page.act("#from-customer", "The customer has sent a message")
        .await;
    page.set("#message", "Yes").await;
    page.act("#from-expert", "The expert has sent a message")
        .await;
    for (step, done) in [
        ("assign", "assigned"),
        ("open", "opened"),
        ("close", "closed"),
        ("reopen", "reopened"),
        ("transfer", "transferred"),
    ] {
        page.act(&format!("#{step}"), &format!("The chat is {done}"))
            .await;
        page.until_contains("#events", &format!("chat-{done}"))
            .await;
    }
    for (rating, value) in [("bad", "0"), ("fair", "0.5"), ("good", "1")] {
        page.act(
            &format!("#rate-{rating}"),
            &format!("rated the chat: {rating}"),
        )
        .await;
        page.until_contains("#facts", &format!("Rating{value}"))
            .await;
    }
    page.until_contains("#events", "Expert: Yes").await;
    page.until_contains("#events caption", "The latest 12 of 12")
        .await;
    page.fits().await;
    until("the ratings", async || {
        (receiver.out().matches("chat-rated").count() >= 3).then_some(())
    })
    .await;

    // The chat's events in the list, and from one of them back to the chat.
    page.activate(".head a").await;
    page.until_contains("#events caption", "12 of 12, newest first")
        .await;
    page.fits().await;
    page.activate("#events tbody tr:nth-child(1) a").await;
    page.until_contains("h1", "chat-rated").await;
    page.activate(&format!("dl a[href='/chats/{id}']")).await;
    page.until_contains("h1", "Chat").await;
    page.activate(".brand").await;
    page.until_path("/").await;
    page.activate(&format!("#chat-{id}")).await;
    page.until_contains("h1", "Chat").await;
    page.activate(".site a").await;
    page.until_path("/").await;
}

async fn retries(page: &Page, receiver: &Server) {
    let nothing_waits = |text: &str| text.contains("No event is waiting");
    page.until_text("#waiting", nothing_waits).await;

    page.configure("message-created", NOWHERE).await;
    page.start_chat("once").await;
    page.until_contains("#waiting tbody", "connection refused")
        .await;
    page.until_contains("#attempts", "next retry").await;
    page.until_contains("#state-message-created", "1 of 500")
        .await;
    page.configure("message-created", &receiver.url).await;
    page.act("#waiting button", "is retried").await;
    page.until_text("#waiting", nothing_waits).await;

    page.configure("message-created", NOWHERE).await;
    page.start_chat("later").await;
    page.until_contains("#waiting tbody", "message-created")
        .await;
    for (attempts, button) in [
        (2, "#forward-10"),
        (8, "#forward-60"),
        (152, "#forward-day"),
    ] {
        page.activate(button).await;
        page.until_contains("#waiting [data-label=Attempts]", &attempts.to_string())
            .await;
        page.until_text("#clock", |text| !text.contains("left to advance"))
            .await;
    }
    page.activate("#waiting tbody a").await;
    page.until_contains("#attempts caption", "25 of 152").await;
    page.fits().await;
    page.activate("#older").await;
    page.activate("#newest").await;
    page.until_contains("#response", "connection refused").await;
    page.activate(".site a").await;
    page.until_path("/").await;

    page.configure("message-created", &receiver.url).await;
    page.activate("#forward-10").await;
    page.until_text("#waiting", nothing_waits).await;
    let lines = receiver.out();
    assert_eq!(lines.matches("\"later\"").count(), 1, "{lines}");
}

async fn settings(page: &Page) {
    page.configure_with("chat-opened", "ftp://127.0.0.1/", "use a URL such as")
        .await;

    page.unfold("chat-opened").await;
    page.activate("#active-chat-opened").await;
    page.act("#save-chat-opened", "chat-opened is saved").await;
    page.until_contains("#state-chat-opened", "not delivering")
        .await;

    page.unfold("chat-assigned").await;
    page.set("#secret-chat-assigned", "another").await;
    page.act("#save-chat-assigned", "chat-assigned is saved")
        .await;
    let html = page.client.source().await.unwrap();
    assert!(!html.contains("another"), "{html}");
    page.start_chat("").await;
    page.until_reloaded("#attempts tbody", "401").await;

    // The receiver has the webhook's secret, not that of the test.
    page.unfold("chat-rated").await;
    page.set("#test-secret-chat-rated", "another").await;
    page.send_test("401").await;
    page.send_test("200").await;

    let label = "label[for=secret-chat-rated]";
    page.until_contains(label, "(set)").await;
    page.activate("#remove-chat-rated").await;
    page.act("#save-chat-rated", "chat-rated is saved").await;
    page.until_contains(label, "(none)").await;
    page.send_test("401").await;
}

/// They are seen without loading the page again, and not while updates are paused.
async fn generated_chats(page: &Page, sandbox: &Server) {
    page.set("#rate", "3000").await;
    page.act("#set-rate", "Chats cause 3000 events per minute.")
        .await;
    page.script("window.marked = true").await;
    page.until_contains("#attempts caption", "The latest 20")
        .await;
    assert_eq!(page.script("return window.marked").await, Some(json!(true)));

    page.activate("#pause").await;
    page.script(
        "window.rounds = 0; window.requests = 0;
        const { fetch, setTimeout } = window;
        window.fetch = (...all) => { requests += 1; return fetch(...all) };
        window.setTimeout = (...all) => { rounds += 1; return setTimeout(...all) };",
    )
    .await;
    let count = async |what: &str| page.script(&format!("return {what}")).await?.as_u64();
    until("two rounds", async || {
        (count("rounds").await? >= 2).then_some(())
    })
    .await;
    let requests = count("requests").await.unwrap();
    assert!(requests <= 1, "{requests}, of which the first had begun");
    page.activate("#pause").await;
    until("an update", async || {
        (count("requests").await? > requests).then_some(())
    })
    .await;

    page.set("#rate", "0").await;
    page.act("#set-rate", "Chats cause 0 events per minute.")
        .await;
    until("events", async || {
        let page = curl(&[&format!("{}events", sandbox.url)]);
        page.contains("id=\"next\"").then_some(())
    })
    .await;
}

/// Attempts are on the first screen of a desktop, webhooks are folded, and no word is broken.
async fn first_screen(page: &Page, sandbox: &Server) {
    page.goto(&sandbox.url).await;
    if page.window.width < 1280 {
        return;
    }
    let rows = "return [...document.querySelectorAll('#attempts tbody tr')].filter(row =>
        row.getBoundingClientRect().bottom <= innerHeight).length";
    let rows = page.script(rows).await.unwrap().as_u64().unwrap();
    assert!(rows >= 10, "{rows}");
    let unfolded = "return document.querySelectorAll('details[open]').length";
    assert_eq!(page.script(unfolded).await, Some(json!(0)));
    let broken = "return [...document.querySelectorAll('#attempts td:not(.wide)')].filter(cell =>
        getComputedStyle(cell).whiteSpace !== 'nowrap').length";
    assert_eq!(page.script(broken).await, Some(json!(0)));
}

async fn filter(page: &Page) {
    page.activate(".site a:nth-child(2)").await;
    page.until_path("/events").await;
    if page.window.scripts {
        page.activate("#next").await;
        page.activate("#first").await;
        page.until_contains("#events caption", "newest first").await;
    }
    page.choose("#kind", "message-created").await;
    page.choose("#state", "delivered").await;
    page.set("#chat", "c-1").await;
    page.activate("#show-events").await;
    page.until_path("/events").await;
    page.until_contains("#events caption", "newest first").await;
    let rows = "return [...document.querySelectorAll('#events tbody tr')].every(row =>
        row.textContent.includes('message-created') && row.textContent.includes('c-1'))";
    until("filtered events", async || {
        let url = page.client.current_url().await.ok()?;
        url.query()?.contains("state=delivered").then_some(())
    })
    .await;
    assert_eq!(page.script(rows).await, Some(json!(true)));

    page.choose("#state", "waiting").await;
    page.set("#chat", HOSTILE).await;
    page.activate("#show-events").await;
    page.until_contains("#events", "No event matches").await;
    let chat = page
        .script("return document.querySelector('#chat').value")
        .await;
    assert_eq!(chat, Some(json!(HOSTILE)));
    page.fits().await;
    page.activate(".brand").await;
    page.until_path("/").await;
    page.activate("#show-events").await;
    page.until_path("/events").await;
    page.activate(".site a").await;
    page.until_path("/").await;
}

#[tokio::test]
async fn disabled_webhook_says_when_and_why_and_can_be_enabled_again() {
    let args = ["--demo", "--rate", "0", "--target", NOWHERE];
    let sandbox = Server::start("sandbox", &args);
    sandbox.post("chats", "text=Hello");
    post_often(&sandbox, "chats/c-1/message", "text=Hello", 500);
    let test = async |page: Page| {
        let says_why = |text: &str| {
            text.contains("disabled at ")
                && text.contains(", after more than 500 failed attempts in an hour")
                && text.contains("connection refused")
        };
        page.until_text("#state-message-created", says_why).await;
        page.until_text("#alerts", says_why).await;
        let gauge =
            "return document.querySelector('#state-message-created [role=meter]').ariaValueNow";
        assert_eq!(page.script(gauge).await, Some(json!("500")));
        page.fits().await;
        page.act("#enable-message-created", "message-created is enabled")
            .await;
        page.until_text("#state-message-created", |text| {
            text.contains("delivering") && text.contains("0 of 500")
        })
        .await;
        page.has_no_errors().await;
    };
    Window::new(390).open(&sandbox.url, test).await;
}

#[tokio::test]
async fn pages_are_accessible_on_a_desktop() {
    accessible(1280).await;
}

#[tokio::test]
async fn pages_are_accessible_on_a_phone() {
    accessible(390).await;
}

/// Pages that are empty, that have contents of all kinds, and that say what is wrong.
async fn accessible(width: u32) {
    let receiver = hostile_receiver().await;
    let args = ["--demo", "--rate", "0", "--faults", "all=0.05", "--strict"];
    let sandbox = Server::start("sandbox", &[&args[..], &["--target", &receiver]].concat());
    let url = |path: &str| format!("{}{path}", sandbox.url);
    let test = async |page: Page| {
        page.is_accessible().await;
        sandbox.post("keys", "description=CRM");
        sandbox.post("chats", "text=Hello");
        sandbox.post("chats/c-1/close", "");
        // One is disabled, so that the page has an alert.
        sandbox.post(
            "webhooks/chat-opened",
            &format!("url={NOWHERE}&secret=&active=on"),
        );
        post_often(&sandbox, "chats/c-1/open", "", 600);
        until("a disabled webhook", async || {
            let page = curl(&[&sandbox.url]);
            page.contains("id=\"enable-chat-opened\"").then_some(())
        })
        .await;
        for path in [
            "?webhook=chat-rated",
            "events",
            "events?state=waiting&kind=chat-opened",
            "events/1",
            "chats/c-1",
            "nowhere",
        ] {
            page.goto(&url(path)).await;
            page.fits().await;
            page.is_accessible().await;
            if ["?webhook=chat-rated", "chats/c-1"].contains(&path) {
                // So that no control is replaced meanwhile.
                page.activate("#pause").await;
                let unreachable = page.unreachable_by_keyboard().await;
                assert!(unreachable.is_empty(), "{path}: {unreachable:#?}");
            }
        }
        page.goto(&sandbox.url).await;
        page.until_contains("#alerts", "was disabled at").await;
    };
    Window::new(width).open(&sandbox.url, test).await;
}

/// Answers with script in the body and in a header.
async fn hostile_receiver() -> String {
    let answer = (
        StatusCode::INTERNAL_SERVER_ERROR,
        [("x-hostile", HOSTILE), (CONTENT_TYPE.as_str(), "text/html")],
        HOSTILE,
    );
    let address = serve(Router::new().fallback(async move || answer)).await;
    format!("http://{address}/webhooks")
}

#[tokio::test]
async fn script_in_texts_is_shown_and_never_executed() {
    let receiver = hostile_receiver().await;
    let args = ["--demo", "--rate", "0", "--target", &receiver];
    let sandbox = Server::start("sandbox", &args);
    let url = |path: &str| format!("{}{path}", sandbox.url);
    let encoded: String = url::form_urlencoded::byte_serialize(HOSTILE.as_bytes()).collect();
    sandbox.post("chats", &format!("text={encoded}"));
    sandbox.post("keys", &format!("description={encoded}"));
    sandbox.post(
        "webhooks/chat-rated",
        &format!("url={encoded}&secret=&active=on"),
    );
    let test = async |page: Page| {
        for (path, shown) in [
            ("", "#keys + form + table"),
            ("", "#notice"),
            ("events/1", "#payload-text"),
            ("events/1", "#response-headers"),
            ("events/1", "#response-body"),
            ("chats/c-1", "#events"),
            (&format!("events?kind={encoded}"), "main"),
            (&format!("events?after={encoded}"), "main"),
            (&format!("events/{encoded}"), "main"),
            (&format!("chats/{encoded}"), "main"),
            ("events/1/payload", "body"),
        ] {
            if shown == "#notice" {
                sandbox.post("webhooks/chat-rated", "url=<script>&secret=");
            }
            page.goto(&url(path)).await;
            page.until_contains(
                shown,
                if shown == "#notice" {
                    "not saved"
                } else {
                    "window.hacked"
                },
            )
            .await;
            let found = "return [window.hacked, document.querySelectorAll('img, main script, body > script').length]";
            assert_eq!(page.script(found).await, Some(json!([null, 0])), "{path}");
            // The payload alone is plain text.
            if shown != "body" {
                page.fits().await;
            }
        }
    };
    Window::new(390).open(&url("events/1"), test).await;
}

/// Another site in the same browser: a link may show the page, and everything else is refused.
#[tokio::test]
async fn other_sites_can_neither_post_nor_read() {
    let sandbox = Server::start("sandbox", &["--demo", "--rate", "0"]);
    let port = sandbox
        .url
        .trim_end_matches('/')
        .rsplit(':')
        .next()
        .unwrap();
    let target = sandbox.url.clone();
    let html = format!(
        "<form id=form method=post action='{target}chats'><input name=text value=evil><button id=post>Win</button></form>
        <iframe src='{target}'></iframe>
        <p id=result></p><a id=link href='{target}'>a link</a>
        <script>
          const simple = {{ method: 'POST', mode: 'no-cors', body: new URLSearchParams({{ text: 'evil' }}) }};
          Promise.allSettled([
            fetch('{target}chats', simple), fetch('{target}'), fetch('{target}live', {{ headers: {{ 'x-live': '1' }} }}),
          ]).then(all => {{ result.textContent = all.map(one => one.value?.type ?? one.status).join() }})
        </script>"
    );
    let evil = serve(Router::new().route("/", get(async move || Html(html)))).await;

    let window = Window {
        flags: vec!["--host-resolver-rules=MAP evil.example 127.0.0.1".to_owned()],
        ..Window::new(1280)
    };
    let test = async |page: Page| {
        for host in ["evil.example", "localhost", "127.0.0.1"] {
            let url = format!("http://{host}:{}/", evil.port());
            page.goto(&url).await;
            page.until_text("#result", |text| text == "opaque,rejected,rejected")
                .await;
            page.activate("#post").await;
            page.until_contains("body", "own page").await;
            page.goto(&url).await;
            page.activate("#link").await;
            page.until_contains("#summary", "0 events").await;
        }
        page.goto(&format!("http://evil.example:{port}/")).await;
        page.until_contains("body", "by its IP address").await;
    };
    window.open(&sandbox.url, test).await;
    assert!(curl(&[&sandbox.url]).contains("<b>0</b> events"));
}

/// With their style and script, when all tables are full and all texts are long.
#[tokio::test]
async fn pages_have_at_most_50_kilobytes() {
    let receiver = {
        let answer = (
            StatusCode::INTERNAL_SERVER_ERROR,
            [("x-long", "\"".repeat(7_000))],
            "\"".repeat(5_000),
        );
        let address = serve(Router::new().fallback(async move || answer.clone())).await;
        format!("http://{address}/webhooks")
    };
    let args = [
        "--demo", "--strict", "--rate", "0", "--faults", "all=0.03", "--target", &receiver,
    ];
    let sandbox = Server::start("sandbox", &args);
    let url = |path: &str| format!("{}{path}", sandbox.url);
    for _ in 0..12 {
        sandbox.post("keys", &format!("description={}", "%22".repeat(500)));
    }
    sandbox.post("chats", &format!("text={}", "%22".repeat(100_000)));
    let long = format!("text={}", "%22".repeat(5_000));
    post_often(&sandbox, "chats/c-1/message", &long, 40);
    for step in ["open", "close", "reopen", "transfer", "rate"] {
        post_often(&sandbox, &format!("chats/c-1/{step}"), "rating=bad", 510);
    }
    until("disabled webhooks", async || {
        let page = curl(&[&sandbox.url]);
        (page.matches("class=\"alert\"").count() == 5).then_some(())
    })
    .await;
    let nowhere = format!("url={NOWHERE}{}&secret=&active=on", "x".repeat(970));
    sandbox.post("webhooks/message-created", &nowhere);
    let event = 1;
    for _ in 0..30 {
        sandbox.post(&format!("events/{event}/retry"), "");
    }
    let parts = curl(&[&url("page.css")]).len() + curl(&[&url("page.js")]).len();
    for path in [
        "",
        "events",
        "events?state=lost",
        &format!("events/{event}"),
        "chats/c-1",
        "nowhere",
    ] {
        let size = curl(&[&url(path)]).len() + parts;
        println!("{path}: {size}");
        assert!(size <= MAX_PAGE, "{path}: {size}");
    }
}

/// Sends a form many times on one connection.
fn post_often(sandbox: &Server, path: &str, form: &str, times: usize) {
    let own = format!("Origin: {}", sandbox.url.trim_end_matches('/'));
    let url = format!("{}{path}?[1-{times}]", sandbox.url);
    curl(&["-o", "/dev/null", "-d", form, "-H", &own, &url]);
}

impl Page {
    /// Uses a control, and waits until the page says what was done.
    async fn act(&self, selector: &str, done: &str) {
        // So that the next one is not taken for the last one.
        self.script("document.getElementById('notice')?.remove()")
            .await;
        self.activate(selector).await;
        self.until_contains("#notice", done).await;
    }

    async fn start_chat(&self, text: &str) {
        self.set("#text", text).await;
        self.act("#start-chat", "is started").await;
    }

    async fn unfold(&self, kind: &str) {
        let details = format!("return document.querySelector('#webhook-{kind}').open");
        if self.script(&details).await != Some(json!(true)) {
            self.activate(&format!("#webhook-{kind} > summary")).await;
            until(kind, async || {
                (self.script(&details).await? == json!(true)).then_some(())
            })
            .await;
        }
    }

    async fn configure(&self, kind: &str, url: &str) {
        self.configure_with(kind, url, "is saved").await;
    }

    async fn configure_with(&self, kind: &str, url: &str, done: &str) {
        self.unfold(kind).await;
        self.set(&format!("#url-{kind}"), url).await;
        self.act(&format!("#save-{kind}"), done).await;
    }

    async fn send_test(&self, status: &str) {
        self.act("#test-chat-rated", "is being sent").await;
        self.until_reloaded("#attempts tbody tr", "none (test event)")
            .await;
        self.until_reloaded("#attempts tbody tr .wide", status)
            .await;
    }
}
