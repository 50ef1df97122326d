//! Headers, durations, searches by error, blocked lanes, and changes from an expected state.

use std::collections::HashMap;
use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};

use super::make::{chat, lane};
use super::steps::{Trial, ok};
use super::{HELD, Harness, SHORT};
use tokio::time::sleep;
use tower_webhook::RawDelivery;
use tower_webhook::inbox::internal::{Lane, NewEvent, Settlement};
use tower_webhook::inbox::{
    BlockedLane, By, Change, EventId, EventState, EventSummary, Filter, Page,
};

use support::queue::{Calls, dead, failure, page, retry, retry_for, skip, snooze};

/// Headers as a sender may write them: several of one name, and values of any bytes.
fn headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    let values: [(&str, &[u8]); 4] = [
        (
            "traceparent",
            b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ),
        ("tracestate", b"a=1: b"),
        ("tracestate", b""),
        ("x-name", b"caf\xe9"),
    ];
    for (name, value) in values {
        let value = HeaderValue::from_bytes(value);
        headers.append(
            HeaderName::from_static(name),
            value.unwrap_or_else(|_| unreachable!("a header's value")),
        );
    }
    headers
}

/// The headers of a delivery are kept with its body. Until the body is deleted, each attempt has them, including
/// retries and events that are handed over with their lanes, and so has the record.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn headers_are_kept<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let (lane, chat) = (lane(), chat());
    let event = |headers: HeaderMap| NewEvent {
        delivery: trial.event().delivery.with_headers(headers),
        chat: Some(chat.clone()),
        ..trial.in_lane(lane)
    };
    let first = trial.taken(event(headers()), HELD).await;
    let without = trial.accept(event(HeaderMap::new())).await;
    let third = trial.accept(event(headers())).await;
    assert_eq!(first.delivery.headers(), &headers(), "headers at once");
    trial.settle(&first, &retry(Duration::ZERO)).await;
    let first = trial.claims(first.lease.id, HELD, "a retry").await;
    assert_eq!(first.delivery.headers(), &headers(), "headers of a retry");

    let second = trial
        .hands_over(&first, &Settlement::Handled, without)
        .await;
    assert!(
        second.delivery.headers().is_empty(),
        "headers of another event"
    );
    let third = trial.hands_over(&second, &Settlement::Handled, third).await;
    assert_eq!(
        third.delivery.headers(),
        &headers(),
        "headers that were handed over"
    );
    let of = async |id: EventId| trial.record(id).await.headers;
    assert_eq!(of(first.lease.id).await, headers(), "headers in a record");
    assert_eq!(
        of(without).await,
        HeaderMap::new(),
        "no headers in a record"
    );

    trial.settle(&third, &Settlement::Handled).await;
    ok(
        trial.queue.forget_all(&chat, &By::default()).await,
        "forget",
    );
    for id in [first.lease.id, third.lease.id] {
        assert!(of(id).await.is_empty(), "headers outlived their body");
    }
}

/// Lists, blocked lanes and records show the last failure of each event, as long as the record has its text.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn last_failures_are_shown<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let other = &trial.handles(harness, 1).await[0];
    let chat = chat();
    let ends = async |event: NewEvent, reasons: &[&str], end: Settlement| {
        let mut taken = trial.taken(event, HELD).await;
        let id = taken.lease.id;
        for reason in reasons {
            trial.settle(&taken, &retry_for(failure(*reason))).await;
            taken = trial.claims(id, HELD, "a retry").await;
        }
        trial.settle(&taken, &end).await;
        id
    };
    let blocking = NewEvent {
        chat: Some(chat.clone()),
        ..trial.in_lane(Lane::of_chat(&chat))
    };
    let blocking = ends(blocking, &["first", "second"], retry(HELD)).await;
    let snoozed = ends(trial.event(), &["first", "second"], snooze(HELD)).await;
    let failed_once = ends(trial.event(), &["first"], Settlement::Handled).await;
    let handled = ends(trial.event(), &[], Settlement::Handled).await;
    let dead = NewEvent {
        dead: Some(failure("dead")),
        ..trial.event()
    };
    let dead = trial.accept(dead).await;
    let waiting = trial.accept(trial.event()).await;
    let mut expected = HashMap::from([
        (blocking, Some("retry")),
        (snoozed, Some("second")),
        (failed_once, Some("first")),
        (handled, None),
        (dead, Some("dead")),
        (waiting, None),
    ]);
    let shows = async |events: &[EventSummary], expected: &HashMap<EventId, Option<&str>>| {
        for event in events {
            let record = other.record(event.id).await;
            let last = record.failures.last();
            let reason = last.map(|past| &*past.failure.reason);
            assert_eq!(reason, expected[&event.id], "the last failure in a record");
            for shown in [event, &record.summary] {
                let shown = shown.last_failure.as_ref();
                assert_eq!(
                    shown.map(|past| (past.at, &past.failure)),
                    last.map(|past| (past.at, &past.failure)),
                    "the last failure that is shown: {reason:?}"
                );
            }
        }
    };
    let kinds = trial.filter().kinds;
    for (filter, count) in [
        (trial.filter(), 6),
        (trial.filter().error("no-luck"), 4),
        (Filter::failed(None, None).kinds(kinds), 3),
        (Filter::default().chat(&chat), 1),
    ] {
        for newest_first in [false, true] {
            for within in [None, Some(HELD)] {
                let mut page = page(10, newest_first);
                page.within = within;
                let listed = ok(other.queue.list(&filter, page).await, "list").events;
                assert_eq!(listed.len(), count, "the events of {filter:?}");
                shows(&listed, &expected).await;
            }
        }
    }
    let blocked = async || {
        let found = other.queue.blocked_lanes(Some(&chat), None, 10).await;
        let found = ok(found, "blocked_lanes").into_iter();
        found.map(|lane| lane.event).collect::<Vec<_>>()
    };
    let of_chat = blocked().await;
    assert_eq!(of_chat.len(), 1, "the blocked lanes of a chat");
    shows(&of_chat, &expected).await;

    let forgotten = trial.queue.forget_all(&chat, &By::default()).await;
    assert_eq!(ok(forgotten, "forget"), 1);
    expected.insert(blocking, None);
    let page = Page::oldest(10);
    let listed = ok(other.queue.list(&trial.filter(), page).await, "list").events;
    assert_eq!(listed.len(), 6, "the events after one was forgotten");
    shows(&listed, &expected).await;
    assert!(blocked().await.is_empty(), "a forgotten event blocks");
}

/// A failure keeps the duration of its attempt, to the microsecond, if it is known.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn failures_keep_their_durations<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let micros = |micros| Some(Duration::from_micros(micros));
    let durations = [
        micros(0),
        None,
        micros(1),
        micros(12_345_678),
        micros(86_400_000_000),
    ];
    let of = |took| {
        let mut failure = failure("failed");
        failure.took = took;
        failure
    };
    let mut taken = trial.taken(trial.in_lane(lane()), HELD).await;
    let id = taken.lease.id;
    for took in durations {
        trial.settle(&taken, &retry_for(of(took))).await;
        trial
            .refuses(&taken.lease, "an attempt that has ended")
            .await;
        taken = trial.claims(id, HELD, "an event that is retried").await;
    }
    let last = Settlement::Dead {
        failure: of(micros(7)),
        hold_lane: false,
    };
    trial.settle(&taken, &last).await;
    let late = trial.accept(NewEvent {
        dead: Some(of(None)),
        ..trial.event()
    });
    let late = late.await;
    let past = async |id| {
        let failures = trial.record(id).await.failures;
        let took = failures.iter().map(|past| past.failure.took);
        took.collect::<Vec<_>>()
    };
    let expected: Vec<_> = durations.into_iter().chain([micros(7)]).collect();
    assert_eq!(past(id).await, expected, "the durations of attempts");
    assert_eq!(past(late).await, [None], "the duration of no attempt");
}

/// A list by the text of an error has the events that have ever failed with it, in any state.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn errors_are_found<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let fails = async |reason: &str, end: Settlement| {
        let taken = trial.taken(trial.event(), HELD).await;
        let id = taken.lease.id;
        trial.settle(&taken, &retry_for(failure(reason))).await;
        let taken = trial.claims(id, HELD, "an event that is retried").await;
        trial.settle(&taken, &end).await;
        id
    };
    let refused = fails("Connection REFUSED by caf\u{e9}_1", Settlement::Handled).await;
    let again = fails("connection refused by caf\u{e9}%2", retry(HELD)).await;
    let other = fails("the disk is full \\ '", dead(false)).await;
    trial.taken(trial.event(), HELD).await;
    trial.accept(trial.event()).await;
    let expect = async |text: &str, states: &[EventState], expected: &[EventId]| {
        let filter = trial.filter().error(text).states(states.to_vec());
        for newest_first in [false, true] {
            for within in [None, Some(HELD)] {
                let mut page = page(10, newest_first);
                page.within = within;
                let listed = ok(trial.queue.list(&filter, page).await, "list").events;
                let mut found: Vec<_> = listed.iter().map(|event| event.id).collect();
                if newest_first {
                    found.reverse();
                }
                assert_eq!(found, expected, "the events with the error {text:?}");
            }
        }
    };
    expect("connection refused", &[], &[refused, again]).await;
    expect("CONNECTION", &[EventState::Handled], &[refused]).await;
    expect("caf\u{e9}", &[], &[refused, again]).await;
    expect("_", &[], &[refused]).await;
    expect("%", &[], &[again]).await;
    expect("\\ '", &[EventState::Dead], &[other]).await;
    expect("no-luck", &[], &[refused, again, other]).await;
    expect("retry", &[], &[again]).await;
    expect("connection reset", &[], &[]).await;
}

/// A list by a text has the events whose bodies have it: as they were received, or with the escapes of JSON decoded. It
/// has no event whose body was deleted.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn bodies_are_found<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let of = |body: &'static str| NewEvent {
        delivery: RawDelivery::new(trial.kind.clone(), body),
        ..trial.event()
    };
    let plain = trial.accept(of("{\"name\":\"Zo\u{eb} (100 %)\"}")).await;
    let escaped = trial
        .accept(of(r#"{"name":"Zo\u00EB \/ \"A\\B\" \ud83d\ude00"}"#))
        .await;
    let dead = NewEvent {
        dead: Some(failure("dead")),
        ..of("[zo\u{eb}]")
    };
    let dead = trial.accept(dead).await;
    let chat = chat();
    let of_chat = NewEvent {
        chat: Some(chat.clone()),
        ..of(r#"{"name":"\u005ao\u00eb"}"#)
    };
    let of_chat = trial.accept(of_chat).await;
    let all = [plain, escaped, dead, of_chat];
    let expect = async |text: &str, filter: Filter, expected: &[EventId]| {
        let filter = filter.body(text);
        for newest_first in [false, true] {
            for within in [None, Some(HELD)] {
                let mut page = page(10, newest_first);
                page.within = within;
                let listed = ok(trial.queue.list(&filter, page).await, "list").events;
                let mut found: Vec<_> = listed.iter().map(|event| event.id).collect();
                if newest_first {
                    found.reverse();
                }
                assert_eq!(found, expected, "the events with the text {text:?}");
            }
        }
    };
    for (text, expected) in [
        ("zo\u{eb}", &all[..]),
        ("ZO\u{eb}", &all),
        ("ZO\u{cb}", &[]),
        ("zoe", &[]),
        ("Zo\u{eb} (100 %)\"}", &[plain]),
        ("(.*", &[]),
        ("Zo. ", &[]),
        ("\u{eb} / \"a\\b\" \u{1f600}", &[escaped]),
        (r"\u00eb", &[escaped, of_chat]),
        ("\u{1f600}\"}", &[escaped]),
        ("\0", &[]),
        ("name\":\"zo", &[plain, escaped, of_chat]),
    ] {
        expect(text, trial.filter(), expected).await;
    }
    let of = |states: &[EventState]| trial.filter().states(states.to_vec());
    expect("zo\u{eb}", of(&[EventState::Dead]), &[dead]).await;
    expect("zo\u{eb}", of(&[EventState::Handled]), &[]).await;
    let unsettled = [EventState::Waiting, EventState::Retrying];
    expect("zo\u{eb}", of(&unsettled), &[plain, escaped, of_chat]).await;
    let in_chat = trial.filter().chat(chat.clone());
    expect("zo\u{eb}", in_chat.clone(), &[of_chat]).await;
    expect("zoe", in_chat, &[]).await;
    ok(
        trial.queue.forget_all(&chat, &By::default()).await,
        "forget",
    );
    expect("zo\u{eb}", trial.filter(), &[plain, escaped, dead]).await;
}

/// A list by time of failure has the events whose last failure was in time. One of those that have failed has neither
/// the events that were handled since nor those that never failed.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn failures_are_found_by_time<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let fails = async |last: Settlement| {
        let taken = trial.taken(trial.event(), HELD).await;
        let id = taken.lease.id;
        trial.settle(&taken, &retry(Duration::ZERO)).await;
        let taken = trial.claims(id, HELD, "an event that is retried").await;
        trial.settle(&taken, &last).await;
        // Times are as exact as milliseconds.
        sleep(SHORT / 8).await;
        id
    };
    let handled = fails(Settlement::Handled).await;
    let retried = fails(retry(HELD)).await;
    let late = fails(dead(false)).await;
    // Neither of these has failed.
    trial.taken(trial.event(), HELD).await;
    trial.accept(trial.event()).await;
    let mut times = Vec::new();
    for id in [handled, retried, late] {
        let past = trial.record(id).await.failures;
        times.extend(past.last().map(|past| past.at));
    }
    let [of_handled, of_retried, of_late] = times[..] else {
        panic!("the events have no failures: {times:?}")
    };
    assert!(times.is_sorted(), "{times:?}");
    let expect = async |filter: Filter, expected: &[EventId]| {
        for newest_first in [false, true] {
            for within in [None, Some(HELD)] {
                let mut page = page(10, newest_first);
                page.within = within;
                let filter = filter.clone().kinds(trial.filter().kinds);
                let listed = ok(trial.queue.list(&filter, page).await, "list").events;
                let mut found: Vec<_> = listed.iter().map(|event| event.id).collect();
                if newest_first {
                    found.reverse();
                }
                assert_eq!(found, expected, "the events of {filter:?}");
            }
        }
    };
    expect(Filter::failed(None, None), &[retried, late]).await;
    expect(Filter::failed(Some(of_handled), None), &[retried, late]).await;
    expect(Filter::failed(Some(of_retried), None), &[retried, late]).await;
    expect(Filter::failed(Some(of_late), None), &[late]).await;
    expect(Filter::failed(None, Some(of_late)), &[retried]).await;
    expect(Filter::failed(Some(of_retried), Some(of_late)), &[retried]).await;
    expect(Filter::failed(Some(of_late), Some(of_late)), &[]).await;
    let any =
        |states: &[EventState], from| Filter::failed(Some(from), None).states(states.to_vec());
    expect(any(&[], of_handled), &[handled, retried, late]).await;
    expect(any(&[EventState::Handled], of_handled), &[handled]).await;
    expect(any(&[EventState::Dead], of_handled), &[late]).await;
    expect(any(&[EventState::Dead], of_late), &[late]).await;
    expect(any(&[], of_late), &[late]).await;
    let by_error = Filter::failed(Some(of_late), None).error("NO-LUCK");
    expect(by_error, &[late]).await;
}

/// The pages of a search with a time limit have all events, in both orders.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn searches_end_in_time<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let mut accepted = Vec::new();
    for _ in 0..5 {
        accepted.push(trial.accept(trial.event()).await);
    }
    for newest_first in [false, true] {
        let mut page = page(2, newest_first).within(Duration::ZERO);
        let mut found = Vec::new();
        loop {
            let listed = ok(trial.queue.list(&trial.filter(), page).await, "list");
            found.extend(listed.events.iter().map(|event| event.id));
            assert!(listed.events.len() <= 2, "a page of two");
            let last = listed.events.last().map(|event| event.id);
            let searched = match listed.searched {
                Some(searched) => Some(searched),
                None => last.filter(|_| listed.events.len() == 2),
            };
            let Some(next) = searched else { break };
            let goes_on = page.after.is_none_or(|after| match newest_first {
                true => next < after,
                false => next > after,
            });
            assert!(goes_on, "a search that goes on from {next} never ends");
            page.after = Some(next);
        }
        if newest_first {
            found.reverse();
        }
        assert_eq!(found, accepted, "the events of a search in steps");
    }
}

/// The events of a chat need no search: a page of them ends neither early nor by time, whatever their states and
/// whatever other conditions there are.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn chats_are_listed_without_a_search<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let other = &trial.handles(harness, 1).await[0];
    let chats = [chat(), chat(), chat()];
    let mut accepted = Vec::new();
    for at in 0..12 {
        let chat = &chats[at % 3];
        let event = NewEvent {
            chat: Some(chat.clone()),
            lane: (at < 9).then(|| Lane::of_chat(chat)),
            ..trial.event()
        };
        let (id, taken) = trial.accept_and_take(event, HELD).await;
        let end = match at {
            0..3 => Some(Settlement::Handled),
            3..6 => Some(Settlement::Ignored),
            6..9 => Some(dead(false)),
            _ => None,
        };
        if let (Some(taken), Some(end)) = (taken, end) {
            trial.settle(&taken, &end).await;
        }
        accepted.push(id);
    }
    for (of, chat) in chats.iter().enumerate() {
        let all: Vec<_> = accepted.iter().copied().skip(of).step_by(3).collect();
        for (states, expected) in [
            (&[][..], &all[..]),
            (&[EventState::Handled], &all[..1]),
            (&[EventState::Ignored, EventState::Dead], &all[1..3]),
            (&[EventState::InProgress], &all[3..]),
            (&[EventState::Dead, EventState::InProgress], &all[2..]),
        ] {
            let filter = trial.filter().states(states.to_vec()).chat(chat.clone());
            for newest_first in [false, true] {
                for limit in [1, 3, 10] {
                    let mut page = page(limit, newest_first).within(Duration::ZERO);
                    let mut found = Vec::new();
                    loop {
                        let listed = ok(other.queue.list(&filter, page).await, "list");
                        assert_eq!(listed.searched, None, "where the list of a chat was cut");
                        found.extend(listed.events.iter().map(|event| event.id));
                        page.after = found.last().copied();
                        if listed.events.len() < limit {
                            break;
                        }
                    }
                    if newest_first {
                        found.reverse();
                    }
                    assert_eq!(
                        found, expected,
                        "the events of a chat, {states:?}, on pages of {limit}"
                    );
                }
            }
        }
    }
}

/// A lane is blocked while the event for which it waits has failed, and as long as a dead letter holds it.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn blocked_lanes_are_listed<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let other = &trial.handles(harness, 1).await[0];
    let chats = [chat(), chat()];
    let event = |at: usize| NewEvent {
        chat: Some(chats[at].clone()),
        ..trial.in_lane(Lane::of_chat(&chats[at]))
    };
    let lane = async |at: usize| {
        let found = other.queue.blocked_lanes(Some(&chats[at]), None, 10);
        let mut found = ok(found.await, "blocked_lanes");
        assert!(found.len() <= 1, "a chat has {} lanes", found.len());
        found.pop()
    };
    let stats = async || {
        let stats = ok(other.queue.stats().await, "stats");
        let mut kinds = stats.kinds.into_iter();
        kinds.find(|kind| kind.kind == trial.kind)
    };
    let counted = async || stats().await.map_or(0, |kind| kind.blocking);
    // Those that wait, and those of them that wait for no other event.
    let waiting = async || {
        stats()
            .await
            .map_or((0, 0), |kind| (kind.waiting, kind.ready))
    };
    let is_free = async |at: usize, what: &str| {
        assert!(lane(at).await.is_none(), "{what} blocks its lane");
    };
    let blocks = async |at: usize, id: EventId, state: EventState, waiting: u64, what: &str| {
        let Some(BlockedLane {
            event,
            since,
            waiting: found,
            ..
        }) = lane(at).await
        else {
            panic!("{what} does not block its lane");
        };
        assert_eq!((event.id, event.state), (id, state), "{what}");
        assert_eq!(event.chat.as_ref(), Some(&chats[at]), "the chat of {what}");
        assert_eq!(found, waiting, "the number of those behind {what}");
        assert!(
            since >= event.accepted_at,
            "since when {what} blocks its lane"
        );
    };

    let first = trial.taken(event(0), HELD).await;
    let second = trial.accept(event(0)).await;
    trial.accept(event(0)).await;
    is_free(0, "an event in progress").await;
    assert_eq!(counted().await, 0, "the number of blocked lanes");
    assert_eq!(waiting().await, (2, 0), "events behind one in progress");
    trial.settle(&first, &retry(Duration::ZERO)).await;
    let id = first.lease.id;
    blocks(0, id, EventState::Retrying, 2, "an event that is retried").await;
    let first = trial.claims(id, HELD, "a retry").await;
    blocks(0, id, EventState::InProgress, 2, "a retry in progress").await;
    trial.settle(&first, &retry(HELD)).await;
    assert_eq!(counted().await, 1, "the number of blocked lanes");

    let dead_letter = trial.taken(event(1), HELD).await;
    let held = dead_letter.lease.id;
    let behind = trial.accept(event(1)).await;
    trial.settle(&dead_letter, &dead(true)).await;
    blocks(
        1,
        held,
        EventState::Dead,
        1,
        "a dead letter that holds its lane",
    )
    .await;
    assert_eq!(counted().await, 2, "the number of blocked lanes");
    assert_eq!(waiting().await, (3, 0), "events behind others that failed");
    let alone = trial.accept(trial.in_lane(Lane::of_chat(&chat()))).await;
    let ready = "the first event of another lane";
    assert_eq!(waiting().await, (4, 1), "{ready}");
    let alone = trial.claims(alone, HELD, ready).await;
    trial.settle(&alone, &Settlement::Handled).await;
    let mut all = Vec::new();
    let mut after = None;
    loop {
        let found = ok(
            other.queue.blocked_lanes(None, after, 1).await,
            "blocked_lanes",
        );
        let Some(lane) = found.first() else { break };
        assert!(after < Some(lane.event.id), "blocked lanes are not sorted");
        after = Some(lane.event.id);
        if lane.event.kind == trial.kind {
            all.push(lane.event.id);
        }
    }
    assert_eq!(all, [id, held], "the blocked lanes");

    trial
        .redrive(held, Change::Made, "a dead letter that holds its lane")
        .await;
    let redriven = trial
        .claims(held, HELD, "a dead letter that was redriven")
        .await;
    let behind = trial
        .hands_over(&redriven, &Settlement::Handled, behind)
        .await;
    trial.settle(&behind, &Settlement::Handled).await;
    is_free(1, "a dead letter that was handled").await;
    trial.redrive(id, Change::Made, "an event that waits").await;
    let first = trial.claims(id, HELD, "an event that is due").await;
    trial.settle(&first, &skip(HELD)).await;
    is_free(0, "an event that is tried again out of order").await;
    let second = trial.claims(second, HELD, "the second event").await;
    trial.settle(&second, &dead(false)).await;
    is_free(0, "a dead letter that does not hold its lane").await;
    assert_eq!(counted().await, 0, "the number of blocked lanes");

    let crashing = chat();
    let event = NewEvent {
        chat: Some(crashing.clone()),
        ..trial.in_lane(Lane::of_chat(&crashing))
    };
    let crashed = trial.taken(event, SHORT).await;
    tokio::time::sleep(2 * SHORT).await;
    let id = crashed.lease.id;
    trial.claims(id, HELD, "an event that crashed").await;
    let found = other.queue.blocked_lanes(Some(&crashing), None, 10).await;
    let found = ok(found, "blocked_lanes");
    assert_eq!(found.len(), 1, "an event that crashed blocks its lane");
}

/// With an expected state, an event in another state is neither redriven nor discarded.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn changes_compare_the_state<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let changes = async |id: EventId, state: EventState, what: &str| {
        for from in EventState::ALL {
            if from == state {
                continue;
            }
            let redriven = ok(
                trial.queue.redrive(id, Some(from), &By::default()).await,
                "redrive",
            );
            let discarded = ok(
                trial.queue.discard(id, Some(from), &By::default()).await,
                "discard",
            );
            for change in [redriven, discarded] {
                assert_eq!(change, Change::WrongState, "{what}, changed as one {from}");
            }
            trial.is(id, state, what).await;
        }
    };
    let waiting = trial.accept(trial.event()).await;
    changes(waiting, EventState::Waiting, "an event that waits").await;
    let discarded = trial
        .queue
        .discard(waiting, Some(EventState::Waiting), &By::default())
        .await;
    assert_eq!(ok(discarded, "discard"), Change::Made);
    changes(waiting, EventState::Discarded, "a discarded event").await;

    for (settlement, state) in [
        (retry(HELD), EventState::Retrying),
        (skip(HELD), EventState::Retrying),
        (Settlement::Handled, EventState::Handled),
        (Settlement::Ignored, EventState::Ignored),
        (dead(false), EventState::Dead),
        (dead(true), EventState::Dead),
    ] {
        let taken = trial.taken(trial.in_lane(lane()), HELD).await;
        let id = taken.lease.id;
        changes(id, EventState::InProgress, "an event in progress").await;
        trial.settle(&taken, &settlement).await;
        changes(id, state, "an event after its attempt").await;
        let redriven = ok(
            trial.queue.redrive(id, Some(state), &By::default()).await,
            "redrive",
        );
        assert_eq!(redriven, Change::Made, "an event that is {state}");
        let taken = trial.claims(id, HELD, "an event that was redriven").await;
        let discarded = trial
            .queue
            .discard(id, Some(EventState::InProgress), &By::default())
            .await;
        assert_eq!(ok(discarded, "discard"), Change::Made, "one in progress");
        trial
            .refuses(&taken.lease, "an attempt of a discarded event")
            .await;
    }
    let unknown = EventId(i64::MAX);
    for from in [None, Some(EventState::Dead)] {
        let change = ok(
            trial.queue.redrive(unknown, from, &By::default()).await,
            "redrive",
        );
        assert_eq!(change, Change::NotFound, "an event that does not exist");
        let change = ok(
            trial.queue.discard(unknown, from, &By::default()).await,
            "discard",
        );
        assert_eq!(change, Change::NotFound, "an event that does not exist");
    }
}
