//! The operator's alerts in Prometheus itself, which scrapes a receiver.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use support::operations::ALERTS;
use support::program::{Program, Server, curl, installed, run, until_every};

/// Prometheus with the operator's alerts. How long conditions last before they fire is for `promtool` to prove.
struct Prometheus {
    _program: Program,
    url: String,
}

impl Prometheus {
    fn scraping(metrics: &str) -> Self {
        let dir = TempDir::new().unwrap();
        let alerts = ["interval: 30s", "interval: 1m", "for: 1m", "for: 2m"]
            .into_iter()
            .fold(ALERTS.to_owned(), |alerts, setting| {
                assert!(alerts.contains(setting), "{setting}");
                let (name, _) = setting.split_once(' ').unwrap();
                alerts.replace(setting, &format!("{name} 1s"))
            });
        fs::write(dir.path().join("alerts.yml"), alerts).unwrap();
        let target = metrics.strip_prefix("http://").unwrap();
        let (target, path) = target.split_once('/').unwrap();
        assert_eq!(path, "metrics");
        let config = format!(
            "rule_files: [alerts.yml]\n\
             scrape_configs:\n  - job_name: webhook\n    scrape_interval: 1s\n    \
             static_configs: [{{targets: [\"{target}\"]}}]\n"
        );
        fs::write(dir.path().join("prometheus.yml"), config).unwrap();
        let version = Command::new("prometheus").arg("--version").output();
        installed(version, "prometheus", "prometheus");
        let mut command = Command::new("prometheus");
        command
            .current_dir(dir.path())
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
            .arg("--web.listen-address=127.0.0.1:0");
        let program = Program::spawn(&mut command, dir);
        let address = until_every(Duration::from_millis(50), "Prometheus", || {
            let log = program.err();
            assert!(!log.contains("level=error"), "{log}");
            let (_, address) = log.split_once("msg=\"Listening on\" address=")?;
            let (address, _) = address.split_once('\n')?;
            log.contains("Server is ready")
                .then(|| address.trim().to_owned())
        });
        Self {
            _program: program,
            url: format!("http://{address}/api/v1"),
        }
    }

    fn get(&self, path: &str) -> Value {
        let answer = curl(&[&format!("{}/{path}", self.url)]);
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }

    fn is_scraping(&self) -> bool {
        self.get("query?query=up")["data"]["result"][0]["value"][1] == "1"
    }

    fn firing(&self) -> BTreeSet<String> {
        let answer = self.get("alerts");
        let alerts = answer["data"]["alerts"].as_array().unwrap();
        let firing = alerts.iter().filter(|alert| alert["state"] == "firing");
        firing
            .map(|alert| alert["labels"]["alertname"].as_str().unwrap().to_owned())
            .collect()
    }

    #[track_caller]
    fn fires(&self, expected: &[&str]) {
        let expected: BTreeSet<_> = expected.iter().map(|&name| name.to_owned()).collect();
        let mut last = BTreeSet::new();
        until_every(
            Duration::from_millis(200),
            &format!("{expected:?} and nothing else"),
            || {
                let firing = self.firing();
                if firing != last {
                    println!("{firing:?}");
                    last.clone_from(&firing);
                }
                (firing == expected).then_some(())
            },
        );
    }
}

#[test]
fn prometheus_warns_of_what_happens_to_a_receiver() {
    let dir = TempDir::new().unwrap();
    let inbox = format!("sqlite:{}", dir.path().join("webhooks.db").display());
    let receiver = Server::receiver(&[
        "--secret",
        "s",
        "--inbox",
        &inbox,
        "--exec",
        "false",
        "--max-attempts",
        "1",
        "--metrics",
        "127.0.0.1:0",
    ]);
    let prometheus = Prometheus::scraping(&receiver.url_of("metrics"));
    until_every(Duration::from_millis(200), "the first scrape", || {
        prometheus.is_scraping().then_some(())
    });
    prometheus.fires(&[]);

    let sent = receiver.send("s", &["--event", "chat-rated"]);
    assert_eq!(sent.code, 0, "{sent:?}");
    prometheus.fires(&["WebhookDeadLetters"]);

    // As after a change of the secret in the partner portal.
    let refused = receiver.send("wrong", &["--count", "249"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    let refused = receiver.send("wrong", &["--count", "1"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    prometheus.fires(&["WebhookDeadLetters", "WebhookUnverifiedRequests"]);

    let dead = ["discard", "--all", "--state", "dead", "--yes"];
    let discarded = run(
        "receiver",
        &[&["inbox", "--inbox", &inbox], &dead[..]].concat(),
    );
    assert_eq!(discarded.code, 0, "{discarded:?}");
    prometheus.fires(&["WebhookUnverifiedRequests"]);

    drop(receiver);
    prometheus.fires(&["WebhookReceiverDown"]);
}
