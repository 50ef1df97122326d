//! Changes of all events that match: each step leads on from where the last one led.

use super::make::{chat, lane};
use super::steps::{Trial, ok};
use super::{HELD, Harness};
use tower_webhook::inbox::internal::{BulkStep, NewBulk, Settlement};
use tower_webhook::inbox::{
    Action, ActionKind, Bulk, BulkState, By, Change, EventId, EventState, Filter, Page, Queue,
    Which,
};

use support::queue::{Calls, dead, retry, skip};

fn discards(chat: Option<&str>) -> NewBulk {
    NewBulk {
        kind: ActionKind::Discard,
        about: "state=dead".to_owned(),
        chat: chat.map(str::to_owned),
        rate: 200,
    }
}

fn step(from: EventId, events: &[EventId]) -> BulkStep {
    BulkStep {
        redrives: false,
        events: events.iter().map(|id| (*id, EventState::Dead)).collect(),
        from,
        reached: events.last().copied().unwrap_or(from),
        is_last: false,
    }
}

async fn is_made(queue: &Queue, number: i64, step: &BulkStep) -> bool {
    ok(queue.step(number, step).await, "step")
}

async fn action(queue: &Queue, number: i64) -> (Action, Bulk) {
    let found = ok(
        queue.actions(Which::All, Some(number + 1), 1).await,
        "actions",
    );
    let action = found.into_iter().next().expect("a change is an action");
    assert_eq!(action.number, number);
    let bulk = action.bulk.clone().expect("it is a bulk change");
    (action, bulk)
}

async fn is_listed_as_running(queue: &Queue, number: i64) -> bool {
    let running = ok(queue.actions(Which::Running, None, 100).await, "actions");
    running.iter().any(|action| action.number == number)
}

/// Adds dead letters.
async fn die(trial: &Trial, count: usize) -> Vec<EventId> {
    let mut ids = Vec::new();
    for _ in 0..count {
        let taken = trial.taken(trial.event(), HELD).await;
        trial.settle(&taken, &dead(false)).await;
        ids.push(taken.lease.id);
    }
    ids
}

/// Each position is left once, whoever leads on from there. A step from anywhere else changes nothing.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn steps_lead_on_from_their_positions<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let other = &trial.handles(harness, 1).await[0].queue;
    let ids = die(&trial, 4).await;
    let by = By::new("ada").because("test data");
    let begun = trial.queue.begin(&discards(None), &by).await;
    let number = ok(begun, "begin");
    let (begun, bulk) = action(other, number).await;
    assert_eq!((begun.kind, &begun.by), (ActionKind::Discard, &by));
    assert_eq!(begun.about.as_deref(), Some("state=dead"));
    assert_eq!((begun.event, begun.changed), (None, 0));
    assert_eq!((bulk.state, bulk.skipped), (BulkState::Running, 0));
    assert_eq!((bulk.reached, bulk.rate), (EventId(0), 200));
    assert!(is_listed_as_running(other, number).await);

    let start = EventId(0);
    assert!(is_made(&trial.queue, number, &step(start, &ids[..2])).await);
    // From a position that was left, twice; from a position where nobody was; and of another action.
    let stale = [
        (number, step(start, &ids[2..])),
        (number, step(start, &ids[..2])),
        (number, step(ids[2], &ids[3..])),
        (number + 1_000_000, step(start, &ids[2..])),
    ];
    let (before, _) = action(other, number).await;
    for (number, stale) in &stale {
        for queue in [&trial.queue, other] {
            let made = is_made(queue, *number, stale).await;
            assert!(!made, "a step from another position: {stale:?}");
        }
    }
    assert_eq!(action(other, number).await.0, before);
    for id in &ids[2..] {
        let what = "an event of a step from another position";
        trial.is(*id, EventState::Dead, what).await;
    }

    // What looks at nothing moves it on, or leaves it where it is.
    let nothing = BulkStep {
        reached: EventId(ids[2].0 - 1),
        ..step(ids[1], &[])
    };
    assert!(is_made(other, number, &nothing).await);
    assert!(is_made(other, number, &step(nothing.reached, &[])).await);
    // One of them is not as it was listed.
    trial.redrive(ids[3], Change::Made, "a dead letter").await;
    let end = BulkStep {
        is_last: true,
        ..step(nothing.reached, &ids[2..])
    };
    assert!(is_made(other, number, &end).await);
    let after = BulkStep {
        redrives: true,
        ..step(ids[3], &ids[..2])
    };
    for late in [end, after] {
        let made = is_made(&trial.queue, number, &late).await;
        assert!(!made, "a change that is done goes on: {late:?}");
    }
    let (ended, bulk) = action(&trial.queue, number).await;
    assert_eq!((ended.changed, bulk.skipped), (3, 1));
    assert_eq!((bulk.state, bulk.reached), (BulkState::Done, ids[3]));
    assert!(!is_listed_as_running(other, number).await);
    for id in &ids[..3] {
        let what = "an event of a change";
        trial.is(*id, EventState::Discarded, what).await;
        let of = trial.queue.actions(Which::Of(*id), None, 10).await;
        assert_eq!(ok(of, "actions"), std::slice::from_ref(&ended));
    }
    let changed = async |filter: Filter| {
        let filter = filter.kinds([trial.kind.clone()]).changed_by(number);
        let listed = other.list(&filter, Page::oldest(10)).await;
        let events = ok(listed, "list").events.into_iter();
        events.map(|event| event.id).collect::<Vec<_>>()
    };
    assert_eq!(changed(Filter::default()).await, ids[..3]);
    assert_eq!(changed(Filter::failed(None, None)).await, []);
    let what = "an event that changed";
    trial.is(ids[3], EventState::Retrying, what).await;
    let cancelled = ok(trial.queue.cancel(number, &by).await, "cancel");
    assert!(!cancelled, "a change that is done is cancelled");
}

/// After a change is cancelled on any handle, or its chat is forgotten, it changes nothing.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn bulk_changes_are_cancelled<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let other = &trial.handles(harness, 1).await[0].queue;
    let ids = die(&trial, 2).await;
    let by = By::new("grace");
    let chat = chat();
    for is_forgotten in [false, true] {
        let bulk = discards(is_forgotten.then_some(&*chat));
        let number = ok(trial.queue.begin(&bulk, &by).await, "begin");
        let start = EventId(0);
        assert!(is_made(&trial.queue, number, &step(start, &[])).await);
        match is_forgotten {
            true => {
                ok(other.forget_all(&chat, &by).await, "forget");
            }
            false => {
                assert!(ok(other.cancel(number, &by).await, "cancel"));
                assert!(!ok(trial.queue.cancel(number, &by).await, "cancel"));
            }
        }
        let made = is_made(&trial.queue, number, &step(start, &ids)).await;
        assert!(!made, "a cancelled change goes on");
        let (cancelled, bulk) = action(&trial.queue, number).await;
        assert_eq!((bulk.state, bulk.reached), (BulkState::Cancelled, start));
        assert_eq!(cancelled.about.is_none(), is_forgotten, "{cancelled:?}");
        assert!(!is_listed_as_running(other, number).await);
        for id in &ids {
            let what = "an event of a cancelled change";
            trial.is(*id, EventState::Dead, what).await;
        }
    }
    let all = ok(trial.queue.actions(Which::All, None, 100).await, "actions");
    let cancels = all
        .iter()
        .filter(|it| it.kind == ActionKind::Cancel && it.by == by);
    assert_eq!(cancels.count(), 1);
}

/// One step changes events wherever they are, and leaves those alone that are no longer as they were listed. Lanes keep
/// their order.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn steps_change_events_in_every_place<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    for redrives in [true, false] {
        // In front of another event of its lane, but for the last one.
        let (mut ids, mut behind) = (Vec::new(), Vec::new());
        for settlement in [dead(true), retry(HELD), skip(HELD), dead(false)] {
            let lane = lane();
            let taken = trial.taken(trial.in_lane(lane), HELD).await;
            ids.push(taken.lease.id);
            if ids.len() < 4 {
                behind.push(trial.accept(trial.in_lane(lane)).await);
            }
            trial.settle(&taken, &settlement).await;
        }
        let overtakes = trial.claims(behind[2], HELD, "what is behind a skip").await;
        let held = trial.taken(trial.event(), HELD).await;
        let died = trial.taken(trial.event(), HELD).await;
        trial.settle(&died, &dead(true)).await;
        let states = [
            EventState::Dead,
            EventState::Retrying,
            EventState::Retrying,
            EventState::Dead,
            // They are not.
            EventState::Retrying,
            EventState::Retrying,
        ];
        let all = ids.iter().copied();
        let all = all.chain([held.lease.id, died.lease.id]).zip(states);
        let bulk = NewBulk {
            kind: match redrives {
                true => ActionKind::Redrive,
                false => ActionKind::Discard,
            },
            ..discards(None)
        };
        let begun = trial.queue.begin(&bulk, &By::new("ada")).await;
        let number = ok(begun, "begin");
        let step = BulkStep {
            redrives,
            events: all.collect(),
            from: EventId(0),
            reached: died.lease.id,
            is_last: true,
        };
        assert!(is_made(&trial.queue, number, &step).await);
        let (ended, bulk) = action(&trial.queue, number).await;
        assert_eq!((ended.changed, bulk.skipped), (4, 2));
        let what = "an event that was not as it was listed";
        trial.is(held.lease.id, EventState::InProgress, what).await;
        trial.is(died.lease.id, EventState::Dead, what).await;

        let due = match redrives {
            // What was skipped waits for the attempt that overtook it.
            true => vec![ids[0], ids[1], ids[3]],
            false => behind[..2].to_vec(),
        };
        let mut taken = trial.all_of(&due, HELD, "what a step left").await;
        taken.sort_by_key(|taken| taken.lease.id);
        trial.nothing("all lanes are busy").await;
        if redrives {
            for (at, failures) in [0, 1, 0].into_iter().enumerate() {
                assert_eq!(taken[at].failures, failures, "failures after a step");
            }
            for at in 0..2 {
                let next = behind[at];
                let next = trial.hands_over(&taken[at], &Settlement::Handled, next);
                trial.settle(&next.await, &Settlement::Handled).await;
            }
            let skipped = trial.hands_over(&overtakes, &Settlement::Handled, ids[2]);
            let skipped = skipped.await;
            assert_eq!(skipped.failures, 1, "failures of what was skipped");
        } else {
            for id in &ids {
                trial
                    .is(*id, EventState::Discarded, "it was discarded")
                    .await;
            }
            let why = "what was skipped is discarded";
            let end = Settlement::Handled;
            trial.hands_nothing_over(&overtakes, &end, why).await;
        }
    }
}
