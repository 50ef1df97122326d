//! Drains, pauses, and attempts that are ended.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_webhook::event::EventKind;
use tower_webhook::inbox::{Change, EventId, EventState, Scope};

use support::delivery::send;
use support::inbox::{NotingCrm, Works, event, inbox, states, webhooks, within_a_month};
use support::{MINUTE, SECOND, lock};

#[tokio::test(start_paused = true)]
async fn a_drain_waits_then_releases_without_counting() {
    let (inbox, crm) = (inbox(), NotingCrm::default());
    let webhooks = webhooks(&inbox);
    *lock(&crm.takes) = 10 * SECOND;
    let worker = inbox.work(crm.router()).spawn();
    send(&webhooks, event("a", 1)).await.assert_ok();
    sleep(SECOND).await;
    worker.drain(30 * SECOND).await.unwrap();
    assert_eq!(crm.handled(), 1);

    let worker = inbox.work(crm.router()).spawn();
    send(&webhooks, event("b", 1)).await.assert_ok();
    sleep(SECOND).await;
    let timeout = worker.drain(SECOND).await.unwrap_err();
    assert_eq!(timeout.count(), 1);
    // Released at once, and its attempt does not count.
    let event = inbox.get(EventId(2)).await.unwrap().unwrap();
    assert_eq!(event.summary.state, EventState::Waiting);
    assert_eq!(event.summary.failures, 0);
    assert_eq!(crm.running.load(Ordering::SeqCst), 0);

    let worker = inbox.work(crm.router()).spawn();
    within_a_month(|| crm.handled() == 2).await;
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_dropped_releases_its_events() {
    let (inbox, crm) = (inbox(), NotingCrm::default());
    *lock(&crm.takes) = 10 * SECOND;
    let worker = inbox.work(crm.router()).spawn();
    send(&webhooks(&inbox), event("a", 1)).await.assert_ok();
    sleep(SECOND).await;
    drop(worker);
    sleep(SECOND).await;
    assert_eq!(states(&inbox).await, [EventState::Waiting]);
    assert_eq!(crm.running.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_pause_stops_handling_and_not_accepting() {
    let (inbox, crm) = (inbox(), NotingCrm::default());
    let worker = inbox.work(crm.router()).spawn();
    let webhooks = webhooks(&inbox);
    for of in [Scope::Everything, EventKind::CHAT_RATED.into()] {
        let before = crm.handled();
        inbox.pause(of.clone(), "").await.unwrap();
        send(&webhooks, event("a", before)).await.assert_ok();
        sleep(MINUTE).await;
        assert_eq!(crm.handled(), before);
        inbox.resume(of).await.unwrap();
        within_a_month(|| crm.handled() == before + 1).await;
    }
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_long_handler_keeps_its_lease() {
    let (inbox, crm) = (inbox(), NotingCrm::default());
    *lock(&crm.takes) = 20 * MINUTE;
    let worker = inbox
        .work(crm.router())
        .handler_timeout(60 * MINUTE)
        .lease(SECOND)
        .spawn();
    send(&webhooks(&inbox), event("a", 1)).await.assert_ok();
    within_a_month(|| crm.handled() == 1).await;
    assert_eq!(crm.attempts(), 1);
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn discarding_an_event_in_progress_ends_its_attempt() {
    let (inbox, crm) = (inbox(), NotingCrm::default());
    *lock(&crm.takes) = 20 * MINUTE;
    let worker = inbox
        .work(crm.router())
        .handler_timeout(60 * MINUTE)
        .spawn();
    let webhooks = webhooks(&inbox);
    send(&webhooks, event("a", 1)).await.assert_ok();
    send(&webhooks, event("a", 2)).await.assert_ok();
    sleep(SECOND).await;
    *lock(&crm.takes) = SECOND;
    assert_eq!(
        inbox.redrive(EventId(1), None).await.unwrap(),
        Change::WrongState
    );
    assert_eq!(inbox.discard(EventId(1), None).await.unwrap(), Change::Made);
    // Its handler is dropped at once, so that the next one of its chat does not run beside it.
    sleep(Duration::from_millis(1)).await;
    assert_eq!(crm.running.load(Ordering::SeqCst), 1);
    assert_eq!(crm.attempts(), 2);
    within_a_month(|| crm.handled() == 1).await;
    sleep(MINUTE).await;
    assert_eq!(crm.order()["a"], [2]);
    assert_eq!(
        states(&inbox).await,
        [EventState::Discarded, EventState::Handled]
    );
    assert_eq!(crm.running.load(Ordering::SeqCst), 0);
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn forgetting_a_chat_ends_its_attempts() {
    let (inbox, crm) = (inbox(), NotingCrm::default());
    let webhooks = webhooks(&inbox);
    *lock(&crm.takes) = 10 * MINUTE;
    let worker = inbox.work(crm.router());
    let worker = worker.handler_timeout(20 * MINUTE).spawn();
    send(&webhooks, event("a", 1)).await.assert_ok();
    sleep(SECOND).await;
    assert_eq!(crm.running.load(Ordering::SeqCst), 1);
    assert_eq!(inbox.forget("a").await.unwrap(), 1);
    sleep(Duration::from_millis(10)).await;
    assert_eq!(crm.running.load(Ordering::SeqCst), 0);
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_attempts_whatever_the_concurrency() {
    let (inbox, crm) = (inbox(), NotingCrm::default());
    let webhooks = webhooks(&inbox);
    *lock(&crm.takes) = 10 * MINUTE;
    let worker = inbox.work(crm.router());
    let worker = worker.handler_timeout(20 * MINUTE).concurrency(usize::MAX);
    let worker = worker.spawn();
    send(&webhooks, event("a", 1)).await.assert_ok();
    sleep(SECOND).await;
    let began = Instant::now();
    let drained = worker.drain(MINUTE / 2).await;
    assert!(drained.is_err(), "the attempt was still in progress");
    assert!(began.elapsed() >= MINUTE / 2);
}
