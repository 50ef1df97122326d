//! Changes of many events by hand, as by the console and `receiver inbox`, while events are accepted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use axum::Router;
use axum::body::Body;
use futures_util::future::try_join_all;
use http::Request;
use http_body_util::BodyExt;
use tokio::time::sleep;
use tower::ServiceExt;
use tower_webhook::inbox::internal::{self, BulkStep, NewBulk, Settlement};
use tower_webhook::inbox::{ActionKind, By, EventId, EventState, Failure, Inbox, Queue, Which};
use tower_webhook_console::Console;

use crate::accept;
use crate::events::{Events, quantile, take};
use crate::report::Table;

/// How many dead letters are made at the same time.
const AT_ONCE: usize = 64;

/// How many events the console changes at the same time, before it pauses for as long as that took.
const CHANGES: usize = 64;

/// Each change is made in so many parts, and each export so often. Accepting is measured beside each of them, and without
/// it as long afterwards.
const PARTS: usize = 10;

pub(crate) async fn measure(name: &str, inbox: &Inbox, count: u64) -> Result<()> {
    let console = Console::new().inbox(inbox.clone()).router();
    let queue = internal::queue(inbox);
    let dead = die(queue, count).await?;
    let (redriven, discarded) = dead.split_at(dead.len() / 2);
    let mut table = Table::new(["what", "events/s", "accept p99 ms", "of without"]);
    for (what, events) in [
        ("export", redriven),
        ("redrive", redriven),
        ("discard", discarded),
    ] {
        let (mut took, mut with, mut without) = (Duration::ZERO, Vec::new(), Vec::new());
        for part in events.chunks(events.len().div_ceil(PARTS)) {
            let (time, times) = match what {
                "export" => beside(queue, export(&console, dead.len())).await?,
                "redrive" => beside(queue, change(queue, part, ActionKind::Redrive)).await?,
                _ => beside(queue, change(queue, part, ActionKind::Discard)).await?,
            };
            took += time;
            with.extend(times);
            let nothing = async {
                sleep(time).await;
                Ok(())
            };
            without.extend(beside(queue, nothing).await?.1);
        }
        let p99 = quantile(with, 0.99);
        let events = match what {
            "export" => PARTS * dead.len(),
            _ => events.len(),
        };
        table.row([
            what.to_owned(),
            format!("{:.0}", events as f64 / took.as_secs_f64()),
            format!("{p99:.1}"),
            format!("{:.2}", p99 / quantile(without, 0.99)),
        ]);
    }
    println!("\n## {name}, {count} events by hand, 1000 accepted per second\n\n{table}");
    Ok(())
}

/// What the work took, and the times of accepting beside it in milliseconds.
async fn beside(
    queue: &Queue,
    work: impl Future<Output = Result<()>>,
) -> Result<(Duration, Vec<f64>)> {
    let is_over = Arc::new(AtomicBool::new(false));
    let events = Arc::new(Events::of_chats(10_000));
    let accepting = tokio::spawn(accept(
        Arc::clone(&queue.accept),
        events,
        Arc::clone(&is_over),
    ));
    let began = Instant::now();
    let done = work.await;
    let took = began.elapsed();
    is_over.store(true, Ordering::Relaxed);
    let times = accepting.await??;
    done?;
    Ok((took, times))
}

/// Makes so many dead letters.
async fn die(queue: &Queue, count: u64) -> Result<Vec<EventId>> {
    let events = Events::of_chats(count);
    let mut dead = Vec::new();
    while (dead.len() as u64) < count {
        let some = (0..AT_ONCE).filter_map(|_| events.next_of(count));
        try_join_all(some.map(|event| queue.accept.accept(event, None))).await?;
        let claimed = queue.claim.claim(&[take().into()], AT_ONCE, 0).await?;
        let bury = Settlement::Dead {
            failure: Failure::new("failed", "the CRM answered 502 Bad Gateway")
                .took(Duration::from_millis(1200)),
            hold_lane: false,
        };
        let settled = claimed
            .events
            .iter()
            .map(|event| queue.settle.settle(&event.lease, &bury, None));
        try_join_all(settled).await?;
        dead.extend(claimed.events.iter().map(|event| event.lease.id));
    }
    Ok(dead)
}

/// Exports all dead letters.
async fn export(console: &Router, count: usize) -> Result<()> {
    let request = Request::get("/export?state=dead&format=jsonl").body(Body::empty())?;
    let mut body = console.clone().oneshot(request).await?.into_body();
    let mut lines = 0;
    while let Some(frame) = body.frame().await {
        if let Ok(part) = frame?.into_data() {
            lines += part.iter().filter(|byte| **byte == b'\n').count();
        }
    }
    ensure!(lines == count, "{lines} of {count} events were exported");
    Ok(())
}

/// Changes dead letters in steps, as the console does.
async fn change(queue: &Queue, events: &[EventId], kind: ActionKind) -> Result<()> {
    let bulk = NewBulk {
        kind,
        about: String::new(),
        chat: None,
        rate: 0,
    };
    let number = queue.change.begin(&bulk, &By::default()).await?;
    let mut from = EventId(0);
    for some in events.chunks(CHANGES) {
        let began = Instant::now();
        let reached = some.last().copied().unwrap_or(from);
        let step = BulkStep {
            redrives: kind == ActionKind::Redrive,
            events: some.iter().map(|id| (*id, EventState::Dead)).collect(),
            from,
            reached,
            is_last: some.last() == events.last(),
        };
        let is_made = queue.change.step(number, &step).await?;
        ensure!(is_made, "somebody else has moved it on");
        from = reached;
        sleep(began.elapsed()).await;
    }
    let done = queue.list.actions(Which::All, None, 1).await?;
    let changed = done.first().map_or(0, |action| action.changed);
    ensure!(changed == events.len() as u64, "{changed} were changed");
    Ok(())
}
