//! The example of several senders in one application, and what the receiver says of senders.

use std::fs;

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tower_webhook::Sender;

use support::program::{Program, Server, curl, example, faketime, run, until};

/// GitHub waits for 10 seconds, and a handler may take 30.
#[test]
fn a_slow_handler_is_warned_of_once_and_not_with_an_inbox() {
    let dir = TempDir::new().unwrap();
    let inbox = format!("sqlite:{}", dir.path().join("webhooks.db").display());
    let fixed = ["--secret", "s", "--sender", "github", "--exec", "true"];
    for (more, count) in [(&[][..], 1), (&["--inbox", &inbox], 0)] {
        let receiver = Server::receiver(&[&fixed, more].concat());
        let warned = receiver
            .err()
            .matches("stops waiting before a slow handler")
            .count();
        assert_eq!(warned, count, "{more:?}: {}", receiver.err());
    }
}

#[test]
fn three_senders_share_a_database_and_a_console() {
    let dir = TempDir::new().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let mut command = example("senders");
    command
        .args(["--console", "127.0.0.1:0", "--database"])
        .arg(dir.path().join("webhooks.db"))
        .envs([
            ("WEBHOOK_SECRET", "one"),
            ("GITHUB_SECRET", "two"),
            ("STRIPE_SECRET", "three"),
        ]);
    let senders = Server::start_by(&mut command);
    let send = |path: &str, secret: &str, args: &[&str]| {
        let url = format!("http://{}{path}", senders.address());
        let to = ["send", "--url", &url, "--secret", secret];
        run("receiver", &[&to, args].concat())
    };
    let rated = file("rated.json", r#"{"id":"chat-1","rating":5}"#);
    let pushed = r#"{"ref":"refs/heads/main","repository":{"full_name":"octo/hello"}}"#;
    let pushed = file("pushed.json", pushed);
    let paid = r#"{"id":"key-1","type":"invoice.paid","data":{"object":{"customer":"cus_1","amount_paid":7}}}"#;
    let paid = file("paid.json", paid);
    #[rustfmt::skip]
    let deliveries: [(&str, &str, &[&str]); 3] = [
        ("/webhooks", "one", &["--event", "chat-rated", "--key", "key-1", "--body", &rated]),
        ("/github", "two", &["--sender", "github", "--event", "push", "--key", "key-1", "--body", &pushed]),
        ("/stripe", "three", &["--sender", "stripe", "--no-key", "--body", &paid]),
    ];
    // The same key of three senders is three events, and each of them is handled once.
    for (path, secret, args) in deliveries {
        let first = send(path, secret, args);
        assert_eq!(first.code, 0, "{first:?}");
        let again = send(path, secret, args);
        assert!(again.out.contains("handled before"), "{again:?}");
        for (_, other, _) in deliveries.iter().filter(|it| it.1 != secret) {
            assert_eq!(send(path, other, args).code, 1);
        }
    }
    let out = until("the events", || {
        let out = senders.out();
        (out.lines().count() == 3).then_some(out)
    });
    let mut lines: Vec<_> = out.lines().collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            "a chat was rated Some(5.0)",
            "cus_1 has paid 7",
            "refs/heads/main was pushed to octo/hello"
        ]
    );

    let err = senders.err();
    let (_, console) = err.split_once("console on ").unwrap();
    let console = console.split('\n').next().unwrap();
    let page = curl(&[&format!("{console}events?key=key-1")]);
    for kind in ["chat-rated", "push", "invoice.paid"] {
        assert!(page.contains(kind), "{kind}: {page}");
    }
    let page = curl(&[&format!("{console}events?chat=octo/hello")]);
    assert!(page.contains("push") && !page.contains("invoice.paid"));
    senders.signal(Signal::SIGTERM);
    assert_eq!(senders.program.finish().code, 0);
}

const TOML: &str = r#"
name = "acme"
key = "/id"
kind = ["/event/type", "/type"]
policy = { retry-for = 3600, disable-after = 20 }
[signature]
headers = ["x-acme-signature"]
split = ","
prefix = "v1="
algorithm = "hmac-sha256"
coding = "hex"
content = "{element t}.{body}"
timestamp = { at = "element t", unit = "seconds", past = 300, ahead = 300 }
[[challenge]]
when = { "?mode" = "subscribe" }
proof = "none"
answer = { raw = "?challenge" }
[[challenge]]
when = { "/type" = "ping" }
answer = { constant = { body = { type = 1 } } }
"#;

#[test]
fn a_delivery_that_stripes_library_has_signed_is_handled() {
    let recorded = include_str!("../fixtures/senders/stripe.json");
    let recorded: Value = serde_json::from_str(recorded).unwrap();
    let secret = recorded["secret"].as_str().unwrap();
    let mut command = example("receiver");
    command.args(["--sender", "stripe"]).envs([
        ("WEBHOOK_SECRET", secret),
        ("LD_PRELOAD", &faketime()),
        // That of the recording.
        ("FAKETIME", "@2026-09-21 14:13:20"),
        ("TZ", "UTC"),
        ("DONT_FAKE_MONOTONIC", "1"),
    ]);
    let receiver = Server::start_by(&mut command);
    let post = |case: &Value| {
        let mut args = vec![
            "-o".to_owned(),
            "-".into(),
            "-w".into(),
            "%{http_code}".into(),
        ];
        let own = case["headers"].as_object().unwrap().iter();
        let own = own.map(|(name, value)| format!("{name}: {}", value.as_str().unwrap()));
        for header in own.chain(["content-type: application/json".into()]) {
            args.extend(["-H".into(), header]);
        }
        args.extend([
            "--data-binary".into(),
            case["body"].as_str().unwrap().into(),
        ]);
        args.push(receiver.url.clone());
        curl(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let named = |name: &str| {
        let cases = recorded["cases"].as_array().unwrap();
        cases.iter().find(|case| case["name"] == name).unwrap()
    };
    assert_eq!(post(named("genuine")), "200");
    assert!(post(named("stale")).ends_with("401"));
    until("the event", || {
        let out = receiver.out();
        out.starts_with(r#"{"event":"invoice.paid","key":"key-1","#)
            .then_some(())
    });
}

#[test]
fn files_of_the_page_are_read() {
    let page = include_str!("../../src/docs/senders.md");
    let fences = page.split("```toml\n").skip(1);
    let files: Vec<_> = fences.map(|it| it.split("```").next().unwrap()).collect();
    let [routes, acme, signature, challenge, batch] = files[..] else {
        panic!("{} files in TOML", files.len());
    };
    let dir = TempDir::new().unwrap();
    let full = format!("name = \"acme\"\n{signature}");
    let challenged = format!("{acme}{challenge}{batch}");
    for (name, text) in [
        ("chat.secret", "one"),
        ("github.secret", "two"),
        ("token", "three"),
        ("on-github", "#!/bin/sh\n"),
        ("routes.toml", routes),
        ("acme.toml", acme),
        ("full.toml", &full),
        ("challenged.toml", &challenged),
    ] {
        fs::write(dir.path().join(name), text).unwrap();
    }
    for args in [
        &["--config", "routes.toml"][..],
        &["--sender", "./acme.toml", "--secret", "s"],
        &["--sender", "./full.toml", "--secret", "s"],
        &[
            "--sender",
            "./challenged.toml",
            "--secret",
            "s",
            "--sender-token-file",
            "token",
        ],
    ] {
        let mut check = example("receiver");
        check
            .current_dir(dir.path())
            .args(["check", "--listen", "127.0.0.1:0"])
            .args(args);
        let checked = Program::start(&mut check).finish();
        assert_eq!(checked.code, 0, "{args:?}: {checked:?}");
    }
}

#[test]
fn a_description_in_toml_is_that_in_json() {
    let dir = TempDir::new().unwrap();
    let acme = dir.path().join("acme.toml");
    fs::write(&acme, TOML).unwrap();
    let acme = acme.to_str().unwrap();
    let receiver = Server::receiver(&["--sender", acme, "--secret", "s"]);
    let url = format!("http://{}/webhooks", receiver.address());
    let body = dir.path().join("body.json");
    fs::write(&body, r#"{"id":"key-1","event":{"type":"paid"}}"#).unwrap();
    let body = body.to_str().unwrap();
    #[rustfmt::skip]
    let sent = run("receiver", &[
        "send", "--url", &url, "--sender", acme, "--secret", "s", "--no-key", "--body", body,
    ]);
    assert_eq!(sent.code, 0, "{sent:?}");
    let out = until("the event", || {
        Some(receiver.out()).filter(|it| it.contains('\n'))
    });
    let event: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&event["event"], &event["key"]),
        (&"paid".into(), &"key-1".into())
    );
    let asked = curl(&[&format!("{url}?mode=subscribe&challenge=1234")]);
    assert!(asked.ends_with("1234"), "{asked}");
}

#[test]
fn hangup_reloads_a_description_with_its_token_and_secret() {
    let dir = TempDir::new().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let acme = TOML.replace("proof = \"none\"", "proof = { token = \"?token\" }");
    let (sender, token, secret) = (
        file("acme.toml", &acme),
        file("token", "first"),
        file("secret", "old"),
    );
    let receiver = Server::receiver(&[
        "--sender",
        &sender,
        "--sender-token-file",
        &token,
        "--secret-file",
        &secret,
    ]);
    let url = format!("http://{}/webhooks", receiver.address());
    let echoed = |token: &str| {
        let asked = format!("{url}?mode=subscribe&challenge=1234&token={token}");
        curl(&[&asked]).ends_with("1234")
    };
    let accepts = |secret: &str, description: &str, id: &str| {
        let signed_as = file("signed-as.toml", description);
        let body = file("body.json", &format!(r#"{{"id":"{id}","type":"paid"}}"#));
        let args = ["--sender", &signed_as, "--no-key", "--body", &body];
        receiver.send_to("/webhooks", secret, &args).code == 0
    };
    assert!(echoed("first") && !echoed("second"));
    assert!(accepts("old", &acme, "1"));

    let altered = acme.replace("x-acme-signature", "x-acme-tag");
    file("acme.toml", &altered);
    file("token", "second");
    file("secret", "new");
    let hang_up = |said: &str| {
        receiver.signal(Signal::SIGHUP);
        until(said, || receiver.err().contains(said).then_some(()));
    };
    hang_up("the secrets and the sender were reloaded");
    assert!(echoed("second") && !echoed("first"));
    assert!(accepts("new", &altered, "2"));
    assert!(!accepts("old", &altered, "3") && !accepts("new", &acme, "4"));

    // All or nothing.
    file("acme.toml", &acme);
    file("token", "");
    hang_up("the secrets and the sender could not be reloaded and are unchanged");
    assert!(echoed("second") && accepts("new", &altered, "5"));
}

#[test]
fn a_wrong_description_is_explained() {
    let dir = TempDir::new().unwrap();
    for (right, wrong, reasons) in [
        ("coding = \"hex\"", "coding = hex", &["line 11"][..]),
        (
            "algorithm = \"hmac-sha256\"",
            "algorithm = \"md5\"",
            &["`md5`", "`hmac-sha256`", "line 10 column 13"],
        ),
        (
            "headers = [",
            "header = [",
            &["`header`", "`headers`", "line 7 column 1"],
        ),
        ("past = 300", "past = -1", &["-1", "line 13"]),
        (
            "split = \",\"",
            "split = \"|\"",
            &["signature.split: use a space, `,` or `;` at line 8 column 9"],
        ),
        (
            "{element t}.{body}",
            "{element t}",
            &["signature.content: without `{body}`, it signs nothing at line 12 column 11"],
        ),
        (
            "past = 300",
            "past = 0",
            &[
                "signature.timestamp.past: use at least 1",
                "line 13 column 58",
            ],
        ),
        (
            "coding = \"hex\"\n",
            "",
            &["signature.coding: use `hex`", "at line 6 column 1"],
        ),
        (
            "\"/type\"]",
            "\"type\"]",
            &["kind: \"type\" is no JSON pointer", "at line 4 column 8"],
        ),
        (
            "key = \"/id\"",
            "key = \"/~id\"",
            &[
                "key: \"/~id\" has a `~` in a name: write `~0`",
                "at line 3 column 7",
            ],
        ),
        (
            "key = \"/id\"",
            "key = { join = [\"/id\"] }",
            &[
                "key.join: name 2 to 8 headers or JSON pointers",
                "at line 3 column 16",
            ],
        ),
        (
            "body = { type = 1 }",
            "status = 404",
            &["challenge[1].answer: use a status", "at line 20 column 10"],
        ),
        (
            "name = \"acme\"",
            "name = \"ac me\"",
            &["name: use 1 to 64 letters", "at line 2 column 8"],
        ),
        (
            "\"{element t}.{body}\"",
            "\"{element t}.{url}{body}\"",
            &["url: it is needed", "at line 1 column 1"],
        ),
        (
            "[signature]",
            "[signatures]",
            &["`signatures`", "`signature`", "line 6"],
        ),
    ] {
        let acme = dir.path().join("acme.toml");
        assert!(TOML.contains(right));
        fs::write(&acme, TOML.replace(right, wrong)).unwrap();
        let acme = acme.to_str().unwrap();
        for command in ["run", "check"] {
            let ended = run("receiver", &[command, "--sender", acme, "--secret", "s"]);
            assert_eq!(ended.code, 2, "{wrong}: {ended:?}");
            assert!(ended.err.contains("acme.toml"), "{ended:?}");
            for reason in reasons {
                assert!(ended.err.contains(reason), "{reason}: {ended:?}");
            }
        }
    }
}

#[test]
fn the_description_of_a_sender_is_the_start_of_another() {
    for name in Sender::PROFILES {
        let shown = run("receiver", &["senders", "show", name]);
        assert_eq!(shown.code, 0, "{shown:?}");
        let description: Value = serde_json::from_str(&shown.out).unwrap();
        assert_eq!(description["name"], *name);
    }
    let dir = TempDir::new().unwrap();
    let acme = dir.path().join("acme.json");
    let shown = run("receiver", &["senders", "show", "stripe"]).out;
    fs::write(&acme, shown.replace("stripe", "acme")).unwrap();
    let acme = acme.to_str().unwrap();
    let checked = run(
        "receiver",
        &[
            "check",
            "--sender",
            acme,
            "--demo",
            "--listen",
            "127.0.0.1:0",
        ],
    );
    assert_eq!(checked.code, 0, "{checked:?}");

    let wrong = run("receiver", &["senders", "show", "strype"]);
    assert_eq!((wrong.code, wrong.out.as_str()), (2, ""), "{wrong:?}");
    let reason = "use one of chat-platform, standard-webhooks, ";
    assert!(wrong.err.contains(reason), "{wrong:?}");
}
