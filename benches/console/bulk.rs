//! Changes of many events by hand, as by the console and `receiver inbox`, while events are accepted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures_util::future::try_join_all;
use tower_webhook::inbox::internal::Settlement;
use tower_webhook::inbox::{Change, EventId, EventState, Failure, Filter, Inbox, Page, Queue};

use crate::accept;
use crate::events::{Events, quantile, take};
use crate::report::Table;

/// How many events are read or changed at the same time.
const AT_ONCE: usize = 64;

pub(crate) async fn measure<Q: Queue + Clone>(
    name: &str,
    inbox: &Inbox<Q>,
    count: u64,
) -> Result<()> {
    let dead = die(inbox.queue(), count).await?;
    let alone = beside(inbox.queue(), async {
        tokio::time::sleep(Duration::from_millis(count / 10)).await;
        Ok(())
    });
    let (_, control) = alone.await?;
    let export = beside(inbox.queue(), export(inbox, &dead)).await?;
    let redrive = change(&dead, |id| inbox.redrive(id, Some(EventState::Dead)));
    let redrive = beside(inbox.queue(), redrive).await?;
    let discard = beside(inbox.queue(), change(&dead, |id| inbox.discard(id, None))).await?;

    let mut table = Table::new(["what", "events/s", "accept p99 ms", "of without"]);
    for (what, (took, p99)) in [
        ("export", export),
        ("redrive", redrive),
        ("discard", discard),
    ] {
        table.row([
            what.to_owned(),
            format!("{:.0}", count as f64 / took.as_secs_f64()),
            format!("{p99:.1}"),
            format!("{:.2}", p99 / control),
        ]);
    }
    println!("\n## {name}, {count} events by hand, 1000 accepted per second\n\n{table}");
    Ok(())
}

/// What the work took, and the p99 of accepting beside it in milliseconds.
async fn beside<Q: Queue + Clone>(
    queue: &Q,
    work: impl Future<Output = Result<()>>,
) -> Result<(Duration, f64)> {
    let is_over = Arc::new(AtomicBool::new(false));
    let events = Arc::new(Events::of_chats(10_000));
    let accepting = tokio::spawn(accept(queue.clone(), events, Arc::clone(&is_over)));
    let began = Instant::now();
    let done = work.await;
    let took = began.elapsed();
    is_over.store(true, Ordering::Relaxed);
    let times = accepting.await??;
    done?;
    Ok((took, quantile(times, 0.99)))
}

/// Makes so many dead letters.
async fn die<Q: Queue>(queue: &Q, count: u64) -> Result<Vec<EventId>> {
    let events = Events::of_chats(count);
    let mut dead = Vec::new();
    while (dead.len() as u64) < count {
        let some = (0..AT_ONCE).filter_map(|_| events.next_of(count));
        try_join_all(some.map(|event| queue.accept(event, None))).await?;
        let claimed = queue.claim(&take(), AT_ONCE, 0).await?;
        let bury = Settlement::Dead {
            failure: Failure {
                outcome: "failed".to_owned(),
                reason: "the CRM answered 502 Bad Gateway".to_owned(),
                took: Some(Duration::from_millis(1200)),
            },
            hold_lane: false,
        };
        let settled = claimed
            .events
            .iter()
            .map(|event| queue.settle(&event.lease, &bury, None));
        try_join_all(settled).await?;
        dead.extend(claimed.events.iter().map(|event| event.lease.id));
    }
    Ok(dead)
}

/// Reads the list, and each of its events with its body.
async fn export<Q: Queue>(inbox: &Inbox<Q>, dead: &[EventId]) -> Result<()> {
    let filter = Filter {
        states: vec![EventState::Dead],
        ..Filter::default()
    };
    let (mut page, mut count) = (Page::oldest(4 * AT_ONCE), 0);
    loop {
        let listed = inbox.list(&filter, page).await?;
        for some in listed.events.chunks(AT_ONCE) {
            let records = try_join_all(some.iter().map(|event| inbox.get(event.id))).await?;
            ensure!(
                records.iter().flatten().all(|record| record.body.is_some()),
                "without body"
            );
            count += records.len();
        }
        match listed.events.last() {
            Some(last) => page = page.after(last.id),
            None => break,
        }
    }
    ensure!(
        count == dead.len(),
        "{count} of {} events were exported",
        dead.len()
    );
    Ok(())
}

async fn change<E, F>(events: &[EventId], change: impl Fn(EventId) -> F) -> Result<()>
where
    F: Future<Output = Result<Change, E>>,
    anyhow::Error: From<E>,
{
    for some in events.chunks(AT_ONCE) {
        let changes = try_join_all(some.iter().map(|id| change(*id))).await?;
        ensure!(
            changes.iter().all(|change| *change == Change::Made),
            "not changed"
        );
    }
    Ok(())
}
