//! The machine: its cores, clocks and disk, and a description of it.

use std::fmt;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::time::ClockId;
use nix::unistd::Pid;

/// A non-empty set of the machine's cores.
#[derive(Clone, Debug)]
pub(crate) struct Cores(Vec<usize>);

impl Cores {
    /// Returns the cores that this process may use.
    pub(crate) fn allowed() -> Result<Self> {
        let set = sched_getaffinity(THIS)?;
        let cores = (0..CpuSet::count()).filter(|core| set.is_set(*core).unwrap_or(false));
        Ok(Self(cores.collect()))
    }

    /// Returns one core for the receiver and one for the load; if possible, not two threads of one core.
    pub(crate) fn two() -> Result<(Self, Self)> {
        let allowed = Self::allowed()?;
        let first = allowed.0[0];
        let siblings = siblings(first);
        let others = || allowed.0.iter().filter(|core| **core != first);
        let second = others()
            .find(|core| !siblings.contains(core))
            .or(others().next())
            .context("the benchmark needs two cores: one for the receiver, one for the load")?;
        Ok((Self(vec![first]), Self(vec![*second])))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn only(&self, at: usize) -> Self {
        Self(vec![self.0[at]])
    }

    /// Restricts this thread, and the threads that it starts, to these cores.
    pub(crate) fn pin(&self) -> Result<()> {
        let mut set = CpuSet::new();
        for core in &self.0 {
            set.set(*core).with_context(|| format!("no core {core}"))?;
        }
        sched_setaffinity(THIS, &set).with_context(|| format!("cannot run on the cores {self}"))
    }
}

const THIS: Pid = Pid::from_raw(0);

/// Returns the threads of the same core, which Linux lists as `0,4` or `0-1`.
fn siblings(core: usize) -> Vec<usize> {
    let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
    let list = fs::read_to_string(path).unwrap_or_default();
    list.trim().parse().map_or(Vec::new(), |Cores(cores)| cores)
}

impl FromStr for Cores {
    type Err = String;

    fn from_str(list: &str) -> Result<Self, String> {
        let wrong = || format!("`{list}` is not a list of cores such as `0,2-3`");
        let mut cores = Vec::new();
        for part in list.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let [first, last] = [first, last].map(|core| core.trim().parse::<usize>());
            cores.extend(first.map_err(|_| wrong())?..=last.map_err(|_| wrong())?);
        }
        match cores.is_empty() {
            true => Err(wrong()),
            false => Ok(Self(cores)),
        }
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cores: Vec<_> = self.0.iter().map(usize::to_string).collect();
        f.write_str(&cores.join(","))
    }
}

/// Returns the processor time of a clock.
pub(crate) fn cpu_time(clock: ClockId) -> Result<Duration> {
    Ok(clock.now()?.into())
}

/// Returns the median times to write 4 KiB durably to the disk of `directory`: overwriting a file that has
/// its final size, as SQLite does with a log that it reuses, and appending, as it does until then.
pub(crate) fn fdatasync(directory: &Path, time: Duration) -> Result<[Duration; 2]> {
    const PAGE: [u8; 4096] = [0x5a; 4096];
    const PAGES: u64 = 1024;

    let file = tempfile::tempfile_in(directory)?;
    let median = |pages: &mut dyn Iterator<Item = u64>| -> Result<Duration> {
        let began = Instant::now();
        let mut times = Vec::new();
        while began.elapsed() < time / 2 {
            let at = pages.next().unwrap_or(0) * PAGE.len() as u64;
            let before = Instant::now();
            file.write_all_at(&PAGE, at)?;
            file.sync_data()?;
            times.push(before.elapsed());
        }
        times.sort_unstable();
        Ok(times[times.len() / 2])
    };
    for at in 0..PAGES {
        file.write_all_at(&PAGE, at * PAGE.len() as u64)?;
    }
    file.sync_all()?;
    Ok([median(&mut (0..PAGES).cycle())?, median(&mut (PAGES..))?])
}

/// Describes the machine for `benches/results.md`, and its load.
pub(crate) fn describe() -> String {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown processor", |(_, model)| model);
    let cores = cpu.matches("\nprocessor").count() + usize::from(cpu.starts_with("processor"));
    let rustc = Command::new("rustc").arg("--version").output();
    let rustc = rustc.map_or_else(
        |_| "rustc unknown".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    );
    let kernel = read("/proc/sys/kernel/osrelease");
    let load = read("/proc/loadavg");
    let load = load.split(' ').next().unwrap_or_default();
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "{model}, {cores} cores; Linux {}; {rustc}; tower-webhook {version}; load before the start: {load}",
        kernel.trim()
    )
}
