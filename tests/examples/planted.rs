//! Planted outages, and what a person reads of each on the first page: its cause, and within two clicks its remedy.
//!
//! `cargo nextest run --success-output final` prints what each page said.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;

use support::postgres::{PostgresServer, Stop};
use support::program::{Server, curl, until};

/// The number of chats, of which a third has a customer whom the CRM does not find.
const CHATS: usize = 12;

/// Two receivers on one database, each with two senders, and the CRM to which they forward events.
struct Site {
    database: PostgresServer,
    receivers: [Server; 2],
    /// Whether the CRM answers 503 for a third of the chats.
    is_ill: Arc<AtomicBool>,
    dir: TempDir,
}

impl Site {
    async fn start() -> Self {
        let is_ill = Arc::new(AtomicBool::new(false));
        let url = crm(Arc::clone(&is_ill)).await;
        let database = PostgresServer::start();
        let dir = TempDir::new().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        for (name, secret) in [("chats", "first"), ("github", "second")] {
            fs::write(path(name), secret).unwrap();
        }
        let config = serde_json::json!({ "routes": [
            { "path": "/webhooks", "secret-file": path("chats"), "forward": url },
            { "path": "/github", "sender": "github", "secret-file": path("github"), "forward": url },
        ] });
        fs::write(path("routes.json"), config.to_string()).unwrap();
        let config = path("routes.json");
        let inbox = database.url();
        #[rustfmt::skip]
        let args = [
            "--config", &config, "--inbox", &inbox, "--quiet", "--console", "127.0.0.1:0",
        ];
        let receivers = [(); 2].map(|()| Server::receiver(&args));
        Self {
            database,
            receivers,
            is_ill,
            dir,
        }
    }

    /// Sends an event of each chat, to one receiver after the other.
    fn send_events(&self, round: usize, code: i32) {
        let body = self.dir.path().join("body");
        for chat in 0..CHATS {
            fs::write(&body, format!(r#"{{"id":"chat-{chat}"}}"#)).unwrap();
            let key = format!("{round}-{chat}");
            let args = ["--body", body.to_str().unwrap(), "--key", &key];
            let receiver = &self.receivers[chat % 2];
            let sent = receiver.send_to("/webhooks", "first", &args);
            assert_eq!(sent.code, code, "{sent:?}");
        }
    }

    /// A page of one of the consoles, as a person reads it.
    fn read(&self, of: usize, path: &str) -> Read {
        let console = self.receivers[of].url_of("console");
        Read::of(&curl(&[&format!("{console}{path}")]))
    }

    /// Waits until the first sentences of both consoles have a text. Prints them, and returns those of the first one.
    fn says(&self, text: &str) -> Read {
        let read = [0, 1].map(|of| {
            until(text, || {
                let read = self.read(of, "").part("alerts");
                read.text.contains(text).then_some(read)
            })
        });
        println!("{}\n", read[0].text);
        let [read, _] = read;
        read
    }
}

/// A server that handles events.
async fn crm(is_ill: Arc<AtomicBool>) -> String {
    let answer = move |body: String| {
        let event: Value = serde_json::from_str(&body).unwrap();
        let chat = event["payload"]["id"].as_str().unwrap_or("chat-1");
        let number: usize = chat.trim_start_matches("chat-").parse().unwrap();
        let fails = number.is_multiple_of(3) && is_ill.load(Ordering::SeqCst);
        async move {
            match fails {
                true => (StatusCode::SERVICE_UNAVAILABLE, "the shard is moved"),
                false => (StatusCode::NO_CONTENT, ""),
            }
        }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/events", listener.local_addr().unwrap());
    let app = Router::new().route("/events", post(answer));
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

/// A page, as a person reads it.
struct Read {
    html: String,
    text: String,
}

impl Read {
    fn of(html: &str) -> Self {
        let mut text = String::new();
        for part in html.split('<') {
            let (tag, words) = part.split_once('>').unwrap_or(("", part));
            // A block begins a line.
            let is_block = ["p", "li", "/p", "/li", "tr", "h1", "h2"].contains(&tag);
            text += if is_block { "\n" } else { "" };
            text += words;
        }
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        Self {
            html: html.to_owned(),
            text: lines.collect::<Vec<_>>().join("\n"),
        }
    }

    /// The part of the page with this id.
    fn part(&self, id: &str) -> Self {
        let (_, rest) = self.html.split_once(&format!("id=\"{id}\"")).expect(id);
        let (part, _) = rest
            .split_once("<div class=\"title\"")
            .unwrap_or((rest, ""));
        let (_, part) = part.split_once('>').unwrap();
        Self::of(part)
    }

    /// Where a link with this text leads.
    fn link(&self, text: &str) -> String {
        let (before, _) = self.html.split_once(&format!(">{text}</a>")).expect(text);
        let (_, link) = before.rsplit_once("href=\"").unwrap();
        let link = link.split('"').next().unwrap();
        link.trim_start_matches('/').replace("&amp;", "&")
    }

    fn says(&self, texts: &[&str]) {
        for text in texts {
            assert!(self.text.contains(text), "{text}: {}", self.text);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_page_says_that_the_database_is_gone_and_what_to_do() {
    let mut site = Site::start().await;
    site.send_events(0, 0);
    site.database.stop(Stop::Fast);
    site.send_events(1, 1);
    let first = site.says("Deliveries to this process are refused");
    first.says(&[
        "Critical: The database cannot be read: ",
        "the PostgreSQL server cannot be reached: it must be running",
        "When it is repaired, receivers reconnect by themselves.",
        "Deliveries to this process are refused, as the database does not work",
    ]);
    // As it says.
    site.database.restart();
    until("the receivers", || {
        let read = site.read(0, "").part("alerts");
        (!read.text.contains("cannot be read")).then_some(())
    });
    site.send_events(1, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_page_says_that_the_crm_fails_for_some_chats_and_what_to_do() {
    let site = Site::start().await;
    site.send_events(0, 0);
    site.is_ill.store(true, Ordering::SeqCst);
    for round in 1..3 {
        site.send_events(round, 0);
    }
    let first = site.says("chats are blocked");
    first.says(&[
        "4 chats are blocked by events that have failed: later ones wait for them",
        "When what they fail for is repaired, they succeed by themselves, at once after Redrive.",
    ]);
    // Why they fail is on the same page.
    let why = "failed: the shard is moved (the server answered 503 Service Unavailable)";
    site.read(0, "").says(&["Why events have failed", why]);
    // With one click, the events; with another, one of them, its reason, and the button.
    let lanes = site.read(0, &first.link("Blocked lanes"));
    lanes.says(&["chat-0", "chat-9", "1 event"]);
    let event = lanes.html.split("href=\"/events/").nth(1).unwrap();
    let event = event.split('"').next().unwrap();
    let event = site.read(0, &format!("events/{event}"));
    event.says(&["the shard is moved", "Redrive"]);
    // As it says.
    site.is_ill.store(false, Ordering::SeqCst);
    until("the chats", || {
        let read = site.read(1, "").part("alerts");
        read.text.starts_with("All is well").then_some(())
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_page_says_that_a_secret_is_wrong_and_what_to_do() {
    let site = Site::start().await;
    site.send_events(0, 0);
    let push = ["--sender", "github", "--event", "push"];
    for receiver in &site.receivers {
        let sent = receiver.send_to(
            "/github",
            "an old one",
            &[&push[..], &["--count", "5"]].concat(),
        );
        assert_eq!(sent.code, 1, "{sent:?}");
    }
    let first = site.says("requests to github");
    first.says(&[
        "5 of 5 requests to github in the last hour had no signature that matches a secret",
        "compare the secret of the webhook at the sender with the receiver's",
    ]);
    // Counts of all processes are written once a second.
    until("the refusals", || {
        let refusals = site.read(0, &first.link("Refusals")).text;
        let texts = ["invalid-signature", "127.0.0.1", "github"];
        texts.iter().all(|it| refusals.contains(it)).then_some(())
    });

    // The secret of the other sender. One request a second is tried.
    until("the secret that would match", || {
        site.receivers[0].send_to("/github", "first", &push);
        let read = site.read(1, "").part("alerts");
        read.text.contains("would match").then_some(())
    });
    let first = site.says("would match");
    first.says(&[
        "Critical: Requests to github are refused, and would match the secret ",
        " of the route chat-platform",
        "their sender has the URL or the secret of the other route",
        "correct its webhook",
    ]);
    let refusals = site.read(1, &first.link("Refusals"));
    refusals.says(&["Signed with the secret of another route"]);
}
