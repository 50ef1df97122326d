//! Operations that concern all events. Each of these rules runs alone.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::make::{chat, key, lane};
use super::steps::{Trial, ok};
use super::{HELD, Harness, PATIENCE, RETAIN, SHORT};
use tower_webhook::RawDelivery;
use tower_webhook::inbox::internal::{NewEvent, Settled, Settlement};
use tower_webhook::inbox::{By, Change, EventState, Scope};

use support::queue::{Calls, dead, failure, retry};

/// Who pauses, and why.
const NOTE: &str = "ada: the CRM's \"caf\u{e9}\" is down";

/// While everything is paused, no operation takes an event. Events are still accepted, and attempts in progress
/// continue. The pauses of single kinds are independent of it, and listed behind it by their names.
///
/// # Panics
///
/// When the rule is broken, or the queue fails. Everything may stay paused then.
pub(crate) async fn pause_stops_everything<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let other = &trial.handles(harness, 1).await[0];
    let mut paused = [trial.fresh(), trial.fresh()];
    paused.sort_by(|one, other| one.kind.cmp(&other.kind));
    let pause = async |everything: bool| {
        trial.pause(Scope::Everything, everything).await;
        sleep(Duration::from_secs(1) + SHORT / 2).await;
        let stats = ok(other.queue.stats().await, "stats");
        assert_eq!(
            stats.is_paused(),
            everything,
            "whether everything is paused"
        );
        let mut pauses = stats.pauses;
        for pause in &pauses {
            let age = stats.at.duration_since(pause.since).unwrap_or_default();
            assert!(age < HELD, "a pause since {:?}", pause.since);
        }
        let of_rule = [&paused[0], &paused[1]].map(|paused| Scope::from(paused.kind.clone()));
        pauses.retain(|pause| pause.of == Scope::Everything || of_rule.contains(&pause.of));
        let notes: Vec<_> = pauses
            .iter()
            .map(|pause| (&pause.of, &*pause.note))
            .collect();
        let of_all = everything.then_some((&Scope::Everything, ""));
        let of_kinds = of_rule.iter().map(|of| (of, NOTE));
        let expected: Vec<_> = of_all.into_iter().chain(of_kinds).collect();
        assert_eq!(notes, expected, "what is paused, and why");
    };
    let by = By::default();
    for paused in paused.iter().rev() {
        let of = paused.kind.clone().into();
        let made = trial.queue.pause(&of, Some(NOTE), &by);
        ok(made.await, "pause");
    }
    let (lane, settled) = (lane(), trial.taken(trial.event(), HELD).await);
    trial.settle(&settled, &Settlement::Handled).await;
    let taken = trial.taken(trial.in_lane(lane), HELD).await;
    let next = trial.accept(trial.in_lane(lane)).await;
    trial.taken(trial.event(), SHORT).await;

    pause(true).await;
    other.nothing("everything is paused").await;
    trial
        .redrive(settled.lease.id, Change::Made, "an event that was handled")
        .await;
    other.not_taken(trial.event(), "everything is paused").await;
    assert_eq!(
        trial.extend(&[taken.lease], HELD).await,
        [true],
        "whether a lease was held"
    );
    trial
        .hands_nothing_over(&taken, &Settlement::Handled, "everything is paused")
        .await;
    trial
        .is(
            taken.lease.id,
            EventState::Handled,
            "an event that was handled during a pause",
        )
        .await;
    trial.nothing("everything is paused").await;
    trial.pause(trial.kind.clone(), false).await;
    sleep(Duration::from_secs(1) + SHORT / 2).await;
    trial.nothing("everything is paused").await;

    pause(false).await;
    let found = other.claim(HELD, 8, 8).await.events;
    assert_eq!(found.len(), 4, "the events that were taken after a pause");
    assert!(
        found.iter().any(|taken| taken.lease.id == next),
        "the next event of the lane"
    );
    for paused in &paused {
        paused.not_taken(paused.event(), "its kind is paused").await;
        trial.pause(paused.kind.clone(), false).await;
    }
}

/// A purge deletes bodies of events that were handled or ignored at least `keep_bodies` ago, and no others, also when
/// they were settled after their retention. Their keys stay known, and they cannot be redriven. An event that was
/// redriven in time keeps its body while it is unsettled.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn bodies_are_deleted<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let other = &trial.handles(harness, 1).await[0];
    let (mut deleted, mut kept) = (Vec::new(), Vec::new());
    for settlement in [
        Some(Settlement::Handled),
        Some(Settlement::Ignored),
        Some(Settlement::Discarded(failure("discarded"))),
        Some(dead(false)),
        Some(dead(true)),
        Some(retry(HELD)),
        None,
    ] {
        let known = key();
        let event = NewEvent {
            lane: Some(lane()),
            ..trial.with_key(&known, "{}")
        };
        let taken = trial.taken(event, HELD).await;
        if let Some(settlement) = &settlement {
            trial.settle(&taken, settlement).await;
        }
        match settlement {
            Some(Settlement::Handled | Settlement::Ignored) => {
                deleted.push((taken.lease.id, known));
            }
            _ => kept.push((taken.lease.id, known)),
        }
    }
    let redriven = trial.taken(trial.event(), HELD).await;
    trial.settle(&redriven, &Settlement::Handled).await;
    trial
        .redrive(redriven.lease.id, Change::Made, "an event that was handled")
        .await;

    let late = NewEvent {
        retain: Duration::ZERO,
        ..trial.event()
    };
    let late = trial.taken(late, HELD).await;
    trial.settle(&late, &Settlement::Handled).await;
    sleep(SHORT / 4).await;
    other.purge(HELD).await;
    assert!(
        trial.record(late.lease.id).await.body.is_some(),
        "a body was deleted with its retention, before its time"
    );
    for (id, _) in deleted.iter().chain(&kept) {
        assert!(
            trial.record(*id).await.body.is_some(),
            "a body was deleted before its time"
        );
    }
    sleep(2 * SHORT).await;
    other.purge(SHORT).await;
    for (id, known) in &deleted {
        let record = trial.record(*id).await;
        assert!(record.body.is_none(), "a body was not deleted");
        assert!(
            !record.summary.state.is_unsettled(),
            "an event changed with its body"
        );
        trial
            .duplicate(trial.with_key(known, "{}"), true, "a key without its body")
            .await;
        trial
            .redrive(*id, Change::WithoutBody, "an event without its body")
            .await;
    }
    for (id, known) in &kept {
        assert!(
            trial.record(*id).await.body.is_some(),
            "a body was deleted that is needed"
        );
        trial
            .duplicate(trial.with_key(known, "{}"), true, "a key with its body")
            .await;
    }
    let again = trial
        .claims(redriven.lease.id, HELD, "an event that was redriven")
        .await;
    assert_eq!(
        again.delivery.body(),
        redriven.delivery.body(),
        "the body of an event that was redriven"
    );

    trial.settle(&again, &Settlement::Handled).await;
    other.purge(Duration::ZERO).await;
    assert!(
        trial.record(again.lease.id).await.body.is_none(),
        "a body was kept for no time"
    );
    // Bodies and all, dead letters stay until a person gives them up.
    for (id, _) in &kept {
        let record = trial.record(*id).await;
        assert!(record.body.is_some(), "a body was deleted that is needed");
        if record.summary.state == EventState::Dead {
            trial.redrive(*id, Change::Made, "a dead letter").await;
        }
    }
}

/// The size grows when events are accepted.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn size_grows<H: Harness>(harness: &H) {
    const BODIES: u32 = 4;
    const LENGTH: u32 = 1 << 20;

    let trial = Trial::open(harness).await;
    let before = ok(trial.queue.size().await, "size");
    for body in 0..BODIES {
        // Hardly to be compressed.
        let mut seed = u64::from(body) + 1;
        let bytes = (0..LENGTH).map(|_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 56) as u8
        });
        let event = NewEvent {
            delivery: RawDelivery::new(trial.kind.clone(), bytes.collect::<Vec<_>>()),
            retain: RETAIN,
            ..trial.event()
        };
        trial.accept(event).await;
    }
    let expected = before + u64::from(BODIES * LENGTH) / 2;
    let give_up = Instant::now() + PATIENCE;
    while ok(trial.queue.size().await, "size") < expected {
        assert!(
            Instant::now() < give_up,
            "{BODIES} bodies of {LENGTH} bytes were accepted, and the size stays below {expected} bytes"
        );
        sleep(SHORT).await;
    }
}

/// A duplicate of another kind leaves nothing of that kind, and a purge deletes a kind whose events are deleted.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn kinds_end_with_their_events<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let forged = trial.fresh();
    let is_counted = async || {
        let stats = ok(trial.queue.stats().await, "stats");
        stats.kinds.iter().any(|stats| stats.kind == forged.kind)
    };
    let known = key();
    trial.accept(trial.with_key(&known, "{}")).await;
    let replay = forged.with_key(&known, "{}");
    forged.duplicate(replay, true, "a replay").await;
    assert!(!is_counted().await, "a duplicate made a kind");

    for paused in [true, false] {
        trial.pause(forged.kind.clone(), paused).await;
    }
    let event = NewEvent {
        retain: Duration::ZERO,
        ..forged.event()
    };
    let taken = forged.taken(event, HELD).await;
    assert!(is_counted().await, "a kind has no place in the stats");
    let discarded = Settlement::Discarded(failure("discarded"));
    forged.settle(&taken, &discarded).await;
    // A queue may keep the newest event.
    trial.accept(trial.event()).await;
    let give_up = Instant::now() + PATIENCE;
    while is_counted().await {
        assert!(Instant::now() < give_up, "a kind outlives its events");
        sleep(SHORT / 20).await;
        trial.purge(HELD).await;
    }
    forged.taken(forged.event(), HELD).await;
    assert!(is_counted().await, "a kind that returns has no place");
}

/// Forgetting a chat also deletes the failures of events whose bodies were purged before, as their texts may quote
/// them.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn failures_are_forgotten<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let chat = chat();
    let event = NewEvent {
        chat: Some(chat.clone()),
        ..trial.event()
    };
    let taken = trial.taken(event, HELD).await;
    let id = taken.lease.id;
    trial.settle(&taken, &retry(Duration::ZERO)).await;
    let again = trial.claims(id, HELD, "an event that is retried").await;
    trial.settle(&again, &Settlement::Handled).await;
    sleep(SHORT / 4).await;
    trial.purge(Duration::ZERO).await;
    let record = trial.record(id).await;
    assert!(record.body.is_none(), "a body was kept for no time");
    assert_eq!(record.failures.len(), 1, "failures that a purge keeps");
    let deleted = ok(
        trial.queue.forget_all(&chat, &By::default()).await,
        "forget",
    );
    assert_eq!(deleted, 0, "bodies of a chat whose bodies were purged");
    let left = trial.record(id).await.failures.len();
    assert_eq!(left, 0, "failures of a chat that was forgotten");
}

/// The number of an event is not used again, even when the newest events were deleted.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn numbers_are_used_once<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let mut last = None;
    for _ in 0..3 {
        let event = NewEvent {
            retain: Duration::ZERO,
            ..trial.event()
        };
        let taken = trial.taken(event, HELD).await;
        let id = taken.lease.id;
        assert!(
            last.replace(id) < Some(id),
            "numbers do not increase: {last:?}, then {id}"
        );
        trial.settle(&taken, &Settlement::Handled).await;
        sleep(SHORT / 4).await;
        trial.purge(Duration::ZERO).await;
        let found = ok(trial.queue.get(id).await, "get");
        assert!(found.is_none(), "an event was not purged");
        let purged = "an event that was purged";
        trial.redrive(id, Change::NotFound, purged).await;
        trial.discard(id, Change::NotFound, purged).await;
        // An old lease ends no other event.
        let other = trial.taken(trial.event(), HELD).await;
        assert!(other.lease.id > id, "the number {id} was used again");
        let settled = trial
            .queue
            .settle(&taken.lease, &Settlement::Handled, None)
            .await;
        assert!(
            matches!(ok(settled, "settle"), Settled::Lost),
            "a lease of an event that was purged"
        );
        assert_eq!(
            trial.extend(&[taken.lease], HELD).await,
            [false],
            "a lease of an event that was purged"
        );
        last = Some(other.lease.id);
        trial.settle(&other, &Settlement::Handled).await;
    }
}
