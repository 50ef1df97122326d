//! A cluster in one thread, whose run depends on nothing but a seed.
//!
//! ```sh
//! cargo test --locked --workspace --all-features --test cluster                  # old seeds, and what else is a test
//! cargo test --locked --workspace --all-features --test cluster -- --seed 17     # one day
//! cargo test --locked --workspace --all-features --test cluster -- --seconds 60  # new seeds, for a minute of CPU
//! cargo test --locked --workspace --all-features --test cluster -- --replay FILE # the history of a failed day
//! cargo test --locked --workspace --all-features --test cluster -- --planted     # mistakes of a queue
//! ```

mod batches;
mod day;
mod flaky;

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, SystemTime};

use nix::time::{ClockId, clock_gettime};

use self::day::{Lived, live};
use support::history::Mistake;
use support::lock;

/// Seeds that have failed once, or that have what is rare.
const OLD_SEEDS: &str = include_str!("seeds.txt");

/// Each is a test for `cargo test` and nextest.
const TESTS: [(&str, fn()); 4] = [
    (
        "mistakes_that_need_a_cluster_are_found",
        mistakes_that_need_a_cluster_are_found,
    ),
    ("old_seeds_keep_every_promise", old_seeds_keep_every_promise),
    ("one_seed_is_one_history", one_seed_is_one_history),
    (
        "histories_that_do_not_replay_are_refused",
        histories_that_do_not_replay_are_refused,
    ),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--seed", seed] => parse(seed, "seed").and_then(one),
        ["--seconds", seconds] => parse(seconds, "number of seconds").and_then(new_seeds),
        ["--planted"] => planted(),
        ["--replay", file] => replay(Path::new(file)),
        [option @ ("--seed" | "--seconds" | "--replay"), ..] => {
            Err(format!("`{option}` takes one value, and stands alone"))
        }
        _ => tests(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(1)
        }
    }
}

fn parse(text: &str, what: &str) -> Result<u64, String> {
    text.parse().map_err(|_| {
        format!(
            "`{text}` is no {what}: give a number from 0 to {}",
            u64::MAX
        )
    })
}

/// Lives one day, and shows what it has shown.
fn one(seed: u64) -> Result<(), String> {
    let lived = live(seed, Mistake::None);
    println!(
        "seed {seed}, history {:016x}: {}",
        lived.hash(),
        Sum::default().and(&lived)
    );
    expect_none(seed, &lived)
}

/// Fails with the seed, the file of the history, and what is broken.
fn expect_none(seed: u64, lived: &Lived) -> Result<(), String> {
    let Some(first) = lived.violations.first() else {
        return Ok(());
    };
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("cluster-{seed}.txt"));
    let history = written(seed, &lived.lines);
    let kept = match fs::write(&file, history) {
        Ok(()) => format!("its history is in {}", file.display()),
        Err(error) => format!("its history could not be written: {error}"),
    };
    let number = lived.violations.len();
    Err(format!(
        "seed {seed}: {number} broken promises, the first of which is\n  {first}\n{kept}\nto see it again: cargo test \
         --locked --workspace --all-features --test cluster -- --seed {seed}"
    ))
}

/// A history as a file.
fn written(seed: u64, lines: &[String]) -> String {
    format!("seed {seed}\n{}\n", lines.join("\n"))
}

/// Lives the day of a history once more, which must be the same.
fn replay(file: &Path) -> Result<(), String> {
    let path = file.display();
    let text =
        fs::read_to_string(file).map_err(|error| format!("{path} cannot be read: {error}"))?;
    let mut lines = text.lines();
    let seed = lines.next().and_then(|first| first.strip_prefix("seed "));
    let seed =
        seed.ok_or_else(|| format!("{path} is no history: its first line is not `seed NUMBER`"))?;
    let seed = parse(seed, "seed").map_err(|error| format!("{path}: {error}"))?;
    let lived = live(seed, Mistake::None);
    let mut again = lived.lines.iter();
    for number in 2.. {
        match (lines.next(), again.next()) {
            (None, None) => break,
            (then, now) if then == now.map(String::as_str) => {}
            (then, now) => {
                return Err(format!(
                    "{path} does not replay: the library, or this test, is not the one that has written it. Line \
                     {number} was\n  {}\nand is\n  {}",
                    then.unwrap_or("the end"),
                    now.map_or("the end", String::as_str),
                ));
            }
        }
    }
    println!("{path} is replayed");
    expect_none(seed, &lived)
}

/// What days have shown.
#[derive(Clone, Copy, Default)]
struct Sum {
    days: usize,
    deliveries: usize,
    items: usize,
    faults: usize,
    faulty: usize,
    failures: usize,
}

impl Sum {
    fn and(self, lived: &Lived) -> Self {
        Self {
            days: self.days + 1,
            deliveries: self.deliveries + lived.deliveries,
            items: self.items + lived.items,
            faults: self.faults + lived.faults,
            faulty: self.faulty + lived.faulty_deliveries,
            failures: self.failures + lived.failures,
        }
    }
}

impl std::fmt::Display for Sum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            days,
            deliveries,
            items,
            faults,
            faulty,
            failures,
        } = self;
        write!(
            f,
            "{days} days, {deliveries} deliveries, {items} items of batches, {faults} faults of processes, clocks and the \
             queue, {faulty} of deliveries; the senders saw {failures} failures"
        )
    }
}

/// Lives days with new seeds on all cores, for so many seconds of CPU time.
fn new_seeds(seconds: u64) -> Result<(), String> {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let first = now.as_secs() * 1_000;
    println!("seeds from {first}");
    let began = cpu_time();
    let next = Mutex::new(first);
    let sum = Mutex::new(Sum::default());
    let failed = Mutex::new(None);
    let work = || {
        while cpu_time() - began < Duration::from_secs(seconds) && lock(&failed).is_none() {
            let seed = {
                let mut next = lock(&next);
                *next += 1;
                *next - 1
            };
            let lived = live(seed, Mistake::None);
            if let Err(error) = expect_none(seed, &lived) {
                *lock(&failed) = Some(error);
            }
            let mut sum = lock(&sum);
            *sum = sum.and(&lived);
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let (took, sum) = (cpu_time() - began, *lock(&sum));
    let per_minute = |number: usize| (number as f64 * 60.0 / took.as_secs_f64()) as u64;
    println!(
        "{sum}\n{} deliveries and {} faults of all kinds in a minute of CPU time",
        per_minute(sum.deliveries),
        per_minute(sum.faults + sum.faulty)
    );
    match failed.into_inner() {
        Ok(Some(error)) => Err(error),
        _ => Ok(()),
    }
}

fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

fn old_seeds_keep_every_promise() {
    let seeds = OLD_SEEDS
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    for seed in seeds {
        let seed = parse(seed, "seed").unwrap();
        expect_none(seed, &live(seed, Mistake::None)).unwrap();
    }
}

fn one_seed_is_one_history() {
    let [first, second] = [(); 2].map(|()| live(7, Mistake::None));
    let differ = first
        .lines
        .iter()
        .zip(&second.lines)
        .find(|(one, other)| one != other);
    assert_eq!(differ, None);
    assert_eq!(first.hash(), second.hash());
    assert_ne!(first.hash(), live(8, Mistake::None).hash());
}

/// Those of a queue's mistakes that `inbox/history.rs` gives no opportunity.
fn mistakes_that_need_a_cluster_are_found() {
    for (mistake, rule) in [
        (Mistake::ExtensionIsNotStored, "two attempts"),
        (Mistake::ForgetsTheKey, "accepted twice"),
        (Mistake::ForgetIsNotDone, "remembered"),
        (Mistake::KeepsForgottenBodies, "remembered"),
        (Mistake::TakesWhatIsPaused, "paused"),
        (Mistake::ReversesBatches, "stored out of order"),
        (Mistake::StoresTheFirstItem, "answered, not stored"),
    ] {
        let mut days = (0..20).map(|seed| live(seed, mistake).violations);
        let is_found = days.any(|found| found.iter().any(|violation| violation.rule == rule));
        assert!(is_found, "{mistake:?} was not found");
    }
}

/// Plants each mistake of a queue, and shows by which rule it is found, in which day, and after how long.
fn planted() -> Result<(), String> {
    let mut missed = Vec::new();
    for mistake in Mistake::ALL {
        let began = cpu_time();
        let day = |seed| Some((seed, live(seed, mistake).violations.first()?.rule));
        let found = (0..50).find_map(day);
        let took = (cpu_time() - began).as_secs_f64();
        match found {
            Some((seed, rule)) => println!("{mistake:?}: {rule}, on day {}, {took:.1} s", seed + 1),
            None => missed.push(mistake),
        }
    }
    // No worker leaves a kind to others.
    match missed == [Mistake::IgnoresKinds] {
        true => Ok(()),
        false => Err(format!("not found within 50 days: {missed:?}")),
    }
}

fn histories_that_do_not_replay_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("history.txt");
    let lines = live(3, Mistake::None).lines;
    fs::write(&file, written(3, &lines)).unwrap();
    assert_eq!(replay(&file), Ok(()));

    let error = |text: &str| {
        fs::write(&file, text).unwrap();
        replay(&file).unwrap_err()
    };
    assert!(error("").contains("is no history"));
    assert!(error("seed 3x\n").contains("`3x` is no seed: give a number"));
    let cut = error(&written(3, &lines[..9]));
    assert!(
        cut.contains("does not replay") && cut.contains("Line 11 was\n  the end"),
        "{cut}"
    );
    let other = error(&written(4, &lines));
    assert!(
        other.contains("Line 2 was") || other.contains("Line 3 was"),
        "{other}"
    );
    let missing = replay(Path::new("/nowhere")).unwrap_err();
    assert!(missing.contains("/nowhere cannot be read"), "{missing}");
}

/// Runs the tests as the harness of Rust does, as far as `cargo test` and nextest need it.
fn tests(args: &[String]) -> Result<(), String> {
    let mut filters = Vec::new();
    let mut values = args.iter();
    while let Some(arg) = values.next() {
        match arg.as_str() {
            "--test-threads" | "--format" | "--color" | "--skip" | "--logfile" | "-Z" => {
                values.next();
            }
            option if option.starts_with('-') => {}
            filter => filters.push(filter),
        }
    }
    let has = |option: &str| args.iter().any(|arg| arg == option);
    if has("--ignored") {
        return Ok(());
    }
    let is_wanted = |name: &str| match has("--exact") {
        true => filters.contains(&name),
        false => filters.is_empty() || filters.iter().any(|filter| name.contains(filter)),
    };
    let mut failed = Vec::new();
    for (name, test) in TESTS.into_iter().filter(|(name, _)| is_wanted(name)) {
        if has("--list") {
            println!("{name}: test");
            continue;
        }
        let is_ok = catch_unwind(test).is_ok();
        println!("test {name} ... {}", if is_ok { "ok" } else { "FAILED" });
        if !is_ok {
            failed.push(name);
        }
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(format!("failed: {}", failed.join(", "))),
    }
}
