//! Chromium, controlled through ChromeDriver, and axe-core, which checks the accessibility of a page.

use std::fs::{self, File};
use std::future::Future;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::http::Method;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use fantoccini::actions::{InputSource, KeyAction, KeyActions};
use fantoccini::wd::WebDriverCompatibleCommand;
use fantoccini::{Client, ClientBuilder, Locator};
use futures_util::FutureExt;
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::sleep;
use url::{ParseError, Url};

use support::program::{PATIENCE, Program, installed};
use support::{Answer, eventually_every};

/// Between two questions.
const PAUSE: Duration = Duration::from_millis(50);

/// Sets a global variable if it is executed.
pub(crate) const HOSTILE: &str =
    "<img src=x onerror=\"window.hacked=1\">\"'><script>window.hacked=1</script>";

const TAB: char = '\u{e004}';
const ENTER: char = '\u{e007}';
const SPACE: char = ' ';

/// How controls are used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Input {
    Mouse,
    Keyboard,
}

/// Starts chromedriver, and returns it with its port.
async fn driver() -> (Program, String) {
    // It ends if its port of IPv4 is not free in IPv6.
    for _ in 0..5 {
        let dir = TempDir::new().unwrap();
        let out = dir.path().join("out");
        let child = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(File::create(&out).unwrap())
            .spawn();
        let child = installed(child, "chromedriver", "chromium-driver");
        let mut driver = Program { child, dir };
        let port = until("chromedriver's port", async || {
            let has_ended = driver.child.try_wait().unwrap().is_some();
            let out = fs::read_to_string(&out).unwrap();
            let port = out.split_once("successfully on port ");
            let port = port.and_then(|(_, port)| port.split_once('.'));
            (has_ended || port.is_some()).then(|| port.map(|(port, _)| port.to_owned()))
        });
        if let Some(port) = port.await {
            return (driver, port);
        }
    }
    panic!("chromedriver has ended five times");
}

/// A browser window.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    pub(crate) width: u32,
    pub(crate) input: Input,
    /// Whether pages may run scripts.
    pub(crate) scripts: bool,
    /// Flags besides the usual ones.
    pub(crate) flags: Vec<String>,
}

impl Window {
    pub(crate) fn new(width: u32) -> Self {
        Self {
            width,
            input: Input::Mouse,
            scripts: true,
            flags: Vec::new(),
        }
    }

    /// One in which the keyboard is used.
    pub(crate) fn by_keyboard(width: u32) -> Self {
        Self {
            input: Input::Keyboard,
            ..Self::new(width)
        }
    }

    /// Opens a page, and closes the browser when the test has ended.
    pub(crate) async fn open<F: Future>(self, url: &str, test: impl FnOnce(Page) -> F) {
        let (_driver, port) = driver().await;
        let profile = TempDir::new().unwrap();
        let mut flags = [
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
        ]
        .map(str::to_owned)
        .to_vec();
        flags.extend(self.flags.clone());
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
            window: self,
            clicks: Arc::default(),
        };
        let result = AssertUnwindSafe(async {
            page.prepare().await;
            // As if its operator had typed a name before.
            let who = json!({ "name": "webhook-console-who", "value": "ada", "url": url });
            page.devtools("Network.setCookie", who).await;
            page.goto(url).await;
            test(page.clone()).await;
        })
        .catch_unwind()
        .await;
        // Takes the browser along, which chromedriver alone would leave behind.
        client.close().await.unwrap();
        result.unwrap_or_else(|panic| resume_unwind(panic));
    }
}

#[derive(Clone)]
pub(crate) struct Page {
    pub(crate) client: Client,
    pub(crate) window: Window,
    clicks: Arc<AtomicUsize>,
}

impl Page {
    async fn prepare(&self) {
        self.resize(
            self.window.width,
            if self.window.width < 600 { 844 } else { 800 },
        )
        .await;
        let disabled = json!({ "value": !self.window.scripts });
        self.devtools("Emulation.setScriptExecutionDisabled", disabled)
            .await;
    }

    /// Windows cannot be as narrow as a phone.
    pub(crate) async fn resize(&self, width: u32, height: u32) {
        let metrics = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600,
        });
        self.devtools("Emulation.setDeviceMetricsOverride", metrics)
            .await;
    }

    /// Sets what the page sees as the system's colour scheme: `light` or `dark`.
    pub(crate) async fn set_scheme(&self, scheme: &str) {
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        self.devtools(
            "Emulation.setEmulatedMedia",
            json!({ "features": [feature] }),
        )
        .await;
    }

    /// Runs a command of the Chrome DevTools Protocol.
    pub(crate) async fn devtools(&self, command: &str, params: Value) -> Value {
        let command = json!({ "cmd": command, "params": params });
        let command = Chrome("goog/cdp/execute", command);
        self.client.issue_cmd(command).await.unwrap()
    }

    pub(crate) async fn goto(&self, url: &str) {
        self.client.goto(url).await.unwrap();
        // On a busy machine, chromedriver may return before the stylesheet has come.
        until(url, async || {
            let state = self.script("return document.readyState").await?;
            (state == json!("complete")).then_some(())
        })
        .await;
    }

    /// Nothing is wider than the window. `innerWidth` would not do: a phone zooms out until everything fits.
    pub(crate) async fn fits(&self) {
        let width = self
            .script("return document.documentElement.scrollWidth")
            .await;
        let url = self.client.current_url().await.unwrap();
        let width = width.unwrap().as_u64().unwrap();
        assert!(
            width <= self.window.width.into(),
            "{url} is {width} pixels wide"
        );
    }

    /// The browser's console has no message of a page. Chromium's own pages fail where scripts are disabled, and an
    /// attempt may overtake an operator, whose page then comes with 409.
    pub(crate) async fn has_no_errors(&self) {
        let log = Chrome("se/log", json!({ "type": "browser" }));
        let log = self.client.issue_cmd(log).await.unwrap();
        let mut messages = log.as_array().unwrap().clone();
        messages.retain(|it| {
            let text = it["message"].as_str();
            !text.is_some_and(|text| text.starts_with("chrome://") || text.contains(" 409 "))
        });
        assert_eq!(messages, Vec::<Value>::new());
    }

    /// axe-core finds no violation, neither in the light nor in the dark colours.
    pub(crate) async fn is_accessible(&self) {
        self.client.execute(&axe(), Vec::new()).await.unwrap();
        // Only the colours differ.
        for (scheme, rules) in [("light", "null"), ("dark", "['color-contrast']")] {
            self.set_scheme(scheme).await;
            let script = format!(
                "const done = arguments[0];
                axe.run({{ resultTypes: ['violations'], runOnly: {rules} ?? undefined }}).then(({{ violations }}) => done(violations.map(
                    ({{ id, nodes }}) => [id, ...nodes.map(({{ html, failureSummary }}) => html + failureSummary)])))"
            );
            let violations = self
                .client
                .execute_async(&script, Vec::new())
                .await
                .unwrap();
            let url = self.client.current_url().await.unwrap();
            assert_eq!(violations, json!([]), "{url}, {scheme}: {violations:#}");
            self.screenshot(url.as_str(), scheme).await;
        }
        self.set_scheme("light").await;
    }

    /// Writes a picture of the whole page into the directory that `SCREENSHOTS` names, if there is one.
    async fn screenshot(&self, url: &str, scheme: &str) {
        let Some(directory) = std::env::var_os("SCREENSHOTS") else {
            return;
        };
        let (_, path) = url.rsplit_once("127.0.0.1:").unwrap();
        let (_, path) = path.split_once('/').unwrap_or(("", ""));
        let path = path.replace(|it: char| !it.is_ascii_alphanumeric(), "-");
        let file = |number| {
            let name = format!("page-{path}-{}-{scheme}-{number}.webp", self.window.width);
            Path::new(&directory).join(name)
        };
        // Several consoles have this page.
        let file = (1..).map(file).find(|file| !file.exists()).unwrap();
        let whole = json!({ "format": "webp", "quality": 70, "captureBeyondViewport": true });
        let picture = self.devtools("Page.captureScreenshot", whole).await;
        let picture = BASE64_STANDARD.decode(picture["data"].as_str().unwrap());
        fs::write(file, picture.unwrap()).unwrap();
    }

    pub(crate) async fn script(&self, script: &str) -> Option<Value> {
        self.client.execute(script, Vec::new()).await.ok()
    }

    /// Waits until an element has a text.
    pub(crate) async fn until_text(&self, selector: &str, is: impl Fn(&str) -> bool) -> String {
        let script = format!("return document.querySelector({selector:?})?.textContent");
        let mut last = None;
        let found = tokio::time::timeout(PATIENCE, async {
            loop {
                last = self.script(&script).await;
                match last.as_ref().and_then(Value::as_str) {
                    Some(text) if is(text) => return text.to_owned(),
                    _ => sleep(PAUSE).await,
                }
            }
        })
        .await;
        match found {
            Ok(text) => text,
            Err(_) => panic!("{selector}: {last:?}, at {}", self.seen().await),
        }
    }

    /// The page at which the browser is, for the message of a failure.
    async fn seen(&self) -> String {
        let seen =
            "return `${location.href}: ${document.querySelector('main')?.innerText.slice(0, 500)}`";
        format!("{:?}", self.script(seen).await)
    }

    /// Waits until an element has a text, and loads the page again where nothing else does.
    pub(crate) async fn until_reloaded(&self, selector: &str, part: &str) {
        self.until_reloaded_text(selector, |text| text.contains(part))
            .await;
    }

    pub(crate) async fn until_reloaded_text(&self, selector: &str, is: impl Fn(&str) -> bool) {
        if self.window.scripts {
            self.until_text(selector, is).await;
            return;
        }
        until(selector, async || {
            let script = format!("return document.querySelector({selector:?})?.textContent");
            let text = self.script(&script).await?;
            if text.as_str().is_some_and(&is) {
                return Some(());
            }
            self.client.refresh().await.ok()?;
            None
        })
        .await;
    }

    pub(crate) async fn until_contains(&self, selector: &str, part: &str) {
        self.until_text(selector, |text| text.contains(part)).await;
    }

    /// Waits until the browser is at a page.
    pub(crate) async fn until_path(&self, path: &str) {
        until(path, async || {
            let url = self.client.current_url().await.ok()?;
            (url.path() == path).then_some(())
        })
        .await;
    }

    /// The number of times that something was activated since the last call.
    pub(crate) fn clicks(&self) -> usize {
        self.clicks.swap(0, Ordering::SeqCst)
    }

    /// Uses a link, a button, a checkbox or the summary of details. Tries again if the element was just
    /// replaced by a newer one.
    pub(crate) async fn activate(&self, selector: &str) {
        self.clicks.fetch_add(1, Ordering::SeqCst);
        match self.window.input {
            Input::Mouse => {
                // In the middle, where nothing that stays at the window's edge is in front of it.
                let scroll = format!(
                    "document.querySelector({selector:?})?.scrollIntoView({{ block: 'center', behavior: 'instant' }})"
                );
                until(selector, async || {
                    self.script(&scroll).await?;
                    let element = self.client.find(Locator::Css(selector)).await.ok()?;
                    element.click().await.ok()
                })
                .await;
            }
            Input::Keyboard => {
                self.tab_to(selector).await;
                let script = format!("return document.querySelector({selector:?})?.type");
                let kind = self.script(&script).await;
                let is_checkbox = kind == Some(json!("checkbox"));
                self.press(if is_checkbox { SPACE } else { ENTER }).await;
            }
        }
    }

    /// Uses a control, and waits for the page that it leads to.
    pub(crate) async fn follow(&self, selector: &str) {
        self.script("window.left = true").await;
        self.activate(selector).await;
        until(selector, async || {
            let arrived = "return window.left === undefined && document.readyState === 'complete'";
            (self.script(arrived).await? == json!(true)).then_some(())
        })
        .await;
        self.fits().await;
    }

    /// Focuses the element that comes before this one, and presses the tabulator.
    async fn tab_to(&self, selector: &str) {
        let before = format!(
            "const target = document.querySelector({selector:?});
            const all = [...document.querySelectorAll('a[href], button, input, select, summary, [tabindex]')]
                .filter(e => e.tabIndex >= 0 && e.checkVisibility());
            const at = all.indexOf(target);
            all[at - 1]?.focus();
            return at"
        );
        let has_focus = format!(
            "return document.activeElement === document.querySelector({selector:?})
                && document.activeElement.matches(':focus-visible')"
        );
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = self.script(&before).await;
            for _ in 0..STOPS_OF_A_TIME {
                self.press(TAB).await;
                if self.script(&has_focus).await == Some(json!(true)) {
                    return;
                }
            }
            let url = self.client.current_url().await.unwrap();
            let focused = self
                .script("return document.activeElement?.outerHTML.slice(0, 300)")
                .await;
            assert!(
                Instant::now() < deadline,
                "{selector} is not reached at {url}: found {found:?}, the focus is on {focused:?}"
            );
            sleep(PAUSE).await;
        }
    }

    async fn press(&self, key: char) {
        let keys = KeyActions::new("keyboard".to_owned())
            .then(KeyAction::Down { value: key })
            .then(KeyAction::Up { value: key });
        self.client.perform_actions(keys).await.unwrap();
    }

    /// Replaces the text of a field.
    pub(crate) async fn set(&self, selector: &str, text: &str) {
        if self.window.input == Input::Keyboard {
            self.tab_to(selector).await;
        }
        let element = self.client.find(Locator::Css(selector)).await.unwrap();
        element.clear().await.unwrap();
        element.send_keys(text).await.unwrap();
    }

    /// Chooses the option of a list that begins with a text.
    pub(crate) async fn choose(&self, selector: &str, option: &str) {
        let element = self.client.find(Locator::Css(selector)).await.unwrap();
        match self.window.input {
            Input::Mouse => element.select_by_value(option).await.unwrap(),
            Input::Keyboard => {
                self.tab_to(selector).await;
                element.send_keys(option).await.unwrap();
            }
        }
        let script = format!("return document.querySelector({selector:?}).value");
        assert_eq!(self.script(&script).await, Some(json!(option)));
    }

    /// Presses the tabulator from the top of the page to its end, and returns the controls that were never
    /// reached or do not show that they have the focus.
    pub(crate) async fn unreachable_by_keyboard(&self) -> Vec<String> {
        let all = "const all = () => [...document.querySelectorAll('a[href], button, input, select, summary, pre[tabindex]')]
            .filter(e => e.checkVisibility());";
        let start = format!(
            "{all} window.reached = new Set(); scrollTo(0, 0); document.activeElement.blur();
            const times = all().filter(e => e.type?.startsWith('date'));
            return all().length + {STOPS_OF_A_TIME} * times.length"
        );
        let count = self.script(&start).await.unwrap().as_u64().unwrap();
        let mark = "const e = document.activeElement, style = getComputedStyle(e);
            if (style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2) reached.add(e)";
        for _ in 0..=count {
            self.press(TAB).await;
            self.script(mark).await.unwrap();
        }
        let missed =
            format!("{all} return all().filter(e => !reached.has(e)).map(e => e.outerHTML)");
        let missed = self.script(&missed).await.unwrap();
        serde_json::from_value(missed).unwrap()
    }
}

/// The keyboard stops at each part of a time, and at the button of its calendar.
const STOPS_OF_A_TIME: usize = 8;

/// The source of axe-core, which `tests/run` fetches.
fn axe() -> String {
    let (version, _) = include_str!("axe-core").split_once(' ').unwrap();
    let program = std::env::current_exe().unwrap();
    let target = program.ancestors().nth(3).unwrap_or(Path::new("target"));
    let path = target.join(format!("axe-core-{version}/package/axe.min.js"));
    fs::read_to_string(&path).unwrap_or_else(|error| {
        let path = path.display();
        panic!("axe-core {version} is missing at {path} ({error}): `bash tests/run` fetches it with npm")
    })
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

/// As [`eventually_every`], with the pause that a browser needs.
#[track_caller]
pub(crate) fn until<A: Answer>(
    what: &str,
    ask: impl AsyncFnMut() -> A,
) -> impl Future<Output = A::Value> {
    eventually_every(PAUSE, what, ask)
}
