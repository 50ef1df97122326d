//! Changes of many events by hand, as by the console and `receiver inbox`, while events are accepted.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::body::Body;
use futures_util::future::try_join_all;
use http::Request;
use http_body_util::BodyExt;
use tokio::time::sleep;
use tower::ServiceExt;
use tower_webhook::inbox::internal::AcceptOne;
use tower_webhook::inbox::internal::{self, Settlement};
use tower_webhook::inbox::{
    ActionKind, BulkState, EventId, EventState, Failure, Filter, Inbox, Queue, Seen,
};
use tower_webhook_console::Console;

use crate::accept;
use crate::events::{Events, quantile, take};
use crate::report::Table;

/// How many dead letters are made at the same time.
const AT_ONCE: usize = 64;

/// Each change is made in so many parts, and each export so often: one half of a part beside accepting, and the other half
/// alone. Accepting is measured beside each of them, and without it as long afterwards.
const PARTS: usize = 10;

pub(crate) struct Effort {
    /// How many dead letters there are.
    pub(crate) count: u64,
    /// How many events are accepted per second.
    pub(crate) rate: u64,
    /// How many threads keep the machine busy.
    pub(crate) load: usize,
}

pub(crate) async fn measure(name: &str, inbox: &Inbox, effort: &Effort) -> Result<()> {
    let Effort { count, rate, load } = *effort;
    let console = Console::new().inbox(inbox.clone()).router();
    let queue = internal::queue(inbox);
    let mut dead = die(queue, count / 2, false).await?;
    dead.extend(die(queue, count / 2, true).await?);
    let parts: Vec<_> = dead.chunks(dead.len() / 4).collect();
    let is_over = Arc::new(AtomicBool::new(false));
    for _ in 0..load {
        let is_over = Arc::clone(&is_over);
        thread::spawn(move || while !black_box(is_over.load(Ordering::Relaxed)) {});
    }
    let mut table = Table::new([
        "what",
        "events/s alone",
        "events/s beside",
        "accept p50 ms",
        "of without",
        "accept p99 ms",
        "of without",
    ]);
    for (what, kind, events) in [
        ("export", None, parts[0]),
        ("redrive", Some(ActionKind::Redrive), parts[0]),
        ("discard", Some(ActionKind::Discard), parts[1]),
        (
            "redrive, holding chats",
            Some(ActionKind::Redrive),
            parts[2],
        ),
        (
            "discard, holding chats",
            Some(ActionKind::Discard),
            parts[3],
        ),
    ] {
        let work = async |events: &[EventId]| match kind {
            None => export(&console, dead.len()).await,
            Some(kind) => change(inbox, events, kind).await,
        };
        let (mut changed, mut took) = ([0, 0], [Duration::ZERO; 2]);
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for part in events.chunks(events.len().div_ceil(PARTS)) {
            let [beside_it, alone] = [&part[..part.len() / 2], &part[part.len() / 2..]];
            let (done, times) = beside(queue, rate, work(beside_it)).await?;
            with.extend(times);
            changed[0] += done.0;
            took[0] += done.1;
            let nothing = async {
                sleep(done.1).await;
                Ok((0, done.1))
            };
            without.extend(beside(queue, rate, nothing).await?.1);
            let (count, time) = work(alone).await?;
            changed[1] += count;
            took[1] += time;
        }
        let rates = [1, 0].map(|at| format!("{:.0}", changed[at] as f64 / took[at].as_secs_f64()));
        let times = [0.5, 0.99].map(|share| {
            let [with, without] = [&with, &without].map(|times| quantile(times.clone(), share));
            [format!("{with:.1}"), format!("{:.2}", with / without)]
        });
        table.row([&[what.to_owned()][..], &rates, &times.concat()].concat());
    }
    is_over.store(true, Ordering::Relaxed);
    println!(
        "\n## {name}, {count} dead letters, {rate} accepted per second, {load} busy threads\n\n{table}"
    );
    Ok(())
}

/// How many events were changed, and what that took.
type Done = (usize, Duration);

/// What was done, and the times of accepting beside it in milliseconds.
async fn beside(
    queue: &Queue,
    rate: u64,
    work: impl Future<Output = Result<Done>>,
) -> Result<(Done, Vec<f64>)> {
    let is_over = Arc::new(AtomicBool::new(false));
    let events = Arc::new(Events::of_chats(10_000));
    let accepting = tokio::spawn(accept(
        Arc::clone(&queue.accept),
        events,
        rate,
        Arc::clone(&is_over),
    ));
    let done = work.await;
    is_over.store(true, Ordering::Relaxed);
    let times = accepting.await??;
    Ok((done?, times))
}

/// Makes so many dead letters.
async fn die(queue: &Queue, count: u64, hold_lane: bool) -> Result<Vec<EventId>> {
    let events = Events::of_chats(count);
    let mut dead = Vec::new();
    while (dead.len() as u64) < count {
        let some = (0..AT_ONCE).filter_map(|_| events.next_of(count));
        try_join_all(some.map(|event| queue.accept.accept_one(event, None))).await?;
        let claimed = queue.claim.claim(&[take().into()], AT_ONCE, 0).await?;
        let bury = Settlement::Dead {
            failure: Failure::new("failed", "the CRM answered 502 Bad Gateway")
                .took(Duration::from_millis(1200)),
            hold_lane,
        };
        let settled = claimed
            .events
            .iter()
            .map(|event| queue.settle.settle(&event.lease, &bury, None));
        try_join_all(settled).await?;
        dead.extend(claimed.events.iter().map(|event| event.lease.id));
    }
    dead.sort_unstable();
    Ok(dead)
}

/// Exports all dead letters.
async fn export(console: &Router, count: usize) -> Result<Done> {
    let began = Instant::now();
    let request = Request::get("/export?state=dead&format=jsonl").body(Body::empty())?;
    let mut body = console.clone().oneshot(request).await?.into_body();
    let mut lines = 0;
    while let Some(frame) = body.frame().await {
        if let Ok(part) = frame?.into_data() {
            lines += part.iter().filter(|byte| **byte == b'\n').count();
        }
    }
    ensure!(lines == count, "{lines} of {count} events were exported");
    Ok((count, began.elapsed()))
}

/// Changes all dead letters up to the last of these, as the console does.
async fn change(inbox: &Inbox, events: &[EventId], kind: ActionKind) -> Result<Done> {
    let newest = *events.last().context("a part has events")?;
    let seen = inbox.seen().await?.context("there are events")?;
    let dead = Filter::default().states([EventState::Dead]);
    let selection = inbox.select(&dead, Seen::new(newest, seen.at)).await?;
    let began = Instant::now();
    let number = inbox.begin_all(kind, &selection, 0).await?;
    let action = inbox.continue_all(number).await?;
    let took = began.elapsed();
    let is_done = action
        .bulk
        .is_some_and(|bulk| bulk.state == BulkState::Done);
    ensure!(is_done, "somebody else has moved it on");
    let changed = action.changed;
    ensure!(changed == events.len() as u64, "{changed} were changed");
    Ok((events.len(), took))
}
