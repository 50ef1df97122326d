//! `receiver send` for every sender, and `receiver senders verify`, which says why a captured request is refused.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::thread;

use serde_json::Value;
use tempfile::TempDir;
use tower_webhook::Sender;

use support::program::{Program, Server, example, run, until};

const URL: &str = "https://example.com/hook";

struct Known {
    signs: String,
    verifies: String,
    is_token: bool,
    options: Vec<&'static str>,
}

/// The private and the public key of a file.
fn pair(file: &str) -> (String, String) {
    let file: Value = serde_json::from_str(file).unwrap();
    let text = |name: &str| file[name].as_str().unwrap().to_owned();
    (text("private"), text("secret"))
}

fn known(name: &str) -> Known {
    let described: Value = serde_json::from_str(Sender::profile(name).unwrap()).unwrap();
    let signature = &described["signature"];
    let algorithm = signature["algorithm"].as_str().unwrap();
    let (signs, verifies) = match (algorithm, signature["secret"].as_str()) {
        ("ed25519", _) => (
            "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==".to_owned(),
            "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=".to_owned(),
        ),
        ("ecdsa-p256", _) => pair(include_str!("../fixtures/senders/sendgrid.json")),
        ("rsa-sha256", _) => pair(include_str!("../fixtures/rsa.json")),
        (_, Some("base64")) => ("whsec_c2VjcmV0".to_owned(), "whsec_c2VjcmV0".to_owned()),
        (_, Some("hex")) => ("5ec2e7".to_owned(), "5ec2e7".to_owned()),
        _ => ("correct-horse".to_owned(), "correct-horse".to_owned()),
    };
    let options = match Sender::named(name, None) {
        Ok(_) => Vec::new(),
        Err(_) => vec!["--sender-url", URL],
    };
    let is_token = algorithm == "token";
    Known {
        signs,
        verifies,
        is_token,
        options,
    }
}

fn verify(args: &[&str]) -> support::program::Ended {
    run("receiver", &[&["senders", "verify"], args].concat())
}

#[test]
fn each_sender_is_received_and_what_was_sent_is_verified() {
    let dir = TempDir::new().unwrap();
    let [token, file] = ["token", "sent"].map(|it| dir.path().join(it));
    fs::write(&token, "a token\n").unwrap();
    let file = file.to_str().unwrap();
    for name in Sender::PROFILES {
        let Known {
            signs,
            verifies,
            is_token,
            options,
        } = known(name);
        let mut args = vec!["--sender", name, "--secret", &verifies];
        args.extend(&options);
        if *name == "meta" {
            args.extend(["--sender-token-file", token.to_str().unwrap()]);
        }
        let receiver = Server::receiver(&args);
        // Of a type that is joined of two texts, too.
        let event = match *name {
            "asana" | "customerio" | "gocardless" | "intuit" | "xero" => "customer.subscribed",
            _ => "push",
        };
        let mut sending = vec!["--sender", name, "--event", event, "--count", "3"];
        sending.extend(&options);
        let sent = receiver.send(&signs, &sending);
        assert_eq!(sent.code, 0, "{name}: {sent:?}");
        // Each is an event of its own.
        assert!(
            sent.out.contains("\n        3 200 OK\n"),
            "{name}: {sent:?}"
        );
        assert_eq!(receiver.out().lines().count(), 3, "{name}");
        assert!(
            sent.out.contains("\n> POST /webhooks HTTP/1.1\n> "),
            "{name}: {sent:?}"
        );
        assert!(!sent.out.contains(&signs), "{name}: {sent:?}");

        fs::write(file, &sent.out).unwrap();
        let mut judged = vec![*name, file, "--secret", &verifies];
        judged.extend(&options);
        let verified = verify(&judged);
        // A token is not printed.
        let (code, result) = if is_token {
            (1, "refused\n")
        } else {
            (0, "accepted\n")
        };
        assert_eq!(verified.code, code, "{name}: {verified:?}");
        assert!(verified.out.ends_with(result), "{name}: {verified:?}");
        assert!(!verified.out.contains(&verifies), "{name}: {verified:?}");
    }
}

#[test]
fn what_stands_in_the_query_is_sent() {
    let dir = TempDir::new().unwrap();
    let described = |headers: &str, algorithm: &str| {
        let signature = format!("headers = [\"?{headers}\"]\nalgorithm = \"{algorithm}\"\n");
        let coding = if algorithm == "token" {
            ""
        } else {
            "coding = \"base64\"\n"
        };
        let text = format!("name = \"acme\"\n[signature]\n{signature}{coding}");
        file(dir.path(), &format!("{headers}.toml"), &text)
    };
    let secret = "correct horse&=%";
    for (sender, is_token) in [
        (described("sign", "hmac-sha256"), false),
        (described("token", "token"), true),
    ] {
        let receiver = Server::receiver(&["--sender", &sender, "--secret", secret]);
        let args = ["--sender", &sender, "--event", "push", "--count", "3"];
        // Beside another parameter, too.
        let sent = receiver.send_to("/webhooks?a=b", secret, &args);
        assert_eq!(sent.code, 0, "{sent:?}");
        assert!(sent.out.contains("\n        3 200 OK\n"), "{sent:?}");
        let wrong = receiver.send_to("/webhooks", "another", &args);
        assert_eq!(wrong.code, 1, "{wrong:?}");
        let target = if is_token { "token=…" } else { "sign=" };
        assert!(
            sent.out
                .contains(&format!("\n> POST /webhooks?a=b&{target}")),
            "{sent:?}"
        );
        assert!(!sent.out.contains("correct"), "{sent:?}");
        let captured = file(dir.path(), "sent", &sent.out);
        let verified = verify(&[&sender, &captured, "--secret", secret]);
        // A token is not printed.
        assert_eq!(verified.code, i32::from(is_token), "{verified:?}");
    }
}

/// Their genuine deliveries, as they are documented: a blank stands in the header of WorkOS, two lists in that of Persona.
#[test]
fn genuine_deliveries_are_accepted() {
    let dir = TempDir::new().unwrap();
    let documented: Vec<Value> =
        serde_json::from_str(include_str!("../fixtures/senders/documented.json")).unwrap();
    let text = |it: &Value| it.as_str().unwrap().to_owned();
    for it in &documented {
        let name = text(&it["name"]);
        if !Sender::PROFILES.contains(&&*name) {
            continue;
        }
        let mut request = String::new();
        let target = it["target"].as_str().unwrap_or("/");
        request += &format!("POST {target} HTTP/1.1\n");
        let headers = it["headers"].as_object().unwrap();
        for (name, value) in headers {
            request += &format!("{name}: {}\n", text(value));
        }
        if !headers.contains_key("content-type") {
            request += "content-type: application/json\n";
        }
        let body = text(&it["body"]);
        request += &format!("content-length: {}\n\n{body}", body.len());
        let captured = file(dir.path(), "captured", &request);
        let secret = file(dir.path(), "secret", &text(&it["secret"]));
        let now = it["now"].to_string();
        let mut args = vec![&*name, &captured, "--secret-file", &secret, "--at", &now];
        if let Some(url) = it["url"].as_str() {
            args.extend(["--sender-url", url]);
        }
        let verified = verify(&args);
        assert_eq!(verified.code, 0, "{name}: {verified:?}");
        assert!(!verified.out.contains("WRONG"), "{name}: {verified:?}");
    }
    assert!(documented.len() > 60);
}

#[test]
fn challenges_are_judged() {
    let dir = TempDir::new().unwrap();
    let token = file(dir.path(), "token", "my-token\n");
    let asks = "POST /?validationToken=Validation%3A+Testing HTTP/1.1\ncontent-type: text/plain\ncontent-length: 0\n\n";
    let graph = file(dir.path(), "graph", asks);
    let verified = verify(&["microsoft-graph", &graph, "--secret", "s"]);
    assert!(
        verified.code == 0
            && verified
                .out
                .contains("it is a challenge, answered with 200"),
        "{verified:?}"
    );
    let asks =
        "GET /?hub.mode=subscribe&hub.verify_token=my-token&hub.challenge=1 HTTP/1.1\nhost: a\n\n";
    let meta = file(dir.path(), "meta", asks);
    let args = ["meta", &meta, "--secret", "s"];
    let verified = verify(&[&args[..], &["--sender-token-file", &token]].concat());
    assert!(
        verified.code == 0
            && verified
                .out
                .contains("it is a challenge, answered with 200"),
        "{verified:?}"
    );
    let other = file(dir.path(), "other", "another\n");
    let refused = verify(&[&args[..], &["--sender-token-file", &other]].concat());
    assert!(
        refused.code == 1 && refused.out.contains("the challenge carries another token"),
        "{refused:?}"
    );
    let none = verify(&args);
    assert!(
        none.code == 1 && none.out.contains("--sender-token-file"),
        "{none:?}"
    );
}

#[test]
fn a_form_is_handled_from_an_inbox() {
    let dir = TempDir::new().unwrap();
    let inbox = format!("sqlite:{}", dir.path().join("inbox.db").display());
    let options = [
        "--sender",
        "slack-commands",
        "--secret",
        "s",
        "--inbox",
        &inbox,
    ];
    let receiver = Server::receiver(&options);
    let sent = receiver.send("s", &["--sender", "slack-commands", "--event", "/weather"]);
    assert_eq!(sent.code, 0, "{sent:?}");
    let line = until("the line of the event", || {
        receiver.out().lines().next().map(str::to_owned)
    });
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["event"], "/weather");
    assert_eq!(line["payload"]["command"], "/weather");
}

const REQUEST: &str = "POST /github HTTP/1.1\r\nHost: example.com\r\nContent-Type: application/json\r\n\
     X-GitHub-Event: push\r\nX-GitHub-Delivery: key-1\r\nContent-Length: 13\r\nX-Hub-Signature-256: sha256=";
/// Published by GitHub: the secret, the body and its signature.
const SECRET: &str = "It's a Secret to Everybody";
const BODY: &str = "Hello, World!";
const TAG: &str = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";

fn file(dir: &Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn the_reason_is_found_in_one_command() {
    let dir = TempDir::new().unwrap();
    let request = |tag: &str, body: &str| {
        file(
            dir.path(),
            "request",
            &format!("{REQUEST}{tag}\r\n\r\n{body}"),
        )
    };
    let json = r#"{"a":"secret-payload"}"#;
    let explained = |text: &str, secret: &str, args: &[&str]| {
        let captured = file(dir.path(), "captured", text);
        let all = [&["github", &captured, "--secret", secret], args].concat();
        let verified = verify(&all);
        assert!(!verified.out.contains(secret), "{verified:?}");
        (verified.code, verified.out)
    };
    // Signed, but it is no JSON.
    let published = fs::read_to_string(request(TAG, BODY)).unwrap();
    let (code, out) = explained(&published, SECRET, &[]);
    assert!(code == 0 && out.contains("the secret 0 signed it"), "{out}");
    let text = published.replace("application/json", "text/plain");
    let (code, out) = explained(&text, SECRET, &[]);
    assert!(code == 1 && out.contains("unsupported-media-type"), "{out}");
    assert!(
        out.ends_with("refused, although a secret signed it\n"),
        "{out}"
    );

    for (text, secret, reason) in [
        (
            published.replace("X-Hub-Signature-256", "X-Hub-Signature"),
            SECRET,
            "WRONG  the signature header is missing: expected `x-hub-signature-256`",
        ),
        (
            published.replace("sha256=", ""),
            SECRET,
            "WRONG  `x-hub-signature-256` begins with `757107ea…`, and not with `sha256=`",
        ),
        (
            published.clone(),
            "another",
            "WRONG  the signature is wrong for every secret, of which there are 1",
        ),
        (
            published.clone(),
            "It's a Secret to Everybody ",
            "note   without the blanks around it, the secret 0 signed it",
        ),
        (
            published.clone(),
            "\"It's a Secret to Everybody\"",
            "note   without the quotes around it, the secret 0 signed it",
        ),
        (
            published.clone(),
            "GITHUB_SECRET=It's a Secret to Everybody",
            "note   without its name and `=` before it, the secret 0 signed it",
        ),
        (
            published.replace("Content-Length: 13\r\n", "") + "\n",
            SECRET,
            "note   the signature is right without the line end after the body",
        ),
        (
            published.replace("Content-Length: 13", "Content-Length: 14"),
            SECRET,
            "WRONG  `Content-Length` is 14, and the body has 13 bytes",
        ),
        (
            published.replace("World", "world"),
            SECRET,
            "note   signed is the body of 13 bytes with the SHA-256 ",
        ),
        (
            published.replace("POST", "GET"),
            SECRET,
            "WRONG  it is no challenge that the description names",
        ),
    ] {
        let (code, out) = explained(&text, secret, &[]);
        assert_eq!(code, 1, "{out}");
        assert!(out.contains(reason), "{reason}: {out}");
        assert!(out.lines().last().unwrap().starts_with("refused"), "{out}");
    }
    // The payload is shown to those who ask for it.
    let text = published.replace("13", "22").replace(BODY, json);
    assert!(!explained(&text, SECRET, &[]).1.contains("secret-payload"));
    assert!(
        explained(&text, SECRET, &["--show-body"])
            .1
            .contains("secret-payload")
    );
    // A line that would forge one of the output.
    let text = published.replace("push", "p\u{85}WRONG");
    assert!(!explained(&text, SECRET, &[]).1.contains('\u{85}'));
}

#[test]
fn what_is_captured_by_nc_and_curl_is_read() {
    let dir = TempDir::new().unwrap();
    let secret = file(dir.path(), "secrets", "other\nit is\n");
    for sender in ["github", "stripe", "square"] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        // As `nc -l` does, which answers nothing.
        let captured = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut text = Vec::new();
            let mut part = [0; 4096];
            while !text.ends_with(b"}") {
                let length = stream.read(&mut part).unwrap();
                text.extend_from_slice(&part[..length]);
            }
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                .unwrap();
            text
        });
        let url_option = ["--sender-url", URL];
        let options = if sender == "square" {
            &url_option[..]
        } else {
            &[]
        };
        let sending = [
            "send", "--url", &url, "--sender", sender, "--secret", "it is",
        ];
        assert_eq!(run("receiver", &[&sending, options].concat()).code, 0);
        let path = dir.path().join("captured");
        fs::write(&path, captured.join().unwrap()).unwrap();
        let path = path.to_str().unwrap();
        let judging = [sender, path, "--secret-file", &secret];
        let verified = verify(&[&judging, options].concat());
        assert_eq!(verified.code, 0, "{verified:?}");
        assert!(
            verified.out.contains("the secret 1 signed it"),
            "{verified:?}"
        );
        // The same, judged later than its time allows.
        let late = verify(&[&judging, options, &["--at", "4000000000"]].concat());
        let is_timed = sender == "stripe";
        assert_eq!(late.code, i32::from(is_timed), "{late:?}");
        let off = "behind this machine's clock: at most 300 s old and 300 s ahead is accepted";
        assert_eq!(late.out.contains(off), is_timed, "{late:?}");
    }
    let receiver = Server::receiver(&["--sender", "github", "--secret", SECRET]);
    let tag = format!("x-hub-signature-256: sha256={TAG}");
    let mut curl = std::process::Command::new("curl");
    #[rustfmt::skip]
    curl.args([
        "-sv", "-H", "content-type: application/json", "-H", "x-github-event: push", "-H", &tag, "--data-binary", BODY, &receiver.url,
    ]);
    let printed = curl.output().unwrap().stderr;
    // Without what it printed of the answer.
    let printed = String::from_utf8(printed).unwrap();
    let head: Vec<_> = printed
        .lines()
        .take_while(|it| !it.starts_with('<') && !it.starts_with('}'))
        .collect();
    let head = file(dir.path(), "head", &head.join("\n"));
    let body = file(dir.path(), "body", BODY);
    let verified = verify(&["github", &head, "--body", &body, "--secret", SECRET]);
    assert_eq!(verified.code, 0, "{verified:?}");
}

#[test]
fn what_cannot_be_read_is_misuse() {
    let dir = TempDir::new().unwrap();
    let request = file(dir.path(), "request", &format!("{REQUEST}{TAG}\n\n{BODY}"));
    let none = file(dir.path(), "none", "hello\n");
    let empty = file(dir.path(), "empty", "\n");
    for (args, reason) in [
        (
            &["github", "/nowhere/x", "--secret", "s"][..],
            "`/nowhere/x` cannot be read",
        ),
        (
            &["github", &none, "--secret", "s"],
            "is no request: line 1: it is no header",
        ),
        (
            &["githup", &request, "--secret", "s"],
            "there is no such profile: use one of",
        ),
        (
            &["/nowhere/acme.toml", &request, "--secret", "s"],
            "cannot be read",
        ),
        (&["square", &request, "--secret", "s"], "`{url}` is signed"),
        (
            &["twilio", &request, "--secret", "s"],
            "`Webhooks::verified_by` takes a verifier",
        ),
        (
            &[
                "github",
                &request,
                "--secret",
                "s",
                "--sender-token-file",
                &none,
            ],
            "its challenges have no token",
        ),
        (&["github", &request], "pass --secret or --secret-file"),
        (&["github", &request, "--secret", ""], "the secret is empty"),
        (
            &["github", &request, "--secret-file", &empty],
            "there is no secret",
        ),
        (
            &["github", &request, "--secret", "s", "--at", "noon"],
            "seconds since 1970",
        ),
        (
            &["github", &request, "--secret", "s", "--body", &none],
            "has a body beside --body",
        ),
    ] {
        let ended = verify(args);
        assert_eq!(ended.code, 2, "{args:?}: {ended:?}");
        assert!(ended.err.contains(reason), "{args:?}: {ended:?}");
    }
    // From standard input, which the tests leave empty.
    let nothing = verify(&["github", "-", "--secret", "s"]);
    assert!(
        nothing.code == 2 && nothing.err.contains("there are no headers"),
        "{nothing:?}"
    );
    // The variable of the other commands.
    let mut command = example("receiver");
    command
        .args(["senders", "verify", "github", &request])
        .env("WEBHOOK_SECRET", SECRET);
    let verified = Program::start(&mut command).finish();
    assert_eq!(verified.code, 0, "{verified:?}");
}
