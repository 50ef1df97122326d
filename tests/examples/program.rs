//! The receiver as one program: its commands, and their options in the environment.

use std::fs;
use std::fs::Permissions;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;
use tower_webhook::Sender;

use support::program::{Ended, Program, Server, example, run, until};
use tempfile::TempDir;

/// Runs the receiver with variables.
fn with(variables: &[(&str, &str)], args: &[&str]) -> Ended {
    let mut command = example("receiver");
    command.envs(variables.iter().copied()).args(args);
    Program::start(&mut command).finish()
}

#[test]
fn invalid_flags_are_explained() {
    #[rustfmt::skip]
    let cases: &[(&[&str], &str)] = &[
        (&["receiver", "--port", "3000"], "unexpected argument '--port'"),
        (&["receiver", "--listen", "3000"], "such as 127.0.0.1:3000"),
        (&["receiver", "--path", "webhooks"], "starts with `/`"),
        (&["receiver", "--path", "/{id}"], "use letters"),
        (&["receiver", "--path", "/healthz"], "health check"),
        (&["receiver", "--path", "/readyz"], "health check"),
        (&["receiver", "--secret", ""], "the secret is empty"),
        (&["receiver", "--secret-file", "/nowhere/secrets"], "`/nowhere/secrets` cannot be read: No such file"),
        (&["receiver", "--secret-file", "/dev/null"], "there is no secret"),
        (&["receiver", "--secret-file", "f", "--secret", "s"], "cannot be used with"),
        (&["receiver", "--demo", "--secret", "s"], "cannot be used with"),
        (&["receiver", "--demo", "--secret-file", "f"], "cannot be used with"),
        (&["receiver", "--dangerously-unsigned", "--secret", "s"], "cannot be used with"),
        (&["receiver", "--dangerously-unsigned", "--secret-file", "f"], "cannot be used with"),
        (&["receiver", "--dangerously-unsigned", "--demo"], "cannot be used with"),
        (&["receiver", "--header-prefix", "a b"], "prefix of a header"),
        (&["receiver", "--handler-timeout", "0"], "'--handler-timeout <SECONDS>'"),
        (&["receiver", "--max-body", "0"], "'--max-body <BYTES>'"),
        (&["receiver", "--grace", "soon"], "'--grace <SECONDS>'"),
        (&["receiver", "--exec", ""], "the command is empty"),
        (&["receiver", "--exec", " \n"], "the command is empty"),
        (&["receiver", "--forward", ""], "'--forward <URL>'"),
        (&["receiver", "--forward", "/events"], "such as http://127.0.0.1:8080/events"),
        (&["receiver", "--forward", "https://127.0.0.1/"], "TLS is not supported"),
        (&["receiver", "--forward", "http://u:p@127.0.0.1/"], "without a user"),
        (&["receiver", "--forward", "http://127.0.0.1/", "--exec", "true"], "cannot be used with"),
        (&["receiver", "--max-connections", "0"], "'--max-connections <N>'"),
        (&["receiver", "--header-timeout", "0"], "'--header-timeout <SECONDS>'"),
        (&["receiver", "--idle-timeout", "0"], "'--idle-timeout <SECONDS>'"),
        (&["receiver", "--concurrency", "0"], "'--concurrency <N>'"),
        (&["receiver", "--max-attempts", "0"], "'--max-attempts <N>'"),
        (&["receiver", "--name", ""], "use 1 to 64 letters, digits"),
        (&["receiver", "--max-buffered", "0"], "'--max-buffered <BYTES>'"),
        (&["receiver", "--lease", "0"], "'--lease <SECONDS>'"),
        (&["receiver", "--lease", "600"], "'--lease <SECONDS>'"),
        (&["receiver", "--store", ""], "a store is `memory`, `sqlite:PATH`"),
        (&["receiver", "--store", "memory:"], "a store is `memory`, `sqlite:PATH`"),
        (&["receiver", "--store", "webhooks.db"], "a store is `memory`, `sqlite:PATH`"),
        (&["receiver", "--store", "mysql://root@127.0.0.1/db"], "a store is `memory`, `sqlite:PATH`"),
        (&["receiver", "--store", "sqlite:"], "such as `sqlite:webhooks.db`"),
        (&["receiver", "--store", "sqlite::memory:"], "is called `memory`"),
        (&["receiver", "--store", "redis://127.0.0.1:port"], "such as `redis://USER:PASSWORD@HOST:6379`"),
        (&["receiver", "--store", "rediss://127.0.0.1"], "`cargo run -p tower-webhook-receiver --features redis,redis/tokio-rustls-comp"),
        (&["receiver", "--store", "postgres://127.0.0.1:port/db"], "such as `postgres://USER@HOST/DATABASE`"),
        (&["hyper", "--listen", "nowhere"], "'--listen <ADDRESS>'"),
        (&["hyper", "--secret", ""], "the secret is empty"),
        (&["extractor", "--listen", "nowhere"], "'--listen <ADDRESS>'"),
        (&["extractor", "--secret", ""], "the secret is empty"),
        (&["sandbox", "--listen", "4000"], "such as 127.0.0.1:4000"),
        (&["sandbox", "--target", "ftp://127.0.0.1/"], "such as http://127.0.0.1:3000/webhooks"),
        (&["sandbox", "--target", "/webhooks"], "such as http://127.0.0.1:3000/webhooks"),
        (&["sandbox", "--secret", ""], "the secret is empty"),
        (&["sandbox", "--demo", "--secret", "s"], "cannot be used with"),
        (&["sandbox", "--faults", "gremlins"], "is not a list of faults"),
        (&["sandbox", "--rate", "60001"], "'--rate <EVENTS>'"),
        (&["sandbox", "--speed", "0"], "'--speed <FACTOR>'"),
        (&["receiver", "send"], "--secret <SECRET>"),
        (&["receiver", "send"], "WEBHOOK_SECRET"),
        (&["receiver", "send", "--secret", ""], "the secret is empty"),
        (&["receiver", "send", "--secret", "s", "--url", "https://127.0.0.1/"], "TLS is not supported"),
        (&["receiver", "send", "--secret", "s", "--url", "/webhooks"], "such as http://127.0.0.1:3000/webhooks"),
        (&["receiver", "send", "--secret", "s", "--event", "chat rated"], "visible ASCII"),
        (&["receiver", "send", "--secret", "s", "--body", "/nowhere/body"], "`/nowhere/body` cannot be read: No such file"),
        (&["receiver", "send", "--secret", "s", "--key", "k", "--no-key"], "cannot be used with"),
        (&["receiver", "send", "--secret", "s", "--count", "0"], "'--count <N>'"),
        (&["receiver", "send", "--secret", "s", "--concurrency", "0"], "'--concurrency <C>'"),
        (&["receiver", "send", "--secret", "s", "--header-prefix", "a b"], "prefix of a header"),
    ];
    for (command, reason) in cases {
        let ended = run(command[0], &command[1..]);

        assert_eq!(ended.code, 2, "{command:?}: {ended:?}");
        assert!(ended.err.starts_with("error: "), "{command:?}: {ended:?}");
        assert!(ended.err.contains(reason), "{command:?}: {ended:?}");
        assert_eq!(ended.out, "", "{command:?}");
    }

    for args in [&[][..], &["--exec", "true"]] {
        let mut empty = example("receiver");
        empty.args(args).env("WEBHOOK_SECRET", "");
        let empty = Program::start(&mut empty).finish();
        assert_eq!(empty.code, 2, "{empty:?}");
        let reason = "the environment variable `WEBHOOK_SECRET` is empty";
        assert!(empty.err.contains(reason), "{empty:?}");
    }

    let mut unsigned = example("receiver");
    unsigned
        .arg("--dangerously-unsigned")
        .env("WEBHOOK_SECRET", "s");
    let unsigned = Program::start(&mut unsigned).finish();
    assert_eq!(unsigned.code, 2, "{unsigned:?}");
    assert!(unsigned.err.contains("WEBHOOK_SECRET"), "{unsigned:?}");
}

#[test]
fn help_lists_every_flag_and_no_secret() {
    #[rustfmt::skip]
    let cases: &[(&str, &[&str])] = &[
        ("receiver", &["run", "send", "senders", "check", "inbox", "--version"]),
        ("receiver run", &["--listen", "--path", "--config", "--secret", "WEBHOOK_SECRET", "--secret-file", "SIGHUP", "--exec",
            "--handler-timeout", "--max-body", "--header-prefix", "--grace", "--drain-delay", "/healthz", "/readyz", "--demo", "--lease",
            "--store", "WEBHOOK_STORE", "sqlite:webhooks.db", "--concurrency", "--max-attempts", "--name",
            "--max-buffered", "EX_DATAERR", "EX_TEMPFAIL", "--forward", "--dangerously-unsigned",
            "--max-connections", "--header-timeout", "--idle-timeout", "--inbox", "WEBHOOK_INBOX", "--retry-for",
            "--on-failure", "--keep-header", "--keep-only", "--metrics", "--console", "--console-read-only", "--console-hide-payloads",
            "--console-actor", "--console-host", "--metrics-host", "--otlp", "--drain-delay", "--expect", "--on-dead", "--on-alarm", "--notify-every", "--replay-guard", "--reject-changed-bodies", "--require-key"]),
        ("sandbox", &["--listen", "--target", "--secret", "WEBHOOK_SECRET", "--demo", "--rate", "--seed", "--faults", "--speed"]),
        ("receiver send", &["--url", "--secret", "--secret-file", "WEBHOOK_SECRET", "--event", "--body", "--key", "--no-key", "--count",
            "--concurrency", "--tamper", "--header-prefix", "--timeout", "--verbose"]),
        ("hyper", &["--listen", "--secret", "WEBHOOK_SECRET"]),
        ("extractor", &["--listen", "--secret", "WEBHOOK_SECRET"]),
        ("senders", &["--listen", "--console", "--database", "WEBHOOK_SECRET", "GITHUB_SECRET", "STRIPE_SECRET"]),
    ];
    for (name, flags) in cases {
        let mut words = name.split(' ');
        let help = Program::start(
            example(words.next().unwrap())
                .args(words)
                .arg("--help")
                .env("WEBHOOK_SECRET", "hush")
                .env("WEBHOOK_STORE", "hush"),
        )
        .finish();

        assert_eq!(help.code, 0, "{help:?}");
        assert!(help.out.contains(&format!("Usage: {name} ")), "{help:?}");
        assert!(!help.out.contains("hush"), "{help:?}");
        for flag in *flags {
            assert!(help.out.contains(flag), "{name}: {flag}");
        }
    }
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
        .env("WEBHOOK_EXPECT", "north/chat-clozed=4,north/chat-opennd=5")
        .env("WEBHOOK_HEADER_PREFIX", "acme")
        .env("WEBHOOK_NAME", "north")
        .env("WEBHOOK_PATH", "/a")
        .env("WEBHOOK_EXEC", "false")
        // Neither is given: one would be refused beside the file, and the other without a console.
        .env("WEBHOOK_DEMO", "false")
        .env("WEBHOOK_CONSOLE_READ_ONLY", "0")
        // The argument wins.
        .env("WEBHOOK_LISTEN", "nowhere:0");
    let receiver = Server::start_by(&mut command);
    assert!(receiver.url.ends_with("/a"), "{}", receiver.url);
    for said in ["chat-clozed", "chat-opennd", "route=north"] {
        until(said, || receiver.err().contains(said).then_some(()));
    }
    let key = ["--header-prefix", "acme", "--key", "k"];
    assert_eq!(receiver.send("s", &key).code, 0);

    // The same variables serve `inbox`, and those of `run` alone are nothing to it.
    let variables = [("WEBHOOK_INBOX", inbox.as_str()), ("WEBHOOK_NAME", "north")];
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

/// Kubernetes sets some variables for a service that is called `webhook`.
#[test]
fn a_variable_that_looks_like_an_option_is_warned_of() {
    let variables = [
        ("WEBHOOK_CONCURENCY", "3"),
        ("WEBHOOK_ZZZ", "hush"),
        ("WEBHOOK_SECRET", "hush"),
        ("WEBHOOK_RETRY_FOR", "60"),
        ("WEBHOOK_INBOX", "sqlite:/nowhere/hush.db"),
        ("WEBHOOK_SERVICE_HOST", "10.0.0.1"),
        ("WEBHOOK_SERVICE_PORT", "80"),
        ("WEBHOOK_EU_SERVICE_PORT_HTTP", "80"),
        ("WEBHOOK_PORT_80_TCP_ADDR", "10.0.0.1"),
        ("WEBHOOK_EU_PORT_53_UDP_PORT", "53"),
        ("WEBHOOK_EU_PORT", "8080"),
        ("WEBHOOK_FORWRAD", "http://127.0.0.1:8080"),
        ("WEBHOOK_PORT", "tcp://10.0.0.1:80"),
    ];
    for command in ["run", "check"] {
        let ended = with(&variables, &[command]);
        assert_eq!(ended.code, 1, "{ended:?}");
        let warnings = ended
            .err
            .lines()
            .filter(|it| it.contains("none of the receiver's"));
        let warnings: Vec<_> = warnings.collect();
        assert_eq!(warnings.len(), 4, "{ended:?}");
        for (variable, advice) in [
            ("WEBHOOK_CONCURENCY", "is it `WEBHOOK_CONCURRENCY`?"),
            ("WEBHOOK_ZZZ", "`receiver run --help` lists those"),
            ("WEBHOOK_EU_PORT", "`receiver run --help` lists those"),
            ("WEBHOOK_FORWRAD", "is it `WEBHOOK_FORWARD`?"),
        ] {
            let is_said = |it: &&&str| it.contains(variable) && it.contains(advice);
            assert_eq!(warnings.iter().filter(is_said).count(), 1, "{ended:?}");
        }
        assert!(!warnings.concat().contains("hush"), "{ended:?}");
    }
}

#[test]
fn a_receiver_without_a_secret_does_not_start() {
    for command in ["run", "check"] {
        let ended = run("receiver", &[command, "--listen", "127.0.0.1:0"]);
        assert_eq!(ended.code, 2, "{ended:?}");
        for named in ["WEBHOOK_SECRET", "--secret-file", "--demo"] {
            assert!(ended.err.contains(named), "{named}: {ended:?}");
        }
        // What else is wrong is said first.
        let ended = run("receiver", &[command, "--inbox", "memory"]);
        assert!(ended.err.contains("an inbox is"), "{ended:?}");
    }
}

#[test]
fn check_opens_what_run_would_and_handles_nothing() {
    let dir = TempDir::new().unwrap();
    let inbox = format!("sqlite:{}", dir.path().join("webhooks.db").display());
    let handled = dir.path().join("handled");
    let failing = ["--secret", "s", "--inbox", &inbox, "--exec", "exit 75"];
    let receiver = Server::receiver(&failing);
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

    let store = run(
        "receiver",
        &["check", "--demo", "--lease", "2", "--listen", "127.0.0.1:0"],
    );
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
        let secret = [("WEBHOOK_SECRET", "s")];
        let ended = with(&secret, &[&["check"], args].concat());
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
    for profile in Sender::PROFILES {
        assert!(
            senders.out.contains(&format!("\n{profile} ")),
            "{profile}: {senders:?}"
        );
    }
    for (name, differ) in [
        ("github", true),
        ("zerohash", false),
        ("stripe", false),
        ("dropbox", true),
    ] {
        let mut lines = senders.out.lines();
        let line = lines
            .find(|it| it.starts_with(&format!("{name} ")))
            .unwrap();
        assert_eq!(
            line.contains("equal bodies are different events"),
            differ,
            "{line}"
        );
    }
    let platform = senders.out.lines().nth(1).unwrap();
    for text in [
        "chat-platform",
        "x-service-event",
        "x-service-hmac-sha256",
        "idempotency-key",
        "every 10 min for 7 days",
    ] {
        assert!(platform.contains(text), "{text}: {platform}");
    }
}

/// Stripe's key and event type stand in the body, which its library's vectors show, too.
#[test]
fn deliveries_of_another_sender_are_handled_once() {
    let dir = TempDir::new().unwrap();
    let body = dir.path().join("invoice.json");
    fs::write(&body, r#"{"id":"evt_1","type":"invoice.paid"}"#).unwrap();
    let inbox = format!("sqlite:{}", dir.path().join("webhooks.db").display());
    let acme = dir.path().join("acme.json");
    let description = r#"{"name":"acme","key":"/id","kind":"/type","signature":{"headers":["x-acme-signature"],
        "algorithm":"hmac-sha256","coding":"base64"}}"#;
    fs::write(&acme, description).unwrap();
    for sender in ["stripe", acme.to_str().unwrap()] {
        let args = ["--sender", sender, "--secret", "whsec_x", "--inbox", &inbox];
        let receiver = Server::receiver(&args);
        let send = |secret: &str| {
            let body = body.to_str().unwrap();
            let to = [
                "send",
                "--url",
                &receiver.url,
                "--secret",
                secret,
                "--sender",
                sender,
            ];
            run(
                "receiver",
                &[&to[..], &["--body", body, "--no-key"]].concat(),
            )
        };
        assert_eq!(send("whsec_x").code, 0);
        let line = r#"{"event":"invoice.paid","key":"evt_1","attempt":1,"payload":"#;
        until("the event", || {
            receiver.out().starts_with(line).then_some(())
        });
        let again = send("whsec_x");
        assert!(again.out.contains("handled before"), "{again:?}");
        assert_eq!(receiver.out().lines().count(), 1);
        assert_eq!(send("another").code, 1);
    }
}

#[test]
fn file_of_secrets_signs_what_is_sent_and_is_its_owners_alone() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("secrets");
    fs::write(&file, "first\nsecond\n").unwrap();
    let path = file.to_str().unwrap();
    let warning = "other users may read or write the file of secrets";
    for (mode, is_warned) in [(0o644, true), (0o602, true), (0o600, false)] {
        fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        let receiver = Server::receiver(&["--secret-file", path]);
        assert_eq!(receiver.err().contains(warning), is_warned, "{mode:o}");
        let args = ["send", "--url", &receiver.url, "--secret-file", path];
        let sent = with(&[("WEBHOOK_SECRET", "another")], &args);
        assert_eq!(sent.code, 0, "{sent:?}");
    }
    for (text, reason) in [
        ("\nsecond\n", "the first line of"),
        ("\u{feff}", "is empty"),
    ] {
        fs::write(&file, text).unwrap();
        let refused = run("receiver", &["send", "--secret-file", path]);
        assert_eq!(refused.code, 2, "{refused:?}");
        assert!(refused.err.contains(reason), "{refused:?}");
    }
    let missing = run("receiver", &["send", "--secret-file", "/nowhere/x"]);
    assert_eq!(missing.code, 2, "{missing:?}");
    assert!(missing.err.contains("/nowhere/x"), "{missing:?}");
}

#[cfg(feature = "public-keys")]
#[test]
fn a_public_key_stands_in_the_file_of_secrets() {
    let dir = TempDir::new().unwrap();
    let [keys, command] = ["keys", "command.json"].map(|name| dir.path().join(name));
    fs::write(
        &keys,
        "d52880e28f61caa4c2a48a82e55f4751a92289a78009ea9f6532270c16ce8abe\n",
    )
    .unwrap();
    fs::write(&command, r#"{"id":"1","type":2}"#).unwrap();
    let private = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==";
    let receiver = Server::receiver(&[
        "--sender",
        "discord",
        "--secret-file",
        keys.to_str().unwrap(),
    ]);
    let send = |secret: &str| {
        let to = [
            "send",
            "--url",
            &receiver.url,
            "--sender",
            "discord",
            "--no-key",
        ];
        let what = ["--secret", secret, "--body", command.to_str().unwrap()];
        run("receiver", &[&to[..], &what].concat())
    };
    assert_eq!(send(private).code, 0);
    until("the event", || {
        receiver
            .out()
            .starts_with(r#"{"event":"2","key":"1""#)
            .then_some(())
    });
    let other = send("whsk_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=");
    assert!(other.code == 1 && other.out.contains("401"), "{other:?}");
    let none = run(
        "receiver",
        &["check", "--sender", "discord", "--secret", "whsec_x"],
    );
    assert!(
        none.err.contains("its public key of Ed25519 is needed"),
        "{none:?}"
    );
}

#[test]
fn unknown_senders_are_explained() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("acme.json");
    fs::write(&file, "{\n\"name\":\"acme\",\n\"kee\":\"/id\"}").unwrap();
    let file = file.to_str().unwrap();
    for (args, reasons) in [
        (
            &["--sender", "strype"][..],
            &["`strype`", "use one of", "stripe"][..],
        ),
        (&["--sender", "square"], &["`square`", "url"]),
        (
            &["--sender", "./nowhere.json"],
            &["`./nowhere.json` cannot be read"],
        ),
        (
            &["--sender", file],
            &["describes no sender", "`kee`", "`key`", "line 3"],
        ),
        (&["--sender", "meta"], &["`meta`", "--sender-token-file"]),
        (
            &["--sender", "meta", "--sender-token-file", "nowhere"],
            &["`nowhere` cannot be read"],
        ),
        (
            &["--sender", "slack", "--sender-token-file", "Cargo.toml"],
            &["`slack`", "no token"],
        ),
        (
            &["--sender", "github", "--header-prefix", "acme"],
            &["cannot be used with"],
        ),
        (
            &["--sender-url", "https://example.com"],
            &["--sender <SENDER>"],
        ),
    ] {
        let secret = [("WEBHOOK_SECRET", "s")];
        let ended = with(&secret, &[&["check"], args].concat());
        assert_eq!(ended.code, 2, "{ended:?}");
        for reason in reasons {
            assert!(ended.err.contains(reason), "{reason}: {ended:?}");
        }
    }
}
