//! A receiver with an inbox, and the command `inbox`, as an operator sees them.

mod waits;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use futures_util::future::join_all;
use nix::sys::signal::Signal;
use nix::unistd::{User, getuid};
use rusqlite::Connection;
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tower_webhook::inbox::internal::{Lane, NewEvent};
use tower_webhook::sqlite::SqliteQueue;
use tower_webhook::{EventKind, Secret};

use support::program::{Ended, Program, Server, curl, example, run, until};
use support::queue::{Calls, failure, new_event};

fn url(dir: &TempDir) -> String {
    format!("sqlite:{}", dir.path().join("webhooks.db").display())
}

fn inbox(url: &str, args: &[&str]) -> Ended {
    let inbox = ["--inbox", url];
    run("receiver", &[&["inbox"], args, &inbox].concat())
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

fn start(url: &str, exec: &str, more: &[&str]) -> Server {
    let args = ["--secret", "s", "--inbox", url, "--exec", exec];
    Server::receiver(&[&args[..], more].concat())
}

fn send(receiver: &Server, kind: &str, key: &str) {
    let sent = receiver.send("s", &["--event", kind, "--key", key]);
    assert_eq!(sent.code, 0, "{sent:?}");
}

#[test]
fn events_are_acknowledged_while_the_command_fails_and_handled_in_order_later() {
    let dir = TempDir::new().unwrap();
    let url = url(&dir);
    let receiver = start(&url, "echo 'no disk' >&2; exit 1", &[]);
    for key in ["a", "b", "c"] {
        send(&receiver, "chat-rated", key);
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
    let exported = lines(&inbox(&url, &["export", "--type", "chat-rated"]));
    assert_eq!(exported.len(), 3);
    assert!(
        exported
            .iter()
            .all(|event| event["payload"]["id"].is_string())
    );
}

#[test]
fn a_stop_begins_no_event_while_a_request_is_received() {
    let dir = TempDir::new().unwrap();
    let (url, path) = (url(&dir), dir.path().display());
    let command = format!(
        "echo >>'{path}/started'; while test -d '{path}' && ! test -e '{path}/go'; do sleep 0.02; done"
    );
    let receiver = start(&url, &command, &["--concurrency", "1", "--grace", "600"]);
    for key in ["a", "b", "c"] {
        send(&receiver, "chat-rated", key);
    }
    let started = || fs::read_to_string(dir.path().join("started")).unwrap_or_default();
    until("an attempt", || (!started().is_empty()).then_some(()));
    // Its body never comes.
    let mut half = receiver.connect().unwrap();
    let signature = "0".repeat(64);
    let head = format!(
        "POST /webhooks HTTP/1.1\r\nHost: receiver\r\nContent-Type: application/json\r\n\
         X-Service-Event: chat-rated\r\nX-Service-Hmac-Sha256: {signature}\r\nContent-Length: 10\r\n\r\n"
    );
    half.write_all(head.as_bytes()).unwrap();
    thread::sleep(Duration::from_millis(100));
    receiver.signal(Signal::SIGTERM);
    until("the end of listening", || {
        receiver.connect().is_none().then_some(())
    });
    fs::write(dir.path().join("go"), "").unwrap();
    thread::sleep(Duration::from_secs(1));
    drop(half);
    let stopped = receiver.program.finish();
    assert_eq!(stopped.code, 0, "{stopped:?}");
    assert_eq!(started().lines().count(), 1);
    let left = states(&url);
    assert_eq!(left.iter().filter(|state| *state == "handled").count(), 1);
    assert_eq!(left.iter().filter(|state| *state == "waiting").count(), 2);
}

/// Beside the demo sandbox, whose chats are many.
#[test]
fn demo_fails_no_webhook_while_nothing_is_handled_and_handles_the_backlog_in_order() {
    let dir = TempDir::new().unwrap();
    let url = url(&dir);
    let demo = |exec| Server::receiver(&["--demo", "--inbox", &url, "--exec", exec]);
    let receiver = demo("false");
    let sandbox = Server::start(
        "sandbox",
        &["--demo", "--rate", "1200", "--target", &receiver.url],
    );
    until("a backlog", || (states(&url).len() >= 60).then_some(()));
    let page = curl(&[&sandbox.url]);
    let webhooks = page.matches(" of 500</small>").count();
    assert!(webhooks >= 5, "{page}");
    assert_eq!(page.matches(">0 of 500</small>").count(), webhooks);
    assert_eq!(page.matches(">delivering</span>").count(), webhooks);
    assert_eq!(sandbox.stop(), 0);
    assert!(receiver.out().is_empty());
    receiver.signal(Signal::SIGTERM);
    assert_eq!(receiver.program.finish().code, 0);
    assert!(states(&url).iter().all(|state| state != "handled"));

    let receiver = demo("true");
    until("the end of the backlog", || {
        let stats = inbox(&url, &["stats"]);
        (stats.out == "every event is settled\n").then_some(())
    });
    let mut accepted: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut chats = BTreeMap::new();
    for event in lines(&inbox(&url, &["list", "--json", "--limit", "100000"])) {
        assert_eq!(event["state"], "handled", "{event}");
        let [key, chat] = ["key", "chat"].map(|name| event[name].as_str().unwrap().to_owned());
        chats.insert(key.clone(), chat.clone());
        accepted.entry(chat).or_default().push(key);
    }
    let mut handled: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in receiver.out().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let key = line["key"].as_str().unwrap();
        let of_chat = handled.entry(chats[key].clone()).or_default();
        of_chat.push(key.to_owned());
    }
    assert_eq!(handled, accepted);
}

#[test]
fn keys_are_known_with_and_without_an_inbox() {
    let dir = TempDir::new().unwrap();
    let url = url(&dir);
    let answers = |place: &str, keys: [&str; 3]| {
        let receiver = Server::receiver(&["--secret", "s", place, &url, "--exec", "true"]);
        let answers = keys.map(|key| {
            let sent = receiver.send("s", &["--event", "chat-rated", "--key", key]);
            assert_eq!(sent.code, 0, "{sent:?}");
            sent.out.contains("it had been accepted or handled before")
        });
        // Either knows the bodies of the other's keys.
        let log = receiver.err();
        assert!(!log.contains("another body"), "{log}");
        answers
    };
    assert_eq!(answers("--store", ["a", "b", "a"]), [false, false, true]);
    assert_eq!(answers("--inbox", ["b", "c", "c"]), [true, false, true]);
    assert_eq!(answers("--store", ["c", "b", "d"]), [true, true, false]);
    assert_eq!(states(&url).len(), 1);
}

#[test]
fn later_events_of_a_chat_are_handled_if_a_failed_one_is_skipped() {
    let dir = TempDir::new().unwrap();
    let url = url(&dir);
    let only_b = r#"grep -q '"key":"b"'"#;
    let receiver = start(&url, only_b, &["--on-failure", "skip"]);
    for key in ["a", "b"] {
        send(&receiver, "chat-rated", key);
    }
    until("the second event", || {
        (states(&url) == ["retrying", "handled"]).then_some(())
    });
}

#[test]
fn event_is_a_dead_letter_when_it_was_retried_for_long_enough() {
    let dir = TempDir::new().unwrap();
    let url = url(&dir);
    let receiver = start(&url, "false", &["--retry-for", "1"]);
    send(&receiver, "chat-rated", "a");
    until("the dead letter", || {
        (states(&url) == ["dead"]).then_some(())
    });
    let shown = inbox(&url, &["show", "1"]);
    assert!(shown.out.contains("\ndead since "), "{shown:?}");
    assert!(!shown.out.contains("settled"), "{shown:?}");
}

#[test]
fn events_are_listed_by_what_is_known_of_them() {
    let dir = TempDir::new().unwrap();
    let url = url(&dir);
    let receiver = start(&url, "true", &[]);
    assert_eq!(inbox(&url, &["pause", "chat-opened"]).code, 0);
    send(&receiver, "chat-rated", "a");
    send(&receiver, "chat-opened", "b");
    until("the first event", || {
        (states(&url) == ["handled", "waiting"]).then_some(())
    });
    let all = lines(&inbox(&url, &["list", "--json"]));
    let chat = all[1]["chat"].as_str().unwrap();
    for (filter, ids) in [
        (&["--state", "handled"][..], &[1][..]),
        (&["--state", "handled", "--state", "waiting"], &[1, 2]),
        (&["--kind", "chat-opened"], &[2]),
        (&["--chat", chat, "--type", "chat-opened"], &[2]),
        (&["--chat", "another"], &[]),
        (&["--key", "b"], &[2]),
        (&["--key", "c"], &[]),
        (&["--older-than", "1h"], &[]),
        (&["--newer-than", "1h"], &[1, 2]),
        (&["--older-than", "2026-01-01"], &[]),
        (&["--newer-than", "2026-01-01T12:00"], &[1, 2]),
        (&["--newer-than", "2026-01-01T12:00:30Z"], &[1, 2]),
        (&["--newest-first"], &[2, 1]),
        (&["--newest-first", "--limit", "1"], &[2]),
    ] {
        let found = lines(&inbox(&url, &[&["list", "--json"], filter].concat()));
        let found: Vec<_> = found.iter().map(|event| event["id"].as_i64()).collect();
        let ids: Vec<_> = ids.iter().copied().map(Some).collect();
        assert_eq!(found, ids, "{filter:?}");
        let table = inbox(&url, &[&["list"], filter].concat());
        assert_eq!(table.code, 0, "{table:?}");
        assert_eq!(table.out.lines().count(), 1 + ids.len(), "{table:?}");
    }
    let stats = lines(&inbox(&url, &["stats", "--json"]));
    assert!(!stats.is_empty());
}

#[test]
fn headers_are_kept_on_request() {
    let dir = TempDir::new().unwrap();
    let url = url(&dir);
    let more = ["--keep-header", "x-request-id", "--keep-header", "X-Region"];
    let receiver = start(&url, "true", &more);
    let signature = Secret::new("s").unwrap().sign(b"{}");
    let mut args = vec!["--data".to_owned(), "{}".to_owned(), receiver.url.clone()];
    for header in [
        "content-type: application/json",
        "x-service-event: chat-rated",
        &format!("x-service-hmac-sha256: {signature}"),
        "x-request-id: 7",
        "x-region: north",
        "tracestate: a=b",
        "x-other: 8",
    ] {
        args.extend(["-H".to_owned(), header.to_owned()]);
    }
    curl(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let event = lines(&inbox(&url, &["show", "1", "--json"])).remove(0);
    let kept = serde_json::json!([
        ["tracestate", "a=b"],
        ["x-request-id", "7"],
        ["x-region", "north"]
    ]);
    assert_eq!(event["headers"], kept, "{event}");

    let wrong = run(
        "receiver",
        &["--demo", "--inbox", &url, "--keep-header", "no header"],
    );
    assert_eq!(wrong.code, 2, "{wrong:?}");
    let alone = run("receiver", &["--demo", "--keep-header", "x-region"]);
    assert_eq!(alone.code, 2, "{alone:?}");
}

/// The command at a terminal, which gets what is typed.
fn terminal(url: &str, args: &str, typed: impl Into<Stdio>) -> Command {
    let receiver = example("receiver");
    let program = receiver.get_program().to_str().unwrap();
    // Without `exec`, Ctrl-C could end a shell that waits for the command, and its code be the shell's.
    let command = format!("exec '{program}' inbox --inbox '{url}' {args}");
    let mut script = Command::new("script");
    script.args(["-qec", &command, "/dev/null"]).stdin(typed);
    script
}

/// Runs the command at a terminal, and types the answer.
fn at_terminal(url: &str, args: &str, answer: &str) -> Ended {
    let mut typed = tempfile::tempfile().unwrap();
    typed.write_all(answer.as_bytes()).unwrap();
    typed.rewind().unwrap();
    Program::start(&mut terminal(url, args, typed)).finish()
}

/// Adds so many dead letters of a chat.
fn add_dead(url: &str, chat: Option<&str>, count: usize) {
    let queue = SqliteQueue::open(url.trim_start_matches("sqlite:")).unwrap();
    let events = (0..count).map(|n| NewEvent {
        chat: chat.map(str::to_owned),
        lane: chat.map(Lane::of_chat),
        dead: Some(failure("no such customer")),
        ..new_event(EventKind::CHAT_RATED, format!(r#"{{"n":{n}}}"#))
    });
    let accepts = join_all(events.map(|event| queue.accept_one(event, None)));
    let accepted = Runtime::new().unwrap().block_on(accepts);
    assert!(accepted.iter().all(Result::is_ok));
}

#[test]
fn chats_that_lack_an_event_are_listed() {
    let dir = TempDir::new().unwrap();
    let url = url(&dir);
    add_dead(&url, Some("17"), 2);
    let gaps = inbox(&url, &["gaps"]);
    assert_eq!(gaps.code, 0, "{gaps:?}");
    let cells = |row: &str| -> Vec<_> {
        let cells = row.split("  ").map(|cell| cell.trim().to_owned());
        cells.filter(|cell| !cell.is_empty()).collect()
    };
    let rows: Vec<_> = gaps.out.lines().map(cells).collect();
    assert_eq!(rows[0], ["EVENT", "CHAT", "HAS", "ACCEPTED", "WITHOUT"]);
    let without = "chat-closed or chat-transferred";
    assert_eq!(rows[1][..3], ["1", "17", "chat-rated"]);
    assert_eq!((&*rows[1][4], rows.len()), (without, 2));
    let line = lines(&inbox(&url, &["gaps", "--json", "--type", "chat-rated"])).remove(0);
    assert_eq!(line["event"]["id"], 1);
    assert_eq!(line["without"][1], "chat-transferred");
    let none = inbox(&url, &["gaps", "--older-than", "1h"]);
    assert_eq!((none.code, none.out.trim()), (0, "no chat is incomplete"));
}

#[test]
fn many_changes_show_their_progress_and_stop_at_ctrl_c() {
    const EVENTS: usize = 20_000;
    let dir = TempDir::new().unwrap();
    let url = url(&dir);
    add_dead(&url, None, EVENTS);
    let args = "redrive --all --failed --newer-than 1h --yes";
    let mut redrive = Program::start(&mut terminal(&url, args, Stdio::piped()));
    let mut keys = redrive.child.stdin.take().unwrap();
    until("the progress bar", || {
        let bars = redrive.out();
        let (bar, _) = bars.rsplit_once(&format!("/{EVENTS}"))?;
        let at = bar.rsplit(|c: char| !c.is_ascii_digit()).next()?;
        (at.parse::<usize>().ok()? >= 50).then_some(())
    });
    keys.write_all(b"\x03").unwrap();
    let ended = redrive.finish();
    assert_eq!(ended.code, 1, "{ended:?}");
    let (_, made) = ended.out.rsplit_once("redriven: ").unwrap();
    let made: usize = made.trim().parse().unwrap();
    assert!((50..EVENTS).contains(&made), "{made}");
    let stopped = format!("stopped after {made} of {EVENTS} events");
    assert!(ended.out.contains(&stopped), "{stopped}");
    let stats = inbox(&url, &["stats"]);
    let left = format!(" {} dead", EVENTS - made);
    assert!(stats.out.contains(&left), "{left}: {stats:?}");
    // One row for all of them, and one for the stop.
    let actions = inbox(&url, &["actions"]).out;
    assert_eq!(actions.lines().count(), 3, "{actions}");
    assert!(actions.contains("all that match (cancelled)"), "{actions}");
    assert!(actions.contains("cancel   action 1 "), "{actions}");
}

#[test]
fn a_change_that_was_killed_is_continued_or_cancelled_by_a_person() {
    const EVENTS: u64 = 10_000;
    let dir = TempDir::new().unwrap();
    let url = url(&dir);
    add_dead(&url, None, EVENTS as usize);
    let action = |number| {
        let actions = lines(&inbox(&url, &["actions", "--json"]));
        actions.into_iter().find(|it| it["number"] == number)
    };
    let changed = |number| Some(action(number)?["changed"].as_u64().unwrap());
    let kill = |number: u64, args: &[&str]| {
        let more = ["--inbox", &url, "--yes", "--reason", "the CRM is back"];
        let args = [&["inbox"], args, &more].concat();
        let mut killed = Program::start(example("receiver").args(args));
        until("some changes", || (changed(number)? > 0).then_some(()));
        killed.child.kill().unwrap();
        assert!(!killed.finish().err.contains("ed: "));
        let made = changed(number).unwrap();
        assert!(made < EVENTS, "{made}");
        made
    };
    let made = kill(1, &["redrive", "--all", "--state", "dead"]);
    // A minute later.
    let later = |number: i64| {
        let path = url.trim_start_matches("sqlite:");
        let file = Connection::open(path).unwrap();
        let update = "UPDATE actions SET stepped = stepped - 61000 WHERE number = ?1";
        file.execute(update, [number]).unwrap();
    };
    let none = ["discard", "--all", "--state", "in-progress", "--yes"];
    let names = |number: u64| format!("`receiver inbox continue {number}` continues it");
    assert!(!inbox(&url, &none).err.contains(&names(1)));
    later(1);
    assert_eq!(action(1).unwrap()["bulk"], "interrupted");
    let next = inbox(&url, &none);
    assert_eq!(next.code, 0, "{next:?}");
    let said = [
        &format!("was interrupted after {made} events (redrive all that match): "),
        &names(1),
        "`receiver inbox cancel 1` cancels it\nno event matches",
    ];
    assert!(said.iter().all(|said| next.err.contains(*said)), "{next:?}");
    assert_eq!(changed(1), Some(made));

    assert_eq!(inbox(&url, &["pause", "--all"]).code, 0);
    let ended = inbox(&url, &["continue", "1"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    let said = [
        &format!("redriven: {EVENTS}\n"),
        "everything is paused: its events are tried after `receiver inbox resume --all`\n",
    ];
    assert!(
        said.iter().all(|said| ended.err.contains(*said)),
        "{ended:?}"
    );
    let done = action(1).unwrap();
    assert_eq!(
        (&done["changed"], &done["bulk"], &done["reason"]),
        (&EVENTS.into(), &"done".into(), &"the CRM is back".into())
    );
    let stats = inbox(&url, &["stats"]);
    let all = format!("{EVENTS} retrying");
    assert!(stats.out.contains(&all), "{stats:?}");

    let number = 3;
    let made = kill(number, &["discard", "--all", "--state", "retrying"]);
    let cancelled = inbox(&url, &["cancel", "3"]);
    assert_eq!(cancelled.code, 0, "{cancelled:?}");
    assert_eq!(cancelled.err, "cancelled: action 3\n");
    assert_eq!(inbox(&url, &["cancel", "3"]).code, 1);
    let stopped = inbox(&url, &["continue", "3"]);
    assert_eq!(stopped.code, 1, "{stopped:?}");
    let text = format!("stopped after {made} of {EVENTS} events\ndiscarded: {made}\n");
    assert_eq!(stopped.err, text);
    for (command, why) in [
        ("continue", "no change of all that match has the number 2"),
        ("cancel", "action 2 is no change of all that match"),
    ] {
        let wrong = inbox(&url, &[command, "2"]);
        assert_eq!(wrong.code, 1, "{wrong:?}");
        assert!(wrong.err.contains(why), "{wrong:?}");
    }
}

#[test]
fn changes_are_confirmed_at_a_terminal() {
    let dir = TempDir::new().unwrap();
    let url = url(&dir);
    let receiver = start(&url, "true", &[]);
    assert_eq!(inbox(&url, &["pause", "--all"]).code, 0);
    for key in ["a", "b"] {
        send(&receiver, "chat-rated", key);
    }
    for answer in ["n\n", "\n"] {
        let refused = at_terminal(&url, "discard 1", answer);
        assert_eq!(refused.code, 1, "{refused:?}");
        assert!(
            refused.out.contains("Discard 1 event? [y/N]"),
            "{refused:?}"
        );
        assert!(refused.out.contains("nothing was changed"), "{refused:?}");
    }
    assert_eq!(states(&url), ["waiting", "waiting"]);
    let agreed = at_terminal(&url, "discard --all --state waiting", "y\n");
    assert_eq!(agreed.code, 0, "{agreed:?}");
    assert!(agreed.out.contains("Discard 2 events? [y/N]"), "{agreed:?}");
    assert!(agreed.out.contains("chat-rated"), "no preview: {agreed:?}");
    assert!(agreed.out.contains("discarded: 2"), "{agreed:?}");
    assert_eq!(states(&url), ["discarded", "discarded"]);
}

#[test]
fn a_person_pauses_discards_and_redrives() {
    let dir = TempDir::new().unwrap();
    let url = url(&dir);
    let receiver = start(&url, "cat >/dev/null; exit 65", &["--max-attempts", "1"]);
    assert_eq!(inbox(&url, &["pause", "--all"]).code, 0);
    for key in ["a", "b"] {
        send(&receiver, "chat-rated", key);
    }
    let paused = inbox(&url, &["stats"]);
    assert!(
        paused
            .out
            .contains("everything is paused\nchat-rated: 2 waiting"),
        "{paused:?}"
    );
    let retried = inbox(&url, &["redrive", "1", "--yes"]);
    assert!(
        retried
            .err
            .ends_with("redriven: 1\neverything is paused: its events are tried after `receiver inbox resume --all`\n"),
        "{retried:?}"
    );
    assert_eq!(inbox(&url, &["discard", "2", "--yes"]).code, 0);
    assert_eq!(states(&url), ["waiting", "discarded"]);
    assert_eq!(inbox(&url, &["resume", "--all"]).code, 0);
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
fn a_copy_is_made_beside_a_receiver_and_restored() {
    let dir = TempDir::new().unwrap();
    let url = url(&dir);
    let copy = dir.path().join("copy.db");
    let copy = copy.to_str().unwrap();
    let receiver = start(&url, "cat >/dev/null", &[]);
    send(&receiver, "chat-rated", "a");
    until("the first event", || {
        (states(&url) == ["handled"]).then_some(())
    });
    assert_eq!(inbox(&url, &["pause", "--all"]).code, 0);
    for key in ["b", "c"] {
        send(&receiver, "chat-rated", key);
    }
    let made = inbox(&url, &["backup", copy]);
    assert_eq!(made.code, 0, "{made:?}");
    let mode = fs::metadata(copy).unwrap().mode() & 0o777;
    assert_eq!(mode, 0o600, "{mode:o}");
    let again = inbox(&url, &["backup", copy]);
    assert_eq!(again.code, 1, "{again:?}");
    assert!(again.err.contains("exists already"), "{again:?}");
    send(&receiver, "chat-rated", "d");
    assert_eq!(inbox(&url, &["resume", "--all"]).code, 0);
    until("the other events", || {
        (states(&url) == ["handled"; 4]).then_some(())
    });
    let refused = inbox(&url, &["restore", copy, "--yes"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.err.contains("stop all receivers"), "{refused:?}");
    drop(receiver);

    for end in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(dir.path().join(format!("webhooks.db{end}")));
    }
    let unasked = inbox(&url, &["restore", copy]);
    assert_eq!(unasked.code, 2, "{unasked:?}");
    let declined = at_terminal(&url, &format!("restore {copy}"), "n\n");
    assert_eq!(declined.code, 1, "{declined:?}");
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    let restored = at_terminal(&url, &format!("restore {copy}"), "y\n");
    assert_eq!(restored.code, 0, "{restored:?}");
    let (said, _) = restored.out.split_once("[y/N]").unwrap();
    assert!(said.contains("2 unsettled events"), "{restored:?}");
    assert!(said.contains("handled after the copy"), "{restored:?}");
    assert_eq!(states(&url), ["handled", "waiting", "waiting"]);
    let mode = fs::metadata(dir.path().join("webhooks.db")).unwrap().mode() & 0o777;
    assert_eq!(mode, 0o600, "{mode:o}");

    let receiver = start(&url, "cat >/dev/null", &[]);
    assert_eq!(inbox(&url, &["resume", "--all"]).code, 0);
    until("the events that the copy has", || {
        (states(&url) == ["handled"; 3]).then_some(())
    });
    // Keys are in the copy, too.
    for key in ["a", "b", "c", "d"] {
        send(&receiver, "chat-rated", key);
    }
    until("the event that the copy lacks", || {
        (states(&url) == ["handled"; 4]).then_some(())
    });
}

#[test]
fn accepted_events_are_warned_of_by_a_receiver_that_does_not_handle_them() {
    let dir = TempDir::new().unwrap();
    let url = url(&dir);
    let receiver = start(&url, "true", &[]);
    assert_eq!(inbox(&url, &["pause", "--all"]).code, 0);
    for key in ["a", "b"] {
        send(&receiver, "chat-rated", key);
    }
    drop(receiver);
    let with_store = || Server::receiver(&["--secret", "s", "--store", &url]).err();
    let warned = with_store();
    assert!(warned.contains("WARN"), "{warned}");
    assert!(warned.contains("unsettled=2"), "{warned}");
    assert!(warned.contains("`--inbox`"), "{warned}");
    let discarded = inbox(&url, &["discard", "1", "2", "--yes"]);
    assert_eq!(discarded.code, 0, "{discarded:?}");
    let silent = with_store();
    assert!(!silent.contains("unsettled"), "{silent}");
}

/// As with `LimitFSIZE` of systemd.
#[test]
fn a_limit_on_the_size_of_files_is_like_a_full_disk() {
    let dir = TempDir::new().unwrap();
    let url = url(&dir);
    let receiver = example("receiver");
    let mut command = Command::new("sh");
    // In blocks of 512 bytes.
    command
        .args(["-c", r#"ulimit -f 1024 && exec "$0" "$@""#])
        .arg(receiver.get_program())
        .args(["--secret", "s", "--inbox", &url, "--exec", "true"]);
    let receiver = Server::start_by(&mut command);
    let body = receiver.file("body", &format!(r#"{{"id":"{}"}}"#, "1".repeat(100_000)));
    let sent = receiver.send("s", &["--body", &body, "--count", "20"]);
    assert!(sent.out.contains(" 200 OK"), "{sent:?}");
    assert!(sent.out.contains("503 Service Unavailable"), "{sent:?}");
    let health = format!("http://{}/healthz", receiver.address());
    assert_eq!(curl(&["-w", "%{http_code}", &health]), "200");
    let log = receiver.err();
    assert!(log.contains("cannot be read or written"), "{log}");
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
    let unsettled = [
        &["discard", "--all"][..],
        &["--state", "waiting", "--state", "in-progress"],
        &["--state", "retrying"],
    ]
    .concat();
    for (args, code, text) in [
        (&["show", "17"][..], 1, "there is no event 17"),
        (&["redrive", "17", "--yes"], 1, "there is no such event"),
        (&unsettled, 2, "pass `--yes`"),
        (&["discard", "--all", "--yes"], 2, "--state"),
        (
            &["redrive", "--all", "--type", "chat-rated", "--yes"],
            2,
            "--state",
        ),
        (&["redrive", "--state", "dead"], 2, "--all"),
        (&["discard"], 2, "<ID"),
        (&["discard", "1", "--all"], 2, "cannot be used with"),
        (&["discard", "1", "--type", "chat-rated"], 2, "`--all`"),
        (&["list", "--state", "lost"], 2, "choose one of waiting"),
        (
            &["list", "--state", "dead", "--failed"],
            2,
            "cannot be used with",
        ),
        (&["list", "--failed", "--newer-than", "1h"], 0, ""),
        (&["list", "--older-than", "5x"], 2, "is neither an age"),
        (&["export", "--newer-than", "2026-13-01"], 2, "nor a time"),
        (&["pause"], 2, "<TYPE|--all>"),
        (&["pause", ""], 2, "pass --all for everything"),
        (&["pause", "chat-rated", "--all"], 2, "cannot be used with"),
        (&["resume"], 2, "<TYPE|--all>"),
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
    for command in ["backup", "restore"] {
        let ended = inbox("postgres://127.0.0.1:1/none", &[command, "copy"]);
        assert_eq!(ended.code, 1, "{command}: {ended:?}");
        assert!(ended.err.contains("pg_dump"), "{command}: {ended:?}");
    }
    let both = run("receiver", &["--inbox", &url, "--store", "memory"]);
    assert_eq!(both.code, 2, "{both:?}");
    let mut both = example("receiver");
    both.args(["--inbox", &url]).env("WEBHOOK_STORE", "memory");
    let both = Program::start(&mut both).finish();
    assert_eq!(both.code, 2, "{both:?}");
    assert!(both.err.contains("WEBHOOK_STORE"), "{both:?}");
    for args in [&["list"][..], &[]] {
        let nowhere = run("receiver", &[&["inbox"], args].concat());
        assert_eq!(nowhere.code, 2, "{args:?}: {nowhere:?}");
        let names = nowhere.err.contains("WEBHOOK_INBOX");
        assert!(names, "{args:?}: {nowhere:?}");
    }
}

#[test]
fn a_kind_that_nobody_has_seen_is_a_typing_error() {
    let dir = TempDir::new().unwrap();
    let url = url(&dir);
    let receiver = start(&url, "true", &["--expect", "chat-clozed=4"]);
    let log = receiver.err();
    assert!(log.contains("WARN"), "{log}");
    assert!(log.contains("chat-clozed"), "{log}");
    assert!(log.contains("did you mean `chat-closed`?"), "{log}");
    send(&receiver, "order-paid", "a");
    for args in [
        &["pause", "chat-clozed"][..],
        &["resume", "chat-clozed"],
        &["list", "--type", "chat-clozed"],
        &["export", "--type", "chat-clozed"],
        &[
            "redrive",
            "--all",
            "--state",
            "dead",
            "--type",
            "chat-clozed",
        ],
    ] {
        let warned = inbox(&url, args);
        // What is paused by a wrong name would go on.
        let code = i32::from(args[0] == "pause");
        assert_eq!(warned.code, code, "{args:?}: {warned:?}");
        let suggested = warned.err.contains("did you mean `chat-closed`?");
        assert!(suggested, "{args:?}: {warned:?}");
    }
    let warned = inbox(&url, &["list", "--type", "order-payed"]);
    assert!(
        warned.err.contains("did you mean `order-paid`?"),
        "{warned:?}"
    );
    let far = inbox(&url, &["list", "--type", "invoice"]);
    assert!(far.err.contains("`invoice`"), "{far:?}");
    assert!(!far.err.contains("did you mean"), "{far:?}");
    for kind in ["order-paid", "chat-closed"] {
        let known = inbox(&url, &["list", "--type", kind]);
        assert_eq!(known.err, "", "{kind}");
    }
    for (args, said) in [
        (&["pause", "chat-closed"][..], "paused: chat-closed\n"),
        (&["resume", "chat-closed"], "resumed: chat-closed\n"),
        (&["pause", "--all"], "paused: everything\n"),
        (&["resume", "--all"], "resumed: everything"),
    ] {
        let ended = inbox(&url, args);
        assert!(ended.err.contains(said), "{args:?}: {ended:?}");
    }
}

#[test]
fn other_kinds_than_those_to_keep_are_not_stored() {
    let dir = TempDir::new().unwrap();
    let url = url(&dir);
    let keep = ["--keep-only", "message-created,chat-ratid"];
    let receiver = start(&url, "true", &keep);
    let log = receiver.err();
    assert!(log.contains("WARN"), "{log}");
    assert!(log.contains("did you mean `chat-rated`?"), "{log}");
    for kind in ["chat-rated", "chat-rated", "message-created"] {
        send(&receiver, kind, "a");
    }
    let listed = lines(&inbox(&url, &["list", "--json"]));
    let [kept] = &*listed else {
        panic!("{listed:?}")
    };
    assert_eq!(
        (&kept["kind"], &kept["key"]),
        (&"message-created".into(), &"a".into())
    );

    let check = ["check", "--secret", "s", "--listen", "127.0.0.1:0"];
    let typed = [&keep[..], &["--expect", "chat-clozed=4"]].concat();
    let checked = run("receiver", &[&check[..], &typed].concat());
    assert_eq!(checked.code, 0, "{checked:?}");
    for meant in ["chat-rated", "chat-closed"] {
        let suggestion = format!("did you mean `{meant}`?");
        assert_eq!(checked.err.matches(&suggestion).count(), 1, "{checked:?}");
    }
    for kind in ["", "two words", "chat-rated,"] {
        let wrong = run("receiver", &["--secret", "s", "--keep-only", kind]);
        assert_eq!(wrong.code, 2, "{kind}: {wrong:?}");
        assert!(wrong.err.contains("visible ASCII"), "{kind}: {wrong:?}");
    }
}

#[test]
fn a_person_is_forgotten_by_a_command() {
    let dir = TempDir::new().unwrap();
    let url = url(&dir);
    let receiver = start(&url, "cat >/dev/null", &[]);
    assert_eq!(inbox(&url, &["pause", "--all"]).code, 0);
    for (key, id) in [
        ("a", "anna@example.com"),
        ("b", "bob"),
        ("c", "anna@example.com"),
    ] {
        let body = receiver.file("body", &format!(r#"{{"id":"{id}"}}"#));
        let more = ["--event", "chat-rated", "--key", key, "--body", &body];
        assert_eq!(receiver.send("s", &more).code, 0);
    }
    let forget = ["forget", "anna@example.com"];
    let unasked = inbox(&url, &forget);
    assert_eq!(unasked.code, 2, "{unasked:?}");
    let refused = at_terminal(&url, "forget anna@example.com", "n\n");
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.out.contains("2 events"), "{refused:?}");
    assert_eq!(states(&url), ["waiting"; 3]);

    let mut agreed = example("receiver");
    agreed
        .args(["inbox", "--inbox", &url])
        .args(forget)
        .arg("--yes");
    let agreed = Program::start(agreed.env("SUDO_USER", "grace")).finish();
    assert_eq!(agreed.code, 0, "{agreed:?}");
    assert_eq!(states(&url), ["discarded", "waiting", "discarded"]);
    let kept = lines(&inbox(&url, &["export"]));
    let payloads: Vec<_> = kept.iter().map(|event| event.get("payload")).collect();
    assert!(
        payloads[0].is_none() && payloads[1].is_some() && payloads[2].is_none(),
        "{kept:?}"
    );
    // Who and when, and the chat by the digest that `sha256sum` prints.
    let said = agreed.err.lines().last().unwrap();
    for text in ["by grace", " GMT", "bodies: 2", "f7d54c22"] {
        assert!(said.contains(text), "{text}: {said}");
    }
    assert!(!agreed.err.contains("anna"), "{agreed:?}");

    let again = inbox(&url, &["forget", "anna@example.com", "--yes"]);
    assert_eq!(
        (again.code, again.err.contains("bodies: 0")),
        (0, true),
        "{again:?}"
    );
    let none = inbox(&url, &["forget", "nobody", "--yes"]);
    assert_eq!(none.code, 1, "{none:?}");
    assert!(none.err.contains("no event of this chat"), "{none:?}");

    // As a timer of systemd runs it.
    let mut unnamed = example("receiver");
    unnamed.args(["inbox", "--inbox", &url, "forget", "bob", "--yes"]);
    for name in ["SUDO_USER", "USER", "LOGNAME"] {
        unnamed.env_remove(name);
    }
    let unnamed = Program::start(&mut unnamed).finish();
    let user = User::from_uid(getuid()).unwrap().unwrap().name;
    assert!(
        unnamed.err.contains(&format!(" by {user}: ")),
        "{unnamed:?}"
    );
}

#[test]
fn forgetting_that_was_killed_is_finished_by_the_same_command() {
    const EVENTS: i64 = 10_000;
    let dir = TempDir::new().unwrap();
    let url = url(&dir);
    add_dead(&url, Some("anna"), EVENTS as usize);
    let file = Connection::open(dir.path().join("webhooks.db")).unwrap();
    let left = || {
        let bodies = "SELECT count(*) FROM bodies";
        file.query_row(bodies, [], |row| row.get::<_, i64>(0))
            .unwrap()
    };
    let forget = ["forget", "anna", "--yes"];
    let inbox_url = ["--inbox", &url];
    let args = [&["inbox"], &forget[..], &inbox_url].concat();
    let mut killed = Program::start(example("receiver").args(args));
    until("the first step", || (left() < EVENTS).then_some(()));
    killed.child.kill().unwrap();
    assert!(!killed.finish().err.contains("forgotten"));
    let rest = left();
    assert!((1..EVENTS).contains(&rest), "{rest}");

    let finished = inbox(&url, &forget);
    assert_eq!(finished.code, 0, "{finished:?}");
    let said = format!("bodies: {rest}\n");
    assert!(finished.err.ends_with(&said), "{said}: {finished:?}");
    assert_eq!(left(), 0);
    let stats = inbox(&url, &["stats"]);
    assert!(stats.out.contains("every event is settled"), "{stats:?}");
}

#[test]
fn no_text_of_others_controls_a_terminal() {
    let dir = TempDir::new().unwrap();
    let url = url(&dir);
    let exec = "printf 'bad \\302\\233 \\342\\200\\256 end\\n' >&2; exit 65";
    let receiver = start(&url, exec, &["--log-format", "json"]);
    let body = receiver.file(
        "body",
        "{\"id\":\"a\u{9b}b\u{202e}\",\"x\":\"\u{9b}1\u{2066}\"}",
    );
    let more = ["--event", "chat-rated", "--key", "a", "--body", &body];
    assert_eq!(receiver.send("s", &more).code, 0);
    until("the discarded event", || {
        (states(&url) == ["discarded"]).then_some(())
    });
    let said = [
        inbox(&url, &["show", "1"]),
        inbox(&url, &["show", "1", "--json"]),
        inbox(&url, &["export"]),
        inbox(&url, &["list"]),
        inbox(&url, &["list", "--json"]),
    ];
    let log = receiver.err();
    let texts = said.iter().map(|said| &said.out).chain([&log]);
    for text in texts {
        let raw = text.contains(['\u{9b}', '\u{202e}', '\u{2066}']);
        assert!(!raw && text.contains("9b"), "{text:?}");
    }
    // The same value.
    let exported = lines(&said[2]).remove(0);
    assert_eq!(exported["payload"]["x"], "\u{9b}1\u{2066}");
    let logged: Vec<Value> = log
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let discarded = logged.iter().find(|line| line["level"] == "WARN").unwrap();
    assert_eq!(discarded["span"]["name"], "attempt", "{discarded}");
    assert!(discarded["fields"]["reason"].is_string(), "{discarded}");
}
