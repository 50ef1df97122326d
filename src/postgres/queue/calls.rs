//! The calls that share statements.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgRow;
use tokio::time::timeout;

use super::batches::{Batches, Call, Execution, share};
use super::{PostgresQueue, Shared, parameters, rows};
use crate::inbox::event::{EventLease, Kinds, NewEvent, Settlement, Take};
use crate::inbox::queue::{Accepted, Settled};
use crate::postgres::pool::{Value, code, corrupt};
use crate::store::StoreError;
use crate::store::engine::Error;

/// An event to be accepted, and the time of its lease if it may be taken.
#[derive(Clone)]
pub(super) struct Acceptance {
    pub(super) event: NewEvent,
    pub(super) lease: Option<i64>,
}

impl Call for Acceptance {
    type Return = Accepted;

    fn kinds(&self) -> Option<&Kinds> {
        None
    }
}

/// An attempt to be ended.
#[derive(Clone)]
pub(super) struct End {
    pub(super) lease: EventLease,
    pub(super) settlement: Settlement,
    pub(super) next: Option<Take>,
}

impl Call for End {
    type Return = Settled;

    fn kinds(&self) -> Option<&Kinds> {
        self.next.as_ref().map(|next| &next.kinds)
    }
}

impl PostgresQueue {
    /// Executes the statements of calls until none waits.
    pub(super) async fn run<C, F>(
        self,
        batches: fn(&Shared) -> &Batches<C>,
        execute: fn(Self, Vec<C>) -> F,
    ) where
        C: Call,
        F: Future<Output = Vec<Result<C::Return, StoreError>>> + Send + 'static,
    {
        let queue = self.clone();
        let release = move |leases| queue.clone().release(leases);
        let execute = |calls| -> Execution<C::Return> { Box::pin(execute(self.clone(), calls)) };
        batches(&self.shared).run(execute, release).await;
    }

    /// Gives up events that nobody waits for.
    pub(super) async fn release(self, leases: Vec<EventLease>) {
        let released = leases.into_iter().map(|lease| End {
            lease,
            settlement: Settlement::Released,
            next: None,
        });
        // One that cannot be released is taken again when its lease expires.
        let _ = timeout(RELEASE_TIMEOUT, self.settle_all(released.collect())).await;
    }

    /// Accepts events by one statement.
    pub(super) async fn accept_all(
        self,
        mut calls: Vec<Acceptance>,
    ) -> Vec<Result<Accepted, StoreError>> {
        let order = sort(&mut calls, |call| call.event.lane.map(|lane| lane.0));
        let accepted = self.execute(
            &self.shared.statements.accept,
            &calls,
            parameters::accept,
            rows::accepted,
        );
        unsort(accepted.await, &order)
    }

    /// Ends attempts by one statement.
    pub(super) async fn settle_all(self, mut calls: Vec<End>) -> Vec<Result<Settled, StoreError>> {
        // Events without a lane have one place. Renewals lock rows in the same order.
        let order = sort(&mut calls, |call| (call.lease.place, call.lease.id));
        let settled = self.execute(
            &self.shared.statements.settle,
            &calls,
            parameters::settle,
            |_, row| rows::settled(row),
        );
        unsort(settled.await, &order)
    }

    /// Executes one statement for several calls, with a row for each.
    async fn execute<C: Call>(
        &self,
        sql: &Arc<str>,
        calls: &[C],
        values: fn(&[C]) -> Vec<Value>,
        returned: fn(&C, &PgRow) -> Result<C::Return, Error>,
    ) -> Vec<Result<C::Return, StoreError>> {
        let rows = match self.try_call(sql, &values(calls)).await {
            // What the server cannot store is not the fault of the others.
            Err(error) if calls.len() > 1 && is_of_a_value(&error) => {
                let mut results = Vec::new();
                for call in calls {
                    let row = self
                        .call_one(sql, &values(std::slice::from_ref(call)))
                        .await;
                    results.push(row.and_then(|row| Ok(returned(call, &row)?)));
                }
                return results;
            }
            Err(error) => return share(self.error(error), calls.len()),
            Ok(rows) => rows,
        };
        if rows.len() != calls.len() {
            let error = corrupt("a statement that did not return a row for each call");
            return share(error.into(), calls.len());
        }
        let results = calls.iter().zip(&rows);
        results
            .map(|(call, row)| Ok(returned(call, row)?))
            .collect()
    }
}

/// Whether the server refused a value, and would take the others.
fn is_of_a_value(error: &sqlx::Error) -> bool {
    let code = code(error).unwrap_or_default();
    ["22", "23", "54"]
        .iter()
        .any(|class| code.starts_with(class))
}

/// How long it may take to release an event that nobody waits for.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// Sorts calls by their lanes, so that no two statements wait for each other, and returns where each one was.
fn sort<C, K: Ord>(calls: &mut [C], lane: impl Fn(&C) -> K) -> Vec<usize> {
    let mut order: Vec<_> = (0..calls.len()).collect();
    order.sort_by_key(|at| lane(&calls[*at]));
    calls.sort_by_key(lane);
    order
}

/// Returns results to the places of their calls.
fn unsort<R>(results: Vec<R>, order: &[usize]) -> Vec<R> {
    let mut results: Vec<_> = order.iter().zip(results).collect();
    results.sort_by_key(|(at, _)| **at);
    results.into_iter().map(|(_, result)| result).collect()
}
