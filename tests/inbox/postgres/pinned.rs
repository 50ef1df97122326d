//! The queue in PostgreSQL while a transaction of somebody else stays open, so that no deleted row can be removed.

use std::slice;
use std::time::Duration;

use sqlx::postgres::PgPool;
use sqlx::{Connection, PgConnection};
use tokio::time::{sleep, timeout};
use tower_webhook::RouteName;
use tower_webhook::inbox::internal::{Accepted, Kinds, Settled, Settlement, Share, Take};
use tower_webhook::inbox::{By, Change, EventId, EventState};
use tower_webhook::postgres::PostgresQueue;

use super::processes::two_processes;
use super::{accept, end, event, failure, take};
use support::database::{Database, count, execute, flush_statistics};
use support::queue::Calls;

/// Beside these, a claim that reads all of them takes some tens of milliseconds.
const DELETED: i64 = 120_000;

struct Pinned {
    database: Database,
    pool: PgPool,
    queue: PostgresQueue,
    _pin: PgConnection,
}

impl Pinned {
    /// A queue that has handled one event, and whose claims find rows that were deleted: of events that were ready, of
    /// leases that have expired, and of leases that would last.
    async fn create() -> Self {
        let database = Database::create().await;
        let pool = database.pool(1).await;
        let queue = PostgresQueue::new(pool.clone());
        queue.migrate().await.unwrap();
        let (_, taken) = accept(&queue, event(None, None)).await;
        end(&queue, &taken.unwrap(), Settlement::Handled).await;

        let mut pin = PgConnection::connect(database.url()).await.unwrap();
        for sql in [
            "BEGIN ISOLATION LEVEL REPEATABLE READ",
            "SELECT count(*) FROM tower_webhook.events",
        ] {
            sqlx::query(sql).execute(&mut pin).await.unwrap();
        }
        for (number, is_suspect, due) in [(1, false, -3600), (2, true, -3600), (3, true, 20)] {
            execute(
                &pool,
                &format!(
                    "INSERT INTO tower_webhook.head
                        (lane, own, seq, due, kind, failures, crashes, is_tried, is_suspect, fence)
                    SELECT {number}, -n, -n, tower_webhook.micros() + {due} * 1000000::bigint + n,
                        (SELECT max(id) FROM tower_webhook.kinds), 0, 0, false, {is_suspect}, NULL
                    FROM generate_series(1, {DELETED}) AS n"
                ),
            )
            .await;
        }
        execute(&pool, "DELETE FROM tower_webhook.head WHERE own < 0").await;
        Self {
            database,
            pool,
            queue,
            _pin: pin,
        }
    }

    /// How many entries of the index the claims of this connection have read.
    async fn reads(&self) -> i64 {
        self.read("indexrelname = 'head_due'").await
    }

    /// How many entries of some indexes this connection has read.
    async fn read(&self, indexes: &str) -> i64 {
        flush_statistics(&self.pool).await;
        let reads = format!(
            "SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes
            WHERE schemaname = 'tower_webhook' AND {indexes}"
        );
        count(&self.pool, &reads).await
    }

    async fn claim(&self, take: &Take) -> Vec<EventId> {
        let claims = self.queue.claim_of(take, 10, 10).await.unwrap();
        claims.events.iter().map(|event| event.lease.id).collect()
    }

    /// Claims until an event is taken.
    async fn takes(&self, id: EventId) {
        let taken = timeout(Duration::from_secs(10), async {
            while !self.claim(&take()).await.contains(&id) {
                sleep(Duration::from_millis(20)).await;
            }
        });
        assert!(taken.await.is_ok(), "event {id} was not taken");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_do_not_read_again_what_was_deleted() {
    let pinned = Pinned::create().await;
    let before = pinned.reads().await;
    assert!(pinned.claim(&take()).await.is_empty());
    let whole = pinned.reads().await - before;
    assert!(whole >= 3 * DELETED, "the first claim has read {whole}");

    let before = pinned.reads().await;
    for _ in 0..20 {
        assert!(pinned.claim(&take()).await.is_empty());
    }
    let others = pinned.reads().await - before;
    assert!(others <= 1000, "twenty more have read {others}");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_that_becomes_due_is_taken() {
    let pinned = Pinned::create().await;
    let queue = &pinned.queue;
    let short = Take {
        lease: Duration::from_millis(300),
        ..take()
    };
    let untaken = async |lane: i64| {
        let accepted = queue
            .accept_one(event(None, Some(lane)), None)
            .await
            .unwrap();
        match accepted {
            Accepted::New { id, .. } => id,
            other => panic!("{other:?}"),
        }
    };
    // Behind another one for longer than a claim looks back.
    let (_, first) = accept(queue, event(None, Some(7))).await;
    let behind = untaken(7).await;
    let (_, held) = accept(queue, event(None, Some(8))).await;
    let held_back = untaken(8).await;
    assert!(pinned.claim(&take()).await.is_empty());
    sleep(Duration::from_millis(3500)).await;
    assert!(pinned.claim(&take()).await.is_empty());

    let new = untaken(1).await;
    assert_eq!(pinned.claim(&take()).await, [new]);

    let crashed = untaken(2).await;
    assert_eq!(pinned.claim(&short).await, [crashed]);
    sleep(Duration::from_millis(350)).await;
    pinned.takes(crashed).await;

    end(queue, &first.unwrap(), Settlement::Handled).await;
    pinned.takes(behind).await;

    // Its lane is free when a person discards the event that holds it.
    let held = held.unwrap();
    assert!(
        queue
            .discard(held.lease.id, None, &By::default())
            .await
            .is_ok()
    );
    pinned.takes(held_back).await;

    let kind = event(None, None).delivery.kind().clone().into();
    queue.pause(&kind, Some(""), &By::default()).await.unwrap();
    let paused = untaken(3).await;
    assert!(pinned.claim(&take()).await.is_empty());
    queue.pause(&kind, None, &By::default()).await.unwrap();
    pinned.takes(paused).await;
}

/// It is older than what a claim looks back for.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_full_route_leaves_is_above_the_floor() {
    let pinned = Pinned::create().await;
    let crm: RouteName = "crm".parse().unwrap();
    let claim = async |room: usize| {
        let crm = Take {
            kinds: Kinds::all().at(crm.clone()),
            ..take()
        };
        let busy = Share {
            busy: 3,
            most: 3 + room,
            ..crm.into()
        };
        let claims = pinned.queue.claim(&[take().into(), busy], 10, 10).await;
        let claims = claims.unwrap();
        let ids = claims.events.iter().map(|event| event.lease.id);
        (ids.collect::<Vec<_>>(), claims.next_due)
    };
    assert_eq!(claim(0).await, (vec![], None));
    let mut left = event(None, None);
    left.delivery = left.delivery.with_route(crm.clone());
    let accepted = pinned.queue.accept_one(left, None).await.unwrap();
    let Accepted::New { id, .. } = accepted else {
        panic!("{accepted:?}")
    };
    for _ in 0..2 {
        assert_eq!(claim(0).await, (vec![], None));
        sleep(Duration::from_millis(3500)).await;
    }
    let before = pinned.reads().await;
    assert_eq!(claim(1).await, (vec![id], None));
    let read = pinned.reads().await - before;
    assert!(read < DELETED, "a claim has read {read}");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_handled_once_and_in_the_order_of_their_lanes() {
    let pinned = Pinned::create().await;
    two_processes(&pinned.database).await;
}

/// As if a transaction that took long had made an event ready.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_became_due_below_the_floor_is_found_by_a_look() {
    let pinned = Pinned::create().await;
    let queue = &pinned.queue;
    assert!(pinned.claim(&take()).await.is_empty());
    let accepted = queue.accept_one(event(None, Some(1)), None).await.unwrap();
    let Accepted::New { id, .. } = accepted else {
        panic!("{accepted:?}")
    };
    let late = format!(
        "UPDATE tower_webhook.head SET due = due - 60 * 1000000::bigint WHERE seq = {}",
        id.0
    );
    execute(&pinned.pool, &late).await;
    let before = pinned.reads().await;
    assert!(pinned.claim(&take()).await.is_empty());
    let read = pinned.reads().await - before;
    assert!(read < DELETED, "a claim has read {read}");
    let taken = timeout(Duration::from_secs(60), async {
        while !pinned.claim(&take()).await.contains(&id) {
            sleep(Duration::from_millis(100)).await;
        }
    });
    assert!(taken.await.is_ok(), "event {id} was not taken");
}

/// A table that is empty whenever statistics are made is taken for one of which every index is a single page.
#[tokio::test(flavor = "multi_thread")]
async fn attempts_end_without_reading_what_was_deleted_whatever_the_statistics_say() {
    let pinned = Pinned::create().await;
    let queue = &pinned.queue;
    for sql in [
        &*format!(
            "INSERT INTO tower_webhook.wait (lane, seq, due, kind, failures, crashes, is_tried)
            SELECT 1, -n, 0, 1, 0, 0, false FROM generate_series(1, {DELETED}) AS n"
        ),
        "DELETE FROM tower_webhook.wait WHERE seq < 0",
        "ANALYZE tower_webhook.head, tower_webhook.wait",
    ] {
        execute(&pinned.pool, sql).await;
    }
    let retry = |blocks_lane| Settlement::Retry {
        after: Duration::ZERO,
        failure: None,
        counts: true,
        is_slowed: false,
        blocks_lane,
    };
    let before = pinned.read("true").await;
    for lane in 10..20 {
        let (_, alone) = accept(queue, event(None, Some(lane))).await;
        let alone = alone.unwrap();
        let leases = slice::from_ref(&alone.lease);
        let extended = queue.extend(leases, Duration::from_secs(30)).await.unwrap();
        assert_eq!(extended, [Some(true)]);
        end(queue, &alone, Settlement::Handled).await;

        // One that others wait for.
        let (_, first) = accept(queue, event(None, Some(lane))).await;
        queue
            .accept_one(event(None, Some(lane)), None)
            .await
            .unwrap();
        queue
            .accept_one(event(None, Some(lane)), None)
            .await
            .unwrap();
        end(queue, &first.unwrap(), Settlement::Handled).await;
        let (_, other) = accept(queue, event(None, Some(lane + 100))).await;
        end(queue, &other.unwrap(), retry(true)).await;

        let (_, dead) = accept(queue, event(None, Some(lane + 200))).await;
        let dead = dead.unwrap();
        let failure = failure();
        let hold_lane = lane % 2 == 0;
        end(queue, &dead, Settlement::Dead { failure, hold_lane }).await;
        let (id, from) = (dead.lease.id, Some(EventState::Dead));
        let changed = match lane % 4 {
            0 | 1 => queue.redrive(id, from, &By::default()).await.unwrap(),
            _ => queue.discard(id, from, &By::default()).await.unwrap(),
        };
        assert_eq!(changed, Change::Made);
    }
    let read = pinned.read("true").await - before;
    assert!(read <= 3_000, "{read} entries were read");

    // Leases that expire, and events that return to their lanes. A claim reads `head_due`.
    let others = "indexrelname <> 'head_due'";
    let before = pinned.read(others).await;
    let short = Take {
        lease: Duration::from_millis(300),
        ..take()
    };
    for lane in 400..410 {
        for _ in 0..3 {
            queue
                .accept_one(event(None, Some(lane)), None)
                .await
                .unwrap();
        }
    }
    let crashed = queue.claim_of(&short, 100, 100).await.unwrap().events;
    sleep(Duration::from_millis(400)).await;
    let taken = queue.claim_of(&take(), 100, 100).await.unwrap().events;
    assert!(taken.len() >= crashed.len(), "{}", taken.len());
    for event in &taken {
        let put_aside = queue.settle(&event.lease, &retry(false), None).await;
        assert!(matches!(put_aside, Ok(Settled::Ended(None))));
    }
    assert!(
        !queue
            .claim_of(&take(), 100, 100)
            .await
            .unwrap()
            .events
            .is_empty()
    );
    let read = pinned.read(others).await - before;
    assert!(read <= 3_000, "{read} entries were read");
}
