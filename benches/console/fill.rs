//! A queue with millions of events: most of them by SQL, and those that wait through the queue itself.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use rusqlite::{Connection, params};
use sqlx::PgPool;
use tokio::task::JoinSet;
use tower_webhook::inbox::internal::AcceptOne;
use tower_webhook::inbox::internal::{Lane, Settlement};
use tower_webhook::inbox::{Failure, Filter, Page, Queue};
use tower_webhook::store::EventKey;
use tower_webhook::telemetry::{Count, Sample, Series, minute_of};

use tower_webhook::{EventKind, RawDelivery};

use crate::events::{Events, take};

/// One event of so many waits.
const WAITING: u64 = 10;
/// One of so many that wait has failed, and as many are dead.
const FAILED: u64 = 500;

const CALLERS: u64 = 64;

/// What the pages ask for.
pub(crate) struct Filled {
    /// The number of events that were handled.
    handled: u64,
    unsettled: Unsettled,
    turn: std::cell::Cell<u64>,
}

/// The numbers of some events that were not handled.
struct Unsettled {
    retrying: i64,
    dead: i64,
    waiting: i64,
}

impl Filled {
    /// The pages, each time of other events.
    pub(crate) fn pages(&self) -> Vec<(&'static str, String)> {
        let turn = self.turn.get() + 1;
        self.turn.set(turn);
        let number = asked(turn, self.handled);
        let Unsettled {
            retrying,
            dead,
            waiting,
        } = self.unsettled;
        vec![
            ("overview", "/".to_owned()),
            ("events", "/events".to_owned()),
            (
                "events, from the middle on",
                format!("/events?after={}", self.handled / 2 + number % 1000),
            ),
            ("events, oldest first", "/events?order=oldest".to_owned()),
            ("events, dead", "/events?state=dead".to_owned()),
            ("events, retrying", "/events?state=retrying".to_owned()),
            ("events, waiting", "/events?state=waiting".to_owned()),
            ("events, handled", "/events?state=handled".to_owned()),
            (
                "events, of a kind that none is of",
                "/events?kind=chat-rated".to_owned(),
            ),
            ("events, of a chat", format!("/events?chat=old-{number}")),
            ("events, of a key", format!("/events?key=old-key-{number}")),
            (
                "events, of a key that none has",
                format!("/events?key=new-key-{number}"),
            ),
            ("events, by an error", "/events?error=gateway".to_owned()),
            (
                "events, by an error that none has",
                "/events?error=unknown".to_owned(),
            ),
            ("events, of a day", "/events?hours=24".to_owned()),
            ("event, handled", format!("/events/{number}")),
            ("event, retrying", format!("/events/{retrying}")),
            ("event, dead", format!("/events/{dead}")),
            ("event, waiting", format!("/events/{waiting}")),
            ("chat", format!("/chat?id=c-{:027}", turn % 10_000)),
            ("lanes", "/lanes".to_owned()),
            ("gaps", "/gaps".to_owned()),
            ("actions", "/actions".to_owned()),
            ("history, 1 hour", "/history?range=1h".to_owned()),
            ("history, 24 hours", "/history?range=24h".to_owned()),
            ("history, 7 days", "/history?range=7d".to_owned()),
            ("history, 30 days", "/history?range=30d".to_owned()),
            ("refusals", "/refusals".to_owned()),
            (
                "events, by a text in the body",
                "/events?payload=unknown&hours=24".to_owned(),
            ),
            (
                "preview of a redrive",
                "/all?action=redrive&state=dead".to_owned(),
            ),
        ]
    }
}

/// The handled event that the pages of a turn ask for.
fn asked(turn: u64, handled: u64) -> u64 {
    1 + turn * 7_919 % handled
}

/// The handled events that pages ask for, and the digests of their keys. Other events have random digests.
fn keys(handled: u64) -> impl Iterator<Item = (i64, [u8; 16])> {
    let mut numbers: Vec<_> = (1..1000).map(|turn| asked(turn, handled)).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers.into_iter().map(|number| {
        let key = format!("old-key-{number}");
        let digest = EventKey::new("", key.as_bytes(), b"").key();
        (number.cast_signed(), digest.to_be_bytes())
    })
}

/// Lets events wait, and some of them fail.
async fn wait_and_fail(queue: &Queue, count: u64) -> Result<Unsettled> {
    let events = Arc::new(Events::of_chats(10_000.min(count)));
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (queue, events) = (Arc::clone(&queue.accept), Arc::clone(&events));
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
    let failure = || {
        Failure::new("failed", "the CRM answered 502 Bad Gateway").took(Duration::from_millis(1200))
    };
    let newest = queue.list.list(&Filter::default(), Page::newest(1)).await?;
    let mut unsettled = Unsettled {
        retrying: 0,
        dead: 0,
        waiting: newest.events.first().map_or(0, |event| event.id.0),
    };
    let mut left = 2 * (count / FAILED);
    while left > 0 {
        let claimed = queue
            .claim
            .claim(&[take().into()], left.min(100) as usize, 0)
            .await?;
        for event in claimed.events {
            let settlement = match left % 2 {
                0 => Settlement::Retry {
                    after: Duration::from_secs(24 * 60 * 60),
                    failure: Some(failure()),
                    counts: true,
                    is_slowed: false,
                    blocks_lane: true,
                },
                _ => Settlement::Dead {
                    failure: failure(),
                    hold_lane: left % 4 == 1,
                },
            };
            match left % 2 {
                0 => unsettled.retrying = event.lease.id.0,
                _ => unsettled.dead = event.lease.id.0,
            }
            let settling = queue.settle.settle(&event.lease, &settlement, None);
            settling.await?;
            left -= 1;
        }
    }
    Ok(unsettled)
}

fn filled(began: Instant, handled: u64, unsettled: Unsettled) -> Filled {
    println!("\nFilled in {:.0?}", began.elapsed());
    Filled {
        handled,
        unsettled,
        turn: std::cell::Cell::new(0),
    }
}

/// What three processes have counted: by minute for two hours, together by 30 minutes for two weeks, and by 12 hours for a
/// month; and a refusal of each minute of a week.
async fn count_all(queue: &Queue) -> Result<()> {
    const SPAN: i64 = 30;
    const HOUR: i64 = 60;
    const DAY: i64 = 24 * HOUR;

    let now = minute_of(SystemTime::now());
    let spans = (1..14 * DAY / SPAN).map(|span| (now - now % SPAN - 2 * HOUR - SPAN * span, 1));
    let long = (29..60).map(|half_day| (now - now % (12 * HOUR) - 12 * HOUR * half_day, 1));
    let minutes = (now - 2 * HOUR..now).map(|minute| (minute, 3));
    let all = minutes
        .chain(spans)
        .chain(long)
        .flat_map(|(minute, processes)| {
            let of_kind = move |kind: EventKind| {
                let series = Series::ALL.into_iter();
                let series = series.filter(|series| *series != Series::Refused);
                series
                    .map(move |series| (minute, processes, series, Some(kind.clone()), "accepted"))
            };
            EventKind::ALL.into_iter().flat_map(of_kind)
        });
    let refused =
        (now - 7 * DAY..now).map(|minute| (minute, 3, Series::Refused, None, "unauthorized"));
    let counts = all
        .chain(refused)
        .flat_map(|(minute, processes, series, kind, outcome)| {
            (1..=processes).map(move |process| {
                let mut count = Count::new(series, minute, 40);
                count.process = process;
                count.kind.clone_from(&kind);
                count.outcome = outcome.into();
                if series == Series::Refused {
                    let sample = count.sample.insert(Sample::default());
                    "203.0.113.7\n607 bytes".clone_into(&mut sample.lines);
                }
                count
            })
        });
    let counts: Vec<_> = counts.collect();
    for some in counts.chunks(256) {
        queue.count.note_counts(some).await?;
    }
    println!("\n{} counts", counts.len());
    Ok(())
}

/// So that the kinds exist: that of all events, and one of which all events were deleted.
async fn accept_both_kinds(queue: &Queue) -> Result<()> {
    let events = Events::of_chats(1);
    queue.accept.accept_one(events.next(), None).await?;
    let mut rare = events.next();
    rare.delivery = RawDelivery::new(EventKind::CHAT_RATED, "{}");
    (rare.lane, rare.chat, rare.key) = (None, None, None);
    queue.accept.accept_one(rare, None).await?;
    Ok(())
}

/// Events that were handled in the last eight days, without their bodies.
pub(crate) async fn sqlite(queue: &Queue, path: &Path, count: u64) -> Result<Filled> {
    let began = Instant::now();
    let handled = count - count / WAITING;
    accept_both_kinds(queue).await?;
    let db = Connection::open(path)?;
    db.execute_batch(&format!(
        "PRAGMA cache_size = -1000000;
         BEGIN IMMEDIATE;
         DELETE FROM events; DELETE FROM bodies; DELETE FROM work;
         WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {handled})
         INSERT INTO events
             (seq, kind, state, key, chat, accepted, keep_until, settled, failures, redriven)
         SELECT n, (SELECT id FROM kinds WHERE name = 'chat-closed'), 5, CAST('old-key-' || n AS BLOB), 'old-' || (n / 5),
             now - ({handled} - n) * 691200000 / {handled}, now + 691200000,
             now - ({handled} - n) * 691200000 / {handled}, 0, 0
         FROM numbers, (SELECT unixepoch() * 1000 AS now);
         INSERT INTO keys (key, body, event, attempt, done, lease_until, keep_until)
         SELECT randomblob(16), zeroblob(16), seq, 1, 1, 0, keep_until FROM events;"
    ))
    .context("filling the file")?;
    for (number, digest) in keys(handled) {
        db.prepare_cached(
            "INSERT INTO keys (key, body, event, attempt, done, lease_until, keep_until)
             SELECT ?2, zeroblob(16), seq, 1, 1, 0, keep_until FROM events WHERE seq = ?1",
        )?
        .execute(params![number, digest])?;
    }
    db.execute_batch("COMMIT")?;
    drop(db);
    count_all(queue).await?;
    let unsettled = wait_and_fail(queue, count / WAITING).await?;
    Ok(filled(began, handled, unsettled))
}

pub(crate) async fn postgres(queue: &Queue, pool: &PgPool, count: u64) -> Result<Filled> {
    let began = Instant::now();
    let handled = count - count / WAITING;
    accept_both_kinds(queue).await?;
    sqlx::raw_sql("TRUNCATE tower_webhook.events, tower_webhook.keys, tower_webhook.head, tower_webhook.wait, tower_webhook.aside,
         tower_webhook.dead, tower_webhook.ended, tower_webhook.failures")
        .execute(pool)
        .await?;
    let lanes = (0..=handled / 5).map(|chat| Lane::of_chat(&format!("old-{chat}")).0);
    let events = format!(
        "INSERT INTO tower_webhook.events (seq, accepted, keep_until, lane, chat_lane, kind, key, chat, digest)
         SELECT n + 1, now - ({handled} - n) * 691200000000 / {handled}, now + 691200000000, c.lane, c.lane,
             (SELECT id FROM tower_webhook.kinds WHERE name = 'chat-closed'), convert_to('old-key-' || n, 'UTF8'),
             convert_to('old-' || n / 5, 'UTF8'), gen_random_uuid()
         FROM generate_series(1, {handled}) AS n
         JOIN unnest($1::bigint[]) WITH ORDINALITY AS c (lane, at) ON c.at = n / 5 + 1, tower_webhook.micros() AS now"
    );
    sqlx::query(sqlx::AssertSqlSafe(events))
        .bind(lanes.collect::<Vec<_>>())
        .execute(pool)
        .await?;
    for sql in [
        "INSERT INTO tower_webhook.keys (key, body, done_until, event)
         SELECT digest, digest, clock_timestamp() + interval '8 days', seq FROM tower_webhook.events"
            .to_owned(),
        "INSERT INTO tower_webhook.ended (seq, at, keep_until, failures, state)
         SELECT seq, accepted, keep_until, 0, 'handled' FROM tower_webhook.events"
            .to_owned(),
        format!("SELECT setval('tower_webhook.events_seq_seq', {})", handled + 1),
        "VACUUM ANALYZE".to_owned(),
    ] {
        sqlx::query(sqlx::AssertSqlSafe(sql.clone()))
            .execute(pool)
            .await
            .with_context(|| sql)?;
    }
    let (numbers, digests): (Vec<_>, Vec<_>) = keys(handled)
        .map(|(number, digest)| (number, digest.to_vec()))
        .unzip();
    sqlx::query(
        "INSERT INTO tower_webhook.keys (key, body, done_until, event)
         SELECT encode(digest, 'hex')::uuid, gen_random_uuid(), clock_timestamp() + interval '8 days', number + 1
         FROM unnest($1::bigint[], $2::bytea[]) AS asked (number, digest)",
    )
    .bind(numbers)
    .bind(digests)
    .execute(pool)
    .await?;
    count_all(queue).await?;
    let unsettled = wait_and_fail(queue, count / WAITING).await?;
    Ok(filled(began, handled, unsettled))
}
