//! The queue in a SQLite file: the conformance suite, and several processes.

#![cfg(target_os = "linux")]

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::suite::{
    self, Harness, batches_wait_for_what_is_handled_inline,
    full_inboxes_know_what_was_handled_inline,
};
use rusqlite::Connection;
use tokio::task::JoinSet;
use tower_webhook::RawDelivery;
use tower_webhook::event::EventKind;
use tower_webhook::inbox::internal::{
    Accepted, Lane, NewEvent, Settled, Settlement, Take, TakenEvent,
};
use tower_webhook::inbox::{EventId, EventState, Filter, Page, Queue};
use tower_webhook::sqlite::SqliteQueue;
use tower_webhook::sqlite::SqliteStore;
use tower_webhook::store::{EventKey, OpenErrorKind, StoreErrorKind};

use support::chain;
use support::program::{Peer, say};
use support::queue::{Calls, new_event, take};
use support::scratch::{Scratch, directory, log_to};

const RETENTION: Duration = Duration::from_secs(8 * 24 * 60 * 60);

/// One thread for all handles.
struct Shared(SqliteQueue);

impl Harness for Shared {
    async fn open(&self) -> Queue {
        self.0.clone().into()
    }
}

/// As many threads as processes that may use a file during a deploy. A thread for each handle of all rules, which run at
/// the same time, would be a hundred of them that ask for one lock.
struct Several {
    queues: Vec<SqliteQueue>,
    opened: AtomicUsize,
}

impl Harness for Several {
    async fn open(&self) -> Queue {
        let at = self.opened.fetch_add(1, Ordering::Relaxed);
        self.queues[at % self.queues.len()].clone().into()
    }
}

fn event(key: &str, lane: i64) -> NewEvent {
    NewEvent {
        key: Some(EventKey::new("", key.as_bytes(), b"{}")),
        chat: Some(format!("chat-{lane}")),
        lane: Some(Lane::of_chat(&format!("chat-{lane}"))),
        ..new_event(EventKind::CHAT_RATED, key.to_owned())
    }
}

#[tokio::test]
async fn a_full_inbox_knows_what_its_store_handled() {
    let scratch = Scratch::new();
    let store = SqliteStore::open(scratch.path()).unwrap();
    let queue = SqliteQueue::with_store(&store);
    batches_wait_for_what_is_handled_inline(store.clone(), queue.clone()).await;
    full_inboxes_know_what_was_handled_inline(store, queue).await;
}

#[tokio::test]
async fn nothing_is_accepted_once_the_file_was_truncated() {
    let scratch = Scratch::new();
    let queue = scratch.queue();
    queue.accept_one(event("1", 1), None).await.unwrap();
    scratch.truncate("-wal", 0);
    for key in ["1", "2"] {
        let refused = queue.accept_one(event(key, 1), None).await.unwrap_err();
        let told = chain(&refused);
        assert!(told.contains("was truncated"), "{key}: {told}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn conforms_with_several_threads() {
    let scratch = Scratch::in_memory();
    let queues = (0..4).map(|_| scratch.queue()).collect();
    let opened = AtomicUsize::new(0);
    suite::run(&Several { queues, opened }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn conforms_when_each_handle_closes_the_file() {
    suite::nothing_ends_with_its_handle(&Scratch::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn conforms_with_one_thread() {
    let scratch = Scratch::new();
    suite::run(&Shared(scratch.queue())).await;
}

/// Settles an event, and those of its lane behind it, and says the number of each.
async fn work(queue: &SqliteQueue, taken: TakenEvent, take: &Take) {
    let mut next = Some(Box::new(taken));
    while let Some(event) = next {
        let ended = queue
            .settle(&event.lease, &Settlement::Handled, Some(take))
            .await;
        next = match ended.unwrap() {
            Settled::Ended(next) => {
                say(format!("handled/{}", event.lease.id));
                next
            }
            Settled::Lost => {
                say(format!("lost/{}", event.lease.id));
                None
            }
        };
    }
}

/// Two processes that both accept and work on what both accepted, of which one is killed.
#[tokio::test]
async fn killed_process_loses_no_event_and_no_event_ends_twice() {
    const TEST: &str = "killed_process_loses_no_event_and_no_event_ends_twice";
    const LANES: i64 = 20;
    if let Some(directory) = directory() {
        let queue = SqliteQueue::open(directory.join("webhooks.db")).unwrap();
        let mut tasks = JoinSet::new();
        for caller in 0..8 {
            let queue = queue.clone();
            tasks.spawn(async move {
                let take = take(Duration::from_millis(300));
                for at in 0_i64.. {
                    let key = format!("{} {caller} {at}", std::process::id());
                    let take_now = (caller % 2 == 0).then_some(&take);
                    let event = event(&key, at % LANES);
                    let accepted = queue.accept_one(event, take_now).await.unwrap();
                    let Accepted::New { id, taken } = accepted else {
                        panic!("{accepted:?}")
                    };
                    say(format!("accepted/{id}"));
                    if let Some(taken) = taken {
                        work(&queue, *taken, &take).await;
                    }
                    for taken in queue.claim_of(&take, 4, 4).await.unwrap().events {
                        work(&queue, taken, &take).await;
                    }
                }
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
        return;
    }

    let scratch = Scratch::new();
    // Soon the first run of numbers ends, of which the chats are written then.
    drop(scratch.queue());
    let sql = Connection::open(scratch.path()).unwrap();
    sql.execute_batch(
        "INSERT INTO events (seq, kind, state, accepted, keep_until, settled, failures, redriven)
         VALUES (16384 - 100, 1, 8, 0, 0, 0, 0, 0)",
    )
    .unwrap();
    drop(sql);
    let start = || {
        Peer::start(Peer::command(
            module_path!(),
            TEST,
            scratch.directory.path(),
        ))
    };
    let mut peers = [start(), start()];
    let mut lines = Vec::new();
    for at in 0..4 {
        let peer = &mut peers[at % 2];
        for _ in 0..150 {
            lines.push(peer.hear());
        }
        peer.kill();
        while let Some(line) = peer.line() {
            lines.push(line);
        }
        if at < 2 {
            peers[at % 2] = start();
        }
    }

    let (mut accepted, mut handled) = (HashSet::new(), HashSet::new());
    let mut hear = |line: &str| {
        let (what, id) = line.split_once('/').unwrap();
        let id: EventId = id.parse().unwrap();
        match what {
            "accepted" => assert!(accepted.insert(id), "{line}: twice"),
            "handled" => assert!(handled.insert(id), "{line}: twice"),
            _ => {}
        }
    };
    lines.iter().for_each(|line| hear(line));

    let queue = scratch.queue();
    let take = take(Duration::from_secs(60));
    let mut last = BTreeMap::new();
    while queue.stats().await.unwrap().unsettled() > 0 {
        let claims = queue.claim_of(&take, 100, 100).await.unwrap();
        for event in claims.events {
            let mut next = Some(Box::new(event));
            while let Some(event) = next {
                let (id, lane) = (event.lease.id, event.lane);
                assert!(!handled.contains(&id), "{id} was handled before");
                assert!(last.insert(lane, id) < Some(id), "{id} is out of order");
                let ended = queue.settle(&event.lease, &Settlement::Handled, Some(&take));
                let Settled::Ended(following) = ended.await.unwrap() else {
                    panic!("{id} was lost")
                };
                next = following;
            }
        }
        // Until the leases of the processes that were killed expire.
        if let Some(due) = claims.next_due {
            tokio::time::sleep(due).await;
        }
    }
    let page = Page::oldest(usize::MAX);
    let events = queue.list(&Filter::default(), page).await.unwrap().events;
    let known: HashSet<_> = events.iter().map(|event| event.id).collect();
    assert!(known.contains(&EventId(16384)) && known.len() > 200);
    for lane in 0..LANES {
        let chat = format!("chat-{lane}");
        let of_chat = events
            .iter()
            .filter(|event| event.chat.as_ref() == Some(&chat));
        let of_chat: Vec<_> = of_chat.map(|event| event.id).collect();
        let filter = Filter::default().chat(chat);
        let listed = queue.list(&filter, page).await.unwrap().events;
        let listed: Vec<_> = listed.iter().map(|event| event.id).collect();
        assert_eq!(listed, of_chat);
    }
    assert!(accepted.is_subset(&known), "an accepted event is missing");
    assert!(!handled.is_empty());
    assert!(
        events
            .iter()
            .all(|event| event.state == EventState::Handled)
    );
    drop(queue);
    let sql = Connection::open(scratch.path()).unwrap();
    let check = "PRAGMA integrity_check";
    let sound: String = sql.query_row(check, [], |row| row.get(0)).unwrap();
    assert_eq!(sound, "ok");
}

/// A process that reads for long keeps pages of the log out of the file.
#[tokio::test]
async fn a_log_that_a_reader_holds_back_counts_and_is_warned_of() {
    const TEST: &str = "a_log_that_a_reader_holds_back_counts_and_is_warned_of";
    const MIB: u64 = 1 << 20;
    const EVENTS: i64 = 200;
    if let Some(directory) = directory() {
        log_to(&directory);
        let queue = SqliteQueue::open(directory.join("webhooks.db")).unwrap();
        say("ready");
        std::io::stdin().read_line(&mut String::new()).unwrap();
        for n in 0..EVENTS {
            let event = NewEvent {
                delivery: RawDelivery::new(EventKind::CHAT_RATED, vec![b'1'; MIB as usize]),
                ..event(&n.to_string(), n)
            };
            queue.accept_one(event, None).await.unwrap();
        }
        // The log is measured after some calls.
        for _ in 0..64 {
            queue.purge(RETENTION).await.unwrap();
        }
        say(queue.size().await.unwrap());
        std::io::stdin().read_line(&mut String::new()).unwrap();
        while queue.size().await.unwrap() > (EVENTS as u64 + 5) * MIB {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        say("small again");
        return;
    }

    let scratch = Scratch::new();
    let mut peer = Peer::start(Peer::command(
        module_path!(),
        TEST,
        scratch.directory.path(),
    ));
    assert_eq!(peer.hear(), "ready");
    let reader = Connection::open(scratch.path()).unwrap();
    reader
        .execute_batch("BEGIN; SELECT * FROM sqlite_schema")
        .unwrap();
    peer.tell("go on");
    let size: u64 = peer.hear().parse().unwrap();
    let log = scratch.directory.path().join("webhooks.db-wal");
    let log = fs::metadata(log).unwrap().len();
    let beyond = log - 128 * MIB;
    assert!(beyond > 50 * MIB, "{log}");
    assert!(size > EVENTS as u64 * MIB + beyond - 5 * MIB, "{size}");
    let logged = fs::read_to_string(scratch.directory.path().join("log")).unwrap();
    let warned = logged.lines().filter(|line| line.contains("WARN"));
    let warned: Vec<_> = warned.collect();
    assert_eq!(warned.len(), 1, "{logged}");
    assert!(warned[0].contains("reads the file"), "{logged}");

    // Although nothing is written any more.
    reader.execute_batch("COMMIT").unwrap();
    peer.tell("go on");
    assert_eq!(peer.hear(), "small again");
    peer.end();
}

#[tokio::test]
async fn files_that_cannot_be_used_are_refused_and_stay_as_they_are() {
    let refusal = |scratch: &Scratch| {
        let before = fs::read(scratch.path()).unwrap();
        let error = SqliteQueue::open(scratch.path()).unwrap_err();
        assert!(fs::read(scratch.path()).unwrap() == before, "{error}");
        (error.kind(), error.to_string())
    };
    let newer = Scratch::new();
    drop(newer.queue());
    let sql = Connection::open(newer.path()).unwrap();
    sql.execute_batch(
        "PRAGMA user_version = 99;
         UPDATE file SET lowest_release = '99.0.0';
         PRAGMA wal_checkpoint(TRUNCATE)",
    )
    .unwrap();
    drop(sql);
    let (kind, told) = refusal(&newer);
    assert_eq!(kind, OpenErrorKind::NewerSchema);
    assert!(told.contains("version 99 of the schema"), "{told}");

    let foreign = Scratch::new();
    let sql = Connection::open(foreign.path()).unwrap();
    sql.execute_batch("CREATE TABLE invoices (id INTEGER)")
        .unwrap();
    drop(sql);
    assert_eq!(refusal(&foreign).0, OpenErrorKind::Foreign);

    let text = Scratch::new();
    fs::write(text.path(), "To whom it may concern. ".repeat(1_000)).unwrap();
    let (kind, told) = refusal(&text);
    assert_eq!(kind, OpenErrorKind::Corrupt);
    assert!(told.contains("is not a SQLite database"), "{told}");
}

#[tokio::test]
async fn a_damaged_page_is_reported_and_other_events_can_be_read() {
    let scratch = Scratch::new();
    let queue = scratch.queue();
    for n in 0..200 {
        let event = NewEvent {
            delivery: RawDelivery::new(EventKind::CHAT_RATED, vec![b'1'; 2_000]),
            ..event(&n.to_string(), n)
        };
        queue.accept_one(event, None).await.unwrap();
    }
    drop(queue);
    let sql = Connection::open(scratch.path()).unwrap();
    sql.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
        .unwrap();
    drop(sql);
    let mut bytes = fs::read(scratch.path()).unwrap();
    // One with bodies of events.
    let has_bodies = |page: &&mut [u8]| page.iter().filter(|byte| **byte == b'1').count() > 3_000;
    let page = bytes.chunks_mut(4_096).filter(has_bodies).nth(20).unwrap();
    page.fill(0xff);
    fs::write(scratch.path(), bytes).unwrap();

    let queue = scratch.queue();
    let all = queue.list(&Filter::default(), Page::oldest(1_000)).await;
    let (mut whole, mut damaged) = (0, 0);
    for event in all.unwrap().events {
        match queue.get(event.id).await {
            Ok(Some(_)) => whole += 1,
            Ok(None) => panic!("event {} was lost without an error", event.id),
            Err(error) => {
                assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error:?}");
                damaged += 1;
            }
        }
    }
    assert!(whole > 100 && damaged > 0, "{whole} and {damaged}");
}
