//! Measures receivers with an inbox in a SQLite file, beside a route that does nothing.

use anyhow::{Result, ensure};
use tempfile::TempDir;

use crate::child::Receiver;
use crate::contest::{Contest, Contestant, Effort};
use crate::load::{Deliveries, Pace};
use crate::machine;
use crate::report::Target::{AtLeast, AtMost};
use crate::report::{Spread, Verdicts};

/// How many chats the events belong to.
pub(crate) const CHATS: usize = 10_000;

const CONNECTIONS: usize = 64;

fn contestant<'a>(name: &'a str, receiver: &'a Receiver) -> Contestant<'a> {
    Contestant {
        name,
        receiver,
        deliveries: Deliveries::of_chats(CHATS),
    }
}

fn start(effort: &Effort, how: &str, directory: &TempDir) -> Result<Receiver> {
    let file = directory.path().join("inbox.db");
    effort.start(&format!("{how}:{}", file.display()))
}

/// Accepts only: the events wait.
pub(crate) fn accept(effort: &Effort, verdicts: &mut Verdicts) -> Result<()> {
    let directory = tempfile::tempdir_in(&effort.directory)?;
    let spools = tempfile::tempdir_in(&effort.directory)?;
    let sqlite = start(effort, "accept:sqlite", &directory)?;
    let spool = start(effort, "accept:spool", &spools)?;
    let memory = effort.start("accept:memory")?;
    let bare = effort.start("bare")?;
    for connections in [CONNECTIONS, 1] {
        let mut contest = Contest::of(
            [
                contestant("bare axum", &bare),
                contestant("memory, accepted", &memory),
                contestant("sqlite, accepted", &sqlite),
                contestant("spool, accepted", &spool),
            ],
            connections,
        );
        let mut syncs = Vec::new();
        for _ in 0..effort.rounds {
            if connections == 1 {
                let [_, appending] = machine::fdatasync(&effort.directory, effort.time / 2)?;
                syncs.push(appending.as_secs_f64() * 1e6);
            }
            contest.round(effort, Pace::ClosedFor(effort.time))?;
        }
        let s = if connections == 1 { "" } else { "s" };
        println!(
            "\n## Accepting, {connections} connection{s}\n\n{}",
            contest.table(&["bare axum"])
        );
        if connections == 1 {
            let p50 = contest.measured("sqlite, accepted").iter().map(|of| of.p50);
            let ratio = Spread::of(p50.zip(&syncs).map(|(p50, sync)| p50 / sync));
            println!(
                "\nA fdatasync that appends 4 KiB takes {} µs (p50).",
                Spread::of(syncs).show(0)
            );
            let what = "sqlite, p50 of accept with 1 connection, of a fdatasync";
            verdicts.add(what, AtMost(2.0), ratio, 2);
        } else {
            let ratio = contest.ratio("sqlite, accepted", "bare axum", |of| of.rate);
            let what = "sqlite, accept at 64 connections, of bare axum";
            verdicts.add(what, AtLeast(0.35), ratio, 2);
            let ratio = contest.ratio("spool, accepted", "sqlite, accepted", |of| of.rate);
            let what = "a spool in front of a database that is away, of sqlite";
            verdicts.add(what, AtLeast(1.0), ratio, 2);
        }
    }
    [bare, memory, sqlite, spool]
        .into_iter()
        .try_for_each(Receiver::stop)
}

/// Accepts, handles with a handler that does nothing, and settles. The clock stops when all is settled.
pub(crate) fn handle(effort: &Effort, concurrency: usize, verdicts: &mut Verdicts) -> Result<()> {
    let directory = tempfile::tempdir_in(&effort.directory)?;
    let how = format!("handle:{concurrency}");
    let sqlite = start(effort, &format!("{how}:sqlite"), &directory)?;
    let memory = effort.start(&format!("{how}:memory"))?;
    let bare = effort.start("bare")?;
    let mut contest = Contest::of(
        [
            contestant("bare axum", &bare),
            contestant("memory, handled", &memory),
            contestant("sqlite, handled", &sqlite),
        ],
        CONNECTIONS,
    );
    contest.rounds(effort, Pace::ClosedFor(effort.time))?;
    println!(
        "\n## Accepting, handling and settling, {CONNECTIONS} connections, {concurrency} at the same time\n\n{}",
        contest.table(&["bare axum", "memory, handled"])
    );
    let ratio = contest.ratio("sqlite, handled", "bare axum", |of| of.rate);
    let what = "sqlite, handled and settled at 64 connections, of bare axum";
    verdicts.add(what, AtLeast(0.25), ratio, 2);
    let sqlite_cpu = contest.measured("sqlite, handled").iter();
    let memory_cpu = contest.measured("memory, handled").iter();
    let beyond = sqlite_cpu
        .zip(memory_cpu)
        .map(|(of, than)| of.cpu - than.cpu);
    let what = "sqlite, µs of CPU for each event beyond the memory queue";
    verdicts.add(what, AtMost(20.0), Spread::of(beyond), 1);
    for (name, receiver) in [("memory, handled", &memory), ("sqlite, handled", &sqlite)] {
        let (_, handled) = receiver.settle()?;
        let sent = contest.sent(name);
        ensure!(
            handled == sent,
            "{name}: {sent} events were sent, {handled} handled"
        );
    }
    [bare, memory, sqlite]
        .into_iter()
        .try_for_each(Receiver::stop)
}
