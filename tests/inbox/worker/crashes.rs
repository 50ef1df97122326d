//! Events that crash their process, and suspects.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::sleep;
use tower_webhook::event::{ChatRated, EventKind};
use tower_webhook::inbox::internal::{
    self, Accepted, Kinds, Lane, NewEvent, Settled, Settlement, Take,
};
use tower_webhook::inbox::{EventId, EventState, Inbox};
use tower_webhook::{Delivery, EventRouter, HandlerError};

use support::delivery::send;
use support::inbox::{NotingCrm, Works, event, inbox, states, webhooks, within_a_month};
use support::queue::{Calls, new_event, take};
use support::{MINUTE, SECOND};

#[tokio::test(start_paused = true)]
async fn an_event_that_crashes_its_process_is_a_dead_letter() {
    let inbox = inbox().clone();
    let accepted = async |n: i64| {
        let event = NewEvent {
            lane: Some(Lane(n)),
            ..new_event(EventKind::CHAT_RATED, r#"{"id":"a"}"#)
        };
        internal::queue(&inbox)
            .accept_one(event, None)
            .await
            .unwrap()
    };
    for n in 0..3 {
        assert!(matches!(accepted(n).await, Accepted::New { .. }));
    }
    // Processes that take the events, and die.
    let take = take(SECOND);
    assert_eq!(
        internal::queue(&inbox)
            .claim_of(&take, 9, 1)
            .await
            .unwrap()
            .events
            .len(),
        3
    );
    // The first one takes each process with it. The others were only beside it, and come one at a time.
    let mut deaths = 1;
    while deaths < 3 {
        sleep(2 * SECOND).await;
        let claims = internal::queue(&inbox).claim_of(&take, 9, 1).await.unwrap();
        assert_eq!(claims.events.len(), 1, "one suspect at a time");
        let suspect = &claims.events[0];
        match suspect.lease.id {
            EventId(1) => {
                assert_eq!(suspect.crashes, deaths);
                deaths += 1;
            }
            _ => {
                let released =
                    internal::queue(&inbox).settle(&suspect.lease, &Settlement::Released, None);
                assert!(matches!(released.await, Ok(Settled::Ended(None))));
            }
        }
    }
    sleep(2 * SECOND).await;
    let crm = NotingCrm::default();
    let worker = inbox.work(crm.router()).spawn();
    within_a_month(|| crm.handled() == 2).await;
    use EventState::{Dead, Handled};
    assert_eq!(states(&inbox).await, [Dead, Handled, Handled]);
    assert_eq!(crm.most_at_once.load(Ordering::SeqCst), 1);
    let dead = inbox.get(EventId(1)).await.unwrap().unwrap();
    assert_eq!(dead.failures[0].failure.outcome, "crashed");
    worker.drain(SECOND).await.unwrap();
}

/// An event that was taken once and never ended, so that it is a suspect now.
async fn crashed(inbox: &Inbox, kind: EventKind, lane: i64, crashes: u32) -> EventId {
    let take = Take {
        lease: SECOND,
        kinds: Kinds::only([kind.clone()]),
    };
    let event = NewEvent {
        lane: Some(Lane(lane)),
        ..new_event(kind, format!(r#"{{"id":"{lane}","rating":1}}"#))
    };
    let queue = internal::queue(inbox);
    let Accepted::New { id, taken } = queue.accept_one(event, Some(&take)).await.unwrap() else {
        panic!("a new event");
    };
    assert!(taken.is_some());
    for _ in 1..crashes {
        sleep(SECOND).await;
        let claims = queue.claim_of(&take, 1, 1).await.unwrap();
        assert_eq!(claims.events[0].lease.id, id);
    }
    sleep(SECOND).await;
    id
}

#[tokio::test(start_paused = true)]
async fn an_endless_snooze_delays_no_suspect() {
    let inbox = inbox();
    let first = crashed(&inbox, EventKind::CHAT_RATED, 1, 1).await;
    let second = crashed(&inbox, EventKind::CHAT_RATED, 2, 1).await;
    let events = EventRouter::new().on::<ChatRated>(async |delivery: Delivery<ChatRated>| {
        match delivery.payload.id.as_deref() {
            Some("1") => Err(HandlerError::snooze(Duration::MAX)),
            _ => Ok(()),
        }
    });
    let worker = inbox.work(events).spawn();
    sleep(MINUTE).await;
    let state = async |id| inbox.get(id).await.unwrap().unwrap().summary.state;
    assert!(state(first).await.is_unsettled());
    assert_eq!(state(second).await, EventState::Handled);
    drop(worker);
}

/// An error that cannot be displayed.

#[tokio::test(start_paused = true)]
async fn a_probe_of_an_event_that_crashed_too_often_ends() {
    let (inbox, crm) = (inbox(), NotingCrm::default());
    let webhooks = webhooks(&inbox);
    crm.down.store(true, Ordering::SeqCst);
    let worker = inbox.work(crm.router()).credit(2).spawn();
    for chat in ["a", "b", "c"] {
        send(&webhooks, event(chat, 1)).await.assert_ok();
    }
    sleep(Duration::from_millis(500)).await;
    // The kind is slowed, and what crashes comes first.
    let dead = crashed(&inbox, EventKind::CHAT_RATED, 9, 3).await;
    within_a_month(|| crm.attempts() > 4).await;
    sleep(10 * MINUTE).await;
    let record = inbox.get(dead).await.unwrap().unwrap();
    assert_eq!(record.summary.state, EventState::Dead);

    crm.down.store(false, Ordering::SeqCst);
    within_a_month(|| crm.handled() == 3).await;
    drop(worker);
}
