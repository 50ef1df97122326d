//! The queue in memory: the conformance suite, and a queue of two inboxes.

use crate::suite;
use support::SECOND;
use support::delivery::send;
use support::inbox::{NotingCrm, Works, event, webhooks, within_a_month};
use support::queue::Calls;
use tower_webhook::inbox::internal::NewBulk;
use tower_webhook::inbox::{ActionKind, By, Inbox, Queue, Scope, Which};
use tower_webhook::memory::MemoryQueue;

#[tokio::test(start_paused = true)]
async fn conforms_in_paused_time() {
    suite::run(&MemoryQueue::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn conforms_in_real_time_on_several_threads() {
    suite::run(&MemoryQueue::new()).await;
}

#[tokio::test(start_paused = true)]
async fn inboxes_share_a_queue() {
    let queue = Queue::from(MemoryQueue::new());
    let [accepting, handling] = [queue.clone(), queue].map(Inbox::new);
    for n in [1, 2] {
        send(&webhooks(&accepting), event("a", n)).await.assert_ok();
    }
    let crm = NotingCrm::default();
    let worker = handling.work(crm.router()).spawn();
    within_a_month(|| crm.handled() == 2).await;
    worker.drain(SECOND).await.unwrap();
    assert_eq!(accepting.stats().await.unwrap().unsettled(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_change_that_is_running_is_kept() {
    let (queue, by) = (MemoryQueue::new(), By::default());
    let bulk = NewBulk {
        kind: ActionKind::Redrive,
        about: String::new(),
        chat: None,
        rate: 0,
    };
    let number = queue.begin(&bulk, &by).await.unwrap();
    let kept = async || {
        for _ in 0..1_100 {
            queue.pause(&Scope::Everything, None, &by).await.unwrap();
        }
        let kept = queue.actions(Which::All, None, 2_000).await.unwrap();
        (kept.len(), kept.last().unwrap().number)
    };
    assert_eq!(kept().await, (1_001, number));
    assert!(queue.cancel(number, &by).await.unwrap());
    let (count, oldest) = kept().await;
    assert_eq!(count, 1_000);
    assert!(oldest > number);
}
