//! Counts of observers: over processes, across restarts, and when they cannot be written.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_webhook::inbox::Inbox;
use tower_webhook::inbox::internal;
use tower_webhook::memory::MemoryQueue;
use tower_webhook::telemetry::{Count, CountsOf, Series, minute_of};
use tower_webhook::telemetry::{FailureBudget, Recent};
use tower_webhook::{EventKind, EventType, Running, Sender, Webhooks};
use tracing::Level;

use support::delivery::{RequestExt, delivery_of, secret, send};
use support::inbox::{NotingCrm, accepting, event};
use support::log::Log;
use support::queue::{Calls, FaultyQueue};
use support::scratch::Scratch;
use support::{MINUTE, SECOND};

const KIND: EventKind = EventKind::CHAT_RATED;

/// A receiver as a process of its own has it.
struct Receiver {
    inbox: Inbox,
    webhooks: tower_webhook::Receiver,
    budget: FailureBudget,
    worker: Running,
}

impl Receiver {
    fn start(scratch: &Scratch) -> Self {
        let (budget, recent) = (FailureBudget::default(), Recent::new());
        let observer = (budget.clone(), recent);
        let inbox = Inbox::new(scratch.queue());
        let (webhooks, worker) = Webhooks::new(secret())
            .observer(observer)
            .inbox(inbox.clone())
            .start(NotingCrm::default().router())
            .unwrap();
        Self {
            webhooks,
            worker,
            inbox,
            budget,
        }
    }

    /// Deliveries that the platform counts as failed.
    async fn fail(&self, times: usize) {
        for _ in 0..times {
            let failed = delivery_of("same").with("content-type", "text/plain");
            assert_eq!(send(&self.webhooks, failed).await.status, 415);
        }
    }

    async fn until_handled(&self) {
        let began = Instant::now();
        while self.inbox.stats().await.unwrap().unsettled() > 0 {
            assert!(began.elapsed() < 15 * SECOND);
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn until_spent(&self, failures: u32) {
        self.until_spent_by(KIND.into(), failures).await;
    }

    async fn until_spent_by(&self, of: EventType, failures: u32) {
        let began = Instant::now();
        while self.budget.spent_by(of.clone()).failures != failures {
            assert!(began.elapsed() < 15 * SECOND, "{:?}", self.budget.spent());
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn sum(&self, series: Series) -> u64 {
        let now = minute_of(std::time::SystemTime::now());
        let of = CountsOf::new([series], now - 10..now + 10)
            .bucket(60)
            .by_process();
        let counts: Vec<Count> = internal::queue(&self.inbox).counts(&of).await.unwrap();
        counts.iter().map(|count| count.number).sum()
    }
}

/// A process that has nothing to write learns from its readings alone that the queue is away.
#[tokio::test(start_paused = true)]
async fn an_outage_is_one_line_in_the_log_of_each_process() {
    let log = Log::capture(Level::WARN);
    let queue = FaultyQueue::new(MemoryQueue::new());
    let faults = Arc::clone(&queue.faults);
    let (webhooks, running) = Webhooks::new(secret())
        .observer(FailureBudget::default())
        .inbox(Inbox::new(queue.shared()))
        .start(NotingCrm::default().router())
        .unwrap();
    for outage in 1..=2 {
        sleep(MINUTE).await;
        faults.is_down.store(true, Ordering::SeqCst);
        sleep(10 * MINUTE).await;
        assert_eq!(log.count(Level::WARN, "counts cannot be kept"), outage);
        faults.is_down.store(false, Ordering::SeqCst);
        // Within the longest pause.
        sleep(MINUTE).await;
    }
    drop(webhooks);
    running.drain(SECOND).await.unwrap();
}

#[tokio::test]
async fn processes_count_together_and_across_restarts() {
    let scratch = Scratch::new();
    let (one, other) = (Receiver::start(&scratch), Receiver::start(&scratch));
    one.fail(60).await;
    other.fail(50).await;
    for number in 0..3 {
        send(&one.webhooks, event("a", number)).await.assert_ok();
    }
    one.until_handled().await;
    one.until_spent(110).await;
    other.until_spent(110).await;
    let spent = one.budget.spent_by(KIND);
    assert_eq!(spent.reasons, [("unsupported-media-type", 110)]);
    assert!(one.budget.spent().iter().any(|spent| spent.failures == 110));

    // The drain writes the last ones, and one that starts knows them at once.
    other.fail(7).await;
    for receiver in [one, other] {
        receiver.worker.drain(SECOND).await.unwrap();
    }
    let next = Receiver::start(&scratch);
    next.until_spent(117).await;
    assert_eq!(next.sum(Series::Refused).await, 117);
    assert_eq!(next.sum(Series::Acknowledged).await, 3);
    assert_eq!(next.sum(Series::Handled).await, 3);
    next.fail(1).await;
    assert_eq!(next.budget.spent_by(KIND).failures, 118);
}

/// Those of a kind that has the same name at both.
#[tokio::test]
async fn routes_are_counted_apart() {
    let scratch = Scratch::new();
    let (one, other) = (Receiver::start(&scratch), Receiver::start(&scratch));
    let policy = Sender::github().policy().disable_after(10);
    let github = Webhooks::dangerously_unsigned().sender(Sender::github().with_policy(policy));
    let github = accepting(&one.inbox, github);
    one.fail(3).await;
    for _ in 0..5 {
        let failed = delivery_of("same").with("content-type", "text/plain");
        let failed = failed.with("x-github-event", KIND.as_str());
        let failed = failed.with("x-github-delivery", "same");
        assert_eq!(send(&github, failed).await.status, 415);
    }
    let of: EventType = "github/chat-rated".parse().unwrap();
    other.until_spent_by(of.clone(), 5).await;
    other.until_spent(3).await;
    assert_eq!(one.budget.spent_by(of.clone()).limit, Some(10));
    // No request has reached the route of the other process, which cannot know the sender.
    assert_eq!(other.budget.spent_by(of).limit, None);
}

/// Whether the table is missing, or full.
#[tokio::test]
async fn counts_that_cannot_be_written_stop_nothing() {
    for (fault, repair) in [
        (
            "ALTER TABLE counts RENAME TO missing",
            "ALTER TABLE missing RENAME TO counts",
        ),
        (
            "CREATE TRIGGER full BEFORE INSERT ON counts
             BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END",
            "DROP TRIGGER full",
        ),
    ] {
        let scratch = Scratch::new();
        let receiver = Receiver::start(&scratch);
        scratch.sql().execute(fault, []).unwrap();
        receiver.fail(5).await;
        for number in 0..20 {
            let sent = Instant::now();
            send(&receiver.webhooks, event("a", number))
                .await
                .assert_ok();
            assert!(sent.elapsed() < 2 * SECOND, "{:?}", sent.elapsed());
            sleep(Duration::from_millis(100)).await;
        }
        receiver.until_handled().await;
        // What was counted meanwhile is written when the table is back.
        assert_eq!(receiver.budget.spent_by(KIND).failures, 5);
        scratch.sql().execute(repair, []).unwrap();
        receiver.worker.drain(SECOND).await.unwrap();
        assert_eq!(receiver.sum(Series::Refused).await, 5);
        assert_eq!(receiver.sum(Series::Acknowledged).await, 20);
    }
}

/// Such as one whose events are handled by another process.
#[tokio::test]
async fn a_process_that_only_accepts_counts_as_well() {
    let scratch = Scratch::new();
    let (budget, recent) = (FailureBudget::default(), Recent::new());
    let inbox = Inbox::new(scratch.queue());
    let webhooks = Webhooks::new(secret()).observer((budget.clone(), recent));
    let webhooks = accepting(&inbox, webhooks);
    for _ in 0..8 {
        let failed = delivery_of("same").with("content-type", "text/plain");
        assert_eq!(send(&webhooks, failed).await.status, 415);
    }
    let handling = Receiver::start(&scratch);
    handling.until_spent(8).await;
    assert_eq!(handling.sum(Series::Refused).await, 8);
    handling.fail(2).await;
    let began = Instant::now();
    while budget.spent_by(KIND).failures != 10 {
        assert!(began.elapsed() < 15 * SECOND, "{:?}", budget.spent());
        sleep(Duration::from_millis(50)).await;
    }
}
