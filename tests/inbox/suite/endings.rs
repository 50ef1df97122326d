//! The end of an attempt: once, and only by the holder of the lease.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::make::{chat, endings, lane};
use super::steps::{Trial, abandon, ok};
use super::{HELD, Harness, PATIENCE, SHORT};
use tower_webhook::inbox::internal::{NewEvent, Settled, Settlement, TakenEvent};
use tower_webhook::inbox::{By, Change, EventState};

use support::queue::{Calls, dead, retry, skip};

/// Asserts that an attempt has ended as asked, and only so. What is retried has no delay.
async fn ended(trial: &Trial, taken: &TakenEvent, settlement: &Settlement) {
    let id = taken.lease.id;
    let state = match settlement {
        Settlement::Handled => EventState::Handled,
        Settlement::Ignored => EventState::Ignored,
        Settlement::Discarded(_) => EventState::Discarded,
        Settlement::Dead { .. } => {
            let failures = trial.record(id).await.summary.failures;
            assert_eq!(failures, taken.failures + 1, "failures of a dead letter");
            EventState::Dead
        }
        Settlement::Retry { counts, .. } => {
            let state = trial.record(id).await.summary.state;
            assert!(
                matches!(state, EventState::Waiting | EventState::Retrying),
                "an event that is retried is {state}"
            );
            let again = trial.claims(id, HELD, "an event that is retried").await;
            let failures = taken.failures + u32::from(*counts);
            assert_eq!(again.failures, failures, "failures after {settlement:?}");
            assert_eq!(again.crashes, 0, "crashes after {settlement:?}");
            trial
                .refuses(&taken.lease, "an attempt that was ended by a retry")
                .await;
            return;
        }
        Settlement::Released => {
            let again = trial.claims(id, HELD, "an event that was released").await;
            let before = (taken.failures, taken.crashes, taken.delivery.attempt());
            let after = (again.failures, again.crashes, again.delivery.attempt());
            assert_eq!(
                before, after,
                "failures, crashes and attempt after a release"
            );
            trial
                .refuses(&taken.lease, "an attempt that was released")
                .await;
            return;
        }
        other => panic!("a settlement that this rule does not know: {other:?}"),
    };
    trial
        .is(id, state, &format!("an event after {settlement:?}"))
        .await;
    trial.nothing("the event is settled").await;
    trial
        .refuses(&taken.lease, "an attempt that was ended")
        .await;
}

/// An attempt under a lease that is held ends as requested. Every later end of the same attempt returns
/// [`Lost`](Settled::Lost).
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn attempts_end_once<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    for lane in [None, Some(lane())] {
        for settlement in endings() {
            let trial = trial.fresh();
            let event = NewEvent {
                // A dead letter may hold it.
                lane: lane.map(|_| self::lane()),
                ..trial.event()
            };
            let taken = trial.taken(event, HELD).await;
            trial.settle(&taken, &settlement).await;
            // Nobody has taken it again.
            trial
                .refuses(&taken.lease, "an attempt that was ended")
                .await;
            ended(&trial, &taken, &settlement).await;
        }
    }
}

/// An attempt whose lease has expired may still end, or be extended, if the event was not taken since. Then no crash is
/// counted.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn expired_attempts_may_end<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let mut attempts = Vec::new();
    for settlement in endings() {
        let trial = trial.fresh();
        let event = trial.in_lane(lane());
        attempts.push((trial.taken(event, SHORT).await, trial, settlement));
    }
    let extended = trial.fresh();
    let event = extended.in_lane(lane());
    let taken = extended.taken(event, SHORT).await;
    sleep(2 * SHORT).await;
    // A claim that takes something else, or nothing, takes nobody's lease.
    trial.nothing("there is no event of this kind").await;
    for (taken, trial, settlement) in attempts {
        trial.claim(HELD, 1, 0).await;
        trial.settle(&taken, &settlement).await;
        ended(&trial, &taken, &settlement).await;
    }

    assert_eq!(
        extended.extend(&[taken.lease], HELD).await,
        [true],
        "whether an expired lease was extended"
    );
    extended.nothing("the lease was extended").await;
    extended.settle(&taken, &Settlement::Released).await;
    let again = extended
        .claims(taken.lease.id, HELD, "an event that was released")
        .await;
    assert_eq!(
        again.crashes, 0,
        "crashes after a lease was extended in time"
    );
}

/// An attempt that ends too late changes nothing: when its lease has expired and the event was taken again, it can
/// neither end nor be extended, and the attempt of the new holder continues.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn late_finishers_change_nothing<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let other = &trial.handles(harness, 1).await[0];
    for lane in [None, Some(lane())] {
        let event = NewEvent {
            lane,
            ..trial.event()
        };
        let late = trial.expired(event.clone()).await;
        let id = late.lease.id;
        let next = match lane {
            None => None,
            Some(_) => Some(trial.accept(event).await),
        };
        let held = other.claims(id, HELD, "an event whose lease expired").await;
        assert_ne!(
            late.lease.fence, held.lease.fence,
            "the fence of the next attempt"
        );
        trial
            .refuses(&late.lease, "an attempt whose event was taken again")
            .await;
        trial.nothing("the event is in progress").await;
        trial
            .is(id, EventState::InProgress, "an event with a late finisher")
            .await;

        other.settle(&held, &retry(Duration::ZERO)).await;
        trial
            .refuses(&late.lease, "an attempt whose successor has failed")
            .await;
        let held = other.claims(id, HELD, "an event that is retried").await;
        trial
            .refuses(&late.lease, "an attempt before the last one")
            .await;
        other.settle(&held, &Settlement::Handled).await;
        trial
            .refuses(&late.lease, "an attempt whose event was handled")
            .await;
        trial
            .is(id, EventState::Handled, "an event with a late finisher")
            .await;
        if let Some(next) = next {
            let next = trial.claims(next, HELD, "the next event of the lane").await;
            trial.settle(&next, &Settlement::Handled).await;
        }
    }
}

/// A change by a person revokes the lease of the event: when the event was discarded, when its chat was forgotten, and
/// when it was redriven, an earlier attempt can neither be ended nor extended.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn changes_by_hand_end_attempts<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let other = &trial.handles(harness, 1).await[0];
    let expired = trial.expired(trial.event()).await;
    match ok(
        other
            .queue
            .redrive(expired.lease.id, None, &By::default())
            .await,
        "redrive",
    ) {
        Change::Made => {
            trial
                .refuses(
                    &expired.lease,
                    "an expired attempt whose event was redriven",
                )
                .await;
        }
        Change::WrongState => {}
        change => panic!("redriving an event whose lease has expired: {change:?}"),
    }
    trial
        .claims(expired.lease.id, HELD, "an event whose lease expired")
        .await;
    let expired = trial.expired(trial.event()).await;
    let id = expired.lease.id;
    other
        .discard(id, Change::Made, "an event whose lease expired")
        .await;
    trial
        .refuses(
            &expired.lease,
            "an expired attempt whose event was discarded",
        )
        .await;
    other
        .redrive(id, Change::Made, "an event that was discarded")
        .await;
    trial
        .refuses(
            &expired.lease,
            "an expired attempt whose event was discarded and redriven",
        )
        .await;
    let again = trial.claims(id, HELD, "an event that was redriven").await;
    trial.settle(&again, &Settlement::Handled).await;

    for lane in [None, Some(lane())] {
        let chat = chat();
        let event = NewEvent {
            lane,
            chat: Some(chat.clone()),
            ..trial.event()
        };
        let taken = trial.taken(event.clone(), HELD).await;
        let id = taken.lease.id;
        other
            .discard(id, Change::Made, "an event in progress")
            .await;
        trial
            .refuses(&taken.lease, "an attempt whose event was discarded")
            .await;
        trial
            .is(id, EventState::Discarded, "an event that was discarded")
            .await;
        trial.nothing("the event was discarded").await;
        other
            .redrive(id, Change::Made, "an event that was discarded")
            .await;
        trial
            .refuses(
                &taken.lease,
                "an attempt whose event was discarded and redriven",
            )
            .await;
        let again = other.claims(id, HELD, "an event that was redriven").await;
        trial
            .refuses(
                &taken.lease,
                "an attempt whose event was redriven and taken",
            )
            .await;
        other
            .redrive(id, Change::WrongState, "an event in progress")
            .await;
        other.settle(&again, &dead(false)).await;
        other.redrive(id, Change::Made, "a dead letter").await;
        trial
            .refuses(&again.lease, "an attempt whose event was redriven")
            .await;
        let again = other
            .claims(id, HELD, "a dead letter that was redriven")
            .await;

        let taken = trial.taken(event, HELD).await;
        assert_eq!(
            ok(
                other.queue.forget_all(&chat, &By::default()).await,
                "forget"
            ),
            2,
            "the events of a chat"
        );
        for lease in [&taken.lease, &again.lease] {
            trial
                .refuses(lease, "an attempt whose chat was forgotten")
                .await;
            trial
                .is(
                    lease.id,
                    EventState::Discarded,
                    "an event that was forgotten",
                )
                .await;
            assert!(
                trial.record(lease.id).await.body.is_none(),
                "the body was not forgotten"
            );
        }
        trial.nothing("the chat was forgotten").await;
    }
}

/// When the future of a settlement is dropped, at any of its awaits, the attempt has ended or it has not. If not, it
/// can be settled again, or the event is taken again when its lease has expired. Its lane continues in both cases.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn abandoned_settlements_lose_nothing<H: Harness>(harness: &H) {
    const POLLS: u32 = 12;

    let trial = Trial::open(harness).await;
    let mut attempts = Vec::new();
    for polls in 0..POLLS {
        for settlement in [
            Settlement::Handled,
            retry(Duration::ZERO),
            skip(Duration::ZERO),
        ] {
            let trial = trial.fresh();
            let lane = lane();
            let taken = trial.taken(trial.in_lane(lane), 4 * SHORT).await;
            let next = trial.accept(trial.in_lane(lane)).await;
            let take = trial.take(SHORT);
            abandon(
                trial.queue.settle(&taken.lease, &settlement, Some(&take)),
                polls,
            )
            .await;
            attempts.push((trial, taken, next, settlement));
        }
    }
    for (trial, taken, next, settlement) in attempts {
        let settled = trial.queue.settle(&taken.lease, &settlement, None).await;
        let (Settled::Ended(_) | Settled::Lost) = ok(settled, "settle");
        let mut left = match settlement {
            Settlement::Handled => vec![next],
            _ => vec![taken.lease.id, next],
        };
        let give_up = Instant::now() + PATIENCE;
        while !left.is_empty() {
            assert!(Instant::now() < give_up, "events {left:?} cannot be taken");
            if let Some(taken) = trial.try_claim(HELD).await {
                assert!(
                    left.contains(&taken.lease.id),
                    "event {} was taken again",
                    taken.lease.id
                );
                left.retain(|id| *id != taken.lease.id);
                trial.settle(&taken, &Settlement::Handled).await;
            } else {
                sleep(SHORT / 20).await;
            }
        }
        trial.nothing("all events were handled").await;
    }
}
