//! The operator's alerts.

use std::collections::BTreeSet;

/// Where they and the operator's other files are.
pub const FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/receiver/operations");
pub const ALERTS: &str = include_str!("../../crates/receiver/operations/alerts.yml");

/// Their names.
pub fn alerts() -> BTreeSet<&'static str> {
    let names = ALERTS
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    names.collect()
}
