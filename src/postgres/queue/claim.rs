//! Events are claimed. The caller of a claim may give up in the middle of it.

use std::future::{Future, pending};
use std::mem;
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::batches::{GRACE, Release, Result};
use super::database::{Connected, Database};
use super::floors::{Floor, Floors, LONGEST_LOOK};
use super::{parameters, rows};
use crate::error::Chain;
use crate::inbox::event::{EventId, Share, Take, TakenEvent};
use crate::inbox::queue::{ClaimEvents, Claims};
use crate::postgres::engine::{Value, corrupt, micros};
use crate::store::StoreError;

const CLAIM: &str = "
    SELECT o.* FROM (SELECT {schema}.begin_call($20)) AS c (call)
    CROSS JOIN LATERAL {schema}.claim(
        CASE WHEN c.call IS NOT NULL THEN $1::text[] END, $2, $3, $4, $5, $6, $7, $8, $9, $10::integer[], $11, $12, $13,
        $14, $15, $16, $17, $18, $19
    ) AS o";

#[cfg(test)]
pub(super) const STATEMENTS: &[&str] = &[CLAIM];

/// The columns of the last row, which has no event.
const NEXT_DUE: usize = 19;
const FLOOR: usize = 20;
const TOOK: usize = 24;
const SET_BACK: usize = 25;

/// An event that cannot be read is a dead letter when this many leases of it have expired. A later release may read it.
const LAST_LOOK: i32 = 2;

/// The numbers of all events.
const ALL: RangeInclusive<i64> = i64::MIN..=i64::MAX;

#[derive(Clone)]
pub(super) struct Claim(Arc<Shared>);

struct Shared {
    database: Arc<Database>,
    floors: Floors,
    release: Release,
    /// One claim that was given up is waited for at a time.
    abandoned: Arc<Semaphore>,
}

impl Claim {
    pub(super) fn new(database: &Arc<Database>) -> Self {
        Self(Arc::new(Shared {
            database: Arc::clone(database),
            floors: Floors::default(),
            release: database.release(),
            abandoned: Arc::new(Semaphore::new(1)),
        }))
    }

    async fn connect(&self) -> Result<Connected> {
        let database = &self.0.database;
        database.give_up_unanswered();
        let connected = database.connect().await;
        connected.map_err(|error| database.error(error))
    }

    fn claiming(
        &self,
        execution: impl Future<Output = Result<Claims>> + Send + 'static,
    ) -> Claiming {
        Claiming {
            execution: Box::pin(execution),
            release: Arc::clone(&self.0.release),
            abandoned: Arc::clone(&self.0.abandoned),
            has_ended: false,
        }
    }

    /// Takes at most `limit` events of a range, from a floor on. Returns the next floor, too, and how long it took.
    async fn call(
        &self,
        connected: Connected,
        of: &[Share],
        [limit, suspects]: [usize; 2],
        floor: &Floor,
        events: RangeInclusive<i64>,
    ) -> Result<(Claims, Floor, Duration)> {
        let database = &self.0.database;
        let takes = || of.iter().map(|share| &share.take);
        let [limited, only, except] = parameters::kinds(takes().map(|take| &take.kinds));
        let mut values = vec![
            Value::Texts(takes().map(|take| take.kinds.route.to_string()).collect()),
            Value::numbers(takes().map(|take| micros(take.lease))),
            parameters::counts(of.iter().map(|share| share.busy)),
            parameters::counts(of.iter().map(|share| share.most)),
            limited,
            only,
            except,
            parameters::number(limit),
            parameters::number(suspects),
        ];
        values.extend(floor.values());
        values.extend([events.start(), events.end()].map(|id| Value::Number(*id)));
        values.extend(parameters::kind_shares(of));
        let mut rows = database.take(connected, CLAIM, values).await?;
        let last = rows.pop().ok_or_else(|| corrupt("a claim without a row"))?;
        let took = rows::duration(&last, TOOK)?.unwrap_or_default();
        if let Some(by) = rows::duration(&last, SET_BACK)?.filter(|by| !by.is_zero()) {
            tracing::warn!(
                ?by,
                "the clock of the PostgreSQL server was set back: the times at which events are due are set back, too"
            );
        }
        let found = Floor::read(&last, FLOOR)?;
        let mut events = Vec::with_capacity(rows.len());
        for row in &rows {
            if let Some(mut taken) = rows::readable(row, 0)? {
                database.lend(&mut taken);
                events.push(taken);
            } else if rows::crashes(row, 0)? >= LAST_LOOK
                && let Some(lease) = rows::lease(row, 0)?
            {
                database.bury(lease).await;
            }
        }
        let claims = Claims {
            events,
            next_due: rows::duration(&last, NEXT_DUE)?,
        };
        Ok((claims, found, took))
    }

    /// Looks for events below the floor, and takes none. Claims do not wait for it.
    async fn look(&self, of: &[Share]) {
        let (nothing, from) = ([0, 0], Floor::default());
        let look = async {
            let connected = self.connect().await?;
            self.call(connected, of, nothing, &from, ALL).await
        };
        let looked = timeout(LONGEST_LOOK, look).await;
        match looked.unwrap_or_else(|_| Err(StoreError::timed_out())) {
            Ok((_, found, took)) => self.0.floors.learn(of, &from, found, took),
            Err(error) => {
                tracing::warn!(
                    reason = Chain(&error).to_string(),
                    "the inbox could not look for events that became due late; it looks again in half a minute"
                );
                self.0.floors.look_failed(of);
            }
        }
    }
}

#[async_trait]
impl ClaimEvents for Claim {
    async fn claim(&self, of: &[Share], limit: usize, suspects: usize) -> Result<Claims> {
        let floors = &self.0.floors;
        if floors.begin_look(of) {
            let (claim, of) = (self.clone(), of.to_vec());
            tokio::spawn(async move { claim.look(&of).await });
        }
        let connected = self.connect().await?;
        let (claim, of, floor) = (self.clone(), of.to_vec(), floors.of(of));
        let execution = async move {
            let called = claim.call(connected, &of, [limit, suspects], &floor, ALL);
            let (claims, found, took) = called.await?;
            claim.0.floors.learn(&of, &floor, found, took);
            Ok(claims)
        };
        self.claiming(execution).await
    }

    async fn take(&self, id: EventId, take: &Take) -> Result<Option<TakenEvent>> {
        let connected = self.connect().await?;
        let (claim, of, from) = (self.clone(), [take.clone().into()], Floor::default());
        let execution = async move {
            let called = claim.call(connected, &of, [1, 1], &from, id.0..=id.0);
            let (claims, ..) = called.await?;
            Ok(claims)
        };
        Ok(self.claiming(execution).await?.events.pop())
    }
}

type Execution = Pin<Box<dyn Future<Output = Result<Claims>> + Send>>;

/// A claim that was sent. When it is dropped before its end, it waits a little for the server, and releases what was
/// taken: those events would be taken until their leases expire, and would count as crashed.
struct Claiming {
    execution: Execution,
    release: Release,
    abandoned: Arc<Semaphore>,
    has_ended: bool,
}

impl Future for Claiming {
    type Output = Result<Claims>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let claims = self.execution.as_mut().poll(cx);
        self.has_ended = claims.is_ready();
        claims
    }
}

impl Drop for Claiming {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        if let Ok(runtime) = Handle::try_current()
            && let Ok(permit) = Arc::clone(&self.abandoned).try_acquire_owned()
        {
            let execution = mem::replace(&mut self.execution, Box::pin(pending()));
            let release = Arc::clone(&self.release);
            runtime.spawn(async move {
                let claims = timeout(GRACE, execution).await;
                drop(permit);
                if let Ok(Ok(claims)) = claims
                    && !claims.events.is_empty()
                {
                    let leases = claims.events.iter().map(|event| event.lease);
                    release(leases.collect()).await;
                }
            });
        }
    }
}
