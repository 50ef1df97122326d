//! Keys, which the queue shares with a store.

use super::*;
use crate::store::{Claim, KeyState, Store};

#[tokio::test]
async fn keys_are_shared_with_a_store_both_ways() {
    let desk = Desk::new();
    let store = SqliteStore::open(desk.path()).unwrap();
    let queue = SqliteQueue::with_store(&store);
    let claim = async |key| store.claim(&id(key), 30 * SECOND, DAY).await.unwrap();
    let Claim::Acquired(done) = claim(1).await else {
        panic!("a new key is not free")
    };
    store.complete(&done, DAY).await.unwrap();
    let Claim::Acquired(in_flight) = claim(2).await else {
        panic!("a new key is not free")
    };
    let Claim::Acquired(released) = claim(3).await else {
        panic!("a new key is not free")
    };
    store.release(&released).await.unwrap();

    let duplicate = queue.accept_one(keyed(1, 1), None).await.unwrap();
    assert!(matches!(duplicate, Accepted::Duplicate { same_body: true }));
    let other_body = NewEvent {
        key: Some(EventKey::new("", &1_u64.to_be_bytes(), b"{ }")),
        ..keyed(1, 1)
    };
    let duplicate = queue.accept_one(other_body, None).await.unwrap();
    assert!(matches!(
        duplicate,
        Accepted::Duplicate { same_body: false }
    ));
    let held = queue.accept_one(keyed(1, 2), None).await.unwrap();
    assert!(matches!(held, Accepted::InFlight { remaining } if remaining > 29 * SECOND));
    store.release(&in_flight).await.unwrap();
    for key in [2, 3, 4] {
        queue.add(keyed(1, key)).await;
        assert_eq!(store.peek(&id(key)).await.unwrap(), KeyState::Done);
        assert!(matches!(claim(key).await, Claim::Done { same_body: true }));
        let duplicate = queue.accept_one(keyed(1, key), None).await.unwrap();
        assert!(matches!(duplicate, Accepted::Duplicate { same_body: true }));
    }
    // The late finisher of a key that the inbox has taken over.
    assert!(store.complete(&in_flight, DAY).await.is_err());
}

#[tokio::test]
async fn a_key_is_kept_while_its_event_is_unsettled_or_dead() {
    let desk = Desk::new();
    let queue = desk.open();
    let guard = |of: u64| EventKey::new("body", &of.to_be_bytes(), &of.to_be_bytes());
    let guarded = |key| NewEvent {
        guard: Some(guard(key)),
        ..keyed(key as i64, key)
    };
    for key in 1..=3 {
        queue.add_and_take(guarded(key)).await;
    }
    let [done, dead, waits] = &queue_all(&desk, &queue, 3).await[..] else {
        panic!("three were accepted")
    };
    queue.end(done, Settlement::Handled).await;
    let failed = Settlement::Dead {
        failure: failure(),
        hold_lane: false,
    };
    queue.end(dead, failed).await;

    desk.wait(20 * DAY);
    for _ in 0..10 {
        queue.claim(&[take().into()], 0, 0).await.unwrap();
    }
    queue.purge_all(DAY).await;
    assert_eq!(queue.sql("SELECT count(*) FROM keys").await, 4);
    for key in [2, 3] {
        let duplicate = queue.accept_one(guarded(key), None).await.unwrap();
        assert!(matches!(duplicate, Accepted::Duplicate { same_body: true }));
        let replayed = NewEvent {
            key: Some(id(100 + key)),
            guard: Some(EventKey::new("body", &key.to_be_bytes(), b"another key")),
            ..event(1)
        };
        let replayed = queue.accept_one(replayed, None).await.unwrap();
        assert!(matches!(replayed, Accepted::BodyReplayed), "{replayed:?}");
    }
    queue.add(guarded(1)).await;
    queue
        .change(ActionKind::Discard, dead.lease.id, None, &By::default())
        .await
        .unwrap();
    queue
        .change(ActionKind::Discard, waits.lease.id, None, &By::default())
        .await
        .unwrap();
    for _ in 0..10 {
        queue.claim(&[take().into()], 0, 0).await.unwrap();
    }
    assert_eq!(queue.sql("SELECT count(*) FROM keys").await, 2);
}
