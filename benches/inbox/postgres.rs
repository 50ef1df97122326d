//! Measures receivers with an inbox in PostgreSQL: two processes with 64 callers together, with one server, and with one
//! server each, as if chats were divided.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use sqlx::postgres::{PgPool, PgPoolOptions};
use tower_webhook::postgres::PostgresQueue;

use crate::child::Receiver;
use crate::contest::Effort;
use crate::load::{Deliveries, Load, Pace};
use crate::machine::Cores;
use crate::postgres_floor;
use crate::report::Target::AtLeast;
use crate::report::{Spread, Table, Verdicts};
use crate::sqlite::CHATS;
use support::postgres::PostgresServer;

pub(crate) const PROCESSES: usize = 2;
pub(crate) const CONNECTIONS: usize = 64 / PROCESSES;

pub(crate) async fn connect(url: &str, connections: u32) -> Result<PgPool> {
    let options = PgPoolOptions::new().max_connections(connections);
    Ok(options.connect(url).await?)
}

/// A queue with as many connections as its page recommends.
pub(crate) async fn queue(url: &str) -> Result<PostgresQueue> {
    Ok(PostgresQueue::open(connect(url, 4).await?).await?)
}

/// The measurement of one round.
struct Round {
    rate: f64,
    p50: f64,
    /// Microseconds of processor time per event, of the processes and of the server.
    cpu: f64,
    server_cpu: f64,
}

pub(crate) fn run(effort: &Effort, concurrency: usize, verdicts: &mut Verdicts) -> Result<()> {
    // All of them where there is time: the server needs a core more than a receiver does.
    let cores = Cores::allowed()?;
    let server = PostgresServer::start();
    // A server with two inboxes would have their workers handle each other's events.
    let two = [(); PROCESSES].map(|()| PostgresServer::start());
    let start = |what: [&str; PROCESSES]| -> Result<Vec<Receiver>> {
        what.into_iter()
            .map(|what| Receiver::start(what, &cores))
            .collect()
    };
    let handle = |server: &PostgresServer| format!("handle:{concurrency}:{}", server.url());
    let bare = start(["bare"; PROCESSES])?;
    let receivers = start([&*handle(&server); PROCESSES])?;
    let divided = two.each_ref().map(handle);
    let divided = start(divided.each_ref().map(String::as_str))?;
    let deliveries = Deliveries::of_chats(CHATS);
    let of_divided = Deliveries::of_chats(CHATS);
    let (mut bares, mut rounds, mut floors) = (Vec::new(), Vec::new(), Vec::new());
    let mut apart = Vec::new();
    let (one, two) = ([server.pid()], two.each_ref().map(PostgresServer::pid));
    postgres_floor::create(&server.url())?;
    for _ in 0..effort.rounds {
        let unique = Deliveries::of_chats(CHATS);
        bares.push(measure(effort, &bare, &unique, &one)?);
        rounds.push(measure(effort, &receivers, &deliveries, &one)?);
        apart.push(measure(effort, &divided, &of_divided, &two)?);
        floors.push(postgres_floor::measure(
            effort,
            &server.url(),
            server.pid(),
        )?);
    }
    for (receivers, sent) in [
        (&receivers, deliveries.sent()),
        (&divided, of_divided.sent()),
    ] {
        let mut handled = 0;
        for receiver in receivers {
            handled += receiver.settle()?.1;
        }
        ensure!(
            handled == sent,
            "{sent} events were sent, {handled} handled"
        );
    }

    let mut table = Table::new([
        "",
        "events/s",
        "of bare axum",
        "p50 µs",
        "CPU µs",
        "server's CPU µs",
    ]);
    for (name, measured) in [
        ("bare axum", &bares),
        ("postgres, handled", &rounds),
        ("two servers, handled", &apart),
    ] {
        let spread =
            |what: fn(&Round) -> f64, digits| Spread::of(measured.iter().map(what)).show(digits);
        let ratio = measured
            .iter()
            .zip(&bares)
            .map(|(of, bare)| of.rate / bare.rate);
        table.row([
            name.to_owned(),
            spread(|of| of.rate, 0),
            Spread::of(ratio).show(3),
            spread(|of| of.p50, 0),
            spread(|of| of.cpu, 1),
            spread(|of| of.server_cpu, 1),
        ]);
    }
    println!(
        "\n## Postgres, {PROCESSES} processes with {CONNECTIONS} connections each, {concurrency} at the same time in each\n\n{table}"
    );
    println!(
        "\nA bare loop of the least statements, {CONNECTIONS} events in each, without HTTP and without a queue: {} events/s, \
         {} µs of the server's.",
        Spread::of(floors.iter().map(|floor| floor.0)).show(0),
        Spread::of(floors.iter().map(|floor| floor.1)).show(1)
    );
    let rate = Spread::of(rounds.iter().map(|of| of.rate));
    let what = "postgres, handled and settled by two processes, events/s";
    verdicts.add(what, AtLeast(8_000.0), rate, 0);
    bare.into_iter()
        .chain(receivers)
        .chain(divided)
        .try_for_each(Receiver::stop)
}

fn measure(
    effort: &Effort,
    receivers: &[Receiver],
    deliveries: &Deliveries,
    servers: &[u32],
) -> Result<Round> {
    let mut loads = receivers
        .iter()
        .map(|receiver| effort.connect(receiver, CONNECTIONS))
        .collect::<Result<Vec<_>>>()?;
    run_all(&mut loads, deliveries, effort.time / 5)?;
    settle(receivers)?;
    let cpu = || {
        receivers
            .iter()
            .map(Receiver::cpu)
            .sum::<Result<Duration>>()
    };
    let server_cpu = || {
        servers
            .iter()
            .map(|it| server_cpu(*it))
            .sum::<Result<Duration>>()
    };
    let (before, server_before) = (cpu()?, server_cpu()?);
    let began = Instant::now();
    let latencies = run_all(&mut loads, deliveries, effort.time)?;
    settle(receivers)?;
    let time = began.elapsed();
    let answers = latencies.len() as f64;
    let each = |cpu: Duration| cpu.as_secs_f64() * 1e6 / answers;
    Ok(Round {
        rate: answers / time.as_secs_f64(),
        p50: latencies.get(latencies.len() / 2).copied().unwrap_or(0) as f64 / 1e3,
        cpu: each(cpu()? - before),
        server_cpu: each(server_cpu()?.saturating_sub(server_before)),
    })
}

fn settle(receivers: &[Receiver]) -> Result<()> {
    receivers
        .iter()
        .try_for_each(|receiver| receiver.settle().map(drop))
}

/// Runs the load of all processes at the same time. Returns the latencies in nanoseconds, sorted.
fn run_all(loads: &mut [Load], deliveries: &Deliveries, time: Duration) -> Result<Vec<u64>> {
    thread::scope(|scope| {
        let running: Vec<_> = loads
            .iter_mut()
            .map(|load| scope.spawn(|| load.run(deliveries, Pace::ClosedFor(time))))
            .collect();
        let mut latencies = Vec::new();
        for load in running {
            latencies.extend(load.join().expect("the load generator panicked")?.latencies);
        }
        latencies.sort_unstable();
        Ok(latencies)
    })
}

/// Returns the processor time of the server, with its backends.
pub(crate) fn server_cpu(server: u32) -> Result<Duration> {
    // Linux counts in hundredths of a second.
    const TICK: Duration = Duration::from_millis(10);

    let mut ticks = 0;
    for process in fs::read_dir("/proc")? {
        let stat = fs::read_to_string(process?.path().join("stat")).unwrap_or_default();
        // The name before may contain anything. Then come the state, the parent, and in the end of these the times.
        let Some((id, fields)) = stat.rsplit_once(") ") else {
            continue;
        };
        let fields: Vec<_> = fields.split(' ').collect();
        let number = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
        let is_server = id.split(' ').next().and_then(|id| id.parse().ok()) == Some(server);
        if is_server || number(1) == Some(server.into()) {
            ticks += number(11).context("utime")? + number(12).context("stime")?;
        }
        if is_server {
            // Of backends that have ended.
            ticks += number(13).context("cutime")? + number(14).context("cstime")?;
        }
    }
    Ok(TICK * u32::try_from(ticks)?)
}
