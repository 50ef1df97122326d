//! Processes, calls and operators at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tower_webhook::RawDelivery;
use tower_webhook::event::EventKind;
use tower_webhook::inbox::internal::{Accepted, Settled, Settlement};
use tower_webhook::inbox::{By, Change, EventId, EventState, Filter, Page};
use tower_webhook::postgres::PostgresQueue;

use support::database::{Database, count, execute};
use support::queue::Calls;

use super::processes::two_processes;
use super::{LEASE, MISPLACED, event, failure, key, take};

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_handle_each_event_once_and_in_the_order_of_its_lane() {
    two_processes(&Database::create().await).await;
}

/// Everything at once, in few lanes: no event is in two places or nowhere.
#[tokio::test(flavor = "multi_thread")]
async fn console_and_workers_do_not_lose_events_to_each_other() {
    const EVENTS: u64 = 150;

    let database = Database::create().await;
    let queues = [database.queue().await, database.queue().await];
    let mut tasks = JoinSet::new();
    let ended = Arc::new(AtomicU32::new(0));
    for (at, queue) in queues.iter().enumerate() {
        for caller in 0..4 {
            let (queue, ended) = (queue.clone(), Arc::clone(&ended));
            tasks.spawn(async move {
                for round in 0..EVENTS {
                    let n = round * 8 + (at as u64 * 4) + caller;
                    let lane = (!n.is_multiple_of(5)).then_some((n % 3) as i64);
                    let next = n.is_multiple_of(2).then(take);
                    let accepted = queue
                        .accept_one(event(None, lane), Some(&take()))
                        .await
                        .unwrap();
                    let Accepted::New { id, mut taken } = accepted else {
                        panic!("it has no key");
                    };
                    let mut steps = 0;
                    while let Some(now) = taken {
                        steps += 1;
                        let end = match (n + steps) % 9 {
                            0 => Settlement::Released,
                            1 | 2 => Settlement::Retry {
                                after: Duration::from_millis(n % 3),
                                failure: None,
                                counts: true,
                                is_slowed: false,
                                blocks_lane: n.is_multiple_of(4),
                            },
                            3 | 4 => Settlement::Dead {
                                failure: failure(),
                                hold_lane: n % 4 < 2,
                            },
                            5 => Settlement::Ignored,
                            _ => Settlement::Handled,
                        };
                        match queue.settle(&now.lease, &end, next.as_ref()).await.unwrap() {
                            Settled::Ended(next) => taken = next,
                            Settled::Lost => break,
                        }
                    }
                    match n % 11 {
                        0 | 1 => drop(
                            queue
                                .redrive(EventId(id.0 - n as i64 % 30), None, &By::default())
                                .await
                                .unwrap(),
                        ),
                        2 => drop(
                            queue
                                .discard(EventId(id.0 - n as i64 % 30), None, &By::default())
                                .await
                                .unwrap(),
                        ),
                        3 if n.is_multiple_of(5) => {
                            queue
                                .forget_all(&(n % 3).to_string(), &By::default())
                                .await
                                .unwrap();
                        }
                        4 => drop(queue.purge(Duration::ZERO).await.unwrap()),
                        _ => {}
                    }
                }
                ended.fetch_add(1, Ordering::Relaxed);
            });
        }
        let (queue, ended) = (queue.clone(), Arc::clone(&ended));
        tasks.spawn(async move {
            while ended.load(Ordering::Relaxed) < 8 {
                for taken in queue.claim_of(&take(), 3, 3).await.unwrap().events {
                    queue
                        .settle(&taken.lease, &Settlement::Handled, None)
                        .await
                        .unwrap();
                }
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }

    let pool = database.pool(1).await;
    assert_eq!(count(&pool, MISPLACED).await, 0);

    // And all that is left can be handled.
    let queue = &queues[0];
    let page = Page::oldest(100_000);
    let dead = Filter::default().states([EventState::Dead]);
    for dead in queue.list(&dead, page).await.unwrap().events {
        assert_eq!(
            queue.redrive(dead.id, None, &By::default()).await.unwrap(),
            Change::Made
        );
    }
    while queue.stats().await.unwrap().unsettled() > 0 {
        for taken in queue.claim_of(&take(), 1000, 1000).await.unwrap().events {
            let mut next = Some(Box::new(taken));
            while let Some(taken) = next {
                let again = take();
                let ended = queue.settle(&taken.lease, &Settlement::Handled, Some(&again));
                let Settled::Ended(then) = ended.await.unwrap() else {
                    panic!("nobody else works");
                };
                next = then;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn futures_that_are_dropped_leave_the_pool_and_the_events_sound() {
    let database = Database::create().await;
    let pool = database.pool(2).await;
    let queue = PostgresQueue::new(pool.clone());
    queue.migrate().await.unwrap();
    for round in 0..200u64 {
        let limit = Duration::from_micros(round * 37 % 5_000);
        let brief = support::queue::take(Duration::from_millis(1));
        let lane = Some((round % 3) as i64);
        let key = key(&round.to_string());
        let accepted = queue.accept_one(event(Some(key), lane), Some(&brief));
        if let Ok(Ok(Accepted::New {
            taken: Some(taken), ..
        })) = timeout(limit, accepted).await
        {
            let settled = queue.settle(&taken.lease, &Settlement::Handled, Some(&brief));
            let _ = timeout(limit, settled).await;
        }
        let _ = timeout(limit, queue.claim_of(&brief, 1, 1)).await;
        let _ = timeout(limit, queue.stats()).await;
    }
    // A server may still be at work on what was given up.
    let works = timeout(LEASE, async {
        while queue.stats().await.unwrap().unsettled() > 0 {
            for taken in queue.claim_of(&take(), 100, 100).await.unwrap().events {
                queue
                    .settle(&taken.lease, &Settlement::Handled, None)
                    .await
                    .unwrap();
            }
        }
    });
    works.await.expect("an event is stuck");
    let running = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
    assert_eq!(count(&pool, running).await, 0);
}

/// Calls at one time share a statement.
#[tokio::test(flavor = "multi_thread")]
async fn event_that_the_server_refuses_fails_alone() {
    let database = Database::create().await;
    let queue = database.queue().await;
    let pool = database.pool(1).await;
    let refuse = "ALTER TABLE tower_webhook.events ADD CHECK (body <> 'refused')";
    execute(&pool, refuse).await;
    let accepts = (0..50).map(|at| {
        let mut event = event(Some(key(&at.to_string())), Some(at % 3));
        if at == 25 {
            event.delivery = RawDelivery::new(EventKind::CHAT_RATED, "refused");
        }
        queue.accept_one(event, None)
    });
    let accepted = join_all(accepts).await;
    let failed: Vec<_> = (0..50).filter(|at| accepted[*at].is_err()).collect();
    assert_eq!(failed, [25]);
    assert_eq!(queue.stats().await.unwrap().unsettled(), 49);
}

/// Calls of a person at one time share a statement, too.
#[tokio::test(flavor = "multi_thread")]
async fn changes_at_one_time_share_a_transaction() {
    const EVENTS: i64 = 400;

    let database = Database::create().await;
    let (queue, pool) = (database.queue().await, database.pool(1).await);
    let mut ids = Vec::new();
    for at in 0..EVENTS {
        let mut event = event(Some(key(&at.to_string())), Some(at % 7));
        event.dead = (at % 2 == 0).then(failure);
        let Ok(Accepted::New { id, .. }) = queue.accept_one(event, None).await else {
            panic!("event {at} was not accepted");
        };
        ids.push(id);
    }
    // Not by the server's counter of transactions, which other tests use, too.
    let note = "
        CREATE TABLE public.seen (id bigint PRIMARY KEY);
        CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN INSERT INTO public.seen VALUES (txid_current()) ON CONFLICT DO NOTHING; RETURN NULL; END';
        CREATE TRIGGER note AFTER DELETE ON tower_webhook.dead EXECUTE FUNCTION public.note();
        CREATE TRIGGER note AFTER INSERT ON tower_webhook.ended EXECUTE FUNCTION public.note()";
    execute(&pool, note).await;
    let (waiting, dead) = (Some(EventState::Waiting), Some(EventState::Dead));
    let changes = join_all(ids.iter().enumerate().map(|(at, id)| {
        let queue = &queue;
        async move {
            match at % 4 {
                0 => queue.redrive(*id, dead, &By::default()).await.unwrap(),
                1 => queue.discard(*id, waiting, &By::default()).await.unwrap(),
                2 => queue.discard(*id, waiting, &By::default()).await.unwrap(),
                _ => queue
                    .redrive(EventId(id.0 + EVENTS), None, &By::default())
                    .await
                    .unwrap(),
            }
        }
    }));
    for (at, change) in changes.await.into_iter().enumerate() {
        let expected = match at % 4 {
            0 | 1 => Change::Made,
            2 => Change::WrongState,
            _ => Change::NotFound,
        };
        assert_eq!(change, expected, "event {at}");
    }
    let transactions = count(&pool, "SELECT count(*) FROM public.seen").await;
    assert!(
        (2..40).contains(&transactions),
        "{transactions} transactions"
    );

    let records = join_all(ids.iter().map(|id| queue.get(*id))).await;
    for (at, (record, id)) in records.into_iter().zip(&ids).enumerate() {
        let record = record.unwrap().unwrap();
        assert_eq!(record.summary.id, *id);
        let state = match at % 4 {
            0 => EventState::Retrying,
            1 => EventState::Discarded,
            2 => EventState::Dead,
            _ => EventState::Waiting,
        };
        assert_eq!(record.summary.state, state, "event {at}");
        assert_eq!(record.failures.len(), usize::from(at % 2 == 0));
    }
}
