//! Lists of a chat.

use super::super::chats::RUN;
use super::*;

fn of_chat(chat: &str) -> Filter {
    Filter {
        chat: Some(chat.to_owned()),
        ..Filter::default()
    }
}

/// The events of a chat on pages of three, oldest first.
async fn listed(queue: &SqliteQueue, chat: &str, newest_first: bool) -> Vec<i64> {
    let mut page = Page {
        newest_first,
        ..Page::oldest(3)
    }
    .within(Duration::ZERO);
    let mut all = Vec::new();
    loop {
        let listed = queue.list(&of_chat(chat), page).await.unwrap();
        assert_eq!(listed.searched, None);
        all.extend(listed.events.iter().map(|event| event.id.0));
        page.after = listed.events.last().map(|event| event.id);
        if listed.events.len() < page.limit {
            break;
        }
    }
    if newest_first {
        all.reverse();
    }
    all
}

const WRITTEN: &str = "SELECT ifnull(sum(length(events)) / 2, 0) FROM chats";

#[tokio::test]
async fn the_events_of_a_chat_are_found_in_all_runs() {
    let desk = Desk::new();
    // Two processes, of which each accepts the first event of some runs.
    let queues = [desk.open(), desk.open()];
    let mut expected = vec![Vec::new(); 3];
    for run in 1..=5 {
        if run == 3 || run == 4 {
            // Without a chat, so that the run is empty.
            queues[0].skip_to(run * RUN - 1).await;
            let no_chat = NewEvent {
                chat: None,
                ..event(0)
            };
            assert_eq!(queues[1].add(no_chat).await, run * RUN);
            continue;
        }
        queues[0].skip_to(run * RUN - 5).await;
        for at in 0..12 {
            let queue = &queues[(run + at) as usize % 2];
            let other = queue.add_and_take(event(100 * run + at)).await;
            queue.end(&other, Settlement::Handled).await;
            let mut of_chat = event(at % 3);
            of_chat.lane = None;
            let seq = queue.add(of_chat).await;
            assert_eq!(seq, run * RUN - 3 + 2 * at);
            expected[(at % 3) as usize].push(seq);
        }
        assert_eq!(queues[0].sql("SELECT max(run) FROM chats").await, run - 1);
    }
    for queue in &queues {
        for (at, expected) in expected.iter().enumerate() {
            for newest_first in [false, true] {
                let found = listed(queue, &format!("chat-{at}"), newest_first).await;
                assert_eq!(&found, expected);
            }
        }
        assert!(listed(queue, "chat-99", true).await.is_empty());
    }

    // The events of all runs are deleted with their places in them.
    let [queue, _] = &queues;
    assert_eq!(queue.sql(WRITTEN).await, 3 * 24 - 20);
    for at in 0..3 {
        let deleted = crate::inbox::records::forget_all(
            queue,
            &format!("chat-{at}"),
            &crate::inbox::By::default(),
        )
        .await;
        assert_eq!(deleted.unwrap(), 12);
    }
    desk.wait(9 * DAY);
    queue.purge_all(DAY).await;
    assert_eq!(queue.sql(WRITTEN).await, 0);
    assert_eq!(
        queue
            .sql("SELECT count(*) FROM events WHERE chat NOTNULL")
            .await,
        0
    );
}

#[tokio::test]
async fn an_event_that_cannot_be_read_keeps_no_other_from_being_accepted() {
    let desk = Desk::new();
    let queue = desk.open();
    queue.skip_to(RUN - 101).await;
    join_all((0..100).map(|_| queue.add(event(1)))).await;
    queue
        .sql("UPDATE events SET chat = CAST(x'ff' AS TEXT) WHERE seq = 16300 RETURNING 1")
        .await;
    assert_eq!(queue.add(event(1)).await, RUN);
    // All but the neighbours of the damaged one.
    let found = listed(&queue, "chat-1", false).await;
    assert!((60..100).contains(&found.len()), "{found:?}");
    assert_eq!(found.last(), Some(&RUN));
}

/// The run is written with the event, or neither is.
#[tokio::test]
async fn a_run_is_written_whole() {
    let desk = Desk::new();
    let queue = desk.open();
    queue.skip_to(RUN - 2).await;
    queue.add(event(1)).await;
    let rolled_back = queue.run(Need::Durable, |tx| {
        accept::accept(tx, &event(1), &[], None)?;
        Err::<(), _>(rusqlite::Error::InvalidQuery)
    });
    rolled_back.await.unwrap_err();
    assert_eq!(queue.sql(WRITTEN).await, 0);
    assert_eq!(listed(&queue, "chat-1", true).await, [RUN - 1]);
    assert_eq!(queue.add(event(1)).await, RUN);
    assert_eq!(queue.sql(WRITTEN).await, 1);
    assert_eq!(listed(&queue, "chat-1", true).await, [RUN - 1, RUN]);
}
