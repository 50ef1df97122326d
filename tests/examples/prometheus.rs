//! The operator's alerts in Prometheus itself, which scrapes a receiver, and in Alertmanager.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use support::lock;
use support::operations::{ALERTS, FILES, alerts};
use support::program::{Program, Server, check, curl, installed, run, until_every};

use crate::alertmanager::{Alertmanager, FILE, PACKAGE};

/// Prometheus with the operator's alerts. How long conditions last before they fire is for `promtool` to prove.
struct Prometheus {
    _program: Program,
    url: String,
}

impl Prometheus {
    fn scraping(metrics: &str, manager: &str) -> Self {
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
             static_configs: [{{targets: [\"{target}\"]}}]\n\
             alerting:\n  alertmanagers:\n  - static_configs: [{{targets: [\"{manager}\"]}}]\n"
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
    let manager = Alertmanager::start();
    let prometheus = Prometheus::scraping(&receiver.url_of("metrics"), &manager.address);
    until_every(Duration::from_millis(200), "the first scrape", || {
        prometheus.is_scraping().then_some(())
    });
    prometheus.fires(&[]);

    let sent = receiver.send("s", &["--event", "chat-rated"]);
    assert_eq!(sent.code, 0, "{sent:?}");
    prometheus.fires(&["WebhookDeadLetters"]);
    manager.sends("/ticket", &["WebhookDeadLetters chat-rated 1"]);
    assert_eq!(manager.sent("/page").0, 0);

    // As after a change of the secret in the partner portal.
    let refused = receiver.send("wrong", &["--count", "249"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    let refused = receiver.send("wrong", &["--count", "1"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    prometheus.fires(&["WebhookDeadLetters", "WebhookUnverifiedRequests"]);
    manager.sends("/page", &["WebhookUnverifiedRequests"]);
    let muted = || {
        let muted = manager.inhibited().contains("WebhookUnverifiedRequests");
        muted.then_some(())
    };
    until_every(Duration::from_millis(200), "the warning, muted", muted);

    let dead = ["discard", "--all", "--state", "dead", "--yes"];
    let discarded = run(
        "receiver",
        &[&["inbox", "--inbox", &inbox], &dead[..]].concat(),
    );
    assert_eq!(discarded.code, 0, "{discarded:?}");
    prometheus.fires(&["WebhookUnverifiedRequests"]);

    drop(receiver);
    prometheus.fires(&["WebhookReceiverDown"]);
    manager.sends(
        "/page",
        &["WebhookUnverifiedRequests", "WebhookReceiverDown"],
    );
}

#[test]
fn the_file_is_valid_and_names_alerts_that_exist() {
    let file = ["check-config", "alertmanager.yml"];
    check("amtool", PACKAGE, Path::new(FILES), &file);
    let words = FILE.split(|it: char| !it.is_ascii_alphanumeric());
    let named: BTreeSet<_> = words.filter(|word| word.starts_with("Webhook")).collect();
    assert!(named.len() > 5, "{named:?}");
    assert!(named.is_subset(&alerts()), "{named:?}");
}

/// An outage: the alert of its cause, what follows from it, and what does not.
struct Outage {
    cause: &'static str,
    follow: &'static [&'static str],
    another: &'static str,
}

const OUTAGES: &[Outage] = &[
    Outage {
        cause: "WebhookDatabaseUnavailable critical target=inbox",
        follow: &[
            "WebhookBudgetSpent warning route=chat-platform kind=chat-rated",
            "WebhookBudgetSpent critical route=chat-platform kind=chat-rated",
            "WebhookBudgetSpent critical route=chat-platform kind=chat-closed",
            "WebhookOldestWaiting warning route=chat-platform kind=chat-rated",
            "WebhookKindFails critical route=chat-platform kind=chat-rated",
        ],
        another: "WebhookInboxNearLimit critical",
    },
    Outage {
        cause: "WebhookKindFails critical route=chat-platform kind=chat-rated",
        follow: &[
            "WebhookOldestWaiting warning route=chat-platform kind=chat-rated",
            "WebhookDeadLetters warning route=chat-platform kind=chat-rated at_least=1",
            "WebhookDeadLetters warning route=chat-platform kind=chat-rated at_least=100",
        ],
        another: "WebhookKindFails critical route=another kind=chat-rated",
    },
    Outage {
        cause: "WebhookReceiverDown critical instance=a",
        follow: &[
            "WebhookSilent critical route=chat-platform kind=chat-rated",
            "WebhookSilent critical route=chat-platform kind=chat-closed",
        ],
        another: "WebhookBudgetSpent critical route=chat-platform kind=chat-rated",
    },
    Outage {
        cause: "WebhookUnverifiedRequests critical route=chat-platform",
        follow: &[
            "WebhookUnverifiedRequests warning route=chat-platform",
            "WebhookSilent critical route=chat-platform kind=chat-rated",
        ],
        another: "WebhookSilent critical route=github kind=push",
    },
    Outage {
        cause: "WebhookBudgetSpent critical route=chat-platform kind=chat-rated",
        follow: &["WebhookBudgetSpent warning route=chat-platform kind=chat-rated"],
        another: "WebhookSilent critical route=chat-platform kind=chat-rated",
    },
];

/// An alert of a list, as it is sent.
fn as_sent(alert: &str) -> String {
    let words = alert.split_whitespace();
    let words = words.filter_map(|word| match word.split_once('=') {
        Some(("kind" | "at_least", value)) => Some(value),
        Some(_) => None,
        None => Some(word).filter(|word| !["critical", "warning"].contains(word)),
    });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn one_outage_is_one_page() {
    for outage in OUTAGES {
        let manager = Alertmanager::start();
        let cause = as_sent(outage.cause);
        manager.add(outage.cause);
        manager.sends("/page", &[&cause]);
        for alert in outage.follow {
            manager.add(alert);
        }
        let follow: BTreeSet<_> = outage.follow.iter().map(|alert| as_sent(alert)).collect();
        assert_eq!(manager.inhibited(), follow, "{cause}");
        // Alerts that were not muted would be sent each second.
        sleep(Duration::from_secs(3));
        assert_eq!(manager.sent("/page").0, 1, "pages of {cause}");
        assert_eq!(manager.sent("/ticket").0, 0, "tickets of {cause}");
        // Another outage is not muted.
        manager.add(outage.another);
        manager.sends("/page", &[&cause, &as_sent(outage.another)]);
    }
}

#[test]
fn what_comes_before_its_cause_is_of_the_same_page() {
    let manager = Alertmanager::start();
    manager.add("WebhookBudgetSpent critical route=chat-platform kind=chat-rated");
    manager.sends("/page", &["WebhookBudgetSpent chat-rated"]);
    manager.add("WebhookDatabaseUnavailable critical target=inbox");
    let both = [
        "WebhookBudgetSpent chat-rated",
        "WebhookDatabaseUnavailable",
    ];
    manager.sends("/page", &both);
    let sent = lock(&manager.sent);
    let groups: BTreeSet<_> = sent
        .iter()
        .map(|(_, body)| body["groupKey"].as_str())
        .collect();
    assert_eq!(groups.len(), 1, "{sent:?}");
}

#[test]
fn dead_letters_are_told_again_as_they_grow() {
    let manager = Alertmanager::start();
    let mut seen = Vec::new();
    for at_least in [1, 10, 100, 1_000, 10_000] {
        manager.add(&format!(
            "WebhookDeadLetters warning route=chat-platform kind=chat-rated at_least={at_least}"
        ));
        let muted: BTreeSet<_> = seen.iter().cloned().collect();
        assert_eq!(manager.inhibited(), muted);
        seen.push(format!("WebhookDeadLetters chat-rated {at_least}"));
        let sent: Vec<_> = seen.iter().map(String::as_str).collect();
        manager.sends("/ticket", &sent);
    }
    assert_eq!(manager.sent("/page").0, 0);
}
