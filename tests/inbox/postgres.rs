//! The queue in PostgreSQL, against real servers.

use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;
use tower_webhook::inbox::Records;
use tower_webhook::inbox::internal::Work;

use crate::suite::{self, Harness};
use futures_util::future::join_all;
use nix::sys::signal::Signal;
use sqlx::AssertSqlSafe;
use sqlx::postgres::{PgConnection, PgPool, PgPoolOptions};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tower_webhook::RawDelivery;
use tower_webhook::event::EventKind;
use tower_webhook::inbox::internal::{
    Accepted, Namespace, NewEvent, Settled, Settlement, Take, TakenEvent, forget_all,
};
use tower_webhook::inbox::{Change, EventId, EventState, Failure, Filter, Kinds, Lane, Page};
use tower_webhook::postgres::PostgresQueue;
use tower_webhook::postgres::PostgresStore;
use tower_webhook::store::{Claim, EventKey, KeyState, Store, StoreErrorKind};

use crate::faults::full_inboxes_know_what_was_handled_inline;
use support::lock;
use support::postgres::PostgresServer;
use support::program::{Peer, say};

/// An empty database of a test's own, on a server that the tests of this process share.
pub(crate) struct Database {
    pub(crate) url: String,
}

static SERVER: LazyLock<PostgresServer> = LazyLock::new(PostgresServer::start);

impl Database {
    pub(crate) async fn create() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("test_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let server = tokio::task::spawn_blocking(|| &*SERVER).await.unwrap();
        let admin = connect(&server.url(), 1).await;
        execute(&admin, &format!("CREATE DATABASE {name}")).await;
        let url = server.url_of(&name);
        Self { url }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) async fn pool(&self, connections: u32) -> PgPool {
        connect(&self.url, connections).await
    }

    /// A queue on a pool of its own.
    pub(crate) async fn queue(&self) -> PostgresQueue {
        let queue = PostgresQueue::new(self.pool(4).await);
        queue.migrate().await.unwrap();
        queue
    }
}

impl Harness for Database {
    type Queue = PostgresQueue;

    async fn open(&self) -> PostgresQueue {
        self.queue().await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn conforms() {
    suite::run(&Database::create().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conforms_with_other_session_defaults() {
    for setting in [
        "default_transaction_isolation = 'serializable'",
        "default_transaction_isolation = 'repeatable read'",
    ] {
        let database = Database::create().await;
        let name = database.url.rsplit('/').next().unwrap();
        let pool = database.pool(1).await;
        execute(&pool, &format!("ALTER DATABASE {name} SET {setting}")).await;
        execute(
            &pool,
            &format!("ALTER DATABASE {name} SET timezone = 'Pacific/Chatham'"),
        )
        .await;
        suite::run(&database).await;
    }
}

async fn connect(url: &str, connections: u32) -> PgPool {
    PgPoolOptions::new()
        .max_connections(connections)
        .connect(url)
        .await
        .unwrap()
}

pub(crate) async fn execute(pool: &PgPool, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(pool)
        .await
        .unwrap();
}

pub(crate) async fn count(pool: &PgPool, sql: &str) -> i64 {
    let count = sqlx::query_scalar(AssertSqlSafe(sql));
    count.fetch_one(pool).await.unwrap()
}

pub(crate) const LEASE: Duration = Duration::from_secs(60);
pub(crate) const RETENTION: Duration = Duration::from_secs(8 * 24 * 60 * 60);

pub(crate) fn take() -> Take {
    Take {
        lease: LEASE,
        kinds: Kinds::all(),
    }
}

pub(crate) fn key(key: &str) -> EventKey {
    EventKey::new("", key.as_bytes(), b"{}")
}

pub(crate) fn event(key: Option<EventKey>, lane: Option<i64>) -> NewEvent {
    NewEvent {
        namespace: Namespace::default(),
        delivery: RawDelivery::new(EventKind::MESSAGE_CREATED, "{}"),
        key,
        guard: None,
        chat: lane.map(|lane| lane.to_string()),
        lane: lane.map(Lane),
        retain: RETENTION,
        dead: None,
    }
}

pub(crate) fn failure() -> Failure {
    Failure {
        outcome: "error".to_owned(),
        reason: "no luck".to_owned(),
        took: None,
    }
}

/// Accepts a new event.
pub(crate) async fn accept(
    queue: &PostgresQueue,
    event: NewEvent,
) -> (EventId, Option<Box<TakenEvent>>) {
    match queue.accept(event, Some(&take())).await.unwrap() {
        Accepted::New { id, taken } => (id, taken),
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn end(queue: &PostgresQueue, taken: &TakenEvent, settlement: Settlement) {
    let settled = queue.settle(&taken.lease, &settlement, None).await.unwrap();
    assert!(matches!(settled, Settled::Ended(None)), "{settled:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_inbox_knows_what_its_store_handled() {
    let database = Database::create().await;
    let queue = database.queue().await;
    let store = PostgresStore::new(database.pool(2).await);
    full_inboxes_know_what_was_handled_inline(store, queue).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_shared_with_the_store_both_ways() {
    let database = Database::create().await;
    let queue = database.queue().await;
    let store = PostgresStore::new(database.pool(2).await);

    // What the store knows as done is a duplicate.
    let claim = store.claim(&key("inline"), LEASE, RETENTION).await.unwrap();
    let Claim::Acquired(lease) = claim else {
        panic!("{claim:?}");
    };
    let inline = || queue.accept(event(Some(key("inline")), Some(1)), None);
    let in_flight = inline().await.unwrap();
    let Accepted::InFlight { remaining } = in_flight else {
        panic!("{in_flight:?}");
    };
    assert!(!remaining.is_zero() && remaining <= LEASE);
    store.complete(&lease, RETENTION).await.unwrap();
    let done = inline().await.unwrap();
    assert!(matches!(done, Accepted::Duplicate { same_body: true }));
    let other = EventKey::new("", b"inline", b"{ }");
    let done = queue.accept(event(Some(other), None), None).await.unwrap();
    assert!(matches!(done, Accepted::Duplicate { same_body: false }));

    // What the store gave up, or whose run died, is accepted.
    for (name, lease) in [("released", LEASE), ("died", Duration::from_millis(1))] {
        let claim = store.claim(&key(name), lease, RETENTION).await.unwrap();
        let Claim::Acquired(lease) = claim else {
            panic!("{claim:?}");
        };
        if name == "released" {
            store.release(&lease).await.unwrap();
        } else {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        accept(&queue, event(Some(key(name)), None)).await;
        assert_eq!(store.peek(&key(name)).await.unwrap(), KeyState::Done);
        assert!(store.complete(&lease, RETENTION).await.is_err());
    }

    // What the queue accepted is done.
    accept(&queue, event(Some(key("accepted")), None)).await;
    let claim = store.claim(&key("accepted"), LEASE, RETENTION).await;
    let claim = claim.unwrap();
    assert!(matches!(claim, Claim::Done { same_body: true }));
    let other = EventKey::new("", b"accepted", b"{ }");
    let claim = store.claim(&other, LEASE, RETENTION).await.unwrap();
    assert!(matches!(claim, Claim::Done { same_body: false }));
}

#[tokio::test(flavor = "multi_thread")]
async fn key_of_an_event_is_kept_until_the_event_is_settled_and_purged() {
    let database = Database::create().await;
    let queue = database.queue().await;
    let pool = database.pool(1).await;
    let store = PostgresStore::new(database.pool(2).await);
    let short = |name: &str, lane| NewEvent {
        retain: Duration::from_millis(1),
        ..event(Some(key(name)), lane)
    };
    let (_, first) = accept(&queue, short("in progress", Some(1))).await;
    let (_, none) = accept(&queue, short("waits", Some(1))).await;
    assert!(none.is_none());
    let (_, aside) = accept(&queue, short("aside", Some(2))).await;
    let later = Settlement::Retry {
        after: LEASE,
        failure: Some(failure()),
        counts: true,
        is_probe: false,
        blocks_lane: false,
    };
    end(&queue, &aside.unwrap(), later).await;
    let (_, dead) = accept(&queue, short("dead", None)).await;
    let give_up = Settlement::Dead {
        failure: failure(),
        hold_lane: false,
    };
    end(&queue, &dead.unwrap(), give_up).await;
    let (_, handled) = accept(&queue, short("handled", None)).await;
    end(&queue, &handled.unwrap(), Settlement::Handled).await;

    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(store.purge().await.unwrap(), 0);
    assert!(!queue.purge(Duration::ZERO).await.unwrap());
    let keys = "SELECT count(*) FROM tower_webhook.keys";
    assert_eq!(count(&pool, keys).await, 4);
    for name in ["in progress", "waits", "aside", "dead"] {
        let again = queue.accept(short(name, None), None).await.unwrap();
        assert!(matches!(again, Accepted::Duplicate { .. }), "{name}");
        assert_eq!(store.peek(&key(name)).await.unwrap(), KeyState::Done);
    }
    accept(&queue, short("handled", None)).await;

    end(&queue, &first.unwrap(), Settlement::Handled).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    queue.purge(RETENTION).await.unwrap();
    let again = queue.accept(short("in progress", None), None).await;
    assert!(matches!(again.unwrap(), Accepted::New { .. }));
}

/// Calls at one time share a statement: what differs between them decides as it does for calls in turn.
#[tokio::test(flavor = "multi_thread")]
async fn calls_at_one_time_have_the_results_of_calls_in_turn() {
    let database = Database::create().await;
    let queue = database.queue().await;
    let pool = database.pool(1).await;
    // An event that returns to its lane with the next operation there.
    let (_, skipped) = accept(&queue, event(None, Some(4))).await;
    let retry = Settlement::Retry {
        after: Duration::ZERO,
        failure: None,
        counts: true,
        is_probe: false,
        blocks_lane: false,
    };
    end(&queue, &skipped.unwrap(), retry).await;
    let next = take();
    for round in 0..4 {
        let accepts = (0..100i64).map(|at| {
            // Keys come twice, and in the second round all of them are known.
            let name = format!("{} {}", round / 2, at % 50);
            let guard = EventKey::new(
                "guard",
                format!("{round} {}", at / 2).as_bytes(),
                name.as_bytes(),
            );
            let event = NewEvent {
                guard: (at % 4 == 0).then_some(guard),
                dead: (at % 50 == 9).then(failure),
                ..event(Some(key(&name)), (at % 7 != 0).then_some(at % 6))
            };
            queue.accept(event, Some(&next))
        });
        let accepted: Vec<_> = join_all(accepts)
            .await
            .into_iter()
            .map(Result::unwrap)
            .collect();
        let mut leases = Vec::new();
        for (at, one) in accepted.iter().enumerate().take(50) {
            let both = [one, &accepted[at + 50]];
            let new = both
                .iter()
                .filter(|one| matches!(one, Accepted::New { .. }));
            assert_eq!(new.count(), usize::from(round % 2 == 0), "{both:?}");
            for one in both {
                match one {
                    Accepted::New { taken, .. } => {
                        assert!(taken.is_none() || at != 9, "a dead letter was taken");
                        leases.extend(taken.as_ref().map(|taken| taken.lease));
                    }
                    Accepted::Duplicate { same_body: true } => {}
                    other => panic!("{other:?}"),
                }
            }
        }
        // An event of the lane that had one before, and each of the others that waited for none.
        assert!(round % 2 == 1 || leases.len() >= 10, "{leases:?}");

        // Each end comes twice, some of them not as handled, and the next events follow.
        loop {
            if leases.is_empty() {
                let claims = queue.claim(&next, 100, 100).await.unwrap();
                leases = claims.events.iter().map(|taken| taken.lease).collect();
            }
            if leases.is_empty() {
                break;
            }
            let ends = leases.iter().chain(&leases).map(|lease| {
                let settlement = match lease.id.0 % 5 {
                    0 => Settlement::Ignored,
                    1 => Settlement::Discarded(failure()),
                    _ => Settlement::Handled,
                };
                let (queue, next, lease) = (&queue, &next, *lease);
                async move { queue.settle(&lease, &settlement, Some(next)).await.unwrap() }
            });
            let settled = join_all(ends).await;
            let lost = settled
                .iter()
                .filter(|one| matches!(one, Settled::Lost))
                .count();
            assert_eq!(lost, leases.len());
            let next = settled.into_iter().filter_map(|one| match one {
                Settled::Ended(next) => next,
                Settled::Lost => None,
            });
            leases = next.map(|taken| taken.lease).collect();
        }
        let stats = queue.stats().await.unwrap();
        assert_eq!(stats.unsettled(), 0, "{stats:?}");
    }
    let ended = "SELECT count(*) FROM tower_webhook.ended";
    assert_eq!(count(&pool, ended).await, 1 + 2 * 49);
    let dead = "SELECT count(*) FROM tower_webhook.dead";
    assert_eq!(count(&pool, dead).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_schema_is_explained() {
    let database = Database::create().await;
    let queue = PostgresQueue::new(database.pool(1).await);
    let error = queue.accept(event(None, None), None).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    let advice = error.source().unwrap().to_string();
    assert!(advice.contains("migrate"), "{advice}");
    let error = queue.stats().await.unwrap_err();
    let advice = error.source().unwrap().to_string();
    assert!(advice.contains("migrate"), "{advice}");
}

/// What the page says is enough.
#[tokio::test(flavor = "multi_thread")]
async fn queue_works_with_the_rights_that_its_page_names() {
    let database = Database::create().await;
    let admin = database.queue().await;
    let pool = database.pool(1).await;
    let role = format!("app_{}", database.url.rsplit('_').next().unwrap());
    execute(
        &pool,
        &format!(
            "CREATE ROLE {role} LOGIN;
             GRANT USAGE ON SCHEMA tower_webhook TO {role};
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA tower_webhook TO {role}"
        ),
    )
    .await;
    let url = database.url.replace("postgres@", &format!("{role}@"));
    let queue = PostgresQueue::new(connect(&url, 2).await);
    queue.migrate().await.unwrap();
    accept(&admin, event(None, None)).await;
    let (_, taken) = accept(&queue, event(Some(key("a")), Some(1))).await;
    accept(&queue, event(Some(key("b")), Some(1))).await;
    let give_up = Settlement::Dead {
        failure: failure(),
        hold_lane: true,
    };
    end(&queue, &taken.unwrap(), give_up).await;
    let page = Page::newest(10);
    let dead = Filter {
        states: vec![EventState::Dead],
        ..Filter::default()
    };
    let dead = queue.list(&dead, page).await.unwrap().events;
    assert_eq!(dead.len(), 1);
    assert_eq!(queue.redrive(dead[0].id, None).await.unwrap(), Change::Made);
    assert_eq!(queue.discard(dead[0].id, None).await.unwrap(), Change::Made);
    queue
        .pause(Some(&EventKind::CHAT_RATED), true)
        .await
        .unwrap();
    assert_eq!(queue.claim(&take(), 10, 0).await.unwrap().events.len(), 1);
    assert_eq!(forget_all(&queue, "1").await.unwrap(), 2);
    queue.purge(Duration::ZERO).await.unwrap();
    queue.size().await.unwrap();
    assert_eq!(queue.stats().await.unwrap().unsettled(), 1);
}

/// A lane in a process that hands over its events, and the order in which they came.
#[derive(Default)]
struct Order {
    clock: AtomicU64,
    /// By event: its lane, when its acceptance began and ended.
    accepted: Mutex<HashMap<EventId, (i64, u64, u64)>>,
    /// By event, when its first attempt started.
    started: Mutex<HashMap<EventId, u64>>,
    handled: Mutex<HashMap<EventId, u32>>,
    running: Mutex<HashSet<i64>>,
}

impl Order {
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// Handles an event and those that are handed over after it.
    async fn handle(&self, queue: &PostgresQueue, taken: Box<TakenEvent>) {
        let mut next = Some(taken);
        while let Some(taken) = next {
            let id = taken.lease.id;
            let lane = taken.lane.unwrap().0;
            assert!(
                lock(&self.running).insert(lane),
                "two attempts in lane {lane}"
            );
            let now = self.tick();
            lock(&self.started).entry(id).or_insert(now);
            tokio::task::yield_now().await;
            let end = match (id.0 + now as i64) % 7 {
                0 => Settlement::Retry {
                    after: Duration::from_millis(id.0.unsigned_abs() % 20),
                    failure: Some(failure()),
                    counts: true,
                    is_probe: false,
                    blocks_lane: id.0 % 2 == 0,
                },
                1 => Settlement::Released,
                _ => Settlement::Handled,
            };
            assert!(lock(&self.running).remove(&lane));
            match queue
                .settle(&taken.lease, &end, Some(&take()))
                .await
                .unwrap()
            {
                Settled::Ended(taken) => next = taken,
                Settled::Lost => panic!("{id} was lost"),
            }
            if matches!(end, Settlement::Handled) {
                *lock(&self.handled).entry(id).or_default() += 1;
            }
        }
    }

    async fn accept(&self, queue: &PostgresQueue, lane: i64) {
        let began = self.tick();
        let accepted = queue.accept(event(None, Some(lane)), Some(&take())).await;
        let Accepted::New { id, taken } = accepted.unwrap() else {
            panic!("it has no key");
        };
        lock(&self.accepted).insert(id, (lane, began, self.tick()));
        if let Some(taken) = taken {
            self.handle(queue, taken).await;
        }
    }

    async fn work(&self, queue: &PostgresQueue, events: usize) {
        while lock(&self.handled).len() < events {
            let claims = queue.claim(&take(), 8, 8).await.unwrap();
            join_all(
                claims
                    .events
                    .into_iter()
                    .map(|taken| self.handle(queue, Box::new(taken))),
            )
            .await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_handle_each_event_once_and_in_the_order_of_its_lane() {
    two_processes(&Database::create().await).await;
}

pub(crate) async fn two_processes(database: &Database) {
    const EVENTS: usize = 2000;
    const LANES: i64 = 10;

    let queues = [database.queue().await, database.queue().await];
    let order = Arc::new(Order::default());
    let mut tasks = JoinSet::new();
    for (at, queue) in queues.iter().enumerate() {
        for caller in 0..20 {
            let (order, queue) = (Arc::clone(&order), queue.clone());
            tasks.spawn(async move {
                for round in 0..EVENTS / 40 {
                    let lane = (at + caller * 3 + round * 7) as i64 % LANES;
                    order.accept(&queue, lane).await;
                }
            });
        }
        let (order, queue) = (Arc::clone(&order), queue.clone());
        tasks.spawn(async move { order.work(&queue, EVENTS).await });
    }
    let ended = timeout(2 * LEASE, async {
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
        }
    });
    if ended.await.is_err() {
        panic!("stuck: {:?}", queues[0].stats().await.unwrap());
    }

    assert_eq!(queues[0].stats().await.unwrap().unsettled(), 0);
    let pool = database.pool(1).await;
    for table in ["head", "wait", "aside", "dead"] {
        let rows = format!("SELECT count(*) FROM tower_webhook.{table}");
        assert_eq!(count(&pool, &rows).await, 0, "{table}");
    }
    let handled = lock(&order.handled);
    assert_eq!(handled.len(), EVENTS);
    assert!(handled.values().all(|times| *times == 1));
    let (accepted, started) = (lock(&order.accepted), lock(&order.started));
    for (a, (lane_a, _, end_a)) in &*accepted {
        for (b, (lane_b, begin_b, _)) in &*accepted {
            if lane_a == lane_b && end_a < begin_b {
                assert!(started[a] < started[b], "{b} before {a}");
            }
        }
    }
}

/// Everything at once, in few lanes: no event is in two places or nowhere.
#[tokio::test(flavor = "multi_thread")]
async fn console_and_workers_do_not_lose_events_to_each_other() {
    const EVENTS: u64 = 150;

    let database = Database::create().await;
    let queues = [database.queue().await, database.queue().await];
    let mut tasks = JoinSet::new();
    let ended = Arc::new(AtomicU32::new(0));
    for (at, queue) in queues.iter().enumerate() {
        for caller in 0..4 {
            let (queue, ended) = (queue.clone(), Arc::clone(&ended));
            tasks.spawn(async move {
                for round in 0..EVENTS {
                    let n = round * 8 + (at as u64 * 4) + caller;
                    let lane = (!n.is_multiple_of(5)).then_some((n % 3) as i64);
                    let next = n.is_multiple_of(2).then(take);
                    let accepted = queue
                        .accept(event(None, lane), Some(&take()))
                        .await
                        .unwrap();
                    let Accepted::New { id, mut taken } = accepted else {
                        panic!("it has no key");
                    };
                    let mut steps = 0;
                    while let Some(now) = taken {
                        steps += 1;
                        let end = match (n + steps) % 9 {
                            0 => Settlement::Released,
                            1 | 2 => Settlement::Retry {
                                after: Duration::from_millis(n % 3),
                                failure: None,
                                counts: true,
                                is_probe: false,
                                blocks_lane: n.is_multiple_of(4),
                            },
                            3 | 4 => Settlement::Dead {
                                failure: failure(),
                                hold_lane: n % 4 < 2,
                            },
                            5 => Settlement::Ignored,
                            _ => Settlement::Handled,
                        };
                        match queue.settle(&now.lease, &end, next.as_ref()).await.unwrap() {
                            Settled::Ended(next) => taken = next,
                            Settled::Lost => break,
                        }
                    }
                    match n % 11 {
                        0 | 1 => drop(
                            queue
                                .redrive(EventId(id.0 - n as i64 % 30), None)
                                .await
                                .unwrap(),
                        ),
                        2 => drop(
                            queue
                                .discard(EventId(id.0 - n as i64 % 30), None)
                                .await
                                .unwrap(),
                        ),
                        3 if n.is_multiple_of(5) => {
                            forget_all(&queue, &(n % 3).to_string()).await.unwrap();
                        }
                        4 => drop(queue.purge(Duration::ZERO).await.unwrap()),
                        _ => {}
                    }
                }
                ended.fetch_add(1, Ordering::Relaxed);
            });
        }
        let (queue, ended) = (queue.clone(), Arc::clone(&ended));
        tasks.spawn(async move {
            while ended.load(Ordering::Relaxed) < 8 {
                for taken in queue.claim(&take(), 3, 3).await.unwrap().events {
                    queue
                        .settle(&taken.lease, &Settlement::Handled, None)
                        .await
                        .unwrap();
                }
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }

    let pool = database.pool(1).await;
    // Where each event is. A dead letter that holds its lane is in `head` without a due time.
    let misplaced = count(
        &pool,
        "SELECT count(*) FROM tower_webhook.events AS e WHERE 1 <> (
            SELECT count(*) FROM (
                SELECT seq FROM tower_webhook.head WHERE due IS NOT NULL
                UNION ALL SELECT seq FROM tower_webhook.wait
                UNION ALL SELECT seq FROM tower_webhook.aside
                UNION ALL SELECT seq FROM tower_webhook.dead
                UNION ALL SELECT seq FROM tower_webhook.ended
            ) AS places WHERE places.seq = e.seq)",
    );
    assert_eq!(misplaced.await, 0);
    let lost = count(
        &pool,
        "SELECT count(*) FROM tower_webhook.head AS h
        WHERE h.due IS NULL
            AND NOT EXISTS (SELECT FROM tower_webhook.dead AS d WHERE d.seq = h.seq)",
    );
    assert_eq!(lost.await, 0);
    let headless = count(
        &pool,
        "SELECT count(*) FROM tower_webhook.wait AS w
        WHERE NOT EXISTS (SELECT FROM tower_webhook.head AS h WHERE h.lane = w.lane AND h.own = 0)",
    );
    assert_eq!(headless.await, 0);

    // And all that is left can be handled.
    let queue = &queues[0];
    let page = Page::oldest(100_000);
    let dead = Filter {
        states: vec![EventState::Dead],
        ..Filter::default()
    };
    for dead in queue.list(&dead, page).await.unwrap().events {
        assert_eq!(queue.redrive(dead.id, None).await.unwrap(), Change::Made);
    }
    while queue.stats().await.unwrap().unsettled() > 0 {
        for taken in queue.claim(&take(), 1000, 1000).await.unwrap().events {
            let mut next = Some(Box::new(taken));
            while let Some(taken) = next {
                let again = take();
                let ended = queue.settle(&taken.lease, &Settlement::Handled, Some(&again));
                let Settled::Ended(then) = ended.await.unwrap() else {
                    panic!("nobody else works");
                };
                next = then;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn futures_that_are_dropped_leave_the_pool_and_the_events_sound() {
    let database = Database::create().await;
    let pool = database.pool(2).await;
    let queue = PostgresQueue::new(pool.clone());
    queue.migrate().await.unwrap();
    for round in 0..200u64 {
        let limit = Duration::from_micros(round * 37 % 5_000);
        let brief = Take {
            lease: Duration::from_millis(1),
            kinds: Kinds::all(),
        };
        let lane = Some((round % 3) as i64);
        let key = key(&round.to_string());
        let accepted = queue.accept(event(Some(key), lane), Some(&brief));
        if let Ok(Ok(Accepted::New {
            taken: Some(taken), ..
        })) = timeout(limit, accepted).await
        {
            let settled = queue.settle(&taken.lease, &Settlement::Handled, Some(&brief));
            let _ = timeout(limit, settled).await;
        }
        let _ = timeout(limit, queue.claim(&brief, 1, 1)).await;
        let _ = timeout(limit, queue.stats()).await;
    }
    // A server may still be at work on what was given up.
    let works = timeout(LEASE, async {
        while queue.stats().await.unwrap().unsettled() > 0 {
            for taken in queue.claim(&take(), 100, 100).await.unwrap().events {
                queue
                    .settle(&taken.lease, &Settlement::Handled, None)
                    .await
                    .unwrap();
            }
        }
    });
    works.await.expect("an event is stuck");
    let running = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
    assert_eq!(count(&pool, running).await, 0);
}

/// Calls at one time share a statement.
#[tokio::test(flavor = "multi_thread")]
async fn event_that_the_server_refuses_fails_alone() {
    let database = Database::create().await;
    let queue = database.queue().await;
    let pool = database.pool(1).await;
    let refuse = "ALTER TABLE tower_webhook.events ADD CHECK (body <> 'refused')";
    execute(&pool, refuse).await;
    let accepts = (0..50).map(|at| {
        let mut event = event(Some(key(&at.to_string())), Some(at % 3));
        if at == 25 {
            event.delivery = RawDelivery::new(EventKind::CHAT_RATED, "refused");
        }
        queue.accept(event, None)
    });
    let accepted = join_all(accepts).await;
    let failed: Vec<_> = (0..50).filter(|at| accepted[*at].is_err()).collect();
    assert_eq!(failed, [25]);
    assert_eq!(queue.stats().await.unwrap().unsettled(), 49);
}

/// Calls of a person at one time share a statement, too.
#[tokio::test(flavor = "multi_thread")]
async fn changes_at_one_time_share_a_transaction() {
    const EVENTS: i64 = 400;

    let database = Database::create().await;
    let (queue, pool) = (database.queue().await, database.pool(1).await);
    let mut ids = Vec::new();
    for at in 0..EVENTS {
        let mut event = event(Some(key(&at.to_string())), Some(at % 7));
        event.dead = (at % 2 == 0).then(failure);
        let Ok(Accepted::New { id, .. }) = queue.accept(event, None).await else {
            panic!("event {at} was not accepted");
        };
        ids.push(id);
    }
    let begun = count(&pool, "SELECT txid_current()::bigint").await;
    let (waiting, dead) = (Some(EventState::Waiting), Some(EventState::Dead));
    let changes = join_all(ids.iter().enumerate().map(|(at, id)| {
        let queue = &queue;
        async move {
            match at % 4 {
                0 => queue.redrive(*id, dead).await.unwrap(),
                1 => queue.discard(*id, waiting).await.unwrap(),
                2 => queue.discard(*id, waiting).await.unwrap(),
                _ => queue.redrive(EventId(id.0 + EVENTS), None).await.unwrap(),
            }
        }
    }));
    for (at, change) in changes.await.into_iter().enumerate() {
        let expected = match at % 4 {
            0 | 1 => Change::Made,
            2 => Change::WrongState,
            _ => Change::NotFound,
        };
        assert_eq!(change, expected, "event {at}");
    }
    let ended = count(&pool, "SELECT txid_current()::bigint").await;
    assert!(ended - begun < 40, "{} transactions", ended - begun);

    let records = join_all(ids.iter().map(|id| queue.get(*id))).await;
    for (at, (record, id)) in records.into_iter().zip(&ids).enumerate() {
        let record = record.unwrap().unwrap();
        assert_eq!(record.summary.id, *id);
        let state = match at % 4 {
            0 => EventState::Retrying,
            1 => EventState::Discarded,
            2 => EventState::Dead,
            _ => EventState::Waiting,
        };
        assert_eq!(record.summary.state, state, "event {at}");
        assert_eq!(record.failures.len(), usize::from(at % 2 == 0));
    }
}

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
            async move { queue.accept(event(None, Some(1)), Some(&take)).await }
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
            let claims = queue.claim(&take, 1, 0).await.unwrap();
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
        queue.accept(event(None, Some(lane)), None).await.unwrap();
    }
    let mut busy = pool.begin().await.unwrap();
    lock_table(&mut busy).await;
    let take = take();
    let claim = queue.claim(&take, 3, 0);
    timeout(Duration::from_millis(200), claim)
        .await
        .unwrap_err();
    busy.rollback().await.unwrap();

    let mut taken = Vec::new();
    let claimed = timeout(LEASE / 2, async {
        while taken.len() < 3 {
            taken.extend(queue.claim(&take, 3, 0).await.unwrap().events);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    claimed.await.expect("they are due before their leases end");
    assert!(taken.iter().all(|taken| taken.crashes == 0));
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
    let brief = Take {
        lease: 2 * LIMIT,
        kinds: Kinds::all(),
    };
    let mut busy = pool.begin().await.unwrap();
    lock_table(&mut busy).await;
    let began = std::time::Instant::now();
    let (mut calls, mut most, mut lane) = (JoinSet::new(), 0, 1);
    while began.elapsed() < STALL {
        lane += 1;
        let (queue, brief, lease) = (queue.clone(), brief.clone(), held.lease);
        calls.spawn(async move {
            let accepted = queue.accept(event(None, Some(lane)), Some(&brief));
            let accepted = timeout(LIMIT, accepted).await;
            if lane % 20 == 0 {
                // What it takes has to be held, too.
                if let Ok(Ok(claims)) = timeout(LIMIT, queue.claim(&brief, 8, 1)).await {
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
            WHERE application_name = 'worker' AND state <> 'idle'";
        most = most.max(count(&pool, active).await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    busy.rollback().await.unwrap();
    calls.join_all().await;
    assert!((1..=5).contains(&most), "{most} connections");

    // Whatever has a lease that nobody holds would be a suspect then.
    tokio::time::sleep(brief.lease + LIMIT).await;
    let claims = queue.claim(&take(), 1000, 1000).await.unwrap();
    let suspects = claims.events.iter().filter(|taken| taken.crashes > 0);
    assert_eq!(suspects.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn event_that_was_long_in_its_statement_waits_for_a_claim() {
    let database = Database::create().await;
    let (queue, pool) = (database.queue().await, database.pool(1).await);
    let slow = "CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN PERFORM pg_sleep(1.1); RETURN NEW; END';
        CREATE TRIGGER pause BEFORE INSERT ON tower_webhook.events EXECUTE FUNCTION pause()";
    execute(&pool, slow).await;
    let (id, taken) = accept(&queue, event(None, Some(1))).await;
    assert!(taken.is_none());
    let state = queue.get(id).await.unwrap().unwrap().summary.state;
    assert_eq!(state, EventState::Waiting);
    let claims = queue.claim(&take(), 1, 0).await.unwrap();
    assert_eq!(claims.events[0].lease.id, id);
}

/// The server hangs while it commits, until the connection is given up.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_nobody_learned_of_is_given_up_without_a_crash() {
    let database = Database::create().await;
    let (queue, pool) = (database.queue().await, database.pool(1).await);
    let slow = "CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN PERFORM pg_sleep(8); RETURN NULL; END';
        CREATE CONSTRAINT TRIGGER pause AFTER INSERT ON tower_webhook.events
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION pause()";
    execute(&pool, slow).await;
    let take = take();
    let accepted = queue.accept(event(None, Some(1)), Some(&take)).await;
    assert!(accepted.is_err());
    let claimed = timeout(LEASE / 2, async {
        loop {
            let claims = queue.claim(&take, 1, 0).await.unwrap();
            if let Some(taken) = claims.events.into_iter().next() {
                return taken;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    let taken = claimed.await.expect("it is due before its lease ends");
    assert_eq!(taken.crashes, 0);
    // This one is held.
    assert!(queue.claim(&take, 1, 1).await.unwrap().events.is_empty());
    end(&queue, &taken, Settlement::Handled).await;
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

/// An event returns to a chat whose first event another transaction has locked.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_returns_to_a_locked_chat_does_not_stall_claims() {
    let database = Database::create().await;
    let (queue, pool) = (database.queue().await, database.pool(1).await);
    let (aside, taken) = accept(&queue, event(None, Some(1))).await;
    accept(&queue, event(None, Some(1))).await;
    let retry = Settlement::Retry {
        after: Duration::ZERO,
        failure: Some(failure()),
        counts: true,
        is_probe: false,
        blocks_lane: false,
    };
    end(&queue, &taken.unwrap(), retry).await;
    let other = queue.accept(event(None, Some(2)), None).await.unwrap();
    let Accepted::New { id: other, .. } = other else {
        panic!("{other:?}");
    };
    let mut transaction = pool.begin().await.unwrap();
    sqlx::raw_sql("SELECT FROM tower_webhook.head WHERE lane = 1 FOR UPDATE")
        .execute(&mut *transaction)
        .await
        .unwrap();
    let claims = queue.claim(&take(), 8, 1).await.unwrap();
    let claimed: Vec<_> = claims.events.iter().map(|taken| taken.lease.id).collect();
    assert_eq!(claimed, [other]);
    transaction.rollback().await.unwrap();
    let claims = queue.claim(&take(), 8, 1).await.unwrap();
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
        WHERE application_name = 'peer' AND state = 'idle in transaction' AND backend_xid IS NOT NULL";
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
                let accepted = queue.accept(event(None, Some(lane)), Some(&take())).await;
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

/// Copies of one captured delivery, each with another kind, as the header is not signed.
#[tokio::test(flavor = "multi_thread")]
async fn forged_kinds_do_not_slow_claims_down() {
    const BATCH: usize = 128;

    let database = Database::create().await;
    let (queue, pool) = (database.queue().await, database.pool(1).await);
    let forged = |n: usize| NewEvent {
        delivery: RawDelivery::new(format!("forged-{n}").parse().unwrap(), "{}"),
        ..event(Some(key("captured")), None)
    };
    queue.accept(forged(0), None).await.unwrap();
    for first in (0..10_000).step_by(BATCH) {
        let replays = (first..first + BATCH).map(|n| queue.accept(forged(n), None));
        for replay in join_all(replays).await {
            assert!(matches!(replay.unwrap(), Accepted::Duplicate { .. }));
        }
    }
    let kinds = "SELECT count(*) FROM tower_webhook.kinds WHERE id > 8";
    assert_eq!(count(&pool, kinds).await, 1);

    // Without a key, each copy is an event, and none of its kind is left when it is deleted.
    for first in (0..2_000).step_by(BATCH) {
        let replays = (first..first + BATCH).map(|n| {
            let event = NewEvent {
                key: None,
                retain: Duration::ZERO,
                ..forged(n)
            };
            queue.accept(event, None)
        });
        for replay in join_all(replays).await {
            assert!(matches!(replay.unwrap(), Accepted::New { .. }));
        }
    }
    assert!(count(&pool, kinds).await >= 2_000);
    let mut handled = 0;
    loop {
        let claims = queue.claim(&take(), 64, 64).await.unwrap();
        if claims.events.is_empty() {
            break;
        }
        handled += claims.events.len();
        let settle = |taken| queue.settle(taken, &Settlement::Ignored, None);
        let leases: Vec<_> = claims.events.iter().map(|taken| taken.lease).collect();
        for settled in join_all(leases.iter().map(settle)).await {
            settled.unwrap();
        }
    }
    assert!(handled > 2_000);
    // A claim does not visit them. Each visit reads some pages.
    execute(&pool, "VACUUM tower_webhook.head").await;
    let claim = "EXPLAIN (ANALYZE, BUFFERS) SELECT tower_webhook.claim(
        30000000, 0, NULL, '{}', 64, 8, '{}', 0, 0, 0)";
    let plan: Vec<String> = sqlx::query_scalar(claim).fetch_all(&pool).await.unwrap();
    let hits = plan.iter().find_map(|line| line.split_once("shared hit="));
    let (_, hits) = hits.unwrap_or_else(|| panic!("{plan:?}"));
    let pages: u64 = hits.split(' ').next().unwrap().parse().unwrap();
    assert!(pages < 1_000, "{pages} pages");
    while queue.purge(Duration::ZERO).await.unwrap() {}
    // That of the captured delivery, which has a key.
    assert_eq!(count(&pool, kinds).await, 1);
}

/// What makes an event of a kind that has no other one, while a purge deletes kinds.
#[tokio::test(flavor = "multi_thread")]
async fn kinds_are_not_deleted_under_an_event() {
    let database = Database::create().await;
    let (queue, pool) = (database.queue().await, database.pool(1).await);
    let archived: EventKind = "chat-archived".parse().unwrap();
    for _ in 0..200 {
        let event = NewEvent {
            delivery: RawDelivery::new(archived.clone(), "{}"),
            retain: Duration::ZERO,
            ..event(None, None)
        };
        let take = take();
        let (accepted, purged) = tokio::join!(
            queue.accept(event, Some(&take)),
            queue.purge(Duration::ZERO)
        );
        purged.unwrap();
        let Accepted::New {
            taken: Some(taken), ..
        } = accepted.unwrap()
        else {
            panic!("not taken");
        };
        let orphans = "SELECT count(*) FROM tower_webhook.events AS e
            WHERE NOT EXISTS (SELECT FROM tower_webhook.kinds AS k WHERE k.id = e.kind)";
        assert_eq!(count(&pool, orphans).await, 0);
        queue
            .settle(&taken.lease, &Settlement::Ignored, None)
            .await
            .unwrap();
    }
}

/// Somebody changed the rows of two events of five.
#[tokio::test(flavor = "multi_thread")]
async fn unreadable_events_are_passed_over_and_become_dead_letters() {
    let database = Database::create().await;
    let (queue, pool) = (database.queue().await, database.pool(1).await);
    for lane in 1..=5 {
        let accepted = queue.accept(event(None, Some(lane)), None).await;
        assert!(matches!(accepted.unwrap(), Accepted::New { .. }));
    }
    // A second event in the lane of one of them.
    queue.accept(event(None, Some(2)), None).await.unwrap();
    execute(
        &pool,
        "UPDATE tower_webhook.events SET key = '\\x0a' WHERE seq = 2;
         UPDATE tower_webhook.events SET body = NULL WHERE seq = 4",
    )
    .await;
    let short = Take {
        lease: Duration::from_millis(1),
        ..take()
    };
    let claims = queue.claim(&short, 64, 64).await.unwrap();
    let ids: Vec<_> = claims.events.iter().map(|taken| taken.lease.id.0).collect();
    assert_eq!(ids, [1, 3, 5]);
    for taken in claims.events {
        let settled = queue.settle(&taken.lease, &Settlement::Handled, None);
        assert!(matches!(settled.await.unwrap(), Settled::Ended(None)));
    }
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let claims = queue.claim(&short, 64, 64).await.unwrap();
        assert!(claims.events.is_empty());
    }
    let dead = "SELECT count(*) FROM tower_webhook.dead WHERE seq IN (2, 4)";
    assert_eq!(count(&pool, dead).await, 2);
    let failures = "SELECT count(*) FROM tower_webhook.failures
        WHERE seq IN (2, 4) AND outcome = 'unreadable'";
    assert_eq!(count(&pool, failures).await, 2);
    let filter = Filter {
        states: vec![EventState::Dead],
        ..Filter::default()
    };
    let listed = queue.list(&filter, Page::oldest(10)).await.unwrap();
    let listed: Vec<_> = listed.events.iter().map(|event| event.id.0).collect();
    assert_eq!(listed, [2, 4]);
    // The chat goes on.
    let claims = queue.claim(&take(), 64, 64).await.unwrap();
    let ids: Vec<_> = claims.events.iter().map(|taken| taken.lease.id.0).collect();
    assert_eq!(ids, [6]);
}

/// The next event of a lane, which a settlement takes.
#[tokio::test(flavor = "multi_thread")]
async fn a_settlement_passes_over_an_unreadable_event() {
    let database = Database::create().await;
    let (queue, pool) = (database.queue().await, database.pool(1).await);
    for _ in 0..2 {
        queue.accept(event(None, Some(1)), None).await.unwrap();
    }
    execute(
        &pool,
        "UPDATE tower_webhook.events SET body = NULL WHERE seq = 2",
    )
    .await;
    let claims = queue.claim(&take(), 1, 1).await.unwrap();
    let lease = claims.events[0].lease;
    let take = take();
    let settled = queue.settle(&lease, &Settlement::Handled, Some(&take));
    assert!(matches!(settled.await.unwrap(), Settled::Ended(None)));
}
