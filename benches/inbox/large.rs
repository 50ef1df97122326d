//! Measures how long small deliveries take beside bodies of 25 MiB.

use std::convert::Infallible;
use std::future::ready;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use axum::Router;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tower::service_fn;
use tower_webhook::inbox::{Inbox, Queue};
use tower_webhook::sqlite::SqliteQueue;
use tower_webhook::{Outcome, RawDelivery, Secret, Webhooks};

use crate::SECRET;
use crate::contest::Effort;
use crate::events::{quantile, secret};
use crate::load::Deliveries;
use crate::postgres::queue;
use crate::report::Target::AtMost;
use crate::report::{Spread, Table, Verdicts};
use crate::sqlite::CHATS;
use support::inbox::{Works, accepting};
use support::postgres::PostgresServer;

const LARGE: usize = 25 << 20;

/// Small deliveries come at this pace, whatever becomes of those before.
const PACE: Duration = Duration::from_millis(10);

/// The large ones a second.
const RATES: [u32; 3] = [0, 1, 10];

pub(crate) fn run(effort: &Effort, verdicts: &mut Verdicts) -> Result<()> {
    let directory = tempfile::tempdir_in(&effort.directory)?;
    let file = directory.path().join("large.db");
    measure(effort, "sqlite", SqliteQueue::open(file)?.into(), verdicts)?;
    let server = PostgresServer::start();
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let queue = runtime.block_on(queue(&server.url()))?;
    measure(effort, "postgres", queue.into(), verdicts)
}

fn large() -> Vec<u8> {
    let body = format!(r#"{{"id":"large","text":"{}"}}"#, "x".repeat(LARGE - 25));
    let signature = Secret::new(SECRET).expect("it is not empty").sign(body.as_bytes());
    let head = format!(
        "POST /webhooks HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nx-service-event: chat-rated\r\n\
         x-service-hmac-sha256: {signature}\r\ncontent-length: {}\r\n",
        body.len()
    );
    [head.as_bytes(), body.as_bytes()].concat()
}

/// Sends a request, and returns the status of the answer.
fn send(connection: &mut TcpStream, parts: &[&[u8]]) -> Result<u16> {
    for part in parts {
        connection.write_all(part)?;
    }
    let mut answer = [0; 4096];
    let read = connection.read(&mut answer)?;
    let status = answer
        .get(9..12)
        .filter(|_| read > 12)
        .context("an answer")?;
    Ok(str::from_utf8(status)?.parse()?)
}

/// What became of the deliveries of one round.
#[derive(Default)]
struct Round {
    small: Vec<f64>,
    refused: usize,
    large: Vec<f64>,
    large_refused: usize,
}

fn play(
    effort: &Effort,
    port: u16,
    deliveries: &Deliveries,
    body: &[u8],
    rate: u32,
) -> Result<Round> {
    let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, port));
    let ends = Instant::now() + effort.time;
    thread::scope(|scope| {
        let large = (0..rate).map(|nth| {
            scope.spawn(move || -> Result<(Vec<f64>, usize)> {
                let (mut times, mut refused) = (Vec::new(), 0);
                let mut next = Instant::now() + Duration::from_secs(1) * nth / rate.max(1);
                let end_of_head = body
                    .iter()
                    .position(|byte| *byte == b'{')
                    .unwrap_or_default();
                while next < ends {
                    thread::sleep(next.saturating_duration_since(Instant::now()));
                    next += Duration::from_secs(1);
                    let key = format!("idempotency-key: {:032x}\r\n\r\n", fastrand::u128(..));
                    let sent = Instant::now();
                    let parts = [&body[..end_of_head], key.as_bytes(), &body[end_of_head..]];
                    // One that is refused early may not be read to its end.
                    match send(&mut connect()?, &parts) {
                        Ok(200) => times.push(sent.elapsed().as_secs_f64() * 1e3),
                        Ok(_) | Err(_) => refused += 1,
                    }
                }
                Ok((times, refused))
            })
        });
        let large: Vec<_> = large.collect();
        let mut round = Round::default();
        // As many at once as come, so that a late answer delays no other one.
        let (answers, answered) = std::sync::mpsc::channel();
        let mut next = Instant::now();
        while next < ends {
            thread::sleep(next.saturating_duration_since(Instant::now()));
            let (answers, request) = (answers.clone(), deliveries.request());
            scope.spawn(move || {
                let sent = Instant::now();
                let status = connect()
                    .map_err(Into::into)
                    .and_then(|mut it| send(&mut it, &[&request]));
                let _ = answers.send((status, sent.elapsed().as_secs_f64() * 1e3));
            });
            next += PACE;
        }
        drop(answers);
        for (status, time) in answered {
            match status? {
                200 => round.small.push(time),
                _ => round.refused += 1,
            }
        }
        for thread in large {
            let ended = thread.join().ok().context("a thread panicked")?;
            let (times, refused) = ended?;
            round.large.extend(times);
            round.large_refused += refused;
        }
        Ok(round)
    })
}

fn measure(effort: &Effort, name: &str, queue: Queue, verdicts: &mut Verdicts) -> Result<()> {
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let inbox = Inbox::new(queue).backlog_limit(u64::MAX);
    let route = Webhooks::new(secret()).max_body(LARGE);
    let app = Router::new().route_service("/webhooks", accepting(&inbox, route));
    let (worker, port) = runtime.block_on(async {
        let nothing = service_fn(|_: RawDelivery| ready(Ok::<_, Infallible>(Outcome::Handled)));
        let worker = inbox.work(nothing).spawn();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        tokio::spawn(async { axum::serve(listener, app).await });
        anyhow::Ok((worker, port))
    })?;
    let (deliveries, body) = (Deliveries::of_chats(CHATS), large());
    let mut measured = RATES.map(|_| Vec::new());
    for _ in 0..effort.rounds {
        for (rate, measured) in RATES.iter().zip(&mut measured) {
            let round = play(effort, port, &deliveries, &body, *rate)?;
            ensure!(!round.small.is_empty(), "no small delivery was accepted");
            measured.push(round);
        }
    }
    runtime.block_on(worker.drain(Duration::from_secs(30)))?;
    let p99 =
        |rounds: &[Round]| Spread::of(rounds.iter().map(|it| quantile(it.small.clone(), 0.99)));
    let mut table = Table::new([
        "25 MiB a second",
        "small, p50 ms",
        "p99 ms",
        "refused",
        "large, p50 ms",
        "accepted",
        "refused",
    ]);
    for (rate, rounds) in RATES.iter().zip(&measured) {
        let sum = |of: fn(&Round) -> usize| rounds.iter().map(of).sum::<usize>().to_string();
        let large: Vec<_> = rounds.iter().flat_map(|it| it.large.clone()).collect();
        table.row([
            rate.to_string(),
            Spread::of(rounds.iter().map(|it| quantile(it.small.clone(), 0.5))).show(1),
            p99(rounds).show(1),
            sum(|it| it.refused),
            if large.is_empty() {
                "–".to_owned()
            } else {
                format!("{:.0}", quantile(large, 0.5))
            },
            sum(|it| it.large.len()),
            sum(|it| it.large_refused),
        ]);
    }
    println!("\n## Large bodies beside 100 small deliveries a second: {name}\n\n{table}");
    let pairs = measured[1].iter().zip(&measured[0]);
    let ratio = pairs.map(|(beside, alone)| {
        quantile(beside.small.clone(), 0.99) / quantile(alone.small.clone(), 0.99)
    });
    let what =
        format!("{name}, p99 of small deliveries beside one of 25 MiB a second, of that alone");
    verdicts.add(&what, AtMost(2.0), Spread::of(ratio), 1);
    Ok(())
}
