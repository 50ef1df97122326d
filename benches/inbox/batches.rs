//! Measures queues that accept deliveries of 100 events, beside deliveries of one.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use futures_util::future::try_join_all;
use tokio::runtime::Builder;
use tower_webhook::Item;
use tower_webhook::inbox::Queue;
use tower_webhook::inbox::internal::{Accepted, NewEvent, in_delivery};
use tower_webhook::sqlite::SqliteQueue;

use crate::contest::Effort;
use crate::events::{Events, quantile};
use crate::postgres::queue;
use crate::report::Target::{AtLeast, AtMost};
use crate::report::{Spread, Table, Verdicts};
use crate::sqlite::CHATS;
use support::postgres::PostgresServer;

const ITEMS: u32 = 100;

/// How many deliveries are accepted at the same time: as many of one event as a statement serves, and a few batches.
const SINGLES: usize = 64;
const BATCHES: usize = 4;

pub(crate) fn run(effort: &Effort, verdicts: &mut Verdicts) -> Result<()> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let directory = tempfile::tempdir_in(&effort.directory)?;
    let file = directory.path().join("batches.db");
    runtime.block_on(measure(effort, "sqlite", sqlite(&file)?, verdicts))?;
    let server = PostgresServer::start();
    runtime.block_on(async {
        let queue = queue(&server.url()).await?;
        measure(effort, "postgres", queue.into(), verdicts).await
    })
}

fn sqlite(file: &Path) -> Result<Queue> {
    Ok(SqliteQueue::open(file)?.into())
}

fn delivery(events: &Events, items: u32) -> Arc<[NewEvent]> {
    if items == 1 {
        return [events.next()].into();
    }
    let number = fastrand::i64(..);
    let item = |at| {
        let event = events.next();
        let item = in_delivery(Item::new(at, items), number);
        NewEvent {
            delivery: event.delivery.clone().with_item(item),
            ..event
        }
    };
    (1..=items).map(item).collect()
}

/// Accepts deliveries for a while, so many at the same time. Returns the events a second, and the median of the time that a
/// delivery takes, in milliseconds.
async fn accept(effort: &Effort, queue: &Queue, callers: usize, items: u32) -> Result<[f64; 2]> {
    let events = &Events::of_chats(CHATS as u64);
    let began = Instant::now();
    let caller = async || -> Result<Vec<f64>> {
        let mut times = Vec::new();
        while began.elapsed() < effort.time {
            let delivery = delivery(events, items);
            let begins = Instant::now();
            let accepted = queue.accept.accept(delivery, None).await?;
            times.push(begins.elapsed().as_secs_f64() * 1e3);
            let is_new = |it: &Accepted| matches!(it, Accepted::New { .. });
            ensure!(accepted.iter().all(is_new), "a new event is {accepted:?}");
        }
        Ok(times)
    };
    let times = try_join_all((0..callers).map(|_| caller())).await?.concat();
    let rate = (times.len() as f64) * f64::from(items) / began.elapsed().as_secs_f64();
    Ok([rate, quantile(times, 0.5)])
}

async fn measure(effort: &Effort, name: &str, queue: Queue, verdicts: &mut Verdicts) -> Result<()> {
    let ways = [(1, 1), (1, ITEMS), (SINGLES, 1), (BATCHES, ITEMS)];
    let mut measured = ways.map(|_| Vec::new());
    for _ in 0..effort.rounds {
        for ((callers, items), measured) in ways.iter().zip(&mut measured) {
            measured.push(accept(effort, &queue, *callers, *items).await?);
        }
    }
    let mut table = Table::new(["deliveries at once", "of events", "events/s", "ms, p50"]);
    for ((callers, items), measured) in ways.iter().zip(&measured) {
        let [rate, time] = [0, 1].map(|at| Spread::of(measured.iter().map(|of| of[at])));
        table.row([
            callers.to_string(),
            items.to_string(),
            rate.show(0),
            time.show(2),
        ]);
    }
    println!("\n## Batches: {name}\n\n{table}");
    let ratio = |of: usize, than: usize, at: usize| {
        let pairs = measured[of].iter().zip(&measured[than]);
        Spread::of(pairs.map(|(of, than)| of[at] / than[at]))
    };
    let what = format!("{name}, time of a batch of 100, of one event's, one caller");
    verdicts.add(&what, AtMost(10.0), ratio(1, 0, 1), 1);
    let what = format!("{name}, events/s in batches under load, of single ones");
    verdicts.add(&what, AtLeast(1.5), ratio(3, 2, 0), 2);
    Ok(())
}
