//! Leases that expire, because a process died or stalled.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::make::lane;
use super::steps::{Trial, assert_attempt, lasted, ok};
use super::{HELD, Harness, SHORT};
use tower_webhook::inbox::Change;
use tower_webhook::inbox::internal::{Claims, Settled, Settlement};

use support::queue::{Calls, outage, retry, skip, snooze};

/// An event whose lease expired can be taken again, by any handle and without a call that cleans up, but not before.
/// Each expiry counts one crash, also in a lane. A release keeps the count, and every other end of an attempt resets
/// it.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn crashes_are_counted<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let other = &trial.handles(harness, 1).await[0];
    for settlement in [retry, outage, snooze, skip] {
        let lane = lane();
        let mut began = Instant::now();
        let first = trial.taken(trial.in_lane(lane), SHORT).await;
        let id = first.lease.id;
        let next = trial.accept(trial.in_lane(lane)).await;
        assert_attempt(&first, 0, 0, "no attempt");
        for crashes in [1, 2] {
            let what = "an event whose lease expired";
            let (before, again) = other.claimed_at(SHORT, what).await;
            assert_eq!(again.lease.id, id, "not {what} was taken");
            lasted(began, "a lease");
            began = before;
            assert_attempt(&again, 0, crashes, "leases that expired");
        }
        let third = other.claims(id, HELD, "an event whose lease expired").await;
        lasted(began, "a lease");
        assert_attempt(&third, 0, 3, "leases that expired");
        other.nothing("the lane is busy").await;

        other.settle(&third, &Settlement::Released).await;
        let fourth = trial.claims(id, HELD, "an event that was released").await;
        assert_attempt(&fourth, 0, 3, "a release");
        let settlement = settlement(Duration::ZERO);
        trial.settle(&fourth, &settlement).await;
        let fifth = trial.claims(id, SHORT, "an event that is retried").await;
        let counted = matches!(settlement, Settlement::Retry { counts: true, .. });
        assert_attempt(&fifth, counted.into(), 0, "the end of an attempt");
        let sixth = trial.claims(id, HELD, "an event whose lease expired").await;
        assert_attempt(
            &sixth,
            counted.into(),
            1,
            "a lease that expired after a failure",
        );
        trial.hands_over(&sixth, &Settlement::Handled, next).await;
    }
}

/// When a handle was dropped, others take the events that it had taken, once its leases have expired: those taken by an
/// accept, by a claim, and by a settlement. Their lanes continue.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn nothing_ends_with_its_handle<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let mut expected = Vec::new();
    let began = Instant::now();
    {
        let gone = trial.handles(harness, 1).await.remove(0);
        let lane = lane();
        for at in 0..3 {
            let id = gone.accept(gone.in_lane(lane)).await;
            expected.push((id, u32::from(at == 0)));
        }
        let first = gone.claimed(HELD, "the first event").await;
        let lane = self::lane();
        let before = gone.taken(gone.in_lane(lane), HELD).await;
        let next = gone.accept(gone.in_lane(lane)).await;
        let retried = gone.taken(gone.event(), HELD).await;

        // Nothing is claimed any more, so however long it takes, none of these is taken when its lease has expired.
        let event = gone.taken(gone.event(), SHORT).await;
        expected.push((event.lease.id, 1));
        gone.extend(&[first.lease], SHORT).await;
        let take = gone.take(SHORT);
        let settled = gone
            .queue
            .settle(&before.lease, &Settlement::Handled, Some(&take))
            .await;
        assert!(
            matches!(ok(settled, "settle"), Settled::Ended(Some(_))),
            "the next event was not handed over"
        );
        expected.push((next, 1));
        gone.settle(&retried, &outage(SHORT)).await;
        expected.push((retried.lease.id, 0));
    }
    let mut found = Vec::new();
    for _ in 0..expected.len() {
        let taken = trial
            .claimed(HELD, "an event of a handle that is gone")
            .await;
        lasted(began, "a lease");
        trial.settle(&taken, &Settlement::Handled).await;
        found.push((taken.lease.id, taken.crashes));
    }
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(
        found, expected,
        "events and crashes of a handle that is gone"
    );
    trial.nothing("all events were handled").await;
}

/// A claim takes at most `suspects` events that have crashed before, and as many others as there are. Suspects that it
/// leaves do not make [`next_due`](tower_webhook::inbox::Claims::next_due) zero.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn suspects_are_limited<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let mut crashed = Vec::new();
    for at in 0..4 {
        let event = match at % 2 {
            0 => trial.event(),
            _ => trial.in_lane(lane()),
        };
        crashed.push(trial.taken(event, SHORT).await);
    }
    sleep(2 * SHORT).await;
    let ids = |claims: &Claims| {
        claims
            .events
            .iter()
            .map(|taken| taken.lease.id)
            .collect::<Vec<_>>()
    };
    let claims = trial.claim(HELD, 10, 0).await;
    assert_eq!(
        ids(&claims),
        [],
        "suspects that were taken although none was allowed"
    );
    assert_ne!(
        claims.next_due,
        Some(Duration::ZERO),
        "when suspects can be taken by others only"
    );

    let innocent = [
        trial.accept(trial.event()).await,
        trial.accept(trial.in_lane(lane())).await,
    ];
    let mut found = Vec::new();
    for suspects in [0, 1, 2] {
        let claims = trial.claim(HELD, 10, suspects).await;
        let of_both = ids(&claims).into_iter();
        let (innocents, suspected): (Vec<_>, Vec<_>) =
            of_both.partition(|id| innocent.contains(id));
        let expected = if suspects == 0 { innocent.len() } else { 0 };
        assert_eq!(innocents.len(), expected, "those that did not crash");
        assert_eq!(
            suspected.len(),
            suspects,
            "suspects of as many that were allowed"
        );
        found.extend(claims.events.into_iter().filter(|taken| taken.crashes > 0));
    }
    for taken in &found {
        assert_eq!(taken.crashes, 1, "crashes of a suspect");
        trial.settle(taken, &outage(Duration::ZERO)).await;
    }
    // The first three are suspects no more.
    let claims = trial.claim(HELD, 10, 0).await;
    assert_eq!(
        claims.events.len(),
        found.len(),
        "those that are no suspects any more"
    );
    let last = trial.claim(HELD, 10, 10).await;
    assert_eq!(last.events.len(), 1, "the last suspect");
    for suspect in &last.events {
        let id = suspect.lease.id;
        trial
            .discard(id, Change::Made, "an event in progress")
            .await;
        trial
            .redrive(id, Change::Made, "an event that was discarded")
            .await;
        let claims = trial.claim(HELD, 10, 0).await;
        assert_eq!(
            ids(&claims),
            [suspect.lease.id],
            "a suspect that was redriven"
        );
    }
}

/// Events that crashed before are taken before others that are due, because they were in progress before them. So even
/// with a backlog, a crash delays its events by no more than their leases.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn suspects_come_first<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let innocent = [
        trial.accept(trial.event()).await,
        trial.accept(trial.in_lane(lane())).await,
    ];
    let mut crashed = Vec::new();
    for event in [trial.event(), trial.in_lane(lane())] {
        crashed.push(trial.taken(event, SHORT).await.lease.id);
    }
    sleep(2 * SHORT).await;
    for suspect in crashed {
        let claims = trial.claim(HELD, 1, 1).await;
        let [taken] = &claims.events[..] else {
            panic!("{} events were taken instead of one", claims.events.len());
        };
        assert_eq!(taken.lease.id, suspect, "the event that crashed first");
        trial.settle(taken, &Settlement::Handled).await;
    }
    for id in innocent {
        trial.claims(id, HELD, "an event that waits").await;
    }
}
