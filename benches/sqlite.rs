//! What the SQLite store costs by itself: `cargo bench --features sqlite --bench sqlite [-- DIRECTORY]`.
//!
//! Claims and completes keys, with a file that was empty and one that holds a million keys in turn, and
//! beside them writes 4 KiB to the same disk. Prints the medians of five rounds. The files are made in
//! `DIRECTORY`, or in the current one.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use tower_webhook::store::{Claim, DeliveryId, SqliteStore, Store};

const LEASE: Duration = Duration::from_secs(30);
const RETENTION: Duration = Duration::from_secs(8 * 24 * 60 * 60);
const MILLION: u64 = 1_000_000;
const ROUNDS: usize = 5;

#[tokio::main]
async fn main() {
    let argument = std::env::args()
        .skip(1)
        .find(|given| !given.starts_with('-'));
    let directory = tempfile::tempdir_in(argument.unwrap_or_else(|| ".".to_owned()));
    let directory = directory.expect("a directory to write into");

    let mut empty = Bench::open(directory.path().join("empty.db"));
    let mut full = Bench::open(directory.path().join("full.db"));
    full.round(256, MILLION).await;

    println!("callers  keys       pairs/s     p50 us     p99 us     CPU us  fdatasync us");
    for callers in [1, 16, 64, 256] {
        let pairs = if callers == 1 { 2_000 } else { 20_000 };
        let (mut of_empty, mut of_full, mut syncs) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            syncs.push(fdatasync(directory.path()));
            of_empty.push(empty.round(callers, pairs).await);
            of_full.push(full.round(callers, pairs).await);
        }
        let sync = median(syncs);
        for (keys, rounds) in [("few", of_empty), ("1M", of_full)] {
            let of = |what: fn(&Round) -> f64| median(rounds.iter().map(what).collect());
            println!(
                "{callers:>7}  {keys:<6} {:>11.0} {:>10.0} {:>10.0} {:>10.1} {sync:>13.0}",
                of(|round| round.rate),
                of(|round| round.p50),
                of(|round| round.p99),
                of(|round| round.cpu),
            );
        }
    }
    println!("{:.1} bytes on the disk for each key", full.bytes_per_key());
}

/// A store, and how many keys it holds.
struct Bench {
    path: PathBuf,
    store: SqliteStore,
    keys: u64,
}

/// Times are in microseconds, those of the processor for each pair.
struct Round {
    rate: f64,
    p50: f64,
    p99: f64,
    cpu: f64,
}

impl Bench {
    fn open(path: PathBuf) -> Self {
        Self {
            store: SqliteStore::open(&path).expect("a store"),
            path,
            keys: 0,
        }
    }

    /// Each of the callers claims and completes its share of the keys, one after the other.
    async fn round(&mut self, callers: u64, pairs: u64) -> Round {
        let share = pairs / callers;
        let first = self.keys;
        self.keys += callers * share;
        let (began, cpu) = (Instant::now(), cpu_time());
        let callers: Vec<_> = (0..callers)
            .map(|caller| first + caller * share)
            .map(|from| tokio::spawn(pairs_of(self.store.clone(), from..from + share)))
            .collect();
        let mut times = Vec::new();
        for caller in callers {
            times.extend(caller.await.expect("a caller"));
        }
        let count = times.len() as f64;
        times.sort_unstable_by(f64::total_cmp);
        Round {
            rate: count / began.elapsed().as_secs_f64(),
            p50: times[times.len() / 2],
            p99: times[times.len() * 99 / 100],
            cpu: micros(cpu_time() - cpu) / count,
        }
    }

    fn bytes_per_key(self) -> f64 {
        // Closing moves the write-ahead log into the file.
        drop(self.store);
        fs::metadata(self.path).expect("the file").len() as f64 / self.keys as f64
    }
}

async fn pairs_of(store: SqliteStore, keys: std::ops::Range<u64>) -> Vec<f64> {
    let mut times = Vec::new();
    for key in keys {
        let id = DeliveryId::new("", &key.to_be_bytes(), &key.to_be_bytes());
        let began = Instant::now();
        let Ok(Claim::Acquired(lease)) = store.claim(&id, LEASE, RETENTION).await else {
            panic!("a new key cannot be claimed");
        };
        store.complete(&lease, RETENTION).await.expect("completion");
        times.push(micros(began.elapsed()));
    }
    times
}

/// What this process has used of the processor, which other programs disturb least.
fn cpu_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("the use of the processor");
    [usage.user_time(), usage.system_time()]
        .map(|time| Duration::new(time.tv_sec() as u64, time.tv_usec() as u32 * 1000))
        .into_iter()
        .sum()
}

/// The median of writing 4 KiB behind each other, each waiting for the disk, in microseconds.
fn fdatasync(directory: &Path) -> f64 {
    let mut file = File::create(directory.join("raw")).expect("a file");
    let times = (0..200).map(|_| {
        let began = Instant::now();
        file.write_all(&[7; 4096]).expect("written");
        file.sync_data().expect("on the disk");
        micros(began.elapsed())
    });
    median(times.collect())
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}
