//! The receiver's console.

use std::fs;
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use support::program::{Server, curl, example, run, until, until_every};

const PAGE: &str = include_str!("../../crates/console/README.md");

fn page(console: &str, path: &str) -> String {
    curl(&["-i", &format!("{console}{path}")])
}

#[test]
fn console_shows_the_inbox() {
    let dir = TempDir::new().unwrap();
    let inbox = format!("sqlite:{}", dir.path().join("webhooks.db").display());
    let receiver = Server::receiver(&[
        "--secret",
        "s",
        "--inbox",
        &inbox,
        "--exec",
        "exit 65",
        "--console",
        "127.0.0.1:0",
    ]);
    let console = receiver.url_of("console");
    let sent = receiver.send("s", &["--event", "chat-rated", "--key", "a"]);
    assert_eq!(sent.code, 0, "{sent:?}");
    until("the discarded event", || {
        let page = page(&console, "events?state=discarded");
        page.contains("href=\"/events/1\"").then_some(())
    });
    let overview = page(&console, "");
    assert!(overview.starts_with("HTTP/1.1 200"), "{overview}");
    assert!(overview.contains("chat-rated"), "{overview}");

    // Another site reads and changes nothing.
    let rebound = curl(&[
        "-i",
        "-H",
        "host: evil.example",
        &format!("{console}events/1"),
    ]);
    assert!(rebound.starts_with("HTTP/1.1 421"), "{rebound}");
}

#[test]
fn console_behind_a_proxy_has_the_proxys_name() {
    let args = ["--secret", "s", "--console", "127.0.0.1:0"];
    for (names, status) in [
        (&[][..], "421"),
        (&["--console-host", "ops.example,north"], "200"),
    ] {
        let receiver = Server::receiver(&[&args[..], names].concat());
        let console = receiver.url_of("console");
        for (host, status) in [
            ("ops.example", status),
            ("NORTH:8443", status),
            ("localhost:3001", "200"),
            ("10.1.2.3", "200"),
            ("evil.example", "421"),
        ] {
            let page = curl(&["-i", "-H", &format!("host: {host}"), &console]);
            assert!(
                page.starts_with(&format!("HTTP/1.1 {status}")),
                "{host}: {page}"
            );
        }
    }
}

#[test]
fn console_hides_payloads_and_changes_nothing_on_request() {
    let dir = TempDir::new().unwrap();
    let inbox = format!("sqlite:{}", dir.path().join("webhooks.db").display());
    let start = |options: &[&str]| {
        let args = ["--secret", "s", "--inbox", &inbox, "--exec", "false"];
        Server::receiver(&[&args[..], &["--console", "127.0.0.1:0"], options].concat())
    };
    let receiver = start(&["--console-actor", "x-operator"]);
    let console = receiver.url_of("console");
    let sent = receiver.send("s", &["--event", "chat-rated", "--key", "a"]);
    assert_eq!(sent.code, 0, "{sent:?}");
    let event = page(&console, "events/1");
    assert!(event.contains("c-7Kq2mXw9"), "{event}");
    assert!(event.contains("<form"), "{event}");
    let origin = format!("origin: {}", console.trim_end_matches('/'));
    let pause = format!("{console}pause");
    let headers = ["-H", &origin, "-H", "x-operator: Ann"];
    let paused = [
        &headers[..],
        &["-i", "-d", "of=chat-rated&reason=maintenance", &pause],
    ]
    .concat();
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
    let console = receiver.url_of("console");
    let event = page(&console, "events/1");
    assert!(event.contains("chat-rated"), "{event}");
    assert!(
        !event.contains("\"rating\"") && !event.contains("&quot;rating"),
        "{event}"
    );
    assert!(!event.contains("method=\"post\""), "{event}");
    let origin = format!("origin: {}", console.trim_end_matches('/'));
    for (path, fields) in [
        ("pause", "of=message-created&reason=maintenance"),
        ("events/1/discard", ""),
        ("selected", "id=1&action=discard"),
        ("all", "action=discard&state=retrying&newest=1&at=0"),
    ] {
        let url = format!("{console}{path}");
        let refused = curl(&["-i", "-H", &origin, "-d", fields, &url]);
        assert!(refused.starts_with("HTTP/1.1 404"), "{path}: {refused}");
    }
    let log = receiver.err();
    assert!(
        !log.contains("operator requested") && !log.contains("pauses"),
        "{log}"
    );
}

#[test]
fn console_without_an_inbox_shows_failures() {
    let receiver = Server::receiver(&["--secret", "s", "--console", "127.0.0.1:0"]);
    let console = receiver.url_of("console");
    let forged = receiver.send("wrong", &["--event", "chat-rated"]);
    assert_eq!(forged.code, 1, "{forged:?}");
    let overview = page(&console, "");
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

/// Within two minutes, with the flags and the rate that a newcomer finds.
#[test]
fn console_shows_the_events_of_the_demo() {
    let dir = TempDir::new().unwrap();
    let mut command = example("receiver");
    command.current_dir(dir.path()).args(["--demo", "--inbox"]);
    command.args(["sqlite:webhooks.db", "--console", "127.0.0.1:0"]);
    let receiver = Server::start_by(&mut command);
    let console = receiver.url_of("console");
    let sandbox = Server::start("sandbox", &["--demo", "--target", &receiver.url]);
    until_every(
        Duration::from_millis(200),
        "handled events of two kinds",
        || {
            let overview = page(&console, "");
            let handled = overview.matches(" handled in the last hour").count()
                - overview.matches("\"0 handled in the last hour").count();
            (handled >= 2).then_some(())
        },
    );
    let events = page(&console, "events?state=handled");
    assert!(events.contains("href=\"/events/1\""), "{events}");
    assert_eq!(sandbox.stop(), 0);
}

/// With the command on the page, up to the repair.
#[test]
fn command_of_the_night_fails_while_the_crm_is_away() {
    let (_, exec) = PAGE.split_once("--exec '").unwrap();
    let (exec, _) = exec.split_once("'\n").unwrap();
    let dir = TempDir::new().unwrap();
    let mut command = example("receiver");
    command
        .current_dir(dir.path())
        .args(["--secret", "s", "--inbox"]);
    command.args(["sqlite:webhooks.db", "--console", "127.0.0.1:0"]);
    command.args(["--max-attempts", "1", "--exec", exec]);
    let receiver = Server::start_by(&mut command);
    let console = receiver.url_of("console");
    // Both are of one chat, which a dead letter does not block.
    for (kind, expected) in [("chat-closed", "dead"), ("chat-rated", "retrying")] {
        let sent = receiver.send("s", &["--event", kind]);
        assert_eq!(sent.code, 0, "{sent:?}");
        until("the failed attempt", || {
            let path = format!("events?state={expected}&kind={kind}");
            let page = page(&console, &path);
            page.contains("href=\"/events/").then_some(())
        });
    }
    let overview = page(&console, "");
    assert!(
        overview.contains("the CRM refused the connection"),
        "{overview}"
    );

    fs::write(dir.path().join("crm"), "").unwrap();
    let origin = format!("origin: {}", console.trim_end_matches('/'));
    for event in [1, 2] {
        let redrive = format!("{console}events/{event}/redrive");
        let redriven = curl(&["-i", "-H", &origin, "-d", "who=ada", &redrive]);
        assert!(redriven.starts_with("HTTP/1.1 303"), "{redriven}");
    }
    until("the repaired events", || {
        let page = page(&console, "events?state=handled");
        let is_handled = |event| page.contains(&format!("href=\"/events/{event}\""));
        (is_handled(1) && is_handled(2)).then_some(())
    });
}

#[test]
fn silent_connections_for_operators_do_not_shut_out_deliveries() {
    let few_files = r#"ulimit -n 320; exec "$0" "$@""#;
    let mut command = Command::new("sh");
    command
        .args(["-c", few_files])
        .arg(example("receiver").get_program())
        .args(["--secret", "s", "--metrics", "127.0.0.1:0"])
        .args(["--console", "127.0.0.1:0"]);
    let receiver = Server::start_by(&mut command);
    let urls = ["metrics", "console"].map(|what| receiver.url_of(what));
    let silent: Vec<_> = (0..400)
        .map(|number| {
            let address = urls[number % 2].split('/').nth(2).unwrap();
            TcpStream::connect(address).unwrap()
        })
        .collect();

    let sent = receiver.send("s", &["--count", "20", "--concurrency", "3"]);

    assert_eq!(sent.code, 0, "{sent:?}");
    // A connection has 500 ms before it is closed for another.
    let metrics = until("the closed connections", || {
        let metrics = curl(&[&urls[0]]);
        let closed = r#"{listener="metrics",outcome="connection-closed"}"#;
        metrics.contains(closed).then_some(metrics)
    });
    assert!(metrics.contains("# TYPE receiver_refusals_total counter"));
    drop(silent);
}
