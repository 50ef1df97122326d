//! Measures a SQLite file in which a million events wait: accepting, claiming and draining.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::runtime::Builder;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tower::service_fn;
use tower_webhook::inbox::internal::AcceptOne;
use tower_webhook::inbox::internal::{Settled, Settlement};
use tower_webhook::inbox::{Inbox, Queue};
use tower_webhook::sqlite::SqliteQueue;
use tower_webhook::{Outcome, RawDelivery};

use crate::contest::Effort;
use crate::events::{Events, quantile, take};
use crate::report::Target::{AtLeast, AtMost};
use crate::report::{Spread, Table, Verdicts};
use support::inbox::Works;

const CALLERS: u64 = 64;

/// In how many parts the drain is measured.
const PARTS: u64 = 5;

pub(crate) fn run(effort: &Effort, concurrency: usize, verdicts: &mut Verdicts) -> Result<()> {
    let directory = tempfile::tempdir_in(&effort.directory)?;
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let open = |name| {
            let queue = SqliteQueue::open(directory.path().join(name));
            queue.map(Queue::from)
        };
        let (empty, full) = (open("empty.db")?, open("full.db")?);
        let events = Arc::new(Events::of_chats(effort.keys / 10));
        let began = Instant::now();
        fill(&full, &events, effort.keys).await?;
        let filling = effort.keys as f64 / began.elapsed().as_secs_f64();

        let few = Events::of_chats(effort.keys / 10);
        let samples = (effort.keys / 2_000).clamp(20, 300);
        let mut times: [[Vec<f64>; 2]; 2] = Default::default();
        for _ in 0..effort.rounds {
            for (at, queue, events) in [(0, &empty, &few), (1, &full, &*events)] {
                let (accept, claim) = probe(queue, events, samples).await?;
                times[at][0].push(accept);
                times[at][1].push(claim);
            }
        }
        let began = Instant::now();
        let stats = full.count.stats().await?;
        let stats_took = began.elapsed();
        let waiting = stats.unsettled();

        let mut table = Table::new(["p50 µs", "empty", &format!("with {waiting} waiting")]);
        for (at, name) in ["accept", "claim"].into_iter().enumerate() {
            let show = |of: usize| Spread::of(times[of][at].iter().copied()).show(0);
            table.row([name.to_owned(), show(0), show(1)]);
        }
        println!("\n## SQLite, a backlog, one caller\n\n{table}");
        for (at, name) in ["accept", "claim"].into_iter().enumerate() {
            let ratio = times[1][at].iter().zip(&times[0][at]).map(|(full, empty)| full / empty);
            verdicts.add(
                format!("{name} with {waiting} waiting events, p50, of an empty inbox"),
                AtMost(1.25),
                Spread::of(ratio),
                2,
            );
        }

        let (rates, whole) = drain(&full, concurrency, waiting).await?;
        println!(
            "\nIt was filled at {filling:.0} events/s, counted in {stats_took:.0?}, and drained at {whole:.0} events/s; \
             in fifths {}.",
            Spread::of(rates.iter().copied()).show(0)
        );
        let what = format!("drain of {waiting} waiting events, events/s");
        verdicts.add(what, AtLeast(15_000.0), Spread::of(rates), 0);
        let left = full.count.stats().await?;
        ensure!(left.is_all_handled(), "not all was handled:\n{left}");
        Ok(())
    })
}

/// Accepts events which nobody takes.
pub(crate) async fn fill(queue: &Queue, events: &Arc<Events>, count: u64) -> Result<()> {
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (queue, events) = (Arc::clone(&queue.accept), Arc::clone(events));
        callers.spawn(async move {
            while let Some(event) = events.next_of(count) {
                queue.accept_one(event, None).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended??;
    }
    Ok(())
}

/// Accepts events, claims as many and settles them. Returns the median times in microseconds.
async fn probe(queue: &Queue, events: &Events, samples: u64) -> Result<(f64, f64)> {
    let (mut accepts, mut claims) = (Vec::new(), Vec::new());
    for _ in 0..samples {
        let event = events.next();
        let began = Instant::now();
        queue.accept.accept_one(event, None).await?;
        accepts.push(began.elapsed().as_secs_f64() * 1e6);

        let began = Instant::now();
        let mut claimed = queue.claim.claim(&[take().into()], 1, 1).await?;
        claims.push(began.elapsed().as_secs_f64() * 1e6);
        let event = claimed.events.pop().context("an event waits")?;
        let settling = queue
            .settle
            .settle(&event.lease, &Settlement::Handled, None);
        ensure!(
            matches!(settling.await?, Settled::Ended(_)),
            "the lease was lost"
        );
    }
    Ok((quantile(accepts, 0.5), quantile(claims, 0.5)))
}

/// Handles all events, and returns the events per second of each part, and of all.
async fn drain(queue: &Queue, concurrency: usize, waiting: u64) -> Result<(Vec<f64>, f64)> {
    let handled = Arc::new(AtomicU64::new(0));
    let ended = Arc::new(Notify::new());
    let times: Arc<[std::sync::OnceLock<Instant>]> =
        (0..PARTS).map(|_| Default::default()).collect();
    let part = waiting.div_ceil(PARTS);
    let handler = {
        let (handled, ended, times) =
            (Arc::clone(&handled), Arc::clone(&ended), Arc::clone(&times));
        service_fn(move |_: RawDelivery| {
            let count = handled.fetch_add(1, Ordering::Relaxed) + 1;
            if count % part == 0 || count == waiting {
                let at = (count.div_ceil(part) - 1) as usize;
                let _ = times[at].set(Instant::now());
            }
            if count == waiting {
                ended.notify_one();
            }
            ready(Ok::<_, Infallible>(Outcome::Handled))
        })
    };
    let began = Instant::now();
    let worker = Inbox::new(queue.clone())
        .work(handler)
        .concurrency(concurrency)
        .spawn();
    ended.notified().await;
    worker.drain(Duration::from_secs(10)).await?;
    let whole = waiting as f64 / began.elapsed().as_secs_f64();
    let mut rates = Vec::new();
    let (mut since, mut left) = (began, waiting);
    for time in times.iter().filter_map(|time| time.get()) {
        let count = part.min(left);
        rates.push(count as f64 / (*time - since).as_secs_f64());
        (since, left) = (*time, left - count);
    }
    Ok((rates, whole))
}
