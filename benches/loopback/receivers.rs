//! Compares the pipeline with the memory store to a handwritten receiver, a route that does nothing, and
//! the parts that every delivery needs.

use anyhow::Result;

use crate::child::Receiver;
use crate::contest::{Contest, Contestant, Effort};
use crate::load::{Deliveries, Pace};
use crate::report::Target::AtLeast;
use crate::report::Verdicts;

const CONNECTIONS: usize = 64;
const KNOWN: u64 = 10_000;

pub(crate) fn run(effort: &Effort, verdicts: &mut Verdicts) -> Result<()> {
    let bare = effort.start("bare")?;
    let by_hand = effort.start("by-hand")?;
    let [pipeline, replaying] = start_two(effort, "memory")?;
    let [parts, replaying_parts] = start_two(effort, "parts")?;

    let contestants = [
        Contestant::unique("bare axum", &bare),
        Contestant::unique("by hand", &by_hand),
        Contestant::unique("pipeline", &pipeline),
        Contestant {
            name: "pipeline, replays",
            receiver: &replaying,
            deliveries: known(effort, &replaying)?,
        },
        Contestant {
            name: "pipeline, wrong signatures",
            receiver: &replaying,
            deliveries: Deliveries::forged(),
        },
        Contestant::unique("HMAC, JSON and store", &parts),
        Contestant {
            name: "HMAC and store, replays",
            receiver: &replaying_parts,
            deliveries: known(effort, &replaying_parts)?,
        },
    ];
    let mut contest = Contest::of(contestants, CONNECTIONS);
    contest.rounds(effort, Pace::ClosedFor(effort.time))?;
    println!(
        "\n## Receivers, {CONNECTIONS} connections\n\n{}",
        contest.table(&["bare axum", "by hand"])
    );
    contest.doubt(verdicts);

    let mut add = |what: &str, name, control, target| {
        let ratio = contest.ratio(name, control, |of| of.rate);
        verdicts.add(what, AtLeast(target), ratio, 2);
    };
    add("pipeline, of bare axum", "pipeline", "bare axum", 0.62);
    add("pipeline, of by hand", "pipeline", "by hand", 1.05);
    add(
        "replays, of bare axum",
        "pipeline, replays",
        "bare axum",
        0.80,
    );
    let forged = "pipeline, wrong signatures";
    add("wrong signatures, of bare axum", forged, "bare axum", 0.95);

    [bare, by_hand, pipeline, replaying, parts, replaying_parts]
        .into_iter()
        .try_for_each(Receiver::stop)
}

fn start_two(effort: &Effort, kind: &str) -> Result<[Receiver; 2]> {
    let what = format!("{kind}:{}", effort.capacity);
    Ok([effort.start(&what)?, effort.start(&what)?])
}

/// Returns deliveries that the receiver has handled.
fn known(effort: &Effort, receiver: &Receiver) -> Result<Deliveries> {
    let known = Deliveries::cycling(KNOWN);
    effort
        .connect(receiver, CONNECTIONS)?
        .run(&known, Pace::Closed(KNOWN))?;
    Ok(known.replays())
}
