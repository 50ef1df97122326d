//! Measures an inbox in PostgreSQL while a transaction of somebody else stays open, so that no dead row can be removed.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, ensure};
use axum::body::Body;
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tower::{Layer, ServiceExt, service_fn};
use tower_webhook::inbox::internal::{self, Settlement};
use tower_webhook::inbox::{Accept, Inbox, Queue};
use tower_webhook::signature::Signature;
use tower_webhook::{Outcome, RawDelivery, SignatureLayer};

use crate::contest::Effort;
use crate::events::{quantile, secret, take};
use crate::load::Deliveries;
use crate::postgres::{connect, queue};
use crate::report::Target::{AtLeast, AtMost};
use crate::report::{Spread, Table, Verdicts};
use crate::sqlite::CHATS;
use support::inbox::Works;
use support::postgres::PostgresServer;

/// Events per second.
const RATE: u64 = 800;
const CALLERS: usize = 64;

type Webhooks = Signature<Accept>;

pub(crate) fn run(
    effort: &Effort,
    concurrency: usize,
    time: Duration,
    verdicts: &mut Verdicts,
) -> Result<()> {
    let server = PostgresServer::start();
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let measured = runtime.block_on(measure(effort, &server, concurrency, time))?;
    let mut table = Table::new(["", "pinned"]);
    let mut row = |name: &str, value: String| table.row([name.to_owned(), value]);
    row("dead rows in the end", measured.dead_rows.to_string());
    row("largest backlog", measured.backlog.to_string());
    row("claim, p99 ms", format!("{:.1}", measured.claim));
    row(
        "handler's start after acceptance, p99 ms",
        format!("{:.1}", measured.lag),
    );
    row(
        "events/s with 64 callers, before",
        format!("{:.0}", measured.fresh),
    );
    row(
        "events/s with 64 callers, in the end",
        format!("{:.0}", measured.pinned),
    );
    println!("\n## Postgres beside a pinned snapshot, {time:.0?} at {RATE} events/s\n\n{table}");
    let one = |value| Spread::of([value]);
    let of = "beside a pinned snapshot";
    verdicts.add(
        format!("{of}, backlog"),
        AtMost(RATE as f64 / 10.0),
        one(measured.backlog as f64),
        0,
    );
    verdicts.add(
        format!("{of}, claim p99 ms"),
        AtMost(30.0),
        one(measured.claim),
        1,
    );
    verdicts.add(
        format!("{of}, start lag p99 ms"),
        AtMost(50.0),
        one(measured.lag),
        1,
    );
    verdicts.add(
        format!("{of}, deliveries not answered 200"),
        AtMost(0.0),
        one(measured.refused as f64),
        0,
    );
    let ratio = one(measured.pinned / measured.fresh);
    verdicts.add(format!("{of}, maximum, of fresh"), AtLeast(0.5), ratio, 2);
    Ok(())
}

struct Measured {
    dead_rows: i64,
    backlog: u64,
    claim: f64,
    lag: f64,
    refused: u64,
    fresh: f64,
    pinned: f64,
}

/// What the handler and the callers have seen.
#[derive(Default)]
struct Seen {
    accepted: AtomicU64,
    handled: AtomicU64,
    /// Deliveries that were not answered 200.
    refused: AtomicU64,
    /// Milliseconds from the acceptance to the start.
    lags: Mutex<Vec<f64>>,
}

impl Seen {
    fn handle(&self, delivery: &RawDelivery) {
        let lag = delivery
            .accepted_at()
            .and_then(|at| SystemTime::now().duration_since(at).ok());
        if let (Ok(mut lags), Some(lag)) = (self.lags.lock(), lag) {
            lags.push(lag.as_secs_f64() * 1e3);
        }
        self.handled.fetch_add(1, Ordering::Relaxed);
    }

    fn backlog(&self) -> u64 {
        let handled = self.handled.load(Ordering::Relaxed);
        self.accepted
            .load(Ordering::Relaxed)
            .saturating_sub(handled)
    }
}

async fn measure(
    effort: &Effort,
    server: &PostgresServer,
    concurrency: usize,
    time: Duration,
) -> Result<Measured> {
    let url = server.url();
    let inbox = Inbox::new(queue(&url).await?);
    let seen = Arc::new(Seen::default());
    let handler = {
        let seen = Arc::clone(&seen);
        service_fn(move |delivery: RawDelivery| {
            seen.handle(&delivery);
            std::future::ready(Ok::<_, Infallible>(Outcome::Handled))
        })
    };
    let worker = inbox.work(handler).concurrency(concurrency).spawn();
    let webhooks = SignatureLayer::new(secret()).layer(inbox.accept());
    let deliveries = Arc::new(Deliveries::of_chats(CHATS));

    closed(&webhooks, &deliveries, &seen, effort.time / 2).await?;
    let fresh = closed(&webhooks, &deliveries, &seen, effort.time).await?;

    let mut pin = PgConnection::connect(&url).await?;
    sqlx::query("BEGIN ISOLATION LEVEL REPEATABLE READ")
        .execute(&mut pin)
        .await?;
    sqlx::query("SELECT txid_current()")
        .fetch_one(&mut pin)
        .await?;
    if let Ok(mut lags) = seen.lags.lock() {
        lags.clear();
    }
    let (backlog, claims) =
        open(&webhooks, &deliveries, &seen, internal::queue(&inbox), time).await?;
    let lags = seen
        .lags
        .lock()
        .map(|lags| lags.clone())
        .unwrap_or_default();
    let dead_rows = dead_rows(&url).await?;
    let pinned = closed(&webhooks, &deliveries, &seen, effort.time).await?;
    sqlx::query("COMMIT").execute(&mut pin).await?;

    worker.drain(Duration::from_secs(20)).await?;
    let stats = inbox.stats().await?;
    ensure!(stats.is_all_handled(), "not all was handled:\n{stats}");
    Ok(Measured {
        dead_rows,
        backlog,
        claim: quantile(claims, 0.99),
        lag: quantile(lags, 0.99),
        refused: seen.refused.load(Ordering::Relaxed),
        fresh,
        pinned,
    })
}

/// Sends from all callers, each the next one after the answer. Returns the events per second until all are handled.
async fn closed(
    webhooks: &Webhooks,
    deliveries: &Arc<Deliveries>,
    seen: &Arc<Seen>,
    time: Duration,
) -> Result<f64> {
    let before = seen.handled.load(Ordering::Relaxed);
    let began = Instant::now();
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (webhooks, deliveries, seen) =
            (webhooks.clone(), Arc::clone(deliveries), Arc::clone(seen));
        callers.spawn(async move {
            while began.elapsed() < time {
                send(&webhooks, &deliveries, &seen).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended??;
    }
    while seen.backlog() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let handled = seen.handled.load(Ordering::Relaxed) - before;
    Ok(handled as f64 / began.elapsed().as_secs_f64())
}

/// Sends at a rate that waits for nothing. Returns the largest backlog, and the times of claims in milliseconds.
async fn open(
    webhooks: &Webhooks,
    deliveries: &Arc<Deliveries>,
    seen: &Arc<Seen>,
    queue: &Queue,
    time: Duration,
) -> Result<(u64, Vec<f64>)> {
    const TICKS: u64 = 100;

    let began = Instant::now();
    let mut tick = interval(Duration::from_secs(1) / TICKS as u32);
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut callers = JoinSet::new();
    let (mut most, mut claims, mut ticks) = (0, Vec::new(), 0);
    let mut minute = 0;
    while began.elapsed() < time {
        tick.tick().await;
        for _ in 0..RATE / TICKS {
            let (webhooks, deliveries, seen) =
                (webhooks.clone(), Arc::clone(deliveries), Arc::clone(seen));
            callers.spawn(async move { send(&webhooks, &deliveries, &seen).await });
        }
        while let Some(ended) = callers.try_join_next() {
            ended??;
        }
        most = most.max(seen.backlog());
        ticks += 1;
        if ticks % 10 == 0 {
            let asked = Instant::now();
            let claimed = queue.claim.claim(&[take().into()], 1, 0).await?;
            claims.push(asked.elapsed().as_secs_f64() * 1e3);
            for event in claimed.events {
                seen.handle(&event.delivery);
                let settling = queue
                    .settle
                    .settle(&event.lease, &Settlement::Handled, None);
                settling.await?;
            }
        }
        if ticks % (60 * TICKS) == 0 {
            let (of, minutes) = (&claims[minute..], ticks / (60 * TICKS));
            let (p99, slowest) = (quantile(of.to_vec(), 0.99), quantile(of.to_vec(), 1.0));
            eprintln!(
                "after {minutes} min: largest backlog {most}, claims of the minute: p99 {p99:.1} ms, slowest {slowest:.1} ms"
            );
            minute = claims.len();
        }
    }
    while let Some(ended) = callers.join_next().await {
        ended??;
    }
    Ok((most, claims))
}

async fn send(webhooks: &Webhooks, deliveries: &Deliveries, seen: &Seen) -> Result<()> {
    let request = deliveries.request();
    let request = parse(&request)?;
    let sent = Instant::now();
    let answer = webhooks.clone().oneshot(request).await?;
    if answer.status() == StatusCode::OK {
        seen.accepted.fetch_add(1, Ordering::Relaxed);
    } else {
        seen.refused.fetch_add(1, Ordering::Relaxed);
        let (status, waited) = (answer.status(), sent.elapsed());
        let body = answer.into_body().collect().await?.to_bytes();
        let body = String::from_utf8_lossy(&body);
        eprintln!("answered {status} after {waited:.1?}: {body}");
    }
    Ok(())
}

/// Makes a request of its bytes, which are this benchmark's own.
fn parse(bytes: &[u8]) -> Result<Request<Body>> {
    let text = std::str::from_utf8(bytes)?;
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
    let mut request = Request::post("/webhooks");
    for line in head.lines().skip(1) {
        if let Some((name, value)) = line.split_once(": ") {
            request = request.header(name, value);
        }
    }
    Ok(request.body(Body::from(body.to_owned()))?)
}

async fn dead_rows(url: &str) -> Result<i64> {
    // Statistics arrive with some delay.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let pool = connect(url, 1).await?;
    let dead =
        AssertSqlSafe("SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables");
    let dead = sqlx::query(dead).fetch_one(&pool).await?.try_get(0)?;
    pool.close().await;
    Ok(dead)
}
