//! Consecutive events of a kind in a lane, of which only the newest is handed over.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_webhook::inbox::internal::{Kinds, NewEvent, Settlement, TakenEvent};
use tower_webhook::inbox::{Change, EventId, EventState, Lane, Queue};

use super::make::{key, lane};
use super::steps::{Trial, assert_attempt, joined};
use super::{HELD, Harness, PATIENCE, SHORT};
use support::lock;
use support::queue::{dead, outage, retry, skip, snooze};

impl<Q: Queue> Trial<Q> {
    /// One that hands over the newest of its kind.
    async fn collapsing<H: Harness<Queue = Q>>(harness: &H) -> Self {
        let trial = Self::open(harness).await;
        trial.replacing(&[])
    }

    /// The same, which replaces the events of this kind and of others.
    fn replacing(&self, others: &[&Self]) -> Self {
        let trials = [&[self], others].concat();
        let kinds = || trials.iter().map(|trial| trial.kind.clone());
        let taken = Kinds::only(kinds());
        self.taking(taken.collapsing(kinds().collect()))
    }

    /// The number of the event that replaced another one, which was never tried since.
    async fn replaced(&self, id: EventId) -> Option<EventId> {
        let record = self.record(id).await;
        let last = record.failures.last()?;
        let into = last.failure.reason.strip_prefix("into event ")?;
        assert_eq!(last.failure.outcome, "collapsed", "the outcome");
        assert_eq!(last.failure.took, None, "a duration without an attempt");
        assert_eq!(record.summary.state, EventState::Handled, "event {id}");
        Some(into.parse().expect("a number"))
    }

    /// Asserts which events this one has replaced.
    async fn replaces(&self, taken: &TakenEvent, ids: &[EventId], what: &str) {
        assert_eq!(taken.collapsed as usize, ids.len(), "the number of {what}");
        for id in ids {
            let into = self.replaced(*id).await;
            assert_eq!(into, Some(taken.lease.id), "what replaced {what}");
            self.is(*id, EventState::Handled, what).await;
        }
    }
}

/// A worker gets the newest of consecutive events of a kind that waits: by a claim, and by the end of the attempt before.
/// The others are settled, and can be redriven. Where the kind is not one of those that are replaced, all are handed over.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn runs_collapse<H: Harness>(harness: &H) {
    let trial = Trial::collapsing(harness).await;
    let other = &trial.handles(harness, 1).await[0];
    // There is nothing before the first event of a lane.
    let alone = trial.line(lane(), 1).await[0];
    let alone = trial
        .claims(alone, HELD, "an event alone in its lane")
        .await;
    trial.replaces(&alone, &[], "no event").await;
    trial.settle(&alone, &Settlement::Handled).await;

    let line = lane();
    let keyed = NewEvent {
        lane: Some(line),
        ..trial.with_key(&key(), "{}")
    };
    let mut ids = vec![trial.accept(keyed.clone()).await];
    ids.extend(trial.line(line, 2).await);
    // By the clock of another handle, which agrees to 10 ms, it may not be due before.
    sleep(SHORT / 20).await;
    let first = other.claims(ids[2], HELD, "the newest event").await;
    assert_attempt(&first, 0, 0, "a collapse");
    assert_eq!(first.lane, Some(line), "the lane");
    other
        .replaces(&first, &ids[..2], "the earlier events")
        .await;
    trial.nothing("the lane is busy").await;

    // Behind one in progress, which is not replaced.
    let behind = trial.line(line, 4).await;
    trial.is(ids[2], EventState::InProgress, "an event").await;
    let second = trial
        .hands_over(&first, &Settlement::Handled, behind[3])
        .await;
    trial
        .replaces(&second, &behind[..3], "the events behind")
        .await;
    assert_eq!(
        trial.replaced(ids[2]).await,
        None,
        "an event that was handled"
    );
    trial
        .duplicate(keyed, true, "a delivery of an event that was replaced")
        .await;
    trial
        .hands_nothing_over(&second, &Settlement::Handled, "the lane is empty")
        .await;
    trial.nothing("the lane is empty").await;

    // They are not among those that failed, and a person may redrive one.
    trial
        .redrive(behind[0], Change::Made, "an event that was replaced")
        .await;
    let again = trial
        .claims(behind[0], HELD, "an event that was redriven")
        .await;
    trial.settle(&again, &Settlement::Handled).await;

    // Without a lane, and where another worker takes them.
    let alone = [
        trial.accept(trial.event()).await,
        trial.accept(trial.event()).await,
    ];
    trial.all_of(&alone, HELD, "events without a lane").await;
    let plain = trial.taking(Kinds::only([trial.kind.clone()]));
    let ids = trial.line(lane(), 3).await;
    let first = plain.claims(ids[0], HELD, "the first event").await;
    let second = plain.hands_over(&first, &Settlement::Handled, ids[1]).await;
    plain.replaces(&second, &[], "no event").await;
    plain
        .hands_over(&second, &Settlement::Handled, ids[2])
        .await;
}

/// However many events wait, the steps in which they are replaced are limited, and the last one is handed over.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn long_runs_collapse_in_steps<H: Harness>(harness: &H) {
    let trial = Trial::collapsing(harness).await;
    let ids = trial.line(lane(), 300).await;
    let first = trial.claims(ids[256], HELD, "the last one of a step").await;
    assert_eq!(first.collapsed, 256, "the events of a step");
    let last = trial
        .hands_over(&first, &Settlement::Handled, ids[299])
        .await;
    trial
        .replaces(&last, &ids[257..299], "the other events")
        .await;
    assert_eq!(
        trial.replaced(ids[0]).await,
        Some(ids[256]),
        "the first step"
    );
}

/// An event of another kind ends a run, whether or not that kind is one of those that are replaced, or is taken.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn other_kinds_end_runs<H: Harness>(harness: &H) {
    let trial = Trial::collapsing(harness).await;
    let other = trial.fresh();
    let both = trial.replacing(&[&other]);
    let only_one = both.taking(
        Kinds::only([trial.kind.clone(), other.kind.clone()])
            .collapsing([trial.kind.clone()].into()),
    );

    let accept = async |lane: Lane, kinds: &str| {
        let mut ids = Vec::new();
        for kind in kinds.chars() {
            let of = if kind == 'a' { &trial } else { &other };
            ids.push(trial.accept(of.in_lane(lane)).await);
        }
        ids
    };
    let ids = accept(lane(), "aabbaa").await;
    let mut taken = both
        .claims(ids[1], HELD, "the newest before another kind")
        .await;
    both.replaces(&taken, &ids[..1], "the first event").await;
    taken = both.hands_over(&taken, &Settlement::Handled, ids[3]).await;
    both.replaces(&taken, &ids[2..3], "one of the other kind")
        .await;
    taken = both.hands_over(&taken, &Settlement::Handled, ids[5]).await;
    both.replaces(&taken, &ids[4..5], "one after the other kind")
        .await;

    let ids = accept(lane(), "aabb").await;
    let mut taken = only_one
        .claims(ids[1], HELD, "the newest before another kind")
        .await;
    for id in &ids[2..] {
        taken = only_one.hands_over(&taken, &Settlement::Handled, *id).await;
        assert_eq!(taken.collapsed, 0, "events of a kind that is not replaced");
    }

    // The lane waits for a worker that takes the other kind.
    let ids = accept(lane(), "aaba").await;
    let taken = trial
        .claims(ids[1], HELD, "the newest before another kind")
        .await;
    trial
        .hands_nothing_over(&taken, &Settlement::Handled, "the next one is left")
        .await;
    trial.nothing("the next one is left").await;
    let taken = both.claims(ids[2], HELD, "the one of another kind").await;
    both.hands_over(&taken, &Settlement::Handled, ids[3]).await;
}

/// A dead letter is not replaced, whether it holds its lane or not, nor is an event that was snoozed: neither as the first
/// one nor between others. While it is not due, nobody passes it.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn dead_and_snoozed_events_are_not_replaced<H: Harness>(harness: &H) {
    let trial = Trial::collapsing(harness).await;
    for hold in [false, true] {
        let ids = trial.line(lane(), 1).await;
        let taken = trial.claims(ids[0], HELD, "the first event").await;
        let behind = trial.line(taken.lane.unwrap(), 2).await;
        trial.settle(&taken, &dead(hold)).await;
        if hold {
            trial.nothing("a dead letter holds the lane").await;
            trial.discard(ids[0], Change::Made, "a dead letter").await;
        }
        let next = trial.claims(behind[1], HELD, "the newest event").await;
        trial.replaces(&next, &behind[..1], "the earlier one").await;
        assert_eq!(trial.replaced(ids[0]).await, None, "a dead letter");
    }

    let ids = trial.line(lane(), 1).await;
    let taken = trial.claims(ids[0], HELD, "the first event").await;
    let behind = trial.line(taken.lane.unwrap(), 2).await;
    trial
        .hands_nothing_over(&taken, &snooze(SHORT), "it is snoozed")
        .await;
    trial.nothing("it is snoozed").await;
    let again = trial
        .claims(ids[0], HELD, "the event that was snoozed")
        .await;
    assert_attempt(&again, 0, 0, "a snooze");
    // Released, it still is.
    trial.settle(&again, &Settlement::Released).await;
    let again = trial
        .claims(ids[0], HELD, "the event that was snoozed")
        .await;
    trial
        .is(behind[0], EventState::Waiting, "an event that waits")
        .await;
    // Once it has failed, it is retried.
    trial.settle(&again, &outage(Duration::ZERO)).await;
    let newest = trial.claims(behind[1], HELD, "the newest event").await;
    trial
        .replaces(&newest, &[ids[0], behind[0]], "the earlier ones")
        .await;

    // Between others.
    let plain = trial.taking(Kinds::only([trial.kind.clone()]));
    let ids = trial.line(lane(), 4).await;
    let first = plain.claims(ids[0], HELD, "the first event").await;
    plain.settle(&first, &skip(SHORT)).await;
    let second = plain.claims(ids[1], HELD, "the second event").await;
    let Settlement::Retry {
        after,
        failure,
        counts,
        is_probe,
        ..
    } = snooze(SHORT)
    else {
        unreachable!("a snooze is one")
    };
    let aside = Settlement::Retry {
        after,
        failure,
        counts,
        is_probe,
        blocks_lane: false,
    };
    plain.settle(&second, &aside).await;
    let third = plain.claims(ids[2], HELD, "the third event").await;
    sleep(2 * SHORT).await;
    trial.settle(&third, &retry(Duration::ZERO)).await;
    let first = trial
        .claims(ids[0], HELD, "the event before one that was snoozed")
        .await;
    let second = trial.hands_over(&first, &Settlement::Handled, ids[1]).await;
    let last = trial
        .hands_over(&second, &Settlement::Handled, ids[3])
        .await;
    trial
        .replaces(&last, &ids[2..3], "one that is retried")
        .await;
}

/// An event that is retried is replaced when it is due, and its history stays with it. So is one that failed and was
/// snoozed then. The newer one begins anew.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn retried_events_are_replaced<H: Harness>(harness: &H) {
    let trial = Trial::collapsing(harness).await;
    for failures in [&[retry(SHORT)][..], &[retry(Duration::ZERO), snooze(SHORT)]] {
        let ids = trial.line(lane(), 1).await;
        let mut taken = trial.claims(ids[0], HELD, "the first event").await;
        let line = taken.lane.unwrap();
        let mut behind = Vec::new();
        for (at, failure) in failures.iter().enumerate() {
            let is_last = at + 1 == failures.len();
            if is_last {
                behind = trial.line(line, 2).await;
            }
            trial
                .hands_nothing_over(&taken, failure, "the lane waits")
                .await;
            if !is_last {
                taken = trial
                    .claims(ids[0], HELD, "the event that is retried")
                    .await;
            }
        }
        trial.nothing("the lane waits").await;
        let newest = trial.claims(behind[1], HELD, "the newest event").await;
        assert_attempt(&newest, 0, 0, "another one was retried");
        trial
            .replaces(&newest, &[ids[0], behind[0]], "the earlier ones")
            .await;
        let record = trial.record(ids[0]).await;
        assert_eq!(record.summary.failures, 1, "the failures");
        let outcomes = record
            .failures
            .iter()
            .map(|past| past.failure.outcome.as_str());
        assert_eq!(outcomes.collect::<Vec<_>>(), ["no-luck", "collapsed"]);
        trial
            .refuses(&taken.lease, "the lease of an event that was replaced")
            .await;
        trial.settle(&newest, &Settlement::Handled).await;
    }
}

/// When the lease of the newest event expires, it is handed over again, or one that is newer still. What has crashed is a
/// suspect, and is replaced as others are.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn newest_events_return_after_crashes<H: Harness>(harness: &H) {
    let trial = Trial::collapsing(harness).await;
    let ids = trial.line(lane(), 3).await;
    let lost = trial.claims(ids[2], SHORT, "the newest event").await;
    sleep(2 * SHORT).await;
    let again = trial.claims(ids[2], HELD, "the newest event").await;
    assert_attempt(&again, 0, 1, "a crash");
    assert_eq!(again.collapsed, 0, "events were replaced before");
    trial.refuses(&lost.lease, "a lease that was lost").await;

    let behind = trial.line(again.lane.unwrap(), 2).await;
    assert_eq!(trial.extend(&[again.lease], SHORT).await, [true], "held");
    sleep(2 * SHORT).await;
    let nothing = trial.claim(HELD, 1, 0).await.events;
    assert!(
        nothing.is_empty(),
        "the lane waits for a suspect: {nothing:?}"
    );
    let newer = trial.claims(behind[1], HELD, "a newer event").await;
    assert_attempt(&newer, 0, 0, "another one crashed");
    trial
        .replaces(&newer, &[ids[2], behind[0]], "the earlier ones")
        .await;
    trial
        .refuses(&again.lease, "the lease of an event that was replaced")
        .await;

    // One whose lease has expired can still be settled, until it is replaced.
    let ids = trial.line(lane(), 1).await;
    let late = trial.claims(ids[0], SHORT, "an event").await;
    let behind = trial.line(late.lane.unwrap(), 1).await;
    sleep(2 * SHORT).await;
    trial
        .hands_over(&late, &Settlement::Handled, behind[0])
        .await;
}

/// Workers on several handles that accept, claim and settle at the same time: each event is handed over, or replaced by a
/// later one of its lane that is handed over in the end, and those of a lane are handed over in their order.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn workers_collapse_together<H: Harness>(harness: &H) {
    const LANES: usize = 3;
    const EVENTS: usize = 30;
    const WORKERS: usize = 3;

    let trial = Trial::collapsing(harness).await;
    let lanes: Vec<_> = (0..LANES).map(|_| lane()).collect();
    let seen: Arc<Mutex<Seen>> = Arc::default();
    let give_up = Instant::now() + 2 * PATIENCE;
    let handles = trial.handles(harness, WORKERS).await.into_iter();
    let workers = handles.map(|handle| {
        let (seen, lanes) = (Arc::clone(&seen), lanes.clone());
        tokio::spawn(async move {
            let mut accepted = Vec::new();
            loop {
                for lane in &lanes {
                    if accepted.len() < EVENTS {
                        accepted.push((*lane, handle.accept(handle.in_lane(*lane)).await));
                    }
                }
                let mut next = handle.try_claim(HELD).await;
                while let Some(taken) = next {
                    lock(&seen).note(&taken);
                    tokio::task::yield_now().await;
                    next = handle.settle_and_take(&taken, &Settlement::Handled).await;
                }
                let count = lock(&seen).count();
                if count == WORKERS * EVENTS {
                    return accepted;
                }
                let is_late = Instant::now() > give_up;
                assert!(!is_late, "{count} events were handed over or replaced");
                sleep(SHORT / 40).await;
            }
        })
    });
    let accepted: Vec<_> = joined(workers.collect()).await;
    let handed = std::mem::take(&mut lock(&seen).handed);
    // What was accepted at one time has no order.
    for (accepted, (lane, handed)) in accepted
        .iter()
        .flat_map(|it| handed.iter().map(move |of| (it, of)))
    {
        let mut of_one = handed.clone();
        of_one.retain(|id| accepted.contains(&(*lane, *id)));
        assert!(of_one.is_sorted(), "out of order: {of_one:?}");
    }
    let all: HashSet<_> = handed.values().flatten().copied().collect();
    for (lane, mut id) in accepted.into_iter().flatten() {
        while let Some(into) = trial.replaced(id).await {
            assert!(into > id, "event {id} was replaced by {into}");
            id = into;
        }
        trial.is(id, EventState::Handled, "an event").await;
        assert!(
            all.contains(&id),
            "event {id} of {lane:?} was not handed over"
        );
    }
}

/// What workers were handed over, in the order of each lane, and how many other events these replaced.
#[derive(Default)]
struct Seen {
    handed: HashMap<Lane, Vec<EventId>>,
    replaced: usize,
}

impl Seen {
    fn note(&mut self, taken: &TakenEvent) {
        let lane = self.handed.entry(taken.lane.unwrap()).or_default();
        lane.push(taken.lease.id);
        self.replaced += taken.collapsed as usize;
    }

    fn count(&self) -> usize {
        self.handed.values().map(Vec::len).sum::<usize>() + self.replaced
    }
}
