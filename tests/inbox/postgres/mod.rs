//! The queue in PostgreSQL, against real servers.

mod clock;
mod concurrency;
mod contract;
mod foreign;
mod interleavings;
mod model;
mod pinned;
mod processes;
mod records;
mod stalls;
mod unreadable;

use std::time::Duration;

use tower_webhook::event::EventKind;
use tower_webhook::inbox::internal::{
    Accepted, Lane, NewEvent, Settled, Settlement, Take, TakenEvent,
};
use tower_webhook::inbox::{EventId, Failure};
use tower_webhook::postgres::PostgresQueue;
use tower_webhook::store::EventKey;

use support::queue;
use support::queue::Calls;

const LEASE: Duration = Duration::from_secs(60);
const RETENTION: Duration = Duration::from_secs(8 * 24 * 60 * 60);

/// How many events are not in exactly one table, or stand behind nothing. A dead letter that holds its lane is in `head`
/// without a due time.
const MISPLACED: &str = "
    SELECT (
        SELECT count(*) FROM tower_webhook.events AS e WHERE 1 <> (
            SELECT count(*) FROM (
                SELECT seq FROM tower_webhook.head WHERE due IS NOT NULL
                UNION ALL SELECT seq FROM tower_webhook.wait
                UNION ALL SELECT seq FROM tower_webhook.aside
                UNION ALL SELECT seq FROM tower_webhook.dead
                UNION ALL SELECT seq FROM tower_webhook.ended
            ) AS places WHERE places.seq = e.seq)
    ) + (
        SELECT count(*) FROM tower_webhook.head AS h
        WHERE h.due IS NULL
            AND NOT EXISTS (SELECT FROM tower_webhook.dead AS d WHERE d.seq = h.seq)
    ) + (
        SELECT count(*) FROM tower_webhook.wait AS w
        WHERE NOT EXISTS (SELECT FROM tower_webhook.head AS h WHERE h.lane = w.lane AND h.own = 0)
    )";

fn take() -> Take {
    queue::take(LEASE)
}

fn key(key: &str) -> EventKey {
    EventKey::new("", key.as_bytes(), b"{}")
}

fn event(key: Option<EventKey>, lane: Option<i64>) -> NewEvent {
    NewEvent {
        key,
        chat: lane.map(|lane| lane.to_string()),
        lane: lane.map(Lane),
        ..queue::new_event(EventKind::MESSAGE_CREATED, "{}")
    }
}

fn failure() -> Failure {
    Failure::new("no-luck", "no luck")
}

/// Accepts a new event.
async fn accept(queue: &PostgresQueue, event: NewEvent) -> (EventId, Option<Box<TakenEvent>>) {
    match queue.accept_one(event, Some(&take())).await.unwrap() {
        Accepted::New { id, taken } => (id, taken),
        other => panic!("{other:?}"),
    }
}

async fn end(queue: &PostgresQueue, taken: &TakenEvent, settlement: Settlement) {
    let settled = queue.settle(&taken.lease, &settlement, None).await.unwrap();
    assert!(matches!(settled, Settled::Ended(None)), "{settled:?}");
}
