//! Attempts end, those of concurrent calls by one statement, and their leases are extended.

use std::future::Future;
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::PgRow;
use tokio::time::{sleep, timeout};

use super::batches::{Batches, Call, Executed, Release, Result, Row};
use super::database::Database;
use super::parameters::{failures, handles, kinds, sort, unsort};
use super::rows;
use crate::inbox::event::{EventLease, Failure, Kinds, Settlement, Take, uncounted};
use crate::inbox::queue::{SettleEvents, Settled};
use crate::postgres::engine::{Value, column, micros};
use crate::store::OpenError as Error;

/// Many attempts at once, in their order. Not the function limits the time for locks, as the transactions of handlers
/// call it, too.
const SETTLE: &str = "
    SELECT
        o_is_held, o_seq, o_fence, o_place, o_is_in_lane, o_route, o_kind, o_key, o_body, o_headers, o_accepted,
        o_is_redriven, o_failures, o_crashes, o_tried_for, o_uncounted, o_delivery, o_item, o_items, o_kept
    FROM (SELECT set_config('lock_timeout', '400ms', true), {schema}.begin_call($18)) AS c (time, call)
    CROSS JOIN LATERAL {schema}.settle(CASE WHEN c.time <> c.call THEN $1::bigint[] END, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)
    ORDER BY o_at";

const EXTEND: &str = "SELECT {schema}.extend($1, $2, $3, $4)";

#[cfg(test)]
pub(super) const STATEMENTS: &[&str] = &[SETTLE, EXTEND];

/// How long it may take to release an event that nobody waits for, and the pause after a try that failed.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(60);
const RELEASE_PAUSE: Duration = Duration::from_millis(200);

pub(super) struct Settle {
    database: Arc<Database>,
    calls: Arc<Batches<End>>,
}

impl Settle {
    pub(super) fn new(database: &Arc<Database>) -> Self {
        Self {
            database: Arc::clone(database),
            calls: database.batches(|database, calls| async move { database.end(calls).await }),
        }
    }
}

#[async_trait]
impl SettleEvents for Settle {
    async fn settle(
        &self,
        lease: &EventLease,
        settlement: &Settlement,
        next: Option<&Take>,
    ) -> Result<Settled> {
        let end = End {
            lease: *lease,
            settlement: settlement.clone(),
            next: next.cloned(),
        };
        let mut settled = self.calls.call(end).await?;
        if let Settled::Ended(Some(next)) = &mut settled {
            self.database.lend(next);
        }
        Ok(settled)
    }

    async fn extend(&self, leases: &[EventLease], lease: Duration) -> Result<Vec<Option<bool>>> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let mut leases = leases.to_vec();
        let order = sort(&mut leases, |lease| (lease.place, lease.id));
        let [ids, fences, places] = handles(leases.iter());
        let values = [ids, fences, places, Value::Number(micros(lease))];
        let rows = self.database.call(EXTEND, values).await?;
        let held = rows.iter().map(|row| column(row, 0));
        Ok(unsort(held.collect::<Result<_, _>>()?, &order))
    }
}

impl Database {
    /// Collects calls that share a statement.
    pub(super) fn batches<C: Call, F>(
        self: &Arc<Self>,
        execute: impl Fn(Arc<Self>, Vec<C>) -> F + Send + Sync + 'static,
    ) -> Arc<Batches<C>>
    where
        F: Future<Output = Executed<C::Return>> + Send + 'static,
    {
        let database = Arc::clone(self);
        let execute = move |calls| execute(Arc::clone(&database), calls);
        Batches::new(execute, self.locked(), self.release())
    }

    /// Gives up events that nobody waits for.
    pub(super) fn release(self: &Arc<Self>) -> Release {
        let database = Arc::clone(self);
        Arc::new(move |leases: Vec<EventLease>| {
            let database = Arc::clone(&database);
            let released = leases.into_iter().map(|lease| End {
                lease,
                settlement: Settlement::Released,
                next: None,
            });
            let released: Vec<_> = released.collect();
            Box::pin(async move {
                let release = async {
                    loop {
                        match database.end(released.clone()).await {
                            Executed::Done(ends) if ends.iter().all(Result::is_ok) => return,
                            // One that was released is lost then.
                            Executed::Done(_) | Executed::Blocked => sleep(RELEASE_PAUSE).await,
                        }
                    }
                };
                // One that cannot be released is taken again when its lease expires.
                let _ = timeout(RELEASE_TIMEOUT, release).await;
            })
        })
    }

    /// Makes an event a dead letter that cannot be read. One for which that fails comes again.
    pub(super) async fn bury(&self, lease: EventLease) {
        let failure = Failure::new("unreadable", "the event cannot be read from the inbox");
        let end = End {
            lease,
            settlement: Settlement::Dead {
                failure,
                hold_lane: false,
            },
            next: None,
        };
        self.end(vec![end]).await;
    }

    async fn end(&self, mut calls: Vec<End>) -> Executed<Settled> {
        // Events without a lane have one place. Renewals lock rows in the same order.
        let order = sort(&mut calls, |call| (call.lease.place, call.lease.id));
        let settled = self.execute(SETTLE, &calls, values, |_, rows| settled(&rows[0]));
        settled.await.unsort(&order)
    }
}

/// An attempt to be ended.
#[derive(Clone)]
struct End {
    lease: EventLease,
    settlement: Settlement,
    next: Option<Take>,
}

impl Call for End {
    type Return = Settled;

    const TAKES: bool = true;

    fn kinds(&self) -> Option<&Kinds> {
        self.next.as_ref().map(|next| &next.kinds)
    }

    fn rows(&self) -> impl Iterator<Item = Row> {
        let EventLease { id, place, .. } = self.lease;
        iter::once((place, if place == 0 { id.0 } else { 0 }))
    }

    fn lease(settled: &Settled) -> Option<EventLease> {
        match settled {
            Settled::Ended(taken) => taken.as_ref().map(|taken| taken.lease),
            Settled::Lost => None,
        }
    }
}

/// The name of an end in the schema.
fn name(settlement: &Settlement) -> &'static str {
    match settlement {
        Settlement::Released => "released",
        Settlement::Retry { .. } => "retry",
        Settlement::Handled => "handled",
        Settlement::Ignored => "ignored",
        Settlement::Discarded(_) => "discarded",
        Settlement::Dead { .. } => "dead",
    }
}

fn values(calls: &[End]) -> Vec<Value> {
    let settlements = || calls.iter().map(|end| &end.settlement);
    let flags = |flag: fn(&Settlement) -> bool| Value::Flags(settlements().map(flag).collect());
    let [ids, fences, places] = handles(calls.iter().map(|end| &end.lease));
    let names = settlements().map(|end| name(end).to_owned());
    let afters = settlements().map(|settlement| match settlement {
        Settlement::Retry { after, .. } => Some(micros(*after)),
        _ => None,
    });
    let uncounted = settlements().map(|settlement| match settlement {
        Settlement::Retry {
            counts: false,
            is_slowed,
            ..
        } => Some(uncounted(*is_slowed).into()),
        _ => Some(0),
    });
    let blocks = |end: &Settlement| match end {
        Settlement::Retry { blocks_lane, .. } => *blocks_lane,
        _ => false,
    };
    let holds = |end: &Settlement| match end {
        Settlement::Dead { hold_lane, .. } => *hold_lane,
        _ => false,
    };
    let leases = calls
        .iter()
        .map(|end| end.next.as_ref().map(|next| micros(next.lease)));
    let route = |end: &End| Some(end.kinds()?.route.to_string());
    let routes = calls.iter().map(|end| route(end).unwrap_or_default());
    // All that have those of a route have the same ones.
    let mut next: Vec<_> = calls.iter().filter_map(End::kinds).collect();
    next.sort_by_key(|kinds| &kinds.route);
    next.dedup();
    let [limited, only, except] = kinds(next);
    let [outcomes, reasons, took, shapes] =
        failures(settlements().map(|settlement| match settlement {
            Settlement::Discarded(failure) | Settlement::Dead { failure, .. } => Some(failure),
            Settlement::Retry { failure, .. } => failure.as_ref(),
            Settlement::Handled | Settlement::Ignored | Settlement::Released => None,
        }));
    vec![
        ids,
        fences,
        places,
        Value::Texts(names.collect()),
        Value::Numbers(afters.collect()),
        Value::Numbers(uncounted.collect()),
        flags(blocks),
        flags(holds),
        Value::Numbers(leases.collect()),
        Value::Texts(routes.collect()),
        limited,
        only,
        except,
        outcomes,
        reasons,
        took,
        shapes,
    ]
}

fn settled(row: &PgRow) -> Result<Settled, Error> {
    Ok(match column(row, 0)? {
        true => Settled::Ended(rows::readable(row, 1)?.map(Box::new)),
        false => Settled::Lost,
    })
}
