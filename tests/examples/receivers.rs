//! The receivers among the examples, and `receiver send`, as an operator sees them.

use std::collections::HashSet;
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tempfile::TempDir;
use tower_webhook::EventKind;
use tower_webhook::event::sample;

use support::postgres::PostgresServer;
use support::program::{Lingering, Program, Server, example, run, tool, until};
use support::redis::{Failing, RedisCluster, RedisServer, SentinelSet};

#[test]
fn every_event_is_printed_as_one_line() {
    let receiver = Server::receiver(&["--secret", "s"]);
    let archived = EventKind::from_static("chat-archived");
    let mut expected = String::new();

    for kind in EventKind::ALL.iter().chain([&archived]) {
        let sent = receiver.send("s", &["--event", kind.as_str(), "--key", kind.as_str()]);

        assert_eq!(sent.code, 0, "{sent:?}");
        assert!(sent.out.starts_with("#1 200 OK in "), "{sent:?}");
        let other = format!(r#"{{"id":"{kind}","type":"{kind}"}}"#);
        let payload = sample(kind).unwrap_or(&other);
        expected +=
            &format!(r#"{{"event":"{kind}","key":"{kind}","attempt":1,"payload":{payload}}}"#);
        expected += "\n";
    }
    assert_eq!(receiver.out(), expected);
    let closed = r#"delivery{route="chat-platform" kind="chat-closed" chat=c-7Kq2mXw9 key=chat-closed secret=0 attempt=1 outcome="handled" duration_ms="#;
    until("the line of a delivery in the log", || {
        receiver.err().contains(closed).then_some(())
    });
}

#[test]
fn printed_send_command_works_unchanged() {
    let receiver = Server::receiver(&["--demo", "--header-prefix", "acme"]);

    let printed = until("the command", || {
        let err = receiver.err();
        let (_, command) = err.split_once("send a first event with\n\n  ")?;
        command.split_once('\n').map(|(args, _)| args.to_owned())
    });
    tool("sh", &["-c", &printed]);
    let args: Vec<&str> = printed.split(' ').collect();
    assert_eq!(receiver.out().lines().count(), 1);
    let secret = args[args.iter().position(|arg| *arg == "--secret").unwrap() + 1];
    assert_eq!(secret, "the-public-demo-secret");
    let unbranded = receiver.send(secret, &[]);
    assert_eq!(unbranded.code, 1, "{unbranded:?}");
}

/// Spec 6, rule 5: a test request by hand, which has no key.
#[test]
fn request_of_curl_is_printed_minified_and_otherwise_unchanged() {
    let receiver = Server::receiver(&["--secret", "one", "--secret", "the second"]);
    let body = "{\r\n\t\"z\" : 1.50, \"a\":[1e2 , -0.0,\n12345678901234567890123],\
                \"text\": \"\\\" two  spaces: \\\\\", \"emoji\":\"🧾 \\ud83e\\uddfe \\ud83d\" , \"a\":{ }} ";

    assert_eq!(by_hand(&receiver.url, "one", body).0, 200);
    assert_eq!(by_hand(&receiver.url, "the second", body).0, 200);

    let line = "{\"event\":\"chat-rated\",\"payload\":{\"z\":1.50,\"a\":[1e2,-0.0,12345678901234567890123],\
                \"text\":\"\\\" two  spaces: \\\\\",\"emoji\":\"🧾 \\ud83e\\uddfe \\ud83d\",\"a\":{}}}\n";
    assert_eq!(receiver.out(), line.repeat(2));

    let (status, problem) = by_hand(&receiver.url, "another", body);
    assert_eq!(status, 401);
    assert!(problem.contains(r#""title":"Unauthorized""#), "{problem}");
    assert_eq!(by_hand(&receiver.url, "one", "[]").0, 422);
    assert_eq!(receiver.out(), line.repeat(2));
}

#[test]
fn send_reads_a_body_from_a_file_or_stdin() {
    let receiver = Server::receiver(&["--secret", "s"]);
    let file = receiver.file("body", r#"{"from" : "file"}"#);
    let mut piped = example("receiver");
    piped
        .args([
            "send",
            "--url",
            &receiver.url,
            "--secret",
            "s",
            "--no-key",
            "--body",
            "-",
        ])
        .stdin(File::open(&file).unwrap());

    let from_file = receiver.send("s", &["--no-key", "--body", &file]);
    let from_stdin = Program::start(&mut piped).finish();

    assert_eq!((from_file.code, from_stdin.code), (0, 0));
    let line = "{\"event\":\"chat-rated\",\"payload\":{\"from\":\"file\"}}\n";
    assert_eq!(receiver.out(), line.repeat(2));
}

#[test]
fn duplicates_are_replayed() {
    let receiver = Server::receiver(&["--secret", "s"]);

    let sent = receiver.send("s", &["--key", "k", "--count", "3"]);

    assert_eq!(sent.code, 0, "{sent:?}");
    assert!(sent.out.contains("1 200 OK\n"), "{sent:?}");
    assert!(
        sent.out
            .contains("2 200 OK: it had been accepted or handled before\n"),
        "{sent:?}"
    );
    assert_eq!(receiver.out().lines().count(), 1);
}

#[test]
fn send_uses_one_key_per_delivery_and_prints_a_summary() {
    let receiver = Server::receiver(&["--secret", "s"]);

    let sent = receiver.send("s", &["--count", "50", "--concurrency", "8"]);

    assert_eq!(sent.code, 0, "{sent:?}");
    assert!(sent.out.contains("\n       50 200 OK\n"), "{sent:?}");
    assert!(sent.out.contains("\nlatency: min "), "{sent:?}");
    assert_eq!(sent.out.matches('#').count(), 20);
    assert_eq!(receiver.out().lines().collect::<HashSet<_>>().len(), 50);

    let verbose = receiver.send("s", &["--count", "50", "-v"]);
    assert_eq!(verbose.out.matches('#').count(), 50);
}

#[test]
fn send_fails_when_a_delivery_is_refused() {
    let receiver = Server::receiver(&["--secret", "s", "--max-body", "100"]);
    let small = &receiver.file("body", "{}");

    let tampered = receiver.send("s", &["--body", small, "--tamper"]);
    let too_large = receiver.send("s", &[]);
    let mixed = receiver.send("s", &["--body", small, "--count", "3", "--tamper"]);
    let nobody = run(
        "receiver",
        &["send", "--secret", "s", "--url", "http://127.0.0.1:1/"],
    );

    assert_eq!(tampered.code, 1, "{tampered:?}");
    assert!(tampered.out.contains("401 Unauthorized"), "{tampered:?}");
    assert!(tampered.out.contains("does not prove"), "{tampered:?}");
    assert_eq!(too_large.code, 1, "{too_large:?}");
    assert!(
        too_large.out.contains("413 Payload Too Large"),
        "{too_large:?}"
    );
    assert_eq!(mixed.code, 1, "{mixed:?}");
    assert!(mixed.out.contains("3 401 Unauthorized: "), "{mixed:?}");
    assert_eq!(nobody.code, 1, "{nobody:?}");
    assert!(nobody.out.contains("Connection refused"), "{nobody:?}");
    assert_eq!(receiver.out(), "");
    assert_eq!(receiver.send("s", &["--body", small]).code, 0);
}

#[test]
fn unknown_kind_is_sent_with_a_warning() {
    let receiver = Server::receiver(&["--secret", "s"]);
    let body = receiver.file("body", "{}");

    for args in [
        &["--event", "chat-ratted"][..],
        &["--event", "chat-ratted", "--body", &body],
    ] {
        let sent = receiver.send("s", args);

        assert_eq!(sent.code, 0, "{sent:?}");
        let warning = "warning: the platform has no event type `chat-ratted`";
        assert!(sent.err.contains(warning), "{sent:?}");
        assert!(sent.err.contains("chat-rated"), "{sent:?}");
    }
    let sent = receiver.send("s", &["--event", "chat-rated", "--body", &body]);
    assert_eq!(sent.err, "");
}

#[test]
fn secrets_are_read_from_the_environment() {
    let receiver = Server::start_by(example("receiver").env("WEBHOOK_SECRET", "from env"));
    let mut send = example("receiver");
    send.args(["send", "--url", &receiver.url])
        .env("WEBHOOK_SECRET", "from env");

    assert_eq!(Program::start(&mut send).finish().code, 0);
    assert_eq!(receiver.send("another", &[]).code, 1);
}

#[test]
fn sighup_rotates_the_secrets() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("secrets");
    fs::write(&file, "old\n").unwrap();
    let receiver = Server::receiver(&["--secret-file", file.to_str().unwrap()]);
    let accepts = |secret| receiver.send(secret, &[]).code == 0;
    assert!(accepts("old") && !accepts("new"));

    fs::write(&file, "old\nnew\n").unwrap();
    receiver.signal(Signal::SIGHUP);
    until("the new secret", || accepts("new").then_some(()));
    assert!(accepts("old"));

    let reloaded = until("what was reloaded, in the log", || {
        let err = receiver.err();
        let line = err.lines().find(|line| line.contains("were reloaded"))?;
        Some(line.to_owned())
    });
    assert!(reloaded.contains("secrets=2 labels=\""), "{reloaded}");
    assert!(reloaded.contains(file.to_str().unwrap()), "{reloaded}");

    fs::write(&file, "new\n").unwrap();
    receiver.signal(Signal::SIGHUP);
    until("the end of the old secret", || {
        (!accepts("old")).then_some(())
    });
    assert!(accepts("new"));

    // In the log, each secret has a label that does not depend on its line.
    let err = receiver.err();
    let labels: HashSet<_> = err
        .split(" secret=")
        .skip(1)
        .map(|rest| rest.split(' ').next())
        .collect();
    assert_eq!(labels.len(), 2, "{err}");

    fs::remove_file(&file).unwrap();
    receiver.signal(Signal::SIGHUP);
    let err = until("the failure in the log", || {
        let err = receiver.err();
        err.contains("the secrets could not be reloaded and are unchanged")
            .then_some(err)
    });
    assert!(err.contains("No such file"), "{err}");
    assert!(accepts("new") && !accepts("old"));
}

/// A directory as Kubernetes mounts a secret: a file leads through `..data` to one of a directory that is replaced as a
/// whole, and every user of the container may read it.
#[test]
fn a_secret_of_kubernetes_is_read_again_when_it_changes() {
    let dir = TempDir::new().unwrap();
    let write = |version: &str, text: &str| {
        let files = dir.path().join(version);
        fs::create_dir(&files).unwrap();
        fs::write(files.join("secret"), text).unwrap();
        let mode = Permissions::from_mode(0o644);
        fs::set_permissions(files.join("secret"), mode).unwrap();
        symlink(version, dir.path().join("..data_tmp")).unwrap();
        fs::rename(dir.path().join("..data_tmp"), dir.path().join("..data")).unwrap();
    };
    write("..2026_11_28_22_00_00.1", "old\n");
    let file = dir.path().join("secret");
    symlink("..data/secret", &file).unwrap();
    let receiver = Server::receiver(&["--secret-file", file.to_str().unwrap()]);
    let accepts = |secret| receiver.send(secret, &[]).code == 0;
    assert!(accepts("old") && !accepts("new"));

    write("..2026_11_28_22_00_00.2", "new\n");
    fs::remove_dir_all(dir.path().join("..2026_11_28_22_00_00.1")).unwrap();
    until("the new secret", || accepts("new").then_some(()));
    assert!(!accepts("old"));

    // A secret that is lost is not replaced by nothing.
    write("..2026_11_28_22_00_00.3", "");
    let err = until("the failure in the log", || {
        let err = receiver.err();
        err.contains("there is no secret in it").then_some(err)
    });
    assert!(accepts("new"));
    assert!(!err.contains("other users may read"), "{err}");
    assert_eq!(err.matches("were reloaded").count(), 1, "{err}");
}

#[test]
fn exec_command_reads_the_line_and_does_not_write_to_stdout() {
    let dir = TempDir::new().unwrap();
    let got = dir.path().join("got");
    let command = format!(
        "cat > '{}'; echo noise; echo $WEBHOOK_SECRET$WEBHOOK_STORE.",
        got.display()
    );
    let mut with_secret = example("receiver");
    with_secret
        .env("WEBHOOK_SECRET", "s")
        .env("WEBHOOK_STORE", "memory");
    let receiver = Server::start_by(with_secret.args(["--exec", &command]));

    let sent = receiver.send("s", &["--key", "k"]);

    assert_eq!(sent.code, 0, "{sent:?}");
    let out = receiver.out();
    assert!(
        out.starts_with(r#"{"event":"chat-rated","key":"k","attempt":1,"#),
        "{out}"
    );
    assert!(!out.contains("noise"), "{out}");
    assert_eq!(fs::read_to_string(got).unwrap(), out);
    let err = receiver.err();
    assert!(err.contains("noise\n.\n"), "{err}");
}

#[test]
fn failed_command_fails_the_event() {
    let dir = TempDir::new().unwrap();
    let flag = dir.path().join("flag");
    let command = format!("test -e '{}' || exit 7", flag.display());
    let receiver = Server::receiver(&["--secret", "s", "--exec", &command]);

    let failed = receiver.send("s", &["--key", "k"]);
    assert_eq!(failed.code, 1, "{failed:?}");
    assert!(
        failed.out.contains("500 Internal Server Error"),
        "{failed:?}"
    );
    assert_eq!(receiver.out(), "");
    assert!(
        receiver.err().contains("exit status: 7"),
        "{}",
        receiver.err()
    );

    File::create(flag).unwrap();
    let handled = receiver.send("s", &["--key", "k"]);
    assert_eq!(handled.code, 0, "{handled:?}");
    let out = receiver.out();
    assert!(out.contains(r#""key":"k","attempt":2,"#), "{out}");
}

#[test]
fn command_may_ignore_its_input() {
    let receiver = Server::receiver(&["--secret", "s", "--exec", "exit 0"]);
    // More than a pipe holds.
    let body = format!(r#"{{"text":"{}"}}"#, "x".repeat(500_000));
    let body = receiver.file("body", &body);

    let sent = receiver.send("s", &["--body", &body]);

    assert_eq!(sent.code, 0, "{sent:?}");
    assert!(receiver.out().len() > 500_000);
}

#[test]
fn slow_command_is_killed_with_its_children() {
    let lingering = Lingering::new();
    let command = lingering.command();
    let receiver = Server::receiver(&[
        "--secret",
        "s",
        "--handler-timeout",
        "3",
        "--exec",
        &command,
    ]);

    let sending = receiver.start_send("s", &[]);
    let pid = lingering.pid();
    let sent = sending.finish();

    assert_eq!(sent.code, 1, "{sent:?}");
    assert!(sent.out.contains("503 Service Unavailable"), "{sent:?}");
    until("the child's end", || {
        (!Lingering::is_running(&pid)).then_some(())
    });
    assert_eq!(receiver.out(), "");
}

#[test]
fn nothing_runs_after_the_shutdown_deadline() {
    for stop in [&[Signal::SIGTERM][..], &[Signal::SIGINT, Signal::SIGINT]] {
        let lingering = Lingering::new();
        // The second signal does not wait for the deadline.
        let grace = if stop.len() == 1 { "1" } else { "600" };
        let command = lingering.command();
        let receiver = Server::receiver(&["--secret", "s", "--grace", grace, "--exec", &command]);
        let sending = receiver.start_send("s", &[]);
        let pid = lingering.pid();

        for signal in stop {
            receiver.signal(*signal);
            until("the end of listening", || {
                receiver.connect().is_none().then_some(())
            });
        }
        let ended = receiver.program.finish();

        assert_eq!(ended.code, 0, "{ended:?}");
        assert_eq!(ended.out, "");
        assert_eq!(sending.finish().code, 1);
        until("the child's end", || {
            (!Lingering::is_running(&pid)).then_some(())
        });
    }
}

/// A receiver whose command has started, and finishes when [`go`](Self::go) is called.
struct Paused {
    receiver: Server,
    sending: Program,
    dir: TempDir,
}

impl Paused {
    fn start() -> Self {
        let dir = TempDir::new().unwrap();
        let path = dir.path().display();
        // It ends with its test as well.
        let command = format!(
            "touch '{path}/started'; while test -d '{path}' && ! test -e '{path}/go'; do sleep 0.02; done"
        );
        let receiver = Server::receiver(&["--secret", "s", "--exec", &command]);
        let sending = receiver.start_send("s", &["--key", "k"]);
        until("the command", || {
            dir.path().join("started").exists().then_some(())
        });
        Self {
            receiver,
            sending,
            dir,
        }
    }

    fn go(&self) {
        File::create(self.dir.path().join("go")).unwrap();
    }
}

#[test]
fn shutdown_waits_for_events_in_progress() {
    let paused = Paused::start();
    assert!(paused.receiver.connect().is_some());

    paused.receiver.signal(Signal::SIGTERM);
    until("the end of listening", || {
        paused.receiver.connect().is_none().then_some(())
    });
    paused.go();

    let (sent, ended) = (paused.sending.finish(), paused.receiver.program.finish());
    assert_eq!(sent.code, 0, "{sent:?}");
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(ended.out.lines().count(), 1);
}

#[test]
fn shutdown_waits_for_detached_runs() {
    let mut paused = Paused::start();
    paused.sending.child.kill().unwrap();
    paused.sending.child.wait().unwrap();

    paused.receiver.signal(Signal::SIGTERM);
    until("the end of listening", || {
        paused.receiver.connect().is_none().then_some(())
    });
    paused.go();

    let ended = paused.receiver.program.finish();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(ended.out.lines().count(), 1);
}

#[test]
fn closed_stdout_fails_the_event() {
    let mut command = example("receiver");
    command
        .args(["--secret", "s", "--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped());
    let mut program = Program::spawn(&mut command, TempDir::new().unwrap());
    drop(program.child.stdout.take());
    let receiver = Server::listening(program);

    let sent = receiver.send("s", &[]);

    assert_eq!(sent.code, 1, "{sent:?}");
    assert!(sent.out.contains("500 Internal Server Error"), "{sent:?}");
    assert!(receiver.err().contains("Broken pipe"), "{}", receiver.err());
}

/// A file that may not grow simulates a full disk. The log meets the same limit, which must not
/// harm anything.
#[test]
fn partial_line_does_not_corrupt_the_next() {
    let mut command = Command::new("sh");
    command
        .args(["-c", r#"trap "" XFSZ; ulimit -f 1; exec "$0" "$@""#])
        .arg(example("receiver").get_program())
        .args(["--secret", "s"]);
    let receiver = Server::start_by(&mut command);
    let large = receiver.file("body", &format!(r#"{{"text":"{}"}}"#, "x".repeat(5000)));

    let torn = receiver.send("s", &["--key", "k", "--body", &large]);
    assert_eq!(torn.code, 1, "{torn:?}");
    assert!(!receiver.out().is_empty() && !receiver.out().contains('\n'));

    receiver.file("out", "");
    let small = receiver.file("body", "{}");
    let sent = receiver.send("s", &["--key", "k", "--body", &small]);

    assert_eq!(sent.code, 0, "{sent:?}");
    let line = r#"{"event":"chat-rated","key":"k","attempt":2,"payload":{}}"#;
    assert_eq!(receiver.out(), format!("\n{line}\n"));
}

#[test]
fn port_in_use_is_reported() {
    let receiver = Server::receiver(&["--secret", "s"]);
    let address = receiver.address();

    for name in ["receiver", "hyper", "extractor"] {
        let second = run(name, &["--secret", "s", "--listen", address]);

        assert_eq!(second.code, 1, "{second:?}");
        assert!(
            second.err.contains(&format!("cannot listen on {address}")),
            "{second:?}"
        );
        assert!(second.err.contains("already in use"), "{second:?}");
    }
}

#[test]
fn health_check_responds() {
    let receiver = Server::receiver(&["--demo", "--path", "/a/b"]);
    assert!(receiver.url.ends_with("/a/b"));

    let health = format!("http://{}/healthz", receiver.address());
    assert_eq!(tool("curl", &["-sS", "-w", "%{http_code}", &health]), "200");
}

#[test]
fn unsigned_deliveries_are_accepted_only_on_demand() {
    let unsigned = Server::receiver(&["--dangerously-unsigned"]);
    let body = r#"{"id":"1"}"#;
    #[rustfmt::skip]
    let post = |url: &str| tool("curl", &[
        "-sS", "--max-time", "30", "-o", "/dev/null", "-w", "%{http_code}", url,
        "-H", "Content-Type: application/json", "-H", "X-Service-Event: chat-rated", "--data-binary", body,
    ]);

    assert_eq!(post(&unsigned.url), "200");
    assert_eq!(
        unsigned.out(),
        "{\"event\":\"chat-rated\",\"payload\":{\"id\":\"1\"}}\n"
    );
    let err = unsigned.err();
    assert!(err.contains("deliveries are not verified"), "{err}");
    assert_eq!(post(&Server::receiver(&["--secret", "s"]).url), "401");
}

#[test]
fn captured_body_is_refused_under_another_key_on_demand() {
    let dir = TempDir::new().unwrap();
    for (number, place) in ["--store", "--inbox"].into_iter().enumerate() {
        for (is_guarded, answer) in [(false, "200 OK"), (true, "422 Unprocessable Entity")] {
            let file = dir.path().join(format!("{number}-{is_guarded}.db"));
            let file = format!("sqlite:{}", file.display());
            let args = ["--secret", "s", place, &file, "--replay-guard"];
            let receiver = Server::receiver(&args[..4 + usize::from(is_guarded)]);
            let first = receiver.send("s", &["--key", "a"]);
            assert!(first.out.contains("200 OK"), "{place}: {first:?}");
            let again = receiver.send("s", &["--key", "b"]);
            assert!(again.out.contains(answer), "{place}: {again:?}");
        }
    }
}

#[test]
fn keys_without_a_body_of_their_own_are_refused_on_demand() {
    let receiver = Server::receiver(&["--secret", "s", "--reject-changed-bodies", "--require-key"]);
    let other = receiver.file("body", r#"{"id":"other"}"#);
    assert_eq!(receiver.send("s", &["--key", "a"]).code, 0);
    let changed = receiver.send("s", &["--key", "a", "--body", &other]);
    assert!(changed.out.contains("422 Unpro"), "{changed:?}");
    let keyless = receiver.send("s", &["--no-key"]);
    assert!(keyless.out.contains("400 Bad Request"), "{keyless:?}");
}

#[test]
fn memory_store_is_empty_after_a_restart() {
    let args = ["--secret", "s", "--store", "memory"];
    for _ in 0..2 {
        let receiver = Server::receiver(&args);
        let sent = receiver.send("s", &["--key", "k"]);
        assert_eq!(sent.code, 0, "{sent:?}");
        assert_eq!(receiver.out().lines().count(), 1);
    }
}

#[test]
fn sqlite_store_outlives_a_killed_receiver() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("webhooks.db");
    remembers(&format!("sqlite:{}", file.display()));
    remembers(&format!("sqlite://{}", file.display()));
    assert!(file.exists());
}

#[test]
fn redis_store_outlives_a_killed_receiver() {
    remembers(&RedisServer::start().url());
    remembers(&RedisCluster::start().url());
    remembers(&SentinelSet::start().url());
}

#[test]
fn postgres_store_outlives_a_killed_receiver() {
    let server = PostgresServer::start();
    remembers(&server.url());
    remembers(&server.url().replace("postgres://", "postgresql://"));
}

/// Asserts that an event is handled once by two receivers, the first of which is killed.
fn remembers(store: &str) {
    let key = hex::encode(getrandom::u64().unwrap().to_be_bytes());
    let start = || {
        Server::start_by(
            example("receiver")
                .args(["--secret", "s"])
                .env("WEBHOOK_STORE", store),
        )
    };

    let first = start();
    let sent = first.send("s", &["--key", &key]);
    assert_eq!(sent.code, 0, "{sent:?}");
    assert!(!sent.out.contains("handled before"), "{sent:?}");
    assert_eq!(first.out().lines().count(), 1);
    drop(first);

    let second = start();
    let sent = second.send("s", &["--key", &key]);
    assert_eq!(sent.code, 0, "{sent:?}");
    assert!(
        sent.out.contains("it had been accepted or handled before"),
        "{sent:?}"
    );
    assert_eq!(second.out(), "");
    assert!(!second.err().contains(store), "{}", second.err());
}

#[test]
fn receivers_of_other_names_do_not_share_keys() {
    let dir = TempDir::new().unwrap();
    let store = format!("sqlite:{}", dir.path().join("webhooks.db").display());
    let start =
        |name: &[&str]| Server::receiver(&[&["--secret", "s", "--store", &store], name].concat());

    for name in [&[][..], &["--name", "a"], &["--name", "b"]] {
        let first = start(name);
        let sent = first.send("s", &["--key", "k"]);
        assert!(!sent.out.contains("handled before"), "{sent:?}");
        assert_eq!(first.out().lines().count(), 1);

        let second = start(name);
        let sent = second.send("s", &["--key", "k"]);
        assert!(sent.out.contains("handled before"), "{sent:?}");
        assert_eq!(second.out(), "");
    }
}

#[test]
fn key_of_a_killed_receiver_is_free_when_its_lease_expires() {
    let dir = TempDir::new().unwrap();
    let store = format!("sqlite:{}", dir.path().join("webhooks.db").display());
    let args = ["--secret", "s", "--store", &store, "--lease", "2"];
    let started = dir.path().join("started");
    // It ends with its test as well.
    let hangs = format!(
        "touch '{}'; while test -d '{}'; do sleep 0.02; done",
        started.display(),
        dir.path().display()
    );
    let first = Server::receiver(&[&args[..], &["--exec", &hangs]].concat());
    let sending = first.start_send("s", &["--key", "k"]);
    until("the command", || started.exists().then_some(()));
    drop(first);
    let died = Instant::now();
    assert_eq!(sending.finish().code, 1);

    let second = Server::receiver(&args);
    until("the end of the lease", || {
        let sent = second.send("s", &["--key", "k"]);
        let refused = sent.out.contains("409 Conflict");
        assert!(refused || sent.code == 0, "{sent:?}");
        (!refused).then_some(())
    });
    assert!(died.elapsed() < Duration::from_secs(10));
    assert!(second.out().contains(r#""attempt":2,"#), "{}", second.out());
}

#[test]
fn unusable_store_is_explained() {
    let redis = RedisServer::start_with(&["--maxmemory-policy", "allkeys-lru"]);
    let locked = RedisServer::start_with(&["--requirepass", "sesame"]);
    let postgres = PostgresServer::start();
    #[rustfmt::skip]
    let cases = [
        ("sqlite:/nowhere/webhooks.db".to_owned(), "its directory must exist"),
        ("sqlite:/dev".to_owned(), "the SQLite file `/dev` "),
        ("redis://:hush@127.0.0.1:1".to_owned(), "the Redis server at 127.0.0.1:1 cannot be reached"),
        (redis.url(), "set it to `noeviction`"),
        (locked.url().replace("://", "://:hush@"), "does not accept the user or password"),
        ("postgres://u:hush@127.0.0.1:1/db".to_owned(), "the database at 127.0.0.1:1 cannot be used: check that the server is running"),
        (postgres.url_of("absent"), r#"database "absent" does not exist"#),
        (postgres.url().replace("postgres@", "nobody:hush@"), r#"role "nobody" does not exist"#),
        (postgres.url() + "?sslmode=require", "`cargo run -p tower-webhook-receiver --features postgres,sqlx/tls-rustls"),
    ];
    for (store, reason) in cases {
        let mut command = example("receiver");
        command.arg("--demo").env("WEBHOOK_STORE", &store);
        let ended = Program::start(&mut command).finish();

        assert_eq!(ended.code, 1, "{store}: {ended:?}");
        assert!(ended.err.starts_with("error: "), "{store}: {ended:?}");
        assert!(ended.err.contains(reason), "{store}: {ended:?}");
        assert!(!ended.err.contains("hush"), "{store}: {ended:?}");
        assert_eq!(ended.out, "", "{store}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_of_a_database_that_do_not_fit_are_named() {
    let postgres = PostgresServer::start();
    let pool = sqlx::PgPool::connect(&postgres.url()).await.unwrap();
    for sql in [
        "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0",
        "CREATE ROLE hasty LOGIN SUPERUSER",
        "ALTER ROLE hasty SET statement_timeout = '10ms'",
        "CREATE ROLE reader LOGIN SUPERUSER",
        "ALTER ROLE reader SET default_transaction_read_only = on",
        "CREATE ROLE guest LOGIN",
    ] {
        sqlx::query(sql).execute(&pool).await.unwrap();
    }
    let by = |user: &str| postgres.url().replace("postgres@", &format!("{user}@"));
    for (store, reasons) in [
        (
            postgres.url_of("latin"),
            ["`latin`", "the encoding", "ENCODING 'UTF8'"],
        ),
        (
            by("hasty"),
            ["`postgres`", "`statement_timeout`", "ALTER ROLE"],
        ),
        (
            by("reader"),
            [
                "`postgres`",
                "takes no writes",
                "`default_transaction_read_only`",
            ],
        ),
        (by("guest"), ["`postgres`", "lacks rights", "grant them"]),
    ] {
        let ended = run(
            "receiver",
            &[
                "check",
                "--demo",
                "--listen",
                "127.0.0.1:0",
                "--inbox",
                &store,
            ],
        );
        assert_eq!(ended.code, 1, "{ended:?}");
        for reason in reasons {
            assert!(ended.err.contains(reason), "{reason}: {ended:?}");
        }
        // The server runs, and the user and the database exist.
        assert!(!ended.err.contains("check that"), "{ended:?}");
    }
}

#[test]
fn store_errors_hide_passwords() {
    for store in [
        "mysql://root:hush@127.0.0.1/db",
        "redis://:hush@127.0.0.1:port",
        "rediss://:hush@127.0.0.1",
        "postgres://u:hush@127.0.0.1:port/db",
        "postgres://u:hush@127.0.0.1/db?sslmode=no",
        "hush",
    ] {
        let ended = Program::start(example("receiver").env("WEBHOOK_STORE", store)).finish();

        assert_eq!(ended.code, 2, "{store}: {ended:?}");
        assert!(!ended.err.contains("hush"), "{store}: {ended:?}");
    }
}

#[test]
fn hyper_example_accepts_signed_deliveries() {
    let hyper = Server::start_by(example("hyper").args(["--secret", "s"]));

    assert_eq!(hyper.send("s", &[]).code, 0);
    assert_eq!(hyper.send("s", &["--event", "message-created"]).code, 0);
    assert_eq!(hyper.send("another", &[]).code, 1);

    let out = hyper.out();
    assert!(out.contains("was rated Some(1.0)\n"), "{out}");
    assert!(out.contains("Here is the receipt"), "{out}");
    assert_eq!(out.lines().count(), 2);

    hyper.signal(Signal::SIGINT);
    assert_eq!(hyper.program.finish().code, 0);
}

#[test]
fn extractor_example_accepts_signed_deliveries() {
    let mut command = example("extractor");
    let extractor = Server::start_by(command.args(["--secret", "s"]).env("NO_COLOR", "1"));
    let send = |path, secret, event| extractor.send_to(path, secret, &["--event", event]).code;

    assert_eq!(send("/chat-rated", "s", "chat-rated"), 0);
    assert_eq!(send("/message-created", "s", "message-created"), 0);
    assert_eq!(send("/any", "s", "chat-opened"), 0);
    assert_eq!(send("/chat-rated", "another", "chat-rated"), 1);
    // Of another kind, so the URL is wrong.
    assert_eq!(send("/chat-rated", "s", "chat-opened"), 1);

    let out = extractor.out();
    assert!(out.contains("was rated Some(1.0)\n"), "{out}");
    assert!(out.contains("Here is the receipt"), "{out}");
    assert!(out.contains("chat-opened: "), "{out}");
    assert_eq!(out.lines().count(), 3);

    let curl = |path| {
        let url = format!("http://{}{path}", extractor.address());
        tool("curl", &["-sS", "-i", &url])
    };
    assert!(curl("/").starts_with("HTTP/1.1 200"));
    assert!(curl("/nowhere").starts_with("HTTP/1.1 404"));
    let refused = curl("/chat-rated");
    assert!(refused.starts_with("HTTP/1.1 405"), "{refused}");
    let id = refused
        .lines()
        .find_map(|it| it.strip_prefix("x-request-id: "));
    let field = format!("request_id={}", id.unwrap());
    let err = extractor.program.err();
    let line = err.lines().find(|line| line.contains(&field)).unwrap();
    assert!(
        line.contains(" request{method=GET uri=/chat-rated "),
        "{line}"
    );

    extractor.signal(Signal::SIGINT);
    assert_eq!(extractor.program.finish().code, 0);
}

#[test]
fn every_example_that_serves_ends_well_on_sigterm() {
    let server = PostgresServer::start();
    let url = server.url();
    let secrets = ["WEBHOOK_SECRET", "GITHUB_SECRET", "STRIPE_SECRET"];
    for name in [
        "receiver",
        "hyper",
        "extractor",
        "otlp",
        "postgres",
        "sandbox",
        "senders",
    ] {
        let dir = TempDir::new().unwrap();
        let mut command = example(name);
        command.current_dir(&dir);
        command.envs(secrets.map(|name| (name, "s")));
        command.env("DATABASE_URL", &url);
        let example = Server::start_by(&mut command);
        // It says that it listens before it waits for signals.
        tool("curl", &["-sS", &example.url]);
        let idle = example.connect().unwrap();
        example.signal(Signal::SIGTERM);
        let ended = example.program.finish();
        assert_eq!(ended.code, 0, "{name}: {ended:?}");
        drop(idle);
    }
}

/// Signs with openssl and sends with curl. Tells the status and the body of the answer.
fn by_hand(url: &str, secret: &str, body: &str) -> (u16, String) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(body.as_bytes()).unwrap();
    let file = file.path().to_str().unwrap();

    let digest = tool("openssl", &["dgst", "-sha256", "-hmac", secret, file]);
    let signature = digest.split_whitespace().last().unwrap();
    #[rustfmt::skip]
    let answer = tool("curl", &[
        "-sS", "--max-time", "30", "-w", "\n%{http_code}", url,
        "-H", "Content-Type: application/json",
        "-H", "X-Service-Event: chat-rated",
        "-H", &format!("X-Service-Hmac-Sha256: {signature}"),
        "--data-binary", &format!("@{file}"),
    ]);
    let (body, status) = answer.rsplit_once('\n').unwrap();
    (status.parse().unwrap(), body.to_owned())
}
