//! An operator's night: the system behind a receiver is down, and a person repairs what happened meanwhile.
//!
//! `PICTURES=crates/console/pictures` writes the pictures of the page on the console.

use std::collections::{HashMap, HashSet};
use std::fs;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::chromium::{Page, Window, until};
use support::program::{Server, curl};

/// The chats of the first night, whose messages are retried, and those whose end is a dead letter.
const CHATS: usize = 12;
const CLOSED: usize = 6;

#[tokio::test]
async fn an_outage_is_seen_repaired_and_drained_in_the_browser() {
    let dir = tempfile::tempdir().unwrap();
    // The command of the receiver succeeds while the file exists. Otherwise, it fails for the moment, or for good.
    let crm = dir.path().join("crm");
    fs::write(&crm, "").unwrap();
    let exec = format!(
        "test -e '{}' && exit; echo 'the CRM refused the connection' >&2; grep -q chat-closed && exit 1; exit 75",
        crm.display()
    );
    let inbox = format!("sqlite:{}", dir.path().join("webhooks.db").display());
    let any = "127.0.0.1:0";
    let args = [
        "--demo",
        "--inbox",
        &inbox,
        "--console",
        any,
        "--metrics",
        any,
        "--exec",
        &exec,
        "--max-attempts",
        "1",
    ];
    let receiver = Server::receiver(&args);
    let (console, metrics) = (receiver.url_of("console"), receiver.url_of("metrics"));
    let args = ["--demo", "--rate", "0", "--target", &receiver.url];
    let sandbox = Server::start("sandbox", &args);

    let chats: Vec<_> = (1..=CHATS + CLOSED)
        .map(|n| format!("chats/c-{n}"))
        .collect();
    for chat in &chats {
        sandbox.post("chats", "text=Where+is+my+parcel%3F");
        sandbox.post(&format!("{chat}/open"), "");
    }
    until("events that are handled", async || {
        (lines(&receiver).len() >= 3 * chats.len()).then_some(())
    })
    .await;
    let before = lines(&receiver).len();

    fs::remove_file(&crm).unwrap();
    // The sandbox sends the events of a chat at the same time, so each is accepted before the next one.
    let mut accepted = self::accepted(&metrics);
    let rounds = [
        (&chats[..CHATS], "message", "text=Hello?&from=customer"),
        (
            &chats[..CHATS],
            "message",
            "text=Is+anybody+there?&from=customer",
        ),
        (&chats[..], "close", ""),
    ];
    for (chats, path, form) in rounds {
        for chat in chats {
            sandbox.post(&format!("{chat}/{path}"), form);
        }
        accepted += chats.len();
        until("events that are accepted", async || {
            (self::accepted(&metrics) == accepted).then_some(())
        })
        .await;
    }
    let window = Window::new(1280);
    let test = async |page: Page| {
        // The warning, and its reason.
        page.until_contains("#alerts", "12 chats are blocked").await;
        page.until_contains("#causes", "the CRM refused the connection")
            .await;
        page.until_text("#kinds-table a[href*='state=dead']", |dead| {
            dead == CLOSED.to_string()
        })
        .await;
        let scraped = curl(&[&metrics]);
        let is_attempt = |line: &str| {
            let kind = r#"kind="message-created""#;
            line.starts_with("webhook_attempts_total{") && line.contains(kind)
        };
        assert!(scraped.lines().any(is_attempt), "{scraped}");
        page.picture("overview").await;

        // A chat, and the event that it waits for.
        page.follow("#kinds-table a[href*='state=retrying']").await;
        page.until_contains("h1", "Events").await;
        page.follow("#rows a[href*='/chat?']").await;
        page.until_contains("#rows", "waiting").await;
        page.follow("#rows tr:has(.warn) a[href^='/events/']").await;
        page.until_contains("#state", "retrying").await;
        page.until_contains("#timeline", "the CRM refused the connection")
            .await;
        page.until_contains("#lane", "with 2 events behind it")
            .await;
        page.picture("event").await;
        let first = page.client.current_url().await.unwrap();
        page.follow(".site a:nth-child(3)").await;
        page.until_text("#lanes", |lanes| lanes.matches("event ").count() >= 10)
            .await;

        // Repaired: one event first, then all that have failed. Some would be tried after two minutes alone.
        page.goto(first.as_str()).await;
        page.until_contains("#state", "retrying").await;
        fs::write(&crm, "").unwrap();
        page.follow("button.main").await;
        page.until_contains("#state", "handled").await;
        page.follow(".site a").await;
        page.follow(".site a[href$='state=failed']").await;
        page.follow("button[formaction][value=redrive]").await;
        page.until_contains("h1", "that you want to redrive").await;
        page.follow("main form button").await;
        page.until_contains("#change", "Done.").await;
        page.follow(".site a").await;
        page.until_contains("h1", "Overview").await;
        until("an inbox without unsettled events", async || {
            let left = "return document.querySelectorAll('#kinds-table .number a, #alerts :not(.good) > p').length";
            (page.script(left).await? == json!(0)).then_some(())
        })
        .await;
        page.until_contains("#alerts", "nothing is wrong").await;
        page.picture("drained").await;
        page.has_no_errors().await;
    };
    window.open(&console, test).await;

    // Nothing is lost, doubled, or out of order.
    let lines = lines(&receiver);
    assert_eq!(lines.len() - before, 3 * CHATS + CLOSED, "{lines:#?}");
    let keys: HashSet<_> = lines.iter().map(|line| line["key"].as_str()).collect();
    assert_eq!(keys.len(), lines.len());
    let mut chats = HashMap::<_, Vec<_>>::new();
    for line in &lines[before..] {
        let payload = &line["payload"];
        let chat = payload["chat"]["id"].as_str().or(payload["id"].as_str());
        let event = payload["text"].as_str().or(line["event"].as_str());
        chats.entry(chat.unwrap()).or_default().push(event.unwrap());
    }
    assert_eq!(chats.len(), CHATS + CLOSED);
    for (chat, events) in chats {
        let expected = ["Hello?", "Is anybody there?", "chat-closed"];
        let is_closed_alone = events.len() == 1;
        let expected = if is_closed_alone {
            &expected[2..]
        } else {
            &expected
        };
        assert_eq!(events, expected, "{chat}");
    }
    assert_eq!(sandbox.stop(), 0);
    assert_eq!(receiver.stop(), 0);
}

/// The number of events that were accepted.
fn accepted(metrics: &str) -> usize {
    let scraped = curl(&[metrics]);
    let of_each = scraped.lines().filter_map(|line| {
        let count = line.strip_prefix("webhook_deliveries_total{")?;
        let (labels, count) = count.rsplit_once(' ')?;
        labels
            .contains(r#"outcome="accepted""#)
            .then(|| count.parse::<usize>().unwrap())
    });
    of_each.sum()
}

/// The events that were handled.
fn lines(receiver: &Server) -> Vec<Value> {
    let out = receiver.out();
    let complete = out.rsplit_once('\n').map_or("", |(lines, _)| lines);
    let lines = complete.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

impl Page {
    /// Takes a picture of the window, and writes it, also as text for rustdoc, into the directory that the environment
    /// names.
    async fn picture(&self, name: &str) {
        let end = "return Math.min(innerHeight, Math.ceil(document.querySelector('footer').getBoundingClientRect().bottom))";
        let height = self.script(end).await;
        let picture = self
            .devtools(
                "Page.captureScreenshot",
                json!({
                    "format": "webp", "quality": 60,
                    "clip": { "x": 0, "y": 0, "width": self.window.width, "height": height, "scale": 1 },
                }),
            )
            .await;
        let text = picture["data"].as_str().unwrap();
        let picture = BASE64_STANDARD.decode(text).unwrap();
        assert!(picture.len() < 60_000, "{name}: {} bytes", picture.len());
        let Some(directory) = std::env::var_os("PICTURES") else {
            return;
        };
        let file = std::path::Path::new(&directory).join(name);
        fs::write(file.with_extension("webp"), picture).unwrap();
        fs::write(file.with_extension("b64"), text).unwrap();
    }
}
