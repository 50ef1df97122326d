//! Lists of events: the tables that are searched, all of them at once or in steps.

use std::fmt::Write;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::batches::Result;
use super::database::Database;
use super::places::{COLUMNS, Look};
use super::{parameters, rows};
use crate::event::EventKind;
use crate::inbox::event::{EventId, EventState, Lane};
use crate::inbox::records::{EventSummary, Filter, Listed, Page};
use crate::postgres::engine::{Value, column};

/// The numbers of kinds that were accepted.
const KINDS: &str = "SELECT id::bigint FROM {schema}.kinds WHERE name = ANY ($1)";

const NUMBERS: &str = "SELECT min(seq), max(seq) FROM {schema}.events";

const FROM_NUMBER: &str =
    "SELECT seq, accepted FROM {schema}.events WHERE seq >= $1 ORDER BY seq LIMIT 1";

/// How many numbers of events a step of a search covers at least, also where bodies are read, and at most. The first one
/// covers ten times as many.
const STEP: i64 = 1_000;
const STEP_OF_BODIES: i64 = 5;
const LARGEST_STEP: i64 = 50_000;

/// An event may have a smaller number than one that was accepted up to so many microseconds before it.
const DISORDER: i64 = 60_000_000;

/// It is quicker to search this many numbers than to look for one among them.
const FEW: i64 = 1000;

impl Database {
    pub(super) async fn list(&self, filter: &Filter, page: Page) -> Result<Listed> {
        let kinds = self.numbers_of(&filter.kinds).await?;
        if kinds.is_empty() && !filter.kinds.is_empty() {
            return Ok(Listed::default());
        }
        let search = Search::new(filter, kinds, page.newest_first);
        let numbers = match (page.after, page.newest_first) {
            (None, _) => i64::MIN..=i64::MAX,
            (Some(id), true) => i64::MIN..=id.0.saturating_sub(1),
            (Some(id), false) => id.0.saturating_add(1)..=i64::MAX,
        };
        match page.within.filter(|_| search.has_steps) {
            Some(within) => {
                let began = Instant::now();
                let numbers = self.limits(filter, numbers).await?;
                self.in_steps(&search, numbers, page, (began, within)).await
            }
            None => {
                let (events, _) = self.step(&search, numbers, page.limit).await?;
                Ok(Listed {
                    events,
                    searched: None,
                })
            }
        }
    }

    /// The numbers of those kinds that are known.
    async fn numbers_of(&self, kinds: &[EventKind]) -> Result<Vec<i64>> {
        if kinds.is_empty() {
            return Ok(Vec::new());
        }
        let names = kinds.iter().map(ToString::to_string).collect();
        let names = [Value::Texts(names)];
        let rows = self.read(KINDS, &names).await?;
        Ok(rows
            .iter()
            .map(|row| column(row, 0))
            .collect::<Result<_, _>>()?)
    }

    /// Those of the numbers whose events can match by the time of their acceptance.
    async fn limits(
        &self,
        filter: &Filter,
        numbers: RangeInclusive<i64>,
    ) -> Result<RangeInclusive<i64>> {
        let row = self.read_one(NUMBERS, &[]).await?;
        let (Some(oldest), Some(newest)) = (column(&row, 0)?, column(&row, 1)?) else {
            return Ok(RangeInclusive::new(1, 0));
        };
        let (mut first, mut last) = ((*numbers.start()).max(oldest), (*numbers.end()).min(newest));
        // Numbers are in the order of acceptance but for transactions at the same time.
        if let Some(from) = filter.accepted_from {
            let from = rows::micros_of(from).saturating_sub(DISORDER);
            first = first.max(self.accepted_at(oldest..=newest, from).await?.start);
        }
        if let Some(until) = filter.accepted_until {
            let until = rows::micros_of(until).saturating_add(DISORDER);
            last = last.min(self.accepted_at(oldest..=newest, until).await?.end);
        }
        Ok(first..=last)
    }

    /// Few of these numbers: events before them were accepted before a time in microseconds, and those behind them at that
    /// time or later.
    async fn accepted_at(&self, numbers: RangeInclusive<i64>, time: i64) -> Result<Range<i64>> {
        let (mut low, mut high) = (*numbers.start(), numbers.end().saturating_add(1));
        while low + FEW < high {
            let middle = low + (high - low) / 2;
            let values = [Value::Number(middle)];
            let rows = self.read(FROM_NUMBER, &values);
            match rows.await?.first() {
                Some(row) if column::<i64>(row, 1)? < time => {
                    low = column::<i64>(row, 0)?.saturating_add(1);
                }
                _ => high = middle,
            }
        }
        Ok(low..high)
    }

    /// Searches step by step, until the page is full or the time is over.
    async fn in_steps(
        &self,
        search: &Search,
        numbers: RangeInclusive<i64>,
        page: Page,
        (began, within): (Instant, Duration),
    ) -> Result<Listed> {
        let mut listed = Listed::default();
        let (mut first, mut last) = numbers.into_inner();
        let mut size = search.smallest * 10;
        while let Some(next) = self.next(search, first..=last).await? {
            let numbers = match page.newest_first {
                true => first.max(next.saturating_sub(size - 1))..=next,
                false => next..=last.min(next.saturating_add(size - 1)),
            };
            let left = page.limit - listed.events.len();
            let (found, took) = self.step(search, numbers.clone(), left).await?;
            listed.events.extend(found);
            if listed.events.len() >= page.limit {
                return Ok(listed);
            }
            let searched = match page.newest_first {
                true => {
                    last = numbers.start().saturating_sub(1);
                    *numbers.start()
                }
                false => {
                    first = numbers.end().saturating_add(1);
                    *numbers.end()
                }
            };
            if first <= last && began.elapsed() >= within {
                listed.searched = Some(EventId(searched));
                return Ok(listed);
            }
            size = next_size(size, took, within).max(search.smallest);
        }
        Ok(listed)
    }

    /// The next of these numbers that may match.
    async fn next(&self, search: &Search, numbers: RangeInclusive<i64>) -> Result<Option<i64>> {
        let values = [*numbers.start(), *numbers.end()].map(Value::Number);
        let rows = self.read(&search.next, &values).await?;
        Ok(rows.first().map(|row| column(row, 0)).transpose()?)
    }

    /// The first events that match among these numbers, and the time of the statement.
    async fn step(
        &self,
        search: &Search,
        numbers: RangeInclusive<i64>,
        limit: usize,
    ) -> Result<(Vec<EventSummary>, Duration)> {
        let values = search.values(&numbers, limit);
        let (rows, took) = self.search(&search.sql, &values).await?;
        let events = rows.iter().map(rows::summary).collect::<Result<_, _>>()?;
        Ok((events, took))
    }
}

/// How many numbers the next step covers, after one of `size` numbers, so that a step takes an eighth of the time of the
/// search at most.
fn next_size(size: i64, took: Duration, within: Duration) -> i64 {
    let next = match took {
        took if took < within / 40 => size.saturating_mul(4),
        took if took < within / 16 => size.saturating_mul(2),
        took if took < within / 8 => size,
        _ => size / 2,
    };
    next.min(LARGEST_STEP)
}

/// Where events are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// All of them, by their numbers.
    Events,
    /// Those of a chat, by an index in the order of the numbers.
    Chat,
    /// Those of a chat that are unsettled, by its lane.
    Lane,
    /// Those that failed.
    Failed,
    /// Those that are unsettled or dead: few, beside those that were handled.
    Kept,
    /// Those that ended.
    Ended,
}

impl Source {
    fn of(filter: &Filter) -> Self {
        let is_kept = |state: &EventState| state.is_unsettled() || *state == EventState::Dead;
        let states = &filter.states;
        // Of these tables, only that of dead letters is in the order of the numbers.
        let only_dead = states.iter().all(|state| *state == EventState::Dead);
        let reads_failures =
            filter.error.is_some() || filter.failed_from.is_some() || filter.failed_until.is_some();
        let reads_events = reads_failures
            || filter.body.is_some()
            || filter.key.is_some()
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
struct Search {
    sql: String,
    /// A statement for the first number of a range that may match.
    next: String,
    parameters: Vec<Value>,
    has_steps: bool,
    /// How many numbers a step covers at least.
    smallest: i64,
}

/// What is compared. What the narrow tables have is compared there, and the rest in `events`.
#[derive(Default)]
struct Conditions {
    parameters: Vec<Value>,
    of_places: String,
    of_events: String,
    /// Whether a column of `events` is compared that no other table has.
    reads_events: bool,
    /// The parameters of the chat's lane and its id, if there is one.
    lane: String,
    chat: String,
}

impl Conditions {
    /// With the numbers of the filter's kinds.
    fn new(source: Source, filter: &Filter, kinds: Vec<i64>) -> Self {
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
        // The last one is the one with the largest time.
        if filter.failed_from.is_some() || filter.failed_until.is_some() {
            let from = filter.failed_from.map_or(i64::MIN, rows::micros_of);
            let from = new.parameter(Value::Number(from));
            new.compare_failures(source, &format!("f.at >= {from}"));
        }
        if let Some(until) = filter.failed_until {
            let until = new.parameter(Value::Number(rows::micros_of(until)));
            new.compare(format!(
                "NOT EXISTS (SELECT FROM {{schema}}.failures AS f WHERE f.seq = e.seq AND f.at >= {until})"
            ));
        }
        new
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
    /// With the numbers of the filter's kinds.
    fn new(filter: &Filter, kinds: Vec<i64>, newest_first: bool) -> Self {
        let source = Source::of(filter);
        let conditions = Conditions::new(source, filter, kinds);
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

    fn values(&self, numbers: &RangeInclusive<i64>, limit: usize) -> Vec<Value> {
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
        chat,
        ..
    } = conditions;
    let look = match source {
        Source::Events | Source::Failed | Source::Chat => {
            // By the lane, too, although there is only one: no other index has this order.
            let (of_lane, by_lane) = match source {
                Source::Chat => (
                    format!(" AND e.chat_lane BETWEEN {lane} AND {lane}"),
                    format!("e.chat_lane {order}, "),
                ),
                _ => (String::new(), String::new()),
            };
            return format!(
                "SELECT {COLUMNS}
                FROM {{schema}}.events AS e CROSS JOIN LATERAL ({}) AS s JOIN {{schema}}.kinds AS k ON k.id = e.kind
                WHERE e.seq BETWEEN $1 AND $2{of_lane}{of_places}{of_events}
                ORDER BY {by_lane}e.seq {order} LIMIT $3",
                Look::up().places("")
            );
        }
        Source::Lane => Look::of_chat(&filter.states, lane, chat),
        Source::Kept => Look::through(&filter.states),
        Source::Ended => Look::ended(),
    };
    // Where only the places are compared, the events of the page are found before anything else is read of them.
    let page = match of_events.is_empty() {
        true => format!("ORDER BY seq {order} LIMIT $3"),
        false => String::new(),
    };
    format!(
        "SELECT {COLUMNS}
        FROM (SELECT * FROM ({}) AS s {page}) AS s
        JOIN {{schema}}.events AS e ON e.seq = s.seq
        JOIN {{schema}}.kinds AS k ON k.id = e.kind
        WHERE e.seq BETWEEN $1 AND $2{of_places}{of_events} ORDER BY e.seq {order} LIMIT $3",
        look.places(&format!("{of_places} {page}"))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// In the order of the numbers, so that a page is the first rows that the index has.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_list_of_a_chat_reads_its_index_in_order() {
        use crate::postgres::engine::{Schema, Tables};
        use crate::postgres::schema::MIGRATIONS;
        use crate::postgres::tests::{self, execute};

        let pool = tests::Database::create().await.pool(1).await;
        let tables = Tables::new(pool.clone());
        tables.migrate(MIGRATIONS).await.unwrap();
        let database = Database::new(tables);
        let fill = Schema::default().sql(
            "INSERT INTO {schema}.events (accepted, keep_until, chat_lane, kind, chat)
             SELECT at, at, at % 1000, 2, 'other' FROM generate_series(1, 50000) AS at",
        );
        for statistics in [fill.as_str(), "ANALYZE"] {
            execute(&pool, statistics).await;
            for (states, newest_first, error) in [
                (&[][..], true, false),
                (&[], false, false),
                (&[EventState::Handled, EventState::Dead], true, true),
            ] {
                let filter = filter(states, true, error);
                let search = Search::new(&filter, vec![2], newest_first);
                let values = search.values(&(1..=i64::MAX), 50);
                let explain = format!("EXPLAIN {}", search.sql);
                let plan = database.search(&explain, &values).await.unwrap();
                let lines = plan.0.iter().map(|row| column::<String>(row, 0).unwrap());
                let plan = lines.collect::<Vec<_>>().join("\n");
                let direction = if newest_first { " Backward" } else { "" };
                let scan = format!("Index Scan{direction} using events_chat on events");
                assert!(plan.contains(&scan), "{plan}");
                assert!(!plan.contains("Sort"), "{plan}");
                assert!(!search.has_steps);
            }
        }
    }

    #[test]
    fn steps_become_larger_while_they_are_quick() {
        let next = |size, millis| {
            let took = Duration::from_millis(millis);
            next_size(size, took, Duration::from_millis(400))
        };
        assert_eq!(next(STEP, 0), 4 * STEP);
        assert_eq!(next(STEP, 20), 2 * STEP);
        assert_eq!(next(STEP, 30), STEP);
        assert_eq!(next(STEP, 50), STEP / 2);
        assert_eq!(next(LARGEST_STEP, 0), LARGEST_STEP);
        assert_eq!(next(STEP_OF_BODIES, 100), STEP_OF_BODIES / 2);
        let no_time = next_size(STEP, Duration::ZERO, Duration::ZERO);
        assert_eq!(no_time, STEP / 2);
    }
}
