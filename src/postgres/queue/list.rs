//! Events are listed and read, and what persons did to them.

use std::collections::HashMap;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::PgRow;
use tokio::time::Instant;

use super::batches::{Batches, Call, Executed, Result, share};
use super::database::Database;
use super::places::{COLUMNS, every_event, with_last_failures};
use super::search::{Search, Source};
use super::{actions, blocked, rows};
use crate::inbox::actions::{Action, Which};
use crate::inbox::event::{EventId, Lane};
use crate::inbox::queue::ListEvents;
use crate::inbox::records::{
    BlockedLane, EventRecord, EventSummary, Filter, Listed, Page, nearest,
};
use crate::postgres::engine::{Value, column, corrupt};
use crate::store::OpenError as Error;

/// The number of the event that was accepted with a key.
const FIND: &str =
    "SELECT coalesce(event, 0) FROM {schema}.keys WHERE key = $1 AND done_until IS NOT NULL";

/// The events before and after some events in their batches: as many of each as `MOST_OTHERS`.
const OTHERS: &str = "
    SELECT e.seq, o.item, o.seq FROM {schema}.events e
    CROSS JOIN LATERAL (
        (
            SELECT d.item, d.seq FROM {schema}.events d
            WHERE d.delivery = e.delivery AND d.seq < e.seq ORDER BY d.delivery DESC, d.seq DESC LIMIT 20
        ) UNION ALL (
            SELECT d.item, d.seq FROM {schema}.events d
            WHERE d.delivery = e.delivery AND d.seq > e.seq ORDER BY d.delivery, d.seq LIMIT 20
        )
    ) AS o
    WHERE e.seq = ANY ($1) AND e.delivery IS NOT NULL
    ORDER BY o.seq";

const FAILURES: &str = "SELECT at, outcome, reason, took, shape, seq FROM {schema}.failures WHERE seq = ANY ($1) ORDER BY seq, id";

/// The numbers of kinds that were accepted: those of these names at these routes, of which none means all.
const KINDS: &str = "
    SELECT id::bigint FROM {schema}.kinds
    WHERE name <> '' AND (name = ANY ($1) OR $1 = '{}') AND (route = ANY ($2) OR $2 = '{}')";

/// The routes of all events: that of the platform, whose kinds are never deleted, and others.
const ROUTES: &str = "SELECT DISTINCT route FROM {schema}.kinds WHERE name <> ''";

const NUMBERS: &str = "SELECT min(seq), max(seq) FROM {schema}.events";

const FROM_NUMBER: &str =
    "SELECT seq, accepted FROM {schema}.events WHERE seq >= $1 ORDER BY seq LIMIT 1";

#[cfg(test)]
pub(super) const STATEMENTS: &[&str] =
    &[FIND, OTHERS, FAILURES, KINDS, ROUTES, NUMBERS, FROM_NUMBER];

/// How many numbers of events a step of a search covers at most.
const LARGEST_STEP: i64 = 50_000;

/// An event may have a smaller number than an event that was accepted up to so many microseconds before it.
const DISORDER: i64 = 60_000_000;

/// It is quicker to search this many numbers than to look for one among them.
const FEW: i64 = 1000;

pub(super) struct List {
    database: Arc<Database>,
    gets: Arc<Batches<Get>>,
}

impl List {
    pub(super) fn new(database: &Arc<Database>) -> Self {
        let events = format!(
            "(SELECT {COLUMNS}, e.body, e.headers, e.delivery, e.item, e.items, e.kept FROM {} WHERE e.seq = ANY ($1))",
            every_event()
        );
        let get: Arc<str> = with_last_failures(&events).into();
        let gets = move |database: Arc<Database>, calls| {
            let get = Arc::clone(&get);
            async move { records(&database, &get, calls).await }
        };
        Self {
            database: Arc::clone(database),
            gets: database.batches(gets),
        }
    }
}

#[async_trait]
impl ListEvents for List {
    async fn list(&self, filter: &Filter, page: Page) -> Result<Listed> {
        let mut kinds = Vec::new();
        if !(filter.kinds.is_empty() && filter.routes.is_empty()) {
            kinds = self.numbers_of(filter).await?;
            if kinds.is_empty() {
                return Ok(Listed::default());
            }
        }
        let lanes = match (&filter.chat, Source::of(filter)) {
            (Some(chat), Source::Lane) => self.lanes_of(chat).await?,
            _ => Vec::new(),
        };
        let search = Search::new(filter, kinds, lanes, page.newest_first);
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

    async fn get(&self, id: EventId) -> Result<Option<EventRecord>> {
        self.gets.call(Get(id)).await
    }

    async fn find(&self, key: u128) -> Result<Option<EventId>> {
        let rows = self.database.call(FIND, [Value::Id(key)]).await?;
        let event = rows.first().map(|row| column(row, 0)).transpose()?;
        Ok(event.map(EventId))
    }

    async fn blocked_lanes(
        &self,
        chat: Option<&str>,
        after: Option<EventId>,
        limit: usize,
    ) -> Result<Vec<BlockedLane>> {
        let of_chat = match chat {
            Some(chat) => self.lanes_of(chat).await?,
            None => Vec::new(),
        };
        let (sql, values) = (blocked::lanes(), blocked::values(of_chat, after, limit));
        let lanes = self.database.read(&sql, &values).await?;
        Ok(lanes.iter().map(blocked::lane).collect::<Result<_, _>>()?)
    }

    async fn actions(
        &self,
        which: Which,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<Action>> {
        let (sql, values) = actions::select(which, before, limit);
        let actions = self.database.read(sql, &values).await?;
        Ok(actions
            .iter()
            .map(actions::action)
            .collect::<Result<_, _>>()?)
    }
}

impl List {
    /// The numbers of those kinds of a filter, at its routes, that are known.
    async fn numbers_of(&self, filter: &Filter) -> Result<Vec<i64>> {
        let kinds = filter.kinds.iter().map(ToString::to_string).collect();
        let routes = filter.routes.iter().map(ToString::to_string).collect();
        let names = [kinds, routes].map(Value::Texts);
        let rows = self.database.read(KINDS, &names).await?;
        Ok(rows
            .iter()
            .map(|row| column(row, 0))
            .collect::<Result<_, _>>()?)
    }

    /// The lanes of a chat at all routes: at least one.
    async fn lanes_of(&self, chat: &str) -> Result<Vec<i64>> {
        let routes = self.database.read(ROUTES, &[]).await?;
        let lane = |row| Ok(Lane::at(&rows::route(row, 0)?, chat).0);
        Ok(routes.iter().map(lane).collect::<Result<_, Error>>()?)
    }

    /// Those of the numbers whose events can match by the time of their acceptance.
    async fn limits(
        &self,
        filter: &Filter,
        numbers: RangeInclusive<i64>,
    ) -> Result<RangeInclusive<i64>> {
        let row = self.database.read_one(NUMBERS, &[]).await?;
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
            let rows = self.database.read(FROM_NUMBER, &values);
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
        let rows = self.database.read(&search.next, &values).await?;
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
        let (rows, took) = self.database.search(&search.sql, &values).await?;
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

/// A call for an event with its body.
#[derive(Clone)]
struct Get(EventId);

impl Call for Get {
    type Return = Option<EventRecord>;
}

/// Reads events, and then their failures.
async fn records(database: &Database, get: &str, calls: Vec<Get>) -> Executed<Option<EventRecord>> {
    let ids = [Value::numbers(calls.iter().map(|Get(id)| id.0))];
    let read = async {
        let (events, _) = database.search(get, &ids).await?;
        let (failures, _) = database.search(FAILURES, &ids).await?;
        let mut others = Vec::new();
        for event in &events {
            if rows::item(event, rows::REST + 2)?.is_some() {
                (others, _) = database.search(OTHERS, &ids).await?;
                break;
            }
        }
        let mut found = HashMap::new();
        for event in &events {
            found.insert(column::<i64>(event, rows::NUMBER)?, (event, Vec::new()));
        }
        for failure in &failures {
            if let Some((_, failures)) = found.get_mut(&column::<i64>(failure, 5)?) {
                failures.push(failure);
            }
        }
        let records = calls.iter().map(|Get(id)| {
            let found = found.get(&id.0);
            Ok(found
                .map(|(event, failures)| record(event, failures, &others))
                .transpose()?)
        });
        Ok(records.collect())
    };
    let read: Result<_> = read.await;
    Executed::Done(read.unwrap_or_else(|error| share(error, calls.len())))
}

fn record(event: &PgRow, failures: &[&PgRow], others: &[PgRow]) -> Result<EventRecord, Error> {
    let failures = failures
        .iter()
        .filter_map(|row| rows::failure(row).transpose());
    let failures: Vec<_> = failures.collect::<Result<_, _>>()?;
    let mut summary = rows::summary(event)?;
    let item = rows::item(event, rows::REST + 2)?;
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for row in others {
        let id = EventId(column(row, 2)?);
        let number = u32::try_from(column::<i32>(row, 1)?).map_err(corrupt)?;
        match EventId(column(row, 0)?) == summary.id {
            true if id < summary.id => before.push((number, id)),
            true => after.push((number, id)),
            false => {}
        }
    }
    before.reverse();
    let others = nearest(before, after);
    // The event may have failed between the two statements.
    summary.last_failure = failures.last().cloned();
    Ok(EventRecord {
        summary,
        body: column::<Option<Vec<u8>>>(event, rows::REST)?.map(Into::into),
        headers: rows::headers(event, rows::REST + 1)?,
        others,
        item,
        failures,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::queue::search::{STEP, STEP_OF_BODIES};

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
