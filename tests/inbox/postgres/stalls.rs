//! Callers that give up, statements that hang, chats that are locked, and processes that stand still.

use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use nix::sys::signal::Signal;
use sqlx::postgres::PgConnection;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tower_webhook::inbox::internal::{Accepted, BulkStep, NewBulk, Settled, Settlement};
use tower_webhook::inbox::{ActionKind, By, Change, EventId, EventState};
use tower_webhook::postgres::PostgresQueue;
use tower_webhook::store::StoreErrorKind;

use support::database::{Database, connect, count, execute};
use support::program::{Peer, say};
use support::queue::Calls;

use super::{LEASE, accept, end, event, take};

async fn lock_table(transaction: &mut PgConnection) {
    sqlx::query("LOCK TABLE tower_webhook.head IN ACCESS EXCLUSIVE MODE")
        .execute(transaction)
        .await
        .unwrap();
}

/// How many statements wait for a lock.
const WAITING: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock'";

#[tokio::test(flavor = "multi_thread")]
async fn event_whose_caller_gave_up_is_released() {
    let database = Database::create().await;
    let queue = database.queue().await;
    let pool = database.pool(1).await;
    let other = database.pool(1).await;
    let take = take();
    // The acceptance waits for a lock, and its caller does not wait for it. The server may end it before the lock is free.
    while queue.stats().await.unwrap().unsettled() == 0 {
        let mut busy = pool.begin().await.unwrap();
        lock_table(&mut busy).await;
        let accept = tokio::spawn({
            let (queue, take) = (queue.clone(), take.clone());
            async move { queue.accept_one(event(None, Some(1)), Some(&take)).await }
        });
        while count(&other, WAITING).await == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        accept.abort();
        busy.rollback().await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    let claimed = timeout(LEASE, async {
        loop {
            let claims = queue.claim_of(&take, 1, 0).await.unwrap();
            if let Some(taken) = claims.events.into_iter().next() {
                return taken;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let taken = claimed.await.expect("it is due before its lease ends");
    assert_eq!(taken.crashes, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_a_claim_whose_caller_gave_up_are_released() {
    let database = Database::create().await;
    let queue = database.queue().await;
    let pool = database.pool(1).await;
    for lane in 0..3 {
        queue
            .accept_one(event(None, Some(lane)), None)
            .await
            .unwrap();
    }
    let mut busy = pool.begin().await.unwrap();
    lock_table(&mut busy).await;
    let take = take();
    let claim = queue.claim_of(&take, 3, 0);
    timeout(Duration::from_millis(200), claim)
        .await
        .unwrap_err();
    busy.rollback().await.unwrap();

    let mut taken = Vec::new();
    let claimed = timeout(LEASE / 2, async {
        while taken.len() < 3 {
            taken.extend(queue.claim_of(&take, 3, 0).await.unwrap().events);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    claimed.await.expect("they are due before their leases end");
    assert!(taken.iter().all(|taken| taken.crashes == 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn event_that_is_purged_while_a_person_changes_it_is_not_found() {
    for change in [ActionKind::Redrive, ActionKind::Discard] {
        let database = Database::create().await;
        let (queue, pool) = (database.queue().await, database.pool(1).await);
        let other = database.pool(1).await;
        let (id, taken) = accept(&queue, event(None, None)).await;
        end(&queue, &taken.unwrap(), Settlement::Handled).await;
        let mut purge = pool.begin().await.unwrap();
        let delete = "DELETE FROM tower_webhook.ended; DELETE FROM tower_webhook.events";
        sqlx::raw_sql(delete).execute(&mut *purge).await.unwrap();
        let changed = async move { queue.change(change, id, None, &By::default()).await };
        let changed = tokio::spawn(changed);
        while count(&other, WAITING).await == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        purge.commit().await.unwrap();
        let changed = changed.await.unwrap().unwrap();
        assert_eq!(changed, Change::NotFound, "{change:?}");
    }
}

/// The pool may wait for half a minute, as it does by default, and so does one whose server is away.
#[tokio::test(flavor = "multi_thread")]
async fn a_reading_waits_for_a_connection_for_five_seconds() {
    let database = Database::create().await;
    database.queue().await;
    let pool = connect(&database.url, 1).await;
    let queue = PostgresQueue::new(pool.clone());
    let connection = pool.acquire().await.unwrap();
    let began = Instant::now();
    // The third one waits for the others, too.
    let stats = join_all([queue.stats(), queue.stats(), queue.stats()]).await;
    let took = began.elapsed();
    for stats in stats {
        assert_eq!(stats.unwrap_err().kind(), StoreErrorKind::TimedOut);
    }
    assert!((4..8).contains(&took.as_secs()), "{took:?}");
    drop(connection);
    queue.stats().await.unwrap();
}

/// All connections are in use while claims are given up, as when a server that was away takes few connections yet.
/// Workers read them before they handle an event, and would count a failure.
#[tokio::test(flavor = "multi_thread")]
async fn notes_on_handlers_do_not_wait_for_what_people_read() {
    let database = Database::create().await;
    let queue = database.queue().await;
    let pool = database.pool(1).await;
    let other = database.pool(1).await;
    let mut busy = pool.begin().await.unwrap();
    lock_table(&mut busy).await;
    let mut readers = JoinSet::new();
    for _ in 0..2 {
        let queue = queue.clone();
        readers.spawn(async move { queue.stats().await });
    }
    while count(&other, WAITING).await < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let noted = timeout(LEASE, queue.note_handlers("a worker", &[])).await;
    assert_eq!(noted.expect("it has a connection").unwrap().0, []);
    busy.rollback().await.unwrap();
    for read in readers.join_all().await {
        read.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_that_were_given_up_without_a_connection_take_nothing() {
    let database = Database::create().await;
    let other = database.queue().await;
    let (id, taken) = accept(&other, event(None, Some(1))).await;
    end(&other, &taken.unwrap(), Settlement::Released).await;

    let pool = connect(&database.url, 1).await;
    let queue = PostgresQueue::new(pool.clone());
    let connection = pool.acquire().await.unwrap();
    for _ in 0..3 {
        let limit = Duration::from_millis(50);
        timeout(limit, queue.claim_of(&take(), 1, 0))
            .await
            .unwrap_err();
    }
    drop(connection);
    // The pool serves callers in their order.
    count(&pool, "SELECT count(*)").await;
    let state = other.get(id).await.unwrap().unwrap().summary.state;
    assert_eq!(state, EventState::Waiting);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_hangs_does_not_stop_the_others() {
    let database = Database::create().await;
    let queue = database.queue().await;
    accept(&queue, event(None, Some(1))).await;
    let other = database.pool(1).await;
    let mut transaction = other.begin().await.unwrap();
    sqlx::raw_sql("SELECT FROM tower_webhook.head FOR UPDATE")
        .execute(&mut *transaction)
        .await
        .unwrap();

    let hanging = tokio::spawn({
        let queue = queue.clone();
        async move { accept(&queue, event(None, Some(1))).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let next = accept(&queue, event(None, Some(2)));
    let limit = Duration::from_secs(4); // Without a second statement, it would wait until the other one ends.
    timeout(limit, next).await.expect("it waits for the other");
    assert!(!hanging.is_finished());

    transaction.rollback().await.unwrap();
    let (id, _) = hanging.await.unwrap();
    assert!(queue.get(id).await.unwrap().is_some());
}

/// A table is locked while deliveries arrive, attempts are in progress, and callers give up.
#[tokio::test(flavor = "multi_thread")]
async fn a_stall_of_the_server_takes_few_connections_and_makes_nobody_a_suspect() {
    const STALL: Duration = Duration::from_secs(8);
    const LIMIT: Duration = Duration::from_secs(2);

    let database = Database::create().await;
    let pool = database.pool(2).await;
    let url = format!("{}?application_name=worker", database.url);
    let queue = PostgresQueue::new(connect(&url, 40).await);
    queue.migrate().await.unwrap();
    let held = accept(&queue, event(None, Some(0))).await.1.unwrap();
    let brief = support::queue::take(2 * LIMIT);
    let mut busy = pool.begin().await.unwrap();
    lock_table(&mut busy).await;
    let began = std::time::Instant::now();
    let (mut calls, mut most, mut lane) = (JoinSet::new(), 0, 1);
    while began.elapsed() < STALL {
        lane += 1;
        let (queue, brief, lease) = (queue.clone(), brief.clone(), held.lease);
        calls.spawn(async move {
            let accepted = queue.accept_one(event(None, Some(lane)), Some(&brief));
            let accepted = timeout(LIMIT, accepted).await;
            if lane % 20 == 0 {
                // What it takes has to be held, too.
                if let Ok(Ok(claims)) = timeout(LIMIT, queue.claim_of(&brief, 8, 1)).await {
                    for taken in claims.events {
                        end(&queue, &taken, Settlement::Released).await;
                    }
                }
                let _ = timeout(LIMIT, queue.extend(&[lease], LEASE)).await;
                let _ = timeout(LIMIT / 4, queue.stats()).await;
                let _ = timeout(LIMIT / 4, queue.get(lease.id)).await;
                let _ = timeout(LIMIT, queue.size()).await;
                let _ = timeout(LIMIT, queue.purge(LEASE)).await;
            }
            if let Ok(Ok(Accepted::New {
                taken: Some(taken), ..
            })) = accepted
            {
                end(&queue, &taken, Settlement::Handled).await;
            }
        });
        let active = "SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND application_name = 'worker' AND state <> 'idle'";
        most = most.max(count(&pool, active).await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    busy.rollback().await.unwrap();
    calls.join_all().await;
    assert!((1..=5).contains(&most), "{most} connections");

    // Whatever has a lease that nobody holds would be a suspect then.
    tokio::time::sleep(brief.lease + LIMIT).await;
    let claims = queue.claim_of(&take(), 1000, 1000).await.unwrap();
    let suspects = claims.events.iter().filter(|taken| taken.crashes > 0);
    assert_eq!(suspects.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn event_that_was_long_in_its_statement_waits_for_a_claim() {
    let database = Database::create().await;
    let (queue, pool) = (database.queue().await, database.pool(1).await);
    let (_, first) = accept(&queue, event(None, Some(1))).await;
    let (next, _) = accept(&queue, event(None, Some(1))).await;
    let slow = "CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN PERFORM pg_sleep(1.1); RETURN NEW; END';
        CREATE TRIGGER pause BEFORE INSERT ON tower_webhook.events EXECUTE FUNCTION pause();
        CREATE TRIGGER pause BEFORE INSERT ON tower_webhook.ended EXECUTE FUNCTION pause()";
    execute(&pool, slow).await;
    let (first, take) = (first.unwrap().lease, take());
    let settled = queue.settle(&first, &Settlement::Handled, Some(&take));
    let settled = settled.await.unwrap();
    assert!(matches!(settled, Settled::Ended(None)), "{settled:?}");
    let (accepted, taken) = accept(&queue, event(None, Some(2))).await;
    assert!(taken.is_none());
    for id in [next, accepted] {
        let state = queue.get(id).await.unwrap().unwrap().summary.state;
        assert_eq!(state, EventState::Waiting);
    }
    let claims = queue.claim_of(&take, 2, 0).await.unwrap();
    let claimed: Vec<_> = claims.events.iter().map(|taken| taken.lease.id).collect();
    assert_eq!(claimed, [next, accepted]);
}

/// The server hangs while it commits, until the connection is given up.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_nobody_learned_of_is_given_up_without_a_crash() {
    let database = Database::create().await;
    let (queue, pool) = (database.queue().await, database.pool(1).await);
    let slow = "CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN PERFORM pg_sleep(8); RETURN NULL; END';
        CREATE CONSTRAINT TRIGGER pause AFTER INSERT ON tower_webhook.events
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION pause();
        CREATE TABLE given_up (at timestamptz);
        CREATE FUNCTION given_up() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN INSERT INTO given_up VALUES (now()); PERFORM pg_sleep(2); RETURN NULL; END';
        CREATE TRIGGER given_up BEFORE DELETE ON tower_webhook.given_up EXECUTE FUNCTION given_up()";
    execute(&pool, slow).await;
    let take = take();
    let accepted = queue.accept_one(event(None, Some(1)), Some(&take)).await;
    assert!(accepted.is_err());
    let mut slowest = Duration::ZERO;
    let claimed = timeout(LEASE / 2, async {
        loop {
            let began = std::time::Instant::now();
            let claims = queue.claim_of(&take, 1, 0).await.unwrap();
            slowest = slowest.max(began.elapsed());
            if let Some(taken) = claims.events.into_iter().next() {
                return taken;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    let taken = claimed.await.expect("it is due before its lease ends");
    assert_eq!(taken.crashes, 0);
    let limit = Duration::from_secs(1);
    assert!(slowest < limit, "a claim has waited for {slowest:?}");
    // This one is held.
    assert!(queue.claim_of(&take, 1, 1).await.unwrap().events.is_empty());
    end(&queue, &taken, Settlement::Handled).await;

    // It is not given up again.
    let given_up = "SELECT count(*) FROM given_up";
    tokio::time::sleep(Duration::from_secs(3)).await;
    let before = count(&pool, given_up).await;
    assert!(before > 0);
    for _ in 0..3 {
        queue.claim_of(&take, 1, 0).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(count(&pool, given_up).await, before);
}

/// The server may get it long after its caller has lost the connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_given_up_has_no_effect_later() {
    const BEGIN: &str = "SELECT tower_webhook.begin_call('01234567-89ab-cdef')";
    const GIVE_UP: &str =
        "SELECT cardinality(tower_webhook.give_up('{01234567-89ab-cdef}'))::bigint";

    let database = Database::create().await;
    database.queue().await;
    let (pool, other) = (database.pool(1).await, database.pool(1).await);
    let mut call = pool.begin().await.unwrap();
    sqlx::query(BEGIN).execute(&mut *call).await.unwrap();
    // It may take something yet.
    assert_eq!(count(&other, GIVE_UP).await, 0);
    call.rollback().await.unwrap();
    assert_eq!(count(&other, GIVE_UP).await, 1);
    let late = sqlx::query(BEGIN).execute(&pool).await.unwrap_err();
    let late = late.into_database_error().unwrap();
    assert_eq!(late.code().as_deref(), Some("TW002"));
}

/// Its lease would count as a crash otherwise.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_event_is_locked_is_given_up_again() {
    const GIVE_UP: &str =
        "SELECT cardinality(tower_webhook.give_up('{01234567-89ab-cdef}'))::bigint";

    let database = Database::create().await;
    let (queue, pool) = (database.queue().await, database.pool(2).await);
    accept(&queue, event(None, Some(1))).await;
    let fence = "UPDATE tower_webhook.head SET fence = '01234567-89ab-cdef-0123-456789abcdef'";
    execute(&pool, fence).await;
    let mut transaction = pool.begin().await.unwrap();
    sqlx::raw_sql("SELECT FROM tower_webhook.head FOR UPDATE")
        .execute(&mut *transaction)
        .await
        .unwrap();
    assert_eq!(count(&pool, GIVE_UP).await, 0);
    transaction.rollback().await.unwrap();
    assert_eq!(count(&pool, GIVE_UP).await, 1);
    let claims = queue.claim_of(&take(), 1, 0).await.unwrap();
    assert_eq!(claims.events[0].crashes, 0);
}

/// Another transaction has locked the first event of a chat, which three deliveries, an acceptance and an end wait for.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_chat_stalls_no_other_one_and_loses_no_lease_of_others() {
    const LOCKED: i64 = 1;

    let database = Database::create().await;
    let pool = database.pool(2).await;
    let queue = PostgresQueue::new(database.pool(8).await);
    queue.migrate().await.unwrap();
    let mut held = Vec::new();
    for lane in 1..=9 {
        held.push(accept(&queue, event(None, Some(lane))).await.1.unwrap());
    }
    let leases: Vec<_> = held.iter().map(|taken| taken.lease).collect();
    let mut transaction = pool.begin().await.unwrap();
    sqlx::raw_sql("SELECT FROM tower_webhook.head WHERE lane = 1 FOR UPDATE")
        .execute(&mut *transaction)
        .await
        .unwrap();

    let mut hanging = JoinSet::new();
    let mut others = JoinSet::new();
    for round in 0..60i64 {
        if round % 20 == 0 {
            let queue = queue.clone();
            hanging.spawn(async move { drop(accept(&queue, event(None, Some(LOCKED))).await) });
        }
        let queue = queue.clone();
        others.spawn(async move {
            let began = std::time::Instant::now();
            accept(&queue, event(None, Some(100 + round))).await;
            began.elapsed()
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let slowest = others.join_all().await.into_iter().max().unwrap();
    assert!(
        slowest < Duration::from_secs(2),
        "one waited for {slowest:?}"
    );
    assert_eq!(hanging.len(), 3);
    assert!(hanging.try_join_next().is_none());
    // They wait without a connection.
    assert_eq!(count(&pool, WAITING).await, 0);

    let end = queue.settle(&leases[0], &Settlement::Handled, None);
    timeout(Duration::from_secs(2), end).await.unwrap_err();
    let other = queue.settle(&leases[1], &Settlement::Handled, None);
    let settled = timeout(Duration::from_secs(2), other).await.unwrap();
    assert!(matches!(settled, Ok(Settled::Ended(_))));
    let extended = timeout(Duration::from_secs(2), queue.extend(&leases, LEASE)).await;
    let mut expected = vec![Some(true); 9];
    expected[0] = None;
    expected[1] = Some(false);
    assert_eq!(extended.unwrap().unwrap(), expected);

    transaction.rollback().await.unwrap();
    timeout(Duration::from_secs(2), hanging.join_all())
        .await
        .expect("they wait although the row is free");
    let extended = queue.extend(&leases[..1], LEASE).await.unwrap();
    assert_eq!(extended, [Some(true)]);
}

/// Another transaction has locked the first event of one of its chats.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_chat_delays_its_batch_and_no_other() {
    let database = Database::create().await;
    let pool = database.pool(2).await;
    let queue = PostgresQueue::new(database.pool(8).await);
    queue.migrate().await.unwrap();
    accept(&queue, event(None, Some(1))).await;
    let mut transaction = pool.begin().await.unwrap();
    sqlx::raw_sql("SELECT FROM tower_webhook.head WHERE lane = 1 FOR UPDATE")
        .execute(&mut *transaction)
        .await
        .unwrap();
    let batch = |lanes: [i64; 3]| {
        let events = lanes.map(|lane| event(None, Some(lane)));
        let queue = queue.clone();
        tokio::spawn(async move { queue.accept(events.into(), None).await.unwrap() })
    };
    let hanging = batch([11, 1, 12]);
    for round in 0..20 {
        let others = batch([100 + round, 200 + round, 12]);
        let accepted = timeout(Duration::from_secs(2), others).await;
        assert_eq!(accepted.expect("it waits").unwrap().len(), 3);
    }
    assert!(!hanging.is_finished());
    transaction.rollback().await.unwrap();
    let accepted = timeout(Duration::from_secs(2), hanging).await;
    let accepted = accepted.expect("it waits although the row is free");
    assert_eq!(accepted.unwrap().len(), 3);
    let lane = "SELECT count(*) FROM tower_webhook.events WHERE lane IN (1, 11)";
    assert_eq!(count(&pool, lane).await, 3);
}

/// Another transaction has locked the first events of two chats, which a person changes.
#[tokio::test(flavor = "multi_thread")]
async fn changes_of_a_locked_chat_wait_in_brief_statements() {
    let database = Database::create().await;
    let (queue, pool) = (database.queue().await, database.pool(2).await);
    let (discarded, _) = accept(&queue, event(None, Some(1))).await;
    accept(&queue, event(None, Some(2))).await;
    let mut transaction = pool.begin().await.unwrap();
    sqlx::raw_sql("SELECT FROM tower_webhook.head FOR UPDATE")
        .execute(&mut *transaction)
        .await
        .unwrap();
    let by = By::default();
    let mut changes = pin!(async {
        tokio::join!(
            queue.discard(discarded, None, &by),
            queue.forget("2", None, &by)
        )
    });
    let waits = timeout(Duration::from_secs(2), &mut changes).await;
    waits.expect_err("the chats are locked");
    let long = format!("{WAITING} AND query_start < clock_timestamp() - interval '1 second'");
    assert_eq!(count(&pool, &long).await, 0);

    transaction.rollback().await.unwrap();
    let changed = timeout(Duration::from_secs(2), changes).await;
    let (discarded, forgotten) = changed.expect("they wait although the rows are free");
    assert_eq!(discarded.unwrap(), Change::Made);
    assert_eq!(forgotten.unwrap().bodies, 1);
}

/// An event returns to a chat whose first event another transaction has locked.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_returns_to_a_locked_chat_does_not_stall_claims() {
    let database = Database::create().await;
    let (queue, pool) = (database.queue().await, database.pool(1).await);
    let (aside, taken) = accept(&queue, event(None, Some(1))).await;
    accept(&queue, event(None, Some(1))).await;
    end(
        &queue,
        &taken.unwrap(),
        support::queue::skip(Duration::ZERO),
    )
    .await;
    let other = queue.accept_one(event(None, Some(2)), None).await.unwrap();
    let Accepted::New { id: other, .. } = other else {
        panic!("{other:?}");
    };
    let mut transaction = pool.begin().await.unwrap();
    sqlx::raw_sql("SELECT FROM tower_webhook.head WHERE lane = 1 FOR UPDATE")
        .execute(&mut *transaction)
        .await
        .unwrap();
    let claims = queue.claim_of(&take(), 8, 1).await.unwrap();
    let claimed: Vec<_> = claims.events.iter().map(|taken| taken.lease.id).collect();
    assert_eq!(claimed, [other]);
    transaction.rollback().await.unwrap();
    let claims = queue.claim_of(&take(), 8, 1).await.unwrap();
    assert_eq!(claims.events[0].lease.id, aside);
}

/// Where each operation begins a transaction itself, a process may stand still between its statement and the commit.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_stands_still_in_a_transaction_delays_its_chats_only_briefly() {
    const TEST: &str = "a_process_that_stands_still_in_a_transaction_delays_its_chats_only_briefly";

    if let Some(url) = Peer::argument() {
        return accept_and_settle(&url).await;
    }
    let database = Database::create().await;
    let name = database.url.rsplit('/').next().unwrap();
    let setting =
        format!("ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'");
    execute(&database.pool(1).await, &setting).await;
    let (queue, pool) = (database.queue().await, database.pool(1).await);
    let url = format!("{}?application_name=peer", database.url);
    let mut frozen = Peer::start(Peer::command(module_path!(), TEST, &url));
    assert_eq!(frozen.hear(), "works");

    let idle = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'peer'
            AND state = 'idle in transaction' AND backend_xid IS NOT NULL";
    let mut tries = 0;
    loop {
        frozen.signal(Signal::SIGSTOP);
        // The server ends the statements that it has begun.
        tokio::time::sleep(Duration::from_millis(50)).await;
        if count(&pool, idle).await > 0 {
            break;
        }
        frozen.signal(Signal::SIGCONT);
        tries += 1;
        assert!(tries < 1000, "it was never in a transaction");
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    let began = std::time::Instant::now();
    let accepts = (0..PEERS_LANES).map(|lane| accept(&queue, event(None, Some(lane))));
    join_all(accepts).await;
    let took = began.elapsed();
    assert!(
        took < Duration::from_secs(6),
        "deliveries waited for {took:?}"
    );
    assert_eq!(count(&pool, idle).await, 0);
}

const PEERS_LANES: i64 = 4;

/// One of several processes, until it is killed.
async fn accept_and_settle(url: &str) {
    let queue = PostgresQueue::new(connect(url, 4).await);
    let works = (0..PEERS_LANES).map(|lane| {
        let queue = queue.clone();
        async move {
            loop {
                let accepted = queue
                    .accept_one(event(None, Some(lane)), Some(&take()))
                    .await;
                if let Ok(Accepted::New {
                    taken: Some(taken), ..
                }) = accepted
                {
                    let _ = queue.settle(&taken.lease, &Settlement::Handled, None).await;
                }
                say("works");
            }
        }
    });
    join_all(works).await;
}

/// They follow each other without a pause, and would take all connections from deliveries. One that waits for a lock lets
/// the others have their turn.
#[tokio::test(flavor = "multi_thread")]
async fn changes_of_many_make_one_step_at_a_time() {
    let database = Database::create().await;
    let queue = PostgresQueue::new(database.pool(40).await);
    queue.migrate().await.unwrap();
    let other = database.pool(2).await;
    let bulk = NewBulk {
        kind: ActionKind::Redrive,
        about: String::new(),
        chat: None,
        rate: 0,
    };
    let step = BulkStep {
        redrives: true,
        events: Vec::new(),
        from: EventId(0),
        reached: EventId(0),
        is_last: true,
    };
    let mut numbers = Vec::new();
    for _ in 0..4 {
        numbers.push(queue.begin(&bulk, &By::default()).await.unwrap());
    }
    let mut transaction = other.begin().await.unwrap();
    let lock = "SELECT FROM tower_webhook.actions WHERE number < $N FOR UPDATE";
    let lock = lock.replace("$N", &numbers[3].to_string());
    sqlx::raw_sql(sqlx::AssertSqlSafe(lock))
        .execute(&mut *transaction)
        .await
        .unwrap();
    let steps: Vec<_> = numbers
        .iter()
        .map(|number| {
            let (queue, number, step) = (queue.clone(), *number, step.clone());
            tokio::spawn(async move { queue.step(number, &step).await.unwrap() })
        })
        .collect();
    let mut most = 0;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) || !steps[3].is_finished() {
        most = most.max(count(&other, WAITING).await);
        assert!(began.elapsed() < LEASE, "it waits for the others");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(most, 1);
    assert!(steps[..3].iter().all(|step| !step.is_finished()));
    transaction.rollback().await.unwrap();
    for step in steps {
        assert!(step.await.unwrap());
    }
}
