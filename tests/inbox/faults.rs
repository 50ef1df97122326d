//! Queues that panic or lose calls, and limits without an end; in paused time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::sleep;
use tower_webhook::inbox::internal::{Claims, EventLease, Settled, Settlement, Take, Work};
use tower_webhook::inbox::{Change, EventId, EventState, Inbox, Kinds, Records, Retry};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::store::{StoreError, StoreErrorKind};
use tracing::Level;

use support::delivery::send;
use support::forward;
use support::inbox::{NotingCrm, event, states, webhooks, within_a_month};
use support::lock;
use support::log::Log;
use support::observer::Notes;
use support::queue::FaultyQueue;
use support::{DAY, MINUTE, SECOND};

/// A queue that panics in the next calls of these names, or lets another worker take an event at a bad moment.
#[derive(Clone, Default)]
struct OddQueue {
    queue: MemoryQueue,
    panics: Arc<Mutex<Vec<&'static str>>>,
    redrives: bool,
    steals: Arc<AtomicBool>,
}

impl OddQueue {
    fn inner(&self) -> Result<&MemoryQueue, StoreError> {
        Ok(&self.queue)
    }

    fn may_panic(&self, call: &'static str) {
        let mut panics = lock(&self.panics);
        if let Some(at) = panics.iter().position(|of| *of == call) {
            panics.remove(at);
            drop(panics);
            panic!("{call}");
        }
    }
}

impl Work for OddQueue {
    const SHARED: bool = true;

    async fn claim(
        &self,
        take: &Take,
        limit: usize,
        suspects: usize,
    ) -> Result<Claims, StoreError> {
        self.may_panic("claim");
        self.queue.claim(take, limit, suspects).await
    }

    async fn extend(
        &self,
        leases: &[EventLease],
        lease: Duration,
    ) -> Result<Vec<Option<bool>>, StoreError> {
        self.may_panic("extend");
        self.queue.extend(leases, lease).await
    }

    async fn settle(
        &self,
        lease: &EventLease,
        settlement: &Settlement,
        next: Option<&Take>,
    ) -> Result<Settled, StoreError> {
        if self.steals.swap(false, Ordering::SeqCst) {
            self.queue.discard(lease.id, None).await?;
            self.queue.redrive(lease.id, None).await?;
            let take = Take {
                lease: DAY,
                kinds: Kinds::all(),
            };
            let claims = self.queue.claim(&take, 1, 0).await?;
            assert_eq!(claims.events[0].lease.id, lease.id);
            return Err(StoreError::new(StoreErrorKind::Unavailable, "away"));
        }
        self.queue.settle(lease, settlement, next).await
    }

    async fn purge(&self, keep_bodies: Duration) -> Result<bool, StoreError> {
        self.may_panic("purge");
        self.queue.purge(keep_bodies).await
    }

    forward!(accept find size);
}

impl Records for OddQueue {
    async fn discard(&self, id: EventId, from: Option<EventState>) -> Result<Change, StoreError> {
        let change = self.queue.discard(id, from).await?;
        if self.redrives {
            self.queue.redrive(id, None).await?;
            sleep(5 * SECOND).await;
        }
        Ok(change)
    }

    forward!(list blocked_lanes get redrive forget pause pauses stats);
}

#[tokio::test(start_paused = true)]
async fn limits_without_an_end_end_no_task() {
    let log = Log::capture(Level::WARN);
    let queue = FaultyQueue::new(MemoryQueue::new());
    let inbox = Inbox::new(queue)
        .store_timeout(Duration::MAX)
        .and_then(|inbox| inbox.retention(Duration::MAX))
        .unwrap()
        .keep_bodies(Duration::MAX);
    let crm = NotingCrm::default();
    let retry = Retry::default()
        .delays(SECOND, Duration::MAX)
        .give_up_after(Duration::MAX);
    let worker = inbox
        .worker(crm.router())
        .poll_every(Duration::MAX)
        .trip_after(usize::MAX)
        .retry(retry)
        .handler_timeout(Duration::MAX)
        .unwrap()
        .spawn();
    *lock(&crm.takes) = 10 * MINUTE;
    for n in [1, 2] {
        send(&webhooks(&inbox), event("a", n)).await.assert_ok();
    }
    within_a_month(|| crm.handled() == 2).await;
    assert_eq!(crm.attempts(), 2);
    sleep(DAY).await;
    send(&webhooks(&inbox), event("b", 1)).await.assert_ok();
    within_a_month(|| crm.handled() == 3).await;
    worker.drain(Duration::MAX).await.unwrap();
    assert!(log.events().is_empty(), "{}", log.text());
}

#[tokio::test(start_paused = true)]
async fn background_tasks_that_panic_are_started_again_and_a_drain_reports_it() {
    let log = Log::capture(Level::ERROR);
    let panics = ["claim", "claim", "extend", "purge"];
    let queue = OddQueue {
        panics: Arc::new(Mutex::new(panics.to_vec())),
        ..OddQueue::default()
    };
    let inbox = Inbox::new(queue).keep_bodies(Duration::ZERO);
    let crm = NotingCrm::default();
    send(&webhooks(&inbox), event("a", 1)).await.assert_ok();
    let worker = inbox.worker(crm.router()).handler_timeout(DAY).unwrap();
    let worker = worker.spawn();
    *lock(&crm.takes) = 10 * MINUTE;
    within_a_month(|| crm.handled() == 1).await;
    assert_eq!(crm.attempts(), 1, "its lease was kept");
    sleep(10 * MINUTE).await;
    let record = inbox.get(EventId(1)).await.unwrap().unwrap();
    assert_eq!(record.body, None, "bodies are still deleted");

    let error = worker.drain(SECOND).await.unwrap_err();
    assert_eq!((error.panics(), error.count()), (4, 0), "{error}");
    let text = "background tasks of the worker panicked 4 times";
    assert_eq!(error.to_string(), text);
    let logged = log.count(Level::ERROR, "a background task of the worker panicked");
    assert_eq!(logged, 4);
}

#[tokio::test(start_paused = true)]
async fn a_discard_ends_no_later_attempt_of_a_redriven_event() {
    let queue = OddQueue {
        redrives: true,
        ..OddQueue::default()
    };
    let (inbox, crm) = (Inbox::new(queue), NotingCrm::default());
    *lock(&crm.takes) = MINUTE;
    let worker = inbox.worker(crm.router());
    let worker = worker.handler_timeout(DAY).unwrap().spawn();
    send(&webhooks(&inbox), event("a", 1)).await.assert_ok();
    sleep(SECOND).await;
    inbox.discard(EventId(1), None).await.unwrap();
    sleep(2 * MINUTE).await;
    assert_eq!((crm.attempts(), crm.handled()), (2, 1));
    assert_eq!(states(&inbox).await, [EventState::Handled]);
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_attempt_is_not_settled_if_another_worker_has_its_event() {
    let (queue, notes) = (OddQueue::default(), Notes::default());
    queue.steals.store(true, Ordering::SeqCst);
    let inbox = Inbox::new(queue).observer(notes.clone());
    let crm = NotingCrm::default();
    let worker = inbox.worker(crm.router()).spawn();
    send(&webhooks(&inbox), event("a", 1)).await.assert_ok();
    within_a_month(|| crm.handled() == 1).await;
    sleep(SECOND).await;
    assert_eq!(notes.take_ends(), ["attempt 1 handled inbox 0 ms, lost: -"]);
    worker.drain(SECOND).await.unwrap();
}
