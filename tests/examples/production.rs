//! The example of an application in production.

use serde_json::Value;
use tempfile::TempDir;

use support::program::{Server, curl, example, run, until};

#[test]
fn a_login_without_a_name_or_a_password_is_refused() {
    for login in ["ada", "ada:", ":", ":correct-horse", ""] {
        let refused = run("production", &["--console-login", login]);
        assert_eq!(refused.code, 2, "{login:?}: {refused:?}");
        assert!(
            refused.err.contains("expected NAME:PASSWORD"),
            "{login:?}: {refused:?}"
        );
    }
}

#[test]
fn an_application_has_readiness_metrics_a_log_and_a_login() {
    let dir = TempDir::new().unwrap();
    let mut command = example("production");
    command
        .args(["--operators", "127.0.0.1:0"])
        .arg("--database")
        .arg(dir.path().join("webhooks.db"))
        .envs([("WEBHOOK_SECRET", "one"), ("GITHUB_SECRET", "two")])
        .env("CONSOLE_LOGIN", "ada:correct-horse");
    let production = Server::start_by(&mut command);
    let base = format!("http://{}", production.address());
    let err = production.err();
    let (_, console) = err.split_once("console on ").unwrap();
    let console = console.split('\n').next().unwrap().to_owned();
    let send = |path: &str, secret: &str, args: &[&str]| {
        let url = format!("{base}{path}");
        run(
            "receiver",
            &[&["send", "--url", &url, "--secret", secret], args].concat(),
        )
    };

    let status = ["-o", "/dev/null", "-w", "%{http_code}"];
    for path in ["/healthz", "/readyz"] {
        assert_eq!(
            curl(&[&status[..], &[&format!("{base}{path}")]].concat()),
            "200"
        );
    }
    assert_eq!(
        send(
            "/webhooks",
            "one",
            &["--event", "chat-rated", "--key", "key-1"]
        )
        .code,
        0
    );
    let github = ["--sender", "github", "--event", "push", "--key", "key-1"];
    assert_eq!(send("/github", "two", &github).code, 0);
    assert_eq!(send("/github", "wrong", &github).code, 1);
    until("two events", || {
        (production.out().lines().count() == 2).then_some(())
    });

    // Nobody sees the console without the login, and what a client says of itself does not count.
    assert_eq!(curl(&[&status[..], &[&console]].concat()), "401");
    let login = |user| ["-u", user, "-H", "x-operator: mallory"];
    assert_eq!(
        curl(&[&status[..], &login("ada:correct"), &[&console]].concat()),
        "401"
    );
    let page = curl(&[&login("ada:correct-horse")[..], &[&console]].concat());
    assert!(
        page.contains("chat-rated") && page.contains("github/push"),
        "{page}"
    );
    let origin = format!("origin: {}", console.trim_end_matches('/'));
    let pause = "of=chat-platform/chat-rated&who=&reason=tired";
    let pause = ["-H", &origin, "-d", pause];
    let url = format!("{console}pause");
    curl(&[&login("ada:correct-horse")[..], &pause, &[&url]].concat());
    let actions = curl(
        &[
            &login("ada:correct-horse")[..],
            &[&format!("{console}actions")],
        ]
        .concat(),
    );
    assert!(
        actions.contains("ada") && actions.contains("tired"),
        "{actions}"
    );
    assert!(!actions.contains("mallory"), "{actions}");

    // One observer counts both routes.
    let metrics = curl(&[&format!("{console}metrics")]);
    for series in [
        r#"webhook_attempts_total{outcome="handled",route="chat-platform",kind="chat-rated"} 1"#,
        r#"webhook_attempts_total{outcome="handled",route="github",kind="push"} 1"#,
        r#"webhook_unverified_failures{route="github"} 1"#,
        r#"webhook_inbox_paused{route="chat-platform",kind="chat-rated"} 1"#,
    ] {
        assert!(metrics.contains(series), "{series} is missing:\n{metrics}");
    }

    let err = production.err();
    assert_eq!(production.stop(), 0);
    let log = err.lines().filter(|line| !line.contains(" on http://"));
    let log: Vec<Value> = log
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let refused = log
        .iter()
        .find(|it| it["fields"]["outcome"] == "invalid-signature");
    assert_eq!(refused.unwrap()["span"]["route"], "github");
}
