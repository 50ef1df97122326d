//! The statements: compiled once, and each with its index.

use http::{HeaderMap, HeaderValue};

use super::*;
use crate::delivery::Item;
use crate::event::EventKind;
use crate::inbox::handlers::{NewNote, Retired};
use crate::inbox::queue::AcceptEvents;
use crate::inbox::records::AcceptOne;
use crate::inbox::records::forget_all;
use crate::sqlite::keys;
use crate::sqlite::queue::{actions, chats};
use crate::telemetry::{Count, CountsOf, Series, minute_of};

fn statements() -> impl Iterator<Item = &'static str> {
    let all = [
        accept::STATEMENTS,
        actions::STATEMENTS,
        blocked::STATEMENTS,
        change::STATEMENTS,
        chats::STATEMENTS,
        claim::STATEMENTS,
        count::STATEMENTS,
        handlers::STATEMENTS,
        kinds::STATEMENTS,
        lanes::STATEMENTS,
        list::STATEMENTS,
        purge::STATEMENTS,
        row::STATEMENTS,
        search::STATEMENTS,
        settle::STATEMENTS,
        stats::STATEMENTS,
        keys::rows::STATEMENTS_OF_EVENTS,
    ];
    all.into_iter().flatten().copied()
}

async fn exercise_bulk(queue: &SqliteQueue, event: EventId) {
    let bulk = NewBulk {
        kind: ActionKind::Redrive,
        about: String::new(),
        chat: Some("chat-3".to_owned()),
        rate: 0,
    };
    let number = queue.begin(&bulk, &By::default()).await.unwrap();
    let step = BulkStep {
        redrives: true,
        events: vec![(event, EventState::Dead)],
        from: EventId(0),
        reached: event,
        is_last: false,
    };
    assert!(queue.step(number, &step).await.unwrap());
    assert!(queue.cancel(number, &By::default()).await.unwrap());
}

async fn exercise_counts(queue: &SqliteQueue) {
    let now = minute_of(queue.note_counts(&[]).await.unwrap());
    let count = |minute| Count {
        process: 1,
        outcome: "failed".into(),
        ..Count::new(Series::Refused, minute, 1)
    };
    let counts = [count(now), count(now - 8 * 24 * 60)];
    queue.note_counts(&counts).await.unwrap();
    let of = CountsOf {
        series: vec![Series::Refused],
        from: now,
        until: now + 1,
        bucket: 1,
        by_process: false,
        limit: 10,
    };
    assert_eq!(queue.counts(&of).await.unwrap().len(), 1);
    let of = Scope::from(EventKind::CHAT_RATED);
    let note = NewNote {
        of: of.clone(),
        is_fallback: false,
        keep: DAY,
    };
    let (noted, _) = queue.note_handlers("crm", &[note]).await.unwrap();
    assert_eq!(noted.len(), 1);
    for (unseen, retired) in [(DAY, false), (Duration::ZERO, true)] {
        let done = queue.retire(&of, unseen, &By::default()).await.unwrap();
        assert_eq!(done == Retired::Ended, retired);
    }
}

/// Does everything that can be done, many times.
async fn exercise(desk: &Desk, queue: &SqliteQueue) {
    for round in 0..200_u64 {
        let lane = (round % 10) as i64;
        if round % 50 == 20 {
            queue
                .skip_to((round as i64 / 50 + 1) * chats::RUN - 2)
                .await;
        }
        let guard = Some(EventKey::new("body", &(round / 2).to_be_bytes(), b""));
        let guarded = NewEvent {
            guard,
            ..keyed(lane, round / 3)
        };
        queue.accept_one(guarded, Some(&take())).await.unwrap();
        assert!(queue.find(id(round / 3).key()).await.unwrap().is_some());
        queue
            .accept_one(keyed(lane, 1000 + round), None)
            .await
            .unwrap();
        if round % 50 == 0 {
            let item = |number: u32| NewEvent {
                delivery: RawDelivery::new(EventKind::CHAT_RATED, "{}")
                    .with_item(Item::new(number, 2).in_delivery(round.cast_signed())),
                ..keyed(lane, 9000 + round + u64::from(number))
            };
            let accepted = queue.accept([item(1), item(2)].into(), None).await.unwrap();
            let Accepted::New { id, .. } = accepted[0] else {
                panic!("{accepted:?}");
            };
            let record = queue.get(id).await.unwrap().unwrap();
            assert_eq!(record.others.len(), 1);
        }
        if round % 20 == 0 {
            // A key that a store released.
            let key = id(5000 + round);
            let insert = queue.run(Need::Write, move |tx| {
                let insert = "
                    INSERT INTO keys (key, body, fence, attempt, done, lease_until, keep_until)
                    VALUES (?1, zeroblob(16), zeroblob(16), 1, 0, 0, ?2)";
                tx.db
                    .execute(insert, params![key.key().to_be_bytes(), i64::MAX])
            });
            insert.await.unwrap();
            let mut of_new_kind = keyed(lane, 5000 + round);
            let kind = format!("kind-{round}").parse().unwrap();
            let mut headers = HeaderMap::new();
            headers.insert("traceparent", HeaderValue::from_static("00-1-2-01"));
            of_new_kind.delivery = RawDelivery::new(kind, "{}").with_headers(headers);
            queue.add(of_new_kind).await;
        }
        let ends = [
            Settlement::Handled,
            Settlement::Ignored,
            Settlement::Discarded(failure()),
            retry(SECOND, true),
            retry(SECOND, false),
            Settlement::Released,
            Settlement::Dead {
                failure: failure(),
                hold_lane: round % 4 == 0,
            },
        ];
        let claims = queue.claim(&[take().into()], 8, 2).await.unwrap();
        for (at, event) in claims.events.iter().enumerate() {
            let held = queue.extend(&[event.lease], 30 * SECOND).await.unwrap();
            assert_eq!(held, [Some(true)]);
            let end = &ends[(round as usize + at) % ends.len()];
            queue
                .settle(&event.lease, end, Some(&take()))
                .await
                .unwrap();
        }
        use EventState::{Dead, Handled, Retrying, Waiting};
        let of = |states: &[EventState]| Filter {
            states: states.to_vec(),
            ..Filter::default()
        };
        let filters = [
            of(&[]),
            of(&[Dead]),
            of(&[Waiting]),
            of(&[Waiting, Dead]),
            of(&[Retrying]),
            Filter {
                chat: Some("chat-3".to_owned()),
                ..of(&[Waiting])
            },
            Filter {
                chat: Some("chat-3".to_owned()),
                ..of(&[Waiting, Dead])
            },
            Filter {
                chat: Some("chat-4".to_owned()),
                ..of(&[])
            },
            Filter {
                kinds: vec![EventKind::CHAT_CLOSED],
                ..of(&[Handled])
            },
            Filter {
                error: Some("AWAY".to_owned()),
                ..of(&[])
            },
            Filter {
                body: Some("chat-3".to_owned()),
                ..of(&[])
            },
            Filter {
                changed_by: Some(1),
                ..of(&[])
            },
            Filter::failed(Some(SystemTime::UNIX_EPOCH), None),
        ];
        queue.blocked_lanes(None, None, 3).await.unwrap();
        let page = |newest_first| Page {
            after: None,
            limit: 5,
            newest_first,
            within: None,
        };
        for newest_first in [true, false] {
            for filter in &filters {
                let events = queue.list(filter, page(newest_first)).await.unwrap().events;
                if let (0, Some(event)) = (round % 8, events.first()) {
                    queue.get(event.id).await.unwrap();
                    for which in [Which::All, Which::Running, Which::Of(event.id)] {
                        queue.actions(which, None, 5).await.unwrap();
                    }
                    exercise_bulk(queue, event.id).await;
                    queue
                        .change(ActionKind::Redrive, event.id, None, &By::default())
                        .await
                        .unwrap();
                    queue
                        .change(ActionKind::Redrive, event.id, None, &By::default())
                        .await
                        .unwrap();
                    queue
                        .change(ActionKind::Discard, event.id, None, &By::default())
                        .await
                        .unwrap();
                }
            }
        }
        if round % 50 == 0 {
            forget_all(queue, "chat-3", &By::default()).await.unwrap();
            queue
                .pause(&Scope::Everything, None, &By::default())
                .await
                .unwrap();
        }
        exercise_counts(queue).await;
        queue.stats().await.unwrap();
        queue.size().await.unwrap();
        queue.tables().await.unwrap();
        queue.purge(60 * SECOND).await.unwrap();
        desk.wait(Duration::from_secs(1 + 60 * 60 * (round % 5)));
    }
}

/// A planner that looks at bound values would compile a statement again for the next ones.
#[tokio::test]
async fn statements_are_compiled_once() {
    let desk = Desk::new();
    let queue = desk.open();
    exercise(&desk, &queue).await;
    // More failures than are kept.
    let mut taken = queue.add_and_take(event(99)).await;
    for _ in 0..110 {
        let lease = taken.lease;
        let again = retry(Duration::ZERO, true);
        queue.settle(&lease, &again, None).await.unwrap();
        taken = queue
            .claim(&[take().into()], 100, 0)
            .await
            .unwrap()
            .events
            .pop()
            .unwrap();
    }
    let record = queue.get(taken.lease.id).await.unwrap().unwrap();
    assert_eq!(record.failures.len(), 100);
    assert_eq!(record.summary.failures, 110);
    for _ in 0..2 {
        let last = queue.add_and_take(event(100)).await;
        queue.end(&last, Settlement::Handled).await;
        desk.wait(9 * DAY);
        queue.purge_all(DAY).await;
    }
    // Types are counted once there may be many.
    let far = "INSERT INTO kinds (id, name, paused, route) VALUES (2000, 'far', 0, 'other')";
    let insert = queue.run(Need::Write, move |tx| tx.db.execute(far, []));
    insert.await.unwrap();
    for n in 0..4 {
        let kind = format!("new-{n}").parse().unwrap();
        let new = NewEvent {
            delivery: RawDelivery::new(kind, "{}"),
            ..event(200 + n)
        };
        queue.accept_one(new, None).await.unwrap();
    }
    for sql in statements() {
        let count = move |tx: &mut Tx<'_>| {
            let statement = tx.db.prepare_cached(sql)?;
            let count = |status| statement.get_status(status);
            Ok([StatementStatus::Run, StatementStatus::RePrepare].map(count))
        };
        // Each connection compiles its own.
        let by_writer = queue.run(Need::Read, count).await.unwrap();
        let by_reader = queue.read(count).await.unwrap();
        let runs = by_writer[0].max(by_reader[0]);
        assert!(runs > 1, "{runs} runs of {sql}");
        assert_eq!([by_writer[1], by_reader[1]], [0, 0], "{sql}");
    }
}

/// Whatever SQLite believes of the sizes of tables.
#[tokio::test]
async fn no_statement_reads_or_sorts_a_table() {
    let desk = Desk::new();
    let queue = desk.open();
    let plans = async |queue: &SqliteQueue| {
        let plan = queue.run(Need::Read, |tx| {
            let mut plans = Vec::new();
            for sql in statements() {
                let mut explain = tx.db.prepare(&format!("EXPLAIN QUERY PLAN {sql}"))?;
                let steps = explain.raw_query().mapped(|row| row.get::<_, String>(3));
                plans.push((sql, steps.collect::<Result<Vec<_>, _>>()?));
            }
            Ok(plans)
        });
        plan.await.unwrap()
    };
    let check = |plans: Vec<(&str, Vec<String>)>| {
        for (sql, steps) in plans {
            let reads_all = |step: &&String| {
                step.starts_with("SCAN")
                    && !["SCAN kinds", "SCAN handlers"].contains(&step.as_str())
                    || step.contains("TEMP B-TREE")
            };
            let found = steps.iter().find(reads_all);
            assert_eq!(found, None, "{sql}: {steps:#?}");
        }
    };
    check(plans(&queue).await);
    exercise(&desk, &queue).await;
    drop(queue);
    let plain = Connection::open(desk.path()).unwrap();
    plain.execute_batch("ANALYZE").unwrap();
    drop(plain);
    check(plans(&desk.open()).await);
}
