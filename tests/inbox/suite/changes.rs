//! What a person sees and changes: redriving, discarding, forgetting, lists, counts, and pauses.

use std::time::Duration;

use super::make::{chat, key, lane};
use super::steps::{Trial, ok};
use super::{HELD, Harness, SHORT};
use tower_webhook::inbox::internal::{FORGET_STEP, Lane, NewEvent, Settlement};
use tower_webhook::inbox::{By, Change, EventId, EventState};

use support::queue::{Calls, dead, failure, retry, skip};

/// An event that was handled, ignored, discarded or made a dead letter is tried again when it is redriven: with its
/// body, and with its count of failures at zero. Its key stays known.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn settled_events_are_redriven<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let other = &trial.handles(harness, 1).await[0];
    for settlement in [
        Settlement::Handled,
        Settlement::Ignored,
        Settlement::Discarded(failure("discarded")),
        dead(false),
        dead(true),
    ] {
        let known = key();
        let event = NewEvent {
            lane: Some(lane()),
            ..trial.with_key(&known, "{\"id\":1}")
        };
        let taken = trial.taken(event, HELD).await;
        let id = taken.lease.id;
        trial.settle(&taken, &retry(Duration::ZERO)).await;
        let again = trial.claims(id, HELD, "an event that is retried").await;
        trial.settle(&again, &settlement).await;
        for round in 0..2 {
            other.redrive(id, Change::Made, "a settled event").await;
            let summary = trial.record(id).await.summary;
            assert!(
                summary.state.is_unsettled(),
                "an event that was redriven is {}",
                summary.state
            );
            assert!(
                summary.is_redriven,
                "an event that was redriven does not show it"
            );
            assert_eq!(
                summary.failures, 0,
                "failures of an event that was redriven"
            );
            assert_eq!(
                summary.settled_at, None,
                "when an event that was redriven was settled"
            );
            trial
                .duplicate(trial.with_key(&known, "{\"id\":1}"), true, "a redriven key")
                .await;
            if round == 1 {
                other.redrive(id, Change::Made, "an event that waits").await;
            }
            let taken = trial.claims(id, HELD, "an event that was redriven").await;
            assert!(
                taken.delivery.is_redriven(),
                "a handler cannot see that an event was redriven"
            );
            assert_eq!(&**taken.delivery.body(), b"{\"id\":1}", "the body");
            assert_eq!(taken.delivery.key(), Some(&known), "the key");
            assert_eq!(
                (taken.failures, taken.crashes),
                (0, 0),
                "failures and crashes"
            );
            assert_eq!(
                taken.tried_for, None,
                "since when an event that was redriven fails"
            );
            assert_eq!(
                taken.delivery.attempt().map(u32::from),
                Some(1),
                "the attempt"
            );
            trial.nothing("an event is redriven once").await;
            other
                .redrive(id, Change::WrongState, "an event in progress")
                .await;
            trial
                .is(
                    id,
                    EventState::InProgress,
                    "an event that was redriven and taken",
                )
                .await;
            trial.settle(&taken, &Settlement::Handled).await;
            trial
                .is(
                    id,
                    EventState::Handled,
                    "an event that was redriven and handled",
                )
                .await;
        }
        trial.nothing("the event was handled").await;
    }
}

/// An event that was redriven waits for no lane, and no lane waits for it: not while it runs, and not when it is
/// retried.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn redriven_events_stand_in_no_line<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let lane = lane();
    let first = trial.taken(trial.in_lane(lane), HELD).await;
    let id = first.lease.id;
    let second = trial.accept(trial.in_lane(lane)).await;
    let third = trial.accept(trial.in_lane(lane)).await;
    let second = trial.hands_over(&first, &dead(false), second).await;

    trial.redrive(id, Change::Made, "a dead letter").await;
    let first = trial
        .claims(id, HELD, "a dead letter whose lane is busy")
        .await;
    assert_eq!(first.lane, None, "the lane of an event that was redriven");
    trial.nothing("the lane is busy").await;
    trial
        .hands_nothing_over(&first, &retry(HELD), "it stands in no line")
        .await;
    trial.nothing("the lane is busy").await;
    let third = trial.hands_over(&second, &Settlement::Handled, third).await;
    trial
        .redrive(id, Change::Made, "an event that is retried")
        .await;
    let first = trial
        .claims(id, HELD, "an event that was redriven twice")
        .await;
    trial.settle(&third, &Settlement::Handled).await;
    let fourth = trial.taken(trial.in_lane(lane), HELD).await;
    trial.settle(&first, &dead(true)).await;
    let fifth = trial.accept(trial.in_lane(lane)).await;
    trial.hands_over(&fourth, &Settlement::Handled, fifth).await;
    trial.redrive(id, Change::Made, "a dead letter").await;
    trial
        .discard(id, Change::Made, "an event that was redriven")
        .await;
    trial.nothing("the lane is busy").await;
}

/// An event that is retried is due at once when it is redriven, and keeps its place in its lane and its failures. One
/// that waits for its lane does not overtake it.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn retried_events_are_redriven_in_place<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    for settlement in [retry, skip] {
        let lane = lane();
        let first = trial.taken(trial.in_lane(lane), HELD).await;
        let id = first.lease.id;
        let second = trial.accept(trial.in_lane(lane)).await;
        let third = trial.accept(trial.in_lane(lane)).await;
        trial.settle(&first, &settlement(HELD)).await;
        trial
            .redrive(third, Change::Made, "an event that waits")
            .await;
        trial
            .redrive(id, Change::Made, "an event that is retried")
            .await;
        let first = trial
            .claims(id, HELD, "an event that is retried, and was redriven")
            .await;
        assert_eq!(
            first.failures, 1,
            "failures of an event that is retried, and was redriven"
        );
        trial.nothing("the lane is busy").await;
        let second = trial.hands_over(&first, &Settlement::Handled, second).await;
        trial
            .redrive(third, Change::Made, "an event that waits")
            .await;
        trial.nothing("the lane is busy").await;
        trial.hands_over(&second, &Settlement::Handled, third).await;
    }
}

/// An event that does not exist is not found. Only an unsettled or dead event can be discarded. It is then never taken,
/// and its lane continues.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn unsettled_events_are_discarded<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    for id in [
        EventId(i64::MAX),
        EventId(0),
        EventId(-1),
        EventId(i64::MIN),
    ] {
        trial
            .redrive(id, Change::NotFound, "an event that does not exist")
            .await;
        trial
            .discard(id, Change::NotFound, "an event that does not exist")
            .await;
        assert!(
            ok(trial.queue.get(id).await, "get").is_none(),
            "event {id} exists"
        );
    }
    for settlement in [
        None,
        Some(Settlement::Released),
        Some(retry(HELD)),
        Some(skip(HELD)),
        Some(dead(false)),
        Some(dead(true)),
        Some(Settlement::Handled),
        Some(Settlement::Ignored),
        Some(Settlement::Discarded(failure("discarded"))),
    ] {
        let trial = trial.fresh();
        let lane = lane();
        let taken = trial.taken(trial.in_lane(lane), HELD).await;
        let id = taken.lease.id;
        let next = trial.accept(trial.in_lane(lane)).await;
        if let Some(settlement) = &settlement {
            trial.settle(&taken, settlement).await;
        }
        match settlement {
            Some(Settlement::Handled | Settlement::Ignored | Settlement::Discarded(_)) => {
                let before = trial.record(id).await.summary;
                trial
                    .discard(id, Change::WrongState, "a settled event")
                    .await;
                trial.is(id, before.state, "a settled event").await;
            }
            _ => {
                trial
                    .discard(id, Change::Made, "an event that is unsettled or dead")
                    .await;
                trial
                    .is(id, EventState::Discarded, "an event that was discarded")
                    .await;
                trial
                    .discard(id, Change::WrongState, "an event that was discarded")
                    .await;
            }
        }
        trial.claims(next, HELD, "the next event of the lane").await;
        trial.nothing("the lane is busy").await;
    }
    let trial = trial.fresh();
    let waiting = trial.accept(trial.event()).await;
    trial
        .discard(waiting, Change::Made, "an event that waits")
        .await;
    trial.nothing("the event was discarded").await;
}

/// Forgetting a chat deletes all of its bodies and no others, and discards its unsettled and dead events, so that lanes
/// continue. A forgotten event is still recognised as a duplicate, and cannot be redriven.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn chats_are_forgotten<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let other = &trial.handles(harness, 1).await[0];
    let unique = chat();
    let chats = [
        unique.clone(),
        unique.to_uppercase(),
        format!("{unique} "),
        format!("{unique}\u{e9}"),
        format!("{unique}\0"),
        unique.replace(' ', "%"),
        unique.replace(' ', "_"),
    ];
    let mut events = Vec::new();
    for chat in chats {
        // Of these the first is in progress at the end, and the last one waits for it.
        let lane = lane();
        let mut ids = Vec::new();
        for at in 0..7 {
            let known = key();
            let event = NewEvent {
                chat: Some(chat.clone()),
                lane: (at < 2).then_some(lane),
                dead: (at == 2).then(|| failure("dead")),
                ..trial.with_key(&known, "{}")
            };
            let settlement = match at {
                3 => Some(Settlement::Handled),
                4 => Some(Settlement::Discarded(failure("discarded"))),
                5 => Some(retry(HELD)),
                6 => Some(dead(true)),
                _ => None,
            };
            let (id, taken) = trial.accept_and_take(event, HELD).await;
            if let (Some(taken), Some(settlement)) = (&taken, settlement) {
                trial.settle(taken, &settlement).await;
            }
            ids.push((id, known, taken));
        }
        events.push((chat, lane, ids));
    }
    let bystander = trial.accept(trial.in_lane(events[0].1)).await;

    let count = events.len();
    for (forgotten, (chat, lane, ids)) in events.iter().enumerate() {
        let deleted = ok(other.queue.forget_all(chat, &By::default()).await, "forget");
        assert_eq!(
            deleted, 7,
            "bodies of the chat {chat:?} that were forgotten"
        );
        let deleted = ok(trial.queue.forget_all(chat, &By::default()).await, "forget");
        assert_eq!(
            deleted, 0,
            "bodies of the chat {chat:?} that were forgotten again"
        );
        if forgotten > 0 {
            trial.taken(trial.in_lane(*lane), HELD).await;
        } else {
            trial
                .claims(
                    bystander,
                    HELD,
                    "an event of another chat that waited in the lane",
                )
                .await;
            for (_, _, ids) in &events[1..] {
                for (id, _, _) in ids {
                    assert!(
                        trial.record(*id).await.body.is_some(),
                        "another chat was forgotten"
                    );
                }
            }
        }
        for (at, (id, known, taken)) in ids.iter().enumerate() {
            let record = trial.record(*id).await;
            assert!(record.body.is_none(), "a body was not forgotten");
            let state = match at {
                3 => EventState::Handled,
                _ => EventState::Discarded,
            };
            assert_eq!(
                record.summary.state, state,
                "the state of an event that was forgotten"
            );
            trial
                .redrive(*id, Change::WithoutBody, "an event that was forgotten")
                .await;
            trial
                .duplicate(
                    trial.with_key(known, "{}"),
                    true,
                    "a key that was forgotten",
                )
                .await;
            if let (0, Some(taken)) = (at, taken) {
                trial
                    .refuses(&taken.lease, "an attempt whose chat was forgotten")
                    .await;
            }
        }
        if forgotten + 1 == count {
            trial.nothing("all chats were forgotten").await;
        }
    }
}

/// A chat is forgotten in steps, each of which deletes a limited number of bodies. Events that are accepted after the
/// first step are kept.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn chats_are_forgotten_in_steps<H: Harness>(harness: &H) {
    const MORE: usize = 7;
    let trial = Trial::open(harness).await;
    let other = &trial.handles(harness, 1).await[0];
    let chat = chat();
    let event = || NewEvent {
        chat: Some(chat.clone()),
        lane: Some(Lane::of_chat(&chat)),
        ..trial.event()
    };
    let mut accepted = Vec::new();
    for _ in 0..2 * FORGET_STEP + MORE {
        accepted.push(trial.accept(event()).await);
    }
    // Some are settled, and one is dead.
    for (at, id) in accepted.iter().take(MORE).enumerate() {
        let taken = trial.claims(*id, HELD, "the first event of the lane").await;
        let settlement = match at {
            0 => dead(false),
            _ => Settlement::Handled,
        };
        trial.settle(&taken, &settlement).await;
    }

    let (mut steps, mut kept, mut rest) = (Vec::new(), Vec::new(), None);
    loop {
        let step = ok(
            other
                .queue
                .forget(&chat, rest.clone(), &By::default())
                .await,
            "forget",
        );
        assert!(
            step.bodies <= FORGET_STEP as u64,
            "a step deleted {} bodies",
            step.bodies
        );
        steps.push(step.bodies);
        assert!(steps.len() <= 10, "forgetting a chat never ends: {steps:?}");
        kept.push(trial.accept(event()).await);
        let Some(next) = step.rest else { break };
        assert!(
            rest.is_none_or(|rest| next.start() > rest.start()),
            "a step that does not go on"
        );
        rest = Some(next);
    }
    assert!(steps.len() >= 3, "the steps {steps:?}");
    assert_eq!(
        steps.iter().sum::<u64>(),
        accepted.len() as u64,
        "the bodies that were forgotten in the steps {steps:?}"
    );
    for id in accepted {
        let body = trial.record(id).await.body;
        assert!(body.is_none(), "a body was not forgotten");
    }
    for id in &kept {
        let body = trial.record(*id).await.body;
        assert!(body.is_some(), "an event was forgotten that came later");
    }
    let taken = trial
        .claims(kept[0], HELD, "the first event that came later")
        .await;
    trial.settle(&taken, &Settlement::Handled).await;
    let rest = ok(
        trial.queue.forget_all(&chat, &By::default()).await,
        "forget",
    );
    assert_eq!(rest, kept.len() as u64, "the events that came later");
}

/// Every handle sees the changes of every other handle, even if it is opened later.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn handles_share_everything<H: Harness>(harness: &H) {
    let (known, chat, lane) = (key(), chat(), lane());
    let trial = Trial::open(harness).await;
    let event = NewEvent {
        lane: Some(lane),
        chat: Some(chat.clone()),
        ..trial.with_key(&known, "{}")
    };
    let handle = async || trial.handles(harness, 1).await.remove(0);
    let id = handle().await.accept(event.clone()).await;
    handle()
        .await
        .duplicate(event, true, "a key of another handle")
        .await;
    let taken = handle()
        .await
        .claims(id, HELD, "an event of another handle")
        .await;
    handle().await.nothing("another handle has the event").await;
    handle()
        .await
        .not_taken(
            trial.in_lane(lane),
            "another handle has an event of its lane",
        )
        .await;
    let extended = handle().await.extend(&[taken.lease], HELD).await;
    assert_eq!(extended, [true], "whether a lease was held");
    handle().await.settle(&taken, &retry(SHORT)).await;
    let taken = handle()
        .await
        .claims(id, HELD, "an event that is retried")
        .await;
    assert_eq!(taken.failures, 1, "failures under another handle");
    handle().await.settle(&taken, &dead(true)).await;
    handle()
        .await
        .is(id, EventState::Dead, "a dead letter of another handle")
        .await;
    handle().await.nothing("a dead letter holds the lane").await;
    handle()
        .await
        .redrive(id, Change::Made, "a dead letter of another handle")
        .await;
    let taken = handle()
        .await
        .claims(id, HELD, "an event that was redriven")
        .await;
    let forgotten = ok(
        handle().await.queue.forget_all(&chat, &By::default()).await,
        "forget",
    );
    assert_eq!(forgotten, 1, "the events of a chat");
    handle()
        .await
        .refuses(&taken.lease, "an attempt whose chat was forgotten")
        .await;
    handle()
        .await
        .claimed(HELD, "the next event of the lane")
        .await;
}
