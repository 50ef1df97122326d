//! Measures the pages of the console beside a queue with millions of events, while events are accepted.
//!
//! Run with: cargo bench --workspace --bench console --features console,postgres,sqlite
//!
//! `-- --help` lists the options.

mod bulk;
#[allow(dead_code)] // The benchmark `inbox` uses all of it.
#[path = "../inbox/events.rs"]
mod events;
mod fill;
#[allow(dead_code)]
#[path = "../loopback/report.rs"]
mod report;

use std::collections::BTreeMap;
use std::env;
use std::iter;
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::body::Body;
use clap::{Parser, ValueEnum, value_parser};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use sqlx::postgres::PgPoolOptions;
use tempfile::TempDir;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tower::ServiceExt;
use tower_webhook::inbox::Inbox;
use tower_webhook::inbox::internal::{self, AcceptEvents, AcceptOne, Accepted};
use tower_webhook::postgres::PostgresQueue;
use tower_webhook::sqlite::SqliteQueue;
use tower_webhook_console::Console;

use self::events::{Events, quantile};
use self::fill::Filled;
use self::report::Target::AtMost;
use self::report::{Spread, Table, Verdicts};
use support::postgres::PostgresServer;

const SECRET: &str = "1f0c7a2e9b5d4836a1c0ffee5eed00d15ea5e123";

/// Measure the pages of the console beside a queue with millions of events, while events are accepted.
///
/// Nine of ten events are handled, the others wait; one of 500 of those has failed, and one of 500 is dead.
#[derive(Parser)]
#[command(name = "console")]
struct Args {
    /// Only show that the benchmark works, in a few seconds; the figures are meaningless
    #[arg(long)]
    quick: bool,

    /// The number of events [default: 10000000]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(10_000..))]
    events: Option<u64>,

    /// The number of rounds, each with the console and twice without it [default: 24]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    rounds: Option<u64>,

    /// The duration of each of the three parts of a round [default: 4]
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,

    /// The numbers of operators, each of whom looks at a page that updates itself once a second
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 5])]
    #[arg(value_parser = value_parser!(u32).range(1..))]
    operators: Vec<u32>,

    /// Measure, instead of the pages, how quickly so many dead letters are exported, redriven and discarded
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(640..))]
    bulk: Option<u64>,

    /// The number of events that are accepted per second
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = value_parser!(u64).range(1..=10_000))]
    rate: u64,

    /// The number of threads that keep the machine busy beside `--bulk`
    #[arg(long, value_name = "N", default_value_t = 0)]
    load: usize,

    /// Measure only this queue
    #[arg(long, value_name = "QUEUE")]
    only: Option<Of>,

    /// The directory of SQLite's file; servers keep their files in TMPDIR [default: within `target`]
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,

    // Cargo passes this for `cargo bench`, and not for `cargo test`.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Of {
    Sqlite,
    Postgres,
}

fn main() -> ExitCode {
    // A test runner asks for the list of tests.
    if env::args().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("console: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let quick = args.quick || !args.bench;
    if quick || cfg!(debug_assertions) {
        println!("THESE FIGURES ARE MEANINGLESS: they only show that the benchmark works");
    }
    let effort = match quick {
        true => Effort {
            events: args.events.unwrap_or(10_000),
            rounds: args.rounds.unwrap_or(1),
            time: Duration::from_secs(args.seconds.unwrap_or(1)),
            operators: &args.operators,
            rate: args.rate,
        },
        false => Effort {
            events: args.events.unwrap_or(10_000_000),
            rounds: args.rounds.unwrap_or(24),
            time: Duration::from_secs(args.seconds.unwrap_or(4)),
            operators: &args.operators,
            rate: args.rate,
        },
    };
    let count = args.bulk.or(quick.then_some(640));
    let bulk = |count| bulk::Effort {
        count,
        rate: args.rate,
        load: args.load,
    };
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let mut verdicts = Verdicts::default();
    if args.only != Some(Of::Postgres) {
        let scratch = env!("CARGO_TARGET_TMPDIR").into();
        let directory = TempDir::new_in(args.directory.as_ref().unwrap_or(&scratch))?;
        let path = directory.path().join("webhooks.db");
        let inbox = Inbox::new(SqliteQueue::open(&path)?);
        runtime.block_on(async {
            if let Some(count) = count {
                bulk::measure("SQLite", &inbox, &bulk(count)).await?;
            }
            if args.bulk.is_some() {
                return Ok(());
            }
            let filled = fill::sqlite(internal::queue(&inbox), &path, effort.events).await?;
            measure("SQLite", &effort, &inbox, &filled, &mut verdicts).await
        })?;
    }
    if args.only != Some(Of::Sqlite) {
        let server = PostgresServer::start();
        runtime.block_on(async {
            let pool = PgPoolOptions::new()
                .max_connections(8)
                .connect(&server.url())
                .await?;
            let inbox = Inbox::new(PostgresQueue::open(pool.clone()).await?);
            if let Some(count) = count {
                bulk::measure("Postgres", &inbox, &bulk(count)).await?;
            }
            if args.bulk.is_some() {
                return Ok(());
            }
            let filled = fill::postgres(internal::queue(&inbox), &pool, effort.events).await?;
            measure("Postgres", &effort, &inbox, &filled, &mut verdicts).await
        })?;
    }
    println!("\n## Targets\n\n{verdicts}");
    Ok(())
}

struct Effort<'a> {
    events: u64,
    rounds: u64,
    time: Duration,
    operators: &'a [u32],
    rate: u64,
}

async fn measure(
    name: &str,
    effort: &Effort<'_>,
    inbox: &Inbox,
    filled: &Filled,
    verdicts: &mut Verdicts,
) -> Result<()> {
    for operators in effort.operators {
        measure_with(*operators, name, effort, inbox, filled, verdicts).await?;
    }
    Ok(())
}

async fn measure_with(
    operators: u32,
    name: &str,
    effort: &Effort<'_>,
    inbox: &Inbox,
    filled: &Filled,
    verdicts: &mut Verdicts,
) -> Result<()> {
    let pause = Duration::from_secs(1) / operators;
    let name = match operators {
        1 => format!("{name}, 1 operator"),
        _ => format!("{name}, {operators} operators"),
    };
    let console = Console::new().inbox(inbox.clone()).router();
    let events = Arc::new(Events::of_chats(10_000));
    let mut pages: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let mut asked = iter::repeat_with(|| filled.pages()).flatten();
    let mut accepted = Acceptances::default();
    for (_, path) in filled.pages() {
        page(&console, &path).await?;
    }
    for round in 0..effort.rounds {
        for part in Part::of_round(round) {
            let is_over = Arc::new(AtomicBool::new(false));
            let queue = Arc::clone(&internal::queue(inbox).accept);
            let accepting = tokio::spawn(accept(
                queue,
                Arc::clone(&events),
                effort.rate,
                Arc::clone(&is_over),
            ));
            let began = Instant::now();
            while began.elapsed() < effort.time {
                if part == Part::Beside
                    && let Some((what, path)) = asked.next()
                {
                    let asked = Instant::now();
                    page(&console, &path).await?;
                    let took = asked.elapsed().as_secs_f64() * 1e3;
                    pages.entry(what).or_default().push(took);
                }
                sleep(pause).await;
            }
            is_over.store(true, Ordering::Relaxed);
            let times = accepting.await??;
            ensure!(!times.is_empty(), "no event was accepted");
            accepted.add(part, times);
        }
    }

    let mut table = Table::new(["page", "p50 ms", "p99 ms", "most ms", "requests"]);
    let mut slowest: f64 = 0.0;
    for (what, times) in pages {
        let p99 = quantile(times.clone(), 0.99);
        slowest = slowest.max(p99);
        table.row([
            what.to_owned(),
            format!("{:.1}", quantile(times.clone(), 0.5)),
            format!("{p99:.1}"),
            format!("{:.1}", quantile(times.clone(), 1.0)),
            times.len().to_string(),
        ]);
    }
    println!(
        "\n## {name}, {} events, {} accepted per second\n\n{table}\n\n{}\n",
        effort.events,
        effort.rate,
        accepted.table(),
    );
    verdicts.add(
        format!("{name}, slowest page, p99 ms"),
        AtMost(100.0),
        Spread::of([slowest]),
        1,
    );
    verdicts.add(
        format!("{name}, accept p99 beside the console, of without"),
        AtMost(1.2),
        accepted.ratio(&[Part::Beside]),
        2,
    );
    Ok(())
}

/// The parts of a round. Without the console there are two, whose difference is that of equal things on this machine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Without,
    WithoutAgain,
    Beside,
}

impl Part {
    /// Each order once in six rounds, so that what one part leaves behind is met by both others.
    fn of_round(round: u64) -> [Self; 3] {
        let mut parts = [Self::Without, Self::Beside, Self::WithoutAgain];
        parts.rotate_left((round % 3) as usize);
        if round % 6 >= 3 {
            parts.reverse();
        }
        parts
    }
}

const WITHOUT: [Part; 2] = [Part::Without, Part::WithoutAgain];

/// The milliseconds that each acceptance took, by round.
#[derive(Default)]
struct Acceptances([Vec<Vec<f64>>; 3]);

impl Acceptances {
    /// Rounds whose acceptances are compared as a group, to see by how much the groups differ.
    const GROUP: usize = 6;

    fn add(&mut self, part: Part, times: Vec<f64>) {
        self.0[part as usize].push(times);
    }

    /// A quantile of all acceptances in these parts, and those of the groups.
    fn quantile(&self, parts: &[Part], share: f64) -> (f64, Vec<f64>) {
        let rounds = self.0[parts[0] as usize].len();
        let of = |rounds: Range<usize>| {
            let times = parts
                .iter()
                .flat_map(|part| &self.0[*part as usize][rounds.clone()]);
            quantile(times.flatten().copied().collect(), share)
        };
        let groups = (0..rounds).step_by(Self::GROUP);
        let groups = groups.map(|first| of(first..rounds.min(first + Self::GROUP)));
        (of(0..rounds), groups.collect())
    }

    /// The p99 of some parts, of that without the console.
    fn ratio(&self, parts: &[Part]) -> Spread {
        let (all, groups) = self.quantile(parts, 0.99);
        let (control, controls) = self.quantile(&WITHOUT, 0.99);
        let groups = groups.iter().zip(controls).map(|(group, of)| group / of);
        Spread {
            median: all / control,
            ..Spread::of(groups)
        }
    }

    fn table(&self) -> Table {
        let mut table = Table::new([
            "accepting",
            "p50 ms",
            "p99 ms",
            "p99.9 ms",
            "p99 of without",
        ]);
        for (what, parts) in [
            ("without the console", &WITHOUT[..]),
            ("one half of that", &WITHOUT[..1]),
            ("the other half", &WITHOUT[1..]),
            ("beside the console", &[Part::Beside]),
        ] {
            let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|share| {
                let (median, groups) = self.quantile(parts, share);
                let spread = Spread {
                    median,
                    ..Spread::of(groups)
                };
                spread.show(2)
            });
            table.row([what.to_owned(), p50, p99, p999, self.ratio(parts).show(2)]);
        }
        table
    }
}

/// Accepts events at the rate, and returns the milliseconds that each took.
async fn accept(
    queue: Arc<dyn AcceptEvents>,
    events: Arc<Events>,
    rate: u64,
    is_over: Arc<AtomicBool>,
) -> Result<Vec<f64>> {
    let at_once = rate.div_ceil(500);
    let mut tick = interval(Duration::from_secs_f64(at_once as f64 / rate as f64));
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut callers = JoinSet::new();
    let mut times = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        tick.tick().await;
        for _ in 0..at_once {
            let (queue, event) = (Arc::clone(&queue), events.next());
            callers.spawn(async move {
                let began = Instant::now();
                let accepted = queue.accept_one(event, None).await?;
                ensure!(matches!(accepted, Accepted::New { .. }), "not accepted");
                Ok(began.elapsed().as_secs_f64() * 1e3)
            });
        }
        while let Some(ended) = callers.try_join_next() {
            times.push(ended??);
        }
    }
    while let Some(ended) = callers.join_next().await {
        times.push(ended??);
    }
    Ok(times)
}

async fn page(console: &Router, path: &str) -> Result<()> {
    let request = Request::get(path).body(Body::empty())?;
    let answer = console.clone().oneshot(request).await?;
    let status = answer.status();
    let body = answer.into_body().collect().await?.to_bytes();
    ensure!(
        status == StatusCode::OK,
        "{path} was answered with {status}"
    );
    let text = str::from_utf8(&body).context("a page is UTF-8")?;
    ensure!(text.contains("</html>"), "{path} is no whole page");
    Ok(())
}
