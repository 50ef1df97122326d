//! The receiver with several routes in a file.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::sys::signal::Signal;
use serde_json::Value;
use support::program::{Program, Server, curl, example, run, until};
use tempfile::TempDir;
use tower_webhook::Secrets;

/// A directory with a file of routes and the files that it names.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        let files = Self(TempDir::new().unwrap());
        for (name, secret) in [("one", "first"), ("two", "second"), ("three", "third")] {
            files.write(name, secret);
        }
        files
    }

    /// Writes a file, in which `DIR` is the directory, and returns its path.
    fn write(&self, name: &str, text: &str) -> String {
        let path = self.path().join(name);
        let text = text.replace("DIR", self.path().to_str().unwrap());
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// How the log names the secret of a file.
    fn label(&self, name: &str) -> String {
        let secrets = Secrets::from_file(self.path().join(name));
        secrets.unwrap().labels().remove(0)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

const ACME: &str = r#"{"name":"acme","key":"x-acme-id","kind":"/type","signature":{"headers":["x-acme-signature"],
    "algorithm":"hmac-sha256","coding":"hex"}}"#;

#[test]
fn each_route_has_a_sender_a_secret_and_a_command() {
    let files = Files::new();
    files.write("acme.json", ACME);
    let config = files.write(
        "routes.json",
        r#"{"routes": [
            {"path": "/webhooks", "secret-file": "DIR/one"},
            {"path": "/github", "sender": "github", "secret-file": "DIR/two", "inbox": "sqlite:DIR/webhooks.db",
                "exec": "cat >>DIR/handled"},
            {"path": "/acme", "sender": "DIR/acme.json", "secret-file": "DIR/three", "name": "north",
                "inbox": "sqlite:DIR/webhooks.db", "exec": "echo $(cat) >>DIR/acme"}
        ]}"#,
    );
    let receiver = Server::receiver(&["--config", &config, "--console", "127.0.0.1:0"]);
    assert!(receiver.url.ends_with("/webhooks"), "{}", receiver.url);
    let body = files.write("body", r#"{"type":"made"}"#);
    #[rustfmt::skip]
    let deliveries: [(&str, &str, &[&str]); 3] = [
        ("/webhooks", "first", &["--key", "k"]),
        ("/github", "second", &["--sender", "github", "--event", "push", "--key", "k"]),
        ("/acme", "third", &["--sender", &files.write("acme.json", ACME), "--key", "k", "--body", &body]),
    ];
    for (path, secret, args) in deliveries {
        let sent = receiver.send_to(path, secret, args);
        assert_eq!(sent.code, 0, "{sent:?}");
        for (elsewhere, other, _) in deliveries.iter().filter(|it| it.0 != path) {
            assert_eq!(receiver.send_to(path, other, args).code, 1);
            assert_eq!(receiver.send_to(elsewhere, secret, args).code, 1);
        }
    }
    for (file, route) in [("handled", "/github"), ("acme", "/acme")] {
        let line = until("the line of an event", || {
            let line = fs::read_to_string(files.path().join(file)).ok()?;
            line.contains('}').then_some(line)
        });
        let head = format!(r#""key":"k","attempt":1,"route":"{route}","payload":"#);
        assert!(line.contains(&head), "{line}");
        assert_eq!(line.matches("\"event\"").count(), 1, "{line}");
    }
    let lines = until("the lines", || {
        let out = receiver.out();
        (out.lines().count() == 3).then_some(out)
    });
    assert!(lines.contains(r#""route":"/webhooks""#), "{lines}");
    let err = receiver.err();
    // Of the first refused request: their databases do not matter.
    let label = files.label("two");
    let would_match = format!("would_match=\"the secret {label} of the route github\"");
    for said in [
        "route=github",
        "route=north",
        "path=\"/acme\"",
        &would_match,
    ] {
        assert!(err.contains(said), "{said}: {err}");
    }
    // The same on the pages of its database.
    let console = receiver.url_of("console");
    let refusals = curl(&[&format!("{console}webhooks/refusals")]);
    let would_match = format!("the secret {label} of the route github");
    assert!(refusals.contains(&would_match), "{refusals}");
    receiver.signal(Signal::SIGTERM);
    assert_eq!(receiver.program.finish().code, 0);

    let checked = run(
        "receiver",
        &["check", "--config", &config, "--listen", "127.0.0.1:0"],
    );
    assert_eq!(checked.code, 0, "{checked:?}");
    for said in [
        "/webhooks, for chat-platform, named `chat-platform`",
        "/github, for github, named `github`",
        "/acme, for acme, named `north`",
        "0 unsettled events",
    ] {
        assert!(checked.out.contains(said), "{said}: {checked:?}");
    }
}

/// The routes of one inbox have one worker, and one kind name may be of both.
#[test]
fn an_operator_lists_pauses_and_changes_events_by_route() {
    let files = Files::new();
    let config = files.write(
        "routes.json",
        r#"{"routes": [
            {"path": "/webhooks", "secret-file": "DIR/one", "exec": "cat >>DIR/chats"},
            {"path": "/github", "sender": "github", "secret-file": "DIR/two", "exec": "cat >>DIR/github"}
        ]}"#,
    );
    let url = format!("sqlite:{}", files.path().join("webhooks.db").display());
    let receiver = Server::receiver(&["--config", &config, "--inbox", &url]);
    let inbox = |args: &[&str]| run("receiver", &[&["inbox"], args, &["--inbox", &url]].concat());
    let lines = |args: &[&str]| {
        let ended = inbox(args);
        assert_eq!(ended.code, 0, "{args:?}: {ended:?}");
        let lines = ended.out.lines();
        let lines: Vec<Value> = lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        lines
    };
    let states = |args: &[&str]| {
        let events = lines(&[&["list", "--json"], args].concat());
        let state = |event: Value| (event["route"].to_string(), event["state"].to_string());
        let states = events.into_iter().map(state);
        states
            .map(|(route, state)| format!("{route} {state}").replace('"', ""))
            .collect::<Vec<_>>()
    };
    for (of, said) in [
        ("github/chat-rated", "paused: github/chat-rated\n"),
        ("github/", "paused: github/\n"),
    ] {
        let paused = inbox(&["pause", of, "--note", "maintenance"]);
        assert_eq!(paused.code, 0, "{paused:?}");
        assert!(paused.err.contains(said), "{paused:?}");
        assert!(
            paused.err.contains("no event of the route `github`"),
            "{paused:?}"
        );
    }
    let event = ["--event", "chat-rated", "--key", "k"];
    let github = [&["--sender", "github"], &event[..]].concat();
    for (path, secret, args) in [
        ("/webhooks", "first", &event[..]),
        ("/github", "second", &github),
    ] {
        let sent = receiver.send_to(path, secret, args);
        assert_eq!(sent.code, 0, "{sent:?}");
    }
    until("the event of the chat platform", || {
        (states(&[]) == ["chat-platform handled", "github waiting"]).then_some(())
    });
    // A key is found at each route.
    assert_eq!(states(&["--key", "k"]).len(), 2);
    assert_eq!(
        states(&["--key", "k", "--route", "github"]),
        ["github waiting"]
    );
    assert_eq!(
        states(&["--route", "github", "--route", "x"]),
        ["github waiting"]
    );
    let table = inbox(&["list", "--type", "chat-rated"]).out;
    assert!(table.contains(" github/chat-rated "), "{table}");
    let shown = inbox(&["show", "2"]).out;
    assert!(shown.contains("kind      github/chat-rated\n"), "{shown}");
    let stats = inbox(&["stats"]).out;
    for said in [
        "github/chat-rated: 1 waiting, 0 in progress, 0 retrying, 0 dead",
        "github/ was paused",
        "github/chat-rated was paused",
    ] {
        assert!(stats.contains(said), "{said}: {stats}");
    }
    let stats = lines(&["stats", "--json"]).remove(0);
    assert_eq!(stats["kinds"][1]["route"], "github");
    assert_eq!(
        (&stats["paused"], &stats["kinds"][1]["paused"]),
        (&false.into(), &true.into())
    );

    let resumed = inbox(&["resume", "github/"]);
    assert!(
        resumed
            .err
            .ends_with("resumed: github/\nstill paused: github/chat-rated\n"),
        "{resumed:?}"
    );
    let retried = inbox(&[
        "redrive", "--all", "--state", "waiting", "--route", "github", "--yes",
    ]);
    let paused = "github/chat-rated is paused: its events are tried after `receiver inbox resume github/chat-rated`";
    assert!(retried.err.contains(paused), "{retried:?}");
    assert_eq!(states(&[])[1], "github waiting");
    assert_eq!(inbox(&["resume", "github/chat-rated"]).code, 0);
    until("the event of GitHub", || {
        (states(&[])[1] == "github handled").then_some(())
    });
    for (file, route) in [("chats", "/webhooks"), ("github", "/github")] {
        let handled = fs::read_to_string(files.path().join(file)).unwrap();
        assert!(
            handled.contains(&format!(r#""route":"{route}""#)),
            "{handled}"
        );
        assert_eq!(handled.lines().count(), 1, "{handled}");
    }
    let actions = inbox(&["actions"]).out;
    assert!(
        actions.contains("github/ ") && actions.contains("github/chat-rated "),
        "{actions}"
    );
    for (args, said) in [
        (
            &["pause", "githab/push"][..],
            "no event of the route `githab`",
        ),
        (
            &["list", "--route", "githab"],
            "no event of the route `githab`",
        ),
        (
            &["list", "--route", "a/b"],
            "`a/b` cannot be the name of a route",
        ),
        (
            &["pause", "git hub/"],
            "an event type is the name of an event",
        ),
    ] {
        let ended = inbox(args);
        assert!(ended.err.contains(said), "{args:?}: {ended:?}");
    }
    let push = ["--sender", "github", "--event", "push", "--key", "l"];
    assert_eq!(receiver.send_to("/github", "second", &push).code, 0);
    for (args, code, meant) in [
        (&["resume", "push"][..], 0, "github/push"),
        (&["pause", "push"], 1, "github/push"),
        (&["pause", "github"], 1, "github/"),
        (
            &["list", "--type", "github/push"],
            0,
            "--route github --type push",
        ),
    ] {
        let ended = inbox(args);
        assert_eq!(ended.code, code, "{args:?}: {ended:?}");
        let meant = format!("did you mean `{meant}`?");
        assert!(ended.err.contains(&meant), "{args:?}: {ended:?}");
    }
    let stats = inbox(&["stats"]).out;
    let mut lines = stats.lines();
    assert!(
        !lines.any(|it| it.starts_with("push was paused") || it.starts_with("github")),
        "{stats}"
    );
    receiver.signal(Signal::SIGTERM);
    assert_eq!(receiver.program.finish().code, 0);
}

#[test]
fn each_of_several_databases_has_a_console() {
    let files = Files::new();
    let config = files.write(
        "routes.json",
        r#"{"routes": [
            {"path": "/webhooks", "secret-file": "DIR/one", "inbox": "sqlite:DIR/one.db"},
            {"path": "/hooks/github", "sender": "github", "secret-file": "DIR/two", "inbox": "sqlite:DIR/two.db", "exec": "exit 65"},
            {"path": "/stored", "secret-file": "DIR/three", "store": "sqlite:DIR/three.db"},
            {"path": "/hooks-github", "secret-file": "DIR/one", "store": "sqlite:DIR/four.db"},
            {"path": "/..", "secret-file": "DIR/one", "store": "sqlite:DIR/five.db"},
            {"path": "/five", "secret-file": "DIR/one", "store": "sqlite:DIR/five.db", "name": "five"},
            {"path": "/", "secret-file": "DIR/one", "store": "sqlite:DIR/six.db"}
        ]}"#,
    );
    let receiver = Server::receiver(&["--config", &config, "--console", "127.0.0.1:0"]);
    #[rustfmt::skip]
    let deliveries: [(&str, &str, &[&str]); 3] = [
        ("/webhooks", "first", &["--event", "chat-rated", "--key", "k"]),
        ("/hooks/github", "second", &["--sender", "github", "--event", "push", "--key", "k"]),
        ("/stored", "third", &["--event", "chat-closed", "--key", "k"]),
    ];
    for (path, secret, args) in deliveries {
        let sent = receiver.send_to(path, secret, args);
        assert_eq!(sent.code, 0, "{sent:?}");
    }
    let console = receiver.url_of("console");
    let page = |path: &str| curl(&[&format!("{console}{path}")]);
    let list = page("");
    for name in [
        "webhooks",
        "hooks-github",
        "stored",
        "hooks-github_",
        "..+five",
        "_",
    ] {
        let link = format!("<a href=\"/{name}\">{name}</a>");
        assert!(list.contains(&link), "{name}: {list}");
        assert!(page(name).contains("<h1>Overview</h1>"), "{name}");
    }
    for path in ["", "webhooks", "webhooks/events"] {
        let url = format!("{console}{path}");
        let rebound = curl(&["-i", "-H", "host: evil.example", &url]);
        assert!(rebound.starts_with("HTTP/1.1 421"), "{path}: {rebound}");
    }
    // Each has its own events, and its own counts.
    until("the discarded event", || {
        let page = page("hooks-github/events?key=k");
        (page.contains("push") && page.contains("discarded")).then_some(())
    });
    let events = page("webhooks/events");
    assert!(events.contains("chat-rated") && !events.contains("push"));
    for (name, own, other) in [
        ("webhooks", "chat-rated", "push"),
        ("hooks-github", "push", "chat-rated"),
    ] {
        let history = until("the counts", || {
            let history = page(&format!("{name}/history?range=1h"));
            history.contains(own).then_some(history)
        });
        assert!(!history.contains(other), "{history}");
    }
    assert!(page("stored").contains("chat-closed"));
    receiver.signal(Signal::SIGTERM);
    assert_eq!(receiver.program.finish().code, 0);
}

#[test]
fn each_route_keeps_its_own_kinds() {
    let files = Files::new();
    let config = files.write(
        "routes.json",
        r#"{"routes": [
            {"path": "/webhooks", "secret-file": "DIR/one", "keep-only": ["chat-clozed", "chat-rated"]},
            {"path": "/github", "sender": "github", "secret-file": "DIR/two", "keep-only": ["push", "chat-clozed"],
                "inbox": "sqlite:DIR/webhooks.db"}
        ]}"#,
    );
    let receiver = Server::receiver(&["--config", &config]);
    let github = |kind| ["--sender", "github", "--event", kind, "--key", kind];
    let platform = |kind| ["--event", kind, "--key", kind];
    #[rustfmt::skip]
    let deliveries: [(&str, &str, &[&str]); 4] = [
        ("/webhooks", "first", &platform("chat-closed")),
        ("/webhooks", "first", &platform("chat-rated")),
        ("/github", "second", &github("watch")),
        ("/github", "second", &github("push")),
    ];
    for (path, secret, args) in deliveries {
        let sent = receiver.send_to(path, secret, args);
        assert_eq!(sent.code, 0, "{args:?}: {sent:?}");
    }
    let lines = until("the lines", || {
        let out = receiver.out();
        (out.lines().count() == 2).then_some(out)
    });
    for kept in [r#""event":"chat-rated""#, r#""event":"push""#] {
        assert!(lines.contains(kept), "{kept}: {lines}");
    }
    let err = receiver.err();
    assert_eq!(
        err.matches("did you mean `chat-closed`?").count(),
        1,
        "{err}"
    );
    assert!(err.contains("keep_only=[push, chat-clozed]"), "{err}");
    receiver.signal(Signal::SIGTERM);
    assert_eq!(receiver.program.finish().code, 0);
}

#[test]
fn each_route_says_what_equal_bodies_are() {
    let files = Files::new();
    let acme = files.write("acme.json", ACME);
    let one = r#"{"path": "/one", "sender": "DIR/acme.json", "secret-file": "DIR/one""#;
    let two =
        r#"{"path": "/two", "sender": "DIR/acme.json", "secret-file": "DIR/two", "name": "two""#;
    let body = files.write("body", r#"{"type":"push"}"#);
    // The option is for all routes, and the field for one.
    for (of_one, of_two, options, codes) in [
        (r#", "equal-bodies": true"#, "", &[][..], [0, 1]),
        (
            "",
            r#", "equal-bodies": false"#,
            &["--equal-bodies"],
            [0, 1],
        ),
    ] {
        let routes = format!(r#"{{"routes": [{one}{of_one}}}, {two}{of_two}}}]}}"#);
        let config = files.write("routes.json", &routes);
        let receiver = Server::receiver(&[&["--config", &config], options].concat());
        for (path, secret, code) in [("/one", "first", codes[0]), ("/two", "second", codes[1])] {
            // Each has a key of its own.
            let args = ["--sender", &acme, "--event", "push", "--body", &body];
            let sent = [(); 2].map(|()| receiver.send_to(path, secret, &args).code);
            assert_eq!(sent, [0, code], "{routes}: {path}");
        }
    }
}

/// A receiver for GitHub, with the secrets in the file `one`, and for `acme.json`, with those in `two`.
struct Hearing {
    files: Files,
    receiver: Server,
    bodies: AtomicUsize,
}

impl Hearing {
    fn start() -> Self {
        let files = Files::new();
        files.write("acme.json", ACME);
        let config = files.write(
            "routes.json",
            r#"{"routes": [
                {"path": "/github", "sender": "github", "secret-file": "DIR/one"},
                {"path": "/acme", "sender": "DIR/acme.json", "secret-file": "DIR/two"}
            ]}"#,
        );
        let receiver = Server::receiver(&["--config", &config]);
        let bodies = AtomicUsize::new(0);
        Self {
            files,
            receiver,
            bodies,
        }
    }

    /// Equal bodies under two keys would be a replay.
    fn body(&self) -> String {
        let number = self.bodies.fetch_add(1, Ordering::Relaxed);
        let body = format!(r#"{{"type":"made","number":{number}}}"#);
        self.files.write("body", &body)
    }

    fn github(&self, secret: &str) -> i32 {
        let args = ["--sender", "github", "--body", &self.body()];
        self.receiver.send_to("/github", secret, &args).code
    }

    fn acme(&self, secret: &str, description: &str) -> i32 {
        let sender = self.files.write("signed-as.json", description);
        let args = ["--sender", &sender, "--body", &self.body()];
        self.receiver.send_to("/acme", secret, &args).code
    }

    /// Sends SIGHUP, and waits until the log has a text so many times.
    fn hangs_up(&self, said: &str, times: usize) {
        self.receiver.signal(Signal::SIGHUP);
        until(said, || {
            let count = self.receiver.err().matches(said).count();
            (count == times).then_some(())
        });
    }
}

#[test]
fn hangup_reloads_the_secrets_and_senders_of_all_routes() {
    let it = Hearing::start();
    assert_eq!((it.github("first"), it.acme("second", ACME)), (0, 0));

    // Where the signature stands, and how it is written.
    let altered = ACME
        .replace("x-acme-signature", "x-acme-tag")
        .replace("hex", "base64");
    it.files.write("one", "changed");
    it.files.write("two", "altered");
    it.files.write("acme.json", &altered);
    it.hangs_up("were reloaded", 2);
    assert_eq!((it.github("first"), it.github("changed")), (1, 0));
    assert_eq!((it.acme("second", ACME), it.acme("altered", ACME)), (1, 1));
    assert_eq!(it.acme("altered", &altered), 0);
}

#[test]
fn a_wrong_reload_changes_nothing_of_its_route() {
    let it = Hearing::start();
    let reason = |description: &str| match description {
        ACME => "only white space",
        it if it.contains("acne") => "its name has changed",
        it if it.contains("/id") => "its need of a replay guard has changed",
        _ => "unknown variant `hmac`",
    };
    it.files.write("one", "again");
    for (at, (secret, description)) in [
        ("spoilt", ACME.replace("hmac-sha256", "hmac")),
        ("spoilt", ACME.replace("acme\"", "acne\"")),
        ("spoilt", ACME.replace("x-acme-id", "/id")),
        ("  \n", ACME.to_owned()),
    ]
    .into_iter()
    .enumerate()
    {
        it.files.write("two", secret);
        it.files.write("acme.json", &description);
        it.hangs_up("are unchanged", at + 1);
        let (err, reason) = (it.receiver.err(), reason(&description));
        assert!(err.contains(reason), "{reason}: {err}");
        assert_eq!((it.acme("second", ACME), it.acme("spoilt", ACME)), (0, 1));
        assert_eq!(it.github("again"), 0, "the other route was reloaded");
    }
}

/// The text of a file of routes, and what its error says.
const WRONG: &[(&str, &[&str])] = &[
    ("", &["EOF", "line 1"]),
    ("{}", &["missing field `routes`"]),
    (r#"{"routes":[]}"#, &["`routes`", "at least one"]),
    (
        "{\"routes\":[],\n\"inbox\":\"x\"}",
        &["unknown field `inbox`", "`routes`", "line 2"],
    ),
    (
        "{\"routes\":[{\n\"pth\":\"/a\"}]}",
        &["unknown field `pth`", "`path`, `sender`", "line 2"],
    ),
    (
        "{\"routes\":[{\"path\":\"/a\",\n\"path\":\"/b\"}]}",
        &["duplicate field `path`", "line 2"],
    ),
    (
        "{\"routes\":[{\n\n\"path\":\"a\"}]}",
        &["`path`: a path starts with `/`", "line 3"],
    ),
    (
        r#"{"routes":[{"path":"/healthz"}]}"#,
        &["`path`: this path is used by the health check"],
    ),
    (
        r#"{"routes":[{"path":7}]}"#,
        &["invalid type: integer `7`, expected a string"],
    ),
    (
        r#"{"routes":[{"path":"/a"}]}"#,
        &["missing field `secret-file`"],
    ),
    (
        r#"{"routes":[{"path":"/a","secret-file":"/nowhere/x"}]}"#,
        &[
            "the route `/a`: `secret-file`",
            "`/nowhere/x` cannot be read",
        ],
    ),
    (
        r#"{"routes":[{"path":"/a","secret-file":"DIR/one","sender":"strype"}]}"#,
        &["the route `/a`: `sender`", "use one of", "stripe"],
    ),
    (
        r#"{"routes":[{"path":"/a","secret-file":"DIR/one","sender-url":"https://example.com"}]}"#,
        &["the route `/a`: `sender`", "`sender-url` needs a `sender`"],
    ),
    (
        r#"{"routes":[{"path":"/a","secret-file":"DIR/one","sender":"meta"}]}"#,
        &["the route `/a`", "token of its challenges"],
    ),
    (
        r#"{"routes":[{"path":"/a","secret-file":"DIR/one","sender":"square"}]}"#,
        &["`sender`", "`square`", "url"],
    ),
    (
        r#"{"routes":[{"path":"/a","secret-file":"DIR/one","sender":"github","header-prefix":"x"}]}"#,
        &["`github` has no brand"],
    ),
    (
        "{\"routes\":[{\"path\":\"/a\",\n\"inbox\":\"memory\"}]}",
        &["`inbox`: an inbox is `sqlite:PATH`", "line 2"],
    ),
    (
        r#"{"routes":[{"path":"/a","store":"mysql://hush@x"}]}"#,
        &["`store`: `mysql:` is none: a store is `memory`"],
    ),
    (
        r#"{"routes":[{"path":"/a","exec":" "}]}"#,
        &["`exec`: the command is empty"],
    ),
    (
        r#"{"routes":[{"path":"/a","forward":"/x"}]}"#,
        &["`forward`: ", "such as http://127.0.0.1:8080/events"],
    ),
    (
        r#"{"routes":[{"path":"/a","name":"a/b"}]}"#,
        &["`name`: `a/b` cannot be the name of a route"],
    ),
    (
        "{\"routes\":[{\"path\":\"/a\",\n\"keep-only\":[]}]}",
        &["`keep-only`: it is empty", "line 2"],
    ),
    (
        r#"{"routes":[{"path":"/a","keep-only":["push","two words"]}]}"#,
        &["`keep-only`: `two words`: ", "visible ASCII"],
    ),
    (
        r#"{"routes":[{"path":"/a","keep-only":"push"}]}"#,
        &["invalid type: string \"push\", expected a sequence"],
    ),
    (
        r#"{"routes":[{"path":"/a","secret-file":"DIR/one","exec":"x","forward":"http://127.0.0.1/"}]}"#,
        &["takes the place of `exec`"],
    ),
    (
        r#"{"routes":[{"path":"/a","secret-file":"DIR/one","inbox":"sqlite:DIR/a","store":"memory"}]}"#,
        &["takes the place of `store`"],
    ),
    (
        r#"{"routes":[{"path":"/a","secret-file":"DIR/one","sender":"github"},{"path":"/a","secret-file":"DIR/two"}]}"#,
        &["the routes 1 and 2 have the same `path`, `/a`"],
    ),
    (
        r#"{"routes":[{"path":"/a","secret-file":"DIR/one","sender":"github"},{"path":"/b","secret-file":"DIR/two","sender":"github"}]}"#,
        &[
            "the routes `/a` and `/b` have the same name, `github`",
            "set another `name`",
        ],
    ),
    (
        r#"{"routes":[{"path":"/a","secret-file":"DIR/one","inbox":"sqlite:DIR/x.db"},{"path":"/b","secret-file":"DIR/two",
        "store":"sqlite:DIR/../DIRNAME/x.db"}]}"#,
        &["the routes `/a` and `/b` have the same name"],
    ),
];

#[test]
fn a_wrong_file_is_explained() {
    let files = Files::new();
    let name = files.path().file_name().unwrap().to_str().unwrap();
    for (text, reasons) in WRONG {
        let config = files.write("routes.json", &text.replace("DIRNAME", name));
        for command in ["run", "check"] {
            let args = [command, "--config", &config, "--console", "127.0.0.1:0"];
            let ended = run(
                "receiver",
                &[&args[..], &["--listen", "127.0.0.1:0"]].concat(),
            );
            assert_eq!(ended.code, 2, "{text}: {ended:?}");
            assert!(ended.err.contains(&format!("`{config}`: ")), "{ended:?}");
            for reason in *reasons {
                assert!(ended.err.contains(reason), "{reason}: {ended:?}");
            }
            assert!(!ended.err.contains("hush"), "{ended:?}");
        }
    }
    let acme = "name = \"acme\"\n[signature]\nheaders = [\"x-tag\"]\nalgorithm = \"hmac-sha256\"\n";
    files.write("acme.toml", acme);
    for (text, reasons) in [
        (
            "[[routes]]\npath = \"/a\"\nsecret-file = \"DIR/one\"\nsender = \"githab\"",
            &[
                "line 4: the route `/a`: `sender`: ",
                "`githab`",
                "use one of",
            ][..],
        ),
        (
            "[[routes]]\npath = \"/a\"\nsecret-file = \"DIR/one\"\n\n[[routes]]\npath = \"/b\"\nsecret-file = \"DIR/two\"\n\
             sender = \"DIR/acme.toml\"",
            &[
                "line 8: the route `/b`: `sender`: ",
                "acme.toml` describes no sender: signature.coding: use `hex`, `hex-any-case`, `base64` or `base64url` at line 2 column 1",
            ],
        ),
        (
            "[[routes]]\npath = \"/a\"\nsecret-file = \"/nowhere/x\"",
            &[
                "line 3: the route `/a`: `secret-file`: ",
                "`/nowhere/x` cannot be read",
            ],
        ),
        (
            "[[routes]]\npath = \"/a\"\nsecret-file = \"DIR/one\"\nexec = \"x\"\nforward = \"http://127.0.0.1/\"",
            &["line 5: the route `/a`: `forward` takes the place of `exec`"],
        ),
        (
            "[[routes]]\npath = \"/a\"\nsecret-file = \"DIR/one\"\nsender = \"standard-webhooks\"",
            &[
                "line 4: the route `/a`: `sender`: ",
                "a secret is not written in its form",
            ],
        ),
        (
            "[[routes]]\npath = \"/a\"\ninbox = \"memory\"",
            &["`inbox`: an inbox is", "line 3 column 9"],
        ),
        (
            "[[routes]]\npath = \"/a\"\nport = 1",
            &["`port`", "`secret-file`", "line 3 column 1"],
        ),
        ("[[routes]]\nstore = \"mysql://hush@x", &["line 2"]),
        ("", &["`routes`"]),
    ] {
        let config = files.write("routes.toml", text);
        let ended = run("receiver", &["check", "--config", &config]);
        assert_eq!(ended.code, 2, "{text}: {ended:?}");
        for reason in reasons {
            assert!(ended.err.contains(reason), "{reason}: {ended:?}");
        }
        assert!(!ended.err.contains("hush"), "{ended:?}");
    }
    let ended = run("receiver", &["--config", "/nowhere/routes.json"]);
    assert_eq!(ended.code, 2, "{ended:?}");
    assert!(
        ended.err.contains("cannot be read: No such file"),
        "{ended:?}"
    );
}

#[test]
fn a_file_is_not_combined_with_options_of_one_route() {
    let files = Files::new();
    let text = r#"{"routes":[{"path":"/a","secret-file":"DIR/one"}]}"#;
    let config = files.write("routes.json", text);
    for option in [
        "--path=/a",
        "--sender=github",
        "--header-prefix=acme",
        "--secret=s",
        "--secret-file=f",
        "--demo",
        "--dangerously-unsigned",
        "--name=n",
        "--keep-only=push",
        "--exec=true",
        "--forward=http://127.0.0.1:1/",
    ] {
        let ended = run("receiver", &["--config", &config, option]);
        assert_eq!(ended.code, 2, "{option}: {ended:?}");
        assert!(ended.err.contains("cannot be used with"), "{ended:?}");
    }
    let mut command = example("receiver");
    command
        .args(["--config", &config])
        .env("WEBHOOK_SECRET", "s");
    let ended = Program::start(&mut command).finish();
    assert_eq!(ended.code, 2, "{ended:?}");
    assert!(ended.err.contains("WEBHOOK_SECRET"), "{ended:?}");

    for (option, value) in [
        ("--keep-header", "x-request-id"),
        ("--retry-for", "60"),
        ("--on-failure", "skip"),
    ] {
        let ended = run("receiver", &["--config", &config, option, value]);
        assert_eq!(ended.code, 2, "{option}: {ended:?}");
        let reason = format!("`{option}` is for an `inbox`, and no route has one");
        assert!(ended.err.contains(&reason), "{ended:?}");
    }

    // Those for all routes stay options.
    let inbox = format!("sqlite:{}", files.path().join("webhooks.db").display());
    let args = [
        "check",
        "--config",
        &config,
        "--inbox",
        &inbox,
        "--retry-for",
        "60",
    ];
    let checked = run(
        "receiver",
        &[&args[..], &["--listen", "127.0.0.1:0"]].concat(),
    );
    assert_eq!(checked.code, 0, "{checked:?}");
    assert!(checked.out.contains("webhooks.db"), "{checked:?}");
}
