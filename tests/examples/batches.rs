//! The events of a batch, as the receiver gives them to a command, and as `inbox show` shows them.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use support::program::{Server, run, until};

/// A delivery of LINE with events of these numbers.
fn send(receiver: &Server, numbers: impl Iterator<Item = usize>) {
    let event = |n| json!({ "type": "message", "webhookEventId": format!("event-{n}") });
    let events: Vec<_> = numbers.map(event).collect();
    let body = json!({ "destination": "U-1", "events": events }).to_string();
    let body = receiver.file("body.json", &body);
    let sent = receiver.send("s", &["--sender", "line", "--no-key", "--body", &body]);
    assert_eq!(sent.code, 0, "{sent:?}");
}

#[test]
fn a_command_gets_the_place_of_an_event_in_its_batch_and_what_is_kept() {
    let dir = TempDir::new().unwrap();
    let got = dir.path().join("got");
    let command = format!("cat >> '{}'", got.display());
    let receiver = Server::receiver(&["--secret", "s", "--sender", "line", "--exec", &command]);
    send(&receiver, 1..=2);
    let line = |n| {
        format!(
            r#"{{"event":"message","key":"event-{n}","attempt":1,"batch":{{"item":{n},"items":2,"kept":{{"destination":"U-1"}}}},"payload":{{"type":"message","webhookEventId":"event-{n}"}}}}"#
        ) + "\n"
    };
    assert_eq!(fs::read_to_string(got).unwrap(), line(1) + &line(2));
}

#[test]
fn show_names_the_events_around_an_item() {
    let dir = TempDir::new().unwrap();
    let url = format!("sqlite:{}", dir.path().join("webhooks.db").display());
    let receiver = Server::receiver(&["--secret", "s", "--sender", "line", "--inbox", &url]);
    send(&receiver, 1..=3);
    send(&receiver, 4..=43);
    until("all lines", || {
        (receiver.out().lines().count() == 43).then_some(())
    });
    for line in receiver.out().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["batch"]["kept"]["destination"], "U-1");
    }
    let show = |id: &str, more: &[&str]| {
        let show = ["inbox", "show", id, "--inbox", &url];
        let shown = run("receiver", &[&show, more].concat());
        assert_eq!(shown.code, 0, "{shown:?}");
        shown.out
    };
    let shown = show("2", &[]);
    let batch = "batch     item 2 of 3; event 1 is item 1, 3 is item 3\n";
    assert!(shown.contains(batch), "{shown}");
    assert!(
        shown.contains("kept      {\"destination\":\"U-1\"}\n"),
        "{shown}"
    );
    let record: Value = serde_json::from_str(&show("2", &["--json"])).unwrap();
    let batch =
        json!({ "item": 2, "items": 3, "kept": { "destination": "U-1" }, "others": [1, 3] });
    assert_eq!(record["batch"], batch);

    let shown = show("23", &[]);
    let batch = "batch     item 20 of 40; near it, event 13 is item 10, 14 is item 11, ";
    assert!(shown.contains(batch), "{shown}");
    assert!(shown.contains(", 33 is item 30\n"), "{shown}");
}
