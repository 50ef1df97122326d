//! Lists of events: the tables that are searched, all of them at once or in steps.

use std::fmt::Write;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::statements::{COLUMNS, NOW, state};
use super::{PostgresQueue, one, rows};
use crate::event::EventKind;
use crate::inbox::event::{EventId, EventState, Lane};
use crate::inbox::records::{EventSummary, Filter, Listed, Page};
use crate::postgres::pool::{List, Schema, Value, column};
use crate::store::StoreError;

/// How many numbers of events the first step of a search covers, and how many the largest one.
const STEP: i64 = 10_000;
const LARGEST_STEP: i64 = 50_000;

/// An event may have a smaller number than one that was accepted up to so many microseconds before it.
const DISORDER: i64 = 60_000_000;

impl PostgresQueue {
    pub(super) async fn search(&self, filter: &Filter, page: Page) -> Result<Listed, StoreError> {
        let began = Instant::now();
        let mut listed = Listed::default();
        let kinds = self.numbers_of(&filter.kinds).await?;
        if kinds.is_empty() && !filter.kinds.is_empty() {
            return Ok(listed);
        }
        let search = Search::new(&self.tables.schema, filter, kinds, page.newest_first);
        let (first, last) = match (page.after, page.newest_first) {
            (None, _) => (i64::MIN, i64::MAX),
            (Some(id), true) => (i64::MIN, id.0.saturating_sub(1)),
            (Some(id), false) => (id.0.saturating_add(1), i64::MAX),
        };
        let Some(within) = page.within.filter(|_| search.has_steps) else {
            (listed.events, _) = self.step(&search, first..=last, page.limit).await?;
            return Ok(listed);
        };
        let row = one(self.read(&self.shared.statements.numbers, &[]).await?)?;
        let (Some(oldest), Some(newest)) = (column(&row, 0)?, column(&row, 1)?) else {
            return Ok(listed);
        };
        let (mut first, mut last) = (first.max(oldest), last.min(newest));
        // Numbers are in the order of acceptance but for transactions at the same time.
        if let Some(from) = filter.accepted_from {
            let from = rows::micros_of(from).saturating_sub(DISORDER);
            first = first.max(self.accepted_at(oldest..=newest, from).await?);
        }
        if let Some(until) = filter.accepted_until {
            let until = rows::micros_of(until).saturating_add(DISORDER);
            last = last.min(self.accepted_at(oldest..=newest, until).await?);
        }
        let mut size = STEP;
        while let Some(next) = self.next(&search, first..=last).await? {
            match page.newest_first {
                true => last = next,
                false => first = next,
            }
            let numbers = match page.newest_first {
                true => first.max(last.saturating_sub(size - 1))..=last,
                false => first..=last.min(first.saturating_add(size - 1)),
            };
            let left = page.limit - listed.events.len();
            let (found, took) = self.step(&search, numbers.clone(), left).await?;
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
            size = next_size(size, took, within);
        }
        Ok(listed)
    }

    /// The numbers of those kinds that are known.
    async fn numbers_of(&self, kinds: &[EventKind]) -> Result<Vec<i64>, StoreError> {
        if kinds.is_empty() {
            return Ok(Vec::new());
        }
        let names = kinds.iter().map(ToString::to_string).collect();
        let names = [Value::List(List::Texts(Some(names)))];
        let rows = self.read(&self.shared.statements.kinds, &names).await?;
        Ok(rows
            .iter()
            .map(|row| column(row, 0))
            .collect::<Result<_, _>>()?)
    }

    /// The next of these numbers that may match.
    async fn next(
        &self,
        search: &Search,
        numbers: RangeInclusive<i64>,
    ) -> Result<Option<i64>, StoreError> {
        let values = [*numbers.start(), *numbers.end()].map(Value::Number);
        let rows = self.read(&search.next, &values).await?;
        Ok(rows.first().map(|row| column(row, 0)).transpose()?)
    }

    /// The first of these numbers whose event was accepted at a time in microseconds or later, or the one after the last.
    async fn accepted_at(
        &self,
        numbers: RangeInclusive<i64>,
        time: i64,
    ) -> Result<i64, StoreError> {
        let (mut low, mut high) = (*numbers.start(), numbers.end().saturating_add(1));
        while low < high {
            let middle = low + (high - low) / 2;
            let values = [Value::Number(middle)];
            let rows = self.read(&self.shared.statements.from_number, &values);
            match rows.await?.first() {
                Some(row) if column::<i64>(row, 1)? < time => {
                    low = column::<i64>(row, 0)?.saturating_add(1);
                }
                _ => high = middle,
            }
        }
        Ok(low)
    }

    /// The first events that match among these numbers, and the time of the statement.
    async fn step(
        &self,
        search: &Search,
        numbers: RangeInclusive<i64>,
        limit: usize,
    ) -> Result<(Vec<EventSummary>, Duration), StoreError> {
        let values = search.values(&numbers, limit);
        let rows = self.tables.pool.fetch_without_jit(&search.sql, &values);
        let (rows, took) = rows.await.map_err(|error| self.error(error))?;
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
    next.clamp(1000, LARGEST_STEP)
}

/// Where events are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// All of them, by their numbers.
    Events,
    /// Those of a chat, by an index.
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
        let reads_events = filter.error.is_some()
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
        } else if filter.error.is_some() {
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
    sql: Arc<str>,
    /// A statement for the first number of a range that may match.
    next: Arc<str>,
    parameters: Vec<Parameter>,
    has_steps: bool,
}

/// A parameter that is the same in each step.
enum Parameter {
    Number(i64),
    Numbers(Vec<i64>),
    Bytes(Vec<u8>),
}

impl Search {
    /// With the numbers of the filter's kinds.
    fn new(schema: &Schema, filter: &Filter, kinds: Vec<i64>, newest_first: bool) -> Self {
        let source = Source::of(filter);
        let mut parameters = Vec::new();
        let mut parameter = |value: Parameter| {
            parameters.push(value);
            format!("${}", parameters.len() + 3)
        };

        // What the narrow tables have is compared there, and the rest in `events`.
        let mut of_places = String::new();
        let mut of_events = String::new();
        if !filter.states.is_empty() {
            let states = filter.states.iter().map(|state| rows::code(*state));
            let states = parameter(Parameter::Numbers(states.collect()));
            let _ = write!(of_places, " AND s.state = ANY ({states})");
        }
        if !kinds.is_empty() {
            let kinds = parameter(Parameter::Numbers(kinds));
            let (table, conditions) = match source {
                Source::Kept | Source::Lane => ("s", &mut of_places),
                _ => ("e", &mut of_events),
            };
            let _ = write!(conditions, " AND {table}.kind = ANY ({kinds})");
        }
        let mut reads_events = false;
        let mut and = |condition: String| {
            let _ = write!(of_events, " AND {condition}");
            reads_events = true;
        };
        let chat = filter.chat.as_ref();
        let chat = chat.map(|chat| parameter(Parameter::Bytes(chat.as_bytes().to_vec())));
        let chat = chat.unwrap_or_default();
        let mut lane = String::new();
        if let (Source::Lane, Some(of)) = (source, &filter.chat) {
            lane = parameter(Parameter::Number(Lane::of_chat(of).0));
            and(format!("e.chat = {chat}[1]"));
        }
        if let Some(key) = &filter.key {
            let key = parameter(Parameter::Bytes(key.as_bytes().to_vec()));
            and(format!("e.key = {key}[1]"));
        }
        if let Some(from) = filter.accepted_from {
            let from = parameter(Parameter::Number(rows::micros_of(from)));
            and(format!("e.accepted >= {from}"));
        }
        if let Some(until) = filter.accepted_until {
            let until = parameter(Parameter::Number(rows::micros_of(until)));
            and(format!("e.accepted < {until}"));
        }
        if let Some(error) = &filter.error {
            let error = error.to_ascii_lowercase().into_bytes();
            let error = parameter(Parameter::Bytes(error));
            let has_it = format!(
                "({{schema}}.contains(f.outcome, {error}[1]) OR {{schema}}.contains(f.reason, {error}[1]))"
            );
            and(match source {
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

        // The condition of an index.
        let of_chat = format!(
            "e.chat = {chat}[1] AND substr(sha256(e.chat), 1, 8) = substr(sha256({chat}[1]), 1, 8)"
        );
        let order = match newest_first {
            true => "DESC",
            false => "ASC",
        };
        // Where only the places are compared, the events of the page are found before anything else is read of them.
        let page = format!("ORDER BY seq {order} LIMIT $3");
        let events = match source {
            Source::Events | Source::Failed => format!(
                "{{schema}}.events AS e CROSS JOIN LATERAL ({}) AS s",
                places(Look::up(), "")
            ),
            Source::Chat => {
                let page = match of_places.is_empty() && of_events.is_empty() {
                    true => &page,
                    false => "OFFSET 0",
                };
                // The inner query keeps the planner from looking for the chat in the order of the numbers.
                format!(
                    "(
                        SELECT * FROM (
                            SELECT seq, lane, kind, key, chat, accepted, is_redriven FROM {{schema}}.events AS e
                            WHERE {{of_chat}} OFFSET 0
                        ) AS e WHERE seq BETWEEN $1 AND $2 {page}
                    ) AS e CROSS JOIN LATERAL ({}) AS s",
                    places(Look::up(), "")
                )
            }
            Source::Lane | Source::Kept | Source::Ended => {
                let look = match source {
                    Source::Lane => Look::of_lane(&filter.states),
                    Source::Ended => Look::ended(),
                    _ => Look::through(&filter.states),
                };
                let page = match of_events.is_empty() {
                    true => page.as_str(),
                    false => "",
                };
                format!(
                    "(
                        SELECT * FROM ({}) AS s {page}
                    ) AS s JOIN {{schema}}.events AS e ON e.seq = s.seq",
                    places(look, &format!("{of_places} {page}"))
                )
            }
        };
        let sql = format!(
            "SELECT {COLUMNS} FROM {events} JOIN {{schema}}.kinds AS k ON k.id = e.kind
            WHERE e.seq BETWEEN $1 AND $2{of_places}{of_events} ORDER BY e.seq {order} LIMIT $3"
        );
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
            next: schema.sql(&next).into(),
            sql: schema
                .sql(&sql.replace("{lane}", &lane).replace("{of_chat}", &of_chat))
                .into(),
            parameters,
            has_steps: match source {
                Source::Chat | Source::Lane => false,
                // The page is found in the order of the numbers, or there are few candidates.
                Source::Kept => reads_events,
                Source::Events | Source::Failed | Source::Ended => true,
            },
        }
    }

    fn values(&self, numbers: &RangeInclusive<i64>, limit: usize) -> Vec<Value> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let bounds = [*numbers.start(), *numbers.end(), limit];
        let parameters = self.parameters.iter().map(|parameter| match parameter {
            Parameter::Number(number) => Value::Number(*number),
            Parameter::Numbers(numbers) => Value::List(List::Numbers(
                numbers.iter().map(|number| Some(*number)).collect(),
            )),
            Parameter::Bytes(bytes) => rows::bytes(bytes),
        });
        bounds
            .map(Value::Number)
            .into_iter()
            .chain(parameters)
            .collect()
    }
}

/// All events, each with its place.
pub(super) fn every_event() -> String {
    format!(
        "{{schema}}.events AS e JOIN {{schema}}.kinds AS k ON k.id = e.kind CROSS JOIN LATERAL ({}) AS s",
        places(Look::up(), "")
    )
}

/// How rows of the places are found: a condition for each place that is looked at.
#[derive(Default)]
struct Look {
    head: Option<&'static str>,
    wait: Option<&'static str>,
    aside: Option<&'static str>,
    dead: Option<&'static str>,
    ended: Option<&'static str>,
}

impl Look {
    /// The place of an event.
    fn up() -> Self {
        Self {
            head: Some(
                "t.lane = coalesce(e.lane, 0) AND t.own = CASE WHEN e.lane IS NULL THEN e.seq ELSE 0 END
                    AND t.seq = e.seq AND t.due < 9223372036854775807",
            ),
            wait: Some("t.lane = e.lane AND t.seq = e.seq"),
            aside: Some("t.seq = e.seq"),
            dead: Some("t.seq = e.seq"),
            ended: Some("t.seq = e.seq"),
        }
    }

    /// Everything that may be in these states, unsettled or dead.
    fn through(states: &[EventState]) -> Self {
        const NUMBERS: &str = "t.seq BETWEEN $1 AND $2";

        let waits = states
            .iter()
            .any(|state| matches!(state, EventState::Waiting | EventState::Retrying));
        let is_unsettled = states.iter().any(|state| state.is_unsettled());
        let of_wait = match states.contains(&EventState::Waiting) {
            true => NUMBERS,
            // The condition of an index.
            false => "t.seq BETWEEN $1 AND $2 AND (t.is_tried OR t.crashes > 0)",
        };
        Self {
            head: is_unsettled.then_some("t.seq BETWEEN $1 AND $2 AND t.due < 9223372036854775807"),
            wait: waits.then_some(of_wait),
            aside: waits.then_some(NUMBERS),
            dead: states.contains(&EventState::Dead).then_some(NUMBERS),
            ended: None,
        }
    }

    /// What may be in these states in the line of a lane, or stands in none.
    fn of_lane(states: &[EventState]) -> Self {
        let all = Self::through(states);
        Self {
            head: all.head.map(|_| {
                "(
                    t.lane = {lane} AND t.own = 0
                    OR t.lane = 0 AND t.own = ANY (ARRAY(
                        SELECT e.seq FROM {schema}.events AS e WHERE {of_chat} AND e.lane IS NULL
                    ))
                ) AND t.seq BETWEEN $1 AND $2 AND t.due < 9223372036854775807"
            }),
            wait: all
                .wait
                .map(|_| "t.lane = {lane} AND t.seq BETWEEN $1 AND $2"),
            aside: all
                .aside
                .map(|_| "t.lane = {lane} AND t.seq BETWEEN $1 AND $2"),
            ..all
        }
    }

    /// Everything that is settled and not dead.
    fn ended() -> Self {
        Self {
            ended: Some("t.seq BETWEEN $1 AND $2"),
            ..Self::default()
        }
    }
}

/// The places of events: number, state, when it was settled, when it is due, failures, kind. `rest` is the rest of each
/// query, in which `s` is the place: it must be there that a query is limited, for the planner to use its index.
fn places(look: Look, rest: &str) -> String {
    let place = |table: &str, found: &str, state: &str, at: &str, due: &str| {
        let rest = rest
            .replace("s.state", &format!("({state})"))
            .replace("s.kind", "t.kind");
        let kind = match table {
            "ended" => "NULL::integer",
            _ => "t.kind",
        };
        format!(
            "(
                SELECT t.seq, {state} AS state, {at}::bigint AS at, {due}::bigint AS due, t.failures, {kind} AS kind
                FROM {{schema}}.{table} AS t WHERE {found}{rest}
            )"
        )
    };
    let unsettled = |table: &str, fence: &str, found: &str| {
        let due = format!("CASE WHEN t.due > {NOW} AND {fence} IS NULL THEN t.due END");
        place(table, found, &state("t", fence), "NULL", &due)
    };
    let places = [
        look.head.map(|found| unsettled("head", "t.fence", found)),
        look.wait
            .map(|found| unsettled("wait", "NULL::uuid", found)),
        look.aside
            .map(|found| unsettled("aside", "NULL::uuid", found)),
        look.dead
            .map(|found| place("dead", found, "6", "t.at", "NULL")),
        look.ended
            .map(|found| place("ended", found, "t.state::integer", "t.at", "NULL")),
    ];
    let places: Vec<_> = places.into_iter().flatten().collect();
    places.join(" UNION ALL ")
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
            assert_eq!(Source::of(&filter(states, chat, error)), expected);
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
        assert_eq!(next(1000, 100), 1000);
        let no_time = next_size(STEP, Duration::ZERO, Duration::ZERO);
        assert_eq!(no_time, STEP / 2);
    }
}
