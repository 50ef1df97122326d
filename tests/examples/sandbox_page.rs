//! The example `sandbox` in a browser, together with the example `receiver`.

use std::fs::{self, File};
use std::future::Future;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::process::Command;
use std::time::{Duration, Instant};

use axum::http::Method;
use fantoccini::wd::WebDriverCompatibleCommand;
use fantoccini::{Client, ClientBuilder, Locator};
use futures_util::FutureExt;
use hyper_util::client::legacy::connect::HttpConnector;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::sleep;
use url::{ParseError, Url};

use crate::support::program::{Program, example, installed, tool};

/// Nobody listens there.
const NOWHERE: &str = "http://127.0.0.1:1/";
const HOSTILE: &str = "<img src=x onerror=alert(1)>";

#[tokio::test]
async fn every_control_works_on_a_desktop() {
    tour(1280).await;
}

#[tokio::test]
async fn every_control_works_on_a_phone() {
    tour(390).await;
}

async fn tour(width: u32) {
    let receiver = Server::start("receiver", &["--demo"]);
    let sandbox = Server::start(
        "sandbox",
        &["--demo", "--rate", "0", "--target", &receiver.url],
    );
    in_browser(width, &sandbox.url, async |page| {
        api_key(&page, &sandbox).await;
        deliveries(&page, &receiver).await;
        retries(&page, &receiver).await;
        settings(&page).await;
        generated_chats(&page).await;
    })
    .await;
    assert_eq!(sandbox.stop(), 0);
}

/// Created by the keyboard alone, shown once, and good for the Admin API, which tells what the page
/// says of the availability.
async fn api_key(page: &Page, sandbox: &Server) {
    page.type_into("#description", &format!("{HOSTILE}\u{e007}"))
        .await;
    let key = page.until_text("#new-key", |key| key.len() == 32).await;
    page.until_text("main", |text| text.contains(HOSTILE)).await;
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

    page.click("#switch-availability").await;
    page.until_text("#availability", |text| text == "unavailable")
        .await;
    assert!(available().contains(r#""isAvailable":false"#));
    page.until_text("main", |text| !text.contains(&key)).await;
    page.click("#switch-availability").await;
    page.until_text("#availability", |text| text == "available")
        .await;
}

async fn deliveries(page: &Page, receiver: &Server) {
    page.click("#test-chat-rated").await;
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
    page.until_text("#summary", |text| text.contains("3 delivered"))
        .await;
    assert!(receiver.out().contains(HOSTILE));
    page.click("#attempts a[href='/events/2']").await;
    page.until_text("pre", |text| text.contains(HOSTILE)).await;
    page.fits().await;
    page.click("main a[href='/']").await;
}

async fn retries(page: &Page, receiver: &Server) {
    let nothing_waits = |text: &str| text.contains("No event is waiting");
    page.until_text("#waiting", nothing_waits).await;

    page.configure("message-created", NOWHERE).await;
    page.start_chat("once").await;
    page.until_text("#waiting tbody", |text| text.contains("message-created"))
        .await;
    page.until_text("#attempts", |text| text.contains("next retry"))
        .await;
    page.configure("message-created", &receiver.url).await;
    page.click("#waiting button").await;
    page.until_text("#waiting", nothing_waits).await;

    for button in ["#forward-10", "#forward-60", "#forward-day"] {
        page.configure("message-created", NOWHERE).await;
        page.start_chat("later").await;
        page.until_text("#waiting tbody", |text| text.contains("message-created"))
            .await;
        page.configure("message-created", &receiver.url).await;
        page.click(button).await;
        page.until_text("#waiting", nothing_waits).await;
        page.until_text("#clock", |text| !text.contains("left to advance"))
            .await;
    }
    let lines = receiver.out();
    assert_eq!(lines.matches("\"later\"").count(), 3, "{lines}");
}

async fn settings(page: &Page) {
    page.set("#url-chat-opened", "ftp://127.0.0.1/").await;
    page.click("#save-chat-opened").await;
    page.until_text("#notice", |text| text.contains("use a URL such as"))
        .await;

    page.click("#active-chat-opened").await;
    page.click("#save-chat-opened").await;
    page.until_text("#state-chat-opened", |text| text.contains("not delivering"))
        .await;

    page.set("#secret-chat-assigned", "another").await;
    page.click("#save-chat-assigned").await;
    page.until_text("#notice", |text| text.contains("chat-assigned is saved"))
        .await;
    let html = page.client.source().await.unwrap();
    assert!(!html.contains("another"), "{html}");
    page.start_chat("").await;
    page.until_text("#attempts tbody", |text| text.contains("401"))
        .await;

    // The receiver has the webhook's secret, not that of the test.
    page.set("#test-secret-chat-rated", "another").await;
    page.click("#test-chat-rated").await;
    page.until_text("#attempts tbody tr", |text| {
        text.contains("none (test event)") && text.contains("401")
    })
    .await;
    page.click("#test-chat-rated").await;
    page.until_text("#attempts tbody tr", |text| {
        text.contains("none (test event)") && text.contains("200")
    })
    .await;

    let label = "label[for=secret-chat-rated]";
    page.until_text(label, |text| text.contains("(set)")).await;
    page.click("#remove-chat-rated").await;
    page.click("#save-chat-rated").await;
    page.until_text(label, |text| text.contains("(none)")).await;
    page.click("#test-chat-rated").await;
    page.until_text("#attempts tbody tr", |text| text.contains("401"))
        .await;
}

/// They are seen without loading the page again.
async fn generated_chats(page: &Page) {
    page.set_rate(3000).await;
    page.script("window.marked = true").await;
    page.until_text("#attempts caption", |text| text.contains("The latest 50"))
        .await;
    assert_eq!(page.script("return window.marked").await, Some(json!(true)));

    page.set_rate(0).await;
}

#[tokio::test]
async fn disabled_webhook_can_be_enabled_again() {
    let sandbox = Server::start(
        "sandbox",
        &["--demo", "--rate", "30000", "--target", NOWHERE],
    );
    in_browser(390, &sandbox.url, async |page| {
        page.until_text("#state-message-created", |text| text.contains("disabled"))
            .await;
        page.set_rate(0).await;
        page.click("#enable-message-created").await;
        page.until_text("#state-message-created", |text| text.contains("delivering"))
            .await;
    })
    .await;
}

/// Other sites in the same browser must not use it.
#[test]
fn requests_of_other_origins_are_refused() {
    let sandbox = Server::start("sandbox", &["--demo", "--rate", "0"]);
    let own = format!("Origin: {}", sandbox.url.trim_end_matches('/'));
    let chats = format!("{}chats", sandbox.url);
    let status = |args: &[&str]| {
        let quiet = ["-o", "/dev/null", "-w", "%{http_code}"];
        curl(&[&quiet, args].concat())
    };

    assert_eq!(status(&["-d", "text=", "-H", &own, &chats]), "303");
    for origin in ["Origin: http://evil.example", "Origin: null", "Origin:"] {
        assert_eq!(status(&["-d", "text=", "-H", origin, &chats]), "403");
    }
    let rebound = ["-H", "Host: evil.example", sandbox.url.as_str()];
    assert_eq!(status(&rebound), "403");
    let page = curl(&["-i", &sandbox.url]);
    assert!(
        page.contains("content-security-policy: default-src 'none'"),
        "{page}"
    );
    assert!(page.contains("1 events"), "{page}");
}

/// An `<img>` of another site, for instance, which loads the page without showing it.
#[test]
fn other_sites_do_not_use_up_a_new_key() {
    let sandbox = Server::start("sandbox", &["--demo", "--rate", "0"]);
    let own = format!("Origin: {}", sandbox.url.trim_end_matches('/'));
    let keys = format!("{}keys", sandbox.url);
    let page = |site: &str, dest: &str| {
        let (site, dest) = (
            format!("Sec-Fetch-Site: {site}"),
            format!("Sec-Fetch-Dest: {dest}"),
        );
        curl(&["-i", "-H", &site, "-H", &dest, &sandbox.url])
    };
    for own_site in ["same-origin", "none"] {
        curl(&["-d", "description=CRM", "-H", &own, &keys]);
        for site in ["cross-site", "same-site"] {
            for dest in ["image", "iframe", "empty"] {
                assert!(
                    page(site, dest).starts_with("HTTP/1.1 403"),
                    "{site} {dest}"
                );
            }
            let link = page(site, "document");
            assert!(link.starts_with("HTTP/1.1 200"), "{link}");
            assert!(!link.contains("new-key"), "{link}");
        }
        assert!(page(own_site, "document").contains("new-key"));
        assert!(!page(own_site, "document").contains("new-key"));
    }
}

#[test]
fn client_without_fetch_metadata_sees_a_new_key() {
    let sandbox = Server::start("sandbox", &["--demo", "--rate", "0"]);
    let own = format!("Origin: {}", sandbox.url.trim_end_matches('/'));
    let keys = format!("{}keys", sandbox.url);
    let page = curl(&["-L", "-d", "description=CRM", "-H", &own, &keys]);
    assert!(page.contains("new-key"), "{page}");
}

#[cfg(feature = "admin")]
#[tokio::test]
async fn target_may_use_tls() {
    use tower_webhook::event::{EventKind, sample};

    use crate::availability::{TlsServer, certificate, response};

    let directory = TempDir::new().unwrap();
    let trusted = certificate(directory.path(), "trusted");
    let other = certificate(directory.path(), "other");
    let body = sample(&EventKind::CHAT_RATED).unwrap();
    let body_end = &body[..=body.rfind('"').unwrap()];
    for (certificates, outcome) in [(&trusted, "1 delivered"), (&other, "1 lost")] {
        let receiver = TlsServer::start(&trusted, body_end, &response("200 OK", ""));
        let mut command = example("sandbox");
        command
            .env_remove("SSL_CERT_DIR")
            .env("SSL_CERT_FILE", format!("{certificates}.crt"));
        let target = format!("{}/webhooks", receiver.url);
        let args = ["--demo", "--rate", "0", "--target", &target];
        let sandbox = Server::start_as(command, &args);

        let own = format!("Origin: {}", sandbox.url.trim_end_matches('/'));
        let test = format!("{}webhooks/chat-rated/test", sandbox.url);
        curl(&["-X", "POST", "-H", &own, &test]);
        until(outcome, async || {
            curl(&[&sandbox.url]).contains(outcome).then_some(())
        })
        .await;
    }
}

#[test]
fn footer_names_what_is_invented() {
    for flags in [
        &["--demo", "--rate", "0"][..],
        &["--demo", "--rate", "0", "--strict"],
    ] {
        let sandbox = Server::start("sandbox", flags);
        let page = curl(&[&sandbox.url]);
        let (_, footer) = page.split_once("<footer").unwrap();
        for invented in [
            "GraphQL types",
            "introspection",
            "<code>status</code>",
            "Send test",
            "resume after a webhook was enabled again",
            "one secret per webhook",
        ] {
            assert!(footer.contains(invented), "{invented}: {footer}");
        }
        assert_eq!(footer.contains("Strict mode"), flags.len() == 4, "{footer}");
    }
}

#[cfg(feature = "admin")]
#[tokio::test]
async fn strict_mode_is_harder_on_clients() {
    use tower_webhook::admin::{AccessToken, AdminClient};

    let args = ["--demo", "--rate", "0", "--seed", "1", "--strict"];
    let sandbox = Server::start("sandbox", &args);
    let own = format!("Origin: {}", sandbox.url.trim_end_matches('/'));
    let keys = format!("{}keys", sandbox.url);
    let page = curl(&["-L", "-d", "description=CRM", "-H", &own, &keys]);
    let (_, key) = page.split_once("id=\"new-key\">").unwrap();
    let token = AccessToken::new(&key[..32]).unwrap();
    let admin = AdminClient::new(&sandbox.url, token).unwrap();

    let mut failures = 0;
    for _ in 0..10 {
        failures += usize::from(admin.chat_is_available().await.is_err());
    }
    assert!((1..10).contains(&failures), "{failures} of 10");
}

#[test]
fn port_in_use_is_reported() {
    let sandbox = Server::start("sandbox", &["--demo"]);
    let address = sandbox.url.split('/').nth(2).unwrap();

    let second = example("sandbox")
        .args(["--demo", "--listen", address])
        .output()
        .unwrap();

    assert_eq!(second.status.code(), Some(1));
    let err = String::from_utf8(second.stderr).unwrap();
    assert!(
        err.contains(&format!("cannot listen on {address}")),
        "{err}"
    );
}

/// Opens the page in a window of this width, and expects the browser to have nothing to complain of
/// in the end.
async fn in_browser<F: Future>(width: u32, url: &str, test: impl FnOnce(Page) -> F) {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("out");
    let driver = Command::new("chromedriver")
        .arg("--port=0")
        .stdout(File::create(&out).unwrap())
        .spawn();
    let driver = installed(driver, "chromedriver", "chromium-driver");
    let _driver = Program { child: driver, dir };
    let port = until("chromedriver's port", async || {
        let out = fs::read_to_string(&out).unwrap();
        let (_, port) = out.split_once("successfully on port ")?;
        port.split_once('.').map(|(port, _)| port.to_owned())
    })
    .await;

    let profile = TempDir::new().unwrap();
    let flags = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        &format!("--user-data-dir={}", profile.path().display()),
    ];
    let capabilities = json!({
        "goog:chromeOptions": { "args": flags },
        "goog:loggingPrefs": { "browser": "ALL" },
    });
    let client = ClientBuilder::new(HttpConnector::new())
        .capabilities(capabilities.as_object().unwrap().clone())
        .connect(&format!("http://127.0.0.1:{port}"))
        .await
        .unwrap_or_else(|error| panic!("{error}; install the Debian package `chromium`"));
    let page = Page {
        client: client.clone(),
        width,
    };
    let result = AssertUnwindSafe(async {
        page.set_width().await;
        client.goto(url).await.unwrap();
        page.fits().await;
        test(page.clone()).await;
        page.fits().await;
        page.has_no_errors().await;
    })
    .catch_unwind()
    .await;
    // Takes the browser along, which chromedriver alone would leave behind.
    client.close().await.unwrap();
    result.unwrap_or_else(|panic| resume_unwind(panic));
}

#[derive(Clone)]
struct Page {
    client: Client,
    width: u32,
}

impl Page {
    /// Windows cannot be as narrow as a phone.
    async fn set_width(&self) {
        let width = self.width;
        let metrics =
            json!({ "width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600 });
        let command = Chrome(
            "goog/cdp/execute",
            json!({ "cmd": "Emulation.setDeviceMetricsOverride", "params": metrics }),
        );
        self.client.issue_cmd(command).await.unwrap();
    }

    /// `innerWidth` would not do: a phone zooms out until everything fits.
    async fn fits(&self) {
        let width = self.script("return document.documentElement.scrollWidth");
        let width = width.await.unwrap().as_u64().unwrap();
        assert!(width <= self.width.into(), "{width}");
    }

    async fn has_no_errors(&self) {
        let log = Chrome("se/log", json!({ "type": "browser" }));
        let log = self.client.issue_cmd(log).await.unwrap();
        assert_eq!(log, json!([]));
    }

    async fn script(&self, script: &str) -> Option<Value> {
        self.client.execute(script, Vec::new()).await.ok()
    }

    async fn until_text(&self, selector: &str, is: impl Fn(&str) -> bool) -> String {
        let script = format!("return document.querySelector({selector:?})?.textContent");
        let mut last = None;
        let found = tokio::time::timeout(Duration::from_secs(30), async {
            loop {
                last = self.script(&script).await;
                match last.as_ref().and_then(Value::as_str) {
                    Some(text) if is(text) => return text.to_owned(),
                    _ => sleep(Duration::from_millis(20)).await,
                }
            }
        })
        .await;
        found.unwrap_or_else(|_| panic!("{selector}: {last:?}"))
    }

    /// Asks again when the element was just replaced by a newer one.
    async fn click(&self, selector: &str) {
        until(selector, async || {
            let element = self.client.find(Locator::Css(selector)).await.ok()?;
            element.click().await.ok()
        })
        .await;
    }

    async fn type_into(&self, selector: &str, text: &str) {
        let element = self.client.find(Locator::Css(selector)).await.unwrap();
        element.send_keys(text).await.unwrap();
    }

    async fn set(&self, selector: &str, text: &str) {
        let element = self.client.find(Locator::Css(selector)).await.unwrap();
        element.clear().await.unwrap();
        element.send_keys(text).await.unwrap();
    }

    async fn start_chat(&self, text: &str) {
        self.forget_notice().await;
        self.set("#text", text).await;
        self.click("#start-chat").await;
        self.until_text("#notice", |text| text.contains("is started"))
            .await;
    }

    async fn configure(&self, kind: &str, url: &str) {
        self.forget_notice().await;
        self.set(&format!("#url-{kind}"), url).await;
        self.click(&format!("#save-{kind}")).await;
        self.until_text("#notice", |text| text.contains("is saved"))
            .await;
    }

    async fn set_rate(&self, events: u32) {
        self.set("#rate", &events.to_string()).await;
        self.click("#set-rate").await;
        let notice = format!("Chats cause {events} events per minute.");
        self.until_text("#notice", |text| text == notice).await;
    }

    /// So that the next one is not taken for the last one.
    async fn forget_notice(&self) {
        self.script("document.getElementById('notice')?.remove()")
            .await;
    }
}

/// A command that only chromedriver has.
#[derive(Debug)]
struct Chrome(&'static str, Value);

impl WebDriverCompatibleCommand for Chrome {
    fn endpoint(&self, base: &Url, session: Option<&str>) -> Result<Url, ParseError> {
        base.join(&format!(
            "session/{}/{}",
            session.unwrap_or_default(),
            self.0
        ))
    }

    fn method_and_body(&self, _: &Url) -> (Method, Option<String>) {
        (Method::POST, Some(self.1.to_string()))
    }
}

/// An example that listens on a port of its own.
struct Server {
    program: Program,
    url: String,
}

impl Server {
    fn start(name: &str, args: &[&str]) -> Self {
        Self::start_as(example(name), args)
    }

    fn start_as(mut command: Command, args: &[&str]) -> Self {
        let mut program = Program::start(command.args(["--listen", "127.0.0.1:0"]).args(args));
        let url = program.url();
        Self { program, url }
    }

    fn out(&self) -> String {
        self.program.out()
    }

    fn stop(self) -> i32 {
        let pid = Pid::from_raw(self.program.child.id().cast_signed());
        kill(pid, Signal::SIGTERM).unwrap();
        self.program.finish().code
    }
}

fn curl(args: &[&str]) -> String {
    tool("curl", &[&["-sS"], args].concat())
}

/// Asks again and again, but not for ever.
async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what} did not come");
        sleep(Duration::from_millis(20)).await;
    }
}
