//! Measures every compiled store with 1 to 256 connections.

use std::any::Any;
#[cfg(feature = "sqlite")]
use std::fs;

use anyhow::Result;
#[cfg(feature = "sqlite")]
use anyhow::bail;

use crate::child::Receiver;
use crate::contest::{Contest, Contestant, Effort};
#[cfg(feature = "sqlite")]
use crate::load::Deliveries;
use crate::load::Pace;
use crate::machine;
use crate::report::Target::{AtLeast, AtMost};
use crate::report::{Spread, Verdicts};
#[cfg(feature = "postgres")]
use support::postgres::PostgresServer;
#[cfg(feature = "redis")]
use support::redis::RedisServer;

const CONNECTIONS: [usize; 4] = [1, 16, 64, 256];

/// A receiver with a store, and the store's server or file, which is dropped after the receiver.
pub(crate) struct Stored<T: ?Sized = dyn Any> {
    pub(crate) receiver: Receiver,
    pub(crate) on: Box<T>,
}

impl<T: Any> Stored<T> {
    fn start(effort: &Effort, what: &str, on: T) -> Result<Self> {
        Ok(Self {
            receiver: effort.start(what)?,
            on: Box::new(on),
        })
    }

    fn any(self) -> Stored {
        Stored {
            receiver: self.receiver,
            on: self.on,
        }
    }
}

/// Creates a file in its own directory.
#[cfg(feature = "sqlite")]
pub(crate) fn sqlite(effort: &Effort) -> Result<Stored<tempfile::TempDir>> {
    let directory = tempfile::tempdir_in(&effort.directory)?;
    let what = format!("sqlite:{}", directory.path().join("keys.db").display());
    Stored::start(effort, &what, directory)
}

/// Starts a server with these settings.
#[cfg(feature = "redis")]
pub(crate) fn redis(effort: &Effort, settings: &[&str]) -> Result<Stored<RedisServer>> {
    let server = RedisServer::start_with(settings);
    Stored::start(effort, &server.url(), server)
}

/// Starts a server that reports complete statements.
#[cfg(feature = "postgres")]
pub(crate) fn postgres(effort: &Effort) -> Result<Stored<PostgresServer>> {
    let server = PostgresServer::start_with(&["track_activity_query_size=16384"]);
    Stored::start(effort, &server.url(), server)
}

/// Lets the log of a SQLite store grow to its final size, because until then commits wait longer for the
/// disk.
#[cfg(feature = "sqlite")]
fn grown(effort: &Effort, store: Stored<tempfile::TempDir>) -> Result<Stored> {
    const EVENTS: u64 = 10_000;
    let log = store.on.path().join("keys.db-wal");
    let size = || fs::metadata(&log).map(|log| log.len());
    for _ in 0..20 {
        let before = size()?;
        effort
            .connect(&store.receiver, 64)?
            .run(&Deliveries::unique(), Pace::Closed(EVENTS))?;
        if size()? == before {
            return Ok(store.any());
        }
    }
    bail!("SQLite's log does not stop growing")
}

pub(crate) fn run(effort: &Effort, verdicts: &mut Verdicts) -> Result<()> {
    let mut stores: Vec<(&str, Stored)> = Vec::new();
    let memory = format!("memory:{}", effort.capacity);
    stores.push(("memory", Stored::start(effort, &memory, ())?.any()));
    #[cfg(feature = "sqlite")]
    stores.push(("sqlite", grown(effort, sqlite(effort)?)?));
    #[cfg(feature = "redis")]
    {
        stores.push(("redis", redis(effort, &[])?.any()));
        let durable = ["--appendonly", "yes", "--appendfsync", "always"];
        let durable = redis(effort, &durable)?.any();
        stores.push(("redis, appendfsync always", durable));
    }
    #[cfg(feature = "postgres")]
    stores.push(("postgres", postgres(effort)?.any()));

    let bare = effort.start("bare")?;
    for connections in CONNECTIONS {
        let stored = stores
            .iter()
            .map(|(name, store)| Contestant::unique(name, &store.receiver));
        let contestants = [Contestant::unique("bare axum", &bare)]
            .into_iter()
            .chain(stored);
        let mut contest = Contest::of(contestants, connections);
        let mut syncs: [Vec<f64>; 2] = Default::default();
        for _ in 0..effort.rounds {
            if connections == 1 {
                let measured = machine::fdatasync(&effort.directory, effort.time / 2)?;
                for (syncs, sync) in syncs.iter_mut().zip(measured) {
                    syncs.push(sync.as_secs_f64() * 1e6);
                }
            }
            contest.round(effort, Pace::ClosedFor(effort.time / 2))?;
        }
        let s = if connections == 1 { "" } else { "s" };
        println!(
            "\n## Stores, {connections} connection{s}\n\n{}",
            contest.table(&["bare axum"])
        );
        if connections == 1 {
            let [over, behind] = syncs
                .each_ref()
                .map(|syncs| Spread::of(syncs.iter().copied()));
            println!(
                "\nA fdatasync of 4 KiB on the disk of sqlite takes {} µs (p50) where they are \
                 written over others, {} where they are appended.",
                over.show(0),
                behind.show(0)
            );
        }
        judge(&contest, connections, &syncs, verdicts);
    }
    stores
        .into_iter()
        .try_for_each(|(_, store)| store.receiver.stop())
}

/// The targets of SQLite.
fn judge(
    contest: &Contest<'_>,
    connections: usize,
    [over, behind]: &[Vec<f64>; 2],
    verdicts: &mut Verdicts,
) {
    if !contest.all().any(|name| name == "sqlite") {
        return;
    }
    match connections {
        // SQLite overwrites its log. The log of an application is usually appended to.
        1 => {
            for (sync, syncs) in [("appends", behind), ("overwrites", over)] {
                let p50 = contest.measured("sqlite").iter().map(|of| of.p50);
                verdicts.add(
                    format!("sqlite, p50 of 1 connection, of a fdatasync that {sync} 4 KiB"),
                    AtMost(2.5),
                    Spread::of(p50.zip(syncs).map(|(p50, sync)| p50 / sync)),
                    2,
                );
            }
        }
        64 => verdicts.add(
            "sqlite at 64 connections, of bare axum",
            AtLeast(0.25),
            contest.ratio("sqlite", "bare axum", |of| of.rate),
            2,
        ),
        _ => {}
    }
}
