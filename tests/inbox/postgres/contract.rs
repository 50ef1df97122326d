//! The conformance suite, keys that are shared with the store, the schema and rights.

use std::error::Error;
use std::time::Duration;

use crate::suite::{
    self, batches_wait_for_what_is_handled_inline, full_inboxes_know_what_was_handled_inline,
};
use futures_util::future::join_all;
use tower_webhook::event::EventKind;
use tower_webhook::inbox::internal::{Accepted, NewEvent, Settled, Settlement};
use tower_webhook::inbox::{By, Change, EventState, Filter, Page};
use tower_webhook::postgres::PostgresQueue;
use tower_webhook::postgres::PostgresStore;
use tower_webhook::store::{Claim, EventKey, KeyState, Store, StoreErrorKind};

use support::database::{Database, connect, count, execute};
use support::queue::{Calls, skip};

use super::{LEASE, RETENTION, accept, end, event, failure, key, take};

#[tokio::test(flavor = "multi_thread")]
async fn conforms() {
    suite::run(&Database::create().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conforms_with_other_session_defaults() {
    for setting in [
        "default_transaction_isolation = 'serializable'",
        "default_transaction_isolation = 'repeatable read'",
    ] {
        let database = Database::create().await;
        let name = database.url.rsplit('/').next().unwrap();
        let pool = database.pool(1).await;
        execute(&pool, &format!("ALTER DATABASE {name} SET {setting}")).await;
        execute(
            &pool,
            &format!("ALTER DATABASE {name} SET timezone = 'Pacific/Chatham'"),
        )
        .await;
        suite::run(&database).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_inbox_knows_what_its_store_handled() {
    let database = Database::create().await;
    let queue = database.queue().await;
    let store = PostgresStore::new(database.pool(2).await);
    batches_wait_for_what_is_handled_inline(store.clone(), queue.clone()).await;
    full_inboxes_know_what_was_handled_inline(store, queue).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_shared_with_the_store_both_ways() {
    let database = Database::create().await;
    let queue = database.queue().await;
    let store = PostgresStore::new(database.pool(2).await);

    // What the store knows as done is a duplicate.
    let claim = store.claim(&key("inline"), LEASE, RETENTION).await.unwrap();
    let Claim::Acquired(lease) = claim else {
        panic!("{claim:?}");
    };
    let inline = || queue.accept_one(event(Some(key("inline")), Some(1)), None);
    let in_flight = inline().await.unwrap();
    let Accepted::InFlight { remaining } = in_flight else {
        panic!("{in_flight:?}");
    };
    assert!(!remaining.is_zero() && remaining <= LEASE);
    store.complete(&lease, RETENTION).await.unwrap();
    let done = inline().await.unwrap();
    assert!(matches!(done, Accepted::Duplicate { same_body: true }));
    let other = EventKey::new("", b"inline", b"{ }");
    let done = queue
        .accept_one(event(Some(other), None), None)
        .await
        .unwrap();
    assert!(matches!(done, Accepted::Duplicate { same_body: false }));

    // What the store gave up, or whose run died, is accepted.
    for (name, lease) in [("released", LEASE), ("died", Duration::from_millis(1))] {
        let claim = store.claim(&key(name), lease, RETENTION).await.unwrap();
        let Claim::Acquired(lease) = claim else {
            panic!("{claim:?}");
        };
        if name == "released" {
            store.release(&lease).await.unwrap();
        } else {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        accept(&queue, event(Some(key(name)), None)).await;
        assert_eq!(store.peek(&key(name)).await.unwrap(), KeyState::Done);
        assert!(store.complete(&lease, RETENTION).await.is_err());
    }

    // What the queue accepted is done.
    accept(&queue, event(Some(key("accepted")), None)).await;
    let claim = store.claim(&key("accepted"), LEASE, RETENTION).await;
    let claim = claim.unwrap();
    assert!(matches!(claim, Claim::Done { same_body: true }));
    let other = EventKey::new("", b"accepted", b"{ }");
    let claim = store.claim(&other, LEASE, RETENTION).await.unwrap();
    assert!(matches!(claim, Claim::Done { same_body: false }));
}

#[tokio::test(flavor = "multi_thread")]
async fn key_of_an_event_is_kept_until_the_event_is_settled_and_purged() {
    let database = Database::create().await;
    let queue = database.queue().await;
    let pool = database.pool(1).await;
    let store = PostgresStore::new(database.pool(2).await);
    let short = |name: &str, lane| NewEvent {
        retain: Duration::from_millis(1),
        ..event(Some(key(name)), lane)
    };
    let (_, first) = accept(&queue, short("in progress", Some(1))).await;
    let (_, none) = accept(&queue, short("waits", Some(1))).await;
    assert!(none.is_none());
    let (_, aside) = accept(&queue, short("aside", Some(2))).await;
    let later = skip(LEASE);
    end(&queue, &aside.unwrap(), later).await;
    let (_, dead) = accept(&queue, short("dead", None)).await;
    let give_up = Settlement::Dead {
        failure: failure(),
        hold_lane: false,
    };
    end(&queue, &dead.unwrap(), give_up).await;
    let (_, handled) = accept(&queue, short("handled", None)).await;
    end(&queue, &handled.unwrap(), Settlement::Handled).await;

    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(store.purge().await.unwrap(), 0);
    assert!(!queue.purge(Duration::ZERO).await.unwrap());
    let keys = "SELECT count(*) FROM tower_webhook.keys";
    assert_eq!(count(&pool, keys).await, 4);
    for name in ["in progress", "waits", "aside", "dead"] {
        let again = queue.accept_one(short(name, None), None).await.unwrap();
        assert!(matches!(again, Accepted::Duplicate { .. }), "{name}");
        assert_eq!(store.peek(&key(name)).await.unwrap(), KeyState::Done);
    }
    accept(&queue, short("handled", None)).await;

    end(&queue, &first.unwrap(), Settlement::Handled).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    queue.purge(RETENTION).await.unwrap();
    let again = queue.accept_one(short("in progress", None), None).await;
    assert!(matches!(again.unwrap(), Accepted::New { .. }));
}

/// Calls at one time share a statement: what differs between them decides as it does for calls in turn.
#[tokio::test(flavor = "multi_thread")]
async fn calls_at_one_time_have_the_results_of_calls_in_turn() {
    let database = Database::create().await;
    let queue = database.queue().await;
    let pool = database.pool(1).await;
    // An event that returns to its lane with the next operation there.
    let (_, skipped) = accept(&queue, event(None, Some(4))).await;
    end(&queue, &skipped.unwrap(), skip(Duration::ZERO)).await;
    let next = take();
    for round in 0..4 {
        let accepts = (0..100i64).map(|at| {
            // Keys come twice, and in the second round all of them are known.
            let name = format!("{} {}", round / 2, at % 50);
            let guard = EventKey::new(
                "guard",
                format!("{round} {}", at / 2).as_bytes(),
                name.as_bytes(),
            );
            let event = NewEvent {
                guard: (at % 4 == 0).then_some(guard),
                dead: (at % 50 == 9).then(failure),
                ..event(Some(key(&name)), (at % 7 != 0).then_some(at % 6))
            };
            queue.accept_one(event, Some(&next))
        });
        let accepted: Vec<_> = join_all(accepts)
            .await
            .into_iter()
            .map(Result::unwrap)
            .collect();
        let mut leases = Vec::new();
        for (at, one) in accepted.iter().enumerate().take(50) {
            let both = [one, &accepted[at + 50]];
            let new = both
                .iter()
                .filter(|one| matches!(one, Accepted::New { .. }));
            assert_eq!(new.count(), usize::from(round % 2 == 0), "{both:?}");
            for one in both {
                match one {
                    Accepted::New { taken, .. } => {
                        assert!(taken.is_none() || at != 9, "a dead letter was taken");
                        leases.extend(taken.as_ref().map(|taken| taken.lease));
                    }
                    Accepted::Duplicate { same_body: true } => {}
                    other => panic!("{other:?}"),
                }
            }
        }
        // An event of the lane that had one before, and each of the others that waited for none.
        assert!(round % 2 == 1 || leases.len() >= 10, "{leases:?}");

        // Each end comes twice, some of them not as handled, and the next events follow.
        loop {
            if leases.is_empty() {
                let claims = queue.claim_of(&next, 100, 100).await.unwrap();
                leases = claims.events.iter().map(|taken| taken.lease).collect();
            }
            if leases.is_empty() {
                break;
            }
            let ends = leases.iter().chain(&leases).map(|lease| {
                let settlement = match lease.id.0 % 5 {
                    0 => Settlement::Ignored,
                    1 => Settlement::Discarded(failure()),
                    _ => Settlement::Handled,
                };
                let (queue, next, lease) = (&queue, &next, *lease);
                async move { queue.settle(&lease, &settlement, Some(next)).await.unwrap() }
            });
            let settled = join_all(ends).await;
            let lost = settled
                .iter()
                .filter(|one| matches!(one, Settled::Lost))
                .count();
            assert_eq!(lost, leases.len());
            let next = settled.into_iter().filter_map(|one| match one {
                Settled::Ended(next) => next,
                Settled::Lost => None,
            });
            leases = next.map(|taken| taken.lease).collect();
        }
        let stats = queue.stats().await.unwrap();
        assert_eq!(stats.unsettled(), 0, "{stats:?}");
    }
    let ended = "SELECT count(*) FROM tower_webhook.ended";
    assert_eq!(count(&pool, ended).await, 1 + 2 * 49);
    let dead = "SELECT count(*) FROM tower_webhook.dead";
    assert_eq!(count(&pool, dead).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_schema_is_explained() {
    let database = Database::create().await;
    let queue = PostgresQueue::new(database.pool(1).await);
    let error = queue.accept_one(event(None, None), None).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    let advice = error.source().unwrap().to_string();
    assert!(advice.contains("migrate"), "{advice}");
    let error = queue.stats().await.unwrap_err();
    let advice = error.source().unwrap().to_string();
    assert!(advice.contains("migrate"), "{advice}");
}

/// What the page says is enough.
#[tokio::test(flavor = "multi_thread")]
async fn queue_works_with_the_rights_that_its_page_names() {
    let database = Database::create().await;
    let admin = database.queue().await;
    let pool = database.pool(1).await;
    let role = format!("app_{}", database.url.rsplit('_').next().unwrap());
    execute(
        &pool,
        &format!(
            "CREATE ROLE {role} LOGIN;
             GRANT USAGE ON SCHEMA tower_webhook TO {role};
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA tower_webhook TO {role}"
        ),
    )
    .await;
    let url = database.url.replace("postgres@", &format!("{role}@"));
    let queue = PostgresQueue::new(connect(&url, 2).await);
    queue.migrate().await.unwrap();
    accept(&admin, event(None, None)).await;
    let (_, taken) = accept(&queue, event(Some(key("a")), Some(1))).await;
    accept(&queue, event(Some(key("b")), Some(1))).await;
    let give_up = Settlement::Dead {
        failure: failure(),
        hold_lane: true,
    };
    end(&queue, &taken.unwrap(), give_up).await;
    let page = Page::newest(10);
    let dead = Filter::default().states([EventState::Dead]);
    let dead = queue.list(&dead, page).await.unwrap().events;
    assert_eq!(dead.len(), 1);
    assert_eq!(
        queue
            .redrive(dead[0].id, None, &By::default())
            .await
            .unwrap(),
        Change::Made
    );
    assert_eq!(
        queue
            .discard(dead[0].id, None, &By::default())
            .await
            .unwrap(),
        Change::Made
    );
    queue
        .pause(&EventKind::CHAT_RATED.into(), Some(""), &By::default())
        .await
        .unwrap();
    assert_eq!(
        queue.claim_of(&take(), 10, 0).await.unwrap().events.len(),
        1
    );
    assert_eq!(queue.forget_all("1", &By::default()).await.unwrap(), 2);
    queue.purge(Duration::ZERO).await.unwrap();
    queue.size().await.unwrap();
    assert_eq!(queue.stats().await.unwrap().unsettled(), 1);
}
