//! The operator's files: alerts, the dashboard, and the unit.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use axum::Router;
use http::StatusCode;
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use support::net;
use support::operations::{ALERTS, FILES, alerts};
use support::program::{Server, check, curl, example, installed, until};

const DASHBOARD: &str = include_str!("../../crates/receiver/operations/dashboard.json");
const UNIT: &str = include_str!("../../crates/receiver/operations/receiver.service");
const SOCKET: &str = include_str!("../../crates/receiver/operations/receiver.socket");
const METRICS: &str = include_str!("../../src/docs/metrics.md");
const TROUBLESHOOTING: &str = include_str!("../../src/docs/troubleshooting.md");

#[test]
fn alerts_fire_and_recover() {
    let dir = Path::new(FILES);
    check(
        "promtool",
        "prometheus",
        dir,
        &["check", "rules", "alerts.yml"],
    );
    check(
        "promtool",
        "prometheus",
        dir,
        &["test", "rules", "alerts.test.yml"],
    );
    let tests = fs::read_to_string(dir.join("alerts.test.yml")).unwrap();
    for alert in alerts() {
        let checks = |fires: bool| {
            let lines = tests
                .lines()
                .filter(|line| line.contains(&format!("alertname: {alert}")));
            lines
                .filter(|line| line.contains("exp_alerts") == fires)
                .count()
        };
        assert!(checks(true) >= 1, "{alert} is never seen to fire");
        assert!(
            checks(false) >= 2,
            "{alert} is not seen to be quiet before and after"
        );
    }
}

#[test]
fn every_alert_leads_to_its_section() {
    let sections: BTreeSet<_> = TROUBLESHOOTING
        .lines()
        .filter_map(|line| line.strip_prefix("## `")?.strip_suffix("`"))
        .collect();
    assert_eq!(sections, alerts());
    for alert in alerts() {
        let page = "https://docs.rs/tower-webhook/latest/tower_webhook/docs/troubleshooting/#";
        let url = format!("runbook_url: {page}{}\n", alert.to_lowercase());
        assert!(ALERTS.contains(&url), "{alert} has no {url}");
    }
}

#[test]
fn alerts_and_dashboard_use_metrics_that_exist() {
    let documented: BTreeSet<_> = METRICS
        .lines()
        .filter_map(|line| line.strip_prefix("| `webhook_")?.split_once('`'))
        .map(|(name, _)| format!("webhook_{name}"))
        .collect();
    let used = |text: &str| {
        let words = text.split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
        let names = words.filter(|word| word.starts_with("webhook_"));
        names
            .map(|name| name.trim_end_matches("_bucket").to_owned())
            .collect::<BTreeSet<_>>()
    };
    for name in used(ALERTS).union(&used(DASHBOARD)) {
        assert!(
            documented.contains(name),
            "{name} is not in the table of metrics"
        );
    }
    let shown = used(DASHBOARD);
    for name in used(ALERTS) {
        let is_limit = name == "webhook_failure_budget_limit";
        assert!(
            is_limit || shown.contains(&name),
            "{name} alerts and is not on the dashboard"
        );
    }
}

#[test]
fn expressions_of_the_dashboard_are_valid() {
    let board: Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut rules = String::from("groups:\n  - name: dashboard\n    rules:\n");
    let mut count = 0;
    assert_eq!(board["templating"]["list"][1]["name"], "job");
    for panel in board["panels"].as_array().unwrap() {
        let description = panel["description"].as_str().unwrap_or_default();
        assert!(description.len() > 30, "what for? {panel}");
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"]
                .as_str()
                .unwrap()
                .replace("$__rate_interval", "5m");
            // Of one environment.
            let metrics = ["webhook_", "process_", "receiver_"];
            let metrics = metrics.iter().map(|name| expression.matches(name).count());
            let selected = expression.matches(r#"{job="$job"}"#).count();
            assert_eq!(metrics.sum::<usize>(), selected, "{expression}");
            rules += &format!("      - {{record: panel:{count}, expr: {expression:?}}}\n");
            count += 1;
        }
    }
    assert!(count > 15);
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("rules.yml"), rules).unwrap();
    check(
        "promtool",
        "prometheus",
        dir.path(),
        &["check", "rules", "rules.yml"],
    );
}

#[test]
fn unit_is_valid_and_hardened() {
    let dir = TempDir::new().unwrap();
    let program = example("receiver");
    let program = program.get_program().to_str().unwrap();
    let unit = UNIT.replace("/usr/local/bin/receiver", program);
    assert_ne!(unit, UNIT);
    fs::write(dir.path().join("receiver.service"), unit).unwrap();
    fs::write(dir.path().join("receiver.socket"), SOCKET).unwrap();
    let verified = check(
        "systemd-analyze",
        "systemd",
        dir.path(),
        &["verify", "./receiver.service", "./receiver.socket"],
    );
    assert_eq!(verified, "", "warnings");
    let security = [
        "security",
        "--offline=true",
        "--threshold=15",
        "--no-pager",
        "./receiver.service",
    ];
    check("systemd-analyze", "systemd", dir.path(), &security);

    // The receiver knows each flag.
    let help = Command::new(program)
        .args(["run", "--help"])
        .output()
        .unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let flags = UNIT
        .split_whitespace()
        .filter(|word| word.starts_with("--"));
    for flag in flags.filter(|flag| UNIT.contains(&format!("  {flag} "))) {
        assert!(help.contains(flag), "{flag}");
    }
}

/// The system calls of a set such as `@system-service`, with those of the sets in it.
fn calls_of(sets: &[&str]) -> BTreeSet<String> {
    let args = [&["syscall-filter", "--no-pager"], sets].concat();
    let listed = check("systemd-analyze", "systemd", Path::new("."), &args);
    let lines = listed.lines().map(str::trim);
    let (sets, mut calls): (BTreeSet<_>, BTreeSet<_>) = lines
        .filter(|line| !line.is_empty() && !line.starts_with('#') && !sets.contains(line))
        .map(str::to_owned)
        .partition(|name| name.starts_with('@'));
    if !sets.is_empty() {
        let sets: Vec<_> = sets.iter().map(String::as_str).collect();
        calls.extend(calls_of(&sets));
    }
    calls
}

/// The values of a setting of the unit.
fn setting(name: &str) -> Vec<&'static str> {
    let lines = UNIT
        .lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    lines.flat_map(str::split_whitespace).collect()
}

/// Without systemd as the first process, nothing can start the unit. A receiver with its options does nothing that the
/// unit forbids: each of its system calls is recorded.
#[tokio::test(flavor = "multi_thread")]
async fn unit_allows_what_the_receiver_does() {
    let dir = TempDir::new().unwrap();
    let calls = dir.path().join("calls");
    let secret = dir.path().join("secret");
    fs::write(&secret, "s").unwrap();
    let program = example("receiver");
    let inbox = format!("sqlite:{}", dir.path().join("webhooks.db").display());
    let address = net::serve(Router::new().fallback(async || StatusCode::NO_CONTENT)).await;
    let target = format!("http://{address}/events");
    installed(
        Command::new("strace").arg("--version").output(),
        "strace",
        "strace",
    );
    let mut traced = Command::new("strace");
    // With `-D`, the child is the receiver.
    traced.args(["-D", "-f", "-q", "-o"]).arg(&calls);
    traced.arg(program.get_program()).stdin(Stdio::null());
    traced.args(["--metrics", "127.0.0.1:0", "--console", "127.0.0.1:0"]);
    traced.arg("--secret-file").arg(&secret);
    traced.args(["--inbox", &inbox, "--forward", &target]);
    let receiver = Server::start_by(&mut traced);
    let sent = receiver.send("s", &["--count", "20", "--concurrency", "4"]);
    assert_eq!(sent.code, 0, "{sent:?}");
    let console = receiver.url_of("console");
    until("handled events", || {
        let overview = curl(&[&console]);
        overview
            .contains("20 handled in the last hour")
            .then_some(())
    });
    assert!(curl(&[&receiver.url_of("metrics")]).contains("webhook_attempts_total"));
    receiver.signal(Signal::SIGTERM);
    let ended = receiver.program.finish();
    assert_eq!(ended.code, 0);
    // The journal gets no payload: the log has none, and the unit drops the lines.
    assert!(ended.out.contains("Ada Jensen") && !ended.err.contains("Ada Jensen"));
    assert_eq!(setting("StandardOutput"), ["null"]);
    let calls = until("the end of the record", || {
        let calls = fs::read_to_string(&calls).unwrap();
        calls.contains("+++ exited with 0 +++").then_some(calls)
    });

    let mut used = BTreeSet::new();
    for line in calls.lines() {
        let (_, line) = line.split_once(' ').unwrap();
        let call = line.trim_start().trim_start_matches("<... ");
        let end = call.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        used.insert(call[..end.unwrap_or(call.len())].to_owned());
        let is_code = call.contains("PROT_WRITE") && call.contains("PROT_EXEC");
        assert!(!is_code, "MemoryDenyWriteExecute: {line}");
        if let Some(socket) = call.strip_prefix("socket(") {
            let (family, _) = socket.split_once(',').unwrap();
            let families = setting("RestrictAddressFamilies");
            assert!(families.contains(&family), "{line}");
        }
    }
    used.remove("");
    assert!(used.len() > 30 && used.contains("accept4"), "{used:?}");
    let filters = setting("SystemCallFilter");
    let denied = filters.iter().position(|name| name.starts_with('~'));
    let (allowed, denied) = filters.split_at(denied.unwrap());
    let denied: Vec<_> = denied
        .iter()
        .map(|name| name.trim_start_matches('~'))
        .collect();
    let (allowed, denied) = (calls_of(allowed), calls_of(&denied));
    used.retain(|call| !allowed.contains(call) || denied.contains(call));
    // SQLite gives its files to the owner of the database only if it runs as root, which the unit does not.
    if fs::metadata(dir.path()).unwrap().uid() == 0 {
        used.remove("fchown");
    }
    assert_eq!(used, BTreeSet::new(), "SystemCallFilter forbids them");
}
