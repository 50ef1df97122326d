//! How the server plans what the queue and the store execute, also inside functions: by an index, and never so dearly that
//! it compiles the plan.

mod exercise;

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::path::Path;

use sqlx::postgres::PgPool;

use self::exercise::Exercise;
use super::{PostgresQueue, actions, change, count, forget, list, measure, purge, settle};
use crate::postgres::tests::database::{connect, execute};
use crate::postgres::tests::postgres::PostgresServer;

/// A plan that costs more is compiled by default (`jit_above_cost`).
const DEAR: f64 = 100_000.0;

/// What a server up to 17 adds for a node that the settings forbid, where nothing else is possible.
const FORBIDDEN: f64 = 1e10;

/// Tables that stay small, whatever is accepted: nobody needs an index.
const SMALL: [&str; 5] = ["kinds", "clock", "given_up", "handlers", "schema_versions"];

/// How statements begin that read what they count, or a page of what matches, in steps: as much as that is. The server plans
/// them anew for each call.
const READS: [&str; 3] = [
    "SELECT f.*, p.* FROM",
    "WITH clock AS MATERIALIZED (",
    "-- If no other event of a lane has failed,",
];

/// Events of a chat and of others, in all states; with what persons did, counts and keys. 20,000 events take 15 MiB.
const FILL: &str = "
    TRUNCATE {schema}.events, {schema}.ended, {schema}.dead, {schema}.wait, {schema}.aside, {schema}.head, {schema}.failures,
        {schema}.keys, {schema}.actions, {schema}.changed, {schema}.counts RESTART IDENTITY;
    INSERT INTO {schema}.events (accepted, keep_until, lane, chat_lane, kind, digest, key, chat, body)
    SELECT at, at, lane, lane, 2, gen_random_uuid(), at::text::bytea, 'other', convert_to(repeat(md5(at::text), 18), 'UTF8')
    FROM generate_series(1, 20000) AS at, LATERAL (SELECT hashint8extended(at % 5000, 0)) AS of (lane);
    INSERT INTO {schema}.ended SELECT at, at, CASE WHEN at % 2 = 0 THEN at END, 0, 'handled' FROM generate_series(1, 12000) AS at;
    INSERT INTO {schema}.dead SELECT at, at, 2, 1 FROM generate_series(12001, 14000) AS at;
    INSERT INTO {schema}.wait (lane, seq, due, kind, failures, crashes, is_tried)
    SELECT lane, seq, accepted, 2, 1, 0, seq % 3 = 0 FROM {schema}.events WHERE seq BETWEEN 14001 AND 18000;
    INSERT INTO {schema}.aside (seq, lane, due, kind, failures, crashes, is_tried)
    SELECT seq, lane, {schema}.micros() + 3600000000, 2, 1, 0, true FROM {schema}.events WHERE seq BETWEEN 18001 AND 19000;
    INSERT INTO {schema}.head (lane, own, seq, due, kind, failures, crashes, is_tried, is_suspect)
    SELECT lane, 0, seq, {schema}.micros() + 3600000000, 2, 0, 0, seq % 7 = 0, seq % 50 = 0
    FROM {schema}.events WHERE seq BETWEEN 19001 AND 20000;
    INSERT INTO {schema}.failures (seq, at, outcome, reason, shape)
    SELECT seq, accepted, 'failed', 'an error', 1 FROM {schema}.events WHERE seq > 12000;
    INSERT INTO {schema}.keys (key, body, done_until, event)
    SELECT digest, digest, now() + interval '1 day', seq FROM {schema}.events;
    INSERT INTO {schema}.actions (at, who, reason, what, event, changed)
    SELECT at, 'ada', '', 'redrive', at, 1 FROM generate_series(1, 200) AS at;
    INSERT INTO {schema}.changed SELECT event, number FROM {schema}.actions;
    INSERT INTO {schema}.counts (series, span, minute, process, kind, outcome, number)
    SELECT 'refused', 1, at, 1, 'chat-rated', 'failed', 1 FROM generate_series(1, 2000) AS at";

/// So many times as many rows as there are: 15 MiB of events are 10 GiB then.
const TIMES: u64 = 720;

struct Bench {
    server: PostgresServer,
    url: String,
}

impl Bench {
    async fn start() -> Self {
        let settings = [
            "shared_preload_libraries=auto_explain",
            "auto_explain.log_min_duration=0",
            "auto_explain.log_nested_statements=on",
            "track_functions=all",
            // Which changes the statistics.
            "autovacuum=off",
        ];
        let server = tokio::task::spawn_blocking(move || PostgresServer::start_with(&settings));
        let server = server.await.unwrap();
        let url = server.url();
        let pool = connect(&url, 1).await;
        PostgresQueue::open(pool.clone()).await.unwrap();
        // Types with numbers beyond 1000 are counted while they wait.
        execute(&pool, "SELECT setval('tower_webhook.kinds_id_seq', 1000)").await;
        execute(&pool, "VACUUM ANALYZE").await;
        Self { server, url }
    }

    async fn pool(&self, connections: u32) -> PgPool {
        connect(&self.url, connections).await
    }

    /// Makes the planner believe that there are many times as many rows. It asks how long files are, which have holes then.
    async fn grow(&self) {
        let pool = self.pool(1).await;
        execute(&pool, &FILL.replace("{schema}", "tower_webhook")).await;
        // More than are claimed without a look at which have work.
        let kinds = "INSERT INTO tower_webhook.kinds (name, route, is_seen)
            SELECT 'idle-' || n, 'chat-platform', true FROM generate_series(1, 150) AS n";
        execute(&pool, kinds).await;
        execute(&pool, "VACUUM ANALYZE").await;
        execute(&pool, "CHECKPOINT").await;
        let relations: Vec<(String, String, i64)> = sqlx::query_as(
            "SELECT c.oid::regclass::text, pg_relation_filepath(c.oid), pg_relation_size(c.oid)
            FROM pg_class AS c LEFT JOIN pg_index AS i ON i.indexrelid = c.oid
            JOIN pg_class AS t ON t.oid = coalesce(i.indrelid, c.oid)
            WHERE t.relnamespace = 'tower_webhook'::regnamespace AND c.relkind IN ('r', 'i') AND t.relname <> ALL ($1)",
        )
        .bind(SMALL)
        .fetch_all(&pool)
        .await
        .unwrap();
        for (name, path, size) in relations {
            lengthen(&self.server.data().join(path), size.unsigned_abs() * TIMES);
            let sql = format!(
                "UPDATE pg_class SET relpages = relpages * {TIMES}, reltuples = reltuples * {TIMES}
                WHERE oid = '{name}'::regclass"
            );
            execute(&pool, &sql).await;
        }
        let size: i64 = sqlx::query_scalar("SELECT pg_relation_size('tower_webhook.events')")
            .fetch_one(&pool)
            .await
            .unwrap();
        assert!(size > 9 << 30, "{size}");
    }

    /// Does everything on one connection, so often that the server has its plan for any values.
    async fn exercise(&self) {
        let mut exercise = Exercise::new(self.pool(1).await, 0).await;
        for round in 0..7 {
            exercise.round = round;
            exercise.everything().await;
        }
    }

    /// The plans of what was executed since a position in the log.
    fn plans(&self, since: usize) -> Vec<Plan> {
        let log = self.server.log();
        let entries = log[since..].split(" ms  plan:\n").skip(1);
        entries.map(Plan::read).collect()
    }

    fn position(&self) -> usize {
        self.server.log().len()
    }
}

/// Segments of a table have at most 1 GiB.
fn lengthen(file: &Path, mut bytes: u64) {
    const SEGMENT: u64 = 1 << 30;
    for number in 0.. {
        let name = match number {
            0 => file.to_owned(),
            _ => file.with_file_name(format!(
                "{}.{number}",
                file.file_name().unwrap().to_str().unwrap()
            )),
        };
        let segment = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&name)
            .unwrap();
        segment.set_len(bytes.min(SEGMENT)).unwrap();
        let like = fs::metadata(file).unwrap();
        use std::os::unix::fs::{MetadataExt, chown};
        chown(&name, Some(like.uid()), Some(like.gid())).unwrap();
        bytes = bytes.saturating_sub(SEGMENT);
        if bytes == 0 {
            return;
        }
    }
}

const COMPILED: &str = "is compiled";

struct Plan {
    query: String,
    text: String,
}

impl Plan {
    fn read(entry: &str) -> Self {
        // The lines of an entry begin with a tabulator, but for the first one, which is behind us.
        let lines = entry.lines().take_while(|line| line.starts_with('\t'));
        let lines: Vec<_> = lines.map(str::trim_end).collect();
        let first = lines.iter().position(|line| line.contains("  (cost="));
        let (query, plan) = lines.split_at(first.unwrap_or(lines.len()));
        Self {
            query: one_line(&query.join("\n")).replacen("Query Text: ", "", 1),
            text: plan.join("\n"),
        }
    }

    /// What is wrong with it.
    fn fault(&self) -> Option<String> {
        if self.text.contains("JIT:") {
            return Some(COMPILED.to_owned());
        }
        if READS.iter().any(|begin| self.query.starts_with(begin)) {
            return None;
        }
        let scan = self.text.split("Seq Scan on ").skip(1).find(|of| {
            let table = of.split_whitespace().next().unwrap_or_default();
            !SMALL.contains(&table) && !table.starts_with("pg_")
        });
        if let Some(of) = scan {
            return Some(format!(
                "reads the whole of {}",
                of.split_whitespace().next()?
            ));
        }
        let cost = self.text.split("..").nth(1)?.split(' ').next()?;
        let cost = cost.parse::<f64>().ok()? % FORBIDDEN;
        (cost > DEAR).then(|| format!("costs {cost:.0}"))
    }
}

fn one_line(sql: &str) -> String {
    let words: Vec<_> = sql.split_whitespace().collect();
    words.join(" ")
}

/// The settings of a function say less: some inherit them from their callers, and where nothing is possible that they
/// allow, PostgreSQL does what they forbid.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_compiled_or_planned_by_the_size_of_a_table() {
    let bench = Bench::start().await;
    let mut faults = BTreeSet::new();
    let mut executed = BTreeSet::new();
    for of in ["an empty table", "10 GiB"] {
        if of == "10 GiB" {
            bench.grow().await;
        }
        let since = bench.position();
        bench.exercise().await;
        for plan in bench.plans(since) {
            // Statements outside of functions are soon planned anew, for the size of that time: reads at each call, the
            // others after autovacuum.
            let is_planned_again = of == "an empty table" && plan.query.contains('$');
            let counts = |fault: &String| fault == COMPILED || !is_planned_again;
            if let Some(fault) = plan.fault().filter(counts) {
                faults.insert(format!("of {of}: {} {fault}", plan.query));
            }
            executed.insert(plan.query);
        }
    }
    let faults: Vec<_> = faults.into_iter().collect();
    assert!(
        faults.is_empty(),
        "{} faults:\n{}",
        faults.len(),
        faults.join("\n")
    );
    let missing = uncalled(&bench.pool(1).await).await;
    assert_eq!(missing, "", "functions that were not called");
    let of_persons = [list::STATEMENTS, actions::STATEMENTS, change::STATEMENTS];
    let of_workers = [settle::STATEMENTS, forget::STATEMENTS, purge::STATEMENTS];
    let of_both = [
        count::STATEMENTS,
        measure::STATEMENTS,
        super::claim::STATEMENTS,
    ];
    for sql in [of_persons, of_workers, of_both]
        .into_iter()
        .flatten()
        .flatten()
    {
        let sql = one_line(&sql.replace("{schema}", "\"tower_webhook\""));
        let is_executed = executed.iter().any(|query| query.contains(&sql));
        assert!(is_executed, "not executed: {sql}");
    }
}

/// The functions that nothing has called. Those of one statement in SQL are planned as a part of their callers.
async fn uncalled(pool: &PgPool) -> String {
    let sql = "SELECT coalesce(string_agg(proname, ', '), '') FROM pg_proc AS p JOIN pg_language AS l ON l.oid = prolang
        WHERE pronamespace = 'tower_webhook'::regnamespace AND proname <> 'refuse_isolation'
            AND (lanname <> 'sql' OR proconfig IS NOT NULL)
            AND NOT EXISTS (SELECT FROM pg_stat_user_functions AS s WHERE s.funcid = p.oid)";
    let sql = sqlx::query_scalar(sql);
    sql.fetch_one(pool).await.unwrap()
}
