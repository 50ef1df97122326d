//! Measures the time and disk space of a million keys in SQLite.

use std::fs;

use anyhow::{Context, Result};
use rusqlite::Connection;

use crate::contest::Effort;
use crate::load::{Deliveries, Pace};
use crate::report::Target::{AtLeast, AtMost};
use crate::report::{Spread, Table, Verdicts};
use crate::stores;

const CONNECTIONS: usize = 64;

pub(crate) fn run(effort: &Effort, verdicts: &mut Verdicts) -> Result<()> {
    let full = stores::sqlite(effort)?;
    let deliveries = Deliveries::unique();
    let filling = effort
        .connect(&full.receiver, 4 * CONNECTIONS)?
        .run(&deliveries, Pace::Closed(effort.capacity))?;

    let pace = Pace::ClosedFor(effort.time);
    let (mut slow, mut fast) = (Vec::new(), Vec::new());
    for _ in 0..effort.rounds {
        let empty = stores::sqlite(effort)?;
        let unique = Deliveries::unique();
        fast.push(effort.measure(&empty.receiver, &unique, CONNECTIONS, pace)?);
        slow.push(effort.measure(&full.receiver, &deliveries, CONNECTIONS, pace)?);
    }

    full.receiver.stop()?;
    let file = full.on.path().join("keys.db");
    // The pages in the log belong to the file's size.
    let database = Connection::open(&file).context("cannot open the file")?;
    database.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    database.close().map_err(|(_, error)| error)?;
    let bytes = fs::metadata(&file)?.len();
    let each = bytes as f64 / deliveries.sent() as f64;

    let name = format!("with {} keys", effort.capacity);
    let mut table = Table::new(["", "events/s", "p50 µs", "p99 µs"]);
    for (name, measured) in [("empty", &fast), (&*name, &slow)] {
        let spread = |what: fn(&_) -> f64| Spread::of(measured.iter().map(what)).show(0);
        table.row([
            name.to_owned(),
            spread(|of: &crate::contest::Measured| of.rate),
            spread(|of| of.p50),
            spread(|of| of.p99),
        ]);
    }
    println!(
        "\n## SQLite, {CONNECTIONS} connections\n\n{table}\n\n\
         It was filled at {:.0} events/s. In the end the file has {:.1} MB for {} keys.",
        filling.rate(),
        bytes as f64 / 1e6,
        deliveries.sent(),
    );
    let both = slow.iter().zip(&fast);
    verdicts.add(
        format!("sqlite {name}, of an empty one"),
        AtLeast(0.67),
        Spread::of(both.map(|(slow, fast)| slow.rate / fast.rate)),
        2,
    );
    let bytes = "sqlite, bytes on disk per completed key";
    verdicts.add(bytes, AtMost(150.0), Spread::of([each]), 0);
    Ok(())
}
