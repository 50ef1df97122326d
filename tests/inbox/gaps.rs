//! Chats that lack an event.

use std::time::Duration;

use tempfile::TempDir;
use tower_webhook::EventKind;
use tower_webhook::inbox::internal::{Lane, NewEvent};
use tower_webhook::inbox::{EventId, Filter, Inbox, Page, Queue, expected};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::sqlite::SqliteQueue;

use support::queue::{Calls, new_event};

const ASSIGNED: EventKind = EventKind::CHAT_ASSIGNED;
const OPENED: EventKind = EventKind::CHAT_OPENED;
const CLOSED: EventKind = EventKind::CHAT_CLOSED;
const REOPENED: EventKind = EventKind::CHAT_REOPENED;
const TRANSFERRED: EventKind = EventKind::CHAT_TRANSFERRED;
const RATED: EventKind = EventKind::CHAT_RATED;

/// The events of a chat, and the one by which it is found.
const CHATS: [(&str, &[EventKind], Option<usize>); 14] = [
    ("whole", &[ASSIGNED, OPENED, CLOSED, RATED], None),
    ("reordered", &[RATED, OPENED, CLOSED, ASSIGNED], None),
    ("in work", &[ASSIGNED, OPENED], None),
    ("unrated", &[ASSIGNED, OPENED, CLOSED], Some(2)),
    ("transferred", &[ASSIGNED, OPENED, TRANSFERRED], Some(2)),
    ("twice", &[ASSIGNED, OPENED, TRANSFERRED, CLOSED], Some(3)),
    ("goes on", &[ASSIGNED, OPENED, CLOSED, REOPENED], None),
    ("rated before", &[CLOSED, RATED, REOPENED, CLOSED], Some(3)),
    ("rated again", &[CLOSED, REOPENED, CLOSED, RATED], None),
    ("rated at once", &[TRANSFERRED, RATED, CLOSED], None),
    ("unassigned", &[OPENED, OPENED], Some(0)),
    ("only reopened", &[REOPENED], Some(0)),
    ("only rated", &[RATED, RATED], Some(0)),
    ("only messages", &[EventKind::MESSAGE_CREATED], None),
];

async fn finds_chats_that_lack_an_event(queue: Queue) {
    let mut lacking = Vec::new();
    let mut number = 0;
    for (chat, kinds, lacks) in CHATS {
        for (at, kind) in kinds.iter().enumerate() {
            number += 1;
            let event = NewEvent {
                chat: Some(chat.to_owned()),
                lane: Some(Lane::of_chat(chat)),
                ..new_event(kind.clone(), format!("{{\"n\":{number}}}"))
            };
            queue.accept_one(event, None).await.unwrap();
            if lacks == Some(at) {
                lacking.push(number);
            }
        }
    }
    // It has no chat, so that nothing can be missing.
    let event = new_event(CLOSED, "{}");
    queue.accept_one(event, None).await.unwrap();

    let inbox = Inbox::new(queue);
    let gaps = async |filter: &Filter, page| {
        let listed = inbox.gaps(filter, page).await.unwrap();
        let ids: Vec<_> = listed.events.iter().map(|event| event.id.0).collect();
        (ids, listed.searched)
    };
    let all = Filter::default();
    assert_eq!(gaps(&all, Page::oldest(100)).await, (lacking.clone(), None));
    let of = |kind| Filter::default().kinds([kind]);
    let (opened, _) = gaps(&of(OPENED), Page::oldest(100)).await;
    let first = inbox.get(opened[0].to_string().parse().unwrap()).await;
    let first = first.unwrap().unwrap().summary;
    assert_eq!(first.chat.as_deref(), Some("unassigned"));
    assert_eq!(opened.len(), 1);
    let none = gaps(&of(EventKind::MESSAGE_CREATED), Page::oldest(100)).await;
    assert_eq!(none, (vec![], None));

    // Page by page, and in steps that have no time.
    for page in [Page::newest(2), Page::newest(2).within(Duration::ZERO)] {
        let (mut page, mut found) = (page, Vec::new());
        loop {
            let (ids, searched) = gaps(&all, page).await;
            let last = ids.last().map(|id| EventId(*id));
            found.extend(ids);
            page.after = searched.or(last);
            if page.after.is_none() || searched.is_none() && last.is_none() {
                break;
            }
        }
        found.reverse();
        assert_eq!(found, lacking);
    }
}

#[tokio::test]
async fn memory_finds_chats_that_lack_an_event() {
    finds_chats_that_lack_an_event(MemoryQueue::new().into()).await;
}

#[tokio::test]
async fn sqlite_finds_chats_that_lack_an_event() {
    let dir = TempDir::new().unwrap();
    let queue = SqliteQueue::open(dir.path().join("inbox.db")).unwrap();
    finds_chats_that_lack_an_event(queue.into()).await;
}

#[test]
fn an_expected_kind_is_another_one() {
    for kind in EventKind::ALL {
        assert!(!expected(&kind).contains(&kind), "{kind}");
    }
}
