//! What the commands say of an event that waits for another one.

use support::program::until;
use tempfile::TempDir;

use super::{inbox, send, start, states, url};

/// To redrive an event changes nothing while an earlier one of its chat has failed.
#[test]
fn a_redrive_names_the_event_for_which_another_waits() {
    let dir = TempDir::new().unwrap();
    let url = url(&dir);
    let receiver = start(&url, "false", &[]);
    for key in ["a", "b"] {
        send(&receiver, "chat-rated", key);
    }
    until("the failed event", || {
        (states(&url) == ["retrying", "waiting"]).then_some(())
    });
    let why = "event 1 of the same chat, which has failed, and is tried again";
    let redriven = inbox(&url, &["redrive", "2", "--yes"]);
    assert_eq!(redriven.code, 0, "{redriven:?}");
    for said in [
        &format!("event 2 waits for {why}"),
        "to redrive event 2 changes nothing before",
        "redriven: 1",
    ] {
        assert!(redriven.err.contains(said), "{said}: {redriven:?}");
    }
    let shown = inbox(&url, &["show", "2"]);
    let waits = "\nwaits for event 1 of the chat, which has failed";
    assert!(shown.out.contains(waits), "{shown:?}");
    // The first one waits for none.
    let redriven = inbox(&url, &["redrive", "1", "--yes"]);
    assert!(!redriven.err.contains("waits"), "{redriven:?}");
    let shown = inbox(&url, &["show", "1"]);
    assert!(!shown.out.contains("waits for"), "{shown:?}");
}
