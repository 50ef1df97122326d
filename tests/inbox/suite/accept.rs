//! Accepting: once, unchanged, and leased when possible.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::Barrier;
use tokio::time::sleep;

use super::make::{chat, endings, key, key_of, kind, lane};
use super::steps::{Trial, abandon, joined, ok};
use super::{HELD, Harness, RETAIN, RIVALS, SHORT};
use tower_webhook::inbox::internal::{Accepted, Kinds, NewEvent, Settlement};
use tower_webhook::inbox::{Change, EventState};
use tower_webhook::store::EventKey;
use tower_webhook::{IdempotencyKey, RawDelivery};

use support::HOUR;
use support::queue::{Calls, dead, failure, retry};

/// A key is accepted once, on every handle and in every state of its event, even if a duplicate has another body. The
/// duplicate changes nothing. An event without a key is accepted each time. Numbers increase.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn keys_are_accepted_once<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let again = &trial.handles(harness, 1).await[0];
    let mut last = None;

    let known = key();
    let id = trial.accept(trial.with_key(&known, "{}")).await;
    for handle in [&trial, &**again] {
        let same = handle.with_key(&known, "{}");
        handle
            .duplicate(same, true, "a key with the same body")
            .await;
        let other = handle.with_key(&known, "{\"id\":1}");
        handle
            .duplicate(other, false, "a key with another body")
            .await;
    }
    let taken = trial
        .claims(id, HELD, "an event that was delivered again")
        .await;
    assert_eq!(&**taken.delivery.body(), b"{}", "the body that stands");
    trial.nothing("a key was accepted once").await;

    for settlement in endings() {
        let trial = trial.fresh();
        let known = key();
        let taken = trial.taken(trial.with_key(&known, "{}"), HELD).await;
        assert!(
            last.replace(taken.lease.id) < Some(taken.lease.id),
            "numbers do not increase"
        );
        let what = "a key that is in progress";
        again
            .duplicate(trial.with_key(&known, "{}"), true, what)
            .await;
        trial.settle(&taken, &settlement).await;
        let what = format!("a key after {settlement:?}");
        again
            .duplicate(trial.with_key(&known, "{}"), true, &what)
            .await;
        again
            .duplicate(trial.with_key(&known, "{\"id\":1}"), false, &what)
            .await;
    }

    let trial = trial.fresh();
    for handle in [&trial, &**again, &trial] {
        let id = handle.accept(trial.event()).await;
        assert!(last.replace(id) < Some(id), "numbers do not increase");
    }
    let events = trial.claim(HELD, 5, 0).await.events;
    assert_eq!(events.len(), 3, "events without a key that were accepted");
}

/// When many calls accept one key at the same time, over several handles, exactly one stores the event, and all others
/// return a duplicate. The event is taken once.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn one_accept_wins<H: Harness>(harness: &H) {
    for takes in [false, true] {
        let trial = Trial::open(harness).await;
        let handles = trial.handles(harness, 4).await;
        let event = trial.with_key(&key(), "{}");
        let start = Arc::new(Barrier::new(RIVALS));
        let accepts = (0..RIVALS).map(|at| {
            let (handle, start) = (Arc::clone(&handles[at % handles.len()]), Arc::clone(&start));
            let event = event.clone();
            tokio::spawn(async move {
                let take = handle.take(HELD);
                start.wait().await;
                ok(
                    handle.queue.accept_one(event, takes.then_some(&take)).await,
                    "accept",
                )
            })
        });
        let mut new = Vec::new();
        for accepted in joined(accepts.collect()).await {
            match accepted {
                Accepted::New { id, taken } => new.push((id, taken)),
                Accepted::Duplicate { same_body } => assert!(same_body, "`same_body`"),
                other => panic!("a key that is new was not accepted: {other:?}"),
            }
        }
        assert_eq!(
            new.len(),
            1,
            "of {RIVALS} accepts of one key at one time, this many stored it"
        );
        let (id, taken) = new.remove(0);
        assert_eq!(taken.is_some(), takes, "whether the event was taken");
        if !takes {
            trial.claims(id, HELD, "the event that was stored").await;
        }
        trial.nothing("the event was stored and taken once").await;
    }
}

/// With a guard, a body that was accepted is refused under another key. A refused event is not stored, so neither its
/// key nor its body is known.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn bodies_are_guarded<H: Harness>(harness: &H) {
    const BODIES: [&str; 3] = ["{\"id\":1}", "{\"id\":2}", "{\"id\":3}"];

    let trial = Trial::open(harness).await;
    let namespace = chat();
    let keys = [key(), key(), key()];
    let event = |at: usize, body: usize| {
        let (key, body) = (&keys[at], BODIES[body]);
        let guard = EventKey::new(
            &format!("{namespace} bodies"),
            body.as_bytes(),
            key.as_bytes(),
        );
        NewEvent {
            key: Some(EventKey::new(&namespace, key.as_bytes(), body.as_bytes())),
            guard: Some(guard),
            ..trial.with_key(key, body)
        }
    };
    let refused = async |event: NewEvent| {
        let take = trial.take(HELD);
        match ok(trial.queue.accept_one(event, Some(&take)).await, "accept") {
            Accepted::BodyReplayed => {}
            other => panic!("a body was accepted under another key: {other:?}"),
        }
    };
    let first = trial.taken(event(0, 0), HELD).await;
    trial
        .duplicate(event(0, 0), true, "the key with its body")
        .await;
    trial
        .duplicate(event(0, 1), false, "the key with another body")
        .await;
    refused(event(1, 0)).await;
    trial.settle(&first, &Settlement::Handled).await;
    refused(event(1, 0)).await;
    // Neither a refused key nor the other body of a duplicate is remembered.
    let second = trial.accept(event(1, 1)).await;
    refused(event(2, 1)).await;
    let third = trial.accept(event(2, 2)).await;
    trial
        .all_of(&[second, third], HELD, "those that were accepted")
        .await;
    trial.nothing("refused events are not stored").await;

    let unguarded = NewEvent {
        guard: None,
        ..event(0, 0)
    };
    let unguarded = NewEvent {
        key: Some(EventKey::new(
            &namespace,
            chat().as_bytes(),
            BODIES[0].as_bytes(),
        )),
        ..unguarded
    };
    trial.accept(unguarded).await;
}

/// A key is forgotten after its retention, but never while its event is unsettled or a dead letter, however often the
/// queue is purged. A settled event is deleted together with its key; other events are not deleted.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn keys_are_remembered<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let (mut settled, mut kept) = (Vec::new(), Vec::new());
    let event = |key: &IdempotencyKey, dead| NewEvent {
        retain: SHORT,
        dead,
        ..trial.with_key(key, "{}")
    };
    let (waiting, arrived_dead, held) = (key(), key(), key());
    let id = trial.accept(event(&waiting, None)).await;
    kept.push((trial.fresh(), id, waiting));
    let id = trial
        .accept(event(&arrived_dead, Some(failure("dead"))))
        .await;
    let failures = trial.record(id).await.summary.failures;
    assert_eq!(failures, 1, "failures of a dead letter at its acceptance");
    kept.push((trial.fresh(), id, arrived_dead));
    let id = trial.taken(event(&held, None), HELD).await.lease.id;
    kept.push((trial.fresh(), id, held));
    for retain in [SHORT, RETAIN] {
        for settlement in endings() {
            let trial = trial.fresh();
            let key = key();
            let event = NewEvent {
                retain,
                ..trial.with_key(&key, "{}")
            };
            let taken = trial.taken(event, HELD).await;
            trial.settle(&taken, &settlement).await;
            let place = (trial.fresh(), taken.lease.id, key);
            match settlement {
                Settlement::Handled | Settlement::Ignored | Settlement::Discarded(_)
                    if retain == SHORT =>
                {
                    settled.push(place);
                }
                _ => kept.push(place),
            }
        }
    }

    sleep(2 * SHORT).await;
    for round in 0..2 {
        for (trial, id, key) in &kept {
            let what = "a key whose event is unsettled, dead, or within its retention";
            trial.duplicate(trial.with_key(key, "{}"), true, what).await;
            trial.record(*id).await;
        }
        if round == 0 {
            trial.purge(Duration::ZERO).await;
        }
    }
    for (trial, id, key) in &settled {
        assert!(
            ok(trial.queue.get(*id).await, "get").is_none(),
            "an event was not purged"
        );
        let again = trial.taken(trial.with_key(key, "{}"), HELD).await;
        assert!(again.lease.id > *id, "a number was used again");
        trial
            .duplicate(
                trial.with_key(key, "{}"),
                true,
                "a key that was accepted anew",
            )
            .await;
    }

    // Without a purge, and after a dead letter was discarded.
    for dead_letter in [false, true] {
        let key = key();
        let taken = trial.taken(event(&key, None), HELD).await;
        match dead_letter {
            false => trial.settle(&taken, &Settlement::Handled).await,
            true => trial.settle(&taken, &dead(false)).await,
        }
        sleep(2 * SHORT).await;
        if dead_letter {
            let id = taken.lease.id;
            trial
                .duplicate(event(&key, None), true, "a dead letter after its retention")
                .await;
            trial.discard(id, Change::Made, "a dead letter").await;
        }
        trial.taken(event(&key, None), HELD).await;
    }
}

/// The delivery that is taken has the kind, key and body of the one that was accepted, for any bytes and lengths. The
/// attempt is the first one.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn deliveries_return_unchanged<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let mib: Vec<u8> = (0..1_u32 << 18)
        .flat_map(|at| at.wrapping_mul(0x9E37_79B9).to_le_bytes())
        .collect();
    let unique = chat();
    let key_of = |rest: &[u8]| Some(key_of(&[unique.as_bytes(), rest].concat()));
    let deliveries = [
        (None, vec![]),
        (key_of(b""), b"{}".to_vec()),
        (key_of(b"caf\xe9 \x80\xff\t\\"), (0..=u8::MAX).collect()),
        (key_of("caf\u{e9}".as_bytes()), vec![0]),
        (key_of(&[b'k'; 8 * 1024]), mib),
    ];
    for (key, body) in deliveries {
        for is_claimed in [false, true] {
            let delivery = RawDelivery::new(trial.kind.clone(), body.clone()).with_key(key.clone());
            let event = NewEvent {
                delivery,
                chat: Some(unique.clone()),
                ..trial.event()
            };
            let taken = match is_claimed {
                false => trial.taken(event, HELD).await,
                true => {
                    let id = trial.accept(event).await;
                    trial.claims(id, HELD, "an event that was accepted").await
                }
            };
            let delivery = &taken.delivery;
            assert_eq!(delivery.kind(), &trial.kind, "the kind");
            assert_eq!(delivery.key(), key.as_ref(), "the key");
            assert!(*delivery.body() == body, "the body of {} bytes", body.len());
            assert_eq!(delivery.attempt().map(u32::from), Some(1), "the attempt");
            assert!(!delivery.is_redriven(), "a new event is redriven");
            assert_eq!(
                (taken.failures, taken.crashes),
                (0, 0),
                "failures and crashes"
            );
            assert!(taken.tried_for.is_none(), "a new event has failed before");
            let Some(accepted_at) = delivery.accepted_at() else {
                panic!("a delivery does not know when it was accepted");
            };
            let now = SystemTime::now();
            assert!(
                accepted_at > now - HOUR && accepted_at < now + HOUR,
                "an event that was just accepted says that it was at {accepted_at:?}"
            );

            let record = trial.record(taken.lease.id).await;
            assert_eq!(record.summary.kind, trial.kind, "the kind in a record");
            assert_eq!(record.summary.key, key, "the key in a record");
            assert_eq!(
                record.summary.chat.as_ref(),
                Some(&unique),
                "the chat in a record"
            );
            assert!(
                record.body.is_some_and(|found| found == body),
                "the body in a record"
            );
            assert!(record.failures.is_empty(), "a new event has a history");
            let off = match record.summary.accepted_at.duration_since(accepted_at) {
                Ok(off) => off,
                Err(error) => error.duration(),
            };
            assert!(
                off < Duration::from_secs(1),
                "times of acceptance differ by {off:?}"
            );
        }
    }
}

/// With `take`, an event is taken when it is accepted, if it is of one of the kinds and the first one of its lane.
/// Otherwise it waits to be claimed. An event that was taken is not taken by another handle.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn accepted_events_are_taken<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let other = &trial.handles(harness, 1).await[0];
    let lane = lane();

    let alone = trial.taken(trial.event(), HELD).await;
    assert_eq!(alone.lane, None, "the lane of an event without one");
    let first = trial.taken(trial.in_lane(lane), HELD).await;
    assert_eq!(first.lane, Some(lane), "the lane of an event");
    trial
        .is(
            first.lease.id,
            EventState::InProgress,
            "an event that was taken",
        )
        .await;
    other
        .nothing("all events were taken when they were accepted")
        .await;

    let second = other
        .not_taken(trial.in_lane(lane), "its lane is busy")
        .await;
    trial
        .is(
            second,
            EventState::Waiting,
            "an event that waits for its lane",
        )
        .await;
    other.nothing("its lane is busy").await;
    trial.settle(&first, &Settlement::Handled).await;
    let third = other
        .not_taken(trial.in_lane(lane), "another event of its lane waits")
        .await;
    let second = other.claims(second, HELD, "the second event").await;
    other.settle(&second, &Settlement::Handled).await;
    let third = trial.claims(third, HELD, "the third event").await;
    trial.settle(&third, &retry(HELD)).await;
    other
        .not_taken(trial.in_lane(lane), "another event of its lane is retried")
        .await;

    let unwanted = trial.taking(Kinds::only([kind()]));
    let id = unwanted
        .not_taken(trial.event(), "its kind is not taken")
        .await;
    unwanted.nothing("its kind is not taken").await;
    trial
        .claims(id, HELD, "an event that another worker left")
        .await;
}

/// An event that is dead from the start is stored with its body and its failure. It is never taken, and no lane waits
/// for it.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn events_arrive_dead<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let (lane, key) = (lane(), key());
    let event = NewEvent {
        lane: Some(lane),
        dead: Some(failure("no JSON")),
        ..trial.with_key(&key, "no JSON")
    };
    let id = trial.not_taken(event.clone(), "it is dead").await;
    trial.nothing("the event is dead").await;
    trial
        .is(id, EventState::Dead, "an event that is dead from the start")
        .await;
    let record = trial.record(id).await;
    assert_eq!(
        record.body.as_deref(),
        Some(&b"no JSON"[..]),
        "the body of a dead letter"
    );
    let reasons: Vec<_> = record.failures.iter().map(|past| &past.failure).collect();
    assert_eq!(
        reasons,
        [&failure("no JSON")],
        "why an event is dead from the start"
    );
    trial.duplicate(event, true, "an event that is dead").await;

    trial.taken(trial.in_lane(lane), HELD).await;
    trial
        .redrive(id, Change::Made, "an event that is dead from the start")
        .await;
    let taken = trial
        .claims(id, HELD, "a dead letter that was redriven")
        .await;
    assert_eq!(
        &**taken.delivery.body(),
        b"no JSON",
        "the body of a dead letter"
    );
}

/// When the future of an accept is dropped, at any of its awaits, the event is stored or it is not: the sender's next
/// delivery is stored or is a duplicate. In both cases there is one event, which can be taken within a lease.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn abandoned_accepts_lose_nothing<H: Harness>(harness: &H) {
    const POLLS: u32 = 16;

    let trial = Trial::open(harness).await;
    let mut trials = Vec::new();
    for polls in 0..2 * POLLS {
        let trial = trial.fresh();
        let event = trial.with_key(&key(), "{}");
        let take = trial.take(SHORT);
        let take = (polls % 2 == 0).then_some(&take);
        abandon(trial.queue.accept_one(event.clone(), take), polls / 2).await;
        trials.push((trial, event));
    }
    for (trial, event) in trials {
        match ok(trial.queue.accept_one(event, None).await, "accept") {
            Accepted::New { .. } | Accepted::Duplicate { same_body: true } => {}
            other => panic!("an abandoned event was delivered again: {other:?}"),
        }
        trial
            .claimed(HELD, "an event whose accept was abandoned")
            .await;
        trial.nothing("there is one event").await;
    }
}
