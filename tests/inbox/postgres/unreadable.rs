//! Kinds that are forged or deleted, and events that cannot be read.

use std::time::Duration;

use futures_util::future::join_all;
use tower_webhook::RawDelivery;
use tower_webhook::event::EventKind;
use tower_webhook::inbox::internal::{Accepted, NewEvent, Settled, Settlement, Take};
use tower_webhook::inbox::{EventState, Filter, Page};

use support::database::{Database, count, execute};
use support::queue::Calls;

use super::{event, key, take};

/// Copies of one captured delivery, each with another kind, as the header is not signed.
#[tokio::test(flavor = "multi_thread")]
async fn forged_kinds_do_not_slow_claims_down() {
    const BATCH: usize = 128;

    let database = Database::create().await;
    let (queue, pool) = (database.queue().await, database.pool(1).await);
    let forged = |n: usize| NewEvent {
        delivery: RawDelivery::new(format!("forged-{n}").parse().unwrap(), "{}"),
        ..event(Some(key("captured")), None)
    };
    queue.accept_one(forged(0), None).await.unwrap();
    for first in (0..10_000).step_by(BATCH) {
        let replays = (first..first + BATCH).map(|n| queue.accept_one(forged(n), None));
        for replay in join_all(replays).await {
            assert!(matches!(replay.unwrap(), Accepted::Duplicate { .. }));
        }
    }
    let kinds = "SELECT count(*) FROM tower_webhook.kinds WHERE id > 8";
    assert_eq!(count(&pool, kinds).await, 1);

    // Without a key, each copy is an event, and none of its kind is left when it is deleted. Few of the kinds may wait at once.
    let mut handled = 0;
    for first in (0..2_000).step_by(BATCH) {
        let replays = (first..first + BATCH).map(|n| {
            let event = NewEvent {
                key: None,
                retain: Duration::ZERO,
                ..forged(n)
            };
            queue.accept_one(event, None)
        });
        for replay in join_all(replays).await {
            assert!(matches!(replay.unwrap(), Accepted::New { .. }));
        }
        loop {
            let claims = queue.claim_of(&take(), 64, 64).await.unwrap();
            if claims.events.is_empty() {
                break;
            }
            handled += claims.events.len();
            let settle = |taken| queue.settle(taken, &Settlement::Ignored, None);
            let leases: Vec<_> = claims.events.iter().map(|taken| taken.lease).collect();
            for settled in join_all(leases.iter().map(settle)).await {
                settled.unwrap();
            }
        }
    }
    assert!(count(&pool, kinds).await >= 2_000);
    assert!(handled > 2_000);
    // A claim does not visit them. Each visit reads some pages.
    execute(&pool, "VACUUM tower_webhook.head").await;
    let claim = "EXPLAIN (ANALYZE, BUFFERS) SELECT tower_webhook.claim(
        '{chat-platform}', '{30000000}', '{0}', '{64}', '{}', '{}', '{}', 64, 8, '{}', 0, 0, 0, 0, 1000000,
        '{64}', '{}', '{}', '{}')";
    // The first one on a connection reads what the server knows of tables and functions, too.
    execute(&pool, claim).await;
    let plan: Vec<String> = sqlx::query_scalar(claim).fetch_all(&pool).await.unwrap();
    let hits = plan.iter().find_map(|line| line.split_once("shared hit="));
    let (_, hits) = hits.unwrap_or_else(|| panic!("{plan:?}"));
    let pages: u64 = hits.split(' ').next().unwrap().parse().unwrap();
    assert!(pages < 100, "{pages} pages");
    while queue.purge(Duration::ZERO).await.unwrap() {}
    // That of the captured delivery, which has a key.
    assert_eq!(count(&pool, kinds).await, 1);
}

/// What makes an event of a kind that has no other one, while a purge deletes kinds.
#[tokio::test(flavor = "multi_thread")]
async fn kinds_are_not_deleted_under_an_event() {
    let database = Database::create().await;
    let (queue, pool) = (database.queue().await, database.pool(1).await);
    let archived: EventKind = "chat-archived".parse().unwrap();
    for _ in 0..200 {
        let event = NewEvent {
            delivery: RawDelivery::new(archived.clone(), "{}"),
            retain: Duration::ZERO,
            ..event(None, None)
        };
        let take = take();
        let (accepted, purged) = tokio::join!(
            queue.accept_one(event, Some(&take)),
            queue.purge(Duration::ZERO)
        );
        purged.unwrap();
        let Accepted::New {
            taken: Some(taken), ..
        } = accepted.unwrap()
        else {
            panic!("not taken");
        };
        let orphans = "SELECT count(*) FROM tower_webhook.events AS e
            WHERE NOT EXISTS (SELECT FROM tower_webhook.kinds AS k WHERE k.id = e.kind)";
        assert_eq!(count(&pool, orphans).await, 0);
        queue
            .settle(&taken.lease, &Settlement::Ignored, None)
            .await
            .unwrap();
    }
}

/// Somebody changed the rows of two events of five.
#[tokio::test(flavor = "multi_thread")]
async fn unreadable_events_are_passed_over_and_become_dead_letters() {
    let database = Database::create().await;
    let (queue, pool) = (database.queue().await, database.pool(1).await);
    for lane in 1..=5 {
        let accepted = queue.accept_one(event(None, Some(lane)), None).await;
        assert!(matches!(accepted.unwrap(), Accepted::New { .. }));
    }
    // A second event in the lane of one of them.
    queue.accept_one(event(None, Some(2)), None).await.unwrap();
    execute(
        &pool,
        "UPDATE tower_webhook.events SET key = '\\x0a' WHERE seq = 2;
         UPDATE tower_webhook.events SET body = NULL WHERE seq = 4",
    )
    .await;
    let short = Take {
        lease: Duration::from_millis(1),
        ..take()
    };
    let claims = queue.claim_of(&short, 64, 64).await.unwrap();
    let ids: Vec<_> = claims.events.iter().map(|taken| taken.lease.id.0).collect();
    assert_eq!(ids, [1, 3, 5]);
    for taken in claims.events {
        let settled = queue.settle(&taken.lease, &Settlement::Handled, None);
        assert!(matches!(settled.await.unwrap(), Settled::Ended(None)));
    }
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let claims = queue.claim_of(&short, 64, 64).await.unwrap();
        assert!(claims.events.is_empty());
    }
    let dead = "SELECT count(*) FROM tower_webhook.dead WHERE seq IN (2, 4)";
    assert_eq!(count(&pool, dead).await, 2);
    let failures = "SELECT count(*) FROM tower_webhook.failures
        WHERE seq IN (2, 4) AND outcome = 'unreadable'";
    assert_eq!(count(&pool, failures).await, 2);
    let filter = Filter::default().states([EventState::Dead]);
    let listed = queue.list(&filter, Page::oldest(10)).await.unwrap();
    let listed: Vec<_> = listed.events.iter().map(|event| event.id.0).collect();
    assert_eq!(listed, [2, 4]);
    // The chat goes on.
    let claims = queue.claim_of(&take(), 64, 64).await.unwrap();
    let ids: Vec<_> = claims.events.iter().map(|taken| taken.lease.id.0).collect();
    assert_eq!(ids, [6]);
}

/// The next event of a lane, which a settlement takes.
#[tokio::test(flavor = "multi_thread")]
async fn a_settlement_passes_over_an_unreadable_event() {
    let database = Database::create().await;
    let (queue, pool) = (database.queue().await, database.pool(1).await);
    for _ in 0..2 {
        queue.accept_one(event(None, Some(1)), None).await.unwrap();
    }
    execute(
        &pool,
        "UPDATE tower_webhook.events SET body = NULL WHERE seq = 2",
    )
    .await;
    let claims = queue.claim_of(&take(), 1, 1).await.unwrap();
    let lease = claims.events[0].lease;
    let take = take();
    let settled = queue.settle(&lease, &Settlement::Handled, Some(&take));
    assert!(matches!(settled.await.unwrap(), Settled::Ended(None)));
}
