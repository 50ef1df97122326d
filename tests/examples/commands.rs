//! The commands of the example `receiver`, as an operator sees them.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};
use tempfile::TempDir;

use support::program::{Lingering, Program, Server, example, run, until};

/// A receiver with `args` whose standard output is a pipe.
fn piped(args: &[&str]) -> Program {
    let mut command = example("receiver");
    command
        .args(["--secret", "s", "--listen", "127.0.0.1:0"])
        .args(args)
        .stdout(Stdio::piped());
    Program::spawn(&mut command, TempDir::new().unwrap())
}

fn appended(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[test]
fn handled_event_whose_line_cannot_be_printed_is_not_handled_again() {
    let dir = TempDir::new().unwrap();
    let got = dir.path().join("got");
    let command = format!("echo once >> '{}'", got.display());
    let mut program = piped(&["--exec", &command]);
    drop(program.child.stdout.take());
    let receiver = Server::listening(program);

    let sent = receiver.send("s", &["--key", "k", "--count", "2"]);

    assert_eq!(sent.code, 0, "{sent:?}");
    assert!(
        sent.out.contains("it had been accepted or handled before"),
        "{sent:?}"
    );
    assert_eq!(appended(&got), "once\n");
    let err = receiver.err();
    assert!(err.contains("Broken pipe"), "{err}");
    assert!(!err.contains("ERROR"), "{err}");
}

#[test]
fn handled_event_does_not_wait_for_a_blocked_output() {
    let program = piped(&["--exec", "true", "--handler-timeout", "20"]);
    let receiver = Server::listening(program);
    // More than a pipe holds, and nobody reads it.
    let body = format!(r#"{{"text":"{}"}}"#, "x".repeat(200_000));
    let body = receiver.file("body", &body);

    let sent = receiver.send("s", &["--body", &body, "--count", "3"]);

    assert_eq!(sent.code, 0, "{sent:?}");
}

/// A command that records how many of its kind run at a time, and ends when the file `go` exists.
struct Counted {
    dir: TempDir,
}

impl Counted {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        fs::create_dir(dir.path().join("running")).unwrap();
        Self { dir }
    }

    fn command(&self) -> String {
        let dir = self.dir.path().display();
        // It ends with its test as well.
        format!(
            "touch '{dir}/running/'$$; ls '{dir}/running' | wc -l >> '{dir}/counts'; \
             while test -d '{dir}' && ! test -e '{dir}/go'; do sleep 0.02; done; \
             rm -f '{dir}/running/'$$"
        )
    }

    fn counts(&self) -> Vec<usize> {
        let counts = appended(&self.dir.path().join("counts"));
        let lines = counts.lines();
        lines.map(|line| line.trim().parse().unwrap()).collect()
    }

    fn go(&self) {
        File::create(self.dir.path().join("go")).unwrap();
    }
}

#[test]
fn concurrency_limits_the_commands() {
    let counted = Counted::new();
    let command = counted.command();
    let receiver = Server::receiver(&["--secret", "s", "--concurrency", "2", "--exec", &command]);

    let sending = receiver.start_send("s", &["--count", "12", "--concurrency", "12"]);
    until("two commands", || {
        (counted.counts().len() == 2).then_some(())
    });
    counted.go();
    let sent = sending.finish();

    assert_eq!(sent.code, 0, "{sent:?}");
    let counts = counted.counts();
    assert_eq!(counts.len(), 12);
    assert!(counts.iter().all(|&count| count <= 2), "{counts:?}");
}

#[test]
fn waiting_for_a_command_counts_against_the_time_limit() {
    let counted = Counted::new();
    let command = counted.command();
    let receiver = Server::receiver(&[
        "--secret",
        "s",
        "--concurrency",
        "1",
        "--handler-timeout",
        "3",
        "--exec",
        &command,
    ]);

    let sent = receiver.send("s", &["--count", "2", "--concurrency", "2"]);

    assert_eq!(sent.code, 1, "{sent:?}");
    assert_eq!(sent.out.matches("#").count(), 2, "{sent:?}");
    assert!(sent.out.contains("2 503 Service Unavailable"), "{sent:?}");
}

#[test]
fn exit_status_65_discards_the_event() {
    let command = "echo looking >&2; echo 'no such customer' >&2; exit 65";
    let receiver = Server::receiver(&["--secret", "s", "--exec", command]);

    let sent = receiver.send("s", &["--key", "k", "--count", "2"]);

    assert_eq!(sent.code, 0, "{sent:?}");
    assert!(
        sent.out.contains("it had been accepted or handled before"),
        "{sent:?}"
    );
    assert_eq!(receiver.out(), "");
    let err = receiver.err();
    let discarded = r#"outcome="discarded" reason="no such customer (exit status: 65)"#;
    assert!(err.contains(discarded), "{err}");
}

#[test]
fn exit_status_75_asks_for_a_later_attempt() {
    let command = "echo 'closed for maintenance' >&2; exit 75";
    let receiver = Server::receiver(&["--secret", "s", "--max-attempts", "1", "--exec", command]);

    for _ in 0..2 {
        let sent = receiver.send("s", &["--key", "k"]);
        assert_eq!(sent.code, 1, "{sent:?}");
        assert!(sent.out.contains("500 Internal Server Error"), "{sent:?}");
    }
    let err = receiver.err();
    let later = r#"reason="closed for maintenance (exit status: 75)""#;
    assert_eq!(err.matches(later).count(), 2, "{err}");
}

#[test]
fn last_attempt_that_fails_discards_the_event() {
    let command = "echo 'still broken' >&2; exit 1";
    let receiver = Server::receiver(&["--secret", "s", "--max-attempts", "2", "--exec", command]);

    let first = receiver.send("s", &["--key", "k"]);
    let second = receiver.send("s", &["--key", "k"]);
    let third = receiver.send("s", &["--key", "k"]);

    assert_eq!((first.code, second.code, third.code), (1, 0, 0));
    assert!(
        third.out.contains("it had been accepted or handled before"),
        "{third:?}"
    );
    assert_eq!(receiver.out(), "");
    let err = receiver.err();
    let warning = "WARN";
    let given_up = r#"reason="attempt 2 of 2 failed: still broken (exit status: 1)""#;
    let line = err.lines().find(|line| line.contains(given_up));
    assert!(line.is_some_and(|line| line.contains(warning)), "{err}");
}

#[test]
fn last_attempt_that_takes_too_long_discards_the_event() {
    let lingering = Lingering::new();
    let command = lingering.command();
    let receiver = Server::receiver(&[
        "--secret",
        "s",
        "--max-attempts",
        "1",
        "--handler-timeout",
        "3",
        "--exec",
        &command,
    ]);

    let sending = receiver.start_send("s", &["--key", "k"]);
    let pid = lingering.pid();
    let sent = sending.finish();

    assert_eq!(sent.code, 0, "{sent:?}");
    let err = receiver.err();
    assert!(err.contains("attempt 1 of 1 failed: no result"), "{err}");
    until("the child's end", || {
        (!Lingering::is_running(&pid)).then_some(())
    });
}

#[test]
fn lines_of_a_command_are_logged_with_the_key() {
    let command = "echo first >&2; printf 'a\\033[31mb' >&2; echo >&2; \
                   head -c 20000 /dev/zero | tr '\\0' x >&2; echo >&2; echo last >&2";
    let receiver = Server::receiver(&["--secret", "s", "--exec", command]);

    let sent = receiver.send("s", &["--key", "the-key"]);

    assert_eq!(sent.code, 0, "{sent:?}");
    let err = receiver.err();
    let lines: Vec<_> = err
        .lines()
        .filter(|line| line.contains(" command: "))
        .collect();
    assert_eq!(lines.len(), 4, "{err}");
    for line in &lines {
        assert!(line.contains("key=the-key"), "{line}");
        assert!(line.len() < 5000, "{}", line.len());
    }
    assert!(lines[0].ends_with(" command: first"), "{err}");
    assert!(lines[1].ends_with(" command: a\\u{1b}[31mb"), "{err}");
    assert!(lines[3].ends_with(" command: last"), "{err}");
}

/// A job in the background keeps standard error open.
#[test]
fn command_may_leave_a_job_in_the_background() {
    let dir = TempDir::new().unwrap();
    let done = dir.path().join("done");
    let path = dir.path().display();
    let command = format!(
        "(while test -d '{path}' && ! test -e '{path}/go'; do sleep 0.02; done; \
         echo later >&2; touch '{path}/done') & exit 0"
    );
    let receiver = Server::receiver(&["--secret", "s", "--exec", &command]);

    let sent = receiver.send("s", &["--key", "k"]);
    assert_eq!(sent.code, 0, "{sent:?}");
    assert!(!done.exists());
    File::create(dir.path().join("go")).unwrap();

    until("the end of the job", || done.exists().then_some(()));
    until("its line", || {
        receiver.err().contains(" later").then_some(())
    });
}

#[test]
fn jobs_in_the_background_keep_a_bounded_number_of_descriptors() {
    let receiver = Server::receiver(&["--secret", "s", "--exec", "sleep 30 & exit 0"]);
    let descriptors = || {
        let pid = receiver.program.child.id();
        fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
    };
    let before = descriptors();
    let sent = receiver.send("s", &["--count", "100"]);
    assert_eq!(sent.code, 0, "{sent:?}");
    let more = descriptors() - before;
    // Also those of connections that are kept.
    assert!((64..90).contains(&more), "{more}");
    let err = receiver.err();
    assert!(err.contains("as 64 others do"), "{err}");
}

#[test]
fn killed_receiver_takes_its_commands_with_it() {
    let lingering = Lingering::new();
    let command = lingering.command();
    let mut receiver = Server::receiver(&["--secret", "s", "--exec", &command]);
    let sending = receiver.start_send("s", &[]);
    let pid = lingering.pid();
    assert!(Lingering::is_running(&pid));

    receiver.program.child.kill().unwrap();
    receiver.program.child.wait().unwrap();

    until("the child's end", || {
        (!Lingering::is_running(&pid)).then_some(())
    });
    assert_eq!(sending.finish().code, 1);
}

/// It waits for all its children, and has none but its own.
#[test]
fn command_has_no_children_that_it_did_not_start() {
    let command =
        r#"exec sh -c 'read -r list < /proc/$$/task/$$/children; echo "children: [$list]" >&2'"#;
    let receiver = Server::receiver(&["--secret", "s", "--exec", command]);

    let sent = receiver.send("s", &[]);

    assert_eq!(sent.code, 0, "{sent:?}");
    let err = receiver.err();
    assert!(err.contains("children: []"), "{err}");
}

#[test]
fn start_names_store_and_limits() {
    let receiver = Server::receiver(&["--secret", "s", "--name", "crm", "--concurrency", "3"]);

    let err = until("the log", || {
        let err = receiver.err();
        err.contains("store=memory").then_some(err)
    });

    assert!(err.contains(r#"route=crm"#), "{err}");
    assert!(err.contains("concurrency=3"), "{err}");
    assert!(err.contains("handler_timeout=30s"), "{err}");
    assert!(err.contains("keys are kept in memory"), "{err}");

    let dir = TempDir::new().unwrap();
    let store = format!("sqlite:{}", dir.path().join("webhooks.db").display());
    let durable = Server::receiver(&["--secret", "s", "--store", &store]);
    let err = until("the log", || {
        let err = durable.err();
        err.contains("webhooks.db").then_some(err)
    });
    assert!(!err.contains("keys are kept in memory"), "{err}");
}

/// Also as root, whom `/proc` hides nothing from.
#[test]
fn command_cannot_read_credentials_in_the_environment_of_the_receiver() {
    let secret = ("WEBHOOK_SECRET", "hush, a secret");
    let store = ("WEBHOOK_STORE", "sqlite:/nowhere/hush.db");
    for number in 0..6 {
        let dir = TempDir::new().unwrap();
        let config = dir.path().join("routes.json");
        let inbox = format!("sqlite:{}", dir.path().join("hush.db").display());
        let variable = ("WEBHOOK_INBOX", inbox.as_str());
        let (variables, args) = match number {
            0 => (vec![secret, variable], vec![]),
            1 => (vec![secret, store], vec!["--store", "memory"]),
            2 => (vec![secret], vec!["--retry-for", "5", "--inbox", &inbox]),
            // Each route has a command and a secret of its own.
            3 => (vec![variable], vec!["--config", config.to_str().unwrap()]),
            4 => (vec![variable, secret], vec!["--retry-for", "5"]),
            // Of no handler.
            _ => (vec![secret], vec!["--notify-every", "1"]),
        };
        let got = dir.path().join("got");
        // Of the receiver, of its threads, and what the command inherits.
        let command = format!(
            "cat /proc/$PPID/environ /proc/$PPID/task/*/environ >'{0}'; env >>'{0}'; echo >'{0}-all'",
            got.display()
        );
        let secret_file = dir.path().join("secret");
        fs::write(&secret_file, secret.1).unwrap();
        let route = json!({"path": "/a", "secret-file": secret_file, "exec": command});
        fs::write(&config, json!({"routes": [route]}).to_string()).unwrap();
        let mut receiver = example("receiver");
        receiver.env("PLAIN", "seen").envs(variables).args(&args);
        match number {
            3 => &mut receiver,
            5 => receiver.args(["--on-alarm", &command]),
            _ => receiver.args(["--exec", &command]),
        };
        let receiver = Server::start_by(&mut receiver);
        assert_eq!(receiver.send(secret.1, &[]).code, 0, "{}", receiver.err());
        if number == 5 {
            assert_eq!(receiver.send("wrong", &["--count", "100"]).code, 1);
        }
        until("the command", || {
            dir.path().join("got-all").exists().then_some(())
        });
        let environment = fs::read_to_string(&got).unwrap();
        assert!(environment.matches("PLAIN=seen").count() > 2);
        assert!(!environment.contains("hush"), "{environment}");
    }
}

#[test]
fn version_is_printed() {
    let ended = run("receiver", &["--version"]);

    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(
        ended.out,
        concat!("receiver ", env!("CARGO_PKG_VERSION"), "\n")
    );
}

/// They are noted while it runs, and for the retention after that.
#[test]
fn the_handlers_of_a_receiver_are_retired() {
    let dir = TempDir::new().unwrap();
    let url = format!("sqlite:{}", dir.path().join("webhooks.db").display());
    let inbox = |args: &[&str]| run("receiver", &[&["inbox", "--inbox", &url], args].concat());
    let line = |args: &[&str]| serde_json::from_str::<Value>(&inbox(args).out).unwrap();
    let receiver = Server::receiver(&["--secret", "s", "--inbox", &url, "--exec", "true"]);
    let note = until("its handlers are noted", || {
        let stats = line(&["stats", "--json"]);
        stats["handlers"].get(0).cloned()
    });
    assert_eq!(
        (&note["of"], &note["is_fallback"]),
        (&json!("chat-platform/"), &json!(true))
    );
    let worker = note["worker"].as_str().unwrap();
    assert!(worker.starts_with("receiver"), "{worker}");
    drop(receiver);
    let refused = inbox(&["retire", "chat-platform/"]);
    assert_eq!(refused.code, 1);
    assert!(
        refused
            .err
            .contains("was seen in the last ten minutes: nothing was retired")
            && refused.err.ends_with("retire its handler in 10 min\n"),
        "{refused:?}"
    );
    let file = rusqlite::Connection::open(dir.path().join("webhooks.db")).unwrap();
    let wait = "UPDATE handlers SET seen = seen - 601000";
    file.execute(wait, []).unwrap();
    drop(file);
    let retired = inbox(&["retire", "chat-platform/", "--reason", "it moved"]);
    assert_eq!(retired.code, 0);
    assert!(
        retired.err.ends_with("retired: chat-platform/\n"),
        "{retired:?}"
    );
    let again = inbox(&["retire", "chat-platform/"]);
    assert_eq!(again.code, 1);
    assert!(again.err.contains("nothing was retired"), "{again:?}");
    assert_eq!(line(&["actions", "--json"])["reason"], "it moved");
}
