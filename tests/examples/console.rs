//! The receiver's console.

use tempfile::TempDir;

use super::metrics::{answer, url_of};
use super::receivers::{Receiver, run};
use crate::support::program::until;

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
