//! What a drain begins, which is nothing, on each queue: on that in memory in paused time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::sleep;
use tower_webhook::inbox::internal::{
    Accepted, Claims, EventLease, NewEvent, Settled, Settlement, Share, Take,
};
use tower_webhook::inbox::{EventState, Inbox, Queue};
use tower_webhook::memory::MemoryQueue;
#[cfg(feature = "sqlite")]
use tower_webhook::sqlite::SqliteQueue;
use tower_webhook::store::StoreError;

use support::SECOND;
#[cfg(feature = "postgres")]
use support::database::Database;
use support::delivery::send;
use support::inbox::{NotingCrm, Works, event, inbox, states, webhooks, within_a_month};
use support::lock;
use support::queue::Calls;

/// A queue whose calls take their time, and which counts the events that it hands out.
struct SlowQueue {
    queue: Queue,
    taken: Arc<AtomicUsize>,
    accept: Duration,
    claim: Duration,
    settle: Duration,
}

impl SlowQueue {
    fn new(queue: Queue) -> Self {
        Self {
            queue,
            taken: Arc::default(),
            accept: Duration::ZERO,
            claim: Duration::ZERO,
            settle: Duration::ZERO,
        }
    }

    async fn answer(&self, taken: usize, after: Duration) {
        self.taken.fetch_add(taken, Ordering::SeqCst);
        sleep(after).await;
    }
}

#[async_trait]
impl Calls for SlowQueue {
    fn inner(&self) -> Result<Queue, StoreError> {
        Ok(self.queue.clone())
    }

    async fn accept(
        &self,
        events: Arc<[NewEvent]>,
        take: Option<&Take>,
    ) -> Result<Vec<Accepted>, StoreError> {
        let accepted = self.queue.accept(events, take).await?;
        let is_taken = |it: &&Accepted| matches!(it, Accepted::New { taken: Some(_), .. });
        let taken = accepted.iter().filter(is_taken).count();
        self.answer(taken, self.accept).await;
        Ok(accepted)
    }

    async fn claim(
        &self,
        of: &[Share],
        limit: usize,
        suspects: usize,
    ) -> Result<Claims, StoreError> {
        let claims = self.queue.claim(of, limit, suspects).await?;
        self.answer(claims.events.len(), self.claim).await;
        Ok(claims)
    }

    async fn settle(
        &self,
        lease: &EventLease,
        settlement: &Settlement,
        next: Option<&Take>,
    ) -> Result<Settled, StoreError> {
        let settled = self.queue.settle(lease, settlement, next).await?;
        let has_next = matches!(settled, Settled::Ended(Some(_)));
        self.answer(has_next.into(), self.settle).await;
        Ok(settled)
    }
}

/// Its queue is as shared as the one behind it.
fn slow_inbox(queue: SlowQueue) -> Inbox {
    let is_shared = queue.queue.is_shared;
    Inbox::new(Queue {
        is_shared,
        ..queue.shared()
    })
}

/// Four chats of five events each.
async fn four_chats(inbox: &Inbox) {
    for n in 1..=5 {
        for chat in ["a", "b", "c", "d"] {
            send(&webhooks(inbox), event(chat, n)).await.assert_ok();
        }
    }
}

/// Drains a worker after a time, and returns the attempts before and after that.
async fn attempts_around_a_drain(queue: SlowQueue, after: Duration, takes: Duration) -> [usize; 2] {
    let (inbox, crm) = (slow_inbox(queue), NotingCrm::default());
    four_chats(&inbox).await;
    *lock(&crm.takes) = takes;
    let worker = inbox.work(crm.router()).spawn();
    sleep(after).await;
    let before = crm.attempts();
    worker.drain(60 * SECOND).await.unwrap();
    let handled = |state: &&EventState| **state == EventState::Handled;
    let states = states(&inbox).await;
    assert_eq!(states.iter().filter(handled).count(), crm.handled());
    let waits = |state: &&EventState| **state == EventState::Waiting;
    assert_eq!(states.iter().filter(waits).count(), 20 - crm.handled());
    [before, crm.attempts()]
}

#[tokio::test(start_paused = true)]
async fn a_drain_begins_nothing() {
    drains_begin_nothing(SECOND, async || MemoryQueue::new().into()).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn a_drain_begins_nothing_with_sqlite() {
    let dir = tempfile::tempdir().unwrap();
    let file = || dir.path().join(fastrand::u64(..).to_string());
    drains_begin_nothing(SECOND / 2, async || {
        SqliteQueue::open(file()).unwrap().into()
    })
    .await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn a_drain_begins_nothing_with_postgres() {
    drains_begin_nothing(SECOND / 2, async || {
        Database::create().await.queue().await.into()
    })
    .await;
}

/// In units of a time in which four handlers begin.
async fn drains_begin_nothing(unit: Duration, open: impl AsyncFn() -> Queue) {
    let slow = 5 * unit;
    let queue = SlowQueue::new(open().await);
    let taken = Arc::clone(&queue.taken);
    let attempts = attempts_around_a_drain(queue, unit, slow).await;
    assert_eq!(attempts, [4, 4], "the next event of a running chat");
    assert_eq!(taken.load(Ordering::SeqCst), 4);

    // What is taken while the drain is asked for is released.
    let queue = SlowQueue {
        claim: slow,
        ..SlowQueue::new(open().await)
    };
    let attempts = attempts_around_a_drain(queue, unit, unit).await;
    assert_eq!(attempts, [0, 0], "a claim");

    let queue = SlowQueue {
        settle: slow,
        ..SlowQueue::new(open().await)
    };
    let attempts = attempts_around_a_drain(queue, 2 * unit, unit).await;
    assert_eq!(attempts, [4, 4], "the next event of a lane");

    let queue = SlowQueue {
        accept: unit,
        ..SlowQueue::new(open().await)
    };
    let (inbox, crm) = (slow_inbox(queue), NotingCrm::default());
    let worker = inbox.work(crm.router()).spawn();
    let webhooks = webhooks(&inbox);
    let delivered = tokio::spawn(async move { send(&webhooks, event("a", 1)).await });
    sleep(unit / 2).await;
    worker.drain(60 * SECOND).await.unwrap();
    delivered.await.unwrap().assert_ok();
    assert_eq!(crm.attempts(), 0, "an event that is accepted");
    assert_eq!(states(&inbox).await, [EventState::Waiting]);
}

#[tokio::test(start_paused = true)]
async fn a_drain_goes_before_room_for_another_claim() {
    let (inbox, crm) = (inbox(), NotingCrm::default());
    *lock(&crm.takes) = SECOND;
    for chat in 0..64 {
        let event = event(&format!("chat-{chat}"), 1);
        send(&webhooks(&inbox), event).await.assert_ok();
    }
    for handled in 1..=32 {
        let worker = inbox.work(crm.router()).concurrency(1).spawn();
        within_a_month(|| crm.attempts() == handled).await;
        worker.drain(60 * SECOND).await.unwrap();
        assert_eq!(crm.handled(), handled);
    }
}
