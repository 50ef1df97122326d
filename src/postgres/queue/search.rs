//! The statements of lists: the tables that are searched, by filter.

use std::fmt::Write;
use std::ops::RangeInclusive;

use bytes::Bytes;

use super::places::{COLUMNS, Look, with_last_failures};
use super::{parameters, rows};
use crate::inbox::event::{EventState, Lane, Shape};
use crate::inbox::records::Filter;
use crate::postgres::engine::Value;

/// How many numbers of events a step of a search covers at least, also where bodies are read. The first one covers ten
/// times as many.
pub(super) const STEP: i64 = 1_000;
pub(super) const STEP_OF_BODIES: i64 = 5;

/// Where events are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// All of them, by their numbers.
    Events,
    /// Those of a chat, by an index in the order of the numbers.
    Chat,
    /// Those of a chat that are unsettled, by its lane.
    Lane,
    /// Those that failed.
    Failed,
    /// Unsettled events and dead letters, which are few beside the handled events.
    Kept,
    /// Events that were handled, ignored or discarded.
    Ended,
}

impl Source {
    pub(super) fn of(filter: &Filter) -> Self {
        let is_kept = |state: &EventState| state.is_unsettled() || *state == EventState::Dead;
        let states = &filter.states;
        // Of these tables, only that of dead letters is in the order of the numbers.
        let only_dead = states.iter().all(|state| *state == EventState::Dead);
        let reads_failures = filter.error.is_some() || filter.reads_last_failure();
        let reads_events = reads_failures
            || filter.body.is_some()
            || filter.key.is_some()
            || filter.changed_by.is_some()
            || filter.accepted_from.is_some()
            || filter.accepted_until.is_some();
        let only_kept = !states.is_empty() && states.iter().all(is_kept);
        if filter.chat.is_some() {
            match !states.is_empty() && states.iter().all(|state| state.is_unsettled()) {
                true => Self::Lane,
                false => Self::Chat,
            }
        } else if only_kept && (only_dead || !reads_events) {
            Self::Kept
        } else if reads_failures {
            Self::Failed
        } else if !states.is_empty() && !states.iter().any(is_kept) {
            Self::Ended
        } else {
            Self::Events
        }
    }
}

/// A statement, and its parameters after the range of numbers, which are the first two, and the limit.
pub(super) struct Search {
    pub(super) sql: String,
    /// A statement for the first number of a range that may match.
    pub(super) next: String,
    parameters: Vec<Value>,
    pub(super) has_steps: bool,
    /// How many numbers a step covers at least.
    pub(super) smallest: i64,
}

/// What is compared. What the narrow tables have is compared there, and the rest in `events`.
#[derive(Default)]
struct Conditions {
    parameters: Vec<Value>,
    of_places: String,
    of_events: String,
    /// Whether a column of `events` is compared that no other table has.
    reads_events: bool,
    /// The parameters of the chat's lane, its lanes at all routes, and its id, if there is one.
    lane: String,
    lanes: String,
    chat: String,
}

impl Conditions {
    /// With the numbers of the filter's kinds, and the lanes of its chat.
    fn new(source: Source, filter: &Filter, kinds: Vec<i64>, lanes: Vec<i64>) -> Self {
        let mut new = Self::default();
        if !filter.states.is_empty() {
            let names = filter.states.iter().map(ToString::to_string).collect();
            let states = new.parameter(Value::Texts(names));
            let _ = write!(
                new.of_places,
                " AND s.state = ANY ({states}::text[]::{{schema}}.event_state[])"
            );
        }
        if !kinds.is_empty() {
            let kinds = new.parameter(Value::numbers(kinds));
            let (table, conditions) = match source {
                Source::Kept | Source::Lane => ("s", &mut new.of_places),
                _ => ("e", &mut new.of_events),
            };
            let _ = write!(conditions, " AND {table}.kind = ANY ({kinds})");
        }
        if let Some(chat) = &filter.chat {
            let bytes = Bytes::copy_from_slice(chat.as_bytes());
            new.chat = new.parameter(Value::Bytes(bytes));
            new.lane = new.parameter(Value::Number(Lane::of_chat(chat).0));
            if source == Source::Lane {
                new.lanes = new.parameter(Value::numbers(lanes));
            }
            new.compare(format!("e.chat = {}", new.chat));
        }
        if let Some(key) = &filter.key {
            let bytes = Bytes::copy_from_slice(key.as_bytes());
            let key = new.parameter(Value::Bytes(bytes));
            new.compare(format!("e.key = {key}"));
        }
        if let Some(from) = filter.accepted_from {
            let from = new.parameter(Value::Number(rows::micros_of(from)));
            new.compare(format!("e.accepted >= {from}"));
        }
        if let Some(until) = filter.accepted_until {
            let until = new.parameter(Value::Number(rows::micros_of(until)));
            new.compare(format!("e.accepted < {until}"));
        }
        if let Some(action) = filter.changed_by {
            let action = new.parameter(Value::Number(action));
            new.compare(format!(
                "EXISTS (SELECT FROM {{schema}}.changed AS c WHERE c.event = e.seq AND c.action = {action})"
            ));
        }
        if let Some(error) = &filter.error {
            let error = error.to_ascii_lowercase().into_bytes();
            let error = new.parameter(Value::Bytes(error.into()));
            new.compare_failures(
                source,
                &format!(
                    "({{schema}}.contains(f.outcome, {error}) OR {{schema}}.contains(f.reason, {error}))"
                ),
            );
        }
        if let Some(text) = &filter.body {
            let pattern = new.parameter(Value::Text(parameters::pattern(text)));
            new.compare(format!(
                "encode(e.body, 'escape') COLLATE \"C\" ~* {pattern}"
            ));
        }
        new.compare_last_failure(source, filter);
        new
    }

    fn compare_last_failure(&mut self, source: Source, filter: &Filter) {
        // The last one is the one with the largest time.
        if filter.failed_from.is_some() || filter.failed_until.is_some() {
            let from = filter.failed_from.map_or(i64::MIN, rows::micros_of);
            let from = self.parameter(Value::Number(from));
            self.compare_failures(source, &format!("f.at >= {from}"));
        }
        if let Some(until) = filter.failed_until {
            let until = self.parameter(Value::Number(rows::micros_of(until)));
            self.compare(format!(
                "NOT EXISTS (SELECT FROM {{schema}}.failures AS f WHERE f.seq = e.seq AND f.at >= {until})"
            ));
        }
        if let Some(Shape(shape)) = filter.shape {
            let shape = self.parameter(Value::Number(shape));
            // Few events have any failure of the shape, and only of these the last one is looked up.
            self.compare_failures(source, &format!("f.shape = {shape}"));
            self.compare(format!(
                "(SELECT f.shape FROM {{schema}}.failures AS f WHERE f.seq = e.seq ORDER BY f.id DESC LIMIT 1) = {shape}"
            ));
        }
    }

    fn parameter(&mut self, value: Value) -> String {
        self.parameters.push(value);
        format!("${}", self.parameters.len() + 3)
    }

    fn compare(&mut self, condition: String) {
        let _ = write!(self.of_events, " AND {condition}");
        self.reads_events = true;
    }

    /// Compares failures `f`: one of the event meets a condition.
    fn compare_failures(&mut self, source: Source, has_it: &str) {
        self.compare(match source {
            Source::Failed => format!(
                "e.seq = ANY (ARRAY(
                    SELECT f.seq FROM {{schema}}.failures AS f WHERE f.seq BETWEEN $1 AND $2 AND {has_it}
                ))"
            ),
            _ => format!(
                "EXISTS (SELECT FROM {{schema}}.failures AS f WHERE f.seq = e.seq AND {has_it})"
            ),
        });
    }
}

impl Search {
    /// With the numbers of the filter's kinds, and for [`Source::Lane`] the lanes of its chat at all routes.
    pub(super) fn new(
        filter: &Filter,
        kinds: Vec<i64>,
        lanes: Vec<i64>,
        newest_first: bool,
    ) -> Self {
        let source = Source::of(filter);
        let conditions = Conditions::new(source, filter, kinds, lanes);
        let order = match newest_first {
            true => "DESC",
            false => "ASC",
        };
        let sql = statement(source, filter, &conditions, order);
        let table = match source {
            Source::Failed => "failures",
            Source::Ended => "ended",
            Source::Kept => "dead",
            Source::Events | Source::Chat | Source::Lane => "events",
        };
        let next = format!(
            "SELECT seq FROM {{schema}}.{table} WHERE seq BETWEEN $1 AND $2 ORDER BY seq {order} LIMIT 1"
        );
        Self {
            next,
            sql,
            parameters: conditions.parameters,
            smallest: match filter.body {
                Some(_) => STEP_OF_BODIES,
                None => STEP,
            },
            has_steps: match source {
                Source::Chat | Source::Lane => false,
                // The page is found in the order of the numbers, or there are few candidates.
                Source::Kept => conditions.reads_events,
                Source::Events | Source::Failed | Source::Ended => true,
            },
        }
    }

    pub(super) fn values(&self, numbers: &RangeInclusive<i64>, limit: usize) -> Vec<Value> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let bounds = [*numbers.start(), *numbers.end(), limit].map(Value::Number);
        bounds
            .into_iter()
            .chain(self.parameters.iter().cloned())
            .collect()
    }
}

/// A statement for the events of a source that match, in an order.
fn statement(source: Source, filter: &Filter, conditions: &Conditions, order: &str) -> String {
    let Conditions {
        of_places,
        of_events,
        lane,
        lanes,
        chat,
        ..
    } = conditions;
    let look = match source {
        Source::Events | Source::Failed | Source::Chat => {
            // By the lane, too, although there is only one: no other index has this order.
            let (of_lane, order) = match source {
                Source::Chat => (
                    format!(" AND e.chat_lane BETWEEN {lane} AND {lane}"),
                    format!("chat_lane {order}, seq {order}"),
                ),
                _ => (String::new(), format!("seq {order}")),
            };
            let found = format!(
                "(
                    SELECT {COLUMNS}, e.chat_lane
                    FROM {{schema}}.events AS e CROSS JOIN LATERAL ({}) AS s JOIN {{schema}}.kinds AS k ON k.id = e.kind
                    WHERE e.seq BETWEEN $1 AND $2{of_lane}{of_places}{of_events}
                    ORDER BY {order} LIMIT $3
                )",
                Look::up().places("")
            );
            return format!("{} ORDER BY {order}", with_last_failures(&found));
        }
        Source::Lane => Look::of_chat(&filter.states, lanes, lane, chat),
        Source::Kept => Look::through(&filter.states),
        Source::Ended => Look::ended(),
    };
    // Where only the places are compared, the events of the page are found before anything else is read of them.
    let page = match of_events.is_empty() {
        true => format!("ORDER BY seq {order} LIMIT $3"),
        false => String::new(),
    };
    let found = format!(
        "(
            SELECT {COLUMNS}
            FROM (SELECT * FROM ({}) AS s {page}) AS s
            JOIN {{schema}}.events AS e ON e.seq = s.seq
            JOIN {{schema}}.kinds AS k ON k.id = e.kind
            WHERE e.seq BETWEEN $1 AND $2{of_places}{of_events} ORDER BY e.seq {order} LIMIT $3
        )",
        look.places(&format!("{of_places} {page}"))
    );
    format!("{} ORDER BY seq {order}", with_last_failures(&found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::engine::{Tables, column};
    use crate::postgres::queue::database::Database;
    use crate::postgres::schema::{MIGRATIONS, TABLES};
    use crate::postgres::tests::{self, execute};

    fn filter(states: &[EventState], chat: bool, error: bool) -> Filter {
        Filter {
            states: states.to_vec(),
            chat: chat.then(|| "chat".to_owned()),
            error: error.then(|| "error".to_owned()),
            ..Filter::default()
        }
    }

    #[test]
    fn few_tables_are_searched_where_the_filter_allows_it() {
        use EventState::{Dead, Discarded, Handled, Retrying};
        for (states, chat, error, expected) in [
            (&[][..], false, false, Source::Events),
            (&[], true, true, Source::Chat),
            (&[Dead], true, false, Source::Chat),
            (&[Retrying], true, true, Source::Lane),
            (&[Handled, Retrying], true, false, Source::Chat),
            (&[Dead], false, true, Source::Kept),
            (&[Dead, Retrying], false, false, Source::Kept),
            (&[Dead, Retrying], false, true, Source::Failed),
            (&[Handled, Discarded], false, false, Source::Ended),
            (&[Handled, Discarded], false, true, Source::Failed),
            (&[], false, true, Source::Failed),
            (&[Handled, Dead], false, false, Source::Events),
        ] {
            let by_error = filter(states, chat, error);
            assert_eq!(Source::of(&by_error), expected);
            if error {
                let by_time = Filter {
                    error: None,
                    failed_from: Some(std::time::UNIX_EPOCH),
                    ..by_error
                };
                assert_eq!(Source::of(&by_time), expected);
            }
        }
    }

    /// Events of the chat `chat` and of others, which ended, are dead letters, or wait after a failure.
    const FILL: &str = "
        INSERT INTO {schema}.events (accepted, keep_until, lane, chat_lane, kind, chat)
        SELECT at, at, lane, lane, 2, chat FROM generate_series(1, 40000) AS at, LATERAL (
            SELECT CASE at % 100 WHEN 0 THEN {lane} ELSE at % 1000 END,
                CASE at % 100 WHEN 0 THEN 'chat' ELSE 'other' END::bytea
        ) AS of (lane, chat);
        INSERT INTO {schema}.ended SELECT at, at, at, 0, 'handled' FROM generate_series(1, 30000) AS at;
        INSERT INTO {schema}.dead SELECT at, at, 2, 1 FROM generate_series(30001, 35000) AS at;
        INSERT INTO {schema}.wait (lane, seq, due, kind, failures, crashes, is_tried)
        SELECT lane, seq, accepted, 2, 1, 0, true FROM {schema}.events WHERE seq > 35000;
        INSERT INTO {schema}.failures (seq, at, outcome, reason, shape)
        SELECT seq, accepted, 'failed', 'an error', 1 FROM {schema}.events, generate_series(1, 3)";

    struct Filled {
        database: Database,
        pool: sqlx::PgPool,
    }

    impl Filled {
        async fn create(fill: &str) -> Self {
            let pool = tests::Database::create().await.pool(1).await;
            let tables = Tables::new(pool.clone());
            tables.migrate(MIGRATIONS, TABLES).await.unwrap();
            let lane = Lane::of_chat("chat").0.to_string();
            let fill = tables.schema.sql(fill).replace("{lane}", &lane);
            execute(&pool, &fill).await;
            let database = Database::new(tables);
            Self { database, pool }
        }

        async fn plan(&self, how: &str, search: &Search, limit: usize) -> String {
            let values = search.values(&(1..=i64::MAX), limit);
            let explain = format!("EXPLAIN {how} {}", search.sql);
            let plan = self.database.search(&explain, &values).await.unwrap();
            let lines = plan.0.iter().map(|row| column::<String>(row, 0).unwrap());
            lines.collect::<Vec<_>>().join("\n")
        }
    }

    /// In the order of the numbers, so that a page is the first rows that the index has.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_list_of_a_chat_reads_its_index_in_order() {
        let filled = Filled::create(
            "INSERT INTO {schema}.events (accepted, keep_until, chat_lane, kind, chat)
             SELECT at, at, at % 1000, 2, 'other' FROM generate_series(1, 50000) AS at;
             INSERT INTO {schema}.failures (seq, at, outcome, reason, shape)
             SELECT at, at, 'failed', 'an error', 1 FROM generate_series(1, 50000) AS at",
        )
        .await;
        for statistics in ["SELECT 1", "ANALYZE"] {
            execute(&filled.pool, statistics).await;
            for (states, newest_first, error) in [
                (&[][..], true, false),
                (&[], false, false),
                (&[EventState::Handled, EventState::Dead], true, true),
            ] {
                let filter = filter(states, true, error);
                let search = Search::new(&filter, vec![2], Vec::new(), newest_first);
                let plan = filled.plan("", &search, 50).await;
                let direction = if newest_first { " Backward" } else { "" };
                let scan = format!("Index Scan{direction} using events_chat on events");
                assert!(plan.contains(&scan), "{plan}");
                assert!(!plan.contains("Sort"), "{plan}");
                assert!(!search.has_steps);
            }
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_last_failures_of_a_page_are_looked_up_and_no_others() {
        use EventState::{Dead, Discarded, Handled, Retrying};
        let filled = Filled::create(FILL).await;
        for statistics in ["SELECT 1", "ANALYZE"] {
            execute(&filled.pool, statistics).await;
            for (states, chat, error) in [
                (&[][..], false, false),
                (&[], true, false),
                (&[Retrying], true, false),
                (&[Dead], false, false),
                (&[Dead, Retrying], false, false),
                (&[Handled, Discarded], false, false),
                (&[], false, true),
            ] {
                for newest_first in [true, false] {
                    let filter = filter(states, chat, error);
                    let lanes = vec![Lane::of_chat("chat").0];
                    let search = Search::new(&filter, vec![2], lanes, newest_first);
                    let how = "(ANALYZE, TIMING off, COSTS off)";
                    let plan = filled.plan(how, &search, 20).await;
                    let looks_up = plan.lines().any(|line| {
                        line.contains("Index Scan Backward using failures_pkey")
                            && line.contains(" loops=20)")
                    });
                    assert!(looks_up, "{plan}");
                }
            }
        }
    }
}
