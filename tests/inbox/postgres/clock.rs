//! The queue in PostgreSQL when the clock of the server jumps.

use std::time::Duration;

use sqlx::postgres::PgPool;
use tokio::time::{Instant, sleep};
use tower_webhook::inbox::internal::{
    Accepted, EventLease, NewEvent, Settled, Settlement, Take, TakenEvent,
};
use tower_webhook::inbox::{EventId, EventState};
use tower_webhook::postgres::PostgresQueue;
use tracing::Level;

use super::{event, key, take};
use support::database::{Database, count, execute};
use support::log::Log;
use support::queue::Calls;
use support::{DAY, HOUR, SECOND};

struct Server {
    pool: PgPool,
    queue: PostgresQueue,
}

impl Server {
    async fn start() -> Self {
        let database = Database::create().await;
        Self {
            pool: database.pool(1).await,
            queue: database.queue().await,
        }
    }

    /// Sets the clock to a time after the real one.
    async fn jump(&self, ahead: Duration) {
        let jump = format!(
            "CREATE OR REPLACE FUNCTION tower_webhook.micros() RETURNS bigint LANGUAGE sql VOLATILE
             AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + {} $$",
            ahead.as_micros()
        );
        execute(&self.pool, &jump).await;
    }

    async fn accept(&self, lane: i64) -> EventId {
        let accepted = self.queue.accept_one(event(None, Some(lane)), None).await;
        match accepted.unwrap() {
            Accepted::New { id, .. } => id,
            other => panic!("{other:?}"),
        }
    }

    async fn claim(&self, lease: Duration) -> Vec<TakenEvent> {
        let take = Take { lease, ..take() };
        self.queue.claim_of(&take, 64, 64).await.unwrap().events
    }

    async fn ids(&self) -> Vec<EventId> {
        let claimed = self.claim(HOUR / 60).await;
        claimed.iter().map(|taken| taken.lease.id).collect()
    }

    async fn settle(&self, lease: &EventLease, settlement: Settlement) {
        let settled = self.queue.settle(lease, &settlement, None).await;
        assert!(matches!(settled.unwrap(), Settled::Ended(None)));
    }

    async fn due_in(&self, id: EventId) -> Duration {
        let record = self.queue.get(id).await.unwrap().unwrap();
        let due_at = record.summary.due_at.unwrap();
        due_at.duration_since(std::time::SystemTime::now()).unwrap()
    }
}

fn snooze(after: Duration, blocks_lane: bool) -> Settlement {
    Settlement::Retry {
        after,
        failure: None,
        counts: false,
        is_slowed: false,
        blocks_lane,
    }
}

#[tokio::test]
async fn a_clock_that_is_set_back_delays_nothing() {
    for by in [HOUR, 5 * DAY] {
        let log = Log::capture(Level::WARN);
        let server = Server::start().await;
        server.jump(by).await;
        let snoozed = [server.accept(1).await, server.accept(2).await];
        for (at, taken) in server.claim(HOUR / 60).await.into_iter().enumerate() {
            server.settle(&taken.lease, snooze(2 * HOUR, at == 0)).await;
        }
        // One of a process that dies, and one of a process that lives.
        let dies = server.accept(3).await;
        assert_eq!(server.claim(SECOND).await.len(), 1);
        let lives = server.accept(4).await;
        let held = server.claim(HOUR / 60).await;
        assert_eq!(held[0].lease.id, lives);
        let waits = server.accept(5).await;

        server.jump(Duration::ZERO).await;
        let mut found = Vec::new();
        let give_up = Instant::now() + 30 * SECOND;
        while found.len() < 2 {
            assert!(Instant::now() < give_up, "found: {found:?}");
            let taken = server.claim(HOUR / 60).await;
            found.extend(taken.iter().map(|taken| (taken.lease.id, taken.crashes)));
            sleep(SECOND / 5).await;
        }
        found.sort_unstable();
        assert_eq!(found, [(dies, 1), (waits, 0)]);
        assert!(log.text().contains("was set back"), "{}", log.text());
        for id in snoozed {
            let due_in = server.due_in(id).await;
            let right = 2 * HOUR - 40 * SECOND..2 * HOUR + 10 * SECOND;
            assert!(right.contains(&due_in), "{due_in:?}");
        }
        let extended = server.queue.extend(&[held[0].lease], HOUR / 60).await;
        assert_eq!(extended.unwrap(), [Some(true)]);
        assert_eq!(server.ids().await, []);
    }
}

/// Only acceptances, or extensions, saw the clock that was ahead.
#[tokio::test]
async fn a_clock_that_nobody_claimed_by_delays_nothing() {
    let server = Server::start().await;
    let running = server.accept(1).await;
    let held = server.claim(HOUR / 60).await;
    assert_eq!(held[0].lease.id, running);
    server.jump(DAY).await;
    let waits = server.accept(2).await;
    server.jump(Duration::ZERO).await;
    assert_eq!(server.ids().await, [waits]);

    server.jump(DAY).await;
    let extended = server.queue.extend(&[held[0].lease], SECOND).await;
    assert_eq!(extended.unwrap(), [Some(true)]);
    server.jump(Duration::ZERO).await;
    let give_up = Instant::now() + 30 * SECOND;
    while server.claim(SECOND).await.is_empty() {
        assert!(Instant::now() < give_up);
        sleep(SECOND / 5).await;
    }
}

/// The clock is ahead by days for a moment.
#[tokio::test]
async fn a_clock_that_is_ahead_deletes_nothing() {
    let server = Server::start().await;
    let keyed = || NewEvent {
        key: Some(key("a")),
        ..event(None, Some(1))
    };
    let accepted = server
        .queue
        .accept_one(keyed(), Some(&take()))
        .await
        .unwrap();
    let Accepted::New {
        id,
        taken: Some(taken),
    } = accepted
    else {
        panic!("{accepted:?}");
    };
    server.settle(&taken.lease, Settlement::Handled).await;
    let bodies = "SELECT count(*) FROM tower_webhook.events WHERE body IS NOT NULL";

    for claims_first in [false, true] {
        server.jump(30 * DAY).await;
        if claims_first {
            assert_eq!(server.ids().await, []);
        }
        assert!(!server.queue.purge(DAY).await.unwrap());
        server.jump(Duration::ZERO).await;
        assert_eq!(count(&server.pool, bodies).await, 1);
        let again = server.queue.accept_one(keyed(), None).await.unwrap();
        assert!(matches!(again, Accepted::Duplicate { same_body: true }));
        assert_eq!(server.ids().await, []);
    }

    // It is right, after all.
    for later in [0, 50] {
        server.jump(30 * DAY + later * HOUR / 60).await;
        assert!(!server.queue.purge(DAY).await.unwrap());
        assert_eq!(server.ids().await, []);
        let state = server
            .queue
            .get(id)
            .await
            .unwrap()
            .map(|event| event.summary.state);
        assert_eq!(state, Some(EventState::Handled), "after {later} minutes");
    }
    server.jump(30 * DAY + 70 * HOUR / 60).await;
    assert!(!server.queue.purge(DAY).await.unwrap());
    assert!(server.queue.get(id).await.unwrap().is_none());
}
