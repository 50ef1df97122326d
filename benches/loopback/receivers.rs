//! The pipeline with the memory store, beside a receiver by hand and a route that does nothing.

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
    let memory = format!("memory:{}", effort.capacity);
    let pipeline = effort.start(&memory)?;
    let replaying = effort.start(&memory)?;

    let known = Deliveries::cycling(KNOWN);
    effort
        .connect(&replaying, CONNECTIONS)?
        .run(&known, Pace::Closed(KNOWN))?;

    let contestants = [
        Contestant::unique("bare axum", &bare),
        Contestant::unique("by hand", &by_hand),
        Contestant::unique("pipeline", &pipeline),
        Contestant {
            name: "pipeline, replays",
            receiver: &replaying,
            deliveries: known.replays(),
        },
        Contestant {
            name: "pipeline, wrong signatures",
            receiver: &replaying,
            deliveries: Deliveries::forged(),
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

    [bare, by_hand, pipeline, replaying]
        .into_iter()
        .try_for_each(Receiver::stop)
}
