//! What is particular to SQLite. The conformance suite has the rest.

mod chats;
mod model;
mod person;
mod routes;
mod shared_keys;
mod statements;
mod transactions;
mod upgrade;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::FutureExt;
use futures_util::future::join_all;
use rusqlite::{Connection, StatementStatus, params};
use tempfile::TempDir;

use super::*;
use crate::delivery::{IdempotencyKey, RawDelivery};
use crate::error::Chain;
use crate::event::EventKind;
use crate::inbox::actions::{ActionKind, BulkStep, By, NewBulk, Which};
use crate::inbox::event::{
    EventId, EventLease, EventState, Failure, KindShare, Kinds, Lane, NewEvent, Settlement, Share,
    Take, TakenEvent,
};
use crate::inbox::queue::{
    Accepted, ChangeEvents, ClaimEvents, CountEvents, ForgetChats, ListEvents, MeasureTables,
    PurgeEvents, SettleEvents, Settled,
};
use crate::inbox::records::AcceptOne;
use crate::inbox::records::{Change, EventSummary, Filter, Page};
use crate::route::{EventType, RouteName, Scope};
use crate::sqlite::schema::sql;
use crate::store::{EventKey, StoreErrorKind};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A machine whose clocks are set by hand, and its disk.
struct Desk {
    directory: TempDir,
    clocks: Arc<Mutex<(SystemTime, Instant)>>,
}

impl Desk {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            clocks: Arc::new(Mutex::new((UNIX_EPOCH + 20_000 * DAY, Instant::now()))),
        }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("webhooks.db")
    }

    fn open(&self) -> SqliteQueue {
        let clocks = Arc::clone(&self.clocks);
        let machine = Box::new(move || *clocks.lock().unwrap());
        SqliteQueue::open_by(&self.path(), machine).unwrap()
    }

    fn wait(&self, time: Duration) {
        let mut clocks = self.clocks.lock().unwrap();
        clocks.0 += time;
        clocks.1 += time;
    }
}

fn id(key: u64) -> EventKey {
    EventKey::new("", &key.to_be_bytes(), b"{}")
}

fn event(lane: i64) -> NewEvent {
    NewEvent {
        delivery: RawDelivery::new(EventKind::CHAT_RATED, "{}"),
        key: None,
        guard: None,
        rejects_changed_body: false,
        chat: Some(format!("chat-{lane}")),
        lane: Some(Lane(lane)),
        retain: 8 * DAY,
        dead: None,
    }
}

fn keyed(lane: i64, key: u64) -> NewEvent {
    let mut event = event(lane);
    let header = http::HeaderValue::from_str(&key.to_string()).unwrap();
    event.delivery = event.delivery.with_key(IdempotencyKey::new(header));
    event.key = Some(id(key));
    event
}

fn take() -> Take {
    Take {
        lease: 30 * SECOND,
        kinds: Kinds::all(),
    }
}

fn failure() -> Failure {
    Failure::new("failed", "the CRM is away").took(SECOND)
}

fn retry(after: Duration, blocks_lane: bool) -> Settlement {
    Settlement::Retry {
        after,
        failure: Some(failure()),
        counts: true,
        is_slowed: false,
        blocks_lane,
    }
}

impl SqliteQueue {
    async fn add(&self, event: NewEvent) -> i64 {
        match self.accept_one(event, None).await.unwrap() {
            Accepted::New { id, taken: None } => id.0,
            accepted => panic!("{accepted:?}"),
        }
    }

    async fn add_and_take(&self, event: NewEvent) -> TakenEvent {
        match self.accept_one(event, Some(&take())).await.unwrap() {
            Accepted::New {
                taken: Some(taken), ..
            } => *taken,
            accepted => panic!("{accepted:?}"),
        }
    }

    async fn take_some(&self, limit: usize) -> Vec<TakenEvent> {
        let of = [take().into()];
        self.claim(&of, limit, limit).await.unwrap().events
    }

    async fn end(&self, taken: &TakenEvent, settlement: Settlement) -> Option<Box<TakenEvent>> {
        let take = take();
        let ended = self.settle(&taken.lease, &settlement, Some(&take));
        match ended.await.unwrap() {
            Settled::Ended(next) => next,
            Settled::Lost => panic!("{taken:?} is lost"),
        }
    }

    async fn state(&self, id: i64) -> EventState {
        let event = self.get(EventId(id)).await.unwrap().unwrap();
        event.summary.state
    }

    async fn sql(&self, sql: &'static str) -> i64 {
        let row = move |tx: &mut Tx<'_>| tx.db.query_row(sql, [], |row| row.get(0));
        self.run(Need::Write, row).await.unwrap()
    }

    /// Makes this the number of the event that was accepted last.
    async fn skip_to(&self, seq: i64) {
        let insert = self.run(Need::Write, move |tx| {
            let insert = sql!(
                "INSERT INTO events (seq, kind, state, accepted, keep_until, settled, failures, redriven)
                VALUES (?1, 1, $Deleted, ?2, 0, 0, 0, 0)"
            );
            tx.db.execute(insert, [seq, tx.now])
        });
        insert.await.unwrap();
    }

    async fn purge_all(&self, keep_bodies: Duration) {
        while self.purge(keep_bodies).await.unwrap() {}
    }
}

fn ids(events: &[TakenEvent]) -> Vec<i64> {
    events.iter().map(|event| event.lease.id.0).collect()
}

/// Takes events whose leases have expired.
async fn queue_all(desk: &Desk, queue: &SqliteQueue, count: usize) -> Vec<TakenEvent> {
    desk.wait(31 * SECOND);
    let taken = queue.take_some(count).await;
    assert_eq!(taken.len(), count);
    taken
}

#[tokio::test]
async fn clocks_that_jump_neither_delay_nor_repeat_an_attempt() {
    for jump in [-400, -1, 1, 400] {
        let desk = Desk::new();
        let queue = desk.open();
        let crashed = queue.add_and_take(keyed(1, 1)).await;
        let behind = queue.add(keyed(1, 2)).await;
        let failed = queue.add_and_take(keyed(2, 3)).await;
        queue.end(&failed, retry(60 * SECOND, true)).await;
        let set = |clock: &mut SystemTime| match jump < 0 {
            true => *clock -= -jump as u32 * DAY,
            false => *clock += jump as u32 * DAY,
        };
        // A process that runs does not notice it, and its leases last.
        set(&mut desk.clocks.lock().unwrap().0);
        assert!(queue.take_some(10).await.is_empty(), "{jump} days");
        desk.wait(10 * SECOND);
        assert!(queue.take_some(10).await.is_empty(), "{jump} days");
        desk.wait(21 * SECOND);
        let taken = queue.take_some(10).await;
        assert_eq!(ids(&taken), [crashed.lease.id.0], "{jump} days");
        let next = queue.end(&taken[0], Settlement::Handled).await.unwrap();
        assert_eq!(next.lease.id.0, behind);
        queue.end(&next, Settlement::Handled).await;
        desk.wait(30 * SECOND);
        let retried = queue.take_some(10).await;
        assert_eq!(ids(&retried), [failed.lease.id.0], "{jump} days");
        queue.end(&retried[0], retry(60 * SECOND, true)).await;
        drop(queue);

        // One that starts later begins where the file is, or at a later time of the machine.
        let queue = desk.open();
        if jump < 0 {
            assert!(queue.take_some(10).await.is_empty(), "{jump} days");
            desk.wait(61 * SECOND);
        }
        assert_eq!(ids(&queue.take_some(10).await), [failed.lease.id.0]);
    }
}

#[tokio::test]
async fn clocks_that_jump_neither_delay_nor_hasten_a_purge() {
    for jump in [-400, -1, 1, 400] {
        let desk = Desk::new();
        let mut queue = desk.open();
        let taken = queue.add_and_take(keyed(1, 1)).await;
        queue.end(&taken, Settlement::Handled).await;
        queue.add(keyed(2, 2)).await;
        let set = |days: i32| match (&mut desk.clocks.lock().unwrap().0, days.unsigned_abs()) {
            (clock, back) if days < 0 => *clock -= back * DAY,
            (clock, ahead) => *clock += ahead * DAY,
        };
        let left = async |queue: &SqliteQueue, events, bodies| {
            queue.purge_all(DAY).await;
            let found = [
                queue.sql("SELECT count(*) FROM events").await,
                queue.sql("SELECT count(*) FROM bodies").await,
                queue.sql("SELECT count(*) FROM keys").await,
            ];
            assert_eq!(found, [events, bodies, events], "{jump} days");
        };
        desk.wait(DAY / 2);
        set(jump);
        left(&queue, 2, 2).await;
        desk.wait(DAY / 2);
        left(&queue, 2, 1).await;
        if jump < 0 {
            // One that starts later begins where the file is.
            drop(queue);
            queue = desk.open();
            left(&queue, 2, 1).await;
        }
        desk.wait(7 * DAY - SECOND);
        left(&queue, 2, 1).await;
        desk.wait(2 * SECOND);
        left(&queue, 1, 1).await;
    }
}

#[tokio::test]
async fn everything_outlives_reopening() {
    let desk = Desk::new();
    let queue = desk.open();
    let taken = queue.add_and_take(keyed(1, 1)).await;
    let behind = queue.add(keyed(1, 2)).await;
    let failed = queue.add_and_take(keyed(2, 3)).await;
    queue.end(&failed, retry(60 * SECOND, true)).await;
    let dead = queue.add_and_take(keyed(3, 4)).await;
    let hold_lane = Settlement::Dead {
        failure: failure(),
        hold_lane: true,
    };
    queue.end(&dead, hold_lane).await;
    let held = queue.add(keyed(3, 5)).await;
    queue
        .pause(&EventKind::CHAT_OPENED.into(), Some(""), &By::default())
        .await
        .unwrap();
    drop(queue);

    let queue = desk.open();
    assert!(queue.take_some(10).await.is_empty());
    let next = queue.end(&taken, Settlement::Handled).await.unwrap();
    assert_eq!(next.lease.id.0, behind);
    desk.wait(61 * SECOND);
    let retried = queue.take_some(10).await;
    assert_eq!(ids(&retried), [behind, failed.lease.id.0]);
    assert_eq!(retried[0].crashes, 1);
    assert_eq!(retried[1].failures, 1);
    assert_eq!(retried[1].tried_for, Some(61 * SECOND));
    assert_eq!(retried[1].delivery.attempt().unwrap().get(), 2);
    assert_eq!(retried[1].delivery.body(), "{}");
    assert_eq!(queue.state(dead.lease.id.0).await, EventState::Dead);
    assert_eq!(queue.state(held).await, EventState::Waiting);
    let record = queue.get(dead.lease.id).await.unwrap().unwrap();
    assert_eq!(record.failures[0].failure, failure());
    assert_eq!(record.summary.key.unwrap().as_bytes(), b"4");
    assert_eq!(record.summary.chat.as_deref(), Some("chat-3"));
    let stats = queue.stats().await.unwrap();
    let paused: Vec<_> = stats.kinds.iter().filter(|kind| kind.is_paused).collect();
    assert_eq!(paused[0].kind, EventKind::CHAT_OPENED);
    assert_eq!((stats.unsettled(), stats.dead()), (3, 1));
    queue
        .change(ActionKind::Redrive, dead.lease.id, None, &By::default())
        .await
        .unwrap();
    assert_eq!(ids(&queue.take_some(10).await), [dead.lease.id.0]);
}

#[tokio::test]
async fn numbers_are_not_used_twice() {
    let desk = Desk::new();
    let queue = desk.open();
    for key in 1..=3 {
        let taken = queue.add_and_take(keyed(1, key)).await;
        assert_eq!(taken.lease.id.0, key as i64);
        queue.end(&taken, Settlement::Handled).await;
    }
    desk.wait(9 * DAY);
    queue.purge_all(DAY).await;
    assert!(queue.get(EventId(3)).await.unwrap().is_none());
    let all = Page::oldest(10);
    let listed = queue.list(&Filter::default(), all).await.unwrap().events;
    assert!(listed.is_empty(), "{listed:?}");
    for change in [
        queue
            .change(ActionKind::Redrive, EventId(3), None, &By::default())
            .await
            .unwrap(),
        queue
            .change(ActionKind::Discard, EventId(3), None, &By::default())
            .await
            .unwrap(),
    ] {
        assert_eq!(change, Change::NotFound);
    }
    drop(queue);

    let queue = desk.open();
    assert_eq!(queue.add(keyed(1, 3)).await, 4);
    queue.purge_all(DAY).await;
    for (rows, count) in [
        ("SELECT count(*) FROM events", 1),
        ("SELECT count(*) FROM bodies", 1),
    ] {
        assert_eq!(queue.sql(rows).await, count, "{rows}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_engines_on_one_file_take_each_event_once() {
    const EVENTS: u64 = 400;
    let desk = Desk::new();
    let queues = [desk.open(), desk.open()];
    let taken = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = tokio::task::JoinSet::new();
    for queue in &queues {
        let accepts = queue.clone();
        tasks.spawn(async move {
            let events = (0..EVENTS).map(|key| {
                // Both receive each event, and half of the lanes are busy.
                let event = keyed((key % 37) as i64, key);
                let queue = &accepts;
                async move { queue.accept_one(event, None).await.unwrap() }
            });
            join_all(events).await;
        });
        let (claims, taken) = (queue.clone(), Arc::clone(&taken));
        tasks.spawn(async move {
            while taken.lock().unwrap().len() < EVENTS as usize {
                for event in claims.take_some(16).await {
                    let mut next = Some(Box::new(event));
                    while let Some(event) = next {
                        let lane = event.lane.unwrap();
                        taken.lock().unwrap().push((lane, event.lease.id.0));
                        next = claims.end(&event, Settlement::Handled).await;
                    }
                }
                tokio::task::yield_now().await;
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    let taken = std::mem::take(&mut *taken.lock().unwrap());
    let numbers: HashSet<_> = taken.iter().map(|(_, id)| *id).collect();
    assert_eq!(
        (taken.len(), numbers.len()),
        (EVENTS as usize, EVENTS as usize)
    );
    for lane in 0..37 {
        let of_lane = taken.iter().filter(|(of, _)| of.0 == lane);
        assert!(of_lane.is_sorted_by_key(|(_, id)| id), "lane {lane}");
    }
    let [queue, _] = &queues;
    assert_eq!(queue.sql("SELECT count(*) FROM work").await, 0);
}

#[tokio::test]
async fn damage_is_reported_and_affects_no_other_event() {
    let desk = Desk::new();
    let queue = desk.open();
    for lane in 1..=3 {
        queue.add(keyed(lane, lane as u64)).await;
    }
    queue
        .sql("UPDATE events SET key = x'00' WHERE seq = 1 RETURNING 1")
        .await;
    queue
        .sql("DELETE FROM bodies WHERE seq = 2 RETURNING 1")
        .await;
    assert_eq!(ids(&queue.take_some(10).await), [3]);
    let error = queue.get(EventId(1)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
    queue
        .sql("UPDATE kinds SET name = 'no kind' WHERE id > 0 RETURNING 1")
        .await;
    for error in [
        queue.get(EventId(2)).await.unwrap_err(),
        queue.stats().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), StoreErrorKind::Corrupt);
    }
}

#[tokio::test]
async fn a_full_disk_refuses_events_and_loses_none() {
    let desk = Desk::new();
    let queue = desk.open();
    let pages = async |most: u32| {
        let limit = queue.run(Need::Read, move |tx| {
            let sql = format!("PRAGMA max_page_count = {most}");
            tx.db.query_row(&sql, [], |row| row.get::<_, u32>(0))
        });
        limit.await.unwrap()
    };
    let held = queue.add_and_take(event(1)).await;
    pages(1).await;
    let mut accepted = 1;
    let error = loop {
        match queue.accept_one(keyed(2, accepted), None).await {
            Ok(_) => accepted += 1,
            Err(error) => break error,
        }
        assert!(accepted < 10_000, "the disk is never full");
    };
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    let told = Chain(&error).to_string();
    assert!(told.contains("no room on its disk"), "{told}");

    // What was acknowledged is there, nothing else is, and work that needs no room goes on.
    let listed = queue.list(&Filter::default(), Page::oldest(10_000)).await;
    assert_eq!(listed.unwrap().events.len() as u64, accepted);
    queue.end(&held, Settlement::Handled).await;

    pages(1_000_000).await;
    queue.add(keyed(2, accepted)).await;
    assert_eq!(queue.take_some(10_000).await.len(), 1);
}

/// As in the other queues.
#[tokio::test]
async fn an_event_that_returned_while_its_lane_was_busy_is_due_when_the_lane_is_free() {
    let desk = Desk::new();
    let queue = desk.open();
    let aside = queue.add_and_take(event(1)).await;
    let of_aside = aside.lease.id.0;
    queue.end(&aside, retry(5 * SECOND, false)).await;
    let busy = queue.add_and_take(event(1)).await;
    desk.wait(7 * SECOND);
    let other = queue.add(event(2)).await;
    desk.wait(3 * SECOND);
    let settled = queue.settle(&busy.lease, &Settlement::Handled, None);
    assert!(matches!(settled.await.unwrap(), Settled::Ended(None)));
    assert_eq!(ids(&queue.take_some(8).await), [other, of_aside]);
}
