//! Transactional handlers in a worker on a queue of the same database: effect and settlement are one commit.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Executor, PgConnection};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tower::Layer;
use tower_webhook::event::{ChatRated, EventKind};
use tower_webhook::inbox::internal::{Settled, Settlement, TakenEvent};
use tower_webhook::inbox::{Accept, By, Change, EventId, EventState, Inbox, Retry};
use tower_webhook::postgres::PostgresQueue;
use tower_webhook::postgres::PostgresStore;
use tower_webhook::signature::Signature;
use tower_webhook::transactional::Transactions;
use tower_webhook::{
    Delivery, EventRouter, IdempotencyKey, Outcome, RawDelivery, Running, SignatureLayer, Webhooks,
};

use support::database::{Database, count};
use support::delivery::{RequestExt, delivery, secret, send};
use support::inbox::{Work, Works};
use support::net::cutting_proxy;
use support::observer::Notes;
use support::queue::Calls;
use support::transactional::{Step, TransactionalCrm, create_effects};
use support::{MINUTE, SECOND, eventually};

/// A database with the tables of both sides, and an inbox in it.
struct App {
    database: Database,
    pool: PgPool,
    inbox: Inbox,
}

impl App {
    async fn start() -> Self {
        Self::start_with(8).await
    }

    async fn start_with(connections: u32) -> Self {
        let database = Database::create().await;
        let pool = database.pool(connections).await;
        create_effects(&pool).await;
        let queue = PostgresQueue::new(pool.clone());
        queue.migrate().await.unwrap();
        let inbox = Inbox::new(queue);
        Self {
            database,
            pool,
            inbox,
        }
    }

    fn webhooks(&self) -> Signature<Accept> {
        SignatureLayer::new(secret()).layer(self.inbox.accept())
    }

    async fn accept(&self, key: &str) {
        send(&self.webhooks(), event(key)).await.assert_ok();
    }

    /// A worker that asks the queue only when it knows of something.
    fn worker(&self, crm: &TransactionalCrm) -> Work<EventRouter> {
        let worker = self.inbox.work(crm.router(&transactions(&self.pool)));
        let retry = Retry::default().delays(Duration::from_millis(1), Duration::from_millis(1));
        worker.poll_every(60 * MINUTE).retry(retry)
    }

    async fn count(&self, sql: &str) -> i64 {
        count(&self.pool, sql).await
    }

    async fn effects(&self) -> i64 {
        self.count("SELECT count(*) FROM effects").await
    }

    async fn state(&self, id: i64) -> EventState {
        let event = self.inbox.get(EventId(id)).await.unwrap();
        event.unwrap().summary.state
    }

    async fn becomes(&self, id: i64, state: EventState) {
        let what = format!("event {id} {state}");
        eventually(&what, async || self.state(id).await == state).await;
    }

    /// The number of events that were handled, and of those whose effect is of the same commit.
    async fn handled(&self) -> (i64, i64) {
        let pairs = "SELECT count(*) FROM effects AS e
            JOIN tower_webhook.ended AS s ON s.xmin = e.xmin WHERE s.state = 'handled'";
        let handled = "SELECT count(*) FROM tower_webhook.ended WHERE state = 'handled'";
        (self.count(handled).await, self.count(pairs).await)
    }
}

fn transactions(pool: &PgPool) -> Transactions {
    Transactions::new(PostgresStore::new(pool.clone()))
}

/// An event of a chat of its own.
fn event(key: &str) -> Request<Full<Bytes>> {
    delivery(format!(r#"{{"id":"{key}","rating":1}}"#)).key(key)
}

async fn end(worker: Running) {
    worker.drain(MINUTE).await.unwrap();
}

async fn take(queue: &PostgresQueue, lease: Duration) -> Option<TakenEvent> {
    let claims = queue.claim_of(&support::queue::take(lease), 1, 1).await;
    claims.unwrap().events.into_iter().next()
}

#[tokio::test(flavor = "multi_thread")]
async fn effect_and_settlement_are_one_commit() {
    let app = App::start().await;
    let go = Arc::new(Semaphore::new(0));
    let crm = TransactionalCrm::new([Step::SucceedWhen(go.clone())]);
    let worker = app.worker(&crm).spawn();
    app.accept("a").await;

    crm.running(1).await;
    assert_eq!(app.effects().await, 0);
    assert_eq!(app.state(1).await, EventState::InProgress);
    go.add_permits(1);
    app.becomes(1, EventState::Handled).await;
    assert_eq!(app.effects().await, 1);
    assert_eq!(app.handled().await, (1, 1), "in one transaction");

    for key in ["b", "c", "d"] {
        app.accept(key).await;
    }
    eventually("all", async || app.handled().await.0 == 4).await;
    assert_eq!(app.handled().await, (4, 4));
    end(worker).await;
    assert_eq!(crm.runs(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn transaction_follows_the_settings_of_its_route() {
    let app = App::start().await;
    let notes = Notes::default();
    let handler = transactions(&app.pool).handler(
        async |chat: Delivery<ChatRated>, db: &mut PgConnection| {
            sqlx::query("INSERT INTO effects (chat, n) SELECT $1, 1 WHERE current_setting('statement_timeout') = '7s'")
                .bind(chat.payload.id)
                .execute(db)
                .await?;
            Ok(())
        },
    );
    let work = app.inbox.work(EventRouter::new().on::<ChatRated>(handler));
    let worker = work
        .handler_timeout(7 * SECOND)
        .route(|route| route.observer(notes.clone()))
        .spawn();
    app.accept("a").await;
    app.becomes(1, EventState::Handled).await;
    end(worker).await;
    assert_eq!(app.effects().await, 1);
    let lines = notes.take();
    assert!(
        lines.iter().any(|line| line == "call store commit: ok"),
        "{lines:?}"
    );
}

/// Also with one router for both.
#[tokio::test(flavor = "multi_thread")]
async fn equal_keys_of_two_routes_are_two_events() {
    let app = App::start().await;
    let crm = TransactionalCrm::default();
    let router = crm.router(&transactions(&app.pool));
    let mut routes = app.inbox.routes();
    let receivers = ["chat-platform", "crm"].map(|name| {
        let webhooks = Webhooks::new(secret()).name(name.parse().unwrap());
        routes.add(webhooks, router.clone()).unwrap()
    });
    let worker = routes.start().unwrap();
    for webhooks in receivers {
        send(&webhooks, event("a")).await.assert_ok();
    }
    eventually("both", async || app.handled().await.0 == 2).await;
    assert_eq!((crm.runs(), app.effects().await), (2, 2));
    end(worker).await;
}

/// Without waiting for the next time at which the worker asks the queue.
#[tokio::test(flavor = "multi_thread")]
async fn next_event_of_the_lane_follows_at_once() {
    const EVENTS: i64 = 100;

    let app = App::start().await;
    let crm = TransactionalCrm::default();
    let worker = app.worker(&crm).spawn();
    for n in 0..EVENTS {
        let body = format!(r#"{{"id":"chat","rating":{n}}}"#);
        let accepted = send(&app.webhooks(), delivery(body).key(&n.to_string())).await;
        accepted.assert_ok();
    }
    eventually("all", async || app.effects().await == EVENTS).await;
    let ordered = "SELECT count(*) FROM (
        SELECT n, row_number() OVER (ORDER BY id) - 1 AS at FROM effects
    ) AS effects WHERE n = at";
    assert_eq!(app.count(ordered).await, EVENTS);
    assert_eq!(app.handled().await, (EVENTS, EVENTS));
    end(worker).await;
    assert_eq!(
        app.count("SELECT count(*) FROM tower_webhook.head").await,
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_lease_rolls_the_effect_back() {
    let app = App::start().await;
    let go = Arc::new(Semaphore::new(0));
    let crm = TransactionalCrm::new([Step::SucceedWhen(go.clone())]);
    let worker = app.worker(&crm).spawn();
    app.accept("a").await;
    crm.running(1).await;

    // Another process discards it, which this one has not noticed yet.
    let other = app.database.queue().await;
    assert_eq!(
        other
            .discard(EventId(1), None, &By::default())
            .await
            .unwrap(),
        Change::Made
    );
    go.add_permits(1);
    end(worker).await;
    assert_eq!(app.effects().await, 0);
    assert_eq!(app.state(1).await, EventState::Discarded);
    assert_eq!(
        app.count("SELECT count(*) FROM tower_webhook.failures")
            .await,
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn late_finisher_has_no_effect_and_its_successor_has() {
    let app = App::start().await;
    let go = Arc::new(Semaphore::new(0));
    let crm = TransactionalCrm::new([Step::SucceedWhen(go.clone())]);
    app.accept("a").await;
    let queues = [app.database.queue().await, app.database.queue().await];
    let stale = take(&queues[0], Duration::from_millis(1)).await.unwrap();

    let router = crm.router(&transactions(&app.pool));
    let late = tokio::spawn(router.handle(stale.delivery.clone()));
    crm.running(1).await;
    let mut current = None;
    eventually("the end of the lease", async || {
        current = take(&queues[1], MINUTE).await;
        current.is_some()
    })
    .await;
    let current = current.unwrap();
    assert_eq!(current.crashes, 1);
    go.add_permits(1);
    let late = late.await.unwrap();
    assert!(matches!(late, Outcome::LeaseLost), "{late:?}");
    assert_eq!(app.effects().await, 0);

    let handled = router.handle(current.delivery.clone()).await;
    assert!(matches!(handled, Outcome::Handled), "{handled:?}");
    assert_eq!(app.handled().await, (1, 1));
    for (queue, taken) in queues.iter().zip([&stale, &current]) {
        let settled = queue.settle(&taken.lease, &Settlement::Handled, None).await;
        assert!(matches!(settled.unwrap(), Settled::Lost));
    }

    // A third finisher, whose lease nobody took over, but whose event is settled.
    let third = router.handle(current.delivery.clone()).await;
    assert!(matches!(third, Outcome::Replayed), "{third:?}");
    assert_eq!(app.effects().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_handler_is_retried_then_dead_then_redriven() {
    let app = App::start().await;
    let crm = TransactionalCrm::new([Step::Fail, Step::Fail, Step::Fail]);
    let retry = Retry::default()
        .delays(Duration::from_millis(1), Duration::from_millis(1))
        .max_attempts(3);
    let worker = app.worker(&crm).retry(retry).spawn();
    app.accept("a").await;
    app.becomes(1, EventState::Dead).await;
    assert_eq!(crm.runs(), 3);
    assert_eq!(app.effects().await, 0);
    let record = app.inbox.get(EventId(1)).await.unwrap().unwrap();
    assert_eq!(record.failures.len(), 3);

    assert_eq!(
        app.inbox.redrive(EventId(1), None).await.unwrap(),
        Change::Made
    );
    app.becomes(1, EventState::Handled).await;
    assert_eq!(app.handled().await, (1, 1));
    end(worker).await;
    assert_eq!(crm.runs(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn redriven_event_runs_again_and_settles_itself_again() {
    let app = App::start().await;
    let crm = TransactionalCrm::default();
    let worker = app.worker(&crm).spawn();
    app.accept("a").await;
    for runs in 1..=3 {
        eventually("the run", async || app.effects().await == runs).await;
        app.becomes(1, EventState::Handled).await;
        let of_the_last = "SELECT count(*) FROM effects AS e, tower_webhook.ended AS s
            WHERE s.xmin = e.xmin AND e.id = (SELECT max(id) FROM effects)";
        assert_eq!(app.count(of_the_last).await, 1);
        if runs < 3 {
            assert_eq!(
                app.inbox.redrive(EventId(1), None).await.unwrap(),
                Change::Made
            );
        }
    }
    end(worker).await;
    // A delivery of the event that comes inline is recognised.
    let inline = SignatureLayer::new(secret()).layer(crm.router(&transactions(&app.pool)));
    send(&inline, event("a")).await.assert_replayed();
    assert_eq!(crm.runs(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn given_up_event_has_no_effect_and_can_be_redriven() {
    let app = App::start().await;
    let crm = TransactionalCrm::new([Step::Discard, Step::DeadLetter]);
    let worker = app.worker(&crm).spawn();
    app.accept("a").await;
    app.becomes(1, EventState::Discarded).await;
    app.accept("b").await;
    app.becomes(2, EventState::Dead).await;
    assert_eq!(app.effects().await, 0);

    for id in [1, 2] {
        assert_eq!(
            app.inbox.redrive(EventId(id), None).await.unwrap(),
            Change::Made
        );
        app.becomes(id, EventState::Handled).await;
    }
    assert_eq!(app.handled().await, (2, 2));
    end(worker).await;
    assert_eq!(crm.runs(), 4);
}

/// The page of the inbox promises that the keys of both are known to each other's handlers.
#[tokio::test(flavor = "multi_thread")]
async fn event_that_was_handled_inline_before_is_not_handled_again() {
    let app = App::start().await;
    let crm = TransactionalCrm::default();
    let inline = SignatureLayer::new(secret()).layer(crm.router(&transactions(&app.pool)));
    send(&inline, event("a")).await.assert_ok();

    let worker = app.worker(&crm).spawn();
    app.accept("a").await;
    app.becomes(1, EventState::Handled).await;
    app.accept("b").await;
    app.becomes(2, EventState::Handled).await;
    send(&inline, event("b")).await.assert_replayed();
    end(worker).await;
    assert_eq!(crm.runs(), 2);
    assert_eq!(app.effects().await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn delivery_without_a_key_settles_its_event_too() {
    let app = App::start().await;
    let crm = TransactionalCrm::default();
    let worker = app.worker(&crm).spawn();
    let body = r#"{"id":"chat","rating":1}"#;
    for _ in 0..3 {
        send(&app.webhooks(), delivery(body)).await.assert_ok();
    }
    eventually("all", async || app.handled().await == (3, 3)).await;
    end(worker).await;
}

/// A handler that ended its transaction, or left it broken, settles nothing.
#[tokio::test(flavor = "multi_thread")]
async fn altered_transaction_settles_nothing() {
    let app = App::start().await;
    let crm = TransactionalCrm::new([
        Step::Execute("ROLLBACK"),
        Step::Execute("ROLLBACK; BEGIN"),
        Step::Execute("SELECT 1 / 0"),
        Step::Execute("SET LOCAL ROLE pg_monitor"),
        Step::Execute("SAVEPOINT mine"),
    ]);
    let worker = app.worker(&crm).spawn();
    app.accept("a").await;
    app.becomes(1, EventState::Handled).await;
    end(worker).await;
    let record = app.inbox.get(EventId(1)).await.unwrap().unwrap();
    let outcomes = record.failures.iter().map(|past| &past.failure.outcome);
    assert!(outcomes.eq(["failed"; 4]), "{:?}", record.failures);
    assert_eq!(record.summary.failures, 4);
    assert_eq!(app.effects().await, 1);
}

/// The queue in one database, the handlers' tables in another one, or in another schema.
#[tokio::test(flavor = "multi_thread")]
async fn handlers_of_another_database_or_schema_settle_apart() {
    for same_database in [false, true] {
        let app = App::start().await;
        let crm = TransactionalCrm::default();
        let other = App::start().await;
        let (pool, schema) = match same_database {
            true => (app.pool.clone(), "elsewhere"),
            false => (other.pool.clone(), "tower_webhook"),
        };
        let store = PostgresStore::new(pool.clone());
        let store = store.with_schema(schema).unwrap();
        store.migrate().await.unwrap();
        let transactions = Transactions::new(store);
        let events = EventRouter::new().on::<ChatRated>(transactions.handler(crm.clone()));
        let worker = app.inbox.work(events).spawn();
        app.accept("a").await;
        app.becomes(1, EventState::Handled).await;
        end(worker).await;
        let effects: i64 = sqlx::query_scalar("SELECT count(*) FROM effects")
            .fetch_one(&pool)
            .await
            .unwrap();
        assert_eq!(effects, 1);
        assert_eq!(app.handled().await, (1, 0));
        assert_eq!(crm.runs(), 1);
    }
}

/// The functions of the queue need `read committed`.
#[tokio::test(flavor = "multi_thread")]
async fn handlers_with_another_isolation_level_settle_apart() {
    for level in ["repeatable read", "serializable"] {
        let app = App::start().await;
        let crm = TransactionalCrm::default();
        let options: PgConnectOptions = app.database.url().parse().unwrap();
        let options = options.options([("default_transaction_isolation", level)]);
        let pool = PgPoolOptions::new().connect_with(options).await.unwrap();
        let worker = app.inbox.work(crm.router(&transactions(&pool))).spawn();
        app.accept("a").await;
        app.becomes(1, EventState::Handled).await;
        end(worker).await;
        assert_eq!(app.effects().await, 1);
        assert_eq!(app.handled().await, (1, 0));
        assert_eq!(crm.runs(), 1);
    }
}

/// A user of the store alone need not have rights on the tables of the queue.
#[tokio::test(flavor = "multi_thread")]
async fn handlers_without_rights_on_the_queue_settle_apart() {
    let app = App::start().await;
    let crm = TransactionalCrm::default();
    let role = format!("store_{}", app.database.url().rsplit('_').next().unwrap());
    let grants = format!(
        "CREATE ROLE {role} LOGIN;
         GRANT USAGE ON SCHEMA tower_webhook TO {role};
         GRANT SELECT ON tower_webhook.schema_versions TO {role};
         GRANT SELECT, INSERT, UPDATE, DELETE ON tower_webhook.keys TO {role};
         GRANT INSERT ON effects TO {role};
         GRANT USAGE ON effects_id_seq TO {role}"
    );
    let grants = sqlx::raw_sql(AssertSqlSafe(grants));
    app.pool.execute(grants).await.unwrap();
    let url = app.database.url().replace("postgres@", &format!("{role}@"));
    let pool = PgPool::connect(&url).await.unwrap();
    let worker = app.inbox.work(crm.router(&transactions(&pool))).spawn();
    app.accept("a").await;
    app.becomes(1, EventState::Handled).await;
    end(worker).await;
    assert_eq!(app.effects().await, 1);
    assert_eq!(app.handled().await, (1, 0));
}

/// Queue and handlers share the only connection.
#[tokio::test(flavor = "multi_thread")]
async fn one_connection_is_slow_but_no_deadlock() {
    const EVENTS: i64 = 40;

    let app = App::start_with(1).await;
    let crm = TransactionalCrm::default();
    for n in 0..EVENTS {
        app.accept(&n.to_string()).await;
    }
    let worker = app.worker(&crm).concurrency(16).spawn();
    let all = eventually("all", async || app.effects().await == EVENTS);
    timeout(MINUTE, all).await.unwrap();
    end(worker).await;
    assert_eq!(app.handled().await, (EVENTS, EVENTS));
}

/// The connection is cut where the transaction is to be committed: before the server knows of it, and after.
#[tokio::test(flavor = "multi_thread")]
async fn event_is_settled_exactly_when_a_cut_commit_was_made() {
    for reaches_the_server in [true, false] {
        let app = App::start().await;
        let crm = TransactionalCrm::default();
        let options: PgConnectOptions = app.database.url().parse().unwrap();
        let proxy = cutting_proxy(options.get_port(), b"COMMIT", reaches_the_server).await;
        let cut = PgPoolOptions::new()
            .max_connections(1)
            .connect_with(options.port(proxy))
            .await
            .unwrap();
        app.accept("a").await;
        let mut worker = Some(app.inbox.work(crm.router(&transactions(&cut))).spawn());
        crm.running(1).await;
        if reaches_the_server {
            app.becomes(1, EventState::Handled).await;
        } else {
            app.becomes(1, EventState::Retrying).await;
            assert_eq!(app.effects().await, 0);
            end(worker.take().unwrap()).await;
            assert_eq!(
                app.inbox.redrive(EventId(1), None).await.unwrap(),
                Change::Made
            );
            worker = Some(app.worker(&crm).spawn());
            app.becomes(1, EventState::Handled).await;
        }
        end(worker.unwrap()).await;
        assert_eq!(app.handled().await, (1, 1));
        assert_eq!(app.effects().await, 1);
    }
}

/// Its deferred check refuses the commit itself.
#[tokio::test(flavor = "multi_thread")]
async fn refused_commit_is_a_failure_that_counts() {
    let app = App::start().await;
    app.pool
        .execute(
            "ALTER TABLE effects ADD CONSTRAINT chats UNIQUE (chat) DEFERRABLE INITIALLY DEFERRED;
             INSERT INTO effects (chat) VALUES ('a')",
        )
        .await
        .unwrap();
    let crm = TransactionalCrm::default();
    let retry = Retry::default()
        .delays(Duration::from_millis(1), Duration::from_millis(1))
        .max_attempts(2);
    let worker = app.worker(&crm).retry(retry).spawn();
    app.accept("a").await;
    app.becomes(1, EventState::Dead).await;
    end(worker).await;
    assert_eq!(crm.runs(), 2);
    assert_eq!(app.effects().await, 1);
}

/// The server ended the transaction before a commit was sent.
#[tokio::test(flavor = "multi_thread")]
async fn handler_that_outlives_the_idle_limit_becomes_a_dead_letter() {
    let app = App::start().await;
    let crm = TransactionalCrm::new((0..10).map(|_| Step::Idle));
    let retry = Retry::default()
        .delays(Duration::from_millis(1), Duration::from_millis(1))
        .max_attempts(3);
    let worker = app.worker(&crm).retry(retry).spawn();
    app.accept("a").await;
    eventually("the third run", async || crm.runs() >= 3).await;
    eventually("the end of the third run", async || {
        app.state(1).await == EventState::Dead || crm.runs() > 3
    })
    .await;
    assert_eq!(app.state(1).await, EventState::Dead);
    assert_eq!(crm.runs(), 3);
    assert_eq!(app.effects().await, 0);
    let record = app.inbox.get(EventId(1)).await.unwrap().unwrap();
    for failure in record.failures {
        assert_eq!(failure.failure.outcome, "failed");
    }
    end(worker).await;
}

/// Whatever the error is: the server has rolled back.
#[tokio::test(flavor = "multi_thread")]
async fn commit_that_is_answered_with_an_error_counts() {
    let app = App::start().await;
    app.pool
        .execute(
            "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN RAISE 'the disk is full' USING ERRCODE = '53100'; END $$;
            CREATE CONSTRAINT TRIGGER full_disk AFTER INSERT ON effects
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION full_disk()",
        )
        .await
        .unwrap();
    let crm = TransactionalCrm::default();
    let worker = app.worker(&crm).retry(Retry::default().max_attempts(1));
    let worker = worker.spawn();
    app.accept("a").await;
    eventually("a failure", async || {
        let record = app.inbox.get(EventId(1)).await.unwrap().unwrap();
        !record.failures.is_empty()
    })
    .await;
    assert_eq!(app.state(1).await, EventState::Dead);
    assert_eq!(app.effects().await, 0);
    end(worker).await;
}

/// Workers of two processes, whose connections are cut again and again in the middle of transactions.
#[tokio::test(flavor = "multi_thread")]
async fn effects_and_settlements_agree_despite_cut_connections() {
    const EVENTS: i64 = 300;

    let app = App::start().await;
    let crm = TransactionalCrm::default();
    let mut workers = Vec::new();
    for _ in 0..2 {
        let pool = app.database.pool(12).await;
        let inbox = Inbox::new(PostgresQueue::new(pool.clone()));
        let worker = inbox
            .work(crm.router(&transactions(&pool)))
            .max_crashes(100);
        let retry = Retry::default().delays(Duration::from_millis(1), Duration::from_millis(20));
        let worker = worker.lease(SECOND).retry(retry);
        let worker = worker.poll_every(Duration::from_millis(20));
        workers.push(worker.credit(usize::MAX).concurrency(6).spawn());
    }
    let admin = app.database.pool(1).await;
    let cutting = tokio::spawn(async move {
        let mut cuts = 0i64;
        loop {
            let cut: Option<bool> = sqlx::query_scalar(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                WHERE datname = current_database() AND backend_xid IS NOT NULL AND pid <> pg_backend_pid()
                ORDER BY random() LIMIT 1",
            )
            .fetch_optional(&admin)
            .await
            .unwrap();
            cuts += i64::from(cut == Some(true));
            if cuts == 100 {
                return;
            }
            sleep(Duration::from_millis(3)).await;
        }
    });
    // Accepted by a process of its own, whose connections are cut as well.
    let mut n = 0;
    while n < EVENTS || !cutting.is_finished() {
        let body = format!(r#"{{"id":"chat-{}","rating":{n}}}"#, n % 30);
        let answered = send(&app.webhooks(), delivery(body).key(&n.to_string())).await;
        // What was not answered with 200 is delivered again.
        n += i64::from(answered.status == 200);
    }
    cutting.await.unwrap();
    eventually("all", async || {
        app.count("SELECT count(*) FROM tower_webhook.ended").await == n
    })
    .await;
    for worker in workers {
        end(worker).await;
    }
    let numbers = "SELECT count(DISTINCT n) FROM effects";
    assert_eq!(app.effects().await, n);
    assert_eq!(app.count(numbers).await, n);
    assert_eq!(app.handled().await, (n, n), "each in one transaction");
    let inversions = "SELECT count(*) FROM effects AS a JOIN effects AS b USING (chat)
        WHERE a.id < b.id AND a.n > b.n";
    assert_eq!(app.count(inversions).await, 0);
}

/// What a handler keeps of its delivery carries no right to settle another attempt.
#[tokio::test(flavor = "multi_thread")]
async fn stored_copy_of_a_delivery_settles_nothing() {
    let app = App::start().await;
    let crm = TransactionalCrm::default();
    app.accept("a").await;
    let taken = take(&app.database.queue().await, MINUTE).await.unwrap();
    let copy = RawDelivery::new(EventKind::CHAT_RATED, taken.delivery.body().clone())
        .with_key(taken.delivery.key().cloned());
    let handled = crm.router(&transactions(&app.pool)).handle(copy).await;
    assert!(matches!(handled, Outcome::Handled), "{handled:?}");
    assert_eq!(app.state(1).await, EventState::InProgress);
    let again = taken
        .delivery
        .with_key(IdempotencyKey::new(http::HeaderValue::from_static(
            "another",
        )));
    let handled = crm.router(&transactions(&app.pool)).handle(again).await;
    assert!(matches!(handled, Outcome::Handled), "{handled:?}");
    assert_eq!(app.state(1).await, EventState::Handled);
}
