//! Attacks a `receiver` with clients that have no secret, beside a genuine sender of ten deliveries a second.
//!
//! Run with:
//!     cargo build --release -p tower-webhook-receiver
//!     cargo bench --workspace --bench attack

mod attackers;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::runtime;
use tower_webhook::Secret;

use self::attackers::{SORTS, Sent, Sort, Target, attack, send, settle};

/// The p99 of genuine deliveries at most.
const TARGET: Duration = Duration::from_secs(3);

const SECRET: &str = "1f0c7a2e9b5d4836a1c0ffee5eed00d15ea5e123";

/// Attack a receiver with clients that have no secret, beside a genuine sender of ten deliveries a second.
///
/// Each attacker connects again as soon as its connection is closed. Prints how the genuine deliveries were answered. The
/// exit code is 1 if one was refused, or if the p99 was above 3 s.
#[derive(Parser)]
#[command(name = "attack")]
struct Args {
    /// The sorts of attackers, one after another [default: all]
    #[arg(long, value_name = "SORT")]
    only: Vec<Sort>,

    /// All sorts at the same time, with as many attackers of each
    #[arg(long)]
    together: bool,

    /// The number of attackers of each sort
    #[arg(long, value_name = "N", default_value_t = 2_000)]
    attackers: usize,

    /// How long each attack lasts
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    seconds: u64,

    /// The size of a genuine body, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 600)]
    body: usize,

    /// The size of a body that attackers hold back, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 600)]
    held_back: usize,

    /// The receiver [default: the example of the same build]
    #[arg(long, value_name = "PROGRAM")]
    receiver: Option<PathBuf>,

    /// Arguments of the receiver
    #[arg(last = true)]
    receiver_args: Vec<String>,

    // Cargo passes this for `cargo bench`, and not for `cargo test`.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    // A test runner asks for the list of tests.
    if std::env::args().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    let args = Args::parse();
    if !args.bench {
        println!("the tests of the examples attack a receiver; run this with `cargo bench`");
        return ExitCode::SUCCESS;
    }
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("attack: beyond the target of 0 refused and a p99 of {TARGET:?}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("attack: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether the target is met.
fn run(args: &Args) -> Result<bool> {
    let sorts = match args.only.is_empty() {
        true => &SORTS[..],
        false => &args.only,
    };
    let attacks: Vec<&[Sort]> = match args.together {
        true => vec![sorts],
        false => sorts.chunks(1).collect(),
    };
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let mut is_met = true;
    for attack in attacks {
        let receiver = Receiver::start(args)?;
        // The receiver keeps the limit that others have.
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
        let sent = under(args, attack, &receiver)?;
        is_met &= sent.refused.is_empty() && percentile(&sent.answered, 99) <= TARGET;
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?;
    }
    Ok(is_met)
}

fn under(args: &Args, sorts: &[Sort], receiver: &Receiver) -> Result<Sent> {
    let target = Target {
        address: receiver.address,
        path: "/webhooks".to_owned(),
        held_back: args.held_back,
    };
    let connections = Arc::<AtomicU64>::default();
    let began = Instant::now();
    // The sender has a thread of its own, because thousands of attackers would delay it.
    let attacking = runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let attackers: Vec<_> = attacking.block_on(async {
        let started = sorts
            .iter()
            .map(|sort| attack(&target, *sort, args.attackers, &connections));
        started.collect()
    });
    let sending = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let sent = sending.block_on(async {
        settle(&connections, args.attackers * sorts.len()).await;
        let secret = Secret::new(SECRET)?;
        let time = Duration::from_secs(args.seconds);
        anyhow::Ok(send(&target, &secret, args.body, time).await)
    })?;
    let rate = connections.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64();
    drop(attackers);
    attacking.shutdown_background();
    report(sorts, &sent, rate, receiver)?;
    Ok(sent)
}

fn report(sorts: &[Sort], sent: &Sent, rate: f64, receiver: &Receiver) -> Result<()> {
    let answered = sent.answered.len();
    println!(
        "{sorts:?}: {answered} of {} answered; p50 {:?}, p99 {:?}, max {:?}; {rate:.0} connections/s of attackers, \
         {} MiB, {} lines in the log",
        answered + sent.refused.len(),
        percentile(&sent.answered, 50),
        percentile(&sent.answered, 99),
        percentile(&sent.answered, 100),
        receiver.peak()? / 1024,
        receiver.lines()?,
    );
    let mut reasons = BTreeMap::<&str, usize>::new();
    for refused in &sent.refused {
        *reasons.entry(refused).or_default() += 1;
    }
    for (reason, count) in reasons {
        println!("  {count}: {reason}");
    }
    Ok(())
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let last = sorted.len().saturating_sub(1);
    let at = (sorted.len() * percent / 100).min(last);
    sorted.get(at).copied().unwrap_or_default()
}

/// A receiver with its default settings.
struct Receiver {
    child: Child,
    address: SocketAddr,
    log: tempfile::TempDir,
}

impl Receiver {
    fn start(args: &Args) -> Result<Self> {
        let program = match &args.receiver {
            Some(program) => program.clone(),
            None => example("receiver")?,
        };
        let log = tempfile::tempdir()?;
        let child = Command::new(&program)
            .args(["--listen", "127.0.0.1:0", "--secret", SECRET])
            .args(&args.receiver_args)
            .stdout(Stdio::null())
            .stderr(File::create(log.path().join("err"))?)
            .spawn()
            .with_context(|| format!("{} cannot be started", program.display()))?;
        let mut this = Self {
            child,
            address: ([127, 0, 0, 1], 0).into(),
            log,
        };
        for _ in 0..500 {
            let log = fs::read_to_string(this.log.path().join("err"))?;
            if let Some((_, url)) = log.split_once("listening on http://")
                && let Some((address, _)) = url.split_once('/')
            {
                this.address = address.parse()?;
                return Ok(this);
            }
            thread::sleep(Duration::from_millis(10));
        }
        bail!("the receiver does not listen")
    }

    /// The most memory that it has had resident, in KiB.
    fn peak(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let (_, peak) = status.split_once("VmHWM:").context("no VmHWM")?;
        let peak = peak.split_whitespace().next().context("no VmHWM")?;
        Ok(peak.parse()?)
    }

    fn lines(&self) -> Result<usize> {
        let log = File::open(self.log.path().join("err"))?;
        Ok(BufReader::new(log).lines().count())
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn example(name: &str) -> Result<PathBuf> {
    let this = std::env::current_exe()?;
    let target = this.parent().and_then(Path::parent);
    let program = target.context("no target")?.join(name);
    if !program.exists() {
        bail!("it is not built: `cargo build --release -p tower-webhook-receiver`");
    }
    Ok(program)
}
