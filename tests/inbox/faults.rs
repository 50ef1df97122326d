//! Queues that panic or lose calls, and limits without an end; in paused time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::sleep;
use tower_webhook::Webhooks;
use tower_webhook::inbox::internal::{
    Accepted, Claims, EventLease, NewEvent, Settled, Settlement, Share, Take, observe,
};
use tower_webhook::inbox::{ActionKind, By, Change, EventId, EventState, Inbox, Queue, Retry};
use tower_webhook::memory::MemoryQueue;
#[cfg(feature = "sqlite")]
use tower_webhook::sqlite::SqliteQueue;
use tower_webhook::store::{StoreError, StoreErrorKind};
use tracing::Level;

#[cfg(feature = "postgres")]
use support::database::Database;
use support::delivery::{delivery, secret, send};
use support::eventually;
use support::inbox::{NotingCrm, Works, accepting, event, states, webhooks, within_a_month};
use support::lock;
use support::log::Log;
use support::observer::Notes;
use support::queue::{Calls, FaultyQueue, failure};
use support::{DAY, MINUTE, SECOND};

/// A queue that panics in the next calls of these names, or lets another worker take an event at a bad moment.
struct OddQueue {
    queue: Queue,
    panics: Arc<Mutex<Vec<&'static str>>>,
    redrives: bool,
    steals: Arc<Mutex<Option<Thief>>>,
}

/// What the other worker has done with the event until the first one asks again.
#[derive(Clone, Copy, PartialEq)]
enum Thief {
    RunsIt,
    RetriesIt,
}

impl OddQueue {
    fn may_panic(&self, call: &'static str) {
        let mut panics = lock(&self.panics);
        if let Some(at) = panics.iter().position(|of| *of == call) {
            panics.remove(at);
            drop(panics);
            panic!("{call}");
        }
    }
}

fn odd(queue: impl Into<Queue>) -> OddQueue {
    OddQueue {
        queue: queue.into(),
        panics: Arc::default(),
        redrives: false,
        steals: Arc::default(),
    }
}

#[async_trait]
impl Calls for OddQueue {
    fn inner(&self) -> Result<Queue, StoreError> {
        Ok(self.queue.clone())
    }

    async fn claim(
        &self,
        of: &[Share],
        limit: usize,
        suspects: usize,
    ) -> Result<Claims, StoreError> {
        self.may_panic("claim");
        self.queue.claim(of, limit, suspects).await
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
        let thief = lock(&self.steals).take();
        if let Some(thief) = thief {
            self.queue.discard(lease.id, None, &By::default()).await?;
            self.queue.redrive(lease.id, None, &By::default()).await?;
            let claims = self
                .queue
                .claim_of(&support::queue::take(DAY), 1, 0)
                .await?;
            let stolen = claims.events[0].lease;
            assert_eq!(stolen.id, lease.id);
            if thief == Thief::RetriesIt {
                let retry = Settlement::Retry {
                    after: DAY,
                    failure: Some(failure("the thief's CRM is down")),
                    counts: true,
                    is_slowed: false,
                    blocks_lane: true,
                };
                self.queue.settle(&stolen, &retry, None).await?;
            }
            return Err(StoreError::new(StoreErrorKind::Unavailable, "away"));
        }
        self.queue.settle(lease, settlement, next).await
    }

    async fn purge(&self, keep_bodies: Duration) -> Result<bool, StoreError> {
        self.may_panic("purge");
        self.queue.purge(keep_bodies).await
    }

    async fn change(
        &self,
        kind: ActionKind,
        id: EventId,
        from: Option<EventState>,
        by: &By,
    ) -> Result<Change, StoreError> {
        let change = self.queue.change(kind, id, from, by).await?;
        if self.redrives && kind == ActionKind::Discard {
            self.queue.redrive(id, None, &By::default()).await?;
            sleep(5 * SECOND).await;
        }
        Ok(change)
    }
}

/// Events are accepted, and those that can begin at once are handled.
#[tokio::test(start_paused = true)]
async fn a_worker_that_can_claim_nothing_says_so() {
    let queue = FaultyQueue::new(MemoryQueue::new());
    let faults = Arc::clone(&queue.faults);
    let inbox = Inbox::new(queue.shared());
    assert!(inbox.can_claim(), "there is no worker");
    let crm = NotingCrm::default();
    let worker = inbox.work(crm.router()).spawn();
    sleep(MINUTE).await;
    assert!(inbox.can_claim());

    faults.claims_nothing.store(true, Ordering::SeqCst);
    sleep(5 * SECOND).await;
    assert!(inbox.can_claim(), "it may be over soon");
    sleep(MINUTE).await;
    assert!(!inbox.can_claim());
    assert!(inbox.is_ready().await);
    send(&webhooks(&inbox), event("chat", 1)).await.assert_ok();
    sleep(SECOND).await;
    assert_eq!(crm.handled(), 1);

    faults.claims_nothing.store(false, Ordering::SeqCst);
    sleep(10 * SECOND).await;
    assert!(inbox.can_claim());
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn bodies_that_wait_for_a_hung_queue_are_bounded() {
    let queue = HungQueue::default();
    let inbox = Inbox::new(queue.clone().shared());
    let settings = Webhooks::new(secret()).max_buffered(10_000);
    let webhooks = accepting(&inbox, settings);
    let body = |chat: usize| format!(r#"{{"id":"{chat}","a":"{}"}}"#, "x".repeat(3_900));
    let mut asked = 0;
    for chat in 0..20 {
        let answered = send(&webhooks, delivery(body(chat))).await;
        assert_eq!(answered.status, 503);
        asked = queue.asked.load(Ordering::SeqCst);
    }
    assert_eq!(asked, 2);
    // A lease later, nobody waits any more.
    sleep(MINUTE).await;
    send(&webhooks, delivery(body(20))).await;
    assert_eq!(queue.asked.load(Ordering::SeqCst), 3);
}

/// Acceptances that never end.
#[derive(Clone, Default)]
struct HungQueue {
    asked: Arc<AtomicUsize>,
}

#[async_trait]
impl Calls for HungQueue {
    fn inner(&self) -> Result<Queue, StoreError> {
        Ok(MemoryQueue::new().into())
    }

    async fn accept(
        &self,
        _: Arc<[NewEvent]>,
        _: Option<&Take>,
    ) -> Result<Vec<Accepted>, StoreError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_a_dead_letter_from_the_start_is_a_line_in_the_log() {
    let log = Log::capture(Level::ERROR);
    let inbox = Inbox::new(MemoryQueue::new());
    let webhooks = webhooks(&inbox);
    for (number, body) in ["[]", "no JSON", r#"{"id":"#].into_iter().enumerate() {
        send(&webhooks, delivery(body)).await.assert_ok();
        let events = log.events();
        assert_eq!(events.len(), number + 1, "{events:?}");
        let message = "the event is a dead letter from the start";
        assert_eq!(log.count(Level::ERROR, message), number + 1);
        assert!(
            events[number]["reason"].starts_with("the body"),
            "{events:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn limits_without_an_end_end_no_task() {
    let log = Log::capture(Level::WARN);
    let queue = FaultyQueue::new(MemoryQueue::new());
    let inbox = Inbox::new(queue).keep_bodies(Duration::MAX);
    let without_end = |webhooks: Webhooks| {
        webhooks
            .store_timeout(Duration::MAX)
            .retention(Duration::MAX)
            .handler_timeout(Duration::MAX)
    };
    let webhooks = accepting(&inbox, without_end(Webhooks::new(secret())));
    let crm = NotingCrm::default();
    let retry = Retry::default()
        .delays(SECOND, Duration::MAX)
        .give_up_after(Duration::MAX);
    let worker = inbox
        .work(crm.router())
        .poll_every(365 * DAY)
        .credit(usize::MAX)
        .retry(retry)
        .route(without_end)
        .spawn();
    *lock(&crm.takes) = 10 * MINUTE;
    for n in [1, 2] {
        send(&webhooks, event("a", n)).await.assert_ok();
    }
    within_a_month(|| crm.handled() == 2).await;
    assert_eq!(crm.attempts(), 2);
    sleep(DAY).await;
    send(&webhooks, event("b", 1)).await.assert_ok();
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
        ..odd(MemoryQueue::new())
    };
    let inbox = Inbox::new(queue.shared()).keep_bodies(Duration::ZERO);
    let crm = NotingCrm::default();
    send(&webhooks(&inbox), event("a", 1)).await.assert_ok();
    let worker = inbox.work(crm.router()).handler_timeout(DAY);
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
        ..odd(MemoryQueue::new())
    };
    let (inbox, crm) = (Inbox::new(queue.shared()), NotingCrm::default());
    *lock(&crm.takes) = MINUTE;
    let worker = inbox.work(crm.router());
    let worker = worker.handler_timeout(DAY).spawn();
    send(&webhooks(&inbox), event("a", 1)).await.assert_ok();
    sleep(SECOND).await;
    inbox.discard(EventId(1), None).await.unwrap();
    sleep(2 * MINUTE).await;
    assert_eq!((crm.attempts(), crm.handled()), (2, 1));
    assert_eq!(states(&inbox).await, [EventState::Handled]);
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_attempt_is_not_settled_if_another_worker_took_its_event() {
    an_attempt_loses_its_event(async || MemoryQueue::new().into()).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn an_attempt_is_not_settled_if_another_worker_took_its_event_with_sqlite() {
    let dir = tempfile::tempdir().unwrap();
    let file = || dir.path().join(fastrand::u64(..).to_string());
    an_attempt_loses_its_event(async || SqliteQueue::open(file()).unwrap().into()).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn an_attempt_is_not_settled_if_another_worker_took_its_event_with_postgres() {
    an_attempt_loses_its_event(async || Database::create().await.queue().await.into()).await;
}

/// The other worker runs the event still, or has retried it. The attempt is handled, fails, or is interrupted.
async fn an_attempt_loses_its_event(open: impl AsyncFn() -> Queue) {
    for thief in [Thief::RunsIt, Thief::RetriesIt] {
        for end in ["handled", "failed", "interrupted"] {
            let (queue, notes) = (odd(open().await), Notes::default());
            *lock(&queue.steals) = Some(thief);
            let inbox = Inbox::new(queue.shared());
            observe(&inbox, notes.clone());
            let crm = NotingCrm::default();
            crm.down.store(end == "failed", Ordering::SeqCst);
            if end == "interrupted" {
                *lock(&crm.takes) = MINUTE;
            }
            // It has no room to claim the event itself.
            let worker = inbox.work(crm.router()).concurrency(1).spawn();
            send(&webhooks(&inbox), event("a", 1)).await.assert_ok();
            eventually("the attempt", async || crm.attempts() == 1).await;
            // An attempt that fails or succeeds does so at once.
            let drained = worker.drain(SECOND).await;
            assert_eq!(drained.is_err(), end == "interrupted");
            sleep(SECOND).await;
            let ends = notes.take_ends();
            let [line] = &ends[..] else {
                panic!("{ends:?}")
            };
            assert!(line.starts_with(&format!("attempt 1 {end} ")), "{line}");
            assert!(line.contains(" ms, lost: "), "{line}");
        }
    }
}

/// The end of an attempt is recorded, without an answer.
#[tokio::test(start_paused = true)]
async fn an_end_whose_answer_was_lost_is_confirmed_by_its_failure() {
    let (queue, notes) = (FaultyQueue::new(MemoryQueue::new()), Notes::default());
    let faults = Arc::clone(&queue.faults);
    let inbox = Inbox::new(queue);
    observe(&inbox, notes.clone());
    let crm = NotingCrm::default();
    crm.down.store(true, Ordering::SeqCst);
    send(&webhooks(&inbox), event("a", 1)).await.assert_ok();
    faults.loses_answers.store(true, Ordering::SeqCst);
    let worker = inbox.work(crm.router()).spawn();
    eventually("the attempt", async || crm.attempts() == 1).await;
    sleep(SECOND / 100).await;
    faults.loses_answers.store(false, Ordering::SeqCst);
    sleep(SECOND).await;
    let ends = notes.take_ends();
    assert!(ends[0].contains(", retry in "), "{ends:?}");
    worker.drain(SECOND).await.unwrap();
}
