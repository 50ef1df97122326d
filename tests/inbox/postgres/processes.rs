//! Two processes that accept and handle events of a few lanes.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tower_webhook::inbox::EventId;
use tower_webhook::inbox::internal::{Accepted, Settled, Settlement, TakenEvent};
use tower_webhook::postgres::PostgresQueue;

use support::database::{Database, count};
use support::lock;
use support::queue::Calls;

use super::{LEASE, event, failure, take};

/// A lane in a process that hands over its events, and the order in which they came.
#[derive(Default)]
struct Order {
    clock: AtomicU64,
    /// By event: its lane, when its acceptance began and ended.
    accepted: Mutex<HashMap<EventId, (i64, u64, u64)>>,
    /// By event, when its first attempt started.
    started: Mutex<HashMap<EventId, u64>>,
    handled: Mutex<HashMap<EventId, u32>>,
    running: Mutex<HashSet<i64>>,
}

impl Order {
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// Handles an event and those that are handed over after it.
    async fn handle(&self, queue: &PostgresQueue, taken: Box<TakenEvent>) {
        let mut next = Some(taken);
        while let Some(taken) = next {
            let id = taken.lease.id;
            let lane = taken.lane.unwrap().0;
            assert!(
                lock(&self.running).insert(lane),
                "two attempts in lane {lane}"
            );
            let now = self.tick();
            lock(&self.started).entry(id).or_insert(now);
            tokio::task::yield_now().await;
            let end = match (id.0 + now as i64) % 7 {
                0 => Settlement::Retry {
                    after: Duration::from_millis(id.0.unsigned_abs() % 20),
                    failure: Some(failure()),
                    counts: true,
                    is_slowed: false,
                    blocks_lane: id.0 % 2 == 0,
                },
                1 => Settlement::Released,
                _ => Settlement::Handled,
            };
            assert!(lock(&self.running).remove(&lane));
            match queue
                .settle(&taken.lease, &end, Some(&take()))
                .await
                .unwrap()
            {
                Settled::Ended(taken) => next = taken,
                Settled::Lost => panic!("{id} was lost"),
            }
            if matches!(end, Settlement::Handled) {
                *lock(&self.handled).entry(id).or_default() += 1;
            }
        }
    }

    async fn accept(&self, queue: &PostgresQueue, lane: i64) {
        let began = self.tick();
        let accepted = queue
            .accept_one(event(None, Some(lane)), Some(&take()))
            .await;
        let Accepted::New { id, taken } = accepted.unwrap() else {
            panic!("it has no key");
        };
        lock(&self.accepted).insert(id, (lane, began, self.tick()));
        if let Some(taken) = taken {
            self.handle(queue, taken).await;
        }
    }

    async fn work(&self, queue: &PostgresQueue, events: usize) {
        while lock(&self.handled).len() < events {
            let claims = queue.claim_of(&take(), 8, 8).await.unwrap();
            join_all(
                claims
                    .events
                    .into_iter()
                    .map(|taken| self.handle(queue, Box::new(taken))),
            )
            .await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

pub(super) async fn two_processes(database: &Database) {
    const EVENTS: usize = 2000;
    const LANES: i64 = 10;

    let queues = [database.queue().await, database.queue().await];
    let order = Arc::new(Order::default());
    let mut tasks = JoinSet::new();
    for (at, queue) in queues.iter().enumerate() {
        for caller in 0..20 {
            let (order, queue) = (Arc::clone(&order), queue.clone());
            tasks.spawn(async move {
                for round in 0..EVENTS / 40 {
                    let lane = (at + caller * 3 + round * 7) as i64 % LANES;
                    order.accept(&queue, lane).await;
                }
            });
        }
        let (order, queue) = (Arc::clone(&order), queue.clone());
        tasks.spawn(async move { order.work(&queue, EVENTS).await });
    }
    let ended = timeout(2 * LEASE, async {
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
        }
    });
    if ended.await.is_err() {
        panic!("stuck: {:?}", queues[0].stats().await.unwrap());
    }

    assert_eq!(queues[0].stats().await.unwrap().unsettled(), 0);
    let pool = database.pool(1).await;
    for table in ["head", "wait", "aside", "dead"] {
        let rows = format!("SELECT count(*) FROM tower_webhook.{table}");
        assert_eq!(count(&pool, &rows).await, 0, "{table}");
    }
    let handled = lock(&order.handled);
    assert_eq!(handled.len(), EVENTS);
    assert!(handled.values().all(|times| *times == 1));
    let (accepted, started) = (lock(&order.accepted), lock(&order.started));
    for (a, (lane_a, _, end_a)) in &*accepted {
        for (b, (lane_b, begin_b, _)) in &*accepted {
            if lane_a == lane_b && end_a < begin_b {
                assert!(started[a] < started[b], "{b} before {a}");
            }
        }
    }
}
