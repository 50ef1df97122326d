//! Purges, and what a person asks for.

use super::*;
use crate::inbox::actions::BulkState;
use crate::inbox::records::forget_all;

#[tokio::test]
async fn purge_deletes_a_few_rows_at_a_time_and_no_dead_letter() {
    let desk = Desk::new();
    let queue = desk.open();
    let dead = NewEvent {
        dead: Some(failure()),
        ..keyed(1, 0)
    };
    queue.add(dead).await;
    let taken = join_all((1..=600).map(|key| queue.add_and_take(keyed(key as i64, key)))).await;
    let waits = queue.add(keyed(600, 601)).await;
    for (at, event) in taken.iter().enumerate() {
        let end = match at % 3 {
            0 => Settlement::Handled,
            1 => Settlement::Ignored,
            _ => Settlement::Discarded(failure()),
        };
        queue.settle(&event.lease, &end, None).await.unwrap();
    }
    assert!(!queue.purge(DAY).await.unwrap());
    desk.wait(DAY);
    let bodies = "SELECT count(*) FROM bodies";
    assert_eq!(queue.sql(bodies).await, 602);
    assert!(queue.purge(DAY).await.unwrap());
    assert_eq!(queue.sql(bodies).await, 602 - 256);
    queue.purge_all(DAY).await;
    assert_eq!(queue.sql(bodies).await, 202);
    let handled = taken[0].lease.id;
    assert_eq!(queue.state(handled.0).await, EventState::Handled);
    let redriven = queue
        .change(ActionKind::Redrive, handled, None, &By::default())
        .await
        .unwrap();
    assert_eq!(redriven, Change::WithoutBody);

    desk.wait(8 * DAY);
    queue.purge_all(DAY).await;
    assert_eq!(queue.sql("SELECT count(*) FROM events").await, 2);
    assert_eq!(queue.sql("SELECT count(*) FROM failures").await, 1);
    assert_eq!(queue.sql(bodies).await, 2);
    assert_eq!(queue.state(waits).await, EventState::Waiting);
}

#[tokio::test]
async fn keys_of_a_spool_are_dropped_with_their_events() {
    let desk = Desk::new();
    let spool = SqliteQueue::open_spool(&desk.path(), 1 << 20).unwrap();
    let keys = "SELECT count(*) FROM keys";
    for key in 0..20 {
        let event = NewEvent {
            retain: Duration::ZERO,
            ..keyed(1, key)
        };
        let packed = [(event, Vec::new())].into();
        let stored = spool.store(&packed).await.unwrap();
        assert!(matches!(stored[..], [Accepted::New { .. }]));
    }
    let mut taken = spool.take_some(1).await.into_iter().next();
    for (key, end) in [Settlement::Handled, retry(SECOND, true)]
        .iter()
        .enumerate()
    {
        let (now, next) = (taken.take().unwrap(), take());
        let known = [id(key as u64).key()];
        let settled = spool.forwarded(&now.lease, now.lane, end, &known, Some(&next));
        let (Settled::Ended(next), false) = settled.await.unwrap() else {
            panic!("nobody else settles, and others of the lane wait");
        };
        assert_eq!(spool.sql(keys).await, 19);
        taken = next.map(|next| *next);
    }

    let forgotten = forget_all(&spool, "chat-1", &By::default()).await;
    assert_eq!(forgotten.unwrap(), 20);
    for _ in 0..400 {
        spool.run(Need::Write, |_| Ok(())).await.unwrap();
    }
    assert_eq!(spool.sql(keys).await, 0);
}

#[tokio::test]
async fn lists_are_complete_in_both_directions() {
    let desk = Desk::new();
    let queue = desk.open();
    let began = desk.clocks.lock().unwrap().0;
    for lane in 0..30 {
        desk.wait(SECOND);
        let taken = queue.add_and_take(keyed(lane, lane as u64)).await;
        match lane % 3 {
            0 => drop(queue.end(&taken, Settlement::Handled).await),
            1 => drop(queue.end(&taken, retry(DAY, true)).await),
            _ => {
                let hold_lane = lane % 2 == 0;
                let failure = failure();
                let dead = Settlement::Dead { failure, hold_lane };
                queue.end(&taken, dead).await;
            }
        }
    }
    let list = async |filter: &Filter, newest_first| {
        let mut page = Page {
            after: None,
            limit: 4,
            newest_first,
            within: None,
        };
        let mut all = Vec::new();
        loop {
            let events = queue.list(filter, page).await.unwrap().events;
            page.after = events.last().map(|event| event.id);
            all.extend(events.iter().map(|event| event.id.0));
            if events.len() < page.limit {
                break;
            }
        }
        if newest_first {
            all.reverse();
        }
        all
    };
    for newest_first in [false, true] {
        let every_third = |first| (first..=30).step_by(3).collect::<Vec<i64>>();
        let of = |states: &[EventState]| Filter {
            states: states.to_vec(),
            ..Filter::default()
        };
        for (filter, expected) in [
            (Filter::default(), (1..=30).collect()),
            (of(&[EventState::Handled]), every_third(1)),
            (of(&[EventState::Retrying]), every_third(2)),
            (of(&[EventState::Dead]), every_third(3)),
            (
                of(&[EventState::Dead, EventState::Retrying]),
                (1..=30).filter(|id| id % 3 != 1).collect(),
            ),
            (
                Filter {
                    chat: Some("chat-7".to_owned()),
                    ..Filter::default()
                },
                vec![8],
            ),
            (
                Filter {
                    accepted_from: Some(began + 5 * SECOND),
                    accepted_until: Some(began + 8 * SECOND),
                    ..Filter::default()
                },
                vec![5, 6, 7],
            ),
            (
                Filter {
                    kinds: vec![EventKind::CHAT_CLOSED],
                    ..Filter::default()
                },
                vec![],
            ),
        ] {
            assert_eq!(list(&filter, newest_first).await, expected, "{filter:?}");
        }
    }
}

#[tokio::test]
async fn what_cannot_be_recorded_is_not_done() {
    let desk = Desk::new();
    let queue = desk.open();
    let dead = NewEvent {
        dead: Some(failure()),
        ..event(1)
    };
    let dead = EventId(queue.add(dead).await);
    let waits = EventId(queue.add(event(2)).await);
    let fails = "CREATE TRIGGER fails BEFORE INSERT ON actions BEGIN SELECT RAISE(ABORT, 'the disk is odd'); END";
    let plain = Connection::open(desk.path()).unwrap();
    plain.execute_batch(fails).unwrap();
    let by = By::new("ada");
    let changes = [
        queue
            .change(ActionKind::Redrive, dead, None, &by)
            .await
            .map(drop),
        queue
            .change(ActionKind::Discard, waits, None, &by)
            .await
            .map(drop),
        queue
            .pause(&Scope::Everything, Some("maintenance"), &by)
            .await,
        queue.forget("chat-2", None, &by).await.map(drop),
    ];
    for change in changes {
        let error = Chain(&change.unwrap_err()).to_string();
        assert!(error.contains("the disk is odd"), "{error}");
    }
    assert_eq!(queue.state(dead.0).await, EventState::Dead);
    assert_eq!(queue.state(waits.0).await, EventState::Waiting);
    assert_eq!(queue.stats().await.unwrap().pauses, []);
    assert_eq!(queue.sql("SELECT count(*) FROM bodies").await, 2);

    plain.execute_batch("DROP TRIGGER fails").unwrap();
    let redriven = queue
        .change(ActionKind::Redrive, dead, None, &by)
        .await
        .unwrap();
    assert_eq!(redriven, Change::Made);
}

#[tokio::test]
async fn a_change_without_a_step_for_a_minute_is_interrupted() {
    let desk = Desk::new();
    let queue = desk.open();
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
    let step = BulkStep {
        redrives: true,
        events: Vec::new(),
        from: EventId(0),
        reached: EventId(0),
        is_last: false,
    };
    for _ in 0..2 {
        desk.wait(59 * SECOND);
        assert_eq!(state().await, BulkState::Running);
        desk.wait(2 * SECOND);
        assert_eq!(state().await, BulkState::Interrupted);
        assert!(queue.step(number, &step).await.unwrap());
    }
    assert_eq!(state().await, BulkState::Running);
}

#[tokio::test]
async fn old_actions_are_purged_and_so_are_too_many() {
    let desk = Desk::new();
    let queue = desk.open();
    for _ in 0..3 {
        queue
            .pause(&Scope::Everything, None, &By::new("ada"))
            .await
            .unwrap();
        desk.wait(60 * DAY);
    }
    // The first one was 180 days ago, and the last one 60.
    queue.purge_all(DAY).await;
    assert_eq!(queue.sql("SELECT min(number) FROM actions").await, 3);
    desk.wait(60 * DAY);
    queue.purge_all(DAY).await;
    // Its number must not be used again.
    assert_eq!(queue.sql("SELECT count(*) FROM actions").await, 1);
    let bulk = NewBulk {
        kind: ActionKind::Redrive,
        about: String::new(),
        chat: None,
        rate: 0,
    };
    let number = queue.begin(&bulk, &By::default()).await.unwrap();
    let many = queue.run(Need::Write, |tx| {
        let many = "
            INSERT INTO actions (at, who, reason, what, changed)
            WITH RECURSIVE n AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM n WHERE n < 100299)
            SELECT ?1, '', '', 'resume', 0 FROM n";
        tx.db.execute(many, [tx.now])
    });
    many.await.unwrap();
    queue.purge_all(DAY).await;
    // A change of all that match is kept until it has ended.
    assert_eq!(queue.sql("SELECT min(number) FROM actions").await, number);
    assert_eq!(queue.sql("SELECT count(*) FROM actions").await, 100_001);
    assert_eq!(queue.sql("SELECT max(number) FROM actions").await, 100_303);
    assert!(queue.cancel(number, &By::default()).await.unwrap());
    queue.purge_all(DAY).await;
    assert_eq!(queue.sql("SELECT count(*) FROM actions").await, 100_000);

    // Links end with their events.
    let taken = queue.add_and_take(event(1)).await;
    let discarded = queue
        .change(ActionKind::Discard, taken.lease.id, None, &By::new("ada"))
        .await;
    assert_eq!(discarded.unwrap(), Change::Made);
    assert_eq!(queue.sql("SELECT count(*) FROM changed").await, 1);
    queue.add(event(2)).await;
    desk.wait(9 * DAY);
    queue.purge_all(DAY).await;
    assert_eq!(queue.sql("SELECT count(*) FROM changed").await, 0);
}
