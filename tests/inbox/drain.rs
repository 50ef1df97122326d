//! What a drain begins, which is nothing, and what it reports; in paused time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::sleep;
use tower_webhook::inbox::internal::{
    Accepted, Claims, EventLease, NewEvent, Settled, Settlement, Take, Work,
};
use tower_webhook::inbox::{EventState, Inbox, Records};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::store::StoreError;

use support::SECOND;
use support::delivery::send;
use support::forward;
use support::inbox::{NotingCrm, event, inbox, states, webhooks, within_a_month};
use support::lock;

/// A queue whose calls take their time, and which counts the events that it hands out.
#[derive(Clone, Default)]
struct SlowQueue {
    queue: MemoryQueue,
    taken: Arc<AtomicUsize>,
    accept: Duration,
    claim: Duration,
    settle: Duration,
}

impl SlowQueue {
    fn inner(&self) -> Result<&MemoryQueue, StoreError> {
        Ok(&self.queue)
    }

    async fn answer(&self, taken: usize, after: Duration) {
        self.taken.fetch_add(taken, Ordering::SeqCst);
        sleep(after).await;
    }
}

impl Work for SlowQueue {
    const SHARED: bool = false;

    async fn accept(&self, event: NewEvent, take: Option<&Take>) -> Result<Accepted, StoreError> {
        let accepted = self.queue.accept(event, take).await?;
        let is_taken = matches!(accepted, Accepted::New { taken: Some(_), .. });
        self.answer(is_taken.into(), self.accept).await;
        Ok(accepted)
    }

    async fn claim(
        &self,
        take: &Take,
        limit: usize,
        suspects: usize,
    ) -> Result<Claims, StoreError> {
        let claims = self.queue.claim(take, limit, suspects).await?;
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

    forward!(extend find purge size);
}

impl Records for SlowQueue {
    forward!(list blocked_lanes get redrive discard forget pause pauses stats);
}

/// Four chats of five events each.
async fn four_chats(inbox: &Inbox<SlowQueue>) {
    for n in 1..=5 {
        for chat in ["a", "b", "c", "d"] {
            send(&webhooks(inbox), event(chat, n)).await.assert_ok();
        }
    }
}

/// Drains a worker after a time, and returns the attempts before and after that.
async fn attempts_around_a_drain(queue: SlowQueue, after: Duration, takes: Duration) -> [usize; 2] {
    let (inbox, crm) = (Inbox::new(queue), NotingCrm::default());
    four_chats(&inbox).await;
    *lock(&crm.takes) = takes;
    let worker = inbox.worker(crm.router()).spawn();
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
async fn a_drain_takes_no_next_event_of_a_running_chat() {
    let queue = SlowQueue::default();
    let attempts = attempts_around_a_drain(queue.clone(), SECOND, 5 * SECOND).await;
    assert_eq!(attempts, [4, 4]);
    assert_eq!(queue.taken.load(Ordering::SeqCst), 4);
}

#[tokio::test(start_paused = true)]
async fn what_is_taken_while_a_drain_is_asked_for_is_released() {
    let slow = 5 * SECOND;
    let queue = SlowQueue {
        claim: slow,
        ..SlowQueue::default()
    };
    let attempts = attempts_around_a_drain(queue, SECOND, SECOND).await;
    assert_eq!(attempts, [0, 0], "a claim");

    let queue = SlowQueue {
        settle: slow,
        ..SlowQueue::default()
    };
    let attempts = attempts_around_a_drain(queue, 2 * SECOND, SECOND).await;
    assert_eq!(attempts, [4, 4], "the next event of a lane");

    let queue = SlowQueue {
        accept: slow / 5,
        ..SlowQueue::default()
    };
    let (inbox, crm) = (Inbox::new(queue), NotingCrm::default());
    let worker = inbox.worker(crm.router()).spawn();
    let webhooks = webhooks(&inbox);
    let delivered = tokio::spawn(async move { send(&webhooks, event("a", 1)).await });
    sleep(SECOND / 2).await;
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
        let worker = inbox.worker(crm.router()).concurrency(1).spawn();
        within_a_month(|| crm.attempts() == handled).await;
        worker.drain(60 * SECOND).await.unwrap();
        assert_eq!(crm.handled(), handled);
    }
}
