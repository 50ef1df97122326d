//! The queue in PostgreSQL while a transaction of somebody else stays open, so that no deleted row can be removed.

use std::time::Duration;

use sqlx::postgres::PgPool;
use sqlx::{Connection, PgConnection};
use tokio::time::{sleep, timeout};
use tower_webhook::inbox::{Accepted, EventId, PostgresQueue, Queue, Settlement, Take};

use crate::postgres::{Database, accept, count, end, event, execute, take, two_processes};

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
        execute(&self.pool, "SELECT pg_stat_force_next_flush()").await;
        let reads = "SELECT idx_tup_read FROM pg_stat_user_indexes
            WHERE schemaname = 'tower_webhook' AND indexrelname = 'head_due'";
        count(&self.pool, reads).await
    }

    async fn claim(&self, take: &Take) -> Vec<EventId> {
        let claims = self.queue.claim(take, 10, 10).await.unwrap();
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
        let accepted = queue.accept(event(None, Some(lane)), None).await.unwrap();
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
    assert!(queue.discard(held.lease.id, None).await.is_ok());
    pinned.takes(held_back).await;

    let kind = event(None, None).delivery.kind().clone();
    queue.pause(Some(&kind), true).await.unwrap();
    let paused = untaken(3).await;
    assert!(pinned.claim(&take()).await.is_empty());
    queue.pause(Some(&kind), false).await.unwrap();
    pinned.takes(paused).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_handled_once_and_in_the_order_of_their_lanes() {
    let pinned = Pinned::create().await;
    two_processes(&pinned.database).await;
}
