//! Measures what an event costs without HTTP: in the queue, in a loop of the same statements, and in a plain log.

use std::io::Write;
use std::panic::resume_unwind;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures_util::future::try_join_all;
use nix::time::ClockId;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, Error, params};
use tokio::runtime::Builder;
use tower_webhook::IdempotencyKey;
use tower_webhook::inbox::internal::{AcceptOne, Accepted, NewEvent, SettleEvents, Settlement};
use tower_webhook::sqlite::SqliteQueue;

use crate::contest::Effort;
use crate::events::{Events, take};
use crate::machine::cpu_time;
use crate::report::{Spread, Table};
use crate::sqlite::CHATS;

/// How many events are accepted, and how many are settled, at the same time.
const AT_ONCE: u64 = 64;

/// Makes the loops last for a time.
struct Clock {
    began: Instant,
    time: Duration,
}

impl Clock {
    fn is_running(&self) -> bool {
        self.began.elapsed() < self.time
    }
}

type Loop<'a> = Box<dyn FnMut(&Clock) -> Result<u64> + 'a>;

pub(crate) fn run(effort: &Effort) -> Result<()> {
    // On a thread of its own, as others start from this one.
    let measuring = thread::scope(|scope| scope.spawn(|| measure(effort)).join());
    measuring.unwrap_or_else(|panic| resume_unwind(panic))
}

fn measure(effort: &Effort) -> Result<()> {
    effort.server_cores.pin()?;
    let directory = tempfile::tempdir_in(&effort.directory)?;
    for settles in [true, false] {
        let what = if settles {
            "accepted and settled"
        } else {
            "accepted"
        };
        let table = compare(effort, directory.path(), settles)?;
        println!("\n## The floor: {what}, {AT_ONCE} at the same time\n\n{table}");
    }
    Ok(())
}

fn compare(effort: &Effort, directory: &Path, settles: bool) -> Result<Table> {
    let path = |name: &str| directory.join(format!("{name}-{settles}"));
    let loops: [(&str, Loop<'_>); 3] = [
        (
            "SqliteQueue, without HTTP",
            Box::new(queue(&path("queue.db"), settles)?),
        ),
        (
            "the same statements",
            Box::new(statements(&path("statements.db"), settles)?),
        ),
        ("a log", Box::new(log(&path("log"), settles)?)),
    ];
    let mut measured = loops.map(|(name, run)| (name, run, Vec::new(), Vec::new()));
    for _ in 0..effort.rounds {
        for (_, run, rates, costs) in &mut measured {
            let clock = Clock {
                began: Instant::now(),
                time: effort.time,
            };
            let before = cpu_time(ClockId::CLOCK_PROCESS_CPUTIME_ID)?;
            let events = run(&clock)? as f64;
            let cpu = cpu_time(ClockId::CLOCK_PROCESS_CPUTIME_ID)? - before;
            rates.push(events / clock.began.elapsed().as_secs_f64());
            costs.push(cpu.as_secs_f64() * 1e6 / events);
        }
    }
    let mut table = Table::new(["", "events/s", "CPU µs"]);
    for (name, _, rates, costs) in measured {
        let [rate, cost] = [rates, costs].map(Spread::of);
        table.row([name.to_owned(), rate.show(0), cost.show(2)]);
    }
    Ok(table)
}

/// Callers that accept an event, or accept it, take it and settle it.
fn queue(path: &Path, settles: bool) -> Result<impl FnMut(&Clock) -> Result<u64> + use<>> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let queue = SqliteQueue::open(path)?;
    let events = Events::of_chats(CHATS as u64);
    Ok(move |clock: &Clock| {
        let caller = async || {
            let mut count = 0;
            while clock.is_running() {
                let take = settles.then(take);
                let accepted = queue.accept_one(events.next(), take.as_ref()).await?;
                let Accepted::New { taken, .. } = accepted else {
                    bail!("a new event is {accepted:?}");
                };
                if settles {
                    let taken = taken.context("the chats are in use")?;
                    queue
                        .settle(&taken.lease, &Settlement::Handled, None)
                        .await?;
                }
                count += 1;
            }
            Ok(count)
        };
        let counts = runtime.block_on(try_join_all((0..AT_ONCE).map(|_| caller())))?;
        Ok(counts.into_iter().sum())
    })
}

/// The statements that the queue runs for an event. A transaction accepts so many events, and settles as many of before,
/// whose chats are free.
fn statements(path: &Path, settles: bool) -> Result<impl FnMut(&Clock) -> Result<u64> + use<>> {
    const ACCEPT: [&str; 5] = [
        "INSERT INTO keys (key, body, event, attempt, done, lease_until, keep_until)
         VALUES (?1, ?2, ?3, 1, 1, 0, ?4) ON CONFLICT (key) DO NOTHING",
        "INSERT INTO events
             (seq, kind, state, key, chat, accepted, keep_until, settled, failures, redriven)
         VALUES (?1, 1, 2, ?2, ?3, ?4, ?5, ?4, 0, 0)",
        "INSERT INTO bodies (seq, body) VALUES (?1, ?2)",
        "SELECT place FROM work INDEXED BY work_line WHERE lane = ?1 ORDER BY place",
        "INSERT INTO work
             (seq, kind, lane, place, due, fence, failures, crashes, first_failed, tried, uncounted)
         VALUES (?1, 1, ?2, ?3, ?4, ?5, 0, 0, NULL, 0, 0)",
    ];
    const SETTLE: [&str; 3] = [
        "DELETE FROM work
         WHERE seq = ?1 AND fence = ?2 AND place = 4 AND lane = ?3 AND failures = 0",
        "UPDATE events SET state = 3, settled = ?2, failures = 0 WHERE seq = ?1",
        "SELECT seq FROM work INDEXED BY work_line WHERE lane = ?1 ORDER BY place, seq",
    ];
    /// Now, when the key expires, and when the lease does.
    const TIMES: [i64; 3] = [1_800_000_000_000, 1_800_700_000_000, 1_800_000_030_000];
    const FENCE: [u8; 16] = [7; 16];
    const NO_FENCE: [u8; 0] = [];

    drop(SqliteQueue::open(path)?);
    let db = Connection::open(path)?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    db.execute_batch(
        "PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 16384; PRAGMA cache_size = -4096;
         INSERT INTO kinds (name, paused) VALUES ('chat-closed', 0);",
    )?;
    let events = Events::of_chats(CHATS as u64);
    let (mut seq, mut before) = (0_i64, Vec::<(i64, i64)>::new());
    Ok(move |clock: &Clock| {
        let [now, keep_until, lease_until] = TIMES;
        let [mut key, mut row, mut body, mut is_busy, mut work] = prepare(&db, ACCEPT)?;
        let [mut done, mut end, mut next] = prepare(&db, SETTLE)?;
        let mut count = 0;
        while clock.is_running() {
            db.execute_batch("BEGIN IMMEDIATE")?;
            for (seq, lane) in before.drain(..).filter(|_| settles) {
                done.execute(params![seq, FENCE, lane])?;
                end.execute([seq, now])?;
                ensure!(!found(next.query_row([lane], |_| Ok(())))?, IN_USE);
            }
            for _ in 0..AT_ONCE {
                seq += 1;
                let NewEvent {
                    key: Some(digests),
                    lane: Some(lane),
                    chat,
                    delivery,
                    ..
                } = events.next()
                else {
                    bail!("the events have keys and chats");
                };
                let [id, of_body] = [digests.key(), digests.body()].map(u128::to_be_bytes);
                key.execute(params![id, of_body, seq, keep_until])?;
                let header = delivery.key().map(IdempotencyKey::as_bytes);
                row.execute(params![seq, header, chat, now, keep_until])?;
                body.execute(params![seq, &delivery.body()[..]])?;
                let is_busy = found(is_busy.query_row([lane.0], |_| Ok(())))?;
                match (settles, is_busy) {
                    (true, true) => bail!(IN_USE),
                    (true, false) => work.execute(params![seq, lane.0, 4, lease_until, FENCE])?,
                    (false, true) => work.execute(params![seq, lane.0, 6, now, NO_FENCE])?,
                    (false, false) => work.execute(params![seq, lane.0, 2, now, NO_FENCE])?,
                };
                before.push((seq, lane.0));
                count += 1;
            }
            db.execute_batch("COMMIT")?;
        }
        Ok(count)
    })
}

fn prepare<'a, const N: usize>(
    db: &'a Connection,
    statements: [&str; N],
) -> Result<[rusqlite::Statement<'a>; N]> {
    let prepared: Result<Vec<_>, _> = statements.iter().map(|sql| db.prepare(sql)).collect();
    prepared?.try_into().ok().context("as many statements")
}

const IN_USE: &str = "the chats are in use";

fn found(row: Result<(), Error>) -> Result<bool> {
    match row {
        Err(Error::QueryReturnedNoRows) => Ok(false),
        Err(error) => Err(error.into()),
        Ok(()) => Ok(true),
    }
}

/// Appends events, and settlements, to a file, and waits for the disk.
fn log(path: &Path, settles: bool) -> Result<impl FnMut(&Clock) -> Result<u64> + use<>> {
    let mut file = std::fs::File::create(path)?;
    let events = Events::of_chats(CHATS as u64);
    Ok(move |clock: &Clock| {
        let (mut count, mut batch) = (0, Vec::new());
        while clock.is_running() {
            batch.clear();
            for _ in 0..AT_ONCE {
                let event = events.next();
                let key = event.delivery.key().context("the events have keys")?;
                batch.extend_from_slice(key.as_bytes());
                batch.extend_from_slice(event.chat.unwrap_or_default().as_bytes());
                batch.extend_from_slice(event.delivery.body());
                if settles {
                    batch.extend_from_slice(&[0; 16]); // The settlement of another one.
                }
            }
            file.write_all(&batch)?;
            file.sync_data()?;
            count += AT_ONCE;
        }
        Ok(count)
    })
}
