//! `receiver run --learn-secret`: a secret that the sender brings is appended to the file, once.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::TempDir;

use support::program::{Server, curl, run};

const BROUGHT: &str = "b2dbb8f4a7c1e9d05f6a";
const OTHER: &str = "0011223344556677";

struct Learning {
    dir: TempDir,
}

impl Learning {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        Self { dir }
    }

    fn file(&self) -> String {
        self.dir.path().join("secrets").to_str().unwrap().to_owned()
    }

    fn receiver(&self, sender: &str, options: &[&str]) -> Server {
        let file = self.file();
        let own = ["--sender", sender, "--secret-file", &file];
        Server::receiver(&[&own, options].concat())
    }
}

/// The status line and the headers of a handshake's answer.
fn bring(receiver: &Server, headers: &[&str], body: &str) -> String {
    let mut args = vec![
        "-s",
        "-i",
        "-H",
        "content-type: application/json",
        "--data-binary",
        body,
    ];
    for header in headers {
        args.extend(["-H", header]);
    }
    args.push(&receiver.url);
    curl(&args)
}

fn secrets(file: &str) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap();
    assert!(text.ends_with('\n') || text.is_empty(), "{text:?}");
    text.lines().map(str::to_owned).collect()
}

#[test]
fn the_first_secret_of_asana_is_learned_and_the_next_is_refused() {
    let learning = Learning::new();
    let file = learning.file();
    let receiver = learning.receiver("asana", &["--learn-secret"]);
    assert_eq!(
        fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert!(secrets(&file).is_empty());

    // Nobody knows the secret that is there before.
    let early = receiver.send("none", &["--sender", "asana", "--event", "task.changed"]);
    assert_eq!(early.code, 1, "{early:?}");

    let header = format!("x-hook-secret: {BROUGHT}");
    let answer = bring(&receiver, &[&header], "{}");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains(&format!("\r\n{header}\r\n")), "{answer}");
    assert_eq!(secrets(&file), [BROUGHT]);
    // At once, as Asana sends a first delivery.
    let sent = receiver.send(BROUGHT, &["--sender", "asana", "--event", "task.changed"]);
    assert_eq!(sent.code, 0, "{sent:?}");

    for secret in [BROUGHT, OTHER] {
        let header = format!("x-hook-secret: {secret}");
        let answer = bring(&receiver, &[&header], "{}");
        assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{answer}");
    }
    assert_eq!(secrets(&file), [BROUGHT]);
    let log = receiver.err();
    for text in [
        "leave out `--learn-secret` once one was learned",
        "a secret was learned: leave out `--learn-secret` from now on",
        "brought another secret, which was refused",
    ] {
        assert!(log.contains(text), "{log}");
    }
    assert!(!log.contains(BROUGHT) && !log.contains(OTHER), "{log}");
    assert_eq!(receiver.stop(), 0);

    // The next webhook of Asana has a secret of its own: the operator asks again. The line before has no end.
    fs::write(&file, BROUGHT).unwrap();
    let receiver = learning.receiver("asana", &["--learn-secret"]);
    let header = format!("x-hook-secret: {OTHER}");
    let answer = bring(&receiver, &[&header], "{}");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert_eq!(secrets(&file), [BROUGHT, OTHER]);
    for secret in [BROUGHT, OTHER] {
        let sent = receiver.send(secret, &["--sender", "asana", "--event", "task.changed"]);
        assert_eq!(sent.code, 0, "{sent:?}");
    }
    assert_eq!(receiver.stop(), 0);

    // Nobody asks.
    let receiver = learning.receiver("asana", &[]);
    let answer = bring(&receiver, &["x-hook-secret: a"], "{}");
    assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{answer}");
    assert!(
        receiver.err().contains("nobody asks for one"),
        "{}",
        receiver.err()
    );
    assert_eq!(secrets(&file), [BROUGHT, OTHER]);
}

#[test]
fn the_verification_token_of_notion_is_learned() {
    let learning = Learning::new();
    let receiver = learning.receiver("notion", &["--learn-secret"]);
    let body = format!(r#"{{"verification_token":"{BROUGHT}"}}"#);
    // What brings none is refused, and nothing is learned by it.
    for body in [
        r#"{"verification_token":"a b"}"#,
        r#"{"id":"1","type":"page.created"}"#,
    ] {
        let answer = bring(&receiver, &[], body);
        assert!(answer.starts_with("HTTP/1.1 40"), "{answer}");
    }
    let answer = bring(&receiver, &[], &body);
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert_eq!(secrets(&learning.file()), [BROUGHT]);
    let sent = receiver.send(BROUGHT, &["--sender", "notion", "--event", "page.created"]);
    assert_eq!(sent.code, 0, "{sent:?}");
    let log = receiver.err();
    assert!(!log.contains(BROUGHT), "{log}");
}

#[test]
fn a_file_that_cannot_be_written_keeps_nothing() {
    let learning = Learning::new();
    let receiver = learning.receiver("asana", &["--learn-secret"]);
    // A directory in its place, since root may write everywhere.
    let file = learning.file();
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    let header = format!("x-hook-secret: {BROUGHT}");
    let answer = bring(&receiver, &[&header], "{}");
    assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{answer}");
    assert!(
        receiver.err().contains("could not be written"),
        "{}",
        receiver.err()
    );
    // It is still asked for.
    fs::remove_dir(&file).unwrap();
    let answer = bring(&receiver, &[&header], "{}");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert_eq!(secrets(&file), [BROUGHT]);
}

#[test]
fn what_cannot_be_learned_is_said_at_the_start() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("secrets");
    let file = file.to_str().unwrap();
    let nowhere = Path::new("/nowhere/secrets").to_str().unwrap();
    let listen = ["run", "--listen", "127.0.0.1:0"];
    for (args, code, reason) in [
        (
            &["--sender", "asana", "--learn-secret"][..],
            2,
            "--secret-file <FILE>",
        ),
        (
            &[
                "--sender",
                "github",
                "--learn-secret",
                "--secret-file",
                file,
            ],
            1,
            "it brings no secret in a handshake",
        ),
        (
            &[
                "--sender",
                "asana",
                "--learn-secret",
                "--secret-file",
                nowhere,
            ],
            2,
            "`/nowhere/secrets` cannot be read",
        ),
        (
            &["--config", "f", "--learn-secret", "--secret-file", file],
            2,
            "cannot be used with",
        ),
    ] {
        let ended = run("receiver", &[&listen, args].concat());
        assert_eq!(ended.code, code, "{args:?}: {ended:?}");
        assert!(ended.err.contains(reason), "{args:?}: {ended:?}");
    }
    // A run above has created it.
    fs::remove_file(file).unwrap();
    let checked = run(
        "receiver",
        &[
            "check",
            "--sender",
            "asana",
            "--learn-secret",
            "--secret-file",
            file,
            "--listen",
            "127.0.0.1:0",
        ],
    );
    assert_eq!(checked.code, 0, "{checked:?}");
    assert!(
        checked.out.contains("in the log as none yet"),
        "{checked:?}"
    );
    // A check leaves nothing behind.
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    let arguments = ["--sender", "asana", "--learn-secret", "--secret-file"];
    let nowhere = run(
        "receiver",
        &[&["check"], &arguments[..], &[nowhere]].concat(),
    );
    assert_eq!(nowhere.code, 2, "{nowhere:?}");
    fs::write(file, "a secret\n").unwrap();
    let checked = run(
        "receiver",
        &[
            &["check", "--listen", "127.0.0.1:0"],
            &arguments[..],
            &[file],
        ]
        .concat(),
    );
    assert_eq!(checked.code, 0, "{checked:?}");
    assert!(!checked.out.contains("none yet"), "{checked:?}");
    assert_eq!(fs::read_to_string(file).unwrap(), "a secret\n");
}
