//! Measures the full memory store: its size and its slowest responses.

use anyhow::Result;

use crate::child::Receiver;
use crate::contest::{Contest, Contestant, Effort, Measured};
use crate::load::{Deliveries, Pace};
use crate::report::Target::AtMost;
use crate::report::{Spread, Table, Verdicts};

const CONNECTIONS: usize = 64;

pub(crate) fn run(effort: &Effort, verdicts: &mut Verdicts) -> Result<()> {
    let pipeline = effort.start(&format!("memory:{}", effort.capacity))?;
    fill(&pipeline, effort, verdicts)?;
    slowest(&pipeline, effort, verdicts)?;
    pipeline.stop()
}

fn fill(pipeline: &Receiver, effort: &Effort, verdicts: &mut Verdicts) -> Result<()> {
    let mut load = effort.connect(pipeline, CONNECTIONS)?;
    // The memory of connections and first requests does not belong to the keys.
    load.run(&Deliveries::unique(), Pace::Closed(1_000))?;
    let empty = pipeline.memory()?;

    let mut table = Table::new(["keys sent", "events/s", "MB", "bytes per key kept"]);
    let deliveries = Deliveries::unique();
    let mut sizes = Vec::new();
    while deliveries.sent() < effort.keys {
        let count = effort.capacity.min(effort.keys - deliveries.sent());
        let sample = load.run(&deliveries, Pace::Closed(count))?;
        let grown = pipeline.memory()?.saturating_sub(empty);
        let kept = deliveries.sent().min(effort.capacity);
        let each = grown as f64 / kept as f64;
        sizes.push(each);
        table.row([
            deliveries.sent().to_string(),
            format!("{:.0}", sample.rate()),
            format!("{:.1}", grown as f64 / 1e6),
            format!("{each:.0}"),
        ]);
    }
    println!(
        "\n## The memory store with {} keys, in resident memory beyond an empty one\n\n{table}",
        effort.capacity
    );
    verdicts.add(
        format!("bytes of memory per key, of {}", effort.capacity),
        AtMost(340.0),
        Spread::of([sizes[0]]),
        0,
    );
    // The store grows with the first million keys; after that its size should stay the same.
    if let [_, full, .., last] = sizes[..] {
        verdicts.add(
            format!("memory at {} keys, of that when just full", effort.keys),
            AtMost(1.05),
            Spread::of([last / full]),
            2,
        );
    }

    // The store is full: the oldest keys are forgotten, the newest are known.
    const PROBES: u64 = 100;
    load.run(&deliveries.last_replayed(PROBES), Pace::Closed(PROBES))?;
    load.run(&deliveries.first_again(PROBES), Pace::Closed(PROBES))?;
    Ok(())
}

/// Measures latency at half of the pipeline's capacity, at a rate that does not wait for responses.
fn slowest(pipeline: &Receiver, effort: &Effort, verdicts: &mut Verdicts) -> Result<()> {
    let bare = effort.start("bare")?;
    let flat_out = Pace::ClosedFor(effort.time);
    let mut most = 0.0_f64;
    for _ in 0..3 {
        let unique = Deliveries::unique();
        let measured = effort.measure(pipeline, &unique, CONNECTIONS, flat_out)?;
        most = most.max(measured.rate);
    }
    let rate = most / 2.0;
    let time = 2 * effort.time;
    let contestants = [
        Contestant::unique("bare axum", &bare),
        Contestant::unique("pipeline", pipeline),
    ];
    let mut contest = Contest::of(contestants, CONNECTIONS);
    contest.rounds(effort, Pace::Open { rate, time })?;

    let mut table = Table::new([
        "",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "slowest µs",
        "receiver busy",
        "load late, p99.9 µs",
    ]);
    for name in contest.all() {
        table.row([
            name.to_owned(),
            contest.spread(name, |of| of.p50).show(0),
            contest.spread(name, |of| of.p99).show(0),
            contest.spread(name, |of| of.p999).show(0),
            contest.spread(name, |of| of.max).show(0),
            contest.spread(name, |of| of.receiver_busy * 100.0).show(0) + " %",
            contest.spread(name, |of| of.late).show(0),
        ]);
    }
    println!(
        "\n## The memory store full, {rate:.0} events/s, which is half of what it takes\n\n{table}"
    );
    for name in contest.all() {
        let median = |what: fn(&Measured) -> f64| contest.spread(name, what).median;
        let (late, slowest) = (median(|of| of.late), median(|of| of.p999));
        if late > slowest / 2.0 {
            verdicts.doubt(&format!(
                "the load for `{name}` was {late:.0} µs late itself: other processes run on its core"
            ));
        }
    }
    verdicts.add(
        "p99.9 of the pipeline when full, of bare axum",
        AtMost(2.0),
        contest.ratio("pipeline", "bare axum", |of| of.p999),
        2,
    );
    Ok(())
}
