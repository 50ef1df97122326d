//! A receiver with an inbox, and the example `inbox`, as an operator sees them.

use std::path::Path;

use nix::sys::signal::Signal;
use rusqlite::Connection;
use serde_json::Value;
use tempfile::TempDir;

use super::receivers::{Receiver, run};
use crate::support::program::{Ended, until};

fn url(dir: &TempDir) -> String {
    format!("sqlite:{}", dir.path().join("webhooks.db").display())
}

fn inbox(url: &str, args: &[&str]) -> Ended {
    run("inbox", &[&["--inbox", url], args].concat())
}

fn lines(ended: &Ended) -> Vec<Value> {
    assert_eq!(ended.code, 0, "{ended:?}");
    let lines = ended.out.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn states(url: &str) -> Vec<String> {
    let events = lines(&inbox(url, &["list", "--json"]));
    let states = events.iter().map(|event| event["state"].as_str().unwrap());
    states.map(str::to_owned).collect()
}

fn start(url: &str, exec: &str, more: &[&str]) -> Receiver {
    let args = ["--secret", "s", "--inbox", url, "--exec", exec];
    Receiver::start(&[&args[..], more].concat())
}

#[test]
fn events_are_acknowledged_while_the_command_fails_and_handled_in_order_later() {
    let dir = TempDir::new().unwrap();
    let url = url(&dir);
    let receiver = start(&url, "echo 'no disk' >&2; exit 1", &[]);
    for key in ["a", "b", "c"] {
        let sent = receiver.send("s", &["--event", "chat-rated", "--key", key]);
        assert_eq!(sent.code, 0, "{sent:?}");
    }
    // All are of one chat: the second and the third wait for the first one.
    until("the first failure", || {
        let record = lines(&inbox(&url, &["show", "1", "--json"])).remove(0);
        let failure = record["failures"].get(0)?;
        assert_eq!(failure["outcome"], "failed");
        assert_eq!(failure["reason"], "no disk (exit status: 1)");
        Some(())
    });
    assert_eq!(states(&url)[1..], ["waiting", "waiting"]);
    let shown = inbox(&url, &["show", "1"]);
    assert!(shown.out.contains("s: failed: no disk"), "{shown:?}");
    let found = lines(&inbox(&url, &["list", "--error", "NO DISK", "--json"]));
    assert_eq!(found.len(), 1);
    assert_eq!(found[0]["key"], "a");
    let lanes = lines(&inbox(&url, &["lanes", "--json"]));
    assert_eq!(lanes.len(), 1);
    assert_eq!(
        (&lanes[0]["event"]["id"], &lanes[0]["waiting"]),
        (&1.into(), &2.into())
    );
    let table = inbox(&url, &["lanes"]);
    assert!(table.out.starts_with("EVENT  STATE"), "{table:?}");
    let again = receiver.send("s", &["--event", "chat-rated", "--key", "a"]);
    assert_eq!(again.code, 0, "{again:?}");
    assert_eq!(states(&url).len(), 3, "a duplicate was accepted");
    assert!(receiver.out().is_empty());
    receiver.signal(Signal::SIGTERM);
    let stopped = receiver.program.finish();
    assert_eq!(stopped.code, 0, "{stopped:?}");

    let receiver = start(&url, "cat >/dev/null", &[]);
    until("the end of the backlog", || {
        let stats = inbox(&url, &["stats"]);
        (stats.out == "every event is settled\n").then_some(())
    });
    let keys: Vec<_> = receiver
        .out()
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["key"].clone())
        .collect();
    assert_eq!(keys, ["a", "b", "c"]);
    let lanes = inbox(&url, &["lanes"]);
    assert_eq!(lanes.out, "no chat waits for an event that has failed\n");
    let exported = lines(&inbox(&url, &["export", "--kind", "chat-rated"]));
    assert_eq!(exported.len(), 3);
    assert!(
        exported
            .iter()
            .all(|event| event["payload"]["id"].is_string())
    );
}

#[test]
fn a_person_pauses_discards_and_redrives() {
    let dir = TempDir::new().unwrap();
    let url = url(&dir);
    let receiver = start(&url, "cat >/dev/null; exit 65", &["--max-attempts", "1"]);
    assert_eq!(inbox(&url, &["pause"]).code, 0);
    let send = |key| {
        let sent = receiver.send("s", &["--event", "chat-rated", "--key", key]);
        assert_eq!(sent.code, 0, "{sent:?}");
    };
    ["a", "b"].into_iter().for_each(send);
    let paused = inbox(&url, &["stats"]);
    assert!(
        paused
            .out
            .contains("everything is paused\nchat-rated: 2 waiting"),
        "{paused:?}"
    );
    assert_eq!(inbox(&url, &["discard", "2", "--yes"]).code, 0);
    assert_eq!(states(&url), ["waiting", "discarded"]);
    assert_eq!(inbox(&url, &["resume"]).code, 0);
    until("the discarded event", || {
        (states(&url) == ["discarded", "discarded"]).then_some(())
    });

    let redriven = inbox(&url, &["redrive", "--all", "--state", "discarded", "--yes"]);
    assert_eq!(
        (redriven.code, redriven.err.contains("redriven: 2")),
        (0, true),
        "{redriven:?}"
    );
    until("both events again", || {
        (states(&url) == ["discarded", "discarded"]).then_some(())
    });
}

#[test]
fn nothing_is_damaged_by_a_wrong_call() {
    let dir = TempDir::new().unwrap();
    let url = url(&dir);
    let missing = inbox(&url, &["list"]);
    assert_eq!(missing.code, 1, "{missing:?}");
    assert!(missing.err.contains("there is no file"), "{missing:?}");
    assert!(!Path::new(&url["sqlite:".len()..]).exists());

    let receiver = start(&url, "exit 1", &[]);
    let sent = receiver.send("s", &["--event", "chat-rated", "--key", "a"]);
    assert_eq!(sent.code, 0, "{sent:?}");
    for (args, code, text) in [
        (&["show", "17"][..], 1, "there is no event 17"),
        (&["redrive", "17", "--yes"], 1, "there is no such event"),
        (&["discard", "--all"], 2, "pass `--yes`"),
        (&["discard"], 2, "<ID"),
        (&["discard", "1", "--all"], 2, "cannot be used with"),
        (&["discard", "1", "--kind", "chat-rated"], 2, "`--all`"),
        (&["list", "--state", "lost"], 2, "choose one of waiting"),
        (&["list", "--older-than", "5x"], 2, "is no age"),
        (&["show", "x"], 2, "invalid"),
        (&["list", "--limit", "0"], 0, ""),
    ] {
        let ended = inbox(&url, args);
        assert_eq!(ended.code, code, "{args:?}: {ended:?}");
        assert!(ended.err.contains(text), "{args:?}: {ended:?}");
    }
    assert_eq!(states(&url).len(), 1);
    for (inbox_url, code, text) in [
        ("memory", 2, "an inbox is"),
        ("redis://localhost", 2, "an inbox is"),
        ("postgres://127.0.0.1:1/none", 1, "cannot be used"),
    ] {
        let ended = inbox(inbox_url, &["list"]);
        assert_eq!(ended.code, code, "{inbox_url}: {ended:?}");
        assert!(ended.err.contains(text), "{inbox_url}: {ended:?}");
    }
    let both = run("receiver", &["--inbox", &url, "--store", "memory"]);
    assert_eq!(both.code, 2, "{both:?}");
}

#[test]
fn a_locked_file_is_an_error_that_says_so() {
    let dir = TempDir::new().unwrap();
    let url = url(&dir);
    drop(start(&url, "true", &[]));
    let holder = Connection::open(dir.path().join("webhooks.db")).unwrap();
    holder
        .execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE")
        .unwrap();
    let receiver = run("receiver", &["--secret", "s", "--inbox", &url]);
    for ended in [receiver, inbox(&url, &["list"])] {
        assert_eq!(ended.code, 1, "{ended:?}");
        assert!(ended.err.contains("locked by another process"), "{ended:?}");
    }
    drop(holder);
    assert_eq!(inbox(&url, &["list"]).code, 0);
}
