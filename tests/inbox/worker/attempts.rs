//! Failures, retries and snoozes, and a layer around the handlers.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};
use tower_webhook::event::{ChatRated, EventKind};
use tower_webhook::inbox::{Change, EventId, EventState, OnFailure};
use tower_webhook::{Delivery, EventRouter, HandlerError, Outcome, RawDelivery, Webhooks};
use tracing::Level;

use support::delivery::{RequestExt, delivery, secret, send};
use support::inbox::{NotingCrm, Works, accepting, event, inbox, states, webhooks, within_a_month};
use support::log::Log;
use support::{DAY, MINUTE, SECOND, lock};

/// Each hour, in the end, for four days.
#[tokio::test(start_paused = true)]
async fn an_event_whose_attempts_never_count_becomes_a_dead_letter() {
    let inbox = inbox();
    let attempts = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&attempts);
    let service = tower::service_fn(move |_: RawDelivery| {
        count.fetch_add(1, Ordering::SeqCst);
        let away = Outcome::Unavailable {
            reason: Arc::new(std::io::Error::other("the database is away")),
            retry_after: SECOND,
        };
        std::future::ready(Ok::<_, std::convert::Infallible>(away))
    });
    let worker = inbox.work(service).spawn();
    send(&webhooks(&inbox), event("a", 1)).await.assert_ok();
    sleep(8 * DAY).await;
    assert_eq!(attempts.load(Ordering::SeqCst), 100);
    assert_eq!(states(&inbox).await, [EventState::Dead]);

    // It begins anew.
    inbox.redrive(EventId(1), None).await.unwrap();
    sleep(MINUTE).await;
    assert_eq!(states(&inbox).await, [EventState::Retrying]);
    worker.drain(MINUTE).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn failures_have_the_duration_of_their_attempts() {
    let (inbox, crm) = (inbox(), NotingCrm::default());
    crm.down.store(true, Ordering::SeqCst);
    *lock(&crm.takes) = 3 * SECOND;
    let _worker = inbox.work(crm.router()).spawn();
    send(&webhooks(&inbox), event("a", 1)).await;
    within_a_month(|| crm.attempts() == 3).await;
    let record = inbox.get(EventId(1)).await.unwrap().unwrap();
    let took = record.failures.iter().map(|past| past.failure.took);
    let took: Vec<_> = took.collect();
    assert_eq!(took, [Some(3 * SECOND); 2]);
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_not_the_senders_and_is_retried_in_order() {
    let (inbox, crm) = (inbox(), NotingCrm::default());
    let webhooks = webhooks(&inbox);
    crm.down.store(true, Ordering::SeqCst);
    let worker = inbox.work(crm.router()).spawn();
    for n in 1..=3 {
        send(&webhooks, event("a", n)).await.assert_ok();
    }
    sleep(4 * MINUTE).await;
    // Later ones wait for the first one.
    assert_eq!(
        states(&inbox).await,
        [
            EventState::Retrying,
            EventState::Waiting,
            EventState::Waiting
        ]
    );
    assert!((4..=9).contains(&crm.attempts()), "{}", crm.attempts());
    let first = inbox.get(EventId(1)).await.unwrap().unwrap();
    assert_eq!(first.failures.len(), crm.attempts());
    assert_eq!(first.failures[0].failure.reason, "the CRM is down");

    crm.down.store(false, Ordering::SeqCst);
    within_a_month(|| crm.handled() == 3).await;
    assert_eq!(crm.order()["a"], [1, 2, 3]);
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_event_that_never_succeeds_is_a_dead_letter_after_seven_days() {
    let (inbox, crm) = (inbox(), NotingCrm::default());
    crm.down.store(true, Ordering::SeqCst);
    let worker = inbox.work(crm.router()).spawn();
    let webhooks = webhooks(&inbox);
    send(&webhooks, event("a", 1)).await.assert_ok();
    send(&webhooks, event("a", 2)).await.assert_ok();
    sleep(7 * DAY - MINUTE).await;
    assert_eq!(
        states(&inbox).await,
        [EventState::Retrying, EventState::Waiting]
    );
    sleep(2 * 60 * MINUTE).await;
    // Its lane is free.
    assert_eq!(
        states(&inbox).await,
        [EventState::Dead, EventState::Retrying]
    );
    // It stays, and its key with it.
    sleep(10 * DAY).await;
    send(&webhooks, event("a", 1)).await.assert_replayed();

    crm.down.store(false, Ordering::SeqCst);
    assert_eq!(inbox.redrive(EventId(1), None).await.unwrap(), Change::Made);
    within_a_month(|| crm.handled() == 1).await;
    assert_eq!(crm.order()["a"], [1]);
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_skipped_event_does_not_keep_its_chat_waiting() {
    let (inbox, crm) = (inbox(), NotingCrm::default());
    crm.down.store(true, Ordering::SeqCst);
    let worker = inbox
        .work(crm.router())
        .on_failure_of(EventKind::CHAT_RATED, OnFailure::Skip)
        .spawn();
    let webhooks = webhooks(&inbox);
    send(&webhooks, event("a", 1)).await.assert_ok();
    within_a_month(|| crm.attempts() == 1).await;
    crm.down.store(false, Ordering::SeqCst);
    send(&webhooks, event("a", 2)).await.assert_ok();
    within_a_month(|| crm.handled() == 2).await;
    assert_eq!(crm.order()["a"], [2, 1]);
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_outage_costs_few_attempts_and_no_event_its_patience() {
    let (inbox, crm) = (inbox(), NotingCrm::default());
    crm.down.store(true, Ordering::SeqCst);
    let worker = inbox.work(crm.router()).spawn();
    let webhooks = webhooks(&inbox);
    for n in 0..500 {
        send(&webhooks, event(&format!("chat-{n}"), 1))
            .await
            .assert_ok();
    }
    sleep(2 * DAY).await;
    // 64 at once, one a second for ten minutes, and then one in ten seconds.
    let most = 64 + 600 + 2 * 24 * 360 + 32;
    assert!(crm.attempts() < most, "{}", crm.attempts());
    assert!(
        states(&inbox)
            .await
            .iter()
            .all(|state| state.is_unsettled())
    );
    let before = Instant::now();
    crm.down.store(false, Ordering::SeqCst);
    within_a_month(|| crm.handled() == 500).await;
    assert!(before.elapsed() < 2 * 60 * MINUTE, "{:?}", before.elapsed());
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_redriven_event_of_a_type_that_is_slowed_down_is_tried_at_once() {
    let (inbox, crm) = (inbox(), NotingCrm::default());
    crm.down.store(true, Ordering::SeqCst);
    let worker = inbox.work(crm.router()).spawn();
    let webhooks = webhooks(&inbox);
    for n in 0..100 {
        let event = event(&format!("chat-{n}"), 1);
        send(&webhooks, event).await.assert_ok();
    }
    assert!(inbox.slowed().contains_key(&EventKind::CHAT_RATED.into()));
    sleep(11 * MINUTE).await;
    // The ones that wait have been due for longer.
    let record = async || inbox.get(EventId(77)).await.unwrap().unwrap();
    let next = || {
        let next = inbox.slowed()[&EventKind::CHAT_RATED.into()];
        next.duration_since(SystemTime::now()).unwrap_or_default()
    };
    let before = record().await.failures.len();
    for tried in 1..=3 {
        // Long before the next call that nobody asks for.
        while next() < 3 * SECOND {
            sleep(SECOND).await;
        }
        let attempts = crm.attempts();
        let change = inbox.redrive(EventId(77), None).await.unwrap();
        assert_eq!(change, Change::Made);
        sleep(SECOND / 10).await;
        assert_eq!(record().await.failures.len(), before + tried);
        assert_eq!(crm.attempts(), attempts + 1);
    }
    // One that is redriven with thousands waits for its turn.
    let attempts = crm.attempts();
    for id in (1..=100).cycle().take(500) {
        inbox.redrive(EventId(id), None).await.unwrap();
        sleep(SECOND / 100).await;
    }
    let attempts = crm.attempts() - attempts;
    assert!((5..=64 + 5 + 1).contains(&attempts), "{attempts}");

    crm.down.store(false, Ordering::SeqCst);
    inbox.redrive(EventId(77), None).await.unwrap();
    sleep(2 * SECOND).await;
    assert_eq!(record().await.summary.state, EventState::Handled);
    assert!(inbox.slowed().is_empty());
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn snoozing_is_no_failure() {
    let inbox = inbox();
    // It is not purged as soon as it is handled.
    let webhooks = accepting(&inbox, Webhooks::new(secret()).retention(60 * DAY));
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&calls);
    let router = EventRouter::new().on::<ChatRated>(move |delivery: Delivery<ChatRated>| {
        let seen = Arc::clone(&seen);
        async move {
            assert_eq!(delivery.attempt().map(NonZeroU32::get), Some(1));
            match seen.fetch_add(1, Ordering::SeqCst) {
                0..20 => Err(HandlerError::snooze(DAY)),
                _ => Ok(()),
            }
        }
    });
    let worker = inbox.work(router).spawn();
    send(&webhooks, event("a", 1)).await.assert_ok();
    sleep(19 * DAY).await;
    assert_eq!(states(&inbox).await, [EventState::Waiting]);
    within_a_month(|| calls.load(Ordering::SeqCst) == 21).await;
    sleep(SECOND).await;
    let event = inbox.get(EventId(1)).await.unwrap().unwrap();
    assert_eq!(event.summary.state, EventState::Handled);
    assert!(event.failures.is_empty());
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn each_error_of_a_handler_has_its_state() {
    let log = Log::capture(Level::INFO);
    let inbox = inbox();
    let router = EventRouter::new().on::<ChatRated>(async |delivery: Delivery<ChatRated>| {
        match delivery.payload.id.as_deref() {
            Some("discard") => Err(HandlerError::discard("no")),
            Some("dead") => Err(HandlerError::dead_letter("look")),
            Some("panic") => panic!("handler"),
            Some("slow") => std::future::pending().await,
            Some("later") => Err(HandlerError::retry_after(2 * DAY, "maintenance")),
            _ => Ok(()),
        }
    });
    let worker = inbox.work(router).spawn();
    let webhooks = webhooks(&inbox);
    for chat in ["discard", "dead", "panic", "slow", "later", "fine"] {
        send(&webhooks, event(chat, 1)).await.assert_ok();
    }
    send(&webhooks, delivery("{}").kind("chat-tagged").key("ignored"))
        .await
        .assert_ok();
    send(&webhooks, delivery("not JSON").key("undecodable"))
        .await
        .assert_ok();
    sleep(31 * SECOND).await;
    use EventState::{Dead, Discarded, Handled, Ignored, Retrying};
    assert_eq!(
        states(&inbox).await,
        [
            Discarded, Dead, Retrying, Retrying, Retrying, Handled, Ignored, Dead
        ]
    );
    let record = async |id| inbox.get(EventId(id)).await.unwrap().unwrap();
    let panicked = record(3).await.failures.remove(0).failure;
    assert_eq!(panicked.outcome, "panicked");
    for text in ["the handler panicked: ", "attempts.rs:"] {
        assert!(panicked.reason.contains(text), "{panicked:?}");
    }
    assert!(log.count(Level::WARN, "the event is tried again") >= 3);
    assert_eq!(log.count(Level::ERROR, ""), 2);
    assert_eq!(log.count(Level::ERROR, "is now a dead letter"), 1);
    let undecodable = "is a dead letter from the start";
    assert_eq!(log.count(Level::ERROR, undecodable), 1);
    assert_eq!(
        record(4).await.failures[0].failure.outcome,
        "handler-timeout"
    );
    let due = record(5).await.summary.due_at.unwrap();
    assert!(
        due.duration_since(record(5).await.summary.accepted_at)
            .unwrap()
            >= 2 * DAY
    );
    let undecodable = record(8).await;
    assert_eq!(undecodable.body.as_deref(), Some(&b"not JSON"[..]));
    assert_eq!(undecodable.failures[0].failure.outcome, "undecodable");
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_tower_layer_can_stand_around_the_handlers() {
    let (inbox, crm) = (inbox(), NotingCrm::default());
    *lock(&crm.takes) = SECOND;
    let limited =
        tower::limit::ConcurrencyLimit::with_semaphore(crm.router(), Arc::new(Semaphore::new(2)));
    let worker = inbox.work(limited).spawn();
    let webhooks = webhooks(&inbox);
    for n in 0..20 {
        send(&webhooks, event(&format!("chat-{n}"), 1))
            .await
            .assert_ok();
    }
    within_a_month(|| crm.handled() == 20).await;
    assert_eq!(crm.most_at_once.load(Ordering::SeqCst), 2);
    worker.drain(SECOND).await.unwrap();
}

#[derive(Debug)]
struct Unspeakable;

impl std::fmt::Display for Unspeakable {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("it cannot be displayed");
    }
}

impl std::error::Error for Unspeakable {}

#[tokio::test(start_paused = true)]
async fn an_error_that_panics_when_displayed_is_a_failure() {
    let inbox = inbox();
    let webhooks = webhooks(&inbox);
    send(&webhooks, event("a", 1)).await.assert_ok();
    let events =
        EventRouter::new().on::<ChatRated>(async |_: Delivery<ChatRated>| Err(Unspeakable.into()));
    let worker = inbox.work(events).spawn();
    sleep(SECOND).await;
    let record = inbox.get(EventId(1)).await.unwrap().unwrap();
    assert_eq!(record.summary.state, EventState::Retrying);
    assert_eq!(record.summary.failures, 1);
    assert_eq!(record.failures.len(), 1);
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn failures_that_do_not_count_come_back_ever_less_often() {
    let inbox = inbox();
    let webhooks = webhooks(&inbox);
    send(&webhooks, event("a", 1)).await.assert_ok();
    let attempts = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&attempts);
    let busy = tower::service_fn(move |_: RawDelivery| {
        count.fetch_add(1, Ordering::SeqCst);
        async {
            Ok::<_, std::convert::Infallible>(Outcome::InFlight {
                remaining: Duration::ZERO,
            })
        }
    });
    let worker = inbox.work(busy).spawn();
    sleep(3 * DAY).await;
    let attempts = attempts.load(Ordering::SeqCst);
    assert!(
        (65..100).contains(&attempts),
        "{attempts} attempts in three days"
    );
    let record = inbox.get(EventId(1)).await.unwrap().unwrap();
    assert_eq!(record.summary.state, EventState::Retrying);
    assert_eq!(record.summary.failures, 0);
    assert_eq!(record.failures.len(), attempts);
    drop(worker);
}
