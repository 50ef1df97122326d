//! The receiver as one program: its commands, and their options in the environment.

use std::fs;
use std::net::TcpListener;

use serde_json::Value;
use support::program::{Ended, Program, example, until};
use tempfile::TempDir;

use super::receivers::{Receiver, run};

/// Runs the receiver with variables.
fn with(variables: &[(&str, &str)], args: &[&str]) -> Ended {
    let mut command = example("receiver");
    command.envs(variables.iter().copied()).args(args);
    Program::start(&mut command).finish()
}

#[test]
fn each_option_of_run_has_a_heading_and_a_variable() {
    for command in ["run", "check"] {
        let help = run("receiver", &[command, "-h"]);
        let (_, options) = help.out.split_once("\nOptions:\n").unwrap();
        let (general, groups) = options.split_once("\n\n").unwrap();
        assert!(general.trim_start().starts_with("-h, --help"), "{help:?}");
        let headings: Vec<_> = groups
            .lines()
            .filter(|line| !line.starts_with(' '))
            .filter(|line| !line.is_empty())
            .collect();
        assert_eq!(
            headings,
            [
                "Listening:",
                "Secrets:",
                "Where events are kept:",
                "Handling:",
                "Limits:",
                "Console:",
                "Monitoring:"
            ]
        );
        let mut options = 0;
        for line in groups
            .lines()
            .filter(|line| line.trim_start().starts_with("--"))
        {
            let name = line.split_whitespace().next().unwrap();
            let variable = name.trim_start_matches('-').replace('-', "_");
            let variable = format!("[env: WEBHOOK_{}]", variable.to_uppercase());
            assert_eq!(line.contains(&variable), name != "--secret", "{line}");
            options += 1;
        }
        assert!(options > 30, "{help:?}");
    }
}

#[test]
fn an_unknown_command_is_explained() {
    let wrong = run("receiver", &["chek"]);
    assert_eq!(wrong.code, 2, "{wrong:?}");
    assert!(wrong.err.contains("'check'"), "{wrong:?}");
    // Of `run`, which is the default.
    let wrong = run("receiver", &["--lissten", "127.0.0.1:0"]);
    assert_eq!(wrong.code, 2, "{wrong:?}");
    assert!(wrong.err.contains("Usage: receiver run "), "{wrong:?}");
    let wrong = run("receiver", &["inbox", "list"]);
    assert_eq!(wrong.code, 2, "{wrong:?}");
    assert!(wrong.err.contains("Usage: receiver inbox "), "{wrong:?}");
}

#[test]
fn options_are_read_from_variables() {
    let dir = TempDir::new().unwrap();
    let secrets = dir.path().join("secrets");
    fs::write(&secrets, "s\n").unwrap();
    let inbox = format!("sqlite:{}", dir.path().join("webhooks.db").display());
    let mut command = example("receiver");
    command
        .arg("run")
        .env("WEBHOOK_SECRET_FILE", secrets)
        .env("WEBHOOK_INBOX", &inbox)
        .env("WEBHOOK_KEEP_HEADER", "x-request-id,x-region")
        .env("WEBHOOK_EXPECT", "chat-clozed=4,chat-opennd=5")
        .env("WEBHOOK_HEADER_PREFIX", "acme")
        .env("WEBHOOK_NAMESPACE", "north")
        .env("WEBHOOK_PATH", "/a")
        .env("WEBHOOK_EXEC", "false")
        // Neither is given: one would be refused beside the file, and the other without a console.
        .env("WEBHOOK_DEMO", "false")
        .env("WEBHOOK_CONSOLE_READ_ONLY", "0")
        // The argument wins.
        .env("WEBHOOK_LISTEN", "nowhere:0");
    let receiver = Receiver::start_by(&mut command);
    assert!(receiver.url.ends_with("/a"), "{}", receiver.url);
    let log = receiver.err();
    assert!(log.contains("chat-clozed"), "{log}");
    assert!(log.contains("chat-opennd"), "{log}");
    assert!(log.contains("namespace=\"north\""), "{log}");
    let key = ["--header-prefix", "acme", "--key", "k"];
    assert_eq!(receiver.send("s", &key).code, 0);

    // The same variables serve `inbox`, and those of `run` alone are nothing to it.
    let variables = [
        ("WEBHOOK_INBOX", inbox.as_str()),
        ("WEBHOOK_NAMESPACE", "north"),
    ];
    until("the failure", || {
        let listed = with(&variables, &["inbox", "list", "--key", "k", "--json"]);
        let event: Value = serde_json::from_str(&listed.out).unwrap();
        (event["state"] == "retrying").then_some(())
    });
}

#[test]
fn a_variable_counts_as_its_option() {
    let conflict = with(&[("WEBHOOK_FORWARD", "http://[::1]:1/")], &["--exec", "x"]);
    let demo = with(&[("WEBHOOK_DEMO", "yes")], &["--secret", "s"]);
    let alone = with(&[("WEBHOOK_RETRY_FOR", "5")], &["check", "--demo"]);
    let unclear = with(&[("WEBHOOK_DEMO", "perhaps")], &[]);
    let invalid = with(&[("WEBHOOK_LEASE", "600")], &[]);
    for (ended, variable, text) in [
        (conflict, "WEBHOOK_FORWARD", "cannot be used with"),
        (demo, "WEBHOOK_DEMO", "cannot be used with"),
        (alone, "WEBHOOK_RETRY_FOR", "--inbox <INBOX>"),
        (unclear, "WEBHOOK_DEMO", "not a boolean"),
        (invalid, "WEBHOOK_LEASE", "600 is not in 1..600"),
    ] {
        assert_eq!(ended.code, 2, "{ended:?}");
        assert!(ended.err.contains(text), "{ended:?}");
        // Whoever did not pass the option learns where it comes from.
        let origin = format!("count as options: {variable}\n");
        assert!(ended.err.contains(&origin), "{ended:?}");
    }
}

#[test]
fn check_opens_what_run_would_and_handles_nothing() {
    let dir = TempDir::new().unwrap();
    let inbox = format!("sqlite:{}", dir.path().join("webhooks.db").display());
    let handled = dir.path().join("handled");
    let failing = ["--secret", "s", "--inbox", &inbox, "--exec", "exit 75"];
    let receiver = Receiver::start(&failing);
    assert_eq!(receiver.send("s", &["--count", "3"]).code, 0);
    drop(receiver);
    let listed = || run("receiver", &["inbox", "list", "--json", "--inbox", &inbox]).out;
    let before = listed();

    let touch = format!("touch '{}'", handled.display());
    #[rustfmt::skip]
    let args = ["check", "--secret", "s", "--inbox", &inbox, "--exec", &touch, "--listen", "127.0.0.1:0", "--console",
        "127.0.0.1:0", "--metrics", "127.0.0.1:0"];
    let checked = run("receiver", &args);
    assert_eq!(checked.code, 0, "{checked:?}");
    assert!(checked.out.contains("3 unsettled events"), "{checked:?}");
    for what in ["secrets", "webhooks", "console", "metrics", "connections"] {
        assert!(checked.out.contains(&format!("{what}  ")), "{checked:?}");
    }
    assert_eq!(listed(), before);
    assert!(!handled.exists());

    let store = run("receiver", &["check", "--demo", "--listen", "127.0.0.1:0"]);
    assert_eq!(store.code, 0, "{store:?}");
    assert!(store.out.contains("memory\n"), "{store:?}");
}

#[test]
fn check_fails_where_run_would() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let free = "127.0.0.1:0";
    #[rustfmt::skip]
    let cases: [(&[&str], i32, &str); 9] = [
        (&["--listen", &taken], 1, "cannot listen on"),
        (&["--listen", free, "--console", &taken], 1, "choose another port, such as --console"),
        (&["--listen", free, "--metrics", &taken], 1, "choose another port, such as --metrics"),
        (&["--inbox", "postgres://u:hush@127.0.0.1:1/db"], 1, "127.0.0.1:1 cannot be used"),
        (&["--store", "redis://127.0.0.1:1"], 1, "127.0.0.1:1 cannot be reached"),
        (&["--inbox", "sqlite:/nowhere/webhooks.db"], 1, "its directory must exist"),
        (&["--inbox", "memory"], 2, "an inbox is `sqlite:PATH`"),
        (&["--secret-file", "/nowhere/secrets"], 2, "cannot be read"),
        (&["--header-prefix", "a b"], 2, "prefix of a header"),
    ];
    for (args, code, text) in cases {
        let ended = run("receiver", &[&["check"], args].concat());
        assert_eq!(ended.code, code, "{args:?}: {ended:?}");
        assert!(ended.err.contains(text), "{args:?}: {ended:?}");
        assert!(!ended.err.contains("hush"), "{args:?}: {ended:?}");
        if code == 2 {
            let usage = ended.err.contains("Usage: receiver check ");
            assert!(usage, "{args:?}: {ended:?}");
        }
    }
}

#[test]
fn senders_are_listed_with_their_headers() {
    let senders = run("receiver", &["senders"]);
    assert_eq!(senders.code, 0, "{senders:?}");
    let platform = senders.out.lines().nth(1).unwrap();
    for text in [
        "chat platform",
        "x-service-event",
        "x-service-hmac-sha256",
        "idempotency-key",
        "every 10 min for 7 days",
    ] {
        assert!(platform.contains(text), "{text}: {platform}");
    }
}
