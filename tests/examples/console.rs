//! The receiver's console.

use tempfile::TempDir;

use super::metrics::{answer, url_of};
use super::receivers::{Receiver, run};
use crate::support::program::{curl, until};

#[test]
fn console_shows_the_inbox() {
    let dir = TempDir::new().unwrap();
    let inbox = format!("sqlite:{}", dir.path().join("webhooks.db").display());
    let receiver = Receiver::start(&[
        "--secret",
        "s",
        "--inbox",
        &inbox,
        "--exec",
        "exit 65",
        "--console",
        "127.0.0.1:0",
    ]);
    let console = url_of("console", &receiver);
    let sent = receiver.send("s", &["--event", "chat-rated", "--key", "a"]);
    assert_eq!(sent.code, 0, "{sent:?}");
    until("the discarded event", || {
        let page = answer(&console, "events?state=discarded", &[]);
        page.contains("href=\"/events/1\"").then_some(())
    });
    let overview = answer(&console, "", &[]);
    assert!(overview.starts_with("HTTP/1.1 200"), "{overview}");
    assert!(overview.contains("chat-rated"), "{overview}");

    // Another site reads and changes nothing.
    let rebound = answer(&console, "events/1", &["host: evil.example"]);
    assert!(rebound.starts_with("HTTP/1.1 421"), "{rebound}");
}

#[test]
fn console_hides_payloads_and_changes_nothing_on_request() {
    let dir = TempDir::new().unwrap();
    let inbox = format!("sqlite:{}", dir.path().join("webhooks.db").display());
    let start = |options: &[&str]| {
        let args = ["--secret", "s", "--inbox", &inbox, "--exec", "false"];
        Receiver::start(&[&args[..], &["--console", "127.0.0.1:0"], options].concat())
    };
    let receiver = start(&["--console-actor", "x-operator"]);
    let console = url_of("console", &receiver);
    let sent = receiver.send("s", &["--event", "chat-rated", "--key", "a"]);
    assert_eq!(sent.code, 0, "{sent:?}");
    let event = answer(&console, "events/1", &[]);
    assert!(event.contains("c-7Kq2mXw9"), "{event}");
    assert!(event.contains("<form"), "{event}");
    let origin = format!("origin: {}", console.trim_end_matches('/'));
    let pause = format!("{console}pause");
    let headers = ["-H", &origin, "-H", "x-operator: Ann"];
    let paused = [&headers[..], &["-i", "-d", "kind=chat-rated", &pause]].concat();
    let paused = curl(&paused);
    assert!(paused.starts_with("HTTP/1.1 303"), "{paused}");
    until("the line in the log", || {
        let err = receiver.err();
        let line = err
            .lines()
            .find(|line| line.contains("pauses or resumes"))?;
        assert!(
            line.contains("actor=\"Ann\"") || line.contains("actor=Ann"),
            "{line}"
        );
        Some(())
    });
    drop(receiver);

    let receiver = start(&["--console-read-only", "--console-hide-payloads"]);
    let console = url_of("console", &receiver);
    let event = answer(&console, "events/1", &[]);
    assert!(event.contains("chat-rated"), "{event}");
    assert!(
        !event.contains("\"rating\"") && !event.contains("&quot;rating"),
        "{event}"
    );
    assert!(!event.contains("method=\"post\""), "{event}");
}

#[test]
fn console_without_an_inbox_shows_failures() {
    let receiver = Receiver::start(&["--secret", "s", "--console", "127.0.0.1:0"]);
    let console = url_of("console", &receiver);
    let forged = receiver.send("wrong", &["--event", "chat-rated"]);
    assert_eq!(forged.code, 1, "{forged:?}");
    let overview = answer(&console, "", &[]);
    assert!(overview.contains("invalid-signature"), "{overview}");
    assert!(overview.contains("not verified"), "{overview}");
}

#[test]
fn console_at_an_address_in_use_is_a_clear_error() {
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    let taken = run(
        "receiver",
        &["--demo", "--listen", "127.0.0.1:0", "--console", &address],
    );
    assert_eq!(taken.code, 1, "{taken:?}");
    assert!(
        taken.err.contains(&format!("cannot listen on {address}")),
        "{taken:?}"
    );
    assert!(taken.err.contains("--console 127.0.0.1:3002"), "{taken:?}");
}
