//! A worker that hands over only the newest of consecutive events is killed, again and again. Every event is handled, or
//! was replaced by a later one of its chat that is.
//!
//! `KILLS=500` sets the number of kills for each test, which defaults to 25.

use std::collections::HashMap;
use std::io::Read;
use std::time::{Duration, Instant};

use sqlx::postgres::PgPool;
use tempfile::TempDir;
use tokio::time::sleep;
use tower_webhook::event::EventKind;
use tower_webhook::inbox::internal::{Accepted, NewEvent};
use tower_webhook::inbox::{EventId, EventState, Inbox, Lane, Queue};
use tower_webhook::postgres::PostgresQueue;
use tower_webhook::sqlite::SqliteQueue;
use tower_webhook::{EventRouter, RawDelivery};

use support::postgres::PostgresServer;
use support::program::{PATIENCE, Peer, say};
use support::queue::new_event;

const CHATS: usize = 4;
const REPLACED: EventKind = EventKind::CHAT_RATED;
const KEPT: EventKind = EventKind::CHAT_CLOSED;

#[tokio::test(flavor = "multi_thread")]
async fn replaced_events_are_not_lost_with_sqlite() {
    if let Some(path) = Peer::argument() {
        return work(SqliteQueue::open(path).unwrap()).await;
    }
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("webhooks.db");
    let queue = SqliteQueue::open(&path).unwrap();
    let name = "replaced_events_are_not_lost_with_sqlite";
    survives(queue, || {
        Peer::start(Peer::command(module_path!(), name, &path))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replaced_events_are_not_lost_with_postgres() {
    if let Some(url) = Peer::argument() {
        return work(PostgresQueue::new(PgPool::connect(&url).await.unwrap())).await;
    }
    let server = PostgresServer::start();
    let queue = PostgresQueue::new(PgPool::connect(&server.url()).await.unwrap());
    queue.migrate().await.unwrap();
    let name = "replaced_events_are_not_lost_with_postgres";
    survives(queue, || {
        Peer::start(Peer::command(module_path!(), name, server.url()))
    })
    .await;
}

/// Handles events until the input of this process ends, and says their bodies.
async fn work(queue: impl Queue) {
    let events = EventRouter::new().fallback(async |delivery: RawDelivery| {
        sleep(Duration::from_millis(fastrand::u64(..100))).await;
        let body: serde_json::Value = delivery.decode()?;
        say(&body["number"]);
        Ok(())
    });
    let worker = Inbox::new(queue)
        .worker(events)
        .collapse(REPLACED)
        .max_crashes(1_000)
        .poll_every(Duration::from_millis(20))
        .lease(Duration::from_millis(300))
        .unwrap()
        .spawn();
    let end = || std::io::stdin().read_to_end(&mut Vec::new());
    tokio::task::spawn_blocking(end).await.unwrap().unwrap();
    worker.drain(Duration::from_secs(10)).await.unwrap();
}

async fn survives(queue: impl Queue, start: impl Fn() -> Peer) {
    let kills: usize = std::env::var("KILLS").map_or(25, |kills| kills.parse().unwrap());
    let mut accepted: Vec<EventId> = Vec::new();
    let mut handled: Vec<usize> = Vec::new();
    let mut hear = |peer: &mut Peer| {
        while let Some(line) = peer.line() {
            handled.push(line.parse().unwrap());
        }
    };
    for _ in 0..kills {
        let mut peer = start();
        for _ in 0..20 {
            let number = accepted.len();
            let lane = i64::try_from(number % CHATS).unwrap();
            let kind = if fastrand::u8(..5) == 0 {
                KEPT
            } else {
                REPLACED
            };
            let event = NewEvent {
                lane: Some(Lane(lane + 1)),
                ..new_event(kind, format!(r#"{{"number":{number}}}"#))
            };
            match queue.accept(event, None).await.unwrap() {
                Accepted::New { id, .. } => accepted.push(id),
                other => panic!("{other:?}"),
            }
            sleep(Duration::from_millis(fastrand::u64(..5))).await;
        }
        sleep(Duration::from_millis(fastrand::u64(..600))).await;
        peer.kill();
        hear(&mut peer);
    }
    let peer = start();
    let began = Instant::now();
    loop {
        let stats = queue.stats().await.unwrap();
        if stats.unsettled() == 0 {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "events are stuck: {stats}");
        sleep(Duration::from_millis(50)).await;
    }
    handled.extend(peer.end().iter().map(|line| line.parse::<usize>().unwrap()));

    let numbers: HashMap<_, _> = accepted
        .iter()
        .enumerate()
        .map(|(at, id)| (*id, at))
        .collect();
    let mut replaced = 0;
    for first in &accepted {
        let mut id = *first;
        loop {
            let event = queue.get(id).await.unwrap().unwrap();
            assert_eq!(event.summary.state, EventState::Handled, "{event:?}");
            let last = event
                .failures
                .last()
                .map(|past| past.failure.reason.clone());
            let into = last.and_then(|reason| reason.strip_prefix("into event ")?.parse().ok());
            let Some(into) = into else { break };
            assert_eq!(event.summary.kind, REPLACED, "event {id}");
            assert!(into > id, "event {id} was replaced by {into}");
            replaced += usize::from(id == *first);
            id = into;
        }
        let number = numbers[&id];
        assert!(
            handled.contains(&number),
            "event {first} became {id}, which nobody handled"
        );
        assert_eq!(number % CHATS, numbers[first] % CHATS, "the chat");
    }
    for chat in 0..CHATS {
        let of_chat: Vec<_> = handled.iter().filter(|it| *it % CHATS == chat).collect();
        assert!(of_chat.is_sorted(), "out of order: {of_chat:?}");
    }
    println!(
        "{kills} kills: {} events, {replaced} replaced, {} attempts",
        accepted.len(),
        handled.len()
    );
    assert!(
        replaced > kills,
        "hardly any event was replaced: {replaced}"
    );
}
