//! The operator's files: alerts, the dashboard, and the unit.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::program::{example, installed};

pub(crate) const FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/operations");
pub(crate) const ALERTS: &str = include_str!("../../examples/operations/alerts.yml");
const DASHBOARD: &str = include_str!("../../examples/operations/dashboard.json");
const UNIT: &str = include_str!("../../examples/operations/receiver.service");
const METRICS: &str = include_str!("../../src/docs/metrics.md");
const ALARMS: &str = include_str!("../../src/docs/alarms.md");

/// Runs a program, and returns what it wrote.
#[track_caller]
pub(crate) fn check(program: &str, package: &str, dir: &Path, args: &[&str]) -> String {
    let output = Command::new(program).args(args).current_dir(dir).output();
    let output = installed(output, program, package);
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{program} {args:?}:\n{text}");
    text
}

pub(crate) fn alerts() -> BTreeSet<&'static str> {
    let names = ALERTS
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    names.collect()
}

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
    let sections: BTreeSet<_> = ALARMS
        .lines()
        .filter_map(|line| line.strip_prefix("# `")?.strip_suffix("`"))
        .collect();
    assert_eq!(sections, alerts());
    for alert in alerts() {
        let page = "https://docs.rs/tower-webhook/latest/tower_webhook/docs/alarms/#";
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
    for panel in board["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"]
                .as_str()
                .unwrap()
                .replace("$__rate_interval", "5m");
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
    let verified = check(
        "systemd-analyze",
        "systemd",
        dir.path(),
        &["verify", "./receiver.service"],
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
    let help = Command::new(program).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let flags = UNIT
        .split_whitespace()
        .filter(|word| word.starts_with("--"));
    for flag in flags.filter(|flag| UNIT.contains(&format!("  {flag} "))) {
        assert!(help.contains(flag), "{flag}");
    }
}
