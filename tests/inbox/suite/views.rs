//! What is shown, and what is paused.

use std::time::{Duration, SystemTime};

use tokio::time::sleep;

use super::make::{chat, key, lane};
use super::steps::{Trial, ok};
use super::{HELD, Harness, RETAIN, SHORT};
use tower_webhook::inbox::internal::{Kinds, NewEvent, Settled, Settlement};
use tower_webhook::inbox::{Change, EventId, EventState, EventSummary, Filter, KindStats};
use tower_webhook::store::EventKey;

use support::queue::{Calls, dead, failure, page, retry, skip};

/// A pause is seen by all handles within this time.
const PAUSE: Duration = Duration::from_secs(1);

fn ids(summaries: &[EventSummary]) -> Vec<EventId> {
    summaries.iter().map(|summary| summary.id).collect()
}

/// A list has the events that meet all conditions of its filter, sorted by number. Its pages have each of them once, in
/// both directions.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn lists_are_complete<H: Harness>(harness: &H) {
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
    let both = Filter::default().kinds([trial.kind.clone(), second.kind.clone()]);
    let list = async |filter: &Filter, after: Option<EventId>, limit: usize, newest_first: bool| {
        let mut page = page(limit, newest_first);
        page.after = after;
        let listed = ok(other.queue.list(filter, page).await, "list");
        assert_eq!(
            listed.searched, None,
            "where a list without a limit in time ended"
        );
        listed.events
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
    let of = |states: &[EventState]| both.clone().states(states.to_vec());
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
    let of_chat = |at: usize| Filter::default().chat(&chats[at]);
    expect(&of_chat(0), &[0, 3, 6, 9], "of a chat").await;
    expect(&of_chat(1), &[1, 4, 7], "of another chat").await;
    let of_key = Filter::default().key(known);
    expect(&of_key, &[4], "of a key").await;
    let of_all = several.chat(&chats[0]);
    expect(&of_all, &[0, 6], "of a chat and three states").await;
    let unknown = Filter::default().chat(chat());
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
    let between = |from: Option<usize>, until: Option<usize>| {
        both.clone()
            .accepted(from.map(|at| times[at]), until.map(|at| times[at]))
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
                assert!(
                    found.len() <= accepted.len(),
                    "pages of {limit} repeat events: {found:?}"
                );
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

/// An event is found by its key as long as it is kept, and the newest one if its key was accepted again.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn events_are_found_by_key<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let other = &trial.handles(harness, 1).await[0];
    let key = key();
    let event = |body| NewEvent {
        retain: SHORT,
        ..trial.with_key(&key, body)
    };
    let digest = EventKey::new("", key.as_bytes(), b"").key();
    let expect = async |expected: Option<EventId>, what: &str| {
        let found = ok(other.queue.find(digest).await, "find");
        assert_eq!(found, expected, "the event of a key {what}");
    };
    expect(None, "that is unknown").await;
    let taken = trial.taken(event("{}"), HELD).await;
    let first = taken.lease.id;
    expect(Some(first), "in progress").await;
    let what = "the second of two deliveries";
    trial.duplicate(event("[]"), false, what).await;
    expect(Some(first), "that was delivered twice").await;
    sleep(2 * SHORT).await;
    expect(Some(first), "that is unsettled after its retention").await;
    let discarded = Settlement::Discarded(failure("discarded"));
    trial.settle(&taken, &discarded).await;

    sleep(2 * SHORT).await;
    let second = trial.accept(event("[]")).await;
    assert_ne!(second, first, "the number of another event");
    expect(Some(second), "that was accepted again").await;
    trial.purge(RETAIN).await;
    let deleted = ok(other.queue.get(first).await, "get");
    assert!(deleted.is_none(), "the first event was not deleted");
    expect(Some(second), "whose first event was deleted").await;
}

/// The numbers of events that wait, in progress, that are retried, and dead.
fn counts(kind: Option<&KindStats>) -> [u64; 4] {
    kind.map_or([0; 4], |kind| {
        [kind.waiting, kind.in_progress, kind.retrying, kind.dead]
    })
}

/// The counts of a kind are those of its events, as they change.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn events_are_counted<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let other = &trial.handles(harness, 1).await[0];
    let stats = async || {
        let stats = ok(other.queue.stats().await, "stats");
        assert!(
            stats
                .kinds
                .is_sorted_by(|a, b| a.event_type() < b.event_type()),
            "kinds are not sorted, or twice"
        );
        let (unsettled, dead) = (stats.unsettled(), stats.dead());
        let mut kinds = stats.kinds.into_iter();
        let kind = kinds.find(|stats| stats.kind == trial.kind);
        let [waiting, in_progress, retrying, of_kind] = counts(kind.as_ref());
        assert!(
            unsettled >= waiting + in_progress + retrying,
            "unsettled events"
        );
        assert!(dead >= of_kind, "dead letters");
        kind
    };
    let expect = async |waiting: u64,
                        in_progress: u64,
                        retrying: u64,
                        dead: u64,
                        oldest: Option<EventId>| {
        let found = stats().await;
        assert_eq!(
            counts(found.as_ref()),
            [waiting, in_progress, retrying, dead],
            "the numbers of those that wait, in progress, that are retried, and dead"
        );
        let since = match oldest {
            Some(id) => Some(trial.record(id).await.summary.accepted_at),
            None => None,
        };
        let found_since = found.as_ref().and_then(|kind| kind.oldest);
        assert_eq!(found_since, since, "since when an event is unsettled");
        let is_paused = found.is_some_and(|kind| kind.is_paused);
        assert!(!is_paused, "a kind is paused");
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

/// While a kind is paused, no operation takes its events, and its lanes wait. Events are still accepted, and attempts
/// in progress continue. Other kinds are not affected. Every handle respects the pause within a second.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn paused_kinds_wait<H: Harness>(harness: &H) {
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
        trial.pause(trial.kind.clone(), paused).await;
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
