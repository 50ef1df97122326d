//! Migrations on a real server: to a version 2 that no release has, beside processes of version 1.

#[allow(unreachable_pub)]
#[path = "../../tests/support/database.rs"]
#[allow(dead_code)]
pub(super) mod database;
#[allow(unreachable_pub)]
#[path = "../../tests/support/postgres.rs"]
pub(super) mod postgres;
#[allow(unreachable_pub)]
#[path = "../../tests/support/program.rs"]
#[allow(dead_code)]
mod program;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tokio::time::{sleep, timeout};

use self::database::count;
pub(super) use self::database::{Database, execute};
use self::program::{PATIENCE, Peer, say};
use super::engine::{Migration, Migrations, Tables};
use super::schema::{MIGRATIONS, TABLES};
use super::{PostgresQueue, PostgresStore};
use crate::delivery::RawDelivery;
use crate::event::EventKind;
use crate::inbox::event::{Kinds, Lane, NewEvent, Settlement, Take};
use crate::inbox::queue::{Accepted, Queue, Settled};
use crate::inbox::records::AcceptOne;
use crate::store::{Claim, EventKey, Store};
use crate::store::{OpenError as Error, OpenErrorKind as ErrorKind};

async fn migrate(database: &Database, migrations: Migrations) -> Result<(), Error> {
    Tables::new(database.pool(1).await)
        .migrate(migrations, TABLES)
        .await
}

/// Something that a later release adds, which this one can do without.
const NEXT: Migrations = &[
    MIGRATIONS[0],
    Migration {
        lowest_release: "0.1.0",
        sql: "ALTER TABLE {schema}.keys ADD COLUMN note text;
                ALTER TABLE {schema}.head ADD COLUMN note text DEFAULT 'none';
                CREATE TABLE {schema}.notes (id bigint PRIMARY KEY);",
    },
];

/// As [`NEXT`], in a statement that lasts for a while.
const SLOW: Migrations = &[
    MIGRATIONS[0],
    Migration {
        sql: "ALTER TABLE {schema}.keys ADD COLUMN note text; SELECT pg_sleep(2);",
        ..NEXT[1]
    },
];

/// What this release cannot use any more.
const BREAKING: Migrations = &[
    MIGRATIONS[0],
    NEXT[1],
    Migration {
        lowest_release: "999.1.0",
        sql: "ALTER TABLE {schema}.keys RENAME COLUMN note TO remark",
    },
];

const BROKEN: Migrations = &[
    MIGRATIONS[0],
    Migration {
        sql: "CREATE TABLE {schema}.notes (id bigint); INSERT INTO {schema}.nowhere VALUES (1);",
        ..NEXT[1]
    },
];

const VERSIONS: &str = "SELECT count(*) FROM tower_webhook.schema_versions";

/// A process of version 1: it accepts and handles events, and claims and completes keys.
struct Process {
    queue: Queue,
    store: PostgresStore,
}

const HOUR: Duration = Duration::from_secs(60 * 60);

impl Process {
    async fn start(database: &Database) -> Self {
        let queue = PostgresQueue::open(database.pool(3).await).await.unwrap();
        Self {
            queue: queue.into(),
            store: PostgresStore::new(database.pool(1).await),
        }
    }

    /// Does everything once, for an event and a key of this number.
    async fn work(&self, number: u64) {
        let take = Take {
            lease: HOUR,
            kinds: Kinds::all(),
        };
        let key = |of: &str| EventKey::new(of, &number.to_be_bytes(), b"{}");
        let chat = format!("chat-{}", number % 3);
        let event = NewEvent {
            delivery: RawDelivery::new(EventKind::MESSAGE_CREATED, "{}"),
            key: Some(key("inbox")),
            guard: None,
            rejects_changed_body: false,
            lane: Some(Lane::of_chat(&chat)),
            chat: Some(chat),
            retain: HOUR,
            dead: None,
        };
        let queue = &self.queue;
        let accepted = queue.accept.accept_one(event, Some(&take)).await.unwrap();
        let Accepted::New { id, taken } = accepted else {
            panic!("{accepted:?}");
        };
        let lease = taken.unwrap().lease;
        let settled = queue.settle.settle(&lease, &Settlement::Handled, None);
        assert!(matches!(settled.await.unwrap(), Settled::Ended(None)));
        assert!(queue.list.get(id).await.unwrap().is_some());
        queue.claim.claim(&[take.into()], 1, 1).await.unwrap();

        let claim = self.store.claim(&key("inline"), HOUR, HOUR).await.unwrap();
        let Claim::Acquired(lease) = claim else {
            panic!("{claim:?}");
        };
        self.store.complete(&lease, HOUR).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_is_upgraded_beside_processes_that_continue() {
    let database = Database::create().await;
    let process = Process::start(&database).await;
    let is_upgraded = AtomicBool::new(false);
    let work = async {
        let (mut number, mut left) = (0, 50);
        while left > 0 {
            process.work(number).await;
            number += 1;
            left -= i32::from(is_upgraded.load(Ordering::SeqCst));
        }
        number
    };
    let upgrade = async {
        sleep(Duration::from_millis(100)).await;
        migrate(&database, NEXT).await.unwrap();
        is_upgraded.store(true, Ordering::SeqCst);
    };
    let (number, ()) = tokio::join!(work, upgrade);
    let pool = database.pool(1).await;
    assert_eq!(count(&pool, VERSIONS).await, 2);
    assert_eq!(
        count(&pool, "SELECT count(*) FROM tower_webhook.notes").await,
        0
    );

    // A replica of version 1 restarts, or is deployed again.
    let older = Process::start(&database).await;
    older.work(number).await;
    migrate(&database, NEXT).await.unwrap();
    assert_eq!(count(&pool, VERSIONS).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_that_start_at_once_upgrade_once() {
    let database = Database::create().await;
    migrate(&database, MIGRATIONS).await.unwrap();
    let upgrades = (0..8).map(|at| {
        let format = if at % 2 == 0 { NEXT } else { MIGRATIONS };
        migrate(&database, format)
    });
    for upgrade in futures_util::future::join_all(upgrades).await {
        upgrade.unwrap();
    }
    let pool = database.pool(1).await;
    assert_eq!(count(&pool, VERSIONS).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_this_release_cannot_use_is_refused() {
    let database = Database::create().await;
    migrate(&database, BREAKING).await.unwrap();
    let pool = database.pool(1).await;
    for format in [MIGRATIONS, NEXT] {
        let error = migrate(&database, format).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NewerSchema);
        let message = error.to_string();
        assert!(message.contains("only release 999.1.0"), "{message}");
        assert!(message.contains("deploy the later release"), "{message}");
        assert_eq!(count(&pool, VERSIONS).await, 3);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_fails_leaves_the_schema_as_it_was() {
    let database = Database::create().await;
    let process = Process::start(&database).await;
    let error = migrate(&database, BROKEN).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let pool = database.pool(1).await;
    assert_eq!(count(&pool, VERSIONS).await, 1);
    let notes = "SELECT count(*) FROM pg_class WHERE relname = 'notes'";
    assert_eq!(count(&pool, notes).await, 0);
    process.work(0).await;
    migrate(&database, NEXT).await.unwrap();
    process.work(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_that_waits_for_a_transaction_delays_deliveries_only_briefly() {
    let database = Database::create().await;
    migrate(&database, MIGRATIONS).await.unwrap();
    let pool = database.pool(4).await;
    let mut busy = pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE tower_webhook.keys IN ROW EXCLUSIVE MODE")
        .execute(&mut *busy)
        .await
        .unwrap();

    let looks = async {
        // Of many look-ups beside it, none waits for as long as the transaction lasts.
        for _ in 0..20 {
            let look_up = count(&pool, "SELECT count(*) FROM tower_webhook.keys");
            timeout(Duration::from_millis(1500), look_up).await.unwrap();
            sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(count(&pool, VERSIONS).await, 1);
        busy.rollback().await.unwrap();
    };
    let (upgraded, ()) = tokio::join!(migrate(&database, NEXT), looks);
    upgraded.unwrap();
}

/// A process that stands still in the middle of a migration, with locks on the tables and on migrations.
#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_stands_still_is_given_up() {
    const TEST: &str = "a_migration_that_stands_still_is_given_up";

    if let Some(url) = Peer::argument() {
        let migrated = migrate(&Database { url }, SLOW).await;
        return say(format!("{migrated:?}"));
    }
    let database = Database::create().await;
    let process = Process::start(&database).await;
    let pool = database.pool(1).await;
    let mut frozen = Peer::start(Peer::command(module_path!(), TEST, &database.url));
    let sleeps = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND state = 'active' AND wait_event = 'PgSleep'";
    let began = Instant::now();
    while count(&pool, sleeps).await == 0 {
        assert!(began.elapsed() < PATIENCE, "it does not migrate");
    }
    frozen.signal(Signal::SIGSTOP);

    let began = Instant::now();
    migrate(&database, NEXT).await.unwrap();
    process.work(0).await;
    let took = began.elapsed();
    assert!(
        took < Duration::from_secs(20),
        "the others waited for {took:?}"
    );
    assert_eq!(count(&pool, VERSIONS).await, 2);

    frozen.signal(Signal::SIGCONT);
    assert_eq!(frozen.hear(), "Ok(())", "the other one finds what it needs");
}
