//! Measures the inbox: how fast it accepts and handles events, beside bare axum and the disk, and what they take there.
//!
//! Run with: cargo bench --workspace --bench inbox --features postgres,sqlite
//!
//! It runs only on Linux. `-- --help` lists the options.

mod backlog;
mod batches;
#[allow(dead_code)] // The benchmark `loopback` uses all of it.
#[path = "../loopback/child.rs"]
mod child;
#[allow(dead_code)]
#[path = "../loopback/contest.rs"]
mod contest;
mod disk;
mod events;
mod floor;
mod idle;
mod large;
#[allow(dead_code)]
#[path = "../loopback/load.rs"]
mod load;
#[allow(dead_code)]
#[path = "../loopback/machine.rs"]
mod machine;
mod pinned;
mod postgres;
mod postgres_floor;
#[path = "../loopback/report.rs"]
mod report;
mod serve;
mod sqlite;

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

/// Measure the inbox, beside a route that does nothing and the disk.
///
/// Prints a table of the targets, met or missed, at the end. Only a wrong response or a failed receiver
/// is an error.
#[derive(Parser)]
#[command(name = "inbox")]
struct Args {
    /// Only show that the benchmark works, in a few seconds; the figures are meaningless
    #[arg(long)]
    quick: bool,

    /// The number of rounds in which each contestant is measured [default: 5]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    rounds: Option<u64>,

    /// The duration of each measurement [default: 2]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<Duration>,

    /// The number of events of the backlog [default: 1000000]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1_000..))]
    events: Option<u64>,

    /// How many events a worker handles at the same time [default: 128]
    #[arg(
        long,
        value_name = "N",
        default_value_t = 128,
        hide_default_value = true
    )]
    concurrency: usize,

    /// The time for which a snapshot is pinned, in the part of that name [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pinned: Option<Duration>,

    /// The cores of the receiver, such as `0` or `0,2-3` [default: one core]
    #[arg(long, value_name = "CORES", requires = "load_cores")]
    server_cores: Option<Cores>,

    /// The cores of the load generator, with one thread each [default: one other core]
    #[arg(long, value_name = "CORES", requires = "server_cores")]
    load_cores: Option<Cores>,

    /// Run only this part; may be repeated [default: all but `pinned`]
    #[arg(long, value_name = "PART")]
    only: Vec<Part>,

    /// The directory of SQLite's files; servers keep their files in TMPDIR [default: within `target`]
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
    /// SQLite accepts with 64 connections and with one
    Accept,
    /// SQLite accepts, handles and settles, beside the memory queue
    Handle,
    /// SQLite without HTTP, a loop of its statements, and a plain log
    Floor,
    /// The time from the answer to the handler's start on an idle machine
    Idle,
    /// Accepting, claiming and draining with a million waiting events
    Backlog,
    /// Deliveries of 100 events, beside those of one
    Batches,
    /// Small deliveries beside bodies of 25 MiB
    Large,
    /// Bytes on the disk for each event
    Disk,
    /// Postgres accepts, handles and settles, with two processes
    Postgres,
    /// Postgres beside a snapshot that stays open
    Pinned,
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
            eprintln!("inbox: {error:#}");
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
    let wanted = |part| match args.only[..] {
        [] => part != Part::Pinned || quick,
        _ => args.only.contains(&part),
    };
    if wanted(Part::Accept) {
        sqlite::accept(&effort, &mut verdicts)?;
    }
    if wanted(Part::Handle) {
        sqlite::handle(&effort, args.concurrency, &mut verdicts)?;
    }
    if wanted(Part::Floor) {
        floor::run(&effort)?;
    }
    if wanted(Part::Idle) {
        idle::run(&effort, &mut verdicts)?;
    }
    if wanted(Part::Backlog) {
        backlog::run(&effort, args.concurrency, &mut verdicts)?;
    }
    if wanted(Part::Batches) {
        batches::run(&effort, &mut verdicts)?;
    }
    if wanted(Part::Large) {
        large::run(&effort, &mut verdicts)?;
    }
    if wanted(Part::Disk) {
        disk::run(&effort, &mut verdicts)?;
    }
    if wanted(Part::Postgres) {
        postgres::run(&effort, args.concurrency, &mut verdicts)?;
    }
    if wanted(Part::Pinned) {
        let default = if quick { 1 } else { 60 };
        let time = args.pinned.unwrap_or(Duration::from_secs(default));
        pinned::run(&effort, args.concurrency, time, &mut verdicts)?;
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
        true => (1, Duration::from_millis(50), 2_000),
        false => (5, Duration::from_secs(2), 1_000_000),
    };
    let events = args.events.unwrap_or(defaults.2);
    Ok(Effort {
        rounds: args.rounds.unwrap_or(defaults.0),
        time: args.seconds.unwrap_or(defaults.1),
        keys: events,
        capacity: events,
        server_cores,
        load_cores,
        directory: args
            .directory
            .clone()
            .unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into()),
    })
}
