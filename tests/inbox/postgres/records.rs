//! What the queue in PostgreSQL keeps of deliveries and attempts, and what an operator asks of it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use http::{HeaderMap, HeaderValue};
use tokio::task::JoinSet;
use tower_webhook::event::EventKind;
use tower_webhook::inbox::internal::{
    Accepted, BulkStep, FORGET_STEP, Lane, NewBulk, NewEvent, Settled, Settlement, Take,
};
use tower_webhook::inbox::{
    ActionKind, BulkState, By, Change, EventId, EventState, Failure, Filter, Page, Scope, Which,
};
use tower_webhook::postgres::PostgresQueue;
use tower_webhook::postgres::PostgresStore;
use tower_webhook::store::{Claim, EventKey, Store};

use super::{LEASE, RETENTION, accept, end, event, failure, key, take};
use support::database::{Database, count, execute, flush_statistics};
use support::queue::{Calls, page, retry_for};

fn headers(value: impl Into<HeaderValue>) -> HeaderMap {
    HeaderMap::from_iter([(http::HeaderName::from_static("traceparent"), value.into())])
}

fn with_headers(event: NewEvent, headers: HeaderMap) -> NewEvent {
    NewEvent {
        delivery: event.delivery.with_headers(headers),
        ..event
    }
}

fn failure_after(took: u64) -> Failure {
    failure().took(Duration::from_micros(took))
}

async fn list(queue: &PostgresQueue, filter: &Filter, page: Page) -> Vec<EventId> {
    let listed = queue.list(filter, page).await.unwrap();
    listed.events.iter().map(|event| event.id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_of_a_batch_stay_with_their_events() {
    let database = Database::create().await;
    let queue = database.queue().await;
    // Keys that the store gave up: their events are accepted one at a time.
    let store = PostgresStore::new(database.pool(1).await);
    for at in 0..10 {
        let key = key(&format!("known {at}"));
        let claim = store.claim(&key, LEASE, RETENTION);
        let Claim::Acquired(lease) = claim.await.unwrap() else {
            panic!("the key is new");
        };
        store.release(&lease).await.unwrap();
    }
    // What is kept for an event, by its number in this test.
    let kept = |at: i32| match at % 3 {
        0 => headers(at),
        _ => HeaderMap::new(),
    };
    let accepts = (0..60).map(|at| {
        let name = match at % 6 {
            0 | 1 => format!("known {}", at / 6),
            // Two of each.
            _ => format!("new {}", at % 30),
        };
        let guard = EventKey::new("guard", name.as_bytes(), b"");
        let new = NewEvent {
            guard: (at % 5 == 0).then_some(guard),
            dead: (at % 15 == 9).then(failure),
            ..event(Some(key(&name)), (at % 4 > 0).then_some(i64::from(at % 4)))
        };
        let queue = queue.clone();
        async move {
            let new = with_headers(new, kept(at));
            let next = (at % 2 == 0).then(take);
            (at, queue.accept_one(new, next.as_ref()).await.unwrap())
        }
    });
    let mut events = HashMap::new();
    let mut leases = Vec::new();
    let mut duplicates = 0;
    for (at, accepted) in join_all(accepts).await {
        match accepted {
            Accepted::New { id, taken } => {
                events.insert(id, at);
                if let Some(taken) = taken {
                    assert_eq!(taken.delivery.headers(), &kept(at));
                    leases.push(taken.lease);
                }
            }
            Accepted::Duplicate { same_body: true } => duplicates += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((events.len(), duplicates), (30, 30));
    for (id, at) in &events {
        let record = queue.get(*id).await.unwrap().unwrap();
        assert_eq!(record.headers, kept(*at), "event {id} of {at}");
    }

    // Each event that is taken later has its own ones, claimed or handed over.
    let next = take();
    let mut handled = 0;
    loop {
        let claims = queue.claim_of(&next, 7, 7).await.unwrap();
        let claimed = claims.events.iter().map(|taken| {
            assert_eq!(taken.delivery.headers(), &kept(events[&taken.lease.id]));
            taken.lease
        });
        leases.extend(claimed);
        if leases.is_empty() {
            break;
        }
        handled += leases.len();
        let ends = leases
            .iter()
            .map(|lease| queue.settle(lease, &Settlement::Handled, Some(&next)));
        let mut taken = Vec::new();
        for settled in join_all(ends).await {
            let Settled::Ended(next) = settled.unwrap() else {
                panic!("its lease is held");
            };
            taken.extend(next.map(|next| {
                let at = events[&next.lease.id];
                assert_eq!(next.delivery.headers(), &kept(at), "handed over");
                next.lease
            }));
        }
        leases = taken;
    }
    let stats = queue.stats().await.unwrap();
    assert_eq!(stats.unsettled(), 0);
    assert_eq!(handled as u64 + stats.dead(), 30);

    tokio::time::sleep(Duration::from_millis(10)).await;
    while queue.purge(Duration::ZERO).await.unwrap() {}
    let pool = database.pool(1).await;
    let left = "SELECT count(headers) FROM tower_webhook.events WHERE body IS NULL";
    assert_eq!(count(&pool, left).await, 0);
    // Those of dead letters stay until their chats are forgotten.
    for lane in 1..4 {
        queue
            .forget_all(&lane.to_string(), &By::default())
            .await
            .unwrap();
    }
    let left = "SELECT count(headers) FROM tower_webhook.events WHERE chat IS NOT NULL";
    assert_eq!(count(&pool, left).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_lost_its_lease_notes_no_duration() {
    let database = Database::create().await;
    let queue = database.queue().await;
    let brief = Take {
        lease: Duration::from_micros(1),
        ..take()
    };
    let mut stale = Vec::new();
    for lane in 0..5 {
        let accepted = queue
            .accept_one(event(None, Some(lane)), Some(&brief))
            .await;
        let Accepted::New { taken, .. } = accepted.unwrap() else {
            panic!("it has no key");
        };
        stale.push(taken.unwrap().lease);
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    for round in 0..3u64 {
        let claims = queue.claim_of(&take(), 5, 5).await.unwrap();
        assert_eq!(claims.events.len(), 5);
        let held = claims.events.iter().map(|taken| taken.lease);
        // Both at one time, and so in one statement.
        let late = retry_for(failure_after(99));
        let mut ends: Vec<_> = stale.iter().map(|lease| (*lease, late.clone())).collect();
        ends.extend(held.map(|lease| {
            let end = match lease.id.0 % 5 {
                0 => retry_for(failure()),
                _ => retry_for(failure_after(round)),
            };
            (lease, end)
        }));
        let settled = ends
            .iter()
            .map(|(lease, end)| queue.settle(lease, end, None));
        let settled = join_all(settled).await;
        for (at, settled) in settled.into_iter().enumerate() {
            assert_eq!(matches!(settled.unwrap(), Settled::Lost), at < 5);
        }
    }
    for lease in stale {
        let record = queue.get(lease.id).await.unwrap().unwrap();
        let took = record.failures.iter().map(|past| past.failure.took);
        let expected = (0..3).map(|round| {
            let is_known = lease.id.0 % 5 > 0;
            is_known.then_some(Duration::from_micros(round))
        });
        assert!(took.eq(expected), "{:?}", record.failures);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_several_changes_from_the_same_state_is_made() {
    const LANES: i64 = 40;

    let database = Database::create().await;
    let queues = [database.queue().await, database.queue().await];
    let mut dead = Vec::new();
    for lane in 0..LANES {
        let (id, taken) = accept(&queues[0], event(None, Some(lane))).await;
        accept(&queues[0], event(None, Some(lane))).await;
        let give_up = Settlement::Dead {
            failure: failure(),
            hold_lane: lane % 2 == 0,
        };
        end(&queues[0], &taken.unwrap(), give_up).await;
        dead.push(id);
    }
    let dead = Arc::new(dead);
    let mut changes = JoinSet::new();
    for at in 0..4 {
        let (queue, dead) = (queues[at % 2].clone(), Arc::clone(&dead));
        changes.spawn(async move {
            let from = Some(EventState::Dead);
            let changed = dead.iter().map(|id| {
                let queue = &queue;
                async move {
                    match at {
                        0 => queue.discard(*id, from, &By::default()).await.unwrap(),
                        _ => queue.redrive(*id, from, &By::default()).await.unwrap(),
                    }
                }
            });
            join_all(changed).await
        });
    }
    // Whoever works meanwhile takes those that were redriven.
    let worker = queues[0].clone();
    changes.spawn(async move {
        for _ in 0..20 {
            for taken in worker.claim_of(&take(), 3, 3).await.unwrap().events {
                end(&worker, &taken, Settlement::Handled).await;
            }
        }
        Vec::new()
    });
    let changes = changes.join_all().await;
    for (at, id) in dead.iter().enumerate() {
        let of_event = changes.iter().filter_map(|changes| changes.get(at));
        let made = of_event.filter(|change| **change == Change::Made).count();
        assert_eq!(made, 1, "changes of event {id}: {changes:?}");
    }
}

/// Of 60,000 events, most of them handled: steps find what one statement finds.
#[tokio::test(flavor = "multi_thread")]
async fn a_search_in_steps_finds_what_one_statement_finds() {
    let database = Database::create().await;
    let queue = database.queue().await;
    let pool = database.pool(1).await;
    let kinds = [EventKind::MESSAGE_CREATED, EventKind::CHAT_RATED];
    let chat_lanes: Vec<_> = (0..100)
        .map(|chat| Lane::of_chat(&chat.to_string()).0.to_string())
        .collect();
    let chat_lanes = chat_lanes.join(", ");
    execute(
        &pool,
        &format!(
            "UPDATE tower_webhook.kinds SET is_seen = true WHERE name IN ('{}', '{}');
             INSERT INTO tower_webhook.events (seq, accepted, keep_until, lane, chat_lane, kind, key, chat, body)
             SELECT at, (at + at % 7 * 5) * 1000000::bigint, 0, at % 100, (ARRAY[{chat_lanes}])[1 + at % 100], 8 - at % 2, ('key ' || at % 9000)::bytea, (at % 100)::text::bytea, ''
             FROM generate_series(5, 60000) AS at;
             INSERT INTO tower_webhook.dead
             SELECT seq, seq, kind, 1 FROM tower_webhook.events WHERE seq % 5000 = 17;
             INSERT INTO tower_webhook.wait
             SELECT lane, seq, 0, kind, 0, 0, false FROM tower_webhook.events WHERE seq % 7000 = 17 AND seq % 5000 <> 17;
             INSERT INTO tower_webhook.ended
             SELECT seq, seq, NULL, 0, (CASE WHEN seq % 8000 = 17 THEN 'discarded' ELSE 'handled' END)::tower_webhook.event_state
             FROM tower_webhook.events WHERE seq % 5000 <> 17 AND seq % 7000 <> 17;
             INSERT INTO tower_webhook.failures (seq, at, outcome, reason, shape)
             SELECT seq, 0, 'error', convert_to('It took ' || seq, 'UTF8'), 1
             FROM tower_webhook.events WHERE seq % 2500 = 17",
            kinds[0], kinds[1]
        ),
    )
    .await;
    let states = |states: &[EventState]| Filter::default().states(states.to_vec());
    let error = |filter: Filter| filter.error("IT TOOK");
    let second = |at| SystemTime::UNIX_EPOCH + Duration::from_secs(at);
    let keyed = queue.list(&Filter::default(), Page::oldest(1)).await;
    let key = keyed.unwrap().events[0].key.clone();
    let all = [
        states(&[EventState::Discarded]),
        states(&[EventState::Dead]),
        states(&[EventState::Waiting]),
        states(&[EventState::InProgress, EventState::Ignored]),
        states(&[EventState::Dead, EventState::Discarded]),
        error(states(&[])),
        error(states(&[EventState::Dead])),
        error(states(&[EventState::Handled, EventState::Waiting])),
        states(&[EventState::Handled]).key(key.unwrap()),
        error(states(&[EventState::Handled])).kinds([kinds[1].clone()]),
        states(&[EventState::Dead, EventState::Retrying]).chat("17"),
        error(states(&[])).accepted(Some(second(30_000)), None),
        states(&[EventState::Handled]).accepted(Some(second(20_000)), Some(second(20_060))),
        states(&[]).accepted(None, Some(second(60))),
        states(&[]).accepted(Some(second(100_000)), None),
    ];
    for (filter, newest_first) in all
        .iter()
        .flat_map(|filter| [(filter, true), (filter, false)])
    {
        let first = page(1000, newest_first);
        let expected = list(&queue, filter, first).await;
        let within = list(&queue, filter, first.within(LEASE)).await;
        assert_eq!(within, expected, "{filter:?}");

        let mut page = page(3, newest_first).within(Duration::ZERO);
        let (mut found, mut steps) = (Vec::new(), 0);
        loop {
            let listed = queue.list(filter, page).await.unwrap();
            found.extend(listed.events.iter().map(|event| event.id));
            steps += 1;
            let last = listed.events.last().map(|event| event.id);
            let is_full = listed.events.len() == page.limit;
            let Some(next) = listed.searched.or(last.filter(|_| is_full)) else {
                break;
            };
            page.after = Some(next);
        }
        assert_eq!(found, expected, "{filter:?} in {steps} steps");
    }
    // The first step begins where the events are.
    let old = Filter::default().accepted(None, Some(second(1_000)));
    let listed = queue.list(&old, Page::newest(10).within(Duration::ZERO));
    assert_eq!(listed.await.unwrap().events.len(), 10);
    // Nothing is found, and it takes several steps to know. The first one covers 10,000 numbers, from the newest event
    // that has failed.
    let nothing = error(
        Filter::default()
            .key(tower_webhook::IdempotencyKey::new(HeaderValue::from_static("no")).unwrap()),
    );
    let listed = queue.list(&nothing, Page::newest(10).within(Duration::ZERO));
    let searched = listed.await.unwrap().searched;
    assert_eq!(searched, Some(EventId(57_517 - 9_999)));
}

/// Accepts events of a chat, each in the chat's lane.
async fn accept_of(queue: &PostgresQueue, chat: &str, count: usize) -> Vec<EventId> {
    let accepts = (0..count).map(|_| {
        let event = NewEvent {
            chat: Some(chat.to_owned()),
            lane: Some(Lane::of_chat(chat)),
            ..event(None, None)
        };
        accept(queue, event)
    });
    let mut ids: Vec<_> = join_all(accepts)
        .await
        .into_iter()
        .map(|(id, _)| id)
        .collect();
    ids.sort_unstable();
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_with_many_events_is_forgotten_in_steps() {
    const EVENTS: usize = 1000;

    let database = Database::create().await;
    let queues = [database.queue().await, database.queue().await];
    let queue = &queues[0];
    let forgotten = accept_of(queue, "long", EVENTS).await;
    let others = accept_of(queue, "other", 3).await;
    let newest = *others.last().unwrap();

    let mut rest = None;
    let mut later = Vec::new();
    for step in 0..EVENTS / FORGET_STEP {
        // Another process continues where the one before ended.
        let forgot = queues[step % 2]
            .forget("long", rest, &By::default())
            .await
            .unwrap();
        assert_eq!(forgot.bodies, FORGET_STEP as u64);
        let next = (step + 1) * FORGET_STEP;
        rest = forgotten.get(next).map(|next| *next..=newest);
        assert_eq!(forgot.rest, rest);
        // The lane is free between two steps, and what comes now is not forgotten.
        later.extend(accept_of(queue, "long", 1).await);
    }
    let first = forgotten[0]..=newest;
    let again = queue
        .forget("long", Some(first), &By::default())
        .await
        .unwrap();
    assert_eq!(again.bodies, 0, "a step that is repeated changes nothing");
    for id in forgotten.iter().step_by(100) {
        let record = queue.get(*id).await.unwrap().unwrap();
        assert_eq!(record.summary.state, EventState::Discarded);
        assert!(record.body.is_none());
    }
    for id in others.iter().chain(&later) {
        let record = queue.get(*id).await.unwrap().unwrap();
        assert!(record.body.is_some() && record.summary.state.is_unsettled());
    }
    // The events that came meanwhile are first in the lane.
    let claimed = queue.claim_of(&take(), 10, 10).await.unwrap().events;
    let claimed: Vec<_> = claimed.iter().map(|taken| taken.lease.id).collect();
    assert_eq!(claimed, later[..1]);
}

/// In the order of the numbers, whatever else is compared, and however many events there are.
#[tokio::test(flavor = "multi_thread")]
async fn events_of_a_chat_are_listed_without_reading_others() {
    const OTHERS: i64 = 200_000;

    let database = Database::create().await;
    let pool = database.pool(1).await;
    let queue = PostgresQueue::new(pool.clone());
    queue.migrate().await.unwrap();
    let mut ids = accept_of(&queue, "chat", 20).await;
    let others = format!(
        "INSERT INTO tower_webhook.events (seq, accepted, keep_until, chat_lane, kind, chat)
         SELECT 1000 + at, at, at, at % 50, 2, 'other' FROM generate_series(1, {OTHERS}) AS at;
         INSERT INTO tower_webhook.ended
         SELECT seq, accepted, keep_until, 0, 'handled' FROM tower_webhook.events WHERE seq > 1000;
         SELECT setval('tower_webhook.events_seq_seq', 1000 + {OTHERS})"
    );
    execute(&pool, &others).await;
    ids.extend(accept_of(&queue, "chat", 20).await);
    let read = async || {
        flush_statistics(&pool).await;
        let read = "SELECT sum(seq_tup_read + idx_tup_fetch)::bigint FROM pg_stat_user_tables
            WHERE relname IN ('events', 'ended')";
        count(&pool, read).await
    };
    let chat = Filter::default().chat("chat");
    let filters = [
        chat.clone(),
        chat.clone()
            .states([EventState::Waiting, EventState::Handled]),
        chat.clone()
            .accepted(Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1)), None)
            .kinds([EventKind::MESSAGE_CREATED]),
        chat.states([EventState::Waiting]),
    ];
    for statistics in ["SELECT 1", "ANALYZE"] {
        execute(&pool, statistics).await;
        for filter in &filters {
            for newest_first in [true, false] {
                let before = read().await;
                // The server plans a statement anew that it has executed several times.
                for _ in 0..8 {
                    let mut page = page(15, newest_first).within(Duration::ZERO);
                    let mut found = Vec::new();
                    loop {
                        let listed = queue.list(filter, page).await.unwrap();
                        assert_eq!(listed.searched, None, "it was cut");
                        found.extend(listed.events.iter().map(|event| event.id));
                        if listed.events.len() < page.limit {
                            break;
                        }
                        page.after = found.last().copied();
                    }
                    if newest_first {
                        found.reverse();
                    }
                    // One is in progress.
                    let least = ids.len() - usize::from(!filter.states.is_empty());
                    assert_eq!(found, ids[ids.len() - least..], "{filter:?}");
                }
                let rows = read().await - before;
                assert!(rows < 5000, "{rows} rows were read for {filter:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_recorded_is_not_done() {
    let database = Database::create().await;
    let queue = database.queue().await;
    let pool = database.pool(1).await;
    let mut ids = accept_of(&queue, "chat", 3).await;
    // It was taken.
    ids.remove(0);
    let fails = "
        CREATE FUNCTION tower_webhook.fails() RETURNS trigger LANGUAGE plpgsql
        AS 'BEGIN RAISE EXCEPTION ''the disk is odd''; END';
        CREATE TRIGGER fails BEFORE INSERT ON tower_webhook.actions
        FOR EACH ROW EXECUTE FUNCTION tower_webhook.fails()";
    execute(&pool, fails).await;
    let by = By::new("ada");
    let changes = [
        queue.redrive(ids[0], None, &by).await.map(drop),
        queue.discard(ids[1], None, &by).await.map(drop),
        queue
            .pause(&Scope::Everything, Some("maintenance"), &by)
            .await,
        queue.forget("chat", None, &by).await.map(drop),
    ];
    assert!(changes.iter().all(Result::is_err), "{changes:?}");
    let waiting = Filter::default().states([EventState::Waiting]);
    assert_eq!(list(&queue, &waiting, Page::oldest(10)).await, ids);
    assert_eq!(queue.stats().await.unwrap().pauses, []);
    let bodies = "SELECT count(*) FROM tower_webhook.events WHERE body IS NOT NULL";
    assert_eq!(count(&pool, bodies).await, 3);

    execute(&pool, "DROP TRIGGER fails ON tower_webhook.actions").await;
    let discarded = queue.discard(ids[1], None, &by).await.unwrap();
    assert_eq!(discarded, Change::Made);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_without_a_step_for_a_minute_is_interrupted() {
    let database = Database::create().await;
    let queue = database.queue().await;
    let pool = database.pool(1).await;
    let bulk = NewBulk {
        kind: ActionKind::Redrive,
        about: String::new(),
        chat: None,
        rate: 0,
    };
    let number = queue.begin(&bulk, &By::default()).await.unwrap();
    let state = async || {
        let running = queue.actions(Which::Running, None, 1).await.unwrap();
        running[0].bulk.as_ref().unwrap().state
    };
    let wait = async |seconds: u32| {
        let wait = "UPDATE tower_webhook.actions SET stepped = stepped - $N * 1000000";
        execute(&pool, &wait.replace("$N", &seconds.to_string())).await;
    };
    let step = BulkStep {
        redrives: true,
        events: Vec::new(),
        from: EventId(0),
        reached: EventId(0),
        is_last: false,
    };
    for _ in 0..2 {
        wait(50).await;
        assert_eq!(state().await, BulkState::Running);
        wait(10).await;
        assert_eq!(state().await, BulkState::Interrupted);
        assert!(queue.step(number, &step).await.unwrap());
    }
    assert_eq!(state().await, BulkState::Running);
}

#[tokio::test(flavor = "multi_thread")]
async fn old_actions_are_purged_and_so_are_too_many() {
    let database = Database::create().await;
    let queue = database.queue().await;
    let pool = database.pool(1).await;
    let many = "
        INSERT INTO tower_webhook.actions (at, who, reason, what, changed)
        SELECT tower_webhook.micros() - CASE WHEN n <= 10 THEN 91 ELSE 89 END * 86400000000, '', '', 'resume', 0
        FROM generate_series(1, $N) AS n";
    execute(&pool, &many.replace("$N", "20")).await;
    while queue.purge(Duration::ZERO).await.unwrap() {}
    let min = "SELECT min(number) FROM tower_webhook.actions";
    assert_eq!(count(&pool, min).await, 11);
    let bulk = NewBulk {
        kind: ActionKind::Redrive,
        about: String::new(),
        chat: None,
        rate: 0,
    };
    let number = queue.begin(&bulk, &By::default()).await.unwrap();
    assert_eq!(number, 21);
    let many = many.replace("91", "0").replace("$N", "100299");
    execute(&pool, &many).await;
    while queue.purge(Duration::ZERO).await.unwrap() {}
    // A change of all that match is kept until it has ended.
    assert_eq!(count(&pool, min).await, number);
    let all = "SELECT count(*) FROM tower_webhook.actions";
    assert_eq!(count(&pool, all).await, 100_001);
    let max = "SELECT max(number) FROM tower_webhook.actions";
    assert_eq!(count(&pool, max).await, 100_320);
    assert!(queue.cancel(number, &By::default()).await.unwrap());
    while queue.purge(Duration::ZERO).await.unwrap() {}
    assert_eq!(count(&pool, all).await, 100_000);
}
