//! Metrics of the process, with the names that clients of Prometheus use, and of its build.

use std::fs;
use std::time::{Duration, SystemTime};

use metrics::{Unit, describe_gauge, gauge};
use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use nix::sys::time::TimeVal;

const CPU: &str = "process_cpu_seconds_total";
const MEMORY: &str = "process_resident_memory_bytes";
const FILES: &str = "process_open_fds";
const MOST_FILES: &str = "process_max_fds";
const START: &str = "process_start_time_seconds";
const BUILD: &str = "receiver_build_info";

/// Describes the metrics, and records the constant ones.
pub(crate) fn start() {
    describe_gauge!(CPU, Unit::Seconds, "CPU time of the process.");
    describe_gauge!(MEMORY, Unit::Bytes, "Resident memory of the process.");
    describe_gauge!(FILES, Unit::Count, "Open files and connections.");
    describe_gauge!(MOST_FILES, Unit::Count, "Limit of open files.");
    describe_gauge!(START, Unit::Seconds, "Start of the process (Unix time).");
    describe_gauge!(BUILD, Unit::Count, "1, with the version and the features.");
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    gauge!(START).set(since.as_secs_f64());
    let features = [
        ("console", cfg!(feature = "console")),
        ("otlp", cfg!(feature = "otlp")),
        ("postgres", cfg!(feature = "postgres")),
        ("public-keys", cfg!(feature = "public-keys")),
        ("redis", cfg!(feature = "redis")),
        ("sqlite", cfg!(feature = "sqlite")),
    ];
    let features = features.iter().filter(|(_, is_enabled)| *is_enabled);
    let features: Vec<_> = features.map(|(name, _)| *name).collect();
    gauge!(BUILD, "version" => env!("CARGO_PKG_VERSION"), "features" => features.join(",")).set(1);
}

/// Records the metrics that change. Those that the system does not have are left out.
pub(crate) fn record() {
    if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
        let cpu = duration(usage.user_time()) + duration(usage.system_time());
        gauge!(CPU).set(cpu.as_secs_f64());
    }
    if let Ok((limit, _)) = getrlimit(Resource::RLIMIT_NOFILE) {
        gauge!(MOST_FILES).set(limit as f64);
    }
    if let Ok(files) = fs::read_dir("/dev/fd") {
        // One of them is the directory.
        gauge!(FILES).set(files.count().saturating_sub(1) as f64);
    }
    if let Some(bytes) = resident() {
        gauge!(MEMORY).set(bytes as f64);
    }
}

fn duration(time: TimeVal) -> Duration {
    let seconds = u64::try_from(time.tv_sec()).unwrap_or_default();
    Duration::from_secs(seconds) + Duration::from_micros(u64::try_from(time.tv_usec()).unwrap_or(0))
}

fn resident() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let kilobytes = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = kilobytes.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kilobytes * 1024)
}
