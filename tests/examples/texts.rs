//! Keys and chats are read on the command line as they are shown, and errors say what is wrong.

use rusqlite::Connection;
use serde_json::Value;
use tempfile::TempDir;

use support::program::{Ended, Server, run};

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

#[test]
fn odd_keys_and_chats_are_found_changed_and_forgotten() {
    let dir = TempDir::new().unwrap();
    let url = format!("sqlite:{}", dir.path().join("webhooks.db").display());
    let args = ["--secret", "s", "--inbox", &url, "--exec", "cat >/dev/null"];
    let receiver = Server::receiver(&args);
    assert_eq!(inbox(&url, &["pause", "--all"]).code, 0);
    // An id that no command line can have, as `show` writes it.
    let body = receiver.file("body", r#"{"id":"\u0000\\u{0}\n"}"#);
    let more = ["--event", "chat-rated", "--key", r"a\\b\c", "--body", &body];
    assert_eq!(receiver.send("s", &more).code, 0);
    let shown = inbox(&url, &["show", "1"]).out;
    let field = |name: &str| {
        let line = shown.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_once(' ').unwrap().1.trim().to_owned()
    };
    let (chat, key) = (field("chat"), field("key"));
    assert_eq!((&*chat, &*key), (r"\u{0}\\u{0}\u{a}", r"a\\\\b\\c"));
    for (option, value) in [("--chat", &chat), ("--key", &key)] {
        let listed = lines(&inbox(&url, &["list", option, value, "--json"]));
        assert_eq!(listed.len(), 1, "{option}");
        assert_eq!(listed[0]["id"], 1);
        assert_eq!(listed[0]["key"], key);
        assert_eq!(listed[0]["chat"], "\0\\u{0}\n");
    }
    let discard = [
        "discard", "--all", "--key", &key, "--state", "waiting", "--yes",
    ];
    assert_eq!(inbox(&url, &discard).code, 0);
    assert!(inbox(&url, &["list"]).out.contains("discarded"));
    let odd = inbox(&url, &["forget", &chat, "--yes"]);
    assert!(odd.err.contains("bodies: 1"), "{odd:?}");
}

#[test]
fn a_locked_file_is_an_error_that_says_so() {
    let dir = TempDir::new().unwrap();
    let url = format!("sqlite:{}", dir.path().join("webhooks.db").display());
    let args = ["--secret", "s", "--inbox", &url, "--exec", "true"];
    drop(Server::receiver(&args));
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
