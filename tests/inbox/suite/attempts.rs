//! Attempts that fail, crash, or are put off.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::make::{key, lane};
use super::steps::{Trial, assert_attempt, lasted, ok};
use super::{DRIFT, HELD, Harness, SHORT};
use tower_webhook::inbox::internal::{Kinds, NewEvent, Settlement, Take};
use tower_webhook::inbox::{Change, EventId, EventState, Page};

use support::queue::{Calls, dead, failure, outage, probe, retry, skip, snooze};

/// Failures that count increase the event's count of failures and the number of its attempt. The time since the first
/// of them is known.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn failures_are_counted<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let mut taken = trial.taken(trial.in_lane(lane()), HELD).await;
    let id = taken.lease.id;
    // An outage that a worker knows of makes no early dead letter when the next worker does not.
    for _ in 0..100 {
        trial.settle(&taken, &probe(Duration::ZERO)).await;
        taken = trial.claims(id, HELD, "an event that is probed").await;
        assert_attempt(&taken, 0, 0, "a probe");
        assert_eq!(taken.uncounted, 0, "probes are no failures of the event");
    }
    for settlement in [outage, snooze, |_| Settlement::Released] {
        trial.settle(&taken, &settlement(Duration::ZERO)).await;
        taken = trial.claims(id, HELD, "an event that is tried again").await;
        assert_attempt(&taken, 0, 0, "an attempt that does not count");
        assert_eq!(taken.uncounted, 1, "failures that do not count");
    }
    sleep(SHORT).await;
    let mut first = None;
    for failures in 1..=3 {
        let before = Instant::now();
        trial
            .settle(&taken, &[retry, skip][failures % 2](SHORT / 4))
            .await;
        first.get_or_insert((before, Instant::now()));
        let record = trial.record(id).await;
        assert_eq!(
            record.summary.state,
            EventState::Retrying,
            "the state after a failure"
        );
        assert_eq!(
            record.summary.failures as usize, failures,
            "failures in a record"
        );
        sleep(SHORT / 2).await;
        let (asked, again) = trial.claimed_at(HELD, "an event that is retried").await;
        assert_eq!(
            again.lease.id, id,
            "not the event that is retried was taken"
        );
        taken = again;
        let Some((from, until)) = first else { continue };
        let most = from.elapsed() + DRIFT;
        let least = asked.saturating_duration_since(until);
        let Some(tried_for) = taken.tried_for else {
            panic!("an event that has failed does not know for how long");
        };
        assert!(
            tried_for <= most && tried_for + SHORT / 4 + DRIFT >= least.min(most),
            "an event that failed first {least:?} to {most:?} ago is tried for {tried_for:?}"
        );
        assert_attempt(
            &taken,
            failures.try_into().unwrap_or(u32::MAX),
            0,
            "failures",
        );

        trial.settle(&taken, &outage(Duration::ZERO)).await;
        taken = trial.claims(id, HELD, "an event that is tried again").await;
        assert_attempt(
            &taken,
            failures.try_into().unwrap_or(u32::MAX),
            0,
            "an outage",
        );
        assert_eq!(
            taken.uncounted as usize,
            1 + failures,
            "failures that do not count"
        );
    }
}

/// The reasons of attempts that did not succeed are kept, oldest first, including those of attempts that do not count
/// and that of the last attempt. A reason may be any text of any length; a long one may be truncated.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn failures_are_listed<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let long = "caf\u{e9} \u{1f600} '\"\\ % ".repeat(6_000);
    let reasons = [
        "",
        "first",
        "with a nul: \0, and more",
        &long,
        "outage",
        "last",
    ];
    for last in [
        Settlement::Discarded(failure("last")),
        dead(false),
        dead(true),
    ] {
        let last = match last {
            Settlement::Dead { hold_lane, .. } => Settlement::Dead {
                failure: failure("last"),
                hold_lane,
            },
            last => last,
        };
        let mut taken = trial.taken(trial.in_lane(lane()), HELD).await;
        let id = taken.lease.id;
        for reason in &reasons[..5] {
            trial.settle(&taken, &snooze(Duration::ZERO)).await;
            taken = trial.claims(id, HELD, "an event that was put off").await;
            let settlement = Settlement::Retry {
                after: Duration::ZERO,
                failure: Some(failure(*reason)),
                counts: *reason != "outage",
                is_slowed: false,
                blocks_lane: true,
            };
            trial.settle(&taken, &settlement).await;
            taken = trial.claims(id, HELD, "an event that is retried").await;
        }
        trial.settle(&taken, &last).await;
        for round in 0..2 {
            let past = trial.record(id).await.failures;
            assert_eq!(
                past.len(),
                reasons.len(),
                "failures in a record, of round {round}"
            );
            for (past, reason) in past.iter().zip(reasons) {
                let found = &past.failure;
                assert_eq!(found.outcome, "no-luck", "the outcome of a failure");
                match reason {
                    _ if reason.contains('\0') => assert!(
                        found.reason.starts_with("with a nul")
                            && found.reason.ends_with("and more"),
                        "the reason {reason:?} became {:?}",
                        found.reason
                    ),
                    _ if reason.len() > 1024 => {
                        let beginning: String = reason.chars().take(512).collect();
                        assert!(
                            found.reason.starts_with(&beginning),
                            "the beginning of a long reason"
                        );
                    }
                    _ => assert_eq!(found.reason, reason, "the reason of a failure"),
                }
            }
            assert!(
                past.is_sorted_by_key(|past| past.at),
                "failures are not listed by time"
            );
            if round == 0 {
                // What was is not forgotten with it.
                trial.redrive(id, Change::Made, "a settled event").await;
                let taken = trial.claims(id, HELD, "an event that was redriven").await;
                trial.settle(&taken, &Settlement::Handled).await;
            }
        }
    }
}

/// An event is not taken before its delay has passed. A claim returns the time until a delay has passed or a lease
/// expires: never a longer time, zero if more events are due now, and `None` if there are none.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn delays_are_kept<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let other = &trial.handles(harness, 1).await[0];
    let next_due = async |limit: usize| other.claim(HELD, limit, 8).await.next_due;
    let soon = |found: Option<Duration>, most: Duration, what: &str| match found {
        Some(found) => assert!(
            found > Duration::ZERO && found <= most + DRIFT,
            "{what} is in {most:?} at most, and a claim returned {found:?}"
        ),
        None => panic!("{what} is in {most:?} at most, and a claim does not know"),
    };
    assert_eq!(
        next_due(8).await,
        None,
        "the next time when there are no events"
    );
    let first = trial.accept(trial.event()).await;
    sleep(SHORT / 20).await;
    let ids = [first, trial.accept(trial.in_lane(lane())).await];
    assert_eq!(
        next_due(0).await,
        Some(Duration::ZERO),
        "the next time when there is more now"
    );
    let first = trial.claim(HELD, 1, 0).await;
    assert_eq!(
        first.events[0].lease.id, ids[0],
        "the event that was accepted first"
    );
    assert_eq!(
        first.next_due,
        Some(Duration::ZERO),
        "the next time when there is more now"
    );
    let second = trial.claims(ids[1], HELD, "the second event").await;
    soon(next_due(8).await, HELD, "the end of a lease");
    for settlement in [retry, skip, outage, snooze] {
        let trial = trial.fresh();
        for event in [trial.event(), trial.in_lane(lane())] {
            let taken = trial.taken(event, HELD).await;
            let id = taken.lease.id;
            trial.settle(&taken, &settlement(HELD)).await;
            let claims = trial.claim(HELD, 8, 8).await;
            assert!(
                claims.events.is_empty(),
                "an event was taken before its delay had passed"
            );
            soon(claims.next_due, HELD, "the end of a delay");
            let summary = trial.record(id).await.summary;
            let Some(due_at) = summary.due_at else {
                panic!("an event with a delay does not know when it is due");
            };
            let after = due_at
                .duration_since(summary.accepted_at)
                .unwrap_or_default();
            assert!(
                after + DRIFT >= HELD && after < 2 * HELD,
                "an event is due {after:?} after its acceptance instead of {HELD:?}"
            );
            trial
                .discard(id, Change::Made, "an event that is retried")
                .await;
            assert_eq!(
                trial.claim(HELD, 8, 8).await.next_due,
                None,
                "after the last one was discarded"
            );

            let taken = trial.taken(trial.in_lane(lane()), HELD).await;
            let began = Instant::now();
            trial.settle(&taken, &settlement(SHORT)).await;
            let again = trial
                .claims(taken.lease.id, HELD, "an event that is due")
                .await;
            lasted(began, "a delay");
            trial.settle(&again, &Settlement::Handled).await;
            trial.nothing("all is done").await;
        }
    }
    for taken in [&first.events[0], &second] {
        trial.settle(taken, &Settlement::Handled).await;
    }
    assert_eq!(
        next_due(8).await,
        None,
        "the next time when all events are handled"
    );
}

/// A claim takes the events that have been due for longest, of any kind, and no more than its limit.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn first_due_is_taken_first<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let second_kind = trial.fresh();
    let both = trial.taking(Kinds::only([trial.kind.clone(), second_kind.kind.clone()]));
    // Of each event, the earliest and the latest time at which it may be due.
    let mut due = HashMap::new();
    for (at, delay) in [4, 2, 3, 1].into_iter().enumerate() {
        let event = match at % 2 {
            0 => trial.event(),
            _ => second_kind.in_lane(lane()),
        };
        let taken = both.taken(event, HELD).await;
        let earliest = Instant::now() + delay * SHORT;
        both.settle(&taken, &retry(delay * SHORT)).await;
        let latest = Instant::now() + delay * SHORT + DRIFT;
        due.insert(taken.lease.id, (earliest, latest));
    }
    let earliest = Instant::now();
    let id = both.accept(trial.event()).await;
    due.insert(id, (earliest, Instant::now() + DRIFT));
    let last = due.values().map(|(_, latest)| *latest).max();
    sleep_until(last.unwrap_or(earliest)).await;
    assert!(
        both.claim(HELD, 0, 8).await.events.is_empty(),
        "a claim of no events took one"
    );
    let mut claims = both.claim(HELD, 2, 8).await.events;
    claims.sort_unstable_by_key(|taken| due[&taken.lease.id]);
    let mut found: Vec<_> = claims.iter().map(|taken| taken.lease.id).collect();
    for _ in 2..5 {
        found.push(both.claimed(HELD, "an event that is due").await.lease.id);
    }
    for (at, id) in found.iter().enumerate() {
        let (earliest, _) = due[id];
        let is_before = |later: &EventId| earliest <= due[later].1;
        assert!(
            found[at..].iter().all(is_before),
            "the order in which events are due: {found:?} of {due:?}"
        );
    }
}

/// One event is taken before those that have been due for longer, if it can be taken at all.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn wanted_events_are_taken<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let take = async |id, take: &Take| ok(trial.queue.take(id, take).await, "take");
    let held = trial.take(HELD);
    let not_taken = async |id, why: &str| {
        let taken = take(id, &held).await;
        assert!(taken.is_none(), "an event was taken although {why}");
    };
    let line = trial.line(lane(), 2).await;
    let (first, second) = (line[0], line[1]);
    let last = trial.accept(trial.event()).await;
    not_taken(second, "it stands behind another one").await;
    not_taken(EventId(i64::MAX), "it does not exist").await;
    let other = trial.fresh().take(HELD);
    assert!(take(last, &other).await.is_none(), "its kind is another");
    trial.pause(trial.kind.clone(), true).await;
    not_taken(last, "its kind is paused").await;
    trial.pause(trial.kind.clone(), false).await;

    let taken = take(last, &held).await.expect("an event that is due");
    assert_eq!(taken.lease.id, last, "the event that was taken");
    not_taken(last, "it is in progress").await;
    trial.settle(&taken, &retry(HELD)).await;
    not_taken(last, "it is not due").await;
    trial
        .redrive(last, Change::Made, "an event that is retried")
        .await;
    let taken = take(last, &held).await.expect("an event that is due again");
    assert_attempt(&taken, 1, 0, "a failure");
    trial.settle(&taken, &dead(false)).await;
    not_taken(last, "it is dead").await;

    let taken = trial
        .claims(first, HELD, "the event that is first due")
        .await;
    not_taken(second, "the first one of its lane is in progress").await;
    trial.settle(&taken, &Settlement::Handled).await;
    let taken = take(second, &trial.take(SHORT))
        .await
        .expect("the next of its lane");
    assert_eq!(taken.lease.id, second, "the event that was taken");
    // A suspect, too.
    let again = trial.claims(second, HELD, "an event that crashed").await;
    trial.settle(&again, &Settlement::Released).await;
    let again = take(second, &held).await.expect("an event that crashed");
    assert_attempt(&again, 0, 1, "a crash");
    trial.settle(&again, &Settlement::Handled).await;
}

/// Durations and limits may have any value, from zero to the maximum of their types.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn durations_have_no_limits<H: Harness>(harness: &H) {
    const INSTANT: Duration = Duration::from_nanos(1);

    let trial = Trial::open(harness).await;
    for long in [Duration::from_secs(u32::MAX.into()), Duration::MAX] {
        let event = |key| NewEvent {
            retain: long,
            ..trial.with_key(key, "{}")
        };
        let known = key();
        let taken = trial.taken(event(&known), long).await;
        assert_eq!(
            trial.extend(&[taken.lease], long).await,
            [true],
            "whether a lease was held"
        );
        trial.nothing("a lease is very long").await;
        trial.settle(&taken, &retry(long)).await;
        trial.nothing("a delay is very long").await;
        trial.record(taken.lease.id).await;
        trial
            .redrive(
                taken.lease.id,
                Change::Made,
                "an event with a very long delay",
            )
            .await;
        let taken = trial
            .claims(taken.lease.id, long, "an event that was redriven")
            .await;
        trial.settle(&taken, &Settlement::Handled).await;
        trial.purge(long).await;
        assert!(
            trial.record(taken.lease.id).await.body.is_some(),
            "a body was deleted early"
        );
        trial
            .duplicate(event(&known), true, "a key with a very long retention")
            .await;
    }
    for short in [Duration::ZERO, INSTANT] {
        let trial = trial.fresh();
        let lane = lane();
        let event = NewEvent {
            retain: short,
            ..trial.in_lane(lane)
        };
        let taken = trial.taken(event, short).await;
        let id = taken.lease.id;
        let again = trial
            .claims(id, HELD, "an event whose lease was very short")
            .await;
        trial
            .refuses(&taken.lease, "an attempt whose event was taken again")
            .await;
        trial.extend(&[again.lease], short).await;
        let again = trial
            .claims(id, HELD, "an event whose lease was very short")
            .await;
        assert_eq!(again.crashes, 2, "crashes after very short leases");
        trial.settle(&again, &skip(short)).await;
        let again = trial
            .claims(id, HELD, "an event whose delay was very short")
            .await;
        trial.settle(&again, &Settlement::Handled).await;
    }
    let ids = [
        trial.accept(trial.event()).await,
        trial.accept(trial.event()).await,
    ];
    let page = Page::oldest(usize::MAX);
    let filter = trial.filter().states([EventState::Waiting]);
    let listed = ok(trial.queue.list(&filter, page).await, "list").events;
    assert_eq!(listed.len(), 2, "the events of the largest page");
    let claims = trial.claim(HELD, usize::MAX, usize::MAX).await;
    assert_eq!(
        claims.events.len(),
        ids.len(),
        "the events of the largest claim"
    );
}
