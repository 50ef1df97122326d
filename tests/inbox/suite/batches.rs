//! Deliveries of several events, and large ones.

use std::sync::Arc;

use super::make::{chat, key, kind, lane};
use super::steps::{Trial, ok};
use super::{HELD, Harness};
use tower_webhook::inbox::internal::{
    Accepted, BYTES_OF_CLAIM, Lane, NewEvent, Settled, Settlement, forget_all, in_delivery,
};
use tower_webhook::inbox::{By, EventId, EventState, EventSummary, Failure, Page};
use tower_webhook::store::EventKey;
use tower_webhook::{IdempotencyKey, Item, RawDelivery};

use support::queue::Calls;

/// The events of a batch, as an inbox makes them of its items.
fn batch(events: impl IntoIterator<Item = NewEvent>) -> Vec<NewEvent> {
    let mut events: Vec<_> = events.into_iter().collect();
    let count = events.len() as u32;
    let delivery = fastrand::i64(..);
    for (event, number) in events.iter_mut().zip(1..) {
        let item = in_delivery(Item::new(number, count), delivery);
        let item = item.keep(format!(r#"{{"at":{number}}}"#));
        event.delivery = event.delivery.clone().with_item(item);
    }
    events
}

impl Trial {
    async fn accept_all(&self, events: &[NewEvent]) -> Vec<Accepted> {
        let accepted = self.queue.accept.accept(events.into(), None).await;
        ok(accepted, "accept a batch")
    }

    /// Accepts a batch whose events are new.
    async fn new_batch(&self, events: &[NewEvent]) -> Vec<EventId> {
        let accepted = self.accept_all(events).await;
        assert_eq!(accepted.len(), events.len(), "the answers to a batch");
        let ids = accepted.iter().map(|accepted| match accepted {
            Accepted::New { id, taken: None } => *id,
            other => panic!("an item that is new was not accepted: {other:?}"),
        });
        ids.collect()
    }

    async fn listed(&self) -> Vec<EventSummary> {
        let listed = self.queue.list(&self.filter(), Page::oldest(50)).await;
        ok(listed, "list").events
    }

    fn items(&self, lanes: &[Option<Lane>]) -> Vec<NewEvent> {
        let event = |lane: &Option<Lane>| NewEvent {
            lane: *lane,
            ..self.with_key(&key(), "{}")
        };
        batch(lanes.iter().map(event))
    }
}

fn is_duplicate(accepted: &Accepted) -> bool {
    matches!(accepted, Accepted::Duplicate { .. })
}

/// The items of a batch are events of their own, in the order of the batch, and know each other. What is kept of their
/// delivery goes with their bodies.
pub(crate) async fn items_are_events<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let (one, two) = (lane(), lane());
    let events = trial.items(&[Some(one), Some(two), None, Some(one)]);
    let ids = trial.new_batch(&events).await;
    assert!(ids.is_sorted(), "the numbers of items: {ids:?}");
    for (number, (id, event)) in (1..).zip(ids.iter().zip(&events)) {
        let record = trial.record(*id).await;
        assert_eq!(record.item.as_ref(), event.delivery.item(), "an item");
        assert_eq!(record.summary.key.as_ref(), event.delivery.key());
        let others = (1..).zip(&ids).filter(|(other, _)| *other != number);
        let others: Vec<_> = others.map(|(other, id)| (other, *id)).collect();
        assert_eq!(record.others, others, "the other items");
    }
    let alone = trial.accept(trial.event()).await;
    let alone = trial.record(alone).await;
    assert_eq!((alone.item, alone.others), (None, Vec::new()));

    // The last one waits for the first.
    let taken = trial.claim(HELD, 9, 0).await.events;
    assert_eq!(taken.len(), 4, "the events that can be taken");
    let item = |id: EventId| {
        let taken = taken.iter().find(|taken| taken.lease.id == id);
        taken.map(|taken| taken.delivery.item().cloned())
    };
    for (id, event) in ids.iter().zip(&events).take(3) {
        assert_eq!(item(*id), Some(event.delivery.item().cloned()));
    }
    let first = taken.iter().find(|taken| taken.lease.id == ids[0]).unwrap();
    let take = trial.take(HELD);
    let settle = trial
        .queue
        .settle
        .settle(&first.lease, &Settlement::Handled, Some(&take));
    let Settled::Ended(Some(next)) = ok(settle.await, "settle") else {
        panic!("the next item of the lane was not taken")
    };
    assert_eq!(next.lease.id, ids[3], "the next item of the lane");
    assert_eq!(next.delivery.item(), events[3].delivery.item());

    let chat = chat();
    let in_chat = |event: NewEvent| NewEvent {
        lane: Some(Lane::of_chat(&chat)),
        chat: Some(chat.clone()),
        ..event
    };
    let forgotten = trial.items(&[None, None]).into_iter().map(in_chat);
    let forgotten = trial.new_batch(&forgotten.collect::<Vec<_>>()).await;
    let by = By::new("suite");
    ok(forget_all(&*trial.queue.forget, &chat, &by).await, "forget");
    for id in forgotten {
        let record = trial.record(id).await;
        assert_eq!(record.body, None, "the body of an item");
        assert_eq!(record.item.unwrap().kept(), None, "what is kept of an item");
    }
}

/// An item is accepted once, however its deliveries are cut. Of equal keys in one delivery, the first counts.
pub(crate) async fn items_are_accepted_once<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let events = trial.items(&[None, None, None]);
    trial.new_batch(&events).await;
    let again = trial.accept_all(&events).await;
    assert!(again.iter().all(is_duplicate), "{again:?}");

    let new = trial.items(&[None]).remove(0);
    let other_body = NewEvent {
        key: events[1]
            .key
            .map(|known| other_body(known, events[1].delivery.key())),
        ..events[1].clone()
    };
    let cut = [events[2].clone(), new.clone(), other_body, new.clone()];
    let cut = trial.accept_all(&cut).await;
    let [
        Accepted::Duplicate { same_body: true },
        Accepted::New { .. },
        Accepted::Duplicate { same_body: false },
        Accepted::Duplicate { same_body: true },
    ] = cut[..]
    else {
        panic!("a delivery that was cut in another way: {cut:?}")
    };
    let listed = trial.listed().await;
    assert_eq!(listed.len(), 4, "the events of both deliveries");
}

fn other_body(known: EventKey, key: Option<&IdempotencyKey>) -> EventKey {
    let other = EventKey::new("", key.unwrap().as_bytes(), b"another body");
    assert_eq!(other.key(), known.key());
    other
}

/// If the body of a delivery was accepted under another key, nothing of it is stored. Under the same key, what is missing
/// is.
pub(crate) async fn refused_batches_leave_nothing<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let body = fastrand::u128(..).to_string();
    let guarded = |of: &str, events: &[NewEvent]| -> Vec<NewEvent> {
        let guard = EventKey::new("bodies", body.as_bytes(), of.as_bytes());
        let with_guard = |event: &NewEvent| NewEvent {
            guard: Some(guard),
            ..event.clone()
        };
        events.iter().map(with_guard).collect()
    };
    let first = guarded("a", &trial.items(&[None, None]));
    trial.new_batch(&first).await;
    let replayed = guarded("b", &trial.items(&[Some(lane()), None]));
    let replayed = trial.accept_all(&replayed).await;
    let is_refused = matches!(replayed[..], [Accepted::BodyReplayed]);
    assert!(
        is_refused,
        "a body that was accepted under another key: {replayed:?}"
    );
    assert_eq!(trial.listed().await.len(), 2);
    let more = guarded("a", &[&first[..], &trial.items(&[None])].concat());
    let more = trial.accept_all(&more).await;
    assert!(is_duplicate(&more[0]) && is_duplicate(&more[1]), "{more:?}");
    assert!(matches!(more[2], Accepted::New { .. }), "{more:?}");
    // One after another, as a spool forwards them.
    let last = guarded("a", &trial.items(&[None, None]));
    for event in last {
        let accepted = trial.accept_all(&[event]).await;
        assert!(
            matches!(accepted[..], [Accepted::New { .. }]),
            "{accepted:?}"
        );
    }
}

/// One event of a delivery is taken with it: the first one that is of the kinds.
pub(crate) async fn first_items_are_taken<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let mut events = trial.items(&[Some(lane()), Some(lane()), None]);
    let elsewhere = kind();
    let item = events[0].delivery.item().unwrap().clone();
    events[0].delivery = RawDelivery::new(elsewhere, "{}")
        .with_key(key())
        .with_item(item);
    let take = trial.take(HELD);
    let accepted = trial.queue.accept.accept(events.into(), Some(&take)).await;
    let accepted = ok(accepted, "accept a batch");
    let taken: Vec<_> = accepted
        .iter()
        .map(|accepted| matches!(accepted, Accepted::New { taken: Some(_), .. }))
        .collect();
    assert_eq!(taken, [false, true, false], "which items were taken");
    assert_eq!(trial.claim(HELD, 9, 0).await.events.len(), 1);
}

/// An item that cannot be read is a dead letter, and keeps no other one from being handled.
pub(crate) async fn unreadable_items_are_dead<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let one = lane();
    let mut events = trial.items(&[None, Some(one), Some(one)]);
    events[1].dead = Some(Failure::new("undecodable", "it is no JSON object"));
    let ids = trial.new_batch(&events).await;
    let states = [EventState::Waiting, EventState::Dead, EventState::Waiting];
    for (id, state) in ids.iter().zip(states) {
        assert_eq!(trial.record(*id).await.summary.state, state);
    }
    assert_eq!(trial.claim(HELD, 9, 0).await.events.len(), 2);
}

/// As many items as a delivery may have are accepted, and recognised, in one step each.
pub(crate) async fn largest_batches_are_accepted<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let lanes: Vec<_> = (0..100).map(|_| Some(lane())).collect();
    let lanes: Vec<_> = (0..10_000).map(|at| lanes[at % lanes.len()]).collect();
    let events: Arc<[_]> = trial.items(&lanes).into();
    let ids = trial.new_batch(&events).await;
    // Each knows the nearest ones.
    for (at, from) in [(0, 0), (17, 7), (5_000, 4_990), (9_999, 9_979)] {
        let others = (from..=from + 20).filter(|other| *other != at);
        let others: Vec<_> = others.map(|other| (other as u32 + 1, ids[other])).collect();
        assert_eq!(
            trial.record(ids[at]).await.others,
            others,
            "the other items"
        );
    }
    let again = trial.accept_all(&events).await;
    assert_eq!(again.iter().filter(|it| is_duplicate(it)).count(), 10_000);
    assert_eq!(trial.claim(HELD, 200, 0).await.events.len(), 100);
}

/// A claim stops at an event that fills it, and the next one goes on.
pub(crate) async fn claims_are_limited_by_bytes<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let body = vec![b' '; BYTES_OF_CLAIM / 2];
    for _ in 0..5 {
        let delivery = RawDelivery::new(trial.kind.clone(), body.clone());
        let large = NewEvent {
            delivery,
            ..trial.event()
        };
        trial.accept(large).await;
    }
    let mut taken = Vec::new();
    for _ in 0..3 {
        taken.push(trial.claim(HELD, 9, 0).await.events.len());
    }
    assert_eq!(taken, [2, 2, 1], "the events of claims");
}
