//! Points in the functions of a schema, at which a driver can hold a session.
//!
//! The schema is that of the library. Each statement of its functions that names a table gets an `ASSERT` before it, which
//! waits for an advisory lock. An `ASSERT` changes neither `FOUND` nor a row. The commit is a point, too: that of a
//! trigger that is deferred.

use std::collections::BTreeMap;

use sqlx::postgres::PgPool;
use sqlx::{AssertSqlSafe, Row};

use support::database::{Database, connect, execute};

/// The number of the point before the commit, and that of the beginning, where a function has not been called yet.
pub(super) const COMMIT: usize = 0;
pub(super) const START: usize = 1;

/// Sessions whose `application_name` is `1` or `2` count the points that they reach, and wait at each for its lock.
const POINTS: &str = "
    CREATE SEQUENCE public.count_1 MINVALUE 0; CREATE SEQUENCE public.count_2 MINVALUE 0;
    CREATE SEQUENCE public.point_1 MINVALUE 0; CREATE SEQUENCE public.point_2 MINVALUE 0;
    CREATE FUNCTION public.point(p_point bigint) RETURNS boolean LANGUAGE plpgsql SET lock_timeout = 0 AS $$
    DECLARE
        v_session text := current_setting('application_name');
        v_count integer;
    BEGIN
        IF v_session NOT IN ('1', '2') THEN RETURN true; END IF;
        v_count := nextval('public.count_' || v_session);
        PERFORM setval('public.point_' || v_session, p_point), set_config(
            'test.points', CASE WHEN v_count > 1 THEN current_setting('test.points') || ' ' ELSE '' END || p_point, false
        );
        PERFORM pg_advisory_lock_shared(v_session::integer, v_count);
        PERFORM pg_advisory_unlock_shared(v_session::integer, v_count);
        RETURN true;
    END $$;
    -- Once for a transaction, however many rows it has changed.
    CREATE FUNCTION public.commits() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF current_setting('application_name') IN ('1', '2')
            AND pg_sequence_last_value('public.point_' || current_setting('application_name')) <> 0
        THEN
            PERFORM public.point(0);
        END IF;
        RETURN NULL;
    END $$;
    CREATE FUNCTION public.prepare(p_session integer) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM setval('public.count_' || p_session, 0), setval('public.point_' || p_session, 1);
        PERFORM pg_advisory_lock(p_session, 1);
    END $$;
    -- Where a session is within a moment: the point at which it is held, -1 if it waits for the other one, or NULL.
    CREATE FUNCTION public.look(p_session integer, p_count bigint, p_pids integer[]) RETURNS bigint
    LANGUAGE plpgsql AS $$
    DECLARE
        v_pids integer[];
    BEGIN
        FOR round IN 1..50 LOOP
            v_pids := pg_blocking_pids(p_pids[p_session]);
            IF pg_backend_pid() = ANY (v_pids) THEN
                IF pg_sequence_last_value('public.count_' || p_session) = p_count THEN
                    RETURN pg_sequence_last_value('public.point_' || p_session);
                END IF;
            ELSIF p_pids[3 - p_session] = ANY (v_pids) THEN
                RETURN -1;
            END IF;
        END LOOP;
        RETURN NULL;
    END $$;
    -- Lets a session go on from the point with one count to that with another one.
    CREATE FUNCTION public.go(p_session integer, p_from integer, p_to integer, p_pids integer[]) RETURNS bigint
    LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_advisory_lock(p_session, p_to);
        PERFORM pg_advisory_unlock(p_session, p_from);
        RETURN public.look(p_session, p_to, p_pids);
    END $$";

/// Tables as bits: those that statements read, those in which they lock rows or may meet rows with the same key, and those
/// in which they insert rows that have numbers of their own.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Touched {
    pub(super) reads: u64,
    pub(super) locks: u64,
    inserts: u64,
}

const NUMBERED: [&str; 4] = ["actions", "changed", "events", "failures"];

impl Touched {
    fn of(statement: &str, tables: &[String]) -> Self {
        let statement = statement.replace('"', "");
        let locks = ["FOR UPDATE", "FOR KEY SHARE"]
            .iter()
            .any(|lock| statement.contains(lock));
        let mut touched = Self::default();
        for (at, table) in tables.iter().enumerate() {
            for (from, name) in statement.match_indices(&format!("tower_webhook.{table}")) {
                if statement[from + name.len()..]
                    .starts_with(|next: char| next.is_alphanumeric() || next == '_')
                {
                    continue;
                }
                let before = &statement[..from];
                let changes = before.ends_with("UPDATE ") || before.ends_with("DELETE FROM ");
                let is_new = before.ends_with("INSERT INTO ");
                let touches = match is_new && NUMBERED.contains(&table.as_str()) {
                    true => &mut touched.inserts,
                    // Those of sequences.
                    false if changes || is_new || locks || table.ends_with("_seq") => {
                        &mut touched.locks
                    }
                    false => &mut touched.reads,
                };
                *touches |= 1 << at;
            }
        }
        touched
    }

    pub(super) fn all(self) -> u64 {
        self.reads | self.changes()
    }

    pub(super) fn changes(self) -> u64 {
        self.locks | self.inserts
    }

    pub(super) fn add(&mut self, other: Self) {
        self.reads |= other.reads;
        self.locks |= other.locks;
        self.inserts |= other.inserts;
    }
}

/// A point, by its function and its statement, and what happens between it and the next one.
#[derive(Clone, Debug, Default)]
pub(super) struct Point {
    pub(super) name: String,
    pub(super) touched: Touched,
}

struct Function {
    name: String,
    oid: i64,
    definition: String,
    source: String,
    is_procedural: bool,
}

/// Gives the functions of the schema points, and returns these with the tables.
pub(super) async fn plant(database: &Database) -> (Vec<Point>, Vec<String>) {
    let pool = connect(&database.url, 1).await;
    execute(&pool, POINTS).await;
    // Counts are those of a process, not of a lane.
    let tables = names(&pool, "SELECT relname FROM pg_class WHERE relkind IN ('r', 'S') AND relnamespace = 'tower_webhook'::regnamespace AND relname <> 'counts'").await;
    for table in tables.iter().filter(|table| !table.ends_with("_seq")) {
        let trigger = format!(
            "CREATE CONSTRAINT TRIGGER commits AFTER INSERT OR UPDATE OR DELETE ON tower_webhook.{table}
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.commits()"
        );
        execute(&pool, &trigger).await;
    }
    let functions = functions(&pool).await;
    let mut points = vec![Point::default(), Point::default()];
    points[COMMIT].name = "commit".to_owned();
    points[START].name = "start".to_owned();
    // What is later than the other one's commit has another time.
    points[START].touched.reads = u64::MAX;
    // Of functions in SQL, and of statements that call functions in the middle.
    let mut within: BTreeMap<&str, Touched> = BTreeMap::new();
    for function in functions.iter().filter(|function| !function.is_procedural) {
        within.insert(&function.name, Touched::of(&function.source, &tables));
    }
    let mut of_function = Vec::new();
    for function in functions.iter().filter(|function| function.is_procedural) {
        let first = points.len();
        let source = marked(function, &mut points, |statement| {
            let mut touched = Touched::of(statement, &tables);
            let called = functions.iter().filter(|called| {
                statement
                    .replace('"', "")
                    .contains(&format!("tower_webhook.{}(", called.name))
            });
            for called in called {
                match called.is_procedural {
                    true => within.entry(&called.name).or_default().add(touched),
                    false => touched.add(within[called.name.as_str()]),
                }
            }
            touched
        });
        of_function.push((function, first..points.len()));
        execute(
            &pool,
            &function.definition.replace(&function.source, &source),
        )
        .await;
        // What the other session holds does not end a wait here: the driver sees it.
        let patience = format!(
            "DO $$ BEGIN EXECUTE 'ALTER FUNCTION ' || {}::regprocedure || ' SET lock_timeout = ''60s'''; END $$",
            function.oid
        );
        if function.definition.contains("lock_timeout") || function.name == "settle" {
            execute(&pool, &patience).await;
        }
    }
    for (function, range) in of_function {
        if let Some(touched) = within.get(function.name.as_str()) {
            points[range]
                .iter_mut()
                .for_each(|point| point.touched.add(*touched));
        }
    }
    (points, tables)
}

async fn names(pool: &PgPool, sql: &str) -> Vec<String> {
    sqlx::query_scalar(AssertSqlSafe(sql))
        .fetch_all(pool)
        .await
        .unwrap()
}

async fn functions(pool: &PgPool) -> Vec<Function> {
    let all = "SELECT proname::text, oid::bigint, pg_get_functiondef(oid), prosrc, prolang = (SELECT oid FROM pg_language WHERE lanname = 'plpgsql')
        FROM pg_proc WHERE pronamespace = 'tower_webhook'::regnamespace ORDER BY proname";
    let rows = sqlx::query(all).fetch_all(pool).await.unwrap();
    let function = |row: &sqlx::postgres::PgRow| Function {
        name: row.get(0),
        oid: row.get(1),
        definition: row.get(2),
        source: row.get(3),
        is_procedural: row.get(4),
    };
    rows.iter().map(function).collect()
}

/// The source with a point before each statement that touches a table.
fn marked(
    function: &Function,
    points: &mut Vec<Point>,
    mut touched: impl FnMut(&str) -> Touched,
) -> String {
    let lines: Vec<_> = function.source.lines().collect();
    let code = |at: usize| lines[at].split("--").next().unwrap().trim_end();
    let ends = |at: &usize| {
        let ends = [";", "THEN", "ELSE", "LOOP", "BEGIN"];
        ends.iter().any(|end| code(*at).ends_with(end))
    };
    let statement = |at: usize| {
        let last = (at..lines.len()).find(ends).unwrap();
        (at..=last).map(code).collect::<Vec<_>>().join("\n")
    };
    let begin = lines.iter().position(|line| *line == "BEGIN").unwrap();
    let mut source = String::new();
    let mut starts = false;
    for (at, line) in lines.iter().enumerate() {
        let (indent, rest) = line.split_at(line.len() - line.trim_start().len());
        let is_statement = starts
            && !["", "--", "ELSE", "ELSIF", "END"]
                .iter()
                .any(|other| match *other {
                    "" => rest.is_empty(),
                    other => rest.starts_with(other),
                });
        if is_statement {
            let mut statements = statement(at);
            // No point can be before a condition that is looked at after another one.
            if rest.starts_with("IF ") && statements.ends_with("THEN") {
                let end = format!("{indent}END IF;");
                let branches = (at..lines.len()).take_while(|at| code(*at) != end);
                for other in
                    branches.filter(|at| lines[*at].starts_with(&format!("{indent}ELSIF ")))
                {
                    statements += &statement(other);
                }
            }
            let touched = touched(&statements);
            if touched.all() > 0 {
                source += &format!("ASSERT public.point({});\n", points.len());
                let name = format!("{}:{at} {rest}", function.name);
                points.push(Point { name, touched });
            }
        }
        source += line;
        source.push('\n');
        if at <= begin || !code(at).trim().is_empty() {
            starts = at >= begin && ends(&at);
        }
    }
    source
}
