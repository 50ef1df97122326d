//! The receiver's metrics, as Prometheus reads them.

use std::time::SystemTime;

use tempfile::TempDir;

use support::program::{Server, curl, run, until};

fn get(url: &str) -> String {
    let answer = curl(&["-i", url]);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(
        head.contains("content-type: text/plain; version=0.0.4"),
        "{head}"
    );
    body.to_owned()
}

#[test]
fn metrics_are_served_for_prometheus() {
    let receiver = Server::receiver(&["--secret", "s", "--metrics", "127.0.0.1:0"]);
    let url = receiver.url_of("metrics");
    let sent = receiver.send("s", &["--event", "chat-rated", "--key", "a"]);
    assert_eq!(sent.code, 0, "{sent:?}");
    let forged = receiver.send("wrong", &["--event", "chat-rated", "--key", "b"]);
    assert_eq!(forged.code, 1, "{forged:?}");

    let metrics = get(&url);
    for line in [
        r#"webhook_deliveries_total{outcome="handled",route="chat-platform",kind="chat-rated",sender="chat-platform"} 1"#,
        r#"webhook_deliveries_total{outcome="invalid-signature",route="chat-platform",kind="unverified",sender="chat-platform"} 1"#,
        r#"webhook_failure_budget_spent{route="chat-platform",kind="chat-rated"} 0"#,
        r#"webhook_failure_budget_limit{route="chat-platform"} 500"#,
        r#"webhook_unverified_failures{route="chat-platform"} 1"#,
        "webhook_evictions_total 0",
        "webhook_buffered_bytes 0",
        r#"webhook_attempt_duration_seconds_count{route="chat-platform",kind="chat-rated"} 1"#,
        "# TYPE webhook_deliveries_total counter",
        "# HELP webhook_unverified_failures ",
        r#"webhook_delivery_duration_seconds_bucket{route="chat-platform",kind="chat-rated",le="1"} 1"#,
        r#"webhook_delivery_duration_seconds_bucket{route="chat-platform",kind="chat-rated",le="4"} 1"#,
        concat!(
            "receiver_build_info{version=\"",
            env!("CARGO_PKG_VERSION"),
            "\",features=\""
        ),
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    let value = |name: &str| -> f64 {
        let mut lines = metrics.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value
            .unwrap_or_else(|| panic!("no {name}"))
            .parse()
            .unwrap()
    };
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
    for (name, least, most) in [
        ("process_cpu_seconds_total", 0.001, 60.0),
        ("process_resident_memory_bytes", 1e6, 1e9),
        ("process_open_fds", 5.0, 100.0),
        ("process_max_fds", 100.0, f64::INFINITY),
        ("process_start_time_seconds", now - 60.0, now),
    ] {
        let value = value(name);
        assert!((least..=most).contains(&value), "{name} is {value}");
    }
}

#[test]
fn metrics_are_refused_under_the_name_of_another_site() {
    let names = ["--metrics-host", "receiver.internal,north"];
    for (address, names, of_name) in [
        ("127.0.0.1:0", &[][..], "421"),
        // A name of another site may also resolve to an address in the operator's network.
        ("0.0.0.0:0", &[], "421"),
        ("0.0.0.0:0", &names, "200"),
    ] {
        let args = ["--secret", "s", "--metrics", address];
        let receiver = Server::receiver(&[&args[..], names].concat());
        let url = receiver.url_of("metrics");
        for (host, status) in [
            ("evil.example", "421"),
            ("127.0.0.1.evil.example:9464", "421"),
            ("localhost:9464", "200"),
            ("127.0.0.1:9464", "200"),
            ("10.1.2.3:9464", "200"),
            ("[::1]", "200"),
            ("receiver.internal:9464", of_name),
            ("NORTH", of_name),
        ] {
            let host = format!("Host: {host}");
            let code = curl(&["-o", "/dev/null", "-w", "%{http_code}", "-H", &host, &url]);
            assert_eq!(code, status, "{address}: {host}");
        }
    }
}

#[test]
fn metrics_of_an_inbox_show_its_backlog() {
    let dir = TempDir::new().unwrap();
    let inbox = format!("sqlite:{}", dir.path().join("webhooks.db").display());
    let receiver = Server::receiver(&[
        "--secret",
        "s",
        "--inbox",
        &inbox,
        "--exec",
        "false",
        "--metrics",
        "127.0.0.1:0",
    ]);
    let url = receiver.url_of("metrics");
    for key in ["a", "b"] {
        let sent = receiver.send("s", &["--event", "chat-rated", "--key", key]);
        assert_eq!(sent.code, 0, "{sent:?}");
    }
    until("the failed attempt", || {
        let metrics = get(&url);
        let lines = [
            r#"webhook_inbox_retrying{route="chat-platform",kind="chat-rated"} 1"#,
            r#"webhook_inbox_waiting{route="chat-platform",kind="chat-rated"} 1"#,
            r#"webhook_attempts_total{outcome="failed",route="chat-platform",kind="chat-rated"} 1"#,
            r#"webhook_start_delay_seconds_bucket{route="chat-platform",kind="chat-rated",le="600"} 1"#,
        ];
        let is_shown = lines.iter().all(|line| metrics.contains(line));
        is_shown.then_some(())
    });
}

#[test]
fn an_address_in_use_and_a_wrong_expectation_are_clear_errors() {
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    let taken = run(
        "receiver",
        &["--demo", "--listen", "127.0.0.1:0", "--metrics", &address],
    );
    assert_eq!(taken.code, 1, "{taken:?}");
    assert!(
        taken.err.contains(&format!("cannot listen on {address}")),
        "{taken:?}"
    );
    assert!(taken.err.contains("--metrics 127.0.0.1:9465"), "{taken:?}");

    let elsewhere = run("receiver", &["--demo", "--expect", "github/push=4"]);
    assert_eq!(elsewhere.code, 2, "{elsewhere:?}");
    let said = "the route `github`, and the receiver has `chat-platform`";
    assert!(elsewhere.err.contains(said), "{elsewhere:?}");

    for expectation in [
        "chat-rated",
        "chat-rated=",
        "chat-rated=0",
        "chat rated=4",
        "=4",
    ] {
        let wrong = run("receiver", &["--demo", "--expect", expectation]);
        assert_eq!(wrong.code, 2, "{wrong:?}");
        assert!(wrong.err.contains("message-created=4"), "{wrong:?}");
    }
}
