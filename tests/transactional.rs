//! Handlers whose effects are committed together with the event's key, against real servers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderValue, Request};
use http_body_util::Full;
use serde_json::json;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{Executor, PgConnection};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};
use tower::Layer;
use tower_webhook::event::{ChatClosed, ChatRated};
use tower_webhook::postgres::PostgresStore;
use tower_webhook::signature::Signature;
use tower_webhook::transactional::{TransactionalHandler, Transactions};
use tower_webhook::{
    Delivery, EventKind, EventRouter, HandlerResult, IdempotencyKey, Outcome, RawDelivery, Sender,
    SignatureLayer, Webhooks,
};

use support::database::{connect, count};
use support::delivery::{Answered, BODY, HANDLER_ERROR, RequestExt, delivery, secret, send};
use support::eventually;
use support::log::Log;
use support::net::cutting_proxy;
use support::observer::Notes;
use support::postgres::{PostgresServer, Stop};
use support::transactional::{Step, TransactionalCrm, create_effects, poll_only};

/// A server with the tables of both sides.
struct AppServer {
    server: PostgresServer,
    pool: PgPool,
}

impl AppServer {
    async fn start() -> Self {
        let server = PostgresServer::start();
        let pool = connect(&server.url(), 4).await;
        create_effects(&pool).await;
        PostgresStore::new(pool.clone()).migrate().await.unwrap();
        Self { server, pool }
    }

    /// Those of one process.
    fn transactions(&self) -> Transactions {
        transactions(self.pool.clone())
    }

    /// Those of another process.
    async fn others(&self) -> Transactions {
        transactions(connect(&self.server.url(), 4).await)
    }

    async fn count(&self, sql: &str) -> i64 {
        count(&self.pool, sql).await
    }

    async fn effects(&self) -> i64 {
        self.count("SELECT count(*) FROM effects").await
    }

    async fn keys(&self) -> i64 {
        self.count("SELECT count(*) FROM tower_webhook.keys").await
    }

    #[track_caller]
    fn assert(&self, effects: i64, keys: i64) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            let found = (self.effects().await, self.keys().await);
            assert_eq!(found, (effects, keys), "effects and keys at {caller}");
        }
    }
}

fn transactions(pool: PgPool) -> Transactions {
    Transactions::new(PostgresStore::new(pool))
}

/// With a wait that no slow machine exceeds.
fn service(transactions: &Transactions, crm: &TransactionalCrm) -> Signature<EventRouter> {
    service_with(transactions, crm, |route| route)
}

fn service_with(
    transactions: &Transactions,
    crm: &TransactionalCrm,
    set: impl FnOnce(Webhooks) -> Webhooks,
) -> Signature<EventRouter> {
    let route = Webhooks::new(secret()).in_flight_wait(Duration::from_secs(60));
    let signature = set(route).into_signature_layer().unwrap();
    signature.layer(crm.router(transactions))
}

fn event(key: &str) -> Request<Full<Bytes>> {
    delivery(BODY).key(key)
}

#[track_caller]
fn assert_retry_after(answered: &Answered, seconds: &str) {
    assert_eq!(
        answered.header("retry-after"),
        Some(seconds),
        "{answered:?}"
    );
}

#[tokio::test]
async fn effect_and_key_are_committed_together() {
    let database = AppServer::start().await;
    let crm = TransactionalCrm::default();
    let service = service(&database.transactions(), &crm);

    send(&service, event("a")).await.assert_ok();
    database.assert(1, 1).await;
    send(&service, event("a")).await.assert_replayed();
    send(&service, event("a")).await.assert_replayed();
    send(&service, event("b")).await.assert_ok();
    database.assert(2, 2).await;
    assert_eq!(crm.runs(), 2);

    let retained = "SELECT count(*) FROM tower_webhook.keys \
                    WHERE done_until BETWEEN now() + '7 days 23 hours' AND now() + '8 days'";
    assert_eq!(database.count(retained).await, 2);
}

#[tokio::test]
async fn failed_run_leaves_nothing() {
    let database = AppServer::start().await;
    let never = Arc::new(Semaphore::new(0));
    let crm = TransactionalCrm::new([
        Step::Fail,
        Step::Panic,
        Step::SucceedWhen(never.clone()),
        Step::Overlook,
        Step::Execute("COMMIT"),
        Step::Recover,
    ]);
    let transactions = database.transactions();
    let service = service(&transactions, &crm);
    let limit = Duration::from_secs(2);
    let short = service_with(&transactions, &crm, |route| route.handler_timeout(limit));

    let failed = send(&service, event("a")).await;
    failed.assert_problem(500, "failed");
    database.assert(0, 0).await;
    let panicked = send(&service, event("a")).await;
    panicked.assert_problem(500, "panicked");
    database.assert(0, 0).await;
    let slow = send(&short, event("a")).await;
    slow.assert_problem(503, "handler-timeout");
    database.assert(0, 0).await;

    // What a statement wrote is gone with the one that failed after it, unnoticed.
    let overlooked = send(&service, event("a")).await;
    overlooked.assert_problem(500, "failed");
    database.assert(0, 0).await;

    // A handler that commits itself gets an error; the key was committed with the effect all the same.
    let ended = send(&service, event("b")).await;
    ended.assert_problem(500, "failed");
    database.assert(1, 1).await;
    send(&service, event("b")).await.assert_replayed();

    send(&service, event("a")).await.assert_ok();
    send(&service, event("a")).await.assert_replayed();
    database.assert(2, 2).await;
    assert_eq!(crm.runs(), 6);
}

#[tokio::test]
async fn altered_transaction_is_not_committed() {
    let database = AppServer::start().await;
    let one = connect(&database.server.url(), 1).await;
    let transactions = transactions(one);
    let crm = TransactionalCrm::new([
        Step::ForgetSavepoint,
        Step::ForgetSavepointAndFail,
        Step::DropBegin,
    ]);
    let service = service(&transactions, &crm);
    for _ in 0..2 {
        let left_open = send(&service, event("a")).await;
        left_open.assert_problem(500, "failed");
        database.assert(0, 0).await;
    }
    // What came after the rollback was not in the transaction any more.
    let dropped = send(&service, event("a")).await;
    dropped.assert_problem(500, "failed");
    database.assert(1, 0).await;

    send(&service, event("a")).await.assert_ok();
    database.assert(2, 1).await;
}

#[tokio::test]
async fn refused_commit_is_a_failure() {
    let database = AppServer::start().await;
    let unique = "ALTER TABLE effects ADD UNIQUE (chat) DEFERRABLE INITIALLY DEFERRED";
    database.pool.execute(unique).await.unwrap();
    let crm = TransactionalCrm::default();
    let service = service(&database.transactions(), &crm);
    send(&service, event("a")).await.assert_ok();
    let refused = send(&service, event("b")).await;
    refused.assert_problem(500, "failed");
    database.assert(1, 1).await;
    assert_eq!(crm.runs(), 2);
}

#[tokio::test]
async fn disconnect_cancels_the_run() {
    let database = AppServer::start().await;
    let go = Arc::new(Semaphore::new(0));
    let crm = TransactionalCrm::new([
        Step::SucceedWhen(go.clone()),
        Step::Execute("SELECT pg_sleep(3600)"),
    ]);
    let limit = Duration::from_secs(3);
    let set = |route: Webhooks| route.handler_timeout(limit);
    let service = service_with(&database.transactions(), &crm, set);

    for run in 1..=2 {
        tokio::select! {
            answered = send(&service, event("a")) => panic!("{answered:?}"),
            () = crm.running(run) => {}
        }
    }
    // The server cancels the abandoned statement, and the key is free again.
    send(&service, event("a")).await.assert_ok();
    database.assert(1, 1).await;
    assert_eq!(crm.runs(), 3);

    // No connection was left in the middle of anything.
    let open = "SELECT count(*) FROM pg_stat_activity \
                WHERE datname = current_database() AND state <> 'idle' AND pid <> pg_backend_pid() AND backend_type = 'client backend'";
    eventually("the end of all transactions", async || {
        database.count(open).await == 0
    })
    .await;
}

/// Wherever a run is dropped, its transaction is gone before its connection is used again.
#[tokio::test]
async fn run_can_be_dropped_at_any_point() {
    let database = AppServer::start().await;
    let crm = TransactionalCrm::default();
    let one = connect(&database.server.url(), 1).await;
    let service = service(&transactions(one.clone()), &crm);
    one.execute("CREATE TABLE others (id bigserial)")
        .await
        .unwrap();
    send(&service, event("first")).await.assert_ok();

    let (mut done, mut dropped) = (1, 0);
    // How often a run is polled depends on how fast the server answers, but once is never enough.
    for round in 0.. {
        if round >= 72 && dropped > 12 {
            break;
        }
        let (polls, then_wait) = (1 + round % 12, round / 12 % 2 == 0);
        let key = round.to_string();
        match poll_only(polls, then_wait, send(&service, event(&key))).await {
            Some(answered) => answered.assert_ok(),
            None => dropped += 1,
        }
        // Other writes are not part of a transaction that was left open.
        let other = one.execute("INSERT INTO others DEFAULT VALUES").await;
        other.unwrap();
        let others = database.count("SELECT count(*) FROM others").await;
        assert_eq!(others, round as i64 + 1);

        let again = send(&service, event(&key)).await;
        assert_eq!(again.status, 200, "{again:?}");
        done += 1;
        database.assert(done, done).await;
    }
}

#[tokio::test]
async fn discarded_event_is_completed_without_effect() {
    let database = AppServer::start().await;
    let crm = TransactionalCrm::new([Step::Discard, Step::DiscardAfterFailure, Step::Discard]);
    let service = service(&database.transactions(), &crm);

    for key in ["a", "b"] {
        send(&service, event(key)).await.assert_ok();
        send(&service, event(key)).await.assert_replayed();
    }
    database.assert(0, 2).await;
    send(&service, delivery(BODY)).await.assert_ok();
    database.assert(0, 2).await;
    assert_eq!(crm.runs(), 3);
}

#[tokio::test]
async fn delivery_without_a_key_has_a_transaction() {
    let database = AppServer::start().await;
    let crm = TransactionalCrm::new([Step::Succeed, Step::Fail, Step::Overlook]);
    let service = service(&database.transactions(), &crm);

    send(&service, delivery(BODY)).await.assert_ok();
    for _ in 0..2 {
        let failed = send(&service, delivery(BODY)).await;
        failed.assert_problem(500, "failed");
    }
    send(&service, delivery(BODY)).await.assert_ok();
    database.assert(2, 0).await;

    let requiring = Webhooks::new(secret()).require_key();
    let requiring = requiring.into_signature_layer().unwrap();
    let events = EventRouter::new().on::<ChatRated>(database.transactions().handler(crm));
    let refused = send(&requiring.layer(events), delivery(BODY)).await;
    refused.assert_problem(400, "missing-key");
}

#[tokio::test]
async fn one_of_64_concurrent_deliveries_has_an_effect() {
    let database = AppServer::start().await;
    let crm = TransactionalCrm::default();
    let here = service(&database.transactions(), &crm);
    let there = service(&database.others().await, &crm);

    for key in ["a", "b", "c"] {
        let answers = (0..64).map(|n| send([&here, &there][n % 2], event(key)));
        let answers = join_all(answers).await;
        let replayed = answers
            .iter()
            .filter(|answered| answered.header("idempotent-replayed").is_some());
        assert_eq!(replayed.count(), 63);
        assert!(answers.iter().all(|answered| answered.status == 200));
    }
    database.assert(3, 3).await;
    assert_eq!(crm.runs(), 3);
}

#[tokio::test]
async fn duplicate_waits_for_the_outcome() {
    let database = AppServer::start().await;
    let wait = Duration::from_millis(500);
    // In one process, and in two.
    for (key, other) in [
        ("a", database.transactions()),
        ("b", database.others().await),
    ] {
        let go = Arc::new(Semaphore::new(0));
        let crm = TransactionalCrm::new([
            Step::FailWhen(go.clone()),
            Step::SucceedWhen(go.clone()),
            Step::Panic,
        ]);
        let transactions = database.transactions();
        let other = if key == "a" {
            transactions.clone()
        } else {
            other
        };
        let first = service(&transactions, &crm);
        let second = service(&other, &crm);
        let impatient = service_with(&other, &crm, |route| route.in_flight_wait(wait));

        let failing = send(&first, event(key));
        let deciding = async {
            crm.running(1).await;
            let started = Instant::now();
            let refused = send(&impatient, event(key)).await;
            refused.assert_problem(409, "in-flight");
            assert_retry_after(&refused, "30");
            assert!(started.elapsed() >= wait, "{:?}", started.elapsed());
            assert!(started.elapsed() < 20 * wait, "{:?}", started.elapsed());

            // The second waits for the first, which fails: it runs itself. A third waits for it.
            let second = send(&second, event(key));
            let third = async {
                sleep(wait / 2).await;
                assert_eq!(crm.runs(), 1);
                go.add_permits(1);
                crm.running(2).await;
                let third = send(&first, event(key));
                tokio::join!(third, async {
                    sleep(wait / 2).await;
                    go.add_permits(1);
                })
            };
            tokio::join!(second, third)
        };
        let (failed, (second, (third, ()))) = tokio::join!(failing, deciding);
        failed.assert_problem(500, "failed");
        second.assert_ok();
        third.assert_replayed();
        assert_eq!(crm.runs(), 2, "{key}");
    }
    database.assert(2, 2).await;
}

#[tokio::test]
async fn longest_durations_are_accepted() {
    let database = AppServer::start().await;
    let crm = TransactionalCrm::default();
    let endless = service_with(&database.transactions(), &crm, |route| {
        let route = route.retention(Duration::MAX).store_timeout(Duration::MAX);
        route
            .handler_timeout(Duration::MAX)
            .in_flight_wait(Duration::MAX)
    });
    send(&endless, event("a")).await.assert_ok();
    send(&endless, event("a")).await.assert_replayed();
    database.assert(1, 1).await;
}

#[tokio::test]
async fn zero_wait_does_not_wait() {
    let database = AppServer::start().await;
    let go = Arc::new(Semaphore::new(0));
    let crm = TransactionalCrm::new([Step::SucceedWhen(go.clone())]);
    let first = service(&database.transactions(), &crm);
    let other = database.others().await;
    let second = service_with(&other, &crm, |route| route.in_flight_wait(Duration::ZERO));

    let deciding = async {
        crm.running(1).await;
        let refused = send(&second, event("a")).await;
        go.add_permits(1);
        refused
    };
    let (handled, refused) = tokio::join!(send(&first, event("a")), deciding);
    handled.assert_ok();
    refused.assert_problem(409, "in-flight");
    send(&second, event("a")).await.assert_replayed();
}

#[tokio::test]
async fn waiting_duplicates_hold_no_connection() {
    let database = AppServer::start().await;
    let go = Arc::new(Semaphore::new(0));
    let crm = TransactionalCrm::new([Step::SucceedWhen(go.clone())]);
    let service = service(
        &transactions(connect(&database.server.url(), 2).await),
        &crm,
    );

    let duplicates = async {
        crm.running(1).await;
        let duplicates = (0..100).map(|_| send(&service, event("a")));
        let others = async {
            for key in ["b", "c", "d"] {
                send(&service, event(key)).await.assert_ok();
            }
            go.add_permits(1);
        };
        tokio::join!(join_all(duplicates), others).0
    };
    let (first, duplicates) = tokio::join!(send(&service, event("a")), duplicates);
    first.assert_ok();
    for duplicate in duplicates {
        duplicate.assert_replayed();
    }
    database.assert(4, 4).await;
}

#[tokio::test]
async fn works_behind_an_idempotency_layer() {
    let database = AppServer::start().await;
    let crm = TransactionalCrm::new([Step::Fail, Step::Succeed, Step::Discard]);
    let store = PostgresStore::new(database.pool.clone());
    let notes = Notes::default();
    let transactions = Transactions::new(store.clone());
    let events = EventRouter::new().on::<ChatRated>(transactions.handler(crm.clone()));
    let layered = Webhooks::new(secret()).store(store).observer(notes.clone());
    let (layered, _) = layered.into_layer().unwrap();
    let layered = layered.layer(events);
    let alone = service(&database.transactions(), &crm);

    let failed = send(&layered, event("a")).await;
    failed.assert_problem(500, "failed");
    // One attempt, although both have an observer.
    let ends = notes.take_ends();
    assert_eq!(ends.len(), 2, "{ends:?}");
    assert!(ends[0].starts_with("attempt 1 failed inline "), "{ends:?}");
    assert!(ends[1].starts_with("delivery failed 500 "), "{ends:?}");
    // The layer remembers how often it was tried.
    database.assert(0, 1).await;
    send(&layered, event("a")).await.assert_ok();
    send(&layered, event("a")).await.assert_replayed();
    send(&alone, event("a")).await.assert_replayed();
    database.assert(1, 2).await;

    send(&alone, event("b")).await.assert_ok();
    send(&layered, event("b")).await.assert_replayed();
    send(&layered, event("c")).await.assert_ok();
    database.assert(2, 6).await;
    assert_eq!(crm.runs(), 4);

    notes.take();
    send(&layered, delivery(BODY)).await.assert_ok();
    let ends = notes.take_ends();
    assert_eq!(ends.len(), 2, "{ends:?}");
    assert!(ends[0].starts_with("attempt "), "{ends:?}");
    assert!(ends[1].starts_with("delivery handled 200 "), "{ends:?}");
}

#[tokio::test]
async fn routes_separate_keys_and_kinds_do_not() {
    let database = AppServer::start().await;
    let crm = TransactionalCrm::default();
    let one = database.transactions();
    send(&service(&one, &crm), event("a")).await.assert_ok();
    let other = Webhooks::new(secret()).name("other".parse().unwrap());
    let other = other.into_signature_layer().unwrap();
    let events = EventRouter::new().on::<ChatRated>(one.handler(crm.clone()));
    send(&other.layer(events), event("a")).await.assert_ok();
    database.assert(2, 2).await;

    let events = EventRouter::new().on::<ChatClosed>(
        one.handler(async |_: Delivery<ChatClosed>, _: &mut PgConnection| Ok(())),
    );
    let closing = SignatureLayer::new(secret()).layer(events);
    let replayed = send(&closing, event("a").kind("chat-closed")).await;
    replayed.assert_replayed();
}

/// A delivery of a sender whose keys are not signed.
fn signed(sender: &Sender, key: &'static str, body: &str) -> Request<Full<Bytes>> {
    let delivery = RawDelivery::new(EventKind::CHAT_RATED, body.to_owned());
    let delivery = delivery.with_key(IdempotencyKey::new(HeaderValue::from_static(key)));
    let mut request = Request::post("/")
        .body(Full::new(delivery.body().clone()))
        .unwrap();
    *request.headers_mut() = sender.sign(&secret(), &delivery).unwrap();
    request
}

/// A captured delivery could come again with another key.
#[tokio::test]
async fn a_body_of_another_key_is_replayed_if_the_sender_needs_it() {
    let database = AppServer::start().await;
    let crm = TransactionalCrm::default();
    let acme = r#"{
        "name": "acme",
        "key": "x-acme-id",
        "kind": "x-acme-event",
        "signature": { "headers": ["x-acme-signature"], "algorithm": "hmac-sha256", "coding": "hex" }
    }"#;
    let acme = Sender::from_json(acme).unwrap();
    let service = service_with(&database.transactions(), &crm, |route| {
        route.sender(acme.clone())
    });
    let event = |key, body| signed(&acme, key, body);
    send(&service, event("a", BODY)).await.assert_ok();
    send(&service, event("b", BODY)).await.assert_replayed();
    send(&service, event("a", BODY)).await.assert_replayed();
    let other = r#"{"id":"chat-2","rated":"good"}"#;
    send(&service, event("b", other)).await.assert_ok();
    assert_eq!(crm.runs(), 2);
    // Each has a key and a body.
    database.assert(2, 4).await;
}

/// The layer guards the body of their delivery.
#[tokio::test]
async fn equal_items_without_keys_are_as_many_events() {
    let database = AppServer::start().await;
    let crm = TransactionalCrm::default();
    let acme = json!({
        "name": "acme",
        "key": "x-id",
        "batch": { "path": "/*", "kind": "/type" },
        "signature": { "headers": ["x-tag"], "algorithm": "hmac-sha256", "coding": "hex" },
    });
    let acme: Sender = serde_json::from_value(acme).unwrap();
    let layered = Webhooks::new(secret()).sender(acme.clone());
    let layered = layered.store(PostgresStore::new(database.pool.clone()));
    let (layered, _) = layered.into_layer().unwrap();
    let layered = layered.layer(crm.router(&database.transactions()));
    let event = |key, items| {
        let items = vec![r#"{"type":"chat-rated","id":"chat-1"}"#; items].join(",");
        signed(&acme, key, &format!("[{items}]"))
    };
    for (key, items, runs) in [("a", 2, 2), ("b", 3, 5)] {
        send(&layered, event(key, items)).await.assert_ok();
        assert_eq!(crm.runs(), runs);
        send(&layered, event(key, items)).await.assert_replayed();
    }
    let replayed = send(&layered, event("c", 2)).await;
    replayed.assert_problem(422, "body-replayed");
    assert_eq!((crm.runs(), database.effects().await), (5, 5));
}

#[tokio::test]
async fn changed_body_is_replayed_with_a_warning() {
    let database = AppServer::start().await;
    let service = service(&database.transactions(), &TransactionalCrm::default());
    let log = Log::capture(tracing::Level::WARN);

    send(&service, event("a")).await.assert_ok();
    send(&service, event("a")).await.assert_replayed();
    // sqlx has its own, as of statements that a busy machine makes slow.
    let mut events = log.events();
    events.retain(|event| event["target"].starts_with("tower_webhook"));
    assert!(events.is_empty(), "{events:?}");
    let other = delivery(r#"{"id":"chat-2"}"#).key("a");
    send(&service, other).await.assert_replayed();
    assert!(log.text().contains("with another body"), "{}", log.text());
    database.assert(1, 1).await;
}

#[tokio::test]
async fn works_without_http() {
    let database = AppServer::start().await;
    let crm = TransactionalCrm::new([Step::Succeed, Step::Fail]);
    let router = EventRouter::new().on::<ChatRated>(database.transactions().handler(crm));
    let stored = |key| {
        RawDelivery::new(EventKind::CHAT_RATED, BODY)
            .with_key(IdempotencyKey::new(http::HeaderValue::from_static(key)))
    };

    let first = router.handle(stored("a")).await;
    assert!(matches!(first, Outcome::Handled), "{first:?}");
    let again = router.handle(stored("a")).await;
    assert!(matches!(again, Outcome::Replayed), "{again:?}");
    match router.handle(stored("b")).await {
        Outcome::Failed { reason, .. } => assert_eq!(reason.to_string(), HANDLER_ERROR),
        outcome => panic!("{outcome:?}"),
    }
}

/// The limits of ours end with what they are for; shorter ones of the connection stay.
#[tokio::test]
async fn limits_of_the_connection_apply_to_the_handler() {
    let database = AppServer::start().await;
    let shown = Arc::new(Mutex::new(Vec::new()));
    struct Show(Arc<Mutex<Vec<String>>>);
    impl TransactionalHandler<ChatRated> for Show {
        async fn handle(&self, _: Delivery<ChatRated>, db: &mut PgConnection) -> HandlerResult {
            for show in [
                "SHOW lock_timeout",
                "SHOW statement_timeout",
                "SHOW idle_in_transaction_session_timeout",
            ] {
                let value = sqlx::query_scalar(show).fetch_one(&mut *db).await?;
                self.0.lock().unwrap().push(value);
            }
            Ok(())
        }
    }
    let serve = async |options: PgConnectOptions| {
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .connect_with(options)
            .await
            .unwrap();
        let transactions = Transactions::new(PostgresStore::new(pool.clone()));
        let events = EventRouter::new().on::<ChatRated>(transactions.handler(Show(shown.clone())));
        let service = SignatureLayer::new(secret()).layer(events);
        let key = format!("{}", shown.lock().unwrap().len());
        send(&service, event(&key)).await.assert_ok();
        // After the transaction nothing of it is left.
        let mut connection = pool.acquire().await.unwrap();
        let left: String = sqlx::query_scalar("SHOW statement_timeout")
            .fetch_one(&mut *connection)
            .await
            .unwrap();
        left
    };

    let plain: PgConnectOptions = database.server.url().parse().unwrap();
    assert_eq!(serve(plain.clone()).await, "0");
    for [lock, statement, idle] in [
        ["7s", "8s", "9s"],
        ["7s", "29999ms", "1min"],
        ["7s", "1d", "2500ms"],
    ] {
        let limited = plain.clone().options([
            ("lock_timeout", lock),
            ("statement_timeout", statement),
            ("idle_in_transaction_session_timeout", idle),
        ]);
        assert_eq!(serve(limited).await, statement);
    }
    assert_eq!(
        *shown.lock().unwrap(),
        [
            ["0", "30s", "30s"],
            ["7s", "8s", "9s"],
            ["7s", "29999ms", "30s"],
            ["7s", "30s", "2500ms"],
        ]
        .concat()
    );
}

#[tokio::test]
async fn stricter_isolation_refuses_a_concurrent_duplicate() {
    let database = AppServer::start().await;
    for level in ["repeatable read", "serializable"] {
        let options: PgConnectOptions = database.server.url().parse().unwrap();
        let pool = PgPoolOptions::new()
            .connect_with(options.options([("default_transaction_isolation", level)]))
            .await
            .unwrap();
        let go = Arc::new(Semaphore::new(0));
        let crm = TransactionalCrm::new([Step::SucceedWhen(go.clone())]);
        let first = service(&transactions(pool.clone()), &crm);
        let second = service(&transactions(pool), &crm);

        let waiting = async {
            crm.running(1).await;
            let (duplicate, ()) = tokio::join!(send(&second, event(level)), async {
                let waits = "SELECT count(*) FROM pg_stat_activity \
                             WHERE datname = current_database() AND wait_event_type = 'Lock'";
                eventually("the wait", async || database.count(waits).await == 1).await;
                go.add_permits(1);
            });
            duplicate
        };
        let (handled, duplicate) = tokio::join!(send(&first, event(level)), waiting);
        handled.assert_ok();
        duplicate.assert_problem(409, "in-flight");
        send(&second, event(level)).await.assert_replayed();
    }
    database.assert(2, 2).await;
}

#[tokio::test]
async fn attempts_and_calls_of_the_database_are_observed_with_their_errors() {
    let mut database = AppServer::start().await;
    let notes = Notes::default();
    let crm = TransactionalCrm::new([
        Step::Succeed,
        Step::Fail,
        Step::Overlook,
        Step::Discard,
        Step::Panic,
    ]);
    let service = service_with(&database.transactions(), &crm, |route| {
        let route = route.store_timeout(Duration::from_secs(1));
        route.observer(notes.clone())
    });
    let begin = [
        "call store acquire: ok",
        "call store begin: ok",
        "call store insert: ok",
    ];
    let commit = "call store commit: ok";
    let roll_back = "call store roll-back: ok";
    let failed = format!("released: {HANDLER_ERROR}");
    let discarded = format!("settled: {HANDLER_ERROR}");
    for (key, end, attempt) in [
        ("a", &[commit][..], Some(("handled", "settled: -"))),
        // It was handled before.
        ("a", &[roll_back], None),
        ("b", &[roll_back], Some(("failed", failed.as_str()))),
        // The server refuses the commit, as a statement of the handler has failed.
        (
            "c",
            &[commit],
            Some(("failed", "put the statement into a savepoint")),
        ),
        (
            "d",
            &[roll_back, begin[2]],
            Some(("discarded", discarded.as_str())),
        ),
        (
            "e",
            &[],
            Some((
                "panicked",
                "released: the handler panicked: the CRM at crm.internal is down",
            )),
        ),
    ] {
        send(&service, event(key)).await;
        let mut lines = notes.take();
        let delivery = lines.pop().unwrap();
        assert!(delivery.starts_with("delivery "), "{delivery}");
        let (calls, attempts): (Vec<_>, Vec<_>) =
            lines.into_iter().partition(|line| line.starts_with("call"));
        assert_eq!(calls, [&begin[..], end].concat(), "{key}");
        assert_eq!(attempts.len(), usize::from(attempt.is_some()), "{key}");
        for (line, (outcome, end)) in attempts.iter().zip(attempt) {
            let begin = format!("attempt - {outcome} inline ");
            // After a panic's message comes its place.
            let (line, _) = line.split_once(" (tests").unwrap_or((line, ""));
            assert!(line.starts_with(&begin) && line.ends_with(end), "{line}");
        }
    }
    database.server.stop(Stop::Fast);
    send(&service, event("f"))
        .await
        .assert_problem(503, "database-unavailable");
    let lines = notes.take();
    let failed = |line: &String| line.starts_with("call store acquire: the database");
    assert!(lines.iter().any(failed), "{lines:?}");
}

#[tokio::test]
async fn stopped_database_returns_503_until_it_is_back() {
    let mut database = AppServer::start().await;
    let crm = TransactionalCrm::default();
    let transactions = database.transactions();
    let service = service(&transactions, &crm);
    let limit = Duration::from_secs(1);
    let short = service_with(&transactions, &crm, |route| route.store_timeout(limit));
    send(&service, event("a")).await.assert_ok();

    for stop in [Stop::Fast, Stop::Immediate] {
        database.server.stop(stop);
        for _ in 0..3 {
            let started = Instant::now();
            let refused = send(&short, event("b")).await;
            refused.assert_problem(503, "database-unavailable");
            assert_retry_after(&refused, "600");
            assert!(started.elapsed() < Duration::from_secs(8));
        }
        database.server.restart();
        eventually("recovery", async || {
            send(&short, event(&format!("{stop:?}"))).await.status == 200
        })
        .await;
        send(&service, event("a")).await.assert_replayed();
    }
    database.assert(3, 3).await;
}

#[tokio::test]
async fn missing_tables_are_reported() {
    let server = PostgresServer::start();
    let store = PostgresStore::new(connect(&server.url(), 1).await);
    let service = service(
        &Transactions::new(store.clone()),
        &TransactionalCrm::default(),
    );
    let log = Log::capture(tracing::Level::WARN);

    let refused = send(&service, event("a")).await;
    refused.assert_problem(503, "database-unavailable");
    assert!(
        log.text().contains("PostgresStore::migrate"),
        "{}",
        log.text()
    );
}

#[tokio::test]
async fn commit_with_a_lost_response_is_found_by_the_next_delivery() {
    let database = AppServer::start().await;
    let crm = TransactionalCrm::default();
    for (key, forwarded) in [("reached the server", true), ("did not", false)] {
        let proxy = cutting_proxy(database.server.port(), b"COMMIT", forwarded).await;
        let url = format!("postgres://postgres@127.0.0.1:{proxy}/postgres");
        let cut = Transactions::new(PostgresStore::new(connect(&url, 1).await));
        let cut = service(&cut, &crm);
        let direct = service(&database.transactions(), &crm);

        let lost = send(&cut, event(key)).await;
        lost.assert_problem(503, "not-committed");
        assert_retry_after(&lost, "600");
        let again = send(&direct, event(key)).await;
        match forwarded {
            true => again.assert_replayed(),
            false => again.assert_ok(),
        }
    }
    database.assert(2, 2).await;
    assert_eq!(crm.runs(), 3);
}

#[tokio::test]
async fn keys_are_purged_after_their_retention() {
    let database = AppServer::start().await;
    let service = service(&database.transactions(), &TransactionalCrm::default());
    for key in 0..300 {
        send(&service, event(&key.to_string())).await.assert_ok();
    }
    database
        .pool
        .execute("UPDATE tower_webhook.keys SET done_until = now() WHERE key < '80000000-0000-0000-0000-000000000000'")
        .await
        .unwrap();
    let expired = "SELECT count(*) FROM tower_webhook.keys WHERE done_until <= now()";
    let before = database.count(expired).await;
    assert!(before > 50);

    // By itself, while events arrive.
    for key in 300..600 {
        send(&service, event(&key.to_string())).await.assert_ok();
    }
    eventually("the purge", async || database.count(expired).await < before).await;
    let store = PostgresStore::new(database.pool.clone());
    store.purge().await.unwrap();
    assert_eq!(database.count(expired).await, 0);
    assert!(database.keys().await > 400);
    assert_eq!(database.effects().await, 600);
}
