//! Measures receivers over loopback, each in its own process and on its own core, against a handwritten
//! receiver and a route that does nothing.
//!
//! Run with: cargo bench --workspace --bench loopback --features postgres,redis,sqlite
//!
//! It runs only on Linux. `-- --help` lists the options.

#[path = "../pipeline/by_hand.rs"]
mod by_hand;
mod child;
mod contest;
mod load;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod loops;
mod machine;
mod million;
#[path = "../pipeline/parts.rs"]
mod parts;
mod receivers;
mod report;
mod serve;
#[cfg(feature = "sqlite")]
mod sqlite;
mod stores;

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Parser, Subcommand, ValueEnum, value_parser};

use self::contest::Effort;
use self::machine::Cores;
use self::report::Verdicts;

const SECRET: &str = "1f0c7a2e9b5d4836a1c0ffee5eed00d15ea5e123";
const STORE_CAPACITY: u64 = 1_000_000;

/// Measure receivers over loopback, against a handwritten one and a route that does nothing.
///
/// Prints a table of the targets, met or missed, at the end. Only a wrong response or a failed receiver
/// is an error.
#[derive(Parser)]
#[command(name = "loopback")]
struct Args {
    /// Only show that the benchmark works, in a few seconds; the figures are meaningless
    #[arg(long)]
    quick: bool,

    /// The number of rounds in which each contestant is measured [default: 5]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    rounds: Option<u64>,

    /// The duration of each measurement [default: 1]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<Duration>,

    /// The number of keys sent to the memory store, which keeps a million of them [default: 1200000]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(10_000..))]
    keys: Option<u64>,

    /// The cores of the receiver, such as `0` or `0,2-3` [default: one core]
    #[arg(long, value_name = "CORES", requires = "load_cores")]
    server_cores: Option<Cores>,

    /// The cores of the load generator, with one thread each [default: one other core]
    #[arg(long, value_name = "CORES", requires = "server_cores")]
    load_cores: Option<Cores>,

    /// Run only this part; may be repeated
    #[arg(long, value_name = "PART")]
    only: Vec<Part>,

    /// The directory of SQLite's file; servers keep their files in TMPDIR [default: within `target`]
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,

    // Cargo passes this for `cargo bench`, and not for `cargo test`.
    #[arg(long, hide = true)]
    bench: bool,

    #[command(subcommand)]
    child: Option<Child>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The receiver with the memory store, a handwritten one, and bare axum
    Receivers,
    /// A million keys in memory: their size, and the slowest responses
    Million,
    /// Every store at 1 to 256 connections
    Stores,
    /// SQLite with a million keys: speed and size
    Sqlite,
    /// Redis and Postgres against bare loops of the same commands
    Loops,
}

#[derive(Subcommand)]
#[command(hide = true)]
enum Child {
    /// Serve until standard input ends
    Serve {
        what: String,
        #[arg(long)]
        cores: Cores,
    },
}

fn seconds(text: &str) -> Result<Duration> {
    Ok(Duration::try_from_secs_f64(text.parse()?)?)
}

fn main() -> ExitCode {
    // A test runner asks for the list of tests.
    if env::args().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("loopback: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<()> {
    if let Some(Child::Serve { what, cores }) = args.child {
        return serve::serve(&what, &cores);
    }

    let began = Instant::now();
    let quick = args.quick || !args.bench;
    let effort = effort(&args, quick)?;
    println!("{}", machine::describe());
    println!(
        "Receiver on core {}, load on core {}; {} rounds of {:?}, in turns; medians, and the least and the most in brackets",
        effort.server_cores, effort.load_cores, effort.rounds, effort.time
    );
    if quick || cfg!(debug_assertions) {
        println!("THESE FIGURES ARE MEANINGLESS: they only show that the benchmark works");
    }

    let mut verdicts = Verdicts::default();
    let wanted = |part| args.only.is_empty() || args.only.contains(&part);
    if wanted(Part::Receivers) {
        receivers::run(&effort, &mut verdicts)?;
    }
    if wanted(Part::Million) {
        million::run(&effort, &mut verdicts)?;
    }
    if wanted(Part::Stores) {
        stores::run(&effort, &mut verdicts)?;
    }
    #[cfg(feature = "sqlite")]
    if wanted(Part::Sqlite) {
        sqlite::run(&effort, &mut verdicts)?;
    }
    #[cfg(any(feature = "postgres", feature = "redis"))]
    if wanted(Part::Loops) {
        loops::run(&effort, &mut verdicts)?;
    }
    println!("\n## Targets\n\n{verdicts}\n\n{:.0?}", began.elapsed());
    Ok(())
}

fn effort(args: &Args, quick: bool) -> Result<Effort> {
    let (server_cores, load_cores) = match (&args.server_cores, &args.load_cores) {
        (Some(server), Some(load)) => (server.clone(), load.clone()),
        _ => Cores::two()?,
    };
    let defaults = match quick {
        true => (1, Duration::from_millis(50), 12_000),
        false => (5, Duration::from_secs(1), 1_200_000),
    };
    let keys = args.keys.unwrap_or(defaults.2);
    Ok(Effort {
        rounds: args.rounds.unwrap_or(defaults.0),
        time: args.seconds.unwrap_or(defaults.1),
        keys,
        // Five of six keys fit.
        capacity: STORE_CAPACITY.min(keys / 6 * 5),
        server_cores,
        load_cores,
        directory: args
            .directory
            .clone()
            .unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into()),
    })
}
