//! Lanes: one event at a time, in the order of acceptance.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::make::{kind, lane};
use super::steps::{Trial, lasted, ok};
use super::{HELD, Harness, SHORT};
use tower_webhook::inbox::internal::{Kinds, Settled, Settlement};
use tower_webhook::inbox::{Change, EventState};

use support::queue::{Calls, dead, outage, retry, skip, snooze};

/// A delay within which a rule makes several calls, on a busy machine.
const DELAY: Duration = Duration::from_secs(2);

/// Only the first event of a lane can be taken, and the next one only after the attempt of the first one has ended: by
/// the settlement itself with `next`, and otherwise by a claim. So the lane runs in the order of acceptance.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn lanes_keep_their_order<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let other = &trial.handles(harness, 1).await[0];
    let lane = lane();
    let ids = trial.line(lane, 8).await;

    let mut taken = trial.claims(ids[0], HELD, "the first event").await;
    for (at, id) in ids.iter().enumerate().skip(1) {
        assert_eq!(taken.lane, Some(lane), "the lane of an event");
        other.nothing("the lane is busy").await;
        let settlement = match at % 3 {
            0 => Settlement::Handled,
            1 => Settlement::Ignored,
            _ => dead(false),
        };
        taken = match at % 2 {
            0 => {
                other.settle(&taken, &settlement).await;
                other.claims(*id, HELD, "the next event of the lane").await
            }
            _ => trial.hands_over(&taken, &settlement, *id).await,
        };
        assert_eq!(
            taken.delivery.attempt().map(u32::from),
            Some(1),
            "the attempt"
        );
        assert_eq!(
            (taken.failures, taken.crashes),
            (0, 0),
            "failures and crashes"
        );
    }
    trial
        .hands_nothing_over(&taken, &Settlement::Handled, "the lane is empty")
        .await;
    trial.nothing("the lane is empty").await;
    trial.taken(trial.in_lane(lane), HELD).await;
}

/// Events without a lane wait for no other event, and events of different lanes do not wait for each other.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn lanes_are_independent<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let mut ids = Vec::new();
    for at in 0..12 {
        let event = match at % 2 {
            0 => trial.event(),
            _ => trial.in_lane(lane()),
        };
        ids.push(trial.accept(event).await);
    }
    trial.all_of(&ids, HELD, "events of different lanes").await;
}

/// A lane waits for an event that is retried and blocks it, whichever handle claims: A, B and C stay in this order. It
/// also waits for an event that was released, and for one whose attempt did not count.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn retries_keep_their_place<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let other = &trial.handles(harness, 1).await[0];
    for settlement in [retry, outage, snooze, |_| Settlement::Released] {
        let lane = lane();
        let ids = trial.line(lane, 3).await;
        for (at, id) in ids.iter().enumerate() {
            let taken = trial.claims(*id, HELD, "the first event of the lane").await;
            let began = Instant::now();
            let settlement = settlement(SHORT);
            trial
                .hands_nothing_over(&taken, &settlement, "the lane waits")
                .await;
            let again = other
                .claims(*id, HELD, "the event that is tried again")
                .await;
            if let Settlement::Retry { .. } = settlement {
                lasted(began, "a delay");
            }
            other.nothing("the lane is busy").await;
            match ids.get(at + 1) {
                Some(_) => other.settle(&again, &Settlement::Handled).await,
                None => {
                    let what = "the lane is empty";
                    other
                        .hands_nothing_over(&again, &Settlement::Handled, what)
                        .await;
                }
            }
        }
        trial.nothing("the lane is empty").await;
    }
}

/// A lane continues when an event is retried that does not block it. The event returns to the place of its number when
/// it is due: before those that wait, but never while another event of its lane is in progress.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn skipped_events_return<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let other = &trial.handles(harness, 1).await[0];
    let lane = lane();
    let ids = trial.line(lane, 5).await;

    // The lane goes on, with `next` and without.
    let first = trial.claims(ids[0], HELD, "the first event").await;
    let began = Instant::now();
    let second = trial.hands_over(&first, &skip(DELAY), ids[1]).await;
    trial
        .is(ids[0], EventState::Retrying, "an event that was skipped")
        .await;
    other.nothing("the lane is busy").await;
    other.settle(&second, &skip(HELD)).await;
    let third = other.claims(ids[2], HELD, "the third event").await;

    // The first one is due, and waits for the third. Then it comes before the fourth.
    sleep(DELAY + SHORT).await;
    other
        .nothing("the lane is busy, and the event that returns waits for it")
        .await;
    let joins = trial
        .not_taken(trial.in_lane(lane), "the lane is busy")
        .await;
    trial.nothing("the lane is busy").await;
    other.settle(&third, &Settlement::Handled).await;
    let first = other.claims(ids[0], HELD, "the event that returned").await;
    lasted(began, "a delay");
    assert_eq!(
        first.failures, 1,
        "the failures of an event that was skipped"
    );
    trial.nothing("the lane is busy").await;

    // Behind it, nobody overtakes: not while it is retried, nor when somebody meddles with the line.
    trial
        .hands_nothing_over(&first, &retry(DELAY), "the lane waits")
        .await;
    trial.nothing("the lane waits").await;
    let first = trial.claims(ids[0], HELD, "the event that returned").await;
    other
        .discard(ids[4], Change::Made, "an event that waits")
        .await;
    other.nothing("the lane is busy").await;
    let fourth = trial.hands_over(&first, &Settlement::Handled, ids[3]).await;

    // The second one returns by hand, beside which nothing changes for the fourth.
    other
        .redrive(ids[1], Change::Made, "an event that was skipped")
        .await;
    other
        .nothing("the lane is busy, and the event that returns waits for it")
        .await;
    other
        .redrive(ids[1], Change::Made, "an event that has returned")
        .await;
    other
        .redrive(joins, Change::Made, "an event that waits")
        .await;
    other.nothing("the lane is busy").await;
    let last = trial.accept(trial.in_lane(lane)).await;
    other
        .discard(last, Change::Made, "an event that waits")
        .await;
    other.nothing("the lane is busy").await;
    let second = trial
        .hands_over(&fourth, &Settlement::Handled, ids[1])
        .await;
    let joins = trial.hands_over(&second, &Settlement::Handled, joins).await;
    trial
        .hands_nothing_over(&joins, &skip(SHORT), "the lane is empty")
        .await;

    // Also into a lane that is empty, and behind those that were taken meanwhile.
    let joins = other
        .claims(
            joins.lease.id,
            HELD,
            "an event that returned to an empty lane",
        )
        .await;
    other.settle(&joins, &skip(DELAY)).await;
    let taken = trial.taken(trial.in_lane(lane), HELD).await;
    sleep(DELAY + SHORT).await;
    other.nothing("the lane is busy").await;
    trial.settle(&taken, &retry(HELD)).await;
    let joins = other
        .claims(joins.lease.id, HELD, "an event that returned")
        .await;
    trial
        .hands_nothing_over(&joins, &Settlement::Handled, "the next event is retried")
        .await;
    trial.nothing("the lane waits").await;
}

/// A dead letter frees its lane, or holds it until it is discarded, or is redriven and settled.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn dead_letters_free_or_hold_lanes<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let other = &trial.handles(harness, 1).await[0];
    let ids = trial.line(lane(), 2).await;
    let taken = trial.claims(ids[0], HELD, "the first event").await;
    let next = trial.hands_over(&taken, &dead(false), ids[1]).await;
    trial.is(ids[0], EventState::Dead, "a dead letter").await;
    trial.settle(&next, &Settlement::Handled).await;

    for is_redriven in [false, true] {
        let lane = lane();
        let ids = trial.line(lane, 3).await;
        let taken = trial.claims(ids[0], HELD, "the first event").await;
        trial
            .hands_nothing_over(&taken, &dead(true), "a dead letter holds the lane")
            .await;
        trial
            .is(
                ids[0],
                EventState::Dead,
                "a dead letter that holds its lane",
            )
            .await;
        other.nothing("a dead letter holds the lane").await;
        let joins = other
            .not_taken(trial.in_lane(lane), "a dead letter holds the lane")
            .await;
        other
            .discard(ids[2], Change::Made, "an event that waits")
            .await;
        other.nothing("a dead letter holds the lane").await;

        if is_redriven {
            other
                .redrive(ids[0], Change::Made, "a dead letter that holds its lane")
                .await;
            let taken = other
                .claims(ids[0], HELD, "the dead letter, which runs first")
                .await;
            other
                .nothing("the lane waits for the dead letter that was redriven")
                .await;
            other.settle(&taken, &Settlement::Handled).await;
        } else {
            other
                .discard(ids[0], Change::Made, "a dead letter that holds its lane")
                .await;
        }
        let taken = trial.claims(ids[1], HELD, "the second event").await;
        trial.hands_over(&taken, &Settlement::Handled, joins).await;
        trial.nothing("the lane is busy").await;
    }

    // Without a lane there is nothing to hold.
    let taken = trial.taken(trial.event(), HELD).await;
    trial.settle(&taken, &dead(true)).await;
    trial
        .is(taken.lease.id, EventState::Dead, "a dead letter")
        .await;
    trial.taken(trial.event(), HELD).await;
}

/// An event of a kind that a worker does not take keeps its place, and its lane waits for another worker.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn kinds_that_are_left_hold_lanes<H: Harness>(harness: &H) {
    let new = Trial::open(harness).await;
    let known = new.fresh();
    let kinds = Kinds::only([new.kind.clone(), known.kind.clone(), kind()]);
    let old = new.taking(kinds.clone().except([new.kind.clone()]));
    let both = new.taking(kinds);

    let lane = lane();
    let first = old.accept(known.in_lane(lane)).await;
    let second = old.not_taken(new.in_lane(lane), "its kind is left").await;
    let third = old
        .not_taken(known.in_lane(lane), "an event of its lane waits")
        .await;
    let first = old
        .claims(first, HELD, "an event of a kind that is taken")
        .await;
    old.hands_nothing_over(
        &first,
        &Settlement::Handled,
        "the next event's kind is left",
    )
    .await;
    old.nothing("the next event's kind is left").await;
    known.nothing("the next event's kind is left").await;

    let second = new
        .claims(second, HELD, "an event of a kind that another worker left")
        .await;
    old.nothing("the lane is busy").await;
    new.hands_nothing_over(
        &second,
        &Settlement::Handled,
        "the next event's kind is left",
    )
    .await;
    new.nothing("the next event's kind is left").await;
    let third = old.claims(third, HELD, "the third event").await;
    let last = old.not_taken(new.in_lane(lane), "its kind is left").await;
    let taken = both.take(HELD);
    let settled = both
        .queue
        .settle(&third.lease, &Settlement::Handled, Some(&taken))
        .await;
    match ok(settled, "settle") {
        Settled::Ended(Some(next)) => assert_eq!(next.lease.id, last, "the next event"),
        other => panic!("the next event was not handed over: {other:?}"),
    }

    // By hand, and by the end of a lease, it stays with those that take it.
    let alone = new.taken(new.event(), SHORT).await;
    sleep(2 * SHORT).await;
    old.nothing("its kind is left").await;
    let alone = new
        .claims(alone.lease.id, HELD, "an event whose lease expired")
        .await;
    new.settle(&alone, &dead(false)).await;
    new.redrive(alone.lease.id, Change::Made, "a dead letter")
        .await;
    old.nothing("its kind is left").await;
    both.claims(alone.lease.id, HELD, "a dead letter that was redriven")
        .await;
}
