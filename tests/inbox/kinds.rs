//! Event types that wait, as nobody takes them: how many there may be, and what they cost those that are taken.

use std::slice;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use support::delivery::{RequestExt, send};
use support::inbox::{event, inbox, webhooks};
use support::log::Log;
use support::queue::new_event;
use support::scratch::Scratch;
use tower_webhook::event::EventKind;
use tower_webhook::inbox::internal::{
    AcceptOne, Accepted, Kinds, Lane, MOST_WAITING_KINDS, NewEvent, NewNote, Settlement, Take,
};
use tower_webhook::inbox::{EventState, Failure, Filter, Page, Queue, Scope};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::{EventType, RouteName};
use tracing::Level;

use crate::suite::Harness;

fn route(name: &str) -> RouteName {
    name.parse().unwrap()
}

fn at(name: &str, kind: &str) -> NewEvent {
    let event = new_event(kind.parse().unwrap(), "{}");
    NewEvent {
        delivery: event.delivery.with_route(route(name)),
        ..event
    }
}

fn take(name: &str, kinds: Kinds) -> Take {
    Take {
        lease: Duration::from_secs(60),
        kinds: kinds.at(route(name)),
    }
}

/// Has as many types of a route wait as may.
async fn fill(queue: &Queue, route: &str) {
    let kinds = Vec::from_iter(0..MOST_WAITING_KINDS);
    for kinds in kinds.chunks(250) {
        let accepts = kinds.iter().map(|kind| {
            queue
                .accept
                .accept_one(at(route, &format!("kind-{kind}")), None)
        });
        for accepted in join_all(accepts).await {
            let accepted = accepted.unwrap();
            assert!(matches!(accepted, Accepted::New { .. }), "{accepted:?}");
        }
    }
}

async fn waiting_types_are_bounded<H: Harness>(harness: &H) {
    let queue = harness.open().await;
    fill(&queue, "forged").await;
    let accept = async |event, take| queue.accept.accept_one(event, take).await.unwrap();
    let is_new = |accepted: &Accepted| matches!(accepted, Accepted::New { .. });
    let one_more = || at("forged", "one-more");
    let behind = NewEvent {
        lane: Some(Lane(7)),
        ..one_more()
    };
    for event in [one_more(), behind] {
        let Accepted::DeadLetter { id } = accept(event, None).await else {
            panic!("it waits")
        };
        let record = queue.list.get(id).await.unwrap().unwrap();
        assert_eq!(record.summary.state, EventState::Dead);
        let failure = &record.failures[0].failure;
        assert_eq!(failure.outcome, "too-many-types");
        assert!(failure.reason.starts_with("1,000 other event types"));
        assert!(failure.reason.ends_with("then redrive this event"));
        let written = Failure::new(failure.outcome.clone(), failure.reason.clone());
        assert_eq!(failure.shape, written.shape);
    }
    assert!(is_new(&accept(at("forged", "kind-5"), None).await));
    assert!(is_new(&accept(at("another", "one-more"), None).await));
    // One that is taken does not wait.
    let all = take("forged", Kinds::only(["one-more".parse().unwrap()]));
    let Accepted::New { taken, .. } = accept(one_more(), Some(&all)).await else {
        panic!("it is taken")
    };
    let lease = taken.unwrap().lease;
    // Nor does another one of its type begin to.
    assert!(is_new(&accept(one_more(), None).await));
    let settle = queue.settle.settle(&lease, &Settlement::Handled, None);
    settle.await.unwrap();

    // A type that no longer waits makes room.
    let both = ["kind-7", "one-more"].map(|kind| kind.parse().unwrap());
    let of = [take("forged", Kinds::only(both)).into()];
    let taken = queue.claim.claim(&of, 9, 0).await.unwrap().events;
    assert_eq!(taken.len(), 2);
    for taken in taken {
        let settle = queue
            .settle
            .settle(&taken.lease, &Settlement::Handled, None);
        settle.await.unwrap();
    }
    assert!(is_new(&accept(one_more(), None).await));
    let last = accept(at("forged", "last"), None).await;
    assert!(matches!(last, Accepted::DeadLetter { .. }), "{last:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_type_more_than_may_wait_is_a_dead_letter() {
    on_every_queue!(waiting_types_are_bounded);
}

/// As many types as may wait do not keep an event from a busy worker that handles its type.
async fn types_with_a_worker_wait<H: Harness>(harness: &H) {
    let queue = harness.open().await;
    let note = async |of: Scope, is_fallback| {
        let note = NewNote {
            of,
            is_fallback,
            keep: Duration::from_secs(60),
        };
        let notes = queue
            .count
            .note_handlers("a worker", slice::from_ref(&note));
        notes.await.unwrap();
    };
    for name in ["forged", "chat-platform"] {
        fill(&queue, name).await;
        // A handler of all others gets what is forged, too.
        note(Scope::Route(route(name)), true).await;
        for (kind, is_fallback) in [("own", false), ("push/own", true)] {
            let accept = async || queue.accept.accept_one(at(name, kind), None).await.unwrap();
            let before = accept().await;
            assert!(matches!(before, Accepted::DeadLetter { .. }), "{before:?}");
            let of = EventType::new(route(name), kind.parse().unwrap());
            note(of.into(), is_fallback).await;
            let after = accept().await;
            assert!(matches!(after, Accepted::New { .. }), "{after:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_types_keep_no_event_from_a_busy_worker() {
    on_every_queue!(types_with_a_worker_wait);
}

/// The shortest of 20 claims of one type takes less than `limit`, while others wait that nobody takes.
async fn claims_are_quick(harness: &impl Harness, limit: Duration) {
    let queue = harness.open().await;
    for route in ["one", "two", "three", "four"] {
        fill(&queue, route).await;
    }
    let take = take("chat-platform", Kinds::only([EventKind::CHAT_RATED]));
    let mut shortest = Duration::MAX;
    for _ in 0..20 {
        let rated = new_event(EventKind::CHAT_RATED, "{}");
        queue.accept.accept_one(rated, None).await.unwrap();
        let of = [take.clone().into()];
        let began = Instant::now();
        let claims = queue.claim.claim(&of, 1, 1).await.unwrap();
        shortest = shortest.min(began.elapsed());
        assert_eq!(claims.events.len(), 1);
    }
    println!("{shortest:?}");
    assert!(shortest < limit, "a claim takes {shortest:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn types_that_nobody_takes_cost_a_claim_nothing() {
    let millis = Duration::from_millis;
    claims_are_quick(&MemoryQueue::new(), millis(1)).await;
    claims_are_quick(&Scratch::new(), millis(10)).await;
    let database = support::database::Database::create().await;
    claims_are_quick(&database, millis(40)).await;
}

#[tokio::test]
async fn an_event_of_one_type_more_is_answered_with_200_and_reported() {
    let log = Log::capture(Level::ERROR);
    let inbox = inbox();
    let receiver = webhooks(&inbox);
    for n in 0..=MOST_WAITING_KINDS {
        let sent = event(&n.to_string(), n).kind(&format!("kind-{n}"));
        assert_eq!(send(&receiver, sent).await.status, 200);
    }
    let dead = Filter::default().states([EventState::Dead]);
    let listed = inbox.list(&dead, Page::oldest(9)).await.unwrap().events;
    assert_eq!(listed.len(), 1);
    assert_eq!(
        log.count(Level::ERROR, "the event is a dead letter"),
        1,
        "{}",
        log.text()
    );
}
