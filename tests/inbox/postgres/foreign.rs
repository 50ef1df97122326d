//! The schema in a database that others run: what its administrators do, and what they set.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use sqlx::{Connection, PgConnection};
use tower_webhook::EventKind;
use tower_webhook::inbox::internal::Settlement;
use tower_webhook::inbox::{By, Change, EventState, Filter, Inbox, Page, Which};
use tower_webhook::postgres::{PostgresQueue, PostgresStore};
use tower_webhook::telemetry::{Chain, CountsOf, Series};

use support::HOUR;
use support::database::{Database, connect, count, execute};
use support::postgres::programs;
use support::queue::{Calls, skip};

use super::{LEASE, accept, end, event, failure, key, take};

/// Opens the queue, and has events accepted, retried, changed, forgotten and purged.
async fn live(url: &str) {
    let queue = PostgresQueue::open(connect(url, 4).await).await.unwrap();
    static ROUNDS: AtomicI64 = AtomicI64::new(0);
    for _ in 0..2 {
        let round = ROUNDS.fetch_add(1, Ordering::Relaxed);
        let name = format!("{round} Straße ıİ \\ '");
        let (_, first) = accept(&queue, event(Some(key(&name)), Some(round))).await;
        let (second, _) = accept(&queue, event(None, Some(round))).await;
        let first = first.unwrap();
        assert_eq!(
            queue.extend(&[first.lease], LEASE).await.unwrap(),
            [Some(true)]
        );
        end(&queue, &first, skip(Duration::ZERO)).await;
        let mut handled = 0;
        while handled < 2 {
            for taken in queue.claim_of(&take(), 1, 1).await.unwrap().events {
                end(&queue, &taken, Settlement::Handled).await;
                handled += 1;
            }
        }
        let by = By::new("Zoë ıİ").because("日本");
        assert_eq!(
            queue.redrive(second, None, &by).await.unwrap(),
            Change::Made
        );
        let again = queue.claim_of(&take(), 1, 1).await.unwrap().events;
        let dead = Settlement::Dead {
            failure: failure(),
            hold_lane: false,
        };
        queue.settle(&again[0].lease, &dead, None).await.unwrap();
        let filter = Filter::default().states([EventState::Dead]).error("LUCK");
        let listed = queue.list(&filter, Page::newest(9)).await.unwrap();
        assert_eq!(listed.events.len(), 1);
        let kind = event(None, None).delivery.kind().clone().into();
        for note in [Some("日本"), None] {
            queue.pause(&kind, note, &by).await.unwrap();
        }
        queue.forget_all(&round.to_string(), &by).await.unwrap();
        assert_eq!(queue.stats().await.unwrap().unsettled(), 0);
        assert!(queue.size().await.unwrap() > 0);
        queue.purge(Duration::ZERO).await.unwrap();
    }
}

/// A database of the same server, with other properties.
async fn created(with: &str) -> String {
    let database = Database::create().await;
    let name = format!("{}_other", database.url.rsplit('/').next().unwrap());
    let create = format!("CREATE DATABASE {name} TEMPLATE template0 {with}");
    execute(&database.pool(1).await, &create).await;
    format!("{}/{name}", database.url.rsplit_once('/').unwrap().0)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_administrators_set_and_do_changes_nothing() {
    let settings = [
        "search_path = ''",
        "search_path = 'shadow, pg_catalog'",
        "default_transaction_isolation = 'serializable'",
        "default_transaction_isolation = 'repeatable read'",
        "statement_timeout = '1s'",
        "lock_timeout = '20ms'",
        "idle_session_timeout = '100ms'",
        "idle_in_transaction_session_timeout = '100ms'",
        "timezone = 'Asia/Kathmandu'",
        "datestyle = 'German'",
        "intervalstyle = 'sql_standard'",
        "bytea_output = 'escape'",
        "extra_float_digits = -15",
        "standard_conforming_strings = off",
        "array_nulls = off",
        "row_security = off",
        "plpgsql.variable_conflict = 'use_column'",
        "plpgsql.extra_errors = 'all'",
        "enable_indexscan = off",
        "join_collapse_limit = 1",
    ];
    for setting in settings {
        println!("{setting}");
        let database = Database::create().await;
        execute(&database.pool(1).await, "CREATE SCHEMA shadow").await;
        database.set(setting).await;
        live(&database.url).await;
    }
    let acts = [
        "CREATE PUBLICATION everything FOR ALL TABLES",
        // Those of the owner see all rows.
        "ALTER TABLE tower_webhook.head ENABLE ROW LEVEL SECURITY",
        "CREATE ROLE reporting; GRANT USAGE ON SCHEMA tower_webhook TO reporting;
            GRANT SELECT ON ALL TABLES IN SCHEMA tower_webhook TO reporting; DROP OWNED BY reporting; DROP ROLE reporting",
        "REVOKE ALL ON ALL FUNCTIONS IN SCHEMA tower_webhook FROM PUBLIC",
        "VACUUM FULL",
    ];
    for act in acts {
        println!("{act}");
        let database = Database::create().await;
        live(&database.url).await;
        execute(&database.pool(1).await, act).await;
        live(&format!("{}?application_name=after", database.url)).await;
    }
    let mut databases = vec!["ENCODING 'SQL_ASCII' LOCALE 'C'"];
    // Since version 15, and in a build with ICU.
    let icu = "SELECT count(*) FROM pg_collation WHERE collname = 'und-x-icu'
        AND current_setting('server_version_num')::int >= 150000";
    if count(&Database::create().await.pool(1).await, icu).await > 0 {
        databases.push("ENCODING 'UTF8' LOCALE 'C' LOCALE_PROVIDER icu ICU_LOCALE 'tr-TR'");
    }
    for with in databases {
        println!("{with}");
        live(&created(with).await).await;
    }
}

/// Each is refused at the start, by its name.
#[tokio::test(flavor = "multi_thread")]
async fn what_would_stop_events_is_refused_at_the_start() {
    let as_role = async |database: &Database, act: &str| {
        let name = database.url.rsplit('/').next().unwrap().to_owned();
        let pool = database.pool(1).await;
        PostgresQueue::open(pool.clone()).await.unwrap();
        // The schema may be that of an application, which has functions of its own.
        let grants = format!(
            "CREATE ROLE {name} LOGIN; GRANT USAGE ON SCHEMA tower_webhook TO {name};
            GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA tower_webhook TO {name};
            CREATE FUNCTION tower_webhook.theirs() RETURNS text LANGUAGE sql AS 'SELECT NULL';
            REVOKE EXECUTE ON FUNCTION tower_webhook.theirs FROM PUBLIC"
        );
        execute(&pool, &grants).await;
        let url = database.url.replacen("postgres@", &format!("{name}@"), 1);
        live(&url).await;
        execute(&pool, &act.replace("{role}", &name)).await;
        url
    };
    let acts = [
        (
            "ALTER TABLE tower_webhook.head ENABLE ROW LEVEL SECURITY",
            "row security hides",
            "head",
        ),
        (
            "REVOKE UPDATE ON tower_webhook.wait FROM {role}",
            "lacks rights",
            "wait",
        ),
        (
            "REVOKE EXECUTE ON FUNCTION tower_webhook.claim FROM PUBLIC",
            "`EXECUTE` on claim",
            "claim",
        ),
        (
            "ALTER TABLE tower_webhook.clock REPLICA IDENTITY NOTHING; CREATE PUBLICATION everything FOR ALL TABLES",
            "be changed",
            "clock",
        ),
        (
            "ALTER ROLE {role} SET statement_timeout = '100ms'",
            "`statement_timeout`",
            "100 ms",
        ),
    ];
    for (act, expected, name) in acts {
        let database = Database::create().await;
        let url = as_role(&database, act).await;
        let error = PostgresQueue::open(connect(&url, 1).await)
            .await
            .unwrap_err();
        let message = Chain(&error).to_string();
        assert!(
            message.contains(expected) && message.contains(name),
            "{act}: {message}"
        );
    }
    let url = created("ENCODING 'LATIN1' LOCALE 'C'").await;
    let error = PostgresQueue::open(connect(&url, 1).await)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("LATIN1"), "{error}");
}

/// As that of a console for those who look, or of `receiver inbox list`.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_may_only_read_lists_events_and_is_refused_changes() {
    let database = Database::create().await;
    let admin = database.queue().await;
    let (id, taken) = accept(&admin, event(Some(key("a")), Some(7))).await;
    end(&admin, &taken.unwrap(), skip(HOUR)).await;
    let name = format!("{}_reader", database.url.rsplit('/').next().unwrap());
    let pool = database.pool(1).await;
    let grants = format!(
        "CREATE ROLE {name} LOGIN; GRANT USAGE ON SCHEMA tower_webhook TO {name};
        GRANT SELECT ON ALL TABLES IN SCHEMA tower_webhook TO {name}"
    );
    execute(&pool, &grants).await;
    let url = database.url.replacen("postgres@", &format!("{name}@"), 1);
    let queue = PostgresQueue::open(connect(&url, 2).await).await.unwrap();
    let inbox = Inbox::new(queue.clone());
    let filter = Filter::default().chat("7");
    let listed = inbox.list(&filter, Page::newest(9)).await.unwrap();
    assert_eq!(listed.events[0].id, id);
    assert_eq!(inbox.stats().await.unwrap().unsettled(), 1);
    assert!(inbox.get(id).await.unwrap().is_some());
    assert_eq!(queue.find(key("a").key()).await.unwrap(), Some(id));
    inbox.blocked_lanes(None, None, 9).await.unwrap();
    inbox.gaps(&filter, Page::newest(9)).await.unwrap();
    inbox.actions(Which::All, None, 9).await.unwrap();
    let series = CountsOf::new([Series::Refused], 0..60);
    inbox.counts(&series).await.unwrap();
    assert!(inbox.is_ready().await);

    let by = By::default();
    let refused = [
        inbox.redrive(id, None).await.map(drop),
        inbox.pause(EventKind::CHAT_RATED, "").await,
        inbox.forget("7").await.map(drop),
        inbox.retire(EventKind::CHAT_RATED).await.map(drop),
        queue.accept_one(event(None, None), None).await.map(drop),
        queue.claim_of(&take(), 1, 0).await.map(drop),
        queue.purge(Duration::ZERO).await.map(drop),
        queue.discard(id, None, &by).await.map(drop),
    ];
    for refused in refused {
        let message = Chain(&refused.unwrap_err()).to_string();
        assert!(
            message.contains("the user of the pool lacks rights in the schema `tower_webhook`")
                && message.contains("permission denied for table"),
            "{message}"
        );
    }

    // Nothing is shown of what cannot be read.
    execute(
        &pool,
        &format!("REVOKE SELECT ON tower_webhook.dead FROM {name}"),
    )
    .await;
    let opened = PostgresQueue::open(connect(&url, 1).await).await;
    let message = Chain(&opened.unwrap_err()).to_string();
    assert!(
        message.contains("permission denied for table dead"),
        "{message}"
    );
    // A store has to write.
    let opened = PostgresStore::open(connect(&url, 1).await).await;
    let message = Chain(&opened.unwrap_err()).to_string();
    assert!(
        message.contains("permission denied for table keys"),
        "{message}"
    );
}

/// As an upgrade of the server does, which also refuses columns of types that name other things by their numbers.
#[tokio::test(flavor = "multi_thread")]
async fn a_dump_is_restored_with_all_its_events() {
    let database = Database::create().await;
    live(&database.url).await;
    let queue = PostgresQueue::open(database.pool(2).await).await.unwrap();
    let (id, taken) = accept(&queue, event(Some(key("kept")), Some(7))).await;
    end(&queue, &taken.unwrap(), Settlement::Released).await;

    let url = created("").await;
    let mut dump = Command::new(programs().join("pg_dump"));
    let mut dump = dump
        .arg(&database.url)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut restore = Command::new(programs().join("psql"));
    restore.args([&url, "--quiet", "--set=ON_ERROR_STOP=1"]);
    let restored = restore.stdin(dump.stdout.take().unwrap()).output().unwrap();
    let told = String::from_utf8_lossy(&restored.stderr);
    assert!(
        restored.status.success() && dump.wait().unwrap().success(),
        "{told}"
    );

    let restored = PostgresQueue::open(connect(&url, 2).await).await.unwrap();
    let claimed = restored.claim_of(&take(), 1, 0).await.unwrap().events;
    assert_eq!(claimed[0].lease.id, id);
    end(&restored, &claimed[0], Settlement::Handled).await;
    // Numbers continue.
    let (next, _) = accept(&restored, event(None, Some(8))).await;
    assert!(next > id);
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let by_number = "SELECT count(*) FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
        WHERE c.relnamespace = 'tower_webhook'::regnamespace AND a.atttypid::regtype::text LIKE 'reg%'";
    let by_number: i64 = sqlx::query_scalar(by_number)
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(by_number, 0);
    let without_key = "SELECT count(*) FROM pg_class AS c WHERE c.relnamespace = 'tower_webhook'::regnamespace
        AND c.relkind = 'r' AND NOT EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisprimary)";
    let without_key: i64 = sqlx::query_scalar(without_key)
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(without_key, 0);
}
