//! What a person sees and changes: redriving, discarding, forgetting, lists, counts, and pauses.

use std::time::{Duration, SystemTime};

use tokio::time::sleep;

use super::steps::{Trial, chat, dead, failure, key, lane, ok, retry, skip};
use super::{HELD, Harness, SHORT};
use crate::inbox::{
    Change, EventId, EventState, EventSummary, Filter, KindStats, Kinds, NewEvent, Page, Queue,
    Settled, Settlement,
};

/// A pause is seen by all handles within this time.
const PAUSE: Duration = Duration::from_secs(1);

/// An event that was handled, ignored, discarded or made a dead letter is tried again when it is redriven: with its
/// body, and without the failures before. Its key stays known.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub async fn settled_events_are_redriven<H: Harness>(harness: &H) {
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
pub async fn redriven_events_stand_in_no_line<H: Harness>(harness: &H) {
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
pub async fn retried_events_are_redriven_in_place<H: Harness>(harness: &H) {
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

/// An event that does not exist is not found. Only what is unsettled or dead can be discarded: then it is never taken,
/// and its lane goes on.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub async fn unsettled_events_are_discarded<H: Harness>(harness: &H) {
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

/// Forgetting a chat deletes all of its bodies and no others, discards what was unsettled or dead, and lets lanes go
/// on. What was forgotten is still recognised as a duplicate, and cannot be redriven.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub async fn chats_are_forgotten<H: Harness>(harness: &H) {
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
        let deleted = ok(other.queue.forget(chat).await, "forget");
        assert_eq!(
            deleted, 7,
            "bodies of the chat {chat:?} that were forgotten"
        );
        let deleted = ok(trial.queue.forget(chat).await, "forget");
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

fn ids(summaries: &[EventSummary]) -> Vec<EventId> {
    summaries.iter().map(|summary| summary.id).collect()
}

/// A list has the events that match all parts of its filter, by number, and its pages have each of them once, in both
/// directions.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub async fn lists_are_complete<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let other = &trial.handles(harness, 1).await[0];
    let second = trial.fresh();
    let (chats, known) = ([chat(), chat()], key());
    let mut accepted = Vec::new();
    for at in 0..10 {
        let kind = if at % 2 == 0 { &trial } else { &second };
        let mut event = match at {
            4 => kind.with_key(&known, "{}"),
            _ => kind.event(),
        };
        event.chat = chats.get(at % 3).cloned();
        event.dead = (at == 5).then(|| failure("dead"));
        let wanted = trial.taking(Kinds::only([trial.kind.clone(), second.kind.clone()]));
        let (id, taken) = wanted.accept_and_take(event, HELD).await;
        if let Some(taken) = taken {
            let settlement = match at {
                0 => Some(Settlement::Handled),
                1 => Some(Settlement::Ignored),
                2 => Some(Settlement::Discarded(failure("discarded"))),
                3 => Some(retry(HELD)),
                4 | 6 => Some(Settlement::Released),
                7 => Some(dead(true)),
                _ => None,
            };
            if let Some(settlement) = settlement {
                trial.settle(&taken, &settlement).await;
            }
        }
        accepted.push(id);
        sleep(SHORT / 8).await;
    }
    let both = Filter {
        kinds: vec![trial.kind.clone(), second.kind.clone()],
        ..Filter::default()
    };
    let list = async |filter: &Filter, after: Option<EventId>, limit: usize, newest_first: bool| {
        let page = Page {
            after,
            limit,
            newest_first,
        };
        ok(other.queue.list(filter, page).await, "list")
    };
    let expect = async |filter: &Filter, at: &[usize], what: &str| {
        let expected: Vec<_> = at.iter().map(|at| accepted[*at]).collect();
        assert_eq!(
            ids(&list(filter, None, 50, false).await),
            expected,
            "the list {what}"
        );
        let mut back = ids(&list(filter, None, 50, true).await);
        back.reverse();
        assert_eq!(back, expected, "the list {what}, newest first");
    };
    let all: Vec<_> = (0..10).collect();
    expect(&both, &all, "of both kinds").await;
    for (at, summary) in list(&both, None, 50, false).await.iter().enumerate() {
        let of = if at % 2 == 0 { &trial } else { &second };
        assert_eq!(summary.kind, of.kind, "the kind in a list");
        assert_eq!(
            summary.chat.as_ref(),
            chats.get(at % 3),
            "the chat in a list"
        );
        assert_eq!(
            summary.key.is_some(),
            at == 4,
            "whether there is a key in a list"
        );
        let record = trial.record(summary.id).await.summary;
        assert_eq!(record.state, summary.state, "the state in a list");
        assert_eq!(
            record.accepted_at, summary.accepted_at,
            "the time in a list"
        );
        assert_eq!(
            record.settled_at, summary.settled_at,
            "the time of settling in a list"
        );
    }
    expect(&trial.filter(), &[0, 2, 4, 6, 8], "of one kind").await;
    let of = |states: &[EventState]| Filter {
        states: states.to_vec(),
        ..both.clone()
    };
    for (state, at) in [
        (EventState::Waiting, &[4, 6][..]),
        (EventState::InProgress, &[8, 9]),
        (EventState::Retrying, &[3]),
        (EventState::Handled, &[0]),
        (EventState::Ignored, &[1]),
        (EventState::Discarded, &[2]),
        (EventState::Dead, &[5, 7]),
    ] {
        expect(&of(&[state]), at, &format!("of those {state}")).await;
    }
    let several = of(&[EventState::Dead, EventState::Handled, EventState::Waiting]);
    expect(&several, &[0, 4, 5, 6, 7], "of three states").await;
    let of_chat = |at: usize| Filter {
        chat: chats.get(at).cloned(),
        ..Filter::default()
    };
    expect(&of_chat(0), &[0, 3, 6, 9], "of a chat").await;
    expect(&of_chat(1), &[1, 4, 7], "of another chat").await;
    let of_key = Filter {
        key: Some(known),
        ..Filter::default()
    };
    expect(&of_key, &[4], "of a key").await;
    let of_all = Filter {
        chat: chats.first().cloned(),
        ..several
    };
    expect(&of_all, &[0, 6], "of a chat and three states").await;
    let unknown = Filter {
        chat: Some(chat()),
        ..Filter::default()
    };
    expect(&unknown, &[], "of an unknown chat").await;

    let times: Vec<SystemTime> = list(&both, None, 50, false)
        .await
        .iter()
        .map(|summary| summary.accepted_at)
        .collect();
    assert!(
        times.is_sorted(),
        "numbers and times of acceptance disagree"
    );
    let between = |from: Option<usize>, until: Option<usize>| Filter {
        accepted_from: from.map(|at| times[at]),
        accepted_until: until.map(|at| times[at]),
        ..both.clone()
    };
    expect(&between(Some(3), None), &all[3..], "from a time on").await;
    expect(&between(None, Some(3)), &all[..3], "until a time").await;
    expect(&between(Some(2), Some(8)), &all[2..8], "between two times").await;
    expect(&between(Some(4), Some(4)), &[], "of no time").await;

    for newest_first in [false, true] {
        for limit in [1, 3, 5, 10, 11] {
            let (mut found, mut after) = (Vec::<EventId>::new(), None);
            loop {
                let page = ids(&list(&both, after, limit, newest_first).await);
                assert!(
                    page.len() <= limit,
                    "a page of {limit} has {} events",
                    page.len()
                );
                found.extend(&page);
                after = page.last().copied();
                if page.is_empty() {
                    break;
                }
            }
            if newest_first {
                found.reverse();
            }
            assert_eq!(found, accepted, "the events on pages of {limit}");
        }
        assert!(
            list(&both, None, 0, newest_first).await.is_empty(),
            "an empty page is not"
        );
    }
    let of_one = ids(&list(&trial.filter(), Some(accepted[3]), 2, false).await);
    assert_eq!(
        of_one,
        [accepted[4], accepted[6]],
        "a page after an event that does not match"
    );
}

/// The counts of a kind are those of its events, as they change.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub async fn events_are_counted<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let other = &trial.handles(harness, 1).await[0];
    let stats = async || {
        let stats = ok(other.queue.stats().await, "stats");
        assert!(
            stats.kinds.is_sorted_by(|a, b| a.kind < b.kind),
            "kinds are not sorted, or twice"
        );
        let (unsettled, dead) = (stats.unsettled(), stats.dead());
        let kind = stats
            .kinds
            .into_iter()
            .find(|stats| stats.kind == trial.kind);
        let kind = kind.unwrap_or_else(|| KindStats {
            kind: trial.kind.clone(),
            waiting: 0,
            in_progress: 0,
            retrying: 0,
            dead: 0,
            oldest: None,
            is_paused: false,
        });
        assert!(
            unsettled >= kind.waiting + kind.in_progress + kind.retrying,
            "unsettled events"
        );
        assert!(dead >= kind.dead, "dead letters");
        kind
    };
    let expect = async |waiting: u64,
                        in_progress: u64,
                        retrying: u64,
                        dead: u64,
                        oldest: Option<EventId>| {
        let found = stats().await;
        assert_eq!(found.waiting, waiting, "the number of those that wait");
        assert_eq!(
            found.in_progress, in_progress,
            "the number of those in progress"
        );
        assert_eq!(
            found.retrying, retrying,
            "the number of those that are retried"
        );
        assert_eq!(found.dead, dead, "the number of dead letters");
        let since = match oldest {
            Some(id) => Some(trial.record(id).await.summary.accepted_at),
            None => None,
        };
        assert_eq!(found.oldest, since, "since when an event is unsettled");
        assert!(!found.is_paused, "a kind is paused");
    };
    expect(0, 0, 0, 0, None).await;
    let lane = lane();
    let mut accepted = Vec::new();
    for _ in 0..4 {
        accepted.push(trial.accept(trial.in_lane(lane)).await);
        sleep(SHORT / 8).await;
    }
    let oldest = |at: usize| accepted.get(at).copied();
    expect(4, 0, 0, 0, oldest(0)).await;
    let first = trial.claims(accepted[0], HELD, "the first event").await;
    expect(3, 1, 0, 0, oldest(0)).await;
    trial.settle(&first, &skip(HELD)).await;
    expect(3, 0, 1, 0, oldest(0)).await;
    let second = trial.claims(accepted[1], HELD, "the second event").await;
    trial
        .hands_nothing_over(&second, &dead(true), "a dead letter holds the lane")
        .await;
    expect(2, 0, 1, 1, oldest(0)).await;
    trial
        .discard(accepted[0], Change::Made, "an event that is retried")
        .await;
    expect(2, 0, 0, 1, oldest(2)).await;
    trial
        .redrive(accepted[1], Change::Made, "a dead letter")
        .await;
    let second = trial
        .claims(accepted[1], HELD, "a dead letter that was redriven")
        .await;
    expect(2, 1, 0, 0, oldest(1)).await;
    trial.settle(&second, &Settlement::Handled).await;
    expect(2, 0, 0, 0, oldest(2)).await;
    let third = trial.claims(accepted[2], HELD, "the third event").await;
    let fourth = trial
        .hands_over(&third, &Settlement::Ignored, accepted[3])
        .await;
    trial.settle(&fourth, &dead(false)).await;
    expect(0, 0, 0, 1, None).await;
    trial
        .discard(accepted[3], Change::Made, "a dead letter")
        .await;
    expect(0, 0, 0, 0, None).await;
}

/// While a kind is paused, none of its events is taken, in no way, and its lanes wait. Accepting goes on, and so does
/// what was taken before. Other kinds are not concerned. Every handle sees it within a second.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub async fn paused_kinds_wait<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let other = &trial.handles(harness, 1).await[0];
    let running = trial.fresh();
    let kinds = Kinds::only([trial.kind.clone(), running.kind.clone()]);
    let both = trial.taking(kinds);
    let is_paused = async || {
        let stats = ok(other.queue.stats().await, "stats");
        let mut kinds = stats.kinds.iter();
        kinds.any(|stats| stats.kind == trial.kind && stats.is_paused)
    };
    let pause = async |paused: bool| {
        ok(trial.queue.pause(Some(&trial.kind), paused).await, "pause");
        sleep(PAUSE + SHORT / 2).await;
        assert_eq!(is_paused().await, paused, "whether the kind is paused");
    };
    let lane = lane();
    let taken = trial.taken(trial.in_lane(lane), HELD).await;
    let id = taken.lease.id;
    trial.accept(trial.event()).await;
    trial.taken(trial.event(), SHORT).await;
    let settled = trial.taken(trial.event(), HELD).await;
    trial.settle(&settled, &Settlement::Handled).await;
    // Twice is as good as once.
    for _ in 0..2 {
        pause(true).await;
        other.nothing("the kind is paused").await;
    }
    trial
        .redrive(settled.lease.id, Change::Made, "an event of a paused kind")
        .await;
    both.nothing("the kind is paused").await;
    let next = other
        .not_taken(trial.in_lane(lane), "its kind is paused")
        .await;
    let third = both.accept(running.in_lane(lane)).await;
    assert_eq!(
        trial.extend(&[taken.lease], HELD).await,
        [true],
        "whether a lease was held"
    );
    other
        .hands_nothing_over(
            &taken,
            &Settlement::Handled,
            "the next event's kind is paused",
        )
        .await;
    both.nothing("the first event of the lane is of a paused kind")
        .await;
    trial
        .is(
            id,
            EventState::Handled,
            "an event that was handled during a pause",
        )
        .await;
    both.taken(running.in_lane(self::lane()), HELD).await;
    other.not_taken(trial.event(), "its kind is paused").await;

    pause(false).await;
    let found = other.claim(HELD, 8, 8).await.events;
    assert_eq!(found.len(), 5, "the events that were taken after a pause");
    let Some(next) = found.iter().find(|taken| taken.lease.id == next) else {
        panic!("the first event of the lane was not taken after a pause");
    };
    let take = both.take(HELD);
    let settled = both
        .queue
        .settle(&next.lease, &Settlement::Handled, Some(&take))
        .await;
    match ok(settled, "settle") {
        Settled::Ended(Some(taken)) => assert_eq!(taken.lease.id, third, "the event handed over"),
        other => panic!("the next event was not handed over after a pause: {other:?}"),
    }
}

/// Everything that one handle did, every other one sees, also one that is opened later.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub async fn handles_share_everything<H: Harness>(harness: &H) {
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
    let forgotten = ok(handle().await.queue.forget(&chat).await, "forget");
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
