//! An inbox and its workers, as an observer sees them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::sleep;
use tower_webhook::event::ChatRated;
use tower_webhook::inbox::internal::observe;
use tower_webhook::inbox::{Inbox, Retry};
use tower_webhook::telemetry::{Observation, Observer, Recent};
use tower_webhook::{Delivery, EventRouter, HandlerError, Webhooks};

use support::delivery::{delivery, secret, send};
use support::inbox::{NotingCrm, Works, accepting, event, inbox, webhooks, within_a_month};
use support::observer::Notes;
use support::{MINUTE, SECOND};

#[tokio::test(start_paused = true)]
async fn each_attempt_is_observed_with_what_becomes_of_the_event() {
    let (notes, recent) = (Notes::default(), Recent::new());
    let inbox = inbox();
    let webhooks = Webhooks::new(secret()).observer((notes.clone(), recent.clone()));
    let webhooks = accepting(&inbox, webhooks);
    let events = EventRouter::new().on::<ChatRated>(async |delivery: Delivery<ChatRated>| {
        sleep(SECOND).await;
        match delivery.payload.id.as_deref() {
            Some("fails") => Err(HandlerError::retry_after(MINUTE, "the CRM is down")),
            Some("snoozes") => Err(HandlerError::snooze(MINUTE)),
            Some("dead") => Err(HandlerError::dead_letter("no such customer")),
            Some("discarded") => Err(HandlerError::discard("too old")),
            _ => Ok(()),
        }
    });
    let worker = inbox
        .work(events)
        .retry(Retry::default().max_attempts(2))
        .spawn();
    for (chat, expected) in [
        ("fine", &["attempt 1 handled inbox 1000 ms, settled: -"][..]),
        (
            "fails",
            &[
                "attempt 1 failed inbox 1000 ms, retry in 60 s: the CRM is down",
                "attempt 2 failed inbox 1000 ms, dead: the CRM is down",
            ],
        ),
        (
            "snoozes",
            &["attempt 1 snoozed inbox 1000 ms, retry in 60 s: -"],
        ),
        (
            "dead",
            &["attempt 1 dead-letter inbox 1000 ms, dead: no such customer"],
        ),
        (
            "discarded",
            &["attempt 1 discarded inbox 1000 ms, settled: too old"],
        ),
    ] {
        send(&webhooks, event(chat, 1)).await.assert_ok();
        sleep(100 * SECOND).await;
        let mut seen = notes.take_ends();
        assert!(
            seen[0].starts_with("delivery accepted 200 chat-rated"),
            "{seen:?}"
        );
        seen.remove(0);
        assert_eq!(&seen[..expected.len()], expected, "{chat}");
        if chat == "snoozes" {
            inbox.forget(chat).await.unwrap();
        }
    }

    send(&webhooks, delivery("[]")).await.assert_ok();
    let seen = notes.take_ends();
    assert!(seen[0].starts_with("accepted dead chat-rated "), "{seen:?}");
    assert!(
        seen[1].starts_with("delivery accepted 200 chat-rated"),
        "{seen:?}"
    );
    assert_eq!(seen.len(), 2, "no attempt is made: {seen:?}");
    let problems = recent.problems();
    let mut problems: Vec<_> = problems
        .iter()
        .map(|it| (it.outcome, it.count, it.reason.as_str()))
        .collect();
    problems.sort_unstable();
    assert_eq!(
        problems,
        [
            ("dead-letter", 1, "no such customer"),
            ("discarded", 1, "too old"),
            ("failed", 2, "the CRM is down"),
            ("undecodable", 1, "the body is not a JSON object"),
        ]
    );
    drop(worker);
}

/// Asks the inbox of each type that is slowed down, while it is told of it.
struct Asks(Inbox, Arc<Mutex<Vec<usize>>>);

impl Observer for Asks {
    fn observe(&self, observation: &Observation<'_>) {
        if let Observation::Slowed { .. } = observation {
            let slowed = self.0.slowed().len();
            support::lock(&self.1).push(slowed);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_observer_may_ask_the_inbox() {
    let (inbox, crm, seen) = (inbox(), NotingCrm::default(), Arc::default());
    observe(&inbox, Asks(inbox.clone(), Arc::clone(&seen)));
    let webhooks = webhooks(&inbox);
    crm.down.store(true, std::sync::atomic::Ordering::SeqCst);
    let worker = inbox.work(crm.router()).credit(1).spawn();
    send(&webhooks, event("a", 1)).await.assert_ok();
    sleep(SECOND).await;
    crm.down.store(false, std::sync::atomic::Ordering::SeqCst);
    within_a_month(|| crm.handled() == 1).await;
    assert_eq!(*support::lock(&seen), [1, 0]);
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn types_that_are_slowed_down_and_calls_of_the_queue_are_observed() {
    let notes = Notes::default();
    let (inbox, crm) = (inbox(), NotingCrm::default());
    observe(&inbox, notes.clone());
    let webhooks = webhooks(&inbox);
    crm.down.store(true, std::sync::atomic::Ordering::SeqCst);
    let worker = inbox.work(crm.router()).credit(3).spawn();
    for chat in ["a", "b", "c"] {
        send(&webhooks, event(chat, 1)).await.assert_ok();
    }
    sleep(SECOND).await;
    let seen = notes.take();
    assert!(
        seen.contains(&"slowed chat-rated true".to_owned()),
        "{seen:?}"
    );
    for call in ["accept", "settle", "claim"] {
        assert!(
            seen.contains(&format!("call inbox {call}: ok")),
            "{call}: {seen:?}"
        );
    }

    crm.down.store(false, std::sync::atomic::Ordering::SeqCst);
    within_a_month(|| crm.handled() == 3).await;
    let seen = notes.take();
    assert!(
        seen.contains(&"slowed chat-rated false".to_owned()),
        "{seen:?}"
    );

    *support::lock(&crm.takes) = Duration::from_secs(20);
    send(&webhooks, event("d", 1)).await.assert_ok();
    within_a_month(|| crm.handled() == 4).await;
    let seen = notes.take();
    assert!(
        seen.contains(&"call inbox extend: ok".to_owned()),
        "{seen:?}"
    );
    inbox.stats().await.unwrap();
    assert_eq!(notes.take(), ["call inbox stats: ok"]);
    drop(worker);
}
