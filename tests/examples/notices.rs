//! Commands that are run for dead letters and alarms.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use serde_json::{Value, json};
use tempfile::TempDir;

use support::database::{connect, execute};
use support::postgres::PostgresServer;
use support::program::{Lingering, PATIENCE, Server, curl, run, until};

/// The notices that a command has written to a file, one a line.
fn notices(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let lines = text
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'));
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// A receiver with an inbox whose events become dead letters.
fn receiver(dir: &TempDir, options: &[&str]) -> Server {
    receiver_with(dir, "echo 'the CRM is gone' >&2; exit 1", "1", options)
}

fn inbox_of(dir: &TempDir) -> String {
    format!("sqlite:{}", dir.path().join("webhooks.db").display())
}

fn receiver_with(dir: &TempDir, exec: &str, attempts: &str, options: &[&str]) -> Server {
    let inbox = inbox_of(dir);
    let fixed = [
        "--secret",
        "s",
        "--inbox",
        &inbox,
        "--exec",
        exec,
        "--max-attempts",
        attempts,
    ];
    Server::receiver(&[&fixed, options].concat())
}

/// A receiver whose events fail until the second file exists, and whose alarms go to the first.
fn failing(dir: &TempDir) -> (Server, PathBuf, PathBuf) {
    let (file, works) = (dir.path().join("told"), dir.path().join("works"));
    let command = format!("cat >> '{}'", file.display());
    let exec = format!("test -e '{}'", works.display());
    let options = ["--on-alarm", &command, "--notify-every", "1"];
    (receiver_with(dir, &exec, "100", &options), file, works)
}

#[test]
fn a_command_is_told_of_dead_letters() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("told");
    let command = format!("cat >> '{}'", file.display());
    let receiver = receiver(&dir, &["--on-dead", &command, "--notify-every", "3"]);
    let began = Instant::now();
    let sent = receiver.send("s", &["--event", "chat-rated", "--count", "5"]);
    assert_eq!(sent.code, 0, "{sent:?}");
    let body = receiver.file("body", "[]");
    let undecodable = receiver.send("s", &["--event", "chat-closed", "--body", &body]);
    assert_eq!(undecodable.code, 0, "{undecodable:?}");
    let sum = |notices: &[Value]| -> u64 {
        let counts = notices.iter().map(|notice| notice["dead_letters"].as_u64());
        counts.map(Option::unwrap).sum()
    };
    let told = until("all dead letters", || {
        let told = notices(&file);
        (sum(&told) == 6).then_some(told)
    });
    let most = 1 + began.elapsed().as_secs() / 3;
    assert!(told.len() as u64 <= most, "{told:?}");
    let events = told
        .iter()
        .flat_map(|notice| notice["events"].as_array().unwrap());
    let mut events: Vec<_> = events.cloned().collect();
    events.sort_by_key(|event| event["event"].as_i64());
    assert_eq!(events.len(), 6);
    let reason = "the CRM is gone (exit status: 1)";
    let first = json!({
        "event": 1, "route": "chat-platform", "kind": "chat-rated", "outcome": "dead-letter", "reason": reason,
    });
    assert_eq!(events[0], first);
    assert_eq!(events[5]["outcome"], "undecodable");
    // Nothing is told twice.
    sleep(Duration::from_secs(4));
    assert_eq!(notices(&file), told);
}

#[test]
fn a_command_is_told_of_alarms() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("told");
    let command = format!("cat >> '{}'", file.display());
    let receiver = receiver(&dir, &["--on-alarm", &command, "--notify-every", "1"]);
    let told = |at: usize| until("a notice", || notices(&file).get(at).cloned());
    let refused = receiver.send("wrong", &["--count", "100"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    let alarm = |severity: &str, failures: u64| {
        json!({
            "alarm": "unverified-requests", "route": "chat-platform", "kind": null, "severity": severity,
            "failures": failures, "limit": 500,
        })
    };
    let warned = told(0);
    let mut first = warned["alarms"][0].clone();
    first.as_object_mut().unwrap().remove("disabled_in_seconds");
    assert_eq!(first, alarm("warning", 100), "{warned}");
    assert_eq!(warned["ended"], json!([]));
    let refused = receiver.send("wrong", &["--count", "150"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    let worse = told(1);
    assert_eq!(worse["alarms"][0]["severity"], "critical", "{worse}");
    // It is told once.
    sleep(Duration::from_secs(3));
    assert_eq!(notices(&file).len(), 2);
}

#[test]
fn a_command_is_told_when_an_alarm_ends() {
    let dir = TempDir::new().unwrap();
    let (receiver, file, works) = failing(&dir);
    let body = receiver.file("body", "{}");
    // Of a kind without chats, so that each has a lane of its own.
    let events = ["--event", "invoice-paid", "--body", &body, "--count", "100"];
    assert_eq!(receiver.send("s", &events).code, 0);
    let told = |at: usize| until("a notice", || notices(&file).get(at).cloned());
    let ended = json!({ "alarm": "slowed", "route": "chat-platform", "kind": "invoice-paid" });
    let mut slowed = ended.clone();
    slowed["severity"] = json!("critical");
    assert_eq!(told(0), json!({ "alarms": [slowed], "ended": [] }));
    fs::write(&works, "").unwrap();
    assert_eq!(told(1), json!({ "alarms": [], "ended": [ended] }));
}

/// One event that fails slows no type down, and is seen by nobody otherwise.
#[test]
fn a_command_is_told_of_an_event_that_waits_for_long() {
    let dir = TempDir::new().unwrap();
    let (receiver, file, works) = failing(&dir);
    assert_eq!(receiver.send("s", &["--event", "chat-rated"]).code, 0);
    // As if it had come four minutes ago.
    let database = Connection::open(dir.path().join("webhooks.db")).unwrap();
    database.busy_timeout(PATIENCE).unwrap();
    let sql = "UPDATE events SET accepted = accepted - 240000";
    assert_eq!(database.execute(sql, []).unwrap(), 1);

    let told = |at: usize| until("a notice", || notices(&file).get(at).cloned());
    let waiting = told(0);
    let alarm = &waiting["alarms"][0];
    assert_eq!(
        (&alarm["alarm"], &alarm["kind"]),
        (&json!("waiting"), &json!("chat-rated"))
    );
    assert_eq!(alarm["severity"], "warning");
    assert!(alarm["oldest_seconds"].as_u64() >= Some(240), "{waiting}");
    fs::write(&works, "").unwrap();
    let redriven = run(
        "receiver",
        &["inbox", "redrive", "1", "--yes", "--inbox", &inbox_of(&dir)],
    );
    assert_eq!(redriven.code, 0, "{redriven:?}");
    let ended = json!({ "alarm": "waiting", "route": "chat-platform", "kind": "chat-rated" });
    assert_eq!(told(1), json!({ "alarms": [], "ended": [ended] }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_told_that_no_event_can_be_claimed() {
    let (dir, server) = (
        TempDir::new().unwrap(),
        PostgresServer::start_with(&["fsync=off"]),
    );
    let (file, url) = (dir.path().join("told"), server.url());
    let command = format!("cat >> '{}'", file.display());
    #[rustfmt::skip]
    let receiver = Server::receiver(&[
        "--secret", "s", "--inbox", &url, "--exec", "true", "--console", "127.0.0.1:0",
        "--on-alarm", &command, "--notify-every", "1",
    ]);
    let database = connect(&url, 1).await;
    let rename = async |from: &str, to: &str| {
        let sql = format!("ALTER FUNCTION tower_webhook.{from} RENAME TO {to}");
        execute(&database, &sql).await;
    };
    rename("claim", "lost").await;
    let told = |at: usize| until("a notice", || notices(&file).get(at).cloned());
    let ended = json!({ "alarm": "cannot-claim", "route": null, "kind": null });
    let mut alarm = ended.clone();
    alarm["severity"] = json!("critical");
    assert_eq!(told(0), json!({ "alarms": [alarm], "ended": [] }));
    let log = receiver.err();
    assert!(
        log.contains("the worker cannot take events from the inbox"),
        "{log}"
    );
    let page = curl(&[&receiver.url_of("console")]);
    assert!(page.contains("cannot take events from the inbox"), "{page}");
    // Deliveries are accepted.
    let event = ["--event", "chat-rated"];
    assert_eq!(receiver.send("s", &event).code, 0);
    rename("lost", "claim").await;
    assert_eq!(told(1), json!({ "alarms": [], "ended": [ended] }));
}

#[test]
fn a_command_that_hangs_is_killed_and_the_next_one_runs() {
    let dir = TempDir::new().unwrap();
    let (file, lingering) = (dir.path().join("told"), Lingering::new());
    let (path, hang) = (file.display(), lingering.command());
    let command = format!("cat >> '{path}'; [ $(wc -l < '{path}') -gt 1 ] || {{ {hang}; }}");
    let options = [
        "--on-dead",
        &command,
        "--notify-every",
        "1",
        "--handler-timeout",
        "1",
    ];
    let receiver = receiver(&dir, &options);
    let event = ["--event", "chat-rated"];
    assert_eq!(receiver.send("s", &event).code, 0);
    let child = lingering.pid();
    until("the end of the command", || {
        (!Lingering::is_running(&child)).then_some(())
    });
    until("its line in the log", || {
        let log = receiver.err();
        log.contains("the command of `--on-dead` failed")
            .then_some(())
    });
    assert!(
        receiver.err().contains("it was killed after 1s"),
        "{}",
        receiver.err()
    );
    assert_eq!(receiver.send("s", &event).code, 0);
    until("the second notice", || {
        (notices(&file).len() == 2).then_some(())
    });
}
