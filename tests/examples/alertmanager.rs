//! Alertmanager with the operator's routes and inhibitions.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::OriginalUri;
use axum::routing::post;
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use support::operations::alerts;
use support::program::{Program, check, installed, until_every};
use support::{lock, net};

pub(crate) const FILE: &str = include_str!("../../crates/receiver/operations/alertmanager.yml");
pub(crate) const PACKAGE: &str = "prometheus-alertmanager";

/// Alertmanager with the operator's file, and what it sends.
pub(crate) struct Alertmanager {
    _program: Program,
    _runtime: Runtime,
    pub(crate) address: String,
    pub(crate) sent: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Alertmanager {
    pub(crate) fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        let sent: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
        let noted = Arc::clone(&sent);
        let note = async move |OriginalUri(uri): OriginalUri, body: String| {
            let body = serde_json::from_str(&body).unwrap();
            lock(&noted).push((uri.path().to_owned(), body));
        };
        let sink = runtime.block_on(net::serve(Router::new().fallback(post(note))));

        let dir = TempDir::new().unwrap();
        let file = [
            ("group_wait: 10s", "group_wait: 1s"),
            ("group_interval: 5m", "group_interval: 1s"),
            ("127.0.0.1:9095", &sink.to_string()),
        ]
        .into_iter()
        .fold(FILE.to_owned(), |file, (setting, of_test)| {
            assert!(file.contains(setting), "{setting}");
            file.replace(setting, of_test)
        });
        fs::write(dir.path().join("alertmanager.yml"), file).unwrap();
        let version = Command::new(PACKAGE).arg("--version").output();
        installed(version, PACKAGE, PACKAGE);
        let mut command = Command::new(PACKAGE);
        command
            .current_dir(dir.path())
            .args(["--config.file=alertmanager.yml", "--storage.path=data"])
            .args([
                "--web.listen-address=127.0.0.1:0",
                "--cluster.listen-address=",
            ]);
        let program = Program::spawn(&mut command, dir);
        let address = until_every(Duration::from_millis(50), "Alertmanager", || {
            let log = program.err();
            let (_, address) = log.split_once("msg=\"Listening on\" address=")?;
            let (address, _) = address.split_once('\n')?;
            Some(address.trim().to_owned())
        });
        Self {
            _program: program,
            _runtime: runtime,
            address,
            sent,
        }
    }

    fn amtool(&self, args: &[&str]) -> String {
        let url = format!("--alertmanager.url=http://{}", self.address);
        let args = [&[&*url, "--output=json"], args].concat();
        check("amtool", PACKAGE, Path::new("."), &args)
    }

    /// Adds an alert such as `WebhookSilent critical kind=chat-rated`.
    pub(crate) fn add(&self, alert: &str) {
        let (name, labels) = alert.split_once(' ').unwrap();
        assert!(alerts().contains(name), "{name}");
        let (severity, labels) = labels.split_once(' ').unwrap_or((labels, ""));
        let name = format!("alertname={name}");
        let severity = format!("severity={severity}");
        let mut args = vec!["alert", "add", &name, &severity];
        args.extend(labels.split_whitespace());
        self.amtool(&args);
    }

    /// The alerts that are muted because of others.
    pub(crate) fn inhibited(&self) -> BTreeSet<String> {
        let alerts = self.amtool(&["alert", "query", "--inhibited"]);
        let alerts: Vec<Value> = serde_json::from_str(&alerts).unwrap();
        alerts.iter().map(name).collect()
    }

    /// The alerts in all that was sent to a path, and how often something was.
    pub(crate) fn sent(&self, path: &str) -> (usize, BTreeSet<String>) {
        let sent = lock(&self.sent);
        let sent: Vec<_> = sent.iter().filter(|(to, _)| to == path).collect();
        let alerts = sent.iter().flat_map(|(_, body)| body["alerts"].as_array());
        (sent.len(), alerts.flatten().map(name).collect())
    }

    /// Waits until these alerts were sent to a path, and no others.
    #[track_caller]
    pub(crate) fn sends(&self, path: &str, expected: &[&str]) {
        let expected: BTreeSet<_> = expected.iter().map(|&name| name.to_owned()).collect();
        let what = format!("{expected:?} and nothing else at {path}");
        until_every(Duration::from_millis(100), &what, || {
            let (_, sent) = self.sent(path);
            assert!(sent.is_subset(&expected), "{sent:?}");
            (sent == expected).then_some(())
        });
    }
}

/// What tells alerts apart here.
fn name(alert: &Value) -> String {
    let labels = &alert["labels"];
    let texts = ["alertname", "kind", "at_least"].map(|label| labels[label].as_str());
    texts.into_iter().flatten().collect::<Vec<_>>().join(" ")
}
