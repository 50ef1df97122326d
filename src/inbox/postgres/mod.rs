//! The queue in PostgreSQL, on sqlx.

mod rows;
mod statements;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::postgres::{PgPool, PgRow};

use self::statements::Statements;
use super::event::{
    EventId, EventLease, EventRecord, EventSummary, Failure, Filter, Kinds, NewEvent, Page,
    Settlement, Take, TakenEvent,
};
use super::queue::{Accepted, Change, Claims, KindStats, Queue, Settled, Stats};
use crate::config::ConfigError;
use crate::event::EventKind;
use crate::storage::Error;
use crate::storage::postgres::{
    self, List, Pool, Schema, Uuid, Value, code, column, corrupt, micros,
};
use crate::store::postgres::MIGRATIONS;
use crate::store::{EventKey, Fence, OpenError, StoreError};

/// Keeps events in PostgreSQL.
///
/// Clones share their pool.
#[derive(Clone)]
pub struct PostgresQueue {
    pool: Pool,
    shared: Arc<Shared>,
}

struct Shared {
    schema: Schema,
    statements: Statements,
    /// Whether transactions have another isolation level by default than the one that the functions need.
    begins: AtomicBool,
}

impl PostgresQueue {
    /// Keeps the events in the schema `tower_webhook` of the pool's database.
    ///
    /// Call [`migrate`](Self::migrate) before the first delivery.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        Self::in_schema(Pool::new(pool), Schema::default())
    }

    /// Keeps the events in another schema, of any name that PostgreSQL allows: it is quoted, so upper
    /// and lower case differ.
    ///
    /// # Errors
    ///
    /// [`ConfigError::SchemaName`] when the name is empty, longer than 63 bytes, contains a NUL, or
    /// begins with `pg_`, which PostgreSQL reserves.
    pub fn with_schema(self, name: impl Into<String>) -> Result<Self, ConfigError> {
        Ok(Self::in_schema(self.pool, Schema::new(name.into())?))
    }

    fn in_schema(pool: Pool, schema: Schema) -> Self {
        Self {
            pool,
            shared: Arc::new(Shared {
                statements: Statements::new(&schema),
                schema,
                begins: AtomicBool::new(false),
            }),
        }
    }

    /// Creates the schema and its tables, or upgrades those of an earlier release.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached, the right is missing, or the schema was made by a later
    /// release of this crate. [`OpenError::kind`] distinguishes these, and the error says what to do.
    ///
    /// A `synchronous_commit` of `off` is only a warning in the log.
    pub async fn migrate(&self) -> Result<(), OpenError> {
        let (pool, schema) = (self.pool.connections(), &self.shared.schema);
        postgres::migrate(pool, schema, &MIGRATIONS).await?;
        self.pool.warn_if_commits_can_be_lost().await;
        Ok(())
    }

    /// Executes a statement that calls a function of the schema, and returns its rows.
    async fn call(&self, sql: &Arc<str>, values: &[Value]) -> Result<Vec<PgRow>, StoreError> {
        let begins = &self.shared.begins;
        if !begins.load(Ordering::Relaxed) {
            match self.pool.fetch_all(sql, values).await {
                Err(error) if code(&error).as_deref() == Some(NOT_READ_COMMITTED) => {
                    begins.store(true, Ordering::Relaxed);
                }
                result => return result.map_err(|error| self.error(error)),
            }
        }
        let rows = self.pool.fetch_committed(sql, values).await;
        rows.map_err(|error| self.error(error))
    }

    async fn call_one(&self, sql: &Arc<str>, values: &[Value]) -> Result<PgRow, StoreError> {
        one(self.call(sql, values).await?)
    }

    /// Executes a statement that only reads.
    async fn read(&self, sql: &Arc<str>, values: &[Value]) -> Result<Vec<PgRow>, StoreError> {
        let rows = self.pool.fetch_all(sql, values).await;
        rows.map_err(|error| self.error(error))
    }

    async fn change(&self, sql: &Arc<str>, id: EventId) -> Result<Change, StoreError> {
        let row = self.call_one(sql, &[Value::Number(id.0)]).await?;
        match column::<i32>(&row, 0)? {
            0 => Ok(Change::Made),
            1 => Ok(Change::NotFound),
            2 => Ok(Change::WrongState),
            3 => Ok(Change::WithoutBody),
            _ => Err(corrupt("an unknown answer to a change").into()),
        }
    }

    fn error(&self, error: sqlx::Error) -> StoreError {
        postgres::error(error, &self.shared.schema).into()
    }
}

impl fmt::Debug for PostgresQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresQueue")
            .field("schema", &self.shared.schema.name())
            .finish_non_exhaustive()
    }
}

impl Queue for PostgresQueue {
    const SHARED: bool = true;

    async fn accept(&self, event: NewEvent, take: Option<&Take>) -> Result<Accepted, StoreError> {
        let lease = take
            .filter(|take| take.kinds.contains(event.delivery.kind()))
            .map(|take| micros(take.lease));
        let values = accept_values(&[(event.clone(), lease)]);
        let row = self.call_one(&self.shared.statements.accept, &values);
        Ok(accepted(&event, &row.await?)?)
    }

    async fn claim(
        &self,
        take: &Take,
        limit: usize,
        suspects: usize,
    ) -> Result<Claims, StoreError> {
        let [only, except] = kinds(Some(&take.kinds));
        let values = [
            Value::Number(micros(take.lease)),
            only,
            except,
            number(limit),
            number(suspects),
        ];
        let mut rows = self.call(&self.shared.statements.claim, &values).await?;
        let last = rows.pop().ok_or_else(|| corrupt("a claim without a row"))?;
        let events = rows.iter().map(|row| {
            let taken = rows::taken(row, 0)?;
            taken.ok_or_else(|| corrupt("an event without a number"))
        });
        Ok(Claims {
            events: events.collect::<Result<_, Error>>()?,
            next_due: rows::duration(&last, 11)?,
        })
    }

    async fn extend(
        &self,
        leases: &[EventLease],
        lease: Duration,
    ) -> Result<Vec<bool>, StoreError> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        // In the order of lanes, so that two of these do not wait for each other.
        let mut sorted: Vec<_> = (0..leases.len()).collect();
        sorted.sort_by_key(|at| (leases[*at].place, leases[*at].id));
        let leases = sorted.iter().map(|at| &leases[*at]);
        let [ids, fences, places] = handles(leases);
        let values = [ids, fences, places, Value::Number(micros(lease))];
        let rows = self.call(&self.shared.statements.extend, &values).await?;
        let mut held = vec![false; sorted.len()];
        for (at, row) in sorted.into_iter().zip(&rows) {
            held[at] = column(row, 0)?;
        }
        Ok(held)
    }

    async fn settle(
        &self,
        lease: &EventLease,
        settlement: &Settlement,
        next: Option<&Take>,
    ) -> Result<Settled, StoreError> {
        let ends = [(*lease, settlement, next.map(|next| micros(next.lease)))];
        let values = settle_values(&ends, next.map(|next| &next.kinds));
        let row = self.call_one(&self.shared.statements.settle, &values);
        Ok(settled(&row.await?)?)
    }

    async fn list(&self, filter: &Filter, page: Page) -> Result<Vec<EventSummary>, StoreError> {
        let (sql, values) = Statements::list(&self.shared.schema, filter, page);
        let rows = self.read(&sql, &values).await?;
        Ok(rows.iter().map(rows::summary).collect::<Result<_, _>>()?)
    }

    async fn get(&self, id: EventId) -> Result<Option<EventRecord>, StoreError> {
        let statements = &self.shared.statements;
        let values = [Value::Number(id.0)];
        let event = self.read(&statements.get, &values).await?;
        let Some(event) = event.first() else {
            return Ok(None);
        };
        let failures = self.read(&statements.failures, &values).await?;
        Ok(Some(EventRecord {
            summary: rows::summary(event)?,
            body: column::<Option<Vec<u8>>>(event, 10)?.map(Into::into),
            failures: failures
                .iter()
                .map(rows::failure)
                .collect::<Result<_, _>>()?,
        }))
    }

    async fn redrive(&self, id: EventId) -> Result<Change, StoreError> {
        self.change(&self.shared.statements.redrive, id).await
    }

    async fn discard(&self, id: EventId) -> Result<Change, StoreError> {
        self.change(&self.shared.statements.discard, id).await
    }

    async fn forget(&self, chat: &str) -> Result<u64, StoreError> {
        let values = [rows::bytes(chat.as_bytes())];
        let row = self.call_one(&self.shared.statements.forget, &values);
        Ok(column::<i64>(&row.await?, 0)?.unsigned_abs())
    }

    async fn pause(&self, kind: Option<&EventKind>, paused: bool) -> Result<(), StoreError> {
        let kind = kind.map(ToString::to_string).unwrap_or_default();
        let values = [Value::Text(kind), Value::Number(paused.into())];
        self.read(&self.shared.statements.pause, &values).await?;
        Ok(())
    }

    async fn purge(&self, keep_bodies: Duration) -> Result<bool, StoreError> {
        let values = [
            Value::Number(micros(keep_bodies)),
            Value::Number(EVENTS_PER_STEP),
        ];
        let row = self.call_one(&self.shared.statements.purge, &values);
        Ok(column(&row.await?, 0)?)
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        let mut stats = Stats::default();
        for row in self.read(&self.shared.statements.stats, &[]).await? {
            let name: &str = column(&row, 0)?;
            let is_paused = column(&row, 6)?;
            if name.is_empty() {
                stats.is_paused = is_paused;
                continue;
            }
            let count = |at| column::<i64>(&row, at).map(i64::unsigned_abs);
            stats.kinds.push(KindStats {
                kind: EventKind::from_bytes(name.as_bytes()).map_err(corrupt)?,
                waiting: count(1)?,
                in_progress: count(2)?,
                retrying: count(3)?,
                dead: count(4)?,
                oldest: column::<Option<i64>>(&row, 5)?.map(rows::time),
                is_paused,
            });
        }
        stats.kinds.sort_by(|a, b| a.kind.cmp(&b.kind));
        Ok(stats)
    }

    async fn size(&self) -> Result<u64, StoreError> {
        let values = [Value::Text(self.shared.schema.table("events"))];
        let row = one(self.read(&self.shared.statements.size, &values).await?)?;
        Ok(column::<i64>(&row, 0)?.unsigned_abs())
    }
}

/// What the functions fail with where transactions are repeatable reads or serializable by default.
const NOT_READ_COMMITTED: &str = "TW001";

/// How many events a step of purging deletes, or deletes the bodies of.
const EVENTS_PER_STEP: i64 = 1000;

fn one(mut rows: Vec<PgRow>) -> Result<PgRow, StoreError> {
    let row = rows.pop();
    row.ok_or_else(|| corrupt("an answer without a row").into())
}

fn number(count: usize) -> Value {
    Value::Number(i64::try_from(count).unwrap_or(i64::MAX))
}

/// The parameters that select kinds.
fn kinds(kinds: Option<&Kinds>) -> [Value; 2] {
    let names = |kinds: &std::collections::BTreeSet<EventKind>| {
        kinds.iter().map(ToString::to_string).collect()
    };
    let (only, except) = kinds.map_or((None, Vec::new()), |kinds| {
        let (only, except) = kinds.parts();
        (only.map(names), names(except))
    });
    [only, Some(except)].map(|names| Value::List(List::Texts(names)))
}

/// The parameters by which events in progress are found.
fn handles<'a>(leases: impl Iterator<Item = &'a EventLease> + Clone) -> [Value; 3] {
    [
        List::Numbers(leases.clone().map(|lease| Some(lease.id.0)).collect()),
        List::Ids(leases.clone().map(|lease| Some(lease.fence.0)).collect()),
        List::Numbers(leases.map(|lease| Some(lease.place)).collect()),
    ]
    .map(Value::List)
}

/// The parameters of outcomes and reasons.
fn failures<'a>(failures: impl Iterator<Item = Option<&'a Failure>> + Clone) -> [Value; 2] {
    let texts = |text: fn(&Failure) -> &String| {
        let texts = failures.clone();
        List::Bytes(
            texts
                .map(|failure| failure.map(|failure| text(failure).clone().into()))
                .collect(),
        )
    };
    [
        texts(|failure| &failure.outcome),
        texts(|failure| &failure.reason),
    ]
    .map(Value::List)
}

/// The parameters of events that are accepted, each with the time of its lease if it may be taken.
fn accept_values(events: &[(NewEvent, Option<i64>)]) -> Vec<Value> {
    fn ids(events: &[(NewEvent, Option<i64>)], id: impl Fn(&NewEvent) -> Option<u128>) -> Value {
        Value::List(List::Ids(
            events.iter().map(|(event, _)| id(event)).collect(),
        ))
    }
    let all = || events.iter().map(|(event, _)| event);
    let [outcomes, reasons] = failures(all().map(|event| event.dead.as_ref()));
    let kinds = all().map(|event| event.delivery.kind().to_string());
    let keys = all().map(|event| {
        let key = event.delivery.key();
        key.map(|key| bytes::Bytes::copy_from_slice(key.as_bytes()))
    });
    let chats = all().map(|event| event.chat.clone().map(Into::into));
    let lanes = all().map(|event| event.lane.map(|lane| lane.0));
    let bodies = all().map(|event| Some(event.delivery.body().clone()));
    vec![
        ids(events, |event| event.key.as_ref().map(EventKey::key)),
        ids(events, |event| event.key.as_ref().map(EventKey::body)),
        ids(events, |event| event.guard.as_ref().map(EventKey::key)),
        ids(events, |event| event.guard.as_ref().map(EventKey::body)),
        Value::List(List::Texts(Some(kinds.collect()))),
        Value::List(List::Bytes(keys.collect())),
        Value::List(List::Bytes(chats.collect())),
        Value::List(List::Numbers(lanes.collect())),
        Value::List(List::Bytes(bodies.collect())),
        Value::List(List::Numbers(
            all().map(|event| Some(micros(event.retain))).collect(),
        )),
        outcomes,
        reasons,
        Value::List(List::Numbers(
            events.iter().map(|(_, lease)| *lease).collect(),
        )),
    ]
}

fn accepted(event: &NewEvent, row: &PgRow) -> Result<Accepted, Error> {
    match column::<i16>(row, 0)? {
        0 => {}
        1 => {
            return Ok(Accepted::Duplicate {
                same_body: column(row, 1)?,
            });
        }
        2 => {
            let remaining = rows::duration(row, 2)?.unwrap_or_default();
            // It may have ended while the statement was executed.
            return Ok(Accepted::InFlight {
                remaining: remaining.max(Duration::from_micros(1)),
            });
        }
        3 => return Ok(Accepted::BodyReplayed),
        _ => return Err(corrupt("an unknown answer to an acceptance")),
    }
    let id = EventId(column(row, 3)?);
    let fence: Option<Uuid> = column(row, 5)?;
    let Some(Uuid(fence)) = fence else {
        return Ok(Accepted::New { id, taken: None });
    };
    let delivery = event
        .delivery
        .clone()
        .with_attempt(std::num::NonZeroU32::MIN)
        .with_acceptance(rows::time(column(row, 4)?), false);
    let taken = TakenEvent {
        lease: EventLease {
            id,
            fence: Fence(fence),
            place: event.lane.map_or(0, |lane| lane.0),
        },
        delivery,
        lane: event.lane,
        failures: 0,
        crashes: 0,
        tried_for: None,
    };
    Ok(Accepted::New {
        id,
        taken: Some(Box::new(taken)),
    })
}

/// The parameters of attempts that end, each with the time of the lease under which the lane's next event may be taken.
fn settle_values(
    ends: &[(EventLease, &Settlement, Option<i64>)],
    next: Option<&Kinds>,
) -> Vec<Value> {
    let settlements = || ends.iter().map(|(_, settlement, _)| *settlement);
    let flags =
        |flag: fn(&Settlement) -> bool| Value::List(List::Flags(settlements().map(flag).collect()));
    let numbers = |number: fn(&Settlement) -> i64| {
        Value::List(List::Numbers(
            settlements().map(|end| Some(number(end))).collect(),
        ))
    };
    let [ids, fences, places] = handles(ends.iter().map(|(lease, ..)| lease));
    let [outcomes, reasons] = failures(settlements().map(|settlement| match settlement {
        Settlement::Discarded(failure) | Settlement::Dead { failure, .. } => Some(failure),
        Settlement::Retry { failure, .. } => failure.as_ref(),
        Settlement::Handled | Settlement::Ignored | Settlement::Released => None,
    }));
    let [only, except] = kinds(next);
    vec![
        ids,
        fences,
        places,
        // The state that follows, in the numbers of `rows::code`.
        numbers(|settlement| match settlement {
            Settlement::Released => 0,
            Settlement::Retry { .. } => 2,
            Settlement::Handled => 3,
            Settlement::Ignored => 4,
            Settlement::Discarded(_) => 5,
            Settlement::Dead { .. } => 6,
        }),
        numbers(|settlement| match settlement {
            Settlement::Retry { after, .. } => micros(*after),
            _ => 0,
        }),
        outcomes,
        reasons,
        flags(|settlement| matches!(settlement, Settlement::Retry { counts: true, .. })),
        flags(|settlement| {
            matches!(
                settlement,
                Settlement::Retry {
                    blocks_lane: true,
                    ..
                }
            )
        }),
        flags(|settlement| {
            matches!(
                settlement,
                Settlement::Dead {
                    hold_lane: true,
                    ..
                }
            )
        }),
        Value::List(List::Numbers(
            ends.iter().map(|(.., lease)| *lease).collect(),
        )),
        only,
        except,
    ]
}

fn settled(row: &PgRow) -> Result<Settled, Error> {
    Ok(match column(row, 0)? {
        true => Settled::Ended(rows::taken(row, 1)?.map(Box::new)),
        false => Settled::Lost,
    })
}
