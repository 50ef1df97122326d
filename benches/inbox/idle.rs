//! Measures the time from the answer to the start of the handler, when nothing else happens.

use std::convert::Infallible;
use std::future::ready;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use axum::Router;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tower::{Layer, service_fn};
use tower_webhook::inbox::Inbox;
use tower_webhook::sqlite::SqliteQueue;
use tower_webhook::{Outcome, RawDelivery, SignatureLayer};

use crate::contest::Effort;
use crate::events::{quantile, secret};
use crate::load::Deliveries;
use crate::report::Target::AtMost;
use crate::report::{Spread, Table, Verdicts};
use crate::sqlite::CHATS;
use support::inbox::Works;

const PAUSE: Duration = Duration::from_millis(5);

pub(crate) fn run(effort: &Effort, verdicts: &mut Verdicts) -> Result<()> {
    let directory = tempfile::tempdir_in(&effort.directory)?;
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let (started, starts) = mpsc::channel();
    let started = Mutex::new(started);
    let handler = move |_: RawDelivery| {
        let now = Instant::now();
        let _ = started.lock().map(|started| started.send(now));
        ready(Ok::<_, Infallible>(Outcome::Handled))
    };
    let handler = std::sync::Arc::new(handler);
    let inbox = Inbox::new(SqliteQueue::open(directory.path().join("inbox.db"))?);
    let webhooks = SignatureLayer::new(secret()).layer(inbox.accept());
    let app = Router::new().route_service("/webhooks", webhooks);
    let (worker, port) = runtime.block_on(async {
        let worker = inbox
            .work(service_fn(move |delivery| handler(delivery)))
            .spawn();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        tokio::spawn(async { axum::serve(listener, app).await });
        anyhow::Ok((worker, port))
    })?;

    let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    connection.set_nodelay(true)?;
    let deliveries = Deliveries::of_chats(CHATS);
    let each = (effort.time.as_millis() / PAUSE.as_millis()) as usize;
    let (mut medians, mut slowest, mut answers) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..effort.rounds {
        let (mut lags, mut times) = (Vec::new(), Vec::new());
        for _ in 0..each {
            thread::sleep(PAUSE);
            let request = deliveries.request();
            let sent = Instant::now();
            connection.write_all(&request)?;
            let mut answer = [0; 4096];
            let read = connection.read(&mut answer)?;
            let answered = Instant::now();
            ensure!(answer[..read].starts_with(b"HTTP/1.1 200 "), "not accepted");
            let start = starts.recv_timeout(Duration::from_secs(20))?;
            lags.push(start.saturating_duration_since(answered).as_secs_f64() * 1e3);
            times.push((answered - sent).as_secs_f64() * 1e3);
        }
        medians.push(quantile(lags.clone(), 0.5));
        slowest.push(quantile(lags, 0.99));
        answers.push(quantile(times, 0.5));
    }
    runtime.block_on(worker.drain(Duration::from_secs(10)))?;

    let (medians, slowest) = (Spread::of(medians), Spread::of(slowest));
    let mut table = Table::new(["", "answered after, p50 ms", "p50 ms", "p99 ms"]);
    table.row([
        "from 200 to the handler's start".to_owned(),
        Spread::of(answers).show(2),
        medians.show(3),
        slowest.show(3),
    ]);
    println!(
        "\n## Idle, one event every {PAUSE:?}; a handler that starts before the answer counts as 0\n\n{table}"
    );
    verdicts.add(
        "from 200 to the handler's start, p50 ms",
        AtMost(1.0),
        medians,
        2,
    );
    verdicts.add(
        "from 200 to the handler's start, p99 ms",
        AtMost(5.0),
        slowest,
        2,
    );
    Ok(())
}
